//! Calls: one question to a node, one answer, and on request how far it is meanwhile.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use http_body_util::Full;
use hub_protocol::kind::call::{Call, MAX_PARAMS, MAX_REPLY, Progress};
use hub_server::api::Problem;
use serde::Deserialize;
use tokio::time::timeout;

use super::lines::Lines;
use super::{Client, ClientError, PATIENCE, uri};

/// The media type of JSON lines.
pub(super) const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// A line of an answer that comes with progress. What else there may be is passed over.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct Line<T> {
    progress: Option<Progress>,
    // An answer may be `null`: here it matters whether it is there.
    #[serde(default, deserialize_with = "present")]
    reply: Option<T>,
    problem: Option<Problem>,
}

fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Client {
    /// Asks a node. A question that changes nothing is answered within a minute or given up; a
    /// change may take as long as it takes. Dropping the future cancels it on the node.
    pub async fn call<C: Call>(&self, node: &str, params: &C) -> Result<C::Reply, ClientError> {
        let asked = async {
            let request = request(node, params)?;
            let response = self.send(self.lasting().await?, request).await?;
            let answer = self.success(response).await?;
            serde_json::from_slice(&answer).map_err(|error| self.senseless(error.to_string()))
        };
        self.given::<C, _>(asked).await
    }

    /// Asks a node for something that takes long, and hears how far it is. Dropping the future
    /// cancels it on the node.
    pub async fn call_with_progress<C: Call>(
        &self,
        node: &str,
        params: &C,
        mut progress: impl FnMut(Progress),
    ) -> Result<C::Reply, ClientError> {
        let asked = async {
            let mut request = request(node, params)?;
            request.headers_mut().insert(header::ACCEPT, NDJSON);
            let response = self.send(self.lasting().await?, request).await?;
            let response = self.granted(response).await?;
            let mut lines = Lines::new(self.endpoint.clone(), response, MAX_REPLY + 64);
            while let Some(line) = lines.next().await? {
                let line: Line<C::Reply> = serde_json::from_slice(&line)
                    .map_err(|error| self.senseless(error.to_string()))?;
                match line {
                    Line {
                        problem: Some(problem),
                        ..
                    } => {
                        return Err(ClientError::Refused(Box::new(problem)));
                    }
                    Line {
                        reply: Some(reply), ..
                    } => return Ok(reply),
                    Line { progress: now, .. } => now.into_iter().for_each(&mut progress),
                }
            }
            Err(self.broken("it ended before the answer"))
        };
        self.given::<C, _>(asked).await
    }

    /// What is asked, as patient as its kind asks for; says of a change that got lost that nobody
    /// knows whether it was made.
    async fn given<C: Call, T>(
        &self,
        asked: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        if C::READS {
            return timeout(PATIENCE, asked)
                .await
                .unwrap_or_else(|_| Err(self.late()));
        }
        match asked.await {
            Err(ClientError::Broken { endpoint, reason }) => Err(ClientError::Broken {
                endpoint,
                reason: format!("{reason}; nobody knows whether {} was done", C::METHOD),
            }),
            answer => answer,
        }
    }
}

fn request<C: Call>(node: &str, params: &C) -> Result<Request<Full<Bytes>>, ClientError> {
    let params = hub_protocol::kind::to_json(params);
    if params.len() > MAX_PARAMS {
        return Err(ClientError::Request(format!(
            "{} takes {} KiB of parameters at most; these are {} bytes",
            C::METHOD,
            MAX_PARAMS / 1024,
            params.len()
        )));
    }
    Request::builder()
        .method(Method::POST)
        .uri(uri(&["nodes", node, "call", C::METHOD], None))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(params))
        .map_err(|error| ClientError::Request(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::call::image;

    use super::*;

    #[test]
    fn lines_of_an_answer_are_told_apart() {
        let line = |json| serde_json::from_str::<Line<Option<u8>>>(json).unwrap();
        assert_eq!(line(r#"{"reply":null}"#).reply, Some(None));
        assert_eq!(line(r#"{"reply":3,"more":1}"#).reply, Some(Some(3)));
        let text = r#"{"progress":{"id":"a","status":"Downloading","current":1,"total":null}}"#;
        assert_eq!(line(text).progress.unwrap().current, Some(1));
        let later = line(r#"{"hint":"of a later release"}"#);
        assert!(later.reply.is_none() && later.progress.is_none() && later.problem.is_none());
    }

    #[test]
    fn a_request_names_its_method_and_has_a_size() {
        let pull = |image: &str| image::Pull {
            image: image.into(),
            platform: None,
            registry: None,
        };
        let made = request("a b", &pull("x")).unwrap();
        assert_eq!(made.uri().path(), "/v1/nodes/a%20b/call/image.pull");
        let long = request("n", &pull(&"x".repeat(MAX_PARAMS)));
        assert!(matches!(long, Err(ClientError::Request(text)) if text.contains("120 KiB")));
    }
}

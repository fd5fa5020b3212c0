//! `GET /v1/nodes/{node}/build`: the build of an image behind a WebSocket.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use hub_protocol::NodeName;
use hub_protocol::kind;
use hub_protocol::kind::build::{Build, Built};
use hub_protocol::kind::call::image::Credentials;
use hub_quic::operation::Ended;
use tracing::Instrument as _;

use super::Api;
use super::channel::Finish;
use super::problem::{Kind, Problem, within};
use super::query::{Query, QueryError};
use super::registries;
use super::socket::{Carried, Upgrade};
use crate::hub::Begun;

/// Build an image on a node
///
/// Upgrades to a WebSocket with the subprotocol `v5.channel.k8s.io`, once the node takes the build.
/// Channel 0 is the context, a tar archive, which 255 with 0 ends; 1 the image as `docker save`
/// writes it, if it was asked for; 2 the progress, one JSON object a line; 3 the last word, a
/// `Status` of Kubernetes' `meta/v1` with the image's id among its causes. 255 with 0 from the
/// server says that no more of the context is wanted. Closing the connection stops the build.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/build", tag = "images",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("options" = Option<String>, Query, description = "A `Build` as JSON"),
        ("X-Registry-Config" = Option<String>, Header, description = "What to show registries: in base64, a JSON object with a registry's address for each key and `Credentials` for its value"),
    ),
    responses(
        (status = 101, description = "The build has begun; the WebSocket carries context, progress and image"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn build(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Result<Upgrade, Problem>,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let upgrade = upgrade?;
        let query = Query::parse(query.as_deref(), &["options"])?;
        let options = query.one("options")?.unwrap_or("{}");
        let build = parse(options, registries::of_request(&headers)?)?;
        let span = tracing::info_span!("build", %node);
        let ask = api.hub.ask(&node, &build).instrument(span.clone());
        let Begun {
            operation, node, ..
        } = upgrade.while_there(ask).await?.answered()?;
        let carried = Building { node };
        Ok(upgrade.carry(operation, carried, span))
    };
    within("build", run).await
}

/// The wish for a build: errors name the field that is wrong, and no value, which may be secret.
fn parse(options: &str, credentials: BTreeMap<String, Credentials>) -> Result<Build, QueryError> {
    let build: Build = kind::from_json_object("options", options.as_bytes())
        .map_err(|error| QueryError::Nonsense(error.to_string()))?;
    if !build.credentials.is_empty() {
        return Err(QueryError::Nonsense(
            "credentials are taken in the header X-Registry-Config: a URL may be logged, so take \
             those that stood in this one for known"
                .into(),
        ));
    }
    Ok(Build {
        credentials,
        ..build
    })
}

struct Building {
    node: NodeName,
}

impl Carried for Building {
    type Word = Finish;

    fn json(word: &Finish) -> Vec<u8> {
        word.to_json()
    }

    fn word(&self, done: Result<Bytes, Ended>) -> Finish {
        let node = &self.node;
        let image = |built: Built| Some(built.image);
        Finish::of(node, "build", done, image, |why| {
            format!("node {node}: what came of the build is unknown: {why}")
        })
    }

    fn cut(&self) -> Finish {
        let node = &self.node;
        let detail = format!("node {node}: the hub is stopping; the build is told to stop");
        let problem = Problem::new(Kind::OutcomeUnknown, detail).node(node.to_string());
        Finish::Failed(Box::new(problem.operation("build")))
    }

    fn abandoned(&self) -> &'static str {
        "the build is stopped"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::transfer::Ending;
    use hub_protocol::kind::{Failure, FailureCode};

    use super::*;

    fn word(done: Result<Bytes, Ended>) -> Finish {
        let node = "shop".parse().unwrap();
        Building { node }.word(done)
    }

    #[test]
    fn credentials_come_in_the_header_alone() {
        let shown = BTreeMap::from([("r.example".to_owned(), Credentials::default())]);
        let build = parse(r#"{"tags":["a"]}"#, shown.clone()).unwrap();
        assert_eq!((build.tags, build.credentials), (vec!["a".into()], shown));
        let options = r#"{"credentials":{"r.example":{"password":"hunter2"}}}"#;
        let refused = parse(options, BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains("X-Registry-Config"), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }

    #[test]
    fn only_a_complete_build_is_a_good_end() {
        let built = Built {
            image: "sha256:ab".into(),
        };
        let complete = word(Ok(kind::encode(&Ending::Complete(built))));
        let image = Some("sha256:ab".to_owned());
        assert_eq!(complete, Finish::Complete { image });
        let failure = Failure::new(FailureCode::BUILD_FAILED, "RUN false: code 1");
        let failed = Ok(kind::encode(&Ending::<Built>::Failed(failure)));
        for (done, kind) in [
            (failed, Kind::BuildFailed),
            (Ok(Bytes::new()), Kind::OutcomeUnknown),
            (Err(Ended::Lost("idle".into())), Kind::OutcomeUnknown),
        ] {
            let Finish::Failed(problem) = word(done) else {
                panic!("{kind:?}")
            };
            assert_eq!(problem.kind(), Some(kind));
            assert_eq!(problem.node.as_deref(), Some("shop"));
            assert!(problem.detail.contains("shop") && !problem.retry);
        }
    }
}

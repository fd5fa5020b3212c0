//! The last word on a WebSocket: how the operation ended, or why nobody can say. A `Status` of
//! Kubernetes' `meta/v1` as JSON, which clients of its exec understand.

use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;
use hub_protocol::NodeName;
use hub_protocol::kind;
use hub_protocol::kind::transfer::Ending;
use hub_quic::operation::Ended;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::problem::{Kind, Problem};

/// The numbers that a signal can have; a shell says 128 more.
pub const SIGNALS: RangeInclusive<i32> = 1..=127;

const REASON_EXIT: &str = "NonZeroExitCode";
const REASON_INTERNAL: &str = "InternalError";
const REASON_DETACHED: &str = "Detached";
const REASON_INTERRUPTED: &str = "Interrupted";
const CAUSE_EXIT: &str = "ExitCode";
const CAUSE_SIGNAL: &str = "Signal";
const CAUSE_IMAGE: &str = "Image";
const CAUSE_RETRY: &str = "Retry";
const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";

#[derive(Default, Serialize, Deserialize)]
struct MetaV1Status {
    #[serde(default)]
    metadata: Metadata,
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Default, Serialize, Deserialize)]
struct Metadata {}

#[derive(Serialize, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Serialize, Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl MetaV1Status {
    fn success() -> Self {
        Self {
            status: SUCCESS.into(),
            ..Self::default()
        }
    }

    fn failure(message: String, reason: &str, code: Option<i32>) -> Self {
        Self {
            status: FAILURE.into(),
            message,
            reason: reason.into(),
            code,
            ..Self::default()
        }
    }

    fn cause(mut self, reason: &str, message: &impl ToString) -> Self {
        let details = self.details.get_or_insert(Details { causes: Vec::new() });
        details.causes.push(Cause {
            reason: reason.into(),
            message: message.to_string(),
        });
        self
    }

    fn caused(&self, reason: &str) -> Option<&str> {
        let causes = &self.details.as_ref()?.causes;
        let cause = causes.iter().find(|cause| cause.reason == reason)?;
        Some(&cause.message)
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys")
    }

    fn from_json(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|error| format!("the last word can't be read: {error}"))
    }
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastWord {
    /// The command exited with this code.
    Exited(i32),
    /// It was killed by this signal, one of [`SIGNALS`].
    Signaled(i32),
    /// It goes on without this client, which left it or made room for another. The text says how
    /// to come back.
    Detached(String),
    /// The way to it broke, or the hub stops; it goes on, for it was asked to be kept. The text says
    /// why, and how to come back.
    Interrupted(String),
    /// Nobody can say: it may still be running. The text says why.
    Unknown(String),
}

impl LastWord {
    /// The `Status` that says it.
    pub fn to_json(&self) -> Vec<u8> {
        let failure = MetaV1Status::failure;
        let status = match self {
            Self::Exited(0) => MetaV1Status::success(),
            Self::Exited(code) => {
                let message = format!("the command exited with code {code}");
                failure(message, REASON_EXIT, None).cause(CAUSE_EXIT, code)
            }
            Self::Signaled(signal) => {
                let message = format!("the command was killed by signal {signal}");
                failure(message, REASON_EXIT, None)
                    .cause(CAUSE_EXIT, &signal.saturating_add(128))
                    .cause(CAUSE_SIGNAL, signal)
            }
            // No success: whoever knows exit codes only must not read one.
            Self::Detached(how) => failure(how.clone(), REASON_DETACHED, None),
            Self::Interrupted(why) => failure(why.clone(), REASON_INTERRUPTED, Some(503)),
            Self::Unknown(why) => failure(why.clone(), REASON_INTERNAL, Some(500)),
        };
        status.to_json()
    }

    /// Reads a `Status`. One that can't be read is an unknown end, never a good one.
    pub fn from_json(json: &[u8]) -> Self {
        let status = match MetaV1Status::from_json(json) {
            Ok(status) => status,
            Err(error) => return Self::Unknown(error),
        };
        if status.status == SUCCESS {
            return Self::Exited(0);
        }
        let number = |cause| status.caused(cause)?.parse::<i32>().ok();
        match (
            status.reason.as_str(),
            number(CAUSE_EXIT),
            number(CAUSE_SIGNAL),
        ) {
            (REASON_EXIT, _, Some(signal)) if SIGNALS.contains(&signal) => Self::Signaled(signal),
            (REASON_EXIT, Some(code), None) if code != 0 => Self::Exited(code),
            (REASON_DETACHED, ..) => Self::Detached(status.message),
            (REASON_INTERRUPTED, ..) => Self::Interrupted(status.message),
            _ if status.message.is_empty() => Self::Unknown("the hub gives no reason".into()),
            _ => Self::Unknown(status.message),
        }
    }
}

/// How an operation ended that is no exec: a build, a connection to the Docker socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// All was done, and all bytes were sent.
    Complete {
        /// The id of the image that was built: `sha256:…`.
        image: Option<String>,
    },
    /// It went wrong, or nobody can say how it went. What came is not all.
    Failed(Box<Problem>),
}

impl Finish {
    /// What the `Done` of an operation says: `complete` makes an image's id of what came of it,
    /// `unknown` the words for where nobody can say.
    pub(super) fn of<T: DeserializeOwned>(
        node: &NodeName,
        operation: &str,
        done: Result<Bytes, Ended>,
        complete: impl FnOnce(T) -> Option<String>,
        unknown: impl FnOnce(&dyn fmt::Display) -> String,
    ) -> Self {
        let decoded = match done {
            Ok(body) => kind::decode::<Ending<T>>("Done", &body).map_err(|error| unknown(&error)),
            Err(ended) => Err(unknown(&ended)),
        };
        let problem = match decoded {
            Ok(Ending::Complete(done)) => {
                let image = complete(done);
                return Self::Complete { image };
            }
            Ok(Ending::Failed(failure)) => Problem::failure(node, &failure),
            Err(detail) => Problem::new(Kind::OutcomeUnknown, detail).node(node.to_string()),
        };
        Self::Failed(Box::new(problem.operation(operation)))
    }

    /// The `Status` that says it. Its reason is the name of the problem's kind.
    pub fn to_json(&self) -> Vec<u8> {
        let status = match self {
            Self::Complete { image: None } => MetaV1Status::success(),
            Self::Complete { image: Some(image) } => {
                MetaV1Status::success().cause(CAUSE_IMAGE, image)
            }
            Self::Failed(problem) => {
                let kind = problem.kind().unwrap_or(Kind::Internal);
                let code = Some(i32::from(problem.status));
                let status = MetaV1Status::failure(problem.detail.clone(), kind.name(), code);
                if problem.retry {
                    status.cause(CAUSE_RETRY, &true)
                } else {
                    status
                }
            }
        };
        status.to_json()
    }

    /// Reads a `Status`. One that can't be read is a failure, never a good end.
    pub fn from_json(json: &[u8]) -> Self {
        let status = match MetaV1Status::from_json(json) {
            Ok(status) => status,
            Err(error) => return Self::Failed(Box::new(Problem::new(Kind::OutcomeUnknown, error))),
        };
        if status.status == SUCCESS {
            let image = status.caused(CAUSE_IMAGE).map(str::to_owned);
            return Self::Complete { image };
        }
        let kind = Kind::named(&status.reason).unwrap_or(Kind::OutcomeUnknown);
        let retry = status.caused(CAUSE_RETRY) == Some("true");
        let detail = if status.message.is_empty() {
            "the hub gives no reason".into()
        } else {
            status.message
        };
        Self::Failed(Box::new(Problem::new(kind, detail).retry(retry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(word: &LastWord) -> String {
        String::from_utf8_lossy(&word.to_json()).into_owned()
    }

    #[test]
    fn golden_last_words() {
        let golden = [
            (LastWord::Exited(0), r#"{"metadata":{},"status":"Success"}"#),
            (
                LastWord::Exited(3),
                r#"{"metadata":{},"status":"Failure","message":"the command exited with code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
            ),
            (
                LastWord::Signaled(9),
                r#"{"metadata":{},"status":"Failure","message":"the command was killed by signal 9","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"137"},{"reason":"Signal","message":"9"}]}}"#,
            ),
            (
                LastWord::Unknown("gone".into()),
                r#"{"metadata":{},"status":"Failure","message":"gone","reason":"InternalError","code":500}"#,
            ),
            (
                LastWord::Detached("it goes on".into()),
                r#"{"metadata":{},"status":"Failure","message":"it goes on","reason":"Detached"}"#,
            ),
            (
                LastWord::Interrupted("it goes on".into()),
                r#"{"metadata":{},"status":"Failure","message":"it goes on","reason":"Interrupted","code":503}"#,
            ),
        ];
        for (word, expected) in golden {
            assert_eq!(json(&word), expected);
            assert_eq!(LastWord::from_json(expected.as_bytes()), word);
        }
    }

    #[test]
    fn what_kubernetes_itself_says_is_understood() {
        let status = br#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 42","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}"#;
        assert_eq!(LastWord::from_json(status), LastWord::Exited(42));
    }

    #[test]
    fn nothing_unclear_is_a_good_end() {
        for text in [
            "",
            "{}",
            "null",
            r#"{"status":"success"}"#,
            r#"{"status":"Failure"}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"0"}]}}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"Signal","message":"2147483647"}]}}"#,
        ] {
            let word = LastWord::from_json(text.as_bytes());
            assert!(matches!(word, LastWord::Unknown(_)), "{text}: {word:?}");
        }
    }

    #[test]
    fn golden_finishes() {
        let complete = |image| Finish::Complete { image };
        let failed = |kind, retry| {
            Finish::Failed(Box::new(
                Problem::new(kind, "RUN false failed").retry(retry),
            ))
        };
        let golden = [
            (complete(None), r#"{"metadata":{},"status":"Success"}"#),
            (
                complete(Some("sha256:ab".into())),
                r#"{"metadata":{},"status":"Success","details":{"causes":[{"reason":"Image","message":"sha256:ab"}]}}"#,
            ),
            (
                failed(Kind::BuildFailed, false),
                r#"{"metadata":{},"status":"Failure","message":"RUN false failed","reason":"build-failed","code":422}"#,
            ),
            (
                failed(Kind::NodeAway, true),
                r#"{"metadata":{},"status":"Failure","message":"RUN false failed","reason":"node-away","details":{"causes":[{"reason":"Retry","message":"true"}]},"code":503}"#,
            ),
        ];
        for (finish, expected) in golden {
            assert_eq!(String::from_utf8_lossy(&finish.to_json()), expected);
            assert_eq!(Finish::from_json(expected.as_bytes()), finish);
        }
        for text in ["", "{}", r#"{"status":"Failure","reason":"Other"}"#] {
            let Finish::Failed(problem) = Finish::from_json(text.as_bytes()) else {
                panic!("{text}")
            };
            assert_eq!(problem.kind(), Some(Kind::OutcomeUnknown));
            assert!(!problem.detail.is_empty());
        }
    }
}

//! Errors as problem documents (RFC 9457), and what each refusal of the core becomes as one.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use hub_ledger::ExposureRefusal;
use hub_protocol::NodeName;
use hub_protocol::kind::{Failure, FailureCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::hub::{AskError, CallError, CommandError};
use crate::store::StoreError;

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What precedes the name of a [`Kind`] in a document's `type`.
const TYPE_PREFIX: &str = "urn:hub:problem:";

/// Why the hub did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// What kind of problem, for programs: `urn:hub:problem:NAME`.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The kind, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong here, and what can be done.
    pub detail: String,
    /// Whether the same request may succeed later, and is safe to repeat.
    pub retry: bool,
    /// The node it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What was asked of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
}

/// The kinds of problems: a name that stays, a status and a title.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:ident, $title:literal;)*) => {
        /// A kind of problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $variant,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The kind of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            /// Its name, the last part of a document's `type`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status it is answered with.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// Itself, for people.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

kinds! {
    /// The request makes no sense.
    InvalidRequest = "invalid-request", BAD_REQUEST, "The request makes no sense";
    /// The request's body is too large.
    TooLarge = "too-large", PAYLOAD_TOO_LARGE, "The request is too large";
    /// The request carries no token, or a wrong one.
    Unauthorized = "unauthorized", UNAUTHORIZED, "The API token is missing or wrong";
    /// The API has no such path.
    NoSuchPath = "no-such-path", NOT_FOUND, "The API has no such path";
    /// The path does not take this method.
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The path does not take this method";
    /// There is no such node.
    NoSuchNode = "no-such-node", NOT_FOUND, "There is no such node";
    /// The node has no session.
    NodeAway = "node-away", SERVICE_UNAVAILABLE, "The node is away";
    /// The node is at its limit.
    NodeBusy = "node-busy", SERVICE_UNAVAILABLE, "The node is busy";
    /// The node was revoked.
    NodeRevoked = "node-revoked", CONFLICT, "The node was revoked";
    /// The node did not begin, for a reason without a kind of its own.
    NodeFailed = "node-failed", BAD_GATEWAY, "The node could not do it";
    /// The node took it and went silent: it may be running.
    OutcomeUnknown = "outcome-unknown", BAD_GATEWAY, "The node went silent; it may have begun";
    /// The node's agent can't do this.
    Unsupported = "unsupported", NOT_IMPLEMENTED, "The node's agent cannot do this";
    /// The node's agent does not allow this.
    Forbidden = "forbidden", FORBIDDEN, "The node's agent does not allow this";
    /// There is no such container on the node.
    NoSuchContainer = "no-such-container", NOT_FOUND, "There is no such container";
    /// Something else that was named is not there: an image, a network, a path, a kept command.
    NotFound = "not-found", NOT_FOUND, "It is not there";
    /// It is in use, or a thing of that name exists and is another.
    Conflict = "conflict", CONFLICT, "It is in use, or another";
    /// The registry wants other credentials.
    RegistryDenied = "registry-denied", UNPROCESSABLE_ENTITY, "The registry wants other credentials";
    /// A step of the build failed, or the Dockerfile makes no sense.
    BuildFailed = "build-failed", UNPROCESSABLE_ENTITY, "The build failed";
    /// The container does not run.
    NotRunning = "container-not-running", CONFLICT, "The container does not run";
    /// The command does not exist there.
    CommandNotFound = "command-not-found", UNPROCESSABLE_ENTITY, "The command was not found";
    /// The command can't be executed there.
    NotExecutable = "command-not-executable", UNPROCESSABLE_ENTITY, "The command cannot be executed";
    /// The node's container runtime does not answer.
    RuntimeUnavailable = "runtime-unavailable", SERVICE_UNAVAILABLE, "The container runtime does not answer";
    /// There is no such exposure.
    NoSuchExposure = "no-such-exposure", NOT_FOUND, "There is no such exposure";
    /// Another exposure has the name.
    NameTaken = "name-taken", CONFLICT, "The name is taken";
    /// The hub listens there for another exposure.
    AddressTaken = "address-taken", CONFLICT, "The address is taken";
    /// The hub carries nothing of that kind.
    NotCarried = "not-carried", NOT_IMPLEMENTED, "The hub does not carry this";
    /// A limit is reached.
    LimitReached = "limit-reached", CONFLICT, "A limit is reached";
    /// The ledger can't answer now.
    LedgerBusy = "ledger-busy", SERVICE_UNAVAILABLE, "The ledger is busy";
    /// The hub is at fault, or its ledger.
    Internal = "internal", INTERNAL_SERVER_ERROR, "The hub has a fault";
}

impl Problem {
    /// A problem of this kind. Repeating the request does not help.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("{TYPE_PREFIX}{}", kind.name()),
            title: kind.title().to_owned(),
            status: kind.status().as_u16(),
            detail: detail.into(),
            retry: false,
            node: None,
            operation: None,
        }
    }

    /// What kind it is; `None` for one that only a later release knows.
    pub fn kind(&self) -> Option<Kind> {
        Kind::named(self.type_uri.strip_prefix(TYPE_PREFIX)?)
    }

    /// The same, with whether repeating the request helps.
    #[must_use]
    pub fn retry(self, retry: bool) -> Self {
        Self { retry, ..self }
    }

    /// The same, about this node.
    #[must_use]
    pub fn node(self, node: impl Into<String>) -> Self {
        Self {
            node: Some(node.into()),
            ..self
        }
    }

    /// The same, about this operation.
    #[must_use]
    pub fn operation(self, operation: impl Into<String>) -> Self {
        Self {
            operation: Some(operation.into()),
            ..self
        }
    }
}

/// What `run` comes to; a problem is about this operation.
pub(super) async fn within<T>(
    operation: &'static str,
    run: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    run.await.map_err(|problem| problem.operation(operation))
}

impl Problem {
    /// What an agent says of something that it had begun on `node`.
    pub(crate) fn failure(node: &NodeName, failure: &Failure) -> Self {
        let detail = format!("node {node}: {failure}");
        let problem = Self::new(failed(failure.code), detail);
        problem.retry(failure.retry).node(node.to_string())
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let retry = error.retry_helps();
        let detail = error.to_string();
        let (kind, node) = match error {
            CallError::Ask(error) => return error.into(),
            CallError::TooLarge { .. } => return Self::new(Kind::TooLarge, detail),
            CallError::Failed { node, failure } => (failed(failure.code), node),
            CallError::Lost { node, .. } => (Kind::NodeAway, node),
            CallError::Unknown { node, .. } => (Kind::OutcomeUnknown, node),
            CallError::Nonsense { node, .. } => (Kind::NodeFailed, node),
        };
        Self::new(kind, detail).retry(retry).node(node.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let retry = error.retry_helps();
        let detail = error.to_string();
        let (kind, node) = match error {
            AskError::NoSuchNode { node } => (Kind::NoSuchNode, Some(node)),
            AskError::Away { node, .. } => (Kind::NodeAway, Some(node.to_string())),
            AskError::Revoked { node } => (Kind::NodeRevoked, Some(node.to_string())),
            AskError::Busy { node } => (Kind::NodeBusy, Some(node.to_string())),
            AskError::Failed { node, failure } => (failed(failure.code), Some(node.to_string())),
            AskError::Unknown { node, .. } => (Kind::OutcomeUnknown, Some(node.to_string())),
            AskError::Ledger(_) => (Kind::Internal, None),
        };
        Self {
            node,
            ..Self::new(kind, detail).retry(retry)
        }
    }
}

fn failed(code: FailureCode) -> Kind {
    match code {
        FailureCode::UNSUPPORTED => Kind::Unsupported,
        FailureCode::INVALID => Kind::InvalidRequest,
        FailureCode::NO_SUCH_CONTAINER => Kind::NoSuchContainer,
        FailureCode::NOT_RUNNING => Kind::NotRunning,
        FailureCode::COMMAND_NOT_FOUND => Kind::CommandNotFound,
        FailureCode::NOT_EXECUTABLE => Kind::NotExecutable,
        FailureCode::FORBIDDEN => Kind::Forbidden,
        FailureCode::BUSY => Kind::NodeBusy,
        FailureCode::RUNTIME_UNAVAILABLE => Kind::RuntimeUnavailable,
        FailureCode::NOT_FOUND => Kind::NotFound,
        FailureCode::CONFLICT => Kind::Conflict,
        FailureCode::REGISTRY_DENIED => Kind::RegistryDenied,
        FailureCode::BUILD_FAILED => Kind::BuildFailed,
        _ => Kind::NodeFailed,
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let detail = error.to_string();
        match error {
            CommandError::NoSuchNode { node } => Self::new(Kind::NoSuchNode, detail).node(node),
            CommandError::NothingExpires => Self::new(Kind::InvalidRequest, detail),
            CommandError::Store(error) => error.into(),
            CommandError::Random(_) => Self::new(Kind::Internal, detail),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        use ExposureRefusal as Expose;
        let kind = match &error {
            StoreError::Busy => Kind::LedgerBusy,
            StoreError::UnknownNode(_) | StoreError::Expose(Expose::UnknownNode { .. }) => {
                Kind::NoSuchNode
            }
            StoreError::Token(_) | StoreError::Expose(Expose::Misshapen(_)) => Kind::InvalidRequest,
            StoreError::Expose(Expose::Revoked { .. }) => Kind::NodeRevoked,
            StoreError::Expose(Expose::NameTaken { .. }) => Kind::NameTaken,
            StoreError::Expose(Expose::AddressTaken { .. }) => Kind::AddressTaken,
            StoreError::Expose(Expose::TooMany { .. } | Expose::ListTooLong { .. }) => {
                Kind::LimitReached
            }
            StoreError::Expose(Expose::Unknown { .. }) => Kind::NoSuchExposure,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string()).retry(error.retry_helps())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use hub_ledger::ExposureId;

    #[test]
    fn names_are_unique_and_read_back() {
        for kind in Kind::ALL {
            let problem = Problem::new(*kind, "x");
            let json = serde_json::to_string(&problem).unwrap();
            assert_eq!(
                serde_json::from_str::<Problem>(&json).unwrap().kind(),
                Some(*kind)
            );
            assert!(kind.status().is_client_error() || kind.status().is_server_error());
        }
        let foreign = Problem {
            type_uri: "about:blank".into(),
            ..Problem::new(Kind::Internal, "")
        };
        assert_eq!(foreign.kind(), None);
    }

    #[test]
    fn a_document_has_the_members_of_the_rfc() {
        let problem = Problem::new(Kind::NodeAway, "node a is away")
            .retry(true)
            .node("a");
        let expected = serde_json::json!({
            "type": "urn:hub:problem:node-away",
            "title": "The node is away",
            "status": 503,
            "detail": "node a is away",
            "retry": true,
            "node": "a",
        });
        assert_eq!(serde_json::to_value(&problem).unwrap(), expected);
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
    }

    #[test]
    fn every_refusal_has_its_status() {
        let node = || "a".parse().unwrap();
        let failed = |code, retry| AskError::Failed {
            node: node(),
            failure: Failure {
                code,
                message: "m".into(),
                retry,
            },
        };
        let cases = [
            (AskError::NoSuchNode { node: "a".into() }, 404, false),
            (
                AskError::Away {
                    node: node(),
                    last_seen: None,
                },
                503,
                true,
            ),
            (AskError::Revoked { node: node() }, 409, false),
            (AskError::Busy { node: node() }, 503, true),
            (failed(FailureCode::NO_SUCH_CONTAINER, false), 404, false),
            (failed(FailureCode::NOT_RUNNING, true), 409, true),
            (failed(FailureCode::COMMAND_NOT_FOUND, false), 422, false),
            (failed(FailureCode::UNSUPPORTED, false), 501, false),
            (failed(FailureCode::NOT_FOUND, false), 404, false),
            (failed(FailureCode::CONFLICT, false), 409, false),
            (failed(FailureCode::REGISTRY_DENIED, false), 422, false),
            (failed(FailureCode::BUILD_FAILED, false), 422, false),
            (failed(FailureCode(999), false), 502, false),
            (
                AskError::Unknown {
                    node: node(),
                    reason: "r".into(),
                },
                502,
                false,
            ),
        ];
        for (error, status, retry) in cases {
            let problem = Problem::from(error);
            assert_eq!(
                (problem.status, problem.retry),
                (status, retry),
                "{problem:?}"
            );
            assert_eq!(problem.node.as_deref(), Some("a"));
        }
        let missing = StoreError::Expose(ExposureRefusal::Unknown { id: ExposureId(3) });
        assert_eq!(Problem::from(missing).kind(), Some(Kind::NoSuchExposure));
        let busy = Problem::from(CommandError::Store(StoreError::Busy));
        assert_eq!((busy.status, busy.retry), (503, true));
    }
}

//! What the daemon's errors mean: from its statuses and words to our failures.
//!
//! A status says what kind of error it is, and mostly that is enough. Where one status stands for
//! several things the daemon's words decide; words that are not known fall back on the status.

use std::time::Duration;

use bollard::errors::Error;
use hub_protocol::kind::call::image::Credentials;
use hub_protocol::kind::{Failure, FailureCode};

/// The status of an answer that is an error.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The daemon's words.
pub(super) fn words(error: &Error) -> &str {
    match error {
        Error::DockerResponseServerError { message, .. } => message,
        Error::DockerStreamError { error } => error,
        _ => "",
    }
}

/// Whether the container that was named is not there; a start has further things to miss.
pub(super) fn is_no_container(error: &Error) -> bool {
    status(error) == Some(404) && words(error).starts_with("No such container")
}

/// What an error of the daemon means.
pub(super) fn failure(error: &Error) -> Failure {
    let said = tidy(words(error));
    let code = match error {
        Error::DockerResponseServerError { status_code, .. } => match status_code {
            _ if lacks_a_capability(&said) => FailureCode::UNSUPPORTED,
            400 => FailureCode::INVALID,
            404 if is_no_container(error) => FailureCode::NO_SUCH_CONTAINER,
            404 => FailureCode::NOT_FOUND,
            // A network's endpoint that exists, a network that is Docker's own: it is as it is.
            403 | 409 => FailureCode::CONFLICT,
            401 => FailureCode::REGISTRY_DENIED,
            501 => FailureCode::UNSUPPORTED,
            503 => return Failure::new(FailureCode::RUNTIME_UNAVAILABLE, said).retry(),
            _ => FailureCode::INTERNAL,
        },
        Error::DockerStreamError { .. } => FailureCode::INTERNAL,
        Error::RequestTimeoutError => {
            return Failure::new(
                FailureCode::RUNTIME_UNAVAILABLE,
                "the Docker daemon took too long to answer; what it was asked may still happen",
            )
            .retry();
        }
        Error::JsonDataError { .. } | Error::JsonSerdeError { .. } => {
            return Failure::new(
                FailureCode::INTERNAL,
                format!("the Docker daemon's answer can't be read: {error}"),
            );
        }
        error => {
            return Failure::new(
                FailureCode::RUNTIME_UNAVAILABLE,
                format!("the Docker daemon does not answer: {}", chain(error)),
            )
            .retry();
        }
    };
    Failure::new(code, said)
}

/// Nothing came from the daemon for so long.
pub(super) fn silent(waited: Duration) -> Failure {
    let seconds = waited.as_secs();
    let message = format!("the Docker daemon did not answer within {seconds} s");
    Failure::new(FailureCode::RUNTIME_UNAVAILABLE, message).retry()
}

/// What went wrong with a pull. The registry's answers come through the daemon under any status.
pub(super) fn of_pull(error: &Error, image: &str, shown: Option<&Credentials>) -> Failure {
    const DENIED: [&str; 6] = [
        "pull access denied",
        "unauthorized",
        "authentication required",
        "no basic auth credentials",
        "incorrect username or password",
        "denied: ",
    ];
    const MISSING: [&str; 3] = ["manifest unknown", "not found", "name unknown"];
    let mut failure = failure(error);
    let said = words(error);
    if said.is_empty() {
        return failure;
    }
    let has = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if has(&DENIED) || matches!(status(error), Some(401 | 403)) {
        failure.code = FailureCode::REGISTRY_DENIED;
    } else if has(&MISSING) {
        failure.code = FailureCode::NOT_FOUND;
    }
    let message = format!("pulling {image}: {}", without_secrets(&tidy(said), shown));
    Failure {
        retry: failure.code == FailureCode::INTERNAL,
        ..Failure::new(failure.code, message)
    }
}

/// Words that may come from a registry, which may repeat what it was shown.
pub(super) fn without_secrets<'a>(
    said: &str,
    shown: impl IntoIterator<Item = &'a Credentials>,
) -> String {
    let mut said = said.to_owned();
    for shown in shown {
        for secret in [&shown.password, &shown.identity_token] {
            if !secret.is_empty() {
                said = said.replace(secret.as_str(), "…");
            }
        }
    }
    said
}

fn lacks_a_capability(said: &str) -> bool {
    [
        "could not select device driver",
        "does not support cgroup",
        "kernel does not support",
    ]
    .iter()
    .any(|words| said.contains(words))
}

/// The daemon's words without what could confuse a terminal.
fn tidy(said: &str) -> String {
    let said = said.trim();
    if said.is_empty() {
        return "the Docker daemon gave no reason".into();
    }
    let plain = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    said.chars().map(plain).collect()
}

/// An error and what caused it: the outermost of a connection says little.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError {
            status_code,
            message: message.into(),
        }
    }

    #[test]
    fn statuses_and_words_have_their_codes() {
        for (status, said, code) in [
            (400, "invalid", FailureCode::INVALID),
            (404, "No such container: x", FailureCode::NO_SUCH_CONTAINER),
            (404, "network x not found", FailureCode::NOT_FOUND),
            (
                403,
                "endpoint with name x already exists",
                FailureCode::CONFLICT,
            ),
            (409, "in use", FailureCode::CONFLICT),
            (500, "boom", FailureCode::INTERNAL),
            (501, "not here", FailureCode::UNSUPPORTED),
            (503, "not a swarm manager", FailureCode::RUNTIME_UNAVAILABLE),
            (
                500,
                "could not select device driver \"\" with capabilities: [[gpu]]",
                FailureCode::UNSUPPORTED,
            ),
        ] {
            let failure = failure(&answer(status, said));
            assert_eq!((failure.code, &*failure.message), (code, said));
        }
        let io = Error::IOError {
            err: std::io::Error::other("refused"),
        };
        let failure = failure(&io);
        assert_eq!(failure.code, FailureCode::RUNTIME_UNAVAILABLE);
        assert!(failure.retry && failure.message.contains("refused"));
        assert_eq!(tidy("a\x1b[2Jb\n"), "a [2Jb");
        assert!(!tidy(" ").is_empty());
    }

    #[test]
    fn a_pull_that_fails_says_why_and_no_secret() {
        let shown = Credentials {
            password: "hunter2".into(),
            ..Credentials::default()
        };
        for (status, said, code) in [
            (
                404,
                "pull access denied for x",
                FailureCode::REGISTRY_DENIED,
            ),
            (
                500,
                "Get \"http://x\": no basic auth credentials",
                FailureCode::REGISTRY_DENIED,
            ),
            (
                500,
                "unauthorized: hunter2 is wrong",
                FailureCode::REGISTRY_DENIED,
            ),
            (404, "manifest for x:1 not found", FailureCode::NOT_FOUND),
            (
                500,
                "Get \"http://x\": connection refused",
                FailureCode::INTERNAL,
            ),
        ] {
            let failure = of_pull(&answer(status, said), "x:1", Some(&shown));
            assert_eq!(failure.code, code, "{said}");
            assert!(failure.message.starts_with("pulling x:1: "), "{failure}");
            assert!(!failure.message.contains("hunter2"), "{failure}");
            assert_eq!(failure.retry, code == FailureCode::INTERNAL);
        }
    }

    #[test]
    fn a_long_message_is_clipped() {
        let failure = failure(&answer(500, &"x".repeat(100_000)));
        assert!(failure.message.len() < 10_000);
    }
}

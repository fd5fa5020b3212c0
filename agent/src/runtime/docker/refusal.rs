//! What it means when the daemon does not start a command: from its words and codes to our errors.
//!
//! The daemon has no error codes beyond HTTP's, and passes on sentences of the container runtime.
//! Those looked for here are old ones of runc and of the daemon; one that is not known falls back
//! on the exit code that the daemon recorded.

use bollard::errors::Error;

use super::super::ExecError;
use super::{NAME, unavailable};

/// The most of the daemon's words that an error repeats, in characters.
const MAX_DETAIL: usize = 400;

/// An API call that failed before anything was started.
pub(super) fn of_api(error: &Error, container: &str, command: &str) -> ExecError {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => of_words(message, container, command).unwrap_or_else(|detail| match status_code {
            404 | 409 => ExecError::NotRunning {
                name: container.into(),
                detail,
            },
            400..=499 => ExecError::Invalid { what: detail },
            _ => ExecError::Unavailable {
                runtime: NAME,
                why: detail,
            },
        }),
        error => unavailable(error),
    }
}

/// A command that got no pid: what the daemon recorded as its code and sent as its output.
pub(super) fn of_start(code: i32, text: &str, container: &str, command: &str) -> ExecError {
    of_words(text, container, command).unwrap_or_else(|detail| match code {
        127 => ExecError::NotFound {
            command: command.into(),
            detail,
        },
        _ => ExecError::Unavailable {
            runtime: NAME,
            why: detail,
        },
    })
}

/// What known words mean; the tidied words if they are not known.
fn of_words(text: &str, container: &str, command: &str) -> Result<ExecError, String> {
    let detail = tidy(text);
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    // The order matters: a directory that is missing is also "no such file or directory".
    if has(&[
        "unable to find user",
        "unable to find group",
        "no matching entries",
        "chdir to cwd",
    ]) {
        Ok(ExecError::Invalid { what: detail })
    } else if has(&["executable file not found", "no such file or directory"]) {
        Ok(ExecError::NotFound {
            command: command.into(),
            detail,
        })
    } else if has(&["permission denied", "exec format error", "is a directory"]) {
        Ok(ExecError::NotExecutable {
            command: command.into(),
            detail,
        })
    } else if has(&["argument list too long"]) {
        Ok(ExecError::Invalid { what: detail })
    } else if has(&[
        "is not running",
        "is paused",
        "is restarting",
        "stopped container",
    ]) {
        Ok(ExecError::NotRunning {
            name: container.into(),
            detail,
        })
    } else {
        Err(detail)
    }
}

/// The part of the daemon's sentence that a person wants.
fn tidy(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_suffix(": unknown").unwrap_or(text);
    let text = text
        .rsplit_once("container process: ")
        .map_or(text, |(_, reason)| reason);
    if text.is_empty() {
        return "the daemon gave no reason".into();
    }
    text.chars()
        .take(MAX_DETAIL)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(code: i32, text: &str) -> ExecError {
        of_start(code, text, "web", "x")
    }

    #[test]
    fn the_words_of_docker_20_10_are_understood() {
        let oci = "OCI runtime exec failed: exec failed: unable to start container process: ";
        let not_found = start(
            126,
            &format!("{oci}exec: \"x\": executable file not found in $PATH: unknown\r\n"),
        );
        assert_eq!(
            not_found,
            ExecError::NotFound {
                command: "x".into(),
                detail: "exec: \"x\": executable file not found in $PATH".into()
            }
        );
        let stat = format!("{oci}exec: \"/x\": stat /x: no such file or directory: unknown\r\n");
        assert!(matches!(start(126, &stat), ExecError::NotFound { .. }));
        for reason in [
            "exec: \"/x\": permission denied",
            "exec /x: exec format error",
        ] {
            let error = start(126, &format!("{oci}{reason}: unknown\r\n"));
            assert!(
                matches!(error, ExecError::NotExecutable { .. }),
                "{error:?}"
            );
        }
        for text in [
            "unable to find user x: no matching entries in passwd file\r\n",
            &format!(
                "{oci}chdir to cwd (\"/x\") set in config.json failed: no such file or directory: unknown\r\n"
            ),
            &format!(
                "{oci}chdir to cwd (\"/x\") set in config.json failed: permission denied: unknown\r\n"
            ),
        ] {
            assert!(
                matches!(start(126, text), ExecError::Invalid { .. }),
                "{text}"
            );
        }
    }

    #[test]
    fn unknown_words_fall_back_on_the_code() {
        assert!(matches!(start(127, "no idea"), ExecError::NotFound { .. }));
        assert!(matches!(
            start(126, "no idea"),
            ExecError::Unavailable { .. }
        ));
        assert!(start(128, "").to_string().contains("gave no reason"));
    }

    #[test]
    fn api_errors_keep_their_meaning() {
        let api = |status_code, message: &str| {
            let error = Error::DockerResponseServerError {
                status_code,
                message: message.into(),
            };
            of_api(&error, "web", "x")
        };
        assert!(matches!(
            api(409, "Container 1a is not running"),
            ExecError::NotRunning { .. }
        ));
        assert!(matches!(
            api(
                409,
                "Container web is paused, unpause the container before exec"
            ),
            ExecError::NotRunning { .. }
        ));
        assert!(matches!(
            api(409, "new words"),
            ExecError::NotRunning { .. }
        ));
        assert!(matches!(api(400, "new words"), ExecError::Invalid { .. }));
        assert!(matches!(
            api(500, "new words"),
            ExecError::Unavailable { .. }
        ));
        assert!(matches!(
            api(
                400,
                "OCI runtime exec failed: exec failed: exec: \"x\": executable file not found in $PATH: unknown"
            ),
            ExecError::NotFound { .. }
        ));
        assert!(matches!(
            of_api(&Error::RequestTimeoutError, "web", "x"),
            ExecError::Unavailable { .. }
        ));
    }

    #[test]
    fn a_long_reason_is_cut_and_made_printable() {
        let error = start(128, &format!("a\x1b[2Jb{}", "x".repeat(5000))).to_string();
        assert!(error.len() < 600 && !error.contains('\x1b'));
    }
}

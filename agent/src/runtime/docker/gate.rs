//! A gate before a command with a terminal, for daemons that take no size at its start (before API
//! 1.42, Docker 23).
//!
//! There the size can only be set once the process exists, and a command that looks at once sees
//! none: of a hundred `stty size`, ninety did, however fast the resize followed. So the process
//! begins as a shell that waits for a line, and becomes the command:
//!
//! ```text
//! agent                                       /bin/sh in the container
//!  |  <------------------ the verdict, a line  |  the command is there, or is not
//!  | resize, then an empty line ------------>  |
//!  |  <------------- the terminal's own echo   |  exec "$@"
//! ```
//!
//! The verdict stays here, and so does the echo, which is there before the shell has read the line
//! and thus before all that the command prints. A container without a shell gets its command as it
//! is, and the size right after. A command behind the gate may see the shell's `PWD`, `OLDPWD` and
//! `SHLVL`.

use bollard::container::LogOutput;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};

use super::output::Frames;

/// The shell.
pub(super) const SHELL: &str = "/bin/sh";

/// What it does with the command, its arguments.
const SCRIPT: &str = r#"case $1 in
*/*) [ -e "$1" ] || { echo missing; exit; }; [ -f "$1" ] && [ -x "$1" ] || { echo barred; exit; };;
*) command -v "$1" >/dev/null || { echo missing; exit; };;
esac
echo open
IFS= read -r HUB_GATE
unset HUB_GATE
exec "$@""#;

/// The line that opens it.
pub(super) const OPEN: &[u8] = b"\n";

/// The longest verdict, in bytes; a shell that has more to say is none.
pub(super) const MAX_VERDICT: usize = 256;

/// The command behind the gate.
pub(super) fn argv(command: &[String]) -> Vec<String> {
    let shell = [SHELL, "-c", SCRIPT, SHELL].map(String::from);
    shell.into_iter().chain(command.iter().cloned()).collect()
}

/// What the shell says of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is there, and the shell waits.
    Open,
    /// It is not there.
    Missing,
    /// It can't be executed.
    Barred,
    /// No word of the script's.
    Other(String),
}

/// Takes the first line, once all of it is there.
pub(super) fn verdict(output: &mut BytesMut) -> Option<Verdict> {
    let end = output.iter().position(|byte| *byte == b'\n');
    let end = end.or_else(|| (output.len() >= MAX_VERDICT).then(|| output.len() - 1))?;
    let line = output.split_to(end + 1);
    Some(match line.trim_ascii() {
        b"open" => Verdict::Open,
        b"missing" => Verdict::Missing,
        b"barred" => Verdict::Barred,
        other => Verdict::Other(String::from_utf8_lossy(other).into_owned()),
    })
}

/// Takes the echo of [`OPEN`] off the output: a newline, before which terminals put a return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Echo {
    Awaited,
    Returned,
    Over,
}

impl Echo {
    /// What is left of a chunk.
    pub(super) fn strip(&mut self, mut chunk: Bytes) -> Bytes {
        if *self == Self::Awaited && chunk.first() == Some(&b'\r') {
            chunk.advance(1);
            *self = Self::Returned;
        }
        match (*self, chunk.first()) {
            (Self::Over, _) | (_, None) => {}
            (_, Some(b'\n')) => {
                chunk.advance(1);
                *self = Self::Over;
            }
            // Not the echo: a terminal that has none.
            (Self::Returned, _) => {
                chunk = [b"\r", &chunk[..]].concat().into();
                *self = Self::Over;
            }
            (Self::Awaited, _) => *self = Self::Over,
        }
        chunk
    }
}

/// The output from `begun` on, without the echo.
pub(super) fn without_echo(begun: Bytes, rest: Frames) -> Frames {
    let mut echo = Echo::Awaited;
    let begun = stream::iter([Ok(LogOutput::StdOut { message: begun })]);
    Box::pin(begun.chain(rest).map(move |frame| {
        frame.map(|frame| LogOutput::StdOut {
            message: echo.strip(frame.into_bytes()),
        })
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    #[test]
    fn a_verdict_is_the_first_line() {
        let mut output = BytesMut::from("op");
        assert_eq!(verdict(&mut output), None);
        output.extend_from_slice(b"en\r\nrest");
        assert_eq!(verdict(&mut output), Some(Verdict::Open));
        assert_eq!(&output[..], b"rest");
        let mut chatter = BytesMut::from(&[b'x'; 1000][..]);
        assert!(matches!(verdict(&mut chatter), Some(Verdict::Other(_))));
    }

    #[test]
    fn the_echo_is_taken_off_wherever_it_is_cut() {
        let stripped = |chunks: &[&[u8]]| {
            let mut echo = Echo::Awaited;
            let each = chunks
                .iter()
                .map(|chunk| echo.strip(Bytes::copy_from_slice(chunk)));
            each.collect::<Vec<_>>().concat()
        };
        assert_eq!(stripped(&[b"\r\n\r\nx"]), b"\r\nx");
        assert_eq!(stripped(&[b"\r", b"\n", b"\nx"]), b"\nx");
        assert_eq!(stripped(&[b"\nx"]), b"x");
        assert_eq!(stripped(&[b"x\r\n"]), b"x\r\n");
        assert_eq!(stripped(&[b"\r", b"x"]), b"\rx");
        assert_eq!(stripped(&[b"\rx"]), b"\rx");
    }

    /// Runs the script as it stands, with an open gate.
    fn behind(command: &[&str]) -> String {
        let argv = argv(&command.iter().map(ToString::to_string).collect::<Vec<_>>());
        let mut shell = Command::new(&argv[0]);
        let output = shell.args(&argv[1..]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_script_says_what_it_finds_and_becomes_it() {
        assert_eq!(
            behind(&["printf", "%s|", "a b", "", "$x"]),
            "open\na b||$x|"
        );
        assert_eq!(behind(&["/bin/echo", "x"]), "open\nx\n");
        assert_eq!(behind(&["surely-not-a-command"]), "missing\n");
        assert_eq!(behind(&["/surely/not"]), "missing\n");
        assert_eq!(behind(&["/etc/passwd"]), "barred\n");
        assert_eq!(behind(&["/etc"]), "barred\n");
    }
}

//! A client before a command: over one connection, or over as many as it takes.
//!
//! ```text
//! person --> carry_in --> Input   }  one connection
//! screen <-- carry_out <- Output  }
//!                           | lost, and the command is kept
//!                           `--> come_back: attach, from the bytes that were seen
//! ```

use std::io::{self, Write as _};
use std::time::Duration;

use hub_protocol::kind::exec::Offsets;
use hub_server::api::channel::{Control, LastWord};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::super::{fail, say};
use super::keys::DetachKeys;
use super::person::{Left, Person, Wish, Wishes};
use super::pipes::Printer;
use super::terminal::{self, Raw};
use super::{BROKEN_PIPE, HUB_FAILED};
use crate::client::exec::{Attach, Event, Exec, Input, Output};
use crate::client::{Backoff, Client, may_pass};

/// How long one try to come back may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client needs to know of its command.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) id: String,
    /// Whether the command goes on without a client.
    pub(super) kept: bool,
    /// Whether it reads our standard input.
    pub(super) stdin: bool,
    /// Whether it has a terminal.
    pub(super) tty: bool,
    pub(super) detach_keys: DetachKeys,
}

/// The end of a session: a last line for stderr, and the exit code.
struct End {
    text: Option<String>,
    code: i32,
}

impl End {
    fn hub_failed(text: impl Into<String>) -> Self {
        Self {
            text: Some(text.into()),
            code: HUB_FAILED,
        }
    }
}

/// Why a connection is over.
enum Over {
    Ended(LastWord),
    Lost(String),
    Left(Left),
    Stdin(io::Error),
    Output(io::Error),
}

/// Where output goes, and how much of it came.
struct Screen {
    stdout: Printer,
    stderr: Printer,
    seen: Offsets,
}

impl Session {
    /// Carries the command until it has ended or we leave it. Gives the exit code.
    pub(super) async fn run(self, exec: Exec, person: Person) -> i32 {
        let (raw, end) = match self.raw() {
            Ok(raw) => {
                let end = self.carry(exec, person, raw.is_some()).await;
                (raw, end)
            }
            Err(error) => (
                None,
                End::hub_failed(format!("cannot set the terminal: {error}")),
            ),
        };
        let was_raw = raw.is_some();
        drop(raw);
        match end.text {
            // The cursor is wherever the command left it.
            Some(text) if was_raw => {
                let _ = io::stderr().write_all(b"\n");
                fail(&text, end.code)
            }
            Some(text) => fail(&text, end.code),
            None => end.code,
        }
    }

    fn raw(&self) -> io::Result<Option<Raw>> {
        if self.tty && self.stdin {
            return Raw::enter().map(Some);
        }
        Ok(None)
    }

    async fn carry(&self, mut exec: Exec, mut person: Person, raw: bool) -> End {
        let read = match (self.stdin, raw) {
            (false, _) => Ok(()),
            (true, false) => person.read(),
            (true, true) => person.listen(self.detach_keys.clone()),
        };
        if let Err(error) = read {
            return End::hub_failed(format!("cannot read standard input: {error}"));
        }
        let mut screen = Screen {
            stdout: Printer::new(&io::stdout()),
            stderr: Printer::new(&io::stderr()),
            seen: exec.offsets(),
        };
        let before = screen.seen.stdout + screen.seen.stderr;
        if before > 0 {
            say(&format!("{before} bytes of output came before"), raw);
        }
        loop {
            let (input, output) = exec.split();
            let (stops, stopped) = oneshot::channel();
            let over = tokio::select! {
                over = carry_out(output, &mut screen, stops) => over,
                over = carry_in(input, &mut person.wishes, stopped, self.tty) => over,
                left = person.leaves.next() => Over::Left(left),
            };
            let lost = match over {
                Over::Lost(why) | Over::Ended(LastWord::Interrupted(why)) if self.kept => why,
                over => return self.end(over, &mut screen, person.wishes.detaching).await,
            };
            if person.wishes.detaching {
                return self.leave(Left::Unheard);
            }
            exec = match self.come_back(&lost, &mut screen, &mut person, raw).await {
                Ok(exec) => exec,
                Err(end) => return end,
            };
        }
    }

    /// Opens a kept command again, however often it takes.
    async fn come_back(
        &self,
        lost: &str,
        screen: &mut Screen,
        person: &mut Person,
        raw: bool,
    ) -> Result<Exec, End> {
        let input = if self.stdin && !self.tty {
            "; input that was on its way may be lost"
        } else {
            ""
        };
        say(
            &format!(
                "the connection is lost ({lost}); the command goes on, and so do we once the hub answers{input}"
            ),
            raw,
        );
        let mut backoff = Backoff::default();
        loop {
            let attach = Attach {
                node: self.node.clone(),
                id: self.id.clone(),
                seen: Some(screen.seen),
                size: terminal::size().filter(|_| self.tty),
            };
            let attached = async {
                sleep(backoff.rolled()).await;
                timeout(PATIENCE, self.client.attach(&attach)).await
            };
            let attached = tokio::select! {
                attached = attached => attached,
                left = person.leaves.next() => return Err(self.leave(left)),
            };
            match attached {
                Ok(Ok(exec)) => {
                    say("the connection is back", raw);
                    missing(screen.seen, exec.offsets(), raw);
                    screen.seen = exec.offsets();
                    return Ok(exec);
                }
                Ok(Err(error)) if !may_pass(&error) => {
                    return Err(End::hub_failed(format!(
                        "cannot come back to command {}: {error}",
                        self.id
                    )));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    async fn end(&self, over: Over, screen: &mut Screen, detaching: bool) -> End {
        let end = match over {
            Over::Left(left) => return self.leave(left),
            Over::Stdin(error) => {
                return End::hub_failed(format!("cannot read standard input: {error}"));
            }
            Over::Output(error) => return cannot_print(&error),
            Over::Ended(LastWord::Detached(_)) if detaching => End {
                text: Some(format!("left; {}", self.way_back())),
                code: 0,
            },
            Over::Ended(word) => how_it_ended(&word),
            Over::Lost(why) => End::hub_failed(format!(
                "the connection to the hub ended before the command did ({why}); the command is \
                 being stopped, and may still be running"
            )),
        };
        let printed = match screen.stdout.finish().await {
            Ok(()) => screen.stderr.finish().await,
            failed => failed,
        };
        match printed {
            Ok(()) => end,
            Err(error) => cannot_print(&error),
        }
    }

    fn leave(&self, left: Left) -> End {
        let text = match left {
            // Whoever interrupts a command that ends with us knows what becomes of it.
            Left::Signal(_) if !self.kept => None,
            _ if self.kept => Some(format!("left; {}", self.way_back())),
            Left::Unheard => Some(
                "the hub did not say whether it heard that the command is to go on; it may be \
                 stopped"
                    .to_owned(),
            ),
            _ => Some("left; the command is being stopped, and may still be running".to_owned()),
        };
        End {
            text,
            code: left.code(),
        }
    }

    fn way_back(&self) -> String {
        format!(
            "the command goes on, and this comes back to it: hub exec attach {} {}",
            self.node, self.id
        )
    }
}

fn cannot_print(error: &io::Error) -> End {
    match error.kind() {
        io::ErrorKind::BrokenPipe => End {
            text: None,
            code: BROKEN_PIPE,
        },
        _ => End::hub_failed(format!("cannot print the command's output: {error}")),
    }
}

/// Says that output between two places is not there any more.
fn missing(seen: Offsets, found: Offsets, raw: bool) {
    let lost = found.stdout.saturating_sub(seen.stdout) + found.stderr.saturating_sub(seen.stderr);
    if lost > 0 {
        say(&format!("{lost} bytes of output are missing here"), raw);
    }
}

/// From this end to the command. Comes back only where standard input fails: what was read in part
/// must not look whole. What goes wrong with the connection the output tells.
async fn carry_in(
    mut input: Input,
    wishes: &mut Wishes,
    mut stopped: oneshot::Receiver<()>,
    tty: bool,
) -> Over {
    let mut takes = true;
    if wishes.ended {
        let _ = input.finish().await;
    }
    loop {
        let send = async {
            Ok(match wishes.next(tty).await {
                Wish::Control(Control::Signal(number)) => input.signal(number).await,
                Wish::Control(Control::Detach) => {
                    wishes.detaching = true;
                    input.detach().await
                }
                Wish::Size(size) => input.resize(size).await,
                Wish::Piece(Some(piece)) => input.send(&piece?).await,
                Wish::Piece(None) => {
                    wishes.ended = true;
                    input.finish().await
                }
            })
        };
        tokio::select! {
            sent = send => match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return std::future::pending().await,
                Err(error) => return Over::Stdin(error),
            },
            stop = &mut stopped, if takes => {
                takes = false;
                // The command takes no more: neither do we from whoever writes to us.
                if stop.is_ok() {
                    wishes.pieces = None;
                }
            }
        }
    }
}

/// From the command to the screen, until it or the connection has ended.
async fn carry_out(mut output: Output, screen: &mut Screen, stops: oneshot::Sender<()>) -> Over {
    let mut stops = Some(stops);
    loop {
        let printed = match output.next().await {
            Event::Stdout(bytes) => {
                screen.seen.stdout += bytes.len() as u64;
                screen.stdout.print(bytes).await
            }
            Event::Stderr(bytes) => {
                screen.seen.stderr += bytes.len() as u64;
                screen.stderr.print(bytes).await
            }
            Event::StdinClosed => {
                // Nobody listens any more where there is no input.
                let _ = stops.take().map(|stops| stops.send(()));
                continue;
            }
            Event::Ended(word) => return Over::Ended(word),
            Event::Lost(why) => return Over::Lost(why),
        };
        if let Err(error) = printed {
            return Over::Output(error);
        }
    }
}

fn how_it_ended(word: &LastWord) -> End {
    let code = match word {
        // Nothing but success is 0, and the system keeps no more than a byte.
        LastWord::Exited(code) => match code & 0xff {
            0 if *code != 0 => HUB_FAILED,
            byte => byte,
        },
        LastWord::Signaled(signal) => 128 + signal,
        LastWord::Unknown(why) | LastWord::Detached(why) | LastWord::Interrupted(why) => {
            return End::hub_failed(why);
        }
    };
    End { text: None, code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_zero() {
        let codes = [
            (LastWord::Exited(0), 0),
            (LastWord::Exited(1), 1),
            (LastWord::Exited(255), 255),
            (LastWord::Exited(256), HUB_FAILED),
            (LastWord::Exited(-1), 255),
            (LastWord::Signaled(9), 137),
            (LastWord::Unknown("gone".into()), HUB_FAILED),
            (LastWord::Detached("taken".into()), HUB_FAILED),
        ];
        for (word, code) in codes {
            let end = how_it_ended(&word);
            assert_eq!(end.code, code, "{word:?}");
            assert_eq!(
                end.text.is_some(),
                code == HUB_FAILED && !matches!(word, LastWord::Exited(_))
            );
        }
    }
}

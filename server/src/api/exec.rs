//! `GET /v1/nodes/{node}/exec` and `GET /v1/nodes/{node}/execs/{id}/attach`: commands, new ones and
//! ones that were kept, each behind a WebSocket.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use hub_protocol::kind;
use hub_protocol::kind::exec::{
    Accepted, Attach, ExecId, Offsets, OnDisconnect, Open, Outcome, Size,
};
use hub_quic::operation::Ended;
use tracing::{Instrument as _, Span};

use super::Api;
use super::channel::{self, LastWord};
use super::problem::{Kind, Problem, within};
use super::query::{Query, QueryError};
use super::socket::{Carried, Upgrade};
use crate::hub::Begun;

/// Run a command on a node
///
/// Upgrades to a WebSocket with the subprotocol `v5.channel.k8s.io`, once the command runs. The
/// first byte of each binary message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 the last word
/// (a `Status` of Kubernetes' `meta/v1`), 4 a terminal's size (`{"Width":80,"Height":24}`), 5 what
/// else there is to say (`{"signal":15}`, `{"detach":true}`), 255 closes the channel that follows. A
/// message has at most 256 KiB. Closing the connection stops the command, or leaves it to itself if
/// it is to be kept. The header `Hub-Exec-Id` says what to call it by.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/exec", tag = "exec",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("command" = Vec<String>, Query, description = "The command and its arguments: repeated"),
        ("container" = Option<String>, Query, description = "The container's name or id; without, the machine itself"),
        ("env" = Option<Vec<String>>, Query, description = "NAME=VALUE: repeated"),
        ("cwd" = Option<String>, Query, description = "The working directory"),
        ("user" = Option<String>, Query, description = "The user, as the runtime takes it"),
        ("stdin" = Option<bool>, Query, description = "Whether the command reads channel 0"),
        ("tty" = Option<bool>, Query, description = "Whether it gets a terminal; then everything is printed on channel 1"),
        ("cols" = Option<u16>, Query, description = "The terminal's width, in characters"),
        ("rows" = Option<u16>, Query, description = "The terminal's height"),
        ("on_disconnect" = Option<String>, Query, description = "What becomes of it when the connection is lost: kill (the default) or keep"),
    ),
    responses(
        (status = 101, description = "The command runs; the WebSocket carries its streams"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn exec_on_node(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    upgrade: Result<Upgrade, Problem>,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let upgrade = upgrade?;
        let open = parse_exec(query.as_deref())?;
        // The query holds arguments and variables, which may be secret: no log has it.
        let span = tracing::info_span!("exec", %node, container = open.container);
        let ask = api.hub.ask(&node, &open).instrument(span.clone());
        let begun = upgrade.while_there(ask).await?.answered()?;
        let command = Command {
            node: begun.node.to_string(),
            id: ExecId(String::new()),
            kept: open.on_disconnect == OnDisconnect::Keep,
            stdin: open.stdin,
            terminal: open.tty.is_some(),
        };
        command.carry(upgrade, begun, span)
    };
    within("exec", run).await
}

/// Come back to a command that was kept
///
/// Upgrades to a WebSocket as `exec` does. What the command prints goes on behind the bytes that
/// the client has seen; what lies before is sent as far as it is remembered. The headers
/// `Hub-Stdout-Offset` and `Hub-Stderr-Offset` say where the channels begin: bytes between that and
/// what was asked for are lost. Another client that is attached is let go. Closing the connection
/// leaves the command to itself.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/execs/{id}/attach", tag = "exec",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("id" = String, Path, description = "What to call the command by"),
        ("stdout" = Option<u64>, Query, description = "Bytes of channel 1 that were seen; without both, it begins with the oldest that are remembered"),
        ("stderr" = Option<u64>, Query, description = "Bytes of channel 2 that were seen"),
        ("cols" = Option<u16>, Query, description = "The terminal's width, in characters, if the command has one"),
        ("rows" = Option<u16>, Query, description = "The terminal's height"),
    ),
    responses(
        (status = 101, description = "The client is attached; the WebSocket carries the command's streams"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn attach(
    State(api): State<Api>,
    place: Result<Path<(String, String)>, PathRejection>,
    RawQuery(query): RawQuery,
    upgrade: Result<Upgrade, Problem>,
) -> Result<Response, Problem> {
    let run = async {
        let Path((node, id)) = place?;
        let upgrade = upgrade?;
        let open = parse_attach(id, query.as_deref())?;
        let span = tracing::info_span!("attach", %node, id = %open.id);
        let ask = api.hub.ask(&node, &open).instrument(span.clone());
        let begun = upgrade.while_there(ask).await?.answered()?;
        let command = Command {
            node: begun.node.to_string(),
            id: open.id,
            kept: true,
            stdin: true,
            // That is for the agent to know: it passes over sizes without one.
            terminal: true,
        };
        command.carry(upgrade, begun, span)
    };
    within("attach", run).await
}

/// What an exec's query asks for.
fn parse_exec(query: Option<&str>) -> Result<Open, QueryError> {
    let query = Query::parse(
        query,
        &[
            "container",
            "command",
            "env",
            "cwd",
            "user",
            "stdin",
            "tty",
            "cols",
            "rows",
            "on_disconnect",
        ],
    )?;
    let argv: Vec<String> = query.all("command").map(str::to_owned).collect();
    if argv.is_empty() {
        return Err(QueryError::Missing("command"));
    }
    let variable = |variable: &str| match variable.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(QueryError::Not("env", "NAME=VALUE")),
    };
    let size = parse_size(&query)?;
    let tty = query.flag("tty")?.unwrap_or(false);
    if size.is_some() && !tty {
        let detail = "the query parameters cols and rows are for tty=true";
        return Err(QueryError::Nonsense(detail.into()));
    }
    let on_disconnect = match query.one("on_disconnect")? {
        None | Some("kill") => OnDisconnect::Kill,
        Some("keep") => OnDisconnect::Keep,
        Some(_) => return Err(QueryError::Not("on_disconnect", "kill or keep")),
    };
    Ok(Open {
        container: query.text("container")?,
        argv,
        env: query.all("env").map(variable).collect::<Result<_, _>>()?,
        cwd: query.text("cwd")?,
        user: query.text("user")?,
        stdin: query.flag("stdin")?.unwrap_or(false),
        tty: tty.then_some(size.unwrap_or(Size { cols: 0, rows: 0 })),
        on_disconnect,
    })
}

/// What the query of one that comes back asks for.
fn parse_attach(id: String, query: Option<&str>) -> Result<Attach, QueryError> {
    const BYTES: &str = "a number of bytes";
    let query = Query::parse(query, &["stdout", "stderr", "cols", "rows"])?;
    let stdout = query.parsed("stdout", BYTES)?;
    let stderr = query.parsed("stderr", BYTES)?;
    let seen = (stdout.is_some() || stderr.is_some()).then_some(Offsets {
        stdout: stdout.unwrap_or(0),
        stderr: stderr.unwrap_or(0),
    });
    Ok(Attach {
        id: ExecId(id),
        seen,
        size: parse_size(&query)?,
    })
}

fn parse_size(query: &Query) -> Result<Option<Size>, QueryError> {
    const CHARACTERS: &str = "a number of characters";
    let cols = query.parsed("cols", CHARACTERS)?;
    let rows = query.parsed("rows", CHARACTERS)?;
    Ok((cols.is_some() || rows.is_some()).then_some(Size {
        cols: cols.unwrap_or(0),
        rows: rows.unwrap_or(0),
    }))
}

/// A command, as its client sees it.
struct Command {
    node: String,
    id: ExecId,
    /// Whether it outlives its client.
    kept: bool,
    /// Whether it reads anything.
    stdin: bool,
    /// Whether it may have a terminal.
    terminal: bool,
}

impl Command {
    /// Carries it, once the agent has begun it or has found it again.
    #[expect(clippy::result_large_err, reason = "that of a handler")]
    fn carry(mut self, upgrade: Upgrade, begun: Begun, span: Span) -> Result<Response, Problem> {
        let accepted = kind::decode::<Accepted>("Accepted", &begun.accepted);
        let Accepted { id, offsets } = accepted.map_err(|error| {
            let detail = format!("node {}: {error}; the command is given up", self.node);
            Problem::new(Kind::NodeFailed, detail).node(&self.node)
        })?;
        self.id = id.clone();
        let mut response = upgrade.carry(begun.operation, self, span);
        for (name, value) in [
            (channel::EXEC_ID_HEADER, id.0),
            (channel::STDOUT_OFFSET_HEADER, offsets.stdout.to_string()),
            (channel::STDERR_OFFSET_HEADER, offsets.stderr.to_string()),
        ] {
            // An id is what the agent says: one that is no header's value is left out.
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(name, value);
            }
        }
        Ok(response)
    }

    /// How to come back to it.
    fn goes_on(&self) -> String {
        let Self { node, id, .. } = self;
        format!("it goes on, and `hub exec attach {node} {id}` comes back to it")
    }

    /// The last word of a command that nobody can follow any more.
    fn lost(&self, why: &dyn std::fmt::Display) -> LastWord {
        let node = &self.node;
        if self.kept {
            LastWord::Interrupted(format!(
                "node {node}: the way to the command is lost ({why}); unless its agent has ended, {}",
                self.goes_on()
            ))
        } else {
            LastWord::Unknown(format!(
                "node {node}: how the command ended is unknown, and it may still be running: {why}"
            ))
        }
    }
}

impl Carried for Command {
    type Word = LastWord;

    fn json(word: &LastWord) -> Vec<u8> {
        word.to_json()
    }

    fn word(&self, done: Result<Bytes, Ended>) -> LastWord {
        let node = &self.node;
        let unknown = |why: &dyn std::fmt::Display| {
            LastWord::Unknown(format!(
                "node {node}: how the command ended is unknown, and it may still be running: {why}"
            ))
        };
        match done {
            Ok(body) => match kind::decode("Done", &body) {
                Ok(Outcome::Exited(code)) => LastWord::Exited(code),
                Ok(Outcome::Signaled(signal)) => LastWord::Signaled(signal),
                Ok(Outcome::Unknown) => unknown(&"the node lost track of it"),
                Ok(Outcome::Detached) => LastWord::Detached(format!(
                    "node {node}: the command was detached, or another client has taken over; {}",
                    self.goes_on()
                )),
                Err(error) => unknown(&error),
            },
            Err(ended) => self.lost(&ended),
        }
    }

    fn cut(&self) -> LastWord {
        let node = &self.node;
        if self.kept {
            let goes_on = self.goes_on();
            LastWord::Interrupted(format!("node {node}: the hub is stopping; {goes_on}"))
        } else {
            LastWord::Unknown(format!(
                "node {node}: the hub is stopping; the command is told to stop, and how it ends \
                 is not waited for"
            ))
        }
    }

    fn abandoned(&self) -> &'static str {
        if self.kept {
            "the command is left to itself"
        } else {
            "the command is stopped"
        }
    }

    fn input(&self) -> bool {
        self.stdin
    }

    fn is_command(&self) -> bool {
        true
    }

    fn resizes(&self) -> bool {
        self.terminal
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parsed(query: &str) -> Result<Open, String> {
        parse_exec(Some(query)).map_err(|error| error.to_string())
    }

    #[test]
    fn queries_are_read() {
        let query = "container=web&command=sh&command=-c&command=echo+%26%3D%20x&env=A=1&env=B=\
                     &env=C=d=e&cwd=%2Ftmp&user=0:0&stdin=true&tty=true&cols=80&rows=24\
                     &on_disconnect=keep";
        let open = parsed(query).unwrap();
        assert_eq!(open.container.as_deref(), Some("web"));
        assert_eq!(open.argv, ["sh", "-c", "echo &= x"]);
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            open.env,
            [variable("A", "1"), variable("B", ""), variable("C", "d=e")]
        );
        assert_eq!(
            (open.cwd.as_deref(), open.user.as_deref()),
            (Some("/tmp"), Some("0:0"))
        );
        assert!(open.stdin && open.on_disconnect == OnDisconnect::Keep);
        assert_eq!(open.tty, Some(Size { cols: 80, rows: 24 }));
        let least = parsed("command=true&tty=false").unwrap();
        assert!(!least.stdin && least.container.is_none() && least.env.is_empty());
        assert!(least.tty.is_none() && least.on_disconnect == OnDisconnect::Kill);
        let tty = parsed("command=sh&tty=true").unwrap().tty;
        assert_eq!(tty, Some(Size { cols: 0, rows: 0 }));
    }

    #[test]
    fn queries_that_make_no_sense_are_refused_without_their_values() {
        for (query, named) in [
            ("", "command"),
            ("stdin=true", "command"),
            ("command=a&shell=hunter2", "shell"),
            ("command=a&stdin=hunter2", "stdin"),
            ("command=a&env=hunter2", "env"),
            ("command=a&env=%3Dhunter2", "env"),
            ("command=a&user=hunter2&user=hunter2", "user"),
            ("command=a&stdin=true&stdin=true", "stdin"),
            ("command=a&cols=80", "cols"),
            ("command=a&tty=true&cols=-1", "cols"),
            ("command=a&on_disconnect=hunter2", "on_disconnect"),
        ] {
            let error = parsed(query).unwrap_err();
            assert!(
                error.contains(named) && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn whoever_comes_back_says_what_they_have_seen() {
        let parsed = |query| parse_attach("ab".into(), Some(query));
        assert_eq!(parsed("").unwrap().seen, None);
        let attach = parsed("stderr=7&rows=24").unwrap();
        assert_eq!(attach.id, ExecId("ab".into()));
        let seen = Offsets {
            stdout: 0,
            stderr: 7,
        };
        assert_eq!(attach.seen, Some(seen));
        assert_eq!(attach.size, Some(Size { cols: 0, rows: 24 }));
        assert!(parsed("stdout=x").is_err() && parsed("command=sh").is_err());
    }

    fn command(kept: bool) -> Command {
        Command {
            node: "shop".into(),
            id: ExecId("0123456789abcdef".into()),
            kept,
            stdin: true,
            terminal: true,
        }
    }

    #[test]
    fn silence_is_never_a_code() {
        for done in [
            Err(Ended::Lost("idle".into())),
            Err(Ended::Over),
            Ok(Bytes::new()),
        ] {
            let word = command(false).word(done);
            let LastWord::Unknown(why) = &word else {
                panic!("{word:?}")
            };
            assert!(
                why.contains("may still be running") && why.contains("shop"),
                "{why}"
            );
        }
        let encode = |outcome: &Outcome| Ok(kind::encode(outcome));
        let words = [
            (Outcome::Exited(0), LastWord::Exited(0)),
            (Outcome::Exited(3), LastWord::Exited(3)),
            (Outcome::Signaled(9), LastWord::Signaled(9)),
        ];
        for (outcome, word) in words {
            assert_eq!(command(false).word(encode(&outcome)), word);
        }
        for outcome in [
            Outcome::Unknown,
            Outcome::Signaled(0),
            Outcome::Signaled(128),
        ] {
            let word = command(true).word(encode(&outcome));
            assert!(matches!(word, LastWord::Unknown(_)), "{word:?}");
        }
    }

    #[test]
    fn of_one_that_is_kept_is_said_how_to_come_back() {
        let lost = command(true).word(Err(Ended::Lost("idle".into())));
        let detached = command(true).word(Ok(kind::encode(&Outcome::Detached)));
        let cut = command(true).cut();
        assert!(matches!(detached, LastWord::Detached(_)), "{detached:?}");
        for word in [lost, cut] {
            let LastWord::Interrupted(why) = &word else {
                panic!("{word:?}")
            };
            assert!(
                why.contains("hub exec attach shop 0123456789abcdef"),
                "{why}"
            );
        }
        assert!(matches!(command(false).cut(), LastWord::Unknown(_)));
    }
}

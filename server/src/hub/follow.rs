//! The rules by which a watch goes on when a node's session is lost. Pure: what is to be done next
//! follows from what happened and from the time, which are both arguments.
//!
//! ```text
//! Open --refused: away--> Wait --> Open          Away, Back: said once each
//!   |  `-refused: busy--> Pause --> Open
//!   v
//! lines, each with a cursor --session lost--> Open, from the last cursor on
//!   `--complete--> End        `--failed for good--> Broke
//! ```

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hub_protocol::NodeName;
use hub_protocol::code::ResetCode;
use hub_protocol::kind::Request;
use hub_protocol::kind::records::{Events, Logs, MAX_RECORD};
use hub_quic::operation::Ended;
use serde::Deserialize;

use super::ask::AskError;
use super::incoming::Broke;

/// The pause after the first opening that failed though the node is there; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// A request that can be made again from where it had come to.
pub(crate) trait Resume: Request + Clone + Send + Sync + 'static {
    /// The same from behind this cursor; without one, nothing had come since it was first made at
    /// `began_ns`, in nanoseconds since 1970 UTC.
    #[must_use]
    fn resume(&self, cursor: Option<&str>, began_ns: i64) -> Self;

    /// When it ends, in nanoseconds since 1970 UTC.
    fn until_ns(&self) -> Option<i64>;
}

impl Resume for Logs {
    fn resume(&self, cursor: Option<&str>, began_ns: i64) -> Self {
        let mut logs = self.clone();
        match cursor {
            Some(cursor) => {
                logs.cursor = Some(cursor.to_owned());
                logs.tail = None;
                logs.since_ns = None;
            }
            // Whoever wanted none of what there was wants all that came since; of any other number
            // of last lines there were none.
            None if logs.tail.take() == Some(0) => {
                logs.since_ns = Some(logs.since_ns.unwrap_or(began_ns).max(began_ns));
            }
            None => {}
        }
        logs
    }

    fn until_ns(&self) -> Option<i64> {
        self.until_ns
    }
}

impl Resume for Events {
    fn resume(&self, cursor: Option<&str>, began_ns: i64) -> Self {
        let mut events = self.clone();
        match cursor {
            Some(cursor) => {
                events.cursor = Some(cursor.to_owned());
                events.since_ns = None;
            }
            None if events.cursor.is_none() => {
                events.since_ns.get_or_insert(began_ns);
            }
            None => {}
        }
        events
    }

    fn until_ns(&self) -> Option<i64> {
        self.until_ns
    }
}

/// What a watch has to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Open the operation.
    Open,
    /// Wait until the node may be back, then open it.
    Wait,
    /// Wait for so long, then open it.
    Pause(Duration),
    /// Nothing: that was all.
    End,
    /// Nothing: it can't be opened any more.
    Refused(Box<AskError>),
    /// Nothing: it broke in a way that would only repeat itself.
    Broke(Box<Broke>),
}

/// Why a watch does not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GaveUp {
    /// It can't be opened.
    #[error(transparent)]
    Refused(#[from] AskError),
    /// It broke in a way that would only repeat itself.
    #[error("node {node}: {broke}")]
    Broke {
        /// The node's name.
        node: NodeName,
        /// How.
        broke: Broke,
    },
}

/// A watch of one node.
#[derive(Debug)]
pub(super) struct Follow<R> {
    request: R,
    began_ns: i64,
    opened: bool,
    cursor: Option<String>,
    lines: Lines,
    /// Openings in a row of which nothing came though the node is there.
    failures: u32,
    away: bool,
}

impl<R: Resume> Follow<R> {
    pub(super) fn new(request: R, began_ns: i64) -> Self {
        Self {
            request,
            began_ns,
            opened: false,
            cursor: None,
            lines: Lines::default(),
            failures: 0,
            away: false,
        }
    }

    /// What to ask the node for now.
    pub(super) fn request(&self) -> R {
        if self.opened || self.away {
            self.request.resume(self.cursor.as_deref(), self.began_ns)
        } else {
            self.request.clone()
        }
    }

    /// It was opened. Whether the node is back from having been away.
    pub(super) fn opened(&mut self) -> bool {
        self.opened = true;
        self.lines = Lines::default();
        std::mem::take(&mut self.away)
    }

    /// The node did not open it. Whether it is away, and was not before.
    pub(super) fn refused(&mut self, error: &AskError, now_ns: i64) -> (Next, bool) {
        let over = self.request.until_ns().is_some_and(|until| until <= now_ns);
        match error {
            AskError::Away { .. } if !over => {
                let news = !std::mem::replace(&mut self.away, true);
                (Next::Wait, news)
            }
            // A watch changes nothing: one that may have begun is opened again.
            AskError::Unknown { .. } => (self.again(), false),
            error if error.retry_helps() && !over => (self.again(), false),
            error => (Next::Refused(Box::new(error.clone())), false),
        }
    }

    /// Bytes came. Gives all lines that are whole by now.
    pub(super) fn took(&mut self, bytes: Bytes) -> Result<Option<Bytes>, Broke> {
        let lines = self.lines.take(bytes);
        if self.lines.rest.len() > MAX_RECORD {
            let why = format!("a line has more than {MAX_RECORD} bytes");
            return Err(Broke::Nonsense(why));
        }
        if let Some(lines) = &lines {
            self.failures = 0;
            if let Some(cursor) = last_cursor(lines) {
                self.cursor = Some(cursor);
            }
        }
        Ok(lines)
    }

    /// It has ended.
    pub(super) fn ended(&mut self, ended: Result<(), Broke>) -> Next {
        match ended {
            Ok(()) if self.lines.is_empty() => Next::End,
            Ok(()) => {
                let broke = Broke::Nonsense("its last line has no end".into());
                Next::Broke(Box::new(broke))
            }
            Err(Broke::Ended(Ended::Lost(_) | Ended::Reset(ResetCode::CANCELLED))) => self.again(),
            Err(Broke::Failed(failure)) if failure.retry => self.again(),
            Err(broke) => Next::Broke(Box::new(broke)),
        }
    }

    /// At once the first time, then ever later.
    fn again(&mut self) -> Next {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        match failures.checked_sub(1) {
            None => Next::Open,
            Some(doublings) => {
                Next::Pause((FIRST_PAUSE * 2u32.pow(doublings.min(10))).min(MAX_PAUSE))
            }
        }
    }
}

/// Whole lines out of pieces that were cut anywhere.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of a line.
    rest: BytesMut,
}

impl Lines {
    /// All lines that are whole with these bytes, if any.
    fn take(&mut self, mut bytes: Bytes) -> Option<Bytes> {
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            self.rest.extend_from_slice(&bytes);
            return None;
        };
        let whole = bytes.split_to(end + 1);
        let whole = if self.rest.is_empty() {
            whole
        } else {
            self.rest.extend_from_slice(&whole);
            self.rest.split().freeze()
        };
        self.rest.extend_from_slice(&bytes);
        Some(whole)
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The last cursor in lines; not every record has one.
fn last_cursor(lines: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Place {
        cursor: Option<String>,
    }
    let mut lines = lines.rsplit(|byte| *byte == b'\n');
    lines.find_map(|line| serde_json::from_slice::<Place>(line).ok()?.cursor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::{Failure, FailureCode};
    use proptest::prelude::*;

    use super::*;

    const BEGAN: i64 = 1_000;

    fn follow<R: Resume>(request: R) -> Follow<R> {
        Follow::new(request, BEGAN)
    }

    fn away() -> AskError {
        AskError::Away {
            node: "n1".parse().unwrap(),
            last_seen: None,
        }
    }

    fn line(n: usize) -> String {
        format!("{{\"record\":\"event\",\"cursor\":\"c{n}\"}}\n")
    }

    fn lost() -> Result<(), Broke> {
        Err(Broke::Ended(Ended::Lost("idle".into())))
    }

    #[test]
    fn a_lost_session_goes_on_behind_the_last_whole_line() {
        let mut watch = follow(Events {
            since_ns: Some(5),
            ..Events::default()
        });
        assert_eq!(watch.request().since_ns, Some(5));
        assert!(!watch.opened());
        let cut = format!("{}{}{{\"cursor\":\"never\"", line(1), line(2));
        let whole = watch.took(cut.into()).unwrap().unwrap();
        assert_eq!(whole, format!("{}{}", line(1), line(2)));
        assert_eq!(watch.ended(lost()), Next::Open);
        assert_eq!(watch.refused(&away(), 0), (Next::Wait, true));
        assert_eq!(watch.refused(&away(), 0), (Next::Wait, false));
        let again = watch.request();
        assert_eq!(
            (again.cursor.as_deref(), again.since_ns),
            (Some("c2"), None)
        );
        assert!(watch.opened(), "it is back");
        // What was left of the line that broke is not put before the next.
        assert_eq!(watch.took(line(3).into()).unwrap().unwrap(), line(3));
        assert_eq!(watch.ended(Ok(())), Next::End);
    }

    #[test]
    fn without_a_cursor_nothing_is_missing_and_nothing_comes_twice() {
        let mut events = follow(Events::default());
        events.opened();
        assert_eq!(events.request().since_ns, Some(BEGAN));
        let logs = |tail| Logs {
            container: "web".into(),
            follow: true,
            tail,
            ..Logs::default()
        };
        for (tail, since) in [(None, None), (Some(10), None), (Some(0), Some(BEGAN))] {
            let mut watch = follow(logs(tail));
            assert_eq!(watch.request(), logs(tail));
            watch.opened();
            let again = watch.request();
            assert_eq!((again.tail, again.since_ns), (None, since), "{tail:?}");
        }
        // One that began with a cursor keeps it.
        let mut events = follow(Events {
            cursor: Some("c".into()),
            ..Events::default()
        });
        events.opened();
        let again = events.request();
        assert_eq!((again.cursor.as_deref(), again.since_ns), (Some("c"), None));
    }

    #[test]
    fn what_would_only_repeat_itself_is_given_up() {
        let node = || "n1".parse().unwrap();
        let failed = |code, retry| Failure {
            code,
            message: "m".into(),
            retry,
        };
        let gone = failed(FailureCode::NO_SUCH_CONTAINER, false);
        for error in [
            AskError::NoSuchNode { node: "n1".into() },
            AskError::Revoked { node: node() },
            AskError::Failed {
                node: node(),
                failure: gone.clone(),
            },
        ] {
            let next = follow(Events::default()).refused(&error, 0).0;
            assert_eq!(next, Next::Refused(Box::new(error)));
        }
        for broke in [
            Broke::Failed(gone),
            Broke::Nonsense("x".into()),
            Broke::Ended(Ended::Violated("x".into())),
        ] {
            let next = follow(Events::default()).ended(Err(broke.clone()));
            assert_eq!(next, Next::Broke(Box::new(broke)));
        }
        let restarting = failed(FailureCode::RUNTIME_UNAVAILABLE, true);
        let next = follow(Events::default()).ended(Err(Broke::Failed(restarting)));
        assert_eq!(next, Next::Open);
        let mut cut = follow(Events::default());
        cut.took("{\"cursor\"".into()).unwrap();
        assert!(matches!(cut.ended(Ok(())), Next::Broke(_)));
    }

    #[test]
    fn a_watch_whose_time_is_over_waits_for_nobody() {
        let request = || Events {
            until_ns: Some(10),
            ..Events::default()
        };
        assert_eq!(follow(request()).refused(&away(), 9).0, Next::Wait);
        let next = follow(request()).refused(&away(), 10).0;
        assert_eq!(next, Next::Refused(Box::new(away())));
    }

    #[test]
    fn pauses_grow_until_something_comes() {
        let busy = AskError::Busy {
            node: "n1".parse().unwrap(),
        };
        let mut watch = follow(Events::default());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            match watch.refused(&busy, 0).0 {
                Next::Open => pauses.push(Duration::ZERO),
                Next::Pause(pause) => pauses.push(pause),
                next => panic!("{next:?}"),
            }
        }
        assert!(pauses.is_sorted() && pauses[1] == FIRST_PAUSE);
        assert_eq!(pauses.last(), Some(&MAX_PAUSE));
        watch.opened();
        watch.took(line(1).into()).unwrap();
        assert_eq!(watch.ended(lost()), Next::Open);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut watch = follow(Events::default());
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        let taken = (0..100)
            .map_while(|_| watch.took(piece.clone()).ok())
            .count();
        assert_eq!(taken, MAX_RECORD / piece.len());
    }

    proptest! {
        /// However the bytes are cut, the lines are those that were sent.
        #[test]
        fn lines_survive_any_cut(cuts in prop::collection::vec(1..40usize, 0..60)) {
            let sent: String = (0..30).map(line).collect();
            let mut rest = Bytes::from(sent.clone());
            let mut watch = follow(Events::default());
            let mut got = Vec::new();
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let piece = rest.split_to(cut.min(rest.len()));
                if let Some(lines) = watch.took(piece).unwrap() {
                    prop_assert_eq!(lines.last(), Some(&b'\n'));
                    got.extend_from_slice(&lines);
                }
            }
            prop_assert_eq!(got, sent.into_bytes());
            prop_assert_eq!(watch.cursor.as_deref(), Some("c29"));
        }
    }
}

//! A build's progress as lines that look like Docker's own. Pure: bytes of records in, lines out.
//!
//! Text of the classic builder goes through as it is: `Step 1/3 : …`, ` ---> Using cache`. Steps of
//! BuildKit, which run side by side, have a number each:
//!
//! ```text
//! #5 [2/3] RUN make
//! #5 cc -c main.c
//! #5 DONE 1.3s
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use hub_protocol::kind::build::Progress;

/// The most bytes of a record, and of a line that a step prints: 1 MiB. What is longer is cut.
const LONGEST: usize = 1024 * 1024;

/// The most steps and layers that are remembered.
const REMEMBERED: usize = 10_000;

/// Finds records in bytes that are cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Records {
    begun: Vec<u8>,
}

impl Records {
    /// The lines that these bytes complete, without their ends.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Bytes> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            // Longer is no record: what is left of it is none either.
            if self.begun.len() + part.len() <= LONGEST {
                self.begun.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                lines.push(Bytes::from(line).slice(..).trim());
            }
        }
        lines
    }
}

trait Trim {
    fn trim(self) -> Self;
}

impl Trim for Bytes {
    fn trim(self) -> Self {
        let trimmed = self.trim_ascii();
        self.slice_ref(trimmed)
    }
}

/// What is known of a build.
#[derive(Debug, Default)]
pub(super) struct Steps {
    known: HashMap<String, Step>,
    pulls: HashMap<String, String>,
    last: u32,
    /// Whether the text so far ends within a line.
    within_line: bool,
}

#[derive(Debug)]
struct Step {
    number: u32,
    /// Text that has no end of line yet.
    line: String,
    done: bool,
}

impl Steps {
    /// What a record has to say: text of whole lines but for that of the classic builder.
    pub(super) fn add(&mut self, record: Progress) -> String {
        let mut text = String::new();
        if self.within_line && !matches!(record, Progress::Stream { .. }) {
            text.push('\n');
            self.within_line = false;
        }
        match record {
            Progress::Stream { text: stream } => {
                self.within_line = if stream.is_empty() {
                    self.within_line
                } else {
                    !stream.ends_with('\n')
                };
                text.push_str(&stream);
            }
            Progress::Step {
                id,
                name,
                started_ms,
                completed_ms,
                cached,
                error,
            } => {
                let over = completed_ms.is_some() || cached || error.is_some();
                // Announced, and not yet begun.
                if started_ms.is_none() && !over {
                    return text;
                }
                let (step, known) = self.step(id);
                if !known {
                    let _ = writeln!(text, "#{} {}", step.number, plain(&name));
                }
                if over && !step.done {
                    step.done = true;
                    let rest = std::mem::take(&mut step.line);
                    if !rest.is_empty() {
                        let _ = writeln!(text, "#{} {rest}", step.number);
                    }
                    let took = |(start, end): (i64, i64)| end.saturating_sub(start).max(0);
                    let end = match (error, cached) {
                        (Some(error), _) => format!("ERROR: {}", plain(&error)),
                        (None, true) => "CACHED".to_owned(),
                        (None, false) => {
                            let ms = started_ms.zip(completed_ms).map_or(0, took);
                            let tenths = ms.saturating_add(50) / 100;
                            format!("DONE {}.{}s", tenths / 10, tenths % 10)
                        }
                    };
                    let _ = writeln!(text, "#{} {end}\n", step.number);
                }
            }
            Progress::Log { id, text: log } => {
                let (step, known) = self.step(id);
                if !known {
                    let _ = writeln!(text, "#{}", step.number);
                }
                for part in log.split_inclusive('\n') {
                    step.line.push_str(part);
                    if part.ends_with('\n') || step.line.len() > LONGEST {
                        let line = std::mem::take(&mut step.line);
                        let line = line.trim_end_matches(['\n', '\r']);
                        let _ = writeln!(text, "#{} {line}", step.number);
                    }
                }
            }
            Progress::Pull { id, status, .. } => {
                if self.pulls.get(&id) != Some(&status) {
                    let separator = if id.is_empty() { "" } else { ": " };
                    let _ = writeln!(text, "{}{separator}{}", plain(&id), plain(&status));
                    if self.pulls.len() >= REMEMBERED {
                        self.pulls.clear();
                    }
                    self.pulls.insert(id, status);
                }
            }
        }
        text
    }

    /// What is left when nothing more comes.
    pub(super) fn finish(&mut self) -> String {
        let mut text = String::new();
        if std::mem::take(&mut self.within_line) {
            text.push('\n');
        }
        let mut left: Vec<_> = self
            .known
            .values()
            .filter(|step| !step.line.is_empty())
            .collect();
        left.sort_by_key(|step| step.number);
        for step in left {
            let _ = writeln!(text, "#{} {}", step.number, step.line);
        }
        self.known.clear();
        text
    }

    /// The step with this id, and whether it was known.
    fn step(&mut self, id: String) -> (&mut Step, bool) {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let known = self.known.contains_key(&id);
        if !known {
            self.last += 1;
        }
        let number = self.last;
        let step = self.known.entry(id).or_insert_with(|| Step {
            number,
            line: String::new(),
            done: false,
        });
        (step, known)
    }
}

/// Text that cannot drive the terminal.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(id: &str, name: &str, times: (Option<i64>, Option<i64>), cached: bool) -> Progress {
        Progress::Step {
            id: id.into(),
            name: name.into(),
            started_ms: times.0,
            completed_ms: times.1,
            cached,
            error: None,
        }
    }

    fn log(id: &str, text: &str) -> Progress {
        Progress::Log {
            id: id.into(),
            text: text.into(),
        }
    }

    fn shown(records: impl IntoIterator<Item = Progress>) -> String {
        let mut steps = Steps::default();
        let mut text: String = records
            .into_iter()
            .map(|record| steps.add(record))
            .collect();
        text.push_str(&steps.finish());
        text
    }

    #[test]
    fn the_classic_builder_speaks_for_itself() {
        let stream = |text: &str| Progress::Stream { text: text.into() };
        let text = shown([
            stream("Step 1/2 : FROM a\n"),
            stream(" ---> Using cache\n"),
            stream("half "),
            stream("a line"),
        ]);
        assert_eq!(text, "Step 1/2 : FROM a\n ---> Using cache\nhalf a line\n");
    }

    #[test]
    fn steps_have_numbers_marks_and_times() {
        let text = shown([
            step("a", "[1/3] FROM busybox", (None, None), false),
            step("b", "[2/3] RUN make", (Some(1000), None), false),
            log("b", "cc -c ma"),
            step("a", "[1/3] FROM busybox", (Some(900), Some(900)), true),
            log("b", "in.c\nld\n"),
            log("b", "end"),
            step("b", "[2/3] RUN make", (Some(1000), Some(2349)), false),
            // BuildKit says it again.
            step("b", "[2/3] RUN make", (Some(1000), Some(2349)), false),
        ]);
        let expected = "\
#1 [2/3] RUN make
#2 [1/3] FROM busybox
#2 CACHED

#1 cc -c main.c
#1 ld
#1 end
#1 DONE 1.3s

";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_step_that_fails_says_why_and_cannot_drive_the_terminal() {
        let failed = Progress::Step {
            id: "a".into(),
            name: "RUN \u{1b}[2J".into(),
            started_ms: Some(0),
            completed_ms: Some(10),
            cached: false,
            error: Some("exit code: 1\n".into()),
        };
        assert_eq!(shown([failed]), "#1 RUN  [2J\n#1 ERROR: exit code: 1\n\n");
    }

    #[test]
    fn layers_are_named_when_something_changes() {
        let pull = |status: &str, current| Progress::Pull {
            id: "4f4fb700ef54".into(),
            status: status.into(),
            current,
            total: Some(10),
        };
        let text = shown([
            pull("Downloading", Some(1)),
            pull("Downloading", Some(5)),
            pull("Pull complete", None),
        ]);
        assert_eq!(
            text,
            "4f4fb700ef54: Downloading\n4f4fb700ef54: Pull complete\n"
        );
    }

    #[test]
    fn what_has_not_ended_is_shown_at_the_end() {
        assert_eq!(shown([log("a", "no end")]), "#1\n#1 no end\n");
    }

    #[test]
    fn records_are_found_wherever_they_are_cut() {
        let bytes = b"{\"a\":1}\r\n\n{\"b\":2}\n{\"c\"";
        for size in 1..bytes.len() {
            let mut records = Records::default();
            let found: Vec<_> = bytes
                .chunks(size)
                .flat_map(|piece| records.feed(piece))
                .collect();
            assert_eq!(found, [&b"{\"a\":1}"[..], b"", b"{\"b\":2}"], "{size}");
        }
        let mut records = Records::default();
        assert!(records.feed(&vec![b'x'; LONGEST + 1]).is_empty());
        assert_eq!(records.feed(b"y\nz\n"), [&b"y"[..], b"z"]);
    }
}

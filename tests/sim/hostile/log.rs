//! What the honest side logs while a test runs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Hears the log of this thread, from information up, for as long as it lives.
pub struct Log {
    written: Written,
    _guard: DefaultGuard,
}

#[derive(Debug, Default, Clone)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn hear() -> Self {
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::INFO)
            .with_writer(written.clone())
            .finish();
        Self {
            written,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<Value> {
        let written = self.written.0.lock().unwrap();
        written
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// The lines whose message holds `text`.
    pub fn saying(&self, text: &str) -> Vec<Value> {
        let mut lines = self.lines();
        lines.retain(|line| line["fields"]["message"].as_str().unwrap().contains(text));
        lines
    }

    /// The lines about operations that a breach of the rules has cost.
    pub fn breaches(&self) -> Vec<Line> {
        self.saying("and lost this operation")
            .iter()
            .map(Line::of)
            .collect()
    }
}

/// What a line about a breach names.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub node: String,
    pub operation: String,
    pub channel: String,
    pub kind: String,
    /// The session's counter, this breach included.
    pub total: u64,
}

impl Line {
    fn of(line: &Value) -> Self {
        let field = |name: &str| line["fields"][name].as_str().unwrap_or("").to_owned();
        let spans = line["spans"].as_array().unwrap();
        // The innermost that names it.
        let node = spans.iter().rev().find_map(|span| span["node"].as_str());
        Self {
            node: node.unwrap_or("").to_owned(),
            operation: field("operation"),
            channel: field("channel"),
            kind: field("kind"),
            total: line["fields"]["total"].as_u64().unwrap(),
        }
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

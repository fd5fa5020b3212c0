//! What is counted of exposures, and how Prometheus reads it. Pure.
//!
//! Series have the labels of exposures and of fixed sets, never of clients, paths or nodes, so that
//! there are as many as exposures, times a constant.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::Kind;
use crate::proxy::limits::Refusal;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The upper bounds of the histograms' buckets, in milliseconds.
const BOUNDS: [u64; 12] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000,
];

/// Classes of answers: by the first digit of their status, or none at all.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// How long things took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Histogram {
    /// How many fell into each bucket, and past the last.
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Histogram {
    pub(super) fn observe(&mut self, time: Duration) {
        let fits = |bound: &u64| time <= Duration::from_millis(*bound);
        let bucket = BOUNDS.iter().position(fits).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += time;
    }
}

/// What is counted of one exposure, or of requests to none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// The exposure's name, as it was seen last.
    pub(super) name: String,
    answered: [u64; CLASSES.len()],
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) first_byte: Histogram,
    pub(super) target_first_byte: Histogram,
    /// Those that are over, and in a reading those under way.
    pub(super) begun: [u64; Kind::ALL.len()],
    /// Under way. Zero but in a reading.
    pub(super) open: [u64; Kind::ALL.len()],
    pub(super) credit_waits: u64,
    pub(super) credit_waited: Duration,
    refused: [u64; Refusal::NAMES.len()],
}

impl Totals {
    /// An answer of this status, or none before the browser left.
    pub(super) fn answer(&mut self, status: Option<u16>) {
        let class = status.map_or(5, |status| usize::from(status / 100).clamp(1, 5) - 1);
        self.answered[class] += 1;
    }

    /// A limit of this name held a request back.
    pub(super) fn refuse(&mut self, refusal: &str) {
        let named = Refusal::NAMES.iter().position(|name| *name == refusal);
        if let Some(place) = named {
            self.refused[place] += 1;
        }
    }
}

/// What there is to read at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// By exposure; those to none have no id.
    pub(super) exposures: Vec<(Option<u64>, Totals)>,
    /// Connections of browsers.
    pub(super) connections: u64,
    /// How often each limit held somebody back, exposures or not.
    pub(super) refusals: Vec<(&'static str, u64)>,
    /// Lines that the access log lost.
    pub(super) lost_lines: u64,
}

/// Text in Prometheus' format.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a metric: its name, its type (`counter`, `gauge`, `histogram`) and what it counts.
    pub fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A value under these labels.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            self.0.push(if place == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// A metric with one value and no labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl fmt::Display) {
        self.metric(name, kind, help);
        self.value(name, &[], value);
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Writes what was read.
pub(super) fn write(text: &mut Text, reading: &Reading) {
    let exposures: Vec<Labelled<'_>> = reading.exposures.iter().map(Labelled::new).collect();
    let counter = |text: &mut Text, name: &str, help: &str, of: &dyn Fn(&Totals) -> u64| {
        text.metric(name, "counter", help);
        for exposure in &exposures {
            text.value(name, &exposure.labels(), of(exposure.totals));
        }
    };

    let name = "hub_exposure_requests_total";
    let help = "Requests, by the class of their status; none: the browser left before an answer.";
    text.metric(name, "counter", help);
    for exposure in &exposures {
        for (class, count) in CLASSES.iter().zip(exposure.totals.answered) {
            text.value(name, &exposure.with("code", class), count);
        }
    }
    for (name, help, of) in [
        (
            "hub_exposure_first_byte_seconds",
            "From a request's head at the hub to the head of its answer there.",
            (|totals| &totals.first_byte) as fn(&Totals) -> &Histogram,
        ),
        (
            "hub_exposure_target_first_byte_seconds",
            "From the agent's connection to the target to the head of the target's answer.",
            |totals| &totals.target_first_byte,
        ),
    ] {
        text.metric(name, "histogram", help);
        for exposure in &exposures {
            histogram(text, name, exposure, of(exposure.totals));
        }
    }
    let name = "hub_exposure_received_bytes_total";
    let help = "Bytes of bodies and streams from browsers.";
    counter(text, name, help, &|totals| totals.bytes_in);
    let name = "hub_exposure_sent_bytes_total";
    let help = "Bytes of bodies and streams to browsers.";
    counter(text, name, help, &|totals| totals.bytes_out);
    for (name, kind, help, of) in [
        (
            "hub_exposure_streams_total",
            "counter",
            "Requests and streams that began.",
            (|totals| totals.begun) as fn(&Totals) -> [u64; Kind::ALL.len()],
        ),
        (
            "hub_exposure_streams",
            "gauge",
            "Requests and streams under way.",
            |totals| totals.open,
        ),
    ] {
        text.metric(name, kind, help);
        for exposure in &exposures {
            for (kind, count) in Kind::ALL.iter().zip(of(exposure.totals)) {
                text.value(name, &exposure.with("kind", kind.as_str()), count);
            }
        }
    }
    let name = "hub_exposure_credit_waits_total";
    let help = "How often something from a browser waited since the agent took no more.";
    counter(text, name, help, &|totals| totals.credit_waits);
    let name = "hub_exposure_credit_wait_seconds_total";
    text.metric(name, "counter", "How long it waited so, in all.");
    for exposure in &exposures {
        let waited = exposure.totals.credit_waited.as_secs_f64();
        text.value(name, &exposure.labels(), waited);
    }
    let name = "hub_exposure_refusals_total";
    text.metric(
        name,
        "counter",
        "Requests that a limit held back, by its name.",
    );
    for exposure in &exposures {
        for (limit, count) in Refusal::NAMES.iter().zip(exposure.totals.refused) {
            if count > 0 {
                text.value(name, &exposure.with("limit", limit), count);
            }
        }
    }
    let name = "hub_refusals_total";
    let help = "How often a limit held somebody back, by its name, over all exposures.";
    text.metric(name, "counter", help);
    for (limit, count) in &reading.refusals {
        text.value(name, &[("limit", limit)], count);
    }
    text.single(
        "hub_browser_connections",
        "gauge",
        "Connections of browsers.",
        reading.connections,
    );
    text.single(
        "hub_access_log_lost_lines_total",
        "counter",
        "Lines of the access log that were lost, since it could not be written as fast, or at all.",
        reading.lost_lines,
    );
}

struct Labelled<'a> {
    id: String,
    totals: &'a Totals,
}

impl<'a> Labelled<'a> {
    fn new((id, totals): &'a (Option<u64>, Totals)) -> Self {
        let id = id.map_or_else(String::new, |id| id.to_string());
        Self { id, totals }
    }

    fn labels(&self) -> [(&str, &str); 2] {
        [("exposure", &self.id), ("name", &self.totals.name)]
    }

    fn with<'b>(&'b self, label: &'b str, value: &'b str) -> [(&'b str, &'b str); 3] {
        let [exposure, name] = self.labels();
        [exposure, name, (label, value)]
    }
}

fn histogram(text: &mut Text, name: &str, exposure: &Labelled<'_>, histogram: &Histogram) {
    let bucket = format!("{name}_bucket");
    let mut count = 0;
    for (place, fell) in histogram.counts.iter().enumerate() {
        count += fell;
        let bound = BOUNDS.get(place).map_or_else(
            || "+Inf".to_owned(),
            |bound| Duration::from_millis(*bound).as_secs_f64().to_string(),
        );
        text.value(&bucket, &exposure.with("le", &bound), count);
    }
    let labels = exposure.labels();
    text.value(&format!("{name}_sum"), &labels, histogram.sum.as_secs_f64());
    text.value(&format!("{name}_count"), &labels, count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reading: &Reading) -> String {
        let mut text = Text::default();
        write(&mut text, reading);
        text.into_string()
    }

    #[test]
    fn what_was_counted_is_read_by_exposure() {
        let mut shop = Totals {
            name: "shop".into(),
            bytes_in: 3,
            bytes_out: 4,
            credit_waits: 2,
            credit_waited: Duration::from_millis(1500),
            ..Totals::default()
        };
        for status in [Some(101), Some(200), Some(204), Some(404), Some(503), None] {
            shop.answer(status);
        }
        shop.refuse("body_size");
        shop.refuse("no such limit");
        for millis in [5, 6, 60_000] {
            shop.first_byte.observe(Duration::from_millis(millis));
        }
        let text = text(&Reading {
            exposures: vec![(None, Totals::default()), (Some(7), shop)],
            connections: 5,
            refusals: vec![("attempts", 9)],
            lost_lines: 1,
        });
        for line in [
            r#"hub_exposure_requests_total{exposure="7",name="shop",code="2xx"} 2"#,
            r#"hub_exposure_requests_total{exposure="7",name="shop",code="none"} 1"#,
            r#"hub_exposure_requests_total{exposure="",name="",code="2xx"} 0"#,
            r#"hub_exposure_first_byte_seconds_bucket{exposure="7",name="shop",le="0.005"} 1"#,
            r#"hub_exposure_first_byte_seconds_bucket{exposure="7",name="shop",le="0.01"} 2"#,
            r#"hub_exposure_first_byte_seconds_bucket{exposure="7",name="shop",le="30"} 2"#,
            r#"hub_exposure_first_byte_seconds_bucket{exposure="7",name="shop",le="+Inf"} 3"#,
            r#"hub_exposure_first_byte_seconds_sum{exposure="7",name="shop"} 60.011"#,
            r#"hub_exposure_first_byte_seconds_count{exposure="7",name="shop"} 3"#,
            r#"hub_exposure_received_bytes_total{exposure="7",name="shop"} 3"#,
            r#"hub_exposure_sent_bytes_total{exposure="7",name="shop"} 4"#,
            r#"hub_exposure_credit_waits_total{exposure="7",name="shop"} 2"#,
            r#"hub_exposure_credit_wait_seconds_total{exposure="7",name="shop"} 1.5"#,
            r#"hub_exposure_refusals_total{exposure="7",name="shop",limit="body_size"} 1"#,
            r#"hub_refusals_total{limit="attempts"} 9"#,
            "hub_browser_connections 5",
            "hub_access_log_lost_lines_total 1",
        ] {
            assert!(text.lines().any(|has| has == line), "{line}\n{text}");
        }
    }

    /// Each name is told of once, before its values, and a value is a number.
    #[test]
    fn the_text_is_in_the_format() {
        let text = text(&Reading {
            exposures: vec![(Some(1), Totals::default())],
            refusals: vec![("attempts", 0)],
            ..Reading::default()
        });
        let mut told = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap_or_default();
                assert!(!told.contains(&name), "{name}");
                told.push(name);
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').unwrap_or_default();
                let name = series.split('{').next().unwrap_or_default();
                let last = told.last().copied().unwrap_or_default();
                let of = ["", "_bucket", "_sum", "_count"].map(|end| format!("{last}{end}"));
                assert!(of.iter().any(|of| of == name), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn labels_cannot_end_early() {
        let mut text = Text::default();
        text.value("x", &[("a", "b\"c\\d\ne")], 1);
        assert_eq!(text.into_string(), "x{a=\"b\\\"c\\\\d\\ne\"} 1\n");
    }
}

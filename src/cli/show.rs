//! Answers of the API as people read them. Pure.

use std::fmt::Write as _;

use hub_server::api::types::{Node, NodeSession, Nodes, Status, Token};

use super::table::table;

pub(super) fn status(status: &Status) -> String {
    let mut rows = vec![
        ("Release", status.release.clone()),
        ("Running since", time(&status.started)),
        (
            "Nodes",
            format!("{}, {} connected", status.nodes, status.connected),
        ),
        ("Operations", format!("{} under way", status.operations)),
        ("Violations", format!("{} by agents", status.violations)),
        ("CA", status.ca.clone()),
        ("Agents dial", format!("{} (UDP)", status.agents)),
        ("Machines join", format!("{} (UDP)", status.enrollment)),
    ];
    rows.extend(
        status
            .data_plane
            .iter()
            .map(|url| ("Browsers", url.clone())),
    );
    let scheme = status.data_plane.as_deref().unwrap_or_default();
    let scheme = scheme
        .split_once("://")
        .map_or("http", |(scheme, _)| scheme);
    rows.extend(
        status
            .domain
            .iter()
            .map(|domain| ("Names", format!("{scheme}://NAME.{domain}/"))),
    );
    let lines: Vec<_> = rows
        .iter()
        .map(|(name, value)| format!("{name:<14} {value}"))
        .collect();
    lines.join(
        "
",
    )
}

pub(super) fn nodes(nodes: &Nodes) -> String {
    if nodes.nodes.is_empty() {
        return "There are no nodes yet. `hub token create` lets a machine join.\n".into();
    }
    let rows: Vec<_> = nodes.nodes.iter().map(node).collect();
    let headings = [
        "NAME",
        "STATE",
        "SINCE",
        "ADDRESS",
        "RTT",
        "OPERATIONS",
        "PLATFORM",
        "RELEASE",
    ];
    let mut text = table(headings, &rows);
    for node in &nodes.nodes {
        for lingering in node.session.iter().flat_map(|session| &session.lingering) {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "\n{}: this may still be running: {lingering}",
                node.name
            );
        }
    }
    text
}

fn node(node: &Node) -> [String; 8] {
    let of_session =
        |text: fn(&NodeSession) -> String| node.session.as_ref().map_or_else(|| "-".into(), text);
    [
        node.name.clone(),
        node.state.to_string(),
        time(&node.since),
        if node.local {
            "local".into()
        } else {
            of_session(|session| session.address.clone().unwrap_or_else(|| "-".into()))
        },
        of_session(|session| milliseconds(session.rtt_us)),
        of_session(|session| session.operations.to_string()),
        of_session(|session| format!("{}/{}", session.os, session.arch)),
        of_session(|session| session.release.clone()),
    ]
}

fn milliseconds(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

/// Text of somebody else, which must not drive the terminal.
pub(super) fn clean(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(shown).collect()
}

/// The same of a text of several lines.
pub(super) fn clean_lines(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// JSON whose texts are somebody else's. It means the same: what drives a terminal and may stand in
/// JSON as it is, is escaped there.
pub(super) fn clean_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            // Writing to a string does not fail.
            let _ = write!(clean, "\\u{:04x}", u32::from(c));
        } else {
            clean.push(c);
        }
    }
    clean
}

/// Milliseconds since 1970 as a point in time to the second.
pub(super) fn time_of_ms(ms: i64) -> String {
    let nanos = super::units::time_of_ns(ms.saturating_mul(1_000_000));
    match nanos.split_once('.') {
        Some((seconds, _)) => format!("{}Z", seconds.replace('T', " ")),
        None => nanos,
    }
}

/// A point in time to the second: `2026-01-31 09:30:00Z`. What is no point in time stays as it is.
pub(super) fn time(rfc3339: &str) -> String {
    match rfc3339.split_once('T') {
        Some((date, time)) if time.len() == 13 && time.is_ascii() => {
            format!("{date} {}Z", &time[..8])
        }
        _ => rfc3339.to_owned(),
    }
}

pub(super) fn token(token: &Token) -> String {
    let admits = match token.uses {
        1 => "one machine".to_owned(),
        uses => format!("{uses} machines"),
    };
    format!(
        "A join token for {admits}, until {}. It is shown this once:\n\n  {}\n\n\
         On the new machine, run:\n\n  {}\n",
        time(&token.expires),
        token.token.expose(),
        token.join_command.expose(),
    )
}

#[cfg(test)]
mod tests {
    use hub_server::api::types::NodeState;

    use super::*;

    const NOON: &str = "2026-01-31T12:00:00.123Z";

    #[test]
    fn nodes_are_a_table() {
        let session = NodeSession {
            address: Some("192.0.2.7:40000".into()),
            rtt_us: 41_250,
            operations: 2,
            release: "0.1.0".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            hostname: "shop".into(),
            capabilities: vec!["exec".into()],
            lingering: vec!["sleep: pid 7 would not stop".into()],
        };
        let node = |name: &str, state, session| Node {
            id: "0".repeat(32),
            name: name.into(),
            local: name == "here",
            state,
            since: NOON.into(),
            created: NOON.into(),
            last_seen: None,
            session,
        };
        let all = [
            node("shop-4", NodeState::Connected, Some(session)),
            node("b", NodeState::Away, None),
            node("here", NodeState::Away, None),
        ];
        let expected = "\
NAME    STATE      SINCE                 ADDRESS          RTT      OPERATIONS  PLATFORM      RELEASE
shop-4  connected  2026-01-31 12:00:00Z  192.0.2.7:40000  41.2 ms  2           linux/x86_64  0.1.0
b       away       2026-01-31 12:00:00Z  -                -        -           -             -
here    away       2026-01-31 12:00:00Z  local            -        -           -             -

shop-4: this may still be running: sleep: pid 7 would not stop
";
        assert_eq!(nodes(&Nodes { nodes: all.into() }), expected);
        assert!(nodes(&Nodes { nodes: vec![] }).contains("hub token create"));
    }

    #[test]
    fn a_token_comes_with_the_command_for_the_machine() {
        let text = token(&Token {
            token: "hub1_x".to_owned().into(),
            uses: 1,
            expires: NOON.into(),
            join_command: "HUB_JOIN_TOKEN=hub1_x hub-agent".to_owned().into(),
        });
        assert!(text.contains("\n  hub1_x\n"), "{text}");
        assert!(
            text.contains("\n  HUB_JOIN_TOKEN=hub1_x hub-agent\n"),
            "{text}"
        );
        assert!(
            text.contains("one machine, until 2026-01-31 12:00:00Z"),
            "{text}"
        );
    }

    #[test]
    fn nothing_that_somebody_else_says_drives_the_terminal() {
        let evil = "a\u{1b}[2J\r\u{9b}1m\u{7f}\n\tb";
        assert_eq!(clean(evil), "a?[2J??1m???b");
        assert_eq!(clean_lines(evil), "a?[2J??1m?\n\tb");
        let json = serde_json::to_string_pretty(&[evil]).unwrap_or_default();
        let cleaned = clean_json(&json);
        assert!(!cleaned.contains(|c: char| c.is_control() && c != '\n'));
        let read: Vec<String> = serde_json::from_str(&cleaned).unwrap_or_default();
        assert_eq!(read, [evil]);
    }

    #[test]
    fn what_is_no_time_stays() {
        for text in ["", "T", "soon", "2026-01-31Tnoon"] {
            assert_eq!(time(text), text);
        }
    }
}

#![allow(clippy::unwrap_used)]

use hub_protocol::kind::call::image::Credentials;

use super::*;

fn one(line: &str) -> Event {
    let mut events = events(line.as_bytes());
    assert_eq!(events.len(), 1, "{line}");
    events.remove(0)
}

#[test]
fn lines_of_both_builders_are_read() {
    let stream = |text: &str| Event::Progress(Progress::Stream { text: text.into() });
    assert_eq!(
        one("{\"stream\":\" ---\\u003e Using cache\\n\"}\r\n"),
        stream(" ---> Using cache\n")
    );
    let id = Event::Image("sha256:6c".into());
    assert_eq!(one(r#"{"aux":{"ID":"sha256:6c"}}"#), id);
    assert_eq!(
        one(r#"{"id":"moby.image.id","aux":{"ID":"sha256:6c"}}"#),
        id
    );
    let pull = |id: &str, status: &str, current, total| {
        Event::Progress(Progress::Pull {
            id: id.into(),
            status: status.into(),
            current,
            total,
        })
    };
    assert_eq!(
        one(
            r#"{"status":"Downloading","progressDetail":{"current":3,"total":9},"progress":"[=>]","id":"ab"}"#
        ),
        pull("ab", "Downloading", Some(3), Some(9))
    );
    assert_eq!(
        one(r#"{"status":"Pull complete","progressDetail":{},"id":"ab"}"#),
        pull("ab", "Pull complete", None, None)
    );
    assert_eq!(
        one(r#"{"status":"Digest: sha256:00"}"#),
        pull("", "Digest: sha256:00", None, None)
    );
    assert_eq!(
        one(
            r#"{"errorDetail":{"code":7,"message":"returned a non-zero code: 7"},"error":"short"}"#
        ),
        Event::Failed("returned a non-zero code: 7".into())
    );
    assert_eq!(one(r#"{"error":"no"}"#), Event::Failed("no".into()));
    assert_eq!(
        one(r#"{"id":"moby.buildkit.trace","aux":"GgUKAXYiAA=="}"#),
        Event::Progress(Progress::Log {
            id: "v".into(),
            text: String::new()
        })
    );
    for nothing in [
        "",
        "\r\n",
        "{}",
        "no JSON",
        r#"{"aux":{"other":1}}"#,
        r#"{"aux":"!"}"#,
        r#"{"aux":"Cg=="}"#,
    ] {
        assert_eq!(events(nothing.as_bytes()), [], "{nothing}");
    }
}

#[test]
fn lines_are_cut_wherever_bytes_are() {
    let text = b"one\r\ntwo\n\nlast";
    for size in 1..=text.len() {
        let mut lines = Lines::default();
        let mut cut = Vec::new();
        for piece in text.chunks(size) {
            lines.push(piece);
            while let Some(line) = lines.next().unwrap() {
                cut.push(line);
            }
        }
        assert_eq!(cut, ["one\r\n", "two\n", "\n"]);
    }
    let mut lines = Lines::default();
    lines.push(&vec![b'x'; MAX_LINE]);
    assert_eq!(lines.next(), Ok(None));
    lines.push(b"x");
    assert!(lines.next().is_err());
}

#[test]
fn a_query_carries_all_that_was_wished() {
    let build = Build {
        dockerfile: Some("a b/Dockerfile".into()),
        tags: vec!["one:1".into(), "two".into()],
        target: Some("stage".into()),
        build_args: [("A".into(), Some("x&y".into())), ("B".into(), None)].into(),
        labels: [("l".into(), "v".into())].into(),
        no_cache: true,
        pull: true,
        platform: Some("linux/amd64".into()),
        output: true,
        // In no query.
        credentials: [("r.example".into(), Credentials::default())].into(),
    };
    let query = query(&build, Some("id"), true);
    let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    let expected = [
        ("rm", "1"),
        ("forcerm", "1"),
        ("version", "2"),
        ("session", "id"),
        ("networkmode", "none"),
        ("t", "one:1"),
        ("t", "two"),
        ("dockerfile", "a b/Dockerfile"),
        ("target", "stage"),
        ("platform", "linux/amd64"),
        ("nocache", "1"),
        ("pull", "1"),
        ("buildargs", r#"{"A":"x&y","B":null}"#),
        ("labels", r#"{"l":"v"}"#),
    ];
    let expected: Vec<_> = expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    assert_eq!(pairs, expected);
    assert_eq!(
        super::query(&Build::default(), None, false),
        "rm=1&forcerm=1&version=1"
    );
}

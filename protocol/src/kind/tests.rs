use super::*;
use crate::target::{Grant, Selector, Target, Transport};

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn golden_bytes() {
    let exec = exec::Open {
        container: Some("web".into()),
        argv: vec!["wc".into(), "-c".into()],
        env: vec![("A".into(), "1".into())],
        cwd: None,
        user: Some("0".into()),
        stdin: true,
        tty: Some(exec::Size { cols: 80, rows: 24 }),
        on_disconnect: exec::OnDisconnect::Keep,
    };
    let head = http::RequestHead {
        method: "PUT".into(),
        target: Bytes::from_static(b"/a%2Fb?c"),
        headers: vec![(Bytes::from_static(b"x"), Bytes::from_static(b"\xff"))],
        upgrade: None,
        body: http::Body::Length(300),
    };
    let response = http::ResponseHead {
        status: 200,
        headers: vec![],
        upgrade: None,
        body: http::Body::Chunked,
    };
    let http = http::Open {
        target: Target::tcp(8080),
        grant: Grant::Exposed { revision: 7 },
        protocol: http::Protocol::Http1,
        head,
    };
    let failure = Failure {
        code: FailureCode::BUSY,
        message: "full".into(),
        retry: true,
    };
    let golden = [
        (
            open_frame(OperationKind::Exec, &exec),
            "011a010377656202027763022d63010141013100010130010150 1801",
        ),
        (
            open_frame(OperationKind::Http, &http),
            "021d00903f00000700035055540 82f612532 46623f63010178 01ff0001ac02",
        ),
        (encode(&http::Message::Head(response)), "00c801000002"),
        (encode(&http::Message::Trailers(vec![])), "0100"),
        (
            encode(&http::Message::Informational(http::Informational {
                status: 103,
                headers: vec![],
            })),
            "02 67 00",
        ),
        (
            open_frame(
                OperationKind::Tcp,
                &tcp::Open {
                    target: Target {
                        transport: Transport::Udp,
                        port: 53,
                        container: Some(Selector::Label("a=b".into())),
                    },
                    grant: Grant::Operator,
                },
            ),
            "0e 09 01 35 01 01 03613d62 01",
        ),
        (
            open_frame(
                OperationKind::Udp,
                &udp::Open {
                    target: Target {
                        transport: Transport::Udp,
                        port: 53,
                        container: None,
                    },
                    grant: Grant::Exposed { revision: 300 },
                },
            ),
            "0f 06 01 35 00 00 ac02",
        ),
        (encode(&http::Outcome::Complete), "00"),
        (
            encode(&http::Outcome::Broken(failure.clone())),
            "01080466756c6c01",
        ),
        (encode(&exec::Outcome::Exited(1)), "0002"),
        (encode(&exec::Outcome::Signaled(9)), "0112"),
        (encode(&exec::Outcome::Unknown), "02"),
        (encode(&exec::Outcome::Detached), "03"),
        (
            encode(&exec::Accepted {
                id: exec::ExecId("ab".into()),
                offsets: exec::Offsets {
                    stdout: 300,
                    stderr: 1,
                },
            }),
            "02 6162 ac02 01",
        ),
        (
            encode(&exec::Message::Resize(exec::Size { cols: 80, rows: 24 })),
            "00 50 18",
        ),
        (encode(&exec::Message::Signal(2)), "01 04"),
        (encode(&exec::Message::Detach), "02"),
        (
            frame::raw(
                OperationKind::Attach.tag(),
                &exec::Attach {
                    id: exec::ExecId("ab".into()),
                    seen: None,
                    size: None,
                }
                .to_body(),
            ),
            "03 05 02 6162 00 00",
        ),
        (
            call::Open::new(&call::container::Start {
                container: "web".into(),
            })
            .to_body(),
            "0f 636f6e7461696e65722e7374617274 13 7b22636f6e7461696e6572223a22776562227d",
        ),
        (
            encode(&call::Progress {
                id: "a".into(),
                status: "b".into(),
                current: Some(300),
                total: None,
            }),
            "0161 0162 01ac02 00",
        ),
        (encode(&transfer::Ending::Complete(())), "00"),
        (
            encode(&transfer::Ending::<()>::Failed(failure.clone())),
            "01080466756c6c01",
        ),
        (encode(&failure), "080466756c6c01"),
    ];
    for (bytes, expected) in golden {
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
    }
}

#[test]
fn a_signal_that_does_not_exist_is_no_outcome() {
    for (signal, exists) in [
        (i32::MIN, false),
        (0, false),
        (1, true),
        (127, true),
        (128, false),
        (i32::MAX, false),
    ] {
        let outcome = exec::Outcome::Signaled(signal);
        let decoded = decode::<exec::Outcome>("Done", &encode(&outcome));
        assert_eq!(decoded.ok(), exists.then_some(outcome));
    }
}

#[test]
fn round_trips_and_near_misses() {
    let failure = Failure {
        code: FailureCode(700),
        message: "m".into(),
        retry: false,
    };
    let bytes = encode(&failure);
    assert_eq!(decode("failure", &bytes), Ok(failure));
    for end in 0..bytes.len() {
        assert!(decode::<Failure>("failure", &bytes[..end]).is_err());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode::<Failure>("failure", &longer).is_err());
    // A length far beyond what has arrived allocates nothing and is an error.
    assert!(decode::<Failure>("failure", &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    assert!(decode::<Vec<http::Header>>("headers", &[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
}

#[test]
fn golden_json() {
    let golden = [
        (records::Events::default().to_body(), "{}"),
        (
            transfer::CopyIn {
                container: "a".into(),
                path: "/b".into(),
                copy_uid_gid: true,
                no_overwrite_dir_non_dir: false,
            }
            .to_body(),
            r#"{"container":"a","path":"/b","copy_uid_gid":true,"no_overwrite_dir_non_dir":false}"#,
        ),
        (
            to_json(&records::EventRecord::Lagged {
                events: 3,
                cursor: "c".into(),
            }),
            r#"{"record":"lagged","events":3,"cursor":"c"}"#,
        ),
        (
            to_json(&call::exec::Kept {
                id: "ab".into(),
                container: None,
                command: "sh".into(),
                tty: true,
                started_ms: 1,
                attached: false,
                state: call::exec::KeptState::Exited { code: 3 },
            }),
            r#"{"id":"ab","command":"sh","tty":true,"started_ms":1,"attached":false,"state":"exited","code":3}"#,
        ),
        (
            to_json(&call::container::Create {
                name: "a".into(),
                image: "b".into(),
                ..Default::default()
            }),
            r#"{"name":"a","image":"b"}"#,
        ),
        (
            to_json(&call::container::List {
                labels: [
                    ("app".into(), Some("web=1".into())),
                    ("canary".into(), None),
                ]
                .into(),
                ..Default::default()
            }),
            r#"{"labels":{"app":"web=1","canary":null},"all":false}"#,
        ),
        (to_json(&call::Change::NotFound), r#""not_found""#),
    ];
    for (bytes, expected) in golden {
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }
}

#[test]
fn a_field_that_is_not_known_is_refused_by_name_and_no_value_is_repeated() {
    let refused = |json: &str| {
        from_json::<call::container::Create>("container.create", json.as_bytes())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let unknown = refused(r#"{"name":"a","image":"b","privilege":"hunter2"}"#);
    assert!(
        unknown.contains("`privilege`") && !unknown.contains("hunter2"),
        "{unknown}"
    );
    let wrong = refused(r#"{"name":"a","image":"b","env":["A=hunter2, expected x"]}"#);
    assert!(
        wrong.contains("Variable") && !wrong.contains("hunter2"),
        "{wrong}"
    );
    let nested = refused(r#"{"name":"a","image":"b","resources":{"memroy":1}}"#);
    assert!(nested.contains("`memroy`"), "{nested}");
    assert!(refused("").contains("EOF"));
}

#[test]
fn a_wrong_value_is_refused_by_the_path_of_its_field() {
    let refused = |json: &str| {
        from_json::<call::container::Create>("container.create", json.as_bytes())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    for (json, path) in [
        (r#"{"name":"a","image":7}"#, "image: invalid type"),
        (
            r#"{"name":"a","image":"b","tty":"hunter2"}"#,
            "tty: invalid type",
        ),
        (
            r#"{"name":"a","image":"b","resources":{"memory":"hunter2"}}"#,
            "resources.memory: invalid type",
        ),
        (
            r#"{"name":"a","image":"b","env":[{"name":"A","value":""},{"name":"B","value":7}]}"#,
            "env[1].value: invalid type",
        ),
        (
            r#"{"name":"a","image":"b","labels":{"k":["hunter2"]}}"#,
            "labels.k: invalid type",
        ),
    ] {
        let said = refused(json);
        assert!(
            said.starts_with(&format!("a malformed container.create: {path}")),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
    let missing = refused(r#"{"name":"a"}"#);
    assert!(missing.starts_with("a malformed container.create: missing field `image`"));
    let more = refused(r#"{"name":"a","image":"b"}{"#);
    assert!(more.contains("trailing characters"), "{more}");
}

/// What judges a wish finds its parts by name, so a list of them is no wish.
#[test]
fn a_wish_is_an_object() {
    use crate::kind::call::Call as _;
    use crate::kind::call::container::Start;
    let params = |json: &'static str| {
        let open = call::Open {
            method: Start::METHOD.into(),
            params: json.into(),
        };
        open.params::<Start>().map(|start| start.container)
    };
    assert_eq!(params(r#" {"container":"db"}"#), Ok("db".into()));
    for list in [r#"["db"]"#, " \t\r\n[\"db\"]", "[", "[]"] {
        let refused = params(list).unwrap_err().to_string();
        assert!(refused.contains("expected an object"), "{refused}");
    }
    assert!(records::Logs::from_body(br#"["db"]"#).is_err());
    assert!(records::FollowStats::from_body(br#"["db"]"#).is_err());
    assert!(transfer::CopyIn::from_body(br#"["db","/",true,true]"#).is_err());
    assert!(transfer::Save::from_body(br#"[["image"]]"#).is_err());
    assert!(build::Build::from_body(b"[]").is_err());
}

#[test]
fn every_call_has_a_name_of_its_own_and_reads_its_parameters() {
    let mut methods = call::METHODS.to_vec();
    methods.sort_unstable();
    methods.dedup();
    assert_eq!(methods.len(), call::METHODS.len());
    let stop = call::container::Stop {
        container: "web".into(),
        timeout_s: Some(-1),
    };
    let open = call::Open::new(&stop);
    assert_eq!(open.method, "container.stop");
    assert_eq!(open.params::<call::container::Stop>(), Ok(stop));
}

#[test]
fn a_failure_fits_into_the_last_frame() {
    let failure = Failure::new(FailureCode::BUILD_FAILED, "\u{fc}".repeat(100_000));
    let last = encode(&transfer::Ending::<()>::Failed(failure.clone().retry()));
    assert!(last.len() < crate::limits::MAX_ANSWER);
    assert_eq!(
        decode::<Failure>("Failed", &encode(&failure)),
        Ok(failure.clone())
    );
    // However it was made: what was asked for, and is repeated, has any length.
    let made = Failure {
        code: failure.code,
        message: "\u{fc}".repeat(100_000),
        retry: false,
    };
    assert_eq!(decode::<Failure>("Failed", &encode(&made)), Ok(failure));
}

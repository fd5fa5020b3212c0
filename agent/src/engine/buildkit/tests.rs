#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// What a daemon 20.10 said.
fn said(base64: &str) -> Vec<Progress> {
    progress(&STANDARD.decode(base64).unwrap()).unwrap()
}

#[test]
fn a_step_that_failed_is_read_as_a_daemon_wrote_it() {
    let said = said(
        "Cr4CCkdzaGEyNTY6N2NhZmFhMmJjYWVmODRjN2ViZWIzYTY2Y2IwZTU1OGQ0OTMyNzgxOTAyMDUyNjZiODEyMjEyMzM2\
         MGY2OTU1MhJHc2hhMjU2OmE4YTM1MzEzZGYzNzlmOGEyZjkxODRiNjNlYmNkOWJjY2ZhZmEwZjY1MDNhNDlhYTIzOTEx\
         MGM3NDBhYjMzMGUaPFsyLzJdIFJVTiBbIi9iaW4vYnVzeWJveCIsInNoIiwiLWMiLCJlY2hvIG9vcHMgPiYyOyBleGl0\
         IDciXSoMCO7cttgGEL684ucBMgwI7ty22AYQ0s+CwAM6UGV4ZWN1dG9yIGZhaWxlZCBydW5uaW5nIFsvYmluL2J1c3li\
         b3ggc2ggLWMgZWNobyBvb3BzID4mMjsgZXhpdCA3XTogZXhpdCBjb2RlOiA3",
    );
    let [
        Progress::Step {
            id,
            name,
            started_ms,
            completed_ms,
            cached,
            error,
        },
    ] = &said[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(
        id,
        "sha256:7cafaa2bcaef84c7ebeb3a66cb0e558d493278190205266b812212336 0f69552"
            .replace(' ', "")
            .as_str()
    );
    assert_eq!(
        name,
        r#"[2/2] RUN ["/bin/busybox","sh","-c","echo oops >&2; exit 7"]"#
    );
    assert_eq!(started_ms.unwrap() / 1000, 1_796_058_734);
    assert!(completed_ms.unwrap() > started_ms.unwrap());
    assert!(!cached);
    assert!(error.as_ref().unwrap().ends_with("exit code: 7"));
}

#[test]
fn what_a_step_prints_is_read_as_a_daemon_wrote_it() {
    let said = said(
        "GmAKR3NoYTI1NjpiN2I1OTEyOGJkOTFiOGY4ZGY3MTk1ZWU1ZGI1ODJlZDEyYjdkMzY5YTk1NTY5MDE4MzFkOWU3NmYw\
         ODRmNDNiEgsIhty22AYQgP3mOxgBIgZoZWxsbwo=",
    );
    let [Progress::Log { id, text }] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(id.starts_with("sha256:b7b59128"));
    assert_eq!(text, "hello\n");
}

#[test]
fn a_layer_that_comes_is_a_pull_and_a_title_is_a_line() {
    let layer = [
        field(1, b"sha256:00"),
        field(2, b"v"),
        field(3, b"downloading"),
        vec![4 << 3, 0x80, 1, 5 << 3, 0x80, 2],
    ]
    .concat();
    let title = [field(1, b"exporting layers"), field(2, b"v")].concat();
    let done = [&title[..], &field(8, &[8, 1])].concat();
    let warning = [field(1, b"v"), field(3, b"old syntax")].concat();
    let all = [
        field(2, &layer),
        field(2, &title),
        field(2, &done),
        field(4, &warning),
    ]
    .concat();
    let log = |text: &str| Progress::Log {
        id: "v".into(),
        text: text.into(),
    };
    assert_eq!(
        progress(&all).unwrap(),
        [
            Progress::Pull {
                id: "sha256:00".into(),
                status: "downloading".into(),
                current: Some(128),
                total: Some(256),
            },
            log("exporting layers\n"),
            log("old syntax\n"),
        ]
    );
}

#[test]
fn unknown_fields_are_passed_over_and_broken_ones_refused() {
    // A number, eight bytes, four bytes and bytes under numbers that mean nothing.
    let unknown = [
        &[9 << 3, 1][..],
        &[9 << 3 | 1],
        &[0; 8],
        &[9 << 3 | 5],
        &[0; 4],
        &field(9, b"x"),
    ];
    assert_eq!(progress(&unknown.concat()), Ok(vec![]));
    for broken in [
        &[0x0a][..],
        &[0x0a, 5, 1],
        &[0x0b, 0],
        &[0x80; 11],
        &[
            0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
        ],
    ] {
        assert_eq!(progress(broken), Err(Malformed), "{broken:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = progress(&bytes);
    }

    #[test]
    fn a_log_comes_through(text in "\\PC{0,25}") {
        let all = field(3, &field(4, text.as_bytes()));
        prop_assert_eq!(progress(&all), Ok(vec![Progress::Log { id: String::new(), text }]));
    }
}

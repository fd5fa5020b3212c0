#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const TIME: &str = "2024-05-06T07:08:09.000000010Z";
const TIME_NS: i64 = 1_714_979_289_000_000_010;

fn pieces(parser: &mut Parser) -> Vec<Piece> {
    std::iter::from_fn(|| parser.next().unwrap()).collect()
}

fn bytes_of(pieces: &[Piece]) -> Vec<(Output, Vec<u8>)> {
    let record = |piece: &Piece| match piece {
        Piece::Record(record) => {
            assert_eq!((record.time_ns, record.time.as_str()), (TIME_NS, TIME));
            (record.output, record.bytes.to_vec())
        }
        Piece::Trouble(why) => panic!("{why}"),
    };
    pieces.iter().map(record).collect()
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, 0, 0, 0], &length[..], payload].concat()
}

fn timed(bytes: &[u8]) -> Vec<u8> {
    [TIME.as_bytes(), b" ", bytes].concat()
}

proptest! {
    /// Frames come apart in the same records wherever the answer is cut.
    #[test]
    fn frames_are_records_wherever_they_are_cut(
        records in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..12),
        cuts in prop::collection::vec(1..50usize, 1..40),
    ) {
        let frames: Vec<u8> = records
            .iter()
            .flat_map(|(stderr, bytes)| frame(1 + u8::from(*stderr), &timed(bytes)))
            .collect();
        let mut parser = Parser::new(false);
        let mut got = Vec::new();
        let mut rest = &frames[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            parser.push(now);
            got.extend(pieces(&mut parser));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        parser.end();
        got.extend(pieces(&mut parser));
        let output = |stderr| if stderr { Output::Stderr } else { Output::Stdout };
        let expected: Vec<_> = records.into_iter().map(|(e, bytes)| (output(e), bytes)).collect();
        prop_assert_eq!(bytes_of(&got), expected);
    }

    /// A terminal's records end at newlines, or where the daemon's pieces do; those may come cut.
    #[test]
    fn a_terminal_s_records_end_with_lines_or_pieces(
        records in prop::collection::vec(("[a-z0-9:\r-]{0,40}", any::<bool>()), 0..12),
        cut in 1..90usize,
    ) {
        let mut parser = Parser::new(true);
        let mut got = Vec::new();
        let mut expected = Vec::new();
        for (text, whole) in records {
            let text = if whole { format!("{text}\r\n") } else { text };
            let payload = timed(text.as_bytes());
            for part in payload.chunks(cut) {
                parser.push(part);
                got.extend(pieces(&mut parser));
            }
            expected.push((Output::Stdout, text.into_bytes()));
        }
        parser.end();
        got.extend(pieces(&mut parser));
        prop_assert_eq!(bytes_of(&got), expected);
    }

    #[test]
    fn any_bytes_are_records_or_refused(tty: bool, chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)) {
        let mut parser = Parser::new(tty);
        for chunk in chunks {
            parser.push(&chunk);
            while let Ok(Some(_)) = parser.next() {}
        }
        parser.end();
        while let Ok(Some(_)) = parser.next() {}
    }
}

#[test]
fn the_daemon_s_own_trouble_is_no_record() {
    let trouble = b"Error grabbing logs: unexpected EOF\n";
    let mut framed = Parser::new(false);
    framed.push(&frame(3, trouble));
    let mut plain = Parser::new(true);
    plain.push(&timed(b"cut"));
    assert_eq!(pieces(&mut plain), []);
    plain.push(trouble);
    let told = Piece::Trouble("Error grabbing logs: unexpected EOF".into());
    assert_eq!(pieces(&mut framed), std::slice::from_ref(&told));
    let plain = pieces(&mut plain);
    assert_eq!(bytes_of(&plain[..1]), [(Output::Stdout, b"cut".to_vec())]);
    assert_eq!(plain[1], told);
}

#[test]
fn what_no_daemon_sends_is_refused() {
    let mut parser = Parser::new(false);
    parser.push(b"\x01\0\0\0\xff\xff\xff\xff");
    assert!(parser.next().is_err());
    let mut parser = Parser::new(false);
    parser.push(b"HTTP/1.1");
    assert!(parser.next().is_err());
    let mut parser = Parser::new(true);
    parser.push(b"no time\n");
    assert!(parser.next().is_err());
}

#[test]
fn how_a_log_is_kept_follows_from_its_driver_and_options() {
    let config = |driver: &str, options: &[(&str, &str)]| LogConfig {
        driver: driver.into(),
        config: Some(
            options
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
        ),
    };
    for (config, keeping) in [
        (config("json-file", &[]), Keeping::All),
        (config("json-file", &[("max-size", "-1")]), Keeping::All),
        (
            config("json-file", &[("max-size", "1k")]),
            Keeping::OneFile(1000),
        ),
        (
            config("json-file", &[("max-size", "1k"), ("max-file", "1")]),
            Keeping::OneFile(1000),
        ),
        (
            config("json-file", &[("max-size", "1.5MB"), ("max-file", "3")]),
            Keeping::Files(4_500_000),
        ),
        (config("local", &[]), Keeping::Files(100_000_000)),
        (config("journald", &[]), Keeping::All),
        (config("fluentd", &[]), Keeping::Files(100_000_000)),
    ] {
        assert_eq!(config.keeping(), keeping, "{:?}", config.config);
    }
}

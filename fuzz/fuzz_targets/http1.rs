//! Requests of HTTP/1.1 as the data plane reads them, in arbitrary pieces. What passes has one
//! reading: written anew, it is read as the same.
#![no_main]
#![allow(dead_code)]

#[path = "../../server/src/proxy/front/http1/chunked.rs"]
mod chunked;
#[path = "../../server/src/proxy/front/http1/head.rs"]
mod head;

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

use chunked::{Decoder, Piece};
use head::{Framing, Head, HeadError, Scan};

#[derive(Debug, Arbitrary)]
struct Input {
    wire: Vec<u8>,
    cuts: Vec<u16>,
}

/// The head at the start of `wire`, and where it ends.
fn read(wire: &[u8], cuts: &[usize]) -> Result<Option<(Head, usize)>, HeadError> {
    let mut scan = Scan::default();
    for cut in cuts.iter().chain([&wire.len()]) {
        if let Some((range, next)) = scan.scan(&wire[..*cut])? {
            assert!(wire[..next].ends_with(b"\r\n\r\n"));
            return head::parse(&Bytes::copy_from_slice(&wire[range]))
                .map(|head| Some((head, next)));
        }
    }
    Ok(None)
}

fn write(head: &Head) -> Vec<u8> {
    let parts = &head.parts;
    let mut wire = format!("{} {} {:?}\r\n", parts.method, parts.uri, parts.version).into_bytes();
    for (name, value) in &parts.headers {
        wire.extend_from_slice(name.as_str().as_bytes());
        wire.push(b':');
        wire.extend_from_slice(value.as_bytes());
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"\r\n");
    wire
}

fuzz_target!(|input: Input| {
    let Input { wire, cuts } = input;
    let mut cuts: Vec<_> = cuts
        .iter()
        .map(|cut| usize::from(*cut).min(wire.len()))
        .collect();
    cuts.sort_unstable();
    let once = read(&wire, &[]);
    let cut = read(&wire, &cuts);
    let (head, end) = match (once, cut) {
        (Ok(Some((head, end))), Ok(Some((other, other_end)))) => {
            assert_eq!((end, head.framing), (other_end, other.framing));
            (head, end)
        }
        // What is too large may be found to be so earlier or later.
        (once, cut) => {
            assert_eq!(once.is_ok(), cut.is_ok());
            return;
        }
    };
    // The scheme is written in lower case, which an absolute target need not be.
    let again = read(&write(&head), &[])
        .expect("it passes again")
        .expect("whole")
        .0;
    assert_eq!(again.framing, head.framing);
    assert_eq!(again.parts.headers, head.parts.headers);
    assert_eq!(again.parts.uri, head.parts.uri);
    if head.framing != Framing::Chunked {
        return;
    }
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::from(&wire[end..]);
    let mut taken = 0;
    while let Ok(Some(piece)) = decoder.decode(&mut buffer) {
        match piece {
            Piece::Data(bytes) => {
                assert!(!bytes.is_empty());
                taken += bytes.len();
            }
            Piece::End(_) => {
                assert!(decoder.ended());
                break;
            }
        }
    }
    assert!(taken <= wire.len() - end);
});

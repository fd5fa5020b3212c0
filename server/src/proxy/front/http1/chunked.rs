//! The chunked coding (RFC 9112, 7.1), strictly. Pure.
//!
//! A chunk's size is hexadecimal digits and nothing else; extensions are dropped, and bounded: they
//! could else make a body of no bytes cost as many as its sender likes.

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::HeaderMap;
use hub_protocol::kind::http::MAX_HEADERS;

use super::head::fields;

/// The longest line of a chunk's size with its extensions, in bytes.
const MAX_LINE: usize = 256;

/// The most bytes of extensions in one body.
const MAX_EXTENSIONS: usize = 16 * 1024;

/// The most bytes of trailers.
pub(super) const MAX_TRAILERS: usize = 16 * 1024;

/// What is wrong with a body in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChunkError {
    /// The line with its size.
    #[error("a chunk's size is malformed")]
    Size,
    /// Its extensions.
    #[error("the extensions of chunks are too long")]
    Extensions,
    /// It does not end where its size says.
    #[error("a chunk is not as long as it says")]
    End,
    /// The trailers.
    #[error("the trailers are malformed, or too large")]
    Trailers,
}

/// A part of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Some of its bytes; there are some.
    Data(Bytes),
    /// Its end, with the trailers if there are any.
    End(Option<HeaderMap>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The line with the next chunk's size.
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The line's end after a chunk's bytes.
    DataEnd,
    Trailers,
    Ended,
}

/// Takes a body in chunks apart.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    extensions: usize,
    /// How far the trailers were looked at.
    seen: usize,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            state: State::Size,
            extensions: 0,
            seen: 0,
        }
    }

    /// Whether its end was read.
    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Takes the next part from the front of `buffer`; `None` if more must come first. Leaves what
    /// comes after the body.
    pub(super) fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, ChunkError> {
        loop {
            match self.state {
                State::Size => match self.size(buffer)? {
                    Some(0) => self.state = State::Trailers,
                    Some(size) => self.state = State::Data(size),
                    None => return Ok(None),
                },
                State::Data(_) if buffer.is_empty() => return Ok(None),
                State::Data(left) => {
                    let take = usize::try_from(left)
                        .unwrap_or(usize::MAX)
                        .min(buffer.len());
                    self.state = match left - take as u64 {
                        0 => State::DataEnd,
                        left => State::Data(left),
                    };
                    return Ok(Some(Piece::Data(buffer.split_to(take).freeze())));
                }
                State::DataEnd => match buffer[..] {
                    [] | [b'\r'] => return Ok(None),
                    [b'\r', b'\n', ..] => {
                        buffer.advance(2);
                        self.state = State::Size;
                    }
                    _ => return Err(ChunkError::End),
                },
                State::Trailers => return self.trailers(buffer),
                State::Ended => return Ok(None),
            }
        }
    }

    /// The size of the next chunk, once its line is there.
    fn size(&mut self, buffer: &mut BytesMut) -> Result<Option<u64>, ChunkError> {
        let digits = buffer.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let digits = digits.count();
        if digits > 16 {
            return Err(ChunkError::Size);
        }
        match buffer.get(digits) {
            None => return Ok(None),
            _ if digits == 0 => return Err(ChunkError::Size),
            Some(b'\r' | b';') => {}
            Some(_) => return Err(ChunkError::Size),
        }
        let window = &buffer[..buffer.len().min(MAX_LINE)];
        let Some(end) = memchr::memchr2(b'\r', b'\n', window) else {
            return match window.len() {
                MAX_LINE => Err(ChunkError::Extensions),
                _ => Ok(None),
            };
        };
        match (buffer[end], buffer.get(end + 1)) {
            (b'\r', None) => return Ok(None),
            (b'\r', Some(b'\n')) => {}
            _ => return Err(ChunkError::Size),
        }
        let extensions = &buffer[digits..end];
        if extensions
            .iter()
            .any(|byte| byte.is_ascii_control() && *byte != b'\t')
        {
            return Err(ChunkError::Size);
        }
        self.extensions += extensions.len();
        if self.extensions > MAX_EXTENSIONS {
            return Err(ChunkError::Extensions);
        }
        let size = std::str::from_utf8(&buffer[..digits]).ok();
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
        buffer.advance(end + 2);
        size.map(Some).ok_or(ChunkError::Size)
    }

    fn trailers(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, ChunkError> {
        // The empty line that ends them, which may be all there is.
        let end = match buffer[..] {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => 0,
            _ => {
                let from = self.seen.saturating_sub(3);
                let window = &buffer[..buffer.len().min(MAX_TRAILERS)];
                match memchr::memmem::find(&window[from.min(window.len())..], b"\r\n\r\n") {
                    Some(at) => from + at + 2,
                    None if window.len() == MAX_TRAILERS => return Err(ChunkError::Trailers),
                    None => {
                        self.seen = buffer.len();
                        return Ok(None);
                    }
                }
            }
        };
        let lines = buffer.split_to(end).freeze();
        buffer.advance(2);
        self.state = State::Ended;
        let trailers = fields(&lines).ok_or(ChunkError::Trailers)?;
        if trailers.len() > MAX_HEADERS {
            return Err(ChunkError::Trailers);
        }
        Ok(Some(Piece::End((!trailers.is_empty()).then_some(trailers))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    /// A body, its trailers, and what comes behind.
    type Decoded = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

    /// The body of `wire`, which comes in pieces that end at `cuts`, and what is left behind it.
    fn decode(wire: &[u8], cuts: &[usize]) -> Result<Option<Decoded>, ChunkError> {
        let mut decoder = Decoder::new();
        let (mut buffer, mut body) = (BytesMut::new(), Vec::new());
        let mut cuts = cuts.to_vec();
        cuts.push(wire.len());
        cuts.sort_unstable();
        let mut from = 0;
        for to in cuts {
            let to = to.min(wire.len());
            buffer.extend_from_slice(&wire[from..to]);
            from = to;
            while let Some(piece) = decoder.decode(&mut buffer)? {
                match piece {
                    Piece::Data(bytes) => {
                        assert!(!bytes.is_empty());
                        body.extend_from_slice(&bytes);
                    }
                    Piece::End(trailers) => {
                        assert!(decoder.ended());
                        buffer.extend_from_slice(&wire[from..]);
                        return Ok(Some((body, trailers, buffer.to_vec())));
                    }
                }
            }
        }
        Ok(None)
    }

    #[test]
    fn a_body_with_all_there_is() {
        let wire = b"5;a=b; c=\"d\"\r\nhello\r\n0B\r\n, world\r\n\r\n\r\n000;x\r\nX-A: 1\r\nx-b:\r\n\r\nGET";
        let (body, trailers, rest) = decode(wire, &[]).unwrap().unwrap();
        assert_eq!(body, b"hello, world\r\n\r\n");
        assert_eq!(rest, b"GET");
        let trailers = trailers.unwrap();
        assert_eq!(
            (&trailers["x-a"], trailers.len()),
            (&"1".parse().unwrap(), 2)
        );
    }

    #[test]
    fn what_is_malformed() {
        use ChunkError::{End, Extensions, Size, Trailers};
        for (wire, expected) in [
            ("\r\n", Size),
            ("x\r\n", Size),
            ("+5\r\nhello\r\n", Size),
            ("-5\r\nhello\r\n", Size),
            ("0x5\r\nhello\r\n", Size),
            ("5_0\r\n", Size),
            (" 5\r\nhello\r\n", Size),
            ("5 \r\nhello\r\n", Size),
            ("5 ;a\r\nhello\r\n", Size),
            ("5\nhello\n", Size),
            ("5\rhello", Size),
            ("5;a\nhello\r\n", Size),
            ("5;a\rb\r\nhello\r\n", Size),
            ("5;\0\r\nhello\r\n", Size),
            (";a\r\n", Size),
            ("00000000000000005\r\nhello\r\n", Size),
            ("fffffffffffffffff\r\n", Size),
            ("5\r\nhelloo\r\n", End),
            ("5\r\nhello\n0\r\n\r\n", End),
            ("5\r\nhello\r0\r\n\r\n", End),
            ("5\r\nhello0\r\n\r\n", End),
            ("0\r\nX : a\r\n\r\n", Trailers),
            ("0\r\n a: b\r\n\r\n", Trailers),
            ("0\r\na: b\r\n c\r\n\r\n", Trailers),
            ("0\r\na: b\nc: d\r\n\r\n", Trailers),
            ("0\r\na: \0\r\n\r\n", Trailers),
            ("0\r\na\r\n\r\n", Trailers),
        ] {
            assert_eq!(decode(wire.as_bytes(), &[]), Err(expected), "{wire:?}");
            let cuts: Vec<_> = (0..wire.len()).collect();
            assert_eq!(decode(wire.as_bytes(), &cuts), Err(expected), "{wire:?}");
        }
        let long = format!("5;{}", "x".repeat(300));
        assert_eq!(decode(long.as_bytes(), &[]), Err(Extensions));
        let many = format!("1;{}\r\nx\r\n", "x".repeat(200)).repeat(82);
        assert_eq!(decode(many.as_bytes(), &[]), Err(Extensions));
        let long = format!("0\r\nx: {}", "x".repeat(MAX_TRAILERS));
        assert_eq!(decode(long.as_bytes(), &[]), Err(Trailers));
        let many = format!("0\r\n{}\r\n", "x:\r\n".repeat(257));
        assert_eq!(decode(many.as_bytes(), &[]), Err(Trailers));
    }

    #[test]
    fn a_beginning_is_no_end() {
        let wire = b"5\r\nhello\r\n0\r\nx: y\r\n\r\n";
        for end in 0..wire.len() {
            assert_eq!(decode(&wire[..end], &[]), Ok(None), "{end}");
        }
        assert!(decode(wire, &[]).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn whatever_was_sent_arrives(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            trailer in prop::option::of("[a-z]{1,5}: [!-~]{0,10}\r\n"),
            cuts in prop::collection::vec(0..300_usize, 0..10),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                let mut size = String::new();
                write!(size, "{:x}\r\n", chunk.len()).unwrap();
                wire.extend_from_slice(size.as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n");
            wire.extend_from_slice(trailer.clone().unwrap_or_default().as_bytes());
            wire.extend_from_slice(b"\r\nnext");
            let (body, trailers, rest) = decode(&wire, &cuts).unwrap().unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert_eq!(trailers.is_some(), trailer.is_some());
            prop_assert_eq!(rest, b"next");
        }

        #[test]
        fn anything_at_all_ends_in_one_way(
            wire in "([0-9a-f;x \r\n:-]|5\r\nhello\r\n|0\r\n|\r\n){0,20}",
            cuts in prop::collection::vec(0..60_usize, 0..10),
        ) {
            let (once, cut) = (decode(wire.as_bytes(), &[]), decode(wire.as_bytes(), &cuts));
            prop_assert_eq!(once, cut);
        }
    }
}

//! JSON lines, as a response brings them.
//!
//! A stream is whole only if it ends where a line does and the connection says so: everything else
//! is a broken connection, and whoever reads decides whether to open the stream again.

use bytes::{Buf as _, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::connect::Endpoint;
use super::{ClientError, reason};

/// A line is longer than any that makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TooLong;

/// Bytes that become lines. Holds less than a line of the longest kind and what came last.
#[derive(Debug)]
struct LineBuffer {
    bytes: BytesMut,
    /// How many of them are known to hold no newline.
    searched: usize,
    longest: usize,
}

impl LineBuffer {
    fn new(longest: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            searched: 0,
            longest,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line without its newline; none while it is not complete.
    fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let found = self.bytes[self.searched..].iter().position(|b| *b == b'\n');
        let length = self.searched + found.unwrap_or(self.bytes.len() - self.searched);
        if length > self.longest {
            return Err(TooLong);
        }
        if found.is_none() {
            self.searched = length;
            return Ok(None);
        }
        self.searched = 0;
        let line = self.bytes.split_to(length).freeze();
        self.bytes.advance(1);
        Ok(Some(line))
    }
}

/// The lines of a response.
pub(super) struct Lines {
    endpoint: Endpoint,
    body: Incoming,
    buffer: LineBuffer,
}

impl Lines {
    /// Those of this response, none longer than `longest` bytes.
    pub(super) fn new(endpoint: Endpoint, response: Response<Incoming>, longest: usize) -> Self {
        Self {
            endpoint,
            body: response.into_body(),
            buffer: LineBuffer::new(longest),
        }
    }

    /// The next line that is not empty; none after the last. May be dropped and asked again.
    ///
    /// # Errors
    /// The connection broke, or a line is too long.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let broken = |reason: String| ClientError::Broken {
            endpoint: self.endpoint.clone(),
            reason,
        };
        loop {
            match self.buffer.next() {
                Ok(Some(line)) if line.is_empty() => continue,
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {}
                Err(TooLong) => {
                    return Err(ClientError::Answer {
                        endpoint: self.endpoint.clone(),
                        reason: format!("a line is longer than {} bytes", self.buffer.longest),
                    });
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.push(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(reason(&error))),
                None if self.buffer.bytes.is_empty() => return Ok(None),
                None => return Err(broken("it ended in the middle of a line".into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_has_a_longest_length_whether_it_ends_or_not() {
        let mut buffer = LineBuffer::new(3);
        buffer.push(b"abc\nabcd\n");
        assert_eq!(buffer.next(), Ok(Some(Bytes::from_static(b"abc"))));
        assert_eq!(buffer.next(), Err(TooLong));
        let mut buffer = LineBuffer::new(3);
        buffer.push(b"abc");
        assert_eq!(buffer.next(), Ok(None));
        buffer.push(b"d");
        assert_eq!(buffer.next(), Err(TooLong));
    }

    proptest! {
        /// However bytes come, their lines are the same.
        #[test]
        fn lines_do_not_depend_on_how_they_come(
            pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"ab\n"[..]), 0..9), 0..9),
        ) {
            let whole = pieces.concat();
            let mut expected: Vec<&[u8]> = whole.split(|b| *b == b'\n').collect();
            let rest = expected.pop().unwrap_or_default().to_vec();
            let mut buffer = LineBuffer::new(100);
            let mut lines = Vec::new();
            for piece in &pieces {
                buffer.push(piece);
                while let Ok(Some(line)) = buffer.next() {
                    lines.push(line);
                }
            }
            prop_assert_eq!(lines, expected);
            prop_assert_eq!(buffer.bytes.to_vec(), rest);
        }
    }
}

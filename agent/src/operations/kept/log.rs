//! What a command printed: all that its client was not sent yet, and of a kept one the last of what
//! it was.
//!
//! ```text
//!             oldest            sent                 end
//! stdout  ------[==remembered==][=====not sent=====]
//! stderr       ---[====remembered====][=not sent==]
//! ```
//!
//! Pure: a queue for each output, with a common limit. What goes is the older front of the two, and
//! never what an attached client was not sent: whoever reads the command stops before that is much.

use std::collections::VecDeque;

use bytes::Bytes;
use hub_protocol::kind::exec::Offsets;

/// Small pieces are joined up to this many bytes, so that each is worth its upkeep.
const SMALL: usize = 1024;

/// The most pieces that are remembered: with two outputs that take turns with every byte the log
/// holds less than its limit, instead of holding many times the memory.
const MAX_PIECES: usize = 8 * 1024;

/// One of a command's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Output {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::Out, Self::Err];

    /// Its place in what there is of each.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Out => 0,
            Self::Err => 1,
        }
    }

    /// Its offset of two.
    pub(crate) fn of(self, offsets: Offsets) -> u64 {
        match self {
            Self::Out => offsets.stdout,
            Self::Err => offsets.stderr,
        }
    }
}

#[derive(Debug)]
struct Piece {
    /// Tells which of two pieces is older.
    turn: u64,
    /// Where it begins in its output.
    offset: u64,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct Side {
    pieces: VecDeque<Piece>,
    end: u64,
}

impl Side {
    fn oldest(&self) -> u64 {
        self.pieces.front().map_or(self.end, |piece| piece.offset)
    }
}

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    sides: [Side; 2],
    turns: u64,
    limit: usize,
    len: usize,
}

impl Log {
    /// Remembers `limit` bytes of what was sent.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            sides: Default::default(),
            turns: 0,
            limit,
            len: 0,
        }
    }

    /// Remembers another number of bytes from now on.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds what an output printed.
    pub(crate) fn push(&mut self, output: Output, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        let side = &mut self.sides[output.index()];
        let offset = side.end;
        side.end += bytes.len() as u64;
        if let Some(last) = side.pieces.back_mut()
            && last.turn == self.turns
            && last.bytes.len() + bytes.len() <= SMALL
        {
            last.bytes = [&last.bytes[..], &bytes[..]].concat().into();
            return;
        }
        self.turns += 1;
        side.pieces.push_back(Piece {
            turn: self.turns,
            offset,
            bytes,
        });
    }

    /// Forgets what is too much, but nothing from `sent` on; without a client there is no such point.
    pub(crate) fn trim(&mut self, sent: Option<Offsets>) {
        loop {
            let pieces: usize = self.sides.iter().map(|side| side.pieces.len()).sum();
            let excess = self.len.saturating_sub(self.limit);
            if excess == 0 && pieces <= MAX_PIECES {
                return;
            }
            // Of each front, what may go: all of it or its beginning.
            let fronts = Output::BOTH.into_iter().filter_map(|output| {
                let front = self.sides[output.index()].pieces.front()?;
                let kept = sent.map_or(u64::MAX, |sent| output.of(sent));
                let free = kept.saturating_sub(front.offset);
                let free = usize::try_from(free)
                    .map_or(front.bytes.len(), |free| free.min(front.bytes.len()));
                (free > 0).then_some((front.turn, output, free))
            });
            let Some((_, output, free)) = fronts.min_by_key(|(turn, ..)| *turn) else {
                return;
            };
            let side = &mut self.sides[output.index()];
            let Some(front) = side.pieces.front_mut() else {
                return;
            };
            let now = if excess == 0 { free } else { free.min(excess) };
            self.len -= now;
            front.offset += now as u64;
            // The rest is copied when little of it is left, so as not to hold what is gone.
            front.bytes = if front.bytes.len() - now <= SMALL {
                Bytes::copy_from_slice(&front.bytes[now..])
            } else {
                front.bytes.slice(now..)
            };
            if front.bytes.is_empty() {
                side.pieces.pop_front();
            } else if excess == 0 {
                // What is left of the front was not sent: nothing more can go.
                return;
            }
        }
    }

    /// The first bytes that are there of each output.
    pub(crate) fn oldest(&self) -> Offsets {
        Offsets {
            stdout: self.sides[0].oldest(),
            stderr: self.sides[1].oldest(),
        }
    }

    /// How many bytes each output has printed.
    pub(crate) fn end(&self) -> Offsets {
        Offsets {
            stdout: self.sides[0].end,
            stderr: self.sides[1].end,
        }
    }

    /// Some bytes of an output from an offset on, and their turn: the lower is the older. `None` at
    /// the end, and before the oldest.
    pub(crate) fn at(&self, output: Output, offset: u64) -> Option<(u64, Bytes)> {
        let pieces = &self.sides[output.index()].pieces;
        let after = pieces.partition_point(|piece| piece.offset <= offset);
        let piece = &pieces[after.checked_sub(1)?];
        let skip = usize::try_from(offset - piece.offset).ok()?;
        (skip < piece.bytes.len()).then(|| (piece.turn, piece.bytes.slice(skip..)))
    }

    /// Bytes that are held.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Print(Output, usize),
        /// The client takes up to this many bytes.
        Take(Output, usize),
        Leave,
        /// The client comes back and has seen this much less than all.
        Come(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let output = prop_oneof![Just(Output::Out), Just(Output::Err)];
        let len = prop_oneof![1..8usize, 1..3000usize];
        let step = prop_oneof![
            4 => (output.clone(), len.clone()).prop_map(|(output, len)| Step::Print(output, len)),
            4 => (output, len).prop_map(|(output, len)| Step::Take(output, len)),
            1 => Just(Step::Leave),
            1 => (0..6000u64, 0..6000u64).prop_map(|(out, err)| Step::Come(out, err)),
        ];
        prop::collection::vec(step, 0..300)
    }

    /// What each output prints at an offset.
    fn byte(output: Output, offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (output.index() as u8)
    }

    const LIMIT: usize = 4096;
    /// As whoever reads the command: no more is printed while this much was not sent.
    const LAG: u64 = 1500;

    fn with(output: Output, mut offsets: Offsets, value: u64) -> Offsets {
        match output {
            Output::Out => offsets.stdout = value,
            Output::Err => offsets.stderr = value,
        }
        offsets
    }

    proptest! {
        #[test]
        fn every_byte_comes_once_or_is_an_explicit_gap(steps in steps()) {
            let mut log = Log::new(LIMIT);
            let mut client = Some(Offsets::default());
            let mut printed = Offsets::default();
            for step in steps {
                match step {
                    Step::Print(output, len) => {
                        let at = output.of(printed);
                        if client.is_some_and(|sent| at - output.of(sent) >= LAG) {
                            continue;
                        }
                        let end = at + len as u64;
                        log.push(output, (at..end).map(|at| byte(output, at)).collect());
                        printed = with(output, printed, end);
                    }
                    Step::Take(output, len) => {
                        let Some(sent) = client else { continue };
                        let at = output.of(sent);
                        let Some((_, bytes)) = log.at(output, at) else {
                            prop_assert_eq!(at, output.of(printed), "not all was there");
                            continue;
                        };
                        let taken = bytes.len().min(len);
                        for (byte_at, got) in (at..).zip(&bytes[..taken]) {
                            prop_assert_eq!(*got, byte(output, byte_at));
                        }
                        client = Some(with(output, sent, at + taken as u64));
                    }
                    Step::Leave => client = None,
                    Step::Come(out, err) => {
                        let oldest = log.oldest();
                        client = Some(Offsets {
                            stdout: printed.stdout.saturating_sub(out).max(oldest.stdout),
                            stderr: printed.stderr.saturating_sub(err).max(oldest.stderr),
                        });
                    }
                }
                log.trim(client);
                prop_assert_eq!(log.end(), printed);
                let unsent = client.map_or(0, |sent| {
                    (printed.stdout - sent.stdout) + (printed.stderr - sent.stderr)
                }) as usize;
                prop_assert!(log.len() <= LIMIT.max(unsent), "{} bytes", log.len());
                // And what is remembered is as much as there may be.
                let total = printed.stdout + printed.stderr;
                let held = total - log.oldest().stdout - log.oldest().stderr;
                prop_assert_eq!(held as usize, log.len());
                prop_assert!(log.len() as u64 >= total.min(LIMIT as u64));
            }
        }
    }

    #[test]
    fn the_older_output_goes_first() {
        let mut log = Log::new(4);
        log.push(Output::Out, Bytes::from_static(b"ab"));
        log.push(Output::Err, Bytes::from_static(b"cd"));
        log.push(Output::Out, Bytes::from_static(b"ef"));
        assert!(log.at(Output::Err, 0).unwrap().0 < log.at(Output::Out, 2).unwrap().0);
        log.trim(None);
        assert_eq!(
            log.oldest(),
            Offsets {
                stdout: 2,
                stderr: 0
            }
        );
        // What was not sent stays, whatever its age.
        log.push(Output::Out, Bytes::from_static(b"gh"));
        log.trim(Some(Offsets {
            stdout: 4,
            stderr: 0,
        }));
        assert_eq!(
            log.oldest(),
            Offsets {
                stdout: 4,
                stderr: 0
            }
        );
    }

    #[test]
    fn tiny_pieces_cost_no_more_than_their_number() {
        let mut log = Log::new(usize::MAX);
        for _ in 0..2 * MAX_PIECES {
            log.push(Output::Out, Bytes::from_static(b"o"));
            log.push(Output::Err, Bytes::from_static(b"e"));
            log.trim(None);
        }
        assert_eq!(log.len(), MAX_PIECES);
        // Those of one output are joined.
        let mut log = Log::new(usize::MAX);
        for _ in 0..10 * SMALL {
            log.push(Output::Out, Bytes::from_static(b"o"));
        }
        assert_eq!(log.sides[0].pieces.len(), 10);
    }
}

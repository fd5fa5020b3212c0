//! What BuildKit says of a build: messages of its control protocol in protobuf, which the daemon
//! passes on in base64.
//!
//! ```text
//! StatusResponse { vertexes = 1, statuses = 2, logs = 3, warnings = 4 }
//! Vertex         { digest = 1, name = 3, cached = 4, started = 5, completed = 6, error = 7 }
//! VertexStatus   { id = 1, vertex = 2, name = 3, current = 4, total = 5, completed = 8 }
//! VertexLog      { vertex = 1, msg = 4 }
//! VertexWarning  { vertex = 1, short = 3 }
//! Timestamp      { seconds = 1, nanos = 2 }
//! ```
//!
//! Only these fields are read, others are passed over; nothing nests deeper. So a reader of the few
//! lines below is enough.

pub(super) mod session;

use hub_protocol::kind::build::Progress;

/// The bytes are no message of BuildKit's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed progress of BuildKit")]
pub(crate) struct Malformed;

/// What a `StatusResponse` says, in its order.
///
/// # Errors
/// It is malformed.
pub(crate) fn progress(status: &[u8]) -> Result<Vec<Progress>, Malformed> {
    let mut said = Vec::new();
    for field in Fields(status) {
        match field? {
            (1, Value::Bytes(bytes)) => said.push(vertex(bytes)?),
            (2, Value::Bytes(bytes)) => said.extend(part(bytes)?),
            (3, Value::Bytes(bytes)) => said.push(log(bytes, 4, "")?),
            (4, Value::Bytes(bytes)) => said.push(log(bytes, 3, "\n")?),
            _ => {}
        }
    }
    Ok(said)
}

fn vertex(bytes: &[u8]) -> Result<Progress, Malformed> {
    let (mut id, mut name, mut error) = (String::new(), String::new(), None);
    let (mut started_ms, mut completed_ms, mut cached) = (None, None, false);
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => id = text(bytes),
            (3, Value::Bytes(bytes)) => name = text(bytes),
            (4, Value::Number(number)) => cached = number != 0,
            (5, Value::Bytes(bytes)) => started_ms = Some(milliseconds(bytes)?),
            (6, Value::Bytes(bytes)) => completed_ms = Some(milliseconds(bytes)?),
            (7, Value::Bytes(bytes)) if !bytes.is_empty() => error = Some(text(bytes)),
            _ => {}
        }
    }
    Ok(Progress::Step {
        id,
        name,
        started_ms,
        completed_ms,
        cached,
        error,
    })
}

/// A part of a step. One that has a status of its own is something that is fetched; others have only
/// a title (`exporting layers`), and are told as a line of their step when they are done.
fn part(bytes: &[u8]) -> Result<Option<Progress>, Malformed> {
    let (mut id, mut vertex, mut status) = (String::new(), String::new(), String::new());
    let (mut current, mut total, mut completed) = (0, 0, false);
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => id = text(bytes),
            (2, Value::Bytes(bytes)) => vertex = text(bytes),
            (3, Value::Bytes(bytes)) => status = text(bytes),
            (4, Value::Number(number)) => current = number,
            (5, Value::Number(number)) => total = number,
            (8, Value::Bytes(_)) => completed = true,
            _ => {}
        }
    }
    let known = current != 0 || total != 0;
    Ok(if !status.is_empty() {
        Some(Progress::Pull {
            id,
            status,
            current: known.then_some(current),
            total: (total != 0).then_some(total),
        })
    } else if completed {
        id.push('\n');
        Some(Progress::Log {
            id: vertex,
            text: id,
        })
    } else {
        None
    })
}

/// What a step prints, or is warned of: its text is in the field of this number.
fn log(bytes: &[u8], number: u64, end: &str) -> Result<Progress, Malformed> {
    let (mut id, mut said) = (String::new(), String::new());
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => id = text(bytes),
            (field, Value::Bytes(bytes)) if field == number => said = text(bytes),
            _ => {}
        }
    }
    said.push_str(end);
    Ok(Progress::Log { id, text: said })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A `Timestamp` in milliseconds since 1970 UTC.
fn milliseconds(bytes: &[u8]) -> Result<i64, Malformed> {
    let mut milliseconds = 0_i64;
    for field in Fields(bytes) {
        let more = match field? {
            (1, Value::Number(seconds)) => seconds.cast_signed().saturating_mul(1000),
            (2, Value::Number(nanos)) => nanos.cast_signed() / 1_000_000,
            _ => 0,
        };
        milliseconds = milliseconds.saturating_add(more);
    }
    Ok(milliseconds)
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed size; none of the fields that are read here.
    Fixed,
}

/// The fields of a message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests;

//! An answer of the daemon that is read as it comes: each on a connection of its own, which ends
//! with it.

use std::io;

use bytes::Bytes;
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Engine, REQUEST_TIMEOUT};

/// The most bytes of an answer that is read whole: the list of ten thousand containers has some 20
/// MiB.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why the daemon's answer did not come, or broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// There is no connection to it, or there is none any more.
    #[error("the Docker daemon can't be reached: {0}")]
    Unreachable(String),
    /// It answers with an error.
    #[error("{message}")]
    Refused {
        /// Of HTTP.
        status: u16,
        /// In its words.
        message: String,
    },
    /// It says what cannot be understood.
    #[error("the Docker daemon's answer makes no sense: {0}")]
    Malformed(String),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<hyper::Error> for StreamError {
    fn from(error: hyper::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// The body of an answer. Dropping it closes its connection.
#[derive(Debug)]
pub(crate) struct Body(Incoming);

impl Body {
    /// The next bytes, never of more than one of the pieces that the daemon sent; `None` at the
    /// end. A call that is given up loses nothing.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, StreamError> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    async fn whole(mut self) -> Result<Vec<u8>, StreamError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.chunk().await? {
            if all.len() + bytes.len() > MAX_ANSWER {
                let size = format!("it has more than {MAX_ANSWER} bytes");
                return Err(StreamError::Malformed(size));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}

impl Engine {
    /// Asks for `path`, which begins behind the API's version, and gives the body of the answer as
    /// soon as its head has come, within 120 s.
    pub(crate) async fn get(&self, path: &str) -> Result<Body, StreamError> {
        let version = self.docker.client_version();
        let request = Request::get(format!("/v{version}{path}"))
            .header(HOST, "docker")
            .body(Empty::<Bytes>::new())
            .map_err(|error| StreamError::Malformed(error.to_string()))?;
        let ask = async {
            let (mut sender, driver) = http1::handshake(TokioIo::new(self.dial().await?)).await?;
            // Ends with the body; what goes wrong there, the body tells.
            tokio::spawn(driver);
            Ok::<_, StreamError>(sender.send_request(request).await?)
        };
        let late = || StreamError::Unreachable(format!("no answer within {REQUEST_TIMEOUT} s"));
        let limit = std::time::Duration::from_secs(REQUEST_TIMEOUT);
        let answer = timeout(limit, ask).await.map_err(|_| late())??;
        let status = answer.status();
        let body = Body(answer.into_body());
        if status.is_success() {
            return Ok(body);
        }
        let said = body.whole().await?;
        Err(StreamError::Refused {
            status: status.as_u16(),
            message: message(&said),
        })
    }

    /// Asks for `path` and reads the JSON of the answer.
    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, StreamError> {
        let answer = self.get(path).await?.whole().await?;
        serde_json::from_slice(&answer).map_err(|error| StreamError::Malformed(error.to_string()))
    }

    /// What the daemon's clock says: nanoseconds since 1970 UTC.
    pub(crate) async fn now_ns(&self) -> Result<i64, StreamError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Info {
            system_time: String,
        }
        let Info { system_time } = self.get_json("/info").await?;
        nanoseconds(&system_time).ok_or_else(|| {
            StreamError::Malformed(format!("its time is {system_time:?}, which is no RFC 3339"))
        })
    }
}

/// What the daemon says of an error.
fn message(answer: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        message: String,
    }
    match serde_json::from_slice::<Answer>(answer) {
        Ok(answer) => answer.message,
        Err(_) => String::from_utf8_lossy(answer).trim().to_owned(),
    }
}

/// A time as the daemon's queries take it.
pub(crate) fn query_time(ns: i64) -> String {
    let ns = ns.max(0);
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Nanoseconds since 1970 UTC of an RFC 3339 time; `None` for anything else, and for times that
/// nanoseconds in 64 bits don't reach.
pub(crate) fn nanoseconds(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |number, digit| {
            digit
                .is_ascii_digit()
                .then(|| number * 10 + i64::from(digit - b'0'))
        })
    };
    let mark = |at: usize, marks: &[u8]| bytes.get(at).is_some_and(|byte| marks.contains(byte));
    let marks = mark(4, b"-") && mark(7, b"-") && mark(10, b"Tt") && mark(13, b":");
    if !marks || !mark(16, b":") {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let mut at = 19;
    let mut fraction = 0;
    if mark(at, b".") {
        at += 1;
        let mut unit = 100_000_000;
        while let Some(digit) = number(at, at + 1) {
            fraction += digit * unit;
            unit /= 10;
            at += 1;
        }
    }
    let offset = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 && mark(at + 3, b":") => {
            let offset = number(at + 1, at + 3)? * 3600 + number(at + 4, at + 6)? * 60;
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return None,
    };
    // Years are counted from March: a leap day is then the last of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_nanoseconds_from_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("2000-02-29T12:00:00Z", 951_825_600_000_000_000),
            ("2024-12-31T23:59:59.999999999Z", 1_735_689_599_999_999_999),
            ("2019-01-01T00:00:00.5+05:30", 1_546_281_000_500_000_000),
            ("2019-01-01T00:00:00.25-07:00", 1_546_326_000_250_000_000),
            ("1969-12-31T23:59:59.5Z", -500_000_000),
        ] {
            assert_eq!(nanoseconds(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "x",
            "2024-13-01T00:00:00Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00Zx",
            "2024-01-01T00:00:00ä+1:00",
            "9999-01-01T00:00:00Z",
        ] {
            assert_eq!(nanoseconds(bad), None, "{bad}");
        }
        assert_eq!(query_time(1_500_000_000), "1.500000000");
        assert_eq!(query_time(-5), "0.000000000");
    }
}

//! The PROXY protocol, versions 1 and 2: what a TCP load balancer says ahead of a connection about
//! whom it speaks for. Pure, and incremental: whoever reads asks how many bytes surely belong to the
//! header, so that not one byte of what follows is taken from it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How a header of version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How a header of version 1 begins.
const WORD: &[u8; 6] = b"PROXY ";
/// The shortest header of version 1: `PROXY UNKNOWN` and the end of the line.
const SHORTEST_LINE: usize = 15;
/// The longest header of version 1, with the end of the line.
const LONGEST_LINE: usize = 107;
/// The fixed part of a header of version 2.
const FIXED: usize = 16;
/// The longest header that is read, in bytes: addresses take 232, the rest is what proxies add.
pub(super) const LONGEST: usize = 4096;
/// The added value that tells of TLS between the client and the proxy.
const SSL: u8 = 0x20;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Whose connection it is. None: the proxy's own, as for a health check, or of a kind without
    /// an address.
    pub(super) source: Option<SocketAddr>,
    /// Whether the proxy was reached over TLS; only version 2 can say so.
    pub(super) secure: bool,
}

/// What the bytes so far make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// A part of a header: at least so many bytes more belong to it.
    More(usize),
    /// All of it.
    Whole(Header),
}

/// Why the bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// They begin as none does.
    Start,
    /// The line of version 1 is none.
    Line,
    /// The version, command or family is unknown.
    Kind,
    /// The addresses or the added values do not fit into their length.
    Length,
    /// It is longer than [`LONGEST`].
    TooLong,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "there is no PROXY protocol header",
            Self::Line => "the line of the PROXY protocol header is malformed",
            Self::Kind => "the PROXY protocol header is of a version or kind that is unknown",
            Self::Length => "the PROXY protocol header does not fit into its length",
            Self::TooLong => "the PROXY protocol header is longer than 4096 bytes",
        })
    }
}

impl std::error::Error for Malformed {}

/// What `bytes`, the first of a connection, say.
///
/// # Errors
/// No header begins so.
pub(super) fn read(bytes: &[u8]) -> Result<Progress, Malformed> {
    if bytes.is_empty() {
        return Ok(Progress::More(1));
    }
    let begins = |whole: &[u8]| {
        let common = bytes.len().min(whole.len());
        bytes[..common] == whole[..common]
    };
    if begins(SIGNATURE) {
        binary(bytes)
    } else if begins(WORD) {
        line(bytes)
    } else {
        Err(Malformed::Start)
    }
}

/// Version 1: one line of text.
fn line(bytes: &[u8]) -> Result<Progress, Malformed> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        let missing = if bytes.last() == Some(&b'\r') { 1 } else { 2 };
        let missing = missing.max(SHORTEST_LINE.saturating_sub(bytes.len()));
        return if bytes.len() + missing > LONGEST_LINE {
            Err(Malformed::Line)
        } else {
            Ok(Progress::More(missing))
        };
    };
    let text = bytes[..end].strip_suffix(b"\r").ok_or(Malformed::Line)?;
    if end + 1 < bytes.len() || bytes.len() > LONGEST_LINE {
        return Err(Malformed::Line);
    }
    let text = std::str::from_utf8(text).map_err(|_| Malformed::Line)?;
    let mut words = text.split(' ').skip(1);
    let mut word = || words.next().ok_or(Malformed::Line);
    let family = word()?;
    let source = match family {
        // What follows is to be passed over.
        "UNKNOWN" => None,
        "TCP4" | "TCP6" => {
            let addresses = [address(word()?, family)?, address(word()?, family)?];
            let ports = [port(word()?)?, port(word()?)?];
            if word().is_ok() {
                return Err(Malformed::Line);
            }
            Some(SocketAddr::new(addresses[0], ports[0]))
        }
        _ => return Err(Malformed::Line),
    };
    let secure = false;
    Ok(Progress::Whole(Header { source, secure }))
}

fn address(word: &str, family: &str) -> Result<IpAddr, Malformed> {
    let address: IpAddr = word.parse().map_err(|_| Malformed::Line)?;
    if address.is_ipv4() == (family == "TCP4") {
        Ok(address)
    } else {
        Err(Malformed::Line)
    }
}

fn port(word: &str) -> Result<u16, Malformed> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    if digits && (word == "0" || !word.starts_with('0')) {
        word.parse().map_err(|_| Malformed::Line)
    } else {
        Err(Malformed::Line)
    }
}

/// Version 2: a fixed part, the addresses, and values that the proxy adds.
fn binary(bytes: &[u8]) -> Result<Progress, Malformed> {
    if bytes.len() < FIXED {
        return Ok(Progress::More(FIXED - bytes.len()));
    }
    let (kind, family) = (bytes[12], bytes[13]);
    let local = match kind {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed::Kind),
    };
    let whole = FIXED + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if whole > LONGEST {
        return Err(Malformed::TooLong);
    }
    if bytes.len() < whole {
        return Ok(Progress::More(whole - bytes.len()));
    }
    if bytes.len() > whole {
        return Err(Malformed::Length);
    }
    let rest = &bytes[FIXED..];
    if local {
        let (source, secure) = (None, false);
        return Ok(Progress::Whole(Header { source, secure }));
    }
    let (source, added) = match family {
        // Unspecified.
        0x00 => (None, rest),
        0x11 | 0x12 => {
            let (addresses, added) = rest.split_first_chunk::<12>().ok_or(Malformed::Length)?;
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            let port = u16::from_be_bytes([high, low]);
            let source = SocketAddr::from((Ipv4Addr::new(a, b, c, d), port));
            (Some(source), added)
        }
        0x21 | 0x22 => {
            let (addresses, added) = rest.split_first_chunk::<36>().ok_or(Malformed::Length)?;
            let (source, ports) = addresses
                .split_first_chunk::<16>()
                .ok_or(Malformed::Length)?;
            let port = u16::from_be_bytes([ports[16], ports[17]]);
            let source = SocketAddr::from((Ipv6Addr::from(*source), port));
            (Some(source), added)
        }
        // Local sockets: 108 bytes for each path.
        0x31 | 0x32 => (None, rest.get(216..).ok_or(Malformed::Length)?),
        _ => return Err(Malformed::Kind),
    };
    let secure = secured(added)?;
    Ok(Progress::Whole(Header { source, secure }))
}

/// Whether the added values tell of TLS.
fn secured(mut added: &[u8]) -> Result<bool, Malformed> {
    let mut secure = false;
    while let Some((head, rest)) = added.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let (value, rest) = rest.split_at_checked(length).ok_or(Malformed::Length)?;
        if head[0] == SSL {
            secure = value.first().is_some_and(|client| client & 1 == 1);
        }
        added = rest;
    }
    if added.is_empty() {
        Ok(secure)
    } else {
        Err(Malformed::Length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// Feeds `bytes` as a connection does, asking for no more than what surely belongs to the
    /// header; gives what it says and how many bytes it took.
    fn feed(bytes: &[u8]) -> Result<(Option<Header>, usize), Malformed> {
        let mut taken = 0;
        loop {
            match read(&bytes[..taken])? {
                Progress::Whole(header) => return Ok((Some(header), taken)),
                Progress::More(more) => {
                    assert!((1..=LONGEST).contains(&more));
                    if taken + more > bytes.len() {
                        return Ok((None, taken));
                    }
                    taken += more;
                }
            }
        }
    }

    fn v2(kind: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[kind, family][..], &length, rest].concat()
    }

    fn encoded(source: SocketAddr, binary: bool, added: &[u8]) -> Vec<u8> {
        let (family, word, there, octets) = match source.ip() {
            IpAddr::V4(ip) => (0x11, "TCP4", "192.0.2.1", ip.octets().to_vec()),
            IpAddr::V6(ip) => (0x21, "TCP6", "2001:db8::1", ip.octets().to_vec()),
        };
        if !binary {
            let (ip, port) = (source.ip(), source.port());
            return format!("PROXY {word} {ip} {there} {port} 443\r\n").into_bytes();
        }
        let port = source.port().to_be_bytes();
        let there = vec![1; octets.len()];
        v2(
            0x21,
            family,
            &[&octets, &there, &port[..], &[1, 187], added].concat(),
        )
    }

    proptest! {
        #[test]
        fn whoever_it_says_is_heard_and_nothing_behind_it_is_taken(
            ip: IpAddr, port: u16, binary: bool, tls: Option<bool>,
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let source = SocketAddr::new(ip, port);
            let ssl = tls.map(|tls| vec![1, 0, 1, 7, SSL, 0, 5, u8::from(tls), 0, 0, 0, 0]);
            let header = encoded(source, binary, &ssl.unwrap_or_default());
            let all = [&header[..], &rest].concat();
            let secure = binary && tls == Some(true);
            let said = Header { source: Some(source), secure };
            prop_assert_eq!(feed(&all), Ok((Some(said), header.len())));
            for cut in 0..header.len() {
                prop_assert_eq!(feed(&header[..cut]).unwrap().0, None);
            }
        }

        #[test]
        fn anything_may_come(
            start in prop_oneof![
                Just(&b""[..]),
                Just(&b"PROXY "[..]),
                Just(&b"PROXY TCP4 1.2.3.4 "[..]),
                Just(&SIGNATURE[..]),
                Just(&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x14"[..]),
            ],
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let all = [start, &bytes].concat();
            if let Ok((Some(_), taken)) = feed(&all) {
                prop_assert!(taken <= LONGEST);
            }
            let _ = read(&all);
        }
    }

    #[test]
    fn a_proxy_that_speaks_for_itself() {
        for bytes in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(),
            v2(0x20, 0x00, &[]),
            v2(0x20, 0x11, &[9; 12]),
            v2(0x21, 0x00, &[]),
            v2(0x21, 0x31, &[7; 216]),
        ] {
            let (header, taken) = feed(&bytes).unwrap();
            let nobody = Header {
                source: None,
                secure: false,
            };
            assert_eq!((header, taken), (Some(nobody), bytes.len()), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for (bytes, why) in [
            (&b"GET / HTTP/1.1\r\n"[..], Malformed::Start),
            (b"\x16\x03\x01\x02\0\x01", Malformed::Start),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", Malformed::Line),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n", Malformed::Line),
            (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", Malformed::Line),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", Malformed::Line),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", Malformed::Line),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", Malformed::Line),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n", Malformed::Line),
            (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n", Malformed::Line),
            (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", Malformed::Line),
            (
                &[b"PROXY UNKNOWN ", &[b'x'; 100][..]].concat(),
                Malformed::Line,
            ),
            (&v2(0x11, 0x11, &[0; 12]), Malformed::Kind),
            (&v2(0x22, 0x11, &[0; 12]), Malformed::Kind),
            (&v2(0x21, 0x41, &[0; 12]), Malformed::Kind),
            (&v2(0x21, 0x11, &[0; 11]), Malformed::Length),
            (&v2(0x21, 0x21, &[0; 35]), Malformed::Length),
            (&v2(0x21, 0x11, &[0; 14]), Malformed::Length),
            (&v2(0x21, 0x00, &[SSL, 0, 2, 1]), Malformed::Length),
            (&v2(0x21, 0x00, &[0; LONGEST]), Malformed::TooLong),
        ] {
            assert_eq!(feed(bytes), Err(why), "{}", bytes.escape_ascii());
        }
    }
}

//! Requests with curl, and what comes back as it came.

use std::process::Command;

/// Headers that the guide says may differ, and `date`, which does.
const MAY_DIFFER: [&str; 4] = ["date", "connection", "keep-alive", "alt-svc"];

/// An HTTP version that curl speaks to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Http1,
    /// Prior knowledge, in the clear.
    Http2,
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// Statuses, interim ones first.
    pub statuses: Vec<u16>,
    /// Of the last response: by name, in lower case, those of one name in order; what may differ left
    /// out.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl std::fmt::Display for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} ", self.statuses, self.headers)?;
        match std::str::from_utf8(&self.body) {
            Ok(text) => write!(f, "{text:.2000}"),
            Err(_) => write!(f, "({} bytes)", self.body.len()),
        }
    }
}

/// One request: curl's arguments with `URL` where the base is to stand.
#[derive(Debug, Clone)]
pub struct Request(pub Vec<String>);

impl Request {
    /// From words between blanks; `~` is a blank within one.
    pub fn new(words: &str) -> Self {
        Self(
            words
                .split_whitespace()
                .map(|word| word.replace('~', " "))
                .collect(),
        )
    }

    /// Sends it to a server on loopback at `port`, under the name `host`.
    pub fn send(&self, host: &str, version: Version) -> Response {
        let (name, port) = host.rsplit_once(':').unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (headers, body) = (dir.path().join("headers"), dir.path().join("body"));
        let version = match version {
            Version::Http1 => "--http1.1",
            Version::Http2 => "--http2-prior-knowledge",
        };
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--globoff",
            "--path-as-is",
            "--max-time",
            "60",
            version,
        ])
        .args(["--resolve", &format!("{name}:{port}:127.0.0.1")])
        .arg("-D")
        .arg(&headers)
        .arg("-o")
        .arg(&body);
        for arg in &self.0 {
            curl.arg(arg.replace("URL", &format!("http://{host}")));
        }
        let output = curl.output().unwrap();
        // 18 and 56: the body is not whole, which is an answer as well.
        let code = output.status.code().unwrap();
        assert!(
            [0, 18, 56, 92].contains(&code),
            "{curl:?}: {code}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut response = read(&std::fs::read_to_string(headers).unwrap());
        // With `-I` curl puts the head there.
        if !self.0.iter().any(|arg| arg == "-I") {
            response.body = std::fs::read(body).unwrap_or_default();
        }
        if code != 0 {
            response
                .headers
                .push(("(broken off)".into(), String::new()));
        }
        response
    }
}

/// The heads that curl wrote down.
fn read(text: &str) -> Response {
    let mut response = Response {
        statuses: Vec::new(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    for line in text.lines() {
        if line.starts_with("HTTP/") {
            response.headers.clear();
            let status = line.split(' ').nth(1).unwrap();
            response.statuses.push(status.parse().unwrap());
        } else if let Some((name, value)) = line.split_once(':') {
            let name = name.to_ascii_lowercase();
            if !MAY_DIFFER.contains(&&name[..]) {
                response.headers.push((name, value.trim().to_owned()));
            }
        }
    }
    response
        .headers
        .sort_by(|(one, _), (other, _)| one.cmp(other));
    response
}

/// The requests of a table, one on a line.
pub fn requests(table: &str) -> impl Iterator<Item = Request> {
    let lines = table.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).map(Request::new)
}

/// The versions of HTTP to ask in. Debian's curl cannot use an HTTP/2 connection in the clear again,
/// whoever serves it, and has no HTTP/1.0 over HTTP/2.
fn versions(request: &Request) -> Vec<Version> {
    let once = !request
        .0
        .iter()
        .any(|arg| arg == "-L" || arg == "--http1.0");
    let first = [Version::Http1].into_iter();
    first.chain(once.then_some(Version::Http2)).collect()
}

/// Asks the target and the hub the same, in each version of HTTP. Gives what differs, in words.
pub fn differences(
    direct: &str,
    through: &str,
    request: &Request,
    alike: impl Fn(&mut Response),
) -> Vec<String> {
    let mut expected = request.send(direct, Version::Http1);
    alike(&mut expected);
    let mut differences = Vec::new();
    for version in versions(request) {
        let mut got = request.send(through, version);
        alike(&mut got);
        if version == Version::Http2 {
            // Framing of the one version, not of the other.
            let framing = |response: &mut Response| {
                (response.headers).retain(|(name, _)| name != "transfer-encoding");
            };
            framing(&mut expected);
            framing(&mut got);
        }
        if expected != got {
            let words = request.0.join(" ");
            differences.push(format!("{version:?} {words}\n  -{expected}\n  +{got}"));
        }
    }
    differences
}

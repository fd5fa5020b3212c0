//! Files of containers as tar archives, streamed both ways: Docker's archive calls.
//!
//! The daemon tells a container that is not there from a path that is not there by its message only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::Empty;
use hub_protocol::kind::transfer::{CopyIn, CopyOut, PathStat};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::limits::MAX_ANSWER;
use hub_quic::operation::Receiver;
use hyper::body::Incoming;
use serde::Deserialize;

use super::Engine;
use super::request::{self, ANSWER, refusal};

/// Where the daemon says what stands at a path.
const STAT: &str = "x-docker-container-path-stat";

/// The bit of Go's `os.FileMode` that says "a directory".
const DIRECTORY: u32 = 1 << 31;
/// The bit that says "a symbolic link".
const LINK: u32 = 1 << 27;

/// Asks for the archive of a path; gives what `carry` makes of what stands there and of the answer,
/// whose body is the archive.
///
/// # Errors
/// Container or path are not there, or the daemon refuses: nothing was carried.
pub(crate) async fn read<F: Future>(
    engine: &Engine,
    copy: &CopyOut,
    carry: impl FnOnce(PathStat, Incoming) -> F,
) -> Result<F::Output, Failure> {
    let path = url(&copy.container, &[("path", &copy.path)])?;
    let request = request::request(engine, Method::GET, &path, Empty::new())?;
    let answer = async |response: Response<Incoming>| match response.status() {
        StatusCode::OK => {
            let stat = sayable(stat(response.headers())?)?;
            Ok(carry(stat, response.into_body()).await)
        }
        status => Err(refused(status, refusal(response).await)),
    };
    request::ask(engine, request, ANSWER, answer).await?
}

/// Makes sure that an archive can be unpacked where it should.
///
/// # Errors
/// Container or path are not there, or the path is no directory.
pub(crate) async fn check(engine: &Engine, copy: &CopyIn) -> Result<(), Failure> {
    let path = url(&copy.container, &[("path", &copy.path)])?;
    let request = request::request(engine, Method::HEAD, &path, Empty::<Bytes>::new())?;
    let (status, headers) = request::ask(engine, request, ANSWER, async |response| {
        let (parts, _) = response.into_parts();
        (parts.status, parts.headers)
    })
    .await?;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => {
            // What is missing is only said in a body, and this had none.
            let again = CopyOut {
                container: copy.container.clone(),
                path: copy.path.clone(),
            };
            return read(engine, &again, async |_, _| ()).await;
        }
        status => return Err(refused(status, status.to_string())),
    }
    // A link to a directory will do; where it leads, the daemon finds out.
    if stat(&headers)?.mode & (DIRECTORY | LINK) == 0 {
        let (path, container) = (&copy.path, &copy.container);
        let why = format!("{path:?} in container {container:?} is not a directory");
        return Err(Failure::new(FailureCode::INVALID, why));
    }
    Ok(())
}

/// Unpacks the archive that comes on the channel.
///
/// # Errors
/// The daemon's own, at any point of the archive.
pub(crate) async fn write(
    engine: &Engine,
    copy: &CopyIn,
    channel: Receiver,
) -> Result<(), Failure> {
    let flag = |set| if set { "1" } else { "0" };
    let query = [
        ("path", copy.path.as_str()),
        ("copyUIDGID", flag(copy.copy_uid_gid)),
        ("noOverwriteDirNonDir", flag(copy.no_overwrite_dir_non_dir)),
    ];
    let path = url(&copy.container, &query)?;
    let request = request::request(engine, Method::PUT, &path, ())?;
    request::upload(engine, request, channel, async |response| {
        match response.status() {
            StatusCode::OK => Ok(()),
            status => Err(refused(status, refusal(response).await)),
        }
    })
    .await?
}

/// The path and query of an archive call.
fn url(container: &str, query: &[(&str, &str)]) -> Result<String, Failure> {
    // It becomes a part of a path: what could leave it is no name of a container anyway.
    let named = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if container.is_empty() || !container.chars().all(named) || container.starts_with('.') {
        let why = format!("{container:?} cannot be the name of a container");
        return Err(Failure::new(FailureCode::INVALID, why));
    }
    let query = Serializer::new(String::new()).extend_pairs(query).finish();
    Ok(format!("/containers/{container}/archive?{query}"))
}

/// What the daemon says in its header.
fn stat(headers: &HeaderMap) -> Result<PathStat, Failure> {
    /// As the daemon names its parts.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stat {
        name: String,
        size: i64,
        mode: u32,
        mtime: String,
        #[serde(default)]
        link_target: String,
    }
    let read = || {
        let json = STANDARD.decode(headers.get(STAT)?).ok()?;
        serde_json::from_slice(&json).ok()
    };
    let stat: Stat = read().ok_or_else(|| {
        let why = "the Docker daemon does not say what stands at the path";
        Failure::new(FailureCode::INTERNAL, why)
    })?;
    Ok(PathStat {
        name: stat.name,
        size: stat.size,
        mode: stat.mode,
        mtime: stat.mtime,
        link_target: stat.link_target,
    })
}

/// What fits into the frame that begins an operation. A container names its files as it likes.
fn sayable(stat: PathStat) -> Result<PathStat, Failure> {
    if kind::to_json(&stat).len() <= MAX_ANSWER {
        return Ok(stat);
    }
    let why = "the name of what stands at the path, or of what it links to, is too long to be said";
    Err(Failure::new(FailureCode::UNSUPPORTED, why))
}

fn refused(status: StatusCode, message: String) -> Failure {
    let code = match status {
        StatusCode::NOT_FOUND if message.to_lowercase().contains("no such container") => {
            FailureCode::NO_SUCH_CONTAINER
        }
        StatusCode::NOT_FOUND => FailureCode::NOT_FOUND,
        StatusCode::BAD_REQUEST => FailureCode::INVALID,
        StatusCode::FORBIDDEN => FailureCode::FORBIDDEN,
        StatusCode::CONFLICT => FailureCode::CONFLICT,
        _ => FailureCode::INTERNAL,
    };
    Failure::new(code, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let url = |container| url(container, &[("path", "/a b&c")]);
        assert_eq!(
            url("web-1.x_y").unwrap(),
            "/containers/web-1.x_y/archive?path=%2Fa+b%26c"
        );
        for bad in ["", "..", ".", "a/b", "a?b", "a%2fb", "a b", "\u{e9}"] {
            assert_eq!(url(bad).unwrap_err().code, FailureCode::INVALID, "{bad}");
        }
    }

    #[test]
    fn what_stands_at_a_path_is_read_from_the_header() {
        let header = |json: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(STAT, STANDARD.encode(json).parse().unwrap());
            headers
        };
        let link = r#"{"name":"sh","size":7,"mode":134218239,"mtime":"2026-01-02T03:04:05Z","linkTarget":"/bin/busybox"}"#;
        let link = stat(&header(link)).unwrap();
        assert_eq!((link.size, link.mode & LINK), (7, LINK));
        assert_eq!(link.link_target, "/bin/busybox");
        assert!(stat(&header("{}")).is_err());
        assert!(stat(&HeaderMap::new()).is_err());
    }

    #[test]
    fn what_stands_at_a_path_fits_into_its_frame() {
        let to = |link_target: String| PathStat {
            name: "link".into(),
            size: 0,
            mode: LINK,
            mtime: "2026-01-02T03:04:05Z".into(),
            link_target,
        };
        assert!(sayable(to("x".repeat(4095))).is_ok());
        // In JSON each of these is six bytes.
        let refused = sayable(to("\u{1}".repeat(4095))).unwrap_err();
        assert_eq!(refused.code, FailureCode::UNSUPPORTED);
    }

    #[test]
    fn a_missing_container_is_not_a_missing_path() {
        let code = |message: &str| refused(StatusCode::NOT_FOUND, message.into()).code;
        assert_eq!(code("No such container: x"), FailureCode::NO_SUCH_CONTAINER);
        assert_eq!(
            code("Could not find the file /a in container x"),
            FailureCode::NOT_FOUND
        );
    }
}

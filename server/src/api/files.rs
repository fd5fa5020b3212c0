//! `/v1/nodes/{node}/archive` and `/v1/nodes/{node}/images/…`: tar archives of any size from and to
//! a node.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, StatusCode};
use hub_protocol::kind;
use hub_protocol::kind::transfer::{CopyIn, CopyOut, Load, Loaded, Save};
use serde::de::IgnoredAny;
use tracing::Instrument as _;

use super::Api;
use super::client::Client;
use super::problem::{Kind, Problem, within};
use super::query::{Query, QueryError};
use super::relay;

/// The media type of a tar archive.
const TAR: &str = "application/x-tar";

/// The header that says what stands at the path of an archive: a `PathStat` as JSON in base64.
pub const PATH_STAT_HEADER: &str = "hub-path-stat";

/// Copy files out of a container
///
/// Gives a tar archive of a path. `Hub-Path-Stat` says what stands there: JSON in base64 with `name`,
/// `size`, `mode` (Go's `os.FileMode`), `mtime` and `link_target`.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/archive", tag = "files",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("container" = String, Query, description = "The container's name or id"),
        ("path" = String, Query, description = "The path in it"),
    ),
    responses(
        (status = 200, description = "The archive; one that breaks off is not all", content_type = "application/x-tar"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn copy_out(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let query = Query::parse(query.as_deref(), &["container", "path"])?;
        let request = CopyOut {
            container: query.required("container")?,
            path: query.required("path")?,
        };
        let span = tracing::info_span!("copy-out", %node, container = request.container);
        let begin = async {
            let begun = api.hub.ask(&node, &request).await.answered()?;
            let stat = begun.accepted.clone();
            // It is JSON, whatever a later release adds to it.
            kind::from_json::<IgnoredAny>("Accepted", &stat)
                .map_err(|error| Problem::new(Kind::NodeFailed, error.to_string()).node(&node))?;
            Ok::<_, Problem>((relay::download(begun).await?, stat))
        };
        let (download, stat) = client.while_there(begin.instrument(span)).await??;
        let mut response = relay::response(download, TAR);
        if let Ok(stat) = HeaderValue::try_from(STANDARD.encode(stat)) {
            response.headers_mut().insert(PATH_STAT_HEADER, stat);
        }
        Ok(response)
    };
    within("copy-out", run).await
}

/// Copy files into a container
///
/// Unpacks a tar archive into a directory that is there. A body that breaks off leaves what came of
/// it so far.
#[utoipa::path(
    put, path = "/v1/nodes/{node}/archive", tag = "files",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("container" = String, Query, description = "The container's name or id"),
        ("path" = String, Query, description = "The directory in it"),
        ("copy_uid_gid" = Option<bool>, Query, description = "Whether uid and gid of the archive are kept"),
        ("no_overwrite_dir_non_dir" = Option<bool>, Query, description = "Whether it is an error to replace a directory by something else, or the reverse"),
    ),
    request_body(content_type = "application/x-tar", description = "The archive, of any size"),
    responses(
        (status = 204, description = "It is unpacked"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn copy_in(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
    body: Body,
) -> Result<StatusCode, Problem> {
    let run = async {
        let asked = async {
            let Path(node) = node?;
            Ok::<_, Problem>((node, parse_copy_in(query.as_deref())?))
        };
        let (node, request) = match asked.await {
            Ok(asked) => asked,
            Err(problem) => return Err(relay::unwanted(body, problem)),
        };
        let span = tracing::info_span!("copy-in", %node, container = request.container);
        let copy = relay::upload(&api, &client, &node, &request, body);
        let () = copy.instrument(span).await?;
        Ok(StatusCode::NO_CONTENT)
    };
    within("copy-in", run).await
}

fn parse_copy_in(query: Option<&str>) -> Result<CopyIn, QueryError> {
    let query = Query::parse(
        query,
        &[
            "container",
            "path",
            "copy_uid_gid",
            "no_overwrite_dir_non_dir",
        ],
    )?;
    Ok(CopyIn {
        container: query.required("container")?,
        path: query.required("path")?,
        copy_uid_gid: query.flag("copy_uid_gid")?.unwrap_or(false),
        no_overwrite_dir_non_dir: query.flag("no_overwrite_dir_non_dir")?.unwrap_or(false),
    })
}

/// Get images of a node as one archive
#[utoipa::path(
    get, path = "/v1/nodes/{node}/images/save", tag = "images",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("image" = Vec<String>, Query, description = "Name or id: repeated"),
    ),
    responses(
        (status = 200, description = "As `docker save` writes it; one that breaks off is not all", content_type = "application/x-tar"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn save(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let query = Query::parse(query.as_deref(), &["image"])?;
        let images: Vec<String> = query.all("image").map(str::to_owned).collect();
        if images.is_empty() {
            return Err(QueryError::Missing("image").into());
        }
        let span = tracing::info_span!("save", %node);
        let begin = async {
            let begun = api.hub.ask(&node, &Save { images }).await.answered()?;
            relay::download(begun).await
        };
        let download = client.while_there(begin.instrument(span)).await??;
        Ok(relay::response(download, TAR))
    };
    within("save", run).await
}

/// Give a node the images of an archive
#[utoipa::path(
    post, path = "/v1/nodes/{node}/images/load", tag = "images",
    params(("node" = String, Path, description = "The node's name or id")),
    request_body(content_type = "application/x-tar", description = "What `docker save` writes, compressed or not, of any size"),
    responses(
        (status = 200, description = "What it brought", body = Loaded),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn load(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
    body: Body,
) -> Result<Json<Loaded>, Problem> {
    let run = async {
        let Path(node) = node?;
        Query::parse(query.as_deref(), &[])?;
        let span = tracing::info_span!("load", %node);
        let load = relay::upload(&api, &client, &node, &Load {}, body);
        Ok(Json(load.instrument(span).await?))
    };
    within("load", run).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_where_is_read() {
        let parsed = parse_copy_in(Some("container=web&path=%2Fetc&copy_uid_gid=true"));
        let expected = CopyIn {
            container: "web".into(),
            path: "/etc".into(),
            copy_uid_gid: true,
            no_overwrite_dir_non_dir: false,
        };
        assert_eq!(parsed, Ok(expected));
        for query in [None, Some("container=web"), Some("container=&path=/")] {
            assert!(matches!(parse_copy_in(query), Err(QueryError::Missing(_))));
        }
    }
}

//! A daemon for tests that answers as they say, over connections in memory.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Method, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::{Dial, Engine, Socket};

/// A request to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// Behind the version of the API, with its query.
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

/// What it answers: a status and JSON.
pub(crate) type Answer = BoxFuture<'static, (u16, String)>;

/// An engine whose daemon answers so. The question for its version it answers by itself.
pub(crate) async fn engine(answer: impl Fn(Asked) -> Answer + Send + Sync + 'static) -> Engine {
    let answer = Arc::new(answer);
    let dial: Dial = Arc::new(move || {
        let answer = answer.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let service = service_fn(move |request| respond(request, answer.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(theirs), service));
            Ok(Box::new(ours) as Box<dyn Socket>)
        }
        .boxed()
    });
    Engine::over(dial).await.unwrap()
}

async fn respond(
    request: http::Request<Incoming>,
    answer: Arc<impl Fn(Asked) -> Answer>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().unwrap().as_str();
    let path = match path.strip_prefix("/v1.") {
        Some(rest) => &rest[rest.find('/').unwrap()..],
        None => path,
    };
    let (status, json) = if path == "/version" {
        (200, r#"{"ApiVersion": "1.41"}"#.to_owned())
    } else {
        let body = body.collect().await.unwrap().to_bytes();
        let asked = Asked {
            method: head.method,
            path: path.to_owned(),
            body,
        };
        answer(asked).await
    };
    let response = Response::builder().status(status);
    Ok(response.body(Full::new(json.into())).unwrap())
}

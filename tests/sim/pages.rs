//! What stands behind the agents: an HTTP server in memory. `GET /bytes/N/SEED` gives a pattern,
//! `POST /echo` gives the body back.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Either, Full};
use hub_agent::operations::http::{Dial, Stream};
use hub_agent::targets::Address;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::commands::pattern;

/// Every port of a node leads to the same pages.
#[derive(Debug, Default, Clone)]
pub struct Pages;

impl Dial for Pages {
    fn connect(&self, _to: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(theirs), service_fn(page)),
            );
            Ok(Box::new(ours) as Box<dyn Stream>)
        }
        .boxed()
    }
}

async fn page(
    request: Request<Incoming>,
) -> Result<Response<Either<Full<Bytes>, Incoming>>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut parts = path.split('/').skip(1);
    Ok(match parts.next() {
        Some("bytes") => {
            let mut number = || {
                parts
                    .next()
                    .and_then(|part| part.parse::<u64>().ok())
                    .unwrap_or(0)
            };
            let (len, seed) = (number(), number());
            Response::new(Either::Left(Full::new(pattern(seed, 0, len as usize))))
        }
        Some("echo") => Response::new(Either::Right(request.into_body())),
        _ => {
            let mut missing = Response::new(Either::Left(Full::new(Bytes::from("no such page"))));
            *missing.status_mut() = hyper::StatusCode::NOT_FOUND;
            missing
        }
    })
}

/// A body as bytes.
pub async fn collect(body: Incoming) -> Result<Bytes, hyper::Error> {
    Ok(body.collect().await?.to_bytes())
}

//! A base image from a registry that wants a token of everybody: what BuildKit has its session for.

use std::convert::Infallible;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hub_protocol::kind::call::image::Credentials;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::digest::{SHA256, digest};
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::engine::registry::Registry as Private;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

fn sha256(bytes: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(hex).collect();
    format!("sha256:{hex}")
}

/// A registry with one image.
struct Registry {
    address: String,
    layer: Bytes,
    config: Bytes,
    manifest: Bytes,
}

impl Registry {
    async fn new(address: String) -> Self {
        // Of its own, so that no daemon has it.
        let layer = context(&[("made-for", &address)]).await;
        let config = Bytes::from(
            json!({
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": {"hub.test": address}},
                "rootfs": {"type": "layers", "diff_ids": [sha256(&layer)]},
            })
            .to_string(),
        );
        let part = |media: &str, bytes: &Bytes| {
            let media = format!("application/vnd.docker.{media}");
            json!({"mediaType": media, "size": bytes.len(), "digest": sha256(bytes)})
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": part("container.image.v1+json", &config),
            "layers": [part("image.rootfs.diff.tar", &layer)],
        });
        Self {
            address,
            layer,
            config,
            manifest: manifest.to_string().into(),
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let response = Response::builder();
        if path == "/token" {
            let token = Bytes::from_static(br#"{"token":"open","access_token":"open"}"#);
            return response.body(token.into()).unwrap();
        }
        let authorized = request.headers().get(AUTHORIZATION);
        if authorized.is_none_or(|value| value != "Bearer open") {
            let realm = format!(
                "Bearer realm=\"http://{}/token\",service=\"s\"",
                self.address
            );
            let refused = response
                .status(StatusCode::UNAUTHORIZED)
                .header(WWW_AUTHENTICATE, realm);
            return refused.body(Bytes::from_static(b"{}").into()).unwrap();
        }
        let found = if path == "/v2/" {
            Some((&b"{}"[..]).into())
        } else if path.contains("/manifests/") {
            Some(self.manifest.clone())
        } else {
            let blobs = [&self.layer, &self.config];
            blobs
                .into_iter()
                .find(|blob| path.ends_with(&sha256(blob)))
                .cloned()
        };
        match found {
            Some(body) => response
                .header(CONTENT_TYPE, MANIFEST)
                .header("docker-content-digest", sha256(&body))
                .body(body.into())
                .unwrap(),
            None => response
                .status(StatusCode::NOT_FOUND)
                .body(Full::default())
                .unwrap(),
        }
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_base_image_is_pulled_with_a_token() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let registry = Arc::new(Registry::new(address.clone()).await);
        let serving = tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                let registry = registry.clone();
                let service = service_fn(move |request| {
                    let response = registry.answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let io = TokioIo::new(connection);
                tokio::spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        let node = node_with(&rig.engine, builder).await;
        let base = format!("{address}/team/base:1");
        let dockerfile = format!("FROM {base}\nCOPY Dockerfile /\n");
        let wish = Build {
            tags: vec![rig.tag(builder)],
            ..Build::default()
        };
        let (_, ending) = build(&node, &wish, context(&[("Dockerfile", &dockerfile)]).await).await;
        complete(ending);
        let image = rig.image(&rig.tag(builder)).await.unwrap();
        let labels = image.config.unwrap().labels.unwrap();
        assert_eq!(labels.get("hub.test"), Some(&address));
        if rig.image(&base).await.is_some() {
            rig.remove(&base).await;
        }
        serving.abort();
    }
    rig.end().await;
}

/// Each builder shows the registry what it was given, under a name that needs escaping nowhere and
/// with a secret that might; without it the build fails, and what it says holds no secret.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_private_base_image_is_pulled_with_credentials() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let registry = Private::new(Some("me:hünter2/+\"=&"), false).await;
        let (host, _) = registry.image.split_once('/').unwrap();
        let node = node_with(&rig.engine, builder).await;
        let dockerfile = format!("FROM {}\nCOPY Dockerfile /\n", registry.image);
        let context = context(&[("Dockerfile", &dockerfile)]).await;
        let shown = |password: &str| Build {
            tags: vec![rig.tag(builder)],
            credentials: [(
                host.to_owned(),
                Credentials {
                    username: "me".into(),
                    password: password.into(),
                    ..Credentials::default()
                },
            )]
            .into(),
            ..Build::default()
        };
        for wish in [Build::default(), shown("hunter3")] {
            let (_, ending) = build(&node, &wish, context.clone()).await;
            let Ending::Failed(failure) = ending else {
                panic!("{builder:?} builds without credentials")
            };
            assert_eq!(failure.code, FailureCode::BUILD_FAILED);
            assert!(!failure.message.contains("hunter3"), "{failure}");
        }
        let (_, ending) = build(&node, &shown("hünter2/+\"=&"), context).await;
        complete(ending);
        assert!(rig.image(&rig.tag(builder)).await.is_some());
        if rig.image(&registry.image).await.is_some() {
            rig.remove(&registry.image).await;
        }
    }
    rig.end().await;
}

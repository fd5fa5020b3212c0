//! Everything but exec.

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hub::client::{Client, ClientError};
use hub_protocol::kind::call::METHODS;
use hub_server::api::problem::{Kind, MEDIA_TYPE};
use hub_server::api::types::{
    Access, Edit, EditExposure, EditSettings, ExposureReplica, NewExposure, NewReplica, NewToken,
    NodeState, RotateToken,
};
use hub_server::api::{ApiError, ApiToken, Problem};
use hub_server::server::StartError;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::world::{self, NODE, World};

fn kind<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Kind {
    result.unwrap_err().problem().unwrap().kind().unwrap()
}

#[tokio::test]
async fn every_route_demands_the_token() {
    let world = World::hub().await;
    let document = serde_json::to_value(hub_server::api::document()).unwrap();
    let stream = TcpStream::connect(world.api()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let right = format!("Bearer {}", world.token.expose());
    let wrong = format!("Bearer {}", ApiToken::random().unwrap().expose());
    let mut requests = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            for (token, admitted) in [(None, false), (Some(&wrong), false), (Some(&right), true)] {
                let method = method.to_uppercase();
                // Of a time that is over: without, events are watched for ever.
                let uri = format!(
                    "{path}{}",
                    if path == "/v1/events" { "?until=0" } else { "" }
                );
                let mut request = Request::builder()
                    .method(&*method)
                    .uri(uri)
                    .header(header::HOST, "hub");
                if let Some(token) = token {
                    request = request.header(header::AUTHORIZATION, token);
                }
                let request = request.body(Empty::<Bytes>::new()).unwrap();
                let response = sender.send_request(request).await.unwrap();
                let status = response.status();
                let media_type = response.headers().get(header::CONTENT_TYPE).cloned();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(
                    status != StatusCode::UNAUTHORIZED,
                    admitted,
                    "{method} {path}"
                );
                assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
                if !status.is_success() {
                    assert_eq!(media_type.unwrap(), MEDIA_TYPE, "{method} {path}");
                    let problem: Problem = serde_json::from_slice(&body).unwrap();
                    assert_ne!(problem.kind(), Some(Kind::NoSuchPath), "{method} {path}");
                }
                requests += 1;
            }
        }
    }
    assert_eq!(requests, 3 * (25 + METHODS.len()));
    world.stop().await;
}

#[tokio::test]
async fn nodes_tokens_and_exposures() {
    let world = World::node().await;
    let client = world.client();
    let status = client.status().await.unwrap();
    assert_eq!((status.nodes, status.connected), (1, 1));
    assert_eq!(status.ca, world.server.bound().ca.to_string());

    let nodes = client.nodes().await.unwrap().nodes;
    assert_eq!(
        (&*nodes[0].name, nodes[0].state),
        (NODE, NodeState::Connected)
    );
    assert_eq!(nodes[0].session.as_ref().unwrap().os, std::env::consts::OS);

    let token = client
        .create_token(&NewToken { uses: 2, ttl_s: 60 })
        .await
        .unwrap();
    let command = token.join_command.expose();
    assert!(command.starts_with(&format!(
        "HUB_JOIN_TOKEN={} hub-agent ",
        token.token.expose()
    )));
    assert!(
        command.contains(&status.ca) && command.contains(&status.agents),
        "{command}"
    );
    let none = client.create_token(&NewToken { uses: 0, ttl_s: 60 }).await;
    assert_eq!(kind(none), Kind::InvalidRequest);

    let new = |node: &str, name: &str| NewExposure {
        node: node.into(),
        port: 8080,
        name: Some(name.into()),
        ..NewExposure::default()
    };
    let made = client.expose(&new(NODE, "web")).await.unwrap();
    assert!(
        made.urls[0]
            .expose()
            .starts_with(&status.data_plane.unwrap())
    );
    assert_eq!(
        kind(client.expose(&new(NODE, "web")).await),
        Kind::NameTaken
    );
    assert_eq!(
        kind(client.expose(&new(NODE, "W")).await),
        Kind::InvalidRequest
    );
    assert_eq!(
        kind(client.expose(&new("n2", "web2")).await),
        Kind::NoSuchNode
    );
    assert_eq!(
        client.exposures().await.unwrap().exposures,
        std::slice::from_ref(&made.exposure)
    );
    client.unexpose(made.exposure.id).await.unwrap();
    assert_eq!(
        kind(client.unexpose(made.exposure.id).await),
        Kind::NoSuchExposure
    );
    assert_eq!(client.exposures().await.unwrap().exposures, []);
    world.stop().await;
}

#[tokio::test]
async fn an_exposure_is_changed_and_its_token_rotated_and_revoked() {
    let world = World::node().await;
    let client = world.client();
    let replica = |port, container: Option<&str>| NewReplica {
        node: NODE.into(),
        port,
        container: container.map(str::to_owned),
        label: None,
    };
    let new = NewExposure {
        node: NODE.into(),
        port: 8080,
        more_replicas: vec![replica(80, Some("web"))],
        expires_s: Some(60),
        ..NewExposure::default()
    };
    let made = client.expose(&new).await.unwrap();
    let id = made.exposure.id;
    let shown = |port, container: Option<&str>| ExposureReplica {
        node: NODE.into(),
        port,
        container: container.map(str::to_owned),
        label: None,
        connected: true,
    };
    assert_eq!(
        made.exposure.replicas,
        [shown(8080, None), shown(80, Some("web"))]
    );
    assert!(made.exposure.token.as_ref().unwrap().expires.is_some());
    assert_eq!(client.exposure(id).await.unwrap(), made.exposure);

    let edit = EditExposure {
        name: Edit::Set(Some("web".into())),
        access: Edit::Set(Access::Token),
        replicas: Edit::Set(vec![replica(81, None)]),
        settings: EditSettings {
            rate: Edit::Set(Some(5)),
            ..EditSettings::default()
        },
        ..EditExposure::default()
    };
    let changed = client.change_exposure(id, &edit).await.unwrap();
    assert_eq!(
        (changed.name.as_deref(), changed.access, changed.port),
        (Some("web"), Access::Token, 81)
    );
    assert_eq!(changed.settings.rate, Some(5));
    assert_eq!(client.exposure(id).await.unwrap(), changed);

    let rotate = RotateToken {
        expires_s: Edit::Set(None),
        grace_s: 60,
    };
    let rotated = client.rotate_exposure_token(id, &rotate).await.unwrap();
    let token = rotated.exposure.token.unwrap();
    assert!(token.expires.is_none() && token.previous_until.is_some());
    assert_ne!(rotated.urls[0], made.urls[0]);
    client.revoke_exposure_token(id).await.unwrap();
    assert_eq!(client.exposure(id).await.unwrap().token, None);

    world.stop().await;
}

#[tokio::test]
async fn exposures_that_make_no_sense_are_refused() {
    let world = World::node().await;
    let client = world.client();
    let new = || NewExposure {
        node: NODE.into(),
        port: 8080,
        ..NewExposure::default()
    };
    let mut limited = new();
    limited.settings.rate = Some(0);
    for wrong in [
        NewExposure { port: 0, ..new() },
        NewExposure {
            token: Some(false),
            ..new()
        },
        NewExposure {
            container: Some("a b".into()),
            ..new()
        },
        NewExposure {
            container: Some("a".into()),
            label: Some("b".into()),
            ..new()
        },
        NewExposure {
            expires_s: Some(0),
            ..new()
        },
        NewExposure {
            listen: Some("127.0.0.1:80".into()),
            ..new()
        },
        NewExposure {
            listen: Some("here".into()),
            ..new()
        },
        limited,
    ] {
        let refused = client.expose(&wrong).await;
        assert_eq!(kind(refused), Kind::InvalidRequest, "{wrong:?}");
    }
    let nothing = EditExposure::default();
    assert_eq!(
        kind(client.change_exposure(9, &nothing).await),
        Kind::NoSuchExposure
    );
    assert_eq!(kind(client.exposure(9).await), Kind::NoSuchExposure);
    let rotate = RotateToken::default();
    assert_eq!(
        kind(client.rotate_exposure_token(9, &rotate).await),
        Kind::NoSuchExposure
    );
    assert_eq!(
        kind(client.revoke_exposure_token(9).await),
        Kind::NoSuchExposure
    );
    assert_eq!(client.exposures().await.unwrap().exposures, []);
    world.stop().await;
}

#[tokio::test]
async fn the_client_says_who_does_not_answer_or_does_not_know_it() {
    let world = World::hub().await;
    let url = format!("http://{}", world.api());
    let stranger = Client::new(&url, &ApiToken::random().unwrap(), None).unwrap();
    assert_eq!(kind(stranger.status().await), Kind::Unauthorized);
    let client = world.client();
    world.stop().await;
    let error = client.status().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(
        error.to_string().contains(&url) && error.retry_helps(),
        "{error}"
    );
}

#[tokio::test]
async fn a_hub_does_not_start_with_an_api_in_clear_text_beyond_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = world::config(&dir);
    config.api_listen = Some(([0, 0, 0, 0], 0).into());
    let error = world::start(config).await.unwrap_err();
    assert!(
        matches!(error, StartError::Api(ApiError::Exposed { .. })),
        "{error}"
    );
}

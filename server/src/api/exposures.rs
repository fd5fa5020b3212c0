//! Exposures: made, shown, changed, removed, and their tokens.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::StatusCode;
use hub_ledger as ledger;
use hub_ledger::exposure::{Edit, Lifetime, Settings, SettingsEdit};
use hub_ledger::{ExposureId, ExposureName};
use hub_protocol::target::{Selector, Target};

use super::Api;
use super::problem::{Kind, Problem};
use super::routes::Body;
use super::types::{
    Access, CreatedExposure, EditExposure, EditSettings, Exposure, ExposureReplica,
    ExposureSettings, ExposureToken, Exposures, NewExposure, NewReplica, Protocol, RotateToken,
    Secret,
};
use crate::hub::{FreshExposure, Hub, WantedEdit, WantedExposure, WantedReplica};
use crate::store::Located;
use crate::wires::Listening;

type Id = Result<Path<String>, PathRejection>;

/// What is asked for makes no sense.
struct Senseless(String);

impl From<Senseless> for Problem {
    fn from(Senseless(detail): Senseless) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }
}

/// All exposures
#[utoipa::path(
    get, path = "/v1/exposures", tag = "exposures",
    responses(
        (status = 200, description = "Oldest first", body = Exposures),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn exposures(State(api): State<Api>) -> Result<Json<Exposures>, Problem> {
    let all = api.hub.exposures().await?.into_iter();
    let exposures = all.map(|located| shown(&api.hub, located)).collect();
    Ok(Json(Exposures { exposures }))
}

/// Expose what stands behind a node
#[utoipa::path(
    post, path = "/v1/exposures", tag = "exposures", request_body = NewExposure,
    responses(
        (status = 201, description = "The exposure; its token is shown this once", body = CreatedExposure),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn expose(
    State(api): State<Api>,
    Body(new): Body<NewExposure>,
) -> Result<(StatusCode, Json<CreatedExposure>), Problem> {
    let fresh = api.hub.expose_wanted(wanted(new)?).await?;
    Ok((StatusCode::CREATED, Json(created(&api.hub, fresh))))
}

/// One exposure
#[utoipa::path(
    get, path = "/v1/exposures/{id}", tag = "exposures",
    params(("id" = u64, Path, description = "Its number")),
    responses(
        (status = 200, description = "It", body = Exposure),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn exposure(State(api): State<Api>, id: Id) -> Result<Json<Exposure>, Problem> {
    let located = api.hub.exposure(number(id)?).await?;
    Ok(Json(shown(&api.hub, located)))
}

/// Change an exposure
#[utoipa::path(
    patch, path = "/v1/exposures/{id}", tag = "exposures", request_body = EditExposure,
    params(("id" = u64, Path, description = "Its number")),
    responses(
        (status = 200, description = "The exposure as it is now", body = Exposure),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn change_exposure(
    State(api): State<Api>,
    id: Id,
    Body(edit): Body<EditExposure>,
) -> Result<Json<Exposure>, Problem> {
    let located = api.hub.change_exposure(number(id)?, wanted_edit(edit)?);
    Ok(Json(shown(&api.hub, located.await?)))
}

/// Remove an exposure
#[utoipa::path(
    delete, path = "/v1/exposures/{id}", tag = "exposures",
    params(("id" = u64, Path, description = "Its number")),
    responses(
        (status = 204, description = "It is removed"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn unexpose(State(api): State<Api>, id: Id) -> Result<StatusCode, Problem> {
    api.hub.unexpose(number(id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give an exposure a new token
#[utoipa::path(
    post, path = "/v1/exposures/{id}/token", tag = "exposures", request_body = RotateToken,
    params(("id" = u64, Path, description = "Its number")),
    responses(
        (status = 201, description = "The exposure; its new token is shown this once", body = CreatedExposure),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn rotate_token(
    State(api): State<Api>,
    id: Id,
    Body(rotate): Body<RotateToken>,
) -> Result<(StatusCode, Json<CreatedExposure>), Problem> {
    let lifetime = match rotate.expires_s {
        Edit::Keep => Lifetime::AsBefore,
        Edit::Set(None) => Lifetime::Unlimited,
        Edit::Set(Some(seconds)) => Lifetime::For(Duration::from_secs(seconds)),
    };
    let grace = Duration::from_secs(rotate.grace_s);
    let id = number(id)?;
    let fresh = api.hub.rotate_exposure_token(id, lifetime, grace).await?;
    Ok((StatusCode::CREATED, Json(created(&api.hub, fresh))))
}

/// Revoke the token of an exposure
#[utoipa::path(
    delete, path = "/v1/exposures/{id}/token", tag = "exposures",
    params(("id" = u64, Path, description = "Its number")),
    responses(
        (status = 204, description = "It has none; its name, if it has one, goes on"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn revoke_token(State(api): State<Api>, id: Id) -> Result<StatusCode, Problem> {
    api.hub.revoke_exposure_token(number(id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn number(id: Id) -> Result<ExposureId, Senseless> {
    let Path(id) = id.map_err(|rejection| Senseless(rejection.body_text()))?;
    let id = id.parse();
    id.map(ExposureId)
        .map_err(|_| Senseless("an exposure is named by its number, like 3".into()))
}

fn wanted(new: NewExposure) -> Result<WantedExposure, Senseless> {
    let protocol = ledger::Protocol::from(new.protocol);
    let first = NewReplica {
        node: new.node,
        port: new.port,
        container: new.container,
        label: new.label,
    };
    let replicas = std::iter::once(first).chain(new.more_replicas);
    Ok(WantedExposure {
        name: new.name.map(name).transpose()?,
        access: new.access.into(),
        protocol,
        replicas: replicas
            .map(|replica| wanted_replica(replica, protocol))
            .collect::<Result<_, _>>()?,
        listen: new.listen.as_deref().map(address).transpose()?,
        token: new.token,
        token_ttl: new.expires_s.map(Duration::from_secs),
        settings: Settings {
            max_body: new.settings.max_body,
            max_requests: new.settings.max_requests,
            max_sessions: new.settings.max_sessions,
            rate: new.settings.rate,
            sticky: new.settings.sticky,
        },
    })
}

fn wanted_edit(edit: EditExposure) -> Result<WantedEdit, Senseless> {
    let EditSettings {
        max_body,
        max_requests,
        max_sessions,
        rate,
        sticky,
    } = edit.settings;
    Ok(WantedEdit {
        name: match edit.name {
            Edit::Keep => Edit::Keep,
            Edit::Set(text) => Edit::Set(text.map(name).transpose()?),
        },
        access: edit.access.map(Into::into),
        protocol: edit.protocol.map(Into::into),
        replicas: match edit.replicas {
            Edit::Keep => Edit::Keep,
            Edit::Set(replicas) => {
                // How they are reached follows from the exposure, which is not at hand here.
                let replicas = replicas.into_iter();
                let wanted = replicas.map(|new| wanted_replica(new, ledger::Protocol::Tcp));
                Edit::Set(wanted.collect::<Result<_, _>>()?)
            }
        },
        listen: match edit.listen {
            Edit::Keep => Edit::Keep,
            Edit::Set(text) => Edit::Set(Some(address(&text)?)),
        },
        settings: SettingsEdit {
            max_body,
            max_requests,
            max_sessions,
            rate,
            sticky,
        },
    })
}

fn name(text: String) -> Result<ExposureName, Senseless> {
    ExposureName::try_from(text).map_err(|error| Senseless(error.to_string()))
}

fn address(text: &str) -> Result<SocketAddr, Senseless> {
    let shown: String = text.chars().take(80).collect();
    let detail =
        format!("{shown:?} is no address to listen on; it takes 127.0.0.1:5432 or [::]:53");
    text.parse().map_err(|_| Senseless(detail))
}

fn wanted_replica(
    replica: NewReplica,
    protocol: ledger::Protocol,
) -> Result<WantedReplica, Senseless> {
    let container = match (replica.container, replica.label) {
        (Some(_), Some(_)) => {
            let detail = "a container is chosen by its name or by a label, not by both";
            return Err(Senseless(detail.into()));
        }
        (Some(name), None) => Some(Selector::Name(name)),
        (None, Some(label)) => Some(Selector::Label(label)),
        (None, None) => None,
    };
    Ok(WantedReplica {
        node: replica.node,
        target: Target {
            transport: protocol.transport(),
            port: replica.port,
            container,
        },
    })
}

fn created(hub: &Hub, fresh: FreshExposure) -> CreatedExposure {
    CreatedExposure {
        exposure: shown(hub, fresh.located),
        urls: fresh.urls.into_iter().map(Secret::from).collect(),
    }
}

fn shown(hub: &Hub, Located { exposure, homes }: Located) -> Exposure {
    let addresses = hub.urls(&exposure, None);
    let (listening, listen_error) = match hub.wires().listening(exposure.id) {
        Some(Listening::At(address)) => (Some(address.to_string()), None),
        Some(Listening::Failed(why)) => (None, Some(why)),
        None => (None, None),
    };
    let replica = |(replica, home): (ledger::Replica, crate::store::Home)| {
        let (container, label) = match replica.target.container {
            Some(Selector::Name(name)) => (Some(name), None),
            Some(Selector::Label(label)) => (None, Some(label)),
            None => (None, None),
        };
        ExposureReplica {
            node: home.name.to_string(),
            port: replica.target.port,
            container,
            label,
            connected: hub.sessions().get(&home.id).is_some(),
        }
    };
    let replicas = exposure.replicas.into_iter().zip(homes);
    let replicas: Vec<_> = replicas.map(replica).collect();
    let (node, port) = match replicas.first() {
        Some(first) => (first.node.clone(), first.port),
        None => Default::default(),
    };
    Exposure {
        id: exposure.id.0,
        node,
        port,
        replicas,
        name: exposure.name.map(String::from),
        access: exposure.access.into(),
        protocol: exposure.protocol.into(),
        listen: exposure.listen.map(|address| address.to_string()),
        listening,
        listen_error,
        token: exposure.token.map(|token| ExposureToken {
            expires: token.expires.map(|at| at.to_string()),
            previous_until: token.previous.map(|previous| previous.until.to_string()),
        }),
        settings: ExposureSettings {
            max_body: exposure.settings.max_body,
            max_requests: exposure.settings.max_requests,
            max_sessions: exposure.settings.max_sessions,
            rate: exposure.settings.rate,
            sticky: exposure.settings.sticky,
        },
        addresses,
        created: exposure.created.to_string(),
    }
}

/// Enums of the API and of the ledger that say the same.
macro_rules! same {
    ($name:ident: $($variant:ident),+) => {
        impl From<$name> for ledger::$name {
            fn from(value: $name) -> Self {
                match value { $($name::$variant => Self::$variant,)+ }
            }
        }

        impl From<ledger::$name> for $name {
            fn from(value: ledger::$name) -> Self {
                match value { $(ledger::$name::$variant => Self::$variant,)+ }
            }
        }
    };
}

same!(Access: Public, Token, Login);
same!(Protocol: Http, Http2, Tcp, Udp);

//! Joining: from a token to an identity.
//!
//! 1. Take the key that an earlier attempt stored, or draw one and store it: this proves that the
//!    directory can be written to while the token is still whole.
//! 2. Connect to the enrollment endpoint. The hub is known by the fingerprint of its CA; if that
//!    does not fit, the handshake fails and the token has not left this machine.
//! 3. Send token and certificate request on one stream, and read the answer.
//! 4. Check the answer as a hub would check it, then store the identity.
//!
//! A failure after 3 loses nothing: the next attempt asks with the same key, and the hub gives the
//! same answer without spending the token again, as long as the token holds.

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hub_protocol::enroll::{
    self, JoinRequest, JoinResponse, JoinToken, MAX_RESPONSE, MessageError,
};
use hub_protocol::session::{Platform, Refused};
use hub_protocol::{Fingerprint, NodeName};
use hub_quic::endpoint::{self, Network, Transport};
use hub_quic::tls::{ShownPins, TlsError, enrollment_client, verify_node};
use quinn::{ConnectionError, ReadToEndError, VarInt};
use rustls::time_provider::TimeProvider;
use tokio::time::timeout;

use crate::dial::{DialError, Dialled, HubAddress, dial};
use crate::identity::{
    Identity, IdentityError, IdentityMismatch, IdentityStore, KeyError, NodeKey, State,
};
use crate::kill;

/// How long the hub has to answer a request.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything that a join needs to be told.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The hub's enrollment endpoint.
    pub hub: HubAddress,
    /// The fingerprint of the hub's CA.
    pub pin: Fingerprint,
    /// What entitles this machine to join.
    pub token: JoinToken,
    /// The name to ask for; without, the hub makes one of the host's.
    pub name: Option<NodeName>,
    /// This machine.
    pub platform: Platform,
}

/// Why a machine did not become a node.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The identity cannot be read or stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The hub was not reached. The token was not sent.
    #[error(transparent)]
    Dial(DialError),
    /// Who answered is not the hub that is pinned. The token was not sent.
    #[error(
        "{hub} is not the hub that is pinned, and the token was not sent: it shows {}, the pin is \
         {pin}; compare with what the hub printed when it made the token",
        fingerprints(.shown)
    )]
    WrongPin {
        /// Who answered.
        hub: HubAddress,
        /// The pin.
        pin: Fingerprint,
        /// The fingerprints of the CAs it showed.
        shown: Vec<Fingerprint>,
    },
    /// The connection ended before the answer was here.
    #[error(
        "{hub} did not answer the join: {reason}; try again, a token that was spent by this is not \
         spent twice"
    )]
    Lost {
        /// Whom it was about.
        hub: HubAddress,
        /// What happened.
        reason: String,
    },
    /// The hub said no.
    #[error("the hub refused the join: {}{}", .0.message, retry_hint(.0))]
    Refused(Refused),
    /// The hub's answer is unreadable.
    #[error("cannot read the hub's answer: {0}; is the hub of a newer release?")]
    Answer(MessageError),
    /// The hub's answer makes no identity.
    #[error("the hub's answer makes no identity: {0}; tell whoever runs the hub")]
    Mismatch(#[from] IdentityMismatch),
    /// The hub's answer does not come from the pinned CA.
    #[error("the hub's answer does not trust its own CA {0}; tell whoever runs the hub")]
    ForeignTrust(Fingerprint),
    /// The certificate would not be let in.
    #[error("the certificate would not be let in: {0}; check the clock of this machine")]
    Useless(TlsError),
}

impl JoinError {
    /// Whether the same may succeed later without anyone's doing.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::Identity(error) => error.retry_helps(),
            Self::Dial(error) => error.retry_helps(),
            Self::Lost { .. } => true,
            Self::Refused(refused) => !refused.permanent,
            Self::Key(_)
            | Self::Tls(_)
            | Self::WrongPin { .. }
            | Self::Answer(_)
            | Self::Mismatch(_)
            | Self::ForeignTrust(_)
            | Self::Useless(_) => false,
        }
    }
}

fn fingerprints(pins: &[Fingerprint]) -> String {
    let pins = pins.iter().map(Fingerprint::to_string).collect::<Vec<_>>();
    if pins.is_empty() {
        "no CA".to_owned()
    } else {
        pins.join(" and ")
    }
}

fn retry_hint(refused: &Refused) -> String {
    match refused.retry_after_ms {
        Some(millis) if !refused.permanent => {
            format!("; try again in {} s", millis.div_ceil(1000))
        }
        _ => String::new(),
    }
}

/// Makes this machine a node, unless `store` says that it is one already.
///
/// # Errors
/// [`JoinError`], which says whether trying again helps.
pub async fn join(
    store: &IdentityStore,
    network: &dyn Network,
    options: &JoinOptions,
    time: Arc<dyn TimeProvider>,
) -> Result<Identity, JoinError> {
    let key = match store.load()? {
        State::Joined(identity) => return Ok(*identity),
        State::Key(key) => key,
        State::Empty => NodeKey::generate()?,
    };
    store.save_key(&key)?;
    kill::at(kill::Point::JoinKeyStored);
    let request = JoinRequest {
        version: enroll::VERSION,
        token: options.token.clone(),
        csr: enroll::Der(key.certificate_request()?),
        name: options.name.clone(),
        platform: options.platform.clone(),
    };
    let joined = match ask(network, options, &request, time.clone()).await? {
        JoinResponse::Joined(joined) => *joined,
        JoinResponse::Refused(refused) => return Err(JoinError::Refused(refused)),
    };
    kill::at(kill::Point::JoinAnswered);
    let identity = Identity::new(key, joined)?;
    if !identity.trust().fingerprints().contains(&options.pin) {
        return Err(JoinError::ForeignTrust(options.pin));
    }
    verify_node(identity.credentials(), identity.trust(), &*time).map_err(JoinError::Useless)?;
    store.save_identity(&identity)?;
    Ok(identity)
}

async fn ask(
    network: &dyn Network,
    options: &JoinOptions,
    request: &JoinRequest,
    time: Arc<dyn TimeProvider>,
) -> Result<JoinResponse, JoinError> {
    let shown = ShownPins::default();
    let tls = enrollment_client(options.pin, shown.clone(), time)?;
    let transport = Transport::enrollment(0, MAX_RESPONSE as u32);
    let client = endpoint::client_config(network, tls, &transport);
    let dialled = dial(network, &options.hub, &transport, &client).await;
    let Dialled {
        connection,
        endpoint,
        ..
    } = dialled.map_err(|error| match shown.latest() {
        Some(shown) => JoinError::WrongPin {
            hub: options.hub.clone(),
            pin: options.pin,
            shown,
        },
        None => JoinError::Dial(error),
    })?;
    let exchange = async {
        let (mut send, mut receive) = connection.open_bi().await.map_err(lost)?;
        // If the hub stops reading, it has said why already.
        let _ = send.write_all(&request.encode()).await;
        let _ = send.finish();
        receive
            .read_to_end(MAX_RESPONSE)
            .await
            .map_err(|error| match error {
                ReadToEndError::TooLong => io::Error::other("its answer is too long"),
                ReadToEndError::Read(error) => io::Error::other(error),
            })
    };
    let answer = match timeout(ANSWER_TIMEOUT, exchange).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("nothing came for {} s", ANSWER_TIMEOUT.as_secs())),
    };
    connection.close(VarInt::from_u32(hub_protocol::code::CloseCode::DONE.0), b"");
    endpoint.wait_idle().await;
    let answer = answer.map_err(|reason| JoinError::Lost {
        hub: options.hub.clone(),
        reason,
    })?;
    JoinResponse::decode(&answer).map_err(JoinError::Answer)
}

fn lost(error: ConnectionError) -> io::Error {
    io::Error::other(error)
}

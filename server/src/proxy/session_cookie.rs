//! The content of session cookies: that somebody has shown a credential at an exposure, said by
//! the hub to itself. Pure.
//!
//! ```text
//! version 1 | exposure 8 | began 8 | ends 8 | user 0..64 | HMAC-SHA256 32      in base64
//! ```
//!
//! The signature also covers what the cookie does not hold: the credential it was given for, as a
//! [`Binding`]. A token that is rotated or a password that is changed ends its sessions. The hub
//! remembers none of them: who logs out loses the cookie, and a copy of it holds until its end.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hub_ledger::{ExposureId, Timestamp};
use ring::hmac;

use crate::secret::HubSecret;

/// How long a session lasts that is not used.
pub(super) const LIFE: Duration = Duration::from_secs(3600);

/// How long one lasts at most, however much it is used.
pub(super) const MAX_LIFE: Duration = Duration::from_secs(12 * 3600);

/// The longest name of a user, in bytes.
pub(super) const MAX_USER: usize = 64;

const VERSION: u8 = 1;
const TAG: usize = 32;
const FIXED: usize = 1 + 3 * 8;

/// The longest text, in bytes: more is not even decoded.
const MAX_TEXT: usize = (FIXED + MAX_USER + TAG).div_ceil(3) * 4;

/// What a session stands or falls with: a digest of the credential, different for each kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding(pub(super) [u8; 32]);

/// Someone's session at an exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    /// Where it holds.
    pub(super) exposure: ExposureId,
    /// Whose it is; nobody's in particular if a token was shown. At most [`MAX_USER`] bytes.
    pub(super) user: Option<String>,
    /// When the credential was shown.
    pub(super) began: Timestamp,
    /// When it is over.
    pub(super) ends: Timestamp,
}

impl Session {
    /// One that begins now.
    pub(super) fn new(exposure: ExposureId, user: Option<String>, now: Timestamp) -> Self {
        Self {
            exposure,
            user,
            began: now,
            ends: now.saturating_add(LIFE),
        }
    }

    /// The same with a later end, once half of its life is over and as far as it may go on.
    pub(super) fn renewed(&self, now: Timestamp) -> Option<Self> {
        if self.ends.since(now) > LIFE / 2 {
            return None;
        }
        let limit = self.began.saturating_add(MAX_LIFE);
        let ends = now.saturating_add(LIFE).min(limit);
        (ends > self.ends).then(|| Self {
            ends,
            ..self.clone()
        })
    }
}

/// A session that a cookie claims. Nothing in it is to be believed before [`Key::prove`].
pub(super) struct Claim {
    session: Session,
    content: Vec<u8>,
    tag: Vec<u8>,
}

impl Claim {
    /// What a cookie's value says, if it says anything.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let mut content = URL_SAFE_NO_PAD.decode(text).ok()?;
        let tag = content.split_off(content.len().checked_sub(TAG)?);
        let (fixed, user) = content.split_at_checked(FIXED)?;
        if fixed[0] != VERSION || user.len() > MAX_USER {
            return None;
        }
        let mut numbers = fixed[1..].as_chunks::<8>().0.iter().copied();
        let mut number = || numbers.next().map(u64::from_be_bytes);
        let session = Session {
            exposure: ExposureId(number()?),
            began: Timestamp::from_millis(number()?),
            ends: Timestamp::from_millis(number()?),
            user: match str::from_utf8(user).ok()? {
                "" => None,
                user => Some(user.to_owned()),
            },
        };
        Some(Self {
            session,
            content,
            tag,
        })
    }

    /// The user it names, for whoever looks up what that user's sessions are bound to.
    pub(super) fn user(&self) -> Option<&str> {
        self.session.user.as_deref()
    }
}

/// What signs and proves sessions.
pub(super) struct Key(hmac::Key);

impl Key {
    /// The key of this hub. Hubs with one secret take each other's cookies.
    pub(super) fn new(secret: &HubSecret) -> Self {
        let key = secret.derive(b"hub session cookie v1");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The value of a cookie that says so.
    pub(super) fn sign(&self, session: &Session, binding: Binding) -> String {
        let mut content = vec![VERSION];
        content.extend(session.exposure.0.to_be_bytes());
        content.extend(session.began.as_millis().to_be_bytes());
        content.extend(session.ends.as_millis().to_be_bytes());
        content.extend(session.user.as_deref().unwrap_or_default().as_bytes());
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&binding.0);
        context.update(&content);
        content.extend(context.sign().as_ref());
        URL_SAFE_NO_PAD.encode(content)
    }

    /// The session claimed, if this hub signed it for this exposure and binding, and it is not
    /// over. Signatures are compared in constant time.
    pub(super) fn prove(
        &self,
        claim: &Claim,
        exposure: ExposureId,
        binding: Binding,
        now: Timestamp,
    ) -> Option<Session> {
        let signed = [&binding.0[..], &claim.content].concat();
        hmac::verify(&self.0, &signed, &claim.tag).ok()?;
        let session = &claim.session;
        // One from the future was signed before the clock was set back: it would last too long.
        let lasts = now < session.ends && session.ends.since(now) <= LIFE;
        (session.exposure == exposure && lasts).then(|| session.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
    const HERE: ExposureId = ExposureId(7);
    const BOUND: Binding = Binding([3; 32]);

    fn key() -> Key {
        Key::new(&HubSecret::from_bytes([1; 32]))
    }

    fn session() -> Session {
        Session::new(HERE, Some("operator".to_owned()), NOW)
    }

    fn prove(text: &str, now: Timestamp) -> Option<Session> {
        key().prove(&Claim::read(text.as_bytes())?, HERE, BOUND, now)
    }

    #[test]
    fn holds_at_its_exposure_for_its_credential_and_its_time_only() {
        let text = key().sign(&session(), BOUND);
        assert_eq!(prove(&text, NOW), Some(session()));
        let last = NOW
            .saturating_add(LIFE)
            .saturating_sub(Duration::from_millis(1));
        assert_eq!(prove(&text, last), Some(session()));
        assert_eq!(prove(&text, NOW.saturating_add(LIFE)), None);
        assert_eq!(prove(&text, NOW.saturating_sub(LIFE)), None, "set back");

        let claim = Claim::read(text.as_bytes()).unwrap();
        assert_eq!(claim.user(), Some("operator"));
        assert_eq!(key().prove(&claim, ExposureId(8), BOUND, NOW), None);
        assert_eq!(key().prove(&claim, HERE, Binding([4; 32]), NOW), None);
        let other = Key::new(&HubSecret::from_bytes([2; 32]));
        assert_eq!(other.prove(&claim, HERE, BOUND, NOW), None);
    }

    #[test]
    fn every_byte_counts() {
        let text = key().sign(&session(), BOUND);
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let damaged = URL_SAFE_NO_PAD.encode(&damaged);
            assert_eq!(prove(&damaged, NOW), None, "byte {at}");
            let cut = URL_SAFE_NO_PAD.encode(&bytes[..at]);
            assert_eq!(prove(&cut, NOW), None, "cut at {at}");
        }
        assert_eq!(prove(&(text.clone() + "AAAA"), NOW), None);
        assert_eq!(prove(&"A".repeat(100_000), NOW), None);
    }

    #[test]
    fn nobody_in_particular_is_no_user() {
        let anonymous = Session::new(HERE, None, NOW);
        let text = key().sign(&anonymous, BOUND);
        assert_eq!(prove(&text, NOW), Some(anonymous));
    }

    #[test]
    fn goes_on_while_it_is_used_but_not_for_ever() {
        let half = NOW.saturating_add(LIFE / 2);
        let before = half.saturating_sub(Duration::from_millis(1));
        assert_eq!(session().renewed(before), None);
        let renewed = session().renewed(half).unwrap();
        assert_eq!(renewed.ends, half.saturating_add(LIFE));
        assert_eq!(renewed.began, NOW);

        let (mut session, mut now, mut renewals) = (session(), NOW, 0);
        while now < session.ends {
            if let Some(renewed) = session.renewed(now) {
                (session, renewals) = (renewed, renewals + 1);
            }
            now = now.saturating_add(Duration::from_secs(60));
        }
        assert_eq!(session.ends, NOW.saturating_add(MAX_LIFE));
        assert!(renewals > 10, "{renewals}");
    }

    proptest! {
        #[test]
        fn what_is_signed_is_read_back(
            user in prop::option::of("[a-z]{1,64}"), exposure: u64, ahead in 1..=LIFE.as_millis() as u64,
        ) {
            let session = Session {
                exposure: ExposureId(exposure),
                user,
                began: NOW,
                ends: NOW.saturating_add(Duration::from_millis(ahead)),
            };
            let text = key().sign(&session, BOUND);
            prop_assert!(text.len() <= MAX_TEXT);
            let claim = Claim::read(text.as_bytes()).unwrap();
            prop_assert_eq!(key().prove(&claim, ExposureId(exposure), BOUND, NOW), Some(session));
        }

        #[test]
        fn nothing_else_is_believed(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let claim = Claim::read(&text);
            prop_assert!(claim.and_then(|claim| key().prove(&claim, HERE, BOUND, NOW)).is_none());
        }
    }
}

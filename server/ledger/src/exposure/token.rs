//! The token of an exposure: how long it holds, and how another takes its place.

use std::fmt;
use std::time::Duration;

use crate::time::Timestamp;
use crate::token::write_short;

/// The longest life of a token that expires: ten years.
pub const MAX_TOKEN_TTL: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The longest time that an old token may go on beside a new one: 30 days.
pub const MAX_GRACE: Duration = Duration::from_secs(30 * 86_400);

/// The hash of the token in an exposure's URL.
///
/// The ledger looks tokens up by it. How long such a look-up takes may depend on the hash, and who
/// guesses learns nothing from that: to choose a hash's first bytes is as hard as to guess the token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExposureTokenHash(pub [u8; 32]);

/// Its first bytes: enough to tell tokens apart in a log.
impl fmt::Debug for ExposureTokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_short(&self.0, f)
    }
}

/// The token of an exposure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExposureToken {
    /// Its hash.
    pub hash: ExposureTokenHash,
    /// From when on it holds no longer; without, it holds until it is revoked.
    pub expires: Option<Timestamp>,
    /// The one before it, as long as that is good, too.
    pub previous: Option<PreviousToken>,
}

/// A token that was replaced and is good for some time yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousToken {
    /// Its hash.
    pub hash: ExposureTokenHash,
    /// From when on it holds no longer.
    pub until: Timestamp,
}

impl ExposureToken {
    /// Whether who shows the token of this hash gets in at this time.
    ///
    /// The comparison ends at the first byte that differs. That is safe: see [`ExposureTokenHash`].
    pub fn admits(&self, shown: ExposureTokenHash, now: Timestamp) -> bool {
        let current = self.hash == shown && self.expires.is_none_or(|expires| now < expires);
        let previous = |previous: PreviousToken| previous.hash == shown && now < previous.until;
        current || self.previous.is_some_and(previous)
    }
}

/// A token to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewExposureToken {
    /// Its hash.
    pub hash: ExposureTokenHash,
    /// How long it holds: a second to [`MAX_TOKEN_TTL`]; without, until it is revoked.
    pub ttl: Option<Duration>,
}

/// A new token in the place of the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Its hash.
    pub hash: ExposureTokenHash,
    /// How long it holds.
    pub lifetime: Lifetime,
    /// How long the old one is good yet: [`MAX_GRACE`] at most, and never longer than it was good for
    /// anyway.
    pub grace: Duration,
}

/// How long a new token holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// As long as the one before it; until it is revoked if there was none.
    #[default]
    AsBefore,
    /// Until it is revoked.
    Unlimited,
    /// This long from now on: a second to [`MAX_TOKEN_TTL`].
    For(Duration),
}

/// A time that makes no sense for a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenOutOfBounds {
    /// It would be gone at once.
    #[error(
        "a token that expires holds for a second at least; leave the time out for one that does not expire"
    )]
    TtlTooShort,
    /// It is for ever, nearly.
    #[error(
        "a token that expires holds for ten years at most; leave the time out for one that does not expire"
    )]
    TtlTooLong,
    /// The old token would go on for too long.
    #[error(
        "an old token may go on beside the new one for 30 days at most; choose a shorter grace"
    )]
    GraceTooLong,
    /// The old token's time is over, and with it the new one's.
    #[error(
        "the token expired at {expired}, and so would one that holds as long; say how long the new one is to hold"
    )]
    Expired {
        /// When.
        expired: Timestamp,
    },
}

fn expiry(ttl: Duration, now: Timestamp) -> Result<Timestamp, TokenOutOfBounds> {
    if ttl < Duration::from_secs(1) {
        Err(TokenOutOfBounds::TtlTooShort)
    } else if ttl > MAX_TOKEN_TTL {
        Err(TokenOutOfBounds::TtlTooLong)
    } else {
        Ok(now.saturating_add(ttl))
    }
}

/// The first token of an exposure.
pub(super) fn first(
    new: NewExposureToken,
    now: Timestamp,
) -> Result<ExposureToken, TokenOutOfBounds> {
    Ok(ExposureToken {
        hash: new.hash,
        expires: new.ttl.map(|ttl| expiry(ttl, now)).transpose()?,
        previous: None,
    })
}

/// The token in the place of `old`. One that `old` had replaced is good no longer.
pub(super) fn rotate(
    old: Option<ExposureToken>,
    rotation: Rotation,
    now: Timestamp,
) -> Result<ExposureToken, TokenOutOfBounds> {
    let before = old.and_then(|old| old.expires);
    let expires = match rotation.lifetime {
        Lifetime::AsBefore => match before {
            Some(expired) if expired <= now => return Err(TokenOutOfBounds::Expired { expired }),
            other => other,
        },
        Lifetime::Unlimited => None,
        Lifetime::For(ttl) => Some(expiry(ttl, now)?),
    };
    if rotation.grace > MAX_GRACE {
        return Err(TokenOutOfBounds::GraceTooLong);
    }
    let until = now.saturating_add(rotation.grace);
    let until = before.map_or(until, |before| before.min(until));
    let previous = old.filter(|_| until > now).map(|old| PreviousToken {
        hash: old.hash,
        until,
    });
    Ok(ExposureToken {
        hash: rotation.hash,
        expires,
        previous,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn hash(byte: u8) -> ExposureTokenHash {
        ExposureTokenHash([byte; 32])
    }

    fn at(seconds: u64) -> Timestamp {
        NOW.saturating_add(Duration::from_secs(seconds))
    }

    fn token(ttl: Option<Duration>) -> ExposureToken {
        let new = NewExposureToken { hash: hash(1), ttl };
        first(new, NOW).expect("within its bounds")
    }

    fn rotation(lifetime: Lifetime, grace: Duration) -> Rotation {
        Rotation {
            hash: hash(2),
            lifetime,
            grace,
        }
    }

    #[test]
    fn a_token_holds_until_it_expires() {
        let held = token(Some(Duration::from_secs(10)));
        assert!(held.admits(hash(1), NOW) && held.admits(hash(1), at(9)));
        assert!(!held.admits(hash(1), at(10)) && !held.admits(hash(2), NOW));
        assert!(token(None).admits(hash(1), Timestamp::MAX));
    }

    #[test]
    fn an_old_token_goes_on_for_its_grace_and_no_longer_than_it_would_have() {
        let rotate = |ttl, grace| {
            let rotation = rotation(Lifetime::Unlimited, Duration::from_secs(grace));
            rotate(Some(token(ttl)), rotation, NOW).expect("within its bounds")
        };
        let at_once = rotate(None, 0);
        assert!(at_once.admits(hash(2), NOW) && !at_once.admits(hash(1), NOW));
        let later = rotate(None, 60);
        assert!(later.admits(hash(1), at(59)) && !later.admits(hash(1), at(60)));
        let expiring = rotate(Some(Duration::from_secs(10)), 60);
        assert!(expiring.admits(hash(1), at(9)) && !expiring.admits(hash(1), at(10)));
        assert!(expiring.admits(hash(2), at(60)));
    }

    #[test]
    fn only_one_old_token_goes_on() {
        let second = rotate(Some(token(None)), rotation(Lifetime::AsBefore, DAY), NOW);
        let third = Rotation {
            hash: hash(3),
            ..rotation(Lifetime::AsBefore, DAY)
        };
        let third = rotate(second.ok(), third, NOW).expect("within its bounds");
        let good = [1, 2, 3].map(|byte| third.admits(hash(byte), NOW));
        assert_eq!(good, [false, true, true]);
    }

    #[test]
    fn a_new_token_holds_as_long_as_the_old_one_unless_it_is_said() {
        let old = Some(token(Some(DAY)));
        let expires = |lifetime, now| {
            rotate(old, rotation(lifetime, Duration::ZERO), now).map(|token| token.expires)
        };
        let expired = NOW.saturating_add(DAY);
        assert_eq!(expires(Lifetime::AsBefore, at(5)), Ok(Some(expired)));
        assert_eq!(expires(Lifetime::Unlimited, at(5)), Ok(None));
        let shorter = Lifetime::For(Duration::from_secs(2));
        assert_eq!(expires(shorter, at(5)), Ok(Some(at(7))));
        assert_eq!(
            expires(Lifetime::AsBefore, expired),
            Err(TokenOutOfBounds::Expired { expired })
        );
        let none = rotate(None, rotation(Lifetime::AsBefore, DAY), NOW).expect("there was none");
        assert_eq!((none.expires, none.previous), (None, None));
    }

    #[test]
    fn times_have_bounds() {
        let ttl = |ttl| {
            let new = NewExposureToken {
                hash: hash(1),
                ttl: Some(ttl),
            };
            first(new, NOW).map(|token| token.expires)
        };
        assert_eq!(ttl(Duration::ZERO), Err(TokenOutOfBounds::TtlTooShort));
        assert_eq!(
            ttl(MAX_TOKEN_TTL + Duration::from_secs(1)),
            Err(TokenOutOfBounds::TtlTooLong)
        );
        assert!(ttl(MAX_TOKEN_TTL).is_ok());
        let grace = MAX_GRACE + Duration::from_secs(1);
        assert_eq!(
            rotate(None, rotation(Lifetime::AsBefore, grace), NOW),
            Err(TokenOutOfBounds::GraceTooLong)
        );
    }
}

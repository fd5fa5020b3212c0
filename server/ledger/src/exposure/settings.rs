//! The limits that an exposure has of its own, and their bounds.

use std::fmt;

use super::Edit;

/// The most that `max_body` can be: 1 TiB.
pub const MAX_BODY: u64 = 1 << 40;

/// The most that `max_requests` can be.
pub const MAX_REQUESTS: u32 = 65_536;

/// The most that `max_sessions` can be.
pub const MAX_SESSIONS: u32 = 65_536;

/// The most that `rate` can be.
pub const MAX_RATE: u32 = 100_000;

/// The limits of an exposure. All of them are off at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Bytes of a request's body: 1 to [`MAX_BODY`].
    pub max_body: Option<u64>,
    /// Requests in flight, of TCP and UDP connections and flows: 1 to [`MAX_REQUESTS`].
    pub max_requests: Option<u32>,
    /// Sessions that each replica takes at once: 1 to [`MAX_SESSIONS`]. A WebSocket, or whatever else a
    /// request is upgraded to, is one until it ends.
    pub max_sessions: Option<u32>,
    /// Requests a second that each client address may begin: 1 to [`MAX_RATE`].
    pub rate: Option<u32>,
    /// Whether a browser stays with the replica that answered it first.
    pub sticky: bool,
}

/// What becomes of [`Settings`] in a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SettingsEdit {
    /// Bytes of a request's body.
    pub max_body: Edit<Option<u64>>,
    /// Requests in flight.
    pub max_requests: Edit<Option<u32>>,
    /// Sessions that each replica takes at once.
    pub max_sessions: Edit<Option<u32>>,
    /// Requests a second that each client address may begin.
    pub rate: Edit<Option<u32>>,
    /// Whether a browser stays with the replica that answered it first.
    pub sticky: Edit<bool>,
}

impl SettingsEdit {
    /// Puts the values in their places.
    pub fn apply(self, settings: &mut Settings) {
        self.max_body.apply(&mut settings.max_body);
        self.max_requests.apply(&mut settings.max_requests);
        self.max_sessions.apply(&mut settings.max_sessions);
        self.rate.apply(&mut settings.rate);
        self.sticky.apply(&mut settings.sticky);
    }
}

/// A limit that cannot be that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} cannot be {value}: it takes 1 to {most}; leave it out for no limit")]
pub struct SettingOutOfBounds {
    /// Its name in the API.
    pub setting: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The most that it can be.
    pub most: u64,
}

impl Settings {
    /// Whether each is within its bounds.
    pub fn check(&self) -> Result<(), SettingOutOfBounds> {
        let within = |setting, value: Option<u64>, most| match value {
            Some(value) if !(1..=most).contains(&value) => Err(SettingOutOfBounds {
                setting,
                value,
                most,
            }),
            _ => Ok(()),
        };
        within("max_body", self.max_body, MAX_BODY)?;
        let few = |setting, value: Option<u32>, most: u32| {
            within(setting, value.map(u64::from), most.into())
        };
        few("max_requests", self.max_requests, MAX_REQUESTS)?;
        few("max_sessions", self.max_sessions, MAX_SESSIONS)?;
        few("rate", self.rate, MAX_RATE)
    }
}

/// Those that are on, as in "max_requests 20, sticky"; nothing if none is.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("max_body", self.max_body),
            ("max_requests", self.max_requests.map(u64::from)),
            ("max_sessions", self.max_sessions.map(u64::from)),
            ("rate", self.rate.map(u64::from)),
        ];
        let counts = counts
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name} {value}")));
        let sticky = self.sticky.then(|| "sticky".to_owned());
        f.write_str(&counts.chain(sticky).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_bounds() {
        assert_eq!(Settings::default().check(), Ok(()));
        let most = Settings {
            max_body: Some(MAX_BODY),
            max_requests: Some(MAX_REQUESTS),
            max_sessions: Some(MAX_SESSIONS),
            rate: Some(MAX_RATE),
            sticky: true,
        };
        assert_eq!(most.check(), Ok(()));
        let off = Settings::default();
        for (settings, setting) in [
            (
                Settings {
                    max_body: Some(0),
                    ..off
                },
                "max_body",
            ),
            (
                Settings {
                    max_body: Some(MAX_BODY + 1),
                    ..most
                },
                "max_body",
            ),
            (
                Settings {
                    max_requests: Some(0),
                    ..most
                },
                "max_requests",
            ),
            (
                Settings {
                    max_sessions: Some(MAX_SESSIONS + 1),
                    ..off
                },
                "max_sessions",
            ),
            (
                Settings {
                    rate: Some(0),
                    ..off
                },
                "rate",
            ),
        ] {
            assert_eq!(settings.check().expect_err(setting).setting, setting);
        }
    }

    #[test]
    fn what_is_not_said_stays() {
        let mut settings = Settings {
            rate: Some(5),
            max_body: Some(7),
            ..Settings::default()
        };
        let edit = SettingsEdit {
            rate: Edit::Set(None),
            sticky: Edit::Set(true),
            ..SettingsEdit::default()
        };
        edit.apply(&mut settings);
        assert_eq!(settings.to_string(), "max_body 7, sticky");
    }
}

//! Who gets in, by the way that they came. Pure.

use hub_ledger::Access;

/// Why someone stays outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// The token is needed.
    NoToken,
    /// The login is needed.
    NoLogin,
}

/// Whether whoever came by the token, or else by the name, gets in.
pub(super) fn admitted(access: Access, by_token: bool) -> Result<(), Outside> {
    match access {
        Access::Public => Ok(()),
        Access::Token if by_token => Ok(()),
        Access::Token => Err(Outside::NoToken),
        Access::Login => Err(Outside::NoLogin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_proof_of_itself_but_not_of_a_login() {
        for (access, by_token, expected) in [
            (Access::Public, false, Ok(())),
            (Access::Public, true, Ok(())),
            (Access::Token, true, Ok(())),
            (Access::Token, false, Err(Outside::NoToken)),
            (Access::Login, true, Err(Outside::NoLogin)),
            (Access::Login, false, Err(Outside::NoLogin)),
        ] {
            assert_eq!(admitted(access, by_token), expected, "{access:?}");
        }
    }
}

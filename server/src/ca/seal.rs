//! Sealing the CA's private key under the hub's secret.
//!
//! A sealed key is one version byte, a salt, a nonce, and the key encrypted with AES-256-GCM. The
//! encryption key comes from the hub's secret and the salt by HKDF-SHA256, so that no two records
//! share one. Deployment and fingerprint are authenticated with it: a record that is moved to
//! another ledger, or put beside another certificate, does not open.

use hub_protocol::{Deployment, Fingerprint};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use crate::secret::HubSecret;

const VERSION: u8 = 1;
const SALT_LEN: usize = 32;
const INFO: &[u8] = b"hub ca key v1";

/// Seals a private key (PKCS #8).
pub(super) fn seal(
    key: &[u8],
    secret: &HubSecret,
    deployment: Deployment,
    fingerprint: Fingerprint,
) -> Result<Vec<u8>, Unspecified> {
    let random = SystemRandom::new();
    let (mut salt, mut nonce) = ([0; SALT_LEN], [0; NONCE_LEN]);
    random.fill(&mut salt)?;
    random.fill(&mut nonce)?;
    // Encrypted in place: no copy of the key stays behind.
    let mut sealed = key.to_vec();
    sealing_key(secret, &salt)?.seal_in_place_append_tag(
        Nonce::assume_unique_for_key(nonce),
        bound_to(deployment, fingerprint),
        &mut sealed,
    )?;
    Ok([&[VERSION], &salt[..], &nonce[..], &sealed].concat())
}

/// Opens a sealed key. It fails alike for a wrong secret, another deployment or certificate, and
/// damage: nothing in the record tells them apart.
pub(super) fn unseal(
    sealed: &[u8],
    secret: &HubSecret,
    deployment: Deployment,
    fingerprint: Fingerprint,
) -> Result<Zeroizing<Vec<u8>>, Unspecified> {
    let (version, rest) = sealed.split_first().ok_or(Unspecified)?;
    let (salt, rest) = rest.split_at_checked(SALT_LEN).ok_or(Unspecified)?;
    let (nonce, ciphertext) = rest.split_first_chunk().ok_or(Unspecified)?;
    if *version != VERSION {
        return Err(Unspecified);
    }
    let mut key = Zeroizing::new(ciphertext.to_vec());
    let len = sealing_key(secret, salt)?
        .open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            bound_to(deployment, fingerprint),
            &mut key,
        )?
        .len();
    key.truncate(len);
    Ok(key)
}

fn sealing_key(secret: &HubSecret, salt: &[u8]) -> Result<LessSafeKey, Unspecified> {
    let prk = Salt::new(HKDF_SHA256, salt).extract(secret.expose());
    let key: UnboundKey = prk.expand(&[INFO], &AES_256_GCM)?.into();
    Ok(LessSafeKey::new(key))
}

fn bound_to(deployment: Deployment, fingerprint: Fingerprint) -> Aad<[u8; 48]> {
    let mut bytes = [0; 48];
    bytes[..16].copy_from_slice(deployment.as_bytes());
    bytes[16..].copy_from_slice(fingerprint.digest());
    Aad::from(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn opens_for_the_same_secret_deployment_and_certificate_only() {
        let secret = HubSecret::from_bytes([1; 32]);
        let here = Deployment::from_bytes([2; 16]);
        let certificate = Fingerprint::from_digest([3; 32]);
        let sealed = seal(b"key", &secret, here, certificate).unwrap();
        assert_eq!(
            **unseal(&sealed, &secret, here, certificate).unwrap(),
            *b"key"
        );
        assert_ne!(sealed, seal(b"key", &secret, here, certificate).unwrap());

        let other_secret = HubSecret::from_bytes([9; 32]);
        assert!(unseal(&sealed, &other_secret, here, certificate).is_err());
        let elsewhere = Deployment::from_bytes([9; 16]);
        assert!(unseal(&sealed, &secret, elsewhere, certificate).is_err());
        let other_certificate = Fingerprint::from_digest([9; 32]);
        assert!(unseal(&sealed, &secret, here, other_certificate).is_err());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(
                unseal(&damaged, &secret, here, certificate).is_err(),
                "byte {at}"
            );
            assert!(
                unseal(&sealed[..at], &secret, here, certificate).is_err(),
                "cut at {at}"
            );
        }
    }
}

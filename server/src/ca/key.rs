//! The CA's private key, as something that signs.

use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use ring::error::KeyRejected;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

/// How long the CA's signatures are.
///
/// An ECDSA signature in DER is two integers, of which each may take a byte more or less: 70 to 72
/// bytes as a rule, now and then fewer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SignatureLength {
    /// Whatever comes out.
    #[default]
    Any,
    /// 71 bytes: signs again until it is so, twice on average. For simulations, whose packets must
    /// have the same sizes in every run. The signatures are as good as any.
    Fixed,
}

/// The most common length of an ECDSA P-256 signature in DER, in bytes.
const FIXED_LENGTH: usize = 71;

/// How often [`SignatureLength::Fixed`] tries. Each try succeeds with about one half.
const TRIES: usize = 256;

pub(super) struct CaKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    length: SignatureLength,
}

impl CaKey {
    /// Reads a private key in PKCS #8.
    pub(super) fn from_pkcs8(pkcs8: &[u8], length: SignatureLength) -> Result<Self, KeyRejected> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random)?;
        Ok(Self {
            pair,
            random,
            length,
        })
    }
}

impl PublicKeyData for CaKey {
    fn der_bytes(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for CaKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        for _ in 0..TRIES {
            let signature = self
                .pair
                .sign(&self.random, message)
                .map_err(|_| rcgen::Error::RingUnspecified)?;
            let signature = signature.as_ref();
            if self.length == SignatureLength::Any || signature.len() == FIXED_LENGTH {
                return Ok(signature.to_vec());
            }
        }
        Err(rcgen::Error::RemoteKeyError)
    }
}

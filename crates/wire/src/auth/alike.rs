//! One rule for signatures that may be checked together: alone, together, and beside whatever others, each is judged alike.
//!
//! Who has a key can make signatures with a component of small order in them, in the key or in the signature's point. The equation of
//! RFC 8032 without its cofactor, sB = R + kA, refuses such a signature alone, and holds of a weighted sum of several or does not, by what the
//! weights happen to be. With the cofactor, 8sB = 8R + 8kA, the components are gone before anything is compared: the sum holds of all that hold
//! by themselves, and of others with a probability of 2^-128. RFC 8032, 5.1.7 gives that equation first; "Taming the many EdDSAs" (2020) and
//! ZIP 215 chose it for this reason.
//!
//! What else is refused, alone as together, since it is looked at one by one: a key or point that is not encoded in the one canonical way, a key or
//! point of small order, and an s that is not reduced. So everything that the strict check takes is taken here, but for keys with a second
//! encoding, whose secret half nobody knows.
//!
//! Absent on purpose: randomness. Weights are derived from all that is checked, so whoever would choose signatures by their weights changes these.

use alloc::vec::Vec;
use core::iter::once;

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{IsIdentity, VartimeMultiscalarMul};
use sha2::{Digest as _, Sha512};

use super::{AuthError, PublicKey, Signature};
use crate::digest::Digest;

/// The context of the weights. They never leave this process, and replicas need not have the same.
const WEIGHTS: &str = "quorate v1 weights of signatures";

/// A signature that is well formed, and what it is of.
struct Opened {
    key: EdwardsPoint,
    point: EdwardsPoint,
    s: Scalar,
    /// SHA-512 of point, key and text, modulo the order of the base point.
    k: Scalar,
}

/// Checks one signature.
///
/// # Errors
/// [`AuthError::BadKey`] where the key is no canonically encoded point, whatever the signature is; else [`AuthError::BadSignature`].
pub(super) fn verify(
    key: &PublicKey,
    digest: &Digest,
    signature: &Signature,
) -> Result<(), AuthError> {
    let Opened { key, point, s, k } = open(key, digest, signature)?;
    let expected = EdwardsPoint::vartime_double_scalar_mul_basepoint(&k, &-key, &s);
    match (expected - point).mul_by_cofactor().is_identity() {
        true => Ok(()),
        false => Err(AuthError::BadSignature),
    }
}

/// Whether each of some signatures is right by [`verify`].
pub(super) fn verify_all(signatures: &[(PublicKey, Digest, Signature)]) -> bool {
    // A sum of one costs more than the check of it.
    if let [(key, digest, signature)] = signatures {
        return verify(key, digest, signature).is_ok();
    }
    let opened = signatures
        .iter()
        .map(|(key, digest, s)| open(key, digest, s));
    let Ok(opened) = opened.collect::<Result<Vec<Opened>, AuthError>>() else {
        return false;
    };
    let weights = weights(signatures);
    let of_base: Scalar = opened.iter().zip(&weights).map(|(o, z)| o.s * z).sum();
    let of_keys = opened.iter().zip(&weights).map(|(o, z)| o.k * z);
    // Weights times k are taken modulo the order of the base point, which changes what is of small order; the cofactor takes that away.
    let sum = EdwardsPoint::vartime_multiscalar_mul(
        once(-of_base).chain(weights.iter().copied()).chain(of_keys),
        once(ED25519_BASEPOINT_POINT)
            .chain(opened.iter().map(|o| o.point))
            .chain(opened.iter().map(|o| o.key)),
    );
    sum.mul_by_cofactor().is_identity()
}

/// Takes a signature apart; what is refused whatever it is of, is refused here.
fn open(key: &PublicKey, digest: &Digest, signature: &Signature) -> Result<Opened, AuthError> {
    let (point, s) = signature.0.split_at(32);
    let (Ok(point), Ok(s)) = (<[u8; 32]>::try_from(point), <[u8; 32]>::try_from(s)) else {
        unreachable!("64 bytes are twice 32");
    };
    let hashed = Sha512::new()
        .chain_update(point)
        .chain_update(key.0)
        .chain_update(digest.0);
    let key = decompress(&key.0).ok_or(AuthError::BadKey)?;
    let point = decompress(&point).ok_or(AuthError::BadSignature)?;
    let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(s));
    let s = s.ok_or(AuthError::BadSignature)?;
    // Of a key of small order everybody has signatures of everything.
    if key.is_small_order() || point.is_small_order() {
        return Err(AuthError::BadSignature);
    }
    let k = Scalar::from_bytes_mod_order_wide(&hashed.finalize().into());
    Ok(Opened { key, point, s, k })
}

/// The point that some bytes are the encoding of. `None` also where they are not its only one: RFC 8032, 5.1.3 refuses a y that is not
/// reduced. (The other kind of second encoding, a sign where x is 0, is of points of small order alone.)
fn decompress(bytes: &[u8; 32]) -> Option<EdwardsPoint> {
    // 2^255 - 19, little-endian, is ed ff .. ff 7f.
    let is_reduced =
        bytes[0] < 0xed || bytes[31] & 0x7f != 0x7f || bytes[1..31].iter().any(|b| *b != 0xff);
    is_reduced.then(|| CompressedEdwardsY(*bytes).decompress())?
}

/// A weight of 128 bits for each signature, by all of them: keys, digests, points and s.
fn weights(signatures: &[(PublicKey, Digest, Signature)]) -> Vec<Scalar> {
    let mut hasher = blake3::Hasher::new_derive_key(WEIGHTS);
    for (key, digest, signature) in signatures {
        hasher.update(&key.0).update(&digest.0).update(&signature.0);
    }
    let mut stream = hasher.finalize_xof();
    let draw = || {
        let mut weight = [0; 16];
        stream.fill(&mut weight);
        Scalar::from(u128::from_le_bytes(weight))
    };
    core::iter::repeat_with(draw)
        .take(signatures.len())
        .collect()
}

#[cfg(test)]
mod tests;

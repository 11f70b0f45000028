//! Who a replica is: the key that its key holder has.
//!
//! A key holder that is a process has an Ed25519 key like everybody else. One that is a TPM 2.0 has a key on the curve P-256, the only
//! one that all such chips know (TCG PC Client Platform TPM Profile), and signs with ECDSA (FIPS 186-5, 6). Both sign nothing but
//! digests of statements, and their signatures are 64 bytes long.
//!
//! Of the two signatures with a given r that ECDSA accepts for one digest only that with the lower s is one here. Anybody can make the other
//! from it, and one statement is to have one form: else a peer could show, keep and count it as two. A chip makes either, so its driver turns them.

use core::fmt;

use alloc::vec::Vec;
use p256::ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use p256::ecdsa::{Signature as Ecdsa, SigningKey, VerifyingKey};

use crate::auth::{AuthError, KeyPair, PublicKey, Signature, remember};
use crate::codec::Encode;
use crate::digest::{Content, Digest};
use crate::ids::ClientId;

/// What stands before a P-256 key in the canonical form, where otherwise an Ed25519 key stands. No key is like this: its coordinate
/// would not be below 2^255 - 19 (RFC 8032, 5.1.2), and [`IdentityKey::check`] refuses it.
const MARK: [u8; 32] = [0xff; 32];
/// How a P-256 key begins in text.
const PREFIX: &str = "p256:";

/// The key that signs a replica's statements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdentityKey {
    /// Of a key holder that is a process.
    Ed25519(PublicKey),
    /// Of a TPM.
    P256(P256Key),
}

/// A point of the curve P-256, compressed (SEC 1, 2.3.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct P256Key {
    point: [u8; 33],
    name: PublicKey,
}

impl P256Key {
    /// The key of a compressed point.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] where it is not one of the curve in this form.
    pub fn new(point: [u8; 33]) -> Result<P256Key, AuthError> {
        let name = PublicKey(Digest::of(Content::Identity, &point).0);
        let key = P256Key { point, name };
        key.parsed().map(|_| key)
    }

    /// The key with these coordinates, which a chip tells; big-endian, at most 32 bytes each.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] where that is not a point of the curve.
    pub fn from_coordinates(x: &[u8], y: &[u8]) -> Result<P256Key, AuthError> {
        let mut whole = [0; 65];
        whole[0] = 4;
        for (coordinate, place) in [(x, 33), (y, 65)] {
            let start = place - coordinate.len().min(33);
            if coordinate.len() > 32 {
                return Err(AuthError::BadKey);
            }
            whole[start..place].copy_from_slice(coordinate);
        }
        let key = VerifyingKey::from_sec1_bytes(&whole).map_err(|_| AuthError::BadKey)?;
        P256Key::of(&key)
    }

    /// The compressed point.
    pub fn point(&self) -> &[u8; 33] {
        &self.point
    }

    fn of(key: &VerifyingKey) -> Result<P256Key, AuthError> {
        let point = key.to_sec1_point(true);
        let point = point.as_bytes().try_into().map_err(|_| AuthError::BadKey)?;
        P256Key::new(point)
    }

    fn parsed(&self) -> Result<VerifyingKey, AuthError> {
        // A point has other forms in SEC 1, and a key has one.
        if !matches!(self.point[0], 2 | 3) {
            return Err(AuthError::BadKey);
        }
        VerifyingKey::from_sec1_bytes(&self.point).map_err(|_| AuthError::BadKey)
    }

    fn check(&self, digest: &Digest, signature: &Signature) -> Result<(), AuthError> {
        let key = self.parsed()?;
        let signature = Ecdsa::from_slice(&signature.0).map_err(|_| AuthError::BadSignature)?;
        if signature != signature.normalize_s() {
            return Err(AuthError::BadSignature);
        }
        let checked = key.verify_prehash(&digest.0, &signature);
        checked.map_err(|_| AuthError::BadSignature)
    }
}

impl IdentityKey {
    /// Checks a signature over a digest, alike on all replicas.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] or [`AuthError::BadSignature`].
    pub fn verify(&self, digest: &Digest, signature: &Signature) -> Result<(), AuthError> {
        match self {
            IdentityKey::Ed25519(key) => key.verify(digest, signature),
            IdentityKey::P256(key) => remember::verify(&key.name, digest, signature, || {
                key.check(digest, signature)
            }),
        }
    }

    /// Whether this is a key at all.
    ///
    /// # Errors
    /// [`AuthError::BadKey`].
    pub fn check(&self) -> Result<(), AuthError> {
        match self {
            IdentityKey::Ed25519(PublicKey(MARK)) => Err(AuthError::BadKey),
            // Any signature will do: only the answer to a key that is no point of the curve differs.
            IdentityKey::Ed25519(key) => match key.verify(&Digest::ZERO, &Signature([0; 64])) {
                Err(AuthError::BadKey) => Err(AuthError::BadKey),
                _ => Ok(()),
            },
            IdentityKey::P256(_) => Ok(()),
        }
    }

    /// Who makes its requests: an Ed25519 key itself; of a P-256 key, which is longer than the place for it, the digest. Nobody has a key
    /// of which that is the public half.
    pub fn name(&self) -> ClientId {
        match self {
            IdentityKey::Ed25519(key) => *key,
            IdentityKey::P256(key) => key.name,
        }
    }

    /// From text as it is displayed: 64 hexadecimal digits, or `p256:` and 66 of them; `None` for anything else.
    pub fn from_text(text: &str) -> Option<IdentityKey> {
        match text.strip_prefix(PREFIX) {
            None => Some(IdentityKey::Ed25519(PublicKey(unhex(text)?))),
            Some(point) => Some(IdentityKey::P256(P256Key::new(unhex(point)?).ok()?)),
        }
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(out)
}

impl fmt::Display for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityKey::Ed25519(key) => key.fmt(f),
            IdentityKey::P256(key) => {
                f.write_str(PREFIX)?;
                key.point.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityKey::Ed25519(key) => fmt::Debug::fmt(key, f),
            IdentityKey::P256(key) => fmt::Debug::fmt(key, f),
        }
    }
}

impl fmt::Debug for P256Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.point[..4]
            .iter()
            .try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The canonical form, for the id of a group: that of an Ed25519 key is the key.
impl Encode for IdentityKey {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            IdentityKey::Ed25519(key) => key.encode(out),
            IdentityKey::P256(key) => {
                out.extend_from_slice(&MARK);
                out.extend_from_slice(&key.point);
            }
        }
    }
}

impl From<PublicKey> for IdentityKey {
    fn from(key: PublicKey) -> IdentityKey {
        IdentityKey::Ed25519(key)
    }
}

/// What signs a replica's statements.
pub trait Certifies {
    /// Its public half.
    fn identity(&self) -> IdentityKey;
    /// Signs the digest of a statement.
    fn sign_statement(&self, digest: &Digest) -> Signature;
}

impl Certifies for KeyPair {
    fn identity(&self) -> IdentityKey {
        self.public().into()
    }

    fn sign_statement(&self, digest: &Digest) -> Signature {
        self.sign(digest)
    }
}

/// A P-256 key with its secret half, for tests and simulations: where it counts, a TPM has it. Signing is deterministic (RFC 6979).
#[derive(Clone)]
pub struct P256Pair {
    secret: SigningKey,
    public: P256Key,
}

impl P256Pair {
    /// The key pair of a secret number, big-endian; `None` where that is 0 or too high.
    pub fn from_secret(secret: &[u8; 32]) -> Option<P256Pair> {
        let secret = SigningKey::from_slice(secret).ok()?;
        let public = P256Key::of(secret.verifying_key()).ok()?;
        Some(P256Pair { secret, public })
    }

    fn make(&self, digest: &Digest) -> Signature {
        let made: Result<Ecdsa, _> = self.secret.sign_prehash(&digest.0);
        let made = made.expect("a digest of 32 bytes can be signed");
        Signature(made.normalize_s().to_bytes().into())
    }
}

impl Certifies for P256Pair {
    fn identity(&self) -> IdentityKey {
        IdentityKey::P256(self.public)
    }

    fn sign_statement(&self, digest: &Digest) -> Signature {
        remember::sign(&self.public.name, digest, || self.make(digest))
    }
}

impl fmt::Debug for P256Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P256Pair({:?})", self.public)
    }
}

/// A chip's signature in the form that is accepted; `None` where r and s are no signature. Big-endian, at most 32 bytes each.
pub fn p256_signature(r: &[u8], s: &[u8]) -> Option<Signature> {
    let mut whole = [0; 64];
    for (number, end) in [(r, 32), (s, 64)] {
        let start = 32usize.checked_sub(number.len())? + end - 32;
        whole[start..end].copy_from_slice(number);
    }
    let signature = Ecdsa::from_slice(&whole).ok()?;
    Some(Signature(signature.normalize_s().to_bytes().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn pair(seed: u8) -> P256Pair {
        P256Pair::from_secret(&[seed; 32]).expect("a secret number")
    }

    fn digest(of: &[u8]) -> Digest {
        Digest::of(Content::EpochCertificate, of)
    }

    /// n - s in place of s: what ECDSA takes as well.
    fn other_form(signature: &Signature) -> Signature {
        let (r, s) = Ecdsa::from_slice(&signature.0).unwrap().split_scalars();
        let other = Ecdsa::from_scalars(r.to_bytes(), (-s).to_bytes()).unwrap();
        Signature(other.to_bytes().into())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// A signature holds for its key and digest alone, in one of its two forms.
        #[test]
        fn a_signature_has_one_form(seed in 1u8..254, text: Vec<u8>) {
            let (pair, digest) = (pair(seed), digest(&text));
            let signature = pair.make(&digest);
            let key = pair.public;
            prop_assert_eq!(key.check(&digest, &signature), Ok(()));
            let odd = other_form(&signature);
            prop_assert!(key.parsed().unwrap().verify_prehash(&digest.0, &Ecdsa::from_slice(&odd.0).unwrap()).is_ok());
            prop_assert_eq!(key.check(&digest, &odd), Err(AuthError::BadSignature));
            // As from a chip, which makes either.
            for chips in [signature, odd] {
                prop_assert_eq!(p256_signature(&chips.0[..32], &chips.0[32..]), Some(signature));
            }
            let another = super::tests::pair(seed + 1).public;
            prop_assert_eq!(another.check(&digest, &signature), Err(AuthError::BadSignature));
            let else_said = super::tests::digest(b"something else");
            prop_assert_eq!(key.check(&else_said, &signature), Err(AuthError::BadSignature));
        }

        /// Whatever stands where a key is expected, there is no panic, and what is taken is displayed as it was.
        #[test]
        fn any_text_is_read_or_refused(text in "(p256:)?[0-9a-f]{0,70}", bytes: [u8; 32], first: u8) {
            if let Some(key) = IdentityKey::from_text(&text) {
                prop_assert_eq!(key.to_string(), text);
            }
            let mut point = [first; 33];
            point[1..].copy_from_slice(&bytes);
            if let Ok(key) = P256Key::new(point) {
                let key = IdentityKey::P256(key);
                prop_assert_eq!(IdentityKey::from_text(&key.to_string()), Some(key));
            }
        }

        /// Whatever bytes a signature has, it is refused by name.
        #[test]
        fn odd_signatures_are_refused(bytes: [u8; 32], rest: [u8; 32]) {
            let mut whole = [0; 64];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&rest);
            let judged = pair(1).public.check(&digest(b"x"), &Signature(whole));
            prop_assert_eq!(judged, Err(AuthError::BadSignature));
        }
    }

    /// 0 and the order of the curve are no parts of a signature, and a point has one form.
    #[test]
    fn the_edges_are_refused() {
        let pair = pair(3);
        let good = pair.make(&digest(b"x"));
        for part in [0..32, 32..64] {
            for fill in [0, 0xff] {
                let mut bad = good;
                bad.0[part.clone()].fill(fill);
                let judged = pair.public.check(&digest(b"x"), &bad);
                assert_eq!(judged, Err(AuthError::BadSignature));
            }
        }
        let mut point = *pair.public.point();
        let x = point;
        for first in [0, 1, 4, 5, 6, 7] {
            point[0] = first;
            assert_eq!(P256Key::new(point), Err(AuthError::BadKey), "{first}");
        }
        let parsed = pair.public.parsed().unwrap();
        let whole = parsed.to_sec1_point(false);
        let (a, b) = whole.as_bytes()[1..].split_at(32);
        assert_eq!(P256Key::from_coordinates(a, b), Ok(pair.public));
        assert_eq!(pair.public.point(), &x);
        assert!(P256Key::from_coordinates(a, a).is_err());
        assert!(P256Key::from_coordinates(&[1; 33], b).is_err());
        assert!(p256_signature(&[1; 33], &[1; 32]).is_none());
        assert!(p256_signature(&[], &[1]).is_none());
        assert!(p256_signature(&[1], &[1]).is_some());
    }

    /// What would be taken for the mark of the other kind is no key.
    #[test]
    fn the_kinds_are_kept_apart() {
        let marked = IdentityKey::Ed25519(PublicKey(MARK));
        assert_eq!(marked.check(), Err(AuthError::BadKey));
        let (ed, p256) = (KeyPair::from_seed(&[1; 32]), pair(1));
        assert_eq!(ed.identity().check(), Ok(()));
        assert_eq!(ed.identity().to_bytes(), ed.public().to_bytes());
        assert_eq!(ed.identity().name(), ed.public());
        assert_eq!(p256.identity().to_bytes().len(), 65);
        let said = digest(b"x");
        let (a, b) = (ed.sign_statement(&said), p256.sign_statement(&said));
        assert!(ed.identity().verify(&said, &b).is_err());
        assert!(p256.identity().verify(&said, &a).is_err());
        assert!(p256.identity().verify(&said, &b).is_ok());
    }
}

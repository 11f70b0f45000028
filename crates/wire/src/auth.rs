//! Keys, signatures and authenticators, and the proof that they were checked.

use core::fmt;
use core::ops::Deref;

use alloc::boxed::Box;
use alloc::vec::Vec;
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};

use crate::codec::{Decode, DecodeError, Encode, Reader, bounded};
use crate::digest::Digest;
use crate::ids::ReplicaId;
use crate::shared::SharedSignature;

mod alike;

#[cfg(feature = "remember")]
pub(crate) mod remember;

/// Without the feature nothing is remembered: each signature is made and checked.
#[cfg(not(feature = "remember"))]
pub(crate) mod remember {
    use super::{AuthError, Digest, PublicKey, Signature};

    pub fn sign(_: &PublicKey, _: &Digest, make: impl FnOnce() -> Signature) -> Signature {
        make()
    }

    pub fn verify(
        _: &PublicKey,
        _: &Digest,
        _: &Signature,
        check: impl FnOnce() -> Result<(), AuthError>,
    ) -> Result<(), AuthError> {
        check()
    }

    pub fn verify_all(_: &[(PublicKey, Digest, Signature)], check: impl FnOnce() -> bool) -> bool {
        check()
    }
}

/// A value whose authenticity was established, by the check that the constructor names.
///
/// Code that holds one makes no second check. Outside this crate a `Verified` is made only by
/// [`Verified::from_link`], which names the reason: TLS vouches for the peer at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    pub(crate) fn new(value: T) -> Verified<T> {
        Verified(value)
    }

    /// The value came over a link whose other end TLS has authenticated as the value's author, or it was
    /// read back from this replica's own log.
    pub fn from_link(value: T) -> Verified<T> {
        Verified(value)
    }

    /// The value itself.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Why a signature or MAC was refused. The author's fault, or that of somebody who pretends to be them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The bytes are not a public key.
    BadKey,
    /// The signature is not the key's over this content.
    BadSignature,
    /// The replica's identity has not certified the key, where there are identities; or there are none.
    BadCertificate,
    /// The MAC is not the key's over this content, or there is none for this replica.
    BadMac,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuthError::BadKey => "not a valid public key",
            AuthError::BadSignature => "the signature does not match",
            AuthError::BadCertificate => "the key has no certificate of its replica's identity",
            AuthError::BadMac => "the message authentication code does not match",
        })
    }
}

impl core::error::Error for AuthError {}

/// An Ed25519 public key: who a replica or client is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Checks a signature over a digest. What it says [`verify_all`] says, however odd its author has made the signature
    /// (`auth/alike.rs`), so that it does not matter which replica checks what beside what.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] or [`AuthError::BadSignature`].
    pub fn verify(&self, digest: &Digest, signature: &Signature) -> Result<(), AuthError> {
        remember::verify(self, digest, signature, || {
            alike::verify(self, digest, signature)
        })
    }

    /// Checks a signature that is never checked together with others, and also by other programs than these: by the strict rule, which is
    /// the narrowest, so that whoever checks it by another one takes it too. It refuses some odd signatures that [`PublicKey::verify`] takes.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] or [`AuthError::BadSignature`].
    pub fn verify_strict(&self, digest: &Digest, signature: &Signature) -> Result<(), AuthError> {
        remember::verify(self, digest, signature, || {
            self.check_strict(digest, signature)
        })
    }

    fn check_strict(&self, digest: &Digest, signature: &Signature) -> Result<(), AuthError> {
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| AuthError::BadKey)?;
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        key.verify_strict(&digest.0, &signature)
            .map_err(|_| AuthError::BadSignature)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("key:")?;
        self.0[..4].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Encode for PublicKey {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for PublicKey {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(PublicKey(r.array()?))
    }
}

/// An Ed25519 signature over a digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub [u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sig:")?;
        self.0[..4].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Encode for Signature {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Signature {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Signature(r.array()?))
    }
}

/// A signing key with its public half. Signing is deterministic (RFC 8032), so cores can do it.
#[derive(Clone)]
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// The key pair of a 32-byte secret seed.
    pub fn from_seed(seed: &[u8; 32]) -> KeyPair {
        KeyPair(SigningKey::from_bytes(seed))
    }

    /// The secret seed, to be kept in a file that only its owner reads.
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs a digest.
    pub fn sign(&self, digest: &Digest) -> Signature {
        remember::sign(&self.public(), digest, || self.make(digest))
    }

    fn make(&self, digest: &Digest) -> Signature {
        Signature(self.0.sign(&digest.0).to_bytes())
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({:?})", self.public())
    }
}

/// A message authentication code: the first 16 bytes of keyed BLAKE3 over a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 16]);

impl Encode for Mac {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Mac {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Mac(r.array()?))
    }
}

/// The key that a client shares with one replica, from the exporter (RFC 5705) of their TLS link.
#[derive(Clone, PartialEq, Eq)]
pub struct MacKey(pub [u8; 32]);

impl MacKey {
    /// The code of a digest.
    pub fn mac(&self, digest: &Digest) -> Mac {
        let full = blake3::keyed_hash(&self.0, &digest.0);
        let mut out = [0; 16];
        out.copy_from_slice(&full.as_bytes()[..16]);
        Mac(out)
    }

    /// Checks a code, in constant time.
    ///
    /// # Errors
    /// [`AuthError::BadMac`].
    pub fn check(&self, digest: &Digest, mac: &Mac) -> Result<(), AuthError> {
        let expected = self.mac(digest);
        let difference = expected
            .0
            .iter()
            .zip(&mac.0)
            .fold(0, |acc, (a, b)| acc | (a ^ b));
        if difference == 0 {
            Ok(())
        } else {
            Err(AuthError::BadMac)
        }
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey(..)")
    }
}

/// Checks many signatures together, at about half the cost of one after the other. `false` where at least one is wrong; which,
/// [`PublicKey::verify`] tells: the two judge each alike.
pub fn verify_all(signatures: &[(PublicKey, Digest, Signature)]) -> bool {
    // Most batches bring no request that is not known.
    if signatures.is_empty() {
        return true;
    }
    remember::verify_all(signatures, || alike::verify_all(signatures))
}

/// How the members of a group vouch for what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Authentication {
    /// By their links, and by MACs for what is passed on; only what third parties must believe is signed. BFT in PBFT 2000.
    #[default]
    Mac,
    /// Every ordered request and every message between replicas is signed. BFT-PK in PBFT 2000. Replies, and reads that are not ordered,
    /// have the links for it.
    Signature,
}

/// A client's word for a request, which others can pass on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authenticator {
    /// One MAC for each replica, in the group's order, so that a relayed request can be checked by each. A replica with which
    /// the client has no link has an arbitrary MAC there, and learns from others. None at all: nobody's word.
    Macs(Vec<Mac>),
    /// The client's signature, the same for all; it may be over several requests.
    Signed(Box<SharedSignature>),
}

impl Default for Authenticator {
    fn default() -> Authenticator {
        Authenticator::Macs(Vec::new())
    }
}

impl Authenticator {
    /// Checks the code for `replica`. A signature is checked with its author's key, see [`PublicKey::verify`].
    ///
    /// # Errors
    /// [`AuthError::BadMac`], also where there is none for it.
    pub fn check_mac(
        &self,
        replica: ReplicaId,
        key: &MacKey,
        digest: &Digest,
    ) -> Result<(), AuthError> {
        let Authenticator::Macs(macs) = self else {
            return Err(AuthError::BadMac);
        };
        let mac = macs.get(usize::from(replica.0));
        key.check(digest, mac.ok_or(AuthError::BadMac)?)
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        matches!(self, Authenticator::Macs(macs) if macs.is_empty())
    }
}

impl Encode for Authenticator {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Authenticator::Macs(macs) => {
                out.push(1);
                macs.encode(out);
            }
            Authenticator::Signed(signature) => {
                out.push(2);
                signature.encode(out);
            }
        }
    }
}

impl Decode for Authenticator {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(r)? {
            1 => {
                let most = crate::ids::Quorum::MAX_REPLICAS;
                Ok(Authenticator::Macs(bounded(r, most, "MACs")?))
            }
            2 => Ok(Authenticator::Signed(Box::new(SharedSignature::decode(r)?))),
            _ => Err(DecodeError::Invalid("tag of Authenticator")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Content;

    /// A signature holds for its key and content alone.
    #[test]
    fn signatures_bind_key_and_content() {
        let (a, b) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let digest = Digest::of(Content::ViewChange, b"x");
        let signature = a.sign(&digest);
        assert_eq!(a.public().verify(&digest, &signature), Ok(()));
        assert_eq!(
            b.public().verify(&digest, &signature),
            Err(AuthError::BadSignature)
        );
        let other = Digest::of(Content::NewView, b"x");
        assert_eq!(
            a.public().verify(&other, &signature),
            Err(AuthError::BadSignature)
        );
    }

    /// A MAC holds for its key and replica alone; a missing one is refused.
    #[test]
    fn authenticators_are_per_replica() {
        let keys = [MacKey([1; 32]), MacKey([2; 32])];
        let digest = Digest::of(Content::Request, b"x");
        let auth = Authenticator::Macs(keys.iter().map(|k| k.mac(&digest)).collect());
        let check = |replica| auth.check_mac(ReplicaId(replica), &keys[0], &digest);
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(1), Err(AuthError::BadMac));
        assert_eq!(check(2), Err(AuthError::BadMac));
    }

    /// Many signatures hold together if each does.
    #[test]
    fn signatures_are_checked_together() {
        let mut all: Vec<_> = (1..=9)
            .map(|i| {
                let key = KeyPair::from_seed(&[i; 32]);
                let digest = Digest::of(Content::Request, &[i]);
                (key.public(), digest, key.sign(&digest))
            })
            .collect();
        assert!(verify_all(&all) && verify_all(&[]));
        all[4].1 = Digest::of(Content::Request, b"other");
        assert!(!verify_all(&all));
    }
}

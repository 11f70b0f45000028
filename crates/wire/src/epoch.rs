//! Under which key a replica signs what third parties must believe: VIEW-CHANGE and NEW-VIEW.
//!
//! In a group without key holders it is the key that the group file lists. With key holders it is the key of an epoch, and its
//! certificate goes along: so the group file alone is enough to check a signature, and the certificate's number says how old it is. Castro
//! and Liskov, TOCS 2002, sect. 4.3.1, have new keys for the same end: who takes a replica over takes nothing along that lasts.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::auth::{AuthError, KeyPair, PublicKey, Signature};
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::digest::Digest;
use crate::identity::IdentityKey;
use crate::ids::{ReplicaId, View};
use crate::record;
use crate::shared::in_group;
use crate::statement::EpochCertificate;

/// What stands before a certificate, where otherwise a signature begins. No signature begins like this: its first half encodes a
/// point of the curve, whose coordinate is below 2^255 - 19 (RFC 8032, 5.1.2).
const MARK: [u8; 32] = [0xff; 32];

/// A replica's signature that others can pass on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaSignature {
    /// By the key that the group file lists.
    Standing(Signature),
    /// By the key of an epoch.
    Epoch(Box<EpochSignature>),
}

record! {
    /// A signature by the key of an epoch, with what says whose that is.
    pub struct EpochSignature {
        /// Of the key, by the replica's identity.
        pub certificate: EpochCertificate,
        /// By the key.
        pub signature: Signature,
    }
}

impl ReplicaSignature {
    /// The number of its certificate; `None` where it has none.
    pub fn counter(&self) -> Option<u64> {
        match self {
            ReplicaSignature::Standing(_) => None,
            ReplicaSignature::Epoch(it) => Some(it.certificate.counter),
        }
    }
}

impl Encode for ReplicaSignature {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ReplicaSignature::Standing(signature) => signature.encode(out),
            ReplicaSignature::Epoch(it) => {
                out.extend_from_slice(&MARK);
                it.encode(out);
            }
        }
    }
}

impl Decode for ReplicaSignature {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let first: [u8; 32] = r.array()?;
        if first == MARK {
            return Ok(ReplicaSignature::Epoch(Box::new(EpochSignature::decode(
                r,
            )?)));
        }
        let second: [u8; 32] = r.array()?;
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&first);
        whole[32..].copy_from_slice(&second);
        Ok(ReplicaSignature::Standing(Signature(whole)))
    }
}

/// What makes a replica's signatures: its key, or the key of an epoch.
pub trait Signs {
    /// Signs a digest.
    fn sign_for_others(&self, digest: &Digest) -> ReplicaSignature;
}

/// The key with which a replica signs, for which group, and its certificate where it has one.
#[derive(Clone, Debug)]
pub struct Signer {
    key: KeyPair,
    group: Digest,
    certificate: Option<Box<EpochCertificate>>,
}

impl Signer {
    /// A key of an epoch, with its certificate.
    pub fn of_epoch(key: KeyPair, certificate: EpochCertificate) -> Signer {
        Signer {
            key,
            group: certificate.group,
            certificate: Some(Box::new(certificate)),
        }
    }

    /// A key that lasts, as the group file lists it.
    pub fn standing(group: Digest, key: KeyPair) -> Signer {
        Signer {
            key,
            group,
            certificate: None,
        }
    }

    /// The group's id.
    pub fn group(&self) -> &Digest {
        &self.group
    }

    /// The key.
    pub fn key(&self) -> &KeyPair {
        &self.key
    }

    /// Its certificate.
    pub fn certificate(&self) -> Option<&EpochCertificate> {
        self.certificate.as_deref()
    }
}

impl Signs for Signer {
    fn sign_for_others(&self, digest: &Digest) -> ReplicaSignature {
        match &self.certificate {
            None => ReplicaSignature::Standing(self.key.sign_in(&self.group, digest)),
            // Its certificate names the group.
            Some(certificate) => {
                let signature = self.key.sign(digest);
                let certificate = (**certificate).clone();
                ReplicaSignature::Epoch(Box::new(EpochSignature {
                    certificate,
                    signature,
                }))
            }
        }
    }
}

/// What the replicas' signatures are checked against: the group file's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaKeys {
    /// The keys with which they sign.
    Standing {
        /// The group's id.
        group: Digest,
        /// One for each replica, by id.
        keys: Vec<PublicKey>,
    },
    /// The identities that certify those keys, by id.
    Certified {
        /// The group's id.
        group: Digest,
        /// One for each replica.
        identities: Vec<IdentityKey>,
    },
}

impl ReplicaKeys {
    /// Checks that a replica has signed this, in whatever epoch: how old it may be, only [`Counters`](crate::Counters) say.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] where the group has no such replica; [`AuthError::BadCertificate`]; [`AuthError::BadSignature`].
    pub fn verify(
        &self,
        replica: ReplicaId,
        digest: &Digest,
        signature: &ReplicaSignature,
    ) -> Result<(), AuthError> {
        match (self, signature) {
            (ReplicaKeys::Standing { group, keys }, ReplicaSignature::Standing(signature)) => {
                let key = keys.get(usize::from(replica.0)).ok_or(AuthError::BadKey)?;
                key.verify(&in_group(group, digest), signature)
            }
            (ReplicaKeys::Certified { group, identities }, ReplicaSignature::Epoch(it)) => {
                let certificate = &it.certificate;
                let certified = certificate.verify(group, identities);
                if certificate.replica != replica || certified.is_err() {
                    return Err(AuthError::BadCertificate);
                }
                certificate.epoch.verify(digest, &it.signature)
            }
            // A key that lasts may be one that was stolen long ago; and nobody certifies keys where there are no identities.
            _ => Err(AuthError::BadCertificate),
        }
    }

    /// The keys that the group file lists, where replicas sign with them.
    pub fn standing(&self) -> &[PublicKey] {
        match self {
            ReplicaKeys::Standing { keys, .. } => keys,
            ReplicaKeys::Certified { .. } => &[],
        }
    }

    /// The id of the group, for which all is signed.
    pub fn group(&self) -> &Digest {
        match self {
            ReplicaKeys::Standing { group, .. } | ReplicaKeys::Certified { group, .. } => group,
        }
    }
}

record! {
    /// What goes with STATUS where replicas have key holders.
    pub struct EpochStatus {
        /// The sender's certificate of now.
        pub certificate: EpochCertificate,
        /// The last view that has started at the sender, and the digest of its NEW-VIEW: for those who can't check its
        /// signatures any more.
        pub began: Option<(View, Digest)>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Content;
    use bytes::Bytes;

    const GROUP: Digest = Digest([7; 32]);

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn signer(replica: u8, identity: u8, counter: u64) -> Signer {
        let epoch = key(100 + replica);
        let (identity, public) = (key(identity), epoch.public());
        let me = ReplicaId(replica);
        let certificate = EpochCertificate::sign(&identity, GROUP, me, counter, public);
        Signer::of_epoch(epoch, certificate)
    }

    fn certified() -> ReplicaKeys {
        ReplicaKeys::Certified {
            group: GROUP,
            identities: (50..54).map(|i| key(i).public().into()).collect(),
        }
    }

    /// A signature has one form in a group and is refused in the other; one without a certificate holds in no other group of the same keys.
    #[test]
    fn each_group_has_its_form() {
        let digest = Digest::of(Content::ViewChange, b"x");
        let standing = |group| ReplicaKeys::Standing {
            group,
            keys: (0..4).map(|i| key(i).public()).collect(),
        };
        let (another, standing) = (standing(Digest([8; 32])), standing(GROUP));
        let (bare, epoch) = (Signer::standing(GROUP, key(1)), signer(1, 51, 3));
        let (plain, full) = (
            bare.sign_for_others(&digest),
            epoch.sign_for_others(&digest),
        );
        let me = ReplicaId(1);
        assert_eq!(
            another.verify(me, &digest, &plain),
            Err(AuthError::BadSignature)
        );
        assert_eq!(standing.verify(me, &digest, &plain), Ok(()));
        assert_eq!(certified().verify(me, &digest, &full), Ok(()));
        assert_eq!(full.counter(), Some(3));
        let refused = Err(AuthError::BadCertificate);
        assert_eq!(certified().verify(me, &digest, &plain), refused);
        assert_eq!(standing.verify(me, &digest, &full), refused);
        assert_eq!(certified().verify(ReplicaId(2), &digest, &full), refused);
        let stranger = signer(1, 60, 3).sign_for_others(&digest);
        assert_eq!(certified().verify(me, &digest, &stranger), refused);
        for signature in [plain, full] {
            let bytes = Bytes::from(signature.to_bytes());
            assert_eq!(ReplicaSignature::from_bytes(bytes), Ok(signature));
        }
    }

    /// No bit of a signature under an epoch key can be changed.
    #[test]
    fn no_bit_can_be_changed() {
        let digest = Digest::of(Content::ViewChange, b"x");
        let good = signer(1, 51, 3).sign_for_others(&digest).to_bytes();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = ReplicaSignature::from_bytes(Bytes::from(bad));
            let passes = read.is_ok_and(|s| certified().verify(ReplicaId(1), &digest, &s).is_ok());
            assert!(!passes, "bit {bit}");
        }
    }
}

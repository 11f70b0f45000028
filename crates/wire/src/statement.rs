//! What a replica's identity key signs: certificates of epoch keys, and that the replica recovers. Nothing else.
//!
//! The key is in the hands of a process apart from the replica's (Castro and Liskov, TOCS 2002, sect. 5.2 has a secure co-processor
//! there), which gives each statement a number of its own. Numbers only grow, so who has heard a newer statement knows an old one for
//! what it is, whoever shows it.
//!
//! That a replica recovers is to be ordered like what clients ask, so the statement is a request: what the identity signs is the
//! digest of that request, of which it writes all but the number itself.

use alloc::vec::Vec;
use core::convert::Infallible;
use core::fmt;

use crate::auth::{Authenticator, PublicKey, Signature};
use crate::codec::Encode;
use crate::digest::{Content, Digest};
use crate::identity::{Certifies, IdentityKey};
use crate::ids::{ReplicaId, RequestNumber, SessionId};
use crate::message::{AuthRequest, Control, EVERYONE, Recovers, Request};
use crate::record;
use crate::shared::in_group;

record! {
    /// A replica's word for the key under which it speaks for a while.
    pub struct EpochCertificate {
        /// The group's id.
        pub group: Digest,
        /// Whose key it is.
        pub replica: ReplicaId,
        /// The statement's number, from 1 up.
        pub counter: u64,
        /// The key of the epoch.
        pub epoch: PublicKey,
        /// The identity's, over all of the above.
        pub signature: Signature,
    }
}

record! {
    /// A replica's word that it recovers: what it certified before is void.
    pub struct RecoveryStatement {
        /// The group's id.
        pub group: Digest,
        /// Who recovers.
        pub replica: ReplicaId,
        /// The statement's number, from 1 up.
        pub counter: u64,
        /// The identity's, over the request that says all of the above.
        pub signature: Signature,
    }
}

impl EpochCertificate {
    /// The length of the canonical form.
    pub const BYTES: usize = 32 + 1 + 8 + 32 + 64;

    /// Signs one.
    pub fn sign(
        identity: &impl Certifies,
        group: Digest,
        replica: ReplicaId,
        counter: u64,
        epoch: PublicKey,
    ) -> EpochCertificate {
        let sign = |digest: &Digest| Ok::<_, Infallible>(identity.sign_statement(digest));
        let Ok(certificate) = EpochCertificate::sign_with(sign, group, replica, counter, epoch);
        certificate
    }

    /// Has one signed by what may fail.
    ///
    /// # Errors
    /// What the signer says.
    pub fn sign_with<E>(
        sign: impl FnOnce(&Digest) -> Result<Signature, E>,
        group: Digest,
        replica: ReplicaId,
        counter: u64,
        epoch: PublicKey,
    ) -> Result<EpochCertificate, E> {
        let mut certificate = EpochCertificate {
            group,
            replica,
            counter,
            epoch,
            signature: Signature([0; 64]),
        };
        certificate.signature = sign(&certificate.digest())?;
        Ok(certificate)
    }

    /// What is signed.
    pub fn digest(&self) -> Digest {
        let mut said = Vec::new();
        self.group.encode(&mut said);
        self.replica.encode(&mut said);
        self.counter.encode(&mut said);
        self.epoch.encode(&mut said);
        Digest::of(Content::EpochCertificate, &said)
    }

    /// Checks it for the group `group`, whose replicas have these identity keys, in order of their ids.
    ///
    /// # Errors
    /// Any [`StatementError`] but [`StatementError::Old`], for which [`Counters`] are there.
    pub fn verify(&self, group: &Digest, identities: &[IdentityKey]) -> Result<(), StatementError> {
        let identity = identity(group, identities, &self.group, self.replica)?;
        let signed = identity.verify(&self.digest(), &self.signature);
        signed.map_err(|_| StatementError::NotSigned)
    }
}

impl RecoveryStatement {
    /// The length of the canonical form.
    pub const BYTES: usize = 32 + 1 + 8 + 64;

    /// Signs one.
    pub fn sign(
        identity: &impl Certifies,
        group: Digest,
        replica: ReplicaId,
        counter: u64,
    ) -> RecoveryStatement {
        let sign = |digest: &Digest| Ok::<_, Infallible>(identity.sign_statement(digest));
        let key = identity.identity();
        let Ok(statement) = RecoveryStatement::sign_with(sign, &key, group, replica, counter);
        statement
    }

    /// Has one signed by what may fail, whose key is `identity`.
    ///
    /// # Errors
    /// What the signer says.
    pub fn sign_with<E>(
        sign: impl FnOnce(&Digest) -> Result<Signature, E>,
        identity: &IdentityKey,
        group: Digest,
        replica: ReplicaId,
        counter: u64,
    ) -> Result<RecoveryStatement, E> {
        let mut statement = RecoveryStatement {
            group,
            replica,
            counter,
            signature: Signature([0; 64]),
        };
        statement.signature = sign(&in_group(&group, &statement.said(identity).digest()))?;
        Ok(statement)
    }

    /// What is signed.
    fn said(&self, identity: &IdentityKey) -> Request {
        let (group, replica) = (self.group, self.replica);
        let op = Control::Recover(Recovers { group, replica }).to_bytes();
        let number = RequestNumber(self.counter);
        Request::new(identity.name(), SessionId(0), number, op.into())
    }

    /// The statement as the request that is to be ordered. `identity` is the replica's.
    pub fn request(&self, identity: &IdentityKey) -> AuthRequest {
        AuthRequest {
            request: self.said(identity),
            auth: Authenticator::Signed(self.signature.into()),
            replier: EVERYONE,
        }
    }

    /// Checks it for the group `group`, whose replicas have these identity keys, in order of their ids.
    ///
    /// # Errors
    /// Any [`StatementError`] but [`StatementError::Old`].
    pub fn verify(&self, group: &Digest, identities: &[IdentityKey]) -> Result<(), StatementError> {
        let identity = identity(group, identities, &self.group, self.replica)?;
        let said = in_group(group, &self.said(identity).digest());
        let signed = identity.verify(&said, &self.signature);
        signed.map_err(|_| StatementError::NotSigned)
    }
}

fn identity<'a>(
    ours: &Digest,
    identities: &'a [IdentityKey],
    theirs: &Digest,
    replica: ReplicaId,
) -> Result<&'a IdentityKey, StatementError> {
    if ours != theirs {
        return Err(StatementError::AnotherGroup);
    }
    let identity = identities.get(usize::from(replica.0));
    identity.ok_or(StatementError::NoSuchReplica(replica))
}

/// Why a statement was refused. The fault of who showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementError {
    /// It is of a group with another id.
    AnotherGroup,
    /// The group has no replica of this number.
    NoSuchReplica(ReplicaId),
    /// The signature is not the identity's over what it says.
    NotSigned,
    /// Newer ones were seen, so the key may be one that was stolen long ago.
    Old {
        /// Its number.
        counter: u64,
        /// The least that would do.
        least: u64,
    },
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatementError::AnotherGroup => f.write_str("it is of another group"),
            StatementError::NoSuchReplica(id) => {
                write!(f, "it is of replica {}, which is not in the group", id.0)
            }
            StatementError::NotSigned => {
                f.write_str("the replica's identity key has not signed it")
            }
            StatementError::Old { counter, least } => write!(
                f,
                "it is old: its number is {counter}, and newer ones make {least} the least"
            ),
        }
    }
}

impl core::error::Error for StatementError {}

/// The highest number of a certificate that was seen of each replica.
///
/// A certificate is good until there are two newer ones: so links under the last key stand while those under the new one are
/// made, and a key that was stolen is worth nothing after two renewals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Vec<u64>);

impl Counters {
    /// Of `n` replicas of which nothing was seen.
    pub fn new(n: usize) -> Counters {
        Counters(alloc::vec![0; n])
    }

    /// Those that were seen, in order of the replicas' ids.
    pub fn from_highest(highest: Vec<u64>) -> Counters {
        Counters(highest)
    }

    /// The highest of each replica, in order of their ids; 0 where there is none.
    pub fn highest(&self) -> &[u64] {
        &self.0
    }

    /// The highest of a replica; 0 where there is none.
    pub fn of(&self, replica: ReplicaId) -> u64 {
        self.0.get(usize::from(replica.0)).copied().unwrap_or(0)
    }

    /// Whether a certificate of this number may still be used.
    ///
    /// # Errors
    /// [`StatementError::Old`] or [`StatementError::NoSuchReplica`].
    pub fn check(&self, replica: ReplicaId, counter: u64) -> Result<(), StatementError> {
        let highest = self.0.get(usize::from(replica.0));
        let highest = *highest.ok_or(StatementError::NoSuchReplica(replica))?;
        let least = highest.saturating_sub(1).max(1);
        match counter < least {
            true => Err(StatementError::Old { counter, least }),
            false => Ok(()),
        }
    }

    /// Takes note of a certificate that was verified; whether its number is the highest by now.
    pub fn saw(&mut self, replica: ReplicaId, counter: u64) -> bool {
        match self.0.get_mut(usize::from(replica.0)) {
            Some(highest) if *highest < counter => {
                *highest = counter;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::KeyPair;
    use crate::codec::Decode;
    use crate::identity::P256Pair;
    use bytes::Bytes;

    const GROUP: Digest = Digest([7; 32]);

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn chip(seed: u8) -> P256Pair {
        P256Pair::from_secret(&[seed; 32]).expect("a secret number")
    }

    /// Of the last replica a TPM's.
    fn identities() -> Vec<IdentityKey> {
        let ours = (0..3).map(|seed| key(seed).identity());
        ours.chain([chip(3).identity()]).collect()
    }

    /// A statement holds for its group, its replica and what it says; no part of it can be changed, whoever it is of.
    #[test]
    fn no_bit_of_a_statement_can_be_changed() {
        no_bit_can_be_changed(&key(2), 2);
        no_bit_can_be_changed(&chip(3), 3);
    }

    fn no_bit_can_be_changed(by: &impl Certifies, of: u8) {
        let certificate = EpochCertificate::sign(by, GROUP, ReplicaId(of), 9, key(50).public());
        let recovery = RecoveryStatement::sign(by, GROUP, ReplicaId(of), 9);
        assert_eq!(certificate.verify(&GROUP, &identities()), Ok(()));
        assert_eq!(recovery.verify(&GROUP, &identities()), Ok(()));
        let (good, other) = (certificate.to_bytes(), recovery.to_bytes());
        assert_eq!(good.len(), EpochCertificate::BYTES);
        assert_eq!(other.len(), RecoveryStatement::BYTES);
        let flipped = |bytes: &[u8], bit: usize| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Bytes::from(bytes)
        };
        for bit in 0..good.len() * 8 {
            let bad = EpochCertificate::from_bytes(flipped(&good, bit)).expect("fixed lengths");
            assert!(bad.verify(&GROUP, &identities()).is_err(), "bit {bit}");
        }
        for bit in 0..other.len() * 8 {
            let bad = RecoveryStatement::from_bytes(flipped(&other, bit)).expect("fixed lengths");
            assert!(bad.verify(&GROUP, &identities()).is_err(), "bit {bit}");
        }
    }

    /// Each thing that can be wrong has its own name.
    #[test]
    fn refusals_are_named() {
        let sign = |by: u8, group, of: u8| {
            EpochCertificate::sign(&key(by), group, ReplicaId(of), 1, key(50).public())
        };
        let judge = |c: EpochCertificate| c.verify(&GROUP, &identities());
        let another = sign(1, Digest([8; 32]), 1);
        assert_eq!(judge(another), Err(StatementError::AnotherGroup));
        let none = StatementError::NoSuchReplica(ReplicaId(4));
        assert_eq!(judge(sign(1, GROUP, 4)), Err(none));
        assert_eq!(judge(sign(1, GROUP, 2)), Err(StatementError::NotSigned));
    }

    /// The two statements, and messages of the protocol, can't stand for each other even where their bytes are alike.
    #[test]
    fn kinds_are_kept_apart() {
        let recovery = RecoveryStatement::sign(&key(2), GROUP, ReplicaId(2), 9);
        let said = recovery.said(&key(2).identity());
        let bytes = said.to_bytes();
        let contents = [
            Content::EpochCertificate,
            Content::ViewChange,
            Content::PeerMessage,
        ];
        for content in contents {
            let digest = Digest::of(content, &bytes);
            assert!(
                key(2)
                    .public()
                    .verify(&digest, &recovery.signature)
                    .is_err()
            );
        }
    }

    /// A certificate outlives one newer one, and not two; those of one replica say nothing of another's.
    #[test]
    fn the_last_but_one_is_the_oldest_that_counts() {
        let mut counters = Counters::new(4);
        let (a, b) = (ReplicaId(1), ReplicaId(2));
        assert!(counters.check(a, 0).is_err(), "numbers begin with 1");
        assert_eq!(counters.check(a, 1), Ok(()));
        for counter in [1, 2, 9] {
            assert!(counters.saw(a, counter));
            assert!(!counters.saw(a, counter), "not higher than itself");
            assert_eq!(counters.check(a, counter), Ok(()));
            assert_eq!(counters.check(a, counter + 1), Ok(()));
            assert_eq!(counters.check(b, 1), Ok(()));
        }
        assert_eq!(counters.check(a, 8), Ok(()));
        let old = StatementError::Old {
            counter: 7,
            least: 8,
        };
        assert_eq!(counters.check(a, 7), Err(old));
        assert!(!counters.saw(a, 3));
        assert_eq!(counters.highest(), [0, 9, 0, 0]);
        assert!(counters.saw(a, u64::MAX) && counters.check(a, u64::MAX).is_ok());
        assert!(counters.check(ReplicaId(4), 1).is_err());
        assert!(!counters.saw(ReplicaId(4), 1));
    }
}

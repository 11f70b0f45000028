//! Signed messages between replicas, in groups whose authentication is `signature` (BFT-PK in PBFT 2000): each carries its
//! sender's signature over sender and content, and nothing unsigned is believed.
//!
//! A driver seals what the replica wants sent and opens what has come, on whatever thread it likes.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_agreement::Rejected;
use quorate_wire::evidence::Evidence;
use quorate_wire::message::{PeerMessage, SignedMessage};
use quorate_wire::{Authentication, Decode, Encode, KeyPair, PublicKey, ReplicaId};

use crate::witness::Witness;

/// Signs what leaves and checks what comes.
#[derive(Clone, Debug)]
pub struct Signing {
    mode: Authentication,
    me: ReplicaId,
    key: KeyPair,
    keys: Vec<PublicKey>,
    witness: Witness,
}

impl Signing {
    /// For the replica `me` with this key, in a group with these keys.
    pub fn new(mode: Authentication, me: ReplicaId, key: KeyPair, keys: Vec<PublicKey>) -> Signing {
        Signing {
            mode,
            me,
            key,
            keys,
            witness: Witness::default(),
        }
    }

    /// The message as it leaves.
    pub fn seal(&self, message: PeerMessage) -> PeerMessage {
        if self.mode == Authentication::Mac {
            return message;
        }
        let content: Bytes = message.to_bytes().into();
        let signature = self.key.sign(&SignedMessage::digest(self.me, &content));
        PeerMessage::Signed(SignedMessage { content, signature })
    }

    /// The message that a replica has sent.
    ///
    /// # Errors
    /// The sender's fault: not signed by it, or signed where nobody signs.
    pub fn open(&mut self, from: ReplicaId, message: PeerMessage) -> Result<PeerMessage, Rejected> {
        match (self.mode, message) {
            (Authentication::Mac, PeerMessage::Signed(_)) => Err(Rejected::NotAsked),
            (Authentication::Mac, message) => Ok(message),
            (Authentication::Signature, PeerMessage::Signed(m)) => {
                let key = self.keys.get(usize::from(from.0));
                let key = key.ok_or(Rejected::UnknownSender)?;
                m.verify(from, key)
                    .map_err(|_| Rejected::BadAuthentication)?;
                match PeerMessage::from_bytes(m.content.clone()) {
                    Ok(PeerMessage::Signed(_)) | Err(_) => Err(Rejected::Malformed),
                    Ok(message) => {
                        self.witness.hear(from, &message, m);
                        Ok(message)
                    }
                }
            }
            (Authentication::Signature, _) => Err(Rejected::BadAuthentication),
        }
    }

    /// Contradictions that were heard since the last time.
    pub fn take_evidence(&mut self) -> Vec<Evidence> {
        self.witness.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::message::Prepare;
    use quorate_wire::{Digest, Quorum, Seq, View};

    fn signing(me: u8) -> Signing {
        let key = |replica| KeyPair::from_seed(&[replica + 1; 32]);
        let keys = (0..4).map(|r| key(r).public()).collect();
        Signing::new(Authentication::Signature, ReplicaId(me), key(me), keys)
    }

    fn vote(seq: u64, digest: u8) -> PeerMessage {
        PeerMessage::Prepare(Prepare {
            view: View(0),
            seq: Seq(seq),
            digest: Digest([digest; 32]),
        })
    }

    /// Two votes at one place are evidence, one of a kind; the same vote again, and votes elsewhere, are none; and what is
    /// remembered of one replica is bounded.
    #[test]
    fn contradictions_are_heard() {
        let (liar, mut other) = (signing(3), signing(0));
        let mut hear = |seq, digest| {
            let sealed = liar.seal(vote(seq, digest));
            other.open(ReplicaId(3), sealed).expect("signed");
            other.take_evidence()
        };
        for seq in 1..=2000 {
            assert!(hear(seq, 1).is_empty() && hear(seq, 1).is_empty());
        }
        assert!(hear(1, 2).is_empty(), "long forgotten");
        let found = hear(2000, 2);
        assert_eq!(found.len(), 1);
        let quorum = Quorum::new(4).expect("f = 1");
        let subject = found[0].verify(quorum, &signing(0).keys).expect("proved");
        assert_eq!((subject.replica, subject.seq), (ReplicaId(3), Seq(2000)));
        assert!(hear(1999, 2).is_empty(), "one of a kind");
    }
}

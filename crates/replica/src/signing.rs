//! Signed messages between replicas, in groups whose authentication is `signature` (BFT-PK in PBFT 2000): each carries its
//! sender's signature over sender and content, and nothing unsigned is believed.
//!
//! A driver seals what the replica wants sent and opens what has come, on whatever thread it likes.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_agreement::Rejected;
use quorate_wire::digest::Content;
use quorate_wire::message::{PeerMessage, SignedMessage};
use quorate_wire::{
    Authentication, Decode, Digest, Encode, KeyPair, PublicKey, ReplicaId, Signature,
};

/// Signs what leaves and checks what comes.
#[derive(Clone, Debug)]
pub struct Signing {
    mode: Authentication,
    me: ReplicaId,
    key: KeyPair,
    keys: Vec<PublicKey>,
}

impl Signing {
    /// For the replica `me` with this key, in a group with these keys.
    pub fn new(mode: Authentication, me: ReplicaId, key: KeyPair, keys: Vec<PublicKey>) -> Signing {
        Signing {
            mode,
            me,
            key,
            keys,
        }
    }

    /// The message as it leaves.
    pub fn seal(&self, message: PeerMessage) -> PeerMessage {
        if self.mode == Authentication::Mac {
            return message;
        }
        let content: Bytes = message.to_bytes().into();
        let signature = self.key.sign(&digest(self.me, &content));
        PeerMessage::Signed(SignedMessage { content, signature })
    }

    /// The message that a replica has sent.
    ///
    /// # Errors
    /// The sender's fault: not signed by it, or signed where nobody signs.
    pub fn open(&self, from: ReplicaId, message: PeerMessage) -> Result<PeerMessage, Rejected> {
        match (self.mode, message) {
            (Authentication::Mac, PeerMessage::Signed(_)) => Err(Rejected::NotAsked),
            (Authentication::Mac, message) => Ok(message),
            (Authentication::Signature, PeerMessage::Signed(m)) => {
                let SignedMessage { content, signature } = m;
                self.verify(from, &content, &signature)?;
                match PeerMessage::from_bytes(content) {
                    Ok(PeerMessage::Signed(_)) | Err(_) => Err(Rejected::Malformed),
                    Ok(message) => Ok(message),
                }
            }
            (Authentication::Signature, _) => Err(Rejected::BadAuthentication),
        }
    }

    fn verify(&self, from: ReplicaId, content: &[u8], by: &Signature) -> Result<(), Rejected> {
        let key = self.keys.get(usize::from(from.0));
        let key = key.ok_or(Rejected::UnknownSender)?;
        let verified = key.verify(&digest(from, content), by);
        verified.map_err(|_| Rejected::BadAuthentication)
    }
}

fn digest(from: ReplicaId, content: &[u8]) -> Digest {
    Digest::of_parts(Content::PeerMessage, &[&from.to_bytes(), content])
}

//! Proof that a replica's state is not the group's: what it has signed about it does not go with a digest that f+1 others have
//! signed. At least one of those is correct, if at most f replicas are not.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use bytes::Bytes;

use super::{Kind, NoProof, Subject, statement};
use crate::codec::Decode;
use crate::digest::{Content, Digest};
use crate::epoch::ReplicaKeys;
use crate::ids::{Quorum, ReplicaId, Seq, View};
use crate::message::transfer::StateMessage;
use crate::message::{PeerMessage, SignedMessage};
use crate::record;
use crate::tree::{self, DEPTH, Node};

/// The most replicas that vouch for a digest.
const MAX_VOUCHERS: usize = 256;

record! {
    /// CHECKPOINTs of f+1 replicas, for one place and root: one of them is a correct replica's.
    pub struct Certificate {
        /// Whose, and as signed.
        pub signed: Vec<(ReplicaId, SignedMessage)> => MAX_VOUCHERS, "vouchers",
    }
}

record! {
    /// A CHECKPOINT with another root than the certified one.
    pub struct WrongCheckpoint {
        /// Whose.
        pub replica: ReplicaId,
        /// As signed.
        pub said: SignedMessage,
        /// What it should have said.
        pub certificate: Certificate,
    }
}

record! {
    /// A node or value in answer to a replica that fetches the state, which is not in the certified one.
    pub struct WrongPiece {
        /// Whose.
        pub replica: ReplicaId,
        /// The answer, as signed.
        pub said: SignedMessage,
        /// Which of the pieces in the answer.
        pub at: u32,
        /// The root's.
        pub certificate: Certificate,
        /// The certified nodes from the root down to the one that has the digest of the right piece.
        pub nodes: Vec<Bytes> => DEPTH + 1, "nodes",
    }
}

impl Certificate {
    /// The place and root that all of it are about.
    fn claim(&self) -> Option<(Seq, Digest)> {
        let mut claims = self
            .signed
            .iter()
            .map(|(replica, m)| checkpoint(*replica, m));
        let first = claims.next()??;
        claims.all(|claim| claim == Some(first)).then_some(first)
    }

    /// Whether the accused has signed what it is said to have said, and enough others this.
    pub(super) fn verify(
        &self,
        quorum: Quorum,
        keys: &ReplicaKeys,
        accused: ReplicaId,
        said: &SignedMessage,
    ) -> Result<(), NoProof> {
        let check = |replica: ReplicaId, m: &SignedMessage| {
            let key = keys.standing().get(usize::from(replica.0));
            let key = key.ok_or(NoProof::UnknownReplica)?;
            let checked = m.verify(replica, keys.group(), key);
            checked.map_err(|_| NoProof::NotSigned)
        };
        check(accused, said)?;
        let mut vouchers = BTreeSet::new();
        for (replica, m) in &self.signed {
            check(*replica, m)?;
            if *replica != accused {
                vouchers.insert(*replica);
            }
        }
        match vouchers.len() >= quorum.weak() {
            true => Ok(()),
            false => Err(NoProof::Unvouched),
        }
    }
}

impl WrongCheckpoint {
    pub(super) fn subject(&self) -> Result<Subject, NoProof> {
        let (said, root) = checkpoint(self.replica, &self.said).ok_or(NoProof::Unrelated)?;
        let (seq, certified) = self.certificate.claim().ok_or(NoProof::Unrelated)?;
        match (said == seq, root == certified) {
            (false, _) => Err(NoProof::Unrelated),
            (true, true) => Err(NoProof::Alike),
            (true, false) => Ok(subject(self.replica, seq)),
        }
    }
}

impl WrongPiece {
    /// The name and bytes of the piece, as the accused has them.
    pub fn piece(&self) -> Option<(Bytes, Bytes)> {
        let (_, pieces, _) = pieces(&self.said)?;
        pieces.get(usize::try_from(self.at).ok()?).cloned()
    }

    pub(super) fn subject(&self) -> Result<Subject, NoProof> {
        let (checkpoint, pieces, is_value) = pieces(&self.said).ok_or(NoProof::Unrelated)?;
        let at = usize::try_from(self.at).map_err(|_| NoProof::Unrelated)?;
        let (name, bytes) = pieces.get(at).ok_or(NoProof::Unrelated)?;
        let (seq, root) = self.certificate.claim().ok_or(NoProof::Unrelated)?;
        let right = match is_value {
            true => digest_of_value(root, &self.nodes, name),
            false => digest_of_node(root, &self.nodes, name),
        };
        let right = right.ok_or(NoProof::Unrelated)?;
        let found = match is_value {
            true => Digest::of(Content::StateValue, bytes),
            false => tree::digest(bytes),
        };
        match (checkpoint == seq, found == right) {
            (false, _) => Err(NoProof::Unrelated),
            (true, true) => Err(NoProof::Alike),
            (true, false) => Ok(subject(self.replica, seq)),
        }
    }
}

fn subject(replica: ReplicaId, seq: Seq) -> Subject {
    Subject {
        replica,
        kind: Kind::State,
        view: View(0),
        seq,
    }
}

/// The place and root of a signed CHECKPOINT.
fn checkpoint(replica: ReplicaId, m: &SignedMessage) -> Option<(Seq, Digest)> {
    let message = PeerMessage::from_bytes(m.content.clone()).ok()?;
    let (subject, root) = statement(replica, &message)?;
    (subject.kind == Kind::Checkpoint).then_some((subject.seq, root))
}

/// Names and bytes of what an answer holds, and whether they are values.
#[allow(clippy::type_complexity)]
fn pieces(m: &SignedMessage) -> Option<(Seq, Vec<(Bytes, Bytes)>, bool)> {
    match PeerMessage::from_bytes(m.content.clone()).ok()? {
        PeerMessage::State(StateMessage::Nodes(m)) => Some((m.checkpoint, m.nodes, false)),
        PeerMessage::State(StateMessage::Values(m)) => Some((m.checkpoint, m.values, true)),
        _ => None,
    }
}

/// What the nodes above say that the digest of the node at a path is.
fn digest_of_node(root: Digest, nodes: &[Bytes], path: &[u8]) -> Option<Digest> {
    if nodes.len() != path.len() {
        return None;
    }
    let mut expected = root;
    for (depth, bytes) in nodes.iter().enumerate() {
        let Node::Inner(children) = certified(expected, &path[..depth], bytes)? else {
            return None;
        };
        expected = tree::find_child(&children, path[depth])?.digest;
    }
    Some(expected)
}

/// What the nodes above say that the digest of a key's value is.
fn digest_of_value(root: Digest, nodes: &[Bytes], key: &[u8]) -> Option<Digest> {
    let (leaf, above) = nodes.split_last()?;
    let place = tree::place(key);
    let path = place.get(..above.len())?;
    let expected = digest_of_node(root, above, path)?;
    let Node::Leaf(entries) = certified(expected, path, leaf)? else {
        return None;
    };
    tree::find_entry(&entries, key).map(|entry| entry.value)
}

fn certified(expected: Digest, path: &[u8], bytes: &Bytes) -> Option<Node> {
    let right = tree::digest(bytes) == expected;
    right.then(|| Node::decode(path, bytes.clone()).ok())?
}

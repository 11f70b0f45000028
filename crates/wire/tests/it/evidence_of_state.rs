//! What convicts a replica of a state that is not the group's, and what does not.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_wire::digest::Content;
use quorate_wire::evidence::{
    Certificate, Evidence, Kept, Kind, NoProof, WrongCheckpoint, WrongPiece,
};
use quorate_wire::message::transfer::{Nodes, StateMessage, Values};
use quorate_wire::message::{Checkpoint, PeerMessage, SignedMessage};
use quorate_wire::tree::{self, Child, Entry, Node};
use quorate_wire::{Digest, Encode, KeyPair, Quorum, ReplicaId, ReplicaKeys, Seq};

/// Who lies here.
const LIAR: u8 = 3;
const PLACE: u64 = 128;

const GROUP: Digest = Digest([7; 32]);

fn key(replica: u8) -> KeyPair {
    KeyPair::from_seed(&[replica + 1; 32])
}

fn keys() -> ReplicaKeys {
    ReplicaKeys::Standing {
        group: GROUP,
        keys: (0..4).map(|r| key(r).public()).collect(),
    }
}

fn said(replica: u8, message: &PeerMessage) -> SignedMessage {
    let content = Bytes::from(message.to_bytes());
    let digest = SignedMessage::digest(ReplicaId(replica), &content);
    let signature = key(replica).sign_in(&GROUP, &digest);
    SignedMessage {
        content,
        signature: signature.into(),
    }
}

fn checkpoint(seq: u64, root: Digest) -> PeerMessage {
    let seq = Seq(seq);
    PeerMessage::Checkpoint(Checkpoint { seq, root })
}

fn certificate(replicas: &[u8], seq: u64, root: Digest) -> Certificate {
    let signed = replicas.iter();
    let signed = signed.map(|r| (ReplicaId(*r), said(*r, &checkpoint(seq, root))));
    Certificate {
        signed: signed.collect(),
    }
}

fn verdict(evidence: &Evidence) -> Result<(u8, Kind, u64), NoProof> {
    let subject = evidence.verify(Quorum::new(4).unwrap(), &keys())?;
    Ok((subject.replica.0, subject.kind, subject.seq.0))
}

/// A state of so many entries that its tree has two levels.
struct State {
    values: BTreeMap<Bytes, Bytes>,
    root: Bytes,
    leaves: BTreeMap<u8, Bytes>,
}

impl State {
    fn new() -> State {
        let entry = |i: u32| {
            (
                Bytes::from(format!("key {i}")),
                Bytes::from(format!("value {i}")),
            )
        };
        let values: BTreeMap<Bytes, Bytes> = (0..40).map(entry).collect();
        let mut below: BTreeMap<u8, Vec<Entry>> = BTreeMap::new();
        for (key, value) in &values {
            below.entry(tree::place(key)[0]).or_default().push(Entry {
                key: key.clone(),
                value: Digest::of(Content::StateValue, value),
            });
        }
        let count = |byte: u8| below[&byte].len() as u64;
        let leaves = below.iter();
        let leaves: BTreeMap<u8, Bytes> = leaves
            .map(|(byte, entries)| (*byte, Node::Leaf(entries.clone()).encode()))
            .collect();
        let children = leaves.iter().map(|(&byte, leaf)| Child {
            byte,
            digest: tree::digest(leaf),
            count: count(byte),
        });
        let root = Node::Inner(children.collect()).encode();
        State {
            values,
            root,
            leaves,
        }
    }

    fn digest(&self) -> Digest {
        tree::digest(&self.root)
    }

    /// A key, the path of its leaf, and the leaf.
    fn some(&self) -> (Bytes, Bytes, Bytes) {
        let key = self.values.keys().next().unwrap().clone();
        let byte = tree::place(&key)[0];
        let leaf = self.leaves[&byte].clone();
        (key, Bytes::from(vec![byte]), leaf)
    }
}

fn values(seq: u64, values: Vec<(Bytes, Bytes)>) -> PeerMessage {
    let checkpoint = Seq(seq);
    PeerMessage::State(StateMessage::Values(Values { checkpoint, values }))
}

fn nodes(nodes: Vec<(Bytes, Bytes)>) -> PeerMessage {
    let checkpoint = Seq(PLACE);
    PeerMessage::State(StateMessage::Nodes(Nodes { checkpoint, nodes }))
}

fn wrong_checkpoint(root: Digest, certificate: Certificate) -> Evidence {
    Evidence::Checkpoint(WrongCheckpoint {
        replica: ReplicaId(LIAR),
        said: said(LIAR, &checkpoint(PLACE, root)),
        certificate,
    })
}

fn wrong_piece(message: &PeerMessage, at: u32, state: &State, nodes: Vec<Bytes>) -> Evidence {
    Evidence::Piece(WrongPiece {
        replica: ReplicaId(LIAR),
        said: said(LIAR, message),
        at,
        certificate: certificate(&[0, 1], PLACE, state.digest()),
        nodes,
    })
}

/// A root that f+1 others contradict convicts; one that fewer do, or that they say as well, does not.
#[test]
fn a_wrong_checkpoint() {
    let (right, wrong) = (Digest([1; 32]), Digest([2; 32]));
    let convicts = Ok((LIAR, Kind::State, PLACE));
    let by = |replicas: &[u8]| certificate(replicas, PLACE, right);
    assert_eq!(verdict(&wrong_checkpoint(wrong, by(&[0, 1]))), convicts);
    assert_eq!(verdict(&wrong_checkpoint(wrong, by(&[0, 1, 2]))), convicts);
    let none = |evidence: Evidence| verdict(&evidence).unwrap_err();
    assert_eq!(none(wrong_checkpoint(right, by(&[0, 1]))), NoProof::Alike);
    assert_eq!(none(wrong_checkpoint(wrong, by(&[]))), NoProof::Unrelated);
    let few = [&[0][..], &[0, 0], &[0, LIAR]];
    for replicas in few {
        assert_eq!(
            none(wrong_checkpoint(wrong, by(replicas))),
            NoProof::Unvouched,
            "{replicas:?}"
        );
    }
    let elsewhere = certificate(&[0, 1], PLACE + 128, right);
    assert_eq!(none(wrong_checkpoint(wrong, elsewhere)), NoProof::Unrelated);
    let mut mixed = by(&[0, 1]);
    mixed.signed[1] = (ReplicaId(1), said(1, &checkpoint(PLACE, Digest([3; 32]))));
    assert_eq!(none(wrong_checkpoint(wrong, mixed)), NoProof::Unrelated);
    // One replica's word under another's name.
    let mut forged = by(&[0, 1]);
    forged.signed[1].0 = ReplicaId(2);
    assert_eq!(none(wrong_checkpoint(wrong, forged)), NoProof::NotSigned);
    let mut stranger = by(&[0, 1]);
    stranger.signed[1].0 = ReplicaId(9);
    assert_eq!(
        none(wrong_checkpoint(wrong, stranger)),
        NoProof::UnknownReplica
    );
    let unsigned = Evidence::Checkpoint(WrongCheckpoint {
        replica: ReplicaId(LIAR),
        said: said(0, &checkpoint(PLACE, wrong)),
        certificate: by(&[0, 1]),
    });
    assert_eq!(none(unsigned), NoProof::NotSigned);
}

/// A value, a leaf and a root that are not in the certified state convict who sent them, wherever in the answer they stand.
#[test]
fn wrong_pieces() {
    let state = State::new();
    let (key, path, leaf) = state.some();
    let other = Bytes::from("something else");
    let convicts = Ok((LIAR, Kind::State, PLACE));
    let above = || vec![state.root.clone(), leaf.clone()];

    let right = (key.clone(), state.values[&key].clone());
    let answer = values(PLACE, vec![right, (key.clone(), other.clone())]);
    let lie = |at| wrong_piece(&answer, at, &state, above());
    assert_eq!(verdict(&lie(1)), convicts);
    assert_eq!(verdict(&lie(0)), Err(NoProof::Alike));
    assert_eq!(verdict(&lie(2)), Err(NoProof::Unrelated));

    let answer = nodes(vec![(path, other.clone())]);
    let lie = wrong_piece(&answer, 0, &state, vec![state.root.clone()]);
    assert_eq!(verdict(&lie), convicts);
    let answer = nodes(vec![(Bytes::new(), other)]);
    let lie = wrong_piece(&answer, 0, &state, Vec::new());
    assert_eq!(verdict(&lie), convicts);

    let kept = Kept {
        group: Digest([7; 32]),
        evidence: lie,
    };
    assert_eq!(Kept::from_file(&kept.to_file().into()), Ok(kept));
}

/// Nothing follows from an answer about another checkpoint, from nodes that are not the certified ones, or from a name that the state
/// does not have.
#[test]
fn pieces_that_prove_nothing() {
    let state = State::new();
    let (key, path, leaf) = state.some();
    let wrong = |name: &Bytes| vec![(name.clone(), Bytes::from("something else"))];
    let answer = values(PLACE, wrong(&key));
    let none = |answer: &PeerMessage, nodes: Vec<Bytes>| {
        verdict(&wrong_piece(answer, 0, &state, nodes)).unwrap_err()
    };
    let (root, other) = (
        state.root.clone(),
        state.leaves.values().next_back().unwrap(),
    );
    assert_ne!(*other, leaf);
    for above in [
        vec![],
        vec![root.clone()],
        vec![leaf.clone()],
        vec![root.clone(), other.clone()],
        vec![leaf.clone(), root.clone()],
        vec![root.clone(), leaf.clone(), leaf.clone()],
    ] {
        assert_eq!(none(&answer, above), NoProof::Unrelated);
    }
    let above = || vec![root.clone(), leaf.clone()];
    assert_eq!(
        none(&values(PLACE + 128, wrong(&key)), above()),
        NoProof::Unrelated
    );
    let unknown = Bytes::from("no such key");
    assert_eq!(
        none(&values(PLACE, wrong(&unknown)), above()),
        NoProof::Unrelated
    );
    let deep = Bytes::from([&path[..], &[0; 9]].concat());
    assert_eq!(none(&nodes(wrong(&deep)), above()), NoProof::Unrelated);
    assert_eq!(
        none(&checkpoint(PLACE, Digest([1; 32])), above()),
        NoProof::Unrelated
    );
}

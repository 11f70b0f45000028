//! Proof that a replica has contradicted itself: two statements under its key of which a correct replica makes one at most. And
//! that it has contradicted the group: a statement about its state that does not go with what f+1 others have signed.
//!
//! Whoever has the group's keys can check it, offline and without trust in who shows it.

mod state;

use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;

use crate::auth::{AuthError, PublicKey};
use crate::codec::{Decode, DecodeError, Encode};
use crate::digest::{Content, Digest};
use crate::epoch::ReplicaKeys;
use crate::ids::{Quorum, ReplicaId, Seq, View};
use crate::message::{PeerMessage, SignedMessage, SignedNewView, SignedViewChange};
use crate::{record, tagged};

pub use state::{Certificate, WrongCheckpoint, WrongPiece};

/// What a file of evidence begins with.
const MAGIC: &[u8; 20] = b"quorate evidence v1\n";

tagged! {
    /// Two statements that contradict each other, or one that contradicts a certificate.
    pub enum Evidence {
        /// Two VIEW-CHANGEs for one view.
        1 => ViewChanges(TwoViewChanges),
        /// Two NEW-VIEWs that start one view.
        2 => NewViews(TwoNewViews),
        /// Two votes at one place, where all messages are signed.
        3 => Messages(TwoMessages),
        /// A CHECKPOINT of another state than the certified one, where all messages are signed.
        4 => Checkpoint(WrongCheckpoint),
        /// A piece of state that is not in the certified one, where all messages are signed.
        5 => Piece(WrongPiece),
    }
}

record! {
    /// Both of one sender, for one view.
    pub struct TwoViewChanges {
        /// One.
        pub first: SignedViewChange,
        /// Another.
        pub second: SignedViewChange,
    }
}

record! {
    /// Both of one view's primary.
    pub struct TwoNewViews {
        /// One.
        pub first: SignedNewView,
        /// Another.
        pub second: SignedNewView,
    }
}

record! {
    /// PRE-PREPAREs, PREPAREs, COMMITs of one view and place, or CHECKPOINTs of one place.
    pub struct TwoMessages {
        /// Whose.
        pub replica: ReplicaId,
        /// One.
        pub first: SignedMessage,
        /// Another.
        pub second: SignedMessage,
    }
}

record! {
    /// Evidence as it is kept: it convicts a replica of one group.
    pub struct Kept {
        /// The group's id.
        pub group: Digest,
        /// The statements.
        pub evidence: Evidence,
    }
}

impl Kept {
    /// The bytes of its file.
    pub fn to_file(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        self.encode(&mut out);
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What keeps the bytes from being one.
    pub fn from_file(bytes: &Bytes) -> Result<Kept, DecodeError> {
        match bytes.starts_with(MAGIC) {
            true => Kept::from_bytes(bytes.slice(MAGIC.len()..)),
            false => Err(DecodeError::Invalid("file: it holds no evidence")),
        }
    }
}

/// What a replica said twice, or wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// How it left a view.
    ViewChange,
    /// How it started a view.
    NewView,
    /// What it proposed at a place.
    PrePrepare,
    /// What it agreed with at a place.
    Prepare,
    /// What it knows that a quorum agrees with at a place.
    Commit,
    /// What its state was after a place.
    Checkpoint,
    /// The same, or a part of it, where f+1 others say something else.
    State,
}

impl Kind {
    /// The name in files' names and reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ViewChange => "view-change",
            Kind::NewView => "new-view",
            Kind::PrePrepare => "pre-prepare",
            Kind::Prepare => "prepare",
            Kind::Commit => "commit",
            Kind::Checkpoint => "checkpoint",
            Kind::State => "state",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a statement is about: of one replica's statements about one thing all must be alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Who says it.
    pub replica: ReplicaId,
    /// What kind of statement it is.
    pub kind: Kind,
    /// In or for which view; 0 where that is nothing to the matter.
    pub view: View,
    /// At which place; 0 likewise.
    pub seq: Seq,
}

/// Why something is no evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProof {
    /// The statements are not about the same thing, or none of which there may be one only.
    Unrelated,
    /// The statements go with each other.
    Alike,
    /// The group has no such replica.
    UnknownReplica,
    /// The first (or only the second) is not signed by the replica.
    NotSigned,
    /// Not f+1 other replicas have signed what it is held against.
    Unvouched,
}

impl fmt::Display for NoProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoProof::Unrelated => "the statements are not about the same thing",
            NoProof::Alike => "the statements do not contradict each other",
            NoProof::UnknownReplica => "the group has no such replica",
            NoProof::NotSigned => "a statement is not signed with its replica's key",
            NoProof::Unvouched => "not enough other replicas have signed what it is held against",
        })
    }
}

impl core::error::Error for NoProof {}

impl Evidence {
    /// What the statements are about, and that they say different things of it. Whether the replicas have made them, only
    /// [`Evidence::verify`] says.
    ///
    /// # Errors
    /// [`NoProof::Unrelated`], [`NoProof::Alike`].
    pub fn subject(&self, quorum: Quorum) -> Result<Subject, NoProof> {
        let (first, second) = match self {
            Evidence::ViewChanges(two) => (of_view_change(&two.first), of_view_change(&two.second)),
            Evidence::NewViews(two) => (
                of_new_view(quorum, &two.first),
                of_new_view(quorum, &two.second),
            ),
            Evidence::Messages(two) => {
                let said = |m: &SignedMessage| {
                    let message = PeerMessage::from_bytes(m.content.clone()).ok();
                    message.and_then(|m| statement(two.replica, &m))
                };
                let both = said(&two.first).zip(said(&two.second));
                both.ok_or(NoProof::Unrelated)?
            }
            Evidence::Checkpoint(wrong) => return wrong.subject(),
            Evidence::Piece(wrong) => return wrong.subject(),
        };
        match (first.0 == second.0, first.1 == second.1) {
            (false, _) => Err(NoProof::Unrelated),
            (true, true) => Err(NoProof::Alike),
            (true, false) => Ok(first.0),
        }
    }

    /// Checks that the replica has contradicted itself or the group, against the group's keys.
    ///
    /// # Errors
    /// Why it proves nothing.
    pub fn verify(&self, quorum: Quorum, keys: &ReplicaKeys) -> Result<Subject, NoProof> {
        let subject = self.subject(quorum)?;
        let replica = subject.replica;
        if !quorum.contains(replica) {
            return Err(NoProof::UnknownReplica);
        }
        // Replicas that have key holders do not sign all messages.
        let key = keys.standing().get(usize::from(replica.0));
        let signed = match self {
            Evidence::ViewChanges(two) => {
                let check = |m: &SignedViewChange| keys.verify(replica, &m.digest(), &m.signature);
                check(&two.first).and(check(&two.second))
            }
            Evidence::NewViews(two) => {
                let check = |m: &SignedNewView| keys.verify(replica, &m.digest(), &m.signature);
                check(&two.first).and(check(&two.second))
            }
            Evidence::Messages(two) => {
                let key = key.ok_or(NoProof::NotSigned)?;
                let check = |m: &SignedMessage| m.verify(two.replica, keys.group(), key);
                check(&two.first).and(check(&two.second))
            }
            Evidence::Checkpoint(WrongCheckpoint {
                replica,
                said,
                certificate,
            })
            | Evidence::Piece(WrongPiece {
                replica,
                said,
                certificate,
                ..
            }) => {
                let checked = certificate.verify(quorum, keys, *replica, said);
                return checked.map(|()| subject);
            }
        };
        signed.map(|()| subject).map_err(|_| NoProof::NotSigned)
    }
}

fn of_view_change(m: &SignedViewChange) -> (Subject, Digest) {
    let subject = Subject {
        replica: m.body.replica,
        kind: Kind::ViewChange,
        view: m.body.view,
        seq: Seq(0),
    };
    (subject, m.digest())
}

fn of_new_view(quorum: Quorum, m: &SignedNewView) -> (Subject, Digest) {
    let subject = Subject {
        replica: quorum.primary(m.body.view),
        kind: Kind::NewView,
        view: m.body.view,
        seq: Seq(0),
    };
    (subject, m.digest())
}

/// What a message of a replica states, if it is one that a correct replica never makes twice in different ways.
pub fn statement(replica: ReplicaId, message: &PeerMessage) -> Option<(Subject, Digest)> {
    let (kind, view, seq, what) = match message {
        PeerMessage::PrePrepare(m) => (Kind::PrePrepare, m.view, m.seq, m.batch.digest()),
        PeerMessage::Prepare(m) => (Kind::Prepare, m.view, m.seq, m.digest),
        PeerMessage::Commit(m) => (Kind::Commit, m.view, m.seq, m.digest),
        PeerMessage::Checkpoint(m) => (Kind::Checkpoint, View(0), m.seq, m.root),
        _ => return None,
    };
    let subject = Subject {
        replica,
        kind,
        view,
        seq,
    };
    Some((subject, what))
}

impl SignedNewView {
    /// The digest over what is said.
    pub fn digest(&self) -> Digest {
        Digest::of(Content::NewView, &self.body.to_bytes())
    }
}

impl SignedMessage {
    /// What the sender signs: its id and the content.
    pub fn digest(sender: ReplicaId, content: &[u8]) -> Digest {
        Digest::of_parts(Content::PeerMessage, &[&sender.to_bytes(), content])
    }

    /// Checks the signature against the sender's key in a group.
    ///
    /// # Errors
    /// As [`PublicKey::verify`].
    pub fn verify(
        &self,
        sender: ReplicaId,
        group: &Digest,
        key: &PublicKey,
    ) -> Result<(), AuthError> {
        let digest = SignedMessage::digest(sender, &self.content);
        self.signature.verify(key, group, &digest)
    }
}

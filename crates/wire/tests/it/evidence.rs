//! What convicts a replica, and what does not.

use bytes::Bytes;
use quorate_wire::evidence::{
    Evidence, Kept, Kind, NoProof, TwoMessages, TwoNewViews, TwoViewChanges,
};
use quorate_wire::message::{
    Batch, Checkpoint, Commit, Fetch, NewView, PeerMessage, PrePrepare, Prepare, SignedMessage,
    SignedNewView, SignedViewChange, ViewChange,
};
use quorate_wire::{
    Digest, Encode, KeyPair, Quorum, ReplicaId, ReplicaKeys, Seq, Signer, Time, View,
};

const ONE: Digest = Digest([1; 32]);
const TWO: Digest = Digest([2; 32]);

const GROUP: Digest = Digest([7; 32]);

fn quorum() -> Quorum {
    Quorum::new(4).unwrap()
}

fn key(replica: u8) -> KeyPair {
    KeyPair::from_seed(&[replica + 1; 32])
}

fn keys() -> ReplicaKeys {
    ReplicaKeys::Standing {
        group: GROUP,
        keys: (0..4).map(|r| key(r).public()).collect(),
    }
}

fn change(replica: u8, view: u64, root: Digest, by: u8) -> SignedViewChange {
    let body = ViewChange {
        view: View(view),
        replica: ReplicaId(replica),
        stable: Seq(0),
        checkpoints: vec![(Seq(0), root)],
        prepared: vec![],
        preprepared: vec![],
    };
    SignedViewChange::sign(body, &Signer::standing(GROUP, key(by))).into_inner()
}

fn start(view: u64, root: Digest, by: u8) -> SignedNewView {
    let body = NewView {
        view: View(view),
        proofs: vec![],
        start: (Seq(0), root),
        selection: vec![],
    };
    SignedNewView::sign(body, &Signer::standing(GROUP, key(by))).into_inner()
}

fn said(replica: u8, message: &PeerMessage, by: u8) -> SignedMessage {
    let content = Bytes::from(message.to_bytes());
    let digest = SignedMessage::digest(ReplicaId(replica), &content);
    let signature = key(by).sign_in(&GROUP, &digest).into();
    SignedMessage { content, signature }
}

fn messages(replica: u8, first: &PeerMessage, second: &PeerMessage) -> Evidence {
    let (first, second) = (
        said(replica, first, replica),
        said(replica, second, replica),
    );
    let replica = ReplicaId(replica);
    Evidence::Messages(TwoMessages {
        replica,
        first,
        second,
    })
}

fn changes(first: SignedViewChange, second: SignedViewChange) -> Evidence {
    Evidence::ViewChanges(TwoViewChanges { first, second })
}

fn verdict(evidence: &Evidence) -> Result<(u8, Kind), NoProof> {
    let subject = evidence.verify(quorum(), &keys())?;
    Ok((subject.replica.0, subject.kind))
}

fn prepare(view: u64, seq: u64, digest: Digest) -> PeerMessage {
    let (view, seq) = (View(view), Seq(seq));
    PeerMessage::Prepare(Prepare { view, seq, digest })
}

fn proposal(time: u64) -> PeerMessage {
    let (view, seq) = (View(0), Seq(1));
    let batch = Batch {
        time: Time(time),
        requests: vec![ONE],
    };
    let bodies = Vec::new();
    PeerMessage::PrePrepare(PrePrepare {
        view,
        seq,
        batch,
        bodies,
    })
}

/// Each kind of contradiction convicts its author.
#[test]
fn contradictions_convict() {
    let two = changes(change(2, 5, ONE, 2), change(2, 5, TWO, 2));
    assert_eq!(verdict(&two), Ok((2, Kind::ViewChange)));
    let (first, second) = (start(5, ONE, 1), start(5, TWO, 1));
    let two = Evidence::NewViews(TwoNewViews { first, second });
    assert_eq!(verdict(&two), Ok((1, Kind::NewView)));
    let two = messages(3, &prepare(0, 1, ONE), &prepare(0, 1, TWO));
    assert_eq!(verdict(&two), Ok((3, Kind::Prepare)));
    let two = messages(0, &proposal(1), &proposal(2));
    assert_eq!(verdict(&two), Ok((0, Kind::PrePrepare)));
    let commit = |digest| {
        PeerMessage::Commit(Commit {
            view: View(0),
            seq: Seq(1),
            digest,
        })
    };
    assert_eq!(
        verdict(&messages(1, &commit(ONE), &commit(TWO))),
        Ok((1, Kind::Commit))
    );
    let checkpoint = |root| PeerMessage::Checkpoint(Checkpoint { seq: Seq(1), root });
    let two = messages(1, &checkpoint(ONE), &checkpoint(TWO));
    assert_eq!(verdict(&two), Ok((1, Kind::Checkpoint)));
}

/// What a correct replica may say, or what somebody else made up, convicts nobody.
#[test]
fn the_correct_are_not_convicted() {
    let none = |evidence: Evidence| verdict(&evidence).unwrap_err();
    let honest = change(2, 5, ONE, 2);
    // The same, for another view, of another replica.
    assert_eq!(
        none(changes(honest.clone(), honest.clone())),
        NoProof::Alike
    );
    assert_eq!(
        none(changes(honest.clone(), change(2, 6, TWO, 2))),
        NoProof::Unrelated
    );
    assert_eq!(
        none(changes(honest.clone(), change(3, 5, TWO, 3))),
        NoProof::Unrelated
    );
    // Forged by another replica, in either place; and about one that is not there.
    let forged = change(2, 5, TWO, 3);
    assert_eq!(
        none(changes(honest.clone(), forged.clone())),
        NoProof::NotSigned
    );
    assert_eq!(none(changes(forged, honest)), NoProof::NotSigned);
    let stranger = changes(change(9, 5, ONE, 3), change(9, 5, TWO, 3));
    assert_eq!(none(stranger), NoProof::UnknownReplica);
    let (first, second) = (start(5, ONE, 1), start(5, TWO, 2));
    let two = Evidence::NewViews(TwoNewViews { first, second });
    assert_eq!(none(two), NoProof::NotSigned);
    // Other places, views, kinds; kinds of which there may be many; bytes that are no message.
    let one = prepare(0, 1, ONE);
    let commit = Commit {
        view: View(0),
        seq: Seq(1),
        digest: TWO,
    };
    for other in [
        prepare(0, 2, TWO),
        prepare(1, 1, TWO),
        PeerMessage::Commit(commit),
    ] {
        assert_eq!(none(messages(3, &one, &other)), NoProof::Unrelated);
    }
    let fetch = |digest| PeerMessage::Fetch(Fetch::Batch(digest));
    assert_eq!(
        none(messages(3, &fetch(ONE), &fetch(TWO))),
        NoProof::Unrelated
    );
    // A vote signed by one replica says nothing of another.
    let two = Evidence::Messages(TwoMessages {
        replica: ReplicaId(2),
        first: said(3, &one, 3),
        second: said(3, &prepare(0, 1, TWO), 3),
    });
    assert_eq!(none(two), NoProof::NotSigned);
}

/// A file is read as it was written, and nothing else is read as one.
#[test]
fn files_have_one_form() {
    let kept = Kept {
        group: ONE,
        evidence: changes(change(2, 5, ONE, 2), change(2, 5, TWO, 2)),
    };
    let bytes = kept.to_file();
    assert_eq!(Kept::from_file(&bytes.clone().into()), Ok(kept));
    for cut in 0..bytes.len() {
        assert!(Kept::from_file(&bytes[..cut].to_vec().into()).is_err());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(Kept::from_file(&longer.into()).is_err());
}

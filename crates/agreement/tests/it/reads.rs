//! From which state a replica may answer reads that are not ordered.

use bytes::Bytes;
use quorate_agreement::{Agreement, Input, Record};
use quorate_wire::message::{Batch, Commit, PeerMessage, PrePrepare, Prepare};
use quorate_wire::{Digest, LogIndex, Seq, View};

use crate::support::*;

/// Places 1 and 2 prepare at a backup; what it wrote.
fn with_two_certificates() -> (Agreement, Vec<Record>, Digest) {
    let mut it = fresh(3);
    it.handle(at(0), Input::ClientKey(client(), link_key(3)))
        .unwrap();
    let mut records = Vec::new();
    let mut first = None;
    for seq in [1, 2].map(Seq) {
        let request = request(seq.0, Bytes::from_static(b"op"));
        let batch = Batch {
            time: at(0).wall,
            requests: vec![request.request.digest()],
        };
        let (view, digest) = (View(0), batch.digest());
        first = first.or(Some(digest));
        let bodies = vec![request.into()];
        let proposal = PrePrepare {
            view,
            seq,
            batch,
            bodies,
        };
        from_peer(&mut it, 0, 0, PeerMessage::PrePrepare(proposal)).unwrap();
        for from in 0..3 {
            let vote = Prepare { view, seq, digest };
            from_peer(&mut it, 0, from, PeerMessage::Prepare(vote)).unwrap();
        }
        records.extend(written(&mut it).into_iter().map(|(_, record)| record));
    }
    assert!(
        records
            .iter()
            .any(|r| matches!(r, Record::Prepared(v) if v.seq == Seq(2)))
    );
    let last = LogIndex(records.len() as u64);
    it.handle(at(0), Input::Persisted(last)).unwrap();
    (it, records, first.unwrap())
}

/// A client may have the result of what prepared here, so nobody is to read a state without it: not while it waits for its commit, not
/// when the view has been left, not after a restart.
#[test]
fn a_read_waits_for_what_prepared_here() {
    let (mut it, records, first) = with_two_certificates();
    assert_eq!(it.reads_from(), Seq(2));
    from_peer(&mut it, 0, 0, PeerMessage::ViewChange(view_change(0, 1))).unwrap();
    assert!(!it.standing().active, "who leads the view has left it");
    for from in 0..3 {
        let vote = Commit {
            view: View(0),
            seq: Seq(1),
            digest: first,
        };
        from_peer(&mut it, 0, from, PeerMessage::Commit(vote)).unwrap();
    }
    assert_eq!((it.standing().executed, it.reads_from()), (Seq(1), Seq(2)));
    let again = restarted(3, (Seq(0), GENESIS), records);
    assert_eq!(again.reads_from(), Seq(2));
}

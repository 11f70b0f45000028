//! Every record of the log has one form, and whatever the disk brings back, nothing panics.

#[path = "../../../wire/tests/it/support/mod.rs"]
mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quorate_agreement::durable::{CommittedRecord, Content, Entered, PrePrepared, StableRecord};
use quorate_agreement::{LOG_WINDOW, Record};
use quorate_wire::message::{SignedViewChange, ViewChange, Vote};
use quorate_wire::{
    Digest, Encode, EpochCertificate, KeyPair, Quorum, ReplicaId, Seq, Signer, Signs, Time, View,
};
use support::{batch, codec, digest, new_view, number, request, seq, view_change, vote};

fn content() -> impl Strategy<Value = Content> {
    (batch(), vec(request(), 0..3)).prop_map(|(batch, requests)| Content { batch, requests })
}

fn record() -> impl Strategy<Value = Record> {
    let committed = (seq(), digest(), option::of(content())).prop_map(|(seq, digest, content)| {
        Record::Committed(CommittedRecord {
            seq,
            digest,
            content,
        })
    });
    let entered = (new_view(), vec(view_change(), 0..3))
        .prop_map(|(new_view, proofs)| Record::Entered(Entered { new_view, proofs }.into()));
    prop_oneof![
        (vote(), option::of(content()))
            .prop_map(|(vote, content)| Record::PrePrepared(PrePrepared { vote, content })),
        vote().prop_map(Record::Prepared),
        committed,
        (seq(), digest()).prop_map(|(seq, root)| Record::Stable(StableRecord { seq, root })),
        view_change().prop_map(Record::Changing),
        number().prop_map(|time| Record::Recovering(Time(time))),
        (seq(), digest()).prop_map(|(seq, root)| Record::Fetching(StableRecord { seq, root })),
        vec(number(), 0..5).prop_map(Record::Epochs),
        entered,
    ]
}

crate::canonical! {
    log_record: codec::<Record>(), record();
}

/// The largest VIEW-CHANGE that is well formed fits in a frame, and so does the record of a view that began with one
/// of each replica of the largest group.
#[test]
fn the_largest_records_fit_in_a_frame() {
    let vote = |i: u64| Vote {
        seq: Seq(1 + i / 8),
        view: View(0),
        digest: Digest::ZERO,
    };
    let body = ViewChange {
        view: View(1),
        replica: ReplicaId(0),
        stable: Seq(0),
        checkpoints: vec![(Seq(0), Digest::ZERO); LOG_WINDOW as usize + 1],
        prepared: (0..LOG_WINDOW).map(vote).collect(),
        preprepared: (0..8 * LOG_WINDOW).map(vote).collect(),
    };
    let key = KeyPair::from_seed(&[1; 32]);
    let me = ReplicaId(0);
    let certificate = EpochCertificate::sign(&key, Digest::ZERO, me, 1, key.public());
    let signer = Signer::of_epoch(key, certificate);
    let change = SignedViewChange {
        body,
        signature: signer.sign_for_others(&Digest::ZERO),
    };
    let (all, each) = (Quorum::MAX_REPLICAS, change.to_bytes().len());
    // The NEW-VIEW itself: its head, the senders and digests, the selection.
    let new_view = 200 + all * 33 + LOG_WINDOW as usize * 32;
    assert!(all * each + new_view < quorate_wire::message::MAX_FRAME_BYTES - 64);
}

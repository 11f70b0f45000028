//! Who is behind repeats itself to those who are ahead, too.

mod support;

use bytes::Bytes;
use quorate_agreement::{Output, Record};
use quorate_wire::message::{Batch, PeerMessage, PrePrepare};
use quorate_wire::{ReplicaId, Seq, View};
use support::*;

/// Replica 3 has committed at place 1 and this replica has not. Replica 3's COMMIT of this view may be all that this one lacks,
/// and this one's PREPARE all that replica 3 lacks to give it: a new view has taken the place up again, and the PREPARE was
/// lost. Without it the group of these two and one more stands still.
#[test]
fn votes_are_repeated_to_who_is_ahead() {
    let mut replica = fresh(1);
    let body = request(1, Bytes::from_static(b"op"));
    let batch = Batch {
        time: at(1).wall,
        requests: vec![body.request.digest()],
    };
    from_client(&mut replica, 1, body.clone()).unwrap();
    let proposal = PrePrepare {
        view: View(0),
        seq: Seq(1),
        batch,
        bodies: vec![body.into()],
    };
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    persist_up_to(&mut replica, 2, |r| matches!(r, Record::PrePrepared(_)));
    let mut repeated = 0;
    for ms in [10, 110] {
        outputs(&mut replica);
        from_peer(&mut replica, ms, 3, status(0, true, 1)).unwrap();
        let outputs = outputs(&mut replica).into_iter();
        let to_3 = outputs.filter(|output| match output {
            Output::Send(ReplicaId(3), PeerMessage::Prepare(m)) => m.seq == Seq(1),
            _ => false,
        });
        repeated += to_3.count();
    }
    assert_eq!(
        repeated, 1,
        "once replica 3 has said twice that it is there"
    );
}

//! What a replica takes in one turn, it acts on together.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Input, Output, Tuning};
use quorate_wire::Verified;
use quorate_wire::message::PeerMessage;

/// The numbers of requests in the batches that a primary proposes.
fn proposed(replica: &mut quorate_agreement::Agreement) -> Vec<usize> {
    let outputs = outputs(replica).into_iter();
    let proposals = outputs.filter_map(|output| match output {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m.batch.requests.len()),
        _ => None,
    });
    proposals.collect()
}

/// The first request of many that came at once does not travel alone.
#[test]
fn requests_of_one_turn_share_a_batch() {
    let mut primary = fresh(0);
    for number in 1..=5 {
        let request = request(number, Bytes::from_static(b"op"));
        let input = Input::Request(Verified::from_link(request));
        primary.take(at(1), input).unwrap();
    }
    assert!(proposed(&mut primary).is_empty());
    primary.end_turn();
    primary.invariants();
    assert_eq!(proposed(&mut primary), [5]);
    primary.end_turn();
    assert!(proposed(&mut primary).is_empty(), "nothing more is there");
}

/// More than a batch holds goes in several, at once.
#[test]
fn a_turn_fills_more_than_one_batch() {
    let mut primary = fresh(0);
    let most = Tuning::default().batch_requests;
    for number in 1..=2 * most as u64 {
        let request = request(number, Bytes::from_static(b"op"));
        let input = Input::Request(Verified::from_link(request));
        primary.take(at(1), input).unwrap();
    }
    primary.end_turn();
    assert_eq!(proposed(&mut primary), [most, most]);
}

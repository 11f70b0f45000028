//! Results that are kept for repeats count where it is decided when a checkpoint is due.

use bytes::Bytes;
use quorate_execution::{Call, Executor, Rest, Service};
use quorate_replica::Checkpoints;
use quorate_state::{Fault, Txn};
use quorate_wire::message::Request;
use quorate_wire::{PublicKey, RequestNumber, Seq, SessionId};

/// Writes nothing, and answers to a byte with so many KiB.
struct Long;

impl Service for Long {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op[0] == 255
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        Ok(vec![0; self.result_bytes(op)].into())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn weight(&self, _: &Bytes) -> usize {
        0
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        usize::from(op[0]) << 10
    }
}

/// After how many batches of one request, each in the next of so many sessions, the first checkpoint is due; `most` for what requests may weigh.
fn due_after(sessions: u64, op: u8, most: usize) -> u64 {
    let executor = Executor::new(Long).keeping(10 << 10);
    let mut checkpoints = Checkpoints::new(most);
    let mut is_due = |seq: &u64| {
        let (session, number) = (SessionId(1 + seq % sessions), RequestNumber(*seq));
        let op = Bytes::copy_from_slice(&[op]);
        let request = Request::new(PublicKey([1; 32]), session, number, op);
        checkpoints.is_due_after(Seq(*seq), [&request].into_iter(), &executor)
    };
    (1..=128).find(|seq| is_due(seq)).expect("one is due")
}

/// Results bring a checkpoint, those of a session no more than are kept of it; those of reads bring none.
#[test]
fn results_bring_a_checkpoint() {
    // What is written may come to 40 KiB; a request counts as 129 bytes.
    let most = 10 << 10;
    assert_eq!(due_after(100, 5, most), 8, "eight of 5 KiB");
    assert_eq!(due_after(4, 5, most), 8, "each twice");
    assert_eq!(due_after(100, 50, most), 4, "no more than 10 KiB of each");
    assert_eq!(due_after(1, 5, most), 80, "by the weight of requests");
    assert_eq!(due_after(100, 255, most), 80, "they only read");
}

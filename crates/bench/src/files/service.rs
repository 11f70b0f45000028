//! The file service as a benchmark's replica runs it: the usual one, or one whose writes wait.

use std::time::Duration;

use bytes::Bytes;
use quorate_execution::graph::Uses;
use quorate_execution::{Call, Ran, Reading, Rest, Service};
use quorate_files::op::Place;
use quorate_files::{Action, Admission, FileService, Genesis, Op};
use quorate_net::group::Files;
use quorate_state::{Fault, Txn};
use quorate_wire::Decode;
use serde::{Deserialize, Serialize};

/// How files are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// How long each write waits, as for a slow disk. The CBASE paper (DSN 2004), Figure 6.
    pub wait_ms: u32,
}

/// The service.
#[derive(Clone, Debug)]
pub struct ServedFiles {
    files: FileService,
    serving: Serving,
}

impl ServedFiles {
    /// A volume as the group file describes it, served in this way.
    pub fn new(files: Files, serving: Serving, admission: Admission) -> ServedFiles {
        let files = FileService::new(
            Genesis::for_all(files.capacity_bytes, files.inodes),
            admission,
        );
        ServedFiles { files, serving }
    }

    fn wait(&self, op: &Bytes) {
        if self.serving.wait_ms > 0 && waits(op) {
            std::thread::sleep(Duration::from_millis(self.serving.wait_ms.into()));
        }
    }
}

/// Whether it is a write at an offset. Those at the end of a file have no run step: they would hold up the thread that orders,
/// and with it the agreement, which is not to be measured. No workload whose writes are to wait has any.
fn waits(op: &Bytes) -> bool {
    match Op::from_bytes(op.clone()) {
        Ok(op) => match op.action {
            Action::Write(write) => matches!(write.place, Place::At(_)),
            _ => false,
        },
        Err(_) => false,
    }
}

impl Service for ServedFiles {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        self.files.genesis(txn)
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        self.files.is_read_only(op)
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        self.wait(op);
        self.files.execute(txn, call, op)
    }

    fn read(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Reading, Fault> {
        self.files.read(txn, call, op)
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        self.files.session_ended(txn, call)
    }

    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        self.files.uses_at_end(txn, call)
    }

    fn uses(&self, call: &Call, op: &Bytes) -> Uses {
        self.files.uses(call, op)
    }

    fn weight(&self, op: &Bytes) -> usize {
        self.files.weight(op)
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        self.files.result_bytes(op)
    }

    fn work(op: &Bytes) -> usize {
        FileService::work(op)
    }

    fn run(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        self.wait(op);
        self.files.run(txn, call, op)
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        call: &Call,
        op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        self.files.settle(txn, call, op, ran)
    }
}

#[cfg(test)]
mod tests {
    use quorate_files::op::Write;
    use quorate_files::{Ino, Nothing, Target, Who};

    use super::*;

    fn op(action: Action) -> Bytes {
        let who = Who::new(0, 0);
        Op { who, action }.to_bytes()
    }

    fn write(place: Place) -> Bytes {
        op(Action::Write(Write {
            target: Target::Ino(Ino(2)),
            place,
            data: Bytes::from_static(b"abc"),
        }))
    }

    /// What waits is a write that has a run step, and nothing else.
    #[test]
    fn writes_wait() {
        assert!(waits(&write(Place::At(7))));
        assert!(!waits(&write(Place::End(Nothing))));
        assert!(!waits(&op(Action::Fsync(Target::Ino(Ino(2))))));
        assert!(!waits(&Bytes::from_static(b"no operation")));
    }
}

//! A run step on its way to a worker and back.

use alloc::string::String;

use bytes::Bytes;
use quorate_state::{Fault, Layer, View};
use quorate_wire::message::ReplyBody;

use crate::graph::OpId;
use crate::reading;
use crate::service::{Call, Ran, Service};

/// An operation that may run now, with all that it takes. Wherever and whenever it runs, the same comes of it: what others
/// write meanwhile is not in its view, and nothing that it needs is missing from it.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) id: OpId,
    pub(crate) view: View,
    pub(crate) call: Call,
    pub(crate) op: Bytes,
    pub(crate) how: How,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It was ordered.
    Ordered,
    /// It only reads, and was not; its result is wanted in full or by its digest.
    Read {
        /// Which of these.
        in_full: bool,
    },
}

/// What came of the run step.
#[derive(Clone, Debug)]
pub(crate) enum Came {
    /// What the service said and wrote.
    Ran(Ran, Layer),
    /// The reply to a read.
    Read(ReplyBody),
}

/// What a job came to.
#[derive(Clone, Debug)]
pub struct Completion {
    pub(crate) id: OpId,
    /// That, or why this replica can't go on.
    pub(crate) came: Result<Came, Broken>,
}

/// Why a job came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The state can't be read.
    Fault(Fault),
    /// The service did not come to its end.
    Died(String),
}

impl Job {
    /// Runs the operation.
    pub fn run<S: Service>(&self, service: &S) -> Completion {
        let mut txn = self.view.begin();
        let (call, op) = (&self.call, &self.op);
        let came = match self.how {
            How::Ordered => service
                .run(&mut txn, call, op)
                .map(|ran| Came::Ran(ran, txn.into_writes())),
            How::Read { in_full } => reading::read(service, &mut txn, call, op, in_full)
                .map(|(body, _)| Came::Read(body)),
        };
        Completion {
            id: self.id,
            came: came.map_err(Broken::Fault),
        }
    }

    /// The operation could not be run to its end, as where the service panics. It takes the replica out.
    pub fn failed(&self, why: String) -> Completion {
        Completion {
            id: self.id,
            came: Err(Broken::Died(why)),
        }
    }
}

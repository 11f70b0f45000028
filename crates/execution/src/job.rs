//! A run step on its way to a worker and back.

use alloc::string::String;

use bytes::Bytes;
use quorate_state::{Fault, Layer, View};

use crate::graph::OpId;
use crate::service::{Call, Ran, Service};

/// An operation that may run now, with all that it takes. Wherever and whenever it runs, the same comes of it: what others
/// write meanwhile is not in its view, and nothing that it needs is missing from it.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) id: OpId,
    pub(crate) view: View,
    pub(crate) call: Call,
    pub(crate) op: Bytes,
}

/// What a job came to.
#[derive(Clone, Debug)]
pub struct Completion {
    pub(crate) id: OpId,
    /// What the service said and wrote; or why this replica can't go on.
    pub(crate) ran: Result<(Ran, Layer), Broken>,
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
        let ran = service.run(&mut txn, &self.call, &self.op);
        Completion {
            id: self.id,
            ran: ran
                .map(|ran| (ran, txn.into_writes()))
                .map_err(Broken::Fault),
        }
    }

    /// The operation could not be run to its end, as where the service panics. It takes the replica out.
    pub fn failed(&self, why: String) -> Completion {
        Completion {
            id: self.id,
            ran: Err(Broken::Died(why)),
        }
    }
}

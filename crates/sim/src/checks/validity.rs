//! Validity: every executed request was really made by its client.

use std::collections::BTreeSet;

use quorate_wire::Digest;
use quorate_wire::message::Request;

use super::Failure;

/// All requests that clients have sent.
#[derive(Debug, Default)]
pub struct Validity {
    sent: BTreeSet<Digest>,
}

impl Validity {
    /// A client sends a request.
    pub fn on_sent(&mut self, request: &Request) {
        self.sent.insert(request.digest());
    }

    /// A request is executed.
    pub fn on_executed(&self, request: &Request) -> Result<(), Failure> {
        if self.sent.contains(&request.digest()) {
            return Ok(());
        }
        Err(Failure::new(
            "validity",
            format!(
                "a request that nobody made was executed: session {:?} number {:?} of {:?}",
                request.session(),
                request.number(),
                request.client()
            ),
        ))
    }
}

//! One signature for all that leaves at a time and is to be signed: signatures are dear, above all for those who check them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_wire::Authenticator;
use quorate_wire::message::{AuthRequest, ClientMessage};

use super::{Client, ClientOutput};

impl Client {
    /// Signs what is about to leave and has no authenticator yet.
    pub(super) fn sign(&mut self) {
        let mut digests = Vec::new();
        for unsigned in self.out.iter_mut().filter_map(unsigned) {
            let digest = unsigned.request.digest();
            // To several replicas, one after the other.
            if digests.last() != Some(&digest) {
                digests.push(digest);
            }
        }
        let signatures = self.key.sign_together(&self.group, &digests);
        let mut at = 0;
        for unsigned in self.out.iter_mut().filter_map(unsigned) {
            at += usize::from(digests[at] != unsigned.request.digest());
            unsigned.auth = Authenticator::Signed(Box::new(signatures[at].clone()));
        }
    }
}

fn unsigned(output: &mut ClientOutput) -> Option<&mut AuthRequest> {
    let ClientOutput::Send(_, message) = output else {
        return None;
    };
    match message {
        ClientMessage::Request(m) | ClientMessage::Repeat(m) | ClientMessage::Watch(m) => {
            m.auth.is_empty().then_some(m)
        }
        ClientMessage::ReportPlease(_) | ClientMessage::Attach(_) | ClientMessage::Read(_) => None,
    }
}

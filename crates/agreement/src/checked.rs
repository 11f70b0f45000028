//! Signatures of clients that the driver has checked before it hands over what carries them.
//!
//! A replica could check each signature where it needs to know; a driver with processors to spare asks what would have to be checked
//! ([`Agreement::unchecked_in`], [`Agreement::unchecked_of`]), has that done elsewhere, and says what came of it
//! ([`Input::Checked`](crate::Input::Checked)). What is not known here any more, or never was, is checked here as ever: so nothing depends
//! on what a driver says but who does the work. Whose signatures count at all is another question, and is not asked here.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quorate_wire::message::{AuthRequest, PeerMessage, PrePrepare, Request};
use quorate_wire::{
    Authentication, Authenticator, ClientId, Digest, ReplicaId, Seq, SharedSignature, Signature,
    View,
};

use crate::core::Agreement;

/// A signature: whose it is said to be, what it is over, and itself.
pub type Signed = (ClientId, Digest, Signature);

/// Signatures that are remembered; with one more the oldest is forgotten. What is checked comes right before what needs it.
pub(crate) const MOST: usize = 2048;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// By all that makes a signature what it is, so that nothing is ever said of another one.
    verdicts: HashMap<Signed, bool, FixedState>,
    in_order: VecDeque<Signed>,
    /// The last place of which a proposal was looked at, and in which view.
    looked_at: (View, Seq),
}

impl Checked {
    /// `seed` is nobody else's to know.
    pub fn new(seed: u64) -> Checked {
        Checked {
            verdicts: HashMap::with_hasher(FixedState::with_seed(seed)),
            in_order: VecDeque::new(),
            looked_at: (View(0), Seq(0)),
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    fn note(&mut self, signed: Signed, is_right: bool) {
        if self.verdicts.insert(signed, is_right).is_none() {
            self.in_order.push_back(signed);
        }
        if self.in_order.len() > MOST
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.verdicts.remove(&oldest);
        }
    }

    /// Whether a signature is right, if that is known.
    pub fn verdict(&self, signed: &Signed) -> Option<bool> {
        self.verdicts.get(signed).copied()
    }
}

impl Agreement {
    /// The driver has checked these.
    pub(crate) fn on_checked(&mut self, verdicts: Vec<(Signed, bool)>) {
        for (signed, is_right) in verdicts {
            self.checked.note(signed, is_right);
        }
    }

    /// The signature of a request that would have to be checked if its client sent it now.
    pub fn unchecked_of(&mut self, request: &AuthRequest) -> Option<Signed> {
        let client = request.request.client();
        let (leads, is_known) = (self.is_primary(), self.is_known_request(request));
        let is_checked = match self.config.authentication {
            Authentication::Signature => !leads || !is_known,
            Authentication::Mac if self.is_guest(&client) => leads && !is_known,
            // A backup may hold it against its primary; a primary looks at those of suspects, each by itself.
            Authentication::Mac => !leads && !self.pool.has_claim(&client),
        };
        let counts = is_checked && self.is_member(&client) && self.may_check(&client);
        self.unknown(request).filter(|_| counts)
    }

    /// The signatures in a peer's message that would have to be checked if it came now.
    pub fn unchecked_in(&mut self, from: ReplicaId, message: &PeerMessage) -> Vec<Signed> {
        match message {
            PeerMessage::Request(m) => {
                let is_checked = self.is_primary() && !self.is_known_request(m);
                let counts = is_checked && self.is_member(&m.request.client());
                self.unknown(m).filter(|_| counts).into_iter().collect()
            }
            PeerMessage::PrePrepare(m) => self.unchecked_of_proposal(from, m),
            _ => Vec::new(),
        }
    }

    fn is_known_request(&self, m: &AuthRequest) -> bool {
        let entry = self.pool.get(&m.request.digest());
        entry.is_some_and(|entry| entry.authentic)
    }

    /// Of the proposals for a place one is looked at: whatever a faulty primary sends, it has no more checked than if that were done
    /// where it is voted for.
    fn unchecked_of_proposal(&mut self, from: ReplicaId, m: &PrePrepare) -> Vec<Signed> {
        let is_signed = |body: &Arc<AuthRequest>| matches!(body.auth, Authenticator::Signed(_));
        let is_next = self.active && (m.view, from) == (self.view, self.primary());
        let is_new = self.checked.looked_at < (m.view, m.seq);
        if !is_next || !is_new || !self.in_window(m.seq) || !m.bodies.iter().any(is_signed) {
            return Vec::new();
        }
        self.checked.looked_at = (m.view, m.seq);
        let mut named = self.pool.set(m.batch.requests.iter().copied());
        let mut open = Vec::new();
        for body in &m.bodies {
            let client = body.request.client();
            // Each once; also those of guests of whom this replica has not heard.
            if named.remove(&body.request.digest())
                && !self.is_known_request(body)
                && (self.is_member(&client) || self.is_guest(&client))
                && let Some(signed) = self.unknown(body)
                && !open.contains(&signed)
            {
                open.push(signed);
            }
        }
        open
    }

    /// Whose signature that of a request is, and what it is over in this group.
    pub(crate) fn signed(&self, request: &Request, its: &SharedSignature) -> Signed {
        let root = its.root(self.config.keys.group(), &request.digest());
        (request.client(), root, *its.signature())
    }

    /// A request's signature, if it has one of which it is not known whether it is right.
    fn unknown(&self, request: &AuthRequest) -> Option<Signed> {
        let Authenticator::Signed(its) = &request.auth else {
            return None;
        };
        let client = request.request.client();
        // What replicas' identities sign comes seldom, and may be of another kind.
        if self.replica_of_identity(&client).is_some() {
            return None;
        }
        let signed = self.signed(&request.request, its);
        self.verdict(&signed).is_none().then_some(signed)
    }

    /// Whether a client's signature is right, as far as that is known without a check.
    pub(crate) fn verdict(&self, signed: &Signed) -> Option<bool> {
        let (client, root, its) = signed;
        if self.shared.get(client) == Some(&(*root, *its)) {
            return Some(true);
        }
        self.checked.verdict(signed)
    }
}

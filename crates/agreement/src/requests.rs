//! What clients ask, as it comes in: over their own links, or passed on by others. PBFT 2002, 4.1.

use alloc::sync::Arc;

use quorate_wire::message::{AuthRequest, PeerMessage};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Authenticator, ReplicaId, SessionId, Verified};

use crate::core::Agreement;
use crate::io::{Output, Rejected};
use crate::pool::Entry;

impl Agreement {
    /// A client's request, over its own link.
    pub(crate) fn on_request(&mut self, request: Verified<AuthRequest>) -> Result<(), Rejected> {
        let request = request.into_inner();
        self.check_allowed(&request)?;
        let is_right = self.check_linked(&request)?;
        let is_claim = self.is_claimable(&request, is_right) && self.may_claim(&request);
        let small = request.request.op().len() <= self.config.tuning.inline_bytes;
        let repeated = self.pool.get(&request.request.digest()).is_some();
        // PBFT 2002, 4.1: backups relay to the primary, in case the client's word did not reach it. A small request
        // comes here only when the client repeats it; a long one comes here anyway, so the first time is no sign.
        let relayed = self.active && !self.is_primary() && (small || repeated);
        let relayed = relayed.then(|| PeerMessage::Request(request.clone()));
        let taken = self.take_request(request, is_claim, is_right);
        if let Some(message) =
            relayed.filter(|_| matches!(taken, Ok(()) | Err(Rejected::Duplicate)))
        {
            self.out.push_back(Output::Send(self.primary(), message));
        }
        taken
    }

    /// A request that its client has sent to the primary as well: it is not relayed, so that the primary can't know what is looked
    /// at.
    pub(crate) fn on_watch(&mut self, request: Verified<AuthRequest>) -> Result<(), Rejected> {
        let request = request.into_inner();
        self.check_allowed(&request)?;
        // It has come late. Who waited for it again would wait for what no primary orders a second time.
        let known = self.pool.get(&request.request.digest());
        if known.is_some_and(Entry::is_executed) {
            return Err(Rejected::Duplicate);
        }
        let is_right = self.check_linked(&request)?;
        if self.pool.has_claim(&request.request.client()) {
            return Err(Rejected::TooOften);
        }
        if !self.is_claimable(&request, is_right) {
            return Err(Rejected::BadAuthentication);
        }
        if !self.may_claim(&request) {
            return Err(Rejected::TooOften);
        }
        self.take_request(request, true, is_right)
    }

    /// Whether a request may be held against a primary that does not order it: of those that open a session few are, since a primary lets a client open few.
    fn may_claim(&mut self, request: &AuthRequest) -> bool {
        let request = &request.request;
        request.session() != SessionId(0) || self.allows_opening_claim(&request.client())
    }

    /// Sessions are opened and closed seldom: whoever does so all the time is refused before it costs anybody else anything.
    fn check_allowed(&mut self, request: &AuthRequest) -> Result<(), Rejected> {
        let request = &request.request;
        let is_new =
            request.session() == SessionId(0) && self.pool.get(&request.digest()).is_none();
        match is_new && !self.allows_session(&request.client()) {
            true => Err(Rejected::TooOften),
            false => Ok(()),
        }
    }

    /// Takes an authentic request in; `is_right`: its signature was found right. One that is known already may become a claim all the same.
    fn take_request(
        &mut self,
        request: AuthRequest,
        is_claim: bool,
        is_right: bool,
    ) -> Result<(), Rejected> {
        let digest = request.request.digest();
        let taken = self.pool.insert_authentic(Arc::new(request), self.now.mono);
        if is_right && taken.is_ok() {
            // What was there before may have come with another signature.
            self.pool.mark_checked(&digest);
        }
        if is_claim {
            self.pool.claim(&digest, self.now.mono);
        }
        taken?;
        self.accept_proposals();
        Ok(())
    }

    /// A client's request, passed on by a backup.
    pub(crate) fn on_forwarded(
        &mut self,
        from: ReplicaId,
        request: AuthRequest,
    ) -> Result<(), Rejected> {
        if let Some(of) = self.replica_of_identity(&request.request.client()) {
            return self.on_statement(from, of, request);
        }
        // A faulty replica must not make backups wait for requests that it has kept from earlier days.
        if !self.is_primary() {
            return Err(Rejected::NotThePrimary);
        }
        let client = request.request.client();
        let signed = matches!(request.auth, Authenticator::Signed(_));
        // Of what is known nothing has to be checked; its client is still there.
        let known = self.pool.get(&request.request.digest());
        if let Some(entry) = known.filter(|entry| entry.authentic) {
            let again = entry.is_executed();
            // A read whose result too few have is asked again. Its client does so over its own link with this replica; what others have kept
            // would be ordered at the client's cost as often as they like.
            if again && !(signed && self.allows_urgency(&client)) && !is_on(Mutant::ReplaysTaken) {
                return Err(Rejected::Duplicate);
            }
            if again {
                self.introduce(&client)?;
            }
            self.hurry(&request);
            return self.take_request(request, false, false);
        }
        // Its MAC is right for this replica, and the backups that it is wrong for would not vote for it.
        if !signed && self.is_suspect(&client) && !is_on(Mutant::SuspectsRelayed) {
            return Err(Rejected::Unsigned);
        }
        let is_right = self.is_signed(&request);
        if !is_right && !self.has_right_mac(&request) {
            return Err(Rejected::BadAuthentication);
        }
        self.introduce(&client)?;
        let allowed = self.check_allowed(&request);
        if allowed.is_err() && !(is_right && self.allows_shown_opening(&client)) {
            return allowed;
        }
        let is_claim = self.is_claimable(&request, is_right);
        let shown = is_right.then(|| request.clone());
        self.take_request(request, is_claim, is_right)?;
        if let Some(request) = shown {
            self.hurry(&request);
        }
        Ok(())
    }

    /// A backup waits for it, while it waits here for its client's turn: it goes first.
    fn hurry(&mut self, request: &AuthRequest) {
        let digest = request.request.digest();
        let small = request.request.op().len() <= self.config.tuning.inline_bytes;
        let waits = self.pool.get(&digest).is_some_and(Entry::is_waiting);
        let signed = matches!(request.auth, Authenticator::Signed(_));
        // Once: another backup, or a faulty one time and again, would use up what the client may hurry.
        let is_new = small && waits && signed && !self.pool.is_urgent(&digest);
        if is_new && self.allows_urgency(&request.request.client()) {
            self.pool.hurry(&digest);
        }
    }
}

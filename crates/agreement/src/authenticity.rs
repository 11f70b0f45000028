//! Whether clients made the requests that this replica is shown. PBFT 2002, 4.1; PBFT 2000, 4 (BFT-PK).
//!
//! In `mac` mode a client's own link vouches for it, and what others pass on carries a MAC for this replica, or the client's
//! signature. In `signature` mode nothing but the signature counts. Signatures of a batch are checked together, and one that several
//! requests share is checked once.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::auth::verify_all;
use quorate_wire::message::AuthRequest;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{
    Authentication, Authenticator, ClientId, Digest, IdentityKey, MacKey, SharedSignature,
};

use crate::Millis;
use crate::checked::Signed;
use crate::core::Agreement;
use crate::io::Rejected;

/// The authenticator keys remembered for one client: its connections, and a few that have just closed.
pub(crate) const KEYS_PER_CLIENT: usize = 48;
/// [`Config::client_keys_last_ms`](crate::Config::client_keys_last_ms) of a group whose links are not made anew.
pub const CLIENT_KEYS_LAST_MS: Millis = 30_000;

/// How long a client's first key has been here before wrong MACs are surely its fault: what came on the way to it is through.
const KEY_SETTLES_MS: Millis = 3_000;
/// The same, since this replica has started, of a client that has no link here.
const SETTLING_MS: Millis = 10_000;

/// The keys of a client's links.
#[derive(Clone, Debug)]
pub(crate) struct ClientKeys {
    /// When the first of them came.
    since: Millis,
    /// Each with when its link has gone.
    keys: VecDeque<(MacKey, Option<Millis>)>,
}

/// How many signatures of clients were checked here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// One by one.
    pub alone: u64,
    /// With others, at about half the cost; also those that were then checked one by one, since one of them was wrong.
    pub together: u64,
}

/// What is known of a signature.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// Whether it is right.
    Already(bool),
    /// It is checked with others, at this place among them.
    With(usize),
}

impl ClientKeys {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

impl Agreement {
    /// How many signatures of clients were checked here, for tests.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// A client's link stands, with this key.
    pub(crate) fn on_client_key(&mut self, client: ClientId, key: MacKey) -> Result<(), Rejected> {
        if !self.config.clients.contains(&client) {
            // Its MACs count for nothing.
            self.on_guest(client, None)?;
            self.accept_proposals();
            return Ok(());
        }
        let new = || ClientKeys {
            since: self.now.mono,
            keys: VecDeque::new(),
        };
        let keys = &mut self.mac_keys.entry(client).or_insert_with(new).keys;
        if !keys.iter().any(|(known, _)| *known == key) {
            if keys.len() == KEYS_PER_CLIENT {
                // Somebody with the same client key who comes and goes all the time takes nobody's who stays.
                let gone = keys.iter().position(|(_, gone)| gone.is_some());
                keys.remove(gone.unwrap_or(0));
            }
            keys.push_back((key, None));
            // Requests that came before their client's link may be checked now.
            self.accept_proposals();
        }
        Ok(())
    }

    /// A link with a client has gone, which had this key.
    pub(crate) fn on_client_key_gone(&mut self, client: &ClientId, key: &MacKey) {
        let keys = self.mac_keys.get_mut(client).map(|known| &mut known.keys);
        let own = keys.into_iter().flatten().find(|(known, _)| known == key);
        if let Some((_, gone)) = own {
            *gone = Some(self.now.mono);
        }
    }

    /// A request over its client's link; whether its signature was found right. A primary checks signatures when it proposes, many together.
    pub(crate) fn check_linked(&mut self, request: &AuthRequest) -> Result<bool, Rejected> {
        let signed = matches!(request.auth, Authenticator::Signed(_));
        let client = request.request.client();
        let is_guest = self.is_guest(&client);
        if is_guest && !signed {
            return Err(Rejected::Unsigned);
        }
        // The backups could not tell whose it is.
        if request.auth.is_empty() && self.config.quorum.n() > 1 {
            return Err(Rejected::BadAuthentication);
        }
        if self.is_primary() && (is_guest || self.is_suspect(&client)) {
            if !signed {
                return Err(Rejected::Unsigned);
            }
            let is_right = match self.config.authentication {
                Authentication::Mac => Some(self.check_suspect(request)?),
                Authentication::Signature => None,
            };
            self.introduce(&client)?;
            if let Some(is_right) = is_right {
                return Ok(is_right);
            }
        }
        if self.config.authentication == Authentication::Mac {
            return Ok(false);
        }
        let verdict = match self.is_primary() {
            true => self.verdict_of(request),
            false => Some(self.is_signed(request)),
        };
        match verdict {
            Some(false) => Err(Rejected::BadAuthentication),
            _ => Ok(verdict.is_some()),
        }
    }

    /// The backups will check what a suspect has signed, so its primary does. Right signatures are as many as the client likes: it pays
    /// for them with its turns, and a primary before may have made a correct client a suspect, by spoiling what it passed on.
    fn check_suspect(&mut self, request: &AuthRequest) -> Result<bool, Rejected> {
        let (client, known) = (
            request.request.client(),
            self.pool.get(&request.request.digest()),
        );
        // What was executed waits again, with this signature.
        if known.is_some_and(|entry| entry.authentic && !entry.is_executed()) {
            return Ok(false);
        }
        if !self.may_check(&client) {
            return Err(Rejected::TooOften);
        }
        if self.is_signed(request) {
            return Ok(true);
        }
        self.allows_check(&client);
        Err(Rejected::BadAuthentication)
    }

    /// Whether any other replica could see that a request is its client's. Its signature is checked where it is not known to be right. One
    /// claim of a client at a time is enough to see how its primary treats it, and more would cost more than they tell.
    pub(crate) fn is_claimable(&mut self, request: &AuthRequest, is_right: bool) -> bool {
        if self.is_guest(&request.request.client()) {
            return false;
        }
        match self.config.authentication {
            Authentication::Mac => {
                let client = request.request.client();
                let is_signed = matches!(request.auth, Authenticator::Signed(_));
                let may = is_signed && !self.pool.has_claim(&client);
                may && (is_right || self.allows_check(&client) && self.is_signed(request))
            }
            // A backup has checked it, and a primary will when it proposes, if nobody has.
            Authentication::Signature => is_right,
        }
    }

    /// Whether its MAC for this replica is right, where MACs count.
    pub(crate) fn has_right_mac(&self, request: &AuthRequest) -> bool {
        let keys = self.mac_keys.get(&request.request.client());
        let Some(known) = keys.filter(|_| self.config.authentication == Authentication::Mac) else {
            return false;
        };
        let (me, digest, now) = (self.config.me, request.request.digest(), self.now.mono);
        let lasts = self.config.client_keys_last_ms;
        let counts = |gone: &Option<Millis>| gone.is_none_or(|at| now < at + lasts);
        let mut keys = known.keys.iter().filter(|(_, gone)| counts(gone));
        keys.any(|(key, _)| request.auth.check_mac(me, key, &digest).is_ok())
    }

    /// Whether it has a right signature of its client.
    pub(crate) fn is_signed(&mut self, request: &AuthRequest) -> bool {
        let Authenticator::Signed(shared) = &request.auth else {
            return false;
        };
        let signed = self.signed(&request.request, shared);
        let (client, root, signature) = &signed;
        if !self.is_member(client) {
            return false;
        }
        if let Some(is_right) = self.verdict(&signed) {
            if is_right {
                self.remember(shared, &signed);
            }
            return is_right;
        }
        self.checks.alone += 1;
        let checked = match self.identity(client) {
            Some(identity) => identity.verify(root, signature),
            None => client.verify(root, signature),
        };
        let is_right = checked.is_ok();
        if is_right {
            self.remember(shared, &signed);
        }
        is_right
    }

    /// Whether a request's signature is right, as far as that is known without a check.
    fn verdict_of(&self, AuthRequest { request, auth, .. }: &AuthRequest) -> Option<bool> {
        let Authenticator::Signed(its) = auth else {
            return Some(false);
        };
        let client = request.client();
        // What the signature is over takes some hashing, in vain where nothing is known of it.
        let shared = self.shared.get(&client);
        let is_known = shared.is_some_and(|(_, known)| known == its.signature());
        if !self.is_member(&client) || !is_known && self.checked.len() == 0 {
            return None;
        }
        self.verdict(&self.signed(request, its))
    }

    /// Whether it is one of the group's clients, a guest that is known, or a replica's identity. Links prove it; a signature alone proves that somebody has the key.
    pub(crate) fn is_member(&self, client: &ClientId) -> bool {
        self.config.clients.contains(client)
            || self.is_known_guest(client)
            || self.replica_of_identity(client).is_some()
            || is_on(Mutant::StrangersBelieved)
    }

    /// Whether its signatures are remembered: who has no link here is one of too many.
    fn is_remembered(&self, client: &ClientId) -> bool {
        self.config.clients.contains(client) || self.is_guest_here(client)
    }

    /// Whether a client has lately sent MACs that were right for a primary and wrong here, or many have.
    pub(crate) fn is_suspect(&self, client: &ClientId) -> bool {
        self.suspects.hold(client, self.now.mono)
    }

    /// As primary of a view that begins: what a suspect has sent without a signature while this replica was a backup, or others
    /// passed on, is not proposed. Nor is what guests have sent: nobody has looked at their signatures here, and those who have left since may be
    /// more than backups take from this primary. They repeat it.
    pub(crate) fn forget_doubtful(&mut self) {
        let forgets_suspects = !is_on(Mutant::SuspectsRelayed);
        let is_doubtful = |known: &AuthRequest| {
            let client = known.request.client();
            let signed = matches!(known.auth, Authenticator::Signed(_));
            forgets_suspects && !signed && self.is_suspect(&client) || self.is_guest(&client)
        };
        let waiting = self.pool.waiting();
        let doubtful = waiting.filter(|known| is_doubtful(known));
        let doubtful: Vec<Digest> = doubtful.map(|known| known.request.digest()).collect();
        self.pool.forget_waiting(&doubtful);
    }

    /// A client's request was right for a primary and is not here: whoever saw one takes nothing from that client, once it is the primary, but what is
    /// signed. A replica that has just started, or whose link with the client has, may be without the key, and so it is for no longer than that
    /// lasts.
    pub(crate) fn suspect(&mut self, client: ClientId) {
        // Guests sign in any case, and whoever is made up would only take the places of others.
        if !self.config.clients.contains(&client) {
            return;
        }
        let since_start = self.started + SETTLING_MS;
        let settles = match self.mac_keys.get(&client) {
            Some(known) => known.since + KEY_SETTLES_MS,
            None => since_start,
        };
        let now = self.now.mono;
        self.suspects
            .suspect(client, now, settles, now >= since_start);
    }

    /// This replica leaves the view that it leads: whose requests it has proposed with MACs, and are in no batch that has prepared, must sign when it leads the next time.
    pub(crate) fn doubt_proposed(&mut self) {
        let view = self.view;
        let open = self.slots.values().filter_map(|slot| {
            let proposal = slot.proposal?;
            let has_prepared = slot.prepared.as_ref().is_some_and(|vote| vote.view == view);
            let open = !has_prepared && slot.committed.is_none();
            open.then(|| slot.batches.get(&proposal.digest)).flatten()
        });
        let requests = open.flat_map(|batch| &batch.requests);
        let known = requests.filter_map(|digest| self.pool.get(digest));
        let with_macs = known
            .map(|entry| entry.known())
            .filter(|known| matches!(known.auth, Authenticator::Macs(_)) && !known.auth.is_empty());
        let both = with_macs.map(|known| (known.request.digest(), known.request.client()));
        let both: Vec<(Digest, ClientId)> = both
            .filter(|(_, client)| self.config.clients.contains(client))
            .collect();
        self.suspects.doubt(both.into_iter(), self.now.mono);
    }

    /// Which of some requests that others have passed on are their clients'.
    pub(crate) fn are_authentic(&mut self, requests: &[Arc<AuthRequest>]) -> Vec<bool> {
        let signed = self.are_signed(requests);
        let both = requests.iter().zip(signed);
        both.map(|(request, signed)| signed || self.has_right_mac(request))
            .collect()
    }

    /// Which of them their clients have signed. Signatures are checked together, and one by one only where one of them is wrong; what
    /// carries MACs, or is a stranger's, keeps no others from that.
    fn are_signed(&mut self, requests: &[Arc<AuthRequest>]) -> Vec<bool> {
        let mut open = Vec::new();
        let known: Vec<Known> = requests
            .iter()
            .map(|request| self.look_at_signature(request, &mut open))
            .collect();
        let all_right = verify_all(&open);
        self.checks.together += open.len() as u64;
        if !all_right {
            self.checks.alone += open.len() as u64;
        }
        let right: Vec<bool> = open
            .iter()
            .map(|(client, root, its)| all_right || client.verify(root, its).is_ok())
            .collect();
        let both = requests.iter().zip(known);
        both.map(|(request, known)| match known {
            Known::Already(is_right) => is_right,
            Known::With(at) => {
                if right[at]
                    && let Authenticator::Signed(its) = &request.auth
                {
                    self.remember(its, &open[at]);
                }
                right[at]
            }
        })
        .collect()
    }

    /// What is known of a request's signature before it is checked; what has to be checked is added to `open`.
    fn look_at_signature(
        &self,
        AuthRequest { request, auth, .. }: &AuthRequest,
        open: &mut Vec<Signed>,
    ) -> Known {
        let client = request.client();
        let Authenticator::Signed(its) = auth else {
            return Known::Already(false);
        };
        if !self.is_member(&client) {
            return Known::Already(false);
        }
        let signed = self.signed(request, its);
        // A chip's signature is of another kind than those that are checked together.
        if let Some(identity @ IdentityKey::P256(_)) = self.identity(&client) {
            return Known::Already(identity.verify(&signed.1, &signed.2).is_ok());
        }
        if let Some(is_right) = self.verdict(&signed) {
            return Known::Already(is_right);
        }
        let same = open.iter().position(|other| *other == signed);
        Known::With(same.unwrap_or_else(|| {
            open.push(signed);
            open.len() - 1
        }))
    }

    /// A signature was found right: others that share it may come in several batches.
    fn remember(&mut self, shared: &SharedSignature, (client, root, its): &Signed) {
        if shared.is_shared() && self.is_remembered(client) {
            self.shared.insert(*client, (*root, *its));
        }
    }

    /// Whether the signatures of requests that are here are right, where only signatures count; those are checked that were not. What is not its client's is
    /// dropped. As primary a replica takes in what it checks when it proposes it; where its view ended before that, it has not.
    pub(crate) fn are_checked(&mut self, requests: &[Digest]) -> bool {
        if self.config.authentication == Authentication::Mac {
            return true;
        }
        let unchecked = requests.iter().filter_map(|d| {
            let entry = self.pool.get(d)?;
            (!entry.checked).then(|| entry.known().clone())
        });
        let unchecked: Vec<Arc<AuthRequest>> = unchecked.collect();
        let right = self.are_authentic(&unchecked);
        for (request, right) in unchecked.iter().zip(&right) {
            let digest = request.request.digest();
            match right {
                true => {
                    self.pool.mark_checked(&digest);
                    self.pool.claim(&digest, self.now.mono);
                }
                false => self.pool.forget(&digest),
            }
        }
        right.into_iter().all(|right| right)
    }
}

//! Whether clients made the requests that this replica is shown. PBFT 2002, 4.1; PBFT 2000, 4 (BFT-PK).
//!
//! In `mac` mode a client's own link vouches for it, and what others pass on carries a MAC for this replica, or the client's
//! signature. In `signature` mode nothing but the signature counts. Signatures of a batch are checked together.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::auth::verify_all;
use quorate_wire::message::AuthRequest;
use quorate_wire::{Authentication, Authenticator, ClientId, Digest, MacKey};

use crate::Millis;
use crate::core::Agreement;
use crate::io::Rejected;

/// The authenticator keys remembered for one client: its connections, and a few that have just closed.
const KEYS_PER_CLIENT: usize = 8;

/// How long a client that has sent wrong MACs must sign what it asks.
const SUSPECT_MS: Millis = 60_000;
/// The most such clients that are remembered.
const MAX_SUSPECTS: usize = 4096;
/// How long a replica that has started waits for its clients' links.
const SETTLING_MS: Millis = 30_000;

impl Agreement {
    /// A client's link stands, with this key.
    pub(crate) fn on_client_key(&mut self, client: ClientId, key: MacKey) {
        let keys: &mut VecDeque<MacKey> = self.mac_keys.entry(client).or_default();
        if !keys.contains(&key) {
            if keys.len() == KEYS_PER_CLIENT {
                keys.pop_front();
            }
            keys.push_back(key);
            // Requests that came before their client's link may be checked now.
            self.accept_proposals();
        }
    }

    /// A request over its client's link. A primary checks signatures when it proposes, many together.
    pub(crate) fn check_linked(&self, request: &AuthRequest) -> Result<(), Rejected> {
        let signed = matches!(request.auth, Authenticator::Signed(_));
        if !signed && self.is_primary() && self.is_suspect(&request.request.client()) {
            return Err(Rejected::Unsigned);
        }
        let fine = match self.config.authentication {
            Authentication::Mac => true,
            Authentication::Signature if self.is_primary() => signed,
            Authentication::Signature => self.is_signed(request),
        };
        fine.then_some(()).ok_or(Rejected::BadAuthentication)
    }

    /// Whether any other replica could see that a request is its client's. Its signature is checked where that is not known.
    pub(crate) fn is_claimable(&self, request: &AuthRequest) -> bool {
        match self.config.authentication {
            Authentication::Mac => {
                !self.pool.is_claim(&request.request.digest()) && self.is_signed(request)
            }
            // A backup has checked it, and a primary will when it proposes.
            Authentication::Signature => !self.is_primary(),
        }
    }

    /// Whether a request that others have passed on is its client's.
    pub(crate) fn is_authentic(&self, request: &AuthRequest) -> bool {
        let macs = self.config.authentication == Authentication::Mac;
        self.is_signed(request) || macs && self.has_right_mac(request)
    }

    fn has_right_mac(&self, request: &AuthRequest) -> bool {
        let Some(keys) = self.mac_keys.get(&request.request.client()) else {
            return false;
        };
        let (me, digest) = (self.config.me, request.request.digest());
        let mut keys = keys.iter();
        keys.any(|key| request.auth.check_mac(me, key, &digest).is_ok())
    }

    fn is_signed(&self, request: &AuthRequest) -> bool {
        let Authenticator::Signed(signature) = &request.auth else {
            return false;
        };
        let digest = request.request.digest();
        request.request.client().verify(&digest, signature).is_ok()
    }

    /// Whether a client has lately sent MACs that were right for a primary and wrong here.
    fn is_suspect(&self, client: &ClientId) -> bool {
        let until = self.suspects.get(client);
        until.is_some_and(|until| self.now.mono < *until)
    }

    /// Aardvark, NSDI 2009, 3.1 (the Big MAC attack): a client whose requests a primary takes and backups can't. Each such request
    /// can cost the group a view; so whoever saw one takes nothing from that client, once it is the primary, but what is
    /// signed. A replica that has just started is still without its clients' keys.
    pub(crate) fn suspect(&mut self, client: ClientId) {
        if self.now.mono < self.started + SETTLING_MS {
            return;
        }
        let now = self.now.mono;
        self.suspects.retain(|_, until| now < *until);
        if self.suspects.len() < MAX_SUSPECTS || self.suspects.contains_key(&client) {
            self.suspects.insert(client, now + SUSPECT_MS);
        }
    }

    /// Which of some requests that others have passed on are their clients'.
    pub(crate) fn are_authentic(&self, requests: &[Arc<AuthRequest>]) -> Vec<bool> {
        let signatures = requests.iter().filter_map(|r| match &r.auth {
            Authenticator::Signed(signature) => {
                Some((r.request.client(), r.request.digest(), *signature))
            }
            Authenticator::Macs(_) => None,
        });
        let signatures: Vec<_> = signatures.collect();
        let all_signed = signatures.len() == requests.len() && verify_all(&signatures);
        match all_signed {
            true => alloc::vec![true; requests.len()],
            false => requests.iter().map(|r| self.is_authentic(r)).collect(),
        }
    }

    /// As primary: whether a batch may be proposed. What is not its client's is dropped, and then it may not.
    pub(crate) fn check_before_proposal(&mut self, requests: &[Digest]) -> bool {
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

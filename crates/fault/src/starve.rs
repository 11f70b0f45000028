//! A primary that gives the requests of one client no place, while it serves all others.
//!
//! What the others hear is one story: each batch without what that client asks, and votes for just that batch.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{AuthRequest, Batch, Commit, PeerMessage, PrePrepare, Prepare};
use quorate_wire::{ClientId, Digest, Seq, View};

use crate::{Identity, Sent, now};

/// For how many places it is remembered what was proposed there.
const MAX_PLACES: usize = 1024;

/// What is proposed at a place in place of a batch.
#[derive(Debug)]
struct Told {
    instead_of: Digest,
    batch: Batch,
    filler: Option<Arc<AuthRequest>>,
}

/// Whom it starves, and what it has proposed.
#[derive(Debug, Default)]
pub(crate) struct Starver {
    /// The first client that has asked for anything.
    first: Option<ClientId>,
    /// Of the first two the one with the lowest key: nobody is starved beside whom nobody is served.
    starved: Option<ClientId>,
    /// The last request of somebody else. A place must not stay empty.
    served: Option<Arc<AuthRequest>>,
    told: BTreeMap<(View, Seq), Told>,
}

impl Starver {
    pub fn for_peer(&mut self, identity: &Identity, message: PeerMessage) -> Sent<PeerMessage> {
        now(match message {
            PeerMessage::PrePrepare(m) if identity.quorum.primary(m.view) == identity.me => {
                PeerMessage::PrePrepare(self.without_starved(m))
            }
            PeerMessage::Prepare(m) => PeerMessage::Prepare(Prepare {
                digest: self.told(m.view, m.seq, m.digest),
                ..m
            }),
            PeerMessage::Commit(m) => PeerMessage::Commit(Commit {
                digest: self.told(m.view, m.seq, m.digest),
                ..m
            }),
            other => other,
        })
    }

    /// What the others know as this batch.
    fn told(&self, view: View, seq: Seq, digest: Digest) -> Digest {
        let told = self.told.get(&(view, seq));
        let told = told.filter(|told| told.instead_of == digest);
        told.map_or(digest, |told| told.batch.digest())
    }

    fn without_starved(&mut self, m: PrePrepare) -> PrePrepare {
        m.bodies.iter().for_each(|body| self.meet(body));
        let (at, digest) = ((m.view, m.seq), m.batch.digest());
        // Each proposal goes to all others, and is repeated.
        if self.told.get(&at).is_none_or(|t| t.instead_of != digest) {
            let Some(told) = self.replace(&m) else {
                return m;
            };
            if self.told.len() == MAX_PLACES {
                self.told.pop_first();
            }
            self.told.insert(at, told);
        }
        let told = &self.told[&at];
        let bodies = m.bodies.into_iter().chain(told.filler.clone());
        let named = |body: &Arc<AuthRequest>| told.batch.requests.contains(&body.request.digest());
        PrePrepare {
            batch: told.batch.clone(),
            bodies: bodies.filter(named).collect(),
            ..m
        }
    }

    fn meet(&mut self, body: &Arc<AuthRequest>) {
        let client = body.request.client();
        match self.first {
            None => self.first = Some(client),
            Some(first) if first != client && self.starved.is_none() => {
                self.starved = Some(first.min(client));
            }
            Some(_) => {}
        }
        if self.starved.is_none_or(|starved| starved != client) {
            self.served = Some(body.clone());
        }
    }

    /// The batch without the requests of the one that is starved, if it has any. Where nothing is left, somebody else's last request is
    /// ordered once more, which changes nothing.
    fn replace(&self, m: &PrePrepare) -> Option<Told> {
        let starved = self.starved?;
        let is_its = |digest: &Digest| {
            let mut bodies = m.bodies.iter();
            bodies.any(|b| b.request.client() == starved && b.request.digest() == *digest)
        };
        let mut requests: Vec<Digest> = m.batch.requests.clone();
        requests.retain(|digest| !is_its(digest));
        if requests.len() == m.batch.requests.len() {
            return None;
        }
        let filler = self.served.clone().filter(|_| requests.is_empty());
        requests.extend(filler.iter().map(|body| body.request.digest()));
        let time = m.batch.time;
        Some(Told {
            instead_of: m.batch.digest(),
            batch: Batch { time, requests },
            filler,
        })
    }
}

//! A client: the client's half of the protocol, what it asks for, and the history of what it saw.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_agreement::client::Client;
use quorate_replica::ConnectionId;
use quorate_wire::message::{AuthRequest, ClientMessage};
use quorate_wire::{ClientId, Digest, Mac, PublicKey, Quorum, ReplicaId, SessionId};

use crate::workload::Asker;

/// A client.
#[derive(Debug)]
pub struct ClientNode {
    /// Its identity.
    pub key: ClientId,
    /// The protocol, while it is up.
    pub core: Option<Client>,
    /// How often it has started.
    pub incarnation: u64,
    /// Its connections, by server.
    pub links: BTreeMap<usize, ConnectionId>,
    /// What it asks for.
    pub asker: Asker,
    /// How many operations it will still begin.
    pub left: usize,
    /// Operations that it has begun and that have not ended.
    pub open: BTreeSet<usize>,
    /// Operations handed to the protocol that no request carries yet, in their order.
    pub unsent: VecDeque<usize>,
    /// When its next tick is due.
    pub tick_at: Option<u64>,
    /// Whether the next operation is already scheduled.
    pub thinking: bool,
    /// Replicas for which its authenticators are wrong.
    pub bad_macs: BTreeSet<ReplicaId>,
    /// A client that sends each request to the primary alone, and never again.
    pub stubborn: bool,
    requests: BTreeSet<Digest>,
}

impl ClientNode {
    /// A client that is not started yet.
    pub fn new(seed: u64, number: usize, operations: usize) -> ClientNode {
        ClientNode {
            key: PublicKey([100 + number as u8; 32]),
            core: None,
            incarnation: 0,
            links: BTreeMap::new(),
            asker: Asker::new(seed, number),
            left: operations,
            open: BTreeSet::new(),
            unsent: VecDeque::new(),
            tick_at: None,
            thinking: false,
            bad_macs: BTreeSet::new(),
            stubborn: false,
            requests: BTreeSet::new(),
        }
    }

    /// Starts it. `nonce` tells its runs apart.
    pub fn start(&mut self, quorum: Quorum, nonce: u64, now_us: u64) {
        self.incarnation += 1;
        self.tick_at = None;
        self.core = Some(Client::new(quorum, self.key, nonce, now_us / 1000));
    }

    /// It is gone, with all that it was waiting for; gives the operations whose fate nobody knows.
    pub fn crash(&mut self) -> BTreeSet<usize> {
        self.core = None;
        self.links.clear();
        self.unsent.clear();
        self.thinking = false;
        std::mem::take(&mut self.open)
    }

    /// A request leaves: gives the operation that it carries, if this is the first time.
    pub fn carries(&mut self, request: &AuthRequest) -> Option<usize> {
        let new = self.requests.insert(request.request.digest());
        let is_operation = request.request.session() != SessionId(0);
        match new && is_operation {
            true => self.unsent.pop_front(),
            false => None,
        }
    }

    /// Spoils the authenticators of a message, if this client is one of those.
    pub fn spoil(&self, message: &mut ClientMessage) {
        let (ClientMessage::Request(m) | ClientMessage::Repeat(m)) = message else {
            return;
        };
        for replica in &self.bad_macs {
            if let Some(mac) = m.auth.0.get_mut(usize::from(replica.0)) {
                *mac = Mac([0xee; 16]);
            }
        }
    }

    /// Whether all that it wanted is done.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.open.is_empty()
    }
}

//! A client: the client's half of the protocol, what it asks for, and the history of what it saw.

use std::collections::{BTreeMap, BTreeSet};

use quorate_agreement::client::{Client, ClientOptions};
use quorate_replica::ConnectionId;
use quorate_wire::message::{AuthRequest, ClientMessage};
use quorate_wire::{
    Authenticator, ClientId, KeyPair, Mac, Quorum, ReplicaId, RequestNumber, SessionId,
};

use crate::keys::{GROUP, key_pair};
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
    /// When its next tick is due.
    pub tick_at: Option<u64>,
    /// Whether the next operation is already scheduled.
    pub thinking: bool,
    /// Replicas for which its authenticators are wrong.
    pub bad_macs: BTreeSet<ReplicaId>,
    /// A client that sends each request to the primary alone, and never again.
    pub stubborn: bool,
    /// The last request that it sent to the primary.
    pub last_sent: Option<AuthRequest>,
    /// In which session it sent an operation last.
    pub last_session: SessionId,
    /// The highest number that it has sent there.
    pub last_number: RequestNumber,
    /// Its reads that somebody has answered from a state with a tentative batch.
    pub early: BTreeSet<RequestNumber>,
}

/// The key of a client.
pub fn client_key(number: usize) -> KeyPair {
    key_pair(100 + number as u8)
}

/// The key of a client that floods; the group names it. Nobody else has it: under a key holder's it could say that a replica recovers.
pub fn flooder_key(number: usize) -> KeyPair {
    key_pair(150 + number as u8)
}

impl ClientNode {
    /// A client that is not started yet.
    pub fn new(seed: u64, number: usize, operations: usize) -> ClientNode {
        ClientNode {
            key: client_key(number).public(),
            core: None,
            incarnation: 0,
            links: BTreeMap::new(),
            asker: Asker::new(seed, number),
            left: operations,
            open: BTreeSet::new(),
            tick_at: None,
            thinking: false,
            bad_macs: BTreeSet::new(),
            stubborn: false,
            last_sent: None,
            last_session: SessionId(0),
            last_number: RequestNumber(0),
            early: BTreeSet::new(),
        }
    }

    /// Starts it. `nonce` tells its runs apart.
    pub fn start(
        &mut self,
        quorum: Quorum,
        options: ClientOptions,
        key: KeyPair,
        signs_all: bool,
        nonce: u64,
        now_us: u64,
    ) {
        self.incarnation += 1;
        self.tick_at = None;
        self.early.clear();
        let client = Client::new(GROUP, quorum, options, key, nonce, now_us / 1000);
        self.core = Some(match signs_all {
            true => client.signing(),
            false => client,
        });
    }

    /// It is gone, with all that it was waiting for; gives the operations whose fate nobody knows.
    pub fn crash(&mut self) -> BTreeSet<usize> {
        self.core = None;
        self.links.clear();
        self.thinking = false;
        std::mem::take(&mut self.open)
    }

    /// Spoils the authenticators of a message, if this client is one of those.
    pub fn spoil(&self, message: &mut ClientMessage) {
        let (ClientMessage::Request(m) | ClientMessage::Watch(m) | ClientMessage::Repeat(m)) =
            message
        else {
            return;
        };
        for replica in &self.bad_macs {
            if let Authenticator::Macs(macs) = &mut m.auth
                && let Some(mac) = macs.get_mut(usize::from(replica.0))
            {
                *mac = Mac([0xee; 16]);
            }
        }
    }

    /// Whether all that it wanted is done.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.open.is_empty()
    }
}

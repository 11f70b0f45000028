//! What the tests of replicas begin with.

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Config, Now, Tuning};
use quorate_execution::graph::Uses;
use quorate_execution::{Call, Rest, Service};
use quorate_replica::{ConnectionId, Restored, genesis};
use quorate_state::{Fault, MemorySnapshot, Txn};
use quorate_wire::message::{AuthRequest, Request};
use quorate_wire::{
    Authentication, Authenticator, Digest, KeyPair, LogIndex, Quorum, ReplicaId, ReplicaKeys,
    RequestNumber, Seq, SessionId, Signer, Time,
};

/// The client's.
pub const CONNECTION: ConnectionId = ConnectionId(1);

/// Gives back what it is given. Operations have nothing to do with each other, and one that begins with `read` changes nothing.
#[derive(Clone, Debug)]
pub struct Echo;

impl Service for Echo {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op.starts_with(b"read")
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        Ok(op.clone())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _: &Call, _: &Bytes) -> Uses {
        Uses::none()
    }
}

pub fn at(ms: u64) -> Now {
    Now {
        mono: ms,
        wall: Time(1_000_000_000_000 + ms * 1_000_000),
    }
}

/// The group's id.
pub const GROUP: Digest = Digest([7; 32]);

/// The group's one client.
pub fn client() -> KeyPair {
    KeyPair::from_seed(&[99; 32])
}

/// A replica of a group of `n`, without a log.
pub fn config(n: u8, me: ReplicaId) -> Config {
    let keys: Vec<KeyPair> = (1..=n).map(|i| KeyPair::from_seed(&[i; 32])).collect();
    Config {
        quorum: Quorum::new(usize::from(n)).unwrap(),
        me,
        keys: ReplicaKeys::Standing {
            group: GROUP,
            keys: keys.iter().map(KeyPair::public).collect(),
        },
        key: Signer::standing(GROUP, keys[usize::from(me.0)].clone()),
        clients: [client().public()].into(),
        timeout_ms: 1_000,
        guests: false,
        clock_bound_ms: 60_000,
        client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
        authentication: Authentication::Mac,
        durable: false,
        checkpoint_bytes: usize::MAX,
        kept_bytes: quorate_wire::message::session::KEPT_BYTES,
        tuning: Tuning::default(),
    }
}

/// The beginning of a service's state, and the store that has it.
pub fn beginning<S: Service>(service: S) -> (Restored, MemorySnapshot) {
    let layer = genesis(service).unwrap();
    let (store, root) = MemorySnapshot::default().apply(&layer).unwrap();
    let restored = Restored {
        seq: Seq(0),
        complete: true,
        root,
        snapshot: Arc::new(store.clone()),
        records: Vec::new(),
        next_index: LogIndex(0),
        former: false,
    };
    (restored, store)
}

/// A request of the client's, without its word for it.
pub fn request(session: u64, number: u64, op: Bytes) -> AuthRequest {
    let (session, number) = (SessionId(session), RequestNumber(number));
    AuthRequest {
        request: Request::new(client().public(), session, number, op),
        auth: Authenticator::Macs(Vec::new()),
        replier: ReplicaId(0),
    }
}

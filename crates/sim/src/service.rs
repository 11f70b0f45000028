//! The services that are run: lists under keys, and the file service.

use bytes::Bytes;
use quorate_execution::graph::{Scope, Uses};
use quorate_execution::{Call, Ran, Reading, Rest, Service};
use quorate_files::{Admission, FileService, Genesis};
use quorate_state::{Fault, Txn};
use quorate_wire::{Decode, Encode, record};

use crate::knobs::Workload;
use crate::sharing;

record! {
    /// An operation on a list. A list only grows, so that each of its states tells all that happened before.
    pub struct ListOp {
        /// [`APPEND`], [`GET`] or [`CAS`].
        pub kind: u8,
        /// Which list.
        pub key: u8,
        /// A number that no other operation has.
        pub token: u64,
        /// The length that the list must have for [`CAS`].
        pub expected: u32,
        /// How much work it is said to be, in KiB.
        pub work: u32,
        /// Makes the operation long.
        pub padding: Bytes,
    }
}

/// Appends the token; the result is the list after it.
pub const APPEND: u8 = 1;
/// The result is the list.
pub const GET: u8 = 2;
/// Appends the token if the list has the expected length; the result is the list after it.
pub const CAS: u8 = 3;

/// Under keys from here up the whole padding is kept, for large states.
pub const BULKY: u8 = 200;

record! {
    /// The result of an operation on a list.
    pub struct List {
        /// The tokens, in their order.
        pub tokens: Vec<u64>,
    }
}

/// The service under test.
#[derive(Clone, Debug)]
pub enum AnyService {
    /// Lists.
    Lists,
    /// Files.
    Files(FileService),
}

impl AnyService {
    /// The service of a workload.
    pub fn new(workload: Workload) -> AnyService {
        match workload {
            Workload::KeyValue => AnyService::Lists,
            Workload::Files => AnyService::files(Admission::members_only()),
            Workload::Shared => AnyService::files(sharing::admission()),
        }
    }

    fn files(admission: Admission) -> AnyService {
        AnyService::Files(FileService::new(Genesis::for_all(64 << 20, 500), admission))
    }
}

impl Service for AnyService {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        match self {
            AnyService::Lists => Ok(()),
            AnyService::Files(files) => files.genesis(txn),
        }
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        match self {
            AnyService::Lists => op.first() == Some(&GET),
            AnyService::Files(files) => files.is_read_only(op),
        }
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        match self {
            AnyService::Lists => lists(txn, op),
            AnyService::Files(files) => files.execute(txn, call, op),
        }
    }

    fn read(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Reading, Fault> {
        match self {
            AnyService::Lists => named_list(txn, op),
            AnyService::Files(files) => files.read(txn, call, op),
        }
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        match self {
            AnyService::Lists => Ok(Rest::Nothing),
            AnyService::Files(files) => files.session_ended(txn, call),
        }
    }

    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        match self {
            AnyService::Lists => Ok(None),
            AnyService::Files(files) => files.uses_at_end(txn, call),
        }
    }

    fn uses(&self, call: &Call, op: &Bytes) -> Uses {
        match self {
            AnyService::Lists => list_uses(op),
            AnyService::Files(files) => files.uses(call, op),
        }
    }

    fn weight(&self, op: &Bytes) -> usize {
        match self {
            AnyService::Lists => op.len(),
            AnyService::Files(files) => files.weight(op),
        }
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        match self {
            AnyService::Lists => op.len(),
            AnyService::Files(files) => files.result_bytes(op),
        }
    }

    // It is asked for the service that a group has, and not for what it is told: an operation on files is no canonical one on lists.
    fn work(op: &Bytes) -> usize {
        match ListOp::from_bytes(op.clone()) {
            Ok(op) => op.work as usize * 1024,
            Err(_) => FileService::work(op),
        }
    }

    fn run(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        match self {
            AnyService::Lists => lists(txn, op).map(Ran::Done),
            AnyService::Files(files) => files.run(txn, call, op),
        }
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        call: &Call,
        op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        match self {
            AnyService::Lists => Ok(ran),
            AnyService::Files(files) => files.settle(txn, call, op, ran),
        }
    }
}

fn list_uses(op: &Bytes) -> Uses {
    let Ok(op) = ListOp::from_bytes(op.clone()) else {
        return Uses::none();
    };
    let list = Scope::Object(1, op.key.into());
    match op.kind {
        APPEND | CAS => Uses::none().write(list).write(Scope::Object(2, op.token)),
        _ => Uses::none().read(list),
    }
}

/// Where a list is in the state.
pub fn list_key(key: u8) -> Bytes {
    Bytes::copy_from_slice(&[1, key])
}

/// A list as it is in the state: only who sends it reads it.
fn named_list(txn: &mut Txn<'_>, op: &Bytes) -> Result<Reading, Fault> {
    if let Ok(op) = ListOp::from_bytes(op.clone()) {
        let key = list_key(op.key);
        if let Some(summary) = txn.summary(&key)? {
            let mut reading = Reading::new();
            reading.push_value(key, summary);
            return Ok(reading);
        }
    }
    lists(txn, op).map(Reading::from)
}

fn lists(txn: &mut Txn<'_>, op: &Bytes) -> Result<Bytes, Fault> {
    let Ok(op) = ListOp::from_bytes(op.clone()) else {
        return Ok(Bytes::new());
    };
    let key = list_key(op.key);
    let mut tokens = match txn.get(&key)? {
        Some(value) => {
            List::from_bytes(value)
                .map_err(|e| Fault::value(&key, e))?
                .tokens
        }
        None => Vec::new(),
    };
    let appends =
        op.kind == APPEND || (op.kind == CAS && tokens.len() as u64 == u64::from(op.expected));
    if appends {
        tokens.push(op.token);
        let list = List { tokens };
        txn.put(key, list.to_bytes().into());
        // One entry for each token as well, so that the state grows and its tree has several levels.
        let own = [&[2][..], &op.token.to_be_bytes()].concat();
        let kept = match op.key >= BULKY {
            true => op.padding.len(),
            false => op.padding.len().min(100),
        };
        let padding = op.padding.slice(..kept);
        txn.put(own.into(), padding);
        tokens = list.tokens;
    }
    Ok(List { tokens }.to_bytes().into())
}

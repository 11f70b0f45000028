//! The state, byte by byte.
//!
//! | key | value |
//! |---|---|
//! | `C` | [`Counters`] |
//! | `E` epoch | [`Router`] |
//! | `H` key | [`Holder`] |
//! | `h` epoch key | nothing: what an epoch holds |
//! | `I` epoch number | [`Intent`] |
//! | `V` name | [`crate::op::Value`] |
//!
//! Numbers in keys are big-endian, so that their order is the numbers'.

use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::codec::{Decode, Encode};
use quorate_wire::{ClientId, Time, record};

use crate::op::{Epoch, Key, MAX_EPOCHS};

record! {
    /// Numbers that were given last.
    pub struct Counters {
        pub epoch: u64,
        pub intent: u64,
    }
}

record! {
    /// An epoch.
    pub struct Router {
        pub client: ClientId,
        pub instance: [u8; 16],
        /// In milliseconds.
        pub lease: u32,
        pub expires: Time,
        pub held: u32,
        pub open: u32,
        pub ancestors: Vec<Epoch>,
    }
}

record! {
    /// Who holds a key.
    pub struct Holder {
        pub epoch: Epoch,
        /// Whether it was asked for and not released; else intentions alone hold it.
        pub kept: bool,
        /// How many open intentions are under it.
        pub intents: u32,
    }
}

record! {
    /// An intention.
    pub struct Intent {
        pub keys: Vec<Key>,
        pub record: Bytes,
    }
}

pub const COUNTERS: &[u8] = b"C";
pub const EPOCHS: u8 = b'E';
pub const HOLDERS: u8 = b'H';
pub const HELD: u8 = b'h';
pub const INTENTS: u8 = b'I';
pub const VALUES: u8 = b'V';

/// A key of the state.
pub fn key(kind: u8, parts: &[&[u8]]) -> Bytes {
    let mut out = Vec::with_capacity(41);
    out.push(kind);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.into()
}

pub fn of_epoch(kind: u8, epoch: Epoch, rest: &[u8]) -> Bytes {
    key(kind, &[&epoch.to_be_bytes(), rest])
}

/// What is kept under a key. What can't be read is a damaged state, which the tree over it finds: here it is as if it were not there.
pub fn get<T: Decode>(txn: &Txn<'_>, key: &[u8]) -> Result<Option<T>, Fault> {
    Ok(txn.get(key)?.and_then(|kept| T::from_bytes(kept).ok()))
}

pub fn put<T: Encode>(txn: &mut Txn<'_>, key: Bytes, value: &T) {
    txn.put(key, value.to_bytes().into());
}

/// Up to `limit` entries whose keys begin with a prefix, from after one of them.
pub fn under(
    txn: &Txn<'_>,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, Fault> {
    let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
    let mut found = txn.range(from, Bound::Unbounded, limit)?;
    found.retain(|(key, _)| key.starts_with(prefix));
    Ok(found)
}

/// All epochs, in order of their numbers.
pub fn routers(txn: &Txn<'_>) -> Result<Vec<(Epoch, Router)>, Fault> {
    let found = under(txn, &[EPOCHS], None, MAX_EPOCHS)?;
    let read = |(key, kept): (Bytes, Bytes)| {
        let number = key[1..].try_into().map(u64::from_be_bytes).ok()?;
        Some((number, Router::from_bytes(kept).ok()?))
    };
    Ok(found.into_iter().filter_map(read).collect())
}

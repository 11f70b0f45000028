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

/// What a value says.
///
/// # Errors
/// It is none that was written here: the state is damaged. Taken for absent it would lose what is under way, on this replica alone.
pub fn read<T: Decode>(key: &[u8], kept: Bytes) -> Result<T, Fault> {
    T::from_bytes(kept).map_err(|e| Fault::value(key, e))
}

/// What is kept under a key.
///
/// # Errors
/// As of [`read`], and of the store.
pub fn get<T: Decode>(txn: &Txn<'_>, key: &[u8]) -> Result<Option<T>, Fault> {
    txn.get(key)?.map(|kept| read(key, kept)).transpose()
}

/// The number at the end of a key.
///
/// # Errors
/// As of [`read`].
pub fn number(key: &[u8], from: usize) -> Result<u64, Fault> {
    let number = key.get(from..).and_then(|rest| rest.try_into().ok());
    let number = number.map(u64::from_be_bytes);
    number.ok_or_else(|| Fault::value(key, "the key ends in no number"))
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
    let entry = |(at, kept): (Bytes, Bytes)| Ok((number(&at, 1)?, read(&at, kept)?));
    found.into_iter().map(entry).collect()
}

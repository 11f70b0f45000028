//! What the fuzz targets, and the tests here, need of this crate's inside.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};

use quorate_state::{Fault, Txn};
use quorate_wire::codec::Decode;

use crate::op::{Epoch, Key};
use crate::records::{self, HELD, HOLDERS, INTENTS};

pub use crate::records::{Counters, Holder, Intent, Router, key};

/// What must hold after each operation: the counts are what is there, and what is under way has its keys. Reads the whole state.
///
/// # Errors
/// What does not hold, in words.
pub fn invariants(txn: &Txn<'_>) -> Result<(), String> {
    let fault = |fault: Fault| format!("{fault:?}");
    let under = |kind: u8| records::under(txn, &[kind], None, usize::MAX >> 1).map_err(fault);
    let (mut held, mut open) = (BTreeMap::new(), BTreeMap::new());
    let mut keys = BTreeMap::new();
    for (at, kept) in under(INTENTS)? {
        let epoch = number(&at)?;
        *open.entry(epoch).or_insert(0u32) += 1;
        let intent = Intent::from_bytes(kept).map_err(|e| e.to_string())?;
        for key in intent.keys {
            *keys.entry((epoch, key)).or_insert(0u32) += 1;
        }
    }
    for (at, kept) in under(HOLDERS)? {
        let holder = Holder::from_bytes(kept).map_err(|e| e.to_string())?;
        let key = Key::try_from(&at[1..]).map_err(|e| e.to_string())?;
        let intents = keys.remove(&(holder.epoch, key)).unwrap_or(0);
        if intents != holder.intents || !holder.kept && intents == 0 {
            return Err(format!("{intents} intentions are under {holder:?}"));
        }
        *held.entry(holder.epoch).or_insert(0u32) += 1;
        let index = records::of_epoch(HELD, holder.epoch, &key);
        if txn.get(&index).map_err(fault)?.is_none() {
            return Err(format!("an epoch does not know of {holder:?}"));
        }
    }
    if !keys.is_empty() {
        return Err(format!("keys of intentions that nobody holds: {keys:?}"));
    }
    let (index, all) = (under(HELD)?.len(), held.values().sum::<u32>());
    if index as u32 != all {
        return Err(format!("epochs know of {index} keys, of {all}"));
    }
    for (epoch, router) in records::routers(txn).map_err(fault)? {
        let counted = [held.remove(&epoch), open.remove(&epoch)].map(Option::unwrap_or_default);
        if counted != [router.held, router.open] {
            return Err(format!("{epoch} has {counted:?}: {router:?}"));
        }
    }
    match held.is_empty() && open.is_empty() {
        true => Ok(()),
        false => Err(format!("of no epoch: keys {held:?}, intentions {open:?}")),
    }
}

fn number(at: &[u8]) -> Result<Epoch, String> {
    let number = at.get(1..9).and_then(|number| number.try_into().ok());
    let number = number.map(u64::from_be_bytes);
    number.ok_or_else(|| format!("{at:?} is no epoch's"))
}

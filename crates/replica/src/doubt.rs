//! A value that the store gives back as it was written, and that nobody can have written so: by its sums it is whole, and yet it
//! does not decode, or it is missing. A disk, a program or a person has changed this replica's state behind its back.
//!
//! The replica votes on, and doubts its state: it goes back to the newest one that others vouch for, fetches what differs, and
//! executes again from there. Its own tree may say of the value what the others say, if the value alone was changed; then that
//! one is forgotten first, tree and all, so that it differs. Where the others have the same value there is nothing to mend, and the replica
//! stops: it can't read what the group has agreed on, and its state stays as it is.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Input as AgreementInput, Now};
use quorate_execution::Service;
use quorate_state::transfer::Target;
use quorate_state::{Fault, Layer, tree};
use quorate_wire::digest::Content;
use quorate_wire::{Digest, Seq};

use crate::io::Output;
use crate::replica::Replica;
use crate::transfer::{Piece, Transfer};

/// How many values are mended in the life of a replica's process. More are no accident.
const MOST: usize = 256;
/// How often one is mended before the group has another stable checkpoint. What is written anew each time comes of executing.
const MOST_AT_ONE: u32 = 3;

/// Values that could not be read.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    mended: BTreeMap<Bytes, Mended>,
    /// The one for which the state is being compared, and whether the store has been asked about it.
    present: Option<(Bytes, bool)>,
}

/// A value that was fetched since it could not be read.
#[derive(Debug)]
struct Mended {
    /// What the others vouch for under its key, since when that is known: nothing, or a value with this digest.
    vouched: Option<Option<Digest>>,
    /// How often it could not be read with this stable checkpoint.
    times: u32,
    stable: Seq,
}

impl<S: Service> Replica<S> {
    /// The value under a key can't be read.
    pub(crate) fn doubt(&mut self, now: Now, key: Bytes, what: &str) {
        if !self.transfer.is_idle() {
            // Of a state that is being given up.
            return;
        }
        let fault = Fault::value(&key, what);
        if let Err(why) = self.may_mend(&key) {
            return self.fail(format!("{fault}. {why}"));
        }
        self.out.push_back(Output::Doubt(fault.to_string()));
        self.roll_back();
        self.backlog.clear();
        self.drop_flight();
        self.doubts.present = Some((key, false));
        self.set_transfer(Transfer::Doubted);
        self.agree(now, AgreementInput::StateDoubted);
    }

    /// Whether the others may have something else under this key; or why not.
    fn may_mend(&mut self, key: &Bytes) -> Result<(), &'static str> {
        if self.quorum.f() == 0 {
            return Err(
                "A group of one replica has nobody who could help: look for a backup of the files",
            );
        }
        let found = self
            .state
            .get(key)
            .map_err(|_| "Its store has failed as well")?;
        let found = found.map(|value| Digest::of(Content::StateValue, &value));
        let stable = self.agreement.standing().stable.0;
        let mended = &mut self.doubts.mended;
        if mended.len() >= MOST && !mended.contains_key(key) {
            return Err(
                "So many others could not be read that this replica's disk or program is not to be trusted",
            );
        }
        let it = mended.entry(key.clone()).or_insert(Mended {
            vouched: None,
            times: 0,
            stable,
        });
        if it.vouched == Some(found) {
            return Err(
                "The others vouch for the same, so fetching it does not help: is this program older than theirs?",
            );
        }
        if it.stable != stable {
            (it.times, it.stable) = (0, stable);
        }
        it.times += 1;
        match it.times > MOST_AT_ONE {
            true => Err(
                "It was fetched, and what was executed since has made it so again: a defect of the program",
            ),
            false => Ok(()),
        }
    }

    /// Has the store forget a value of which its own tree says something else, before what differs from the target is looked for.
    /// False if there is none.
    pub(crate) fn forget_doubted(&mut self, target: Target) -> Result<bool, Fault> {
        let Some((key, asked)) = &mut self.doubts.present else {
            return Ok(false);
        };
        if core::mem::replace(asked, true) {
            return Ok(false);
        }
        let key = key.clone();
        let found = self.newest.get(&key)?;
        let found = found.map(|value| Digest::of(Content::StateValue, &value));
        if tree::lookup(&*self.newest, &key)? == found {
            return Ok(false);
        }
        self.store(Piece {
            seq: target.checkpoint,
            complete: false,
            layer: Arc::new(Layer::from([(key, None)])),
        });
        Ok(true)
    }

    /// The state is one that others vouch for, also under the key that was doubted.
    pub(crate) fn note_vouched(&mut self) -> Result<(), Fault> {
        if let Some((key, _)) = self.doubts.present.take() {
            let value = self.newest.get(&key)?;
            let vouched = value.map(|value| Digest::of(Content::StateValue, &value));
            if let Some(it) = self.doubts.mended.get_mut(&key) {
                it.vouched = Some(vouched);
            }
        }
        Ok(())
    }
}

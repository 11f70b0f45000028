//! Reads that name the chunks of a file where they can: then one replica alone reads them from its disk and sends them, and the others
//! vouch for their digests.
//!
//! A chunk is named if all of it is read and its stored form is the content itself, which a chunk's length tells ([`crate::layout`]). That
//! follows from the state alone, so all replicas name the same chunks, whether their stores have digests beside them or not.

use bytes::Bytes;
use quorate_execution::Reading;
use quorate_state::{Fault, Txn};
use quorate_wire::Encode;

use crate::answer::{Answer, Data, Outcome};
use crate::data::pieces;
use crate::fs::{Caller, Done, Fs, Stop};
use crate::layout::{self, CHUNK_BYTES};
use crate::op::{Action, MAX_IO_BYTES};

/// How much is to be read, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    offset: u64,
    len: u32,
}

/// Makes a read one of nothing, which is judged and answered as it was but for the content; and says what that is. `None`, and the
/// action as it was, where no whole chunk can be in it.
pub(crate) fn take_wanted(action: &mut Action) -> Option<Wanted> {
    let Action::Read(read) = action else {
        return None;
    };
    let (offset, len) = (read.offset, read.len);
    let may_hold_chunks = (CHUNK_BYTES..=MAX_IO_BYTES as u64).contains(&u64::from(len));
    may_hold_chunks.then(|| {
        read.len = 0;
        Wanted { offset, len }
    })
}

/// The outcome of a read of nothing, and what is wanted in place of that.
pub(crate) fn with_content(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    outcome: Outcome,
    wanted: Wanted,
) -> Result<Reading, Fault> {
    let Outcome(Ok(Answer::Data(data))) = &outcome else {
        return Ok(Reading::from(outcome.to_bytes()));
    };
    let content = Fs::new(txn, caller).map_err(Stop::Failed);
    match content.and_then(|fs| fs.named(&outcome, data, wanted)) {
        Ok(content) => Ok(content),
        Err(Stop::Refused(errno)) => Ok(Reading::from(Outcome(Err(errno)).to_bytes())),
        Err(Stop::Failed(fault)) => Err(fault),
    }
}

impl Fs<'_, '_> {
    /// An outcome with what is wanted in the place of its data, which is empty.
    fn named(&self, outcome: &Outcome, data: &Data, wanted: Wanted) -> Done<Reading> {
        // It may have lost its last name: whether it can be read is judged already.
        let inode = self.any_inode(data.attr.ino)?;
        let end = wanted
            .offset
            .saturating_add(u64::from(wanted.len))
            .min(inode.size);
        let length = end.saturating_sub(wanted.offset) as u32;

        // The content's length comes right before it, and the attributes right after.
        let mut before = outcome.to_bytes();
        let attr = before.split_off(before.len() - data.attr.to_bytes().len());
        before.truncate(before.len() - size_of::<u32>());
        let mut out = Reading::new();
        out.push(before);
        out.push(Bytes::copy_from_slice(&length.to_le_bytes()));
        for piece in pieces(wanted.offset, end) {
            let is_whole = (piece.to - piece.from) as u64 == CHUNK_BYTES;
            if is_whole {
                let key = layout::extent_key(inode.data, piece.chunk);
                let summary = self.txn.summary(&key)?;
                if let Some(summary) = summary.filter(|s| u64::from(s.length) == CHUNK_BYTES) {
                    out.push_value(key, summary);
                    continue;
                }
            }
            let mut bytes = alloc::vec![0; piece.to - piece.from];
            if let Some(stored) = self.stored(inode.data, piece.chunk)? {
                stored.copy_to(piece.from, &mut bytes);
            }
            out.push(bytes.into());
        }
        out.push(attr);
        Ok(out)
    }
}

//! Write-back of attributes: what is set one after the other on a file that is being written becomes one operation.
//!
//! An archiver sets owner, mode and times of each file in three calls. Those that take nobody's rights away and can't be
//! refused wait, as written data does, until the file is closed or synced, or somebody asks for its attributes, or
//! they have become old. What can't be written back so is done at once, after what waits.

use std::time::Duration;

use quorate_files::op::{SetAttr, SetTime};
use quorate_files::{Attr, Kind, Who};
use tokio::time::Instant;

use super::{Inode, State};

/// Set-ID bits and the sticky bit: other changes take them away, so they are not foretold.
const SPECIAL_BITS: u32 = 0o7000;
const SET_ID_BITS: u32 = 0o6000;

/// Attributes that are to be set.
#[derive(Debug)]
pub(in crate::fuse) struct Pending {
    pub who: Who,
    pub op: SetAttr,
    since: Instant,
}

impl Inode {
    /// An own operation has told the file's attributes, or the kernel is shown them.
    pub fn learn(&self, attr: &Attr) {
        let mut state = self.lock();
        let known = state.known.as_ref();
        if known.is_none_or(|known| known.change <= attr.change) {
            state.known = Some(attr.clone());
        }
    }

    /// The kernel is shown these attributes, whoever has set them.
    pub fn is_shown(&self, attr: &Attr) {
        self.lock().shown_set_id = attr.mode & SET_ID_BITS != 0;
    }

    /// Whether the file has set-ID bits, as far as is known: who writes takes them away, unless that is root.
    pub fn has_set_id(&self) -> bool {
        let state = self.lock();
        let has = |attr: &Attr| attr.mode & SET_ID_BITS != 0;
        state.shown_set_id || state.known.as_ref().is_some_and(has)
    }

    /// The file is opened for writing. What is set from now on may wait for the close.
    pub fn open_for_writing(&self) {
        let mut state = self.lock();
        state.writers += 1;
        state.is_written = true;
    }

    /// A descriptor is closed: who sets something after that can't expect another close to follow.
    pub fn closed(&self) {
        self.lock().is_written = false;
    }

    /// The last descriptor is gone that an open for writing has made. What waits is sent by who says so.
    pub fn released_for_writing(&self) {
        self.lock().writers -= 1;
    }

    /// Takes in a change of attributes, to be sent later, if that does no harm; the attributes as they will be. Not where those known are not the
    /// newest: with the size of before the kernel would cut off what others have written since, and what was changed there in a mapping.
    pub fn defer(
        &self,
        who: &Who,
        op: &SetAttr,
        is_newest: impl FnOnce(&Attr) -> bool,
    ) -> Option<Attr> {
        let mut state = self.lock();
        if state.writers == 0 || !state.is_written || !state.known.as_ref().is_some_and(is_newest) {
            return None;
        }
        let now = state.foretold()?;
        if !is_harmless(who, op, &now) {
            return None;
        }
        match &mut state.pending {
            Some(pending) if pending.who != *who => return None,
            Some(pending) => merge(&mut pending.op, op),
            None => {
                state.pending = Some(Pending {
                    who: who.clone(),
                    op: op.clone(),
                    since: Instant::now(),
                });
            }
        }
        state.foretold()
    }

    /// Whether attributes are not set yet.
    pub fn is_unsettled(&self) -> bool {
        let state = self.lock();
        state.pending.is_some() || state.settling
    }

    /// Whether attributes wait that are as old as that, and no data that they come after.
    pub fn is_ripe(&self, age: Duration) -> bool {
        let state = self.lock();
        let pending = state.pending.as_ref();
        pending.is_some_and(|p| p.since.elapsed() >= age) && state.unfinished().next().is_none()
    }

    /// The attributes to be set now. [`Inode::settled`] is to follow.
    pub fn settle(&self) -> Option<Pending> {
        let mut state = self.lock();
        let pending = state.pending.take();
        state.settling = pending.is_some();
        pending
    }

    /// They were answered.
    pub fn settled(&self, failure: Option<fuser::Errno>) {
        let mut state = self.lock();
        state.settling = false;
        state.fail(failure);
    }
}

impl State {
    /// The attributes with all that waits in them, as far as that is known.
    fn foretold(&self) -> Option<Attr> {
        let mut attr = self.known.clone()?;
        let ends = self.unfinished().map(|(_, end)| end);
        attr.size = ends.fold(attr.size, u64::max);
        if attr.size == u64::MAX {
            // Something is to be appended.
            return None;
        }
        if let Some(pending) = &self.pending {
            attr.mode = pending.op.mode.unwrap_or(attr.mode);
            for (time, set) in [
                (&mut attr.atime, &pending.op.atime),
                (&mut attr.mtime, &pending.op.mtime),
            ] {
                if let Some(SetTime::At(stamp)) = set {
                    *time = *stamp;
                }
            }
        }
        Some(attr)
    }
}

/// Whether nobody loses a right by it, the caller may do it, and what comes of it is known.
fn is_harmless(who: &Who, op: &SetAttr, now: &Attr) -> bool {
    let mode = op.mode.unwrap_or(now.mode);
    let is_known = |time: &Option<SetTime>| !matches!(time, Some(SetTime::Now(_)));
    now.kind == Kind::Regular
        && op.size.is_none()
        && (who.uid == 0 || who.uid == now.uid)
        && op.uid.is_none_or(|uid| uid == now.uid)
        && op.gid.is_none_or(|gid| gid == now.gid)
        && (mode | now.mode) & SPECIAL_BITS == 0
        && mode & now.mode == now.mode
        && is_known(&op.atime)
        && is_known(&op.mtime)
}

/// What is set later counts.
fn merge(into: &mut SetAttr, later: &SetAttr) {
    into.mode = later.mode.or(into.mode);
    into.uid = later.uid.or(into.uid);
    into.gid = later.gid.or(into.gid);
    into.atime = later.atime.clone().or(into.atime.take());
    into.mtime = later.mtime.clone().or(into.mtime.take());
}

//! Write-back of attributes: what is set one after the other on a file that is being written becomes one operation.
//!
//! An archiver sets owner, mode and times of each file in three calls. Those that take nobody's rights away and can't be
//! refused wait, as written data does, until the file is closed or synced, or somebody asks for its attributes, or
//! they have become old. What can't be written back so is done at once, after what waits.
//!
//! What is set elsewhere meanwhile has come later. Times are set over it all the same; mode and owners are not, since that could give back rights that
//! somebody has taken away (`settling`).

use std::time::Duration;

use quorate_files::op::{SetAttr, SetTime};
use quorate_files::{Attr, Kind, Who};
use tokio::time::Instant;

use super::super::TTL;
use super::{Inode, State};

/// Set-ID bits and the sticky bit: other changes take them away, so they are not foretold.
const SPECIAL_BITS: u32 = 0o7000;
const SET_ID_BITS: u32 = 0o6000;

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
    has_xattrs: bool,
}

impl Rights {
    pub fn of(attr: &Attr) -> Rights {
        Rights {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            has_xattrs: attr.has_xattrs,
        }
    }

    /// Whether mode and owners are the same with these attributes.
    pub fn are_in(&self, attr: &Attr) -> bool {
        let has_xattrs = self.has_xattrs;
        *self
            == Rights {
                has_xattrs,
                ..Rights::of(attr)
            }
    }

    /// Whether the file has got extended attributes since, among which there may be an ACL.
    pub fn are_without_xattrs_of(&self, attr: &Attr) -> bool {
        attr.has_xattrs && !self.has_xattrs
    }
}

/// Attributes that are to be set.
#[derive(Debug)]
pub(in crate::fuse) struct Pending {
    pub who: Who,
    pub op: SetAttr,
    /// What mode and owners were when the first of them came to wait; nothing, if times alone wait.
    pub before: Option<Rights>,
    since: Instant,
}

impl Pending {
    /// Mode and owners; and times.
    pub fn apart(&self) -> (SetAttr, SetAttr) {
        let all = &self.op;
        let rights = SetAttr {
            atime: None,
            mtime: None,
            ..all.clone()
        };
        let times = SetAttr {
            mode: None,
            uid: None,
            gid: None,
            ..all.clone()
        };
        (rights, times)
    }
}

impl Inode {
    /// An own operation has told the file's attributes, or the kernel is shown them.
    pub fn learn(&self, attr: &Attr) {
        let mut state = self.lock();
        let known = state.known.as_ref();
        if known.is_none_or(|known| known.change <= attr.change) {
            state.known = Some(attr.clone());
            state.learned = Some(Instant::now());
        }
    }

    /// The file's attributes, as far as they are known.
    pub fn known(&self) -> Option<Attr> {
        self.lock().known.clone()
    }

    /// The same where something is to be written and nothing is under way: until it is, no own change comes after them.
    pub fn known_before_writes(&self) -> Option<Attr> {
        let state = self.lock();
        let is_before = state.under_way.is_empty() && state.unfinished().next().is_some();
        state.known.clone().filter(|_| is_before)
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
    /// newest: with the size of before the kernel would cut off what others have written since, and what was changed there in a mapping. Mode
    /// and owners only where the group can set them on a `condition`.
    pub fn defer(
        &self,
        who: &Who,
        op: &SetAttr,
        condition: bool,
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
        let before = match sets_rights(op) {
            true if condition => Some(state.rights_of_late()?),
            true => return None,
            false => None,
        };
        match &mut state.pending {
            Some(pending) if pending.who != *who => return None,
            Some(pending) => {
                if before.is_some() && pending.before.is_some_and(|first| Some(first) != before) {
                    return None;
                }
                pending.before = pending.before.or(before);
                merge(&mut pending.op, op);
            }
            None => {
                state.pending = Some(Pending {
                    who: who.clone(),
                    op: op.clone(),
                    before,
                    since: Instant::now(),
                });
            }
        }
        state.foretold()
    }

    /// Whether a mode or owners wait to be set.
    pub fn are_rights_waiting(&self) -> bool {
        let state = self.lock();
        let pending = state.pending.as_ref();
        pending.is_some_and(|pending| pending.before.is_some())
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
    /// What mode and owners are, if that was learned a moment ago. What others set and this mount has not seen came before what is set here: the older what is
    /// known, the more of that there may be.
    fn rights_of_late(&self) -> Option<Rights> {
        let is_late = self.learned.is_some_and(|at| at.elapsed() < TTL);
        self.known.as_ref().filter(|_| is_late).map(Rights::of)
    }

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

fn sets_rights(op: &SetAttr) -> bool {
    op.mode.is_some() || op.uid.is_some() || op.gid.is_some()
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

//! Times of access, as `relatime` has them (mount(8)).
//!
//! A read is no operation to agree on, so it changes nothing. Who has read something tells the group later, of many objects at once, if the
//! time of access would change by it.

use crate::answer::Answer;
use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::op::{Accessed, Seen, access};
use crate::types::{Nothing, Stamp};

/// For how long a time of access is true enough, in seconds.
const DAY: i64 = 24 * 60 * 60;

/// Whether a time of access changes by a read at `now`: it is not later than the last change of the content, or of anything, or a day old.
pub fn is_access_due(atime: Stamp, mtime: Stamp, ctime: Stamp, now: Stamp) -> bool {
    atime <= mtime || atime <= ctime || now.secs.saturating_sub(atime.secs) >= DAY
}

impl Fs<'_, '_> {
    pub fn accessed(&mut self, op: &Accessed) -> Done<Answer> {
        if !self.admission.is_member(&self.call.client) {
            return Err(Errno::EPERM.into());
        }
        for seen in &op.objects {
            match self.accessed_one(seen) {
                // It is gone.
                Ok(()) | Err(Stop::Refused(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(Answer::Done(Nothing))
    }

    fn accessed_one(&mut self, seen: &Seen) -> Done<()> {
        let mut inode = self.inode(seen.ino)?;
        let now = self.now();
        let is_due = is_access_due(inode.atime, inode.mtime, inode.ctime, now);
        if inode.change == seen.change && is_due && self.may(seen.ino, &inode, access::READ)? {
            inode.atime = now;
            self.put_inode(seen.ino, &inode);
        }
        Ok(())
    }
}

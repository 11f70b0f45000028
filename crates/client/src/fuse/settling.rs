//! What waits to be written and set of a file, sent together.
//!
//! Times come after the content: a write sets them too. Mode and owners that wait come before it, on condition that the file has not changed since they were
//! set here: who has changed them elsewhere meanwhile has done so later, and is not to be overruled. That condition is the file's time of change, which is not
//! known any more once something is under way.

use std::sync::Arc;
use std::time::Duration;

use quorate_files::op::{GetXattr, SetAttr, WithAttrs};
use quorate_files::{Action, Answer, Attr, Errno, Outcome, Stamp, Who};

use super::convert::Result;
use super::core::Core;
use super::inode::{Inode, Pending, Rights};
use crate::volume::{CallError, Called};

/// How often mode and owners are set on condition, where others change something else of the file each time.
const CONDITIONAL_ATTEMPTS: usize = 8;

impl Core {
    /// Waits until all that was written to a file and set on it is at the group.
    pub async fn flush(self: &Arc<Core>, inode: &Arc<Inode>) {
        if inode.is_dirty() {
            // The last writes and the attributes go together: that is one batch, and one wait, where a small file is closed.
            let gathering = self.volume.gather();
            inode.seal(Duration::ZERO);
            if !inode.are_rights_waiting() {
                self.pump(inode);
            }
            // In this order, and the last of them as soon as the others wait for their answers.
            tokio::join!(biased; self.settle(inode), inode.drained(), async { drop(gathering) });
        }
    }

    /// Sets the attributes that wait, and waits for the writes that times come after.
    async fn settle(self: &Arc<Core>, inode: &Arc<Inode>) {
        let _turn = inode.setting.lock().await;
        let Some(pending) = inode.settle() else {
            return;
        };
        let _changing = self.changing();
        let set = self.set_pending(inode, pending).await;
        inode.settled(set.err());
    }

    async fn set_pending(self: &Arc<Core>, inode: &Arc<Inode>, pending: Pending) -> Result<()> {
        let who = &pending.who;
        let Some(before) = &pending.before else {
            return self.set_after_content(inode, who, &pending.op).await;
        };
        let (rights, times) = pending.apart();
        if let Some(known) = inode.known_before_writes() {
            let rights = self.set_unless_changed(inode, who, rights, before, known);
            let times = self.set_after_content(inode, who, &times);
            let (rights, times) = tokio::join!(biased; rights, times);
            return rights.map(drop).and(times);
        }
        self.pump(inode);
        inode.drained().await;
        let known = inode.known().ok_or(fuser::Errno::EIO)?;
        let set = self.set_unless_changed(inode, who, pending.op.clone(), before, known);
        match set.await? {
            true => Ok(()),
            false => self.set_after_content(inode, who, &times).await,
        }
    }

    /// Sets times, after what was written.
    async fn set_after_content(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        who: &Who,
        op: &SetAttr,
    ) -> Result<()> {
        self.pump(inode);
        if op.atime.is_none() && op.mtime.is_none() {
            return Ok(());
        }
        if inode.is_queued() {
            inode.drained().await;
        }
        let mut set = self.set(inode, who, op).await;
        inode.drained().await;
        if set.is_ok_and(|change| inode.was_written_after(change)) {
            // What is sent together may be ordered otherwise.
            set = self.set(inode, who, op).await;
        }
        set.map(drop)
    }

    /// The number of the change that it was.
    async fn set(&self, inode: &Inode, who: &Who, op: &SetAttr) -> Result<u64> {
        let set = || self.volume.set_attr(who, op.clone());
        let attr = self.ask_held(inode.ino, set).await?;
        self.changes.own(&attr);
        inode.learn(&attr);
        Ok(attr.change)
    }

    /// Sets attributes of a file that was last seen so; unless others have changed its mode or owners, which were such before, or have given it an ACL, which
    /// a mode changes too. Whether it was done.
    async fn set_unless_changed(
        &self,
        inode: &Inode,
        who: &Who,
        op: SetAttr,
        before: &Rights,
        mut seen: Attr,
    ) -> Result<bool> {
        for _ in 0..CONDITIONAL_ATTEMPTS {
            let is_new = before.are_without_xattrs_of(&seen);
            if !before.are_in(&seen) || (is_new && self.has_acl(inode).await) {
                return Ok(false);
            }
            let set = || self.set_if(who, &op, seen.ctime, inode);
            let (done, attr) = match self.ask_held(inode.ino, set).await {
                // Whether it was done before, mode and owners say.
                Err(CallError::Lost) => (false, self.look(inode).await?),
                set => set?,
            };
            inode.learn(&attr);
            if done {
                self.changes.own(&attr);
                return Ok(true);
            }
            seen = attr;
        }
        // Somebody writes to it all the time. A moment ago mode and owners were still the same.
        self.set(inode, who, &op).await.map(|_| true)
    }

    async fn look(&self, inode: &Inode) -> Called<Attr> {
        let target = self.handles.target(inode.ino);
        self.volume.get_attr(&Who::root(), target).await
    }

    async fn has_acl(&self, inode: &Inode) -> bool {
        let get = GetXattr {
            ino: inode.ino,
            name: "system.posix_acl_access".into(),
            size: 0,
        };
        self.volume.get_xattr(&Who::root(), get).await.is_ok()
    }

    /// Sets attributes if the file has that time of change. Whether it has, and the attributes as they are then.
    async fn set_if(
        &self,
        who: &Who,
        op: &SetAttr,
        ctime: Stamp,
        inode: &Inode,
    ) -> Called<(bool, Attr)> {
        let set = WithAttrs {
            guard: Some(ctime),
            ..WithAttrs::new(vec![inode.ino], Action::SetAttr(op.clone()))
        };
        let mut done = self.volume.with_attrs(who, set).await?;
        let Outcome(outcome) = *done.outcome;
        match (outcome, done.after.pop().flatten()) {
            (Ok(Answer::Attr(attr)), _) => Ok((true, attr)),
            (Ok(_), _) => Err(CallError::Garbled),
            (Err(Errno::EAGAIN), Some(attr)) => Ok((false, attr)),
            // It lingers, or is gone.
            (Err(Errno::EAGAIN), None) => Err(CallError::Refused(Errno::ESTALE)),
            (Err(errno), _) => Err(CallError::Refused(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Bench;
    use super::super::sample;
    use super::*;
    use quorate_files::answer;
    use quorate_files::{Ino, Target};

    /// Where the session was lost, what the file is like then says whether a mode is still to be set, and on which condition.
    #[tokio::test]
    async fn a_mode_is_set_once_whatever_is_lost() {
        const INO: Ino = Ino(7);
        let at = |secs, mode| Attr {
            mode,
            change: secs,
            ctime: Stamp {
                secs: secs as i64,
                nanos: 0,
            },
            ..sample::attr(INO)
        };
        let op = SetAttr {
            target: Target::Ino(INO),
            mode: Some(0o666),
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
        };
        let before = Rights::of(&at(1, 0o644));
        for (found, is_left) in [(0o644, true), (0o666, false)] {
            let bench = Bench::new(&[]);
            let file = bench.open(INO.0);
            let after = answer::WithAttrs {
                before: vec![Some(at(2, found))],
                after: vec![Some(at(3, 0o666))],
                outcome: Box::new(Outcome(Ok(Answer::Attr(at(3, 0o666))))),
            };
            let answers = [
                Err(CallError::Lost),
                Ok(Answer::Attr(at(2, found))),
                Ok(Answer::WithAttrs(after)),
            ];
            bench.fake.changes.lock().unwrap().extend(answers);
            let (who, seen) = (Who::root(), at(1, 0o644));
            let set = bench
                .core
                .set_unless_changed(&file.inode, &who, op.clone(), &before, seen);
            assert_eq!(set.await.unwrap(), is_left);
            let guards = bench.asked().into_iter().filter_map(|action| match action {
                Action::WithAttrs(with) => with.guard.map(|ctime| ctime.secs),
                _ => None,
            });
            let expected: &[i64] = if is_left { &[1, 2] } else { &[1] };
            assert_eq!(guards.collect::<Vec<_>>(), expected);
        }
    }
}

//! Moving names. The checks and their order are those of `do_renameat2` and `vfs_rename` of Linux.

use crate::answer::Answer;
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{DirEntry, Inode, MAX_DEPTH, Place};
use crate::names::check_name;
use crate::op::{Rename, RenameMode, access};
use crate::types::{Ino, Kind, Nothing};

impl Fs<'_, '_> {
    pub fn rename(&mut self, op: &Rename) -> Done<Answer> {
        self.search(op.parent)?;
        self.search(op.new_parent)?;
        let (source, object) = self.find(op.parent, &op.name)?;
        check_name(&op.new_name)?;
        let target = match self.entry(op.new_parent, &op.new_name)? {
            Some(entry) => {
                let inode = self.inode(entry.ino)?;
                Some((entry, inode))
            }
            None => None,
        };
        match (op.mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, _) => {}
        }
        self.check_loops(op, &source, target.as_ref().map(|(entry, _)| entry))?;
        if let Some((entry, _)) = &target
            && entry.ino == source.ino
        {
            return Ok(Answer::Done(Nothing));
        }
        let replaced = target.as_ref().map(|(entry, inode)| (entry.ino, inode));
        self.check_rename(op, (source.ino, &object), replaced)?;
        if op.parent != op.new_parent || target.is_some() {
            // A new name in the same directory comes after all that an adoption has seen there.
            self.move_quota(source.ino, &object, op.parent, op.new_parent)?;
        }
        if let Some((entry, inode)) = &target
            && op.mode == RenameMode::Exchange
        {
            self.move_quota(entry.ino, inode, op.new_parent, op.parent)?;
        }
        let from = source.place(op.parent);
        let to = match target {
            None => self.move_name(op, &source)?,
            Some((entry, inode)) if op.mode == RenameMode::Exchange => {
                self.replace_entry(op.parent, &op.name, &source, entry.ino, inode.kind)?;
                self.replace_entry(op.new_parent, &op.new_name, &entry, source.ino, object.kind)?;
                let to = entry.place(op.new_parent);
                self.moved(entry.ino, to, from)?;
                to
            }
            Some((entry, inode)) => {
                if inode.kind == Kind::Directory && inode.size > 0 {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.remove_entry(op.parent, &op.name, &source)?;
                self.replace_entry(op.new_parent, &op.new_name, &entry, source.ino, object.kind)?;
                let to = entry.place(op.new_parent);
                self.drop_name(entry.ino, inode, to)?;
                to
            }
        };
        self.moved(source.ino, from, to)?;
        Ok(Answer::Done(Nothing))
    }

    fn move_name(&mut self, op: &Rename, source: &DirEntry) -> Done<Place> {
        // Out before in: a full volume can still rename.
        self.remove_entry(op.parent, &op.name, source)?;
        self.add_entry(op.new_parent, &op.new_name, source.ino, source.kind)
    }

    /// The object has another name now, and a directory another parent.
    fn moved(&mut self, ino: Ino, from: Place, to: Place) -> Done<()> {
        let mut inode = self.inode(ino)?;
        self.change_name(ino, &mut inode, from, to);
        self.touch(&mut inode);
        self.put_inode(ino, &inode);
        Ok(())
    }

    /// No directory may come to lie below itself, and none that is on the way to the source can be replaced.
    fn check_loops(&self, op: &Rename, source: &DirEntry, target: Option<&DirEntry>) -> Done<()> {
        if op.parent == op.new_parent {
            return Ok(());
        }
        if source.kind == Kind::Directory && self.is_above(source.ino, op.new_parent)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = target
            && target.kind == Kind::Directory
            && self.is_above(target.ino, op.parent)?
        {
            return Err(match op.mode {
                RenameMode::Exchange => Errno::EINVAL.into(),
                RenameMode::Replace | RenameMode::NoReplace => Errno::ENOTEMPTY.into(),
            });
        }
        Ok(())
    }

    /// Whether `upper` is `lower` or an ancestor of it. `ELOOP` beyond [`MAX_DEPTH`], so that the walk is bounded.
    fn is_above(&self, upper: Ino, lower: Ino) -> Done<bool> {
        let mut at = lower;
        for _ in 0..MAX_DEPTH {
            if at == upper {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            let inode = self.inode(at)?;
            if inode.nlink == 0 {
                // Removed, but open: it lies below nothing.
                return Ok(false);
            }
            at = inode.parent;
        }
        Err(Errno::ELOOP.into())
    }

    fn check_rename(
        &self,
        op: &Rename,
        object: (Ino, &Inode),
        target: Option<(Ino, &Inode)>,
    ) -> Done<()> {
        let is_dir = object.1.kind == Kind::Directory;
        self.may_remove(op.parent, object.1, is_dir)?;
        match target {
            None => self.may_add(op.new_parent)?,
            Some((_, inode)) => {
                let as_dir = match op.mode {
                    RenameMode::Exchange => inode.kind == Kind::Directory,
                    RenameMode::Replace | RenameMode::NoReplace => is_dir,
                };
                self.may_remove(op.new_parent, inode, as_dir)?;
            }
        }
        if op.parent == op.new_parent {
            return Ok(());
        }
        // Another parent changes the directory's `..`, which is a write to it.
        if is_dir {
            self.need(object.0, object.1, access::WRITE)?;
        }
        if let Some((ino, inode)) = target
            && op.mode == RenameMode::Exchange
            && inode.kind == Kind::Directory
        {
            self.need(ino, inode, access::WRITE)?;
        }
        Ok(())
    }
}

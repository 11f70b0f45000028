//! Each operation as the tree plays it.

use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Errno, Kind, Stamp};

use super::{Expected, Result, Tree, bit_of};

impl Tree {
    /// Plays an operation that the service has answered with `actual`, of which only the numbers of new objects and
    /// handles are taken.
    pub fn apply(
        &mut self,
        session: u64,
        who: &Who,
        now: u64,
        action: &Action,
        actual: &Result<Answer>,
    ) -> Result<Expected> {
        let before = self.clone();
        let expected = self.play(session, who, now, action, actual);
        let exceeds = !matches!(action, Action::SetQuota(_) | Action::Adopt(_))
            && self.exceeds_a_quota(&before);
        match expected {
            Ok(_) if exceeds => {
                *self = before;
                Err(Errno::EDQUOT)
            }
            Ok(done) => Ok(done),
            Err(errno) => {
                *self = before;
                Err(errno)
            }
        }
    }

    fn play(
        &mut self,
        session: u64,
        who: &Who,
        now: u64,
        action: &Action,
        actual: &Result<Answer>,
    ) -> Result<Expected> {
        self.now = Stamp {
            secs: (now / 1_000_000_000) as i64,
            nanos: (now % 1_000_000_000) as u32,
        };
        let (new, handle) = match actual {
            Ok(Answer::Attr(attr)) => (Some(attr.ino.0), None),
            Ok(Answer::Made(made)) => (Some(made.attr.ino.0), None),
            Ok(Answer::Opened(opened)) => (Some(opened.attr.ino.0), Some(opened.handle)),
            _ => (None, None),
        };
        let expected = match action {
            Action::Mkdir(op) => {
                self.may_make(who, op.parent.0, &op.name)?;
                let mut node = self.node(who, Kind::Directory, op.mode & 0o1777);
                node.parent = op.parent.0;
                Expected::Object(self.make(who, op.parent.0, &op.name, node, new))
            }
            Action::Mknod(op) => {
                self.may_make(who, op.parent.0, &op.name)?;
                let device = matches!(op.kind, Kind::Char | Kind::Block);
                if device && who.uid != 0 {
                    return Err(Errno::EPERM);
                }
                let mut node = self.node(who, op.kind, op.mode & 0o7777);
                node.rdev = if device { op.rdev } else { 0 };
                Expected::Object(self.make(who, op.parent.0, &op.name, node, new))
            }
            Action::Symlink(op) => {
                self.may_make(who, op.parent.0, &op.name)?;
                let mut node = self.node(who, Kind::Symlink, 0o777);
                node.content = op.target.to_vec();
                Expected::Object(self.make(who, op.parent.0, &op.name, node, new))
            }
            Action::Make(op) => {
                self.enter(who, op.parent.0)?;
                Tree::good(&op.name)?;
                let found = self.child(op.parent.0, &op.name);
                let ino = match (found, op.verifier) {
                    (Some(ino), None) => ino,
                    (Some(ino), Some(_)) if self.nodes[&ino].verifier == op.verifier => ino,
                    (Some(_), Some(_)) => return Err(Errno::EEXIST),
                    (None, verifier) => {
                        self.may_make(who, op.parent.0, &op.name)?;
                        let mut node = self.node(who, Kind::Regular, op.mode & 0o7777);
                        node.verifier = verifier;
                        self.make(who, op.parent.0, &op.name, node, new)
                    }
                };
                Expected::Object(ino)
            }
            Action::Create(op) => {
                self.enter(who, op.parent.0)?;
                Tree::good(&op.name)?;
                let ino = match self.child(op.parent.0, &op.name) {
                    Some(_) if op.flags & 32 != 0 => return Err(Errno::EEXIST),
                    Some(ino) if self.nodes[&ino].kind == Kind::Directory => {
                        return Err(Errno::EISDIR);
                    }
                    Some(ino) => {
                        self.open(who, ino, op.flags)?;
                        ino
                    }
                    None => {
                        self.may_make(who, op.parent.0, &op.name)?;
                        let node = self.node(who, Kind::Regular, op.mode & 0o7777);
                        self.make(who, op.parent.0, &op.name, node, new)
                    }
                };
                self.opened(session, ino, op.flags, handle);
                Expected::Object(ino)
            }
            Action::Open(op) => {
                if op.flags & 32 != 0 {
                    return Err(Errno::EINVAL);
                }
                self.open(who, op.ino.0, op.flags)?;
                self.opened(session, op.ino.0, op.flags, handle);
                Expected::Object(op.ino.0)
            }
            Action::CheckOpen(op) => {
                if op.flags & (8 | 32) != 0 {
                    return Err(Errno::EINVAL);
                }
                self.open(who, op.ino.0, op.flags)?;
                Expected::Object(op.ino.0)
            }
            Action::Hold(op) => Expected::Gone(self.hold(session, op)),
            Action::Accessed(op) => {
                self.accessed(who, op);
                Expected::Done
            }
            Action::Release(handle) => {
                self.opens.remove(&(session, *handle)).ok_or(Errno::EBADF)?;
                Expected::Done
            }
            Action::Link(op) => {
                let kind = self.get(op.ino.0)?.kind;
                self.may_make(who, op.parent.0, &op.name)?;
                if kind == Kind::Directory {
                    return Err(Errno::EPERM);
                }
                if self.names_of(op.ino.0) == 0 {
                    return Err(Errno::ENOENT);
                }
                if self.quota_of(op.ino.0) != self.quota_of(op.parent.0) {
                    return Err(Errno::EXDEV);
                }
                self.put(op.parent.0, &op.name, op.ino.0);
                self.changed(op.ino.0);
                Expected::Object(op.ino.0)
            }
            Action::Unlink(op) => {
                let child = self.find(who, op.parent.0, &op.name)?;
                self.may_delete(who, op.parent.0, child, false)?;
                self.take(op.parent.0, &op.name);
                self.changed(child);
                Expected::Done
            }
            Action::Rmdir(op) => {
                let child = self.find(who, op.parent.0, &op.name)?;
                self.may_delete(who, op.parent.0, child, true)?;
                if !self.nodes[&child].children.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.take(op.parent.0, &op.name);
                self.changed(child);
                Expected::Done
            }
            Action::Rename(op) => {
                self.rename(who, op)?;
                Expected::Done
            }
            Action::Write(op) => Expected::At(self.write(session, who, op)?),
            Action::Read(op) => {
                let (ino, flags) = self.aim(session, who, &op.target)?;
                let unopened = matches!(op.target, Target::Unopened(_) | Target::Checked(_));
                let file = self.nodes[&ino].kind == Kind::Regular;
                match flags {
                    None if unopened && file && self.must(who, ino, "x").is_ok() => {}
                    None => self.must(who, ino, "r")?,
                    Some(flags) if flags & 1 == 0 => return Err(Errno::EBADF),
                    Some(_) => {}
                }
                match self.nodes[&ino].kind {
                    Kind::Regular => {}
                    Kind::Directory => return Err(Errno::EISDIR),
                    _ => return Err(Errno::EINVAL),
                }
                let content = self.nodes[&ino].content.iter();
                let part = content.skip(op.offset as usize).take(op.len as usize);
                Expected::Bytes(part.copied().collect())
            }
            Action::SetAttr(op) => Expected::Object(self.set_attr(session, who, op)?),
            Action::Lookup(op) => {
                let ino = match &op.name[..] {
                    b".." => {
                        self.enter(who, op.parent.0)?;
                        self.nodes[&op.parent.0].parent
                    }
                    name => self.find(who, op.parent.0, name)?,
                };
                Expected::Object(self.get(ino).map(|_| ino)?)
            }
            Action::Readlink(ino) => {
                let node = self.get(ino.0)?;
                if node.kind != Kind::Symlink {
                    return Err(Errno::EINVAL);
                }
                Expected::Bytes(node.content.clone())
            }
            Action::Access(op) => {
                if op.mask > 7 {
                    return Err(Errno::EINVAL);
                }
                let node = self.get(op.ino.0)?;
                let allowed = ['r', 'w', 'x']
                    .into_iter()
                    .filter(|&c| self.can(who, node, c));
                Expected::Mask(allowed.map(bit_of).sum::<u32>() & op.mask)
            }
            Action::SetQuota(op) => {
                self.set_quota(who, op)?;
                Expected::Done
            }
            Action::Adopt(op) => Expected::Adopted(self.adopt(who, op)?),
            other => panic!("the model has no {other:?}"),
        };
        self.forget();
        Ok(expected)
    }
}

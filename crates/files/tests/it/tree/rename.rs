//! Rename as the tree plays it.

use quorate_files::op::*;
use quorate_files::{Errno, Kind};

use super::{Result, Tree};

impl Tree {
    pub(super) fn rename(&mut self, who: &Who, op: &Rename) -> Result<()> {
        let (from, to) = (op.parent.0, op.new_parent.0);
        self.enter(who, from)?;
        self.enter(who, to)?;
        let source = self.find(who, from, &op.name)?;
        Tree::good(&op.new_name)?;
        let target = self.child(to, &op.new_name);
        let exchange = op.mode == RenameMode::Exchange;
        if op.mode == RenameMode::NoReplace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if self.below(source, to) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.below(target, from)) {
            return Err(if exchange {
                Errno::EINVAL
            } else {
                Errno::ENOTEMPTY
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        let is_dir = |ino: u64| self.nodes[&ino].kind == Kind::Directory;
        self.may_delete(who, from, source, is_dir(source))?;
        match target {
            None => self.may_make(who, to, &op.new_name)?,
            Some(target) if exchange => self.may_delete(who, to, target, is_dir(target))?,
            Some(target) => self.may_delete(who, to, target, is_dir(source))?,
        }
        if from != to && is_dir(source) {
            self.must(who, source, "w")?;
        }
        if let Some(target) = target.filter(|_| exchange && from != to)
            && is_dir(target)
        {
            self.must(who, target, "w")?;
        }
        if from != to || target.is_some() {
            self.move_quota(source, from, to)?;
        }
        if let Some(target) = target {
            if exchange {
                self.move_quota(target, to, from)?;
            } else if !self.nodes[&target].children.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
        }
        self.take(from, &op.name);
        self.put(to, &op.new_name, source);
        self.changed(source);
        if let Some(target) = target {
            self.changed(target);
            if exchange {
                self.put(from, &op.name, target);
            }
        }
        Ok(())
    }
}

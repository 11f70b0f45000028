//! Quotas as the tree plays them: what is in use is added up from what is there.

use std::collections::BTreeMap;

use quorate_files::op::*;
use quorate_files::{Errno, Kind};

use super::{Result, Tree};

impl Tree {
    pub(super) fn quota_of(&self, ino: u64) -> Option<u64> {
        let quota = self.nodes.get(&ino)?.quota?;
        self.quotas.contains_key(&quota).then_some(quota)
    }

    fn own(&self, ino: u64) -> Option<u64> {
        let quotas = self.quotas.iter();
        quotas
            .filter(|(number, (dir, _))| *dir == ino && self.quota_of(ino) == Some(**number))
            .map(|(number, _)| *number)
            .next()
    }

    /// Bytes and objects in use, by quota.
    fn in_use(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut used: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (ino, node) in &self.nodes {
            if let Some(quota) = self.quota_of(*ino) {
                let sums = used.entry(quota).or_default();
                sums.0 += (node.blocks.len() * 4096 + node.children.len() * 256) as u64;
                sums.1 += 1;
            }
        }
        used
    }

    /// Directory, limits and use of each quota.
    pub fn quotas(&self) -> Vec<(u64, Limits, (u64, u64))> {
        let used = self.in_use();
        let of = |(number, (dir, limits)): (&u64, &(u64, Limits))| {
            (
                *dir,
                limits.clone(),
                used.get(number).copied().unwrap_or_default(),
            )
        };
        self.quotas.iter().map(of).collect()
    }

    /// Whether more is in use than before and than there can be.
    pub(super) fn exceeds_a_quota(&self, before: &Tree) -> bool {
        let earlier = before.in_use();
        self.in_use().iter().any(|(number, now)| {
            let was = earlier.get(number).copied().unwrap_or_default();
            let limits = &self.quotas[number].1;
            let is_too_much = |limit: Option<u64>, was: u64, now: u64| {
                now > was && now > limit.unwrap_or(u64::MAX)
            };
            is_too_much(limits.bytes, was.0, now.0) || is_too_much(limits.files, was.1, now.1)
        })
    }

    pub(super) fn set_quota(&mut self, who: &Who, op: &SetQuota) -> Result<()> {
        if who.uid != 0 {
            return Err(Errno::EPERM);
        }
        let dir = op.dir.0;
        if self.get(dir)?.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.is_linked(dir) {
            return Err(Errno::ENOENT);
        }
        match (self.own(dir), &op.limits) {
            (None, None) => return Err(Errno::ENODATA),
            (Some(number), None) => drop(self.quotas.remove(&number)),
            (Some(number), Some(limits)) => {
                self.quotas.insert(number, (dir, limits.clone()));
            }
            (None, Some(limits)) => {
                self.last_quota += 1;
                self.quotas.insert(self.last_quota, (dir, limits.clone()));
                self.get_mut(dir).quota = Some(self.last_quota);
            }
        }
        Ok(())
    }

    pub(super) fn adopt(&mut self, who: &Who, op: &Adopt) -> Result<u32> {
        if who.uid != 0 {
            return Err(Errno::EPERM);
        }
        if self.get(op.dir.0)?.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let quota = self.quota_of(op.dir.0).ok_or(Errno::ENODATA)?;
        let mut adopted = 0;
        for ino in self.nodes[&op.dir.0].children.clone().into_values() {
            if self.own(ino).is_none() && self.quota_of(ino) != Some(quota) {
                self.get_mut(ino).quota = Some(quota);
                adopted += 1;
            }
        }
        Ok(adopted)
    }

    pub(super) fn move_quota(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        let (from, to) = (self.quota_of(from), self.quota_of(to));
        let now = self.quota_of(ino);
        if now == to || self.own(ino).is_some() {
            return Ok(());
        }
        let node = &self.nodes[&ino];
        let is_one = match node.kind {
            Kind::Directory => node.children.is_empty(),
            // It stays with what counts it, if that is not for its place to say.
            _ if self.names_of(ino) > 1 && from == to && now.is_some() => return Ok(()),
            _ => self.names_of(ino) == 1,
        };
        if !is_one {
            return Err(Errno::EXDEV);
        }
        self.get_mut(ino).quota = to;
        Ok(())
    }
}

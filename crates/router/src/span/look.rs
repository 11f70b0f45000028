//! Looking at names, where the object may lie elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use quorate_client::CallError;
use quorate_client::volume::Called;
use quorate_files::answer::{Entries, Entry};
use quorate_files::op::{Lookup, ReadDir};
use quorate_files::{Attr, Errno, Ino, Kind, Target, Who};
use tokio::task::JoinSet;

use super::Inner;
use super::names::Refused;
use super::numbers::{parts, whole};
use crate::attrs::STUB_OWNER;
use crate::coordinator::Found;
use crate::handle::{Handle, target_name};
use crate::intent::Name;
use crate::layout::Bucket;

/// The most entries of one answer: each of them comes with attributes.
const MAX_LISTED: u32 = 512;
/// How many of them are looked up elsewhere at once.
const AT_ONCE: usize = 32;

/// If this is a stub, the bucket in which its target lies.
pub(super) fn stub(attr: &Attr) -> Option<Bucket> {
    let is_stub = attr.kind == Kind::Directory && attr.uid == STUB_OWNER && attr.mode == 0;
    is_stub.then_some(Bucket(attr.gid))
}

impl Inner {
    pub(super) async fn lookup(self: &Arc<Inner>, who: &Who, lookup: Lookup) -> Called<Attr> {
        let at = self.at(lookup.parent)?;
        let own = Lookup {
            parent: at.ino,
            name: lookup.name.clone(),
        };
        let found = at.member.volume.lookup(who, own).await?;
        if lookup.name == ".." {
            // What is above on the group may be none of those that are shown.
            return self.parent(lookup.parent).await;
        }
        self.follow(lookup.parent, lookup.name, found).await
    }

    /// Whether the directory above one is none of those that are shown.
    fn leads_out(&self, dir: Ino, above: Ino) -> bool {
        let placed = self.placed.get(parts(dir).0.0 as usize);
        dir == self.top || placed == Some(&above)
    }

    /// The directory above one, as it is shown.
    async fn parent(self: &Arc<Inner>, dir: Ino) -> Called<Attr> {
        if dir == self.top {
            return self.attr(dir).await;
        }
        let inner = self.clone();
        self.to_its_end(async move {
            let life = inner.life().await?;
            let above = life.parent(&inner.at(dir)?.handle()).await?;
            Ok(inner.attr(inner.number(&above)?).await?)
        })
        .await
    }

    pub(super) async fn attr(&self, ino: Ino) -> Called<Attr> {
        let at = self.at(ino)?;
        let target = Target::Ino(at.ino);
        let mut attr = at.member.volume.get_attr(&Who::root(), target).await?;
        attr.ino = ino;
        Ok(attr)
    }

    /// What a name stands for whose entry has these attributes, in its group's own numbers.
    async fn follow(self: &Arc<Inner>, parent: Ino, name: Bytes, mut found: Attr) -> Called<Attr> {
        let (bucket, own) = (parts(parent).0, found.ino);
        found.ino = whole(bucket, own)?;
        let Some(elsewhere) = stub(&found) else {
            return Ok(found);
        };
        let target = target_name(bucket, &self.at(found.ino)?.handle().key);
        match self.in_placed(elsewhere, target).await {
            Err(CallError::Refused(Errno::ENOENT)) => {}
            other => return other,
        }
        // It may be on its way: whoever moves it holds the name.
        let inner = self.clone();
        self.to_its_end(async move {
            let life = inner.life().await?;
            let (name, _held) = inner.hold(&life, parent, &name).await?;
            match life.find(&name).await? {
                Found::Thing(thing, _) => Ok(inner.attr(inner.number(&thing.object)?).await?),
                Found::Nothing { .. } => Err(Errno::ENOENT.into()),
            }
        })
        .await
    }

    /// The target of a stub.
    async fn in_placed(&self, bucket: Bucket, name: Bytes) -> Called<Attr> {
        let at = self.at(self.placed(bucket)?)?;
        let lookup = Lookup {
            parent: at.ino,
            name,
        };
        let mut attr = at.member.volume.lookup(&Who::root(), lookup).await?;
        attr.ino = whole(bucket, attr.ino)?;
        Ok(attr)
    }

    /// The volume's number of what routers call so.
    pub(super) fn number(&self, handle: &Handle) -> Result<Ino, Refused> {
        let at = self.at(whole(handle.bucket, Ino(0))?)?;
        Ok(whole(handle.bucket, at.member.own(&handle.key)?)?)
    }

    pub(super) fn name(&self, dir: Ino, name: Bytes) -> Called<Name> {
        let dir = self.at(dir)?.handle();
        Ok(Name { dir, name })
    }

    pub(super) async fn list(self: &Arc<Inner>, who: &Who, mut list: ReadDir) -> Called<Entries> {
        list.count = list.count.min(MAX_LISTED);
        loop {
            let (listed, last) = self.page(who, list.clone()).await?;
            match last {
                // Nothing of it is there any more; who gets no entries takes it for the end.
                Some(cookie) if listed.entries.is_empty() && !listed.end => list.cookie = cookie,
                _ => return Ok(listed),
            }
        }
    }

    /// Some entries with what they stand for, and the last cookie.
    async fn page(self: &Arc<Inner>, who: &Who, list: ReadDir) -> Called<(Entries, Option<u64>)> {
        let Target::Ino(dir) = list.target else {
            return Err(CallError::Refused(Errno::ENOTSUP));
        };
        let at = self.at(dir)?;
        let own = ReadDir {
            target: Target::Ino(at.ino),
            // What is a stub shows in its attributes.
            plus: true,
            ..list
        };
        let mut listed = at.member.volume.read_dir(who, own).await?;
        let last = listed.entries.last().map(|entry| entry.cookie);
        let mut elsewhere = Vec::new();
        for (index, entry) in listed.entries.iter_mut().enumerate() {
            let own = entry.ino;
            let is_dot = entry.name == "." || entry.name == "..";
            entry.ino = match is_dot && self.leads_out(dir, own) {
                true => dir,
                false => whole(at.bucket, own)?,
            };
            let may_be_stub = entry.attr.as_ref().is_none_or(|attr| stub(attr).is_some());
            if entry.kind == Kind::Directory && !is_dot && may_be_stub {
                elsewhere.push((index, own));
            } else if let Some(attr) = &mut entry.attr {
                attr.ino = entry.ino;
            }
        }
        let mut gone = BTreeSet::new();
        for some in elsewhere.chunks(AT_ONCE) {
            let mut followed = JoinSet::new();
            for &(index, own) in some {
                let (inner, entry) = (self.clone(), listed.entries[index].clone());
                let shown = async move { (index, inner.shown(dir, own, entry).await) };
                followed.spawn_on(shown, &self.runtime);
            }
            while let Some(shown) = followed.join_next().await {
                let (index, shown) = shown.map_err(|_| CallError::Lost)?;
                match shown? {
                    Some(entry) => listed.entries[index] = entry,
                    None => drop(gone.insert(index)),
                }
            }
        }
        let entries = listed.entries.into_iter().enumerate();
        let entries = entries.filter(|(index, _)| !gone.contains(index));
        let entries = entries.map(|(_, entry)| entry).collect();
        Ok((
            Entries {
                entries,
                end: listed.end,
                next: listed.next,
            },
            last,
        ))
    }

    /// An entry with what it stands for, if that is still there. `own`: the group's own number of the entry.
    async fn shown(self: Arc<Inner>, dir: Ino, own: Ino, entry: Entry) -> Called<Option<Entry>> {
        let had_attr = entry.attr.is_some();
        let found = match entry.attr.clone() {
            Some(attr) => Ok(attr),
            // The caller may list the directory and not search it.
            None => self
                .attr(entry.ino)
                .await
                .map(|attr| Attr { ino: own, ..attr }),
        };
        let followed = match found {
            Ok(found) => self.follow(dir, entry.name.clone(), found).await,
            Err(error) => Err(error),
        };
        match followed {
            Ok(attr) => Ok(Some(Entry {
                ino: attr.ino,
                kind: attr.kind,
                attr: had_attr.then_some(attr),
                ..entry
            })),
            Err(CallError::Refused(Errno::ENOENT | Errno::ESTALE)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

//! The copy of a bucket: made while the bucket is in use, then made up with what has changed.
//!
//! Objects of the old volume are known by their handles there. What has been copied once is not copied again when its name changes: its copy
//! gets the name. What loses its name goes aside, since another name may want it yet; what is aside at the end is taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use quorate_files::Stamp;
use quorate_files::op::SetTime;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;

use super::{MoveError, Progress};
use crate::ask::{Ask, Given, Servers};
use crate::attrs::{Attrs, DIRECTORY};
use crate::buckets::{Buckets, CHUNK, Changes, Located};
use crate::shelf::Shelved;
use crate::table::{Copied, Table};

/// `ftype3`.
const REGULAR: u32 = 1;
const SYMLINK: u32 = 5;
/// How much is read at a time.
const BLOCK: u32 = 64 << 10;
/// The directory, beside what is copied, of what has lost its name.
const ASIDE: Bytes = Bytes::from_static(b"aside");

type Outcome<T> = Result<T, MoveError>;

/// What an object was copied to.
#[derive(Clone, Debug)]
struct Copy {
    handle: Fh,
    kind: u32,
    /// Its number on its old server.
    from: u64,
    /// Its number on its new server.
    to: u64,
    /// Of a directory: the copy's name.
    place: Option<Place>,
}

/// How much of a file.
enum Part {
    All,
    Chunk(u64),
}

/// See the module.
pub(super) struct Copying<'a, S> {
    buckets: &'a Buckets<S>,
    at: &'a Located,
    from: Shelved<'a, S>,
    to: Shelved<'a, S>,
    progress: &'a Progress,
    /// By the handle on the old server.
    copies: BTreeMap<Fh, Copy>,
    /// Whose number on the old server it is.
    numbers: BTreeMap<u64, Fh>,
    /// Which directory a copy is made of.
    directories: BTreeMap<Fh, Fh>,
    /// Names in directories of the old server that could not be had yet.
    later: BTreeSet<(Fh, Bytes)>,
    /// Objects whose attributes are to be set yet.
    unset: BTreeSet<Fh>,
    /// Files to be copied again.
    again: BTreeSet<Fh>,
    /// The copy's own directory.
    top: Fh,
    aside: Option<Fh>,
    names_aside: u64,
}

impl<'a, S: Servers> Copying<'a, S> {
    pub(super) fn new(
        buckets: &'a Buckets<S>,
        at: &'a Located,
        from: Shelved<'a, S>,
        to: Shelved<'a, S>,
        progress: &'a Progress,
    ) -> Self {
        Copying {
            buckets,
            at,
            from,
            to,
            progress,
            copies: BTreeMap::new(),
            numbers: BTreeMap::new(),
            directories: BTreeMap::new(),
            later: BTreeSet::new(),
            unset: BTreeSet::new(),
            again: BTreeSet::new(),
            top: Fh::new(),
            aside: None,
            names_aside: 0,
        }
    }

    async fn to(&self, ask: Ask) -> Outcome<Given> {
        let given = self.to.ask(ask).await;
        given.map_err(|status| self.failed(self.to, status))
    }

    fn failed(&self, server: Shelved<'_, S>, status: Status) -> MoveError {
        MoveError::Server(status, server.volume.0)
    }

    /// Copies all that is there.
    pub(super) async fn start(
        &mut self,
        from: &Fh,
        to: &Fh,
        old: &Bytes,
        new: &Bytes,
    ) -> Outcome<()> {
        let found = self.from.look(from, old).await;
        let old_top = found
            .map_err(|s| self.failed(self.from, s))?
            .ok_or(MoveError::Server(Status::NoEnt, self.from.volume.0))?;
        let made = self.to.directory(to, new).await;
        self.top = made.map_err(|s| self.failed(self.to, s))?;
        self.copy_below(old_top, self.top.clone()).await?;
        self.set_all().await
    }

    /// Copies what is in a directory into another, and all below.
    async fn copy_below(&mut self, from: Fh, to: Fh) -> Outcome<()> {
        let mut todo = vec![(from, to)];
        while let Some((from, to)) = todo.pop() {
            let entries = match self.from.list(&from).await {
                Ok(entries) => entries,
                // It went meanwhile, which is written down.
                Err(Status::Stale | Status::NoEnt) => continue,
                Err(status) => return Err(self.failed(self.from, status)),
            };
            for entry in entries {
                todo.extend(self.copy_name(&from, &to, &entry.name).await?);
            }
        }
        Ok(())
    }

    async fn look(
        &self,
        server: Shelved<'_, S>,
        dir: &Fh,
        name: &Bytes,
    ) -> Outcome<Option<(Fh, Attrs)>> {
        let place = Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        let object = match server.ask(Ask::Lookup(place)).await {
            Ok(Given::Object(object)) => object,
            Ok(_) => return Err(self.failed(server, Status::ServerFault)),
            Err(Status::NoEnt | Status::Stale) => return Ok(None),
            Err(status) => return Err(self.failed(server, status)),
        };
        match object.attrs {
            Some(attrs) => Ok(Some((object.handle, attrs))),
            None => {
                let attrs = self.attrs(server, &object.handle).await?;
                Ok(attrs.map(|attrs| (object.handle, attrs)))
            }
        }
    }

    async fn attrs(&self, server: Shelved<'_, S>, object: &Fh) -> Outcome<Option<Attrs>> {
        match server.ask(Ask::GetAttr(object.clone())).await {
            Ok(Given::Attrs(attrs)) => Ok(Some(attrs)),
            Ok(_) => Err(self.failed(server, Status::ServerFault)),
            Err(Status::Stale | Status::NoEnt) => Ok(None),
            Err(status) => Err(self.failed(server, status)),
        }
    }

    /// Puts aside what has a name in a copy, and does not have it in the original. Gives what has it there.
    async fn clear_name(
        &mut self,
        from: &Fh,
        to: &Fh,
        name: &Bytes,
    ) -> Outcome<Option<(Fh, Attrs)>> {
        let found = self.look(self.from, from, name).await?;
        let Some((there, _)) = self.look(self.to, to, name).await? else {
            return Ok(found);
        };
        let original = found.as_ref().map(|(original, _)| original);
        let copy = original.and_then(|original| self.copies.get(original));
        if copy.is_some_and(|copy| copy.handle == there) {
            return Ok(None);
        }
        self.put_aside(to, name, there).await?;
        self.unset.insert(from.clone());
        Ok(found)
    }

    /// Makes a name in a copy stand for what it stands for in the original; gives a directory that was not copied before.
    async fn copy_name(&mut self, from: &Fh, to: &Fh, name: &Bytes) -> Outcome<Option<(Fh, Fh)>> {
        let Some((original, attrs)) = self.clear_name(from, to, name).await? else {
            return Ok(None);
        };
        self.unset.insert(from.clone());
        let place = Place {
            dir: to.clone(),
            name: name.clone(),
        };
        let Some(copy) = self.copies.get(&original).cloned() else {
            return self.make(original, attrs, place).await;
        };
        let Some(old) = copy.place else {
            self.to(Ask::Link(copy.handle, place)).await?;
            return Ok(None);
        };
        match self.to(Ask::Rename(old, place.clone())).await {
            Ok(_) => self.placed(&original, place),
            // Into itself: what was above it has moved as well, and is not where it belongs yet.
            Err(MoveError::Server(Status::Inval, _)) => {
                self.later.insert((from.clone(), name.clone()));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    fn copy_of(&self, original: &Fh) -> Option<Fh> {
        self.copies.get(original).map(|copy| copy.handle.clone())
    }

    fn placed(&mut self, original: &Fh, place: Place) {
        if let Some(copy) = self.copies.get_mut(original) {
            copy.place = Some(place);
        }
    }

    async fn put_aside(&mut self, dir: &Fh, name: &Bytes, copy: Fh) -> Outcome<()> {
        let aside = match &self.aside {
            Some(aside) => aside.clone(),
            None => {
                let made = self.to.directory(&self.top, &ASIDE).await;
                let made = made.map_err(|s| self.failed(self.to, s))?;
                self.aside.insert(made).clone()
            }
        };
        self.names_aside += 1;
        let place = Place {
            dir: aside,
            name: self.names_aside.to_string().into(),
        };
        let old = Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        self.to(Ask::Rename(old, place.clone())).await?;
        if let Some(original) = self.directories.get(&copy).cloned() {
            self.placed(&original, place);
        }
        Ok(())
    }

    /// Copies an object that has no copy yet; gives a directory, whose names are to be copied.
    async fn make(
        &mut self,
        original: Fh,
        attrs: Attrs,
        place: Place,
    ) -> Outcome<Option<(Fh, Fh)>> {
        let new = NewAttrs {
            mode: Some(0o600),
            ..NewAttrs::default()
        };
        let kind = attrs.kind();
        let ask = match kind {
            REGULAR => Ask::Create(place.clone(), new),
            DIRECTORY => Ask::Mkdir(place.clone(), new),
            SYMLINK => match self.from.ask(Ask::Readlink(original.clone())).await {
                Ok(Given::Text(text)) => Ask::Symlink(place.clone(), text),
                Ok(_) => return Err(self.failed(self.from, Status::ServerFault)),
                Err(Status::Stale | Status::NoEnt) => return Ok(None),
                Err(status) => return Err(self.failed(self.from, status)),
            },
            _ => Ask::Mknod {
                at: place.clone(),
                kind,
                new,
                device: attrs.device(),
            },
        };
        self.to(ask).await?;
        let made = self.look(self.to, &place.dir, &place.name).await?;
        let (handle, new) = made.ok_or(MoveError::Differs(
            self.to.volume.0,
            "what was made is not there",
        ))?;
        // Whatever had this number before is gone.
        if let Some(gone) = self.numbers.insert(attrs.fileid(), original.clone()) {
            self.copies.remove(&gone);
        }
        if kind == DIRECTORY {
            self.directories.insert(handle.clone(), original.clone());
        }
        let copy = Copy {
            handle: handle.clone(),
            kind,
            from: attrs.fileid(),
            to: new.fileid(),
            place: (kind == DIRECTORY).then_some(place),
        };
        self.copies.insert(original.clone(), copy);
        self.unset.insert(original.clone());
        self.progress.objects.fetch_add(1, Ordering::Relaxed);
        match kind {
            REGULAR => self.copy_data(&original, Part::All).await?,
            DIRECTORY => return Ok(Some((original, handle))),
            _ => {}
        }
        Ok(None)
    }

    /// Copies content. A file that is gone has none.
    async fn copy_data(&mut self, original: &Fh, part: Part) -> Outcome<()> {
        let Some(copy) = self.copies.get(original).cloned() else {
            return Ok(());
        };
        // What has no content may have differed all the same, and is looked at once more.
        self.unset.insert(original.clone());
        if copy.kind != REGULAR {
            return Ok(());
        }
        if !self.copy_part(original, &copy.handle, &part, false).await? {
            // The server has lost what was not yet on its disk.
            self.copy_part(original, &copy.handle, &part, true).await?;
        }
        Ok(())
    }

    async fn copy_part(
        &self,
        original: &Fh,
        copy: &Fh,
        part: &Part,
        stable: bool,
    ) -> Outcome<bool> {
        let (mut offset, end) = match part {
            Part::All => (0, u64::MAX),
            Part::Chunk(chunk) => {
                let offset = chunk.saturating_mul(CHUNK);
                (offset, offset.saturating_add(CHUNK))
            }
        };
        let all = matches!(part, Part::All);
        if all {
            // What is not written is a hole then.
            let cut = NewAttrs {
                size: Some(0),
                ..NewAttrs::default()
            };
            self.to(Ask::SetAttr(copy.clone(), cut)).await?;
        }
        let mut verifiers = BTreeSet::new();
        while offset < end {
            let count = u64::from(BLOCK).min(end - offset) as u32;
            let ask = Ask::Read {
                file: original.clone(),
                offset,
                count,
            };
            let (data, last) = match self.from.ask(ask).await {
                Ok(Given::Data { data, end }) => (data, end),
                Ok(_) => return Err(self.failed(self.from, Status::ServerFault)),
                Err(Status::Stale | Status::NoEnt) => return Ok(true),
                Err(status) => return Err(self.failed(self.from, status)),
            };
            if data.is_empty() && !last {
                return Err(self.failed(self.from, Status::ServerFault));
            }
            let hole = all && data.iter().all(|&byte| byte == 0);
            let mut rest = data.clone();
            while !hole && !rest.is_empty() {
                let ask = Ask::Write {
                    file: copy.clone(),
                    offset: offset + (data.len() - rest.len()) as u64,
                    data: rest.clone(),
                    stable,
                };
                match self.to(ask).await? {
                    Given::Written { count, verifier } if count > 0 => {
                        verifiers.insert(verifier);
                        rest = rest.slice((count as usize).min(rest.len())..);
                    }
                    _ => return Err(self.failed(self.to, Status::ServerFault)),
                }
            }
            offset += data.len() as u64;
            self.progress
                .bytes
                .fetch_add(data.len() as u64, Ordering::Relaxed);
            self.to.servers.pace(data.len() as u64).await;
            if last {
                break;
            }
        }
        if stable || verifiers.is_empty() {
            return Ok(true);
        }
        match self.to(Ask::Commit(copy.clone())).await? {
            Given::Written { verifier, .. } => {
                verifiers.insert(verifier);
                Ok(verifiers.len() == 1)
            }
            _ => Err(self.failed(self.to, Status::ServerFault)),
        }
    }

    /// Makes up for what has changed.
    pub(super) async fn make_up(&mut self, changes: Changes) -> Outcome<()> {
        if changes.too_many {
            return Err(MoveError::Busy);
        }
        let mut whole = std::mem::take(&mut self.again);
        let at = self.at;
        let server = |key: &Fh| at.names.server(at.volume, key);
        whole.extend(changes.whole.iter().filter_map(server));
        self.unset.extend(changes.attrs.iter().filter_map(server));
        let mut names: BTreeMap<(Fh, Bytes), bool> = std::mem::take(&mut self.later)
            .into_iter()
            .map(|name| (name, false))
            .collect();
        for ((dir, name), cut) in changes.names {
            if let Some(dir) = server(&dir) {
                *names.entry((dir, name)).or_default() |= cut;
            }
        }
        for name in self.missed(&names).await? {
            names.entry(name).or_default();
        }
        // First all that is not where it belongs, so that nothing comes to lie below itself on the way. A directory without a copy gets one
        // with its own name.
        for (from, name) in names.keys() {
            if let Some(to) = self.copy_of(from) {
                self.clear_name(from, &to, name).await?;
            }
        }
        for ((from, name), cut) in names {
            let Some(to) = self.copy_of(&from) else {
                continue;
            };
            if let Some((from, to)) = self.copy_name(&from, &to, &name).await? {
                self.copy_below(from, to).await?;
            }
            if cut {
                let found = self.look(self.from, &from, &name).await?;
                whole.extend(found.map(|(handle, _)| handle));
            }
        }
        for file in &whole {
            self.copy_data(file, Part::All).await?;
        }
        for (file, chunk) in changes.chunks {
            match server(&file) {
                Some(file) if !whole.contains(&file) => {
                    self.copy_data(&file, Part::Chunk(chunk)).await?;
                }
                _ => {}
            }
        }
        self.set_all().await
    }

    /// Names that only the original or only the copy has, of directories in which names have changed. Not each of them is one that has changed: on many a
    /// server a cookie is how far down the list a name is, and a listing that goes on after a name above was taken away leaves one out.
    async fn missed(
        &self,
        changed: &BTreeMap<(Fh, Bytes), bool>,
    ) -> Outcome<BTreeSet<(Fh, Bytes)>> {
        let mut missed = BTreeSet::new();
        let dirs: BTreeSet<&Fh> = changed.keys().map(|(dir, _)| dir).collect();
        for dir in dirs {
            let Some(copy) = self.copy_of(dir) else {
                continue;
            };
            let mut sides = [BTreeSet::new(), BTreeSet::new()];
            for (side, (server, dir)) in sides.iter_mut().zip([(self.from, dir), (self.to, &copy)])
            {
                match server.list(dir).await {
                    Ok(entries) => side.extend(entries.into_iter().map(|entry| entry.name)),
                    // Its own name has changed as well.
                    Err(Status::Stale | Status::NoEnt) => {}
                    Err(status) => return Err(self.failed(server, status)),
                }
            }
            let [here, there] = &sides;
            let differ = here.symmetric_difference(there);
            missed.extend(differ.map(|name| (dir.clone(), name.clone())));
        }
        Ok(missed)
    }

    /// Sets attributes where they are not set yet; what then differs is copied again the next time.
    async fn set_all(&mut self) -> Outcome<()> {
        for original in std::mem::take(&mut self.unset) {
            let Some(copy) = self.copies.get(&original).cloned() else {
                continue;
            };
            let Some(attrs) = self.attrs(self.from, &original).await? else {
                continue;
            };
            self.set(&copy, &attrs).await?;
            let Some(set) = self.attrs(self.to, &copy.handle).await? else {
                let what = "what was copied is gone";
                return Err(MoveError::Differs(self.to.volume.0, what));
            };
            if !is_like(&set, &attrs) {
                self.again.insert(original);
            }
        }
        Ok(())
    }

    async fn set(&self, copy: &Copy, attrs: &Attrs) -> Outcome<()> {
        let is_link = copy.kind == SYMLINK;
        let owner = NewAttrs {
            uid: Some(attrs.uid()),
            gid: Some(attrs.gid()),
            size: (copy.kind == REGULAR).then(|| attrs.size()),
            ..NewAttrs::default()
        };
        self.to(Ask::SetAttr(copy.handle.clone(), owner)).await?;
        let [atime, mtime] = attrs.times().map(|(secs, nanos)| {
            SetTime::At(Stamp {
                secs: secs.into(),
                nanos,
            })
        });
        let rest = NewAttrs {
            mode: (!is_link).then(|| attrs.mode()),
            atime: Some(atime),
            mtime: Some(mtime),
            ..NewAttrs::default()
        };
        match self.to(Ask::SetAttr(copy.handle.clone(), rest)).await {
            // Not every server sets times of symbolic links.
            Err(MoveError::Server(Status::Inval | Status::NotSupp | Status::Perm, _))
                if is_link =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// The table of what was copied, when nothing changes any more.
    pub(super) async fn finish(&mut self) -> Outcome<Table> {
        if !(self.again.is_empty() && self.later.is_empty()) {
            self.make_up(Changes::default()).await?;
        }
        if !self.later.is_empty() {
            return Err(MoveError::Busy);
        }
        if !self.again.is_empty() {
            let what = "size, owner, mode or kind";
            return Err(MoveError::Differs(self.to.volume.0, what));
        }
        if self.aside.take().is_some() {
            let gone = self.to.remove_all(&self.top, &ASIDE).await;
            gone.map_err(|s| self.failed(self.to, s))?;
        }
        let record = |(original, copy): (&Fh, &Copy)| Copied {
            key: self.at.key(original),
            server: copy.handle.clone(),
            from: (copy.from, self.buckets.shown(self.to.volume, copy.to)),
            to: (copy.to, self.buckets.shown(self.from.volume, copy.from)),
        };
        Ok(Table(self.copies.iter().map(record).collect()))
    }
}

/// Whether a copy has what its original has.
fn is_like(copy: &Attrs, original: &Attrs) -> bool {
    let is_file = original.kind() == REGULAR;
    let is_link = original.kind() == SYMLINK;
    copy.kind() == original.kind()
        && (copy.uid(), copy.gid()) == (original.uid(), original.gid())
        && (is_link || copy.mode() == original.mode())
        && (!is_file || copy.size() == original.size())
}

//! Procedures that may touch two volumes.

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{How, Listing, NewAttrs, Place};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Read, Reader, View, Writer};

use super::{Done, LOOKUP, Proxy};
use crate::ask::{Ask, Given, Servers};
use crate::attrs::Attrs;
use crate::buckets::Changes;
use crate::coordinator::{Found, Renamed};
use crate::handle::Handle;
use crate::intent::Log;
use crate::layout::Bucket;
use crate::rewrite::turn;

const CREATE: u32 = 8;
const MKDIR: u32 = 9;
const REMOVE: u32 = 12;
const RMDIR: u32 = 13;
const RENAME: u32 = 14;
const LINK: u32 = 15;

impl<L: Log + std::fmt::Debug + 'static> Proxy<L> {
    pub(super) async fn lookup(&self, who: &Who, place: &Place) -> Done {
        let name = self.name(place)?;
        if &place.name[..] == b".." {
            let _passage = self.buckets().pass_all().await;
            let parent = self.coordinator.parent_for(who, &name.dir).await?;
            let attrs = self.coordinator.attrs(&parent).await?;
            return self.found(&parent, attrs);
        }
        let bucket = name.dir.bucket;
        let passage = self.buckets().pass(bucket).await?;
        let at = self.buckets().locate(bucket)?;
        let mut w = Writer::default();
        w.opaque(&at.server(&name.dir.key)?);
        w.opaque(&name.name);
        let servers = &self.buckets().servers;
        let results = servers.nfs(at.volume, LOOKUP, who, &w.out).await?;
        let read = |results: Bytes| {
            let r = &mut Reader::new(results);
            if r.u32()? != 0 {
                return Ok(None);
            }
            let handle = r.opaque(MAX_HANDLE_BYTES, "handle")?;
            Ok(Some((handle, r.option(Attrs::read)?)))
        };
        let found =
            read(results.clone()).map_err(|_: quorate_nfs::xdr::Malformed| Status::ServerFault)?;
        let Some((server, attrs)) = found else {
            return self.rewritten(bucket, &at, LOOKUP, &results);
        };
        let object = Handle {
            bucket,
            key: at.key(&server),
        };
        let attrs = match attrs {
            Some(attrs) => attrs,
            None => self.coordinator.attrs(&object).await?,
        };
        let Some(elsewhere) = attrs.stub() else {
            return self.rewritten(bucket, &at, LOOKUP, &results);
        };
        drop(passage);
        let _passage = self.buckets().pass_all().await;
        let target = self
            .coordinator
            .target(bucket, &object.key, elsewhere)
            .await;
        match target {
            Ok((target, attrs)) => self.found(&target, attrs),
            // It may be on its way: whoever moves it holds the name.
            Err(Status::NoEnt) => {
                let _held = self.hold(vec![name.clone()]).await?;
                match self.coordinator.find(&name).await? {
                    Found::Thing(thing, attrs) => self.found(&thing.object, attrs),
                    Found::Nothing { .. } => Err(Status::NoEnt),
                }
            }
            Err(status) => Err(status),
        }
    }

    /// The results of a LOOKUP.
    fn found(&self, object: &Handle, attrs: Attrs) -> Done {
        let mut w = Writer::default();
        w.u32(0);
        w.opaque(&object.write()?);
        let at = self.buckets().locate(object.bucket)?;
        self.rewrite(object.bucket, &at).after(&mut w, Some(attrs));
        w.bool(false);
        Ok(w.out)
    }

    /// The results of what makes an object.
    fn made(&self, object: &Handle, attrs: Attrs) -> Done {
        let mut w = Writer::default();
        w.u32(0);
        w.bool(true);
        w.opaque(&object.write()?);
        let at = self.buckets().locate(object.bucket)?;
        self.rewrite(object.bucket, &at).after(&mut w, Some(attrs));
        w.bool(false);
        w.bool(false);
        Ok(w.out)
    }

    pub(super) async fn mkdir(
        &self,
        who: &Who,
        place: &Place,
        new: NewAttrs,
        arguments: &[u8],
    ) -> Done {
        let name = self.name(place)?;
        let in_root = name.dir == *self.coordinator.root();
        let map = self.buckets().map();
        let bucket = self.layout.place(&name.dir, in_root, &name.name, &map);
        let _held = self.hold(vec![name.clone()]).await?;
        // These are there always.
        let own = matches!(&name.name[..], b"." | b"..");
        if bucket == name.dir.bucket || own {
            return self.straight(MKDIR, who, &place.dir, arguments).await;
        }
        let (object, attrs) = self.coordinator.mkdir(who, name, bucket, new).await?;
        self.made(&object, attrs)
    }

    /// An answer that says no more than that it is done.
    fn done(&self, procedure: u32) -> Done {
        Ok(super::refusal(procedure, Status::Ok))
    }

    pub(super) async fn rmdir(&self, who: &Who, place: &Place, arguments: &[u8]) -> Done {
        let name = self.name(place)?;
        let _held = self.hold(vec![name.clone()]).await?;
        let (elsewhere, dir) = match &name.name[..] {
            b"." | b".." => (false, None),
            _ => match self.coordinator.find(&name).await? {
                Found::Thing(thing, _) => {
                    (thing.stub.is_some(), thing.is_dir.then_some(thing.object))
                }
                Found::Nothing { stub } => (stub.is_some(), None),
            },
        };
        let _goes = match &dir {
            Some(dir) => Some(self.hold_removal(dir).await?),
            None => None,
        };
        if !elsewhere {
            return self.straight(RMDIR, who, &place.dir, arguments).await;
        }
        self.coordinator.remove(who, name, true).await?;
        self.done(RMDIR)
    }

    pub(super) async fn remove(&self, who: &Who, place: &Place, arguments: &[u8]) -> Done {
        let name = self.name(place)?;
        let _held = self.hold(vec![name.clone()]).await?;
        let done = self.straight(REMOVE, who, &place.dir, arguments).await?;
        // As servers refuse to remove a directory so.
        if !matches!(status(&done), Status::IsDir | Status::Perm | Status::Acces) {
            return Ok(done);
        }
        match self.coordinator.find(&name).await? {
            Found::Thing(thing, _) if thing.stub.is_none() => return Ok(done),
            Found::Nothing { stub: None } => return Ok(done),
            _ => {}
        }
        self.coordinator.remove(who, name, false).await?;
        self.done(REMOVE)
    }

    pub(super) async fn rename(&self, who: &Who, from: &Place, to: &Place) -> Done {
        let (from, to) = (self.name(from)?, self.name(to)?);
        let log = self.coordinator.log();
        let _held = self.names.hold_rename(log, &from, &to).await?;
        let renaming = self.coordinator.find_rename(from.clone(), to.clone());
        let renaming = renaming.await?;
        let _goes = match renaming.removes() {
            Some(dir) => Some(self.hold_removal(dir).await?),
            None => None,
        };
        match self.coordinator.rename(who, renaming).await? {
            Renamed::Done => self.done(RENAME),
            Renamed::Straight(_guard) => {
                let ask = Ask::Rename(from.place(), to.place());
                self.pass_on(who, from.dir.bucket, ask).await
            }
        }
    }

    /// An order within a bucket, whose handles are keys.
    async fn pass_on(&self, who: &Who, bucket: Bucket, ask: Ask) -> Done {
        let at = self.buckets().locate(bucket)?;
        let procedure = ask.procedure();
        let _mark = self.buckets().mark(bucket, Changes::of_ask(&ask));
        let arguments = ask.in_words_of(&at)?.write();
        self.forward(procedure, who, bucket, &at, &arguments).await
    }

    pub(super) async fn link(&self, who: &Who, file: &Bytes, new: &Place) -> Done {
        let (file, to) = (self.handle(file)?, self.name(new)?);
        let _held = self.hold(vec![to.clone()]).await?;
        if file.bucket == to.dir.bucket {
            let ask = Ask::Link(file.key.clone(), to.place());
            return self.pass_on(who, file.bucket, ask).await;
        }
        if matches!(&to.name[..], b"." | b"..") {
            return Err(Status::Exist);
        }
        self.coordinator.link(who, file, to).await?;
        self.done(LINK)
    }

    pub(super) async fn create(
        &self,
        who: &Who,
        place: &Place,
        how: How,
        arguments: &[u8],
    ) -> Done {
        let name = self.name(place)?;
        let _held = self.hold(vec![name.clone()]).await?;
        let done = self.straight(CREATE, who, &place.dir, arguments).await?;
        let How::Unchecked(new) = how else {
            return Ok(done);
        };
        match status(&done) {
            Status::Exist | Status::IsDir => {}
            // Linux' own server gives what is there, also a directory.
            Status::Ok if may_be_stub(&done).unwrap_or(true) => {}
            _ => return Ok(done),
        }
        // The file that is there may lie elsewhere.
        let (thing, attrs) = match self.coordinator.find(&name).await? {
            Found::Thing(thing, attrs) if thing.stub.is_some() => (thing, attrs),
            Found::Nothing { stub: Some(_) } => return Err(Status::Exist),
            _ => return Ok(done),
        };
        const REGULAR: u32 = 1;
        if attrs.kind() != REGULAR {
            return Err(Status::Exist);
        }
        let Some(size) = new.size else {
            return self.made(&thing.object, attrs);
        };
        let cut = NewAttrs {
            size: Some(size),
            ..NewAttrs::default()
        };
        let ask = Ask::SetAttr(thing.object.key.clone(), cut);
        let buckets = self.buckets();
        buckets.ask(thing.object.bucket, who, ask).await?;
        let attrs = self.coordinator.attrs(&thing.object).await?;
        self.made(&thing.object, attrs)
    }

    /// Gives the server the verifier of a listing as it was when it gave it out; refuses to go on with one that was begun on another
    /// server, before the bucket moved.
    pub(super) async fn turn_back(
        &self,
        who: &Who,
        listing: &Listing,
        arguments: &mut [u8],
    ) -> Result<(), Status> {
        let handle = self.handle(&listing.dir)?;
        let at = self.buckets().locate(handle.bucket)?;
        if listing.cookie == 0 || at.moved == 0 {
            return Ok(());
        }
        // After the handle and the cookie.
        let verifier = 4 + listing.dir.len().next_multiple_of(4) + 8;
        let place = arguments.get_mut(verifier..verifier + 8);
        let place: &mut [u8; 8] = place
            .and_then(|place| place.try_into().ok())
            .ok_or(Status::ServerFault)?;
        let given = u64::from_be_bytes(*place) ^ turn(at.moved);
        *place = given.to_be_bytes();
        if given == 0 {
            return Ok(());
        }
        let ask = Ask::ReadDir {
            dir: handle.key,
            cookie: 0,
            verifier: 0,
        };
        match self.buckets().ask(handle.bucket, who, ask).await? {
            Given::Entries { verifier, .. } if verifier == given => Ok(()),
            _ => Err(Status::BadCookie),
        }
    }
}

/// Whether the results of a CREATE that was carried out give a stub, or can't be told from ones that do.
fn may_be_stub(results: &[u8]) -> Read<bool> {
    let r = &mut View::new(results);
    r.u32()?;
    r.option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?;
    let attrs = r.option(View::array)?;
    Ok(attrs.is_none_or(|attrs| Attrs(*attrs).stub().is_some()))
}

fn status(results: &[u8]) -> Status {
    match results.first_chunk() {
        Some(word) => Status::of(u32::from_be_bytes(*word)),
        None => Status::ServerFault,
    }
}

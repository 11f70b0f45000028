//! What touches two buckets, done whole or not at all.
//!
//! A name whose object lies on another bucket is a *stub* there: a directory that belongs to [`STUB_OWNER`], with the bucket as its
//! group. The object lies on that bucket in the hidden directory `placed`, under the stub's bucket and handle. So a name stands for something if and only if
//! both are there, and what makes or ends that is one order to one server, which is atomic: the *commit* of each operation. What
//! comes before can be undone, and what comes after can be done at any time; a stub without a target is no name.
//!
//! - `steps`: the parts that operations are made of. Each can be done again.
//! - `rename`: what is looked at before a RENAME, and who does it.
//! - `settle`: after a crash or a failure, from what is on the servers: finish, or undo.
//!
//! Callers hold the names that they pass, and those of intentions that are not settled.

mod rename;
mod settle;
mod steps;

pub use rename::{Moving, Renamed, Renaming};
pub(crate) use steps::KEEPER;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use tokio::sync::Mutex;

use crate::ask::{Ask, Entry, Given, Object, Servers};
use crate::attrs::{Attrs, STUB_OWNER};
use crate::handle::{Handle, stub_of, target_name};
use crate::intent::{Intent, Log, Name, Number, Thing};
use crate::layout::Bucket;
use crate::shelf::entries;

/// `ACCESS3_MODIFY` and `ACCESS3_EXTEND`.
const CHANGE: u32 = 0x4 | 0x8;
/// `ACCESS3_LOOKUP`.
const SEARCH: u32 = 0x2;
/// The sticky bit of a directory: names are their owners'.
const STICKY: u32 = 0o1000;
/// What is made in such a directory gets its group, and so on down.
const SET_GID: u32 = 0o2000;
/// The hidden directories of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Stubs that are being made or taken away.
    pub staging: Fh,
    /// Targets of stubs on other buckets.
    pub placed: Fh,
}

/// See the module.
#[derive(Debug)]
pub struct Coordinator<S, L> {
    /// The servers.
    pub servers: S,
    log: L,
    hidden: Vec<Hidden>,
    root: Handle,
    /// Directories change their parents one at a time: two that do so at once could make a circle.
    moves: std::sync::Arc<Mutex<()>>,
}

/// What is held, among routers, while a directory changes its parent: no directory has this handle.
pub(crate) fn moves() -> Handle {
    Handle {
        bucket: Bucket(0),
        key: Bytes::new(),
    }
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub enum Found {
    /// Nothing; there may be a stub without a target.
    Nothing {
        /// That stub.
        stub: Option<Fh>,
    },
    /// Something.
    Thing(Thing, Attrs),
}

impl<S: Servers<Bucket>, L: Log> Coordinator<S, L> {
    /// A coordinator of buckets with these hidden directories, below a root.
    pub fn new(servers: S, log: L, hidden: Vec<Hidden>, root: Handle) -> Coordinator<S, L> {
        Coordinator {
            servers,
            log,
            hidden,
            root,
            moves: Default::default(),
        }
    }

    /// The log.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// The root directory.
    pub fn root(&self) -> &Handle {
        &self.root
    }

    fn hidden(&self, bucket: Bucket) -> Result<&Hidden, Status> {
        self.hidden.get(bucket.0 as usize).ok_or(Status::Stale)
    }

    /// Who may have lost its place to another router gives no orders. This alone would not do: an order may be late on its way. What makes
    /// it harmless then stands in `steps`.
    async fn as_root(&self, bucket: Bucket, ask: Ask) -> Result<Given, Status> {
        if !self.log.is_current() {
            return Err(Status::Jukebox);
        }
        self.servers.ask(bucket, &Who::root(), ask).await
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// The server's.
    pub async fn attrs(&self, object: &Handle) -> Result<Attrs, Status> {
        let ask = Ask::GetAttr(object.key.clone());
        match self.as_root(object.bucket, ask).await? {
            Given::Attrs(attrs) => Ok(attrs),
            _ => Err(Status::ServerFault),
        }
    }

    /// What a name in a directory of a bucket is there, on that bucket.
    async fn look(
        &self,
        bucket: Bucket,
        dir: &Fh,
        name: &Bytes,
    ) -> Result<Option<(Fh, Attrs)>, Status> {
        let place = Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        match self.as_root(bucket, Ask::Lookup(place)).await {
            Ok(Given::Object(object)) => self.whole(bucket, object).await.map(Some),
            Ok(_) => Err(Status::ServerFault),
            // The directory may be gone as well.
            Err(Status::NoEnt | Status::Stale) => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn whole(&self, bucket: Bucket, object: Object) -> Result<(Fh, Attrs), Status> {
        let attrs = match object.attrs {
            Some(attrs) => attrs,
            None => {
                let key = object.handle.clone();
                self.attrs(&Handle { bucket, key }).await?
            }
        };
        Ok((object.handle, attrs))
    }

    /// The target of a stub.
    ///
    /// # Errors
    /// [`Status::NoEnt`] if it has none; the server's.
    pub async fn target(
        &self,
        stub_bucket: Bucket,
        stub: &[u8],
        bucket: Bucket,
    ) -> Result<(Handle, Attrs), Status> {
        let name = target_name(stub_bucket, stub);
        let placed = &self.hidden(bucket)?.placed;
        let (key, attrs) = self
            .look(bucket, placed, &name)
            .await?
            .ok_or(Status::NoEnt)?;
        Ok((Handle { bucket, key }, attrs))
    }

    /// What a name stands for, whoever may see it.
    ///
    /// # Errors
    /// The servers'.
    pub async fn find(&self, at: &Name) -> Result<Found, Status> {
        let bucket = at.dir.bucket;
        let Some((key, attrs)) = self.look(bucket, &at.dir.key, &at.name).await? else {
            return Ok(Found::Nothing { stub: None });
        };
        let Some(elsewhere) = attrs.stub() else {
            let thing = Thing {
                stub: None,
                object: Handle { bucket, key },
                is_dir: attrs.is_dir(),
            };
            return Ok(Found::Thing(thing, attrs));
        };
        match self.target(bucket, &key, elsewhere).await {
            Ok((object, attrs)) => {
                let thing = Thing {
                    stub: Some(key),
                    object,
                    is_dir: attrs.is_dir(),
                };
                Ok(Found::Thing(thing, attrs))
            }
            Err(Status::NoEnt) => Ok(Found::Nothing { stub: Some(key) }),
            Err(status) => Err(status),
        }
    }

    /// A directory's attributes, if somebody may change what is in it.
    async fn may_change(&self, who: &Who, dir: &Handle) -> Result<Attrs, Status> {
        let ask = Ask::Access(dir.key.clone(), CHANGE);
        let Given::Allowed(mask) = self.servers.ask(dir.bucket, who, ask).await? else {
            return Err(Status::ServerFault);
        };
        let attrs = self.attrs(dir).await?;
        match (attrs.is_dir(), mask & CHANGE == CHANGE) {
            (false, _) => Err(Status::NotDir),
            (true, false) => Err(Status::Acces),
            (true, true) => Ok(attrs),
        }
    }

    /// A directory is taken to `staging` before its server is told to remove it. That is not seen where it is plain that it will not be removed;
    /// what its server gives first is enough to look at.
    async fn must_be_empty(&self, dir: &Handle) -> Result<(), Status> {
        let ask = Ask::ReadDir {
            dir: dir.key.clone(),
            cookie: 0,
            verifier: 0,
        };
        let Given::Entries { entries, .. } = self.as_root(dir.bucket, ask).await? else {
            return Err(Status::ServerFault);
        };
        let own = |entry: &Entry| matches!(&entry.name[..], b"." | b"..");
        match entries.iter().all(own) {
            true => Ok(()),
            false => Err(Status::NotEmpty),
        }
    }

    /// MKDIR of a directory that is to lie on another bucket.
    ///
    /// # Errors
    /// As MKDIR has them.
    pub async fn mkdir(
        &self,
        who: &Who,
        at: Name,
        bucket: Bucket,
        new: NewAttrs,
    ) -> Result<(Handle, Attrs), Status> {
        let parent = self.may_change(who, &at.dir).await?;
        self.must_be_free(&at).await?;
        if new.uid.is_some_and(|uid| uid != who.uid) && who.uid != 0 {
            return Err(Status::Perm);
        }
        let inherits = parent.mode() & SET_GID;
        let own_group = if inherits == 0 { who.gid } else { parent.gid() };
        let attrs = NewAttrs {
            mode: Some(new.mode.unwrap_or(0o755) & 0o7777 | inherits),
            uid: Some(new.uid.unwrap_or(who.uid)),
            gid: Some(new.gid.unwrap_or(own_group)),
            ..new
        };
        let intent = Intent::Mkdir {
            at: at.clone(),
            bucket,
        };
        let number = self.log.begin(&intent).await?;
        let made = self.mkdir_steps(number, &at, bucket, attrs).await;
        self.end(number, &intent, made).await?;
        // It is made: no failure of this look may say that it is not.
        loop {
            match self.find(&at).await {
                Ok(Found::Thing(thing, attrs)) => return Ok((thing.object, attrs)),
                Ok(Found::Nothing { .. }) => return Err(Status::Stale),
                Err(_) if !self.log.is_current() => return Err(Status::Io),
                Err(_) => self.servers.pause().await,
            }
        }
    }

    /// RMDIR or REMOVE of a name whose object lies elsewhere.
    ///
    /// # Errors
    /// As they have them; [`Status::NoEnt`] for a stub without a target, which goes.
    pub async fn remove(&self, who: &Who, at: Name, dir_wanted: bool) -> Result<(), Status> {
        let parent = self.may_change(who, &at.dir).await?;
        let (thing, attrs) = match self.find(&at).await? {
            Found::Thing(thing, attrs) => (thing, attrs),
            Found::Nothing { stub } => {
                self.must_be_free_of(&at, stub).await?;
                return Err(Status::NoEnt);
            }
        };
        may_unlink(who, &parent, &attrs)?;
        match (dir_wanted, thing.is_dir) {
            (true, false) => return Err(Status::NotDir),
            (false, true) => return Err(Status::IsDir),
            (true, true) => self.must_be_empty(&thing.object).await?,
            (false, false) => {}
        }
        let intent = Intent::Remove { at, thing };
        let number = self.log.begin(&intent).await?;
        let Intent::Remove { at, thing } = &intent else {
            return Err(Status::ServerFault);
        };
        let removed = self.remove_steps(number, at, thing).await;
        self.end(number, &intent, removed).await
    }

    /// LINK of a file into a directory on another bucket.
    ///
    /// # Errors
    /// As LINK has them.
    pub async fn link(&self, who: &Who, file: Handle, to: Name) -> Result<(), Status> {
        self.may_change(who, &to.dir).await?;
        if self.attrs(&file).await?.is_dir() {
            return Err(Status::Perm);
        }
        self.must_be_free(&to).await?;
        let thing = Thing {
            stub: None,
            object: file,
            is_dir: false,
        };
        self.attach(None, thing, to, None).await
    }

    async fn attach(
        &self,
        from: Option<Name>,
        thing: Thing,
        to: Name,
        replaced: Option<Thing>,
    ) -> Result<(), Status> {
        let intent = Intent::Attach {
            from,
            thing,
            to,
            replaced,
        };
        let number = self.log.begin(&intent).await?;
        let Intent::Attach {
            from,
            thing,
            to,
            replaced,
        } = &intent
        else {
            return Err(Status::ServerFault);
        };
        let attached = self
            .attach_steps(number, from.as_ref(), thing, to, replaced.as_ref())
            .await;
        self.end(number, &intent, attached).await
    }

    /// Ends an operation: what did not go to its end is settled first, however long that takes.
    ///
    /// # Errors
    /// What it failed with, if nothing of it is left. [`Status::Io`]: it is carried out, or another router settles it. So it must not be
    /// begun again as if nothing had happened, which [`Status::Jukebox`] would allow.
    async fn end(
        &self,
        number: Number,
        intent: &Intent,
        done: Result<(), Status>,
    ) -> Result<(), Status> {
        let Err(status) = done else {
            return self.log.end(number).await.map_err(|_| Status::Io);
        };
        let settled = async {
            let done = self.settle_at_last(number, intent).await?;
            self.log.end(number).await?;
            Ok(done)
        };
        match settled.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(status),
            Err::<_, Status>(_) => Err(Status::Io),
        }
    }

    /// Settles an intention that was found without its end: true if it was carried out.
    ///
    /// # Errors
    /// If its end can't be written.
    pub async fn recover(&self, number: Number, intent: &Intent) -> Result<bool, Status> {
        let done = self.settle_at_last(number, intent).await?;
        self.log.end(number).await?;
        Ok(done)
    }

    /// The same, but not for as long as it takes: none if it can't be settled yet.
    ///
    /// # Errors
    /// If its end can't be written.
    pub async fn try_to_recover(
        &self,
        number: Number,
        intent: &Intent,
    ) -> Result<Option<bool>, Status> {
        match self.settle(number, intent).await {
            Ok(done) => {
                self.log.end(number).await?;
                Ok(Some(done))
            }
            Err(status) => {
                tracing::warn!(number = number.0, ?status, "can't settle an operation yet");
                Ok(None)
            }
        }
    }

    /// # Errors
    /// [`Status::Jukebox`]: it is another router's from now on.
    async fn settle_at_last(&self, number: Number, intent: &Intent) -> Result<bool, Status> {
        loop {
            match self.settle(number, intent).await {
                Ok(done) => return Ok(done),
                Err(status) => {
                    tracing::warn!(number = number.0, ?status, "can't settle an operation yet");
                    self.servers.pause().await;
                    if !self.log.confirm().await {
                        return Err(Status::Jukebox);
                    }
                }
            }
        }
    }

    async fn must_be_free(&self, at: &Name) -> Result<(), Status> {
        match self.find(at).await? {
            Found::Thing(..) => Err(Status::Exist),
            Found::Nothing { stub } => self.must_be_free_of(at, stub).await,
        }
    }

    /// A stub without a target goes: whoever left it there is done with it.
    async fn must_be_free_of(&self, at: &Name, stub: Option<Fh>) -> Result<(), Status> {
        let Some(stub) = stub else { return Ok(()) };
        let staged = Bytes::from(format!("{}-left", &stub_name(at.dir.bucket, &stub)));
        self.drop_stub(at, &stub, &staged).await
    }

    /// The directory above a directory, for somebody who may search it.
    ///
    /// # Errors
    /// [`Status::Acces`] if not; as [`Coordinator::parent`].
    pub async fn parent_for(&self, who: &Who, dir: &Handle) -> Result<Handle, Status> {
        let ask = Ask::Access(dir.key.clone(), SEARCH);
        let Given::Allowed(mask) = self.servers.ask(dir.bucket, who, ask).await? else {
            return Err(Status::ServerFault);
        };
        if mask & SEARCH == SEARCH {
            return self.parent(dir).await;
        }
        match self.attrs(dir).await?.is_dir() {
            true => Err(Status::Acces),
            false => Err(Status::NotDir),
        }
    }

    /// The directory above a directory.
    ///
    /// # Errors
    /// [`Status::Stale`] if there is none any more; [`Status::Jukebox`] while it is on its way from one to another, or to nowhere; the servers'.
    pub async fn parent(&self, dir: &Handle) -> Result<Handle, Status> {
        if *dir == self.root {
            return Ok(dir.clone());
        }
        let (above, attrs) = self.above(dir).await?;
        let placed = Handle {
            bucket: dir.bucket,
            key: self.hidden(dir.bucket)?.placed.clone(),
        };
        if attrs.fileid() != self.attrs(&placed).await?.fileid() {
            return Ok(above);
        }
        let own = self.attrs(dir).await?.fileid();
        let (bucket, key) = self.stub_of_target(&placed, own).await?;
        let (above, _) = self.above(&Handle { bucket, key }).await?;
        Ok(above)
    }

    /// The directory above one on its server, but that of a router in `staging`, from where the way leads to what nobody may see.
    async fn above(&self, dir: &Handle) -> Result<(Handle, Attrs), Status> {
        let up = Bytes::from_static(b"..");
        let bucket = dir.bucket;
        let found = self.look(bucket, &dir.key, &up).await?;
        let (key, attrs) = found.ok_or(Status::Stale)?;
        let Hidden { staging, placed } = self.hidden(bucket)?;
        let above = Handle { bucket, key };
        if above == self.root || above.key == *placed {
            return Ok((above, attrs));
        }
        // Each life of a router has one, and all are in one directory.
        let lives = self.look(bucket, staging, &up).await?;
        let (_, lives) = lives.ok_or(Status::Jukebox)?;
        let beyond = self.look(bucket, &above.key, &up).await?;
        match beyond.is_some_and(|(_, beyond)| beyond.fileid() == lives.fileid()) {
            true => Err(Status::Jukebox),
            false => Ok((above, attrs)),
        }
    }

    /// Whose target an object is: found by its number among all that lie there.
    async fn stub_of_target(&self, placed: &Handle, own: u64) -> Result<(Bucket, Fh), Status> {
        let ask = |ask| self.as_root(placed.bucket, ask);
        let all = entries(ask, &placed.key).await?;
        let found = all.iter().find(|entry| entry.fileid == own);
        let stub = found.and_then(|entry| stub_of(&entry.name));
        stub.ok_or(Status::Stale)
    }
}

fn stub_name(bucket: Bucket, stub: &[u8]) -> String {
    // Short: a handle may be longer than what is left of a name.
    let hash = blake3::hash(stub);
    format!("{:08x}-{}", bucket.0, &hash.to_hex()[..16])
}

/// A directory whose names are their owners' (sticky) lets nobody else take them away.
fn may_unlink(who: &Who, dir: &Attrs, object: &Attrs) -> Result<(), Status> {
    let owns = who.uid == 0 || who.uid == dir.uid() || who.uid == object.uid();
    match dir.mode() & STICKY == 0 || owns {
        true => Ok(()),
        false => Err(Status::Perm),
    }
}

/// The attributes that make a stub of a directory.
pub(crate) fn stub_attrs(bucket: Bucket) -> NewAttrs {
    NewAttrs {
        mode: Some(0),
        uid: Some(STUB_OWNER),
        gid: Some(bucket.0),
        ..NewAttrs::default()
    }
}

//! The parts that operations are made of.
//!
//! A router that was taken for dead may wake up, and an order of its may arrive late. So each order that could then harm has the
//! router's own directory in `staging` as where something comes from or goes to; who takes over empties that directory and removes it
//! ([`crate::fence`]), and from then on such orders are refused by the server itself. What is taken from a name goes there first.
//! Orders without it do no harm late: they fill a stub that only this operation knows, or remove what lies in `staging`, or make
//! a directory in `placed` for a stub that is gone.

use bytes::Bytes;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;

use super::{Coordinator, stub_attrs};
use crate::ask::{Ask, Given, Servers};
use crate::handle::{Handle, target_name};
use crate::intent::{Log, Name, Number, Thing};
use crate::layout::Bucket;

/// What keeps a stub from being empty: no server takes it away, or puts a directory in its place, by an order that was meant for something else.
pub(crate) const KEEPER: Bytes = Bytes::from_static(b"elsewhere");

/// The names in `staging` of an operation: of a stub that comes, and of stubs that go.
pub(super) fn coming(number: Number) -> Bytes {
    format!("{:016x}-new", number.0).into()
}

pub(super) fn going(number: Number) -> Bytes {
    format!("{:016x}-old", number.0).into()
}

pub(super) fn going_replaced(number: Number) -> Bytes {
    format!("{:016x}-gone", number.0).into()
}

/// The names in `staging`, on its own bucket, of what was taken from a name: what the operation is about, and what it replaces.
pub(super) fn taken(number: Number) -> Bytes {
    format!("{:016x}-taken", number.0).into()
}

pub(super) fn taken_replaced(number: Number) -> Bytes {
    format!("{:016x}-replaced", number.0).into()
}

/// An order that was carried out already, or whose object is gone with all that it was to change.
fn or_gone(given: Result<Given, Status>) -> Result<(), Status> {
    match given {
        Ok(_) | Err(Status::NoEnt | Status::Stale) => Ok(()),
        Err(status) => Err(status),
    }
}

impl<S: Servers<Bucket>, L: Log> Coordinator<S, L> {
    pub(super) async fn mkdir_steps(
        &self,
        number: Number,
        at: &Name,
        bucket: Bucket,
        attrs: NewAttrs,
    ) -> Result<(), Status> {
        let stub = self.stage(number, at.dir.bucket, bucket).await?;
        let place = self.target_place(at.dir.bucket, &stub, bucket)?;
        self.as_root(bucket, Ask::Mkdir(place, attrs)).await?;
        // The commit.
        self.install(number, at).await
    }

    pub(super) async fn remove_steps(
        &self,
        number: Number,
        at: &Name,
        thing: &Thing,
    ) -> Result<(), Status> {
        // The commit, for all but a directory that turns out not to be empty.
        self.take_thing(at, thing, &taken(number)).await?;
        self.destroy(thing, &taken(number)).await?;
        match &thing.stub {
            Some(stub) => self.drop_stub(at, stub, &going(number)).await,
            None => Ok(()),
        }
    }

    pub(super) async fn attach_steps(
        &self,
        number: Number,
        from: Option<&Name>,
        thing: &Thing,
        to: &Name,
        replaced: Option<&Thing>,
    ) -> Result<(), Status> {
        let stub = match self.is_across(from, to) {
            true => Some(
                self.stage(number, to.dir.bucket, thing.object.bucket)
                    .await?,
            ),
            false => None,
        };
        if let Some(replaced) = replaced {
            self.take_thing(to, replaced, &taken_replaced(number))
                .await?;
            self.destroy(replaced, &taken_replaced(number)).await?;
        }
        self.after_replaced(number, from, thing, to, replaced, stub)
            .await
    }

    /// From where nothing is under the new name any more.
    pub(super) async fn after_replaced(
        &self,
        number: Number,
        from: Option<&Name>,
        thing: &Thing,
        to: &Name,
        replaced: Option<&Thing>,
        stub: Option<Fh>,
    ) -> Result<(), Status> {
        if let Some(stub) = replaced.and_then(|replaced| replaced.stub.as_ref()) {
            self.drop_stub(to, stub, &going_replaced(number)).await?;
        }
        if stub.is_some() {
            self.install(number, to).await?;
        }
        self.take_source(number, from, thing, stub.is_some())
            .await?;
        self.bind(number, thing, to, stub.as_ref()).await?;
        self.drop_source(number, from, thing, stub.is_some()).await
    }

    /// Whether the new name is a stub: it is not where the old one is.
    pub(super) fn is_across(&self, from: Option<&Name>, to: &Name) -> bool {
        from.is_none_or(|from| from.dir.bucket != to.dir.bucket)
    }

    /// Makes a stub that nobody sees yet.
    async fn stage(&self, number: Number, on: Bucket, bucket: Bucket) -> Result<Fh, Status> {
        let staging = self.hidden(on)?.staging.clone();
        let name = coming(number);
        let closed = || NewAttrs {
            mode: Some(0),
            ..NewAttrs::default()
        };
        let place = Place {
            dir: staging.clone(),
            name: name.clone(),
        };
        self.as_root(on, Ask::Mkdir(place, closed())).await?;
        let (stub, _) = self
            .look(on, &staging, &name)
            .await?
            .ok_or(Status::ServerFault)?;
        let keeper = Place {
            dir: stub.clone(),
            name: KEEPER,
        };
        self.as_root(on, Ask::Mkdir(keeper, closed())).await?;
        let ask = Ask::SetAttr(stub.clone(), stub_attrs(bucket));
        self.as_root(on, ask).await?;
        Ok(stub)
    }

    /// Gives a staged stub its name, if it does not have it yet.
    pub(super) async fn install(&self, number: Number, to: &Name) -> Result<(), Status> {
        let staged = Place {
            dir: self.hidden(to.dir.bucket)?.staging.clone(),
            name: coming(number),
        };
        let ask = Ask::Rename(staged, to.place());
        self.as_root(to.dir.bucket, ask).await.map(|_| ())
    }

    fn target_place(&self, on: Bucket, stub: &[u8], bucket: Bucket) -> Result<Place, Status> {
        Ok(Place {
            dir: self.hidden(bucket)?.placed.clone(),
            name: target_name(on, stub),
        })
    }

    pub(super) fn staged(&self, on: Bucket, name: &Bytes) -> Result<Place, Status> {
        Ok(Place {
            dir: self.hidden(on)?.staging.clone(),
            name: name.clone(),
        })
    }

    /// What is under a name in this router's `staging`.
    pub(super) async fn find_staged(&self, on: Bucket, name: &Bytes) -> Result<Option<Fh>, Status> {
        let staging = self.hidden(on)?.staging.clone();
        let found = self.look(on, &staging, name).await?;
        Ok(found.map(|(handle, _)| handle))
    }

    /// The commit of RENAME: the object leaves its name. Of LINK: it gets one more that nobody sees yet.
    pub(super) async fn take_source(
        &self,
        number: Number,
        from: Option<&Name>,
        thing: &Thing,
        across: bool,
    ) -> Result<(), Status> {
        let bucket = thing.object.bucket;
        let (on, ask) = match (from, &thing.stub) {
            (None, _) => {
                let place = self.staged(bucket, &taken(number))?;
                (bucket, Ask::Link(thing.object.key.clone(), place))
            }
            (Some(from), Some(stub)) if across => {
                let source = self.target_place(from.dir.bucket, stub, bucket)?;
                let place = self.staged(bucket, &taken(number))?;
                (bucket, Ask::Rename(source, place))
            }
            (Some(from), _) => {
                let on = from.dir.bucket;
                let place = self.staged(on, &taken(number))?;
                (on, Ask::Rename(from.place(), place))
            }
        };
        self.as_root(on, ask).await.map(|_| ())
    }

    /// What was taken gets its new name. `stub`: the one under that name, if it leads elsewhere.
    pub(super) async fn bind(
        &self,
        number: Number,
        thing: &Thing,
        to: &Name,
        stub: Option<&Fh>,
    ) -> Result<(), Status> {
        let bucket = thing.object.bucket;
        let (on, target) = match stub {
            Some(stub) => (bucket, self.target_place(to.dir.bucket, stub, bucket)?),
            None => (to.dir.bucket, to.place()),
        };
        let source = self.staged(on, &taken(number))?;
        let ask = Ask::Rename(source, target);
        self.as_root(on, ask).await.map(|_| ())
    }

    /// The old name's stub, which has no target any more.
    pub(super) async fn drop_source(
        &self,
        number: Number,
        from: Option<&Name>,
        thing: &Thing,
        across: bool,
    ) -> Result<(), Status> {
        match (from, &thing.stub) {
            (Some(from), Some(stub)) if across => self.drop_stub(from, stub, &going(number)).await,
            _ => Ok(()),
        }
    }

    /// Where a name's object lies: under the name, or in `placed`.
    fn object_place(&self, at: &Name, thing: &Thing) -> Result<(Bucket, Place), Status> {
        Ok(match &thing.stub {
            Some(stub) => {
                let bucket = thing.object.bucket;
                (bucket, self.target_place(at.dir.bucket, stub, bucket)?)
            }
            None => (at.dir.bucket, at.place()),
        })
    }

    /// Takes what a name stands for to `staging`. A stub stays.
    async fn take_thing(&self, at: &Name, thing: &Thing, staged: &Bytes) -> Result<(), Status> {
        let (on, place) = self.object_place(at, thing)?;
        let ask = Ask::Rename(place, self.staged(on, staged)?);
        self.as_root(on, ask).await.map(|_| ())
    }

    /// Gives back what was taken from a name.
    pub(super) async fn give_back(
        &self,
        at: &Name,
        thing: &Thing,
        staged: &Bytes,
    ) -> Result<(), Status> {
        let (on, place) = self.object_place(at, thing)?;
        let ask = Ask::Rename(self.staged(on, staged)?, place);
        self.as_root(on, ask).await.map(|_| ())
    }

    /// Takes away what was taken from a name, and only if it may be: a directory must be empty.
    pub(super) async fn destroy(&self, thing: &Thing, staged: &Bytes) -> Result<(), Status> {
        let on = thing.object.bucket;
        let place = self.staged(on, staged)?;
        let ask = match thing.is_dir {
            true => Ask::Rmdir(place),
            false => Ask::Remove(place),
        };
        match self.as_root(on, ask).await {
            Ok(_) => Ok(()),
            // As some servers say it.
            Err(Status::Exist) if thing.is_dir => Err(Status::NotEmpty),
            Err(status) => Err(status),
        }
    }

    /// Takes away a stub, if it is still there: first its name, at once.
    pub(super) async fn drop_stub(
        &self,
        at: &Name,
        stub: &Fh,
        staged: &Bytes,
    ) -> Result<(), Status> {
        let on = at.dir.bucket;
        if self
            .look(on, &at.dir.key, &at.name)
            .await?
            .is_some_and(|(found, _)| found == *stub)
        {
            let place = Place {
                dir: self.hidden(on)?.staging.clone(),
                name: staged.clone(),
            };
            or_gone(self.as_root(on, Ask::Rename(at.place(), place)).await)?;
        }
        self.scrap(on, staged).await
    }

    /// Takes away what lies in `staging` under a name.
    pub(super) async fn scrap(&self, on: Bucket, staged: &Bytes) -> Result<(), Status> {
        let staging = self.hidden(on)?.staging.clone();
        let Some((stub, _)) = self.look(on, &staging, staged).await? else {
            return Ok(());
        };
        let keeper = Place {
            dir: stub,
            name: KEEPER,
        };
        or_gone(self.as_root(on, Ask::Rmdir(keeper)).await)?;
        let place = Place {
            dir: staging,
            name: staged.clone(),
        };
        or_gone(self.as_root(on, Ask::Rmdir(place)).await)
    }

    /// The object that lies under a stub's name on a bucket.
    pub(super) async fn placed(
        &self,
        on: Bucket,
        stub: &[u8],
        bucket: Bucket,
    ) -> Result<Option<Handle>, Status> {
        match self.target(on, stub, bucket).await {
            Ok((target, _)) => Ok(Some(target)),
            Err(Status::NoEnt) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Takes away an empty directory that was made for a stub that never got its name.
    pub(super) async fn unmake(&self, on: Bucket, stub: &Fh, bucket: Bucket) -> Result<(), Status> {
        let place = self.target_place(on, stub, bucket)?;
        or_gone(self.as_root(bucket, Ask::Rmdir(place)).await)
    }
}

//! Finishing or undoing what did not go to its end, from what is on the servers.

use bytes::Bytes;
use quorate_nfs::call::Fh;
use quorate_nfs::status::Status;

use super::steps::{coming, going, going_replaced, taken, taken_replaced};
use super::{Coordinator, steps};
use crate::ask::{Ask, Servers};
use crate::intent::{Intent, Log, Name, Number, Thing};
use crate::layout::Bucket;

/// Where the stub of a new name is.
enum Stub {
    /// It was not made, or is gone.
    None,
    /// Nobody sees it yet.
    Staged(Fh),
    /// Under its name.
    Installed(Fh),
}

impl<S: Servers<Bucket>, L: Log> Coordinator<S, L> {
    /// Settles an intention: true if it was carried out, false if nothing is left of it. Can be done again.
    pub(super) async fn settle(&self, number: Number, intent: &Intent) -> Result<bool, Status> {
        match intent {
            Intent::Mkdir { at, bucket } => self.settle_mkdir(number, at, *bucket).await,
            Intent::Remove { at, thing } => self.settle_remove(number, at, thing).await,
            Intent::Attach {
                from,
                thing,
                to,
                replaced,
            } => {
                self.settle_attach(number, from.as_ref(), thing, to, replaced.as_ref())
                    .await
            }
        }
    }

    async fn settle_mkdir(
        &self,
        number: Number,
        at: &Name,
        bucket: Bucket,
    ) -> Result<bool, Status> {
        match self.stub(number, at, None).await? {
            Stub::None => Ok(false),
            Stub::Installed(_) => Ok(true),
            Stub::Staged(stub) => {
                self.unmake(at.dir.bucket, &stub, bucket).await?;
                self.scrap(at.dir.bucket, &coming(number)).await?;
                Ok(false)
            }
        }
    }

    async fn settle_remove(
        &self,
        number: Number,
        at: &Name,
        thing: &Thing,
    ) -> Result<bool, Status> {
        if !self.is_gone(at, thing, &taken(number)).await? {
            return Ok(false);
        }
        if let Some(stub) = &thing.stub {
            self.drop_stub(at, stub, &going(number)).await?;
        }
        Ok(true)
    }

    async fn settle_attach(
        &self,
        number: Number,
        from: Option<&Name>,
        thing: &Thing,
        to: &Name,
        replaced: Option<&Thing>,
    ) -> Result<bool, Status> {
        let replaced_is_gone = match replaced {
            Some(replaced) => self.is_gone(to, replaced, &taken_replaced(number)).await?,
            None => false,
        };
        if !self.is_across(from, to) {
            let Some(from) = from else { return Ok(false) };
            return self
                .settle_within(number, from, thing, to, replaced, replaced_is_gone)
                .await;
        }
        let bucket = thing.object.bucket;
        let not_ours = replaced.and_then(|replaced| replaced.stub.as_ref());
        let stub = match self.stub(number, to, not_ours).await? {
            Stub::None => return Ok(false),
            Stub::Staged(stub) => {
                if !replaced_is_gone {
                    self.scrap(to.dir.bucket, &coming(number)).await?;
                    return Ok(false);
                }
                if let Some(stub) = not_ours {
                    self.drop_stub(to, stub, &going_replaced(number)).await?;
                }
                match self.install(number, to).await {
                    Ok(()) => stub,
                    // The directory is gone as well: what was to come there stays where it is.
                    Err(Status::NoEnt | Status::Stale) => {
                        self.scrap(to.dir.bucket, &coming(number)).await?;
                        return Ok(false);
                    }
                    Err(status) => return Err(status),
                }
            }
            Stub::Installed(stub) => stub,
        };
        if self.find_staged(bucket, &taken(number)).await?.is_some() {
            self.bind(number, thing, to, Some(&stub)).await?;
        } else if self.placed(to.dir.bucket, &stub, bucket).await?.is_none() {
            let possible = match from {
                Some(from) => self.has_source(from, thing).await?,
                None => false,
            };
            // Where something was replaced, back is no way.
            if !(possible && replaced_is_gone) {
                self.drop_stub(to, &stub, &coming(number)).await?;
                return Ok(false);
            }
            self.take_source(number, from, thing, true).await?;
            self.bind(number, thing, to, Some(&stub)).await?;
        }
        self.drop_source(number, from, thing, true).await?;
        Ok(true)
    }

    /// Of a RENAME whose two names are on one bucket.
    async fn settle_within(
        &self,
        number: Number,
        from: &Name,
        thing: &Thing,
        to: &Name,
        replaced: Option<&Thing>,
        replaced_is_gone: bool,
    ) -> Result<bool, Status> {
        let on = from.dir.bucket;
        let is_taken = self.find_staged(on, &taken(number)).await?.is_some();
        if !is_taken && !self.has_source(from, thing).await? {
            return Ok(replaced.is_none() || replaced_is_gone);
        }
        if !is_taken && !replaced_is_gone {
            return Ok(false);
        }
        if let Some(stub) = replaced.and_then(|replaced| replaced.stub.as_ref()) {
            self.drop_stub(to, stub, &going_replaced(number)).await?;
        }
        if !is_taken {
            self.take_source(number, Some(from), thing, false).await?;
        }
        match self.bind(number, thing, to, None).await {
            Ok(()) => Ok(true),
            // The directory is gone as well.
            Err(Status::NoEnt | Status::Stale) => {
                let place = Ask::Rename(self.staged(on, &taken(number))?, from.place());
                match self.as_root(on, place).await {
                    Ok(_) => {}
                    // And so is the one that it came from.
                    Err(status @ (Status::NoEnt | Status::Stale)) => {
                        if !self.is_left(on, &taken(number), from).await? {
                            return Err(status);
                        }
                    }
                    Err(status) => return Err(status),
                }
                Ok(false)
            }
            Err(status) => Err(status),
        }
    }

    /// Whether a name stands no more for what it stood for. What was taken from it goes, or goes back if it is a directory in which
    /// something is.
    async fn is_gone(&self, at: &Name, thing: &Thing, staged: &Bytes) -> Result<bool, Status> {
        if self
            .find_staged(thing.object.bucket, staged)
            .await?
            .is_none()
        {
            return Ok(!self.is_there(at, thing).await?);
        }
        match self.destroy(thing, staged).await {
            Ok(()) => Ok(true),
            Err(Status::NotEmpty) => match self.give_back(at, thing, staged).await {
                Ok(()) => Ok(false),
                // Its directory was removed by others.
                Err(Status::NoEnt | Status::Stale)
                    if self.is_left(thing.object.bucket, staged, at).await? =>
                {
                    Ok(true)
                }
                Err(status) => Err(status),
            },
            Err(status) => Err(status),
        }
    }

    /// Whether what was taken from a name is still in `staging`, now that the directory of the name is gone. Then it stays there: it has no other place,
    /// and all that waits for it would wait for ever.
    async fn is_left(&self, on: Bucket, staged: &Bytes, at: &Name) -> Result<bool, Status> {
        let is_left = self.find_staged(on, staged).await?.is_some();
        if is_left {
            tracing::error!(
                bucket = on.0,
                left = %String::from_utf8_lossy(staged),
                name = %String::from_utf8_lossy(&at.name),
                "what had this name has lost its directory, and stays in the bucket's `staging`"
            );
        }
        Ok(is_left)
    }

    /// Where the stub of an operation is. `not_ours`: a stub that may be under the name from before.
    async fn stub(&self, number: Number, at: &Name, not_ours: Option<&Fh>) -> Result<Stub, Status> {
        let on = at.dir.bucket;
        let staging = self.hidden(on)?.staging.clone();
        let staged: Bytes = steps::coming(number);
        if let Some((stub, _)) = self.look(on, &staging, &staged).await? {
            return Ok(Stub::Staged(stub));
        }
        Ok(match self.look(on, &at.dir.key, &at.name).await? {
            Some((stub, attrs)) if attrs.stub().is_some() && Some(&stub) != not_ours => {
                Stub::Installed(stub)
            }
            _ => Stub::None,
        })
    }

    /// Whether a name still stands for what it stood for.
    async fn is_there(&self, at: &Name, thing: &Thing) -> Result<bool, Status> {
        let bucket = thing.object.bucket;
        match &thing.stub {
            Some(stub) => Ok(self.placed(at.dir.bucket, stub, bucket).await?.is_some()),
            None => {
                let found = self.look(bucket, &at.dir.key, &at.name).await?;
                Ok(found.is_some_and(|(handle, _)| handle == thing.object.key))
            }
        }
    }

    /// Whether the old name of what is moved is still its name.
    async fn has_source(&self, from: &Name, thing: &Thing) -> Result<bool, Status> {
        let expected = thing.stub.as_ref().unwrap_or(&thing.object.key);
        let found = self
            .look(from.dir.bucket, &from.dir.key, &from.name)
            .await?;
        Ok(found.is_some_and(|(handle, _)| handle == *expected))
    }
}

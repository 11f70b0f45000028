//! RENAME: what is looked at first, and who does it.

use quorate_files::Who;
use quorate_nfs::status::Status;
use tokio::sync::OwnedMutexGuard;

use super::{Coordinator, Found, may_unlink, moves};
use crate::ask::Servers;
use crate::attrs::Attrs;
use crate::handle::Handle;
use crate::intent::{Log, Name, Thing};
use crate::layout::Bucket;

/// How deep a directory can lie where its ancestors are looked at.
const MAX_DEPTH: usize = 4096;

/// Nobody else changes a directory's parent until this goes.
#[derive(Debug)]
pub struct Moving<H> {
    _here: OwnedMutexGuard<()>,
    _elsewhere: H,
}

/// A RENAME, and what was found under its names, which are held.
#[derive(Debug)]
pub struct Renaming {
    from: Name,
    to: Name,
    thing: Thing,
    attrs: Attrs,
    there: Found,
}

impl Renaming {
    /// The directory that is removed by it, if the new name has one: it is to be held before the RENAME is done, and what is put there waits.
    pub fn removes(&self) -> Option<&Handle> {
        match &self.there {
            // One with the old name in it is not removed, and may be held by that name.
            Found::Thing(there, _) if there.is_dir && there.object != self.from.dir => {
                Some(&there.object)
            }
            _ => None,
        }
    }
}

/// What is to be done about a RENAME.
#[derive(Debug)]
pub enum Renamed<H> {
    /// Its server can do it by itself; this is to be kept until it has.
    Straight(Option<Moving<H>>),
    /// It is done.
    Done,
}

impl<S: Servers<Bucket>, L: Log> Coordinator<S, L> {
    /// What a RENAME is about.
    ///
    /// # Errors
    /// As RENAME has them.
    pub async fn find_rename(&self, from: Name, to: Name) -> Result<Renaming, Status> {
        for name in [&from.name, &to.name] {
            if matches!(&name[..], b"." | b"..") {
                return Err(Status::Inval);
            }
        }
        let Found::Thing(thing, attrs) = self.find(&from).await? else {
            return Err(Status::NoEnt);
        };
        let there = self.find(&to).await?;
        Ok(Renaming {
            from,
            to,
            thing,
            attrs,
            there,
        })
    }

    /// Waits until no other directory changes its parent, but not longer than calls may be kept waiting: one that does may itself wait, for a server
    /// that is away, and those behind it would fill the place that there is for calls.
    async fn moving(&self) -> Result<Moving<L::Hold>, Status> {
        let moving = async {
            Ok(Moving {
                _here: self.moves.clone().lock_owned().await,
                _elsewhere: self.log.hold(vec![moves()]).await?,
            })
        };
        tokio::select! {
            biased;
            moving = moving => moving,
            () = self.servers.patience() => Err(Status::Jukebox),
        }
    }

    /// RENAME.
    ///
    /// # Errors
    /// As RENAME has them; [`Status::Jukebox`] if it has to wait for long until no other directory changes its parent.
    pub async fn rename(&self, who: &Who, renaming: Renaming) -> Result<Renamed<L::Hold>, Status> {
        let Renaming {
            from,
            to,
            thing,
            attrs,
            there,
        } = renaming;
        let across = thing.is_dir && from.dir != to.dir;
        let guard = match across {
            true => Some(self.moving().await?),
            false => None,
        };
        if across && self.lies_in(&to.dir, &thing.object).await? {
            return Err(Status::Inval);
        }
        let (replaced, other) = match there {
            Found::Thing(replaced, attrs) => (Some(replaced), Some(attrs)),
            Found::Nothing { stub } => {
                if stub.is_some() {
                    self.may_change(who, &to.dir).await?;
                    self.must_be_free_of(&to, stub).await?;
                }
                (None, None)
            }
        };
        let own = |thing: &Thing| thing.stub.is_none();
        let one_bucket = from.dir.bucket == to.dir.bucket;
        if one_bucket && own(&thing) && replaced.as_ref().is_none_or(own) {
            return Ok(Renamed::Straight(guard));
        }
        let (dir, other_dir) = (
            self.may_change(who, &from.dir).await?,
            self.may_change(who, &to.dir).await?,
        );
        may_unlink(who, &dir, &attrs)?;
        if across {
            // Its `..` changes.
            self.may_change(who, &thing.object).await?;
        }
        if let (Some(replaced), Some(other)) = (&replaced, &other) {
            let same = (thing.object.bucket, attrs.fileid());
            if (replaced.object.bucket, other.fileid()) == same {
                return Ok(Renamed::Done);
            }
            may_unlink(who, &other_dir, other)?;
            match (thing.is_dir, replaced.is_dir) {
                (true, false) => return Err(Status::NotDir),
                (false, true) => return Err(Status::IsDir),
                (true, true) => self.must_be_empty(&replaced.object).await?,
                (false, false) => {}
            }
        }
        self.attach(Some(from), thing, to, replaced).await?;
        Ok(Renamed::Done)
    }

    /// Whether a directory is another, or lies below it.
    async fn lies_in(&self, dir: &Handle, above: &Handle) -> Result<bool, Status> {
        let wanted = (above.bucket, self.attrs(above).await?.fileid());
        let top = (self.root.bucket, self.attrs(&self.root).await?.fileid());
        let mut dir = dir.clone();
        for _ in 0..MAX_DEPTH {
            let number = (dir.bucket, self.attrs(&dir).await?.fileid());
            if number == wanted {
                return Ok(true);
            }
            if number == top {
                return Ok(false);
            }
            dir = self.parent(&dir).await?;
        }
        Err(Status::Inval)
    }
}

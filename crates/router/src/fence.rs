//! What keeps late orders of a router that is gone from doing harm.
//!
//! Each epoch of a router has a directory of its own in `staging` of each bucket, named by the epoch's number. Every order that could do harm
//! late comes from there or goes there (`coordinator/steps.rs`). Who takes over moves what is there to its own, and removes the directory: servers
//! never give its handle to another, so from then on they refuse such orders themselves, as they refuse all that names what is gone.

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;

use crate::ask::{Ask, Given, Servers};
use crate::coordinator::{Hidden, KEEPER};
use crate::layout::Bucket;
use crate::shelf::list;

/// How often a directory is emptied that is never empty: a router that is gone has few orders under way.
const MAX_ROUNDS: usize = 4096;

/// The name of an epoch's directory.
fn name(epoch: u64) -> Bytes {
    format!("{epoch:016x}").into()
}

struct On<'a, S> {
    servers: &'a S,
    bucket: Bucket,
}

impl<S: Servers<Bucket>> On<'_, S> {
    async fn ask(&self, ask: Ask) -> Result<Given, Status> {
        self.servers.ask(self.bucket, &Who::root(), ask).await
    }

    /// Does what may be done already.
    async fn take_away(&self, ask: Ask) -> Result<(), Status> {
        match self.ask(ask).await {
            Ok(_) | Err(Status::NoEnt | Status::Stale) => Ok(()),
            Err(status) => Err(status),
        }
    }

    async fn look(&self, dir: &Fh, name: &Bytes) -> Result<Option<Fh>, Status> {
        match self.ask(Ask::Lookup(place(dir, name))).await {
            Ok(Given::Object(object)) => Ok(Some(object.handle)),
            Ok(_) => Err(Status::ServerFault),
            Err(Status::NoEnt) => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn list(&self, dir: &Fh) -> Result<Vec<Bytes>, Status> {
        list(|ask| self.ask(ask), dir).await
    }

    /// Moves one entry. One of the same name that is there already is the one that counts: what comes after it was sent twice, and is a stub that
    /// nothing knows, or one more link.
    async fn move_entry(&self, from: &Fh, to: &Fh, name: &Bytes) -> Result<(), Status> {
        let source = place(from, name);
        let ask = Ask::Rename(source.clone(), place(to, name));
        match self.ask(ask).await {
            Ok(_) => match self.ask(Ask::Remove(source)).await {
                // Two links of one file: RENAME left both.
                Ok(_) | Err(Status::NoEnt | Status::Stale | Status::IsDir) => Ok(()),
                Err(Status::Perm | Status::Acces) => Ok(()),
                Err(status) => Err(status),
            },
            Err(Status::NoEnt | Status::Stale) => Ok(()),
            Err(Status::Exist | Status::NotEmpty) => {
                if let Some(stub) = self.look(from, name).await? {
                    self.take_away(Ask::Rmdir(place(&stub, &KEEPER))).await?;
                }
                self.take_away(Ask::Rmdir(source)).await
            }
            Err(status) => Err(status),
        }
    }
}

fn place(dir: &Fh, name: &Bytes) -> Place {
    Place {
        dir: dir.clone(),
        name: name.clone(),
    }
}

/// Makes an epoch's directory on a bucket; gives what its router knows of the bucket from then on.
///
/// # Errors
/// The server's.
pub async fn enter<S: Servers<Bucket>>(
    servers: &S,
    bucket: Bucket,
    shared: &Hidden,
    epoch: u64,
) -> Result<Hidden, Status> {
    let on = On { servers, bucket };
    let name = name(epoch);
    let new = NewAttrs {
        mode: Some(0o700),
        ..NewAttrs::default()
    };
    match on.ask(Ask::Mkdir(place(&shared.staging, &name), new)).await {
        Ok(_) | Err(Status::Exist) => {}
        Err(status) => return Err(status),
    }
    let staging = on.look(&shared.staging, &name).await?;
    Ok(Hidden {
        staging: staging.ok_or(Status::ServerFault)?,
        placed: shared.placed.clone(),
    })
}

/// Takes what is under way in an epoch that has ended to one's own directory on a bucket. From then on the ended one can do nothing there.
///
/// # Errors
/// The server's; can be done again.
pub async fn adopt<S: Servers<Bucket>>(
    servers: &S,
    bucket: Bucket,
    shared: &Hidden,
    own: &Hidden,
    ended: u64,
) -> Result<(), Status> {
    let on = On { servers, bucket };
    for _ in 0..MAX_ROUNDS {
        let Some(staging) = on.look(&shared.staging, &name(ended)).await? else {
            return Ok(());
        };
        for name in on.list(&staging).await? {
            on.move_entry(&staging, &own.staging, &name).await?;
        }
        match on
            .take_away(Ask::Rmdir(place(&shared.staging, &name(ended))))
            .await
        {
            // Something came meanwhile.
            Err(Status::Exist | Status::NotEmpty) => {}
            done => return done,
        }
    }
    Err(Status::Jukebox)
}

/// Removes an epoch's directory in which nothing is left.
///
/// # Errors
/// The server's.
pub async fn leave<S: Servers<Bucket>>(
    servers: &S,
    bucket: Bucket,
    shared: &Hidden,
    epoch: u64,
) -> Result<(), Status> {
    let on = On { servers, bucket };
    on.take_away(Ask::Rmdir(place(&shared.staging, &name(epoch))))
        .await
}

/// The epochs that have a directory on a bucket.
///
/// # Errors
/// The server's.
pub async fn found<S: Servers<Bucket>>(
    servers: &S,
    bucket: Bucket,
    shared: &Hidden,
) -> Result<Vec<u64>, Status> {
    let names = On { servers, bucket }.list(&shared.staging).await?;
    let number = |name: &Bytes| {
        let text = std::str::from_utf8(name).ok()?;
        let number = u64::from_str_radix(text, 16).ok()?;
        (text.len() == 16).then_some(number)
    };
    Ok(names.iter().filter_map(number).collect())
}

//! What the coordinator is about to do, as it is written down first.
//!
//! An intention says all that is needed to tell from the servers alone how far it came, and to finish or undo it: each step can be done again.
//! The record of its end is on disk before anybody is told that it is done, so one that is found without its end is the last that
//! touched its names.

use bytes::Bytes;
use quorate_nfs::call::{Fh, Place};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};

use crate::handle::Handle;
use crate::layout::Bucket;
use crate::map::Map;

/// The longest name or handle in a record.
const MAX_BYTES: usize = 1 << 16;

/// The number of an intention, never used again in one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

/// A name in a directory of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The directory.
    pub dir: Handle,
    /// The name.
    pub name: Bytes,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thing {
    /// The stub under the name, if what it stands for lies elsewhere.
    pub stub: Option<Fh>,
    /// The object itself.
    pub object: Handle,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Something that touches two buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A new directory on another bucket than its parent's.
    Mkdir {
        /// Its name, which nothing has.
        at: Name,
        /// Where it goes.
        bucket: Bucket,
    },
    /// A name is to go, and what it stands for, which lies elsewhere.
    Remove {
        /// The name.
        at: Name,
        /// What it stands for.
        thing: Thing,
    },
    /// What has one name gets another, instead of it (RENAME) or as well (LINK).
    Attach {
        /// The name that goes; none for a link.
        from: Option<Name>,
        /// What is meant.
        thing: Thing,
        /// The new name.
        to: Name,
        /// What had that name.
        replaced: Option<Thing>,
    },
}

/// The log of one router's life: an *epoch*, whose number no other has.
pub trait Log: Send + Sync {
    /// Directories that are held until this goes.
    type Hold: Send + Sync + std::fmt::Debug;

    /// Whether the router may still give orders, as far as it can tell by itself: another may have taken over.
    fn is_current(&self) -> bool;

    /// Whether it may, as the log says.
    fn confirm(&self) -> impl Future<Output = bool> + Send;

    /// Waits until no other router holds any of these directories, and holds them. All at once, so that no two wait for each other.
    ///
    /// # Errors
    /// [`Status::Jukebox`]: the router may not go on.
    fn hold(&self, dirs: Vec<Handle>) -> impl Future<Output = Result<Self::Hold, Status>> + Send;

    /// Writes an intention; it lasts when this is done. The directories of its names are held.
    ///
    /// # Errors
    /// If it can't be written: nothing may be done.
    fn begin(&self, intent: &Intent) -> impl Future<Output = Result<Number, Status>> + Send;

    /// Writes that an intention was carried out or undone; that lasts when this is done.
    ///
    /// # Errors
    /// If it can't be written: nobody may be told.
    fn end(&self, number: Number) -> impl Future<Output = Result<(), Status>> + Send;

    /// Keeps the map in the place of the one before, whose version is lower; it lasts when this is done.
    ///
    /// # Errors
    /// If it can't be written: it is not known which of the two is kept. [`Status::NotSupp`]: this log keeps none.
    fn keep(&self, map: &Map) -> impl Future<Output = Result<(), Status>> + Send;
}

impl Name {
    /// As its server knows it.
    pub fn place(&self) -> Place {
        Place {
            dir: self.dir.key.clone(),
            name: self.name.clone(),
        }
    }

    fn write(&self, w: &mut Writer) {
        handle(w, &self.dir);
        w.opaque(&self.name);
    }

    fn read(r: &mut Reader) -> Read<Name> {
        Ok(Name {
            dir: read_handle(r)?,
            name: r.opaque(MAX_BYTES, "name")?,
        })
    }
}

impl Thing {
    fn write(&self, w: &mut Writer) {
        w.bool(self.stub.is_some());
        self.stub.iter().for_each(|stub| w.opaque(stub));
        handle(w, &self.object);
        w.bool(self.is_dir);
    }

    fn read(r: &mut Reader) -> Read<Thing> {
        Ok(Thing {
            stub: r.option(|r| r.opaque(MAX_BYTES, "stub"))?,
            object: read_handle(r)?,
            is_dir: r.bool()?,
        })
    }
}

fn handle(w: &mut Writer, handle: &Handle) {
    w.u32(handle.bucket.0);
    w.opaque(&handle.key);
}

fn bucket(r: &mut Reader) -> Read<Bucket> {
    Ok(Bucket(r.u32()?))
}

fn read_handle(r: &mut Reader) -> Read<Handle> {
    Ok(Handle {
        bucket: bucket(r)?,
        key: r.opaque(MAX_BYTES, "handle")?,
    })
}

impl Intent {
    /// As a record.
    pub fn write(&self) -> Vec<u8> {
        let w = &mut Writer::default();
        match self {
            Intent::Mkdir { at, bucket } => {
                w.u32(1);
                at.write(w);
                w.u32(bucket.0);
            }
            Intent::Remove { at, thing } => {
                w.u32(2);
                at.write(w);
                thing.write(w);
            }
            Intent::Attach {
                from,
                thing,
                to,
                replaced,
            } => {
                w.u32(3);
                w.bool(from.is_some());
                from.iter().for_each(|from| from.write(w));
                thing.write(w);
                to.write(w);
                w.bool(replaced.is_some());
                replaced.iter().for_each(|replaced| replaced.write(w));
            }
        }
        std::mem::take(&mut w.out)
    }

    /// From a record.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(record: Bytes) -> Read<Intent> {
        let r = &mut Reader::new(record);
        let intent = match r.u32()? {
            1 => Intent::Mkdir {
                at: Name::read(r)?,
                bucket: bucket(r)?,
            },
            2 => Intent::Remove {
                at: Name::read(r)?,
                thing: Thing::read(r)?,
            },
            3 => Intent::Attach {
                from: r.option(Name::read)?,
                thing: Thing::read(r)?,
                to: Name::read(r)?,
                replaced: r.option(Thing::read)?,
            },
            _ => return Err(Malformed::Value("intention")),
        };
        match r.rest().is_empty() {
            true => Ok(intent),
            false => Err(Malformed::TooLong("record")),
        }
    }

    /// Whether a directory gets another parent.
    pub fn changes_parent(&self) -> bool {
        match self {
            Intent::Attach {
                from: Some(from),
                thing,
                to,
                ..
            } => thing.is_dir && from.dir != to.dir,
            _ => false,
        }
    }

    /// The buckets that have a part in it.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut all: Vec<Bucket> = self.names().iter().map(|name| name.dir.bucket).collect();
        match self {
            Intent::Mkdir { bucket, .. } => all.push(*bucket),
            Intent::Remove { thing, .. } => all.push(thing.object.bucket),
            Intent::Attach {
                thing, replaced, ..
            } => {
                all.push(thing.object.bucket);
                all.extend(replaced.iter().map(|replaced| replaced.object.bucket));
            }
        }
        all
    }

    /// The names that nobody else may touch until it has ended.
    pub fn names(&self) -> Vec<Name> {
        match self {
            Intent::Mkdir { at, .. } | Intent::Remove { at, .. } => vec![at.clone()],
            Intent::Attach { from, to, .. } => from.iter().chain([to]).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_whole_or_not_at_all() {
        let name = |text: &'static [u8], bucket| Name {
            dir: Handle {
                bucket: Bucket(bucket),
                key: Bytes::from_static(b"abc"),
            },
            name: text.into(),
        };
        let thing = |stub| Thing {
            stub,
            object: name(b"", 3).dir,
            is_dir: true,
        };
        let intents = [
            Intent::Mkdir {
                at: name(b"a", 1),
                bucket: Bucket(2),
            },
            Intent::Remove {
                at: name(b"a", 1),
                thing: thing(Some(Bytes::from_static(b"stub!"))),
            },
            Intent::Attach {
                from: Some(name(b"a", 1)),
                thing: thing(None),
                to: name(b"bb", 2),
                replaced: Some(thing(None)),
            },
            Intent::Attach {
                from: None,
                thing: thing(None),
                to: name(b"bb", 2),
                replaced: None,
            },
        ];
        for intent in intents {
            let record = intent.write();
            assert_eq!(Intent::read(record.clone().into()), Ok(intent));
            for len in 0..record.len() {
                assert!(Intent::read(record[..len].to_vec().into()).is_err());
            }
        }
    }
}

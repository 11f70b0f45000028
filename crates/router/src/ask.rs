//! What the coordinator asks of servers, and what they give back; as bytes, for those that are reached over a network.

use bytes::Bytes;
use quorate_files::Who;
use quorate_files::op::SetTime;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};

use crate::attrs::Attrs;
use crate::buckets::Located;
use crate::layout::Volume;

/// The longest name or symbolic link that is taken from a server.
const MAX_TEXT_BYTES: usize = 1 << 16;
/// The most entries of one listing.
const MAX_ENTRIES: usize = 1 << 16;
/// `ftype3` of devices.
pub const BLOCK: u32 = 3;
/// See [`BLOCK`].
pub const CHARACTER: u32 = 4;
/// How much of a directory is asked for at a time.
const LISTING_BYTES: u32 = 32 << 10;

/// A question or an order.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the standard names them")]
pub enum Ask {
    GetAttr(Fh),
    SetAttr(Fh, NewAttrs),
    Lookup(Place),
    Access(Fh, u32),
    Readlink(Fh),
    Mkdir(Place, NewAttrs),
    Symlink(Place, Bytes),
    Remove(Place),
    Rmdir(Place),
    Rename(Place, Place),
    Link(Fh, Place),
    ReadDir {
        dir: Fh,
        cookie: u64,
        verifier: u64,
    },
    Read {
        file: Fh,
        offset: u64,
        count: u32,
    },
    Write {
        file: Fh,
        offset: u64,
        data: Bytes,
        stable: bool,
    },
    Create(Place, NewAttrs),
    Mknod {
        at: Place,
        kind: u32,
        new: NewAttrs,
        device: (u32, u32),
    },
    Commit(Fh),
}

/// An object with its handle on its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its handle.
    pub handle: Fh,
    /// Its attributes; servers may leave them out.
    pub attrs: Option<Attrs>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the file.
    pub fileid: u64,
    /// The name.
    pub name: Bytes,
    /// Where the listing goes on after it.
    pub cookie: u64,
}

/// What a server gives.
#[derive(Clone, Debug)]
pub enum Given {
    /// It is done.
    Done,
    /// LOOKUP, MKDIR, SYMLINK; the handle is empty where the server has left it out.
    Object(Object),
    /// GETATTR.
    Attrs(Attrs),
    /// ACCESS: what is allowed.
    Allowed(u32),
    /// READLINK.
    Text(Bytes),
    /// READDIR.
    Entries {
        /// To go on with.
        verifier: u64,
        /// The entries.
        entries: Vec<Entry>,
        /// Whether there are no more.
        end: bool,
    },
    /// READ.
    Data {
        /// What was read.
        data: Bytes,
        /// Whether the file ends there.
        end: bool,
    },
    /// WRITE: how much, and COMMIT: whether it is still the server that took what was written.
    Written {
        /// How many bytes.
        count: u32,
        /// Another after the server has lost what was not yet on its disk.
        verifier: u64,
    },
}

/// The servers of all volumes; or, a level above, of all buckets.
pub trait Servers<At = Volume>: Send + Sync {
    /// Asks on somebody's behalf. `Jukebox` is also what a server that can't be reached comes to: it is then not known whether
    /// the order was carried out.
    fn ask(
        &self,
        at: At,
        who: &Who,
        ask: Ask,
    ) -> impl Future<Output = Result<Given, Status>> + Send;

    /// Waits a moment before what did not work is tried again.
    fn pause(&self) -> impl Future<Output = ()> + Send;

    /// Waits as long as calls may be kept waiting, for the end of a bucket's move or that of a directory; then that is given up.
    fn patience(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Waits as long as so many bytes may take that are moved in the background.
    fn pace(&self, _bytes: u64) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl Ask {
    /// The number of the procedure.
    pub fn procedure(&self) -> u32 {
        match self {
            Ask::GetAttr(_) => 1,
            Ask::SetAttr(..) => 2,
            Ask::Lookup(_) => 3,
            Ask::Access(..) => 4,
            Ask::Readlink(_) => 5,
            Ask::Read { .. } => 6,
            Ask::Write { .. } => 7,
            Ask::Create(..) => 8,
            Ask::Mkdir(..) => 9,
            Ask::Symlink(..) => 10,
            Ask::Mknod { .. } => 11,
            Ask::Remove(_) => 12,
            Ask::Rmdir(_) => 13,
            Ask::Rename(..) => 14,
            Ask::Link(..) => 15,
            Ask::ReadDir { .. } => 16,
            Ask::Commit(_) => 21,
        }
    }

    /// The same with each handle as the server of a bucket's volume calls it.
    ///
    /// # Errors
    /// [`Status::Stale`]: an object is gone.
    pub fn in_words_of(self, at: &Located) -> Result<Ask, Status> {
        let fh = |key: Fh| at.server(&key);
        let place = |place: Place| -> Result<Place, Status> {
            Ok(Place {
                dir: fh(place.dir)?,
                name: place.name,
            })
        };
        Ok(match self {
            Ask::GetAttr(object) => Ask::GetAttr(fh(object)?),
            Ask::SetAttr(object, new) => Ask::SetAttr(fh(object)?, new),
            Ask::Lookup(at) => Ask::Lookup(place(at)?),
            Ask::Access(object, mask) => Ask::Access(fh(object)?, mask),
            Ask::Readlink(object) => Ask::Readlink(fh(object)?),
            Ask::Mkdir(at, new) => Ask::Mkdir(place(at)?, new),
            Ask::Symlink(at, text) => Ask::Symlink(place(at)?, text),
            Ask::Remove(at) => Ask::Remove(place(at)?),
            Ask::Rmdir(at) => Ask::Rmdir(place(at)?),
            Ask::Rename(from, to) => Ask::Rename(place(from)?, place(to)?),
            Ask::Link(file, to) => Ask::Link(fh(file)?, place(to)?),
            Ask::ReadDir {
                dir,
                cookie,
                verifier,
            } => Ask::ReadDir {
                dir: fh(dir)?,
                cookie,
                verifier,
            },
            Ask::Read {
                file,
                offset,
                count,
            } => Ask::Read {
                file: fh(file)?,
                offset,
                count,
            },
            Ask::Write {
                file,
                offset,
                data,
                stable,
            } => Ask::Write {
                file: fh(file)?,
                offset,
                data,
                stable,
            },
            Ask::Create(at, new) => Ask::Create(place(at)?, new),
            Ask::Mknod {
                at,
                kind,
                new,
                device,
            } => Ask::Mknod {
                at: place(at)?,
                kind,
                new,
                device,
            },
            Ask::Commit(file) => Ask::Commit(fh(file)?),
        })
    }

    /// The arguments (RFC 1813, 3.3).
    pub fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Ask::GetAttr(fh) | Ask::Readlink(fh) => w.opaque(fh),
            Ask::SetAttr(fh, new) => {
                w.opaque(fh);
                attrs(&mut w, new);
                w.bool(false);
            }
            Ask::Lookup(at) | Ask::Remove(at) | Ask::Rmdir(at) => place(&mut w, at),
            Ask::Access(fh, mask) => {
                w.opaque(fh);
                w.u32(*mask);
            }
            Ask::Mkdir(at, new) => {
                place(&mut w, at);
                attrs(&mut w, new);
            }
            Ask::Symlink(at, text) => {
                place(&mut w, at);
                attrs(&mut w, &NewAttrs::default());
                w.opaque(text);
            }
            Ask::Rename(from, to) => {
                place(&mut w, from);
                place(&mut w, to);
            }
            Ask::Link(fh, at) => {
                w.opaque(fh);
                place(&mut w, at);
            }
            Ask::ReadDir {
                dir,
                cookie,
                verifier,
            } => {
                w.opaque(dir);
                w.u64(*cookie);
                w.u64(*verifier);
                w.u32(LISTING_BYTES);
            }
            Ask::Read {
                file,
                offset,
                count,
            } => {
                w.opaque(file);
                w.u64(*offset);
                w.u32(*count);
            }
            Ask::Write {
                file,
                offset,
                data,
                stable,
            } => {
                w.opaque(file);
                w.u64(*offset);
                w.u32(data.len() as u32);
                // FILE_SYNC or UNSTABLE.
                w.u32(if *stable { 2 } else { 0 });
                w.opaque(data);
            }
            Ask::Create(at, new) => {
                place(&mut w, at);
                // GUARDED.
                w.u32(1);
                attrs(&mut w, new);
            }
            Ask::Mknod {
                at,
                kind,
                new,
                device,
            } => {
                place(&mut w, at);
                w.u32(*kind);
                attrs(&mut w, new);
                if matches!(*kind, BLOCK | CHARACTER) {
                    w.u32(device.0);
                    w.u32(device.1);
                }
            }
            Ask::Commit(file) => {
                w.opaque(file);
                // All of it.
                w.u64(0);
                w.u32(0);
            }
        }
        w.out
    }

    /// What a server's results say.
    ///
    /// # Errors
    /// The server's status; [`Status::ServerFault`] if they are no results of this procedure.
    pub fn read(&self, results: Bytes) -> Result<Given, Status> {
        let r = &mut Reader::new(results);
        let status = r.u32().map_err(|_| Status::ServerFault)?;
        if status != 0 {
            return Err(Status::of(status));
        }
        self.read_ok(r).map_err(|_| Status::ServerFault)
    }

    fn read_ok(&self, r: &mut Reader) -> Read<Given> {
        Ok(match self {
            Ask::GetAttr(_) => Given::Attrs(Attrs::read(r)?),
            Ask::Lookup(_) => Given::Object(Object {
                handle: r.opaque(MAX_HANDLE_BYTES, "handle")?,
                attrs: r.option(Attrs::read)?,
            }),
            Ask::Access(..) => {
                r.option(Attrs::read)?;
                Given::Allowed(r.u32()?)
            }
            Ask::Readlink(_) => {
                r.option(Attrs::read)?;
                Given::Text(r.opaque(MAX_TEXT_BYTES, "target")?)
            }
            Ask::Mkdir(..) | Ask::Symlink(..) | Ask::Create(..) | Ask::Mknod { .. } => {
                Given::Object(Object {
                    handle: r
                        .option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?
                        .unwrap_or_default(),
                    attrs: r.option(Attrs::read)?,
                })
            }
            Ask::ReadDir { .. } => {
                r.option(Attrs::read)?;
                let verifier = r.u64()?;
                let mut entries = Vec::new();
                while r.bool()? {
                    if entries.len() >= MAX_ENTRIES {
                        return Err(Malformed::TooLong("listing"));
                    }
                    entries.push(Entry {
                        fileid: r.u64()?,
                        name: r.opaque(MAX_TEXT_BYTES, "name")?,
                        cookie: r.u64()?,
                    });
                }
                Given::Entries {
                    verifier,
                    entries,
                    end: r.bool()?,
                }
            }
            Ask::Read { count, .. } => {
                r.option(Attrs::read)?;
                let (_, end) = (r.u32()?, r.bool()?);
                let data = r.opaque(*count as usize, "data")?;
                Given::Data { data, end }
            }
            Ask::Write { data, .. } => {
                changed(r)?;
                let (count, _) = (r.u32()?, r.u32()?);
                if count as usize > data.len() {
                    return Err(Malformed::Value("count"));
                }
                let verifier = r.u64()?;
                Given::Written { count, verifier }
            }
            Ask::Commit(_) => {
                changed(r)?;
                let verifier = r.u64()?;
                Given::Written { count: 0, verifier }
            }
            Ask::SetAttr(..) | Ask::Remove(_) | Ask::Rmdir(_) | Ask::Rename(..) | Ask::Link(..) => {
                Given::Done
            }
        })
    }
}

/// `wcc_data`: size and two times from before, and attributes.
fn changed(r: &mut Reader) -> Read<()> {
    r.option(Reader::array::<24>)?;
    r.option(Attrs::read)?;
    Ok(())
}

/// A name in a directory.
pub fn place(w: &mut Writer, place: &Place) {
    w.opaque(&place.dir);
    w.opaque(&place.name);
}

/// Attributes to set (`sattr3`).
pub fn attrs(w: &mut Writer, new: &NewAttrs) {
    for word in [new.mode, new.uid, new.gid] {
        w.bool(word.is_some());
        word.into_iter().for_each(|word| w.u32(word));
    }
    w.bool(new.size.is_some());
    new.size.into_iter().for_each(|size| w.u64(size));
    for time in [&new.atime, &new.mtime] {
        match time {
            None => w.u32(0),
            Some(SetTime::Now(_)) => w.u32(1),
            Some(SetTime::At(at)) => {
                w.u32(2);
                w.u32(u32::try_from(at.secs).unwrap_or(u32::MAX));
                w.u32(at.nanos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_nfs::call::Call;

    fn at(name: &'static [u8]) -> Place {
        Place {
            dir: Bytes::from_static(b"dir"),
            name: name.into(),
        }
    }

    /// What is written is read as the same by our server's reader, which is compared with another hand's elsewhere.
    #[test]
    fn orders_are_read_as_they_are_meant() {
        let new = NewAttrs {
            mode: Some(0o751),
            uid: Some(7),
            size: Some(1 << 40),
            mtime: Some(SetTime::At(quorate_files::Stamp { secs: 5, nanos: 6 })),
            ..NewAttrs::default()
        };
        let fh = Bytes::from_static(b"file!");
        let both = [
            (Ask::GetAttr(fh.clone()), Call::GetAttr(fh.clone())),
            (
                Ask::SetAttr(fh.clone(), new.clone()),
                Call::SetAttr {
                    object: fh.clone(),
                    attrs: new.clone(),
                    guard: None,
                },
            ),
            (Ask::Lookup(at(b"n")), Call::Lookup(at(b"n"))),
            (
                Ask::Mkdir(at(b"abcde"), new.clone()),
                Call::Mkdir(at(b"abcde"), new),
            ),
            (Ask::Rmdir(at(b"ab")), Call::Rmdir(at(b"ab"))),
            (Ask::Remove(at(b"ab")), Call::Remove(at(b"ab"))),
            (
                Ask::Rename(at(b"a"), at(b"b")),
                Call::Rename(at(b"a"), at(b"b")),
            ),
            (
                Ask::Symlink(at(b"s"), fh.clone()),
                Call::Symlink(at(b"s"), NewAttrs::default(), fh.clone()),
            ),
            (
                Ask::Link(fh.clone(), at(b"b")),
                Call::Link {
                    file: fh,
                    new: at(b"b"),
                },
            ),
        ];
        for (ask, call) in both {
            let mut r = Reader::new(ask.write().into());
            let read = Call::read(ask.procedure(), &mut r).unwrap().unwrap();
            assert_eq!(read, call);
            assert!(r.rest().is_empty());
        }
    }

    /// No bytes from a server make it panic or allocate much.
    #[test]
    fn any_results_are_read() {
        let asks = [
            Ask::Lookup(at(b"n")),
            Ask::ReadDir {
                dir: Bytes::new(),
                cookie: 0,
                verifier: 0,
            },
            Ask::Mkdir(at(b"n"), NewAttrs::default()),
        ];
        for ask in asks {
            assert!(ask.read(Bytes::new()).is_err());
            assert_eq!(
                ask.read(vec![0, 0, 0, 66].into()).unwrap_err(),
                Status::NotEmpty
            );
            for fill in [0, 1, 255] {
                for len in 0..200 {
                    let mut bytes = vec![fill; len];
                    bytes.iter_mut().take(4).for_each(|b| *b = 0);
                    let _ = ask.read(bytes.into());
                }
            }
        }
    }
}

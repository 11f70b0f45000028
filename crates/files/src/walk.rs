//! The way from an object up to the root, by the numbers of directories and never by a path that somebody says.
//!
//! An object has its first name's place in its inode, a hard link each further one in a row. One without a name counts as being where its
//! last name was: so what was open when it was removed can still be used by those who could use it there.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::{ObjectId, Step};

use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::layout::{self, Inode, Place};
use crate::types::{Ino, Kind};

/// The deepest object that is in scope of anything but itself.
pub(crate) const MAX_STEPS: usize = 256;
/// How many names of an object are looked at, in the order of their places.
pub(crate) const MAX_NAMES: usize = 64;
/// How many directories are looked at for all names of an object together.
const MAX_STEPS_IN_ALL: usize = 1024;

/// An object's or directory's number, and its name in the next one.
pub(crate) type Walk = Vec<(ObjectId, Bytes)>;

pub(crate) fn object(ino: Ino) -> ObjectId {
    ObjectId(ino.0.into())
}

/// As the verifier has it.
pub(crate) fn steps(walk: &Walk) -> Vec<Step<'_>> {
    let steps = walk.iter().map(|(object, name)| Step {
        object: *object,
        name,
    });
    steps.collect()
}

/// The ways of something that has a name in a directory with these ways.
pub(crate) fn below(object: ObjectId, name: &[u8], dir: &[Walk]) -> Vec<Walk> {
    let first = (object, Bytes::copy_from_slice(name));
    let longer = |walk: &Walk| {
        core::iter::once(first.clone())
            .chain(walk.clone())
            .collect()
    };
    dir.iter().map(longer).collect()
}

impl Fs<'_, '_> {
    /// All ways of an object, one for each of its names; at least the one that is the object alone. `ESTALE` where it is gone. Names are
    /// read where they are wanted: they cost as much as the rest.
    pub fn walks(&self, ino: Ino, with_names: bool) -> Done<Vec<Walk>> {
        Ok(self.walks_and_steps(ino, with_names)?.0)
    }

    /// The same, and how many steps were gone for it, also in vain.
    pub fn walks_and_steps(&self, ino: Ino, with_names: bool) -> Done<(Vec<Walk>, usize)> {
        let inode = self.any_inode(ino)?;
        let alone = || Vec::from([(object(ino), Bytes::new())]);
        if ino == Ino::ROOT {
            return Ok((Vec::from([alone()]), 1));
        }
        let mut budget = MAX_STEPS_IN_ALL;
        let mut walks = Vec::new();
        let places = self.places(ino, &inode)?;
        let names = places.len();
        for place in places {
            if let Some(above) = self.climb(place.dir, with_names, &mut budget)? {
                let name = self.name_at(place, with_names)?;
                let walk = core::iter::once((object(ino), name)).chain(above);
                walks.push(walk.collect());
            }
        }
        if walks.is_empty() {
            walks.push(alone());
        }
        Ok((walks, names + MAX_STEPS_IN_ALL - budget))
    }

    fn places(&self, ino: Ino, inode: &Inode) -> Done<Vec<Place>> {
        let mut places = Vec::from([inode.place()]);
        if inode.kind != Kind::Directory && inode.nlink > 1 {
            let (from, to) = layout::names_of(ino);
            for (key, _) in self.scan(&from, &to, MAX_NAMES - 1)? {
                let at = |index| layout::number_at(&key, index).ok_or(Errno::ESTALE);
                places.push(Place {
                    dir: Ino(at(1)?),
                    cookie: at(2)?,
                });
            }
        }
        Ok(places)
    }

    /// From a directory up to the root; nothing where that is too far, or a directory on the way is gone.
    fn climb(&self, dir: Ino, with_names: bool, budget: &mut usize) -> Done<Option<Walk>> {
        let (mut at, mut walk) = (dir, Walk::new());
        while walk.len() + 1 < MAX_STEPS && *budget > 0 {
            *budget -= 1;
            if at == Ino::ROOT {
                walk.push((object(at), Bytes::new()));
                return Ok(Some(walk));
            }
            let inode = match self.inode(at) {
                Ok(inode) if inode.kind == Kind::Directory => inode,
                Ok(_) | Err(Stop::Refused(_)) => return Ok(None),
                Err(fault) => return Err(fault),
            };
            let place = inode.place();
            walk.push((object(at), self.name_at(place, with_names)?));
            at = place.dir;
        }
        Ok(None)
    }

    fn name_at(&self, place: Place, wanted: bool) -> Done<Bytes> {
        let name = match wanted {
            true => self.txn.get(&layout::cookie_key(place.dir, place.cookie))?,
            false => None,
        };
        Ok(name.unwrap_or_default())
    }

    /// An object has got one more name.
    pub fn add_name(&mut self, ino: Ino, place: Place) {
        self.counters.moves += 1;
        self.txn.put(layout::name_key(ino, place), Bytes::new());
    }

    /// A name of an object is gone, and others are left. The caller writes the inode.
    pub fn forget_name(&mut self, ino: Ino, inode: &mut Inode, place: Place) -> Done<()> {
        self.counters.moves += 1;
        if inode.place() != place {
            self.txn.delete(layout::name_key(ino, place));
            return Ok(());
        }
        let (from, to) = layout::names_of(ino);
        if let Some((key, _)) = self.scan(&from, &to, 1)?.first() {
            let at = |index| layout::number_at(key, index).ok_or(Errno::ESTALE);
            inode.set_place(Place {
                dir: Ino(at(1)?),
                cookie: at(2)?,
            });
            self.txn.delete(key.clone());
        }
        Ok(())
    }

    /// A name of an object has become another. The caller writes the inode.
    pub fn change_name(&mut self, ino: Ino, inode: &mut Inode, from: Place, to: Place) {
        // Of what has one name and nothing below it, the name's place says as much.
        if inode.kind == Kind::Directory || inode.nlink > 1 {
            self.counters.moves += 1;
        }
        if inode.kind == Kind::Directory || inode.place() == from {
            inode.set_place(to);
        } else {
            self.txn.delete(layout::name_key(ino, from));
            self.add_name(ino, to);
        }
    }
}

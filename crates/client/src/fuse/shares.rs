//! What a mount shows as its root, where that is not the volume's: the object of a credential, or a directory with an object for each of several.
//!
//! The kernel's number of a mount's root is 1, and so is the service's number of the volume's. [`Root`] exchanges 1 and the number of what is
//! shown, in both directions, so that the volume's root can still be below, if it is what somebody shares.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fuser::{FileAttr, INodeNo};
use quorate_files::answer::Entry;
use quorate_files::{Attr, Ino, Kind, Stamp};

use super::convert;
use super::owners::Acting;

/// The number of the directory of shares; the service counts up from 1.
pub(super) const SHARES: Ino = Ino(1 << 63);
/// The cookie of the first share; those before are of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// What a mount begins with.
#[derive(Clone, Debug, Default)]
pub enum Start {
    /// The volume's root.
    #[default]
    Volume,
    /// An object: a directory.
    Object(Ino),
    /// A directory that somebody shares with who mounts it, as whom he acts in there.
    Shared(Ino, Acting),
    /// A directory that can't be changed from here, with what several people share.
    Shares(Shares, Acting),
}

impl Start {
    /// As whom a guest acts; nothing for others.
    pub(super) fn acting(&self) -> Option<&Acting> {
        match self {
            Start::Volume | Start::Object(_) => None,
            Start::Shared(_, acting) | Start::Shares(_, acting) => Some(acting),
        }
    }
}

/// Objects that are shared, by the names that they have at this mount. Clones are one; it can change while it is mounted.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<Mutex<BTreeMap<Bytes, Ino>>>);

impl Shares {
    /// These are all that there are from now on.
    pub fn set(&self, shares: BTreeMap<Bytes, Ino>) {
        *self.lock() = shares;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Bytes, Ino>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Ino> {
        self.lock().get(name).copied()
    }

    /// The entries after a cookie; what they are is to be asked.
    pub(super) fn list(&self, cookie: u64) -> Vec<Entry> {
        let entry = |(name, ino, cookie): (Bytes, Ino, u64)| Entry {
            name,
            ino,
            kind: Kind::Directory,
            cookie,
            attr: None,
        };
        let own = [(".", 1), ("..", 2)].map(|(name, cookie)| (name.into(), SHARES, cookie));
        let shares = self.lock().clone();
        let shares = (FIRST_COOKIE..).zip(shares);
        let shares = shares.map(|(cookie, (name, ino))| (name, ino, cookie));
        let after = |(_, _, its): &(Bytes, Ino, u64)| *its > cookie;
        own.into_iter()
            .chain(shares)
            .filter(after)
            .map(entry)
            .collect()
    }
}

/// The attributes of the directory of shares, which belongs to who has mounted: there is nothing to be changed in it.
pub(super) fn attr((uid, gid): (u32, u32)) -> Attr {
    let never = Stamp { secs: 0, nanos: 0 };
    Attr {
        ino: SHARES,
        kind: Kind::Directory,
        mode: 0o555,
        nlink: 2,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        change: 0,
        has_xattrs: false,
    }
}

/// The object that the kernel knows as the mount's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root(pub Ino);

impl Root {
    pub fn of(start: &Start) -> Root {
        Root(match start {
            Start::Volume => Ino(1),
            Start::Object(ino) | Start::Shared(ino, _) => *ino,
            Start::Shares(..) => SHARES,
        })
    }

    /// The object with the kernel's number.
    pub fn ino(self, number: INodeNo) -> Ino {
        self.exchange(Ino(number.0))
    }

    /// The kernel's number of an object.
    pub fn number(self, ino: Ino) -> INodeNo {
        INodeNo(self.exchange(ino).0)
    }

    pub fn attr(self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: self.number(attr.ino),
            ..convert::attr(attr)
        }
    }

    fn exchange(self, ino: Ino) -> Ino {
        match ino {
            Ino(1) => self.0,
            it if it == self.0 => Ino(1),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root's number and 1 change places, and no two objects have one number.
    #[test]
    fn numbers_change_places() {
        for root in [Ino(1), Ino(7), SHARES].map(Root) {
            assert_eq!(root.number(root.0), INodeNo(1));
            assert_eq!(root.ino(INodeNo(1)), root.0);
            for ino in [Ino(1), Ino(2), Ino(7), SHARES] {
                assert_eq!(root.ino(root.number(ino)), ino);
            }
        }
    }

    /// A listing goes on where it was, and shows what there is.
    #[test]
    fn shares_are_listed() {
        let shares = Shares::default();
        let objects = [("bob", 7), ("carol", 1)].map(|(name, ino)| (name.into(), Ino(ino)));
        shares.set(objects.into());
        let names = |cookie| {
            let entries = shares.list(cookie).into_iter();
            entries.map(|e| e.name).collect::<Vec<Bytes>>()
        };
        assert_eq!(names(0), [".", "..", "bob", "carol"]);
        assert_eq!(names(3), ["carol"]);
        assert_eq!(shares.list(3)[0].ino, Ino(1));
        assert!(names(4).is_empty());
        assert_eq!(shares.get(b"bob"), Some(Ino(7)));
        shares.set(BTreeMap::new());
        assert_eq!(shares.get(b"bob"), None);
    }
}

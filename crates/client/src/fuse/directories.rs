//! Directories that are removed while somebody has them open, or works in them.
//!
//! The group knows of no open directory: nothing in one can be lost, so it goes at once when it is removed. But who has it open may ask for its
//! attributes, and is to see that it has no name any more. So what was last seen of a directory is remembered for as long as the
//! kernel knows it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_files::{Attr, Ino, Kind};

/// How many directories are remembered.
const MAX_DIRECTORIES: usize = 1 << 14;

/// What directories were like when they were last seen.
#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<BTreeMap<Ino, Attr>>);

impl Directories {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Attr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told of attributes.
    pub fn learn(&self, attr: &Attr) {
        if attr.kind != Kind::Directory {
            return;
        }
        let mut seen = self.lock();
        seen.insert(attr.ino, attr.clone());
        if seen.len() > MAX_DIRECTORIES {
            // Who has one open of which nothing is known is told ESTALE.
            seen.pop_first();
        }
    }

    /// The kernel forgets an object.
    pub fn forget(&self, ino: Ino) {
        self.lock().remove(&ino);
    }

    /// What is left of an object that is gone, if it was a directory.
    pub fn gone(&self, ino: Ino) -> Option<Attr> {
        let attr = self.lock().get(&ino).cloned()?;
        Some(Attr { nlink: 0, ..attr })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn directory(ino: u64) -> Attr {
        Attr {
            kind: Kind::Directory,
            nlink: 2,
            ..sample::attr(Ino(ino))
        }
    }

    /// Directories alone are remembered, until the kernel forgets them, and a bounded number of them.
    #[test]
    fn a_bounded_number_of_directories_is_remembered() {
        let directories = Directories::default();
        directories.learn(&sample::attr(Ino(1)));
        directories.learn(&directory(2));
        assert!(directories.gone(Ino(1)).is_none());
        assert_eq!(directories.gone(Ino(2)).unwrap().nlink, 0);
        directories.forget(Ino(2));
        assert!(directories.gone(Ino(2)).is_none());
        for ino in 0..MAX_DIRECTORIES as u64 + 100 {
            directories.learn(&directory(ino));
        }
        assert_eq!(directories.lock().len(), MAX_DIRECTORIES);
    }
}

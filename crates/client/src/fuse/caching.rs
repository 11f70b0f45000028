//! For how long the kernel takes what it was told for granted, and what may wait to be written.
//!
//! NFS clients have options for this, and so these are named: `acregmin` and the like, `sync`, `noac`. What an open or a lock
//! promises (close-to-open) holds with any of them.

use std::time::Duration;

use quorate_files::{Attr, Kind};

use super::TTL;
use crate::wall;

/// An object that has not changed for so many times as long is likely not to change for so long.
const AGE_DIVISOR: u32 = 10;

/// For how long attributes are taken for granted: a tenth of the time for which the object has not changed, within these bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// For so long at least.
    pub least: Duration,
    /// For so long at most.
    pub most: Duration,
}

impl Lifetime {
    /// The same for all objects, however old.
    pub const fn fixed(time: Duration) -> Lifetime {
        Lifetime {
            least: time,
            most: time,
        }
    }

    /// For an object that has not changed for so long.
    fn of_age(self, age: Duration) -> Duration {
        (age / AGE_DIVISOR).max(self.least).min(self.most)
    }
}

/// What a mount keeps to itself, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Attributes of everything but directories.
    pub files: Lifetime,
    /// Attributes of directories. Names are taken for granted for the least of it, since their directory's age is not looked at.
    pub directories: Lifetime,
    /// Whether a write and a change of attributes is at the group when its system call returns.
    pub sync: bool,
    /// Whether each read of a file that is open asks first whether the file has changed.
    pub validate_reads: bool,
    /// Whether reading changes times of access, by the rule of `relatime`.
    pub accesses: bool,
    /// And those of directories, where it does.
    pub accesses_of_directories: bool,
}

impl Default for Caching {
    fn default() -> Caching {
        Caching {
            files: Lifetime::fixed(TTL),
            directories: Lifetime::fixed(TTL),
            sync: false,
            validate_reads: false,
            accesses: true,
            accesses_of_directories: true,
        }
    }
}

impl Caching {
    /// Attributes that have just come. Times of change are agreed; where this machine's clock is wrong, the bounds still hold.
    pub(super) fn attributes(&self, attr: &Attr) -> Duration {
        let lifetime = match attr.kind {
            Kind::Directory => self.directories,
            _ => self.files,
        };
        if lifetime.least == lifetime.most {
            return lifetime.least;
        }
        lifetime.of_age(age(attr, wall::now()))
    }

    /// A name.
    pub(super) fn names(&self) -> Duration {
        self.directories.least
    }

    /// A name together with the attributes of what it names, where the kernel is told one time for both.
    pub(super) fn entry(&self, attr: &Attr) -> Duration {
        self.attributes(attr).min(self.names())
    }

    /// What is known of an object whose kind is not.
    pub(super) fn least(&self) -> Duration {
        self.files.least.min(self.directories.least)
    }
}

/// For how long an object has not changed; nothing, if that is in the future.
fn age(attr: &Attr, now: Duration) -> Duration {
    let changed = u64::try_from(attr.ctime.secs).unwrap_or(0);
    now.saturating_sub(Duration::new(changed, attr.ctime.nanos.min(999_999_999)))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use quorate_files::{Ino, Stamp};

    fn attr(kind: Kind, ctime: Stamp) -> Attr {
        Attr {
            kind,
            ctime,
            ..sample::attr(Ino(7))
        }
    }

    const BOUNDS: Lifetime = Lifetime {
        least: Duration::from_secs(3),
        most: Duration::from_secs(60),
    };

    /// The older, the longer, within the bounds; whatever a clock says.
    #[test]
    fn what_is_old_is_trusted_longer() {
        let after = |secs| BOUNDS.of_age(Duration::from_secs(secs)).as_secs();
        assert_eq!(
            [0, 29, 50, 200, 600, 1 << 40].map(after),
            [3, 3, 5, 20, 60, 60]
        );
        assert_eq!(Lifetime::fixed(TTL).of_age(Duration::MAX), TTL);

        let changed = |secs, nanos| attr(Kind::Regular, Stamp { secs, nanos });
        let now = Duration::from_secs(1000);
        assert_eq!(age(&changed(400, 0), now), Duration::from_secs(600));
        assert_eq!(age(&changed(1001, 0), now), Duration::ZERO);
        assert_eq!(age(&changed(-5, u32::MAX), now).as_secs(), 999);
        assert_eq!(age(&changed(i64::MAX, 0), now), Duration::ZERO);
    }

    /// Names go by directories' least; files and directories each by their own bounds.
    #[test]
    fn kinds_have_their_own_bounds() {
        let caching = Caching {
            files: Lifetime::fixed(Duration::from_secs(9)),
            directories: Lifetime::fixed(Duration::from_secs(4)),
            ..Caching::default()
        };
        let (file, directory) = (
            attr(Kind::Regular, Stamp::default()),
            attr(Kind::Directory, Stamp::default()),
        );
        assert_eq!(caching.attributes(&file).as_secs(), 9);
        assert_eq!(caching.attributes(&directory).as_secs(), 4);
        assert_eq!(caching.entry(&file).as_secs(), 4);
        assert_eq!(caching.least().as_secs(), 4);
        let young = Caching {
            directories: BOUNDS,
            ..caching
        };
        assert_eq!(young.attributes(&directory), BOUNDS.most);
        assert_eq!(young.names(), BOUNDS.least);
    }
}

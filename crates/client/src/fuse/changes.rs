//! From which change of a file the pages in the kernel's cache are, and which change this mount has seen last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_files::{Attr, Ino};

/// How many files are remembered; those forgotten lose their cached pages at the next open.
const MAX_FILES: usize = 1 << 16;
/// How many own changes may be ahead of a gap.
const MAX_AHEAD: usize = 4096;

#[derive(Debug, Default)]
struct Seen {
    /// The last change that any answer told of.
    newest: u64,
    /// All pages in the cache are from this change, with all own changes up to it, or are newer.
    cached: Option<u64>,
    /// Own changes after a gap: their answers came early, or a foreign change lies between.
    ahead: BTreeSet<u64>,
}

/// What is known of files' change numbers.
#[derive(Debug, Default)]
pub(super) struct Changes {
    files: Mutex<BTreeMap<Ino, Seen>>,
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Seen>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        while files.len() > MAX_FILES {
            files.pop_first();
        }
        files
    }

    /// Whether the kernel may know older attributes of a file than these, which an open brought. To be asked before
    /// [`Changes::may_keep`].
    pub fn is_news(&self, attr: &Attr) -> bool {
        let files = self.lock();
        let Some(seen) = files.get(&attr.ino) else {
            return true;
        };
        seen.newest < attr.change || seen.cached.is_some_and(|cached| cached != attr.change)
    }

    /// A file is opened or locked: whether the kernel may keep its pages. If not, it is to drop them.
    pub fn may_keep(&self, attr: &Attr) -> bool {
        let mut files = self.lock();
        let seen = files.entry(attr.ino).or_default();
        seen.newest = seen.newest.max(attr.change);
        let keep = seen.cached == Some(attr.change);
        if !keep {
            seen.cached = Some(attr.change);
            seen.ahead.clear();
        }
        keep
    }

    /// Attributes have come by the way: whether they show a foreign change, so that the kernel is to drop its pages.
    pub fn is_foreign(&self, attr: &Attr) -> bool {
        let mut files = self.lock();
        let Some(seen) = files.get_mut(&attr.ino) else {
            return false;
        };
        // Older ones were overtaken by an answer that came earlier.
        let foreign = seen.cached.is_some_and(|cached| cached < attr.change);
        if foreign {
            seen.newest = seen.newest.max(attr.change);
            seen.cached = Some(attr.change);
            seen.ahead.clear();
        }
        foreign
    }

    /// An own operation has led to this change. The service counts by one, so that a foreign change shows as a gap.
    pub fn own(&self, attr: &Attr) {
        let mut files = self.lock();
        let seen = files.entry(attr.ino).or_default();
        seen.newest = seen.newest.max(attr.change);
        let Some(mut cached) = seen.cached else {
            return;
        };
        if attr.change > cached {
            seen.ahead.insert(attr.change);
        }
        while seen.ahead.remove(&(cached + 1)) {
            cached += 1;
        }
        if seen.ahead.len() > MAX_AHEAD {
            seen.ahead.clear();
        }
        seen.cached = Some(cached);
    }

    /// An own operation has led to this change, and what it wrote may be elsewhere than the kernel thinks: its pages are not
    /// from this change, as if it were a foreign one.
    pub fn own_elsewhere(&self, attr: &Attr) {
        let mut files = self.lock();
        let seen = files.entry(attr.ino).or_default();
        seen.newest = seen.newest.max(attr.change);
    }

    /// An answer told of this change; what the kernel has is not touched.
    pub fn note(&self, attr: &Attr) {
        let mut files = self.lock();
        if let Some(seen) = files.get_mut(&attr.ino) {
            seen.newest = seen.newest.max(attr.change);
        }
    }

    /// Whether no newer change of a file is known than the one that these attributes are from.
    pub fn is_newest(&self, attr: &Attr) -> bool {
        let files = self.lock();
        let seen = files.get(&attr.ino);
        seen.is_some_and(|seen| seen.newest <= attr.change)
    }

    /// Whether attributes are older than what this mount has seen: an answer that was overtaken.
    pub fn is_stale(&self, attr: &Attr) -> bool {
        let mut files = self.lock();
        let Some(seen) = files.get_mut(&attr.ino) else {
            return false;
        };
        if attr.change < seen.newest {
            return true;
        }
        seen.newest = attr.change;
        false
    }

    /// The kernel has let go of a file, and of its pages.
    pub fn forget(&self, ino: Ino) {
        self.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn at(change: u64) -> Attr {
        Attr {
            change,
            ..sample::attr(Ino(7))
        }
    }

    /// Own writes keep the cache, in whatever order their answers come.
    #[test]
    fn own_changes_keep_the_cache() {
        let changes = Changes::default();
        assert!(!changes.may_keep(&at(1)));
        for change in [3, 2, 4] {
            changes.own(&at(change));
        }
        assert!(changes.may_keep(&at(4)));
    }

    /// A foreign change between own ones shows as a gap, and costs the cache.
    #[test]
    fn a_foreign_change_drops_the_cache() {
        let changes = Changes::default();
        changes.may_keep(&at(1));
        changes.own(&at(2));
        changes.own(&at(4));
        assert!(!changes.may_keep(&at(4)));
        assert!(changes.may_keep(&at(4)));
    }

    /// What was appended costs the cache, since the kernel does not know where it is.
    #[test]
    fn appended_bytes_drop_the_cache() {
        let changes = Changes::default();
        changes.may_keep(&at(1));
        changes.own_elsewhere(&at(2));
        changes.own(&at(3));
        assert!(changes.is_stale(&at(1)));
        assert!(!changes.may_keep(&at(3)));
    }

    /// A foreign change is found once in attributes that come by the way; own and overtaken ones are none.
    #[test]
    fn foreign_changes_are_found_by_the_way() {
        let changes = Changes::default();
        assert!(!changes.is_foreign(&at(3)));
        changes.may_keep(&at(3));
        changes.own(&at(4));
        assert!(!changes.is_foreign(&at(4)));
        assert!(!changes.is_foreign(&at(3)));
        assert!(changes.is_foreign(&at(5)));
        assert!(!changes.is_foreign(&at(5)));
    }

    /// An answer that was overtaken is told from one that is new.
    #[test]
    fn overtaken_answers_are_stale() {
        let changes = Changes::default();
        assert!(!changes.is_stale(&at(5)));
        changes.may_keep(&at(5));
        changes.own(&at(6));
        assert!(changes.is_stale(&at(5)));
        assert!(!changes.is_stale(&at(6)));
    }
}

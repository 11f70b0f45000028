//! From which change of a file the pages in the kernel's cache are, and which change this mount has seen last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_files::{Attr, Ino};

/// How many files are remembered, beside those that are open; those forgotten lose their cached pages at the next open.
const MAX_FILES: usize = 1 << 16;
/// How many are looked at for one that is not open, so that it can be forgotten.
const MAX_LOOKS: usize = 64;
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
    /// How often it turned out that pages in the cache may be from nowhere.
    doubts: u64,
    /// How often the file is open.
    open: usize,
}

impl Seen {
    fn take_in(&mut self) {
        let Some(mut cached) = self.cached else {
            return;
        };
        while self.ahead.remove(&(cached + 1)) {
            cached += 1;
        }
        self.ahead.retain(|change| *change > cached);
        self.cached = Some(cached);
    }

    /// Pages in the cache may be from before all changes.
    fn doubt(&mut self) {
        self.cached = Some(0);
        self.ahead.clear();
        self.doubts += 1;
    }

    fn dropping(&self, attr: &Attr) -> Dropping {
        Dropping {
            ino: attr.ino,
            change: attr.change,
            doubts: self.doubts,
        }
    }
}

/// Pages that the kernel is to drop, since there is this change. When it has, that is for [`Changes::dropped`]: not before, since an
/// open that comes in between would have it keep them.
#[derive(Debug)]
pub(super) struct Dropping {
    pub ino: Ino,
    change: u64,
    doubts: u64,
}

/// From when the kernel's pages of a file are.
#[derive(Debug)]
pub(super) enum Pages {
    /// From the newest change: it may keep them.
    Current,
    /// Some are from before.
    Old(Dropping),
    /// Nothing is known; most probably there are none.
    Unknown(Dropping),
}

/// What is known of files' change numbers.
#[derive(Debug, Default)]
pub(super) struct Changes {
    files: Mutex<BTreeMap<Ino, Seen>>,
    /// Up to where was looked for files to be forgotten: all have their turn.
    looked: AtomicU64,
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Seen>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() > MAX_FILES {
            self.forget_some(&mut files);
        }
        files
    }

    /// Not those that are open: who reads one is to be told of foreign changes.
    fn forget_some(&self, files: &mut BTreeMap<Ino, Seen>) {
        let too_many = files.len() - MAX_FILES;
        let from = Ino(self.looked.load(Ordering::Relaxed));
        let mut last = Ino(0);
        let mut closed = Vec::new();
        for (ino, seen) in files.range(from..).take(MAX_LOOKS) {
            last = Ino(ino.0 + 1);
            if seen.open == 0 && closed.len() < too_many {
                closed.push(*ino);
            }
        }
        self.looked.store(last.0, Ordering::Relaxed);
        closed.iter().for_each(|ino| drop(files.remove(ino)));
    }

    /// A file is open, once more.
    pub fn open(&self, ino: Ino) {
        self.lock().entry(ino).or_default().open += 1;
    }

    /// It is closed, once.
    pub fn close(&self, ino: Ino) {
        if let Some(seen) = self.lock().get_mut(&ino) {
            seen.open = seen.open.saturating_sub(1);
        }
    }

    /// Whether the kernel may know older attributes of a file than these, which an open brought. To be asked before
    /// [`Changes::look`].
    pub fn is_news(&self, attr: &Attr) -> bool {
        let files = self.lock();
        let Some(seen) = files.get(&attr.ino) else {
            return true;
        };
        seen.newest < attr.change || seen.cached.is_some_and(|cached| cached != attr.change)
    }

    /// A file is opened or locked: whether the kernel may keep its pages. If not, it is to drop them.
    pub fn look(&self, attr: &Attr) -> Pages {
        let mut files = self.lock();
        let seen = files.entry(attr.ino).or_default();
        seen.newest = seen.newest.max(attr.change);
        match seen.cached {
            Some(cached) if cached == attr.change => Pages::Current,
            Some(_) => Pages::Old(seen.dropping(attr)),
            None => Pages::Unknown(seen.dropping(attr)),
        }
    }

    /// Attributes have come by the way: whether they show a foreign change, so that the kernel is to drop its pages.
    pub fn foreign(&self, attr: &Attr) -> Option<Dropping> {
        let mut files = self.lock();
        let seen = files.get_mut(&attr.ino)?;
        // Older ones were overtaken by an answer that came earlier.
        if seen.cached.is_none_or(|cached| cached >= attr.change) {
            return None;
        }
        seen.newest = seen.newest.max(attr.change);
        Some(seen.dropping(attr))
    }

    /// The kernel has dropped them, or will when it hears of the open that has found that it must.
    pub fn dropped(&self, done: Dropping) {
        let mut files = self.lock();
        let Some(seen) = files.get_mut(&done.ino) else {
            return;
        };
        if seen.doubts == done.doubts && seen.cached.is_none_or(|cached| cached < done.change) {
            seen.cached = Some(done.change);
            seen.take_in();
        }
    }

    /// The kernel may have pages with what was not written, or has not dropped those that it was to drop.
    pub fn doubt(&self, ino: Ino) {
        if let Some(seen) = self.lock().get_mut(&ino) {
            seen.doubt();
        }
    }

    /// An own operation has led to this change. The service counts by one, so that a foreign change shows as a gap.
    pub fn own(&self, attr: &Attr) {
        let mut files = self.lock();
        let seen = files.entry(attr.ino).or_default();
        seen.newest = seen.newest.max(attr.change);
        if seen.cached.is_some_and(|cached| attr.change > cached) {
            seen.ahead.insert(attr.change);
        }
        seen.take_in();
        if seen.ahead.len() > MAX_AHEAD {
            seen.ahead.clear();
        }
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

    /// The kernel has let go of a file and of its pages; or of one of its references, which it tells in the same way. What is open it
    /// keeps, with pages from whenever, or has found anew.
    pub fn forget(&self, ino: Ino) {
        let mut files = self.lock();
        match files.get_mut(&ino) {
            Some(seen) if seen.open > 0 => seen.doubt(),
            Some(_) => drop(files.remove(&ino)),
            None => {}
        }
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

    /// Looks, and has the kernel drop what it must; whether it may keep its pages.
    fn keeps(changes: &Changes, change: u64) -> bool {
        match changes.look(&at(change)) {
            Pages::Current => true,
            Pages::Old(dropping) | Pages::Unknown(dropping) => {
                changes.dropped(dropping);
                false
            }
        }
    }

    /// Until the kernel has dropped its pages nobody has it keep them; what comes to light meanwhile counts.
    #[test]
    fn pages_are_old_until_they_are_dropped() {
        let changes = Changes::default();
        assert!(!keeps(&changes, 5));
        let Pages::Old(first) = changes.look(&at(6)) else {
            panic!("they are from before");
        };
        let Pages::Old(second) = changes.look(&at(6)) else {
            panic!("they are not dropped yet");
        };
        changes.own(&at(7));
        changes.dropped(first);
        assert!(keeps(&changes, 7));
        // Late, and of no use any more.
        changes.dropped(second);
        assert!(keeps(&changes, 7));

        let dropping = changes.foreign(&at(8)).unwrap();
        assert!(changes.foreign(&at(8)).is_some());
        changes.doubt(Ino(7));
        changes.dropped(dropping);
        assert!(!keeps(&changes, 8));
        assert!(keeps(&changes, 8));
        changes.doubt(Ino(7));
        assert!(changes.foreign(&at(8)).is_some());
        assert!(!changes.is_stale(&at(8)) && changes.is_stale(&at(7)));
    }

    /// However many files there are, the memory for them is bounded; of those that are open nothing is forgotten.
    #[test]
    fn open_files_are_not_forgotten() {
        let changes = Changes::default();
        let all = (1..2 * MAX_FILES as u64).map(Ino);
        let look = |ino, change| {
            changes.look(&Attr {
                ino,
                change,
                ..at(change)
            })
        };
        for ino in all {
            if ino.0 % 1000 == 1 {
                changes.open(ino);
            }
            match look(ino, 5) {
                Pages::Unknown(dropping) => changes.dropped(dropping),
                Pages::Current | Pages::Old(_) => panic!("it is looked at for the first time"),
            }
        }
        assert!(changes.lock().len() <= MAX_FILES + 1);
        for ino in (1..2 * MAX_FILES as u64).step_by(1000).map(Ino) {
            assert!(matches!(look(ino, 5), Pages::Current), "{ino:?}");
            changes.forget(ino);
            assert!(matches!(look(ino, 5), Pages::Old(_)), "{ino:?}");
            let seen = Attr { ino, ..at(6) };
            assert!(changes.foreign(&seen).is_some(), "{ino:?}");
            changes.close(ino);
            changes.forget(ino);
        }
        let remembered = changes.lock();
        assert!(remembered.keys().all(|ino| ino.0 % 1000 != 1));
    }

    /// Own writes keep the cache, in whatever order their answers come.
    #[test]
    fn own_changes_keep_the_cache() {
        let changes = Changes::default();
        assert!(!keeps(&changes, 1));
        for change in [3, 2, 4] {
            changes.own(&at(change));
        }
        assert!(keeps(&changes, 4));
    }

    /// A foreign change between own ones shows as a gap, and costs the cache.
    #[test]
    fn a_foreign_change_drops_the_cache() {
        let changes = Changes::default();
        keeps(&changes, 1);
        changes.own(&at(2));
        changes.own(&at(4));
        assert!(!keeps(&changes, 4));
        assert!(keeps(&changes, 4));
    }

    /// What was appended costs the cache, since the kernel does not know where it is.
    #[test]
    fn appended_bytes_drop_the_cache() {
        let changes = Changes::default();
        keeps(&changes, 1);
        changes.own_elsewhere(&at(2));
        changes.own(&at(3));
        assert!(changes.is_stale(&at(1)));
        assert!(!keeps(&changes, 3));
    }

    /// A foreign change is found once in attributes that come by the way; own and overtaken ones are none.
    #[test]
    fn foreign_changes_are_found_by_the_way() {
        let changes = Changes::default();
        let is_foreign = |change| {
            let dropping = changes.foreign(&at(change));
            dropping.map(|dropping| changes.dropped(dropping)).is_some()
        };
        assert!(!is_foreign(3));
        keeps(&changes, 3);
        changes.own(&at(4));
        assert!(!is_foreign(4));
        assert!(!is_foreign(3));
        assert!(is_foreign(5));
        assert!(!is_foreign(5));
    }

    /// An answer that was overtaken is told from one that is new.
    #[test]
    fn overtaken_answers_are_stale() {
        let changes = Changes::default();
        assert!(!changes.is_stale(&at(5)));
        keeps(&changes, 5);
        changes.own(&at(6));
        assert!(changes.is_stale(&at(5)));
        assert!(!changes.is_stale(&at(6)));
    }
}

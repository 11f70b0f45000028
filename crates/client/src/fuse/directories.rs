//! What is known of directories: as they were when they were last seen, for two who ask.
//!
//! - *Own changes.* The kernel forgets a directory's attributes whenever a name in it changes, and asks for them before the next change there, to
//!   check permissions. The answer to a change of this mount brings them (NFS calls these post-operation attributes), so the mount says by itself what
//!   they are, for as long as attributes are taken for granted.
//! - *Directories that are removed* while somebody has them open, or works in them. The group knows of no open directory: nothing in one can be lost, so it goes
//!   at once when it is removed. But who has it open may ask for its attributes, and is to see that it has no name any more.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_files::op::WithAttrs;
use quorate_files::{Action, Answer, Attr, Ino, Kind, Outcome, Who};
use tokio::time::Instant;

use super::core::Core;
use crate::volume::{CallError, Called};

/// How many directories are remembered.
const MAX_DIRECTORIES: usize = 1 << 14;

/// When an own change was begun, in the order of all that bears on what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Began(u64);

#[derive(Debug)]
struct Seen {
    attr: Attr,
    /// When it was noted that an own change left it so, and when that change was asked for; if nothing is known that came after.
    left: Option<(Began, Instant)>,
    /// What was begun before may have left it otherwise than it is now.
    since: Began,
    /// The last time that others were doubted and this one was not.
    certain: Began,
}

#[derive(Debug)]
struct Known {
    seen: BTreeMap<Ino, Seen>,
    /// What was begun before tells nothing of directories that are not in `seen`.
    since: Began,
    /// When all were doubted, but those that were certain then.
    doubted: Began,
    next: u64,
}

impl Known {
    fn tick(&mut self) -> Began {
        self.next += 1;
        Began(self.next)
    }

    /// Makes room by forgetting one.
    fn bound(&mut self) {
        if self.seen.len() > MAX_DIRECTORIES {
            // Who has one open of which nothing is known is told ESTALE.
            self.seen.pop_first();
            self.since = self.tick();
        }
    }

    fn since(&self, seen: &Seen) -> Began {
        match seen.certain == self.doubted {
            true => seen.since,
            false => seen.since.max(self.doubted),
        }
    }

    fn left(&self, seen: &Seen) -> Option<(Began, Instant)> {
        let certain = seen.certain == self.doubted;
        seen.left
            .filter(|(noted, _)| certain || *noted > self.doubted)
    }

    /// Of which nothing is certain yet.
    fn first_seen(&self, attr: &Attr) -> Seen {
        Seen {
            attr: attr.clone(),
            left: None,
            since: self.since,
            certain: Began(0),
        }
    }
}

/// What directories were like when they were last seen.
#[derive(Debug)]
pub(super) struct Directories(Mutex<Known>);

impl Default for Directories {
    fn default() -> Directories {
        Directories(Mutex::new(Known {
            seen: BTreeMap::new(),
            since: Began(0),
            // Nothing is certain of that time.
            doubted: Began(1),
            next: 1,
        }))
    }
}

impl Directories {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told of attributes that the group said, or that were set here.
    pub fn learn(&self, attr: &Attr) {
        if attr.kind != Kind::Directory {
            return;
        }
        let mut known = self.lock();
        let new = known.first_seen(attr);
        match known.seen.get_mut(&attr.ino) {
            Some(seen) if attr.change < seen.attr.change => {}
            Some(seen) => {
                if attr.change > seen.attr.change {
                    seen.left = None;
                }
                seen.attr = attr.clone();
            }
            None => {
                known.seen.insert(attr.ino, new);
                known.bound();
            }
        }
    }

    /// Attributes that the kernel is to be told, or later ones: an answer may have been overtaken by that to an own change.
    pub fn newest(&self, attr: Attr) -> Attr {
        let known = self.lock();
        match known.seen.get(&attr.ino) {
            Some(seen) if seen.attr.change > attr.change => seen.attr.clone(),
            _ => attr,
        }
    }

    /// Begins an own change.
    pub fn begin(&self) -> Began {
        self.lock().tick()
    }

    /// An own change, asked for at that time, has left directories so.
    pub fn changed(&self, began: Began, attrs: &[Attr], asked: Instant) {
        let mut known = self.lock();
        for attr in attrs.iter().filter(|attr| attr.kind == Kind::Directory) {
            let noted = known.tick();
            let new = known.first_seen(attr);
            let since = known.since(known.seen.get(&attr.ino).unwrap_or(&new));
            let seen = known.seen.entry(attr.ino).or_insert(new);
            if attr.change < seen.attr.change {
                continue;
            }
            seen.attr = attr.clone();
            if began >= since {
                seen.left = Some((noted, asked));
            }
            known.bound();
        }
    }

    /// An own change may have changed any directory but these, or removed it. To be told when it has come to its end, and before
    /// [`Directories::changed`].
    pub fn doubt_others(&self, certain: &[Ino]) {
        let mut known = self.lock();
        let now = known.tick();
        for ino in certain {
            let Some(seen) = known.seen.get(ino) else {
                continue;
            };
            let (since, left) = (known.since(seen), known.left(seen));
            if let Some(seen) = known.seen.get_mut(ino) {
                (seen.since, seen.left, seen.certain) = (since, left, now);
            }
        }
        (known.since, known.doubted) = (now, now);
    }

    /// An own change has not found a directory.
    pub fn doubt(&self, ino: Ino) {
        let mut known = self.lock();
        let now = known.tick();
        if let Some(seen) = known.seen.get_mut(&ino) {
            (seen.left, seen.since) = (None, now);
        }
    }

    /// What a directory is like, and how long ago the question was asked that found it so: if an own change was the last that is known of.
    pub fn left(&self, ino: Ino, now: Instant) -> Option<(Attr, Duration)> {
        let known = self.lock();
        let seen = known.seen.get(&ino)?;
        let (_, asked) = known.left(seen)?;
        Some((seen.attr.clone(), now - asked))
    }

    /// The kernel forgets an object.
    pub fn forget(&self, ino: Ino) {
        let mut known = self.lock();
        if known.seen.remove(&ino).is_some() {
            known.since = known.tick();
        }
    }

    /// What is left of an object that is gone, if it was a directory.
    pub fn gone(&self, ino: Ino) -> Option<Attr> {
        let known = self.lock();
        let attr = known.seen.get(&ino)?.attr.clone();
        Some(Attr { nlink: 0, ..attr })
    }
}

impl Core {
    /// Whether what own changes tell of directories is of use.
    fn keeps_directories(&self) -> bool {
        self.is_of_one_group() && self.caching.directories.most > Duration::ZERO
    }

    /// Changes names in these directories, and keeps what they have become for the kernel's next question.
    pub async fn change_names(
        &self,
        who: &Who,
        parents: Vec<Ino>,
        action: Action,
    ) -> Called<Answer> {
        if !self.keeps_directories() {
            return self.volume.run(who, action).await;
        }
        // Which directory goes by it, or is another's child now, the answer does not say.
        let others = matches!(action, Action::Rmdir(_) | Action::Rename(_));
        let (began, asked) = (self.directories.begin(), Instant::now());
        let done = self
            .volume
            .with_attrs(who, WithAttrs::new(parents.clone(), action));
        let done = done
            .await
            .inspect_err(|_| self.directories.doubt_others(&[]))?;
        if others {
            self.directories.doubt_others(&parents);
        }
        for (parent, after) in parents.iter().zip(&done.after) {
            if after.is_none() {
                self.directories.doubt(*parent);
            }
        }
        // They are as old as the question at most: its answer may have been lost at first, and is kept.
        let attrs: Vec<Attr> = done.after.into_iter().flatten().collect();
        self.directories.changed(began, &attrs, asked);
        attrs.iter().for_each(|attr| self.plain.learn(attr, asked));
        let Outcome(outcome) = *done.outcome;
        outcome.map_err(CallError::Refused)
    }

    /// A directory's attributes, and for how much longer they may be taken for granted: where an own change has brought them.
    pub fn left_by_change(&self, ino: Ino) -> Option<(Attr, Duration)> {
        let (attr, age) = self.directories.left(ino, Instant::now())?;
        let lifetime = self.caching.attributes(&attr).checked_sub(age)?;
        (lifetime > Duration::ZERO).then_some((attr, lifetime))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn directory(ino: u64, change: u64) -> Attr {
        Attr {
            kind: Kind::Directory,
            nlink: 2,
            change,
            ..sample::attr(Ino(ino))
        }
    }

    fn change_left(directories: &Directories, ino: u64) -> Option<u64> {
        let left = directories.left(Ino(ino), Instant::now());
        left.map(|(attr, _)| attr.change)
    }

    /// Directories alone are remembered, until the kernel forgets them, and a bounded number of them.
    #[test]
    fn a_bounded_number_of_directories_is_remembered() {
        let directories = Directories::default();
        directories.learn(&sample::attr(Ino(1)));
        directories.learn(&directory(2, 1));
        assert!(directories.gone(Ino(1)).is_none());
        assert_eq!(directories.gone(Ino(2)).unwrap().nlink, 0);
        directories.forget(Ino(2));
        assert!(directories.gone(Ino(2)).is_none());
        let began = directories.begin();
        for ino in 0..MAX_DIRECTORIES as u64 + 100 {
            match ino % 2 {
                0 => directories.learn(&directory(ino, 1)),
                _ => directories.changed(began, &[directory(ino, 1)], Instant::now()),
            }
        }
        assert_eq!(directories.lock().seen.len(), MAX_DIRECTORIES);
    }

    /// What own changes bring counts, the latest of them; what the group says beside that does so only if it is the same.
    #[test]
    fn own_changes_tell_what_a_directory_is_like() {
        let directories = Directories::default();
        let now = Instant::now();
        directories.learn(&directory(2, 3));
        assert_eq!(change_left(&directories, 2), None);
        let (first, second) = (directories.begin(), directories.begin());
        directories.changed(second, &[directory(2, 5)], now);
        directories.changed(first, &[directory(2, 4)], now);
        assert_eq!(change_left(&directories, 2), Some(5));
        // An answer that was overtaken, and one that was not.
        directories.learn(&directory(2, 4));
        directories.learn(&directory(2, 5));
        assert_eq!(change_left(&directories, 2), Some(5));
        // Another's change.
        directories.learn(&directory(2, 6));
        assert_eq!(change_left(&directories, 2), None);
        let later = now + Duration::from_millis(700);
        directories.changed(directories.begin(), &[directory(2, 7)], now);
        let (_, age) = directories.left(Ino(2), later).unwrap();
        assert_eq!(age, Duration::from_millis(700));
        directories.forget(Ino(2));
        assert_eq!(change_left(&directories, 2), None);
    }

    /// What was begun before the kernel forgot a directory tells nothing of how it is.
    #[test]
    fn what_is_forgotten_is_not_known_by_what_was_under_way() {
        let directories = Directories::default();
        let now = Instant::now();
        let (first, before) = (directories.begin(), directories.begin());
        directories.changed(first, &[directory(2, 1)], now);
        directories.forget(Ino(2));
        directories.changed(before, &[directory(2, 2)], now);
        assert_eq!(change_left(&directories, 2), None);
        directories.changed(directories.begin(), &[directory(2, 3)], now);
        assert_eq!(change_left(&directories, 2), Some(3));
    }

    /// A removal says nothing of which directory went, so nothing is certain but those that it names.
    #[test]
    fn a_removal_puts_all_others_in_doubt() {
        let directories = Directories::default();
        let now = Instant::now();
        let began = directories.begin();
        directories.changed(began, &[directory(2, 1), directory(3, 1)], now);
        let (inside, new) = (directories.begin(), directories.begin());
        let removal = directories.begin();
        directories.doubt_others(&[Ino(2)]);
        directories.changed(removal, &[directory(2, 2)], now);
        assert_eq!(change_left(&directories, 2), Some(2));
        assert_eq!(change_left(&directories, 3), None);
        // What was under way in the directory that went, and in one of which nothing was known.
        directories.changed(inside, &[directory(3, 2)], now);
        directories.changed(new, &[directory(4, 1)], now);
        assert_eq!(change_left(&directories, 3), None);
        assert_eq!(change_left(&directories, 4), None);
        assert_eq!(directories.gone(Ino(3)).unwrap().nlink, 0);
    }
}

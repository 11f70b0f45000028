//! Objects that have no extended attributes, as attributes told a moment ago.
//!
//! The kernel asks for the ACL of each object that is used by another than its owner, as often as it asks for the object's
//! attributes, and `ls -l` asks for that of each object. Nearly none has one, and the attributes say so: then the mount answers
//! by itself, for as long as attributes are taken for granted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_files::{Attr, Ino};
use tokio::time::Instant;

/// How many objects are remembered.
const MAX_OBJECTS: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
enum Seen {
    /// It had none.
    Plain(Instant),
    /// They were changed on this mount: an answer from before that may still come.
    Changed(Instant),
}

/// What is known of objects' extended attributes.
#[derive(Debug)]
pub(super) struct Plain {
    /// For how long attributes are taken for granted.
    ttl: Duration,
    objects: Mutex<BTreeMap<Ino, Seen>>,
}

impl Plain {
    pub fn new(ttl: Duration) -> Plain {
        Plain {
            ttl,
            objects: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Seen>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told of attributes.
    pub fn learn(&self, attr: &Attr, now: Instant) {
        let mut objects = self.lock();
        if let Some(Seen::Changed(at)) = objects.get(&attr.ino)
            && now - *at < self.ttl
        {
            return;
        }
        match attr.has_xattrs {
            true => {
                objects.remove(&attr.ino);
            }
            false => note(&mut objects, attr.ino, Seen::Plain(now)),
        }
    }

    /// Extended attributes are set or removed here. To be told before and after that.
    pub fn change(&self, ino: Ino, now: Instant) {
        note(&mut self.lock(), ino, Seen::Changed(now));
    }

    /// The kernel forgets an object.
    pub fn forget(&self, ino: Ino) {
        self.lock().remove(&ino);
    }

    /// Whether an object has no extended attributes.
    pub fn has_none(&self, ino: Ino, now: Instant) -> bool {
        matches!(self.lock().get(&ino), Some(Seen::Plain(at)) if now - *at < self.ttl)
    }
}

fn note(objects: &mut BTreeMap<Ino, Seen>, ino: Ino, seen: Seen) {
    objects.insert(ino, seen);
    if objects.len() > MAX_OBJECTS {
        // What is forgotten costs a question.
        objects.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TTL, sample};
    use super::*;

    fn attr(ino: u64, has_xattrs: bool) -> Attr {
        Attr {
            has_xattrs,
            ..sample::attr(Ino(ino))
        }
    }

    /// What was told counts for as long as attributes do, and not against a change of one's own.
    #[test]
    fn what_is_told_counts_for_a_while() {
        let plain = Plain::new(TTL);
        let start = Instant::now();
        assert!(!plain.has_none(Ino(1), start));
        plain.learn(&attr(1, false), start);
        plain.learn(&attr(2, true), start);
        assert!(plain.has_none(Ino(1), start) && !plain.has_none(Ino(2), start));
        assert!(!plain.has_none(Ino(1), start + TTL));
        plain.learn(&attr(1, true), start);
        assert!(!plain.has_none(Ino(1), start));

        plain.learn(&attr(1, false), start);
        plain.change(Ino(1), start);
        assert!(!plain.has_none(Ino(1), start));
        // From before the change.
        plain.learn(&attr(1, false), start + TTL / 2);
        assert!(!plain.has_none(Ino(1), start + TTL / 2));
        plain.learn(&attr(1, false), start + TTL);
        assert!(plain.has_none(Ino(1), start + TTL));
    }

    /// However many objects there are, the memory for it is bounded.
    #[test]
    fn memory_is_bounded() {
        let plain = Plain::new(TTL);
        for ino in 0..MAX_OBJECTS as u64 + 100 {
            plain.learn(&attr(ino, false), Instant::now());
        }
        assert_eq!(plain.lock().len(), MAX_OBJECTS);
        plain.forget(Ino(MAX_OBJECTS as u64));
        assert_eq!(plain.lock().len(), MAX_OBJECTS - 1);
    }
}

//! Files that are replaced again and again under the eyes of who opens them.
//!
//! To open a file is two requests of the kernel: one for the name, one for the object that it named. If another file takes the name in between,
//! as where a program writes anew and renames, the second finds nothing. The kernel then looks the name up once more; if that
//! happens again, the program is told ESTALE, which no local file system says. So for a moment after the first time, what is
//! looked up is held by a handle: that object can be opened, whatever becomes of its name. A symbolic link has no handles, but never
//! changes: it is read at once. Where nothing is replaced, nothing is held.
//!
//! An open must not find what was gone before it began. So the kernel may not keep the name of what is held: each open looks it up,
//! and what is opened had the name at that moment. Files with further names, of which the kernel may keep one, are not held, nor large ones, which
//! nobody replaces so fast: what is held takes space.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quorate_files::op::{Lookup, Open, flags};
use quorate_files::{Attr, Errno, Ino, Kind, Who};
use tokio::time::Instant;

use super::convert::Result;
use super::core::Core;
use crate::volume::CallError;

/// For how long after such a failure what is looked up is held.
const WATCHED: Duration = Duration::from_secs(5);
/// For how long it is held: longer than a busy machine leaves between the kernel's two requests.
const HELD: Duration = Duration::from_secs(5);
/// The most that is held at once, of the 65,536 handles that a session can have.
const MAX_HELD: usize = 4096;
/// The most symbolic links that are remembered, of up to 4 KiB.
const MAX_LINKS: usize = 1024;
/// The longest file that is held.
const MAX_HELD_BYTES: u64 = 1 << 20;
/// How many of the objects that were looked up last are known.
const RECENT: usize = 64;
/// How often a name is looked up that is another's before the object can be held. On a busy machine who replaces files may
/// be quicker than this mount many times in a row.
const ATTEMPTS: usize = 256;

#[derive(Debug, Default)]
struct State {
    watched_until: Option<Instant>,
    /// What was looked up last, and when.
    recent: VecDeque<(Ino, Instant)>,
    /// Objects, and how long they are held.
    held: BTreeMap<Ino, Instant>,
    /// Symbolic links: how long they are remembered, and what they say.
    links: BTreeMap<Ino, (Instant, Bytes)>,
}

/// What is held.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<State>);

impl Pins {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object was gone, or without a name, that had just been looked up.
    pub fn gone(&self) {
        self.lock().watched_until = Some(Instant::now() + WATCHED);
    }

    /// The same, if this says so of an object that had. Others may be gone for long, and asked about for ever.
    pub fn failed(&self, ino: Ino, error: &CallError) {
        if *error == CallError::Refused(Errno::ESTALE) && self.was_looked_up(ino) {
            self.gone();
        }
    }

    fn looked_up(&self, ino: Ino) {
        let mut state = self.lock();
        if state.recent.len() >= RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back((ino, Instant::now()));
    }

    fn was_looked_up(&self, ino: Ino) -> bool {
        let state = self.lock();
        let mut of_it = state.recent.iter().filter(|(other, _)| *other == ino);
        of_it.any(|(_, at)| at.elapsed() < WATCHED)
    }

    /// What a symbolic link said a moment ago.
    pub fn target(&self, ino: Ino) -> Option<Bytes> {
        let state = self.lock();
        let (end, target) = state.links.get(&ino)?;
        (Instant::now() < *end).then(|| target.clone())
    }

    fn remember(&self, ino: Ino, target: Bytes) {
        let mut state = self.lock();
        let now = Instant::now();
        state.links.retain(|_, (end, _)| now < *end);
        if state.links.len() < MAX_LINKS {
            state.links.insert(ino, (now + HELD, target));
        }
    }

    /// Whether this mount keeps the object from going away, so that it may be opened without a name.
    pub fn holds(&self, ino: Ino) -> bool {
        self.lock().held.contains_key(&ino) || self.target(ino).is_some()
    }

    fn is_watched(&self) -> bool {
        let state = self.lock();
        let watched = state.watched_until.is_some_and(|end| Instant::now() < end);
        watched && state.held.len() < MAX_HELD
    }

    /// Holds on to what is held already. False if it is not.
    fn prolong(&self, ino: Ino) -> bool {
        let mut state = self.lock();
        let end = state.held.get_mut(&ino);
        end.map(|end| *end = Instant::now() + HELD).is_some()
    }

    /// Holds what was not held.
    fn add(&self, ino: Ino) {
        self.lock().held.insert(ino, Instant::now() + HELD);
    }

    /// How long it is to be held yet; if no longer, it is not held any more.
    fn left(&self, ino: Ino) -> Option<Duration> {
        let mut state = self.lock();
        let end = *state.held.get(&ino)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.held.remove(&ino);
            return None;
        }
        Some(left)
    }
}

impl Core {
    /// For how long the kernel may keep an object's name.
    pub fn name_lifetime(&self, attr: &Attr) -> Duration {
        match self.pins.holds(attr.ino) {
            true => Duration::ZERO,
            false => self.caching.names(),
        }
    }

    /// For how long a name and the attributes of what it names, where the kernel is told one time for both.
    pub fn entry_lifetime(&self, attr: &Attr) -> Duration {
        self.caching.entry(attr).min(self.name_lifetime(attr))
    }

    /// Looks a name up; and holds the file that has it, where files were replaced a moment ago.
    pub async fn look_up(self: &Arc<Core>, who: &Who, lookup: Lookup) -> Result<Attr> {
        let mut attr = self.volume.lookup(who, lookup.clone()).await?;
        for _ in 1..ATTEMPTS {
            let kind_can = matches!(attr.kind, Kind::Regular | Kind::Symlink);
            let may_be_held = kind_can && attr.nlink == 1 && attr.size <= MAX_HELD_BYTES;
            if may_be_held {
                self.pins.looked_up(attr.ino);
            }
            if !may_be_held || !self.pins.is_watched() || self.hold(who, &attr).await {
                break;
            }
            attr = self.volume.lookup(who, lookup.clone()).await?;
        }
        Ok(attr)
    }

    /// Holds a file for a while, if its user may open it at all. False if it has no name any more.
    async fn hold(self: &Arc<Core>, who: &Who, attr: &Attr) -> bool {
        let ino = attr.ino;
        if attr.kind == Kind::Symlink {
            return match self.volume.readlink(who, ino).await {
                Ok(target) => {
                    self.pins.remember(ino, target);
                    true
                }
                Err(error) => error != CallError::Refused(Errno::ESTALE),
            };
        }
        if self.pins.prolong(ino) {
            return true;
        }
        let generation = self.volume.generation(ino);
        let mut opened = Err(CallError::Garbled);
        // What the mode rules out is not asked for: a guest's audit log would tell of it.
        let ways = [
            (flags::READ, 0o444),
            (flags::WRITE, 0o222),
            (flags::EXEC, 0o111),
        ];
        for (flags, _) in ways.into_iter().filter(|(_, bits)| attr.mode & bits != 0) {
            opened = self.volume.open(who, Open { ino, flags }).await;
            if opened.as_ref().err() != Some(&CallError::Refused(Errno::EACCES)) {
                break;
            }
        }
        let opened = match opened {
            Ok(opened) => opened,
            Err(CallError::Refused(Errno::ESTALE)) => return false,
            // Whatever it is, the open that comes is told.
            Err(_) => return true,
        };
        let held_by_another = self.pins.prolong(ino);
        // Where the session was lost meanwhile, it is not known of which the handle is.
        let is_current = self.volume.generation(ino) == generation;
        if opened.attr.nlink == 0 || held_by_another || !is_current {
            let _ = self.volume.release(who, opened.handle).await;
            return held_by_another;
        }
        self.pins.add(ino);
        let (core, who) = (Arc::downgrade(self), who.clone());
        self.runtime.spawn(async move {
            let mut left = Some(HELD);
            while let Some(time) = left {
                tokio::time::sleep(time).await;
                let Some(core) = core.upgrade() else { return };
                left = core.pins.left(ino);
            }
            let Some(core) = core.upgrade() else { return };
            if core.volume.generation(ino) == generation {
                let _ = core.volume.release(&who, opened.handle).await;
            }
        });
        true
    }
}

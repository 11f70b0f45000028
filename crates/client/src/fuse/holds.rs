//! Which files are open here, told to the group: late and for many at once, and of most files never.
//!
//! A file is opened without an agreement: the group is asked whether it may be, as one asks for attributes. It needs to know of the open
//! only so that the file stays when somebody removes it; and a file that is removed lingers for half a minute anyway
//! (`quorate_files::layout::LINGER_NANOS`). So it is told of files that have been open for a second, in one operation for all; and at
//! once where this mount itself removes something, or has to change a file that lingers.
//!
//! What was told holds for a session. In a new one it is told again, which the old one's end leaves the same half minute for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use quorate_files::op::{Hold, MAX_HELD_AT_ONCE};
use quorate_files::{Errno, Ino, Who};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::core::Core;
use super::inode::Inode;
use crate::volume::{CallError, Called, Volume};

/// For how long a file is open before the group is told. It is looked for such files twice a second.
pub(super) const TOLD_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    since: Instant,
    /// The generation of the session that holds it.
    held: Option<u64>,
    /// The group has nothing to hold any more, or not for this user.
    refused: bool,
    closed: bool,
}

/// Whether the group knows that a file is open.
#[derive(Debug)]
pub(super) struct Held(Mutex<State>);

impl Held {
    pub fn new() -> Held {
        Held(Mutex::new(State {
            since: Instant::now(),
            held: None,
            refused: false,
            closed: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self, generation: u64) -> bool {
        self.lock().held == Some(generation)
    }

    /// Whether the group is to be told of a file that is open for as long as that.
    pub fn is_due(&self, generation: u64, age: Duration) -> bool {
        let state = self.lock();
        !state.refused && state.held != Some(generation) && state.since.elapsed() >= age
    }

    /// The session of this generation holds it; or it was closed meanwhile, and is to be let go.
    fn keep(&self, generation: u64) -> bool {
        let mut state = self.lock();
        state.held = Some(generation);
        !state.closed
    }

    /// The file is closed. Whether some session was told of it, if not this one then perhaps the next: a call that is under way while
    /// a session is lost may be done in either.
    pub fn close(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.held.is_some()
    }
}

/// Whose turn it is to tell a group: one after the other, so that a file that is closed and opened again ends up held.
#[derive(Debug, Default)]
struct Turn {
    lock: tokio::sync::Mutex<()>,
    /// Since when somebody tells it, if somebody does.
    since: Mutex<Option<Instant>>,
}

impl Turn {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the group leaves somebody without an answer.
    fn is_stuck(&self) -> bool {
        let is_old = |since: Instant| since.elapsed() >= TOLD_AFTER;
        self.lock.try_lock().is_err() && self.since().is_some_and(is_old)
    }
}

/// What is to be let go, and whose turn it is to tell each group.
#[derive(Debug)]
pub(super) struct Holds {
    turns: Mutex<BTreeMap<usize, Arc<Turn>>>,
    let_go: Mutex<Vec<Ino>>,
    /// Whoever gathers what is closed is not to wait any longer.
    hurry: Notify,
    began: Instant,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds {
            turns: Mutex::default(),
            let_go: Mutex::default(),
            hurry: Notify::new(),
            began: Instant::now(),
        }
    }
}

/// Files of which one group is to be told.
type Due = BTreeMap<usize, Vec<Arc<Inode>>>;

impl Holds {
    fn waiting(&self) -> MutexGuard<'_, Vec<Ino>> {
        self.let_go.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is closed that a session holds. If it is one of before, the next is asked in vain, which harms nobody.
    pub fn let_go(&self, ino: Ino) {
        self.waiting().push(ino);
    }

    /// Waits for so long at most, and all until the same moment, so that what is closed is told together with more; but not while somebody removes a
    /// name: what he removes is to be gone, and its space free, if nobody has it open any more.
    pub async fn gather(&self, long: Duration) {
        let into = self.began.elapsed().as_nanos() % long.as_nanos();
        let rest = long.saturating_sub(Duration::from_nanos(into as u64));
        let _ = timeout(rest, self.hurry.notified()).await;
    }

    /// A name goes.
    pub fn hurry(&self) {
        self.hurry.notify_waiters();
    }

    /// What is closed of a group.
    fn take(&self, volume: &Volume, group: usize) -> Vec<Ino> {
        let mut waiting = self.waiting();
        let own = waiting.extract_if(.., |ino| volume.group_of(*ino) == group);
        own.collect()
    }

    fn turn(&self, group: usize) -> Arc<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(group).or_default().clone()
    }
}

impl Core {
    /// What each group is to be told: of files that have been open for so long, and of those that are not any more.
    fn due(&self, age: Duration) -> Due {
        let volume = &self.volume;
        let mut groups = Due::new();
        for ino in self.holds.waiting().iter() {
            groups.entry(volume.group_of(*ino)).or_default();
        }
        for file in self.handles.untold(volume, age) {
            groups
                .entry(volume.group_of(file.ino))
                .or_default()
                .push(file);
        }
        groups
    }

    /// Before a name goes, what is open here is told. For a group that does not answer the name waits for a moment at most: files linger
    /// for longer.
    pub async fn tell_all(self: &Arc<Core>) {
        self.holds.hurry();
        let telling: Vec<_> = self
            .due(Duration::ZERO)
            .into_iter()
            .filter(|(group, _)| !self.holds.turn(*group).is_stuck())
            .filter_map(|(group, files)| self.begin_telling(group, files))
            .collect();
        let told = async {
            for told in telling {
                let _ = told.await;
            }
        };
        let _ = timeout(TOLD_AFTER, told).await;
    }

    /// Has the groups told that nobody tells now: then there will be another time. Nothing waits for it, an unmount neither: the end of the
    /// session lets go of all.
    pub fn tell_later(self: &Arc<Core>, age: Duration) {
        for (group, files) in self.due(age) {
            if self.holds.turn(group).lock.try_lock().is_ok() {
                self.begin_telling(group, files);
            }
        }
    }

    /// Up to where it waits for the answer, here and now: what is asked next is ordered after it, as a rule. Then it goes to its end,
    /// whether anybody waits or not: what it has taken is told by nobody else.
    fn begin_telling(
        self: &Arc<Core>,
        group: usize,
        files: Vec<Arc<Inode>>,
    ) -> Option<JoinHandle<()>> {
        let core = self.clone();
        let mut work = Box::pin(async move { core.tell_group(group, &files).await });
        let first = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        first.is_pending().then(|| self.runtime.spawn(work))
    }

    async fn tell_group(&self, group: usize, files: &[Arc<Inode>]) {
        let turn = self.holds.turn(group);
        let _turn = turn.lock.lock().await;
        *turn.since() = Some(Instant::now());
        self.tell_of(group, files).await;
    }

    /// In this group's turn.
    async fn tell_of(&self, group: usize, files: &[Arc<Inode>]) {
        let volume = &self.volume;
        // What fails here the session's end makes up for.
        for part in self.holds.take(volume, group).chunks(MAX_HELD_AT_ONCE) {
            let _ = self.send(&[], part.to_vec()).await;
        }
        let due = |file: &&Arc<Inode>| {
            let generation = volume.generation(file.ino);
            file.held.is_due(generation, Duration::ZERO)
        };
        let keep: Vec<Arc<Inode>> = files.iter().filter(due).cloned().collect();
        for part in keep.chunks(MAX_HELD_AT_ONCE) {
            match self.tell_part(part).await {
                Ok(()) => {}
                // Of a guest's files one may be refused, and all with it.
                Err(CallError::Refused(Errno::ESTALE | Errno::EACCES)) => {
                    for one in part.chunks(1) {
                        let _ = self.tell_part(one).await;
                    }
                }
                // As where the session has all the handles that it can have. The others would fare no better: at another time.
                Err(_) => break,
            }
        }
    }

    /// Files of one group.
    async fn tell_part(&self, files: &[Arc<Inode>]) -> Called<()> {
        let Some(first) = files.first() else {
            return Ok(());
        };
        let generation = self.volume.generation(first.ino);
        let gone = match self.send(files, Vec::new()).await {
            Ok(gone) => gone,
            Err(CallError::Refused(Errno::ESTALE | Errno::EACCES)) if files.len() == 1 => {
                vec![first.ino]
            }
            Err(error) => return Err(error),
        };
        for file in files {
            if gone.contains(&file.ino) {
                file.held.lock().refused = true;
                self.on_refused(file.ino, fuser::Errno::ESTALE);
            } else if !file.held.keep(generation) {
                self.holds.let_go(file.ino);
            }
        }
        Ok(())
    }

    /// Once: if the session is lost, so is what it held. The files that are gone.
    async fn send(&self, files: &[Arc<Inode>], let_go: Vec<Ino>) -> Called<Vec<Ino>> {
        let keep = files.iter().map(|file| file.ino).collect();
        // It gives no rights, so whoever has opened them.
        let held = self
            .volume
            .hold(&Who::root(), Hold { keep, let_go })
            .await?;
        Ok(held.gone)
    }

    /// Asks something of an object by its number; once more, if the object is open here and held only now: it may have lingered when that
    /// was asked.
    pub async fn ask_held<T, F>(&self, ino: Ino, ask: impl Fn() -> F) -> Called<T>
    where
        F: Future<Output = Called<T>>,
    {
        let done = ask().await;
        match (&done, self.handles.inode(ino)) {
            (Err(CallError::Refused(Errno::ESTALE)), Some(file)) if self.hold_now(&file).await => {
                ask().await
            }
            _ => done,
        }
    }

    /// Tells the group of a file at once, if nobody has done so meanwhile. Whether it holds it now.
    async fn hold_now(&self, file: &Arc<Inode>) -> bool {
        let is_held = || file.held.is_held(self.volume.generation(file.ino));
        if !is_held() {
            let group = self.volume.group_of(file.ino);
            self.tell_group(group, std::slice::from_ref(file)).await;
        }
        is_held()
    }
}

#[cfg(test)]
mod tests;

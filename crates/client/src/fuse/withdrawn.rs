//! That a guest reads nothing any more of what was taken back, also where the kernel has it.
//!
//! The kernel gives its pages to whoever has a file open, and asks nobody. So the group is asked now and again about each file that a guest's
//! mount has open for reading; and where it refuses that, or a read, an open or a hold, the kernel drops the file's pages: the next read asks the
//! group, which says what is so then. Who gets no answer is treated as one who is refused: to a guest whose last credential has ended nobody answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::Errno;
use quorate_files::Ino;
use quorate_files::op::Open;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::core::Core;
use super::handles::OpenFile;
use crate::volume::CallError;

/// How often all open files are asked about, if they are few enough for it.
const PERIOD: Duration = Duration::from_secs(4);
/// About how many files the group is asked at once. The next ones have their turn half a second later, or when all answers are there.
const AT_ONCE: usize = 64;
/// How long the group has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Round {
    /// When it has begun; none yet, if nothing.
    since: Option<Instant>,
    /// The last file that was asked about, if there may be more.
    last: Option<Ino>,
    /// Answers are still to come.
    is_asking: bool,
    /// Of which the kernel is to drop what it has.
    refused: BTreeSet<Ino>,
}

/// Which open files are asked about next.
#[derive(Debug, Default)]
pub(super) struct Withdrawn(Mutex<Round>);

impl Withdrawn {
    fn lock(&self) -> MutexGuard<'_, Round> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `open` that it is the turn of. After them [`Withdrawn::answered`] is to be said.
    fn turn(
        &self,
        now: Instant,
        open: impl FnOnce() -> BTreeMap<Ino, Arc<OpenFile>>,
    ) -> Vec<Arc<OpenFile>> {
        let mut round = self.lock();
        let is_new = round.since.is_none_or(|since| now - since >= PERIOD);
        if round.is_asking || (round.last.is_none() && !is_new) {
            return Vec::new();
        }
        let from = match round.last {
            Some(last) => Bound::Excluded(last),
            None => {
                round.since = Some(now);
                Bound::Unbounded
            }
        };
        let open = open();
        let next = open.range((from, Bound::Unbounded)).take(AT_ONCE);
        let next: Vec<Arc<OpenFile>> = next.map(|(_, file)| file.clone()).collect();
        round.last = match next.len() < AT_ONCE {
            true => None,
            false => next.last().map(|file| file.ino()),
        };
        round.is_asking = !next.is_empty();
        next
    }

    /// What was refused since the last time.
    fn refused(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut self.lock().refused)
    }

    fn answered(&self) {
        self.lock().is_asking = false;
    }
}

impl Core {
    /// On a guest's mount: what was refused is dropped, and open files are asked about whose turn it is. Nothing waits for it.
    pub fn keep_withdrawn(self: &Arc<Core>) {
        if !self.is_guest() {
            return;
        }
        for ino in self.withdrawn.refused() {
            if let Some(inode) = self.handles.inode(ino) {
                self.drop_pages_later(&inode);
            }
        }
        let files = self
            .withdrawn
            .turn(Instant::now(), || self.handles.readable());
        if files.is_empty() {
            return;
        }
        let mut asking = JoinSet::new();
        for file in files {
            let core = self.clone();
            let ask = async move { core.ask_about(&file).await };
            asking.spawn_on(ask, &self.runtime);
        }
        let core = self.clone();
        self.runtime.spawn(async move {
            while asking.join_next().await.is_some() {}
            core.withdrawn.answered();
        });
    }

    async fn ask_about(&self, file: &OpenFile) {
        let open = Open {
            ino: file.ino(),
            flags: file.reading(),
        };
        match timeout(PATIENCE, self.volume.check_open(&file.who, open)).await {
            Ok(Err(error @ CallError::Refused(_))) => self.on_refused(file.ino(), error.into()),
            Err(_) => self.forget_content(file.ino()),
            // In the next session it is asked again.
            Ok(Err(CallError::Lost | CallError::Garbled) | Ok(_)) => {}
        }
    }

    /// Something was refused for which a file has to be in scope. On a guest's mount nothing is shown of it then but what the group gives from
    /// now on.
    pub fn on_refused(&self, ino: Ino, errno: Errno) {
        let is_about_scope = [Errno::EACCES, Errno::ESTALE].map(Errno::code);
        if self.is_guest() && is_about_scope.contains(&errno.code()) {
            self.forget_content(ino);
        }
    }

    /// In a moment: whoever reads now has pages of it locked.
    fn forget_content(&self, ino: Ino) {
        self.handles.forget_ahead(ino);
        self.withdrawn.lock().refused.insert(ino);
    }
}

#[cfg(test)]
mod tests {
    use super::super::handles::Handles;
    use super::*;
    use quorate_files::Who;
    use quorate_files::op::flags;

    /// All that is open for reading has its turn, each file once, and then there is a pause; and nobody is asked while answers are out.
    #[test]
    fn all_open_files_have_their_turn() {
        let (handles, withdrawn) = (Handles::default(), Withdrawn::default());
        let files = AT_ONCE as u64 + 6;
        for ino in 1..=files {
            for how in [flags::READ, flags::WRITE, flags::READ | flags::WRITE] {
                handles.add(Ino(ino), &Who::root(), how, None);
            }
        }
        handles.add(Ino(files + 1), &Who::root(), flags::WRITE, None);
        let begin = Instant::now();
        let turn = |now| {
            let asked = withdrawn.turn(now, || handles.readable()).into_iter();
            asked.map(|file| file.ino().0).collect::<Vec<_>>()
        };
        for pass in 0..2 {
            let now = begin + pass * PERIOD;
            let first: Vec<u64> = (1..=AT_ONCE as u64).collect();
            assert_eq!(turn(now), first);
            assert_eq!(turn(now), [0; 0], "answers are out");
            withdrawn.answered();
            let rest: Vec<u64> = (AT_ONCE as u64 + 1..=files).collect();
            assert_eq!(turn(now), rest);
            withdrawn.answered();
            assert_eq!(turn(now + PERIOD / 2), [0; 0], "it is too soon");
        }
    }
}

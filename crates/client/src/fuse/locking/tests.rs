//! What is asked of a group whose answers are made up, for callers of whom nothing is known.

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quorate_files::answer::{Opened, Version, Written};
use quorate_files::{Errno, Handle, Ino, Nothing, Op};

use super::super::caching::Caching;
use super::super::inode::{At, Origin};
use super::super::sample::attr;
use super::super::shares::Start;
use super::*;
use crate::volume::{Called, Calling, Failing, Spanning, Volume};

const INO: Ino = Ino(1);

#[derive(Debug, Default)]
struct Fake {
    generation: AtomicU64,
    asked: Mutex<Vec<(LockSpace, LockKind)>>,
    /// In this namespace others are in the way.
    taken: Mutex<Option<LockSpace>>,
    /// Attributes can't be had.
    blind: AtomicBool,
    /// The session is lost with the next lock, which is granted in a new one; or with the next write, of which nobody knows whether it was executed.
    ends: AtomicBool,
    writes: AtomicU64,
}

impl Fake {
    fn answer(&self, action: &Action) -> Called<Answer> {
        match action {
            Action::Lock(lock) => {
                self.asked.lock().unwrap().push((lock.space, lock.kind));
                if self.ends.swap(false, Ordering::AcqRel) {
                    self.generation.fetch_add(1, Ordering::AcqRel);
                }
                match *self.taken.lock().unwrap() == Some(lock.space)
                    && lock.kind != LockKind::Unlock
                {
                    true => Err(CallError::Refused(Errno::EAGAIN)),
                    false => Ok(Answer::Lock(None)),
                }
            }
            Action::Open(_) => Ok(Answer::Opened(Opened {
                handle: Handle {
                    ino: INO,
                    number: 2,
                },
                created: false,
                attr: attr(INO),
            })),
            Action::GetAttr(_) if self.blind.load(Ordering::Acquire) => {
                Err(CallError::Refused(Errno::EACCES))
            }
            Action::GetAttr(_) => Ok(Answer::Attr(attr(INO))),
            Action::Write(_) => {
                self.writes.fetch_add(1, Ordering::AcqRel);
                match self.ends.swap(false, Ordering::AcqRel) {
                    true => {
                        self.generation.fetch_add(1, Ordering::AcqRel);
                        Err(CallError::Lost)
                    }
                    false => Ok(Answer::Written(Written {
                        offset: 0,
                        before: Version {
                            size: 0,
                            mtime: attr(INO).mtime,
                            ctime: attr(INO).ctime,
                        },
                        attr: attr(INO),
                    })),
                }
            }
            _ => Ok(Answer::Done(Nothing)),
        }
    }
}

impl Spanning for Fake {
    fn call(&self, op: Op) -> Calling<'_> {
        Box::pin(async move { self.answer(&op.action) })
    }

    fn generations(&self) -> Vec<u64> {
        vec![self.generation.load(Ordering::Acquire)]
    }

    fn group_of(&self, _: Ino) -> usize {
        0
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }

    fn failed(&self) -> Failing {
        Box::pin(std::future::pending())
    }
}

fn wanted(file: &OpenFile, kind: LockKind, (start, end): (u64, u64)) -> Wanted {
    Wanted {
        number: file.number,
        owner: 5,
        start,
        end,
        kind,
        pid: 0,
        waiter: 0,
        sleep: false,
    }
}

struct Bench {
    fake: Arc<Fake>,
    core: Arc<Core>,
    file: Arc<OpenFile>,
}

impl Bench {
    fn new(flags: u32) -> Bench {
        let fake = Arc::new(Fake::default());
        let volume = Volume::spanning(fake.clone());
        let runtime = tokio::runtime::Handle::current();
        let core = Core::new(volume, Start::Volume, Caching::default(), runtime);
        let file = core.handles.add(INO, &Who::root(), flags, None);
        Bench { fake, core, file }
    }

    async fn set(&self, kind: LockKind, range: (u64, u64)) -> Result<()> {
        self.set_through(&self.file, kind, range).await
    }

    async fn set_through(&self, file: &OpenFile, kind: LockKind, range: (u64, u64)) -> Result<()> {
        self.core.set_lock(wanted(file, kind, range)).await?.told();
        Ok(())
    }

    fn asked(&self) -> Vec<(LockSpace, LockKind)> {
        std::mem::take(&mut *self.fake.asked.lock().unwrap())
    }
}

const ALL: (u64, u64) = (0, KERNEL_END);
const BOTH: [LockSpace; 2] = [LockSpace::Flock, LockSpace::Posix];

fn asked_in<const N: usize>(spaces: [LockSpace; N], kind: LockKind) -> Vec<(LockSpace, LockKind)> {
    spaces.map(|space| (space, kind)).to_vec()
}

/// Of a lock on a whole file it may not be known which call it is for: then it keeps out holders of both kinds, and is let go in both.
#[tokio::test]
async fn locks_of_unknown_kind_are_of_both() {
    let bench = Bench::new(flags::READ | flags::WRITE);
    bench.set(LockKind::Write, ALL).await.unwrap();
    assert_eq!(bench.asked(), asked_in(BOTH, LockKind::Write));
    bench.set(LockKind::Unlock, ALL).await.unwrap();
    let mut asked = bench.asked();
    asked.reverse();
    assert_eq!(asked, asked_in(BOTH, LockKind::Unlock));
    // Who names a range has called fcntl(2); nothing of the other half stays.
    for kind in [LockKind::Unlock, LockKind::Read] {
        bench.set(LockKind::Write, ALL).await.unwrap();
        bench.asked();
        bench.set(kind, (5, 9)).await.unwrap();
        assert!(
            bench
                .asked()
                .contains(&(LockSpace::Flock, LockKind::Unlock))
        );
        bench.set(LockKind::Unlock, (7, 8)).await.unwrap();
        assert_eq!(bench.asked(), [(LockSpace::Posix, LockKind::Unlock)]);
    }
    // So has nobody whom the kernel would not let.
    let reader = Bench::new(flags::READ);
    reader.set(LockKind::Write, ALL).await.unwrap();
    assert_eq!(reader.asked(), [(LockSpace::Flock, LockKind::Write)]);
    reader.set(LockKind::Read, ALL).await.unwrap();
    assert_eq!(reader.asked(), asked_in(BOTH, LockKind::Read));
    // A close names owners of fcntl(2).
    reader.core.close(reader.file.number, 5).await.unwrap();
    assert!(
        reader
            .asked()
            .contains(&(LockSpace::Flock, LockKind::Unlock))
    );
    reader.set(LockKind::Read, ALL).await.unwrap();
    reader.asked();
    reader.core.close(reader.file.number, 6).await.unwrap();
    assert_eq!(reader.asked(), [(LockSpace::Posix, LockKind::Unlock)]);
}

/// Where the second half is refused, the first is as it was before.
#[tokio::test]
async fn half_a_lock_is_none() {
    use LockKind::{Read, Unlock, Write};
    use LockSpace::{Flock, Posix};
    let bench = Bench::new(flags::READ | flags::WRITE);
    let others = |space| *bench.fake.taken.lock().unwrap() = space;
    others(Some(Posix));
    let refused = bench.set(Write, ALL).await;
    assert_eq!(refused.unwrap_err().code(), fuser::Errno::EAGAIN.code());
    assert_eq!(
        bench.asked(),
        [(Flock, Write), (Posix, Write), (Flock, Unlock)]
    );
    assert!(bench.file.inode.granted.kind(Flock, 5).is_none());
    others(None);
    bench.set(Read, ALL).await.unwrap();
    bench.asked();
    others(Some(Posix));
    bench.set(Write, ALL).await.unwrap_err();
    assert_eq!(
        bench.asked(),
        [(Flock, Write), (Posix, Write), (Flock, Read)]
    );
    others(Some(Flock));
    bench.set(Write, ALL).await.unwrap_err();
    assert_eq!(bench.asked(), [(Flock, Write)]);
}

/// A lock that is granted as its session ends is had in the next one. Who had less before, and lost that, is told.
#[tokio::test]
async fn a_lock_is_not_made_more_of_over_a_lost_session() {
    let bench = Bench::new(flags::READ | flags::WRITE);
    let ends = || bench.fake.ends.store(true, Ordering::Release);
    ends();
    bench.set(LockKind::Read, ALL).await.unwrap();
    assert!(bench.file.in_force(&bench.core).is_ok());
    ends();
    let refused = bench.set(LockKind::Write, ALL).await;
    assert_eq!(refused.unwrap_err().code(), fuser::Errno::EIO.code());
    let told = bench.set(LockKind::Unlock, ALL).await;
    assert_eq!(told.unwrap_err().code(), fuser::Errno::EIO.code());
    bench.set(LockKind::Write, ALL).await.unwrap();
    assert!(bench.file.in_force(&bench.core).is_ok());
}

/// A lock that is lost is not forgotten over another that its owner takes, more or less, through whichever open file; what he is granted
/// meanwhile is given back.
#[tokio::test]
async fn a_lost_lock_is_not_locked_over() {
    use LockKind::{Read, Unlock, Write};
    let range = (5, 9);
    for (before, then) in [(Read, Write), (Write, Read), (Write, Write)] {
        for through_another in [false, true] {
            let bench = Bench::new(flags::READ | flags::WRITE);
            let who = Who::root();
            let other = bench
                .core
                .handles
                .add(INO, &who, flags::READ | flags::WRITE, None);
            let file = match through_another {
                true => &other,
                false => &bench.file,
            };
            bench.set(before, range).await.unwrap();
            // It is found out with the answer.
            bench.fake.ends.store(true, Ordering::Release);
            bench.asked();
            let eio = |done: Result<()>| {
                assert_eq!(done.unwrap_err().code(), fuser::Errno::EIO.code());
            };
            eio(bench.set_through(file, then, range).await);
            let last = bench.asked().pop();
            assert_eq!(last, Some((LockSpace::Posix, Unlock)));
            // Now it is known before.
            eio(bench.set_through(file, then, range).await);
            assert!(bench.asked().is_empty());
            assert!(bench.file.in_force(&bench.core).is_err());
            // The kernel may name any of them for what was changed in its cache.
            eio(bench.core.takes_pages(INO));
            eio(bench.set_through(file, Unlock, range).await);
            bench.set_through(file, then, range).await.unwrap();
            assert!(bench.core.takes_pages(INO).is_ok());
            assert!(bench.file.in_force(&bench.core).is_ok());
        }
    }
}

/// A lock of which nobody hears is undone: its owner has what he knows that he has. As long as he asks again it is not touched, nor
/// when he was told of the same.
#[tokio::test]
async fn what_nobody_hears_of_is_undone() {
    use LockKind::{Read, Unlock, Write};
    use LockSpace::Posix;
    let bench = Bench::new(flags::READ | flags::WRITE);
    let lock = async |kind, range| {
        let wanted = wanted(&bench.file, kind, range);
        bench.core.set_lock(wanted).await.unwrap()
    };
    let has = || {
        let grants = bench.file.inode.granted.of(Posix, 5, (0, u64::MAX));
        let shape = grants.into_iter().map(|g| (g.kind, g.start, g.end));
        shape.collect::<Vec<_>>()
    };
    let range = (10, 19);
    // Two were killed, and the third is told.
    let (first, second) = (lock(Write, range).await, lock(Write, range).await);
    let third = lock(Write, range).await;
    bench.core.undo_lock(first).await;
    third.told();
    drop(third);
    bench.core.undo_lock(second).await;
    assert_eq!(has(), [(Write, 10, 19)]);
    // Nobody is told.
    bench.set(Unlock, range).await.unwrap();
    let (first, second) = (lock(Write, range).await, lock(Write, range).await);
    tokio::join!(bench.core.undo_lock(first), bench.core.undo_lock(second));
    assert_eq!(has(), []);
    // He had less, and other ranges.
    bench.set(Read, (12, 13)).await.unwrap();
    bench.set(Write, (30, 40)).await.unwrap();
    let (first, second) = (lock(Write, range).await, lock(Write, (0, 35)).await);
    bench.core.undo_lock(first).await;
    bench.asked();
    bench.core.undo_lock(second).await;
    assert_eq!(has(), [(Read, 12, 13), (Write, 30, 40)]);
    assert_eq!(
        bench.asked(),
        [Unlock, Read, Unlock, Write].map(|kind| (Posix, kind))
    );
    // He has let go of all meanwhile.
    let killed = lock(Write, range).await;
    bench.core.drop_posix_locks(&bench.file, 5).await;
    bench.core.undo_lock(killed).await;
    assert_eq!(has(), []);
    // He is told that it failed.
    bench.fake.blind.store(true, Ordering::Release);
    bench.set(Write, range).await.unwrap_err();
    assert_eq!(has(), []);
    assert_eq!(bench.asked().pop(), Some((Posix, Unlock)));
}

/// Writes that were taken in under a lock that is lost all fail at once, however many they are.
#[tokio::test]
async fn many_writes_fail_with_their_lock() {
    const WRITES: u64 = 20_000;
    let bench = Bench::new(flags::READ | flags::WRITE);
    bench.set(LockKind::Write, ALL).await.unwrap();
    let budget = Arc::new(tokio::sync::Semaphore::new(WRITES as usize));
    for n in 0..WRITES {
        let one = budget.clone().try_acquire_owned().unwrap();
        let (file, at) = (&bench.file, At::Offset(n * 4096));
        let put = file.inode.put(file, at, b"x", Origin::Program, one);
        assert_eq!(put, Some(1));
    }
    bench.fake.generation.fetch_add(1, Ordering::AcqRel);
    bench.core.flush(&bench.file.inode).await;
    assert_eq!(bench.file.inode.failures(), (WRITES, 0));
    assert_eq!(budget.available_permits(), WRITES as usize);
    bench.core.finish().await;
    assert_eq!(bench.file.inode.old_pages.load(Ordering::Acquire), 0);
}

/// What was changed in a mapping is not written any more once a lock on the file is lost, through whichever open file the kernel has brought it: also if it
/// had been sent before. What a program has written through another open file is.
#[tokio::test]
async fn pages_go_with_a_lost_lock() {
    for (origin, sent) in [(Origin::Mapping, 1), (Origin::Program, 2)] {
        let bench = Bench::new(flags::READ | flags::WRITE);
        bench.set(LockKind::Write, ALL).await.unwrap();
        let handles = &bench.core.handles;
        let other = handles.add(INO, &Who::root(), flags::WRITE, None);
        bench.fake.ends.store(true, Ordering::Release);
        let put = bench.core.buffer(&other, At::Offset(0), b"x", origin);
        put.await.unwrap();
        bench.core.flush(&other.inode).await;
        assert_eq!(bench.fake.writes.load(Ordering::Acquire), sent);
        assert_eq!(other.inode.failures().0, 2 - sent);
    }
}

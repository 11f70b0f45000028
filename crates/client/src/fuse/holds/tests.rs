//! What a mount says of its open files to a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_files::op::{Hold, MAX_HELD_AT_ONCE, Read};
use quorate_files::{Action, Errno, Ino, Who};

use super::super::fake::Bench;
use super::super::handles::{MAX_WITHOUT, OpenFile};
use crate::volume::{CallError, Called};

impl Bench {
    async fn tell(&self) {
        self.core.tell_all().await;
    }

    /// How many files each call was to hold.
    fn kept(&self) -> Vec<usize> {
        let asked = self.asked().into_iter();
        let kept = asked.map(|action| match action {
            Action::Hold(op) => op.keep.len(),
            other => panic!("{other:?}"),
        });
        kept.collect()
    }
}

/// Lets all others run until they wait for an answer.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn hold(keep: &[u64], let_go: &[u64]) -> Action {
    let all = |numbers: &[u64]| numbers.iter().copied().map(Ino).collect();
    Action::Hold(Hold {
        keep: all(keep),
        let_go: all(let_go),
    })
}

/// Where one file may not be held, the others of its part are; where no more can be, nothing else is tried.
#[tokio::test]
async fn one_refused_file_is_not_the_others() {
    const FILES: usize = MAX_HELD_AT_ONCE + 44;
    let bench = Bench::new(&[(7, Errno::ESTALE)]);
    for n in 1..=FILES {
        bench.open(n as u64);
    }
    bench.tell().await;
    let singles = [1; MAX_HELD_AT_ONCE].to_vec();
    let all = [vec![MAX_HELD_AT_ONCE], singles, vec![44]].concat();
    assert_eq!(bench.kept(), all);
    bench.tell().await;
    assert_eq!(bench.kept(), [0; 0]);

    let bench = Bench::new(&[(7, Errno::EMFILE)]);
    for n in 1..=FILES {
        bench.open(n as u64);
    }
    for _ in 0..2 {
        bench.tell().await;
        assert_eq!(bench.kept(), [MAX_HELD_AT_ONCE]);
    }
}

/// Who was told that an open file is gone asks again if it is held now, whoever has told of it meanwhile.
#[tokio::test]
async fn what_another_has_told_is_asked_again() {
    let bench = Bench::new(&[(2, Errno::ESTALE)]);
    let stale: Called<()> = Err(CallError::Refused(Errno::ESTALE));
    bench.open(1);
    bench.open(2);
    bench.tell().await;
    bench.asked();
    // How often something is asked that is always answered so.
    let asks = async |ino, told: Called<()>| {
        let count = AtomicU64::new(0);
        let ask = || {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(told)
        };
        assert_eq!(bench.core.ask_held(Ino(ino), ask).await, told);
        count.into_inner()
    };
    assert_eq!(asks(1, stale).await, 2);
    assert_eq!(asks(2, stale).await, 1);
    assert_eq!(asks(3, stale).await, 1);
    assert_eq!(asks(1, Ok(())).await, 1);
    assert_eq!(bench.asked(), []);
    bench.open(4);
    assert_eq!(asks(4, stale).await, 2);
    assert_eq!(bench.asked(), [hold(&[4], &[])]);
}

/// A call that was on its way when a session was lost may be done in the next one: what is closed meanwhile is let go there, and what is
/// open is told once more.
#[tokio::test]
async fn what_the_next_session_holds_is_let_go() {
    let bench = Bench::new(&[]);
    bench.hold_answers();
    let (closed, _open) = (bench.open(1), bench.open(2));
    let core = bench.core.clone();
    let telling = tokio::spawn(async move { core.tell_all().await });
    settle().await;
    assert_eq!(bench.asked(), [hold(&[1, 2], &[])]);
    bench.close(&closed);
    bench.fake.generation.fetch_add(1, Ordering::AcqRel);
    bench.fake.answers.add_permits(10_000);
    telling.await.unwrap();
    bench.tell().await;
    assert_eq!(bench.asked(), [hold(&[], &[1]), hold(&[2], &[])]);
    bench.tell().await;
    assert_eq!(bench.asked(), []);
}

/// A refusal is taken from the group in agreement alone, so that a guest's is in its log: also where the file is not there for it any more.
#[tokio::test]
async fn refused_opens_are_ordered() {
    const READ_ONLY: i32 = 0;
    for errno in [Errno::EACCES, Errno::ESTALE] {
        let bench = Bench::new(&[(7, errno)]);
        let opened = bench.core.open(&Who::root(), Ino(7), READ_ONLY).await;
        assert_eq!(opened.unwrap_err().code(), i32::from(errno.code()));
        let asked = bench.asked();
        assert!(
            matches!(asked[..], [Action::CheckOpen(_), Action::Open(_)]),
            "{asked:?}"
        );
    }
}

/// Where as many files are open as the group may hold of one session, each further one gets a handle: who can't have one is told.
#[tokio::test]
async fn so_many_files_are_open_without_a_handle() {
    let bench = Bench::new(&[]);
    for n in 1..MAX_WITHOUT {
        bench.open(n as u64);
    }
    for (ino, is_last) in [(100_000, true), (100_001, false)] {
        let opened = bench.core.open(&Who::root(), Ino(ino), 0).await;
        let has_handle = opened.unwrap().file.has_handle(&bench.core.volume);
        assert_eq!(has_handle, !is_last);
        let asked = bench.asked();
        match is_last {
            true => assert!(matches!(asked[..], [Action::CheckOpen(_)]), "{asked:?}"),
            false => assert!(matches!(asked[..], [Action::Open(_)]), "{asked:?}"),
        }
    }
}

/// What is closed and opened again ends up held.
#[tokio::test]
async fn what_is_opened_again_is_held_again() {
    let bench = Bench::new(&[]);
    let first = bench.open(1);
    bench.tell().await;
    bench.close(&first);
    bench.open(1);
    bench.asked();
    bench.tell().await;
    assert_eq!(bench.asked(), [hold(&[], &[1]), hold(&[1], &[])]);
}

/// A handle that is being made when its file is released is released too, and no other is made.
#[tokio::test]
async fn no_handle_outlives_its_file() {
    let bench = Bench::new(&[]);
    bench.hold_answers();
    let file = bench.open(1);
    let reading = || {
        let (core, file) = (bench.core.clone(), file.clone());
        tokio::spawn(async move {
            let read = |handle| {
                Ok(Action::Read(Read {
                    target: quorate_files::Target::Handle(handle),
                    offset: 0,
                    len: 1,
                }))
            };
            file.with_handle(&core, &Who::root(), true, read).await
        })
    };
    let first = reading();
    settle().await;
    let core = bench.core.clone();
    let released = file.clone();
    let releasing = tokio::spawn(async move { released.release(&core.volume).await });
    settle().await;
    assert!(matches!(bench.asked()[..], [Action::Open(_)]));
    bench.fake.answers.add_permits(10_000);
    releasing.await.unwrap();
    assert!(first.await.unwrap().is_ok());
    let asked = bench.asked();
    let releases = asked.iter().filter(|a| matches!(a, Action::Release(_)));
    assert_eq!(releases.count(), 1, "{asked:?}");
    let later = reading().await.unwrap();
    assert_eq!(later.unwrap_err().code(), fuser::Errno::EBADF.code());
    assert_eq!(bench.asked(), []);
}

/// What comes late through a file that is released is refused: nobody would send it.
#[tokio::test]
async fn nothing_is_put_into_a_released_file() {
    use super::super::inode::{At, Origin};
    let bench = Bench::new(&[]);
    let file = bench.open(1);
    let put = async || {
        let (at, data) = (At::Offset(0), b"late");
        let put = bench.core.buffer(&file, at, data, Origin::Program).await;
        put.map_err(|errno| errno.code())
    };
    assert_eq!(put().await, Ok(()));
    bench.core.handles.remove(file.number).unwrap();
    assert_eq!(put().await, Err(fuser::Errno::EBADF.code()));
}

/// A handle that was made while the session was lost is let go, since nobody knows of which one it is: it would stay as long as that. Where one is
/// needed there is another one.
#[tokio::test]
async fn handles_of_an_unknown_session_are_let_go() {
    use super::super::names::Bits;
    use rustix::fs::OFlags;
    let bench = Bench::new(&[]);
    let ends = || bench.fake.ends.store(true, Ordering::Release);
    let has_handle = |file: &Arc<OpenFile>| file.has_handle(&bench.core.volume);
    let (who, cut) = (Who::root(), (OFlags::WRONLY | OFlags::TRUNC).bits() as i32);
    ends();
    let opened = bench.core.open(&who, Ino(7), cut).await.unwrap();
    assert_eq!(bench.kinds(), ["Open", "Release"]);
    assert!(!has_handle(&opened.file));

    ends();
    let bits = Bits {
        mode: 0o644,
        umask: 0,
    };
    let made = bench.core.create(&who, Ino(1), "f".into(), bits, 0);
    let made = made.await.unwrap();
    assert_eq!(bench.kinds(), ["Create", "Release"]);
    assert!(!has_handle(&made.file));

    ends();
    let read = |handle| {
        Ok(Action::Read(Read {
            target: quorate_files::Target::Handle(handle),
            offset: 0,
            len: 1,
        }))
    };
    let read = made.file.with_handle(&bench.core, &who, true, read);
    assert_eq!(read.await.unwrap().0, 4);
    assert_eq!(bench.kinds(), ["Open", "Release", "Open", "Read"]);
    assert!(has_handle(&made.file));
}

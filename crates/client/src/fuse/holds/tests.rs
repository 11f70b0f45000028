//! What a mount says of its open files to a group whose answers are made up: when it answers, and as which session.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quorate_files::answer::{Held, Opened};
use quorate_files::op::{Hold, MAX_HELD_AT_ONCE, Read, flags};
use quorate_files::{Action, Answer, Errno, Handle, Ino, Nothing, Op, Who};
use tokio::sync::Semaphore;

use super::super::caching::Caching;
use super::super::core::Core;
use super::super::handles::{MAX_WITHOUT, OpenFile};
use super::super::sample::attr;
use super::super::shares::Start;
use crate::volume::{CallError, Called, Calling, Spanning, Volume};

#[derive(Debug)]
struct Fake {
    generation: AtomicU64,
    asked: Mutex<Vec<Action>>,
    /// What each call takes one of.
    answers: Semaphore,
    /// What may be neither opened nor held, and why.
    refused: BTreeMap<Ino, Errno>,
}

impl Fake {
    fn answer(&self, action: &Action) -> Called<Answer> {
        match action {
            Action::Hold(op) => match op.keep.iter().find_map(|ino| self.refused.get(ino)) {
                Some(errno) => Err(CallError::Refused(*errno)),
                None => Ok(Answer::Held(Held { gone: Vec::new() })),
            },
            Action::Open(op) | Action::CheckOpen(op) if self.refused.contains_key(&op.ino) => {
                Err(CallError::Refused(self.refused[&op.ino]))
            }
            Action::CheckOpen(op) => Ok(Answer::Attr(attr(op.ino))),
            Action::Open(op) => Ok(Answer::Opened(Opened {
                handle: Handle {
                    ino: op.ino,
                    number: 2,
                },
                created: false,
                attr: attr(op.ino),
            })),
            _ => Ok(Answer::Done(Nothing)),
        }
    }
}

impl Spanning for Fake {
    fn call(&self, op: Op) -> Calling<'_> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(op.action.clone());
            self.answers.acquire().await.unwrap().forget();
            self.answer(&op.action)
        })
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
}

struct Bench {
    fake: Arc<Fake>,
    core: Arc<Core>,
}

impl Bench {
    /// A mount, and a group that answers at once.
    fn new(refused: &[(u64, Errno)]) -> Bench {
        let refused = refused.iter().map(|(ino, errno)| (Ino(*ino), *errno));
        let fake = Arc::new(Fake {
            generation: AtomicU64::new(1),
            asked: Mutex::default(),
            answers: Semaphore::new(10_000),
            refused: refused.collect(),
        });
        let volume = Volume::spanning(fake.clone());
        let runtime = tokio::runtime::Handle::current();
        let core = Core::new(volume, Start::Volume, Caching::default(), runtime);
        Bench { fake, core }
    }

    fn open(&self, ino: u64) -> Arc<OpenFile> {
        let handles = &self.core.handles;
        handles.add(Ino(ino), &Who::root(), flags::READ, None)
    }

    fn close(&self, file: &OpenFile) {
        self.core.handles.remove(file.number).unwrap();
        self.core.handles.done(file, &self.core.holds);
    }

    /// No call is answered until this many may be.
    fn hold_answers(&self) {
        self.fake.answers.forget_permits(10_000);
    }

    async fn tell(&self) {
        self.core.tell_all().await;
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<Action> {
        std::mem::take(&mut self.fake.asked.lock().unwrap())
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
    use super::super::inode::At;
    let bench = Bench::new(&[]);
    let file = bench.open(1);
    let put = async || {
        let put = bench.core.buffer(&file, At::Offset(0), b"late").await;
        put.map_err(|errno| errno.code())
    };
    assert_eq!(put().await, Ok(()));
    bench.core.handles.remove(file.number).unwrap();
    assert_eq!(put().await, Err(fuser::Errno::EBADF.code()));
}

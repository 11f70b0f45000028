//! A mount of a group whose answers are made up: when it answers, and as which session.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quorate_files::answer::{Held, Opened};
use quorate_files::op::flags;
use quorate_files::{Action, Answer, Errno, Handle, Ino, Nothing, Op, Who};
use tokio::sync::Semaphore;

use super::caching::Caching;
use super::core::Core;
use super::handles::OpenFile;
use super::sample::attr;
use super::shares::Start;
use crate::volume::{CallError, Called, Calling, Failing, Spanning, Volume};

#[derive(Debug)]
pub(super) struct Fake {
    pub generation: AtomicU64,
    pub asked: Mutex<Vec<Action>>,
    /// What each call takes one of.
    pub answers: Semaphore,
    /// What may be neither opened nor held, and why.
    pub refused: BTreeMap<Ino, Errno>,
    /// The session is lost with the next call that makes a handle, which is answered in a new one.
    pub ends: AtomicBool,
    /// How looks at attributes, changes of them, and writes, are answered.
    pub changes: Mutex<VecDeque<Called<Answer>>>,
}

impl Fake {
    fn opened(&self, ino: Ino) -> Answer {
        if self.ends.swap(false, Ordering::AcqRel) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        Answer::Opened(Opened {
            handle: Handle { ino, number: 2 },
            created: false,
            attr: attr(ino),
        })
    }

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
            Action::Open(op) => Ok(self.opened(op.ino)),
            Action::Create(_) => Ok(self.opened(Ino(9))),
            Action::GetAttr(_) | Action::SetAttr(_) | Action::WithAttrs(_) | Action::Write(_) => {
                let next = self.changes.lock().unwrap().pop_front();
                next.unwrap_or(Err(CallError::Garbled))
            }
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

    fn failed(&self) -> Failing {
        Box::pin(std::future::pending())
    }
}

pub(super) struct Bench {
    pub fake: Arc<Fake>,
    pub core: Arc<Core>,
}

impl Bench {
    /// A mount, and a group that answers at once.
    pub fn new(refused: &[(u64, Errno)]) -> Bench {
        let refused = refused.iter().map(|(ino, errno)| (Ino(*ino), *errno));
        let fake = Arc::new(Fake {
            generation: AtomicU64::new(1),
            asked: Mutex::default(),
            answers: Semaphore::new(10_000),
            refused: refused.collect(),
            ends: AtomicBool::new(false),
            changes: Mutex::default(),
        });
        let volume = Volume::spanning(fake.clone());
        let runtime = tokio::runtime::Handle::current();
        let core = Core::new(volume, Start::Volume, Caching::default(), runtime);
        Bench { fake, core }
    }

    pub fn open(&self, ino: u64) -> Arc<OpenFile> {
        let handles = &self.core.handles;
        handles.add(Ino(ino), &Who::root(), flags::READ, None)
    }

    pub fn close(&self, file: &OpenFile) {
        self.core.handles.remove(file.number).unwrap();
        self.core.handles.done(file, &self.core.holds);
    }

    /// No call is answered until this many may be.
    pub fn hold_answers(&self) {
        self.fake.answers.forget_permits(10_000);
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<Action> {
        std::mem::take(&mut self.fake.asked.lock().unwrap())
    }

    /// The same by kind.
    pub fn kinds(&self) -> Vec<String> {
        let name = |action: Action| {
            let text = format!("{action:?}");
            text.split(['(', ' ']).next().unwrap().to_owned()
        };
        self.asked().into_iter().map(name).collect()
    }
}

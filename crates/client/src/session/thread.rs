//! The thread of a [`Session`](super::Session): brings callers and the engine together.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use bytes::Bytes;
use quorate_agreement::client::{NoResult, Token};
use quorate_net::{Group, Identity};
use quorate_wire::ReplicaId;
use quorate_wire::message::report::Report;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::engine::{self, Engine, Happened, link_bit};
use super::{ReportError, Shared};

/// What a caller wants.
#[derive(Debug)]
pub(super) enum Ask {
    Call(Bytes, Waiter),
    Read(Bytes, Waiter),
    Report(
        ReplicaId,
        Instant,
        oneshot::Sender<Result<Report, ReportError>>,
    ),
    /// To be given up at this time.
    Close(Instant, oneshot::Sender<()>),
    /// Links are to be made with another credential.
    Renew(Box<Group>, Box<Identity>),
    /// There is no caller any more.
    End,
}

/// Who waits for a result. Keeps a place until it is there.
#[derive(Debug)]
pub(super) struct Waiter {
    result: oneshot::Sender<Result<Bytes, NoResult>>,
    _place: OwnedSemaphorePermit,
}

impl Waiter {
    pub fn new(
        result: oneshot::Sender<Result<Bytes, NoResult>>,
        place: OwnedSemaphorePermit,
    ) -> Waiter {
        Waiter {
            result,
            _place: place,
        }
    }
}

/// Who waits for a report.
#[derive(Debug)]
struct Curious {
    replica: ReplicaId,
    /// The number of the question, if it was asked: that takes a link.
    nonce: Option<u64>,
    until: Instant,
    answer: oneshot::Sender<Result<Report, ReportError>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Driver {
    engine: Engine,
    asks: Receiver<Ask>,
    shared: Arc<Shared>,
    waiting: BTreeMap<Token, Waiter>,
    curious: Vec<Curious>,
    closing: Option<(Instant, oneshot::Sender<()>)>,
    ended: bool,
}

impl Driver {
    pub fn new(engine: Engine, asks: Receiver<Ask>, shared: Arc<Shared>) -> Driver {
        Driver {
            engine,
            asks,
            shared,
            waiting: BTreeMap::new(),
            curious: Vec::new(),
            closing: None,
            ended: false,
        }
    }

    /// Runs until nobody has a handle any more, or the session was closed. Who still waits then gets [`NoResult::SessionLost`],
    /// since their channels are dropped.
    ///
    /// # Errors
    /// Those of the operating system, which are final.
    pub fn run(mut self) -> io::Result<()> {
        while !self.ended {
            let timeout = self
                .next_due()
                .map(|due| due.saturating_duration_since(engine::now()));
            self.engine.turn(timeout)?;
            self.take_asks();
            self.shared
                .links
                .store(self.engine.links(), Ordering::Release);
            while let Some(happened) = self.engine.happened.pop_front() {
                self.on_happened(happened);
            }
            self.on_time();
        }
        Ok(())
    }

    fn next_due(&self) -> Option<Instant> {
        let closing = self.closing.iter().map(|(until, _)| *until);
        self.curious.iter().map(|c| c.until).chain(closing).min()
    }

    fn take_asks(&mut self) {
        loop {
            match self.asks.try_recv() {
                Ok(Ask::Call(op, waiter)) => {
                    let token = self.engine.call(op);
                    self.waiting.insert(token, waiter);
                }
                Ok(Ask::Read(op, waiter)) => {
                    let token = self.engine.read(op);
                    self.waiting.insert(token, waiter);
                }
                Ok(Ask::Report(replica, until, answer)) => self.curious.push(Curious {
                    replica,
                    nonce: None,
                    until,
                    answer,
                }),
                Ok(Ask::Renew(group, identity)) => self.engine.renew(&group, &identity),
                Ok(Ask::Close(until, done)) => {
                    self.engine.close();
                    self.closing = Some((until, done));
                }
                Ok(Ask::End) | Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn on_happened(&mut self, happened: Happened) {
        match happened {
            Happened::Done(token, result) => {
                if let Some(waiter) = self.waiting.remove(&token) {
                    // Who waited may have given up.
                    let _ = waiter.result.send(result);
                }
            }
            Happened::Report(from, report) => {
                let asked = |c: &Curious| c.replica == from && c.nonce == Some(report.nonce);
                if let Some(at) = self.curious.iter().position(asked) {
                    let _ = self.curious.swap_remove(at).answer.send(Ok(*report));
                }
            }
            Happened::Opened => {
                self.shared.generation.fetch_add(1, Ordering::AcqRel);
            }
            Happened::Closed => {
                self.ended = true;
                if let Some((_, done)) = self.closing.take() {
                    let _ = done.send(());
                }
            }
        }
    }

    fn on_time(&mut self) {
        let (now, links) = (engine::now(), self.engine.links());
        for curious in &mut self.curious {
            if curious.nonce.is_none() && links & link_bit(curious.replica) != 0 {
                curious.nonce = Some(self.engine.ask_report(curious.replica));
            }
        }
        let late = |c: &mut Curious| c.until <= now || c.answer.is_closed();
        for curious in self.curious.extract_if(.., late) {
            let why = match curious.nonce {
                None => ReportError::NoLink,
                Some(_) => ReportError::NoAnswer,
            };
            let _ = curious.answer.send(Err(why));
        }
        if self
            .closing
            .as_ref()
            .is_some_and(|(until, _)| *until <= now)
        {
            // The lease ends it. Its caller sees that the channel is dropped.
            self.ended = true;
        }
    }
}

//! Batches whose operations are executed beside each other, on workers.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_agreement::{Input as AgreementInput, Now, Ordered};
use quorate_execution::graph::OpId;
use quorate_execution::{Broken, Completion, Done, Executed, Flight, Service, Workers};
use quorate_state::Fault;
use quorate_wire::Seq;
use quorate_wire::message::Read;
use quorate_wire::mutants::{Mutant, is_on};

use crate::answers::wants_all;
use crate::clients::ConnectionId;
use crate::io::Output;
use crate::reads::ReadAt;
use crate::replica::{MAX_LAYERS, Replica};
use crate::transfer::Piece;

/// Batches at work.
#[derive(Debug)]
pub(crate) struct Parallel {
    flight: Flight<Tag>,
    /// The newest batch, if some of its requests have not entered yet, and how many have.
    entering: Option<(Arc<Ordered>, usize)>,
    /// Those that have committed and entered, each with the number of the operation after it.
    batches: VecDeque<(Seq, OpId)>,
    /// Up to where agreement knows that all is done.
    told: Seq,
}

/// What an operation came with.
#[derive(Debug)]
enum Tag {
    /// A request, by its place in a batch.
    Request(Arc<Ordered>, usize),
    Read(ConnectionId, Read, ReadAt),
}

impl Parallel {
    pub fn new(workers: Workers) -> Parallel {
        Parallel {
            flight: Flight::new(workers),
            entering: None,
            batches: VecDeque::new(),
            told: Seq(0),
        }
    }

    /// Whether all of a batch has entered: what is read now is what some batch left.
    pub fn is_between_batches(&self) -> bool {
        self.entering.is_none()
    }

    /// The batch of which not all has entered.
    pub fn entering(&self) -> Option<&Arc<Ordered>> {
        self.entering.as_ref().map(|(ordered, _)| ordered)
    }

    /// Checkpoints that wait for operations before them.
    pub fn waiting_layers(&self) -> usize {
        self.flight.marks()
    }

    pub fn invariants(&self) {
        self.flight.invariants();
    }
}

impl<S: Service> Replica<S> {
    /// The last place that is in the state, or on its way into it for good.
    pub(crate) fn entered(&self) -> Seq {
        let parallel = self.parallel.as_ref();
        let entering = parallel.and_then(|p| p.entering.as_ref());
        let entering = entering.filter(|_| self.tentative.is_none());
        let newest = parallel.and_then(|p| p.batches.back());
        let entered = newest.map_or(self.applied, |(seq, _)| *seq);
        entering.map_or(entered, |(ordered, _)| ordered.seq)
    }

    /// Lets in what can enter, and brings on what has: until nothing more is to be done before workers are.
    pub(crate) fn advance(&mut self) -> Result<(), Fault> {
        loop {
            self.enter()?;
            let Some(parallel) = &mut self.parallel else {
                return Ok(());
            };
            let has_moved = parallel
                .flight
                .proceed(&mut self.executor, &mut self.state)?;
            let done = parallel.flight.take_done();
            let layers = parallel.flight.take_layers();
            while let Some((seq, end)) = parallel.batches.front()
                && parallel.flight.is_done_before(*end)
            {
                self.applied = *seq;
                parallel.batches.pop_front();
            }
            done.into_iter().for_each(|done| self.answer(done));
            for (seq, layer) in layers {
                self.store(Piece {
                    seq,
                    complete: true,
                    layer,
                });
            }
            if !has_moved {
                break;
            }
        }
        let jobs = self.parallel.as_mut().map(|p| p.flight.take_jobs());
        if let Some(jobs) = jobs.filter(|jobs| !jobs.is_empty()) {
            self.out.push_back(Output::Run(jobs));
        }
        Ok(())
    }

    /// Lets requests in as far as they can enter.
    fn enter(&mut self) -> Result<(), Fault> {
        while self.transfer.is_idle() {
            self.commit_tentative();
            let is_full = self.layers_ahead() >= MAX_LAYERS;
            let Some(parallel) = &mut self.parallel else {
                return Ok(());
            };
            if parallel.entering.is_none() {
                let next = match is_full {
                    true => None,
                    false => self.backlog.pop_front(),
                };
                let Some(ordered) = next else {
                    return Ok(());
                };
                parallel.entering = Some((ordered, 0));
            }
            let Some((ordered, next)) = &mut parallel.entering else {
                return Ok(());
            };
            while let Some(known) = ordered.requests.get(*next) {
                let tag = || Tag::Request(ordered.clone(), *next);
                let has_entered = parallel.flight.enter(
                    &mut self.executor,
                    &mut self.state,
                    (ordered.time, *next == 0),
                    &known.request,
                    tag,
                )?;
                if !has_entered {
                    return Ok(());
                }
                *next += 1;
            }
            let ordered = ordered.clone();
            parallel.entering = None;
            if self.tentative.is_none() {
                self.on_entered(&ordered);
            }
        }
        Ok(())
    }

    /// If the tentative batch has committed, it is one as the others.
    fn commit_tentative(&mut self) {
        if let Some(parallel) = &mut self.parallel
            && let Some(tentative) = &self.tentative
            && let Some(ordered) = self.backlog.pop_front()
        {
            assert_eq!(
                tentative.digest, ordered.digest,
                "what else committed is undone"
            );
            let (executor, state) = (&mut self.executor, &mut self.state);
            parallel.flight.keep_tentative(executor, state);
            self.tentative = None;
            if parallel.entering.is_none() {
                self.on_entered(&ordered);
            }
        }
    }

    /// A batch that has committed has entered.
    fn on_entered(&mut self, ordered: &Ordered) {
        self.note_bodies(ordered);
        let Some(parallel) = &mut self.parallel else {
            return;
        };
        let end = parallel.flight.next_id();
        parallel.batches.push_back((ordered.seq, end));
        let requests = ordered.requests.iter().map(|known| &known.request);
        if self
            .checkpoints
            .is_due_after(ordered.seq, requests, &self.executor)
        {
            let (executor, state) = (&mut self.executor, &mut self.state);
            parallel.flight.mark(executor, state, ordered.seq);
        }
    }

    /// Lets the next batch in so that it can be undone.
    pub(crate) fn enter_tentatively(&mut self, ordered: Arc<Ordered>) -> Result<(), Fault> {
        let Some(parallel) = &mut self.parallel else {
            return Ok(());
        };
        // Only one batch is on its way into the graph.
        if parallel.entering.is_some() {
            self.out.push_back(Output::Hurry);
            return Ok(());
        }
        let (executor, state) = (&mut self.executor, &mut self.state);
        parallel.flight.begin_tentative(executor, state)?;
        parallel.entering = Some((ordered.clone(), 0));
        self.tentative = Some(ordered);
        self.advance()
    }

    /// Undoes the tentative batch.
    pub(crate) fn undo_tentative(&mut self) {
        let Some(parallel) = &mut self.parallel else {
            return;
        };
        if self.tentative.take().is_some() {
            parallel.entering = None;
        }
        let (executor, state) = (&mut self.executor, &mut self.state);
        match is_on(Mutant::OverlayKept) {
            true => parallel.flight.keep_tentative(executor, state),
            false => parallel.flight.drop_tentative(executor, state),
        }
    }

    /// Tells agreement how far workers are, which may make it propose; false where it knows.
    pub(crate) fn tell_done(&mut self, now: Now) -> bool {
        let applied = self.applied;
        let told = self.parallel.as_mut().map(|p| &mut p.told);
        let Some(told) = told.filter(|told| **told != applied) else {
            return false;
        };
        *told = applied;
        self.agree(now, AgreementInput::Done(applied));
        self.agreement.end_turn();
        true
    }

    /// The state is given up.
    pub(crate) fn drop_flight(&mut self) {
        if let Some(parallel) = &mut self.parallel {
            parallel.flight.give_up(&mut self.executor);
            parallel.entering = None;
            parallel.batches.clear();
        }
    }

    /// Lets a read in. False if it has to wait.
    pub(crate) fn enter_read(
        &mut self,
        from: ConnectionId,
        read: &Read,
        at: ReadAt,
    ) -> Result<bool, Fault> {
        let Some(parallel) = &mut self.parallel else {
            return Ok(false);
        };
        let Some(client) = self.clients.client(from) else {
            return Ok(true);
        };
        parallel.flight.enter_read(
            &mut self.executor,
            &mut self.state,
            (client, read.session, wants_all(self.me, read)),
            &read.op,
            || Tag::Read(from, read.clone(), at),
        )
    }

    pub(crate) fn on_ran(&mut self, completions: Vec<Completion>) -> Result<(), Fault> {
        let mut result = Ok(());
        for completion in completions {
            let flight = self.parallel.as_mut().map(|p| &mut p.flight);
            match flight.map(|flight| flight.complete(completion)) {
                // The graph is told of the others all the same.
                // A store that fails takes the replica out; what others found is looked into where it does not.
                Some(Err(Broken::Fault(fault))) => {
                    if !matches!(result, Err(Fault::Store(_))) {
                        result = Err(fault);
                    }
                }
                Some(Err(Broken::Died(reason))) => self.fail(reason),
                Some(Ok(())) | None => {}
            }
        }
        result
    }

    fn answer(&mut self, done: Done<Tag>) {
        let Done {
            tag,
            body,
            is_tentative,
        } = done;
        match tag {
            Tag::Request(ordered, at) => {
                // Only that of a read is perhaps not whole.
                let (Some(known), Some(outcome)) = (ordered.requests.get(at), body.result()) else {
                    return;
                };
                let executed = Executed {
                    client: known.request.client(),
                    session: known.request.session(),
                    number: known.request.number(),
                    outcome,
                };
                let view = is_tentative.then_some(ordered.view);
                self.reply(executed, &ordered, known.replier, view);
            }
            Tag::Read(from, read, at) => self.reply_to_read(from, &read, body, at),
        }
    }
}

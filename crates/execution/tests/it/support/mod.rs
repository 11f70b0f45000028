//! Executes a script twice: in its order, and in an order that the dependency graph allows. For the property tests of this
//! crate and of services.
#![allow(dead_code)] // Each test uses a part of it.

pub mod flight;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::graph::{Conflicts, Graph, OpId, Uses};
use quorate_execution::{Call, Ran, Service};
use quorate_state::{Layer, MemorySnapshot, State};
use quorate_wire::{Digest, Seq};

/// An operation, or the end of a session, which comes when nothing of that is at work any more.
#[derive(Clone, Debug)]
pub struct Step {
    pub call: Call,
    pub op: Option<Bytes>,
}

/// What a script came to.
#[derive(Debug, PartialEq, Eq)]
pub struct End {
    pub results: Vec<Bytes>,
    pub state: Layer,
    pub root: Digest,
}

/// The initial state of a service.
pub fn genesis<S: Service>(service: &S) -> State {
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let mut txn = state.begin();
    service.genesis(&mut txn).unwrap();
    txn.commit();
    state
}

/// In the script's order, each operation whole.
pub fn in_order<S: Service>(service: &S, script: &[Step]) -> End {
    let mut state = genesis(service);
    let results = script.iter().map(|step| {
        let mut txn = state.begin();
        let result = match &step.op {
            Some(op) => service.execute(&mut txn, &step.call, op).unwrap(),
            None => {
                if service.uses_at_end(&txn, &step.call).unwrap().is_some() {
                    service.session_ended(&mut txn, &step.call).unwrap();
                }
                Bytes::new()
            }
        };
        txn.commit();
        result
    });
    let results = results.collect();
    end(state, results)
}

fn end(mut state: State, results: Vec<Bytes>) -> End {
    let layer = state.freeze(Seq(1));
    let (snapshot, root) = MemorySnapshot::default().apply(&layer).unwrap();
    let entries = snapshot.entries.into_iter().map(|(k, v)| (k, Some(v)));
    End {
        results,
        state: entries.collect(),
        root,
    }
}

/// What runs saw of the graph's freedom.
#[derive(Debug, Default)]
pub struct Freedom {
    /// The most operations that were running at once.
    pub running: usize,
    /// How many steps were taken before one of an earlier operation.
    pub overtaken: usize,
}

/// In an order that the graph allows and the schedule picks. Each run step is taken at the first moment it may be, at the
/// last one, and once between; all three must come to the same, for a worker reads at any time in between.
pub fn as_allowed<S: Service>(
    service: &S,
    script: &[Step],
    schedule: &[u8],
    window: usize,
    freedom: &mut Freedom,
) -> End {
    let mut run = Run {
        service,
        script,
        state: genesis(service),
        graph: Graph::new(Conflicts::Declared, window),
        ready: Vec::new(),
        running: Vec::new(),
        settleable: Vec::new(),
        ran: BTreeMap::new(),
        results: vec![None; script.len()],
        hold_something: BTreeSet::new(),
        inserted: 0,
    };
    let mut picks = schedule.iter().copied().cycle();
    while run.results.iter().any(Option::is_none) {
        run.step(picks.next().unwrap(), picks.next().unwrap(), freedom);
        run.graph.invariants();
    }
    assert!(run.graph.is_empty());
    let results = run.results.into_iter().map(Option::unwrap).collect();
    end(run.state, results)
}

struct Run<'a, S> {
    service: &'a S,
    script: &'a [Step],
    state: State,
    graph: Graph,
    ready: Vec<OpId>,
    running: Vec<OpId>,
    settleable: Vec<OpId>,
    /// What the run steps came to.
    ran: BTreeMap<OpId, (Ran, Layer)>,
    results: Vec<Option<Bytes>>,
    /// The ends of sessions that do.
    hold_something: BTreeSet<OpId>,
    inserted: usize,
}

impl<S: Service> Run<'_, S> {
    /// Does one of what can be done.
    fn step(&mut self, what: u8, which: u8, freedom: &mut Freedom) {
        while let Some(id) = self.graph.take_ready() {
            // The first moment: another's writes that come later must not matter.
            self.look(id);
            self.ready.push(id);
        }
        while let Some(id) = self.graph.take_settleable() {
            self.settleable.push(id);
        }
        let can_insert =
            self.inserted < self.script.len() && self.graph.has_room() && !self.keeps_from_ending();
        // Mostly more of them, so that they meet.
        let choices = [
            can_insert,
            can_insert,
            can_insert,
            can_insert,
            !self.ready.is_empty(),
            !self.running.is_empty(),
            !self.settleable.is_empty(),
        ];
        let able: Vec<_> = (0..choices.len()).filter(|&i| choices[i]).collect();
        assert!(!able.is_empty(), "nothing goes on");
        let pick = |list: &mut Vec<OpId>| list.swap_remove(usize::from(which) % list.len());
        match able[usize::from(what) % able.len()] {
            0..=3 => self.insert(),
            4 => {
                let id = pick(&mut self.ready);
                self.running.push(id);
                freedom.running = freedom.running.max(self.running.len());
            }
            5 => {
                let id = pick(&mut self.running);
                self.look(id);
                self.graph.ran(id);
            }
            _ => {
                let id = pick(&mut self.settleable);
                freedom.overtaken += usize::from(Some(id) != self.graph.oldest());
                self.settle(id);
            }
        }
    }

    /// Whether the next step is the end of a session of which something is at work.
    fn keeps_from_ending(&self) -> bool {
        let next = &self.script[self.inserted];
        let before = self.script.iter().zip(&self.results).take(self.inserted);
        let mut at_work = before.filter(|(_, result)| result.is_none());
        next.op.is_none() && at_work.any(|(step, _)| step.call.session == next.call.session)
    }

    fn insert(&mut self) {
        let step = &self.script[self.inserted];
        let uses = match &step.op {
            Some(op) => self.service.uses(&step.call, op),
            None => {
                let uses = self.service.uses_at_end(&self.state.begin(), &step.call);
                let uses = uses.unwrap();
                if uses.is_some() {
                    self.hold_something.insert(OpId(self.inserted as u64));
                }
                uses.unwrap_or_else(Uses::none)
            }
        };
        assert_eq!(self.graph.insert(uses), OpId(self.inserted as u64));
        self.inserted += 1;
    }

    /// Takes an operation's run step on the state as it is.
    fn look(&mut self, id: OpId) {
        let step = &self.script[id.0 as usize];
        let mut txn = self.state.begin();
        let ran = match &step.op {
            Some(op) => self.service.run(&mut txn, &step.call, op).unwrap(),
            None => {
                if self.hold_something.contains(&id) {
                    let ended = self.service.session_ended(&mut txn, &step.call);
                    ended.unwrap();
                }
                Ran::Done(Bytes::new())
            }
        };
        let now = (ran, txn.writes().clone());
        match self.ran.get(&id) {
            Some(before) => assert_eq!(*before, now, "{id:?} ran on shifting ground"),
            None => drop(self.ran.insert(id, now)),
        }
    }

    fn settle(&mut self, id: OpId) {
        let step = &self.script[id.0 as usize];
        // The last moment.
        if self.ran.contains_key(&id) {
            self.look(id);
        }
        let mut txn = self.state.begin();
        let result = match (self.ran.remove(&id), &step.op) {
            (Some((ran, writes)), op) => {
                for (key, value) in writes {
                    match value {
                        Some(value) => txn.put(key, value),
                        None => txn.delete(key),
                    }
                }
                match (ran, op) {
                    (Ran::Done(result), _) => result,
                    (Ran::Settle(ran), Some(op)) => {
                        let settled = self.service.settle(&mut txn, &step.call, op, ran);
                        settled.unwrap()
                    }
                    (Ran::Settle(_), None) => panic!("the end of a session does not settle"),
                }
            }
            (None, Some(op)) => self.service.execute(&mut txn, &step.call, op).unwrap(),
            (None, None) => {
                let ended = self.service.session_ended(&mut txn, &step.call);
                ended.unwrap();
                Bytes::new()
            }
        };
        txn.commit();
        self.results[id.0 as usize] = Some(result);
        self.graph.done(id);
    }
}

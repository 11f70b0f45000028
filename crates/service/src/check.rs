//! Finds wrong declarations of what operations touch, before replicas with workers differ, or stand still, because of them.
//!
//! [`Service::uses`] says which operations don't matter to each other, and nobody contradicts it: replicas with workers
//! execute these in any order, each in its own. [`uses`] contradicts it, where given operations show that it is wrong. To be
//! called in a test of the service:
//!
//! ```
//! use quorate_service::{Bytes, Call, Fault, Scope, Service, Txn, Uses, check};
//!
//! /// Counts, and declares what it is told to.
//! struct Counter(Uses);
//!
//! impl Service for Counter {
//!     fn execute(&self, txn: &mut Txn<'_>, _call: &Call, _op: &Bytes) -> Result<Bytes, Fault> {
//!         let count = txn.get(b"count")?.map_or(0, |kept| kept[0]) + 1;
//!         txn.put("count".into(), vec![count].into());
//!         Ok(vec![count].into())
//!     }
//!
//!     fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
//!         self.0.clone()
//!     }
//! #   fn is_read_only(&self, _: &[u8]) -> bool { false }
//! }
//!
//! let ops = ["add".into(), "add".into()];
//! let count = Scope::named(0, b"count");
//! check::uses(&Counter(Uses::none().write(count)), &ops, 1).expect("it is declared");
//!
//! let wrong = check::uses(&Counter(Uses::none()), &ops, 1).unwrap_err();
//! assert!(matches!(wrong, check::Mistake::Dependent { .. }), "{wrong}");
//! ```
//!
//! Absent on purpose: threads. All that workers may do is done here one after the other, so that what is found is found each time.

use std::sync::Arc;

use quorate_execution::graph::{Conflicts, Graph};
use quorate_state::{Layer, MemorySnapshot, State};

use crate::{Bytes, Call, Fault, KeyPair, Ran, Service, SessionId, Time, Txn, Uses as Declared};

/// How often the operations are gone through, each time in another order.
const ROUNDS: usize = 8;
/// How many of those that follow an operation are tried beside it.
const BESIDE: usize = 16;

/// What is wrong with a service. Operations are named by their index among those that were given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// Two operations are declared not to matter to each other (in this order), and they do.
    #[error(
        "operations {first} and {second}: `uses` declares that {second} need not wait for {first}, and then {differs}"
    )]
    Dependent {
        /// The one that comes first in the agreed order.
        first: usize,
        /// The other.
        second: usize,
        /// What shows it.
        differs: Differs,
    },
    /// `run` and `settle`, one after the other, do not what `execute` does.
    #[error("operation {op}: `run` and `settle` do something else than `execute`")]
    Steps {
        /// Which operation.
        op: usize,
    },
    /// Executed twice on the same state, it does not do the same.
    #[error("operation {op}: it does not follow from the state, the call and the operation alone")]
    Unsteady {
        /// Which operation.
        op: usize,
    },
    /// `is_read_only` is true of it, and it writes.
    #[error("operation {op}: `is_read_only` says that it only reads, and it writes")]
    ReadWrites {
        /// Which operation.
        op: usize,
    },
    /// `is_read_only` is true of it, and `read` answers something else than `execute`.
    #[error("operation {op}: `read` answers something else than `execute`")]
    Read {
        /// Which operation.
        op: usize,
    },
    /// Its result is longer than `result_bytes` says, so that replicas hold more than they should.
    #[error("operation {op}: its result has {has} bytes, and `result_bytes` says {says}")]
    LongResult {
        /// Which operation.
        op: usize,
        /// Bytes of the result.
        has: usize,
        /// What the service says of the operation.
        says: usize,
    },
    /// The session of this operation holds nothing by the word of `uses_at_end`, so that `session_ended` is not called, and that would write: let go of
    /// something, or do what has nothing to do with the session.
    #[error(
        "operation {op}: `uses_at_end` says that its session holds nothing, and `session_ended` would write"
    )]
    EndWrites {
        /// Which operation's session.
        op: usize,
    },
    /// What `uses_at_end` says of a session follows from an operation of another one.
    #[error(
        "operation {other}: `uses_at_end` says something else of the session of operation {op} after it, which is another session"
    )]
    EndLooks {
        /// Which operation's session.
        op: usize,
        /// The operation of another.
        other: usize,
    },
    /// The end of a session and an operation of another one are declared not to matter to each other, and they do.
    #[error(
        "operation {other}: `uses_at_end` declares that the end of the session of operation {op} need not wait for it, and then {differs}"
    )]
    End {
        /// Which operation's session.
        op: usize,
        /// The operation of another.
        other: usize,
        /// What shows it.
        differs: Differs,
    },
    /// The service says that the store failed: there is none here that can.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What is not the same where an operation does not wait for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differs {
    /// The result of this operation, or what its run step leaves to its settle step.
    Result(usize),
    /// What is in the state afterwards, so that replicas have other roots.
    State,
}

impl std::fmt::Display for Differs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Differs::Result(op) => write!(f, "{op} comes to another result"),
            Differs::State => f.write_str("the state is another one"),
        }
    }
}

/// Executes operations of one session in the given order on the genesis state, and then in random orders that [`Service::uses`]
/// allows. At each place it tries those that follow beside the one whose turn it is, as far as they need not wait for it: result
/// and state must be the same whichever goes first.
///
/// It finds what these operations show: give it several that touch the same and that touch neighbouring things, some of them twice. The
/// same seed gives the same orders. An operation is executed some hundred times, a thousand at the most; memory is a few times the state.
///
/// # Errors
/// The first [`Mistake`] that is found.
///
/// # Panics
/// Where the service does.
pub fn uses<S: Service>(service: &S, ops: &[Bytes], seed: u64) -> Result<(), Mistake> {
    let client = KeyPair::from_seed(&[1; 32]).public();
    let call = |at: usize| Call {
        client,
        session: SessionId(1),
        now: Time(at as u64 + 1),
    };
    let calls: Vec<_> = ops
        .iter()
        .enumerate()
        .map(|(at, op)| (call(at), op.clone()))
        .collect();
    uses_by(service, &calls, seed)
}

/// As [`uses`], where it matters who calls: times should rise. Where there are several sessions, their ends are tried as well, each beside operations
/// of others, by what [`Service::uses_at_end`] declares.
///
/// # Errors
/// As [`uses`].
///
/// # Panics
/// Where the service does.
pub fn uses_by<S: Service>(service: &S, ops: &[(Call, Bytes)], seed: u64) -> Result<(), Mistake> {
    let declared = ops.iter().map(|(call, op)| service.uses(call, op));
    let check = Check {
        service,
        ops,
        declared: declared.collect(),
    };
    let genesis = check.genesis()?;
    let mut random = seed;
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..ops.len()).collect();
        let mut state = genesis.clone();
        for at in 0..order.len() {
            let following = at + 1..order.len().min(at + 1 + BESIDE);
            let after = check.alone(&state, order[at])?;
            let ended = check.ended(&after.state, order[at])?;
            for next in &order[following.clone()] {
                check.beside(&state, &after, order[at], *next)?;
                check.end_beside(&after.state, order[at], ended.as_ref(), *next)?;
            }
            // The first round is in order. In others each is late by as much as chance has it.
            let may_wait = round > 0 && coin(&mut random) && !following.is_empty();
            let whole = |at: usize| {
                let [first, second] = [at, at + 1].map(|at| &check.declared[order[at]]);
                freedom(first, second) == Freedom::Whole
            };
            if may_wait && whole(at) {
                order.swap(at, at + 1);
                state = check.after(&state, order[at])?.state;
            } else {
                state = after.state;
            }
        }
    }
    Ok(())
}

/// How far an operation may get before an earlier one is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freedom {
    /// It waits.
    None,
    /// It may run.
    Run,
    /// It may be done.
    Whole,
}

struct Check<'a, S> {
    service: &'a S,
    ops: &'a [(Call, Bytes)],
    declared: Vec<Declared>,
}

type Ground = Arc<MemorySnapshot>;

/// What an operation came to.
#[derive(PartialEq, Eq)]
struct After {
    result: Bytes,
    state: Ground,
}

impl<S: Service> Check<'_, S> {
    fn genesis(&self) -> Result<Ground, Fault> {
        let ground = Ground::default();
        let mut state = State::new(ground.clone());
        let mut txn = state.begin();
        self.service.genesis(&mut txn)?;
        Ok(with(&ground, txn.into_writes()))
    }

    /// What an operation comes to as a whole.
    fn executed(&self, state: &Ground, op: usize) -> Result<(Bytes, Layer), Fault> {
        let (call, bytes) = &self.ops[op];
        let mut state = State::new(state.clone());
        let mut txn = state.begin();
        let result = self.service.execute(&mut txn, call, bytes)?;
        Ok((result, txn.into_writes()))
    }

    fn after(&self, state: &Ground, op: usize) -> Result<After, Fault> {
        let (result, writes) = self.executed(state, op)?;
        let state = with(state, writes);
        Ok(After { result, state })
    }

    /// What the run step of an operation comes to.
    fn ran(&self, state: &Ground, op: usize) -> Result<(Ran, Layer), Fault> {
        let (call, bytes) = &self.ops[op];
        let mut state = State::new(state.clone());
        let mut txn = state.begin();
        let ran = self.service.run(&mut txn, call, bytes)?;
        Ok((ran, txn.into_writes()))
    }

    /// What an operation comes to that has run already, or has nothing to run.
    fn settled(
        &self,
        state: &Ground,
        op: usize,
        ran: Option<(Ran, Layer)>,
    ) -> Result<After, Fault> {
        let (call, bytes) = &self.ops[op];
        let Some((ran, writes)) = ran else {
            return self.after(state, op);
        };
        let mut above = State::new(state.clone());
        let place = above.newest_place();
        let mut txn = above.begin_at(place, writes);
        let result = match ran {
            Ran::Done(result) => result,
            Ran::Settle(ran) => self.service.settle(&mut txn, call, bytes, ran)?,
        };
        let state = with(state, txn.into_writes());
        Ok(After { result, state })
    }

    /// Checks an operation by itself.
    fn alone(&self, state: &Ground, op: usize) -> Result<After, Mistake> {
        let (result, writes) = self.executed(state, op)?;
        let (call, bytes) = &self.ops[op];
        if self.executed(state, op)? != (result.clone(), writes.clone()) {
            return Err(Mistake::Unsteady { op });
        }
        if self.service.is_read_only(bytes) {
            if !writes.is_empty() {
                return Err(Mistake::ReadWrites { op });
            }
            let mut state = State::new(state.clone());
            let mut txn: Txn<'_> = state.begin();
            let reading = self.service.read(&mut txn, call, bytes)?;
            if !txn.writes().is_empty() {
                return Err(Mistake::ReadWrites { op });
            }
            if reading.gather(&txn)? != result {
                return Err(Mistake::Read { op });
            }
        } else {
            let (has, says) = (result.len(), self.service.result_bytes(bytes));
            if has > says {
                return Err(Mistake::LongResult { op, has, says });
            }
        }
        let whole = After {
            result,
            state: with(state, writes),
        };
        if !self.declared[op].only_settles() {
            let ran = self.ran(state, op)?;
            if self.settled(state, op, Some(ran))? != whole {
                return Err(Mistake::Steps { op });
            }
        }
        Ok(whole)
    }

    /// Checks an operation beside one whose turn it is before it. `after`: what that one comes to.
    fn beside(
        &self,
        state: &Ground,
        after: &After,
        first: usize,
        second: usize,
    ) -> Result<(), Mistake> {
        let freedom = freedom(&self.declared[first], &self.declared[second]);
        if freedom == Freedom::None {
            return Ok(());
        }
        let wrong = |differs| {
            Err(Mistake::Dependent {
                first,
                second,
                differs,
            })
        };
        let runs = !self.declared[second].only_settles();
        // Workers read at any time: the first moment and the last must give the same.
        let early = runs.then(|| self.ran(state, second)).transpose()?;
        let late = runs.then(|| self.ran(&after.state, second)).transpose()?;
        match (&early, &late) {
            (Some((early, _)), Some((late, _))) if early != late => {
                return wrong(Differs::Result(second));
            }
            (Some((_, early)), Some((_, late))) if early != late => return wrong(Differs::State),
            _ => {}
        }
        if freedom == Freedom::Run {
            return Ok(());
        }
        let in_turn = self.settled(&after.state, second, late)?;
        let overtaking = self.settled(state, second, early)?;
        if overtaking.result != in_turn.result {
            return wrong(Differs::Result(second));
        }
        let overtaken = self.after(&overtaking.state, first)?;
        if overtaken.result != after.result {
            return wrong(Differs::Result(first));
        }
        if overtaken.state != in_turn.state {
            return wrong(Differs::State);
        }
        Ok(())
    }

    /// What the end of an operation's session touches, by its own word, and what it leaves; nothing where it holds nothing. Of an end in parts it is
    /// the first.
    fn ended(&self, state: &Ground, op: usize) -> Result<Option<(Declared, Ground)>, Mistake> {
        let (call, _) = &self.ops[op];
        let declared = self.declared_at_end(state, op)?;
        let mut above = State::new(state.clone());
        let mut txn = above.begin();
        self.service.session_ended(&mut txn, call)?;
        let writes = txn.into_writes();
        match declared {
            None if !writes.is_empty() => Err(Mistake::EndWrites { op }),
            None => Ok(None),
            Some(declared) => Ok(Some((declared, with(state, writes)))),
        }
    }

    fn declared_at_end(&self, state: &Ground, op: usize) -> Result<Option<Declared>, Fault> {
        let mut above = State::new(state.clone());
        self.service.uses_at_end(&above.begin(), &self.ops[op].0)
    }

    /// Checks the end of a session beside an operation of another one. `ended`: what it comes to.
    fn end_beside(
        &self,
        state: &Ground,
        op: usize,
        ended: Option<&(Declared, Ground)>,
        other: usize,
    ) -> Result<(), Mistake> {
        if self.ops[op].0.session == self.ops[other].0.session {
            // It waits for those.
            return Ok(());
        }
        let after = self.after(state, other)?;
        let declared = self.declared_at_end(&after.state, op)?;
        if declared.as_ref() != ended.map(|(declared, _)| declared) {
            return Err(Mistake::EndLooks { op, other });
        }
        let Some((declared, ended)) = ended else {
            return Ok(());
        };
        if freedom(declared, &self.declared[other]) != Freedom::Whole {
            return Ok(());
        }
        let wrong = |differs| Err(Mistake::End { op, other, differs });
        let behind = self.after(ended, other)?;
        if behind.result != after.result {
            return wrong(Differs::Result(other));
        }
        match self.ended(&after.state, op)? {
            Some((_, ahead)) if ahead == behind.state => Ok(()),
            _ => wrong(Differs::State),
        }
    }
}

/// How far the second may get before the first is done: what replicas take it from says it.
fn freedom(first: &Declared, second: &Declared) -> Freedom {
    let mut graph = Graph::new(Conflicts::Declared, 2);
    graph.insert(first.clone());
    let second = graph.insert(second.clone());
    let mut freedom = Freedom::None;
    while let Some(ready) = graph.take_ready() {
        if ready == second {
            graph.ran(second);
            freedom = Freedom::Run;
        }
    }
    while let Some(settleable) = graph.take_settleable() {
        if settleable == second {
            freedom = Freedom::Whole;
        }
    }
    freedom
}

/// The state with what was written. Entries are shared, not copied.
fn with(state: &Ground, writes: Layer) -> Ground {
    if writes.is_empty() {
        return state.clone();
    }
    let mut after = MemorySnapshot::clone(state);
    for (key, value) in writes {
        match value {
            Some(value) => after.entries.insert(key, value),
            None => after.entries.remove(&key),
        };
    }
    after.into()
}

/// Steele, Lea, Flood 2014: SplitMix64.
fn coin(seed: &mut u64) -> bool {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) & 1 == 1
}

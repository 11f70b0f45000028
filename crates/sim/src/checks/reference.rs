//! One more executor, which runs the agreed batches in order with nothing else around it. Results that clients take and
//! roots that correct replicas announce must be its own.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::{Executor, recoveries};
use quorate_replica::Checkpoints;
use quorate_state::{Layer, MemorySnapshot, State, View};
use quorate_wire::message::{Batch, Request};
use quorate_wire::{ClientId, Digest, ReplicaId, ReplicaKeys, Seq, SessionId};

use super::Failure;
use super::kept::Kept;
use crate::history::Operation;
use crate::service::AnyService;

/// One execution of a request.
#[derive(Debug)]
struct Execution {
    /// How many requests had been executed, this one included.
    place: u64,
    seq: Seq,
    outcome: Bytes,
}

/// The executor, its state, and what it has answered.
#[derive(Debug)]
pub struct Reference {
    executor: Executor<AnyService>,
    state: State,
    snapshot: MemorySnapshot,
    at: Seq,
    checkpoints: Checkpoints,
    /// By request: each execution and its outcome.
    outcomes: BTreeMap<Digest, Vec<Execution>>,
    executions: u64,
    kept: Kept,
    roots: BTreeMap<Seq, Digest>,
    /// Of each replica the number of its last recovery, as the last checkpoint tells it.
    recoveries: Vec<u64>,
    replicas: usize,
}

impl Reference {
    /// In the initial state. `kept_bytes`: what is kept of a session's results.
    pub fn new(
        service: AnyService,
        keys: &ReplicaKeys,
        genesis: &Layer,
        checkpoints: Checkpoints,
        kept_bytes: usize,
    ) -> Reference {
        let (snapshot, _) = MemorySnapshot::default()
            .apply(genesis)
            .expect("an empty tree takes any layer");
        Reference {
            executor: Executor::new(service).keeping(kept_bytes).of_group(keys),
            kept: Kept::new(kept_bytes),
            state: State::new(Arc::new(snapshot.clone())),
            snapshot,
            at: Seq(0),
            checkpoints,
            outcomes: BTreeMap::new(),
            executions: 0,
            roots: BTreeMap::new(),
            recoveries: Vec::new(),
            replicas: match keys {
                ReplicaKeys::Standing { keys, .. } => keys.len(),
                ReplicaKeys::Certified { identities, .. } => identities.len(),
            },
        }
    }

    /// Which results should have been kept.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The last place executed here.
    pub fn at(&self) -> Seq {
        self.at
    }

    /// Executes the next batch.
    pub fn execute(&mut self, batch: &Batch, requests: &[Request]) -> Result<(), Failure> {
        self.at = self.at.next();
        let done = self
            .executor
            .execute(&mut self.state, batch.time, requests)
            .map_err(|fault| Failure::new("reference", fault.to_string()))?;
        for (request, executed) in requests.iter().zip(done) {
            self.executions += 1;
            let is_own = request.session() == SessionId(0);
            if !is_own && self.executor.keeps_result(request) {
                self.kept.on_executed(request, &executed.outcome)?;
            }
            let outcomes = self.outcomes.entry(request.digest()).or_default();
            outcomes.push(Execution {
                place: self.executions,
                seq: self.at,
                outcome: executed.outcome,
            });
        }
        if self
            .checkpoints
            .is_due_after(self.at, requests.iter(), &self.executor)
        {
            self.executor.flush(&mut self.state);
            let layer = self.state.freeze(self.at);
            let (snapshot, root) = self
                .snapshot
                .apply(&layer)
                .map_err(|fault| Failure::new("reference", fault.to_string()))?;
            self.snapshot = snapshot;
            self.state.stored(self.at, Arc::new(self.snapshot.clone()));
            self.roots.insert(self.at, root);
            return self.look_at_recoveries();
        }
        Ok(())
    }

    /// Whoever shows an old statement again: which recovery of a replica was its last never goes back.
    fn look_at_recoveries(&mut self) -> Result<(), Failure> {
        let numbers = recoveries(&self.snapshot, self.replicas)
            .map_err(|fault| Failure::new("reference", fault.to_string()))?;
        let numbers = numbers.unwrap_or_default();
        let mut both = self.recoveries.iter().zip(&numbers);
        if let Some((before, now)) = both.find(|(before, now)| now < before) {
            let what = format!("recovery {before} was a replica's last, and now it is {now}");
            return Err(Failure::new("recoveries are ordered", what));
        }
        self.recoveries = numbers;
        Ok(())
    }

    /// Whether the last checkpoint tells of a replica's recovery with this number, or of a later one; where it is not older than `at`.
    pub fn tells_of(&self, replica: ReplicaId, number: u64, at: Seq) -> bool {
        let newest = self.roots.last_key_value().map(|(seq, _)| *seq);
        let told = self.recoveries.get(usize::from(replica.0));
        newest.unwrap_or_default() < at || told.is_some_and(|told| *told >= number)
    }

    /// The places in the order at which the request was executed with this outcome.
    pub fn places(&self, request: Digest, outcome: &Bytes) -> Vec<u64> {
        let all = self.executions_with(request, outcome);
        all.map(|e| e.place).collect()
    }

    /// The first agreed batch in which the request was executed with this outcome.
    pub fn first_seq(&self, request: Digest, outcome: &Bytes) -> Option<Seq> {
        self.executions_with(request, outcome).map(|e| e.seq).next()
    }

    fn executions_with<'a>(
        &'a self,
        request: Digest,
        outcome: &'a Bytes,
    ) -> impl Iterator<Item = &'a Execution> {
        let all = self.outcomes.get(&request).into_iter().flatten();
        all.filter(move |e| e.outcome == *outcome)
    }

    /// What a read that is not ordered gives in the present state.
    pub fn read(
        &mut self,
        client: ClientId,
        operation: &Operation,
    ) -> Result<Option<Bytes>, Failure> {
        let session = operation.session.unwrap_or_default();
        self.executor
            .read(&mut self.state, client, session, &operation.op, true)
            .map(|told| told.and_then(|(body, _)| body.result()))
            .map_err(|fault| Failure::new("reference", fault.to_string()))
    }

    /// All outcomes of a request, for messages.
    pub fn outcomes(&self, request: Digest) -> usize {
        self.outcomes.get(&request).map_or(0, Vec::len)
    }

    /// A correct replica announces a checkpoint, of a place that was executed here.
    pub fn check_root(&self, server: usize, seq: Seq, root: Digest) -> Result<(), Failure> {
        let own = self.roots.get(&seq);
        if own.is_some_and(|own| *own == root) || seq == Seq(0) {
            return Ok(());
        }
        Err(Failure::new(
            "equal roots",
            format!("server {server} has {root:?} at {seq:?}, the reference has {own:?}"),
        ))
    }

    /// A correct replica that has executed as much has the same entries, and no others.
    pub fn check_state(&mut self, server: usize, state: &View) -> Result<(), Failure> {
        let differ =
            |what: String| Failure::new("equal states", format!("server {server} has {what}"));
        let theirs = state
            .begin()
            .range(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1)
            .map_err(|fault| Failure::new("equal states", fault.to_string()))?;
        let own: BTreeMap<Bytes, Bytes> = self.entries()?.into_iter().collect();
        for (key, value) in &theirs {
            let right = own.get(key);
            if right != Some(value) {
                return Err(differ(format!("{value:?} under {key:?}, not {right:?}")));
            }
        }
        // Of as many with the same values none is missing.
        match theirs.len() == own.len() {
            true => Ok(()),
            false => Err(differ(format!("{} entries of {}", theirs.len(), own.len()))),
        }
    }

    /// Whether the state keeps the file service's own rules.
    pub fn check_files(&mut self) -> Result<(), Failure> {
        quorate_files::check::invariants(&self.state.begin())
            .map_err(|what| Failure::new("files", what))
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.state.get(key).expect("memory does not fail")
    }

    fn entries(&mut self) -> Result<Vec<(Bytes, Bytes)>, Failure> {
        self.executor.flush(&mut self.state);
        self.state
            .begin()
            .range(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1)
            .map_err(|fault| Failure::new("reference", fault.to_string()))
    }
}

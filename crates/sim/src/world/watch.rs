//! What is looked at after each step of a correct server.

use quorate_agreement::durable::Content;
use quorate_agreement::{Record, Rejected};
use quorate_wire::message::Batch;

use super::*;
use crate::server::{CLOCK_BOUND_MS, EPOCH_NS};

impl World {
    /// A message from a replica. What a correct one says, a correct one understands.
    pub(super) fn on_peer(
        &mut self,
        to: usize,
        from: ReplicaId,
        message: PeerMessage,
    ) -> Result<(), Failure> {
        let faulty = self.knobs.adversaries.iter().any(|(id, _)| *id == from);
        let faulty = faulty || self.was_seized(from);
        if faulty || !self.servers[to].is_correct() {
            return self.handle(to, Input::Peer(from, message));
        }
        // The run is repeated with lines, and then it says which message it was.
        let words = match self.trace.has_lines() {
            true => crate::trace::words(&message),
            false => "message".into(),
        };
        let before = self.misunderstood(to);
        self.handle(to, Input::Peer(from, message))?;
        match self.misunderstood(to) > before {
            true => Err(Failure::new(
                "understanding",
                format!("server {to} finds {from:?}'s {words} malformed"),
            )),
            false => Ok(()),
        }
    }

    fn misunderstood(&self, server: usize) -> u64 {
        let replica = self.servers[server].replica.as_ref();
        let of = |reason| replica.and_then(|r| r.rejections().get(&reason)).copied();
        of(Rejected::Malformed).unwrap_or(0) + of(Rejected::BadBatch).unwrap_or(0)
    }

    pub(super) fn look_at_record(&mut self, server: usize, record: &Record) -> Result<(), Failure> {
        let (name, content, executed) = match record {
            Record::PrePrepared(r) => (&r.vote.digest, &r.content, None),
            Record::Committed(r) => (&r.digest, &r.content, Some((r.seq, r.digest))),
            _ => return Ok(()),
        };
        if let Some(Content { batch, requests }) = content {
            self.agreement.on_content(name, batch, requests);
        }
        match executed {
            Some((seq, digest)) => self.on_executed(server, seq, digest),
            None => Ok(()),
        }
    }

    /// What a correct server without a log has executed in this step. One that is far behind may have forgotten it by the end of that; whoever
    /// is first with a place has not, since no checkpoint at it is stable before others have it too.
    pub(super) fn look_at_executed(&mut self, server: usize) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        let Some(replica) = &it.replica else {
            return Ok(());
        };
        let standing = replica.standing();
        let first = it.shown.max(standing.stable.0).0 + 1;
        it.shown = it.shown.max(standing.executed);
        let places = (first..=standing.executed.0).map(Seq);
        let executed = places.filter_map(|seq| Some((seq, replica.executed_at(seq)?)));
        for (seq, (digest, content)) in executed.collect::<Vec<_>>() {
            if let Some(Content { batch, requests }) = content {
                self.agreement.on_content(&digest, &batch, &requests);
            }
            self.on_executed(server, seq, digest)?;
        }
        Ok(())
    }

    fn on_executed(&mut self, server: usize, seq: Seq, digest: Digest) -> Result<(), Failure> {
        self.note(&[5, server as u64, seq.0], || {
            format!("server {server} executes {seq:?} {digest:?}")
        });
        self.agreement.on_executed(server, seq, digest)?;
        self.catch_reference_up()
    }

    pub(super) fn catch_reference_up(&mut self) -> Result<(), Failure> {
        while let Some((batch, requests)) = self.agreement.content(self.reference.at().next()) {
            self.check_time(&batch)?;
            for request in &requests {
                self.validity.on_executed(request)?;
            }
            self.reference.execute(&batch, &requests)?;
        }
        self.check_roots()
    }

    /// No batch is of a time that correct clocks will show only later.
    fn check_time(&self, batch: &Batch) -> Result<(), Failure> {
        let latest = self.now / 1000 + CLOCK_BOUND_MS + self.knobs.skew_ms;
        let latest = EPOCH_NS + latest * 1_000_000 + 1_000_000;
        match batch.time.0 <= latest {
            true => Ok(()),
            false => Err(Failure::new("time", format!("{:?} is to come", batch.time))),
        }
    }

    pub(super) fn check_roots(&mut self) -> Result<(), Failure> {
        let at = self.reference.at();
        let all = std::mem::take(&mut self.announced);
        for (server, seq, root) in all {
            if seq > at {
                self.announced.push((server, seq, root));
            } else {
                self.reference.check_root(server, seq, root)?;
            }
        }
        Ok(())
    }
}

//! What clients ask, and what they are told.

use alloc::sync::Arc;

use quorate_agreement::{INLINE_BYTES, Input as AgreementInput, Now, Ordered, Rejected};
use quorate_execution::{Cached, Executed, Service};
use quorate_state::Fault;
use quorate_wire::message::{
    AuthRequest, ClientMessage, EVERYONE, Outcome, PeerMessage, Read, ReadReply, ReplicaMessage,
    Reply, ReplyBody, Request, Unsigned, Vouchers,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Encode, ReplicaId, RequestNumber, Seq, SessionId, Verified, View};

use crate::clients::ConnectionId;
use crate::io::Output;
use crate::parallel::Parallel;
use crate::reads::ReadAt;
use crate::replica::Replica;
use crate::vouchers::{MAX_RESULT_BYTES, Ready};

/// Bytes of results of reads that are made in one turn: thousands of reads may wait, and each may have a result of a MiB.
const ANSWERED_AT_ONCE: usize = 4 << 20;

/// Whether a client wants the result of a read in full from this replica.
pub(crate) fn wants_all(me: ReplicaId, read: &Read) -> bool {
    read.replier == me || read.replier == EVERYONE
}

impl<S: Service> Replica<S> {
    pub(crate) fn on_client(
        &mut self,
        now: Now,
        connection: ConnectionId,
        message: ClientMessage,
    ) -> Result<(), Fault> {
        match message {
            ClientMessage::Request(m) => {
                self.on_request(now, connection, m, AgreementInput::Request, false)
            }
            ClientMessage::Watch(m) => {
                self.on_request(now, connection, m, AgreementInput::Watch, false)
            }
            ClientMessage::Repeat(m) => {
                self.on_request(now, connection, m, AgreementInput::Request, true)
            }
            ClientMessage::Attach(session) => {
                self.clients.attach(connection, session);
                Ok(())
            }
            ClientMessage::Read(read) => {
                if let Some(client) = self.clients.client(connection) {
                    self.reads.push(client, connection, read);
                }
                Ok(())
            }
            // Links and uptime are the driver's to tell.
            ClientMessage::ReportPlease(_) => Ok(()),
        }
    }

    fn on_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        message: AuthRequest,
        input: fn(Verified<AuthRequest>) -> AgreementInput,
        repeated: bool,
    ) -> Result<(), Fault> {
        let request = &message.request;
        let (client, session, number) = (request.client(), request.session(), request.number());
        if self.clients.client(connection) != Some(client) {
            self.refuse(Rejected::BadAuthentication);
            return Ok(());
        }
        let digest = request.digest();
        // What comes to a backup may have been ordered before, also the first time.
        let may_be_ordered = repeated || !self.agreement.is_leading();
        if may_be_ordered && !self.execute_what_committed(now) {
            return Ok(());
        }
        let cached = match self.transfer.is_idle() {
            true if may_be_ordered => self.cached_or_waiting(request)?,
            true => self.cached(request)?,
            false => Cached::Unknown,
        };
        let tentative = self.tentative.as_ref();
        let tentative =
            tentative.filter(|t| t.requests.iter().any(|k| k.request.digest() == digest));
        let tentative = tentative.map(|t| t.view);
        // A client repeats what it was not answered in time, and seldom: much of that is a flood. A long request comes to all
        // replicas, and to one that others have told what is in it perhaps late.
        let is_short = request.op().len() <= INLINE_BYTES;
        self.refusals += u64::from(is_short && !matches!(cached, Cached::Unknown));
        match cached {
            Cached::Reply(outcome) => {
                let body = ReplyBody::Full(outcome);
                self.send_reply(connection, session, number, body, tentative);
            }
            Cached::TooOld => {
                let body = ReplyBody::Full(Outcome::TooOld(()).to_bytes().into());
                self.send_reply(connection, session, number, body, tentative);
            }
            // Ordered again it would only cost places. Its client wants the whole result from this replica now.
            Cached::AtWork => {
                if repeated {
                    self.clients.remember_repeated(client, session, number);
                }
            }
            Cached::Unknown => {
                if repeated {
                    self.clients.remember_repeated(client, session, number);
                }
                // TLS has authenticated the client at the other end of the connection.
                let taken = self
                    .agreement
                    .take(now, input(Verified::from_link(message)));
                if let Err(reason) = taken {
                    self.refuse(reason);
                }
                // Its client would find out by three repetitions, each time that it tries.
                if taken == Err(Rejected::Unsigned) {
                    let told = ReplicaMessage::Unsigned(Unsigned { session, number });
                    self.out.push_back(Output::Reply(connection, told));
                }
            }
        }
        Ok(())
    }

    /// Whether a request was executed, or is at work.
    fn cached(&mut self, request: &Request) -> Result<Cached, Fault> {
        let (client, session, number) = (request.client(), request.session(), request.number());
        self.executor
            .cached(&mut self.state, client, session, number)
    }

    /// Executes what has committed in this turn so far. A request that is in it would else look as if it had never been ordered: this replica would wait
    /// for it again, in vain, and blame the primary. False where the replica can't go on.
    fn execute_what_committed(&mut self, now: Now) -> bool {
        self.carry_out_all(now);
        !self.failed
    }

    /// As [`Replica::cached`], for a request that came before: it may have been ordered and wait for its execution.
    fn cached_or_waiting(&mut self, request: &Request) -> Result<Cached, Fault> {
        let (cached, digest) = (self.cached(request)?, request.digest());
        let entering = self.parallel.as_ref().and_then(Parallel::entering);
        let mut waiting = self.backlog.iter().chain(entering);
        let waits =
            |batch: &Arc<Ordered>| batch.requests.iter().any(|k| k.request.digest() == digest);
        Ok(match cached {
            Cached::Unknown if waiting.any(waits) => Cached::AtWork,
            cached => cached,
        })
    }

    /// A client's request, passed on by a backup. What has been answered is ordered no more: a faulty replica keeps old requests, and their
    /// clients would pay for them with their turns.
    pub(crate) fn on_forwarded(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: AuthRequest,
    ) -> Result<(), Fault> {
        let request = &message.request;
        let leads = self.agreement.is_leading();
        if leads && !self.execute_what_committed(now) {
            return Ok(());
        }
        if leads && self.transfer.is_idle() && !is_on(Mutant::ReplaysTaken) {
            let cached = self.cached_or_waiting(request)?;
            if !matches!(cached, Cached::Unknown) {
                self.refuse(Rejected::Duplicate);
                return Ok(());
            }
        }
        self.agree(
            now,
            AgreementInput::Peer(from, PeerMessage::Request(message)),
        );
        Ok(())
    }

    /// Answers the reads that wait, when all that was executed has committed: a view change must not take back what somebody
    /// has read, nor must a read miss what it took back for a while. Early ones say what they were read from, and wait for no COMMIT. A state on its way
    /// answers nobody.
    pub(crate) fn answer_reads(&mut self) -> Result<(), Fault> {
        self.reads.has_more = false;
        let Some(at) = self.readable() else {
            return Ok(());
        };
        let early_alone = at.view.is_some() && !is_on(Mutant::ReadsTentative);
        let mut bytes = 0;
        let mut has_entered = false;
        while let Some((connection, read)) = self.reads.first(early_alone).cloned() {
            if self.parallel.is_some() {
                if !self.enter_read(connection, &read, at)? {
                    break;
                }
                self.reads.pop(early_alone);
                has_entered = true;
                continue;
            }
            if bytes >= ANSWERED_AT_ONCE {
                self.reads.has_more = true;
                break;
            }
            self.reads.pop(early_alone);
            let Some(client) = self.clients.client(connection) else {
                continue;
            };
            let (state, session) = (&mut self.state, read.session);
            let in_full = wants_all(self.me, &read);
            let told = self
                .executor
                .read(state, client, session, &read.op, in_full)?;
            // Who calls a write a read gets no answer, and has it ordered.
            if let Some((body, length)) = told {
                // Also where it only vouches: all of it may have been hashed for that. And what was read to say little.
                bytes += length.max(S::work(&read.op));
                self.reply_to_read(connection, &read, body, at);
            }
        }
        match has_entered {
            true => self.advance(),
            false => Ok(()),
        }
    }

    /// What can be read now, if anything can.
    fn readable(&self) -> Option<ReadAt> {
        if !self.transfer.is_idle() {
            return None;
        }
        // What is read is what some batch left.
        if self
            .parallel
            .as_ref()
            .is_some_and(|p| !p.is_between_batches())
        {
            return None;
        }
        let tentative = self.tentative.as_ref();
        let seq = tentative.map_or_else(|| self.entered(), |t| t.seq);
        let view = tentative.map(|t| t.view);
        let is_whole = seq >= self.agreement.reads_from() || is_on(Mutant::ReadsTentative);
        is_whole.then_some(ReadAt { seq, view })
    }

    pub(crate) fn reply_to_read(
        &mut self,
        to: ConnectionId,
        read: &Read,
        body: ReplyBody,
        at: ReadAt,
    ) {
        let tentative = at.view.filter(|_| !is_on(Mutant::ReadsTentative));
        let reply = self.say(read.session, read.number, body, tentative);
        let answer = ReadReply { reply, at: at.seq };
        self.out
            .push_back(Output::Reply(to, ReplicaMessage::Read(answer)));
    }

    /// Sends a result in full if this replica was named to. `tentative` is the view of a batch
    /// that has only prepared.
    pub(crate) fn reply(
        &mut self,
        executed: Executed,
        ordered: &Ordered,
        replier: ReplicaId,
        tentative: Option<View>,
    ) {
        let Executed {
            client,
            session,
            number,
            outcome,
        } = executed;
        let repeated = self.clients.take_repeated(client, session, number);
        let connections = self.clients.route(client, session);
        if connections.is_empty() {
            return;
        }
        let together = ordered.sessions >= self.vouched_from
            && !repeated
            && replier != EVERYONE
            && session != SessionId(0)
            && outcome.len() <= MAX_RESULT_BYTES;
        let named = replier == self.me || replier == EVERYONE;
        let body = ReplyBody::of(outcome, repeated || named);
        if !together {
            for connection in connections {
                self.send_reply(connection, session, number, body.clone(), tentative);
            }
            return;
        }
        let reply = self.say(session, number, body, tentative);
        if replier == self.me {
            let ready = self.bundles.hold(ordered.seq, connections, reply);
            self.send_vouched(ready);
            return;
        }
        // Of several links the newest: the client has given up the others, whose end was not noticed yet.
        let newest = connections.last().and_then(|c| self.clients.key(*c));
        if let Some(key) = newest {
            self.bundles.vouch(replier, ordered.seq, &reply, key);
        }
    }

    fn say(
        &self,
        session: SessionId,
        number: RequestNumber,
        body: ReplyBody,
        tentative: Option<View>,
    ) -> Reply {
        Reply {
            session,
            number,
            view: tentative.unwrap_or_else(|| self.agreement.standing().view),
            tentative: tentative.is_some(),
            body,
        }
    }

    fn send_reply(
        &mut self,
        to: ConnectionId,
        session: SessionId,
        number: RequestNumber,
        body: ReplyBody,
        tentative: Option<View>,
    ) {
        let reply = ReplicaMessage::Reply(self.say(session, number, body, tentative));
        self.out.push_back(Output::Reply(to, reply));
    }

    /// Another replica's word for its replies.
    pub(crate) fn on_vouchers(&mut self, from: ReplicaId, message: Vouchers) {
        let done = self.replied_to();
        let ready = self.bundles.hear(from, message, done);
        self.send_vouched(ready);
    }

    /// The last place whose requests all have their replies.
    fn replied_to(&self) -> Seq {
        match (&self.parallel, &self.tentative) {
            (None, Some(tentative)) => tentative.seq,
            _ => self.applied,
        }
    }

    /// Sends the vouchers of this turn, and what has waited for those of others long enough.
    pub(crate) fn send_bundles(&mut self) {
        let late = self.bundles.clean(self.replied_to());
        self.send_vouched(late);
        for (to, vouchers) in self.bundles.take_leaving() {
            let message = PeerMessage::Vouchers(vouchers);
            self.out.push_back(Output::Send(to, message));
        }
    }

    fn send_vouched(&mut self, ready: impl IntoIterator<Item = Ready>) {
        for (to, vouched) in ready {
            for connection in to {
                let message = ReplicaMessage::Vouched(vouched.clone());
                self.out.push_back(Output::Reply(connection, message));
            }
        }
    }
}

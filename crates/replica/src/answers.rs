//! What clients ask, and what they are told.

use bytes::Bytes;
use quorate_agreement::{Input as AgreementInput, Now, Rejected};
use quorate_execution::{Cached, Executed, Service};
use quorate_state::Fault;
use quorate_wire::message::{
    AuthRequest, ClientMessage, EVERYONE, Outcome, Read, ReplicaMessage, Reply, ReplyBody,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Encode, ReplicaId, RequestNumber, SessionId, Verified, View};

use crate::clients::ConnectionId;
use crate::io::Output;
use crate::replica::Replica;

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
                self.reads.push(connection, read);
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
            *self
                .rejections
                .entry(Rejected::BadAuthentication)
                .or_default() += 1;
            return Ok(());
        }
        let cached = match self.transfer.is_idle() {
            true => self
                .executor
                .cached(&mut self.state, client, session, number)?,
            false => Cached::Unknown,
        };
        let digest = request.digest();
        let tentative = self.tentative.as_ref();
        let tentative =
            tentative.filter(|t| t.requests.iter().any(|k| k.request.digest() == digest));
        let tentative = tentative.map(|t| t.view);
        match cached {
            Cached::Reply(outcome) => {
                let body = ReplyBody::Full(outcome);
                self.send_reply(connection, session, number, body, tentative);
            }
            Cached::TooOld => {
                let body = ReplyBody::Full(Outcome::TooOld(()).to_bytes().into());
                self.send_reply(connection, session, number, body, tentative);
            }
            Cached::Unknown => {
                if repeated {
                    self.clients.remember_repeated(client, session, number);
                }
                // TLS has authenticated the client at the other end of the connection.
                self.agree(now, input(Verified::from_link(message)));
            }
        }
        Ok(())
    }

    /// Answers the reads that wait, when all that was executed has committed: a view change must not take back what somebody
    /// has read, nor must a read miss what it took back for a while. A state on its way answers nobody.
    pub(crate) fn answer_reads(&mut self) -> Result<(), Fault> {
        if self.entered() < self.agreement.reads_from() && !is_on(Mutant::ReadsTentative) {
            return Ok(());
        }
        if let Some(parallel) = &self.parallel {
            if !parallel.is_between_batches() {
                return Ok(());
            }
            let mut has_any = false;
            while self.tentative.is_none()
                && self.transfer.is_idle()
                && let Some((connection, read)) = self.reads.first().cloned()
                && self.enter_read(connection, &read)?
            {
                self.reads.pop();
                has_any = true;
            }
            return if has_any { self.advance() } else { Ok(()) };
        }
        let early = is_on(Mutant::ReadsTentative);
        while (self.tentative.is_none() || early) && self.transfer.is_idle() {
            let Some((connection, read)) = self.reads.pop() else {
                return Ok(());
            };
            let Some(client) = self.clients.client(connection) else {
                continue;
            };
            let (state, session) = (&mut self.state, read.session);
            let outcome = self.executor.read(state, client, session, &read.op)?;
            // Who calls a write a read gets no answer, and has it ordered.
            if let Some(outcome) = outcome {
                self.reply_to_read(connection, &read, outcome);
            }
        }
        Ok(())
    }

    pub(crate) fn reply_to_read(&mut self, to: ConnectionId, read: &Read, outcome: Bytes) {
        let body = self.body(outcome, read.replier == self.me || read.replier == EVERYONE);
        let reply = ReplicaMessage::Read(Reply {
            session: read.session,
            number: read.number,
            view: self.agreement.standing().view,
            tentative: false,
            body,
        });
        self.out.push_back(Output::Reply(to, reply));
    }

    fn body(&self, outcome: Bytes, in_full: bool) -> ReplyBody {
        let full = ReplyBody::Full(outcome);
        match in_full {
            true => full,
            false => ReplyBody::Digest(full.digest()),
        }
    }

    /// Sends a result in full if this replica was named to. `tentative` is the view of a batch
    /// that has only prepared.
    pub(crate) fn reply(
        &mut self,
        executed: Executed,
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
        let named = replier == self.me || replier == EVERYONE;
        let body = self.body(outcome, repeated || named);
        for connection in connections {
            self.send_reply(connection, session, number, body.clone(), tentative);
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
        let view = tentative.unwrap_or_else(|| self.agreement.standing().view);
        let reply = ReplicaMessage::Reply(Reply {
            session,
            number,
            view,
            tentative: tentative.is_some(),
            body,
        });
        self.out.push_back(Output::Reply(to, reply));
    }
}

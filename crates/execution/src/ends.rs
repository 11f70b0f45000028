//! Sessions end: they are closed, make room for another one of their client, or their leases are over. An ended session is gone at once,
//! with its replies; what the service holds for it goes with the operations that follow, a part with each.
//!
//! What ends, and what is let go of, is known before a request is executed ([`Executor::ends`]): who executes operations beside each
//! other asks what has to be done before that.

use alloc::vec::Vec;

use quorate_state::{Fault, State, Txn};
use quorate_wire::message::session::SESSION_LEASE_MS;
use quorate_wire::message::{Control, Request};
use quorate_wire::{ClientId, Decode, SessionId, Time};

use crate::executor::Executor;
use crate::graph::Uses;
use crate::service::{Call, Rest, Service};
use crate::sessions::{self, Clock, SESSIONS_PER_CLIENT, Session};

/// Leases are looked at once in this much agreed time.
const SWEEP_NS: u64 = 1_000_000_000;
/// How many leases are looked at then.
const LOOKED_AT_ONCE: usize = 1024;
/// For how many ended sessions the service lets go of all with one operation.
const ENDED_AT_ONCE: u64 = 4;

/// The sessions whose leases are over, of those that were looked at.
#[derive(Debug)]
pub(crate) struct Sweep {
    expired: Vec<(SessionId, ClientId)>,
    /// Up to where was looked; 0 if to the end.
    looked_at: SessionId,
}

/// Which sessions end before a request is executed, and with it.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Where leases are looked at.
    pub sweep: Option<Sweep>,
    /// The one that the request closes, or that makes room.
    by_request: Option<SessionId>,
}

impl Ends {
    /// All of them.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let expired = self.sweep.iter().flat_map(|sweep| &sweep.expired);
        expired.map(|(id, _)| *id).chain(self.by_request)
    }
}

impl<S: Service> Executor<S> {
    /// What ends with the next request, which is executed at this time; `is_first`: whether it is the first of its batch.
    pub(crate) fn ends(
        &mut self,
        txn: &Txn<'_>,
        clock: &Clock,
        now: Time,
        (is_first, request): (bool, &Request),
    ) -> Result<Ends, Fault> {
        let sweep = self.sweep(txn, clock, now, is_first)?;
        let by_request = match request.session() {
            SessionId(0) => self.ends_by(txn, now, request, sweep.as_ref())?,
            _ => None,
        };
        Ok(Ends { sweep, by_request })
    }

    fn ends_by(
        &mut self,
        txn: &Txn<'_>,
        now: Time,
        request: &Request,
        sweep: Option<&Sweep>,
    ) -> Result<Option<SessionId>, Fault> {
        match Control::from_bytes(request.op().clone()) {
            Ok(Control::Open(())) => {
                let mut open = self.table.of_client(txn, &request.client())?;
                // Those go first.
                let expired = |id: SessionId| {
                    let mut all = sweep.iter().flat_map(|sweep| &sweep.expired);
                    all.any(|(other, _)| *other == id)
                };
                open.retain(|(id, _)| !expired(*id));
                let is_there = |(_, s): &(_, Session)| s.nonce == request.number().0;
                match open.iter().any(is_there) {
                    true => Ok(None),
                    false => Ok(makes_room(&open, now)),
                }
            }
            Ok(Control::Close(id)) => {
                let is_own = self.table.owner(txn, id)? == Some(request.client());
                Ok(is_own.then_some(id))
            }
            Ok(Control::Recover(_)) | Err(_) => Ok(None),
        }
    }

    /// What is touched where the service lets go of what ended sessions hold, before the next request. To be asked when no operation
    /// of a session that ends is at work.
    pub(crate) fn touched(
        &self,
        txn: &Txn<'_>,
        clock: &Clock,
        now: Time,
        sweep: Option<&Sweep>,
    ) -> Result<Vec<Uses>, Fault> {
        let most = ENDED_AT_ONCE.min(clock.ending) as usize;
        let mut all = match most {
            0 => Vec::new(),
            most => sessions::ending(txn, most)?,
        };
        // Only some of them have their turn at once; which, is not worth the search.
        all.extend(sweep.iter().flat_map(|sweep| &sweep.expired));
        let uses = all.into_iter().map(|(session, client)| {
            let call = Call {
                client,
                session,
                now,
            };
            self.service.uses_at_end(txn, &call)
        });
        uses.filter_map(Result::transpose).collect()
    }

    /// Ends those whose leases are over, and lets go of some of what ended sessions held: what comes before a request at this time.
    pub(crate) fn end_before(
        &mut self,
        state: &mut State,
        now: Time,
        sweep: Option<Sweep>,
    ) -> Result<(), Fault> {
        let mut txn = state.begin();
        let mut clock = self.table.clock(&txn)?;
        self.end_some(&mut txn, &mut clock, now, sweep)?;
        txn.commit();
        self.table.set_clock(clock);
        Ok(())
    }

    /// The same in a transaction.
    pub(crate) fn end_some(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut Clock,
        now: Time,
        sweep: Option<Sweep>,
    ) -> Result<(), Fault> {
        clock.last = now;
        if let Some(Sweep { expired, looked_at }) = sweep {
            clock.looked_at = looked_at;
            for (id, client) in expired {
                self.end(txn, clock, id, &client)?;
            }
        }
        self.let_go(txn, clock)
    }

    /// Ends a session: nobody can use it any more. What the service holds for it goes with the operations that follow, a part
    /// with each: there may be much of it, and many sessions may end at once.
    pub(crate) fn end(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut Clock,
        id: SessionId,
        client: &ClientId,
    ) -> Result<(), Fault> {
        let call = Call {
            client: *client,
            session: id,
            now: clock.last,
        };
        let holds = self.service.uses_at_end(txn, &call)?.is_some();
        self.table.remove(txn, id, client)?;
        if holds {
            sessions::add_ending(txn, id, client);
            clock.ending += 1;
        }
        Ok(())
    }

    /// Lets go of some of what ended sessions held.
    fn let_go(&mut self, txn: &mut Txn<'_>, clock: &mut Clock) -> Result<(), Fault> {
        for _ in 0..ENDED_AT_ONCE.min(clock.ending) {
            let first = sessions::ending(txn, 1)?.pop();
            let (session, client) = first.ok_or_else(sessions::none_is_ending)?;
            let call = Call {
                client,
                session,
                now: clock.last,
            };
            // Where the part before was the last, the service did not know it yet, and nothing was waited for: so it is not called.
            let holds = self.service.uses_at_end(txn, &call)?.is_some();
            if holds && self.service.session_ended(txn, &call)? == Rest::More {
                break;
            }
            sessions::remove_ending(txn, session);
            clock.ending -= 1;
        }
        Ok(())
    }

    /// Looks at leases, once in a while. A round over all sessions takes as many sweeps as it must.
    pub(crate) fn sweep(
        &self,
        txn: &Txn<'_>,
        clock: &Clock,
        now: Time,
        is_first: bool,
    ) -> Result<Option<Sweep>, Fault> {
        if !is_first || clock.last.0 / SWEEP_NS == now.0 / SWEEP_NS {
            return Ok(None);
        }
        let some = self.table.after(txn, clock.looked_at, LOOKED_AT_ONCE)?;
        let last = some.last().filter(|_| some.len() == LOOKED_AT_ONCE);
        let looked_at = last.map_or(SessionId(0), |(id, _)| *id);
        let expired = some.into_iter().filter(|(_, s)| is_expired(s, now));
        let expired = expired.map(|(id, session)| (id, session.client));
        Ok(Some(Sweep {
            expired: expired.collect(),
            looked_at,
        }))
    }
}

const LEASE_NS: u64 = SESSION_LEASE_MS * 1_000_000;

fn is_expired(session: &Session, now: Time) -> bool {
    is_silent(session, now, LEASE_NS)
}

/// Whether nothing has been heard of it for longer than so many nanoseconds.
fn is_silent(session: &Session, now: Time, longest: u64) -> bool {
    now.0.saturating_sub(session.active.0) > longest
}

/// Which of a client's sessions makes room for one more. Those come first whose clients are gone: who is there says so three times in a lease. Then those that nobody
/// has used: old openings may be shown again by anybody who has seen them, and then there is a session that nobody knows of.
pub(crate) fn makes_room(open: &[(SessionId, Session)], now: Time) -> Option<SessionId> {
    if open.len() < SESSIONS_PER_CLIENT {
        return None;
    }
    let is_there = |session: &Session| !is_silent(session, now, LEASE_NS / 3 * 2);
    let least = open
        .iter()
        .min_by_key(|(id, s)| (is_there(s), s.is_used, s.active, *id));
    least.map(|(id, _)| *id)
}

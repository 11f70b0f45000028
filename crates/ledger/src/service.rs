//! The service: one function for each operation.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_execution::graph::Uses;
use quorate_execution::{Call, Rest, Service};
use quorate_state::{Fault, Txn};
use quorate_wire::codec::Encode;
use quorate_wire::{ClientId, Time};

use crate::op::{
    Begin, Begun, Ended, Epoch, Intention, Key, Keys, LEASES, Listed, MAX_EPOCHS,
    MAX_EPOCHS_OF_CLIENT, MAX_HELD, MAX_INSTANCES, MAX_INSTANCES_OF_CLIENT, MAX_INTENTS,
    MAX_NAME_BYTES, MAX_RECORD_BYTES, MAX_TOLD, MAX_VALUE_BYTES, MAX_VALUES, Op, Open, Put,
    Refused, Register, Reply, TakeOver, Value,
};
use crate::records::{
    COUNTERS, Counters, EPOCHS, HELD, HOLDERS, Holder, INTENTS, Intent, Router, VALUES, get, key,
    number, of_epoch, put, read, routers, under,
};

/// The service of a coordinator's group.
#[derive(Clone, Debug)]
pub struct Ledger {
    members: BTreeSet<ClientId>,
}

/// A refusal undoes all that its operation wrote.
type Outcome = Result<Result<Reply, Refused>, Fault>;

/// Gives a refusal to the caller, as `?` gives a fault.
macro_rules! granted {
    ($outcome:expr) => {
        match $outcome {
            Ok(value) => value,
            Err(refused) => return Ok(Err(refused)),
        }
    };
}

impl Ledger {
    /// A service for clients with these keys.
    pub fn new(members: impl IntoIterator<Item = ClientId>) -> Ledger {
        let members = members.into_iter().collect();
        Ledger { members }
    }

    fn act(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Outcome {
        if !self.members.contains(&call.client) {
            return Ok(Err(Refused::NotAMember(())));
        }
        let Ok(op) = Op::read(op.clone()) else {
            return Ok(Err(Refused::Malformed(())));
        };
        match op {
            Op::Register(register) => begin_epoch(txn, call, &register),
            Op::Renew(epoch) => renew(txn, call, epoch),
            Op::Hold(keys) => hold(txn, call, keys),
            Op::Release(keys) => release(txn, call, &keys),
            Op::Begin(begin) => begin_intent(txn, call, begin),
            Op::End(ended) => end_intent(txn, call, &ended),
            Op::TakeOver(take) => take_over(txn, call, &take),
            Op::Fenced(epoch) => fenced(txn, call, epoch),
            Op::Leave(epoch) => leave(txn, call, epoch),
            Op::Open(open) => tell_open(txn, &open),
            Op::Put(new) => replace(txn, new),
            Op::Get(name) => Ok(Ok(Reply::Value(value(txn, &name)?))),
            Op::List(()) => list(txn),
        }
    }
}

impl Service for Ledger {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        let none = Counters {
            epoch: 0,
            intent: 0,
        };
        put(txn, COUNTERS.into(), &none);
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        matches!(op.first(), Some(10 | 12 | 13))
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let reply = self.act(txn, call, op)?.unwrap_or_else(|refused| {
            txn.rollback();
            Reply::Refused(refused)
        });
        Ok(reply.to_bytes().into())
    }

    /// Epochs go by their leases, not by sessions: a router that has lost its session may still be at work.
    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses_at_end(&self, _txn: &Txn<'_>, _call: &Call) -> Result<Option<Uses>, Fault> {
        Ok(None)
    }
}

fn after(now: Time, lease: u32) -> Time {
    Time(now.0.saturating_add(u64::from(lease) * 1_000_000))
}

/// The next number: an epoch's or an intention's.
fn next(txn: &mut Txn<'_>, of: fn(&mut Counters) -> &mut u64) -> Result<u64, Fault> {
    let mut counters = get(txn, COUNTERS)?.unwrap_or(Counters {
        epoch: 0,
        intent: 0,
    });
    let number = of(&mut counters);
    *number = number.saturating_add(1);
    let number = *number;
    put(txn, COUNTERS.into(), &counters);
    Ok(number)
}

/// An epoch of the caller's.
fn router(txn: &Txn<'_>, call: &Call, epoch: Epoch) -> Result<Result<Router, Refused>, Fault> {
    let found: Option<Router> = get(txn, &of_epoch(EPOCHS, epoch, &[]))?;
    let own = found.filter(|router| router.client == call.client);
    Ok(own.ok_or(Refused::NoEpoch(())))
}

fn save(txn: &mut Txn<'_>, epoch: Epoch, router: &Router) {
    put(txn, of_epoch(EPOCHS, epoch, &[]), router);
}

fn begin_epoch(txn: &mut Txn<'_>, call: &Call, register: &Register) -> Outcome {
    if !LEASES.contains(&register.lease) {
        return Ok(Err(Refused::Malformed(())));
    }
    let is_its = |(_, router): &(Epoch, Router)| {
        router.client == call.client && router.instance == register.instance
    };
    let (former, others): (Vec<_>, Vec<_>) = routers(txn)?.into_iter().partition(is_its);
    let last = former
        .last()
        .map(|(epoch, router)| (*epoch, router.clone()));
    // Nobody takes over but who has a place. So no router is kept out by its own former lives: one of them stays, and stands in for the rest.
    if !has_room(&others, usize::from(last.is_some()), &call.client) {
        return Ok(Err(Refused::TooMany(())));
    }
    if let Some((last, router)) = last {
        let is_one = former.len() == 1;
        // Several become one under a number that nothing names which is still on its way.
        let heir = match is_one {
            true => last,
            false => next(txn, |counters| &mut counters.epoch)?,
        };
        let mut router = match is_one {
            true => router,
            false => Router {
                held: 0,
                open: 0,
                ancestors: Vec::new(),
                ..router
            },
        };
        router.expires = Time(0);
        for (epoch, older) in former.into_iter().filter(|_| !is_one) {
            inherit(txn, epoch, &older, heir, &mut router)?;
        }
        if router.ancestors.len() > MAX_ANCESTORS {
            return Ok(Err(Refused::TooMany(())));
        }
        save(txn, heir, &router);
    }
    let epoch = next(txn, |counters| &mut counters.epoch)?;
    let router = Router {
        client: call.client,
        instance: register.instance,
        lease: register.lease,
        expires: after(call.now, register.lease),
        held: 0,
        open: 0,
        ancestors: Vec::new(),
    };
    save(txn, epoch, &router);
    let ancestors = Vec::new();
    Ok(Ok(Reply::Begun(Begun { epoch, ancestors })))
}

/// Whether there may be one more router beside others, of which `former` epochs are there already. Routers are counted, not epochs: what
/// one takes over is in more epochs of its own for a while.
fn has_room(others: &[(Epoch, Router)], former: usize, client: &ClientId) -> bool {
    let all = others.iter().map(|(_, router)| router);
    let instances: BTreeSet<_> = all.clone().map(|it| (it.client, it.instance)).collect();
    let own_instances = instances.iter().filter(|(of, _)| of == client).count();
    let own = all.filter(|it| it.client == *client).count();
    instances.len() < MAX_INSTANCES
        && own_instances < MAX_INSTANCES_OF_CLIENT
        && others.len() + former < MAX_EPOCHS
        && own + former < MAX_EPOCHS_OF_CLIENT
}

fn renew(txn: &mut Txn<'_>, call: &Call, epoch: Epoch) -> Outcome {
    let mut router = granted!(router(txn, call, epoch)?);
    router.expires = after(call.now, router.lease);
    save(txn, epoch, &router);
    let all = routers(txn)?;
    let dead = |(other, router): &(Epoch, Router)| *other != epoch && router.expires < call.now;
    let dead = all.iter().filter(|entry| dead(entry));
    Ok(Ok(Reply::Renewed(dead.map(|(epoch, _)| *epoch).collect())))
}

fn holder(txn: &Txn<'_>, held: &Key) -> Result<Option<Holder>, Fault> {
    get(txn, &key(HOLDERS, &[held]))
}

fn set_holder(txn: &mut Txn<'_>, held: &Key, holder: &Holder) {
    put(txn, key(HOLDERS, &[held]), holder);
}

/// Lets go of a key where nothing holds it any more.
fn settle_key(txn: &mut Txn<'_>, held: &Key, holder: &Holder, router: &mut Router) {
    if holder.kept || holder.intents > 0 {
        return set_holder(txn, held, holder);
    }
    txn.delete(key(HOLDERS, &[held]));
    txn.delete(of_epoch(HELD, holder.epoch, held));
    router.held = router.held.saturating_sub(1);
}

fn hold(txn: &mut Txn<'_>, call: &Call, asked: Keys) -> Outcome {
    let mut router = granted!(router(txn, call, asked.epoch)?);
    for held in &asked.keys {
        let mut found = holder(txn, held)?.unwrap_or(Holder {
            epoch: 0,
            kept: false,
            intents: 0,
        });
        match found.epoch {
            0 => {
                if router.held >= MAX_HELD {
                    return Ok(Err(Refused::TooMany(())));
                }
                router.held += 1;
                txn.put(of_epoch(HELD, asked.epoch, held), Bytes::new());
            }
            epoch if epoch == asked.epoch => {}
            epoch => return Ok(Err(Refused::Held(epoch))),
        }
        (found.epoch, found.kept) = (asked.epoch, true);
        set_holder(txn, held, &found);
    }
    save(txn, asked.epoch, &router);
    Ok(Ok(Reply::Done(())))
}

fn release(txn: &mut Txn<'_>, call: &Call, asked: &Keys) -> Outcome {
    let mut router = granted!(router(txn, call, asked.epoch)?);
    for held in &asked.keys {
        if let Some(mut found) = holder(txn, held)?.filter(|found| found.epoch == asked.epoch) {
            found.kept = false;
            settle_key(txn, held, &found, &mut router);
        }
    }
    save(txn, asked.epoch, &router);
    Ok(Ok(Reply::Done(())))
}

fn begin_intent(txn: &mut Txn<'_>, call: &Call, begin: Begin) -> Outcome {
    let mut router = granted!(router(txn, call, begin.epoch)?);
    if begin.record.len() > MAX_RECORD_BYTES {
        return Ok(Err(Refused::Malformed(())));
    }
    if router.open >= MAX_INTENTS {
        return Ok(Err(Refused::TooMany(())));
    }
    for held in &begin.keys {
        match holder(txn, held)? {
            Some(mut found) if found.epoch == begin.epoch => {
                // So high it is in a damaged state alone: what is open at a time is bounded.
                found.intents = found.intents.saturating_add(1);
                set_holder(txn, held, &found);
            }
            _ => return Ok(Err(Refused::NotHeld(()))),
        }
    }
    router.open += 1;
    save(txn, begin.epoch, &router);
    let number = next(txn, |counters| &mut counters.intent)?;
    let intent = Intent {
        keys: begin.keys,
        record: begin.record,
    };
    let at = of_epoch(INTENTS, begin.epoch, &number.to_be_bytes());
    put(txn, at, &intent);
    Ok(Ok(Reply::Number(number)))
}

fn end_intent(txn: &mut Txn<'_>, call: &Call, ended: &Ended) -> Outcome {
    let mut router = granted!(router(txn, call, ended.epoch)?);
    let at = of_epoch(INTENTS, ended.epoch, &ended.number.to_be_bytes());
    let Some(intent) = get::<Intent>(txn, &at)? else {
        return Ok(Ok(Reply::Done(())));
    };
    for held in &intent.keys {
        if let Some(mut found) = holder(txn, held)? {
            found.intents = found.intents.saturating_sub(1);
            settle_key(txn, held, &found, &mut router);
        }
    }
    txn.delete(at);
    router.open = router.open.saturating_sub(1);
    save(txn, ended.epoch, &router);
    Ok(Ok(Reply::Done(())))
}

fn take_over(txn: &mut Txn<'_>, call: &Call, take: &TakeOver) -> Outcome {
    let by = granted!(router(txn, call, take.by)?);
    let mut heir = Router {
        expires: after(call.now, by.lease),
        held: 0,
        open: 0,
        ancestors: Vec::new(),
        ..by
    };
    let new = next(txn, |counters| &mut counters.epoch)?;
    let dead: BTreeSet<Epoch> = take.dead.iter().copied().collect();
    if dead.is_empty() || dead.contains(&take.by) {
        return Ok(Err(Refused::Malformed(())));
    }
    for epoch in dead {
        let Some(router) = get::<Router>(txn, &of_epoch(EPOCHS, epoch, &[]))? else {
            return Ok(Err(Refused::NoEpoch(())));
        };
        if router.expires >= call.now {
            return Ok(Err(Refused::Alive(epoch)));
        }
        inherit(txn, epoch, &router, new, &mut heir)?;
    }
    let ancestors = heir.ancestors.clone();
    if heir.ancestors.len() > MAX_ANCESTORS {
        return Ok(Err(Refused::TooMany(())));
    }
    save(txn, new, &heir);
    Ok(Ok(Reply::Begun(Begun {
        epoch: new,
        ancestors,
    })))
}

/// The most epochs that one stands in for: so many times routers may die in the midst of taking over, one after the other.
const MAX_ANCESTORS: usize = 4096;

/// Moves what is under way in an epoch to another; what it only held is free.
fn inherit(
    txn: &mut Txn<'_>,
    epoch: Epoch,
    router: &Router,
    new: Epoch,
    heir: &mut Router,
) -> Result<(), Fault> {
    for (at, _) in under(txn, &of_epoch(HELD, epoch, &[]), None, router.held as usize)? {
        txn.delete(at.clone());
        let Some(Ok(held)) = at.get(9..).map(Key::try_from) else {
            continue;
        };
        let Some(found) = holder(txn, &held)? else {
            continue;
        };
        if found.intents == 0 {
            txn.delete(key(HOLDERS, &[&held]));
            continue;
        }
        let moved = Holder {
            epoch: new,
            kept: false,
            ..found
        };
        set_holder(txn, &held, &moved);
        txn.put(of_epoch(HELD, new, &held), Bytes::new());
        heir.held += 1;
    }
    let intents = of_epoch(INTENTS, epoch, &[]);
    for (at, kept) in under(txn, &intents, None, router.open as usize)? {
        txn.delete(at.clone());
        txn.put(
            of_epoch(INTENTS, new, at.get(9..).unwrap_or_default()),
            kept,
        );
        heir.open += 1;
    }
    heir.ancestors.extend(&router.ancestors);
    heir.ancestors.push(epoch);
    txn.delete(of_epoch(EPOCHS, epoch, &[]));
    Ok(())
}

fn fenced(txn: &mut Txn<'_>, call: &Call, epoch: Epoch) -> Outcome {
    let mut router = granted!(router(txn, call, epoch)?);
    router.ancestors.clear();
    save(txn, epoch, &router);
    Ok(Ok(Reply::Done(())))
}

fn leave(txn: &mut Txn<'_>, call: &Call, epoch: Epoch) -> Outcome {
    let router = granted!(router(txn, call, epoch)?);
    if router.open > 0 || !router.ancestors.is_empty() {
        return Ok(Err(Refused::UnderWay(())));
    }
    for (at, _) in under(txn, &of_epoch(HELD, epoch, &[]), None, router.held as usize)? {
        txn.delete(key(HOLDERS, &[at.get(9..).unwrap_or_default()]));
        txn.delete(at);
    }
    txn.delete(of_epoch(EPOCHS, epoch, &[]));
    Ok(Ok(Reply::Done(())))
}

fn tell_open(txn: &Txn<'_>, open: &Open) -> Outcome {
    let prefix = of_epoch(INTENTS, open.epoch, &[]);
    let after = of_epoch(INTENTS, open.epoch, &open.after.to_be_bytes());
    let told = |(at, kept): (Bytes, Bytes)| {
        let (number, Intent { record, .. }) = (number(&at, 9)?, read(&at, kept)?);
        Ok(Intention { number, record })
    };
    let found = under(txn, &prefix, Some(&after), MAX_TOLD)?;
    let told: Result<_, Fault> = found.into_iter().map(told).collect();
    Ok(Ok(Reply::Open(told?)))
}

fn value(txn: &Txn<'_>, name: &[u8]) -> Result<Value, Fault> {
    let none = Value {
        version: 0,
        value: Bytes::new(),
    };
    if name.len() > MAX_NAME_BYTES {
        return Ok(none);
    }
    Ok(get(txn, &key(VALUES, &[name]))?.unwrap_or(none))
}

fn replace(txn: &mut Txn<'_>, new: Put) -> Outcome {
    if new.name.len() > MAX_NAME_BYTES || new.value.len() > MAX_VALUE_BYTES {
        return Ok(Err(Refused::Malformed(())));
    }
    let found = value(txn, &new.name)?;
    if found.version != new.version {
        return Ok(Err(Refused::Version(found.version)));
    }
    if found.version == 0 && under(txn, &[VALUES], None, MAX_VALUES)?.len() >= MAX_VALUES {
        return Ok(Err(Refused::TooMany(())));
    }
    let version = found.version.saturating_add(1);
    let kept = Value {
        version,
        value: new.value,
    };
    put(txn, key(VALUES, &[&new.name]), &kept);
    let value = Bytes::new();
    Ok(Ok(Reply::Value(Value { version, value })))
}

fn list(txn: &Txn<'_>) -> Outcome {
    let told = |(epoch, router): (Epoch, Router)| Listed {
        epoch,
        expires: router.expires,
        held: router.held,
        open: router.open,
    };
    Ok(Ok(Reply::Epochs(
        routers(txn)?.into_iter().map(told).collect(),
    )))
}

extern crate std;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::{Call, Service};
use quorate_state::{Fault, MemorySnapshot, State};
use quorate_wire::codec::Decode;
use quorate_wire::{PublicKey, SessionId, Time};

use crate::Ledger;
use crate::fuzzing;
use crate::op::*;
use crate::records::{self, EPOCHS, HOLDERS, Holder, INTENTS, VALUES};

const LEASE: u32 = 1000;
const MEMBERS: u8 = 4;

struct World {
    ledger: Ledger,
    state: State,
    now: u64,
}

fn client(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

impl World {
    fn new() -> World {
        let ledger = Ledger::new((1..=MEMBERS).map(client));
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let mut txn = state.begin();
        ledger.genesis(&mut txn).unwrap();
        txn.commit();
        World {
            ledger,
            state,
            now: 1_000_000_000,
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis * 1_000_000;
    }

    fn send(&mut self, number: u8, op: Bytes) -> Reply {
        self.now += 1;
        let call = Call {
            client: client(number),
            session: SessionId(1),
            now: Time(self.now),
        };
        let mut txn = self.state.begin();
        let told = self.ledger.execute(&mut txn, &call, &op).unwrap();
        let reply = Reply::from_bytes(told).unwrap();
        if self.ledger.is_read_only(&op) || matches!(reply, Reply::Refused(_)) {
            assert!(txn.writes().is_empty());
        }
        txn.commit();
        reply
    }

    fn ask(&mut self, number: u8, op: Op) -> Reply {
        self.send(number, op.write())
    }

    fn register(&mut self, number: u8, instance: u8) -> Epoch {
        match self.ask(number, register(instance)) {
            Reply::Begun(begun) => begun.epoch,
            other => panic!("{other:?}"),
        }
    }

    fn listed(&mut self) -> Vec<Listed> {
        match self.ask(1, Op::List(())) {
            Reply::Epochs(all) => all,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, epoch: Epoch) -> Vec<(u64, Bytes)> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let Reply::Open(told) = self.ask(1, Op::Open(Open { epoch, after })) else {
                panic!("no answer");
            };
            let Some(last) = told.last() else { return all };
            after = last.number;
            all.extend(told.into_iter().map(|one| (one.number, one.record)));
        }
    }
}

fn keys(epoch: Epoch, keys: &[u8]) -> Keys {
    let keys = keys.iter().map(|&key| [key; 32]).collect();
    Keys { epoch, keys }
}

fn register(instance: u8) -> Op {
    Op::Register(Register {
        instance: [instance; 16],
        lease: LEASE,
    })
}

fn begin(epoch: Epoch, under: &[u8], record: &'static [u8]) -> Op {
    Op::Begin(Begin {
        epoch,
        keys: keys(0, under).keys,
        record: record.into(),
    })
}

const DONE: Reply = Reply::Done(());

fn refused(reply: Reply) -> Refused {
    match reply {
        Reply::Refused(why) => why,
        other => panic!("{other:?} is no refusal"),
    }
}

/// What a dead router was about to do goes to who takes over, with the keys under it; the rest is free; and the dead one is refused all
/// from then on.
#[test]
fn an_epoch_is_taken_over_once_its_lease_has_run_out() {
    let mut world = World::new();
    let one = world.register(1, 1);
    let two = world.register(2, 2);
    assert_eq!(world.ask(1, Op::Hold(keys(one, &[1, 2]))), DONE);
    let number = match world.ask(1, begin(one, &[1], b"move")) {
        Reply::Number(number) => number,
        other => panic!("{other:?}"),
    };
    let take = TakeOver {
        by: two,
        dead: vec![one],
    };
    let early = world.ask(2, Op::TakeOver(take.clone()));
    assert_eq!(refused(early), Refused::Alive(one));
    world.pass(u64::from(LEASE) / 2);
    assert_eq!(world.ask(1, Op::Renew(one)), Reply::Renewed(vec![]));
    world.pass(u64::from(LEASE) * 3 / 4);
    let early = world.ask(2, Op::TakeOver(take.clone()));
    assert_eq!(refused(early), Refused::Alive(one));
    world.pass(u64::from(LEASE));
    assert_eq!(world.ask(2, Op::Renew(two)), Reply::Renewed(vec![one]));
    let heir = match world.ask(2, Op::TakeOver(take.clone())) {
        Reply::Begun(begun) => begun,
        other => panic!("{other:?}"),
    };
    assert_eq!(heir.ancestors, [one]);
    assert_eq!(
        refused(world.ask(2, Op::TakeOver(take))),
        Refused::NoEpoch(())
    );
    for op in [
        Op::Renew(one),
        Op::Hold(keys(one, &[3])),
        begin(one, &[1], b"late"),
        Op::End(Ended { epoch: one, number }),
        Op::Leave(one),
    ] {
        assert_eq!(refused(world.ask(1, op)), Refused::NoEpoch(()));
    }
    let busy = world.ask(2, Op::Hold(keys(two, &[1])));
    assert_eq!(refused(busy), Refused::Held(heir.epoch));
    assert_eq!(world.ask(2, Op::Hold(keys(two, &[2]))), DONE);
    assert_eq!(world.open(heir.epoch), [(number, "move".into())]);
    assert_eq!(
        refused(world.ask(2, Op::Leave(heir.epoch))),
        Refused::UnderWay(())
    );
    let end = Op::End(Ended {
        epoch: heir.epoch,
        number,
    });
    assert_eq!(world.ask(2, end.clone()), DONE);
    assert_eq!(world.ask(2, end), DONE);
    assert_eq!(world.ask(2, Op::Hold(keys(two, &[1]))), DONE);
    assert_eq!(
        refused(world.ask(2, Op::Leave(heir.epoch))),
        Refused::UnderWay(())
    );
    assert_eq!(world.ask(2, Op::Fenced(heir.epoch)), DONE);
    assert_eq!(world.ask(2, Op::Leave(heir.epoch)), DONE);
}

/// A router that comes back need not wait for its own lease.
#[test]
fn a_new_life_ends_the_former_ones() {
    let mut world = World::new();
    let first = world.register(1, 7);
    let other = world.register(2, 7);
    let second = world.register(1, 7);
    assert_eq!(world.ask(1, Op::Renew(second)), Reply::Renewed(vec![first]));
    let take = |dead| {
        Op::TakeOver(TakeOver {
            by: second,
            dead: vec![dead],
        })
    };
    // Another client's, whatever it calls itself.
    assert_eq!(refused(world.ask(1, take(other))), Refused::Alive(other));
    assert!(matches!(world.ask(1, take(first)), Reply::Begun(_)));
}

#[test]
fn values_are_replaced_by_who_knows_them() {
    let mut world = World::new();
    let put = |version, value: &'static [u8]| {
        Op::Put(Put {
            name: "map".into(),
            version,
            value: value.into(),
        })
    };
    let told = |version, value: &'static [u8]| {
        Reply::Value(Value {
            version,
            value: value.into(),
        })
    };
    assert_eq!(world.ask(1, Op::Get("map".into())), told(0, b""));
    assert_eq!(world.ask(1, put(0, b"a")), told(1, b""));
    assert_eq!(refused(world.ask(2, put(0, b"b"))), Refused::Version(1));
    assert_eq!(world.ask(2, put(1, b"b")), told(2, b""));
    assert_eq!(world.ask(1, Op::Get("map".into())), told(2, b"b"));
}

#[test]
fn nothing_grows_without_bound() {
    let mut world = World::new();
    let epoch = world.register(1, 1);
    for n in 0..MAX_HELD {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_be_bytes());
        let keys = vec![key];
        assert_eq!(world.ask(1, Op::Hold(Keys { epoch, keys })), DONE);
    }
    let more = world.ask(1, Op::Hold(keys(epoch, &[255])));
    assert_eq!(refused(more), Refused::TooMany(()));
    for _ in 0..MAX_INTENTS {
        assert!(matches!(
            world.ask(1, begin(epoch, &[0], b"i")),
            Reply::Number(_)
        ));
    }
    let more = world.ask(1, begin(epoch, &[0], b"i"));
    assert_eq!(refused(more), Refused::TooMany(()));
    assert_eq!(world.open(epoch).len(), MAX_INTENTS as usize);
    let long = Op::Begin(Begin {
        epoch,
        keys: vec![],
        record: vec![0; MAX_RECORD_BYTES + 1].into(),
    });
    assert_eq!(refused(world.ask(1, long)), Refused::Malformed(()));
    for n in 1..MAX_INSTANCES_OF_CLIENT {
        world.register(1, n as u8 + 1);
    }
    let more = world.ask(1, register(99));
    assert_eq!(refused(more), Refused::TooMany(()));
    for n in 0..=MAX_VALUES {
        let put = Op::Put(Put {
            name: vec![n as u8].into(),
            version: 0,
            value: vec![1; MAX_VALUE_BYTES].into(),
        });
        let put = world.ask(1, put);
        match n < MAX_VALUES {
            true => assert!(matches!(put, Reply::Value(_))),
            false => assert_eq!(refused(put), Refused::TooMany(())),
        }
    }
}

/// The group's time can leap past all leases. Who still renews is alive again at once.
#[test]
fn a_lease_that_time_has_leapt_over_is_renewed() {
    let mut world = World::new();
    let (one, two) = (world.register(1, 1), world.register(2, 2));
    for _ in 0..3 {
        world.pass(10 * u64::from(LEASE));
        assert_eq!(world.ask(1, Op::Renew(one)), Reply::Renewed(vec![two]));
        assert_eq!(world.ask(2, Op::Renew(two)), Reply::Renewed(vec![]));
        assert_eq!(world.ask(1, Op::Renew(one)), Reply::Renewed(vec![]));
        let take = TakeOver {
            by: one,
            dead: vec![two],
        };
        let late = world.ask(1, Op::TakeOver(take));
        assert_eq!(refused(late), Refused::Alive(two));
    }
}

/// Routers that have all lost their places have room for new ones, however often that happens, and what they had begun is not lost.
#[test]
fn as_many_routers_as_can_be_lose_their_places_together() {
    const MANY: usize = MAX_INSTANCES_OF_CLIENT;
    // One key's, then as many as there are at all.
    for clients in [1, MEMBERS] {
        let mut world = World::new();
        let each = |n: usize| (n as u8 % clients + 1, n as u8 / clients);
        let all = MANY * usize::from(clients);
        for round in 0..4 {
            for n in 0..all {
                let (client, instance) = each(n);
                let epoch = world.register(client, instance);
                if round == 0 {
                    assert_eq!(world.ask(client, Op::Hold(keys(epoch, &[n as u8]))), DONE);
                    let begun = world.ask(client, begin(epoch, &[n as u8], b"it"));
                    assert!(matches!(begun, Reply::Number(_)));
                }
            }
            world.pass(20 * u64::from(LEASE));
        }
        let stranger = world.ask(1, register(99));
        assert_eq!(refused(stranger), Refused::TooMany(()));
        assert_eq!(world.listed().len(), 2 * all);
        let by = world.register(1, 0);
        let Reply::Renewed(dead) = world.ask(1, Op::Renew(by)) else {
            panic!("no answer");
        };
        // Of all lives before, one of each router stands in for those that came before the last.
        assert_eq!(dead.len(), 2 * all - 1);
        let Reply::Begun(heir) = world.ask(1, Op::TakeOver(TakeOver { by, dead })) else {
            panic!("no answer");
        };
        let mut ancestors = heir.ancestors;
        ancestors.sort_unstable();
        assert!(ancestors.into_iter().eq(1..by));
        assert_eq!(world.open(heir.epoch).len(), all);
        assert_eq!(world.listed().len(), 2);
        fuzzing::invariants(&world.state.begin()).unwrap();
    }
}

#[test]
fn strangers_and_nonsense_are_refused() {
    let mut world = World::new();
    assert_eq!(
        refused(world.ask(MEMBERS + 1, Op::List(()))),
        Refused::NotAMember(())
    );
    let epoch = world.register(1, 1);
    // Another member's epoch is not one's own.
    assert_eq!(
        refused(world.ask(2, Op::Leave(epoch))),
        Refused::NoEpoch(())
    );
    let whole = begin(epoch, &[1, 2], b"record").write();
    for len in 0..whole.len() {
        let reply = world.send(1, whole.slice(..len));
        assert_eq!(refused(reply), Refused::Malformed(()));
    }
}

/// What can't be read is told, so that the replica compares it with what the others have, and not taken for absent.
#[test]
fn what_cannot_be_read_is_a_fault() {
    let mut world = World::new();
    let epoch = world.register(1, 1);
    assert_eq!(world.ask(1, Op::Hold(keys(epoch, &[7]))), DONE);
    assert_eq!(world.ask(1, begin(epoch, &[7], b"it")), Reply::Number(1));
    let values = [
        (HOLDERS, vec![7; 32], Op::Hold(keys(epoch, &[7]))),
        (EPOCHS, epoch.to_be_bytes().to_vec(), Op::Renew(epoch)),
        (EPOCHS, epoch.to_be_bytes().to_vec(), Op::List(())),
        (
            INTENTS,
            [epoch, 1].map(u64::to_be_bytes).concat(),
            Op::Open(Open { epoch, after: 0 }),
        ),
        (
            INTENTS,
            [epoch, 1].map(u64::to_be_bytes).concat(),
            Op::End(Ended { epoch, number: 1 }),
        ),
        (VALUES, b"map".to_vec(), Op::Get("map".into())),
    ];
    for (kind, rest, op) in values {
        let at = records::key(kind, &[&rest]);
        let call = Call {
            client: client(1),
            session: SessionId(1),
            now: Time(world.now),
        };
        let mut txn = world.state.begin();
        txn.put(at.clone(), Bytes::from_static(b"?"));
        let told = world.ledger.execute(&mut txn, &call, &op.write());
        match told {
            Err(Fault::Value { key, .. }) => assert_eq!(key, at),
            other => panic!("{op:?}: {other:?}"),
        }
        drop(txn);
    }
}

/// A state that somebody has changed on the disk is no reason to end.
#[test]
fn counts_at_their_end_do_no_harm() {
    let mut world = World::new();
    let epoch = world.register(1, 1);
    assert_eq!(world.ask(1, Op::Hold(keys(epoch, &[7]))), DONE);
    let damaged = Holder {
        epoch,
        kept: true,
        intents: u32::MAX,
    };
    let mut txn = world.state.begin();
    records::put(&mut txn, records::key(HOLDERS, &[&[7; 32]]), &damaged);
    txn.commit();
    let begun = world.ask(1, begin(epoch, &[7], b"it"));
    assert_eq!(begun, Reply::Number(1));
}

proptest! {
    /// Whatever is asked, in whatever order: the state stays sound, no number is given twice, and no intention gets lost.
    #[test]
    fn the_state_stays_sound(asks in proptest::collection::vec((0..11u8, 0..2u8, 0..6u64, 0..6u64, 0..4u8, 0..4u8), 1..200)) {
        let mut world = World::new();
        let (mut epochs, mut numbers) = (0, 0);
        let mut begun = 0;
        for (kind, who, a, b, x, y) in asks {
            let who = who + 1;
            // Mostly one of the newest.
            let epoch = |back: u64| (epochs + 1u64).saturating_sub(back);
            let op = match kind {
                0 => register(x),
                1 => Op::Renew(epoch(a)),
                2 | 3 => Op::Hold(keys(epoch(a), &[x, y])),
                4 => Op::Release(keys(epoch(a), &[x])),
                5 | 6 => begin(epoch(a), &[x, y], b"it"),
                7 => Op::End(Ended { epoch: epoch(a), number: (numbers + 1u64).saturating_sub(b) }),
                8 => Op::TakeOver(TakeOver { by: epoch(a), dead: vec![epoch(b), epoch(u64::from(x))] }),
                9 => Op::Fenced(epoch(a)),
                _ => Op::Leave(epoch(a)),
            };
            if x == 3 && kind == 1 {
                world.pass(u64::from(LEASE));
            }
            let open = |world: &mut World| -> u32 {
                world.listed().iter().map(|one| one.open).sum()
            };
            let before = open(&mut world);
            match world.ask(who, op.clone()) {
                Reply::Begun(new) => {
                    prop_assert!(new.epoch > epochs);
                    epochs = new.epoch;
                }
                Reply::Number(number) => {
                    prop_assert!(number > numbers);
                    numbers = number;
                    begun += 1;
                }
                Reply::Done(()) if kind == 7 => {
                    let after = open(&mut world);
                    prop_assert!(after == before || after + 1 == before);
                    begun -= before - after;
                }
                _ => {}
            }
            prop_assert_eq!(open(&mut world), begun);
            fuzzing::invariants(&world.state.begin()).unwrap_or_else(|what| panic!("{what}"));
        }
    }
}

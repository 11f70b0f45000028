//! What routers of one volume share: operations as they send them, executed one after the other.

use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::{Call, Service};
use quorate_ledger::Ledger;
use quorate_ledger::fuzzing::{Counters, Holder, Intent, Router, invariants, key};
use quorate_ledger::op::{
    Begin, Ended, Key, Keys, MAX_HELD, MAX_INTENTS, Op, Open, Put, Refused, Register, Reply,
    TakeOver, Value,
};
use quorate_state::{Fault, MemorySnapshot, State, Txn};
use quorate_wire::{Decode, Encode, PublicKey, SessionId, Time};

use crate::choices::Choices;

/// The most operations of one input: each check reads the whole state.
const STEPS: usize = 128;
/// What one operation may allocate: all that is told at once, a few times over.
const MEMORY: usize = 1 << 20;

fn client(number: usize) -> PublicKey {
    PublicKey([number as u8; 32])
}

/// Two members and a stranger ask. The first byte says whether the state is one that somebody has changed on the disk: then nothing panics.
/// Else it is sound after each operation, and a refusal, as a question, changes nothing.
pub fn ledger(data: &[u8]) {
    let mut choices = Choices::new(data);
    let ledger = Ledger::new([client(0), client(1)]);
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let is_damaged = choices.below(4) == 3;
    let mut txn = state.begin();
    ledger.genesis(&mut txn).expect("memory");
    if is_damaged {
        for _ in 0..choices.below(16) {
            damage(&mut txn, &mut choices);
        }
    }
    txn.commit();
    let mut now = 1_000_000_000;
    for _ in 0..STEPS {
        if choices.is_empty() {
            break;
        }
        let head = choices.byte();
        now += [1, 1_000_000, 200_000_000, 400_000_000_000][usize::from(head >> 6)];
        let call = Call {
            client: client([0, 0, 1, 2][usize::from(head & 3)]),
            session: SessionId(1),
            now: Time(now),
        };
        let op = operation(usize::from(head >> 2 & 15), &mut choices);
        let mut txn = state.begin();
        let told = crate::within(MEMORY, || ledger.execute(&mut txn, &call, &op));
        let told = match told {
            Ok(told) => Reply::from_bytes(told).expect("our own reply"),
            Err(Fault::Value { .. }) if is_damaged => continue,
            Err(fault) => panic!("{fault}"),
        };
        let is_refused = matches!(told, Reply::Refused(_));
        if is_refused || ledger.is_read_only(&op) {
            assert!(txn.writes().is_empty(), "{told:?}");
        }
        let is_stranger = call.client == client(2);
        assert!(!is_stranger || told == Reply::Refused(Refused::NotAMember(())));
        txn.commit();
        if !is_damaged {
            invariants(&state.begin()).unwrap_or_else(|what| panic!("{what}"));
        }
    }
}

fn epoch(choices: &mut Choices<'_>) -> u64 {
    match choices.byte() {
        255 => u64::MAX,
        byte => u64::from(byte % 12),
    }
}

fn keys(choices: &mut Choices<'_>) -> Vec<Key> {
    let count = choices.below(4);
    (0..count).map(|_| [choices.byte() % 8; 32]).collect()
}

fn text(choices: &mut Choices<'_>, most: usize) -> Bytes {
    let length = choices.below(most);
    Bytes::copy_from_slice(choices.take(length))
}

/// One of a kind, with fields that often fit; or any bytes.
fn operation(kind: usize, choices: &mut Choices<'_>) -> Bytes {
    let op = match kind {
        0 => Op::Register(Register {
            instance: [choices.byte() % 4; 16],
            lease: choices.of(&[100, 1_000, 300_000, 0]),
        }),
        1 => Op::Renew(epoch(choices)),
        2 | 13 => Op::Hold(Keys {
            epoch: epoch(choices),
            keys: keys(choices),
        }),
        3 => Op::Release(Keys {
            epoch: epoch(choices),
            keys: keys(choices),
        }),
        4 | 14 => Op::Begin(Begin {
            epoch: epoch(choices),
            keys: keys(choices),
            record: text(choices, 8),
        }),
        5 => Op::End(Ended {
            epoch: epoch(choices),
            number: epoch(choices),
        }),
        6 => {
            let count = choices.below(4);
            Op::TakeOver(TakeOver {
                by: epoch(choices),
                dead: (0..count).map(|_| epoch(choices)).collect(),
            })
        }
        7 => Op::Fenced(epoch(choices)),
        8 => Op::Leave(epoch(choices)),
        9 => Op::Open(Open {
            epoch: epoch(choices),
            after: epoch(choices),
        }),
        10 => Op::Put(Put {
            name: text(choices, 80),
            version: epoch(choices),
            value: text(choices, 8),
        }),
        11 => Op::Get(text(choices, 80)),
        12 => Op::List(()),
        _ => return text(choices, 256),
    };
    op.write()
}

/// An entry of the state that nobody has made: a genuine one with absurd numbers, or any bytes.
fn damage(txn: &mut Txn<'_>, choices: &mut Choices<'_>) {
    const NUMBERS: [u32; 6] = [0, 1, MAX_HELD, MAX_INTENTS, u32::MAX - 1, u32::MAX];
    let kind = choices.of(b"CEHhIV");
    let number = epoch(choices);
    let one = [choices.byte() % 8; 32];
    let at = match kind {
        b'C' => key(kind, &[]),
        b'E' => key(kind, &[&number.to_be_bytes()]),
        b'H' => key(kind, &[&one]),
        b'h' => key(kind, &[&number.to_be_bytes(), &one]),
        b'I' => key(
            kind,
            &[&number.to_be_bytes(), &epoch(choices).to_be_bytes()],
        ),
        _ => key(kind, &[&text(choices, 8)]),
    };
    if choices.below(4) == 3 {
        // Keys of other lengths as well.
        let at = at.slice(..at.len().saturating_sub(choices.below(4)).max(1));
        return txn.put(at, text(choices, 64));
    }
    let kept = match kind {
        b'C' => Counters {
            epoch: epoch(choices),
            intent: epoch(choices),
        }
        .to_bytes(),
        b'E' => Router {
            client: client(choices.below(2)),
            instance: [choices.byte() % 4; 16],
            lease: choices.of(&NUMBERS),
            expires: Time(choices.of(&[0, 1_000_000_000, u64::MAX])),
            held: choices.of(&NUMBERS),
            open: choices.of(&NUMBERS),
            ancestors: vec![epoch(choices)],
        }
        .to_bytes(),
        b'H' => Holder {
            epoch: epoch(choices),
            kept: choices.flag(),
            intents: choices.of(&NUMBERS),
        }
        .to_bytes(),
        b'h' => Vec::new(),
        b'I' => Intent {
            keys: keys(choices),
            record: text(choices, 8),
        }
        .to_bytes(),
        _ => Value {
            version: epoch(choices),
            value: text(choices, 8),
        }
        .to_bytes(),
    };
    txn.put(at, kept.into());
}

//! First inputs for what routers share.

use bytes::Bytes;
use quorate_ledger::fuzzing as ledger;
use quorate_ledger::op::{
    Begin, Begun, Ended, Intention, Keys, Listed, Op, Open, Put, Refused, Register, Reply,
    TakeOver, Value,
};
use quorate_wire::{Encode, KeyPair, Time};

use super::{EACH, write};

/// Operations of routers, what they are told, and what a replica keeps of it.
pub fn all() -> std::io::Result<()> {
    let text = Bytes::from_static(b"some");
    let keys = || vec![[7; 32]];
    let held = || Keys {
        epoch: 3,
        keys: keys(),
    };
    let ops = [
        Op::Register(Register {
            instance: [1; 16],
            lease: 1000,
        }),
        Op::Renew(1),
        Op::Hold(held()),
        Op::Release(held()),
        Op::Begin(Begin {
            epoch: 1,
            keys: keys(),
            record: text.clone(),
        }),
        Op::End(Ended {
            epoch: 1,
            number: 2,
        }),
        Op::TakeOver(TakeOver {
            by: 1,
            dead: vec![2, 3],
        }),
        Op::Fenced(1),
        Op::Leave(1),
        Op::Open(Open { epoch: 1, after: 0 }),
        Op::Put(Put {
            name: text.clone(),
            version: 1,
            value: text.clone(),
        }),
        Op::Get(text.clone()),
        Op::List(()),
    ];
    for (i, op) in ops.iter().enumerate() {
        write("ledger_op", i, &op.to_bytes())?;
    }
    let value = || Value {
        version: 1,
        value: text.clone(),
    };
    let replies = [
        Reply::Done(()),
        Reply::Begun(Begun {
            epoch: 4,
            ancestors: vec![1, 2],
        }),
        Reply::Renewed(vec![1, 2]),
        Reply::Number(7),
        Reply::Open(vec![Intention {
            number: 1,
            record: text.clone(),
        }]),
        Reply::Value(value()),
        Reply::Epochs(vec![Listed {
            epoch: 1,
            expires: Time(5),
            held: 1,
            open: 1,
        }]),
        Reply::Refused(Refused::Malformed(())),
        Reply::Refused(Refused::NotAMember(())),
        Reply::Refused(Refused::NoEpoch(())),
        Reply::Refused(Refused::Held(1)),
        Reply::Refused(Refused::NotHeld(())),
        Reply::Refused(Refused::Alive(1)),
        Reply::Refused(Refused::TooMany(())),
        Reply::Refused(Refused::UnderWay(())),
        Reply::Refused(Refused::Version(1)),
    ];
    for (i, reply) in replies.iter().enumerate() {
        write("ledger_op", 20 + i, &reply.to_bytes())?;
    }
    let counters = ledger::Counters {
        epoch: 1,
        intent: 2,
    };
    let router = ledger::Router {
        client: KeyPair::from_seed(&[1; 32]).public(),
        instance: [1; 16],
        lease: 1000,
        expires: Time(5),
        held: 1,
        open: 1,
        ancestors: vec![1],
    };
    let holder = ledger::Holder {
        epoch: 1,
        kept: true,
        intents: 1,
    };
    let intent = ledger::Intent {
        keys: keys(),
        record: text.clone(),
    };
    let records = [
        counters.to_bytes(),
        router.to_bytes(),
        holder.to_bytes(),
        intent.to_bytes(),
        value().to_bytes(),
    ];
    for (i, record) in records.iter().enumerate() {
        write("ledger_record", i, &[&[i as u8][..], record].concat())?;
    }
    // A router that registers twice, is taken over in the midst of something by another of the same client, and that one ends it and leaves.
    let script: &[u8] = &[
        0,
        0,
        1,
        1,
        0,
        1,
        2,
        2 << 2,
        1,
        2,
        1,
        2,
        4 << 2,
        1,
        1,
        1,
        1,
        b'x',
        3 << 2,
        1,
        1,
        1, //
        9 << 2,
        1,
        0,
        0xc0 | 1 << 2,
        2,
        6 << 2,
        1,
        2,
        1,
        9 << 2,
        3,
        0,
        7 << 2,
        3,
        5 << 2,
        3,
        1, //
        8 << 2,
        3,
        10 << 2,
        1,
        b'n',
        0,
        1,
        b'v',
        11 << 2,
        1,
        b'n',
        12 << 2,
    ];
    write("ledger", EACH, script)
}

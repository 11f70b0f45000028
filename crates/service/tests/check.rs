//! Wrong declarations are found, and named; right ones pass.

use quorate_service::check::{self, Differs, Mistake};
use quorate_service::null::{Conflicts, NullOp, NullService};
use quorate_service::{
    Bytes, Call, Fault, KeyPair, Ran, Rest, Scope, Service, SessionId, Time, Txn, Uses,
};

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Writers of one register are not kept apart.
    Writes,
    /// Readers don't wait for writers.
    Reads,
    /// The number of operations is touched in the run step, and only declared as settled.
    Count,
    /// The run step forgets what is left for the settle step.
    Steps,
    /// Reads write.
    ReadsWrite,
    /// A write is said to have no more than a byte for its result.
    Results,
}

/// Registers of one byte, and how many writes there were. An operation is a register, and what to write to it; it answers what was
/// there, and a write also its number.
struct Registers(Flaw);

const COUNT: Scope = Scope::Object(1, 0);

impl Registers {
    fn swap(&self, txn: &mut Txn<'_>, op: &Bytes) -> Result<Bytes, Fault> {
        let key = Bytes::from(vec![b'r', op[0]]);
        let before = txn.get(&key)?.unwrap_or_default();
        if op.len() > 1 {
            txn.put(key, op.slice(1..2));
        } else if self.0 == Flaw::ReadsWrite {
            txn.put(key, before.clone());
        }
        Ok(before)
    }

    fn count(txn: &mut Txn<'_>, before: &Bytes) -> Result<Bytes, Fault> {
        let count = txn.get(b"count")?.map_or(0, |kept| kept[0]) + 1;
        txn.put("count".into(), vec![count].into());
        Ok([&before[..], &[count]].concat().into())
    }
}

impl Service for Registers {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op.len() == 1
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let before = self.swap(txn, op)?;
        match op.len() {
            1 => Ok(before),
            _ => Registers::count(txn, &before),
        }
    }

    fn run(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        let before = self.swap(txn, op)?;
        Ok(match (op.len(), self.0) {
            (1, _) | (_, Flaw::Steps) => Ran::Done(before),
            (_, Flaw::Count) => Ran::Done(Registers::count(txn, &before)?),
            _ => Ran::Settle(before),
        })
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        _call: &Call,
        _op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        Registers::count(txn, &ran)
    }

    fn result_bytes(&self, _op: &Bytes) -> usize {
        match self.0 {
            Flaw::Results => 1,
            _ => 2,
        }
    }

    fn uses(&self, _call: &Call, op: &Bytes) -> Uses {
        let register = Scope::Object(0, op[0].into());
        match (op.len(), self.0) {
            (1, Flaw::Reads) => Uses::none(),
            (1, _) => Uses::none().read(register),
            (_, Flaw::Writes) => Uses::none().settle(COUNT).read(Scope::Object(2, 0)),
            _ => Uses::none().write(register).settle(COUNT),
        }
    }
}

/// Each flaw by itself is found under its name, for any seed, and none where there is none.
#[test]
fn each_flaw_has_its_name() {
    let ops: Vec<Bytes> = [&[1, 7][..], &[2], &[2, 8], &[1], &[2], &[1, 9], &[3, 1]]
        .map(Bytes::copy_from_slice)
        .into();
    let found = |flaw, seed| check::uses(&Registers(flaw), &ops, seed);
    for seed in 0..20 {
        assert_eq!(found(Flaw::None, seed), Ok(()));
        let dependent = |first, second, differs| {
            Err(Mistake::Dependent {
                first,
                second,
                differs,
            })
        };
        let result = |op| Differs::Result(op);
        assert_eq!(found(Flaw::Reads, seed), dependent(0, 3, result(3)));
        assert_eq!(found(Flaw::Count, seed), dependent(0, 2, result(2)));
        assert_eq!(found(Flaw::Writes, seed), dependent(0, 3, result(3)));
        assert_eq!(found(Flaw::Steps, seed), Err(Mistake::Steps { op: 0 }));
        let writes = Err(Mistake::ReadWrites { op: 1 });
        assert_eq!(found(Flaw::ReadsWrite, seed), writes);
        // The first to find something in its register.
        let (op, has, says) = (5, 2, 1);
        let long = Err(Mistake::LongResult { op, has, says });
        assert_eq!(found(Flaw::Results, seed), long);
    }
}

/// The last of several writers is in the state, though none of them answers anything: also that is found.
#[test]
fn silent_writers_differ_in_the_state() {
    struct Last;
    impl Service for Last {
        fn is_read_only(&self, _op: &[u8]) -> bool {
            false
        }
        fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
            txn.put("last".into(), op.clone());
            Ok(Bytes::new())
        }
        fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
            Uses::none()
        }
    }
    let found = check::uses(&Last, &["a".into(), "a".into(), "b".into()], 1);
    let differs = Differs::State;
    let (first, second) = (0, 2);
    let wrong = Mistake::Dependent {
        first,
        second,
        differs,
    };
    assert_eq!(
        wrong.to_string(),
        "operations 0 and 2: `uses` declares that 2 need not wait for 0, and then the state is another one"
    );
    assert_eq!(found, Err(wrong));
}

/// A service with a memory of its own is found, whatever it declares.
#[test]
fn a_memory_of_its_own_is_found() {
    use std::sync::atomic::{AtomicU8, Ordering};
    struct Remembers(AtomicU8);
    impl Service for Remembers {
        fn is_read_only(&self, _op: &[u8]) -> bool {
            false
        }
        fn execute(&self, _txn: &mut Txn<'_>, _call: &Call, _op: &Bytes) -> Result<Bytes, Fault> {
            Ok(vec![self.0.fetch_add(1, Ordering::Relaxed)].into())
        }
    }
    let found = check::uses(&Remembers(AtomicU8::new(0)), &["add".into()], 1);
    assert_eq!(found, Err(Mistake::Unsteady { op: 0 }));
}

/// Sessions take locks (an operation is a lock's number; the answer says whether it is its session's now), and let go of them as they end. `count` asks how many
/// are taken.
struct Locks(End);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Right,
    /// Says that it holds nothing.
    Nothing,
    /// Does not say which lock it lets go of.
    Silent,
    /// Looks at what others hold.
    Looks,
}

const LOCK: u32 = 0;
const NUMBER: Scope = Scope::Class(1);

impl Locks {
    fn of(txn: &Txn<'_>, session: SessionId) -> Result<Option<Bytes>, Fault> {
        txn.get(&[b"of", &session.0.to_le_bytes()[..]].concat())
    }

    fn count(txn: &mut Txn<'_>, by: i8) -> Result<(), Fault> {
        let count = txn.get(b"count")?.map_or(0, |count| count[0]);
        txn.put("count".into(), vec![count.wrapping_add_signed(by)].into());
        Ok(())
    }
}

impl Service for Locks {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"count"
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        if self.is_read_only(op) {
            return Ok(txn.get(b"count")?.unwrap_or_default());
        }
        let key = Bytes::from([b"lock", &op[..]].concat());
        let own = Bytes::from([b"of", &call.session.0.to_le_bytes()[..]].concat());
        if txn.get(&key)?.is_some() || txn.get(&own)?.is_some() {
            return Ok("no".into());
        }
        txn.put(own, key.clone());
        txn.put(key, "taken".into());
        Locks::count(txn, 1)?;
        Ok("yes".into())
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        if let Some(lock) = Locks::of(txn, call.session)? {
            txn.delete(lock);
            txn.delete([b"of", &call.session.0.to_le_bytes()[..]].concat().into());
            Locks::count(txn, -1)?;
        }
        Ok(Rest::Nothing)
    }

    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        let held = Locks::of(txn, call.session)?;
        let uses = held.map(|lock| Uses::none().write(NUMBER).write(Scope::named(LOCK, &lock)));
        Ok(match self.0 {
            End::Right => uses,
            End::Nothing => None,
            End::Silent => uses.map(|_| Uses::none()),
            End::Looks => match txn.get(b"count")?.map_or(0, |count| count[0]) {
                0 | 1 => uses,
                _ => Some(Uses::everything()),
            },
        })
    }

    fn uses(&self, _call: &Call, op: &Bytes) -> Uses {
        match self.is_read_only(op) {
            true => Uses::none().read(NUMBER),
            false => {
                let lock = [b"lock", &op[..]].concat();
                Uses::none().write(NUMBER).write(Scope::named(LOCK, &lock))
            }
        }
    }
}

/// A wrong word about the ends of sessions is found under its name, and a right one passes.
#[test]
fn ends_of_sessions_are_tried() {
    let client = KeyPair::from_seed(&[1; 32]).public();
    let ops: Vec<(Call, Bytes)> = [
        (1, "a"),
        (2, "b"),
        (3, "a"),
        (3, "count"),
        (4, "c"),
        (1, "d"),
    ]
    .iter()
    .enumerate()
    .map(|(at, (session, op))| {
        let (session, now) = (SessionId(*session), Time(at as u64 + 1));
        (
            Call {
                client,
                session,
                now,
            },
            (*op).into(),
        )
    })
    .collect();
    let found = |end, seed| check::uses_by(&Locks(end), &ops, seed);
    for seed in 0..20 {
        assert_eq!(found(End::Right, seed), Ok(()));
        let nothing = Err(Mistake::EndWrites { op: 0 });
        assert_eq!(found(End::Nothing, seed), nothing);
        let silent = found(End::Silent, seed);
        assert!(matches!(silent, Err(Mistake::End { .. })), "{silent:?}");
        let looks = found(End::Looks, seed);
        assert_eq!(looks, Err(Mistake::EndLooks { op: 0, other: 1 }));
    }
}

/// The service of the benchmarks declares what it does.
#[test]
fn the_null_service_passes() {
    let conflicts = [Conflicts::All, Conflicts::Bucket(1), Conflicts::None];
    let op = |conflicts| NullOp {
        conflicts,
        result: 9,
        ..NullOp::default()
    };
    let all = [conflicts; 4].concat();
    let ops: Vec<_> = all.into_iter().map(|c| op(c).encode(0)).collect();
    assert_eq!(check::uses(&NullService::default(), &ops, 1), Ok(()));
}

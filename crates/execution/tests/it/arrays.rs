//! A service that uses every scope in every mode.

use std::ops::Bound;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::graph::{Scope, Uses};
use quorate_execution::{Call, Ran, Reading, Rest, Service};
use quorate_state::{Fault, Txn};
use quorate_wire::SessionId;

/// Arrays of numbers, and a counter that is only touched in settle steps and by those who read it. A session may hold arrays: their
/// numbers are changed when it has ended, those of one array at a time.
#[derive(Clone, Debug)]
pub struct Arrays;

const CELLS: u32 = 1;
const COUNTER: Scope = Scope::Object(2, 0);
/// What sessions hold. By session.
const HELD: u32 = 3;
const LIMIT: u8 = 200;

/// An operation: what, which array, from, to, value.
pub type Op = [u8; 5];

fn cell(array: u8, at: u8) -> Bytes {
    Bytes::copy_from_slice(&[1, array, at])
}

/// A session holds an array, with a number.
fn held_key(session: SessionId, array: u8) -> Bytes {
    [&[3][..], &session.0.to_be_bytes(), &[array]]
        .concat()
        .into()
}

/// The arrays that a session holds, the first ones.
fn held(txn: &Txn<'_>, session: SessionId, most: usize) -> Result<Vec<(u8, u8)>, Fault> {
    let (from, to) = (held_key(session, 0), held_key(session, u8::MAX));
    let found = txn.range(Bound::Included(&from), Bound::Included(&to), most)?;
    Ok(found.into_iter().map(|(key, v)| (key[9], v[0])).collect())
}

fn cells(txn: &Txn<'_>, from: &[u8], to: &[u8]) -> Result<Vec<(Bytes, u8)>, Fault> {
    let found = txn.range(Bound::Included(from), Bound::Included(to), 10_000)?;
    Ok(found.into_iter().map(|(key, v)| (key, v[0])).collect())
}

fn counter(txn: &Txn<'_>) -> Result<u8, Fault> {
    Ok(txn.get(&[2])?.map_or(0, |v| v[0]))
}

fn digest(cells: &[(Bytes, u8)]) -> u8 {
    let mix = |sum: u8, (key, v): &(Bytes, u8)| {
        key.iter()
            .fold(sum.wrapping_mul(31).wrapping_add(*v), |s, b| {
                s.wrapping_mul(7).wrapping_add(*b)
            })
    };
    cells.iter().fold(1, mix)
}

impl Arrays {
    /// Changes what there is in a range, by what there was; answers with a digest of it.
    fn change(txn: &mut Txn<'_>, from: &[u8], to: &[u8], value: u8) -> Result<u8, Fault> {
        let before = cells(txn, from, to)?;
        let sum = digest(&before);
        if let (&[1, array, first], &[1, _, last]) = (from, to) {
            for at in first..=last {
                let value = value.wrapping_add(sum) % 5;
                match value {
                    0 => txn.delete(cell(array, at)),
                    _ => txn.put(cell(array, at), Bytes::copy_from_slice(&[value])),
                }
            }
        } else {
            for (key, v) in before {
                txn.put(key, Bytes::copy_from_slice(&[v.wrapping_mul(3) ^ value]));
            }
        }
        Ok(sum)
    }

    fn count(txn: &mut Txn<'_>, by: u8) -> Result<Option<u8>, Fault> {
        let sum = counter(txn)?.checked_add(by % 8).filter(|&s| s < LIMIT);
        if let Some(sum) = sum {
            txn.put(Bytes::from_static(&[2]), Bytes::copy_from_slice(&[sum]));
        }
        Ok(sum)
    }
}

impl Service for Arrays {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        for at in 0..6 {
            txn.put(cell(1, at), Bytes::from_static(&[1]));
        }
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        matches!(op[0], 0 | 1 | 7 | 9 | 12 | 15 | 16)
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        match self.run(txn, call, op)? {
            Ran::Done(result) => Ok(result),
            Ran::Settle(ran) => self.settle(txn, call, op, ran),
        }
    }

    /// The counter is named, not read.
    fn read(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Reading, Fault> {
        match txn.summary(&[2])?.filter(|_| op[0] == 15) {
            Some(summary) => {
                let mut reading = Reading::new();
                reading.push_value(Bytes::from_static(&[2]), summary);
                Ok(reading)
            }
            None => self.execute(txn, call, op).map(Reading::from),
        }
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        // Who holds nothing is not asked to let go of it: nothing was waited for then.
        let first = held(txn, call.session, 1)?.pop();
        let (array, value) = first.expect("the session holds something");
        Arrays::change(txn, &[1, array], &[1, array, 255], value)?;
        txn.delete(held_key(call.session, array));
        Ok(Rest::More)
    }

    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        let all = held(txn, call.session, 256)?;
        let arrays = all.iter().map(|(array, _)| u64::from(*array));
        let scopes = arrays.map(|array| Scope::Object(CELLS, array));
        let scopes = scopes.chain([Scope::Object(HELD, call.session.0)]);
        // In either of the two ways.
        let uses = match call.session.0 % 2 {
            0 => scopes.fold(Uses::none(), Uses::settle),
            _ => scopes.fold(Uses::none(), Uses::write),
        };
        Ok((!all.is_empty()).then_some(uses))
    }

    fn uses(&self, call: &Call, op: &Bytes) -> Uses {
        let (array, from, to) = (u64::from(op[1]), u64::from(op[2]), u64::from(op[3]));
        let part = Scope::Range(CELLS, array, from, to);
        let whole = Scope::Object(CELLS, array);
        match op[0] {
            0 | 1 => Uses::none().read(part),
            2 | 3 | 19 => Uses::none().write(part),
            4 | 5 => Uses::none().write(part).settle(COUNTER),
            6 => Uses::none().settle(COUNTER),
            7 => Uses::none().read(whole),
            8 => Uses::none().write(whole),
            9 => Uses::none().read(Scope::Class(CELLS)),
            10 => Uses::none().write(Scope::Class(CELLS)),
            11 => Uses::none().settle(whole),
            12 => Uses::none().read(Scope::Everything),
            13 => Uses::everything(),
            14 => Uses::none().settle(COUNTER).read(part).settle(whole),
            15 => Uses::none().read(COUNTER),
            17 => Uses::none().write(Scope::Object(HELD, call.session.0)),
            18 => Uses::none().settle(Scope::Object(HELD, call.session.0)),
            _ => Uses::none(),
        }
    }

    fn run(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        let (array, value) = (op[1], op[4]);
        let part = ([1, array, op[2]], [1, array, op[3]]);
        let (first, last): (&[u8], &[u8]) = (&[1, array], &[1, array, 255]);
        let done = |byte: u8| Ok(Ran::Done(Bytes::copy_from_slice(&[byte])));
        let rest = |byte: u8| Ok(Ran::Settle(Bytes::copy_from_slice(&[byte])));
        match op[0] {
            0 | 1 => done(digest(&cells(txn, &part.0, &part.1)?)),
            2 | 3 => done(Arrays::change(txn, &part.0, &part.1, value)?),
            19 => {
                let sum = Arrays::change(txn, &part.0, &part.1, value)?;
                Ok(Ran::Done(vec![sum; usize::from(value % 40)].into()))
            }
            4 | 5 => rest(Arrays::change(txn, &part.0, &part.1, value)?),
            14 => rest(digest(&cells(txn, &part.0, &part.1)?)),
            6 | 11 | 18 => rest(0),
            7 => done(digest(&cells(txn, first, last)?)),
            8 => done(Arrays::change(txn, first, last, value)?),
            9 => done(digest(&cells(txn, &[1], &[1, 255, 255])?)),
            10 => done(Arrays::change(txn, &[1], &[1, 255, 255], value)?),
            12 => done(digest(&cells(txn, &[1], &[1, 255, 255])?) ^ counter(txn)?),
            13 => {
                Arrays::count(txn, value)?;
                done(Arrays::change(txn, &[1], &[1, 255, 255], value)?)
            }
            15 => done(counter(txn)?),
            17 => {
                txn.put(
                    held_key(call.session, array),
                    Bytes::copy_from_slice(&[value]),
                );
                done(held(txn, call.session, 256)?.len() as u8)
            }
            other => done(other),
        }
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        call: &Call,
        op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        let (first, last): (&[u8], &[u8]) = (&[1, op[1]], &[1, op[1], 255]);
        let mut answer = ran.to_vec();
        match op[0] {
            4..=6 => match Arrays::count(txn, op[4])? {
                Some(sum) => answer.push(sum),
                // Refused: what ran is undone.
                None => txn.rollback(),
            },
            11 => answer.push(Arrays::change(txn, first, last, op[4])?),
            14 => {
                answer.push(Arrays::change(txn, first, last, op[4])?);
                answer.extend(Arrays::count(txn, 1)?);
            }
            18 => {
                txn.delete(held_key(call.session, op[1]));
                answer.push(held(txn, call.session, 256)?.len() as u8);
            }
            other => panic!("{other} does not settle"),
        }
        Ok(answer.into())
    }
}

/// Any operation. 19 has a result of up to 39 bytes, the others of one or two.
pub fn op() -> impl Strategy<Value = Op> {
    let what =
        prop_oneof![12 => 0..9_u8, 3 => Just(14), 2 => 9..17_u8, 2 => 17..19_u8, 3 => Just(19)];
    (what, 1..4_u8, 0..8_u8, 0..4_u8, any::<u8>())
        .prop_map(|(what, array, from, more, value)| [what, array, from, from + more, value])
}

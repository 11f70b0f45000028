//! A key-value store that stays right when one of its four replicas lies: `cargo run --example key_value`.
//!
//! Operations on different keys don't conflict, and say so: each replica executes them on four threads.

use std::error::Error;

use quorate_service::{Bytes, Call, Fault, Local, Scope, Service, Txn, Uses};

const GET: u8 = b'g';
const PUT: u8 = b'p';

/// The longest value, in bytes. A put answers with the value from before, so it has to be known how long that can be.
const MAX_VALUE: usize = 16 << 10;

/// An operation is one byte for what to do, one for the length of the key, the key, and for a put the value. Answers with
/// the value from before, or with nothing; so it does to what is no operation, as a put of too long a value.
#[derive(Clone, Debug)]
struct Store;

fn decode(op: &Bytes) -> Option<(u8, Bytes, Bytes)> {
    let (&[kind, length], rest) = op.split_first_chunk()?;
    let (length, rest) = (usize::from(length), op.slice_ref(rest));
    let is_one = (length..=length + MAX_VALUE).contains(&rest.len());
    is_one.then(|| (kind, rest.slice(..length), rest.slice(length..)))
}

fn encode(kind: u8, key: &str, value: &str) -> Bytes {
    let (key, value) = (&key.as_bytes()[..key.len().min(255)], value.as_bytes());
    [&[kind, key.len() as u8], key, value].concat().into()
}

impl Service for Store {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op.first() == Some(&GET)
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let Some((kind, key, value)) = decode(op) else {
            return Ok(Bytes::new());
        };
        // Keys that begin with 0 are not the service's.
        let key = Bytes::from([b"k", &key[..]].concat());
        let before = txn.get(&key)?.unwrap_or_default();
        if kind == PUT {
            txn.put(key, value);
        }
        Ok(before)
    }

    // Sessions hold nothing: their ends wait for nobody.
    fn uses_at_end(&self, _txn: &Txn<'_>, _call: &Call) -> Result<Option<Uses>, Fault> {
        Ok(None)
    }

    fn uses(&self, _call: &Call, op: &Bytes) -> Uses {
        match decode(op) {
            Some((PUT, key, _)) => Uses::none().write(Scope::named(0, &key)),
            Some((_, key, _)) => Uses::none().read(Scope::named(0, &key)),
            None => Uses::none(),
        }
    }

    // It writes what it brings, as the default of `weight` has it; but a short put may answer with a long value.
    fn result_bytes(&self, _op: &Bytes) -> usize {
        MAX_VALUE
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let group = Local::start_with(4, 4, Store)?;
    let mut session = group.inline_session()?;
    for (key, value) in [("fruit", "apple"), ("tree", "oak"), ("fruit", "pear")] {
        let before = session.call(encode(PUT, key, value))?;
        println!("{key} = {value}, before: {before:?}");
    }
    println!("fruit is {:?}", session.read(encode(GET, "fruit", ""))?);
    session.close();
    Ok(())
}

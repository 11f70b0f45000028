//! A counter that nobody can turn back: `cargo run --example counter`.

use std::error::Error;

use quorate_service::{Bytes, Call, Fault, Local, Service, Session, Txn};

const COUNT: &[u8] = b"count";

/// Adds the number that an operation is, and says the sum; `get` only says it.
#[derive(Clone, Debug)]
struct Counter;

impl Service for Counter {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"get"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let sum = txn.get(COUNT)?.map_or(0, |kept| number(&kept));
        if self.is_read_only(op) {
            return Ok(encode(sum));
        }
        // Wraps rather than panics: the number is the client's.
        let sum = sum.wrapping_add(number(op));
        txn.put(COUNT.into(), encode(sum));
        Ok(encode(sum))
    }
}

fn encode(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Whatever is no number counts as 0.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Ten additions in flight at the same time: clones of a session are for several threads, and for tasks of any executor.
fn add_ten_times(session: &Session) -> Result<(), Box<dyn Error>> {
    let add = |n| {
        let session = session.clone();
        std::thread::spawn(move || session.call_blocking(encode(n)))
    };
    for addition in (1..=10).map(add).collect::<Vec<_>>() {
        let sum = addition.join().map_err(|_| "a thread died")??;
        println!("one addition saw the sum {}", number(&sum));
    }
    let sum = session.read_blocking("get".into())?;
    println!("read: {}", number(&sum));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let group = Local::start(4, Counter)?;
    add_ten_times(&group.session()?)
}

//! A counter that nobody can turn back: `cargo run --example counter`.

use anyhow::{Context, Result};
use quorate_service::{Bytes, Call, Fault, Local, Service, Session, Txn};

const COUNT: &[u8] = b"count";

/// Adds the number that an operation is, and says the sum; `get` only says it.
#[derive(Clone, Debug)]
struct Counter;

impl Service for Counter {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

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

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<(), Fault> {
        Ok(())
    }
}

fn encode(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Whatever is no number counts as 0.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// A client in an asynchronous program: ten additions in flight at the same time.
async fn add_ten_times(session: &Session) -> Result<()> {
    let additions = (1..=10).map(|n| {
        let session = session.clone();
        tokio::spawn(async move { session.call(encode(n)).await })
    });
    for addition in additions.collect::<Vec<_>>() {
        let sum = addition.await?.ok().context("the session was lost")?;
        println!("one addition saw the sum {}", number(&sum));
    }
    let sum = session.read("get".into()).await;
    let sum = sum.ok().context("the session was lost")?;
    println!("read: {}", number(&sum));
    Ok(())
}

fn main() -> Result<()> {
    let group = Local::start(4, Counter)?;
    let session = group.session();
    group.runtime().block_on(add_ten_times(&session))?;
    // A client in a program that knows of no runtime.
    let sum = session.call_blocking(encode(1000));
    println!(
        "blocking: {}",
        number(&sum.ok().context("the session was lost")?)
    );
    Ok(())
}

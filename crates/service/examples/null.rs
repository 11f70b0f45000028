//! The service that does nothing, and what it costs to agree on that: `cargo run --release --example null`.
//!
//! Asks in both ways: one operation after the other, and as tasks that all wait at once. `quorate bench` measures
//! with care, with processes of their own; here all is in one.

use std::time::{Duration, Instant};

use anyhow::Result;
use quorate_service::{Bytes, Call, Fault, Local, Rest, Service, Session, Txn, Uses};

/// How long each way is tried.
const TRIED: Duration = Duration::from_secs(2);
/// Tasks that wait at once; a session has so many operations in flight.
const TASKS: usize = 64;

#[derive(Clone, Debug)]
struct Null;

impl Service for Null {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _op: &[u8]) -> bool {
        false
    }

    fn execute(&self, _txn: &mut Txn<'_>, _call: &Call, _op: &Bytes) -> Result<Bytes, Fault> {
        Ok(Bytes::new())
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
        Uses::none()
    }
}

/// Asks until the time is over. How often it was answered.
async fn ask(session: Session, start: Instant) -> Result<u32> {
    let mut answered = 0;
    while start.elapsed() < TRIED {
        session.call(Bytes::new()).await?;
        answered += 1;
    }
    Ok(answered)
}

#[tokio::main(flavor = "current_thread")]
#[allow(clippy::disallowed_methods)] // How long it takes is what this is about.
async fn main() -> Result<()> {
    let group = Local::start(4, Null)?;
    let session = group.session()?;
    for tasks in [1, TASKS] {
        let start = Instant::now();
        let asking: Vec<_> = (0..tasks)
            .map(|_| tokio::spawn(ask(session.clone(), start)))
            .collect();
        let mut answered = 0;
        for task in asking {
            answered += task.await??;
        }
        let each = start.elapsed() / answered.max(1);
        println!("{tasks:2} in flight: {answered} operations, {each:?} each");
    }
    Ok(())
}

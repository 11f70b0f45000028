//! The service of the benchmarks, which does nothing, and what it costs to agree on that: `cargo run --release --example null`.
//!
//! Asks in both ways: one operation after the other, and as tasks that all wait at once. `quorate bench` measures the same service
//! with care, with processes of their own; here all is in one.

use std::error::Error;
use std::time::{Duration, Instant};

use quorate_service::null::{NullOp, NullService};
use quorate_service::{Local, NoResult, Session};

/// How long each way is tried.
const TRIED: Duration = Duration::from_secs(2);
/// Tasks that wait at once; a session has so many operations in flight.
const TASKS: usize = 64;

/// Asks until the time is over. How often it was answered.
async fn ask(session: Session, start: Instant) -> Result<u32, NoResult> {
    let op = NullOp::default().encode(0);
    let mut answered = 0;
    while start.elapsed() < TRIED {
        session.call(op.clone()).await?;
        answered += 1;
    }
    Ok(answered)
}

#[tokio::main(flavor = "current_thread")]
#[allow(clippy::disallowed_methods)] // How long it takes is what this is about.
async fn main() -> Result<(), Box<dyn Error>> {
    let group = Local::start(4, NullService::default())?;
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

//! The benchmarks' service and how long it takes to call it, in one process: `cargo run --release --example null`.
//!
//! For figures worth comparing there is `quorate bench`, with processes of their own.
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::time::Instant;

use anyhow::{Context, Result};
use quorate_bench::null::{NullOp, NullService};
use quorate_service::Local;

fn main() -> Result<()> {
    let group = Local::start(4, NullService::default())?;
    let mut session = group.inline_session()?;
    for (request, result) in [(0, 0), (4096, 0), (0, 4096)] {
        let op = NullOp {
            result,
            ..NullOp::default()
        };
        let op = op.encode(request);
        let started = Instant::now();
        for _ in 0..1000 {
            let answer = session.call(op.clone());
            let answer = answer.ok().context("the session was lost")?;
            assert_eq!(answer.len(), result as usize);
        }
        let each = started.elapsed() / 1000;
        println!("{request} bytes asked, {result} answered: {each:?} each");
    }
    Ok(())
}

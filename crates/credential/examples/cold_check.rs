//! How long a check of a chain takes that was never seen before, and how long it is:
//! `cargo run --release -p quorate-credential --example cold_check`.

use std::hint::black_box;
use std::time::Instant;

use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, Trust, VolumeId, Window};
use quorate_wire::{Digest, KeyPair};

/// Checks in one measurement, and measurements of which the median is told.
const CHECKS: u32 = 200;
const ROUNDS: usize = 21;

#[allow(clippy::disallowed_methods)] // It measures.
fn main() {
    let volume = VolumeId(Digest([1; 32]));
    let key = |n: u8| KeyPair::from_seed(&[n + 1; 32]);
    let owners = &[key(0).public()];
    println!("links  bytes  us for reading and checking (median of {ROUNDS} x {CHECKS})");
    let mut chain: Option<Chain> = None;
    for n in 0..16_u8 {
        let terms = Terms {
            subject: key(n + 1).public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights: Rights::ALL,
            window: Window {
                not_before: 0,
                not_after: u64::MAX,
            },
            depth: 15 - n,
            serial: n.into(),
            caveats: Vec::new(),
        };
        let longer = match &chain {
            None => Chain::issue(volume, &key(0), terms),
            Some(chain) => chain.delegate(&key(n), terms),
        };
        let longer = chain.insert(longer.expect("it narrows"));
        if ![1, 2, 5, 16].contains(&longer.links().len()) {
            continue;
        }
        let bytes = bytes::Bytes::from(longer.to_bytes());
        let mut rounds = [0.0; ROUNDS];
        for round in &mut rounds {
            let started = Instant::now();
            for _ in 0..CHECKS {
                let read = Chain::from_bytes(black_box(bytes.clone())).expect("a chain");
                let grant = read.verify(&Trust { volume, owners });
                black_box(grant.expect("it holds"));
            }
            *round = started.elapsed().as_secs_f64() * 1e6 / f64::from(CHECKS);
        }
        rounds.sort_by(f64::total_cmp);
        println!(
            "{:5}  {:5}  {:.1}",
            longer.links().len(),
            bytes.len(),
            rounds[ROUNDS / 2]
        );
    }
}

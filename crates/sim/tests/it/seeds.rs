//! Seeds that once found something, and what makes a seed worth its name.

use quorate_sim::{Options, run};

/// What was mended stays mended.
#[test]
fn seeds_that_found_something() {
    for line in include_str!("../../seeds.txt").lines() {
        let Some(seed) = line.split_whitespace().next() else {
            continue;
        };
        if let Ok(seed) = seed.parse() {
            let report = run(seed, Options::default());
            assert!(report.result.is_ok(), "{report}");
        }
    }
}

/// A run follows from its seed alone: twice the same events, one by one.
#[test]
fn a_seed_is_one_run() {
    for seed in 0..12 {
        let (a, b) = (run(seed, Options::default()), run(seed, Options::default()));
        assert_eq!(a.trace_hash, b.trace_hash, "seed {seed}");
        assert_eq!(a.result, b.result, "seed {seed}");
    }
}

/// A few seeds with every test run; `cargo xtask sim` runs many.
#[test]
fn a_few_seeds() {
    for seed in 1_000_000..1_000_040 {
        let report = run(seed, Options::default());
        assert!(report.result.is_ok(), "{report}");
    }
}

//! Seeds that once found something, and what makes a seed worth its name.

use quorate_sim::{Options, run};

/// Runs each seed of a list.
fn run_all(list: &str, options: Options) {
    let first = list.lines().filter_map(|l| l.split_whitespace().next());
    for seed in first.filter_map(|word| word.parse().ok()) {
        let report = run(seed, options);
        assert!(report.result.is_ok(), "{report}");
    }
}

/// What was mended stays mended.
#[test]
fn seeds_that_found_something() {
    run_all(include_str!("../../seeds.txt"), Options::default());
}

/// The same with an owner and guests.
#[test]
fn seeds_with_guests_that_found_something() {
    let options = Options {
        guests: true,
        ..Options::default()
    };
    run_all(include_str!("../../guest_seeds.txt"), options);
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

/// The same under clients that flood: what replicas have in memory is looked at after each step.
#[test]
fn a_few_seeds_with_floods() {
    let options = Options {
        memory: true,
        ..Options::default()
    };
    for seed in 2_000_000..2_000_006 {
        let report = run(seed, options);
        assert!(report.result.is_ok(), "{report}");
    }
}

/// Calm groups in which one replica is faulty by round, and nothing else is. In the last three a primary let batches commit at one other alone,
/// and the two that were behind stayed for ever.
#[test]
fn seeds_by_round() {
    let options = Options {
        by_round: true,
        ..Options::default()
    };
    for seed in (0..300).chain([1745, 8571, 10427]) {
        let report = run(seed, options);
        assert!(report.result.is_ok(), "{report}");
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

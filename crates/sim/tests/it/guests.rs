//! Guests of a group under faults: what they are answered after their credentials were taken back.

use quorate_sim::sharing::Shares;
use quorate_sim::{Options, run};

/// Seeds with an owner and guests hold, and come to what they are to show: uses that succeed, and revocations of each kind. `GUEST_SEEDS` says how
/// many, 50 if nothing.
#[test]
fn no_success_after_a_revocation() {
    let options = Options {
        guests: true,
        ..Options::default()
    };
    let mut all = Shares::default();
    let seeds = std::env::var("GUEST_SEEDS").map_or(50, |n| n.parse().expect("a number"));
    for seed in 0..seeds {
        let report = run(seed, options);
        match &report.result {
            Ok(stats) => all.add(&stats.shares),
            Err(_) => panic!("{report}"),
        }
    }
    println!("{seeds} seeds: {all:?}");
    let enough = all.uses > 100 && all.serials > 20 && all.keys > 5 && all.epochs > 5;
    assert!(enough && all.given_back > 0, "{all:?}");
}

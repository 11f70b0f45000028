//! Guests of a group under faults: what they are answered after their credentials were taken back.

use quorate_sim::{Options, run};

/// Seeds with an owner and guests hold, and come to what they are to show: uses that succeed, and revocations. `GUEST_SEEDS` says how many,
/// 50 if nothing.
#[test]
fn no_success_after_a_revocation() {
    let options = Options {
        guests: true,
        ..Options::default()
    };
    let (mut uses, mut revocations) = (0, 0);
    let seeds = std::env::var("GUEST_SEEDS").map_or(50, |n| n.parse().expect("a number"));
    for seed in 0..seeds {
        let report = run(seed, options);
        match &report.result {
            Ok(stats) => {
                uses += stats.by_guests;
                revocations += stats.revocations;
            }
            Err(_) => panic!("{report}"),
        }
    }
    println!("{seeds} seeds: {uses} uses, {revocations} revocations");
    assert!(
        uses > 100 && revocations > 20,
        "{uses} uses, {revocations} revocations"
    );
}

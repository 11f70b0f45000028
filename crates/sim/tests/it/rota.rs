//! All replicas recover in turn, all the time.

use quorate_sim::rota::recover_in_turn;

/// A quarter of an hour of virtual time each; `cargo xtask recoveries --in-turn 24` runs days.
#[test]
fn all_recover_in_turn() {
    let mut recoveries = 0;
    for seed in 0..6 {
        let run = recover_in_turn(seed, 900);
        let stats = run.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        assert!(stats.recoveries >= run.turns.saturating_sub(1), "{stats:?}");
        recoveries += run.turns;
    }
    assert!(recoveries > 6 * 10, "{recoveries}");
}

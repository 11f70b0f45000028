//! All replicas recover in turn, all the time.

use quorate_sim::rota::recover_in_turn;

/// A quarter of an hour of virtual time each; `cargo xtask recoveries --in-turn 24` runs days.
#[test]
fn all_recover_in_turn() {
    let (mut recoveries, mut taken_back) = (0, 0);
    for seed in 0..6 {
        let run = recover_in_turn(seed, 900);
        let stats = run.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        let ended = stats.recoveries + stats.taken_back;
        assert!(ended >= run.turns.saturating_sub(1), "{stats:?}");
        recoveries += stats.recoveries;
        taken_back += stats.taken_back;
    }
    assert!(recoveries > 6 * 10, "{recoveries}");
    // Beside a silent replica of four nobody comes back by the others' help.
    assert!(taken_back > 0);
}

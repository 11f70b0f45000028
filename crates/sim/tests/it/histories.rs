//! Histories of one place, and what the selection makes of them.

use quorate_sim::histories;

/// What may have committed is selected, whoever is heard, and someone can always start a view.
#[test]
fn the_selection_keeps_what_may_have_committed() {
    for seed in 0..30_000 {
        let result = histories::run(seed);
        assert!(result.is_ok(), "{seed}: {result:?}");
    }
}

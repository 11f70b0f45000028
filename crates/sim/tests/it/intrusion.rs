//! An intruder who has more than f replicas over time.

use quorate_sim::intrusion::intrude;

/// With f of them in a window everything holds, whatever the intruder has kept of those before.
#[test]
fn f_in_a_window_are_borne() {
    let mut seizures = 0;
    for seed in 0..30 {
        let run = intrude(seed, 0);
        assert!(run.result.is_ok(), "seed {seed}: {:?}", run.result);
        seizures += run.seizures;
    }
    assert!(seizures > 30 * 3, "{seizures}");
}

/// With one more the same intruder breaks the group's safety: a view that it has forged gives a place to another batch than the one that was
/// committed there, which a correct replica sees before it would execute that. So what the test above looks at can be seen.
#[test]
fn one_more_is_too_many() {
    let broken = |seed| intrude(seed, 1).result.err();
    let seen = (0..20).filter_map(broken).filter(|failure| {
        failure.property == "agreement" || failure.what.contains("to another batch than the one")
    });
    assert!(seen.count() >= 10);
}

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
    assert!(seizures > 30 * 2, "{seizures}");
}

/// With one more the same intruder breaks the group: what this test looks at can be seen.
#[test]
fn one_more_is_too_many() {
    let broken = (0..10).filter(|seed| {
        let run = intrude(*seed, 1);
        let what = run.result.map_err(|failure| failure.property);
        matches!(what, Err("agreement" | "correct replicas go on"))
    });
    assert!(broken.count() >= 5);
}

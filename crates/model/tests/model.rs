//! What the search rests on. The scenarios themselves are explored by `cargo xtask model`.

use quorate_model::{Counts, Explorer, Options, Scenario, explore, scenario};

fn named(name: &str) -> Scenario {
    let mut all = scenario::all().into_iter();
    all.find(|s| s.name == name).expect("a scenario")
}

fn counts(name: &str, options: Options) -> Counts {
    let counts = explore(&named(name), options);
    counts.unwrap_or_else(|violation| panic!("{name}: {violation}"))
}

/// The smallest scenario, whole; in some of its ends all have executed, and the search says the same twice.
#[test]
fn a_small_scenario_holds() {
    let first = counts("backup-1", Options::default());
    assert!(first.complete && first.states > 50 && first.live > 0);
    assert_eq!(first, counts("backup-1", Options::default()));
}

/// A search that hears only words of one subject for a step finds all that the group may say and do that one finds that tries all
/// words together.
#[test]
fn subjects_do_not_matter() {
    let said = Options {
        said: true,
        ..Options::default()
    };
    let all_subjects = Options {
        all_subjects: true,
        ..said
    };
    for name in ["backup-1", "primary-1"] {
        let (few, all) = (counts(name, said), counts(name, all_subjects));
        assert!(few.said.0 > 50);
        assert_eq!(few.said, all.said, "{name}");
    }
}

/// What a fingerprint leaves out does not matter: replicas with equal fingerprints go on alike, whatever they hear.
#[test]
fn fingerprints_leave_out_what_does_not_matter() {
    for (name, most) in [("primary-1", usize::MAX), ("old-primary-1", 2_000)] {
        let options = Options {
            keep: 100,
            most,
            ..Options::default()
        };
        let mut explorer = Explorer::new(&named(name), options).expect("a right beginning");
        explorer
            .run()
            .unwrap_or_else(|violation| panic!("{name}: {violation}"));
        let compared = explorer.verify();
        let compared = compared.unwrap_or_else(|violation| panic!("{name}: {violation}"));
        assert!(compared > 1_000, "{name}: {compared}");
    }
}

/// A search that is stopped says so.
#[test]
fn a_search_can_be_stopped() {
    let few = Options {
        most: 20,
        ..Options::default()
    };
    let counts = counts("primary-1", few);
    assert!(!counts.complete && counts.states < 200);
}

//! What the search rests on. The scenarios themselves are explored by `cargo xtask model`.

use quorate_model::{Counts, Explorer, Options, Scenario, Which, explore, scenario};

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
        said: Some(Which::All),
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

/// Reduced, a scenario has far fewer states, and in it correct replicas say all that they say otherwise as far as anything can come of it.
fn compare_reduced(name: &str) {
    let lasting = Options {
        said: Some(Which::Lasting),
        ..Options::default()
    };
    let explored = |reduced| {
        let scenario = Scenario {
            reduced,
            live_every: 0,
            ..named(name)
        };
        let counts = explore(&scenario, lasting);
        counts.unwrap_or_else(|violation| panic!("{name}: {violation}"))
    };
    let (whole, reduced) = (explored(false), explored(true));
    assert!(whole.complete && reduced.complete);
    assert!(reduced.states * 5 < whole.states, "{name}");
    assert!(whole.said.0 > 3, "{name}: {}", whole.said.0);
    assert_eq!(whole.said, reduced.said, "{name}");
}

#[test]
fn what_reduced_scenarios_leave_out_leads_to_nothing_else() {
    compare_reduced("backup-view-1");
}

#[test]
#[ignore = "minutes"]
fn nor_does_it_where_a_primary_is_faulty() {
    compare_reduced("old-primary-1");
    compare_reduced("new-primary-1");
}

/// What a fingerprint leaves out does not matter: replicas with equal fingerprints go on alike, whatever they hear.
#[test]
fn fingerprints_leave_out_what_does_not_matter() {
    let some = [
        ("primary-1", usize::MAX),
        ("old-primary-1", 2_000),
        ("old-primary-2", 200),
    ];
    for (name, most) in some {
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

//! Twins: a few schedules of each kind; `cargo xtask twins` runs them all.

use quorate_sim::twins::Plan;

fn run(plan: Plan, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let schedule = plan.schedule(number);
        let result = schedule.run();
        assert!(result.is_ok(), "{number}: {schedule}: {result:?}");
    }
}

/// One twin, and all ways to cut one view's votes in two.
#[test]
fn all_cuts_of_one_view() {
    let plan = Plan {
        replicas: 4,
        twins: 1,
        views: 1,
        phases: 2,
    };
    assert_eq!(plan.count(), 4 * 16 * 16);
    run(plan, 0..plan.count());
}

/// One cut in each of two views, for all messages.
#[test]
fn all_cuts_of_two_views() {
    let plan = Plan {
        replicas: 4,
        twins: 1,
        views: 2,
        phases: 1,
    };
    assert_eq!(plan.count(), 4 * 16 * 16);
    run(plan, 0..plan.count());
}

/// One cut in each of three views, for all messages: each seventeenth schedule, which has all twins and all cuts of each view.
#[test]
fn cuts_of_three_views() {
    let plan = Plan {
        replicas: 4,
        twins: 1,
        views: 3,
        phases: 1,
    };
    assert_eq!(plan.count(), 4 * 16 * 16 * 16);
    run(plan, (0..plan.count()).step_by(17));
}

/// One twin of seven, and all ways to cut one view in two.
#[test]
fn all_cuts_of_one_view_of_seven_with_one_twin() {
    let plan = Plan {
        replicas: 7,
        twins: 1,
        views: 1,
        phases: 1,
    };
    assert_eq!(plan.count(), 7 * 128);
    run(plan, 0..plan.count());
}

/// Any two twins of seven, and the ways to cut one view in two: each eleventh, which has all pairs.
#[test]
fn cuts_of_one_view_of_seven() {
    let plan = Plan {
        replicas: 7,
        twins: 2,
        views: 1,
        phases: 1,
    };
    assert_eq!(plan.count(), 21 * 256);
    run(plan, (0..plan.count()).step_by(11));
}

/// Two twins of seven, cut apart in three views; a thousand by chance.
#[test]
fn two_twins_of_seven() {
    let plan = Plan {
        replicas: 7,
        twins: 2,
        views: 3,
        phases: 3,
    };
    for seed in 0..1000 {
        let schedule = plan.sample(seed);
        assert_eq!(schedule.twins.len(), 2);
        let result = schedule.run();
        assert!(result.is_ok(), "{seed}: {schedule}: {result:?}");
    }
}

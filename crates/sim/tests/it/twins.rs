//! Twins: a few schedules of each kind; `cargo xtask twins` runs them all.

use quorate_sim::twins::{Plan, Schedule};

/// Runs these, and sees that the cuts of the last view were in force in a tenth of them: what follows from the cuts of a view that nobody goes to is not
/// looked at.
fn run(plan: Plan, schedules: impl Iterator<Item = Schedule>) {
    let (mut all, mut reached) = (0, 0);
    for schedule in schedules {
        match schedule.run() {
            Ok(ran) => reached += usize::from(ran.last_view.0 + 1 >= plan.views as u64),
            Err(failure) => panic!("{schedule}: {failure:?}"),
        }
        all += 1;
    }
    assert!(10 * reached >= all, "{reached} of {all}: {plan:?}");
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
    run(plan, (0..plan.count()).map(|number| plan.schedule(number)));
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
    run(plan, (0..plan.count()).map(|number| plan.schedule(number)));
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
    let some = (0..plan.count()).step_by(17);
    run(plan, some.map(|number| plan.schedule(number)));
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
    run(plan, (0..plan.count()).map(|number| plan.schedule(number)));
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
    let some = (0..plan.count()).step_by(11);
    run(plan, some.map(|number| plan.schedule(number)));
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
    let drawn = (0..1000).map(|seed| plan.sample(seed));
    run(plan, drawn.inspect(|it| assert_eq!(it.twins.len(), 2)));
}

//! Recoveries of a program that stands in the place of a replica.

mod astray;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_net::group::{Files, Purpose};
use quorate_wire::KeyPair;
use quorate_wire::message::RECOVERY_STEPS;

use super::super::children::{Certificates, Launch, Role, Starter};
use super::super::intentions::WAIT;
use super::super::{tell, window};
use super::conditions::UNSEEN;
use super::*;

const ID: u8 = 2;

fn group() -> Arc<Group> {
    let key = |seed| KeyPair::from_seed(&[seed; 32]).public();
    let replicas = (0..4).map(|i| (format!("127.0.0.1:{}", 7400 + i), key(1 + i as u8)));
    let (files, purpose) = (Files::default(), Purpose::Service);
    Arc::new(Group::new("test", replicas.collect(), Vec::new(), files, purpose).unwrap())
}

/// What a replica says that has just recovered, or wants that to be believed.
fn recovered() -> Report {
    Report {
        uptime_ms: 0,
        steps: vec![0; RECOVERY_STEPS.len()],
        ..window::tests::report(None)
    }
}

/// All others work; and in the place of this one an intruder says at any time that it has just recovered.
fn reports() -> Reports {
    let report = |id| (ReplicaId(id), recovered());
    (0..4).map(report).collect()
}

/// These are about to recover.
fn intending(ids: &[u8]) -> Reports {
    let mut reports = reports();
    for id in ids {
        let report = reports.get_mut(&ReplicaId(*id)).unwrap();
        report.recovery_intended = true;
    }
    reports
}

/// What is intended was said for long enough.
fn let_wait_pass(recoveries: &mut Recoveries) {
    let intended = recoveries.intended.as_mut().unwrap();
    intended.since = intended.since.checked_sub(WAIT).unwrap();
}

/// A program in the place of a replica: it tells its supervisor what is in the file `said` as long as it lives, and does not end when it is
/// asked to.
fn children(place: &Path, recovers: Option<u8>) -> Children {
    children_that("", place, recovers)
}

/// The same, after a word of the shell's.
fn children_that(word: &str, place: &Path, recovers: Option<u8>) -> Children {
    children_with((None, None), word, place, recovers)
}

fn children_with(
    (certificates, note): (Option<Certificates>, Option<PathBuf>),
    word: &str,
    place: &Path,
    recovers: Option<u8>,
) -> Children {
    let program = place.join("program");
    let said = place.join("said");
    let script = format!(
        "#!/bin/sh\n{word}\ntrap '' TERM\nwhile true; do cat {} 2>&1; sleep 0.02; done\n",
        said.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let launch = Launch {
        role: Role::Replica(ID),
        log: place.join("messages.log"),
        data: Some(place.join("data")),
        note,
        account: None,
        arguments: Vec::new(),
    };
    let starter = Starter {
        program,
        programs: None,
        certificates,
        key_refresh: None,
    };
    Children::start_with(starter, vec![launch], true, recovers).unwrap()
}

fn say(place: &Path, report: Option<&Report>) {
    let mut bytes = Vec::new();
    if let Some(report) = report {
        tell(report, &mut bytes).unwrap();
    }
    // In one go: the program may be reading it.
    std::fs::write(place.join("new"), bytes).unwrap();
    std::fs::rename(place.join("new"), place.join("said")).unwrap();
}

fn recoveries(place: &Path) -> Recoveries {
    let (records, _) = Records::load(place);
    Recoveries::new(group(), Schedule::load(place), records, place)
}

/// Sets another period each time, in which the turn of this one is on and will be for a while.
fn setter() -> impl FnMut(&mut Recoveries, &mut Children) {
    let now = now_ms();
    let in_turn = move |every: &u64| {
        let at = |at: u64| (at % (every * 1000)) * 4 / (every * 1000) == u64::from(ID);
        at(now) && at(now + 60_000)
    };
    let mut periods = (3_600..).filter(in_turn);
    move |recoveries, children| {
        let every = periods.next().unwrap();
        recoveries.set(Some(every), None, children).unwrap();
    }
}

fn going() -> Going {
    Going::new(ID, Instant::now(), Duration::ZERO)
}

/// Looks until that is so.
async fn until(
    recoveries: &mut Recoveries,
    children: &mut Children,
    so: impl Fn(&Recoveries, &Children) -> bool,
) {
    for _ in 0..3_000 {
        children.look_after().unwrap();
        recoveries.look(&reports(), children);
        if so(recoveries, children) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it takes too long");
}

/// Whatever a replica says that is not the process which was started to recover, on the network or before it ended: its recovery is no sooner
/// over. The one that was started is believed.
#[tokio::test]
async fn only_the_new_process_ends_a_recovery() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, Some(&recovered()));
    let mut children = children(place, Some(ID));
    let mut recoveries = recoveries(place);
    recoveries.going = Some(going());
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    let first = recoveries.records.of(ID).last.unwrap();

    // It has been taken over since, and says so all the time; it does not end, and must be killed.
    recoveries
        .begin(ID, false, &reports(), &mut children)
        .unwrap();
    children.hurry(ID);
    say(place, None);
    until(&mut recoveries, &mut children, |_, c| {
        c.recovers_since(ID).is_some()
    })
    .await;
    let until_then = Instant::now() + Duration::from_secs(1);
    until(&mut recoveries, &mut children, |_, _| {
        Instant::now() > until_then
    })
    .await;
    assert!(recoveries.is_busy(), "nothing was heard of the new one");
    assert_eq!(recoveries.records.of(ID).last, Some(first.clone()));
    say(place, Some(&recovered()));
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    let last = recoveries.records.of(ID).last.unwrap();
    assert!(last.took_ms >= 1_000, "by the supervisor's clock: {last:?}");
    children.hurry(ID);
}

/// A start that fails with what the replica had is followed by one without its state, and then by one without all of it.
#[tokio::test]
async fn what_fails_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let (place, data) = (directory.path(), directory.path().join("data"));
    for name in ["log.former", "blobs"] {
        std::fs::create_dir_all(data.join(name)).unwrap();
    }
    std::fs::write(data.join("former.redb"), b"").unwrap();
    say(place, Some(&recovered()));
    let fails = format!(
        "cd {}; ls >> ../starts; echo . >> ../starts; [ -e former.redb -o -e blobs ] && exit 70",
        data.display()
    );
    let mut children = children_that(&fails, place, Some(ID));
    let mut recoveries = recoveries(place);
    recoveries.going = Some(going());
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    children.hurry(ID);
    let starts = std::fs::read_to_string(place.join("starts")).unwrap();
    let starts: Vec<&str> = starts.split(".\n").collect();
    assert!(starts[0].contains("former.redb"), "{starts:?}");
    assert_eq!(starts[1..], ["blobs\nlog.former\n", "", ""]);
}

/// A supervisor that is started anew goes on with the recovery that it finds, and then others can begin.
#[tokio::test]
async fn a_new_supervisor_ends_a_recovery() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, Some(&recovered()));
    let begun = now_ms() - 60_000;
    Records::load(place).0.begins(ID, begun).unwrap();
    let mut children = children(place, Some(ID));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut recoveries = recoveries(place);
    assert!(recoveries.is_busy());
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    let last = recoveries.records.of(ID).last.unwrap();
    assert!(last.took_ms >= 60_000, "from its begin: {last:?}");
    recoveries
        .begin(ID, false, &reports(), &mut children)
        .unwrap();
    children.hurry(ID);
}

/// Where nothing can be noted a recovery begins all the same, and that is told.
#[tokio::test]
async fn a_full_disk_keeps_nobody_from_recovering() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let mut recoveries = recoveries(&place.join("no directory"));
    let told = recoveries.begin(ID, false, &reports(), &mut children);
    assert!(told.unwrap().contains("not noted"));
    children.hurry(ID);
    until(&mut recoveries, &mut children, |_, c| {
        c.recovers_since(ID).is_some()
    })
    .await;
    children.hurry(ID);
}

/// A recovery waits for certificates of all others but f to be seen, and for half a minute only: where the disk takes none of them it would wait for ever.
#[tokio::test]
async fn certificates_that_are_never_noted_hold_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let identities: Vec<_> = (50..54)
        .map(|seed| KeyPair::from_seed(&[seed; 32]).public())
        .collect();
    let group = Arc::new((*group()).clone().with_identities(&identities).unwrap());
    let certificates = Certificates::new(&group, &place.join("no directory"));
    let mut children = children_with((Some(certificates), None), "", place, None);
    let mut recoveries = recoveries(place);
    let refused = recoveries.begin(ID, false, &reports(), &mut children);
    assert!(refused.unwrap_err().contains("certificate"));
    assert!(!recoveries.is_busy());
    recoveries.started = Instant::now().checked_sub(UNSEEN).unwrap();
    let begun = recoveries.begin(ID, false, &reports(), &mut children);
    assert!(begun.unwrap().contains("ALARM"));
    assert!(recoveries.is_busy());
    children.hurry(ID);
}

/// Of replicas that are to recover at the same time the one with the lowest number does, by force as well; and who hears of another one first says
/// nothing of its own.
#[tokio::test]
async fn of_those_that_are_about_to_the_lowest_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let mut recoveries = recoveries(place);
    for (other, force) in [(1, false), (3, false), (3, true)] {
        let refused = recoveries.intend(ID, force, None, &intending(&[other]), &mut children);
        let expected = format!("replica {other} is about to recover");
        assert!(refused.unwrap_err().contains(&expected));
        assert!(!recoveries.is_busy());
    }
    for force in [false, true] {
        let (answers, mut answered) = mpsc::channel(4);
        let asked = recoveries.intend(ID, force, Some(answers), &reports(), &mut children);
        assert_eq!(asked, Ok(None));
        let again = recoveries.intend(ID, force, None, &reports(), &mut children);
        assert!(again.unwrap_err().contains("one at a time"));
        // However long it took to come here.
        recoveries.intended.as_mut().unwrap().since = Instant::now();
        recoveries.look(&intending(&[ID, 3]), &mut children);
        assert!(recoveries.intended.is_some(), "it waits");
        let_wait_pass(&mut recoveries);
        recoveries.look(&intending(&[1, ID, 3]), &mut children);
        assert!(!recoveries.is_busy());
        assert!(matches!(answered.recv().await, Some(Answer::Note(_))));
        match answered.recv().await {
            Some(Answer::Failed(why)) => assert!(why.contains("replica 1"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let asked = recoveries.intend(ID, false, None, &reports(), &mut children);
    assert_eq!(asked, Ok(None));
    let_wait_pass(&mut recoveries);
    recoveries.look(&intending(&[ID, 3]), &mut children);
    assert!(recoveries.going.is_some());
    children.hurry(ID);
}

/// An operator has its way against one that says for ever that it recovers; the clock does not, nor an operator who does not insist.
#[tokio::test]
async fn a_liar_does_not_disable_force() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let mut recoveries = recoveries(place);
    let mut reports = reports();
    let liar = reports.get_mut(&ReplicaId(0)).unwrap();
    (liar.recovering, liar.active) = (Some(Default::default()), false);
    recoveries.note_forgetful(&reports);
    for force in [false, true] {
        let refused = recoveries.begin(ID, force, &reports, &mut children);
        assert!(refused.unwrap_err().contains("recovers already"));
    }
    let before = Instant::now().checked_sub(LONG + Duration::from_secs(1));
    *recoveries.forgetful.get_mut(&ReplicaId(0)).unwrap() = before.unwrap();
    recoveries.note_forgetful(&reports);
    assert!(
        recoveries
            .begin(ID, false, &reports, &mut children)
            .is_err()
    );
    assert!(recoveries.begin(ID, true, &reports, &mut children).is_ok());
    children.hurry(ID);
}

/// A replica that goes back to what it had has missed its recovery, also where it does not work with that: others can recover then, and so can it.
#[tokio::test]
async fn one_that_goes_back_and_waits_for_ever_recovers_again() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let waits = Report {
        went_back: true,
        active: false,
        steps: Vec::new(),
        ..recovered()
    };
    say(place, Some(&waits));
    let mut children = children(place, Some(ID));
    let mut recoveries = recoveries(place);
    let (answers, mut answered) = mpsc::channel(4);
    let going = recoveries.going.insert(going());
    going.answers = Some(answers);
    // It has time to take part, and has had it.
    going.gone_since = Instant::now().checked_sub(Duration::from_secs(9));
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    let missed = recoveries.records.of(ID).missed.unwrap();
    assert!(missed.why.ends_with(IDLE), "{missed:?}");
    let mut last = None;
    while let Some(answer) = answered.recv().await {
        last = Some(answer);
    }
    assert_eq!(last, Some(Answer::Failed(missed.why)));
    recoveries
        .begin(ID, false, &reports(), &mut children)
        .unwrap();
    children.hurry(ID);
    say(place, Some(&recovered()));
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    assert_eq!(recoveries.records.of(ID).missed, None);
    children.hurry(ID);
}

/// A recovery that takes too long is begun anew: with all that the replica had, then without its state. Its log stays, which it may have to go back to.
#[tokio::test]
async fn what_takes_too_long_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (place, data) = (directory.path(), directory.path().join("data"));
    std::fs::create_dir_all(data.join("log.former")).unwrap();
    std::fs::write(data.join("former.redb"), b"").unwrap();
    let waits = Report {
        recovering: Some(Default::default()),
        active: false,
        ..recovered()
    };
    say(place, Some(&waits));
    let lists = format!(
        "cd {}; ls >> ../starts; echo . >> ../starts",
        data.display()
    );
    let mut children = children_that(&lists, place, Some(ID));
    let mut recoveries = recoveries(place);
    let first = Duration::from_millis(100);
    recoveries.going.insert(going()).patience = first;
    until(&mut recoveries, &mut children, |r, _| {
        r.going.as_ref().is_some_and(|g| g.patience >= first * 16)
    })
    .await;
    say(place, Some(&recovered()));
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    let starts = std::fs::read_to_string(place.join("starts")).unwrap();
    let starts: Vec<&str> = starts.split(".\n").collect();
    let all = "former.redb\nlog.former\n";
    assert_eq!(starts[..3], [all, all, "log.former\n"]);
    assert!(
        starts[3..]
            .iter()
            .all(|s| s.is_empty() || *s == "log.former\n")
    );
    children.hurry(ID);
}

/// An operator can have the recovery that goes on begun anew, by force; who has asked for it before is told. There is one at a time.
#[tokio::test]
async fn an_operator_begins_it_anew() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, Some(ID));
    let mut recoveries = recoveries(place);
    let (answers, mut answered) = mpsc::channel(4);
    recoveries.going.insert(going()).answers = Some(answers);
    let begun = children.recovers_since(ID);
    assert!(begun.is_some());
    let mut begin = |id, force| recoveries.begin(id, force, &reports(), &mut children);
    assert!(begin(ID, false).unwrap_err().contains("--force"));
    assert!(begin(1, true).unwrap_err().contains("one at a time"));
    begin(ID, true).unwrap();
    assert!(matches!(answered.recv().await, Some(Answer::Failed(_))));
    children.hurry(ID);
    until(&mut recoveries, &mut children, |_, c| {
        c.recovers_since(ID)
            .is_some_and(|since| Some(since) != begun)
    })
    .await;
    assert!(recoveries.is_busy());
    children.hurry(ID);
}

/// Where a replica that ends never comes back none is had recover, nor is there a schedule.
#[tokio::test]
async fn none_recovers_that_could_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let protocol = quorate_net::group::Protocol {
        durability: Durability::Memory,
        ..Default::default()
    };
    let (records, _) = Records::load(place);
    let schedule = Schedule::load(place);
    let group = (*group()).clone().with_protocol(protocol);
    let mut recoveries = Recoveries::new(Arc::new(group), schedule, records, place);
    let refused = recoveries.begin(ID, true, &reports(), &mut children);
    assert!(refused.unwrap_err().contains("memory"));
    assert!(!recoveries.is_busy());
    let refused = recoveries.set(Some(3600), None, &mut children);
    assert!(refused.unwrap_err().to_string().contains("memory"));
    assert_eq!(recoveries.schedule.every(), None);
    recoveries.set(Some(0), None, &mut children).unwrap();
    children.hurry(ID);
}

/// A group of one has nobody to recover by: it has no schedule either, of which each turn would be an alarm.
#[tokio::test]
async fn one_alone_has_no_schedule() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let (records, _) = Records::load(place);
    let schedule = Schedule::load(place);
    let replica = (
        "127.0.0.1:7400".to_string(),
        KeyPair::from_seed(&[1; 32]).public(),
    );
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("test", vec![replica], Vec::new(), files, purpose).unwrap();
    let mut recoveries = Recoveries::new(Arc::new(group), schedule, records, place);
    let refused = recoveries.set(Some(3600), None, &mut children);
    assert!(refused.unwrap_err().to_string().contains("one replica"));
    assert_eq!(recoveries.schedule.every(), None);
    recoveries.set(Some(0), None, &mut children).unwrap();
    children.hurry(ID);
}

/// A turn that is put off is not lost by another schedule; one that was had is not had again.
#[tokio::test]
async fn another_schedule_drops_no_turn() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    say(place, None);
    let mut children = children(place, None);
    let mut recoveries = recoveries(place);
    let now = now_ms();
    let mut set = setter();
    set(&mut recoveries, &mut children);
    let nobody = Reports::new();
    assert_eq!(recoveries.look_at_clock(&nobody, &mut children), None);
    assert!(
        recoveries.turns.put_off().is_empty(),
        "it was before there was a schedule"
    );
    recoveries.turns = Turns::new(&recoveries.schedule, 4, now, |_, _| false);
    recoveries.look_at_clock(&nobody, &mut children);
    assert_eq!(recoveries.turns.put_off(), [ID].into());
    set(&mut recoveries, &mut children);
    assert_eq!(recoveries.look_at_clock(&reports(), &mut children), None);
    let_wait_pass(&mut recoveries);
    recoveries.look(&reports(), &mut children);
    assert!(recoveries.going.is_some(), "it has its turn");
    children.hurry(ID);
    say(place, Some(&recovered()));
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    set(&mut recoveries, &mut children);
    assert_eq!(recoveries.look_at_clock(&reports(), &mut children), None);
    children.hurry(ID);
}

/// A schedule that is set while a turn is about to begin, or goes on, has the replica recover once and no more.
#[tokio::test]
async fn a_schedule_that_is_set_within_a_turn_begins_no_second_recovery() {
    let long_ago = Ended {
        at_ms: 1,
        took_ms: 1,
        shutdown_ms: 1,
        check: None,
        steps: Vec::new(),
        ordered: None,
    };
    for last in [None, Some(long_ago)] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        say(place, None);
        let mut children = children(place, None);
        let mut recoveries = recoveries(place);
        if let Some(last) = last {
            recoveries.records.ended(ID, last, 1).unwrap();
        }
        let mut set = setter();
        set(&mut recoveries, &mut children);
        recoveries.turns = Turns::new(&recoveries.schedule, 4, now_ms(), |_, _| false);
        recoveries.look(&reports(), &mut children);
        assert!(recoveries.intended.is_some(), "it is about to begin");
        set(&mut recoveries, &mut children);
        assert!(recoveries.intended.is_none());
        recoveries.look(&reports(), &mut children);
        let_wait_pass(&mut recoveries);
        recoveries.look(&reports(), &mut children);
        assert!(recoveries.going.is_some(), "it has its turn");
        set(&mut recoveries, &mut children);
        children.hurry(ID);
        say(place, Some(&recovered()));
        until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
        recoveries.look(&reports(), &mut children);
        assert!(!recoveries.is_busy(), "it has had it");
        children.hurry(ID);
    }
}

/// A replica that can't be reached from here is back all the same, a little later, and that is told.
#[test]
fn one_that_can_not_be_reached_is_back() {
    let mut going = going();
    let (back, waits) = (recovered(), window::tests::report(None));
    assert!(!going.is_back(true));
    going.hears(Some(&back));
    assert!(going.is_back(true) && !going.is_back(false));
    going.back_since = Instant::now().checked_sub(Duration::from_secs(11));
    going.hears(Some(&back));
    assert!(going.is_back(false));
    going.hears(Some(&waits));
    assert!(!going.is_back(true));
}

//! `quorate supervise`: one replica of a group under a process that looks after it from outside, and runs only programs that it is to run.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command_line::assert_said;
use crate::harness::{
    Finished, Group, Patience, Status, eventually, finish, left_out, program, quorate,
    require_fuse, run,
};

/// The process, which ends with this.
struct Supervisor {
    child: Child,
    log: PathBuf,
}

impl Supervisor {
    fn start(binary: &Path, group: &Group, id: u8, list: &Path) -> Supervisor {
        Supervisor::start_with(binary, group, id, list, &[])
    }

    fn start_with(
        binary: &Path,
        group: &Group,
        id: u8,
        list: &Path,
        options: &[&str],
    ) -> Supervisor {
        let log = group.directory().join(format!("supervisor-{id}.log"));
        let file = File::create(&log).expect("a log");
        let mut command = program(binary.to_str().expect("a path in UTF-8"));
        command.args(["supervise", "--id", &id.to_string(), "--group"]);
        command.arg(group.file()).arg("--programs").arg(list);
        command.args(options);
        let child = command.stdout(Stdio::null()).stderr(file).spawn();
        Supervisor {
            child: child.expect("a supervisor starts"),
            log,
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    /// Kills it at once.
    fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// The process of its replica, if there is one.
    fn replica(&self) -> Option<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(path).expect("the list of children");
        let pid = children.split_whitespace().next()?.parse().ok()?;
        Pid::from_raw(pid)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("  the supervisor said:\n{}", self.said());
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn recover(group: &Group, id: u8) -> Finished {
    recover_at(&group.directory().join(format!("replica-{id}")), id)
}

/// By the supervisor of this directory.
fn recover_at(directory: &Path, id: u8) -> Finished {
    let mut command = quorate();
    command.args(["recover", &id.to_string(), "--json", "--data"]);
    command.arg(directory);
    finish(&mut command, Patience::default())
}

/// A program takes the place of another under its name.
fn put(program: &Path, content: &[u8]) {
    let beside = program.with_extension("new");
    let mut options = OpenOptions::new();
    use std::os::unix::fs::OpenOptionsExt;
    let file = options.create(true).truncate(true).write(true).mode(0o755);
    let mut file = file.open(&beside).expect("a file");
    file.write_all(content).expect("it is written");
    drop(file);
    fs::rename(&beside, program).expect("it has its name");
}

/// The replica recovers while people work. When somebody has changed the program, or takes it away, the replica recovers all the same, and is started again when it
/// dies: from the copy that its supervisor has kept, with an alarm until the right program is there again. What was taken off the list is not started.
#[test]
fn a_supervised_replica_recovers_and_runs_what_is_listed() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    group.kill(3);
    let right = fs::read(env!("CARGO_BIN_EXE_quorate")).expect("the program");
    let binary = group.directory().join("quorate");
    let list = group.directory().join("programs");
    put(&binary, &right);
    let mut digests = Command::new(&binary);
    let line = run(digests.arg("programs"));
    fs::write(&list, format!("# what may run\n{line}")).expect("a list");
    let supervisor = Supervisor::start(&binary, &group, 3, &list);
    let mount = group.mount();
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                let content = format!("written {written} times");
                let path = mount.path().join("work");
                fs::write(&path, &content).expect("the group goes on");
                let read = fs::read_to_string(&path).expect("the group goes on");
                assert_eq!(read, content);
                written += 1;
                thread::sleep(Duration::from_millis(20));
            }
        });
        let before = supervisor.replica();
        let mut ended = None;
        // Refused as long as it has not heard from the others.
        eventually("it recovers", || {
            ended.insert(recover(&group, 3)).code() == 0
        });
        let told: Value = serde_json::from_str(&ended.expect("it has ended").stdout).expect("JSON");
        assert!(told["right"].as_u64() > Some(0), "{told}");
        assert_ne!(supervisor.replica(), before);
        over.store(true, Ordering::Relaxed);
        work.join().expect("no error");
    });
    group.wait_until_they_agree(&[0, 1, 2, 3]);

    let mut tampered = right.clone();
    tampered.push(0);
    put(&binary, &tampered);
    let digest = |program: &Path| {
        let line = run(quorate().arg("programs").arg(program));
        line.split_whitespace()
            .next()
            .expect("a digest")
            .to_string()
    };
    let (wrong, good) = (digest(&binary), line.split_whitespace().next());
    let alarms = || {
        let mut asked = quorate();
        asked.args(["schedule", "--json", "--data"]);
        asked.arg(group.directory().join("replica-3"));
        let told: Value = serde_json::from_str(&run(&mut asked)).expect("JSON");
        told["alarms"].to_string()
    };
    // Told before anything is started.
    eventually("there is an alarm", || {
        let said = supervisor.said();
        said.contains("ALARM: ") && said.contains(&wrong)
    });
    assert!(alarms().contains(&wrong) && alarms().contains(good.expect("a digest")));
    let runs_what_is_right = |pid: Pid| {
        let content = fs::read(format!("/proc/{}/exe", pid.as_raw_nonzero()));
        assert!(content.expect("it runs") == right, "it runs another one");
    };
    let before = supervisor.replica().expect("it runs");
    let ended = recover(&group, 3);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let after = supervisor.replica().expect("it runs");
    assert_ne!(before, after);
    runs_what_is_right(after);
    fs::remove_file(&binary).expect("it goes");
    kill_process(after, Signal::KILL).expect("it runs");
    eventually("it is started again", || {
        supervisor.replica().is_some_and(|pid| pid != after)
    });
    Status::wait_until_they_agree(group.directory(), &[0, 1, 2, 3]);
    runs_what_is_right(supervisor.replica().expect("it runs"));
    assert!(alarms().contains("can't read the program"));
    put(&binary, &right);
    eventually("the alarm has ended", || alarms() == "[]");
    assert!(supervisor.said().contains("on the list of programs again"));

    // Not what was taken off.
    fs::write(&list, "# none\n").expect("a list");
    let before = supervisor.replica().expect("it runs");
    assert_said(&recover(&group, 3), 1, &["not on the list of programs"]);
    assert_eq!(supervisor.replica(), Some(before));
    kill_process(before, Signal::KILL).expect("it runs");
    eventually("there is an alarm", || {
        let said = supervisor.said();
        said.contains("ALARM: replica 3 is not started") && said.contains("not on the list")
    });
    assert_eq!(supervisor.replica(), None);
    fs::write(&list, line).expect("a list");
    eventually("it is started again", || supervisor.replica().is_some());
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// A supervisor that may not start the program it is to run stays, says so, and starts it when it may.
#[test]
fn a_supervisor_waits_for_a_program_that_is_listed() {
    let mut group = Group::start();
    group.kill(3);
    let list = group.directory().join("programs");
    fs::write(&list, "# none\n").expect("a list");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let supervisor = Supervisor::start(binary, &group, 3, &list);
    eventually("there is an alarm", || {
        let said = supervisor.said();
        said.contains("ALARM: replica 3 is not started") && said.contains("not on the list")
    });
    assert_eq!(supervisor.replica(), None);
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    eventually("it is started", || supervisor.replica().is_some());
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// Two operators have a replica recover at the same moment, each on a machine of its own. One recovery is put off, and is had later; with both of them away
/// neither would come back.
#[test]
fn of_two_recoveries_at_the_same_moment_one_is_put_off() {
    let mut group = Group::start();
    let list = group.directory().join("programs");
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let mut supervisor = |id| {
        group.kill(id);
        let supervisor = Supervisor::start(binary, &group, id, &list);
        group.wait_until_they_agree(&[0, 1, 2, 3]);
        supervisor
    };
    let _supervisors = [2, 3].map(&mut supervisor);
    let ready = |id: u8| {
        // Refused at once, as long as it has not heard of the others.
        eventually("it may recover", || recover(&group, id).code() == 0);
    };
    [2, 3].into_iter().for_each(ready);
    // Which is first is chance, and so it is whether a supervisor hears enough of the others just then.
    eventually("one is put off", || {
        let (two, three): (Finished, Finished) = thread::scope(|scope| {
            let group = &group;
            let asked = [2, 3].map(|id| scope.spawn(move || recover(group, id)));
            asked
                .map(|asked| asked.join().expect("it has ended"))
                .into()
        });
        let is_put_off = |it: &Finished| it.code() == 1 && it.stderr.contains("about to recover");
        println!("{} {}", two.stderr, three.stderr);
        (two.code() == 0 && is_put_off(&three)) || (three.code() == 0 && is_put_off(&two))
    });
    [2, 3].into_iter().for_each(ready);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// A supervisor is killed in the midst of a recovery. The next one brings it to its end, and begins others.
#[test]
fn a_recovery_outlives_its_supervisor() {
    let mut group = Group::start();
    group.kill(3);
    let list = group.directory().join("programs");
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let mut supervisor = Supervisor::start(binary, &group, 3, &list);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let records = group.directory().join("replica-3/recoveries.json");
    let begun = || {
        let records = fs::read(&records).unwrap_or_default();
        let records: Value = serde_json::from_slice(&records).unwrap_or_default();
        records["3"]["begun"].as_bool()
    };
    let before = supervisor.replica();
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut ended = None;
            // Refused as long as it has not heard from the others.
            eventually("it begins", || {
                let ended = ended.insert(recover(&group, 3));
                !ended.stderr.contains("the group would stop")
            });
            ended.expect("it has ended")
        });
        eventually("another process has been started", || {
            supervisor.replica().is_some_and(|now| Some(now) != before)
        });
        let another = supervisor.replica().expect("it runs");
        kill_process(another, Signal::STOP).expect("it lives");
        assert_eq!(begun(), Some(true));
        supervisor.kill();
        kill_process(another, Signal::KILL).expect("it lives");
        assert_said(
            &asked.join().expect("it has ended"),
            1,
            &["has ended before"],
        );
    });
    let _supervisor = Supervisor::start(binary, &group, 3, &list);
    eventually("it comes to its end", || begun() == Some(false));
    let mut ended = None;
    eventually("there is another", || {
        ended.insert(recover(&group, 3)).code() == 0
    });
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// A second supervisor of a replica is refused, and the first one goes on.
#[test]
fn a_replica_has_one_supervisor() {
    let mut group = Group::start();
    group.kill(3);
    let list = group.directory().join("programs");
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let supervisor = Supervisor::start(binary, &group, 3, &list);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let replica = supervisor.replica();
    let mut second = quorate();
    second.args(["supervise", "--id", "3", "--group"]);
    let refused = finish(second.arg(group.file()), Patience::default());
    let process = format!("process {},", supervisor.child.id());
    assert_said(&refused, 1, &["another supervisor", &process, "Stop that"]);
    assert_eq!(supervisor.replica(), replica);
    let mut asked = quorate();
    asked.args(["schedule", "--data"]);
    run(asked.arg(group.directory().join("replica-3")));
}

/// A schedule that is damaged is told of, and keeps no replica from running. What an operator sets holds when the supervisor is started again with the command line that it had.
#[test]
fn a_schedule_outlives_damage_and_command_lines() {
    let mut group = Group::start();
    group.kill(3);
    let list = group.directory().join("programs");
    let data = group.directory().join("replica-3");
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    fs::write(data.join("schedule.json"), "{ \"recover_ev").expect("a schedule");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let start = |options: &[&str]| {
        let supervisor = Supervisor::start_with(binary, &group, 3, &list, options);
        eventually("its replica runs", || supervisor.replica().is_some());
        supervisor
    };
    let schedule = |options: &[&str]| {
        let mut told = None;
        eventually("it answers", || {
            let mut asked = quorate();
            asked.args(["schedule", "--data"]).arg(&data).args(options);
            let ended = told.insert(finish(&mut asked, Patience::default()));
            ended.code() == 0
        });
        told.expect("it has answered").stdout
    };
    let supervisor = start(&[]);
    Status::wait_until_they_agree(group.directory(), &[0, 1, 2, 3]);
    let told = schedule(&[]);
    assert!(told.contains("ALARM: the schedule of recoveries"), "{told}");
    let said = supervisor.said();
    assert!(said.contains("ALARM: the schedule of recoveries"), "{said}");
    let mut status = quorate();
    status.args(["status", "--json"]).arg(group.file());
    let told = finish(&mut status, Patience::default()).stdout;
    assert!(told.contains("ALARM: the schedule of recoveries"), "{told}");
    let told = schedule(&["--every", "300h"]);
    assert!(told.contains("every 1080000 s") && !told.contains("ALARM: the schedule"));
    drop(supervisor);

    // A new word, and what is set after it.
    let supervisor = start(&["--recover-every", "200h"]);
    assert!(schedule(&[]).contains("every 720000 s"));
    schedule(&["--every", "300h"]);
    drop(supervisor);
    let supervisor = start(&["--recover-every", "200h"]);
    assert!(schedule(&[]).contains("every 1080000 s"));
    eventually("it says so", || {
        supervisor.said().contains("--recover-every had said")
    });
}

/// A replica recovers while its disk is not mounted, on what lies below. When the disk is back it recovers again, though all that it needs to go on
/// with its log is there: that log is of before. Nothing of it is mistaken for a directory that it has had all the time.
#[test]
fn a_disk_that_was_away_is_not_believed() {
    let mut group = Group::start();
    group.kill(2);
    let at = |name: &str| group.directory().join(name);
    let (list, data, away, state) = (at("programs"), at("replica-2"), at("away"), at("state"));
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    let key = at("key-of-2");
    fs::copy(data.join("key"), &key).expect("a key");
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let options = [
        "--state",
        state.to_str().expect("a path in UTF-8"),
        "--",
        "--key",
        key.to_str().expect("a path in UTF-8"),
    ];
    let start = || Supervisor::start_with(binary, &group, 2, &list, &options);
    let all = || Status::wait_until_they_agree(group.directory(), &[0, 1, 2, 3]);
    let last = || {
        let records = fs::read(state.join("recoveries.json")).unwrap_or_default();
        let records: Value = serde_json::from_slice(&records).unwrap_or_default();
        records["2"]["last"]["at_ms"].as_u64()
    };
    for _ in 0..2 {
        let supervisor = start();
        all();
        let said = supervisor.said();
        assert!(!said.contains("not the directory"), "{said}");
    }
    assert_eq!(last(), None);
    fs::rename(&data, &away).expect("the disk goes");
    let supervisor = start();
    eventually("it says what is missing", || {
        supervisor.said().contains("has no mark")
    });
    eventually("it recovers", || recover_at(&state, 2).code() == 0);
    all();
    drop(supervisor);
    let first = last().expect("it has recovered");
    fs::remove_dir_all(&data).expect("it goes");
    fs::rename(&away, &data).expect("the disk is back");
    let supervisor = start();
    eventually("there is an alarm", || {
        let said = supervisor.said();
        said.contains("ALARM") && said.contains("not the directory")
    });
    eventually("it recovers", || last() > Some(first));
    all();
    drop(supervisor);
    let supervisor = start();
    all();
    assert!(!supervisor.said().contains("not the directory"));
}

/// Whether a process can be run as another user here; says why not.
fn may_run_as_others() -> bool {
    let may = rustix::process::geteuid().is_root();
    may || left_out("only root can run a process as another user").unwrap_or(false)
}

/// Who has had the replica's user leaves behind whatever could keep the replica from starting as one that recovers, or outlive that: in its
/// directory, and so many processes that the user may have no more. The replica recovers at once, and nothing of it is left.
#[test]
fn what_an_intruder_leaves_behind_holds_nothing_up() {
    const USER: &str = "61238:61239";
    const PROCESSES: u64 = 150;
    if !may_run_as_others() || !require_fuse() {
        return;
    }
    let mut group = Group::start();
    group.kill(3);
    let (list, data) = (
        group.directory().join("programs"),
        group.directory().join("replica-3"),
    );
    fs::write(&list, run(quorate().arg("programs"))).expect("a list");
    let elsewhere = group.directory().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::set_permissions(group.directory(), fs::Permissions::from_mode(0o711)).expect("root may");
    fs::set_permissions(group.file(), fs::Permissions::from_mode(0o644)).expect("root may");
    run(program("chown")
        .args(["-R", USER])
        .args([&data, &elsewhere]));
    let as_user = |command: &str| {
        let mut setpriv = program("setpriv");
        setpriv.args(["--reuid", "61238", "--regid", "61239", "--clear-groups"]);
        let mut sh = setpriv.args(["sh", "-e", "-c", command]);
        sh = sh.current_dir(&data);
        finish(sh, Patience::default())
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let supervisor = Supervisor::start_with(binary, &group, 3, &list, &["--user", USER]);
    let state = group.directory().join("supervisor-3");
    let mount = group.mount();
    for file in 0..20 {
        fs::write(mount.path().join(format!("file-{file}")), vec![7; 150_000]).expect("a file");
    }
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());

    let limit = rustix::process::Rlimit {
        current: Some(PROCESSES),
        maximum: Some(PROCESSES),
    };
    let pid = Pid::from_child(&supervisor.child);
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nproc, limit).expect("root may");
    let many = PROCESSES + 20;
    let left = as_user(&format!(
        "for i in $(seq {many}); do setsid sleep 1000 > /dev/null 2>&1 & done
         mkdir -m 000 former.redb state.redb.new log.former
         mkdir log.damaged; touch log.damaged/1.wal; chmod 000 log.damaged
         touch log/filler; mkdir -p evidence; cd evidence
         seq -f 1-new-view-%g-0.evidence 3000 | xargs truncate -s 64M; cd ..
         ln -s /etc/passwd epochs
         ln -s . state.redb.lock.new
         truncate -s 100G log.reached
         head -c 1000000 /dev/zero > filler
         d=trees; for i in $(seq 300); do d=$d/d; done; mkdir -p $d
         mv blobs {0}/blobs; ln -s {0}/blobs blobs
         chmod 000 .",
        elsewhere.display()
    ));
    assert!(left.status.success(), "{}", left.stderr);
    let mut ended = None;
    eventually("it recovers", || {
        ended.insert(recover_at(&state, 3)).code() == 0
    });
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let kind = |name: &str| fs::symlink_metadata(data.join(name)).map(|it| it.file_type());
    assert!(kind("blobs").expect("segments").is_dir());
    for gone in [
        "filler",
        "trees",
        "state.redb.new",
        "former.redb",
        "log.former",
        "log.damaged",
        "log/filler",
    ] {
        assert!(kind(gone).is_err(), "{gone}");
    }
    let evidence = fs::read_dir(data.join("evidence")).expect("a directory");
    assert_eq!(evidence.count(), 0);
    assert!(fs::metadata("/etc/passwd").expect("it").len() > 0);
    let processes = run(program("ps").args(["-u", "61238", "-o", "comm="]));
    assert!(!processes.contains("sleep"), "{processes}");
    let said = supervisor.said();
    assert!(!said.contains("ALARM: replica 3 is not started"), "{said}");
}

/// A replica that runs as a user of its own recovers like any other; that user has no hand in the supervisor, nor in what it goes by.
#[test]
fn a_replicas_user_has_no_hand_in_its_supervisor() {
    const USER: &str = "61234:61235";
    if !may_run_as_others() || !require_fuse() {
        return;
    }
    let mut group = Group::start();
    group.kill(3);
    let (list, data) = (
        group.directory().join("programs"),
        group.directory().join("replica-3"),
    );
    let line = run(quorate().arg("programs"));
    fs::write(&list, line).expect("a list");
    // That user comes to its own directory and to the group file.
    fs::set_permissions(group.directory(), fs::Permissions::from_mode(0o711)).expect("root may");
    fs::set_permissions(group.file(), fs::Permissions::from_mode(0o644)).expect("root may");
    run(program("chown").args(["-R", USER]).arg(&data));
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let as_user = |command: &str| {
        let mut setpriv = program("setpriv");
        setpriv.args(["--reuid", "61234", "--regid", "61235", "--clear-groups"]);
        finish(setpriv.args(["sh", "-c", command]), Patience::default())
    };

    // A list that the replica's user could change is none.
    run(program("chown").arg("61234").arg(&list));
    let mut careless = quorate();
    careless.args(["supervise", "--id", "3", "--user", USER, "--group"]);
    careless.arg(group.file()).arg("--programs").arg(&list);
    let refused = finish(&mut careless, Patience::default());
    assert_said(&refused, 1, &["could change", "programs", "root's"]);
    run(program("chown").arg("0").arg(&list));

    let supervisor = Supervisor::start_with(binary, &group, 3, &list, &["--user", USER]);
    let state = group.directory().join("supervisor-3");
    let mount = group.mount();
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());
    let has_its_user = || {
        let pid = supervisor.replica().expect("it runs").as_raw_nonzero();
        let about = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let has = |line: &str| about.lines().any(|l| l.trim_end() == line);
        assert!(has("Uid:\t61234\t61234\t61234\t61234"), "{about}");
        assert!(has("Gid:\t61235\t61235\t61235\t61235"), "{about}");
        assert!(has("Groups:"), "{about}");
        assert!(has("CapEff:\t0000000000000000"), "{about}");
    };
    has_its_user();

    let pid = supervisor.child.id();
    assert!(as_user("true").status.success());
    let version = as_user(&format!("{} --version", binary.display()));
    assert!(version.status.success(), "it can run the command");
    let own = data.display();
    assert!(as_user(&format!("test -r {own}/key")).status.success());
    let (state_is, list_is) = (state.display(), list.display());
    for deed in [
        format!("kill -0 {pid}"),
        format!("kill -KILL {pid}"),
        format!("ls /proc/{pid}/fd"),
        format!("echo > {state_is}/schedule.json"),
        format!("ls {state_is}"),
        format!("echo >> {list_is}"),
        format!("mv {list_is} {list_is}.old"),
        format!("{} recover 3 --data {state_is}", binary.display()),
    ] {
        let done = as_user(&deed);
        assert!(!done.status.success(), "{deed}: {}", done.stdout);
    }

    // What it has left in a session of its own does not outlive a recovery.
    let left = as_user("setsid sleep 1000 > /dev/null 2>&1 & echo $!").stdout;
    let left = format!("/proc/{}/cmdline", left.trim());
    let goes_on = || fs::read(&left).is_ok_and(|words| words.starts_with(b"sleep"));
    eventually("it sleeps", goes_on);
    let mut ended = None;
    eventually("it recovers", || {
        ended.insert(recover_at(&state, 3)).code() == 0
    });
    let told: Value = serde_json::from_str(&ended.expect("it has ended").stdout).expect("JSON");
    assert!(told["right"].as_u64() > Some(0), "{told}");
    assert!(!goes_on());
    has_its_user();
    assert!(state.join("recoveries.json").exists());
    assert!(!data.join("recoveries.json").exists() && !data.join("schedule.json").exists());
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

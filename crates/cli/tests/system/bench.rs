//! The benchmarks run: with real processes, to their end. How fast is not looked at.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Group, Patience, quorate, require_fuse, run, scratch, wait};

/// The variants of a part, in each of which something was answered.
fn measured<'a>(report: &'a Value, part: &str) -> Vec<&'a str> {
    let rows = report["rows"].as_array().unwrap();
    let rows = rows.iter().filter(|row| row["part"] == part);
    let of = |row: &'a Value| {
        let ops_per_s = row["median"]["ops_per_s"].as_f64();
        assert!(ops_per_s > Some(0.0), "{row}");
        row["variant"].as_str().unwrap()
    };
    rows.map(of).collect()
}

/// Each part of the micro-benchmark has figures for each of its variants, and nothing is left behind.
#[test]
fn the_micro_benchmark_runs() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    std::fs::create_dir(&data).unwrap();
    let mut command = quorate();
    command.args(["bench", "micro", "--quick", "--json"]);
    command.arg(&json).arg("--data").arg(&data);
    let shown = run(command.arg("--out").arg(directory.path()));
    assert!(shown.contains("paper"), "{shown}");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let systems = [
        "NO-REP memory",
        "NO-REP disk",
        "BFT memory",
        "BFT disk",
        "BFT-PK memory",
    ];
    // How many operations each part has.
    for (part, operations) in [("latency", 4), ("window", 1), ("throughput", 1)] {
        let expected = systems.repeat(operations);
        assert_eq!(measured(&report, part), expected, "{part}");
    }
    let switches = [
        "all on",
        "no tentative execution",
        "all reads ordered",
        "no early reads",
        "no digest replies",
        "each replica replies",
        "no batching",
        "one batch at a time",
        "no separate sending",
    ];
    assert_eq!(measured(&report, "switches"), switches);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * systems.len() + switches.len());
    // What it was that was measured.
    let arguments = report["arguments"].as_array().unwrap();
    assert_eq!(arguments[..3], ["bench", "micro", "--quick"]);
    assert_eq!(report["data"].as_str(), data.to_str());
    let is_hash =
        |commit: &str| commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit());
    assert!(report["commit"].as_str().is_none_or(is_hash), "{report}");
    assert!(directory.path().join("micro-0-0-read-only.svg").exists());
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

/// Files that can't be written are found out before anything is measured. What is measured is counted to the end: there is no "0 s left"
/// before the last.
#[test]
fn a_benchmark_knows_what_is_to_come() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let no_directory = directory.path().join("none").join("r.json");
    for option in ["--json", "--out"] {
        let mut command = quorate();
        command.args(["bench", "micro", "--quick", option]);
        let path = match option {
            "--json" => no_directory.as_path(),
            _ => std::path::Path::new("/proc/none"),
        };
        let output = command.arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        assert!(!said.contains("replicas are processes"), "{said}");
    }

    let mut command = quorate();
    command.args(["bench", "parallel", "--quick"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let counted: Vec<_> = said.lines().filter_map(|l| l.strip_prefix('[')).collect();
    assert!(output.status.success() && counted.len() > 2, "{said}");
    for (at, line) in (1..).zip(&counted) {
        let expected = format!("{at}/{}, ", counted.len());
        assert!(line.starts_with(&expected), "{said}");
    }
}

/// Under each attack correct clients are answered; and each has a row.
#[test]
fn the_attacks_run() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let json = directory.path().join("r.json");
    let mut command = quorate();
    run(command
        .args(["bench", "attacks", "--quick", "--json"])
        .arg(&json));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["attacks"].as_array().unwrap();
    let names: Vec<_> = rows.iter().filter_map(|r| r["attack"].as_str()).collect();
    let expected = [
        "peace",
        "clients: repeats",
        "clients: watches",
        "clients: garbage",
        "clients: giants",
        "clients: sessions",
        "clients: deaf",
        "strangers",
        "clients: greedy",
        "clients: wrong MACs",
        "replica: floods",
        "primary: slow",
        "primary: leaps",
        "primary: dawdles",
        "primary: lingers",
        "primary: bare",
    ];
    assert_eq!(names, expected);
    for row in rows {
        let rounds = row["rounds"].as_array().unwrap();
        let is_answered = |round: &Value| round["figures"]["ops_per_s"].as_f64() > Some(0.0);
        assert!(
            !rounds.is_empty() && rounds.iter().all(is_answered),
            "{row:?}"
        );
    }
}

/// The group goes on when its primary is killed or stands still, and each way has its rounds.
#[test]
fn the_failover_runs() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let json = directory.path().join("r.json");
    let mut command = quorate();
    run(command
        .args(["bench", "failover", "--quick", "--json"])
        .arg(&json));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["failover"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{rows:?}");
    for row in rows {
        let round = &row["rounds"][0];
        assert!(round["after_ops_per_s"].as_f64() > Some(0.0), "{row:?}");
    }
}

/// Replicas recover step by step, sound and tampered with, and while clients work; nobody sees an error, and nothing is left.
#[test]
fn the_recoveries_run() {
    if !require_fuse() {
        return;
    }
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    std::fs::create_dir(&data).unwrap();
    let mut command = quorate();
    command.args(["bench", "recovery", "--quick", "--json"]);
    command.arg(&json).arg("--data").arg(&data);
    let shown = run(command.arg("--out").arg(directory.path()));
    assert!(shown.contains("check and fetch"), "{shown}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let recovered = report["recovered"].as_array().unwrap();
    let found = |row: &Value| row["rounds"][0]["damaged"].as_f64().unwrap() > 0.0;
    assert_eq!(
        recovered.iter().map(found).collect::<Vec<_>>(),
        [false, true]
    );
    assert!(
        recovered.iter().all(|row| row["client_errors"] == 0),
        "{report}"
    );
    let compared = report["compared"].as_array().unwrap();
    let of = |row: &Value| (row["part"].clone(), row["period_s"].as_u64());
    let part = |name: &str, period| (Value::from(name), period);
    assert_eq!(
        compared.iter().map(of).collect::<Vec<_>>(),
        [
            part("recoveries", None),
            part("recoveries", Some(4)),
            part("keys", None),
            part("keys", Some(1))
        ]
    );
    for row in compared {
        let got = &row["rounds"][0];
        assert!(
            got["ops_per_s"].as_f64() > Some(0.0) && got["errors"] == 0,
            "{row}"
        );
    }
    assert_eq!(compared[1]["rounds"][0]["recoveries"], 4);
    assert!(directory.path().join("recovery-keys.svg").exists());
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(data.to_str().unwrap()), "{mounts}");
}

/// Each workload has figures for each file system, or a word why it was not measured; what was read back was checked by the
/// benchmark itself. Nothing is left mounted, running or on the disk.
#[test]
fn the_files_run() {
    if !require_fuse() {
        return;
    }
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    let beside = directory.path().join("beside");
    for directory in [&data, &beside] {
        std::fs::create_dir(directory).unwrap();
    }
    let mut command = quorate();
    command
        .args(["bench", "files", "--quick", "--json"])
        .arg(&json);
    command.arg("--data").arg(&data);
    command.arg(format!("--beside=other={}", beside.display()));
    let shown = run(command.arg("--out").arg(directory.path()));
    assert!(shown.contains("speed to"), "{shown}");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let left_out = report["left_out"].as_array().unwrap();
    let rows = report["files"].as_array().unwrap();
    let systems = |part: &str, wait_ms: u64| -> Vec<&str> {
        let rows = rows
            .iter()
            .filter(|r| r["part"] == part && r["wait_ms"] == wait_ms);
        rows.filter_map(|r| r["system"].as_str()).collect()
    };
    for part in [
        "Andrew",
        "PostMark",
        "small files",
        "IOzone",
        "Bonnie",
        "4 KiB reads",
        "4 KiB writes",
    ] {
        let systems = systems(part, 0);
        for name in ["local", "other", "NO-REP", "BASE-FS", "CBASE-FS"] {
            assert!(systems.contains(&name), "{part}: {systems:?}");
        }
        let passed = systems.contains(&"passthrough");
        let skipped = left_out.iter().any(|l| l["system"] == "passthrough");
        assert!(passed != skipped, "{part}: {systems:?}, {left_out:?}");
    }
    assert_eq!(systems("4 KiB writes", 20), ["BASE-FS", "CBASE-FS"]);
    for row in rows {
        assert!(row["median"].as_f64() > Some(0.0), "{row:?}");
    }
    for directory in [&data, &beside] {
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(data.to_str().unwrap()), "{mounts}");
}

/// Those of parallel execution too.
#[test]
fn the_other_benchmarks_run() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let json = directory.path().join("r.json");
    let threads = ["BASE", "CBASE, 8 threads", "CBASE, 128 threads"];
    let factors = ["BASE", "CBASE, factor 20", "CBASE, factor inf"];
    let overhead = [("figure-4", ["BASE", "CBASE", "inline"])];
    let parallel = [("figure-5a", threads), ("figure-5b", factors)];
    for (name, figures) in [("overhead", &overhead[..]), ("parallel", &parallel)] {
        let mut command = quorate();
        command
            .args(["bench", name, "--quick", "--json"])
            .arg(&json);
        let shown = run(command.arg("--out").arg(directory.path()));
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(report["benchmark"], name);
        for (figure, variants) in figures {
            assert_eq!(measured(&report, figure), variants, "{figure}");
            let svg = directory.path().join(format!("{figure}.svg"));
            let svg = std::fs::read_to_string(svg).unwrap();
            for variant in variants {
                assert!(shown.contains(&format!("{variant}, 4")), "{shown}");
                assert!(svg.contains(variant), "{figure}: {variant}");
            }
        }
        // The graph by itself has no clients.
        let rows = report["rows"].as_array().unwrap().iter();
        let graph = rows.clone().filter(|row| row["part"] == "graph");
        assert_eq!(graph.count(), if name == "overhead" { 8 } else { 0 });
        let parts = figures.iter().map(|(figure, _)| *figure).chain(["graph"]);
        let parts: Vec<_> = parts.collect();
        for row in rows {
            assert!(parts.contains(&row["part"].as_str().unwrap()), "{row}");
        }
        let shows = shown.contains("a write to one of 64 files");
        assert_eq!(shows, name == "overhead", "{shown}");
    }
}

/// What was measured is not lost when the run is ended: the rounds that are done are shown and written, with a word that they are
/// not all. That is a failure to whoever waits, and leaves nothing behind.
#[test]
fn a_benchmark_that_is_interrupted_keeps_what_is_done() {
    const ROUNDS: usize = 1_000;
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    std::fs::create_dir(&data).unwrap();
    let mut command = quorate();
    command.args(["bench", "parallel", "--seconds", "0.05"]);
    command.arg(format!("--rounds={ROUNDS}"));
    command.args(["--only", "figure-5a, 0/0, BASE, 1 clients"]);
    command.arg("--json").arg(&json).arg("--data").arg(&data);
    command.arg("--out").arg(directory.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut bench = command.spawn().unwrap();
    let mut told = BufReader::new(bench.stderr.take().unwrap()).lines();
    let is_measured = |line: &String| line.starts_with(&format!("[2/{ROUNDS}"));
    assert!(told.any(|line| is_measured(&line.unwrap())));
    kill_process(Pid::from_child(&bench), Signal::INT).expect("it lives");
    let rest: Vec<_> = told.map(|line| line.unwrap()).collect();
    let mut shown = String::new();
    let mut stdout = bench.stdout.take().unwrap();
    stdout.read_to_string(&mut shown).unwrap();
    let status = wait(&mut bench, Patience::default()).expect("it ends");
    assert!(!status.success(), "{rest:?}");
    assert!(
        shown.contains("INCOMPLETE") && shown.contains("BASE, 1"),
        "{shown}"
    );

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(report["cut_short"].is_string(), "{report}");
    let row = &report["rows"][0];
    let rounds = row["rounds"].as_array().unwrap().len();
    assert!((2..ROUNDS).contains(&rounds), "{rounds}");
    assert_eq!(row["ideal_ops_per_s"].as_f64(), Some(50.0));
    let svg = std::fs::read_to_string(directory.path().join("figure-5a.svg")).unwrap();
    assert!(svg.contains("incomplete"), "{svg}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

/// Guests with chains of two lengths are measured beside a client, on all phases of both workloads; costs are told.
#[test]
fn the_credentials_benchmark_runs() {
    if !require_fuse() {
        return;
    }
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    std::fs::create_dir(&data).unwrap();
    let mut command = quorate();
    command.args(["bench", "credentials", "--quick", "--json"]);
    let shown = run(command.arg(&json).arg("--data").arg(&data));
    for word in [
        "Bonnie",
        "search",
        "5 links cost",
        "at most +2.0 %",
        "nfs-ganesha",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["files"].as_array().unwrap();
    for phase in ["write", "rewrite", "read, from the disk", "find", "grep"] {
        let rows = rows.iter().filter(|row| row["phase"] == phase);
        let rows = rows.filter(|row| row["part"] != "over NFS");
        let systems: Vec<_> = rows.filter_map(|row| row["system"].as_str()).collect();
        let ours = [
            "Quorate, no credential",
            "Quorate, 1 link",
            "Quorate, 5 links",
        ];
        assert_eq!(systems, [&["local"], &ours[..]].concat(), "{phase}");
    }
    for phase in [
        "write",
        "rewrite",
        "read, cached by servers",
        "read, from the disk",
    ] {
        let rows = rows.iter().filter(|row| row["part"] == "over NFS");
        let rows = rows.filter(|row| row["phase"] == phase);
        let mut systems: Vec<_> = rows.filter_map(|row| row["system"].as_str()).collect();
        // Only where it is installed; else it is said that it was left out.
        systems.retain(|system| *system != "nfs-ganesha");
        assert_eq!(systems.len(), 3, "{phase}: {systems:?}");
    }
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

/// Calls come back right on all ways, at rates and by numbers in flight; and processes and files go.
#[test]
fn the_router_is_measured() {
    let _turn = Group::take_turn();
    let directory = scratch();
    let (json, data) = (directory.path().join("r.json"), directory.path().join("d"));
    std::fs::create_dir(&data).unwrap();
    let mut command = quorate();
    command.args(["bench", "router", "--quick", "--json"]);
    command.arg(&json).arg("--data").arg(&data);
    run(command.arg("--out").arg(directory.path()));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["router"].as_array().unwrap();
    let of = |way: &str| rows.iter().filter(|row| row["way"] == way).count();
    for (way, loads) in [
        ("direct", 7),
        ("router", 7),
        ("router_threads", 7),
        // Without the long READs.
        ("direct_udp", 5),
        ("router_udp", 5),
    ] {
        assert_eq!(of(way), loads, "{way}: {rows:?}");
    }
    for row in rows {
        assert!(row["median"]["calls_per_s"].as_f64() > Some(0.0), "{row:?}");
    }
    assert!(directory.path().join("router-response.svg").exists());
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

//! The benchmarks run: with real processes, to their end. How fast is not looked at.

use serde_json::Value;

use crate::harness::{Group, quorate, run, scratch};

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
    let rows = report["rows"].as_array().unwrap();
    for part in ["latency", "window", "throughput", "switches"] {
        let rows: Vec<_> = rows.iter().filter(|r| r["part"] == part).collect();
        assert!(rows.len() >= 3, "{part}: {rows:?}");
    }
    let busy = rows
        .iter()
        .filter(|r| r["median"]["ops_per_s"].as_f64() > Some(0.0));
    assert!(busy.count() * 2 > rows.len(), "{rows:?}");
    assert!(directory.path().join("micro-0-0-read-only.svg").exists());
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

/// Under each attack that a new group bears, all correct clients are answered; and each has a row.
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
    for name in [
        "peace",
        "clients: repeats",
        "strangers",
        "replica: floods",
        "primary: slow",
    ] {
        assert!(names.contains(&name), "{names:?}");
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
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        let round = &row["rounds"][0];
        assert!(round["after_ops_per_s"].as_f64() > Some(0.0), "{row:?}");
    }
}

/// Those of parallel execution too.
#[test]
fn the_other_benchmarks_run() {
    let _turn = Group::take_turn();
    for name in ["overhead", "parallel"] {
        let shown = run(quorate().args(["bench", name, "--quick"]));
        assert!(shown.contains("BASE, 4"), "{shown}");
    }
}

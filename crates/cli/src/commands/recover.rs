//! `quorate recover` and `quorate schedule`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::Value;

use crate::args::{Recover, ScheduleArgs};
use crate::commands;
use crate::paths;
use crate::supervision::{Request, alarm, ask};

pub fn run(args: &Recover) -> Result<()> {
    let directory = directory(args.data.as_ref())?;
    let request = Request::Recover {
        replica: args.id,
        force: args.force,
    };
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    line.enable_steady_tick(Duration::from_millis(200));
    let id = args.id;
    let tell = |text: &str| line.set_message(format!("replica {id}: {text}"));
    let ended = commands::runtime()?.block_on(ask(&directory, &request, tell));
    line.finish_and_clear();
    let ended = ended?;
    match args.json {
        true => tell!("{ended}"),
        false => tell!("{}", ended["text"].as_str().unwrap_or_default()),
    }
    Ok(())
}

pub fn schedule(args: &ScheduleArgs) -> Result<()> {
    let directory = directory(args.data.as_ref())?;
    let every_s = args
        .every
        .map(|every| every.0.map_or(0, |every| every.as_secs()));
    let key_refresh_ms = args.key_refresh.map(|every| every.as_millis() as u64);
    let request = Request::Schedule {
        every_s,
        key_refresh_ms,
    };
    let schedule = commands::runtime()?.block_on(ask(&directory, &request, |_| {}))?;
    match args.json {
        true => tell!("{schedule}"),
        false => lines(&schedule).iter().for_each(|line| tell!("{line}")),
    }
    Ok(())
}

fn directory(data: Option<&PathBuf>) -> Result<PathBuf> {
    data.map_or_else(paths::local_group, |data| Ok(data.clone()))
}

/// For people.
pub fn lines(schedule: &Value) -> Vec<String> {
    let mut lines = vec![match schedule["every_s"].as_u64() {
        Some(every) => format!("each replica recovers every {every} s"),
        None => "replicas do not recover by themselves; see `quorate schedule --help`".into(),
    }];
    lines.extend(schedule["key_refresh_ms"].as_u64().map(|ms| match ms {
        0 => "from their next start on they keep the keys of their links".into(),
        ms => format!(
            "from their next start on they take other keys every {} s",
            ms as f64 / 1000.0
        ),
    }));
    let replicas = schedule["replicas"].as_array().into_iter().flatten();
    lines.extend(replicas.map(|replica| {
        let next = match replica["next_in_s"].as_u64() {
            Some(next) => format!("next in {next} s"),
            None => "not due".into(),
        };
        let last = replica["last"]["text"]
            .as_str()
            .unwrap_or("has not recovered yet");
        format!("replica {}: {next}; {last}", replica["id"])
    }));
    lines.extend(alarms(schedule).map(|text| format!("ALARM: {text}")));
    lines.extend(elsewhere(schedule).map(|(id, text)| alarm(id, text)));
    let window = schedule["window"].as_array().into_iter().flatten();
    lines.extend(window.filter_map(Value::as_str).map(Into::into));
    lines
}

/// What a supervisor finds wrong with what it goes by itself.
pub fn alarms(told: &Value) -> impl Iterator<Item = &str> {
    let alarms = told["alarms"].as_array().into_iter().flatten();
    alarms.filter_map(Value::as_str)
}

/// Of which replicas that are not run from there a supervisor says that they do not recover.
pub fn elsewhere(told: &Value) -> impl Iterator<Item = (u64, &str)> {
    let late = told["elsewhere"].as_array().into_iter().flatten();
    late.filter_map(|late| Some((late["id"].as_u64()?, late["text"].as_str()?)))
}

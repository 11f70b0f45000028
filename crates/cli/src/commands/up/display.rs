//! What `quorate up` shows.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quorate_net::Group;
use quorate_wire::ReplicaId;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::commands::status::{Health, Reports};

/// How often a script is told that all is as it was.
const REPEAT: Duration = Duration::from_secs(5);

/// A status line for people, or a JSON object a line for scripts.
#[derive(Debug)]
pub struct Display {
    line: Option<ProgressBar>,
    told: Option<(Instant, Value)>,
}

/// How the group is, in short.
struct Summary {
    state: Health,
    view: u64,
    batches: u64,
    lag: u64,
    silent: Vec<ReplicaId>,
}

impl Summary {
    fn of(group: &Group, reports: &Reports) -> Summary {
        let batches = reports.values().map(|r| r.executed.0).max().unwrap_or(0);
        let least = reports.values().map(|r| r.executed.0).min().unwrap_or(0);
        let all = group.quorum().replicas();
        Summary {
            state: Health::judge(group.quorum(), reports),
            view: reports.values().map(|r| r.view.0).max().unwrap_or(0),
            batches,
            lag: batches - least,
            silent: all.filter(|id| !reports.contains_key(id)).collect(),
        }
    }
}

impl Display {
    pub fn new(json: bool) -> Display {
        if json {
            return Display {
                line: None,
                told: None,
            };
        }
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {wide_msg}");
        line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        line.enable_steady_tick(Duration::from_millis(200));
        Display {
            line: Some(line),
            told: None,
        }
    }

    /// What goes on now.
    pub fn say(&self, what: &str) {
        match &self.line {
            Some(line) => line.set_message(what.to_string()),
            None => print(&json!({ "event": "note", "text": what })),
        }
    }

    /// Something that should stay on the screen.
    pub fn event(&self, what: &str) {
        match &self.line {
            Some(line) => line.suspend(|| print(what)),
            None => print(&json!({ "event": "note", "text": what })),
        }
    }

    /// The group answers and the files are there.
    pub fn ready(&self, group: &Group, directory: Option<&Path>) {
        let n = group.quorum().n();
        match (&self.line, directory) {
            (None, _) => {
                print(
                    &json!({ "event": "ready", "replicas": n, "mount": directory.map(Path::to_string_lossy) }),
                );
            }
            (Some(_), Some(directory)) => {
                self.event(&format!(
                    "{n} replicas, mounted at {} - ctrl-C stops",
                    directory.display()
                ));
            }
            (Some(_), None) => self.event(&format!("{n} replicas - ctrl-C stops")),
        }
    }

    /// How the group is.
    pub fn status(&mut self, group: &Group, reports: &Reports, directory: Option<&Path>) {
        let summary = Summary::of(group, reports);
        match &self.line {
            Some(line) => line.set_message(sentence(&summary, directory)),
            None => self.tell(&summary, directory),
        }
    }

    /// Tells a script, if there is something new or the last word is old.
    fn tell(&mut self, summary: &Summary, directory: Option<&Path>) {
        let silent: Vec<u8> = summary.silent.iter().map(|id| id.0).collect();
        let state = summary.state.name();
        let news = json!([state, summary.view, silent]);
        if let Some((at, last)) = &self.told
            && *last == news
            && at.elapsed() < REPEAT
        {
            return;
        }
        self.told = Some((Instant::now(), news));
        print(&json!({
            "event": "status",
            "state": state,
            "mount": directory.map(Path::to_string_lossy),
            "view": summary.view,
            "batches": summary.batches,
            "lag": summary.lag,
            "silent": silent,
        }));
    }

    pub fn done(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

fn sentence(summary: &Summary, directory: Option<&Path>) -> String {
    let silent: Vec<String> = summary.silent.iter().map(ToString::to_string).collect();
    let silent = match silent.is_empty() {
        true => String::new(),
        false => format!(", replica {} does not answer", silent.join(", ")),
    };
    let at = directory
        .map(|d| format!(" at {}", d.display()))
        .unwrap_or_default();
    format!(
        "{}{at}: view {}, {} batches, lag {}{silent}",
        summary.state.name(),
        summary.view,
        summary.batches,
        summary.lag
    )
}

/// A line on standard output. Whoever read it may be gone; the group goes on without.
fn print(line: &(impl std::fmt::Display + ?Sized)) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

//! What `quorate up` shows.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quorate_net::Group;
use quorate_wire::ReplicaId;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::groups::Member;
use crate::commands::script::{Script, print};
use crate::commands::status::{self, Health, Reports};

/// How often a script is told that all is as it was.
const REPEAT: Duration = Duration::from_secs(5);

/// A status line for people, or a JSON object a line for scripts.
#[derive(Debug)]
pub struct Display {
    line: Option<ProgressBar>,
    script: Script,
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
        let quorum = group.quorum();
        let newest = status::newest(quorum, reports);
        let view = status::vouched(quorum, reports, |r| r.view);
        let all = quorum.replicas();
        Summary {
            state: Health::judge(quorum, reports),
            view: view.unwrap_or_default().0,
            batches: newest.0,
            lag: reports
                .values()
                .map(|r| status::lag(r, newest))
                .max()
                .unwrap_or(0),
            silent: all.filter(|id| !reports.contains_key(id)).collect(),
        }
    }
}

impl Display {
    pub fn new(json: bool) -> Display {
        if json {
            return Display {
                line: None,
                script: Script::listens(),
                told: None,
            };
        }
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {wide_msg}");
        line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        line.enable_steady_tick(Duration::from_millis(200));
        Display {
            line: Some(line),
            script: Script::default(),
            told: None,
        }
    }

    /// What goes on now.
    pub fn say(&self, what: &str) {
        match &self.line {
            Some(line) => line.set_message(what.to_string()),
            None => self.script.tell(&json!({ "event": "note", "text": what })),
        }
    }

    /// Something that should stay on the screen.
    pub fn event(&self, what: &str) {
        match &self.line {
            Some(line) => line.suspend(|| print(what)),
            None => self.script.tell(&json!({ "event": "note", "text": what })),
        }
    }

    /// The group answers and the files are there.
    pub fn ready(&self, group: &Group, directory: Option<&Path>) {
        let n = group.quorum().n();
        match (&self.line, directory) {
            (None, _) => {
                self.script.tell(
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
        if !self.is_news(json!([state, summary.view, silent])) {
            return;
        }
        self.script.tell(&json!({
            "event": "status",
            "state": state,
            "mount": directory.map(Path::to_string_lossy),
            "view": summary.view,
            "batches": summary.batches,
            "lag": summary.lag,
            "silent": silent,
        }));
    }

    /// All groups of a volume answer, and the files are there.
    pub fn all_ready(&self, members: &[Member], directory: Option<&Path>) {
        let groups = members.iter().map(|member| {
            let n = member.group.quorum().n();
            json!({ "group": member.name, "replicas": n })
        });
        if self.line.is_none() {
            let groups: Vec<Value> = groups.collect();
            let mount = directory.map(Path::to_string_lossy);
            return self
                .script
                .tell(&json!({ "event": "ready", "groups": groups, "mount": mount }));
        }
        let sizes: Vec<String> = members
            .iter()
            .map(|member| format!("{} of {}", member.name, member.group.quorum().n()))
            .collect();
        let at = directory
            .map(|directory| format!(", mounted as one at {}", directory.display()))
            .unwrap_or_default();
        self.event(&format!("{}{at} - ctrl-C stops", sizes.join(", ")));
    }

    /// How all groups of a volume are.
    pub fn status_of_all(&mut self, members: &[Member], directory: Option<&Path>) {
        let summaries: Vec<(&str, Summary)> = members
            .iter()
            .map(|member| {
                let summary = Summary::of(&member.group, &member.reports());
                (member.name.as_str(), summary)
            })
            .collect();
        let states = summaries.iter().map(|(_, summary)| summary.state);
        let worst = states.max_by_key(|state| *state as u8);
        let state = worst.map_or("down", Health::name);
        let Some(line) = &self.line else {
            return self.tell_all(state, &summaries, directory);
        };
        let groups: Vec<String> = summaries
            .iter()
            .map(|(name, summary)| format!("{name} {}", sentence(summary, None)))
            .collect();
        let at = directory
            .map(|directory| format!(" at {}", directory.display()))
            .unwrap_or_default();
        line.set_message(format!("{state}{at} - {}", groups.join("; ")));
    }

    fn tell_all(&mut self, state: &str, summaries: &[(&str, Summary)], directory: Option<&Path>) {
        let silent = |summary: &Summary| summary.silent.iter().map(|id| id.0).collect::<Vec<u8>>();
        let news = summaries
            .iter()
            .map(|(_, summary)| json!([summary.state.name(), summary.view, silent(summary)]));
        if !self.is_news(news.collect()) {
            return;
        }
        let groups = summaries.iter().map(|(name, summary)| {
            json!({
                "group": name,
                "state": summary.state.name(),
                "view": summary.view,
                "batches": summary.batches,
                "lag": summary.lag,
                "silent": silent(summary),
            })
        });
        self.script.tell(&json!({
            "event": "status",
            "state": state,
            "mount": directory.map(Path::to_string_lossy),
            "groups": groups.collect::<Vec<Value>>(),
        }));
    }

    /// Whether something is to be told: it is new, or the last word is old.
    fn is_news(&mut self, news: Value) -> bool {
        let is_old = |(at, last): &(Instant, Value)| *last != news || at.elapsed() >= REPEAT;
        let told = self.told.as_ref().is_none_or(is_old);
        if told {
            self.told = Some((Instant::now(), news));
        }
        told
    }

    pub fn done(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
        self.script.end();
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

//! What `quorate up` shows.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quorate_node::Group;
use serde_json::json;

use crate::commands::status::{Health, Reports};

/// A status line for people, or a JSON object a line for scripts.
#[derive(Debug)]
pub struct Display {
    line: Option<ProgressBar>,
}

impl Display {
    pub fn new(json: bool) -> Display {
        if json {
            return Display { line: None };
        }
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {wide_msg}");
        line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        line.enable_steady_tick(Duration::from_millis(200));
        Display { line: Some(line) }
    }

    /// What goes on now.
    pub fn say(&self, what: &str) {
        match &self.line {
            Some(line) => line.set_message(what.to_string()),
            None => println!("{}", json!({ "event": what })),
        }
    }

    /// Something that should stay on the screen.
    pub fn event(&self, what: &str) {
        match &self.line {
            Some(line) => line.suspend(|| println!("{what}")),
            None => println!("{}", json!({ "event": what })),
        }
    }

    /// The group answers and the files are there.
    pub fn ready(&self, group: &Group, directory: Option<&Path>) {
        let n = group.quorum().n();
        match (&self.line, directory) {
            (None, _) => println!(
                "{}",
                json!({ "event": "ready", "replicas": n, "mount": directory })
            ),
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
    pub fn status(&self, group: &Group, reports: &Reports, directory: Option<&Path>) {
        let Some(line) = &self.line else { return };
        let whole = Health::judge(group.quorum(), reports);
        let executed = reports.values().map(|r| r.executed.0).max().unwrap_or(0);
        let least = reports.values().map(|r| r.executed.0).min().unwrap_or(0);
        let view = reports.values().map(|r| r.view.0).max().unwrap_or(0);
        let silent: Vec<String> = group
            .quorum()
            .replicas()
            .filter(|id| !reports.contains_key(id))
            .map(|id| id.to_string())
            .collect();
        let silent = match silent.is_empty() {
            true => String::new(),
            false => format!(", replica {} does not answer", silent.join(", ")),
        };
        let at = directory
            .map(|d| format!(" at {}", d.display()))
            .unwrap_or_default();
        line.set_message(format!(
            "{whole:?}{at}: view {view}, {executed} batches, lag {}{silent}",
            executed - least
        ));
    }

    pub fn done(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

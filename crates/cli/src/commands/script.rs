//! What a command that goes on tells a script, with `--json`: a line for each thing, on standard output.

use std::io::Write;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use serde_json::Value;

/// How many lines wait for a script that does not read.
const WAITING_LINES: usize = 256;
/// How long is waited for it at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A script that reads what is told. It is written to by a thread of its own: a reader that does not read must not hold up
/// who looks after replicas, or serves clients.
#[derive(Debug, Default)]
pub struct Script {
    lines: Option<SyncSender<String>>,
    ended: Option<Receiver<()>>,
}

impl Script {
    pub fn listens() -> Script {
        let (lines, to_write) = mpsc::sync_channel::<String>(WAITING_LINES);
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            to_write.iter().for_each(|line| print(&line));
            drop(end);
        });
        Script {
            lines: Some(lines),
            ended: Some(ended),
        }
    }

    /// What it has no room for it does not hear.
    pub fn tell(&self, line: &Value) {
        if let Some(lines) = &self.lines {
            let _ = lines.try_send(line.to_string());
        }
    }

    /// Gives it a moment for its last lines.
    pub fn end(&mut self) {
        self.lines = None;
        if let Some(ended) = self.ended.take() {
            let _ = ended.recv_timeout(LAST_LINES);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.end();
    }
}

/// A line on standard output. Whoever read it may be gone; what is done goes on without.
pub fn print(line: &(impl std::fmt::Display + ?Sized)) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// However much it is told, a script that reads nothing holds nobody up.
    #[test]
    fn a_script_that_does_not_read_is_left_behind() {
        let (lines, _unread) = mpsc::sync_channel(WAITING_LINES);
        let mut script = Script {
            lines: Some(lines),
            ended: None,
        };
        (0..10 * WAITING_LINES).for_each(|n| script.tell(&json!(n)));
        script.end();
    }
}

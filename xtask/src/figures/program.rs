//! Programs with an end.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a process has to end that is asked to.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Runs a program that has to succeed; what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let mut pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(pipe) = &mut pipe {
            let _ = std::io::Read::read_to_string(pipe, &mut text);
        }
        text
    });
    let ended = wait(&mut child, LIMIT)?;
    let text = reader.join().unwrap_or_default();
    match ended.success() {
        true => Ok(text),
        false => Err(format!("{command:?}: {ended}")),
    }
}

/// Asks a process to end, and waits for it.
pub fn stop(child: &mut Child) -> Result<(), String> {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_child(child), Signal::INT);
    wait(child, STOP_LIMIT).map(drop)
}

/// Waits until something holds.
#[allow(clippy::disallowed_methods)] // A limit for people.
pub fn wait_until(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let end = Instant::now() + STOP_LIMIT;
    while !holds()? {
        if Instant::now() > end {
            return Err(format!("waited in vain until {what}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[allow(clippy::disallowed_methods)] // A limit for people.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(status);
        }
        if Instant::now() > end {
            let _ = child.kill();
            return Err(format!("process {} took too long", child.id()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

//! How errors are told, and what a command says besides its results.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says a line on standard error, as [`eprintln!`] does, which would end the thread where that can't be written: on a full disk, or when nobody
/// reads it any more.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write;
        // There is nobody to tell that to.
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}

/// Tells a line of a command's results, on standard output. What becomes of it where that can't be written stands at [`put`].
macro_rules! tell {
    ($($line:tt)*) => {
        $crate::words::put(&format!("{}\n", format_args!($($line)*)))
    };
}

/// Whether there is nowhere to write results any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Whether some are lost that somebody may miss.
static ARE_LOST: AtomicBool = AtomicBool::new(false);
/// The exit code then: that of sysexits.h for a disk that takes no more.
const LOST: u8 = 74;

/// Writes results on standard output. Where nobody reads them any more the command goes on without, and ends as it would have. Where they can't be
/// written for another reason, such as a full disk, that is said, and is the command's end; see [`ended`].
pub fn put(text: &str) {
    if !IS_OVER.load(Ordering::Relaxed) {
        note(std::io::stdout().lock().write_all(text.as_bytes()));
    }
}

/// The exit code of a command that has come to its end with this one, if its results were written.
pub fn ended(code: ExitCode) -> ExitCode {
    if !IS_OVER.load(Ordering::Relaxed) {
        note(std::io::stdout().flush());
    }
    match ARE_LOST.load(Ordering::Relaxed) {
        true => ExitCode::from(LOST),
        false => code,
    }
}

fn note(written: std::io::Result<()>) {
    let Err(e) = written else {
        return;
    };
    IS_OVER.store(true, Ordering::Relaxed);
    if e.kind() != ErrorKind::BrokenPipe {
        ARE_LOST.store(true, Ordering::Relaxed);
        say!("quorate: the results can't be written to standard output: {e}");
    }
}

/// What went wrong, outermost first.
///
/// The errors of our crates name their cause in their own words, so that they are whole in a log, and are also asked for
/// it; what was said already is left out.
pub fn of(error: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.iter().any(|words| words.contains(&cause)) {
            said.push(cause);
        }
    }
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use quorate_net::keys::KeyError;

    /// The operating system's word is told once, whether the error around it has it in its own or not.
    #[test]
    fn nothing_is_told_twice() {
        let system = || std::io::Error::from_raw_os_error(5);
        let error = anyhow::Error::new(KeyError::Io {
            path: "client.key".into(),
            source: system(),
        });
        let text = super::of(&error.context("the client's key"));
        assert_eq!(text.matches("os error 5").count(), 1, "{text}");
        assert!(text.starts_with("the client's key: client.key: "), "{text}");

        let outer = Err::<(), _>(system()).context("can't lock it").unwrap_err();
        let text = super::of(&outer);
        assert_eq!(text, format!("can't lock it: {}", system()));
    }
}

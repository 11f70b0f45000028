//! How errors are told, and what a command says besides its results.

/// Says a line on standard error, as [`eprintln!`] does, which would end the thread where that can't be written: on a full disk, or when nobody
/// reads it any more.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write;
        // There is nobody to tell that to.
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
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

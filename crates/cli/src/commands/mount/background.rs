//! A mount that goes on when the command has ended, for tables of mounts and those who start nothing else.
//!
//! The command starts itself once more, in a session of its own, and waits until that says that it is mounted. Up to
//! then errors go where the command's go; from then on to a log, or nowhere.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::Mount;

/// What a mount in the background says to who has started it.
const MOUNTED: &[u8] = b"mounted\n";

/// Starts the mount, and waits until it is there.
///
/// # Errors
/// Where it does not come to be; why, it has said itself.
pub fn start(args: &Mount, verbose: u8) -> Result<()> {
    let own = std::env::current_exe().context("can't find this program to start it again")?;
    let mut child = Command::new(own)
        .args(words(args, verbose)?)
        // It must not keep another file system busy.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("can't start the mount's process")?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_end(&mut said);
    }
    if said == MOUNTED {
        return Ok(());
    }
    let status = child.wait().context("waiting for the mount's process")?;
    bail!(
        "nothing is mounted at {}: the mount's process ended ({status})",
        args.directory.display()
    )
}

/// The command line of the process in the background.
fn words(args: &Mount, verbose: u8) -> Result<Vec<OsString>> {
    let absolute = |path: &Path| -> Result<OsString> {
        let path = std::path::absolute(path)
            .with_context(|| format!("can't tell where {} is", path.display()))?;
        Ok(path.into())
    };
    let mut words: Vec<OsString> = vec!["mount".into(), "--in-background".into()];
    words.extend((0..verbose).map(|_| "-v".into()));
    let files = args.key.iter().map(|file| ("--key", file));
    let credentials = args.credential.iter().map(|file| ("--credential", file));
    let log = args.log.iter().map(|file| ("--log", file));
    for (name, file) in files.chain(credentials).chain(log) {
        words.extend([name.into(), absolute(file)?]);
    }
    for (id, address) in &args.route {
        words.extend(["--route".into(), format!("{id}={address}").into()]);
    }
    if !args.options.is_empty() {
        words.extend(["-o".into(), args.options.join(",").into()]);
    }
    words.extend([
        "--".into(),
        absolute(&args.group)?,
        absolute(&args.directory)?,
    ]);
    Ok(words)
}

/// Lets go of the terminal of who has started this process.
pub fn leave() {
    // It fails for who leads a session already, as is wanted.
    let _ = rustix::process::setsid();
}

/// Says that the mount is there, and says no more from then on but to the log.
pub fn mounted(log: Option<&PathBuf>) -> Result<()> {
    let out = match log {
        Some(path) => File::options().append(true).create(true).open(path),
        None => File::options().write(true).open("/dev/null"),
    };
    let out = out.with_context(|| match log {
        Some(path) => format!("can't open the log {}", path.display()),
        None => "can't open /dev/null".into(),
    })?;
    rustix::stdio::dup2_stderr(&out).context("can't turn to the log")?;
    // Who started it may be gone.
    let _ = std::io::stdout().write_all(MOUNTED);
    let _ = std::io::stdout().flush();
    rustix::stdio::dup2_stdout(&out).context("can't turn to the log")
}

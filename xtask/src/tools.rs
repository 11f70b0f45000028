//! Programs of others that the tests run on a mount, installed under the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci;

/// Name, version, and how it is built. What runs for a moment is rather built quickly than to be quick.
type Tool = (&'static str, &'static str, &'static [&'static str]);

/// What the test suite needs.
const FOR_TESTS: [Tool; 3] = [
    ("fsx", "0.3.2", &[]),
    ("cargo-deny", "0.20.2", &["--debug"]),
    ("pjdfstest", "0.2.2", &["--debug"]),
];

/// Where an installed program is.
pub fn path(name: &str) -> PathBuf {
    root().join("bin").join(name)
}

fn root() -> PathBuf {
    PathBuf::from(ci::target()).join("tools")
}

/// Installs what the test suite needs, unless it is there.
pub fn for_tests() -> Result<(), String> {
    FOR_TESTS.iter().try_for_each(install)
}

fn install((name, version, how): &Tool) -> Result<(), String> {
    let root = root();
    if path(name).exists() {
        return Ok(());
    }
    let built = root.join("build");
    run(name, version, how, &root, &built)?;
    // Only the program is needed from here on.
    std::fs::remove_dir_all(&built).map_err(|e| format!("{}: {e}", built.display()))
}

fn run(name: &str, version: &str, how: &[&str], root: &Path, built: &Path) -> Result<(), String> {
    let status = Command::new("cargo")
        .args([
            "install",
            "--quiet",
            "--locked",
            "--version",
            version,
            "--root",
        ])
        .arg(root)
        .args(how)
        .arg("--target-dir")
        .arg(built)
        .arg(name)
        // Nobody debugs them.
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo install {name}: {status}")),
        Err(error) => Err(format!("cargo can't be started: {error}")),
    }
}

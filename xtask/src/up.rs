//! `cargo xtask up`: installs what is missing, builds, and runs `quorate up`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::packages;

/// Does not return unless something fails.
pub fn run(options: &[String]) -> Result<(), String> {
    packages::ensure(packages::FOR_UP)?;
    let error = Command::new(build()?).arg("up").args(options).exec();
    Err(format!("can't start quorate: {error}"))
}

/// Builds the command; where it is.
pub fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--package", "quorate"])
        .status()
        .map_err(|e| format!("can't run cargo: {e}"))?;
    match built.success() {
        true => Ok(target().join("release/quorate")),
        false => Err("quorate does not build".into()),
    }
}

/// The directory in which cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from)
}

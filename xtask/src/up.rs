//! `cargo xtask up`: installs what is missing, builds, and runs `quorate up`.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::packages;

/// Does not return unless something fails.
pub fn run(options: &[String]) -> Result<(), String> {
    packages::ensure(packages::FOR_UP)?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--package", "quorate"])
        .status()
        .map_err(|e| format!("can't run cargo: {e}"))?;
    if !built.success() {
        return Err("quorate does not build".into());
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let error = Command::new(format!("{target}/release/quorate"))
        .arg("up")
        .args(options)
        .exec();
    Err(format!("can't start quorate: {error}"))
}

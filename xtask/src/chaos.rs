//! `cargo xtask chaos`: builds the command and the harness that torments it, and runs that.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{ci, up};

/// Does not return unless something fails.
pub fn run(options: &[String]) -> Result<(), String> {
    let release = options.iter().any(|option| option == "--release");
    let options = options.iter().filter(|option| *option != "--release");
    // Without it, checks of overflow and debug assertions are a part of what is looked for.
    let profile = if release { "release" } else { "dev" };
    ci::cargo(&[
        "build",
        "--profile",
        profile,
        "--package",
        "quorate",
        "--package",
        "quorate-chaos",
    ])?;
    let built = up::target().join(if release { "release" } else { "debug" });
    let mut chaos = Command::new(built.join("quorate-chaos"));
    if options.clone().next().is_none_or(|first| first != "check") {
        chaos.arg("run").arg("--quorate").arg(built.join("quorate"));
    }
    let error = chaos.args(options).exec();
    Err(format!("can't start the harness: {error}"))
}

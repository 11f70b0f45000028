//! The supply chain: what may come into the build. `deny.toml` says what, and why; `cargo deny` looks.

use crate::{ci, tools};

/// What CI does: all that needs no database from elsewhere.
pub fn check() -> Result<(), String> {
    run(&["bans", "licenses", "sources"])
}

/// `cargo xtask deny`: the same, by itself.
pub fn main() -> Result<(), String> {
    tools::for_tests()?;
    check()
}

fn run(which: &[&str]) -> Result<(), String> {
    let program = tools::path("cargo-deny");
    let program = program
        .to_str()
        .ok_or("the target directory's name is no text")?;
    let mut args = vec!["--locked", "--log-level", "error"];
    args.extend(["--config", "deny.toml", "check"]);
    args.extend(which);
    ci::program(program, &args)
}

//! Tells the crate from which commit a release build is made, where git knows: in the repository itself, and not where its sources lie in another one.
//! Other builds are not told, whose figures mean nothing: else each commit would have the command compiled anew for its tests.

use std::path::Path;
use std::process::Command;

fn main() {
    // Mostly there is nothing else to look at.
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let Some(commit) = is_release.then(commit).flatten() else {
        println!("cargo::rustc-env=QUORATE_VERSION={version}");
        return;
    };
    println!("cargo::rustc-env=QUORATE_COMMIT={commit}");
    let short = commit.get(..8).unwrap_or(&commit);
    println!("cargo::rustc-env=QUORATE_VERSION={version} ({short})");
    // Another commit is there when one of these has changed; what is not there would count as changed each time.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn commit() -> Option<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let repository = git(&["rev-parse", "--show-toplevel"])?;
    let is_ours = Path::new(&repository).canonicalize().ok()? == sources.canonicalize().ok()?;
    is_ours.then(|| git(&["rev-parse", "HEAD"])).flatten()
}

/// What git says, if it does.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}

//! The fuzz targets, without a fuzzer: a build that needs no C++, the committed corpus, and mutations of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::ci::cargo;

/// Mutations of a cheap target in each run of CI; dear targets have fewer.
const MUTATIONS: &str = "60000";

/// What CI does: the targets are built on what is shipped, and neither the corpus nor what is near it makes one fail.
pub fn for_ci() -> Result<(), String> {
    same_versions()?;
    build(&["check", "--all-targets"], &[])?;
    replay(&["--mutations".into(), MUTATIONS.into()])
}

/// `cargo xtask fuzz`.
pub fn replay(args: &[String]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    build(&["run", "--quiet", "--bin", "replay"], &args)
}

/// Run from here, so without the flags for coverage, so that dependencies are built once with the workspace's. Their
/// assertions are on, and they are optimised.
fn build(command: &[&str], args: &[&str]) -> Result<(), String> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let mut all = command.to_vec();
    all.extend(["--manifest-path", "fuzz/Cargo.toml", "--locked"]);
    all.extend(["--no-default-features", "--target-dir", &target]);
    if !args.is_empty() {
        all.push("--");
        all.extend(args);
    }
    cargo(&all)
}

/// The targets have a lock file of their own. What is fuzzed must be what is shipped: one found a panic that another
/// version of a dependency would not have had.
fn same_versions() -> Result<(), String> {
    let (ours, theirs) = (locked("Cargo.lock")?, locked("fuzz/Cargo.lock")?);
    for (name, versions) in &theirs {
        if let Some(shipped) = ours.get(name)
            && !versions.is_subset(shipped)
        {
            return Err(format!(
                "fuzz/Cargo.lock has {name} {versions:?}, Cargo.lock {shipped:?}: copy Cargo.lock there and run \
                 `cargo metadata --manifest-path fuzz/Cargo.toml`, which adds what is missing"
            ));
        }
    }
    Ok(())
}

/// Names and versions in a lock file.
fn locked(path: &str) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let text = std::fs::read_to_string(Path::new(path)).map_err(|e| format!("{path}: {e}"))?;
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let quoted = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        Some(value.strip_suffix('"')?.to_string())
    };
    let mut name = String::new();
    for line in text.lines() {
        if let Some(value) = quoted(line, "name") {
            name = value;
        } else if let Some(version) = quoted(line, "version") {
            found.entry(name.clone()).or_default().insert(version);
        }
    }
    Ok(found)
}

//! The short examples of `quorate-service` as somebody else has them: in a package outside of the workspace, which depends on that crate by its path
//! and on nothing else.

use std::path::Path;

use crate::ci;

const EXAMPLES: [&str; 3] = ["counter", "key_value", "last_word"];

const PACKAGE: &str = r#"
[package]
name = "elsewhere"
version = "0.0.0"
edition = "2024"

[dependencies]
quorate-service = { path = "SERVICE" }

[workspace]

"#;

/// Has them checked, without a network.
pub fn check() -> Result<(), String> {
    let target = absolute(&ci::target())?;
    let service = absolute("crates/service")?;
    let package = format!("{target}/elsewhere");
    let programs = format!("{package}/src/bin");
    let failed = |e| format!("{package}: {e}");
    std::fs::create_dir_all(&programs).map_err(failed)?;
    for name in EXAMPLES {
        let example = format!("{service}/examples/{name}.rs");
        std::fs::copy(example, format!("{programs}/{name}.rs")).map_err(failed)?;
    }
    // The versions that are here already.
    std::fs::copy("Cargo.lock", format!("{package}/Cargo.lock")).map_err(failed)?;
    let manifest = format!("{package}/Cargo.toml");
    let ours = std::fs::read_to_string("Cargo.toml").map_err(|e| format!("Cargo.toml: {e}"))?;
    let contents = PACKAGE.replace("SERVICE", &service) + &profiles_of_others(&ours);
    std::fs::write(&manifest, contents).map_err(failed)?;
    let args = ["check", "--offline", "--manifest-path", &manifest];
    ci::program_with("cargo", &args, &[("CARGO_TARGET_DIR", &target)])
}

/// How a workspace builds the crates of others, so that what is built of C for them is not built once more.
fn profiles_of_others(manifest: &str) -> String {
    const PROFILE: &str = "[profile.dev.package.";
    let mut is_one = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_one = line.starts_with(PROFILE) && !line.contains("quorate");
        }
        is_one
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn absolute(path: &str) -> Result<String, String> {
    let path = std::path::absolute(Path::new(path)).map_err(|e| format!("{path}: {e}"))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_of_others_are_taken_over() {
        let manifest = "[a]\nb = 1\n[profile.dev.package.\"*\"]\nopt-level = 1\n[profile.dev.package.quorate-x]\nc = 2\n[profile.dev.package.d]\ne = 3\n[profile.sim]\nf = 4\n";
        let taken = "[profile.dev.package.\"*\"]\nopt-level = 1\n[profile.dev.package.d]\ne = 3\n";
        assert_eq!(profiles_of_others(manifest), taken);
    }
}

//! The short examples of `quorate-service` as somebody else has them: in a package outside of the workspace, which depends on that crate by its path
//! and on nothing else.

use std::path::Path;

use crate::ci;

const EXAMPLES: [&str; 3] = ["counter", "key_value", "last_word"];

/// The profile is that of the workspace for crates of others, so that what is built of C for them is not built once more.
const PACKAGE: &str = r#"
[package]
name = "elsewhere"
version = "0.0.0"
edition = "2024"

[dependencies]
quorate-service = { path = "SERVICE" }

[workspace]

[profile.dev.package."*"]
opt-level = 3
debug = false
"#;

/// Has them checked, without a network.
pub fn check() -> Result<(), String> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let target = absolute(&target)?;
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
    std::fs::write(&manifest, PACKAGE.replace("SERVICE", &service)).map_err(failed)?;
    let args = ["check", "--offline", "--manifest-path", &manifest];
    ci::program_with("cargo", &args, &[("CARGO_TARGET_DIR", &target)])
}

fn absolute(path: &str) -> Result<String, String> {
    let path = std::path::absolute(Path::new(path)).map_err(|e| format!("{path}: {e}"))?;
    Ok(path.to_string_lossy().into_owned())
}

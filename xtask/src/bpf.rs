//! The router's programs for the kernel: built from their C, and that what is checked in came of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where C and objects are.
const PLACE: &str = "crates/router/bpf";
/// The name of each object, and the sections with its instructions.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("udp_switch", &["classifier"]),
    (
        "tcp_switch",
        &["sk_skb/stream_parser", "sk_skb/stream_verdict"],
    ),
];
/// By which compiler the objects were made.
const COMPILER: &str = "compiler";

/// `cargo xtask bpf`: makes the objects anew.
pub fn make() -> Result<(), String> {
    for (name, _) in PROGRAMS {
        build(name, &Path::new(PLACE).join(format!("{name}.bpf.o")))?;
    }
    let by = compiler().ok_or("there is no clang")?;
    let file = Path::new(PLACE).join(COMPILER);
    fs::write(&file, by + "\n").map_err(|e| format!("{}: {e}", file.display()))
}

/// Compares the objects with what comes of their C, where there is the compiler that made them: others write other instructions.
pub fn check() -> Result<(), String> {
    let file = Path::new(PLACE).join(COMPILER);
    let made_by = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    match compiler() {
        Some(by) if by == made_by.trim() => {}
        found => {
            let found = found.unwrap_or_else(|| "none".into());
            println!(
                "not compared: the objects were made by {}; here is {found}",
                made_by.trim()
            );
            return Ok(());
        }
    }
    if !Path::new("/usr/include/bpf/bpf_helpers.h").exists() {
        println!("not compared: there is no libbpf-dev");
        return Ok(());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let place = target.join("bpf");
    fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    for (name, sections) in PROGRAMS {
        let new = place.join(format!("{name}.bpf.o"));
        build(name, &new)?;
        let old = Path::new(PLACE).join(format!("{name}.bpf.o"));
        // Types of the system's headers are in the object too, and differ from one release to the next.
        for section in sections.iter().copied().chain([".maps"]) {
            if part(&old, section)? != part(&new, section)? {
                return Err(format!(
                    "{}: {section} is not what comes of the C: run `cargo xtask bpf`",
                    old.display()
                ));
            }
        }
    }
    Ok(())
}

/// The first line of what clang says of itself.
fn compiler() -> Option<String> {
    let said = Command::new("clang").arg("--version").output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    Some(text.lines().next()?.trim().to_string())
}

fn build(name: &str, to: &Path) -> Result<(), String> {
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let (source, to) = (format!("{PLACE}/{name}.bpf.c"), to.display().to_string());
    let arguments = [
        "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", &headers, "-c", &source,
        "-o", &to,
    ];
    crate::ci::program("clang", &arguments)?;
    // What is for debuggers goes; types and lines for the kernel stay.
    crate::ci::program("llvm-strip", &["-g", &to])
}

fn part(object: &Path, section: &str) -> Result<Vec<u8>, String> {
    let to = std::env::temp_dir().join(format!("quorate-bpf-{}", std::process::id()));
    let dump = format!("--dump-section={section}={}", to.display());
    let object = object.display().to_string();
    crate::ci::program("llvm-objcopy", &[&dump, &object, "/dev/null"])?;
    let bytes = fs::read(&to).map_err(|e| format!("{}: {e}", to.display()));
    let _ = fs::remove_file(&to);
    bytes
}

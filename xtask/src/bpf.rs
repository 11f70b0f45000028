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
/// By which compiler the objects were made, and of which sources.
const COMPILER: &str = "compiler";
/// How what is said of these begins.
const SOURCES: &str = "sources ";

/// `cargo xtask bpf`: makes the objects anew.
pub fn make() -> Result<(), String> {
    for (name, _) in PROGRAMS {
        build(name, &Path::new(PLACE).join(format!("{name}.bpf.o")))?;
    }
    let by = compiler().ok_or("there is no clang")?;
    let file = Path::new(PLACE).join(COMPILER);
    let text = format!("{by}\n{SOURCES}{:016x}\n", sources()?);
    fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
}

/// Looks whether the objects were made of the C that is there; and compares them with what comes of it, where there is the compiler that
/// made them: others write other instructions.
pub fn check() -> Result<(), String> {
    let file = Path::new(PLACE).join(COMPILER);
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let (made_by, made_of) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    let made_of = made_of.strip_prefix(SOURCES);
    if made_of != Some(&format!("{:016x}", sources()?)) {
        return Err(format!(
            "{PLACE}: the objects were not made of the C that is there: run `cargo xtask bpf`"
        ));
    }
    match compiler() {
        Some(by) if by == made_by => {}
        found => {
            let found = found.unwrap_or_else(|| "none".into());
            println!("not compared: the objects were made by {made_by}; here is {found}");
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

/// A hash (FNV-1a) of all that the objects are made of, with its names. Nobody is kept from making another text with the same.
fn sources() -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{PLACE}: {e}");
    let all = fs::read_dir(PLACE).map_err(failed)?;
    let all = all.map(|entry| entry.map(|entry| entry.path()));
    let mut all = all.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    all.retain(|path| path.extension().is_some_and(|of| of == "c" || of == "h"));
    all.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for path in all {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let text = fs::read(&path).map_err(failed)?;
        for byte in name.iter().chain(&[0]).chain(&text).chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
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

//! Debian packages that commands need and a fresh machine lacks.

use std::path::Path;
use std::process::Command;

/// A program, or a file by its full path, and the package that brings it.
type Need = (&'static str, &'static str);

/// What `quorate up` needs beside the kernel's FUSE.
pub const FOR_UP: &[Need] = &[("fusermount3", "fuse3")];

/// What the tests run.
pub const FOR_TESTS: &[Need] = &[
    ("fusermount3", "fuse3"),
    // Without recommended packages, the compiler comes without what it links with.
    ("cc", "gcc"),
    ("cc", "libc6-dev"),
    ("make", "make"),
    ("git", "git"),
    ("sqlite3", "sqlite3"),
    ("nfs-cp", "libnfs-utils"),
    ("diff", "diffutils"),
    ("tar", "tar"),
    // Networks of their own for what the kernel passes on.
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    // Reads the units as systemd would; none is started.
    ("systemd-analyze", "systemd"),
    ("pkill", "procps"),
    // Maps files into memory, and changes them there.
    ("python3", "python3"),
    ("setfacl", "acl"),
    // Has the kernel refuse a replica's reads, writes and syncs.
    ("strace", "strace"),
    // A TPM that is a program, and what the command is built with to speak to one.
    ("swtpm", "swtpm"),
    ("/usr/include/tss2/tss2_esys.h", "libtss2-dev"),
    ("pkg-config", "pkgconf"),
];

/// Installs the packages whose programs are missing.
pub fn ensure(needs: &[Need]) -> Result<(), String> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    as_root(&["apt-get", "update", "-q"], &missing)?;
    let mut install = vec!["apt-get", "install", "-q", "-y", "--no-install-recommends"];
    install.extend(&missing);
    as_root(&install, &missing)
}

/// The packages whose programs are missing.
pub fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut missing: Vec<&str> = needs
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    missing.dedup();
    missing
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(usual)
        .any(|dir| dir.join(program).exists())
}

fn as_root(command: &[&str], missing: &[&str]) -> Result<(), String> {
    let by_hand = || format!("install these packages by hand: {}", missing.join(" "));
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!("this is no Debian; {}", by_hand()));
    }
    let mut run = match is_root() {
        true => Command::new(command[0]),
        false => {
            let mut sudo = Command::new("sudo");
            sudo.arg(command[0]);
            sudo
        }
    };
    run.args(&command[1..])
        .env("DEBIAN_FRONTEND", "noninteractive");
    match run.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) | Err(_) => Err(format!("`{}` failed; {}", command.join(" "), by_hand())),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

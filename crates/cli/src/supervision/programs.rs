//! The list of programs that may run as a replica, by their BLAKE3 digests. What is run is what was looked at: the program is copied into
//! memory that is sealed before its digest is taken, and executed from there, so that it can be neither exchanged nor
//! changed in between.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use blake3::{Hash, Hasher};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// A list is some lines; what is longer is something else.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// The list. It is read anew each time that a program is to be run.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

/// A program that is on the list, in sealed memory.
#[derive(Debug)]
pub struct Admitted(File);

impl Programs {
    /// The list in a file: lines of a digest in hexadecimal and, after a space, words for people; empty lines, and comments after `#`.
    pub fn new(list: PathBuf) -> Programs {
        Programs(list)
    }

    /// A program, if it is on the list.
    ///
    /// # Errors
    /// That it is not, or that it or the list can't be read.
    pub fn admit(&self, program: &Path) -> Result<Admitted> {
        let list = File::open(&self.0).and_then(|file| {
            let mut text = String::new();
            file.take(MAX_LIST_BYTES).read_to_string(&mut text)?;
            Ok(text)
        });
        let list = list.with_context(|| format!("the list of programs, {}", self.0.display()))?;
        let allowed = parse(&list).with_context(|| self.0.display().to_string())?;
        let copy = sealed_copy(program)
            .with_context(|| format!("can't read the program {}", program.display()))?;
        let digest = digest_of(&copy).context("the copy of the program")?;
        if !allowed.contains(&digest) {
            bail!(
                "{} is not on the list of programs: its digest is {digest}. If you have put it there and trust it, add that line to {}; \
                 else somebody has changed the program",
                program.display(),
                self.0.display()
            );
        }
        Ok(Admitted(copy))
    }
}

impl Admitted {
    /// The name under which it is executed, in this process and those that come of it before they execute anything.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The digest of a program's file.
///
/// # Errors
/// If it can't be read.
pub fn digest(program: &Path) -> Result<String> {
    let digest = File::open(program).and_then(|file| digest_of(&file));
    let digest = digest.with_context(|| format!("can't read {}", program.display()))?;
    Ok(digest.to_string())
}

fn digest_of(mut file: &File) -> std::io::Result<Hash> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    file.seek(SeekFrom::Start(0))?;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize()),
            bytes => hasher.update(&buffer[..bytes]),
        };
    }
}

fn sealed_copy(program: &Path) -> std::io::Result<File> {
    let mut program = File::open(program)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 know no other memory than such that may be executed, and not the flag.
    let memory = match memfd_create("quorate", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => memfd_create("quorate", flags),
        made => made,
    };
    let mut copy = File::from(memory?);
    std::io::copy(&mut program, &mut copy)?;
    copy.flush()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&copy, seals)?;
    Ok(copy)
}

fn parse(list: &str) -> Result<Vec<Hash>> {
    let mut digests = Vec::new();
    for (at, line) in list.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(digest) = line.split_whitespace().next() else {
            continue;
        };
        let Ok(digest) = Hash::from_hex(digest) else {
            bail!(
                "line {} does not begin with a digest, 64 hexadecimal digits (`quorate programs`)",
                at + 1
            );
        };
        digests.push(digest);
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// What is executed is what was on the list, whatever becomes of the file meanwhile; one with another byte is refused.
    #[test]
    fn what_runs_is_what_was_admitted() {
        let directory = tempfile::tempdir().unwrap();
        let (program, list) = (directory.path().join("true"), directory.path().join("list"));
        let original = std::fs::read("/bin/true").unwrap();
        std::fs::write(&program, &original).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let line = format!("# ours\n\n{}  true, as built\n", digest(&program).unwrap());
        std::fs::write(&list, line).unwrap();
        let programs = Programs::new(list.clone());
        let admitted = programs.admit(&program).unwrap();

        // In place, as somebody does who may write to it: the same file is another program now.
        std::fs::write(&program, std::fs::read("/bin/false").unwrap()).unwrap();
        assert!(Command::new(admitted.path()).status().unwrap().success());
        let refused = format!("{:#}", programs.admit(&program).unwrap_err());
        assert!(refused.contains("not on the list"), "{refused}");
        assert!(refused.contains(&digest(&program).unwrap()), "{refused}");
        // Nor can the copy be changed.
        let opened = File::options().write(true).open(admitted.path());
        assert!(opened.and_then(|mut f| f.write_all(b"x")).is_err());

        let mut longer = original;
        longer.push(0);
        std::fs::write(&program, longer).unwrap();
        assert!(programs.admit(&program).is_err());
        std::fs::remove_file(&list).unwrap();
        assert!(programs.admit(&program).is_err());
    }

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let digest = blake3::hash(b"a").to_string();
        let text = format!("{digest}\n  {digest} words # more\n#{digest}\n \n");
        assert_eq!(parse(&text).unwrap(), [blake3::hash(b"a"); 2]);
        for wrong in ["quorate", &digest[1..], &format!("{digest}0")] {
            let text = format!("{digest}\n{wrong}\n");
            let why = parse(&text).unwrap_err().to_string();
            assert!(why.contains("line 2"), "{why}");
        }
    }
}

//! The list of programs that may run as a replica, by their BLAKE3 digests. What is run is what was looked at: the program is copied into
//! memory that is sealed before its digest is taken, and executed from there, so that it can be neither exchanged nor
//! changed in between. The last copy that was on the list is kept: when the program's file is another one since, or the list can't be read, that copy runs
//! again, since a replica that is left alone with who has taken it over is no better.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use blake3::{Hash, Hasher};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use tokio::time::Instant;

/// A list is some lines; what is longer is something else.
const MAX_LIST_BYTES: u64 = 1 << 20;
/// A program is copied into memory.
const MAX_PROGRAM_BYTES: u64 = 1 << 30;
/// How often it is looked again whether what is wrong was put right: that a file could not be read may be over while nothing of it has changed.
const AGAIN: Duration = Duration::from_secs(60);

/// The list, which is read anew each time that a program is to be run, and what ran last.
#[derive(Debug)]
pub struct Programs {
    list: PathBuf,
    /// What was on the list last, and whether it still was when that could be read last.
    kept: Option<Arc<Admitted>>,
    is_listed: bool,
    /// Why what the program's file has is not run.
    alarm: Option<String>,
    /// What the list and the program's file were when they were read last, and when that was.
    seen: [Seen; 2],
    read_at: Option<Instant>,
    /// What is to be told.
    words: Vec<String>,
}

/// A program that is on the list, in sealed memory.
#[derive(Debug)]
pub struct Admitted {
    copy: File,
    digest: Hash,
}

/// By which it is seen that a file has changed: device, inode, length, and when what stands there was changed. Nothing rests on it but how soon a change
/// is told.
type Seen = Option<(u64, u64, u64, i64, i64)>;

impl Programs {
    /// The list in a file: lines of a digest in hexadecimal and, after a space, words for people; empty lines, and comments after `#`.
    pub fn new(list: PathBuf) -> Programs {
        Programs {
            list,
            kept: None,
            is_listed: false,
            alarm: None,
            seen: [None; 2],
            read_at: None,
            words: Vec::new(),
        }
    }

    /// A program, if it is on the list. Else the one that was on it last, if that still is or the list can't be read, with an alarm until it is
    /// put right.
    ///
    /// # Errors
    /// That it is not, or that it or the list can't be read.
    pub fn admit(&mut self, program: &Path) -> Result<Arc<Admitted>> {
        self.seen = [&self.list, program].map(seen);
        self.read_at = Some(Instant::now());
        let allowed = self.read();
        let found = match &allowed {
            Ok(allowed) => self.find(program, allowed),
            Err(e) => Err(anyhow!("{e:#}")),
        };
        if let (Ok(allowed), Some(kept)) = (&allowed, &self.kept) {
            self.is_listed = allowed.contains(&kept.digest);
        }
        let why = match found {
            Ok(found) => {
                self.is_right(program);
                (self.kept, self.is_listed) = (Some(found.clone()), true);
                return Ok(found);
            }
            Err(why) => why,
        };
        match self.kept.clone().filter(|_| self.is_listed) {
            Some(kept) => {
                self.is_wrong(&why, &kept);
                Ok(kept)
            }
            None => {
                // Whoever wanted to start it tells that it can't be.
                self.alarm = Some(format!(
                    "{why:#}. Until that is put right it is not started"
                ));
                Err(why)
            }
        }
    }

    /// Looks whether the program or the list is another one than it was; where it is, and what it is now, is told at once and not only with the next start.
    pub fn look(&mut self, program: &Path) -> Vec<String> {
        let is_due = || self.read_at.is_some_and(|at| at.elapsed() >= AGAIN);
        let is_wrong = self.alarm.is_some() && is_due();
        let is_other = || self.seen != [&self.list, program].map(seen);
        if self.kept.is_some() && (is_wrong || is_other()) {
            let before = self.alarm.clone();
            let admitted = self.admit(program);
            let alarm = self.alarm.iter().filter(|_| admitted.is_err());
            let news = alarm.filter(|alarm| before.as_ref() != Some(*alarm));
            self.words
                .extend(news.map(|alarm| format!("ALARM: {alarm}")));
        }
        std::mem::take(&mut self.words)
    }

    /// What is wrong with the program or the list, as it was when they were looked at last.
    pub fn alarm(&self) -> Option<&str> {
        self.alarm.as_deref()
    }

    /// The digests on the list.
    fn read(&self) -> Result<Vec<Hash>> {
        let list = File::open(&self.list).and_then(|file| {
            let mut text = String::new();
            file.take(MAX_LIST_BYTES).read_to_string(&mut text)?;
            Ok(text)
        });
        let list =
            list.with_context(|| format!("the list of programs, {}", self.list.display()))?;
        parse(&list).with_context(|| self.list.display().to_string())
    }

    /// What the program's file has, if it may run.
    fn find(&self, program: &Path, allowed: &[Hash]) -> Result<Arc<Admitted>> {
        let unread = || format!("can't read the program {}", program.display());
        let copy = sealed_copy(program).with_context(unread)?;
        let digest = digest_of(&copy).context("the copy of the program")?;
        if !allowed.contains(&digest) {
            bail!(
                "{} is not on the list of programs: its digest is {digest}. If you have put it there and trust it, add that line to {}; \
                 else somebody has changed the program",
                program.display(),
                self.list.display()
            );
        }
        // One copy in memory is enough of what is the same.
        let same = self.kept.clone().filter(|kept| kept.digest == digest);
        Ok(same.unwrap_or_else(|| Arc::new(Admitted { copy, digest })))
    }

    fn is_right(&mut self, program: &Path) {
        if self.alarm.take().is_some() {
            let text = format!("{} is on the list of programs again", program.display());
            self.words.push(text);
        }
    }

    fn is_wrong(&mut self, why: &Error, kept: &Admitted) {
        let alarm = format!(
            "{why:#}. Until that is put right the program runs that was on the list before, which is kept in memory while this process lives: \
             its digest is {}",
            kept.digest
        );
        if self.alarm.as_ref() != Some(&alarm) {
            self.words.push(format!("ALARM: {alarm}"));
        }
        self.alarm = Some(alarm);
    }
}

impl Admitted {
    /// The name under which it is executed, in this process and those that come of it before they execute anything.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.copy.as_raw_fd()))
    }
}

fn seen(path: impl AsRef<Path>) -> Seen {
    let about = std::fs::metadata(path).ok()?;
    Some((
        about.dev(),
        about.ino(),
        about.len(),
        about.ctime(),
        about.ctime_nsec(),
    ))
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
    // Somebody may have put there what can't be opened before another one writes, or what never ends.
    let mut open = File::options();
    open.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let program = open.open(program)?;
    let about = program.metadata()?;
    if !about.is_file() || about.len() > MAX_PROGRAM_BYTES {
        let words = "it is no file, or longer than any program";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    let mut program = program.take(MAX_PROGRAM_BYTES);
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
        let mut programs = Programs::new(list.clone());
        let admitted = programs.admit(&program).unwrap();

        // In place, as somebody does who may write to it: the same file is another program now.
        std::fs::write(&program, std::fs::read("/bin/false").unwrap()).unwrap();
        assert!(Command::new(admitted.path()).status().unwrap().success());
        let mut anew = Programs::new(list.clone());
        let refused = format!("{:#}", anew.admit(&program).unwrap_err());
        assert!(refused.contains("not on the list"), "{refused}");
        assert!(refused.contains(&digest(&program).unwrap()), "{refused}");
        // Nor can the copy be changed.
        let opened = File::options().write(true).open(admitted.path());
        assert!(opened.and_then(|mut f| f.write_all(b"x")).is_err());

        let mut longer = original;
        longer.push(0);
        std::fs::write(&program, longer).unwrap();
        assert!(anew.admit(&program).is_err());
        std::fs::remove_file(&list).unwrap();
        assert!(anew.admit(&program).is_err());
        assert!(anew.look(&program).is_empty() && anew.alarm().is_some());
    }

    /// What was admitted last runs again when the file or the list is no good any more, with an alarm until that is put right; but not when it was taken
    /// off the list. A new program that is listed takes its place.
    #[test]
    fn what_ran_last_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (program, list) = (
            directory.path().join("program"),
            directory.path().join("list"),
        );
        let put = |content: &[u8]| {
            // Under another inode, so that it is seen however coarse the clock is.
            std::fs::write(directory.path().join("new"), content).unwrap();
            std::fs::rename(directory.path().join("new"), &program).unwrap();
        };
        let hash = |content: &[u8]| blake3::hash(content).to_string();
        std::fs::write(&list, format!("{}\n", hash(b"first"))).unwrap();
        put(b"first");
        let mut programs = Programs::new(list.clone());
        let content = |admitted: &Admitted| std::fs::read(admitted.path()).unwrap();
        let first = programs.admit(&program).unwrap();
        assert_eq!(content(&first), b"first");
        assert!(programs.look(&program).is_empty());

        // Somebody changes it: that is told at once, with what it is now, and once.
        put(b"other");
        let told = programs.look(&program);
        assert!(
            told.len() == 1 && told[0].starts_with("ALARM: ") && told[0].contains(&hash(b"other")),
            "{told:?}"
        );
        assert!(programs.alarm().unwrap().contains(&hash(b"first")));
        assert!(Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        assert!(programs.look(&program).is_empty());
        // Or takes it away; and a list that can't be read, or understood, is no reason to run nothing.
        std::fs::remove_file(&program).unwrap();
        assert!(programs.look(&program)[0].contains("can't read the program"));
        assert!(Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        // Or puts there what would keep whoever reads it for ever, or fill its memory.
        let fifo = Command::new("mkfifo").arg(&program).status().unwrap();
        assert!(fifo.success() && Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        put(b"");
        let long = File::options().write(true).open(&program).unwrap();
        long.set_len(MAX_PROGRAM_BYTES + 1).unwrap();
        assert!(Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        assert!(
            programs
                .alarm()
                .unwrap()
                .contains("longer than any program")
        );
        programs.look(&program);
        put(b"first");
        let told = programs.look(&program);
        assert!(told.len() == 1 && told[0].contains("again"), "{told:?}");
        assert_eq!(programs.alarm(), None);
        std::fs::write(&list, "no digest\n").unwrap();
        assert!(Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        assert!(programs.alarm().unwrap().contains("line 1"));
        std::fs::remove_file(&list).unwrap();
        assert!(Arc::ptr_eq(&first, &programs.admit(&program).unwrap()));
        assert!(programs.alarm().unwrap().contains("the list of programs"));

        assert_eq!(programs.look(&program).len(), 2);
        // Taken off the list it does not run, whatever lies there.
        std::fs::write(&list, format!("{}\n", hash(b"second"))).unwrap();
        let told = programs.look(&program);
        assert!(
            told.len() == 1 && told[0].contains("not started"),
            "{told:?}"
        );
        assert!(programs.admit(&program).is_err() && programs.look(&program).is_empty());
        // Nor does a list that can't be read any more bring it back.
        std::fs::write(&list, "no digest\n").unwrap();
        assert!(programs.admit(&program).is_err());
        std::fs::write(&list, format!("{}\n", hash(b"second"))).unwrap();
        put(b"other");
        assert!(programs.admit(&program).is_err());
        put(b"second");
        let second = programs.admit(&program).unwrap();
        assert_eq!(content(&second), b"second");
        put(b"first");
        assert!(Arc::ptr_eq(&second, &programs.admit(&program).unwrap()));
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

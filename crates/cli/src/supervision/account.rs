//! The user that a supervised replica runs as, where that is not the supervisor's own.

mod fuse;
mod leavings;
mod life;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{Uid, capabilities, set_thread_res_uid};
use tokio::time::Instant;

use life::Life;

/// Where a system without a directory service lists its users (passwd(5)).
const USERS: &str = "/etc/passwd";
/// For how long processes are ended until none is left: nothing else is done meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);
/// A number that no user has: in 16 bits it stands for none.
const NOBODYS: u32 = 65_535;
/// Between two looks at them.
const PAUSE: Duration = Duration::from_millis(10);

/// A user and its group. It has no other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    /// Of a name that the system lists, or of two numbers, `UID:GID`.
    ///
    /// # Errors
    /// If there is no such user, or it is root: nothing would keep that from this process.
    pub fn named(text: &str) -> Result<Account> {
        let numbers = text.split_once(':').and_then(|(uid, gid)| {
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(Account { uid, gid })
        });
        let account = match numbers {
            Some(account) => account,
            None => {
                let users = fs::read_to_string(USERS).with_context(|| USERS.to_string())?;
                find(&users, text).with_context(|| {
                    format!(
                        "--user {text}: there is no such user in {USERS}; give its numbers, UID:GID"
                    )
                })?
            }
        };
        if account.uid == 0 || account.gid == 0 {
            bail!("--user {text}: that is root, who may do everything that the supervisor may");
        }
        if account.uid == NOBODYS {
            bail!("--user {text}: that number is no user's");
        }
        Ok(account)
    }

    /// Ends all processes of this user: there must be none but the replica's. False where some are stuck in the kernel: they never run anything
    /// again, but may hold what they have open.
    ///
    /// # Errors
    /// If some go on.
    pub fn end_all(self) -> Result<bool> {
        self.end_all_with(Path::new(fuse::CONNECTIONS), PATIENCE)
    }

    /// Takes away what this user's processes have left outside of the replica's directory, when they have ended. Gives what is to be told.
    pub fn clear_leavings(self) -> Vec<String> {
        leavings::clear(self.uid)
    }

    /// They are killed before anybody looks whether there are any. /proc is read process by process: in a chain in which each starts the next one and
    /// ends, the one is gone when it is looked at, and the next one stands, under a lower number, where was looked already. The look only tells
    /// whether those who were killed are gone. (That kill(2) finds nobody can't be had from it: it succeeds where others than this user's run.)
    fn end_all_with(self, connections: &Path, patience: Duration) -> Result<bool> {
        let begin = Instant::now();
        loop {
            self.kill_all()
                .context("ending all processes of the replica's user")?;
            fuse::abort_all(connections, self.uid);
            let is_late = begin.elapsed() >= patience;
            match life::of_user(self.uid)? {
                None => return Ok(true),
                Some(Life::Lives) if is_late => break,
                Some(Life::Stuck) if is_late => return Ok(false),
                // They count among those that the user may have until their parent has looked, who may be any.
                Some(Life::Ended) if is_late => return Ok(true),
                Some(Life::Lives | Life::Stuck | Life::Ended) => {}
            }
            std::thread::sleep(PAUSE);
        }
        bail!(
            "processes of the replica's user (number {}) can't be ended",
            self.uid
        )
    }

    /// The kernel does it in one go, so that none gets away by a fork: one that is under way fails. It takes no other process: that user may have made so many that none can be
    /// made any more. So this thread, for as long as it takes, may do what that user may: end all of its own, and no others.
    fn kill_all(self) -> Result<()> {
        if life::of_user(NOBODYS)?.is_some() {
            bail!("somebody runs processes as the user {NOBODYS}, who is to be none: end them");
        }
        let user = Some(Uid::from_raw(self.uid));
        let root = Some(Uid::ROOT);
        // Whom one may end goes by the real user as well, and so does who may end one: it must be neither root, nor that user.
        set_thread_res_uid(Some(Uid::from_raw(NOBODYS)), user, root)?;
        // Where a service manager has asked for that, a thread keeps root's power though it is not root.
        let own = capabilities(None).map(|sets| sets.effective);
        let killed = match own {
            Ok(own) if own.is_empty() => kill_process_group(Pid::INIT, Signal::KILL),
            Ok(_) => Err(Errno::PERM),
            Err(e) => Err(e),
        };
        if set_thread_res_uid(root, root, root).is_err() {
            // Half a supervisor is worse than none, which is started again.
            std::process::abort();
        }
        match killed {
            // There is no other process at all.
            Err(Errno::SRCH) => Ok(()),
            killed => Ok(killed?),
        }
    }

    /// Which part of a path this user could change: the thing itself, or a directory above it in which it could be exchanged.
    ///
    /// # Errors
    /// If the path is not there, or can't be looked at.
    pub fn could_change(&self, path: &Path) -> Result<Option<PathBuf>> {
        let path = path.canonicalize();
        let path = path.with_context(|| "a path that the supervisor goes by")?;
        for (place, part) in path.ancestors().enumerate() {
            let about = fs::metadata(part).with_context(|| part.display().to_string())?;
            let mode = about.mode();
            let owns = about.uid() == self.uid;
            // Whatever the group is: its bits are also what an ACL gives to others at the most.
            let writes = mode & 0o022 != 0;
            // In a directory with the sticky bit only what one owns can be moved away.
            let kept = place > 0 && mode & 0o1000 != 0;
            if owns || writes && !kept {
                return Ok(Some(part.to_path_buf()));
            }
        }
        Ok(None)
    }
}

fn find(users: &str, name: &str) -> Option<Account> {
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        if fields.next()? != name {
            return None;
        }
        let mut fields = fields.skip(1);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::super::left_out;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_user_is_found_by_name_or_numbers() {
        let users = "root:x:0:0:root:/root:/bin/sh\nquorate:x:990:991::/:/bin/false\nbad:x:no:1\n";
        let expected = Account { uid: 990, gid: 991 };
        assert_eq!(find(users, "quorate"), Some(expected));
        assert_eq!(find(users, "quorat"), None);
        assert_eq!(find(users, "bad"), None);
        assert_eq!(Account::named("990:991").unwrap(), expected);
        for wrong in [
            "root",
            "0:5",
            "5:0",
            "no such user",
            "990:",
            ":",
            "-1:5",
            "65535:5",
        ] {
            assert!(Account::named(wrong).is_err(), "{wrong}");
        }
    }

    /// All of a user's processes end, also one that was stopped, and no other's; this one can start others as before. No process is made for that.
    #[test]
    fn all_of_a_user_are_ended() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can run a process as another user");
        }
        let (theirs, others) = (61_236, 61_237);
        let power = || capabilities(None).unwrap().effective;
        let before = power();
        let start = |uid| {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("1000").uid(uid).gid(uid).spawn().unwrap()
        };
        let (mut one, mut two, mut other) = (start(theirs), start(theirs), start(others));
        let stopped = Pid::from_child(&two);
        rustix::process::kill_process(stopped, Signal::STOP).unwrap();
        let account = Account {
            uid: theirs,
            gid: theirs,
        };
        assert_eq!(life::of_user(theirs).unwrap(), Some(Life::Lives));
        assert!(account.end_all().unwrap());
        assert_eq!(life::of_user(theirs).unwrap(), None);
        for child in [&mut one, &mut two] {
            assert!(!child.wait().unwrap().success());
        }
        assert!(other.try_wait().unwrap().is_none(), "it is another user's");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(rustix::process::geteuid().is_root());
        assert_eq!(power(), before, "root's rights are back");
    }

    /// A chain of processes, each of which starts the next one and ends, is over at once, however it stands when it is looked for.
    #[test]
    fn a_chain_of_processes_ends() {
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can run a process as another user");
        }
        let theirs = 61_242;
        let account = Account {
            uid: theirs,
            gid: theirs,
        };
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(place.path(), Some(theirs), None).unwrap();
        fs::write(place.path().join("link"), "printf . >> trace; sh ./link &").unwrap();
        let trace = place.path().join("trace");
        let links = || fs::metadata(&trace).map_or(0, |trace| trace.len());
        for round in 0..5 {
            let (before, begin) = (links(), Instant::now());
            let mut first = Command::new("sh");
            first.arg("./link").current_dir(&place).stdin(Stdio::null());
            let mut first = first.uid(theirs).gid(theirs).spawn().unwrap();
            first.wait().unwrap();
            while links() < before + 20 {
                assert!(begin.elapsed() < Duration::from_secs(60), "no chain");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(account.end_all().unwrap());
            let then = links();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(links(), then, "it goes on after round {round}");
        }
    }

    /// Who waits for a file system that never answers can't be ended, and runs nothing any more; when its connection is aborted it is gone.
    #[test]
    fn a_file_system_that_never_answers_holds_nobody() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can run a process as another user");
        }
        if std::env::var_os("QUORATE_SKIP_FUSE").is_some() {
            return println!("skipped: QUORATE_SKIP_FUSE is set");
        }
        let theirs = 61_241;
        let account = Account {
            uid: theirs,
            gid: theirs,
        };
        let place = tempfile::tempdir().unwrap();
        let (silent, connections) = (place.path().join("silent"), place.path().join("fusectl"));
        for directory in [&silent, &connections] {
            fs::create_dir(directory).unwrap();
        }
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut device = fs::File::options();
        let mut device = device.read(true).write(true).open("/dev/fuse").unwrap();
        let none = MountFlags::empty();
        mount("fusectl", &connections, "fusectl", none, None).unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id={theirs},group_id={theirs},allow_other",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        mount("silent", &silent, "fuse", none, &*options).unwrap();
        // FUSE_INIT is answered, with the version 7.31 and nothing else, and the first question after that is not.
        let mut question = vec![0; 1 << 17];
        let _ = device.read(&mut question).unwrap();
        let mut answer = [80_u32, 0, 0, 0, 7, 31].map(u32::to_le_bytes).concat();
        answer[8..16].copy_from_slice(&question[8..16]);
        answer.resize(80, 0);
        device.write_all(&answer).unwrap();
        let mut list = std::process::Command::new("ls");
        let mut list = list.arg(&silent).uid(theirs).gid(theirs).spawn().unwrap();
        let _ = device.read(&mut question).unwrap();

        let short = Duration::from_millis(500);
        let nowhere = place.path().join("nowhere");
        assert!(!account.end_all_with(&nowhere, short).unwrap());
        assert_eq!(list.try_wait().unwrap(), None);
        assert!(account.end_all_with(&connections, PATIENCE).unwrap());
        assert!(!list.wait().unwrap().success());
        for directory in [&silent, &connections] {
            unmount(directory, UnmountFlags::DETACH).unwrap();
        }
    }

    /// What belongs to a user, or stands where all may write, could be changed by it; a directory with the sticky bit above changes nothing.
    #[test]
    fn what_could_be_changed_is_named() {
        let place = tempfile::tempdir().unwrap();
        let (inner, list) = (place.path().join("inner"), place.path().join("inner/list"));
        fs::create_dir(&inner).unwrap();
        fs::write(&list, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let own = fs::metadata(&list).unwrap();
        let stranger = Account {
            uid: own.uid() + 4_000,
            gid: own.gid() + 4_000,
        };
        let of_group = Account {
            gid: own.gid(),
            ..stranger
        };
        let owner = Account {
            uid: own.uid(),
            ..stranger
        };
        mode(&inner, 0o755);
        mode(&list, 0o644);
        let list = list.canonicalize().unwrap();
        let inner = inner.canonicalize().unwrap();
        assert_eq!(stranger.could_change(&list).unwrap(), None);
        assert_eq!(owner.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o664);
        // There may be an ACL behind it.
        assert_eq!(stranger.could_change(&list).unwrap(), Some(list.clone()));
        assert_eq!(of_group.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o646);
        assert_eq!(stranger.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o600);
        mode(&inner, 0o777);
        assert_eq!(stranger.could_change(&list).unwrap(), Some(inner.clone()));
        mode(&inner, 0o1777);
        assert_eq!(stranger.could_change(&list).unwrap(), None);
        assert_eq!(stranger.could_change(&inner).unwrap(), Some(inner));
        assert!(stranger.could_change(&place.path().join("none")).is_err());
    }
}

//! A mount: a process `quorate mount`, and the directory.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::programs::wait;
use super::watchdog::Mounts;
use super::{Group, LocalUser, Patience, last_lines, quorate, scratch};

/// How long a mount may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted group. Drop it before the group: what is still to be written needs the replicas.
#[derive(Debug)]
pub struct Mount {
    child: Child,
    pid: Pid,
    mounts: Mounts,
    directory: PathBuf,
    log: PathBuf,
    ended: bool,
    _place: tempfile::TempDir,
}

/// Whether FUSE can be tested; false only where somebody has said so by hand. A missing device is a failure:
/// what was not tested must not look tested.
pub fn require_fuse() -> bool {
    if std::env::var_os("QUORATE_SKIP_FUSE").is_some() {
        eprintln!("skipped: QUORATE_SKIP_FUSE is set");
        return false;
    }
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    if let Err(e) = opened {
        panic!(
            "/dev/fuse can't be opened ({e}): load the module fuse, give this user access, or set \
             QUORATE_SKIP_FUSE=1 to go without these tests"
        );
    }
    true
}

/// Whether something is mounted at a directory, without touching it.
pub fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let place = directory.to_str().expect("a test's directory");
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(place))
}

impl Mount {
    pub fn start(group: &Group, key: &Path, options: &[&str]) -> Mount {
        Mount::start_with(group, key, options, &[])
    }

    /// Mounts a volume of several groups.
    pub fn of_volume(file: &Path, mounts: Mounts) -> Mount {
        Mount::run(file, mounts, &[])
    }

    /// Mounts by credentials.
    pub fn of_guest(group: &Group, key: &Path, credentials: &[&Path]) -> Mount {
        Mount::start_with(group, key, &[], credentials)
    }

    /// The same with options.
    pub fn of_guest_with(
        group: &Group,
        key: &Path,
        credentials: &[&Path],
        options: &[&str],
    ) -> Mount {
        Mount::start_with(group, key, options, credentials)
    }

    fn start_with(group: &Group, key: &Path, options: &[&str], credentials: &[&Path]) -> Mount {
        let mut words: Vec<&OsStr> = vec!["--key".as_ref(), key.as_ref()];
        for credential in credentials {
            words.extend(["--credential".as_ref(), credential.as_os_str()]);
        }
        let options = options.join(",");
        if !options.is_empty() {
            words.extend::<[&OsStr; 2]>(["-o".as_ref(), options.as_ref()]);
        }
        Mount::run(&group.file(), group.mounts(), &words)
    }

    /// Mounts by a credential as another user of this machine, who has the files in his own place. Nobody but him comes in.
    pub fn of_user(group: &Group, user: &LocalUser, key: &str, credential: &str) -> Mount {
        let (file, key, credential) = (user.at("group.toml"), user.at(key), user.at(credential));
        let words: [&OsStr; 4] = [
            "--key".as_ref(),
            key.as_ref(),
            "--credential".as_ref(),
            credential.as_ref(),
        ];
        let place = user.scratch();
        Mount::begin(user.quorate(), place, &file, group.mounts(), &words)
    }

    fn run(what: &Path, mounts: Mounts, words: &[&OsStr]) -> Mount {
        let mount = Mount::begin(quorate(), scratch(), what, mounts, words);
        // The first call waits until the session is open.
        std::fs::metadata(&mount.directory).expect("the root of the mount");
        mount
    }

    fn begin(
        mut command: Command,
        place: tempfile::TempDir,
        what: &Path,
        mounts: Mounts,
        words: &[&OsStr],
    ) -> Mount {
        let directory = place.path().join("files");
        std::fs::create_dir(&directory).expect("a directory to mount on");
        // Whose the place is.
        let of = std::fs::metadata(place.path()).expect("it is there");
        chown(&directory, Some(of.uid()), Some(of.gid())).expect("an owner");
        let log = place.path().join("log");
        let file = File::create(&log).expect("a log");
        command
            .args(["-v", "mount"])
            .arg(what)
            .arg(&directory)
            .args(words);
        command
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .stdin(Stdio::null());
        let child = command.spawn().expect("the mount process starts");
        let pid = Pid::from_child(&child);
        mounts.add(pid, log.clone());
        let mut mount = Mount {
            child,
            pid,
            mounts,
            directory,
            log,
            ended: false,
            _place: place,
        };
        mount.wait_until_there();
        mount
    }

    fn wait_until_there(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !is_mounted(&self.directory) {
            let ended = self.child.try_wait().expect("a child can be waited for");
            if let Some(status) = ended {
                panic!(
                    "quorate mount ended ({status}):\n{}",
                    last_lines(&self.log, 20)
                );
            }
            assert!(
                Instant::now() < end,
                "nothing is mounted:\n{}",
                last_lines(&self.log, 20)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The directory in which the group's files are.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn process(&self) -> Pid {
        self.pid
    }

    /// Ends the mount in order, which takes all data to the group.
    pub fn unmount(mut self) {
        kill_process(self.pid, Signal::INT).expect("the mount process lives");
        let status = self
            .wait()
            .expect("the mount process ends when it is asked to");
        assert!(
            status.success(),
            "quorate mount: {status}:\n{}",
            last_lines(&self.log, 20)
        );
        assert!(!is_mounted(&self.directory), "the mount is still there");
    }

    /// Waits until the mount's process has ended by itself.
    pub fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let status = wait(&mut self.child, Patience(PATIENCE));
        self.mounts.remove(self.pid);
        self.ended = true;
        status
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut how = UnmountFlags::DETACH;
        if std::thread::panicking() {
            eprintln!("  the mount process said:\n{}", last_lines(&self.log, 20));
            // What waits in the kernel for an answer would keep this process and the test from their ends.
            how |= UnmountFlags::FORCE;
        }
        if is_mounted(&self.directory) && unmount(&self.directory, how).is_err() {
            // Not root.
            let mut command = quorate();
            let _ = command
                .args(["umount", "--lazy"])
                .arg(&self.directory)
                .status();
        }
        if !self.ended {
            self.mounts.remove(self.pid);
            // Of no use to anybody any more, so it need not end in order; it may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

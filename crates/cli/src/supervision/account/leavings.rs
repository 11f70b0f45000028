//! What processes of a user leave that lasts longer than they do, elsewhere than in the replica's directory: files where anybody may write, memory
//! and queues of System V, and jobs for later. It would outlive a recovery, and fill memory and disks.
//!
//! The units keep it from being made; this is for those who run the supervisor without them, and is done each time when all processes of that
//! user have ended. That user has nothing else on the machine, so all that is its goes; and nothing of another user, wherever it lies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorate_node::daemon::ground::{self, Taken};

/// Where anybody may write. What is there in memory counts against the machine's.
const SHARED: [&str; 4] = ["/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp"];
/// Lists of what is shared by the calls of System V, and by which option ipcrm(1) removes one.
const SYSTEM_V: [(&str, &str, &str); 3] = [
    ("/proc/sysvipc/shm", "shmid", "-m"),
    ("/proc/sysvipc/msg", "msqid", "-q"),
    ("/proc/sysvipc/sem", "semid", "-s"),
];
/// So many are removed by one ipcrm(1).
const AT_ONCE: usize = 64;
/// Files of a user's name by which something is run for it later: by systemd, whoever is logged in, and by cron.
const BY_NAME: [&str; 3] = [
    "/var/lib/systemd/linger",
    "/var/spool/cron/crontabs",
    "/var/spool/cron",
];
/// Directories in which such files are the user's, whatever their names are: those of at(1).
const BY_OWNER: [&str; 2] = ["/var/spool/cron/atjobs", "/var/spool/at"];

/// Takes all of it away. Gives what is to be told: what was for later, and what could not be taken away.
pub fn clear(uid: u32) -> Vec<String> {
    let mut told = Vec::new();
    for place in SHARED.iter().chain(&BY_OWNER) {
        match ground::take_away_of(Path::new(place), uid) {
            Err(e) => told.push(format!("something in {place}, which stays: {e}")),
            Ok(Taken { stay: 1.., .. }) => told.push(format!(
                "something in {place}, of which stays what others have in it, or is mounted there"
            )),
            Ok(Taken { gone: 1.., .. }) if BY_OWNER.contains(place) => {
                told.push(format!("something in {place}, which is removed"));
            }
            Ok(_) => {}
        }
    }
    for (list, id, option) in SYSTEM_V {
        let text = fs::read_to_string(list).unwrap_or_default();
        for some in of_user(&text, id, uid).chunks(AT_ONCE) {
            remove(option, some);
        }
        let text = fs::read_to_string(list).unwrap_or_default();
        let left = of_user(&text, id, uid).len();
        if left > 0 {
            told.push(format!("{left} entries of {list}, which stay"));
        }
    }
    for file in jobs(uid) {
        told.push(match fs::remove_file(&file) {
            Ok(()) => format!("{}, which is removed", file.display()),
            Err(e) => format!("{}, which stays: {e}", file.display()),
        });
    }
    told
}

fn remove(option: &str, ids: &[String]) {
    let mut command = Command::new("ipcrm");
    for id in ids {
        command.args([option, id]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // What stays is seen in the list.
    let _ = command.stderr(Stdio::null()).status();
}

/// The ids in a list of the kernel's, whose first line names its columns, of what is this user's.
fn of_user(list: &str, id: &str, uid: u32) -> Vec<String> {
    let mut lines = list.lines();
    let names: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let column = |name: &str| names.iter().position(|n| *n == name);
    let (Some(id), Some(owner), Some(maker)) = (column(id), column("uid"), column("cuid")) else {
        return Vec::new();
    };
    let uid = uid.to_string();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_its = [owner, maker]
            .iter()
            .any(|at| fields.get(*at) == Some(&&*uid));
        let id = fields.get(id).filter(|_| is_its)?;
        Some((*id).to_string())
    };
    lines.filter_map(of).collect()
}

/// The files by which something is run later for the users of this number.
fn jobs(uid: u32) -> Vec<PathBuf> {
    let users = fs::read_to_string(super::USERS).unwrap_or_default();
    let name = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_string())
    };
    // A name that leads elsewhere is none.
    let is_plain =
        |name: &String| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let names: Vec<String> = users.lines().filter_map(name).filter(is_plain).collect();
    let files = BY_NAME
        .iter()
        .flat_map(|place| names.iter().map(move |name| Path::new(place).join(name)));
    files
        .filter(|file| fs::symlink_metadata(file).is_ok_and(|it| !it.is_dir() || it.uid() == uid))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::left_out;
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn columns_are_found_by_name() {
        let list = "       key      msqid perms cbytes qnum lspid lrpid   uid   gid  cuid  cgid\n\
                    0  7  644  0  0  0  0  1000  0  0  0\n\
                    0  8  644  0  0  0  0  0  0  1000  0\n\
                    0  9  644  0  0  0  0  0  1000  0  1000\n";
        assert_eq!(of_user(list, "msqid", 1000), ["7", "8"]);
        assert_eq!(of_user(list, "shmid", 1000), [""; 0]);
        assert_eq!(of_user("", "msqid", 1000), [""; 0]);
    }

    /// Files where anybody may write, trees of them, and memory of System V go; another user's stay.
    #[test]
    fn nothing_outlives_the_users_processes() {
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can run a process as another user");
        }
        let (theirs, others) = (61_244, 61_245);
        let run = |uid: u32, script: &str| {
            let mut shell = Command::new("sh");
            let done = shell
                .args(["-c", script])
                .uid(uid)
                .gid(uid)
                .status()
                .unwrap();
            assert!(done.success(), "{script}");
        };
        let make = |uid: u32| {
            for place in ["/dev/shm", "/tmp", "/var/tmp"] {
                run(
                    uid,
                    &format!(
                        "mkdir -p {place}/left-{uid}/a/b && chmod 0 {place}/left-{uid}/a && echo . > {place}/left-{uid}-file"
                    ),
                );
            }
            run(uid, "ipcmk -M 4096 && ipcmk -Q && ipcmk -S 1");
        };
        let files = |uid: u32| {
            let of = |place| {
                [
                    format!("{place}/left-{uid}"),
                    format!("{place}/left-{uid}-file"),
                ]
            };
            let paths = ["/dev/shm", "/tmp", "/var/tmp"].into_iter().flat_map(of);
            paths
                .filter(|path| fs::symlink_metadata(path).is_ok())
                .count()
        };
        let shared = |uid: u32| {
            let of = |(list, id, _): &(&str, &str, &str)| {
                of_user(&fs::read_to_string(list).unwrap(), id, uid).len()
            };
            SYSTEM_V.iter().map(of).sum::<usize>()
        };
        if Command::new("ipcmk")
            .arg("-V")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            return left_out("there is no ipcmk(1)");
        }
        [theirs, others].into_iter().for_each(make);
        assert_eq!((files(theirs), shared(theirs)), (6, 3));
        assert_eq!(clear(theirs), [""; 0]);
        let left = [files(theirs), shared(theirs), files(others), shared(others)];
        clear(others);
        assert_eq!(left, [0, 0, 6, 3]);
        assert_eq!((files(others), shared(others)), (0, 0));
    }
}

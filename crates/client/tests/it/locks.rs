//! Locks that go with a session, and who may think that they hold them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Group, can_mount};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::{self, Errno};

/// So long after its last word a session has ended.
const MORE_THAN_A_LEASE_MS: u64 = 200_000;

type Locking = fn(&File, FlockOperation) -> io::Result<()>;

fn by_flock(file: &File, how: FlockOperation) -> io::Result<()> {
    flock(file, how)
}

fn by_fcntl(file: &File, how: FlockOperation) -> io::Result<()> {
    fcntl_lock(file, how)
}

fn open(path: std::path::PathBuf) -> File {
    let open = OpenOptions::new().read(true).write(true).open(path);
    open.unwrap()
}

fn is_io_error<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(Errno::IO.raw_os_error()))
}

/// Who holds a lock while his mount is cut off until its session ends does not go on as if he held it still: what he has written goes
/// over nothing that the next holder has written, and he is told until he lets go.
#[test]
fn a_lost_lock_is_not_held() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for (round, lock) in [by_flock as Locking, by_fcntl].into_iter().enumerate() {
        let name = format!("{round}");
        fs::write(a.path(&name), b"before").unwrap();
        let (holder, next) = (open(a.path(&name)), open(b.path(&name)));
        // Another program of the first machine that has no lock.
        let bystander = open(a.path(&name));
        lock(&holder, FlockOperation::LockExclusive).unwrap();
        holder.write_all_at(b"old", 0).unwrap();
        group
            .ahead_ms
            .fetch_add(MORE_THAN_A_LEASE_MS, Ordering::AcqRel);
        lock(&next, FlockOperation::LockExclusive).unwrap();
        next.write_all_at(b"newest", 0).unwrap();
        next.sync_all().unwrap();
        lock(&next, FlockOperation::Unlock).unwrap();

        assert!(is_io_error(holder.sync_all()), "{round}");
        assert!(is_io_error(holder.write_all_at(b"later", 0)), "{round}");
        // Pages go when the loss is noticed.
        std::thread::sleep(Duration::from_millis(1200));
        assert!(is_io_error(holder.read_at(&mut [0; 6], 0)), "{round}");
        assert!(is_io_error(holder.set_len(1)), "{round}");
        assert!(is_io_error(holder.sync_all()), "{round}");
        let again = lock(&holder, FlockOperation::LockShared);
        assert_eq!(again, Err(Errno::IO), "{round}");
        assert_eq!(fs::read(b.path(&name)).unwrap(), b"newest", "{round}");
        // Another program: where this one closes the file, its locks of fcntl(2) are given back.
        let cat = Command::new("cat").arg(a.path(&name)).output().unwrap();
        assert_eq!(cat.stdout, b"newest", "{round}");
        // What was lost was the file's, and each who has it open is told so.
        let _ = bystander.sync_all();
        bystander.write_all_at(b"!", 5).unwrap();
        bystander.sync_all().unwrap();
        assert_eq!(fs::read(b.path(&name)).unwrap(), b"newes!", "{round}");

        let let_go = lock(&holder, FlockOperation::Unlock);
        assert_eq!(let_go, Err(Errno::IO), "{round}");
        lock(&holder, FlockOperation::LockExclusive).unwrap();
        let mut back = [0; 6];
        holder.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"newes!", "{round}");
        holder.write_all_at(b"anew", 0).unwrap();
        lock(&holder, FlockOperation::Unlock).unwrap();
        assert_eq!(fs::read(b.path(&name)).unwrap(), b"anews!", "{round}");
    }
}

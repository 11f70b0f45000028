//! What programs have changed in mapped files, and not written yet, where a file gets another size or is changed elsewhere.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Group, Mount, can_mount, left_out};

/// How often it is looked for whether a program has ended. One that has not after all of them hangs.
const LOOKS: u32 = 3000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Runs a Python program in a mount's root, which must end well. Whether there is Python.
fn runs(m: &Mount, script: &str, args: &[&Path]) -> bool {
    let mut python = Command::new("python3");
    let script = format!("import mmap, os, sys, time\n{script}");
    python.args(["-c", &script]).args(args).current_dir(m.dir());
    let Ok(child) = python.stdin(Stdio::null()).spawn() else {
        left_out("python3 is absent");
        return false;
    };
    ends(child);
    true
}

fn ends(mut child: Child) {
    for _ in 0..LOOKS {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{status}");
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    // So that the mount can go.
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("it hangs");
}

/// A file gets another size while pages of it wait to be written, after changes of it that the mount has heard nothing of yet.
#[test]
fn a_changed_mapping_gets_another_size() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let other = group.mount(2);
    for (n, change) in [
        "os.rename('f.tmp', 'f')",
        "os.link('f.tmp', 'f'); os.unlink('f.tmp')",
        "a = os.open('f.tmp', os.O_WRONLY | os.O_APPEND); os.write(a, b'appended'); os.close(a); os.rename('f.tmp', 'f')",
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "
fd = os.open('f.tmp', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
m = mmap.mmap(fd, 4096)
m[10:14] = b'kept'
{change}
os.ftruncate(fd, 8192)
m[20:24] = b'more'
m.flush()
os.close(fd)
"
        );
        if !runs(&m, &script, &[]) {
            return;
        }
        for mount in [&m, &other] {
            let back = std::fs::read(mount.path("f")).unwrap();
            assert_eq!(back.len(), 8192, "{n}");
            assert_eq!((&back[10..14], &back[20..24]), (&b"kept"[..], &b"more"[..]));
        }
        std::fs::remove_file(m.path("f")).unwrap();
    }
}

/// What was changed in a mapping of a file is gone when the file is opened to be written anew, and does not come back later.
#[test]
fn a_changed_mapping_is_cut_off() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let other = group.mount(2);
    // Opened by number, since a look at the name would have the pages written before the truncation.
    let script = "
fd = os.open('f.tmp', os.O_RDWR | os.O_CREAT)
os.write(fd, b'before' * 2000)
os.fsync(fd)
m = mmap.mmap(fd, 12000)
m[5000:5004] = b'gone'
os.rename('f.tmp', 'f')
again = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_TRUNC)
os.write(again, b'after')
os.fsync(again)
os.fsync(fd)
";
    if !runs(&m, script, &[]) {
        return;
    }
    for mount in [&m, &other] {
        assert!(std::fs::read(mount.path("f")).unwrap() == b"after");
    }
}

/// Times that are set on an open file leave its size alone, and what was changed in a mapping beyond the end that only this mount knew.
#[test]
fn a_changed_mapping_outlives_times() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let other = group.mount(2);
    let script = "
fd = os.open('f', os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 102400)
os.fsync(fd)
there = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(there, b'b' * 102400, 102400)
os.close(there)
while os.fstat(fd).st_size < 204800:
    time.sleep(0.1)
m = mmap.mmap(fd, 204800)
m[153600:153604] = b'kept'
os.utime(fd, ns=(10**18, 10**18))
assert os.fstat(fd).st_size == 204800
m.flush()
os.close(fd)
";
    if !runs(&m, script, &[&other.path("f")]) {
        return;
    }
    for mount in [&m, &other] {
        let back = std::fs::read(mount.path("f")).unwrap();
        assert_eq!(back.len(), 204_800);
        assert_eq!(&back[153_600..153_606], b"keptbb");
    }
}

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;

use rustix::mount::{MountFlags, mount};

use super::*;

/// A file system that says hello to the kernel and answers nothing else. `None`: it can't be had here.
fn silent(at: &Path) -> Option<File> {
    let mut device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .ok()?;
    let number = device.as_raw_fd();
    let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
    let options = CString::new(options).expect("no zeros");
    let flags = MountFlags::empty();
    mount("chaos", at, "fuse", flags, options.as_c_str()).ok()?;
    let hello = next(&mut device);
    // fuse.h: the header with length, error and the request's number; then version, and what is to be written at once.
    let mut answer = [0; 16 + 64];
    answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
    answer[8..16].copy_from_slice(&hello[8..16]);
    answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
    answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
    answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
    device.write_all(&answer).expect("the kernel takes it");
    Some(device)
}

fn next(device: &mut File) -> Vec<u8> {
    let mut request = vec![0; 64 << 10];
    let length = device.read(&mut request).expect("a request");
    request.truncate(length);
    request
}

/// Who waits for a mount that never answers can't be killed; with the mount gone it ends.
#[test]
fn a_silent_mount_is_taken_away() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("mount");
    std::fs::create_dir(&at).expect("a directory");
    let Some(mut device) = silent(&at) else {
        let why = "this user may not mount FUSE by hand";
        let wanted = std::env::var_os("QUORATE_SKIP_FUSE").is_none();
        assert!(!wanted || std::env::var_os("CI").is_none(), "{why}");
        eprintln!("skipped: {why}");
        return;
    };
    assert!(is_mounted(&at) && is_any_below(place.path()) && !is_mounted(place.path()));
    let mut child = Command::new("stat")
        .arg(at.join("file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("stat starts");
    // Its question is under way.
    next(&mut device);
    child.kill().expect("it is killed");
    let ends = reap(&mut child, Duration::from_millis(500));
    take_away(&at);
    assert!(!ends, "it did not wait for the mount");
    assert!(!is_any_below(place.path()));
    // Far longer than it takes.
    assert!(reap(&mut child, Duration::from_secs(60)));
}

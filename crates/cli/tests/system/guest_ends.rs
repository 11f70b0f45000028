//! When a guest's credentials have ended: the group answers no more, and the mount itself refuses.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::guests::{Scene, kind, open_to_all};
use crate::harness::{eventually, program, quorate, require_fuse, run};

const BLOCK: usize = 64 << 10;
/// Longer than anything here may take on a slow machine; what waits for ever waits longer.
const FOR_EVER: Duration = Duration::from_secs(120);

/// A credential for a directory that lasts so many seconds from now on.
fn grant(scene: &Scene, to: &str, seconds: u64, file: &str) {
    let end = format!("{seconds} seconds");
    let end = run(program("date").args(["-u", "+%FT%TZ", "-d", &end]));
    let mut grant = quorate();
    grant.arg("grant").arg(scene.mount.at("shared"));
    grant.args(["--to", to, "--rights", "rw", "--until", end.trim()]);
    grant.arg("--group").arg(scene.group.file());
    fs::write(scene.at(file), run(&mut grant)).expect("a file");
}

/// A credential is in the directory at which the mount looks, all of it at once.
fn comes(scene: &Scene, name: &str) {
    fs::rename(scene.at(name), scene.at("mine").join(name)).expect("it comes");
}

/// Reads a part that the kernel has not got yet. One that waits for ever is not to keep the test.
fn read(open: &Arc<File>, part: usize) -> Receiver<io::Result<()>> {
    let (told, hear) = mpsc::channel();
    let open = open.clone();
    thread::spawn(move || {
        let mut block = vec![0; 4096];
        let read = open.read_exact_at(&mut block, (part * BLOCK) as u64);
        let _ = told.send(read);
    });
    hear
}

/// When the only credential has ended replicas let the guest in no more: what it asks is refused then, also of what it has open, and does not wait for an
/// answer that nobody gives.
#[test]
fn nothing_waits_after_the_end() {
    if !require_fuse() {
        return;
    }
    const LASTS: u64 = 20;
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    let plan = scene.mount.at("shared/plan");
    fs::write(&plan, vec![7; 64 * BLOCK]).expect("a file");
    open_to_all(&plan);
    let ends = Instant::now() + Duration::from_secs(LASTS);
    grant(&scene, &bob, LASTS, "bob.cred");
    let mount = scene.mount_as("bob.key", "bob.cred");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mount.at("plan"));
    let open = Arc::new(open.expect("it opens"));
    let read = |part: usize| {
        let hear = read(&open, part);
        hear.recv_timeout(Duration::from_secs(8))
            .expect("a read waits")
    };
    read(60).expect("he may read");
    // Replicas end his links ten seconds after the credential, and he lets some more pass.
    // Until the mount itself knows, some 4 s at most, the group may let him: where nothing is ordered its time stands still.
    let mut refused = 0;
    for part in (0..30).map(|at| at * 2 % 59) {
        let (begun, result) = (Instant::now(), read(part));
        if begun > ends + Duration::from_secs(7) {
            assert_eq!(kind(result), Some(ErrorKind::PermissionDenied), "{part}");
            refused += 1;
        }
        if begun > ends + Duration::from_secs(16) {
            break;
        }
        thread::sleep(Duration::from_millis(1500));
    }
    assert!(refused > 2, "{refused}");
    let (told, hear) = mpsc::channel();
    let path = mount.at("plan");
    let writer = open.clone();
    thread::spawn(move || {
        let written = writer
            .write_all_at(b"late", 0)
            .and_then(|()| writer.sync_all());
        let _ = told.send((
            written.is_err(),
            fs::metadata(&path).is_err(),
            File::open(&path).is_err(),
        ));
    });
    let all = hear.recv_timeout(Duration::from_secs(20));
    assert_eq!(all.expect("something waits"), (true, true, true));
    drop(open);
    mount.unmount();
    assert_eq!(fs::read(&plan).expect("a file")[..4], [7; 4]);
}

/// A credential that was on its way to a group that did not answer is no reason to look no more: when it has ended as all others have, what waits is
/// refused, and another one is taken when there is a group again.
#[test]
fn what_ends_while_nobody_answers_has_ended() {
    if !require_fuse() {
        return;
    }
    let mut scene = Scene::new();
    let bob = scene.key("bob.key");
    let plan = scene.mount.at("shared/plan");
    fs::write(&plan, vec![7; 64 * BLOCK]).expect("a file");
    fs::create_dir(scene.at("mine")).expect("a directory");
    grant(&scene, &bob, 1_000_000, "long.cred");
    comes(&scene, "long.cred");
    let mount = scene.mount_as("bob.key", "mine");
    let open = Arc::new(File::open(mount.at("long/plan")).expect("it opens"));
    let told = read(&open, 60).recv_timeout(FOR_EVER);
    told.expect("an answer").expect("he may read");

    grant(&scene, &bob, 15, "short.cred");
    scene.group.kill_all();
    comes(&scene, "short.cred");
    fs::remove_file(scene.at("mine/long.cred")).expect("it was there");
    let waits = read(&open, 30);
    for waits in [waits, read(&open, 10)] {
        let told = waits.recv_timeout(FOR_EVER).expect("a read waits");
        assert_eq!(kind(told), Some(ErrorKind::PermissionDenied));
    }

    scene.group.start_all();
    scene.group.wait_until_it_works();
    grant(&scene, &bob, 1_000_000, "fresh.cred");
    comes(&scene, "fresh.cred");
    eventually("the credential that came is taken", || {
        fs::read(mount.at("fresh/plan")).is_ok_and(|read| read.len() == 64 * BLOCK)
    });
    drop(open);
    mount.unmount();
}

//! Guests who are ordinary users of their own machines, under whatever ids: what they may do is what their credentials and the volume's modes say,
//! and never what those ids would mean there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::guests::Scene;
use crate::harness::{LocalUser, Mount, Source, program, require_fuse, run};

/// Users that every Debian has: fusermount3 mounts for nobody without a name.
const BOB: (u32, u32) = (1, 1);
const OTHER: (u32, u32) = (2, 2);

/// What people do with a directory that they may write to. Arguments: the directory, and a tree on the local disk.
const WORK: &str = r#"
cd "$1"; tree=$2
fail() { echo "$*" >&2; exit 1; }
not() { if "$@" 2>/dev/null; then fail "should be refused: $*"; fi; }
mode() { stat -c %a "$1"; }

umask 022
echo one > x; echo two >> x; echo three > x
[ "$(cat x)" = three ]
[ "$(stat -c %u:%g x)" = "$(id -u):$(id -g)" ] || fail "a file of his is shown as another's"
[ "$(mode x)" = 644 ]
chmod 600 x; [ "$(mode x)" = 600 ]; echo four > x
touch -d @1000000000 x; [ "$(stat -c %Y x)" = 1000000000 ]
chown "$(id -u):$(id -g)" x; not chown 4711 x
truncate -s 100 x; [ "$(stat -c %s x)" = 100 ]

mkdir d; echo in > d/in; mkdir -p d/e/f; mv d/in d/e/f/in; [ "$(cat d/e/f/in)" = in ]
cp -rp "$tree" copy; diff -r --no-dereference "$tree" copy
mkdir untarred; tar -C "$tree" -cf - . | tar -C untarred -xpf -; diff -r --no-dereference "$tree" untarred
[ -z "$(find copy untarred -type f ! -user "$(id -u)")" ] || fail "others' files in his copies"
rm -r copy untarred; [ ! -e copy ]
mv x y; ln y z; [ "$(stat -c %h y)" = 2 ]; rm z; ln -s y s; [ "$(readlink s)" = y ]
rm -r d s

# What modes say holds for him, as on a local disk.
[ -w y ]; chmod 444 y; not [ -w y ]; not sh -c 'echo no > y'; not truncate -s 0 y; rm -f y
printf '#!/bin/sh\nexit 7\n' > run; not ./run; not [ -x run ]; chmod 755 run; [ -x run ]
./run && fail "it says 7" || [ $? = 7 ]
chmod 4755 run; [ -u run ]; echo '# more' >> run; [ ! -u run ] || fail "who writes keeps the set-user-ID bit"
chmod 100 run; not cat run; rm -f run
mkdir closed; echo in > closed/in; chmod 000 closed
not ls closed; not cd closed; not touch closed/new; not [ -r closed ]; not [ -x closed ]
# Names that were looked up are trusted for a second.
sleep 2; not cat closed/in
chmod 300 closed; not ls closed; cat closed/in > /dev/null; rm closed/in; chmod 700 closed; rmdir closed
mkdir sticky; chmod 1777 sticky; echo in > sticky/a; mv sticky/a sticky/b; rm sticky/b; rmdir sticky
"#;

/// What he finds of others in the directory, who are told apart only where the test has made such files, as root.
const OTHERS: &str = r#"
cd "$1"
fail() { echo "$*" >&2; exit 1; }
not() { if "$@" 2>/dev/null; then fail "should be refused: $*"; fi; }
[ "$(stat -c %u:%g theirs)" = 4711:4711 ]
[ "$(cat theirs)" = theirs ]; [ -r theirs ]; not [ -w theirs ]
not sh -c 'echo no >> theirs'; not chmod 666 theirs; not touch -d @1 theirs
not cat secret; not [ -r secret ]
# Whose number is his by chance on this machine.
[ "$(stat -c %u:%g namesake)" = 65534:65534 ] || fail "another's file is shown as his"
not cat namesake; not chmod 666 namesake
mkdir own; chmod 1777 own
not rm -f stuck/theirs; not mv stuck/theirs stuck/other
rmdir own
"#;

/// A shell runs a script as a user, on a mount and a tree.
fn does(user: &LocalUser, script: &str, at: &Path, tree: &Path) {
    let mut shell = user.program("sh");
    shell.current_dir("/").args(["-euc", script, "sh"]);
    run(shell.arg(at).arg(tree));
}

/// What others have in a directory, if the test can act for them.
fn others_files(dir: &Path, user: &LocalUser) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let make = |name: &str, mode: u32, (uid, gid): (u32, u32)| {
        let path = dir.join(name);
        fs::write(&path, name).expect("a file");
        chown(&path, Some(uid), Some(gid)).expect("an owner");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
    };
    make("theirs", 0o644, (4711, 4711));
    make("secret", 0o600, (4711, 4711));
    make("namesake", 0o600, (user.uid, user.gid));
    let stuck = dir.join("stuck");
    fs::create_dir(&stuck).expect("a directory");
    fs::set_permissions(&stuck, Permissions::from_mode(0o1777)).expect("a mode");
    make("stuck/theirs", 0o666, (4711, 4711));
    true
}

/// Bob, an ordinary user of his machine, has a directory from Alice as her user 1000, and as nobody: he can use the one as she does, and the other as whoever may
/// write in it. Nobody else of his machine comes in, and what he has made belongs in the volume to whom he acts as.
#[test]
fn a_guest_is_an_ordinary_user() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let user = LocalUser::new(BOB);
    let public = scene.key("bob.key");
    let (source, tree) = (Source::new(50), user.scratch());
    run(program("cp").arg("-a").arg(source.tree()).arg(tree.path()));
    let own = format!("{}:{}", user.uid, user.gid);
    run(program("chown").args(["-R", "-h", &own]).arg(tree.path()));
    let is_root = rustix::process::geteuid().is_root();
    let alice = if is_root {
        (1000, 1000)
    } else {
        (user.uid, user.gid)
    };

    let plans = scene.mount.at("plans");
    fs::create_dir(&plans).expect("a directory");
    fs::write(plans.join("letter"), "by alice").expect("a file");
    for (path, mode) in [(plans.clone(), 0o755), (plans.join("letter"), 0o600)] {
        chown(&path, Some(alice.0), Some(alice.1)).expect("an owner");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
    }
    let ids = format!("ids={}:{}", alice.0, alice.1);
    let terms = ["--rights", "rw", "--caveat", &ids];
    scene.grant("plans", &public, &terms, "plans.cred");
    scene.grant("shared", &public, &["--rights", "rw"], "shared.cred");
    user.gets(&scene.group.file(), "group.toml");
    for name in ["bob.key", "plans.cred", "shared.cred"] {
        user.gets(&scene.at(name), name);
    }

    for (name, acting) in [("plans", alice), ("shared", (65_534, 65_534))] {
        let dir = scene.mount.at(name);
        let has_others = others_files(&dir, &user);
        let mount = Mount::of_user(&scene.group, &user, "bob.key", &format!("{name}.cred"));
        if name == "plans" {
            let says = "[ \"$(cat \"$1\"/letter)\" = 'by alice' ]; echo more >> \"$1\"/letter";
            does(&user, says, mount.path(), tree.path());
            let letter = fs::read_to_string(dir.join("letter")).expect("it is hers");
            assert_eq!(letter, "by alicemore\n");
        }
        does(&user, WORK, mount.path(), tree.path());
        if has_others {
            does(&user, OTHERS, mount.path(), tree.path());
            // Neither the superuser nor another user.
            assert!(fs::metadata(mount.path()).is_err(), "{name}");
            let mut other = LocalUser::new(OTHER).program("ls");
            let output = other.arg(mount.path()).output().expect("it runs");
            assert!(!output.status.success(), "{name}");
        }
        does(&user, "echo own > \"$1\"/own", mount.path(), tree.path());
        let own = fs::metadata(dir.join("own")).expect("the owner of the volume sees it");
        assert_eq!((own.uid(), own.gid()), acting, "{name}");
        mount.unmount();
    }
}

/// Where root has mounted and lets others in, all users of the machine do what the credential allows, each of them alike; and without that none of them comes in.
#[test]
fn others_come_in_where_that_is_said() {
    if !require_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let public = scene.key("bob.key");
    scene.grant("shared", &public, &["--rights", "rw"], "bob.cred");
    let guest = |options: &[&str]| {
        let (key, credential) = (scene.at("bob.key"), scene.at("bob.cred"));
        let place = Mount::of_guest_with(&scene.group, &key, &[credential.as_path()], options);
        // The way there.
        let above = place.path().parent().expect("a directory");
        fs::set_permissions(above, Permissions::from_mode(0o755)).expect("a mode");
        place
    };
    let users = [LocalUser::new(BOB), LocalUser::new(OTHER)];
    let does = |mount: &Mount, user: &LocalUser, script: &str| {
        let mut shell = user.program("sh");
        shell.args(["-euc", script, "sh"]).arg(mount.path());
        shell.output().expect("a shell").status.success()
    };
    let mount = guest(&[]);
    for user in &users {
        assert!(!does(&mount, user, "ls \"$1\""));
    }
    mount.unmount();

    let mount = guest(&["allow_other"]);
    assert!(does(&mount, &users[0], "umask 077; echo one > \"$1\"/plan"));
    assert!(does(
        &mount,
        &users[1],
        "echo two >> \"$1\"/plan; [ -w \"$1\"/plan ]"
    ));
    let seen = fs::read(scene.mount.at("shared/plan")).expect("the owner sees it");
    assert_eq!(seen, b"one\ntwo\n");
    // What the volume keeps from whom they act as nobody here has, also not from the kernel's cache.
    let theirs = scene.mount.at("shared/theirs");
    fs::write(&theirs, "theirs").expect("a file");
    chown(&theirs, Some(4711), Some(4711)).expect("an owner");
    assert!(does(&mount, &users[0], "cat \"$1\"/theirs"));
    fs::set_permissions(&theirs, Permissions::from_mode(0o600)).expect("a mode");
    for user in &users {
        assert!(!does(&mount, user, "cat \"$1\"/theirs"));
    }
    assert!(
        fs::read(mount.at("theirs")).is_err(),
        "root of this machine is nobody there"
    );
    mount.unmount();
}

//! What the audit log says of what was brought, taken back and done: by which credential, and with what.

use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::answer::{AuditRow, Decision};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Attr, Errno, Ino, Kind};

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, key, public, refused, terms};

const BOB: u8 = 1;
const CAROL: u8 = 2;

fn serial(issuer: u8, serial: u64) -> Serial {
    Serial {
        issuer: public(issuer),
        serial,
    }
}

/// Bob's credential for an object, with a serial and a tag of its own, brought.
fn share(v: &mut Volume, object: Ino, rights: Rights, number: u64) -> quorate_credential::Chain {
    let mut t = terms(BOB, object.0);
    t.rights = rights;
    t.serial = number;
    t.caveats.push(Caveat::AuditTag(format!("tag {number}")));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain).unwrap();
    chain
}

fn said(row: &AuditRow) -> (Vec<Serial>, String) {
    (row.links.clone(), row.tag_text())
}

/// That somebody has a file open for a while is the only trace of who reads: it says by which credential, and so does what asks for no right.
#[test]
fn who_reads_is_told_by_which_credential() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    let file = v.file(dir, b"file");
    let looks = Rights::LOOKUP;
    // In the order of their digests the one that says nothing of content may be the first.
    for number in 10..20 {
        share(&mut v, Ino::ROOT, looks, number);
    }
    let reads = Rights::READING;
    share(&mut v, dir, reads, 7);
    let expected = (vec![serial(0, 7)], "tag 7".to_string());
    let hold = Action::Hold(Hold {
        keep: [file].into(),
        let_go: Vec::new(),
    });
    v.run(BOB, hold)?;
    let row = v.last_row();
    assert_eq!((row.action, row.object), (41, file));
    assert_eq!(said(&row), expected);
    v.run(BOB, Action::Fsync(Target::Ino(file)))?;
    let row = v.last_row();
    assert_eq!((row.object, row.decision), (file, Decision::Allowed));
    assert_eq!(said(&row), expected);
    // What nothing is said of but that it is there.
    let alone = v.file(Ino::ROOT, b"alone");
    v.run(BOB, Action::Fsync(Target::Ino(alone)))?;
    let (links, tags) = said(&v.last_row());
    assert_eq!((links.len(), tags.starts_with("tag 1")), (1, true));
    v.check();
    Ok(())
}

/// What was brought is told by its serials and tags, also where it was refused; and what was taken back, and by what.
#[test]
fn what_was_brought_and_taken_back_is_told() -> Result<()> {
    let mut v = Volume::new();
    let bob = share(&mut v, Ino::ROOT, Rights::ALL, 3);
    let row = v.last_row();
    assert_eq!((row.action, row.revoked.clone()), (32, None));
    assert_eq!(said(&row), (vec![serial(0, 3)], "tag 3".into()));
    let mut t = terms(CAROL, 1);
    t.depth = 1;
    t.serial = 4;
    let carol = bob.delegate(&key(BOB), t).unwrap();
    let of_both = vec![serial(0, 3), serial(1, 4)];
    assert_eq!(v.put(9, &carol), Err(Errno::EPERM));
    let row = v.last_row();
    assert_eq!((row.subject, row.decision), (public(9), Decision::Denied));
    assert_eq!(row.links, of_both);
    assert_eq!(v.put_bytes(9, vec![1; 9]), Err(Errno::EINVAL));
    assert_eq!(v.last_row().links, []);

    let by = Some(bob.id());
    for what in [
        Revoked::Serial(serial(1, 4)),
        Revoked::Key(public(CAROL)),
        Revoked::Epoch(serial(1, 5)),
    ] {
        v.revoke(BOB, what.clone(), by, None)?;
        let row = v.last_row();
        assert_eq!((row.action, row.revoked.as_ref()), (33, Some(&what)));
        assert_eq!(said(&row), (vec![serial(0, 3)], "tag 3".into()));
        refused(v.revoke(MEMBER, what.clone(), None, None), Errno::EPERM);
        assert_eq!(v.last_row().revoked, Some(what.clone()));
        v.revoke(0, what.clone(), None, None)?;
        let row = v.last_row();
        assert_eq!((row.links.len(), row.revoked), (0, Some(what)));
    }
    v.check();
    Ok(())
}

/// Rows about names say what has them, so that what was made, moved and removed can be told apart later.
#[test]
fn what_has_a_name_is_told() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    share(&mut v, dir, Rights::ALL, 3);
    let child = |v: &mut Volume| {
        let row = v.last_row();
        assert_eq!(row.object, dir);
        row.child
    };
    let made = v.create(BOB, dir, b"file")?.0.ino;
    assert_eq!(child(&mut v), made);
    let low = v.mkdir(BOB, dir, b"low")?.ino;
    assert_eq!(child(&mut v), low);
    refused(v.mkdir(BOB, dir, b"low"), Errno::EEXIST);
    assert_eq!(child(&mut v), low);
    let symlink = Symlink {
        parent: dir,
        name: "link".into(),
        target: "file".into(),
    };
    v.run(BOB, Action::Symlink(symlink))?;
    let link = v.lookup(MEMBER, dir, b"link")?.ino;
    assert_eq!(child(&mut v), link);
    v.rename(BOB, (dir, b"file"), (dir, b"moved"))?;
    assert_eq!(child(&mut v), made);
    v.unlink(BOB, dir, b"moved")?;
    assert_eq!(child(&mut v), made);
    refused(v.unlink(BOB, dir, b"moved"), Errno::ENOENT);
    assert_eq!(child(&mut v), Ino(0));
    refused(v.unlink(BOB, Ino::ROOT, b"dir"), Errno::ESTALE);
    let row = v.last_row();
    assert_eq!((row.decision, row.child), (Decision::Denied, dir));
    v.check();
    Ok(())
}

fn hold(files: &[Ino]) -> Action {
    Action::Hold(Hold {
        keep: files.into(),
        let_go: Vec::new(),
    })
}

/// A row for what is held from then on, by each credential; none for what is held already, said twice, or gone.
#[test]
fn what_is_held_has_one_row() -> Result<()> {
    let mut v = Volume::new();
    let (one, two) = (v.dir(Ino::ROOT, b"one"), v.dir(Ino::ROOT, b"two"));
    let files = [v.file(one, b"a"), v.file(one, b"b"), v.file(two, b"c")];
    let [a, b, c] = files;
    share(&mut v, one, Rights::READING, 1);
    share(&mut v, two, Rights::READING, 2);
    let rows = |v: &mut Volume| v.log_of(0).next;
    let before = rows(&mut v);
    v.run(BOB, hold(&[a, b, a, c, c]))?;
    assert_eq!(rows(&mut v), before + 2);
    let mut told = v.log_of(0).rows.split_off(before as usize);
    told.sort_by_key(|row| row.object);
    let said: Vec<_> = told.iter().map(|row| (row.object, &row.held[..])).collect();
    assert_eq!(said, [(a, &[a, b][..]), (c, &[c])]);
    assert_eq!(told[0].links, [serial(0, 1)]);
    assert_eq!(told[1].links, [serial(0, 2)]);
    v.run(BOB, hold(&files))?;
    assert_eq!(rows(&mut v), before + 2);
    v.check();
    Ok(())
}

/// What is denied again and again has one row, and the next one says how often it was; with the serials of the credential that is about it.
#[test]
fn equal_denials_have_one_row() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    let file = v.file(dir, b"file");
    share(&mut v, Ino::ROOT, Rights::LOOKUP, 1);
    share(&mut v, dir, Rights::READING, 2);
    for _ in 0..10 {
        refused(v.unlink(BOB, dir, b"file"), Errno::EACCES);
    }
    let row = v.last_row();
    assert_eq!((row.untold, row.links.len()), (0, 1));
    assert_eq!(v.log_of(0).untold, 9);
    refused(v.unlink(BOB, dir, b"other"), Errno::EACCES);
    let row = v.last_row();
    assert_eq!((row.untold, row.child), (9, Ino(0)));
    refused(v.write(BOB, Target::Ino(file), b"x"), Errno::EACCES);
    assert_eq!(v.last_row().object, file);
    let alone = v.file(Ino::ROOT, b"alone");
    refused(v.write(BOB, Target::Ino(alone), b"x"), Errno::EACCES);
    assert_eq!(
        v.last_row().links,
        [serial(0, 1)],
        "nothing else is about it"
    );
    v.check();
    Ok(())
}

/// Who changes nothing does not push out the rows of those who do, however often it asks and by whatever keys; what goes beyond its share is
/// counted. What it changes has rows all the same.
#[test]
fn idle_rows_have_a_share() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(Ino::ROOT, b"file");
    let other = v.file(Ino::ROOT, b"other");
    let bob = share(&mut v, Ino::ROOT, Rights::ALL, 1);
    let mut t = terms(CAROL, 1);
    t.depth = 1;
    let carol = bob.delegate(&key(BOB), t).unwrap();
    v.put(CAROL, &carol)?;
    let (dave, daves) = (3, v.issue(3, terms(3, 1)));
    v.put(dave, &daves)?;
    // It is of the share of whoever the owner has granted it, whose hands it has come by.
    v.fill_share(BOB, 4096 - 2 - 1);
    v.run(CAROL, Action::Fsync(Target::Ino(file)))?;
    assert_eq!(v.last_row().share, Some(public(BOB)));
    let (next, untold) = (v.log_of(0).next, v.log_of(0).untold);
    for n in 0..20 {
        let who = [BOB, CAROL][n % 2];
        v.run(who, Action::Fsync(Target::Ino([file, other][n % 2])))?;
        v.run(who, hold(&[file]))?;
    }
    let log = v.log_of(0);
    assert_eq!((log.next, log.untold), (next, untold + 22));
    v.write(CAROL, Target::Ino(file), b"x")?;
    let row = v.last_row();
    assert_eq!(
        (row.sequence, row.untold, row.share),
        (next, untold + 22, None)
    );
    v.run(dave, Action::Fsync(Target::Ino(file)))?;
    assert_eq!(v.last_row().share, Some(public(dave)));
    Ok(())
}

/// What is brought and refused says itself what it is, so it counts for nobody whom it names.
#[test]
fn nobody_fills_the_share_of_others() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(BOB, terms(BOB, 1));
    refused(v.put(CAROL, &bob), Errno::EPERM);
    let row = v.last_row();
    assert_eq!(row.links, [serial(0, 0)]);
    assert_eq!(row.share, Some(quorate_wire::PublicKey([0; 32])));
    v.put(BOB, &bob)?;
    assert_eq!(v.last_row().share, Some(public(BOB)));
    v.check();
    Ok(())
}

/// What was decided about an object is of no more use when it is gone, however often one operation asks: the log names the same credential as where
/// it is decided anew, which [`Volume::run`] compares.
#[test]
fn who_asks_for_what_is_gone_is_told_apart_alike() {
    let mut volume = Volume::new();
    let name = Bytes::from_static(b"fifo");
    let made = volume.run(
        MEMBER,
        Action::Mknod(Mknod {
            parent: Ino::ROOT,
            name: name.clone(),
            kind: Kind::Fifo,
            mode: 0o666,
            umask: 0,
            rdev: 0,
        }),
    );
    let Ok(Answer::Attr(Attr { ino, .. })) = made else {
        panic!("{made:?}");
    };
    // Another that comes before the one about it: where it is decided anew, the log names the first of all.
    let about = share(&mut volume, ino, Rights::ALL, 0).id();
    for number in 1..=26_u8 {
        let other = volume.dir(Ino::ROOT, &[number]);
        let other = share(&mut volume, other, Rights::ALL, number.into());
        if other.id().0 < about.0 {
            break;
        }
    }
    volume.attr(BOB, ino).unwrap();
    let unlink = Unlink {
        parent: Ino::ROOT,
        name,
    };
    volume.run(MEMBER, Action::Unlink(unlink)).unwrap();
    let write = volume.write(BOB, Target::Ino(ino), b"some");
    assert_eq!(write, Err(Errno::ESTALE));
}

//! Times of access: what reading moves, and what it does not.

use crate::common::{World, set_attr};
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Action, Attr, Ino, Stamp, is_access_due};

const DAY_NANOS: u64 = 24 * 60 * 60 * 1_000_000_000;

fn file(world: &mut World, name: &str) -> Attr {
    let (ino, handle) = world.create(Ino::ROOT, name.as_bytes());
    let root = Who::root();
    world.run(1, &root, Action::Release(handle)).unwrap();
    world.attr(ino).unwrap()
}

fn accessed(world: &mut World, who: &Who, objects: &[Seen]) -> Stamp {
    let objects = objects.to_vec();
    let done = world.run(1, who, Action::Accessed(Accessed { objects }));
    assert!(matches!(done, Ok(Answer::Done(_))), "{done:?}");
    Stamp::from(quorate_wire::Time(world.now))
}

fn seen(attr: &Attr) -> Seen {
    Seen {
        ino: attr.ino,
        change: attr.change,
    }
}

/// The first read after a change moves the time of access, and nothing else; a second one does not, before a day has passed.
#[test]
fn a_read_after_a_change_counts_once_a_day() {
    let mut world = World::new();
    let made = file(&mut world, "f");
    let root = Who::root();
    let now = accessed(&mut world, &root, &[seen(&made)]);
    let read = Attr {
        atime: now,
        ..made.clone()
    };
    assert_eq!(world.attr(made.ino).unwrap(), read);
    accessed(&mut world, &root, &[seen(&read)]);
    assert_eq!(world.attr(made.ino).unwrap(), read);

    world.chmod(&root, made.ino, 0o600).unwrap();
    let changed = world.attr(made.ino).unwrap();
    assert_eq!(changed.atime, now);
    let again = accessed(&mut world, &root, &[seen(&changed)]);
    assert_eq!(world.attr(made.ino).unwrap().atime, again);

    world.now += DAY_NANOS - 1_000_000_000;
    accessed(&mut world, &root, &[seen(&changed)]);
    assert_eq!(world.attr(made.ino).unwrap().atime, again);
    world.now += 1_000_000_000;
    let next_day = accessed(&mut world, &root, &[seen(&changed)]);
    let last = world.attr(made.ino).unwrap();
    assert_eq!((last.atime, last.change), (next_day, changed.change));
    world.check();
}

/// What has changed since it was read was not read; and the others of which is told with it were.
#[test]
fn what_was_read_is_what_is_there() {
    let mut world = World::new();
    let root = Who::root();
    let [old, gone, kept] = ["old", "gone", "kept"].map(|name| file(&mut world, name));
    world.chmod(&root, old.ino, 0o600).unwrap();
    world.unlink(&root, Ino::ROOT, b"gone").unwrap();
    let before = world.attr(old.ino).unwrap();
    let nobody = Seen {
        ino: Ino(999),
        change: 1,
    };
    let all = [seen(&old), seen(&gone), nobody, seen(&kept)];
    let now = accessed(&mut world, &root, &all);
    assert_eq!(world.attr(old.ino).unwrap(), before);
    assert_eq!(world.attr(kept.ino).unwrap().atime, now);
    world.check();
}

/// Who may not read a file has not read it.
#[test]
fn who_may_not_read_has_not() {
    let mut world = World::new();
    let root = Who::root();
    let made = file(&mut world, "f");
    let (ino, stranger) = (made.ino, Who::new(1000, 100));
    world.chmod(&root, ino, 0o600).unwrap();
    let closed = world.attr(ino).unwrap();
    accessed(&mut world, &stranger, &[seen(&closed)]);
    assert_eq!(world.attr(ino).unwrap(), closed);
    world.chmod(&root, ino, 0o604).unwrap();
    let open = world.attr(ino).unwrap();
    let now = accessed(&mut world, &stranger, &[seen(&open)]);
    assert_eq!(world.attr(ino).unwrap().atime, now);
}

/// Directories are read, too.
#[test]
fn directories_have_times_of_access() {
    let mut world = World::new();
    let root = world.attr(Ino::ROOT).unwrap();
    let now = accessed(&mut world, &Who::root(), &[seen(&root)]);
    assert_eq!(world.attr(Ino::ROOT).unwrap().atime, now);
}

/// A time of access that somebody has set to the future stays: it is later than all changes.
#[test]
fn the_future_was_read() {
    let mut world = World::new();
    let root = Who::root();
    let made = file(&mut world, "f");
    let at = Stamp {
        secs: made.mtime.secs + (1 << 30),
        nanos: 5,
    };
    let set = SetAttr {
        atime: Some(SetTime::At(at)),
        ..set_attr(Target::Ino(made.ino))
    };
    world.run(1, &root, Action::SetAttr(set)).unwrap();
    let set = world.attr(made.ino).unwrap();
    accessed(&mut world, &root, &[seen(&set)]);
    assert_eq!(world.attr(made.ino).unwrap().atime, at);
}

/// The rule at its edges, also for times out of any reason.
#[test]
fn what_is_due() {
    let at = |secs, nanos| Stamp { secs, nanos };
    let now = at(1_000_000, 0);
    let due = |atime, mtime, ctime| is_access_due(atime, mtime, ctime, now);
    assert!(due(at(999_000, 5), at(999_000, 5), at(0, 0)));
    assert!(due(at(999_000, 5), at(0, 0), at(999_000, 5)));
    assert!(!due(at(999_000, 5), at(999_000, 4), at(999_000, 4)));
    assert!(due(at(1_000_000 - 86_400, 0), at(0, 0), at(0, 0)));
    assert!(!due(at(1_000_001 - 86_400, 0), at(0, 0), at(0, 0)));
    assert!(due(at(i64::MIN, 0), at(i64::MIN, 0), at(0, 0)));
    assert!(!due(at(i64::MAX, 0), at(0, 0), at(0, 0)));
    assert!(due(at(i64::MIN, 1), at(i64::MIN, 0), at(i64::MIN, 0)));
}

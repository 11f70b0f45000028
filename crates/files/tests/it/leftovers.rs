//! What goes with an object counts in no operation's weight, and so goes a bounded part at a time: attributes, and what a session had open.

use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::{Rest, Service};
use quorate_files::layout::{LINGER_NANOS, LINGERING_PER_OP, MAX_XATTRS, XATTR_BYTES};
use quorate_files::op::*;
use quorate_files::{Errno, Ino, Nothing};
use quorate_state::{MemorySnapshot, State};

use crate::common::World;
use crate::common::counted::{Counted, Reads};

/// As many attributes as an object can have, with the longest names.
fn fill(world: &mut World, ino: Ino) {
    for n in 0..MAX_XATTRS {
        set(world, ino, format!("user.{n:0250}"));
    }
}

fn set(world: &mut World, ino: Ino, name: String) {
    let set = SetXattr {
        ino,
        name: name.into(),
        value: Bytes::new(),
        mode: XattrMode::Create,
    };
    world.run(1, &Who::root(), Action::SetXattr(set)).unwrap();
}

fn ping(world: &mut World) {
    world.run(9, &Who::root(), Action::Ping(Nothing)).unwrap();
}

fn attributes(world: &mut World) -> usize {
    let keys = world.contents().into_keys();
    keys.filter(|key| key[0] == 0x16).count()
}

fn rmdir(world: &mut World, name: &[u8]) {
    let op = Rmdir {
        parent: Ino::ROOT,
        name: Bytes::copy_from_slice(name),
    };
    world.run(1, &Who::root(), Action::Rmdir(op)).unwrap();
}

/// A directory goes at once, and its space is free; its attributes go with the operations that follow. No operation writes more than it weighs,
/// to which [`World::execute`] sees.
#[test]
fn attributes_of_a_directory_go_in_steps() {
    let mut world = World::new();
    let root = Who::root();
    let dir = world.mkdir(&root, Ino::ROOT, b"d", 0o755).unwrap();
    fill(&mut world, dir);
    let each = 255 + XATTR_BYTES;
    assert_eq!(world.statfs().used, 256 + u64::from(MAX_XATTRS) * each);
    rmdir(&mut world, b"d");
    assert_eq!(
        (world.attr(dir), world.statfs().used),
        (Err(Errno::ESTALE), 0)
    );
    let mut left = attributes(&mut world);
    assert!(left > MAX_XATTRS as usize / 2, "{left} are left");
    let mut steps = 0;
    while left > 0 {
        world.check();
        ping(&mut world);
        let now = attributes(&mut world);
        assert!(now < left);
        (left, steps) = (now, steps + 1);
    }
    assert!(steps < 10, "{steps} steps");
    ping(&mut world);
    assert_eq!(world.contents().len(), 2, "the counters and the root");
    world.check();
}

/// So do those of files that have lingered, of which one operation deletes many.
#[test]
fn attributes_of_many_files_go_in_steps() {
    let mut world = World::new();
    let root = Who::root();
    let names: Vec<String> = (0..LINGERING_PER_OP).map(|n| format!("{n}")).collect();
    for name in &names {
        let (ino, handle) = world.create(Ino::ROOT, name.as_bytes());
        world.write(&root, Target::Ino(ino), 0, b"x").unwrap();
        world.run(1, &root, Action::Release(handle)).unwrap();
        fill(&mut world, ino);
    }
    for name in &names {
        world.unlink(&root, Ino::ROOT, name.as_bytes()).unwrap();
    }
    let all = attributes(&mut world);
    assert_eq!(all, LINGERING_PER_OP * MAX_XATTRS as usize);
    world.now += LINGER_NANOS;
    ping(&mut world);
    world.check();
    let inodes = |key: &Bytes| key[0] == 0x11;
    assert_eq!(world.contents().into_keys().filter(inodes).count(), 1);
    let mut steps = 0;
    while world.contents().len() > 2 {
        ping(&mut world);
        steps += 1;
        assert!(steps < 300);
    }
    world.check();
}

/// A session that had much open ends in steps, of which each writes little and none looks at what those before have let go.
#[test]
fn a_session_ends_in_bounded_steps() {
    const STEP: usize = 64;
    const DIRS: usize = 300;
    const ALIKE: usize = 19;
    let mut world = World::new();
    let root = Who::root();
    let open = |world: &mut World, ino| {
        let flags = flags::READ;
        world
            .run(2, &root, Action::Open(Open { ino, flags }))
            .unwrap();
    };
    for _ in 0..ALIKE * STEP {
        open(&mut world, Ino::ROOT);
    }
    for n in 0..DIRS {
        let name = format!("{n}");
        let dir = world
            .mkdir(&root, Ino::ROOT, name.as_bytes(), 0o755)
            .unwrap();
        for m in 0..3 {
            set(&mut world, dir, format!("user.{m:0250}"));
        }
        open(&mut world, dir);
        rmdir(&mut world, name.as_bytes());
    }
    world.check();
    let reads = Reads::default();
    let inner = MemorySnapshot {
        entries: world.contents(),
        nodes: Default::default(),
    };
    let counted = Counted {
        inner,
        reads: reads.clone(),
    };
    world.state = State::new(Arc::new(counted));
    let mut looks = Vec::new();
    loop {
        world.now += 1_000;
        let call = world.call(2);
        reads.take();
        let mut txn = world.state.begin();
        let rest = world.service.session_ended(&mut txn, &call).unwrap();
        looks.push(reads.take());
        let rows = txn.writes().iter();
        let bytes = rows.map(|(key, value)| 64 + key.len() + value.as_ref().map_or(0, Bytes::len));
        let written: usize = bytes.sum();
        assert!(written <= 64 << 10, "{written} bytes in a step");
        txn.commit();
        world.check();
        if rest == Rest::Nothing {
            break;
        }
    }
    assert_eq!(looks.len(), ALIKE + DIRS.div_ceil(STEP));
    let mut alike = looks[..ALIKE].iter();
    assert!(alike.all(|look| *look <= looks[0]), "{looks:?}");
    for _ in 0..DIRS {
        ping(&mut world);
    }
    assert_eq!(world.contents().len(), 2, "the counters and the root");
    world.check();
}

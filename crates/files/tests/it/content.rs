//! Content of files against an array of bytes: sparse writes, holes, zeroing, cutting off, seeking, and space.

use crate::common::{World, set_attr};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_files::answer::Answer;
use quorate_files::layout::{CHUNK_BYTES, MAX_FILE_BYTES};
use quorate_files::op::*;
use quorate_files::{Errno, Handle, Ino};

const BLOCK: usize = 4096;
const LIMIT: usize = 40 * BLOCK;

/// A file as bytes, and for each block whether it is present.
#[derive(Default)]
struct Array {
    bytes: Vec<u8>,
    present: Vec<bool>,
}

impl Array {
    fn resize(&mut self, size: usize) {
        self.bytes.resize(size, 0);
        self.present.resize(size.div_ceil(BLOCK), false);
    }

    fn grow(&mut self, size: usize) {
        self.resize(size.max(self.bytes.len()));
    }

    fn mark(&mut self, from: usize, to: usize) {
        for at in from..to.min(self.bytes.len()) {
            self.present[at / BLOCK] = true;
        }
    }

    fn zero(&mut self, from: usize, to: usize) {
        for at in from..to.min(self.bytes.len()) {
            self.bytes[at] = 0;
        }
    }

    fn is_data(&self, at: usize) -> bool {
        self.present[at / BLOCK]
    }
}

fn apply(array: &mut Array, kind: u8, from: usize, len: usize, fill: u8) -> Action {
    let (target, to) = (Target::Ino(Ino(2)), from + len);
    let allocate = |mode| {
        let (offset, len) = (from as u64, len as u64);
        Action::Fallocate(Fallocate {
            target: Target::Ino(Ino(2)),
            mode,
            offset,
            len,
        })
    };
    match kind {
        0..=3 => {
            array.grow(to);
            array.bytes[from..to].fill(fill);
            array.mark(from, to);
            let data = Bytes::from(vec![fill; len]);
            Action::Write(Write {
                target,
                place: Place::At(from as u64),
                data,
            })
        }
        4 => {
            array.resize(from);
            let mut op = set_attr(target);
            op.size = Some(from as u64);
            Action::SetAttr(op)
        }
        5 => {
            array.grow(to);
            array.mark(from, to);
            allocate(FallocateMode::Allocate)
        }
        6 => {
            array.mark(from, to);
            allocate(FallocateMode::KeepSize)
        }
        7 => {
            array.grow(to);
            array.mark(from, to);
            array.zero(from, to);
            allocate(FallocateMode::ZeroRange)
        }
        8 => {
            array.mark(from, to);
            array.zero(from, to);
            allocate(FallocateMode::ZeroRangeKeepSize)
        }
        _ => {
            array.zero(from, to);
            for block in 0..array.present.len() {
                if from <= block * BLOCK && (block + 1) * BLOCK <= to {
                    array.present[block] = false;
                }
            }
            allocate(FallocateMode::PunchHole)
        }
    }
}

fn seek(world: &mut World, offset: usize, whence: Whence) -> Result<u64, Errno> {
    let op = Seek {
        target: Target::Ino(Ino(2)),
        offset: offset as u64,
        whence,
    };
    match world.run(1, &Who::root(), Action::Seek(op))? {
        Answer::Offset(at) => Ok(at),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(120))]

    /// Bytes, blocks and seeking agree with the array, at every edge.
    #[test]
    fn files_are_arrays(
        steps in prop::collection::vec((0..11u8, 0..LIMIT, 1..LIMIT, any::<bool>(), 0..3u8), 1..25),
        probes in prop::collection::vec(0..2 * LIMIT, 10),
    ) {
        let (mut world, mut array) = (World::new(), Array::default());
        world.create(Ino::ROOT, b"file");
        for (kind, from, len, aligned, fill) in steps {
            let (from, len) = match aligned {
                true => (from / BLOCK * BLOCK, len.div_ceil(BLOCK) * BLOCK),
                false => (from, len),
            };
            let action = apply(&mut array, kind, from, len, fill);
            world.run(1, &Who::root(), action).unwrap();
            world.check();
            let attr = world.attr(Ino(2)).unwrap();
            let present = array.present.iter().filter(|&&p| p).count() as u64;
            prop_assert_eq!((attr.size, attr.blocks), (array.bytes.len() as u64, present * 8));
            for &at in &probes {
                let size = array.bytes.len();
                let read = world.read(&Who::root(), Target::Ino(Ino(2)), at as u64, 10_000).unwrap();
                let end = size.min(at + 10_000);
                prop_assert!(read == array.bytes[at.min(end)..end]);
                let data = (at..size).find(|&at| array.is_data(at));
                let hole = (at..size).find(|&at| !array.is_data(at)).unwrap_or(size);
                let hole = if at < size { Ok(hole as u64) } else { Err(Errno::ENXIO) };
                let data = data.map(|at| at as u64).ok_or(Errno::ENXIO);
                prop_assert_eq!(seek(&mut world, at, Whence::Data), data);
                prop_assert_eq!(seek(&mut world, at, Whence::Hole), hole);
            }
        }
        // Equal contents have equal bytes: written in one go, with the same holes, the extents are the same.
        let extents = |world: &mut World| -> Vec<Bytes> {
            world.contents().into_iter().filter(|(k, _)| k[0] == 0x14).map(|(_, v)| v).collect()
        };
        let mut again = World::new();
        again.create(Ino::ROOT, b"file");
        for (block, _) in array.present.iter().enumerate().filter(|(_, present)| **present) {
            let start = block * BLOCK;
            let end = array.bytes.len().min(start + BLOCK);
            let data = &array.bytes[start..end];
            again.write(&Who::root(), Target::Ino(Ino(2)), start as u64, data).unwrap();
        }
        world.run(1, &Who::root(), Action::Ping(quorate_files::Nothing)).unwrap();
        prop_assert!(extents(&mut world) == extents(&mut again));
    }
}

/// Offsets above 4 GiB and at the very end of what a file can be.
#[test]
fn huge_offsets_work_and_cost_nothing() {
    let mut world = World::new();
    let (ino, handle) = world.create(Ino::ROOT, b"huge");
    let (root, target) = (Who::root(), Target::Handle(handle));
    let last = i64::MAX as u64;
    for at in [5 << 30, 1 << 52, last - 3] {
        world.write(&root, target.clone(), at, b"end").unwrap();
        assert_eq!(
            &world.read(&root, target.clone(), at, 100).unwrap()[..],
            b"end"
        );
    }
    assert_eq!(
        &world.read(&root, target.clone(), (5 << 30) - 2, 6).unwrap()[..],
        b"\0\0end\0"
    );
    let attr = world.attr(ino).unwrap();
    assert_eq!((attr.size, attr.blocks), (last, 3 * 8));
    assert_eq!(
        world.write(&root, target.clone(), last - 2, b"end"),
        Err(Errno::EFBIG)
    );
    assert_eq!(
        world.write(&root, target, u64::MAX, b"end"),
        Err(Errno::EFBIG)
    );
    assert_eq!(world.truncate(ino, last + 1).unwrap_err(), Errno::EFBIG);
    world.check();
}

/// A file of many extents goes in bounded steps: its space is free at once, its keys bit by bit.
#[test]
fn large_files_are_reclaimed_in_steps() {
    let mut world = World::new();
    let (ino, handle) = world.create(Ino::ROOT, b"large");
    let len = 1000 * 65_536u64;
    let mut offset = 0;
    let mut allocations = 0;
    while offset < len {
        let mode = FallocateMode::Allocate;
        let target = Target::Handle(handle);
        let op = Fallocate {
            target,
            mode,
            offset,
            len: len - offset,
        };
        match world.run(1, &Who::root(), Action::Fallocate(op)).unwrap() {
            Answer::Progress(progress) => offset = progress.done,
            other => panic!("{other:?}"),
        }
        allocations += 1;
    }
    assert_eq!(allocations, 8);
    assert_eq!(world.statfs().used, len + 256);
    world.check();

    // Cut to a part: repeated until done, and never more than a bounded number of keys at a time.
    let mut steps = 0;
    while world.truncate(ino, 100_000).unwrap().size != 100_000 {
        steps += 1;
        world.check();
    }
    assert_eq!(steps, 3);
    assert_eq!(world.statfs().used, 25 * 4096 + 256);

    let extents = |world: &mut World| world.contents().keys().filter(|key| key[0] == 0x14).count();
    let mode = FallocateMode::Allocate;
    for _ in 0..4 {
        let offset = world.attr(ino).unwrap().size;
        let op = Fallocate {
            target: Target::Handle(handle),
            mode,
            offset,
            len,
        };
        world.run(1, &Who::root(), Action::Fallocate(op)).unwrap();
    }
    let before = extents(&mut world);
    assert!(before > 500);
    world.truncate(ino, 0).unwrap();
    assert_eq!(world.statfs().used, 256);
    assert_eq!(extents(&mut world), before - 128);
    world
        .write(&Who::root(), Target::Handle(handle), 0, b"new")
        .unwrap();
    assert_eq!(
        &world.read(&Who::root(), Target::Ino(ino), 0, 9).unwrap()[..],
        b"new"
    );
    for _ in 0..5 {
        world
            .run(1, &Who::root(), Action::Ping(quorate_files::Nothing))
            .unwrap();
        world.check();
    }
    assert_eq!(extents(&mut world), 1);
}

proptest! {
    #![proptest_config(crate::cases::cases(120))]

    /// Content that is far apart goes too, in few steps, and what stays is as it was.
    #[test]
    fn cuts_of_sparse_files_come_to_an_end(
        runs in prop::collection::vec((0..47u32, any::<u64>(), 1..400u64), 1..5),
        (bits, low) in (0..47u32, any::<u64>()),
    ) {
        let mut world = World::new();
        let (ino, _) = world.create(Ino::ROOT, b"file");
        let place = |bits: u32, low: u64| (1 << bits) | (low & ((1 << bits) - 1));
        for (bits, low, chunks) in runs {
            let (mut offset, len) = (place(bits, low) * CHUNK_BYTES, chunks * CHUNK_BYTES);
            let end = (offset + len).min(MAX_FILE_BYTES);
            while offset < end {
                let op = Fallocate {
                    target: Target::Ino(ino),
                    mode: FallocateMode::Allocate,
                    offset,
                    len: end - offset,
                };
                match world.run(1, &Who::root(), Action::Fallocate(op)).unwrap() {
                    Answer::Progress(progress) => offset = progress.done,
                    other => panic!("{other:?}"),
                }
            }
        }
        let size = place(bits, low) * CHUNK_BYTES + low % 2 * 5000;
        let extents = |world: &mut World| -> Vec<u64> {
            let keys = world.contents().into_keys().filter(|key| key[0] == 0x14);
            keys.map(|key| u64::from_be_bytes(key[9..].try_into().unwrap())).collect()
        };
        let mut wanted = extents(&mut world);
        wanted.retain(|chunk| *chunk < size.div_ceil(CHUNK_BYTES));
        let (mut steps, mut last) = (0, world.attr(ino).unwrap().size.max(size + 1));
        loop {
            let now = world.truncate(ino, size).unwrap().size;
            world.check();
            prop_assert!((size..last).contains(&now), "{} after {}", now, last);
            (steps, last) = (steps + 1, now);
            if now == size {
                break;
            }
        }
        prop_assert!(steps < 100, "{} steps", steps);
        prop_assert_eq!(extents(&mut world), wanted);
    }
}

/// Who allocates and cuts to nothing again and again, in a volume that is free each time, leaves no more behind than one round has made.
#[test]
fn dead_content_does_not_pile_up() {
    let mut world = World::new();
    let (ino, handle) = world.create(Ino::ROOT, b"large");
    let extents = |world: &mut World| world.contents().keys().filter(|key| key[0] == 0x14).count();
    let mut most = 0;
    for round in 0..20 {
        for _ in 0..4 {
            let op = Fallocate {
                target: Target::Handle(handle),
                mode: FallocateMode::Allocate,
                offset: world.attr(ino).unwrap().size,
                len: 1_000 * 65_536,
            };
            world.run(1, &Who::root(), Action::Fallocate(op)).unwrap();
        }
        let now = extents(&mut world);
        assert!(
            round < 2 || now <= most,
            "{now} in round {round}, after {most}"
        );
        most = most.max(now);
        world.truncate(ino, 0).unwrap();
    }
}

/// A full volume refuses before it changes anything, and freeing makes room again.
#[test]
fn a_full_volume_refuses_whole_operations() {
    let mut world = World::with(quorate_files::Genesis {
        capacity_bytes: 20 * 4096 + 512,
        capacity_inodes: 3,
        ..crate::common::GENESIS
    });
    let (ino, handle): (Ino, Handle) = world.create(Ino::ROOT, b"a");
    let (root, target) = (Who::root(), Target::Handle(handle));
    assert_eq!(
        world.write(&root, target.clone(), 0, &[1; 21 * 4096]),
        Err(Errno::ENOSPC)
    );
    assert_eq!(world.attr(ino).unwrap().size, 0);
    world
        .write(&root, target.clone(), 0, &[1; 20 * 4096])
        .unwrap();
    world.create(Ino::ROOT, b"b");
    assert_eq!(
        world.create_as(&root, Ino::ROOT, b"c", 0).unwrap_err(),
        Errno::ENOSPC
    );
    assert_eq!(
        world.write(&root, target.clone(), 1 << 30, b"x"),
        Err(Errno::ENOSPC)
    );
    // In place, and a rename: neither takes space.
    world.write(&root, target.clone(), 5, b"x").unwrap();
    let (name, new_name) = (Bytes::from_static(b"b"), Bytes::from_static(b"new"));
    let (parent, new_parent, mode) = (Ino::ROOT, Ino::ROOT, RenameMode::Replace);
    let op = Rename {
        parent,
        name,
        new_parent,
        new_name,
        mode,
    };
    world.run(1, &root, Action::Rename(op)).unwrap();
    // Without a name, but open: the space is still in use.
    world.unlink(&root, Ino::ROOT, b"a").unwrap();
    assert_eq!(world.statfs().used, 20 * 4096 + 256);
    world.run(1, &root, Action::Release(handle)).unwrap();
    assert_eq!((world.statfs().used, world.statfs().used_inodes), (256, 2));
    world.check();
}

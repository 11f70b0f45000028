//! Copies of ranges between files, against arrays of bytes, and who may make them.

use crate::common::World;
use bytes::Bytes;
use proptest::prelude::*;
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Attr, Errno, Handle, Ino, Nothing};

fn user() -> Who {
    Who::new(1000, 100)
}

fn copy(
    world: &mut World,
    who: &Who,
    (from, offset): (Target, u64),
    (to, to_offset): (Target, u64),
    len: u64,
) -> crate::common::Result<(u64, Attr)> {
    let copy = CopyRange {
        from,
        offset,
        to,
        to_offset,
        len,
    };
    match world.run(1, who, Action::CopyRange(copy))? {
        Answer::Progress(progress) => Ok((progress.done - to_offset, progress.attr)),
        other => panic!("{other:?}"),
    }
}

fn open(world: &mut World, ino: Ino, flags: u32) -> Target {
    Target::Handle(world.open(&Who::root(), ino, flags).unwrap())
}

fn content(world: &mut World, ino: Ino) -> Bytes {
    world
        .read(&Who::root(), Target::Ino(ino), 0, 1 << 20)
        .unwrap()
}

/// What a handle does not give and what is no file is refused as by copy_file_range(2), and leaves everything as it was.
#[test]
fn copies_follow_the_rules() {
    let mut world = World::new();
    let (a, _) = world.create(Ino::ROOT, b"a");
    let (b, _) = world.create(Ino::ROOT, b"b");
    let dir = world.mkdir(&Who::root(), Ino::ROOT, b"d", 0o755).unwrap();
    world
        .write(&Who::root(), Target::Ino(a), 0, b"0123456789")
        .unwrap();
    let reads = |world: &mut World, ino| open(world, ino, flags::READ);
    let (from, to) = (reads(&mut world, a), open(&mut world, b, flags::WRITE));
    let appends = open(&mut world, b, flags::WRITE | flags::APPEND);
    let (no_writer, no_reader) = (reads(&mut world, b), open(&mut world, a, flags::WRITE));
    let gone = Target::Handle(Handle { ino: a, number: 4 });
    let root = Who::root();
    let max = i64::MAX as u64;
    for (source, target, len, expected) in [
        ((no_reader, 0), (to.clone(), 0), 1, Errno::EBADF),
        ((from.clone(), 0), (no_writer, 0), 1, Errno::EBADF),
        ((from.clone(), 0), (appends, 0), 1, Errno::EBADF),
        ((gone, 0), (to.clone(), 0), 1, Errno::EBADF),
        ((Target::Ino(dir), 0), (to.clone(), 0), 1, Errno::EISDIR),
        ((from.clone(), 0), (Target::Ino(dir), 0), 1, Errno::EISDIR),
        ((from.clone(), 0), (Target::Ino(a), 9), 10, Errno::EINVAL),
        ((from.clone(), 5), (Target::Ino(a), 1), 10, Errno::EINVAL),
        ((from.clone(), 0), (to.clone(), max), 1, Errno::EFBIG),
        (
            (from.clone(), 1),
            (to.clone(), 0),
            u64::MAX,
            Errno::EOVERFLOW,
        ),
        (
            (from.clone(), 0),
            (to.clone(), 1),
            u64::MAX,
            Errno::EOVERFLOW,
        ),
    ] {
        let before = (world.attr(a), world.attr(b));
        let found = copy(&mut world, &root, source.clone(), target.clone(), len);
        assert_eq!(found.map(|_| ()), Err(expected), "{source:?} {target:?}");
        assert_eq!((world.attr(a), world.attr(b)), before);
    }
    // Up to the end of what is read, and nothing from there on; up to the last byte that a file can have.
    let (copied, attr) = copy(&mut world, &root, (from.clone(), 4), (to.clone(), 1), 100).unwrap();
    assert_eq!((copied, attr.size), (6, 7));
    assert_eq!(&content(&mut world, b)[..], b"\x00456789");
    let before = world.attr(b).unwrap();
    for (offset, to_offset, len) in [(10, 0, 5), (u64::MAX, 0, 0), (3, 0, 0), (10, max + 5, 5)] {
        let (from, to) = ((from.clone(), offset), (to.clone(), to_offset));
        let nothing = copy(&mut world, &root, from, to, len);
        assert_eq!(nothing, Ok((0, before.clone())));
    }
    let last = copy(
        &mut world,
        &root,
        (from.clone(), 0),
        (to.clone(), max - 2),
        5,
    );
    assert_eq!(last.map(|(copied, attr)| (copied, attr.size)), Ok((2, max)));
    // Two ranges of one file that only touch.
    let own = copy(&mut world, &root, (from, 0), (Target::Ino(a), 5), 5);
    assert_eq!(own.unwrap().0, 5);
    assert_eq!(&content(&mut world, a)[..], b"0123401234");
    world.check();
}

/// A copy reads and writes as its caller: by the permissions of both files; and takes privileges of what it writes away.
#[test]
fn copies_are_of_their_caller() {
    let mut world = World::new();
    let (a, _) = world.create_as(&user(), Ino::ROOT, b"a", 0o400).unwrap();
    let (b, handle) = world.create_as(&user(), Ino::ROOT, b"b", 0o600).unwrap();
    let (foreign, _) = world.create(Ino::ROOT, b"c");
    world
        .write(&Who::root(), Target::Ino(a), 0, b"text")
        .unwrap();
    world.chmod(&user(), b, 0o4700).unwrap();
    let (from, to) = (|| (Target::Ino(a), 0), || (Target::Handle(handle), 0));
    let other = Who::new(5, 5);
    assert_eq!(
        copy(&mut world, &other, from(), to(), 4),
        Err(Errno::EACCES)
    );
    let into = (Target::Ino(foreign), 0);
    assert_eq!(
        copy(&mut world, &user(), from(), into, 4),
        Err(Errno::EACCES)
    );
    let before = (world.attr(a).unwrap(), world.attr(b).unwrap());
    let (copied, attr) = copy(&mut world, &user(), from(), to(), 4).unwrap();
    assert_eq!((copied, attr.mode), (4, 0o700));
    assert!(attr.mtime > before.1.mtime && attr.change == before.1.change + 1);
    assert_eq!(world.attr(a).unwrap(), before.0);
    world.check();
}

/// One operation copies a megabyte at most; and what does not fit the volume is not begun.
#[test]
fn copies_are_bounded() {
    let mut genesis = crate::common::GENESIS;
    genesis.capacity_bytes = (3 << 20) + 4096 * 100;
    let mut world = World::with(genesis);
    let (a, _) = world.create(Ino::ROOT, b"a");
    let (b, _) = world.create(Ino::ROOT, b"b");
    let megabyte: Vec<u8> = (0..1 << 20).map(|n: u32| (n >> 7) as u8).collect();
    for at in [0, 1 << 20] {
        world
            .write(&Who::root(), Target::Ino(a), at, &megabyte)
            .unwrap();
    }
    let root = Who::root();
    let (from, to) = (
        |offset| (Target::Ino(a), offset),
        |offset| (Target::Ino(b), offset),
    );
    let (copied, attr) = copy(&mut world, &root, from(100), to(3), 2 << 20).unwrap();
    assert_eq!((copied, attr.size), (1 << 20, (1 << 20) + 3));
    let expected = [&[0; 3], &megabyte[100..], &megabyte[..97]].concat();
    assert!(content(&mut world, b)[..] == expected[..1 << 20]);
    let before = (world.statfs(), world.attr(b).unwrap());
    let full = copy(&mut world, &root, from(0), to(1 << 20), 1 << 20);
    assert_eq!(full, Err(Errno::ENOSPC));
    assert_eq!((world.statfs(), world.attr(b).unwrap()), before);
    // A request that appends comes to the end as it then is: a copy is at a place.
    let end = Action::Write(Write {
        target: Target::Ino(b),
        place: Place::End(Nothing),
        data: Bytes::from_static(b"end"),
    });
    assert!(world.run(1, &root, end).is_ok());
    world.check();
}

/// A file's bytes, and which of its blocks are data.
#[derive(Clone, Default)]
struct Array {
    bytes: Vec<u8>,
    data: std::collections::BTreeSet<usize>,
}

impl Array {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at..end].copy_from_slice(bytes);
        self.data.extend(at / 4096..end.div_ceil(4096));
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(60))]

    /// Writes and copies between two files, and within them, end as with arrays.
    #[test]
    fn copies_are_those_of_arrays(
        steps in prop::collection::vec(
            (any::<bool>(), any::<bool>(), any::<bool>(), 0..200_000_u64, 0..200_000_u64, 0..150_000_u64, any::<u8>()),
            1..25,
        ),
    ) {
        let mut world = World::new();
        let inos = [b"a", b"b"].map(|name| world.create(Ino::ROOT, name).0);
        let mut arrays = [Array::default(), Array::default()];
        for (writes, from, to, offset, to_offset, len, fill) in steps {
            let (from, to) = (usize::from(from), usize::from(to));
            if writes {
                let data = vec![fill; len as usize / 8];
                world.write(&Who::root(), Target::Ino(inos[to]), to_offset, &data).unwrap();
                arrays[to].write(to_offset as usize, &data);
            } else {
                let source = &arrays[from].bytes;
                let start = (offset as usize).min(source.len());
                let end = (start + len as usize).min(source.len());
                let range = source[start..end].to_vec();
                let distance = offset.abs_diff(to_offset) as usize;
                let expected = match from == to && !range.is_empty() && distance < range.len() {
                    true => Err(Errno::EINVAL),
                    false => Ok(range.len() as u64),
                };
                let source = (Target::Ino(inos[from]), offset);
                let target = (Target::Ino(inos[to]), to_offset);
                let found = copy(&mut world, &Who::root(), source, target, len);
                prop_assert_eq!(found.map(|(copied, _)| copied), expected);
                if expected.is_ok() {
                    arrays[to].write(to_offset as usize, &range);
                }
            }
            for (ino, array) in inos.iter().zip(&arrays) {
                prop_assert!(content(&mut world, *ino) == array.bytes);
                prop_assert_eq!(world.attr(*ino).unwrap().blocks, array.data.len() as u64 * 8);
            }
            world.check();
        }
    }
}

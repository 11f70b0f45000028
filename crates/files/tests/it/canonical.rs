//! Every operation and result has one form, and whatever a client sends, nothing panics.

#[path = "../../../wire/tests/it/support/mod.rs"]
mod support;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use quorate_files::answer::{
    self, Adopted, Answer, Data, Entries, Entry, HeldLock, Made, Opened, Progress, QuotaRow,
    StatFs, Version, Written,
};
use quorate_files::op::*;
use quorate_files::{Attr, Errno, Handle, Ino, Kind, Nothing, Outcome, Stamp};
use support::{codec, number};

fn ino() -> impl Strategy<Value = Ino> {
    number().prop_map(Ino)
}

fn handle() -> impl Strategy<Value = Handle> {
    (ino(), number()).prop_map(|(ino, number)| Handle { ino, number })
}

fn name() -> impl Strategy<Value = Bytes> {
    support::bytes(6)
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        ino().prop_map(Target::Ino),
        handle().prop_map(Target::Handle),
        ino().prop_map(Target::Unopened),
        ino().prop_map(Target::Checked)
    ]
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Stamp { secs, nanos })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now(Nothing)), stamp().prop_map(SetTime::At)]
}

fn kind() -> impl Strategy<Value = Kind> {
    use Kind::*;
    select(vec![Regular, Directory, Symlink, Fifo, Socket, Block, Char])
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    let word = || option::of(any::<u32>());
    let times = (option::of(set_time()), option::of(set_time()));
    (
        target(),
        (word(), word(), word()),
        option::of(number()),
        times,
    )
        .prop_map(|(target, (mode, uid, gid), size, (atime, mtime))| SetAttr {
            target,
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
        })
}

fn lock() -> impl Strategy<Value = Lock> {
    let how = (
        select(vec![LockSpace::Posix, LockSpace::Flock]),
        select(vec![LockKind::Read, LockKind::Write, LockKind::Unlock]),
        any::<bool>(),
    );
    let range = (number(), number());
    (handle(), how, number(), any::<u32>(), range).prop_map(
        |(handle, (space, kind, test), owner, pid, (start, end))| Lock {
            handle,
            space,
            owner,
            pid,
            start,
            end,
            kind,
            test,
        },
    )
}

/// Boxed, as what is large below: with all kinds of operations side by side it would take the test's stack.
fn on_names() -> BoxedStrategy<Action> {
    let place = || (ino(), name());
    let mode = any::<u32>;
    prop_oneof![
        place().prop_map(|(parent, name)| Action::Lookup(Lookup { parent, name })),
        (place(), mode(), mode()).prop_map(|((parent, name), mode, flags)| {
            Action::Create(Create {
                parent,
                name,
                mode,
                umask: 0,
                flags,
            })
        }),
        (place(), mode()).prop_map(|((parent, name), mode)| Action::Mkdir(Mkdir {
            parent,
            name,
            mode,
            umask: 0
        })),
        (place(), kind(), mode(), number()).prop_map(|((parent, name), kind, mode, rdev)| {
            Action::Mknod(Mknod {
                parent,
                name,
                kind,
                mode,
                umask: 0,
                rdev,
            })
        }),
        (place(), name()).prop_map(|((parent, name), target)| {
            Action::Symlink(Symlink {
                parent,
                name,
                target,
            })
        }),
        (ino(), place()).prop_map(|(ino, (parent, name))| Action::Link(Link { ino, parent, name })),
        (place(), mode(), option::of(number())).prop_map(|((parent, name), mode, verifier)| {
            Action::Make(Make {
                parent,
                name,
                mode,
                umask: 0,
                verifier,
            })
        }),
        place().prop_map(|(parent, name)| Action::Unlink(Unlink { parent, name })),
        place().prop_map(|(parent, name)| Action::Rmdir(Rmdir { parent, name })),
        (place(), place(), 0..3_usize).prop_map(
            |((parent, name), (new_parent, new_name), mode)| {
                use RenameMode::*;
                let mode = [Replace, NoReplace, Exchange][mode];
                Action::Rename(Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    mode,
                })
            }
        ),
    ]
    .boxed()
}

fn limits() -> impl Strategy<Value = Limits> {
    (option::of(number()), option::of(number())).prop_map(|(bytes, files)| Limits { bytes, files })
}

fn on_objects() -> BoxedStrategy<Action> {
    let word = any::<u32>;
    prop_oneof![
        Just(Action::Ping(Nothing)),
        Just(Action::StatFs(Nothing)),
        ino().prop_map(Action::StatFsOf),
        (ino(), word()).prop_map(|(ino, flags)| Action::CheckOpen(Open { ino, flags })),
        (
            prop::collection::vec(ino(), 0..4),
            prop::collection::vec(ino(), 0..4)
        )
            .prop_map(|(keep, let_go)| Action::Hold(Hold { keep, let_go })),
        prop::collection::vec((ino(), number()), 0..4).prop_map(|objects| {
            let seen = |(ino, change)| Seen { ino, change };
            let objects = objects.into_iter().map(seen).collect();
            Action::Accessed(Accessed { objects })
        }),
        (ino(), option::of(limits()))
            .prop_map(|(dir, limits)| Action::SetQuota(SetQuota { dir, limits })),
        (ino(), number()).prop_map(|(dir, after)| Action::Adopt(Adopt { dir, after })),
        (option::of(ino()), number())
            .prop_map(|(about, after)| Action::Quotas(Quotas { about, after })),
        target().prop_map(Action::GetAttr),
        set_attr().prop_map(Action::SetAttr),
        (ino(), word()).prop_map(|(ino, mask)| Action::Access(Access { ino, mask })),
        (ino(), word()).prop_map(|(ino, flags)| Action::Open(Open { ino, flags })),
        handle().prop_map(Action::Release),
        ino().prop_map(Action::Readlink),
        target().prop_map(Action::Fsync),
        (ino(), name(), word()).prop_map(|(ino, name, size)| Action::GetXattr(GetXattr {
            ino,
            name,
            size
        })),
        (ino(), word()).prop_map(|(ino, size)| Action::ListXattr(ListXattr { ino, size })),
        (ino(), name()).prop_map(|(ino, name)| Action::RemoveXattr(RemoveXattr { ino, name })),
        (ino(), name(), name(), 0..3_usize).prop_map(|(ino, name, value, mode)| {
            use XattrMode::*;
            let mode = [Set, Create, Replace][mode];
            Action::SetXattr(SetXattr {
                ino,
                name,
                value,
                mode,
            })
        }),
        lock().prop_map(Action::Lock),
    ]
    .boxed()
}

fn copy_range() -> BoxedStrategy<Action> {
    let parts = (target(), number(), target(), number(), number());
    let copy = parts.prop_map(|(from, offset, to, to_offset, len)| {
        Action::CopyRange(CopyRange {
            from,
            offset,
            to,
            to_offset,
            len,
        })
    });
    copy.boxed()
}

fn on_contents() -> BoxedStrategy<Action> {
    let place = prop_oneof![number().prop_map(Place::At), Just(Place::End(Nothing))];
    prop_oneof![
        (target(), number(), any::<u32>()).prop_map(|(target, offset, len)| {
            Action::Read(Read {
                target,
                offset,
                len,
            })
        }),
        copy_range(),
        (target(), place, name()).prop_map(|(target, place, data)| {
            Action::Write(Write {
                target,
                place,
                data,
            })
        }),
        (target(), number(), any::<u32>(), any::<bool>()).prop_map(
            |(target, cookie, count, plus)| {
                Action::ReadDir(ReadDir {
                    target,
                    cookie,
                    count,
                    plus,
                })
            }
        ),
        (target(), 0..5_usize, number(), number()).prop_map(|(target, mode, offset, len)| {
            use FallocateMode::*;
            let modes = [Allocate, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize];
            let mode = modes[mode];
            Action::Fallocate(Fallocate {
                target,
                mode,
                offset,
                len,
            })
        }),
        (target(), number(), any::<bool>()).prop_map(|(target, offset, data)| {
            let whence = [Whence::Hole, Whence::Data][usize::from(data)];
            Action::Seek(Seek {
                target,
                offset,
                whence,
            })
        }),
    ]
    .boxed()
}

fn op() -> impl Strategy<Value = Op> {
    let who = (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..4));
    let plain = || prop_oneof![on_names(), on_objects(), on_contents()].boxed();
    let with_attrs =
        (vec(ino(), 0..4), option::of(stamp()), plain()).prop_map(|(objects, guard, action)| {
            Action::WithAttrs(WithAttrs {
                objects,
                guard,
                action: Box::new(action),
            })
        });
    let action = prop_oneof![3 => plain(), 1 => with_attrs];
    let action = action.boxed();
    (who, action).prop_map(|((uid, gid, groups), action)| Op::new(Who { uid, gid, groups }, action))
}

fn attr() -> impl Strategy<Value = Attr> {
    let words = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let sizes = (number(), number(), number(), number());
    let times = (stamp(), stamp(), stamp(), stamp());
    (ino(), kind(), words, sizes, times, any::<bool>()).prop_map(
        |(ino, kind, (mode, nlink, uid, gid), (size, blocks, rdev, change), times, has_xattrs)| {
            let (atime, mtime, ctime, btime) = times;
            Attr {
                ino,
                kind,
                mode,
                nlink,
                uid,
                gid,
                size,
                blocks,
                rdev,
                atime,
                mtime,
                ctime,
                btime,
                change,
                has_xattrs,
            }
        },
    )
}

fn version() -> impl Strategy<Value = Version> {
    (number(), stamp(), stamp()).prop_map(|(size, mtime, ctime)| Version { size, mtime, ctime })
}

fn entry() -> impl Strategy<Value = Entry> {
    (name(), ino(), kind(), number(), option::of(attr())).prop_map(
        |(name, ino, kind, cookie, attr)| Entry {
            name,
            ino,
            kind,
            cookie,
            attr,
        },
    )
}

fn quota_row() -> impl Strategy<Value = QuotaRow> {
    (ino(), name(), limits(), number(), number(), number()).prop_map(
        |(dir, path, limits, number, used_bytes, used_files)| QuotaRow {
            number,
            dir,
            path,
            limits,
            used_bytes,
            used_files,
        },
    )
}

fn answer() -> BoxedStrategy<Answer> {
    let held = (number(), number(), any::<u32>()).prop_map(|(start, end, pid)| HeldLock {
        kind: LockKind::Write,
        start,
        end,
        pid,
    });
    let space = (number(), number(), number(), number(), any::<u32>());
    prop_oneof![
        Just(Answer::Done(Nothing)),
        attr().prop_map(Answer::Attr),
        (handle(), any::<bool>(), attr()).prop_map(|(handle, created, attr)| {
            Answer::Opened(Opened {
                handle,
                created,
                attr,
            })
        }),
        (name(), attr()).prop_map(|(data, attr)| Answer::Data(Data { data, attr })),
        (number(), version(), attr()).prop_map(|(offset, before, attr)| {
            Answer::Written(Written {
                offset,
                before,
                attr,
            })
        }),
        (any::<bool>(), attr()).prop_map(|(created, attr)| Answer::Made(Made { created, attr })),
        name().prop_map(Answer::Bytes),
        any::<u32>().prop_map(Answer::Size),
        (vec(entry(), 0..3), any::<bool>()).prop_map(|(entries, end)| {
            let next = entries.len() as u64;
            Answer::Entries(Entries { entries, end, next })
        }),
        space.prop_map(|(capacity, used, inodes, used_inodes, block_size)| {
            Answer::StatFs(StatFs {
                capacity,
                used,
                inodes,
                used_inodes,
                block_size,
                name_max: 255,
            })
        }),
        (vec(quota_row(), 0..3), option::of(number()))
            .prop_map(|(quotas, next)| Answer::Quotas(answer::Quotas { quotas, next })),
        (vec(ino(), 0..3), any::<u32>(), option::of(number())).prop_map(|(dirs, adopted, next)| {
            Answer::Adopted(Adopted {
                dirs,
                adopted,
                next,
            })
        }),
        any::<u32>().prop_map(Answer::Allowed),
        number().prop_map(Answer::Offset),
        (number(), attr()).prop_map(|(done, attr)| Answer::Progress(Progress { done, attr })),
        option::of(held).prop_map(Answer::Lock),
    ]
    .boxed()
}

fn plain_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => answer().prop_map(|answer| Outcome(Ok(answer))),
        1 => select(Errno::ALL).prop_map(|errno| Outcome(Err(errno))),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let attrs = || vec(option::of(attr()), 0..4);
    let with_attrs = (attrs(), attrs(), plain_outcome()).prop_map(|(before, after, outcome)| {
        let outcome = Box::new(outcome);
        Outcome(Ok(Answer::WithAttrs(quorate_files::answer::WithAttrs {
            before,
            after,
            outcome,
        })))
    });
    prop_oneof![3 => plain_outcome(), 1 => with_attrs]
}

crate::canonical! {
    operation: codec::<Op>(), op();
    file_outcome: codec::<Outcome>(), outcome();
}

//! A volume with something of everything in it.

use std::sync::Arc;

use bytes::Bytes;
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Admission, FileService, Genesis, Handle, Ino};

use crate::common::World;
use crate::conflicts_cells::lock;
use crate::conflicts_dropped::Declaring;

/// What is in the volume. Sessions are 1 and 2.
pub struct Volume {
    pub service: Declaring,
    /// Agreed time when the first of two operations comes: no change sweeps then.
    pub now: u64,
    pub dir: Ino,
    /// The handle of the root directory.
    pub root: Handle,
    pub empty: Ino,
    /// With content, two names, a lock, and handles; session 1 holds it as well.
    pub file: Ino,
    pub open: Handle,
    pub appends: Handle,
    pub of_another: Handle,
    /// With content and an ACL, and without handles.
    pub other: Ino,
    pub link: Ino,
    /// Without a name, and open.
    pub nameless: (Ino, Handle),
    /// Without a name, and held by session 1.
    pub kept: Ino,
    /// Lingers, and its time is over.
    pub over: Ino,
    /// Lingers, and its time is not over.
    pub lingers: Ino,
    pub quota: Ino,
    /// The next one that is made.
    pub next: Ino,
}

pub fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

pub fn unlink(parent: Ino, name: &'static str) -> Action {
    let name = bytes(name);
    Action::Unlink(Unlink { parent, name })
}

fn made(world: &mut World, session: u64, action: Action) -> Ino {
    match world.run(session, &Who::root(), action).unwrap() {
        Answer::Attr(attr) => attr.ino,
        other => panic!("{other:?}"),
    }
}

fn opened(world: &mut World, session: u64, ino: Ino, flags: u32) -> Handle {
    let open = Action::Open(Open { ino, flags });
    match world.run(session, &Who::root(), open).unwrap() {
        Answer::Opened(opened) => opened.handle,
        other => panic!("{other:?}"),
    }
}

/// User 1000 may do nothing, all others read.
pub const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 0, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255,
    255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
];

pub const READ_WRITE: u32 = flags::READ | flags::WRITE;

/// `is_full`: two blocks and two objects more, and what lingers is in the way.
pub fn volume(is_full: bool) -> Volume {
    let genesis = Genesis {
        capacity_bytes: 100 * 4096,
        capacity_inodes: 30,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o1777,
    };
    let mut world = World::with(genesis);
    let (w, root) = (&mut world, Who::root());
    let dir = w.mkdir(&root, Ino::ROOT, b"d", 0o777).unwrap();
    let empty = w.mkdir(&root, Ino::ROOT, b"e", 0o777).unwrap();
    let root_open = opened(w, 1, Ino::ROOT, flags::READ);
    let quota = w.mkdir(&root, Ino::ROOT, b"q", 0o777).unwrap();
    let (file, open) = w.create(Ino::ROOT, b"f");
    w.chmod(&root, file, 0o666).unwrap();
    for at in [0, 65_536] {
        w.write(&root, Target::Handle(open), at, &[1; 4096])
            .unwrap();
    }
    let link = Action::Symlink(Symlink {
        parent: Ino::ROOT,
        name: bytes("s"),
        target: bytes("f"),
    });
    let link = made(w, 1, link);
    made(
        w,
        1,
        Action::Link(Link {
            ino: file,
            parent: dir,
            name: bytes("h"),
        }),
    );
    made(
        w,
        1,
        Action::SetXattr(SetXattr {
            ino: file,
            name: bytes("user.x"),
            value: bytes("x"),
            mode: XattrMode::Set,
        }),
    );
    let appends = opened(w, 1, file, READ_WRITE | flags::APPEND);
    let of_another = opened(w, 2, file, READ_WRITE);
    let closed = |w: &mut World, name: &'static str| {
        let (ino, handle) = w.create(Ino::ROOT, name.as_bytes());
        w.write(&root, Target::Handle(handle), 0, &[2; 5000])
            .unwrap();
        w.run(1, &root, Action::Release(handle)).unwrap();
        ino
    };
    let other = closed(w, "g");
    made(
        w,
        1,
        Action::SetXattr(SetXattr {
            ino: other,
            name: bytes("system.posix_acl_access"),
            value: Bytes::from_static(ACL),
            mode: XattrMode::Set,
        }),
    );
    let kept = closed(w, "k");
    let over = closed(w, "o");
    let nameless = w.create(Ino::ROOT, b"u");
    let last = w.create(Ino::ROOT, b"v");
    let target = Target::Handle(last.1);
    w.write(&root, target, 0, &[3; 5000]).unwrap();
    let filler = w.create(dir, b"w");
    w.run(1, &root, unlink(Ino::ROOT, "u")).unwrap();
    w.run(1, &root, unlink(Ino::ROOT, "v")).unwrap();
    let hold = Action::Hold(Hold {
        keep: vec![kept, file],
        let_go: vec![],
    });
    w.run(1, &root, hold).unwrap();
    w.run(1, &root, unlink(Ino::ROOT, "k")).unwrap();
    w.run(1, &root, lock(open, false)).unwrap();
    let limits = Some(Limits {
        bytes: Some(40_960),
        files: Some(9),
    });
    w.run(1, &root, Action::SetQuota(SetQuota { dir: quota, limits }))
        .unwrap();
    let mut next = filler.0;
    if is_full {
        while w.statfs().used_inodes + 2 < w.statfs().inodes {
            let name: Vec<u8> = format!("x{}", next.0).into();
            next = w.mkdir(&root, dir, &name, 0o777).unwrap();
        }
    }
    w.run(1, &root, unlink(Ino::ROOT, "o")).unwrap();
    // What was over in the moment before is so by now; nothing that follows makes or removes a name.
    w.now += 31_000_000_000;
    w.now = w.now + 1 - w.now % 4096;
    w.run(1, &root, Action::Release(last.1)).unwrap();
    if is_full {
        let free = w.statfs().capacity - w.statfs().used;
        let fill = Action::Fallocate(Fallocate {
            target: Target::Handle(filler.1),
            mode: FallocateMode::Allocate,
            offset: 0,
            len: (free / 4096 - 2) * 4096,
        });
        w.run(1, &root, fill).unwrap();
    }
    let now = w.now + 10_000;
    let now = now + 1 - now % 4096;
    let service = FileService::new(genesis, Admission::members_only());
    let service = Declaring {
        rows: Arc::new(w.contents()),
        ..Declaring::all(service)
    };
    Volume {
        service,
        now,
        dir,
        root: root_open,
        empty,
        file,
        open,
        appends,
        of_another,
        other,
        link,
        nameless,
        kept,
        over,
        lingers: last.0,
        quota,
        next: Ino(next.0 + 1),
    }
}

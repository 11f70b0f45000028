//! The keys of each operation by themselves, as `conflicts_dropped.rs` has them of all: on a volume with something of everything in it, each operation
//! beside each other, without the keys of one kind of one operation.

mod volume;

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

use bytes::Bytes;
use quorate_execution::graph::{Conflicts, Graph, Uses};
use quorate_execution::{Call, Service};
use quorate_files::op::*;
use quorate_files::{Handle, Ino, Kind, Nothing};
use quorate_wire::{SessionId, Time};

use crate::common::{World, set_attr};
use crate::conflicts_cells::{accessed, called, lock};
use crate::conflicts_dropped::{Declaring, Dropped, Random, kept, kind};
use crate::support::{Step, in_order};
use volume::{ACL, READ_WRITE, Volume, bytes, unlink, volume};

fn write(target: Target, place: Place, len: usize) -> Action {
    let data = Bytes::from(vec![7; len]);
    Action::Write(Write {
        target,
        place,
        data,
    })
}

/// Who asks, and in which session.
type Asked = (u64, Who, Action);

fn reads(v: &Volume, opens: [Handle; 2]) -> Vec<Asked> {
    let mut all = Vec::new();
    let mut ask = |action| all.push((1, Who::root(), action));
    for name in ["f", "new", "g"] {
        let (parent, name) = (Ino::ROOT, bytes(name));
        ask(Action::Lookup(Lookup { parent, name }));
    }
    ask(Action::StatFs(Nothing));
    ask(Action::StatFsOf(v.quota));
    let (about, after) = (None, 0);
    ask(Action::Quotas(Quotas { about, after }));
    for (target, plus) in [
        (Target::Ino(Ino::ROOT), true),
        (Target::Ino(Ino::ROOT), false),
        (Target::Handle(v.root), false),
        (Target::Ino(v.dir), false),
        (Target::Ino(v.next), false),
    ] {
        ask(Action::ReadDir(ReadDir {
            target,
            cookie: 0,
            count: 30,
            plus,
        }));
    }
    let by_number = [v.file, v.other, v.dir, v.nameless.0, v.kept, v.next];
    let held = [v.file, v.other].map(|ino| Handle::held(ino).unwrap());
    let mut targets: Vec<_> = by_number.map(Target::Ino).into();
    targets.extend([v.over, v.lingers, v.other, v.file].map(Target::Checked));
    targets.extend([v.open, v.root, v.nameless.1].map(Target::Handle));
    targets.extend(opens.into_iter().chain(held).map(Target::Handle));
    for target in targets {
        ask(Action::GetAttr(target.clone()));
        let (offset, len) = (0, 9000);
        ask(Action::Read(Read {
            target: target.clone(),
            offset,
            len,
        }));
        let whence = Whence::Hole;
        ask(Action::Seek(Seek {
            target,
            offset,
            whence,
        }));
    }
    for ino in [v.file, v.nameless.0, v.empty, v.next] {
        let (name, size, flags) = (bytes("user.x"), 100, flags::READ);
        ask(Action::GetXattr(GetXattr { ino, name, size }));
        ask(Action::ListXattr(ListXattr { ino, size }));
        ask(Action::CheckOpen(Open { ino, flags }));
        ask(Action::Access(Access { ino, mask: 4 }));
    }
    for ino in [v.link, v.next] {
        ask(Action::Readlink(ino));
    }
    for handle in [v.open, held[0], opens[0]] {
        ask(lock(handle, true));
    }
    let objects = vec![v.file, v.next, v.nameless.0];
    let with = |action| Action::WithAttrs(WithAttrs::new(objects.clone(), action));
    ask(with(Action::GetAttr(Target::Ino(v.other))));
    ask(with(Action::StatFs(Nothing)));
    all.push((2, Who::root(), lock(v.of_another, true)));
    for ino in [v.file, v.other] {
        let access = Action::Access(Access { ino, mask: 4 });
        all.push((1, Who::new(1000, 100), access));
    }
    all
}

fn changes(v: &Volume, opens: [Handle; 2]) -> Vec<Asked> {
    let mut all = Vec::new();
    let mut ask = |action| all.push((1, Who::root(), action));
    ask(Action::Ping(Nothing));
    for target in [
        Target::Ino(v.nameless.0),
        Target::Ino(v.next),
        Target::Handle(v.open),
        Target::Handle(opens[0]),
    ] {
        ask(Action::Fsync(target));
    }
    for (bytes, files) in [(None, Some(1)), (Some(4096), None)] {
        let limits = Some(Limits { bytes, files });
        for dir in [v.quota, v.dir] {
            let limits = limits.clone();
            ask(Action::SetQuota(SetQuota { dir, limits }));
        }
    }
    for dir in [v.quota, v.next] {
        ask(Action::Adopt(Adopt { dir, after: 0 }));
    }
    let targets = [
        Target::Ino(v.file),
        Target::Checked(v.other),
        Target::Handle(v.open),
        Target::Handle(v.appends),
        Target::Handle(opens[0]),
        Target::Handle(opens[1]),
        Target::Ino(v.next),
        Target::Ino(v.nameless.0),
    ];
    for target in targets {
        // The first brings no block, the second one.
        for (place, len) in [
            (Place::At(0), 100),
            (Place::At(8192), 4096),
            (Place::End(Nothing), 4096),
        ] {
            ask(write(target.clone(), place, len));
        }
        for mode in [FallocateMode::Allocate, FallocateMode::PunchHole] {
            let target = target.clone();
            ask(Action::Fallocate(Fallocate {
                target,
                mode,
                offset: 0,
                len: 12_288,
            }));
        }
        let set = set_attr(target);
        let size = |size| Some(size);
        for op in [
            SetAttr {
                size: size(0),
                ..set.clone()
            },
            SetAttr {
                size: size(10),
                ..set.clone()
            },
            SetAttr {
                mode: Some(0),
                ..set.clone()
            },
            SetAttr {
                uid: Some(1000),
                ..set.clone()
            },
            SetAttr {
                gid: Some(100),
                ..set.clone()
            },
            SetAttr {
                mtime: Some(SetTime::Now(Nothing)),
                ..set
            },
        ] {
            ask(Action::SetAttr(op));
        }
    }
    for (from, to) in [(v.file, v.other), (v.other, v.file)] {
        ask(Action::CopyRange(CopyRange {
            from: Target::Ino(from),
            offset: 0,
            to: Target::Ino(to),
            to_offset: 0,
            len: 100,
        }));
    }
    for (name, value) in [
        ("user.x", &b"y"[..]),
        ("user.y", b"y"),
        ("system.posix_acl_access", ACL),
    ] {
        let name = bytes(name);
        for ino in [v.file, v.other] {
            let name = name.clone();
            ask(Action::RemoveXattr(RemoveXattr { ino, name }));
        }
        let ino = v.file;
        ask(Action::SetXattr(SetXattr {
            ino,
            name,
            value: Bytes::copy_from_slice(value),
            mode: XattrMode::Set,
        }));
    }
    for ino in [v.file, v.other, v.next, v.nameless.0] {
        for flags in [
            READ_WRITE,
            READ_WRITE | flags::APPEND,
            READ_WRITE | flags::TRUNC,
        ] {
            ask(Action::Open(Open { ino, flags }));
        }
    }
    ask(Action::Release(v.root));
    for handle in [v.open, v.nameless.1, opens[0]] {
        ask(lock(handle, false));
        ask(Action::Release(handle));
    }
    if let Action::Lock(lock) = lock(v.open, false) {
        let kind = LockKind::Unlock;
        ask(Action::Lock(Lock { kind, ..lock }));
    }
    for (keep, let_go) in [
        (vec![v.other], vec![]),
        (vec![v.lingers, v.next], vec![]),
        (vec![], vec![v.file]),
        (vec![], vec![v.kept]),
    ] {
        ask(Action::Hold(Hold { keep, let_go }));
    }
    for ino in [v.file, v.other] {
        ask(accessed(ino));
    }
    let (parent, mode, umask) = (Ino::ROOT, 0o666, 0);
    for (name, flags) in [
        ("new", READ_WRITE),
        ("new", READ_WRITE | flags::APPEND),
        ("f", READ_WRITE | flags::TRUNC),
        ("new", READ_WRITE | flags::EXCLUSIVE),
    ] {
        ask(Action::Create(Create {
            parent,
            name: bytes(name),
            mode,
            umask,
            flags,
        }));
    }
    let name = bytes("new");
    ask(Action::Mkdir(Mkdir {
        parent,
        name: name.clone(),
        mode,
        umask,
    }));
    ask(Action::Mknod(Mknod {
        parent,
        name: name.clone(),
        kind: Kind::Regular,
        mode,
        umask,
        rdev: 0,
    }));
    ask(Action::Symlink(Symlink {
        parent,
        name: name.clone(),
        target: bytes("f"),
    }));
    ask(Action::Make(Make {
        parent,
        name: name.clone(),
        mode,
        umask,
        verifier: None,
    }));
    ask(Action::Link(Link {
        ino: v.other,
        parent,
        name: name.clone(),
    }));
    for name in ["f", "g"] {
        ask(unlink(parent, name));
    }
    ask(Action::Rmdir(Rmdir {
        parent,
        name: bytes("e"),
    }));
    for (from, to) in [("f", "new"), ("f", "g")] {
        ask(Action::Rename(Rename {
            parent,
            name: bytes(from),
            new_parent: parent,
            new_name: bytes(to),
            mode: RenameMode::Replace,
        }));
    }
    let objects = vec![v.file, v.next, v.dir];
    let with = |action| Action::WithAttrs(WithAttrs::new(objects.clone(), action));
    for target in [Target::Handle(v.open), Target::Ino(v.other)] {
        ask(with(write(target, Place::At(0), 100)));
    }
    ask(with(unlink(parent, "f")));
    let by_number = write(Target::Ino(v.file), Place::At(0), 100);
    all.push((1, Who::new(1000, 100), by_number));
    all.push((2, Who::root(), Action::Release(v.of_another)));
    all.push((2, Who::root(), lock(v.of_another, false)));
    all
}

/// An operation at its time, and what is declared of it.
struct Ask {
    step: Step,
    name: String,
    of: Discriminant<Action>,
    declared: Uses,
}

impl Ask {
    fn new(service: &Declaring, (session, who, action): Asked, now: u64) -> Ask {
        let call = Call {
            session: SessionId(session),
            now: Time(now),
            ..World::new().call(session)
        };
        let op = Op::new(who, action.clone()).to_bytes();
        Ask {
            declared: service.uses(&call, &op),
            step: Step { call, op: Some(op) },
            name: called(&action),
            of: discriminant(&action),
        }
    }

    fn has(&self, dropped: Dropped) -> bool {
        let mut all = self.declared.all().iter();
        dropped.is_of(self.of) && all.any(|of| kind(of) == dropped.kind)
    }

    fn kept(&self, dropped: Dropped) -> Uses {
        match dropped.is_of(self.of) {
            true => kept(&self.declared, dropped),
            false => self.declared.clone(),
        }
    }
}

/// Which of two steps the second of two operations may take before the first is done.
fn freedom(first: Uses, second: Uses) -> (bool, bool) {
    let mut graph = Graph::new(Conflicts::Declared, 2);
    graph.insert(first);
    let second = graph.insert(second);
    let ready: Vec<_> = std::iter::from_fn(|| graph.take_ready()).collect();
    let runs = ready.contains(&second);
    if runs {
        graph.ran(second);
    }
    let mut settleable = std::iter::from_fn(|| graph.take_settleable());
    (runs, settleable.any(|id| id == second))
}

/// What may come first and what second, on a volume.
struct Pairs {
    service: Declaring,
    firsts: Vec<Ask>,
    seconds: Vec<Ask>,
}

impl Pairs {
    /// At times at which neither, the first, or the second sweeps beside what it is for.
    fn all() -> Vec<Pairs> {
        let mut all = Vec::new();
        for is_full in [false, true] {
            let v = volume(is_full);
            for (first, second) in [(0, 2), (4095, 4097), (0, 4095)] {
                let at = Time(v.now + first);
                let opens = [v.file, v.next].map(|ino| Handle::opened(ino, at, false).unwrap());
                let asks = |now: u64| {
                    let asked = reads(&v, opens).into_iter().chain(changes(&v, opens));
                    let asks = asked.map(|asked| Ask::new(&v.service, asked, v.now + now));
                    asks.collect()
                };
                all.push(Pairs {
                    service: v.service.clone(),
                    firsts: asks(first),
                    seconds: asks(second),
                });
            }
        }
        all
    }

    /// Whether two operations come to something else than in order without what is left out.
    fn differ(&self, first: &Ask, second: &Ask, dropped: Option<Dropped>) -> bool {
        let script = [first.step.clone(), second.step.clone()];
        let expected = in_order(&self.service, &script);
        let service = Declaring {
            without: dropped,
            ..self.service.clone()
        };
        (0..4).any(|seed| service.differs(&script, &expected, seed))
    }

    /// Whether any two do, which get farther then.
    fn miss(&self, dropped: Dropped) -> bool {
        let pairs = self.firsts.iter().flat_map(|first| {
            let seconds = self.seconds.iter().map(move |second| (first, second));
            seconds.filter(move |(first, second)| first.has(dropped) || second.has(dropped))
        });
        let mut freer = pairs.filter(|(first, second)| {
            let before = freedom(first.declared.clone(), second.declared.clone());
            before != freedom(first.kept(dropped), second.kept(dropped))
        });
        freer.any(|(first, second)| self.differ(first, second, Some(dropped)))
    }
}

/// Keys that no two operations can miss, and why.
const NOT_MISSED: [(&[&str], &str, &str, &str); 2] = [
    (
        &[
            "CheckOpen",
            "GetAttr",
            "GetXattr",
            "ListXattr",
            "Read",
            "ReadDir",
            "Seek",
            "WithAttrs",
        ],
        "RIGHTS",
        "read",
        "what changes rights changes attributes, which are read as well",
    ),
    (
        &["Hold"],
        "LOCKS",
        "settled",
        "a lock goes with the handle that it was taken through, and none can be through what is held, which has no rights",
    ),
];

/// Whether some pair comes to something else without a kind of keys at all.
pub fn miss(dropped: Dropped) -> bool {
    Pairs::all().iter().any(|pairs| pairs.miss(dropped))
}

/// Without the keys of one kind of one operation some pair comes to something else.
#[test]
fn each_key_of_each_operation_is_missed() {
    let all = Pairs::all();
    let mut keys = BTreeMap::new();
    for ask in all.iter().flat_map(|pairs| &pairs.firsts) {
        for used in ask.declared.all() {
            keys.insert((ask.name.clone(), kind(used)), ask.of);
        }
    }
    let mut not_missed = Vec::new();
    for ((name, kind), of) in keys {
        let dropped = Dropped { kind, of: Some(of) };
        if !all.iter().any(|pairs| pairs.miss(dropped)) {
            not_missed.push(format!("{name}: {} {}", kind.0, kind.1));
        }
    }
    let allowed = NOT_MISSED.iter().flat_map(|(names, class, mode, _)| {
        let names = names.iter();
        names.map(move |name| format!("{name}: {class} {mode}"))
    });
    let mut allowed: Vec<_> = allowed.collect();
    allowed.sort();
    assert_eq!(not_missed, allowed);
}

/// With all keys none does, of some.
#[test]
fn nothing_is_missed_with_all_keys() {
    let mut random = Random(1);
    for pairs in Pairs::all() {
        for _ in 0..200 {
            let first = &pairs.firsts[random.below(pairs.firsts.len())];
            let second = &pairs.seconds[random.below(pairs.seconds.len())];
            assert!(
                !pairs.differ(first, second, None),
                "{:?} {:?}",
                first.name,
                second.name
            );
        }
    }
}

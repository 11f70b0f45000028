//! The cells of the table of what operations touch, in docs/files.md, against what is declared of an example or more of each row.
//!
//! A cell has clauses, with `;` between them. A clause may have a condition, which ends with `: `. It names scopes, with `,` between
//! them; a verb before one is meant for those after it too, and what is said after one of whose scope it is, for those before it too
//! of which nothing is said.

use bytes::Bytes;
use quorate_execution::graph::{Mode, Scope, Use};
use quorate_execution::{Call, Service};
use quorate_files::layout::CHUNK_BYTES;
use quorate_files::op::*;
use quorate_files::{Admission, FileService, Handle, Ino, Kind, Nothing};
use quorate_wire::{Decode, Digest, PublicKey, SessionId, Time};

use crate::common::set_attr;
use crate::conflicts_table::{TOUCHED, quoted, rows};
use crate::script::SMALL;

const FILE: Ino = Ino(20);
const DIRECTORY: Ino = Ino(21);
/// What a copy reads.
const SOURCE: Ino = Ino(22);
const SESSION: u64 = 1;
/// A change then sweeps nothing beside what it is for; and then it does.
const NO_SWEEP: Time = Time(65);
const SWEEP: Time = Time(4096);
/// Handles of those who do not append, and do.
const OPEN: Handle = Handle {
    ino: FILE,
    number: 10,
};
const APPENDS: Handle = Handle {
    ino: FILE,
    number: 11,
};

/// What is declared of an operation by a member, or by a guest.
fn declared(op: &Bytes, now: Time, is_guest: bool) -> Vec<Use> {
    let admission = Admission {
        owner: is_guest.then_some(PublicKey([8; 32])),
        ..Admission::members_only()
    };
    let call = Call {
        client: PublicKey([7; 32]),
        session: SessionId(SESSION),
        now,
    };
    let service = FileService::new(SMALL, admission);
    sorted(service.uses(&call, op).all().to_vec())
}

fn sorted(mut uses: Vec<Use>) -> Vec<Use> {
    uses.sort_by_key(|of| format!("{of:?}"));
    uses.dedup();
    uses
}

fn bytes_of(action: &Action) -> Bytes {
    Op::new(Who::root(), action.clone()).to_bytes()
}

/// The number of a class: its place in the table of scopes.
fn class(name: &str) -> u32 {
    let mut scopes = rows("\n| scope | what lies in it |");
    let at = scopes.position(|row| quoted(row[0]).eq([name]));
    at.unwrap_or_else(|| panic!("no such scope: {name}")) as u32
}

/// The file that an operation is about by its number, or by a handle.
fn handle(action: &Action) -> Option<Handle> {
    let target = match action {
        Action::Lock(op) => return Some(op.handle),
        Action::Release(handle) => return Some(*handle),
        Action::WithAttrs(op) => return handle(&op.action),
        Action::ReadDir(op) => &op.target,
        Action::GetAttr(target) => target,
        Action::Read(op) => &op.target,
        Action::Seek(op) => &op.target,
        Action::Write(op) => &op.target,
        _ => return None,
    };
    match target {
        Target::Handle(handle) => Some(*handle),
        _ => None,
    }
}

/// Whether what a clause says beforehand is so.
fn is_so(condition: &str, action: &Action) -> bool {
    let has = |flags: u32, bit: u32| flags & bit != 0;
    match (condition, action) {
        ("with a size", Action::SetAttr(op)) => op.size.is_some(),
        ("with mode, owner or group", Action::SetAttr(op)) => {
            op.mode.is_some() || op.uid.is_some() || op.gid.is_some()
        }
        ("of the ACL that is for access", Action::SetXattr(SetXattr { name, .. }))
        | ("of the ACL that is for access", Action::RemoveXattr(RemoveXattr { name, .. })) => {
            name == "system.posix_acl_access"
        }
        ("with `TRUNC`", Action::Open(op)) => has(op.flags, flags::TRUNC),
        ("with `TRUNC` but not `EXCLUSIVE`", Action::Create(op)) => {
            has(op.flags, flags::TRUNC) && !has(op.flags, flags::EXCLUSIVE)
        }
        ("where something is let go", Action::Hold(op)) => !op.let_go.is_empty(),
        _ => panic!("what is this of {action:?}: {condition}"),
    }
}

/// The scopes that a name has, with what is said of whose.
fn scopes(name: &str, whose: &str, action: &Action, now: Time) -> Vec<Scope> {
    let class = class(name);
    let of = |ino: Ino| Scope::Object(class, ino.0);
    let handles = |from, to| Scope::Range(class, SESSION, from, to);
    let one = match (name, whose, action) {
        ("VOLUME", "", _) => Scope::Class(class),
        (_, "*all*", _) => Scope::Class(class),
        ("HANDLES", "", _) => {
            let number = handle(action).expect("it has a handle").number;
            handles(number, number)
        }
        ("HANDLES", "of its own", _) => {
            let appends = match action {
                Action::Open(Open { flags, .. }) | Action::Create(Create { flags, .. }) => {
                    flags & flags::APPEND != 0
                }
                _ => panic!("{action:?} opens nothing"),
            };
            let number = Handle::opened(FILE, now, appends).unwrap().number;
            handles(number, number)
        }
        ("HANDLES", "by which files are held", _) => handles(1 << 63, u64::MAX),
        ("CONTENT", "of its chunks", Action::Write(op)) => {
            let Place::At(from) = op.place else {
                panic!("it has no offset");
            };
            let last = from + op.data.len() as u64 - 1;
            Scope::Range(class, FILE.0, from / CHUNK_BYTES, last / CHUNK_BYTES)
        }
        (_, "" | "of the object" | "of what is written", _) => of(FILE),
        (_, "of the directory", _) => of(DIRECTORY),
        (_, "of what is read", _) => of(SOURCE),
        (_, "of its objects", Action::WithAttrs(op)) => {
            return op.objects.iter().copied().map(of).collect();
        }
        (_, "of its objects", Action::Accessed(op)) => {
            return op.objects.iter().map(|seen| of(seen.ino)).collect();
        }
        _ => panic!("what is this of {action:?}: {name} {whose}"),
    };
    vec![one]
}

/// What a cell says of an action, which is about a settle step or about what runs before; `as_said` is what it refers to.
fn said(cell: &str, settles: bool, action: &Action, now: Time, as_said: &[Use]) -> Vec<Use> {
    let mut all = Vec::new();
    let clauses = cell.split("; ").filter(|_| !["-", "none"].contains(&cell));
    for clause in clauses {
        let (condition, scoped) = clause.split_once(": ").unwrap_or(("", clause));
        if !condition.is_empty() && !is_so(condition, action) {
            continue;
        }
        let scoped = match (scoped, handle(action)) {
            ("as the read" | "as the change" | "as above", _) => {
                let of_this = |u: &&Use| (u.mode == Mode::Settle) == settles;
                all.extend(as_said.iter().filter(of_this));
                continue;
            }
            ("finds", Some(_)) => "reads `HANDLES`",
            ("finds", None) => "reads `EXISTS`, `RIGHTS`",
            _ => scoped,
        };
        let (mut mode, mut named) = (settles.then_some(Mode::Settle), Vec::new());
        for item in scoped.split(", ") {
            let parts: Vec<&str> = item.split('`').map(str::trim).collect();
            let (verb, what) = match parts[..] {
                [verb, name, whose] => (verb, Some((name, whose))),
                _ => (item.strip_suffix(" everything").expect(item), None),
            };
            mode = match verb {
                "" => mode,
                "reads" => Some(Mode::Read),
                "writes" => Some(Mode::Write),
                _ => panic!("what is this: {verb}"),
            };
            let mode = mode.expect("a run step reads or writes");
            match what {
                Some((name, whose)) => named.push((mode, name, whose)),
                None => all.push(Use {
                    scope: Scope::Everything,
                    mode,
                }),
            }
        }
        let mut owner = "";
        for (mode, name, whose) in named.into_iter().rev() {
            owner = if whose.is_empty() { owner } else { whose };
            let scopes = scopes(name, owner, action, now).into_iter();
            all.extend(scopes.map(|scope| Use { scope, mode }));
        }
    }
    all
}

/// What a row says of an action.
fn row_says(row: &[&str], action: &Action, now: Time) -> Vec<Use> {
    // What is done is an example of its own row.
    let inner = match action {
        Action::WithAttrs(op) => declared(&bytes_of(&op.action), now, false),
        _ => Vec::new(),
    };
    let mut all = said(row[1], false, action, now, &inner);
    all.extend(said(row[2], true, action, now, &inner));
    if !["none", "as the change"].contains(&row[2]) {
        all.extend(said("`VOLUME`", true, action, now, &[]));
    }
    all
}

/// By number in each way, and by handle.
fn targets() -> [Target; 4] {
    let by_number = [Target::Ino, Target::Unopened, Target::Checked].map(|by| by(FILE));
    let [a, b, c] = by_number;
    [a, b, c, Target::Handle(OPEN)]
}

fn by_each(action: impl Fn(Target) -> Action) -> impl Iterator<Item = Action> {
    targets().map(action).into_iter()
}

fn name() -> Bytes {
    Bytes::from_static(b"a")
}

fn write(target: Target, place: Place, data: &'static [u8]) -> Action {
    let data = Bytes::from_static(data);
    Action::Write(Write {
        target,
        place,
        data,
    })
}

fn list(target: Target, plus: bool) -> Action {
    Action::ReadDir(ReadDir {
        target,
        cookie: 0,
        count: 1,
        plus,
    })
}

/// That an object was read, as it was at each of some changes.
pub fn accessed(ino: Ino) -> Action {
    let objects = (0..9).map(|change| Seen { ino, change }).collect();
    Action::Accessed(Accessed { objects })
}

pub fn lock(handle: Handle, test: bool) -> Action {
    Action::Lock(Lock {
        handle,
        space: LockSpace::Posix,
        owner: 1,
        pid: 1,
        start: 0,
        end: 9,
        kind: LockKind::Write,
        test,
    })
}

fn open(flags: u32) -> Open {
    Open { ino: FILE, flags }
}

fn create(flags: u32) -> Action {
    Action::Create(Create {
        parent: DIRECTORY,
        name: name(),
        mode: 0o644,
        umask: 0,
        flags,
    })
}

fn with_attrs(action: Action) -> Action {
    Action::WithAttrs(WithAttrs::new(vec![FILE, DIRECTORY], action))
}

/// Attributes set: size, mode, owner, group.
fn set(size: Option<u64>, [mode, uid, gid]: [Option<u32>; 3]) -> impl Fn(Target) -> Action {
    move |target| {
        Action::SetAttr(SetAttr {
            size,
            mode,
            uid,
            gid,
            ..set_attr(target)
        })
    }
}

/// Examples of what a row is about: of each operation that it names, and of each condition in it.
fn examples(row: &str) -> Vec<Action> {
    let mut all = Vec::new();
    let parent = DIRECTORY;
    match row {
        "`Lookup`, `StatFs`, `StatFsOf`, `Quotas`, `ReadDir` with attributes" => {
            let name = name();
            let (about, after) = (None, 0);
            all.push(Action::Lookup(Lookup { parent, name }));
            all.push(Action::StatFs(Nothing));
            all.push(Action::StatFsOf(FILE));
            all.push(Action::Quotas(Quotas { about, after }));
            all.extend(by_each(|target| list(target, true)));
        }
        "`ReadDir`, `GetAttr`, `Read`, `Seek`, `GetXattr`, `ListXattr`, `CheckOpen`" => {
            let (ino, name, size, offset) = (FILE, name(), 9, 0);
            all.extend(by_each(|target| list(target, false)));
            all.extend(by_each(Action::GetAttr));
            all.extend(by_each(|target| {
                let len = 9;
                Action::Read(Read {
                    target,
                    offset,
                    len,
                })
            }));
            all.extend(by_each(|target| {
                let whence = Whence::Data;
                Action::Seek(Seek {
                    target,
                    offset,
                    whence,
                })
            }));
            all.push(Action::GetXattr(GetXattr { ino, name, size }));
            all.push(Action::ListXattr(ListXattr { ino, size }));
            all.push(Action::CheckOpen(open(flags::READ)));
        }
        "`Access`" => all.push(Action::Access(Access { ino: FILE, mask: 1 })),
        "`Readlink`" => all.push(Action::Readlink(FILE)),
        "`Lock`, a test" => all.push(lock(OPEN, true)),
        "`Lock`" => all.push(lock(OPEN, false)),
        "`Write` at an offset, of something, not too long, by a handle that does not append" => {
            for from in [0, CHUNK_BYTES - 1, 5 * CHUNK_BYTES] {
                all.extend(by_each(|target| write(target, Place::At(from), b"ab")));
            }
        }
        "any other `Write`" => {
            all.extend(by_each(|target| write(target, Place::End(Nothing), b"ab")));
            all.extend(by_each(|target| write(target, Place::At(0), b"")));
            all.extend(by_each(|target| write(target, Place::At(u64::MAX), b"ab")));
            all.push(write(Target::Handle(APPENDS), Place::At(0), b"ab"));
        }
        "`Fallocate`" => all.extend(by_each(|target| {
            Action::Fallocate(Fallocate {
                target,
                mode: FallocateMode::Allocate,
                offset: 0,
                len: 9,
            })
        })),
        "`CopyRange`" => all.extend(by_each(|to| {
            Action::CopyRange(CopyRange {
                from: Target::Ino(SOURCE),
                offset: 0,
                to,
                to_offset: 0,
                len: 9,
            })
        })),
        "`SetAttr`" => {
            let no = [None; 3];
            all.extend(by_each(set(None, no)));
            all.extend(by_each(set(Some(1), no)));
            all.extend(by_each(set(None, [Some(1), None, None])));
            all.extend(by_each(set(None, [None, Some(1), None])));
            all.extend(by_each(set(None, [None, None, Some(1)])));
            all.extend(by_each(set(Some(1), [Some(1); 3])));
        }
        "`SetXattr`, `RemoveXattr`" => {
            for name in [
                "user.a",
                "system.posix_acl_access",
                "system.posix_acl_default",
            ] {
                let (ino, name) = (FILE, Bytes::from(name));
                all.push(Action::SetXattr(SetXattr {
                    ino,
                    name: name.clone(),
                    value: Bytes::new(),
                    mode: XattrMode::Set,
                }));
                all.push(Action::RemoveXattr(RemoveXattr { ino, name }));
            }
        }
        "`Open`" => {
            let append = flags::WRITE | flags::APPEND;
            let all_flags = [flags::READ, append, flags::TRUNC, append | flags::TRUNC];
            all.extend(all_flags.map(|flags| Action::Open(open(flags))));
        }
        "`Release`" => all.extend([OPEN, APPENDS].map(Action::Release)),
        "`Hold`" => {
            for let_go in [vec![], vec![FILE]] {
                let keep = vec![SOURCE];
                all.push(Action::Hold(Hold { keep, let_go }));
            }
        }
        "`Accessed`" => all.push(accessed(FILE)),
        "`Create`" => {
            let cut = flags::TRUNC | flags::WRITE;
            let all_flags = [flags::READ, flags::APPEND, cut, cut | flags::EXCLUSIVE];
            all.extend(all_flags.map(create));
        }
        "`Mkdir`, `Mknod`, `Symlink`, `Make`" => {
            let (name, mode, umask) = (name(), 0o755, 0);
            all.push(Action::Mkdir(Mkdir {
                parent,
                name: name.clone(),
                mode,
                umask,
            }));
            all.push(Action::Mknod(Mknod {
                parent,
                name: name.clone(),
                kind: Kind::Fifo,
                mode,
                umask,
                rdev: 0,
            }));
            all.push(Action::Symlink(Symlink {
                parent,
                name: name.clone(),
                target: Bytes::from_static(b"b"),
            }));
            all.push(Action::Make(Make {
                parent,
                name,
                mode,
                umask,
                verifier: None,
            }));
        }
        "`Link`" => all.push(Action::Link(Link {
            ino: FILE,
            parent,
            name: name(),
        })),
        "`Unlink`, `Rmdir`, `Rename`" => {
            let name = name();
            all.push(Action::Rename(Rename {
                parent,
                name: name.clone(),
                new_parent: parent,
                new_name: Bytes::from_static(b"b"),
                mode: RenameMode::Replace,
            }));
            all.push(Action::Unlink(Unlink {
                parent,
                name: name.clone(),
            }));
            all.push(Action::Rmdir(Rmdir { parent, name }));
        }
        "`Ping`" => all.push(Action::Ping(Nothing)),
        "`Fsync`, `SetQuota`, `Adopt`" => {
            let (dir, limits, after) = (DIRECTORY, None, 0);
            all.extend(by_each(Action::Fsync));
            all.push(Action::SetQuota(SetQuota { dir, limits }));
            all.push(Action::Adopt(Adopt { dir, after }));
        }
        "`WithAttrs` of a read" => {
            all.extend(by_each(|target| with_attrs(Action::GetAttr(target))));
            all.push(with_attrs(Action::StatFs(Nothing)));
        }
        "`WithAttrs` of a write" => {
            for place in [Place::At(0), Place::End(Nothing)] {
                all.extend(by_each(|target| {
                    with_attrs(write(target, place.clone(), b"ab"))
                }));
            }
        }
        "`WithAttrs` of any other change" => {
            all.push(with_attrs(create(flags::WRITE)));
            all.extend(by_each(|t| with_attrs(set(Some(1), [None; 3])(t))));
            all.push(with_attrs(Action::Ping(Nothing)));
        }
        "`PutCredential`, `Revoke`, `Restore`, `Revocations`, `Grants`, `PassedOn`, `Audit`" => {
            let (by, until, about, count) = (None, None, None, 1);
            let what = Revoked::Key(PublicKey([1; 32]));
            let chain = Bytes::from_static(b"chain");
            let link = Digest([1; 32]);
            all.push(Action::PutCredential(PutCredential { chain }));
            all.push(Action::Revoke(Revoke {
                what: what.clone(),
                by,
                until,
            }));
            all.push(Action::Restore(Restore { what, by }));
            all.push(Action::Revocations(Revocations { after: None, count }));
            all.push(Action::Grants(Grants {
                about,
                after: None,
                count,
            }));
            all.push(Action::PassedOn(PassedOn {
                link,
                about,
                after: None,
                count,
            }));
            all.push(Action::Audit(Audit { from: 0, count }));
        }
        _ => panic!("no example of this row: {row}"),
    }
    all
}

/// Rows that are about operations of a kind, whatever they are called.
const SWEEPS: &str =
    "any other change at some agreed times (above), which deletes what has lingered";
const GUESTS_CHANGE: &str = "each change by a guest";
const GUESTS_READ: &str = "what a guest asks that changes nothing";
const NO_OPERATION: &str = "bytes that are no operation";

/// What an action is called.
pub fn called(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split('(').next().unwrap().to_owned()
}

/// Each cell says what is declared of the examples, at a time at which changes sweep and at another.
#[test]
fn the_cells_are_what_is_declared() {
    let table: Vec<_> = rows(TOUCHED).collect();
    let row_of = |first: &str| {
        let row = table.iter().find(|row| row[0] == first);
        row.unwrap_or_else(|| panic!("no such row: {first}"))
    };
    let kinds = [SWEEPS, GUESTS_CHANGE, GUESTS_READ, NO_OPERATION];
    let (sweeps, others) = (row_of(SWEEPS), kinds.map(row_of));
    for row in table.iter().filter(|row| !others.contains(row)) {
        let examples = examples(row[0]);
        let mut names: Vec<_> = examples.iter().map(called).collect();
        names.sort();
        names.dedup();
        let mut expected: Vec<_> = quoted(row[0]).collect();
        expected.sort();
        assert_eq!(names, expected, "examples of {}", row[0]);
        for action in &examples {
            let bytes = bytes_of(action);
            assert_eq!(Op::from_bytes(bytes.clone()).unwrap().action, *action);
            for now in [NO_SWEEP, SWEEP] {
                let mut says = row_says(row, action, now);
                if now == SWEEP && says.iter().any(|u| u.mode == Mode::Settle) {
                    let above = says.clone();
                    says = said(sweeps[1], false, action, now, &above);
                    says.extend(said(sweeps[2], true, action, now, &above));
                }
                let declared = declared(&bytes, now, false);
                assert_eq!(sorted(says), declared, "{action:?} at {now:?}");
            }
            let of_guests = match action.is_read_only() {
                true => GUESTS_READ,
                false => GUESTS_CHANGE,
            };
            let says = row_says(row_of(of_guests), action, NO_SWEEP);
            assert_eq!(says, declared(&bytes, NO_SWEEP, true), "{action:?}");
        }
    }
    let bytes = Bytes::from_static(b"no operation");
    assert!(Op::from_bytes(bytes.clone()).is_err());
    let says = row_says(row_of(NO_OPERATION), &Action::Ping(Nothing), NO_SWEEP);
    assert_eq!(says, declared(&bytes, NO_SWEEP, false));
}

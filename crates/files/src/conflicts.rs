//! What each operation touches, from the operation alone. The table is in docs/files.md.
//!
//! Every change has a settle step, in which it counts the volume's space, numbers and changes: so changes settle one after
//! the other, in the agreed order. Most of them do nothing else, for there is little to do. What brings content runs
//! beside others first. Operations that only read run beside each other.
//!
//! So what has to be declared is little. A change says which things it changes *that a run step might look at*; a run
//! step says what it looks at. Where an operation finds its object by a name, its object can be any. Whatever is changed of
//! an object, its attributes change too (its times at least): so who reads anything of an object reads them.

use quorate_execution::Call;
use quorate_execution::graph::{Scope, Uses};

use crate::acl;
use crate::layout::{CHUNK_BYTES, MAX_FILE_BYTES};
use crate::op::{Action, Create, MAX_IO_BYTES, Place, ReadDir, SetAttr, Target, Write, flags};
use crate::types::{HELD, Handle, Ino};

/// The counters, the queue of dead content, and with them every change of any kind: to wait for this is to wait for all
/// changes before.
const VOLUME: Scope = Scope::Class(0);

/// Which objects there are. By object: who finds one by its number looks at this; an open one can't go away.
const EXISTS: u32 = 1;
/// Owner, group, permission bits and ACL, for those who look at nothing else. By object.
const RIGHTS: u32 = 2;
/// Attributes, and with them all else that can be read of an object: content, entries, extended attributes.
const ATTR: u32 = 3;
/// Content, for those who write it: the number that it is kept under, and its chunks. By object; ranges of chunks.
const CONTENT: u32 = 4;
/// Handles. By session; ranges of their numbers.
const HANDLES: u32 = 5;
/// Locks. By object.
const LOCKS: u32 = 6;

/// What an operation touches.
pub(crate) fn uses(call: &Call, action: &Action) -> Uses {
    let reads = Uses::none();
    let mut settles = Uses::none().settle(VOLUME);
    if sweeps(call, action) {
        settles = settles.settle(Scope::Class(EXISTS));
    }
    match action {
        // Nothing of their own; their place in the order is what they are for.
        Action::Ping(_) | Action::Fsync(_) => settles,
        // What counts under which quota, and how much, only changes look at, when they settle.
        Action::SetQuota(_) | Action::Adopt(_) => settles,

        // What has the name can be any object, and so can what a listing shows.
        Action::Lookup(_) | Action::StatFs(_) | Action::StatFsOf(_) | Action::Quotas(_) => {
            reads.read(VOLUME)
        }
        Action::ReadDir(ReadDir { plus: true, .. }) => reads.read(VOLUME),
        Action::ReadDir(op) => read(reads, call, &op.target),
        Action::GetAttr(target) => read(reads, call, target),
        Action::Read(op) => read(reads, call, &op.target),
        Action::Seek(op) => read(reads, call, &op.target),
        Action::GetXattr(op) => read(reads, call, &Target::Ino(op.ino)),
        Action::ListXattr(op) => read(reads, call, &Target::Ino(op.ino)),
        Action::CheckOpen(op) => read(reads, call, &Target::Ino(op.ino)),
        Action::Access(op) => found(reads, call, &Target::Ino(op.ino)),
        // Where a link points never changes.
        Action::Readlink(ino) => reads.read(of(EXISTS, *ino)),
        Action::Lock(op) if op.test => reads
            .read(handle(call, op.handle))
            .read(of(LOCKS, op.handle.ino)),

        Action::WithAttrs(op) if op.action.is_read_only() => {
            let objects = op.objects.iter();
            objects.fold(uses(call, &op.action), |uses, ino| {
                uses.read(of(EXISTS, *ino)).read(of(ATTR, *ino))
            })
        }
        // It looks at attributes before and after, so nothing of it can be done earlier than the rest.
        Action::WithAttrs(op) => match &*op.action {
            Action::Write(op) => content(settles, object(&op.target)),
            other => uses(call, other),
        },

        Action::Write(op) => write(settles, call, op),
        Action::Fallocate(op) => content(settles, object(&op.target)),
        // What it reads must not be written meanwhile.
        Action::CopyRange(op) => {
            content(settles, object(&op.to)).settle(of(CONTENT, object(&op.from)))
        }
        Action::SetAttr(op) => set_attr(settles, op),
        Action::SetXattr(op) => xattr(settles, op.ino, &op.name),
        Action::RemoveXattr(op) => xattr(settles, op.ino, &op.name),
        Action::Lock(op) => settles.settle(of(LOCKS, op.handle.ino)),

        Action::Accessed(op) => {
            let objects = op.objects.iter();
            objects.fold(settles, |uses, seen| uses.settle(of(ATTR, seen.ino)))
        }

        // Seldom, and what they touch is asked about by all that guests do.
        Action::PutCredential(_)
        | Action::Revoke(_)
        | Action::Restore(_)
        | Action::Revocations(_)
        | Action::Grants(_)
        | Action::PassedOn(_)
        | Action::Audit(_) => Uses::everything(),

        Action::Open(op) => {
            let uses = opened(settles, call, op.flags);
            match op.flags & flags::TRUNC {
                0 => uses,
                _ => content(uses, op.ino),
            }
        }
        Action::Release(open) => settles
            .settle(handle(call, *open))
            .settle(of(LOCKS, open.ino))
            .settle(of(EXISTS, open.ino)),
        // Which of them, is not worth the scopes: it is done once for many files.
        Action::Hold(op) => {
            let uses = settles.settle(Scope::Range(HANDLES, call.session.0, HELD, u64::MAX));
            match op.let_go.is_empty() {
                true => uses,
                false => uses.settle(Scope::Class(LOCKS)),
            }
        }
        Action::Create(op) => create(settles, call, op),
        // What is made gets its number when it settles: any, before.
        Action::Mkdir(op) => made(settles, op.parent),
        Action::Mknod(op) => made(settles, op.parent),
        Action::Symlink(op) => made(settles, op.parent),
        Action::Make(op) => made(settles, op.parent),
        Action::Link(op) => settles.settle(of(ATTR, op.parent)).settle(of(ATTR, op.ino)),
        // What has the name changes, whatever it is, and perhaps it goes; so does what is in the way of a rename.
        Action::Unlink(_) | Action::Rmdir(_) | Action::Rename(_) => {
            settles.settle(Scope::Class(ATTR))
        }
    }
}

/// What is touched where handles of a session that has ended are released: as where it does so itself, of any object that it may have had
/// open, and what lingers is swept. Which objects these are is in the state, but a session may have thousands.
pub(crate) fn uses_at_end(call: &Call) -> Uses {
    Uses::none()
        .settle(VOLUME)
        .settle(Scope::Class(EXISTS))
        .settle(Scope::Object(HANDLES, call.session.0))
        .settle(Scope::Class(LOCKS))
}

/// Whether an operation may delete files that linger, beside what it is for: any of them, so all who look for an object wait for
/// it. Those do it that have to be waited for anyway; and, for a volume in which nothing else is done, a few of the others: of writes, which
/// come beside each other in great numbers, one for each 64 MiB or so that are written.
pub(crate) fn sweeps(call: &Call, action: &Action) -> bool {
    const ONE_IN: u64 = 64;
    const WRITES: u64 = 4096;
    const WRITTEN: usize = 16 << 10;
    match action {
        Action::Create(_)
        | Action::Make(_)
        | Action::Mkdir(_)
        | Action::Mknod(_)
        | Action::Symlink(_)
        | Action::Unlink(_)
        | Action::Rmdir(_)
        | Action::Rename(_)
        | Action::Hold(_)
        | Action::Ping(_) => true,
        Action::WithAttrs(op) => sweeps(call, &op.action),
        Action::Write(op) => call.now.0 % WRITES < op.data.len().div_ceil(WRITTEN).max(1) as u64,
        other => !other.is_read_only() && call.now.0.is_multiple_of(ONE_IN),
    }
}

/// Whether a write's content can be placed before its attributes are known: not where it goes to the end of the file.
pub(crate) fn runs(op: &Write) -> bool {
    let Place::At(offset) = op.place else {
        return false;
    };
    let to_end = matches!(op.target, Target::Handle(handle) if handle.appends());
    let fits = offset <= MAX_FILE_BYTES && (1..=MAX_IO_BYTES).contains(&op.data.len());
    fits && !to_end
}

fn write(uses: Uses, call: &Call, op: &Write) -> Uses {
    let ino = object(&op.target);
    match op.place {
        Place::At(offset) if runs(op) => {
            let end = offset + op.data.len() as u64;
            found(uses, call, &op.target)
                .write(chunks(ino, offset, end))
                .settle(of(ATTR, ino))
        }
        Place::At(_) | Place::End(_) => content(uses, ino),
    }
}

fn set_attr(uses: Uses, op: &SetAttr) -> Uses {
    let ino = object(&op.target);
    let uses = uses.settle(of(ATTR, ino));
    let uses = match (op.mode, op.uid, op.gid) {
        (None, None, None) => uses,
        _ => uses.settle(of(RIGHTS, ino)),
    };
    match op.size {
        None => uses,
        Some(_) => content(uses, ino),
    }
}

/// Changes an extended attribute.
fn xattr(uses: Uses, ino: Ino, name: &[u8]) -> Uses {
    let uses = uses.settle(of(ATTR, ino));
    match name {
        acl::ACCESS => uses.settle(of(RIGHTS, ino)),
        _ => uses,
    }
}

fn create(uses: Uses, call: &Call, op: &Create) -> Uses {
    let uses = opened(made(uses, op.parent), call, op.flags);
    if op.flags & flags::TRUNC == 0 || op.flags & flags::EXCLUSIVE != 0 {
        return uses;
    }
    // It may cut what has the name already.
    uses.settle(Scope::Class(ATTR))
        .settle(Scope::Class(CONTENT))
}

/// Finds an object, and what the caller may do with it.
fn found(uses: Uses, call: &Call, target: &Target) -> Uses {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => {
            uses.read(of(EXISTS, *ino)).read(of(RIGHTS, *ino))
        }
        Target::Handle(open) => uses.read(handle(call, *open)),
    }
}

/// Finds an object and reads it.
fn read(uses: Uses, call: &Call, target: &Target) -> Uses {
    found(uses, call, target).read(of(ATTR, object(target)))
}

/// Changes content anywhere in a file.
fn content(uses: Uses, ino: Ino) -> Uses {
    uses.settle(of(ATTR, ino)).settle(of(CONTENT, ino))
}

/// Makes an object with a name in a directory.
fn made(uses: Uses, parent: Ino) -> Uses {
    uses.settle(of(ATTR, parent))
}

/// Makes a handle, whose number follows from the time of the operation.
fn opened(uses: Uses, call: &Call, wanted: u32) -> Uses {
    match Handle::opened(Ino::ROOT, call.now, wanted & flags::APPEND != 0) {
        Some(open) => uses.settle(handle(call, open)),
        None => uses,
    }
}

fn object(target: &Target) -> Ino {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => *ino,
        Target::Handle(handle) => handle.ino,
    }
}

fn of(class: u32, ino: Ino) -> Scope {
    Scope::Object(class, ino.0)
}

fn handle(call: &Call, handle: Handle) -> Scope {
    Scope::Range(HANDLES, call.session.0, handle.number, handle.number)
}

/// The chunks that `from..to` touches.
fn chunks(ino: Ino, from: u64, to: u64) -> Scope {
    let last = to.saturating_sub(1).max(from) / CHUNK_BYTES;
    Scope::Range(CONTENT, ino.0, from / CHUNK_BYTES, last)
}

//! How much state an operation may write, from the operation alone: by this replicas agree on when a checkpoint is due.
//!
//! One byte that is written to a chunk brings all of the chunk into the layer of writes since the last checkpoint, and a copy brings a megabyte that
//! no request brought. It is counted as if each chunk were full: what there is of it only the state knows, and that may not be there yet.
//!
//! What an operation deletes counts by the rows that each may let go of (content and extended attributes that no object has any more, files that
//! linger). So what may be much of one object goes with later operations.
//!
//! Beside that: how much it works, by which clients take turns.

use crate::acl::MAX_ACL_BYTES;
use crate::layout::{
    CHUNK_BYTES, CHUNKS_PER_OP, LINGERING_PER_OP, MAX_LOCKS, RECLAIM_PER_OP, REWRITTEN_PER_OP,
};
use crate::op::{
    Action, CopyRange, Fallocate, FallocateMode, LockKind, MAX_IO_BYTES, MAX_QUOTA_ROWS, Place,
    Target, Write,
};

/// What a row takes beside its value, about.
const ROW: usize = 96;
/// What nearly every operation may write: rows of its own, of names, attributes, handles and counts, and those that it deletes for others. Of a
/// file that lingers these are four, and two that say what of it is to be deleted.
const ROWS: usize = (RECLAIM_PER_OP + 6 * LINGERING_PER_OP + 64) * ROW;
const CHUNK: usize = CHUNK_BYTES as usize + ROW;
/// All locks of an object are one row.
const LOCKS: usize = 64 * MAX_LOCKS;
/// A file that is held, or let go.
const HELD: usize = 4 * ROW;
/// The attributes of one that was read.
const ACCESSED: usize = 4 * ROW;
/// An object that is made may get two, and a change of mode changes one.
const ACLS: usize = 2 * MAX_ACL_BYTES;

/// The longest result of a change, with its row: of one that holds many files, or names the attributes of several objects.
pub(crate) const RESULT: usize = (3 << 10) + ROW;

/// The most bytes that an action may write, beside those of its request.
pub(crate) fn weight(action: &Action) -> usize {
    match action {
        Action::WithAttrs(op) => weight(&op.action),
        action if action.is_read_only() => 0,
        Action::Write(op) => ROWS + write(op),
        Action::CopyRange(op) => ROWS + copy(op),
        Action::Fallocate(op) => ROWS + fallocate(op),
        // One chunk is cut off in its midst, and others go.
        Action::SetAttr(op) if op.size.is_some() => ROWS + ACLS + CHUNK + CHUNKS_PER_OP * ROW,
        Action::SetAttr(_)
        | Action::SetXattr(_)
        | Action::RemoveXattr(_)
        | Action::Create(_)
        | Action::Make(_)
        | Action::Mkdir(_)
        | Action::Mknod(_) => ROWS + ACLS,
        Action::Lock(_) | Action::Release(_) => ROWS + LOCKS,
        Action::Hold(op) => {
            ROWS + (op.keep.len() + op.let_go.len()) * HELD + op.let_go.len() * LOCKS
        }
        Action::Accessed(op) => ROWS + op.objects.len() * ACCESSED,
        Action::Adopt(_) => ROWS + MAX_QUOTA_ROWS as usize * 2 * ROW,
        _ => ROWS,
    }
}

/// What it takes to look for a row, in bytes that take as long.
const SUMMARY: usize = 1024;
/// The same of a page of a listing, of a credential of many links, and of the ways of the objects that many credentials are about.
const LISTING: usize = 512 << 10;
const CHAIN: usize = 512 << 10;
const WAYS: usize = 2 << 20;
/// The same of the way up from a directory, which is mostly short, and seldom gone.
const WALK: usize = 64 << 10;
/// Of each file that is held, since a guest is asked about by all its names; and of a lock, which may stand behind those of guests.
const HELD_BY_NAMES: usize = 32 << 10;
const BEHIND_LOCKS: usize = 64 << 10;

/// About how many bytes an action reads and writes beside those of its request, where that is far more than the request has. Nobody
/// needs to agree on it: by this a primary has clients take turns.
pub(crate) fn work(action: &Action) -> usize {
    match action {
        Action::WithAttrs(op) => work(&op.action),
        Action::CopyRange(op) => op.len.min(MAX_IO_BYTES as u64) as usize + copy(op),
        Action::Fallocate(op) if op.mode == FallocateMode::PunchHole => {
            fallocate(op) + CHUNKS_PER_OP * SUMMARY
        }
        Action::Fallocate(op) => fallocate(op),
        // What is cut off is looked at.
        Action::SetAttr(op) if op.size.is_some_and(|size| size > 0) => {
            CHUNK + CHUNKS_PER_OP * SUMMARY
        }
        // Where a directory goes, all above it and above the place that it goes to may be looked at.
        Action::Rename(op) if op.parent != op.new_parent => WALK,
        // Of one that is ordered, as where replicas could not answer it alike.
        Action::Read(op) => (op.len as usize).min(MAX_IO_BYTES),
        // A summary of each chunk, of as many as one may look at.
        Action::Seek(_) => CHUNKS_PER_OP * SUMMARY,
        // A guest's looks at many names that it does not show.
        Action::ReadDir(_) => LISTING,
        // Many signatures, or the places of many objects, take as long as so many bytes.
        Action::PutCredential(_) => CHAIN,
        Action::Grants(_) | Action::PassedOn(_) => WAYS,
        Action::Hold(op) => op.keep.len() * HELD_BY_NAMES,
        // Attributes and an ACL.
        Action::Accessed(op) => op.objects.len() * 2 * SUMMARY,
        Action::Lock(op) if op.kind != LockKind::Unlock => BEHIND_LOCKS,
        _ => 0,
    }
}

/// Chunks that are written in part are read and written whole; others are the request's.
fn write(op: &Write) -> usize {
    let len = op.data.len() as u64;
    let appends = matches!(op.target, Target::Handle(handle) if handle.appends());
    let parts = match op.place {
        Place::At(offset) if !appends => {
            let is_cut = |at: u64| usize::from(!at.is_multiple_of(CHUNK_BYTES));
            let cuts = is_cut(offset) + is_cut(offset.saturating_add(len));
            cuts.min(touched(offset, len))
        }
        // Behind the end there is nothing: only the chunk with the end in it can hold more than what comes.
        Place::At(_) | Place::End(_) => 1,
    };
    parts * CHUNK + len.div_ceil(CHUNK_BYTES) as usize * ROW
}

/// The content that is copied, and what else there is in the first and the last chunk.
fn copy(op: &CopyRange) -> usize {
    let len = op.len.min(MAX_IO_BYTES as u64);
    let chunks = touched(op.to_offset, len);
    len as usize + chunks.min(2) * CHUNK + chunks * ROW
}

fn fallocate(op: &Fallocate) -> usize {
    let chunks = touched(op.offset, op.len).min(CHUNKS_PER_OP);
    let whole = match op.mode {
        FallocateMode::PunchHole => chunks.min(2),
        FallocateMode::Allocate
        | FallocateMode::KeepSize
        | FallocateMode::ZeroRange
        | FallocateMode::ZeroRangeKeepSize => chunks.min(REWRITTEN_PER_OP),
    };
    whole * CHUNK + chunks * ROW
}

/// How many chunks a range meets.
fn touched(offset: u64, len: u64) -> usize {
    match len {
        0 => 0,
        len => {
            let last = offset.saturating_add(len - 1) / CHUNK_BYTES;
            (last - offset / CHUNK_BYTES + 1)
                .try_into()
                .unwrap_or(usize::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Handle, Ino, Nothing};
    use bytes::Bytes;

    /// The longest results of changes are no longer than they count.
    #[test]
    fn results_are_no_longer_than_they_count() {
        use crate::answer::{Answer, Held, Outcome};
        use crate::op::MAX_HELD_AT_ONCE;

        let gone = alloc::vec![Ino(u64::MAX); MAX_HELD_AT_ONCE];
        let held = Outcome(Ok(Answer::Held(Held { gone })));
        assert!(held.to_bytes().len() + ROW <= RESULT);
    }

    /// A copy works as much as a read and a write of what it copies, however short it is to ask for; a short write as much as it brings.
    #[test]
    fn copies_are_work() {
        let target = || Target::Ino(Ino(2));
        let copy = |len| {
            let op = CopyRange {
                from: target(),
                offset: 0,
                to: target(),
                to_offset: 0,
                len,
            };
            work(&Action::CopyRange(op))
        };
        let mib = MAX_IO_BYTES;
        assert!((2 * mib..5 * mib / 2).contains(&copy(mib as u64)));
        assert_eq!(
            copy(u64::MAX),
            copy(mib as u64),
            "no more is copied at once"
        );
        assert!(copy(4096) < 3 * CHUNK);
        let write = Action::Write(Write {
            target: target(),
            place: Place::At(0),
            data: Bytes::from_static(b"x"),
        });
        assert_eq!(work(&write), 0);
    }

    /// What a guest can have looked at by many ways is work, however short it is to ask for; to let go is none.
    #[test]
    fn looking_at_many_names_is_work() {
        use crate::op::{Hold, MAX_HELD_AT_ONCE};

        let hold = |keep: usize, let_go: usize| {
            work(&Action::Hold(Hold {
                keep: alloc::vec![Ino(2); keep],
                let_go: alloc::vec![Ino(2); let_go],
            }))
        };
        assert_eq!(hold(0, MAX_HELD_AT_ONCE), 0);
        assert!(hold(MAX_HELD_AT_ONCE, 0) >= 8 << 20);
    }

    /// What is short to ask for, and has much looked at, is work.
    #[test]
    fn what_goes_through_much_is_work() {
        use crate::op::{Rename, RenameMode, SetAttr};

        let rename = |new_parent| {
            work(&Action::Rename(Rename {
                parent: Ino(2),
                name: Bytes::from_static(b"a"),
                new_parent,
                new_name: Bytes::from_static(b"b"),
                mode: RenameMode::Exchange,
            }))
        };
        assert_eq!((rename(Ino(2)), rename(Ino(3))), (0, WALK));
        let cut = |size| {
            work(&Action::SetAttr(SetAttr {
                target: Target::Ino(Ino(2)),
                mode: None,
                uid: None,
                gid: None,
                size,
                atime: None,
                mtime: None,
            }))
        };
        assert_eq!(
            (cut(None), cut(Some(0))),
            (0, 0),
            "what goes with all goes later"
        );
        assert!(cut(Some(1)) >= CHUNKS_PER_OP * SUMMARY);
        let punch = work(&Action::Fallocate(Fallocate {
            target: Target::Ino(Ino(2)),
            mode: FallocateMode::PunchHole,
            offset: 0,
            len: u64::MAX,
        }));
        assert!(punch >= CHUNKS_PER_OP * SUMMARY);
    }

    fn written(target: Target, place: Place, len: usize) -> usize {
        let data = Bytes::from(alloc::vec![1; len]);
        let of_chunks = write(&Write {
            target,
            place,
            data,
        });
        of_chunks / CHUNK
    }

    /// Chunks of which a part is written count, and those that the request fills don't.
    #[test]
    fn parts_of_chunks_count() {
        let chunk = CHUNK_BYTES as usize;
        let at = |offset, len| written(Target::Ino(Ino(2)), Place::At(offset), len);
        assert_eq!([at(0, 0), at(0, 1), at(0, chunk), at(5, 1)], [0, 1, 0, 1]);
        assert_eq!(
            [at(5, chunk), at(0, chunk + 1), at(7, 5 * chunk)],
            [2, 1, 2]
        );
        assert_eq!(at(5, chunk - 5), 1);
        assert_eq!(at(u64::MAX - 1, 9), 1, "it is refused");
        let handle = |number| {
            Target::Handle(Handle {
                ino: Ino(2),
                number,
            })
        };
        let at = |number| written(handle(number), Place::At(0), chunk);
        assert_eq!([at(2), at(3)], [0, 1], "the second appends");
        let end = Place::End(Nothing);
        assert_eq!(written(Target::Ino(Ino(2)), end, 9), 1);
    }
}

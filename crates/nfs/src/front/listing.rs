//! Directories, part by part.

use quorate_files::answer::Entry;
use quorate_files::op::{MAX_ENTRIES, MAX_IO_BYTES, ReadDir};
use quorate_files::{Action, Answer, Attr, Target};

use super::{Caller, Done, Front, Object, another_kind};
use crate::call::Listing;
use crate::reply::{ATTR_BYTES, FH_BYTES, Reply};
use crate::status::Status;
use crate::xdr::opaque_bytes;

/// Around the entries: the directory's attributes, the verifier of cookies, and the two words at the end.
const FRAME_BYTES: usize = ATTR_BYTES + 8 + 8;
/// The word that says that an entry comes, and the entry but for its name.
const ENTRY_BYTES: usize = 4 + 8 + 8;
/// What an entry counts for in `dircount`, but for its name.
const COUNTED_BYTES: usize = 8 + 8;
/// A name has a byte at least.
const SHORTEST_NAME: usize = 8;

impl Front {
    pub(super) async fn read_dir(&self, caller: &Caller, listing: Listing) -> Done {
        let dir = self.object(caller, &listing.dir)?;
        let plus = listing.names_bytes.is_some();
        let mut room = Room::of(&listing);
        let mut op = ReadDir {
            target: Target::Ino(dir.ino),
            cookie: listing.cookie,
            count: room.most_entries(plus),
            plus,
        };
        let seen = loop {
            let action = Action::ReadDir(op.clone());
            let seen = self.seen(&dir.who, vec![dir.ino], action).await?;
            match &seen.outcome {
                // A client would take no entries for an error.
                Ok(Answer::Entries(found)) if found.entries.is_empty() && !found.end => {
                    op.cookie = found.next;
                }
                _ => break seen,
            }
        };
        let mut reply = self.reply(seen.status());
        reply.after(seen.after(0));
        let found = match &seen.outcome {
            Err(_) => return Ok(reply),
            Ok(Answer::Entries(found)) => found,
            Ok(_) => return another_kind(),
        };
        if let Some(attr) = seen.after(0) {
            self.was_read(attr);
        }
        // Cookies are never used again: one verifier for all of them.
        reply.w.u64(0);
        let mut written = 0;
        for entry in &found.entries {
            if !room.take(entry, plus) {
                break;
            }
            self.entry(&mut reply, &dir, entry, seen.after(0), plus)
                .await?;
            written += 1;
        }
        if written == 0 && !found.entries.is_empty() {
            return Err(Status::TooSmall);
        }
        reply.w.bool(false);
        reply.w.bool(found.end && written == found.entries.len());
        Ok(reply)
    }

    async fn entry(
        &self,
        reply: &mut Reply,
        dir: &Object<'_>,
        entry: &Entry,
        own: Option<&Attr>,
        plus: bool,
    ) -> Result<(), Status> {
        // Nothing lies above an export.
        let top = &entry.name[..] == b".." && dir.ino == self.root(dir.export).await?;
        let (ino, attr) = match top {
            true => (dir.ino, own),
            false => (entry.ino, entry.attr.as_ref()),
        };
        reply.w.bool(true);
        reply.w.u64(ino.0);
        reply.w.opaque(&entry.name);
        reply.w.u64(entry.cookie);
        if plus {
            reply.after(attr);
            // A handle goes with attributes: without them the caller may not search the directory.
            match attr {
                Some(_) => reply.handle(&self.handle(dir.export, ino)),
                None => reply.w.bool(false),
            }
        }
        Ok(())
    }
}

/// How much fits into a reply.
struct Room {
    /// All bytes.
    bytes: usize,
    /// Bytes of names, numbers and cookies.
    names_bytes: usize,
}

impl Room {
    fn of(listing: &Listing) -> Room {
        let bytes = MAX_IO_BYTES.min(listing.bytes as usize);
        let names_bytes = listing.names_bytes.unwrap_or(u32::MAX) as usize;
        Room {
            bytes: bytes.saturating_sub(FRAME_BYTES),
            // One entry at least: there are clients that ask for none.
            names_bytes: names_bytes.max(COUNTED_BYTES + opaque_bytes(255)),
        }
    }

    /// As many entries as can fit, were all names short.
    fn most_entries(&self, plus: bool) -> u32 {
        let each = ENTRY_BYTES + SHORTEST_NAME + if plus { ATTR_BYTES + FH_BYTES } else { 0 };
        let counted = COUNTED_BYTES + SHORTEST_NAME;
        let most = (self.bytes / each).min(self.names_bytes / counted);
        (most as u32).clamp(1, MAX_ENTRIES)
    }

    /// Takes the room of an entry, if it is there.
    fn take(&mut self, entry: &Entry, plus: bool) -> bool {
        let name = opaque_bytes(entry.name.len());
        let rest = if plus { ATTR_BYTES + FH_BYTES } else { 0 };
        let (all, counted) = (ENTRY_BYTES + name + rest, COUNTED_BYTES + name);
        if all > self.bytes || counted > self.names_bytes {
            return false;
        }
        self.bytes -= all;
        self.names_bytes -= counted;
        true
    }
}

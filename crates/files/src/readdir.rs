//! Listing directories.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::answer::{Answer, Entries, Entry};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, FIRST_COOKIE, Inode};
use crate::op::{MAX_ENTRIES, ReadDir, access, flags};
use crate::types::{Ino, Kind};

impl Fs<'_, '_> {
    pub fn read_dir(&mut self, op: &ReadDir) -> Done<Answer> {
        let (ino, dir, rights) = self.target(&op.target)?;
        if dir.kind != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        match rights {
            Some(rights) if rights & flags::READ == 0 => return Err(Errno::EBADF.into()),
            Some(_) => {}
            None => self.need(ino, &dir, access::READ)?,
        }
        if op.count == 0 {
            return Err(Errno::EINVAL.into());
        }
        if dir.nlink == 0 {
            // Removed, but open.
            return Err(Errno::ENOENT.into());
        }
        let may_search = self.may(ino, &dir, access::EXEC)?;
        let plus = op.plus && may_search;
        let limit = op.count.min(MAX_ENTRIES) as usize;
        let mut entries = self.dots(ino, &dir, op.cookie, plus)?;
        let dots_fit = entries.len() <= limit;
        entries.truncate(limit);

        // One more than fits tells whether these are the last.
        let room = limit - entries.len();
        let next = op.cookie.saturating_add(1).max(FIRST_COOKIE);
        let key = |cookie| layout::cookie_key(ino, cookie);
        let found = self.scan_numbers(key, next, dir.next_cookie, room + 1)?;
        let end = dots_fit && found.len() <= room;
        for (_, name) in found.into_iter().take(room) {
            entries.push(self.listed(ino, name, plus)?);
        }
        let next = entries.last().map_or(op.cookie, |entry| entry.cookie);
        Ok(Answer::Entries(Entries { entries, end, next }))
    }

    /// `.` and `..`, as far as they come after the cookie.
    fn dots(&self, ino: Ino, dir: &Inode, cookie: u64, plus: bool) -> Done<Vec<Entry>> {
        let mut entries = Vec::new();
        for (own_cookie, name, ino) in [(1, &b"."[..], ino), (2, b"..", dir.parent)] {
            if cookie >= own_cookie {
                continue;
            }
            entries.push(Entry {
                name: Bytes::from_static(name),
                ino,
                kind: Kind::Directory,
                cookie: own_cookie,
                attr: self.attr_if(plus, ino)?,
            });
        }
        Ok(entries)
    }

    fn listed(&self, dir: Ino, name: Bytes, plus: bool) -> Done<Entry> {
        // Index and entries change together; the checker says so. A missing one is a damaged store.
        let entry = self.entry(dir, &name)?.ok_or(Errno::ESTALE)?;
        Ok(Entry {
            attr: self.attr_if(plus, entry.ino)?,
            name,
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
        })
    }

    fn attr_if(&self, plus: bool, ino: Ino) -> Done<Option<crate::Attr>> {
        if !plus {
            return Ok(None);
        }
        let inode = self.inode(ino)?;
        Ok(Some(self.attr(ino, &inode)))
    }
}

//! Handles. Rights are checked when a handle is made and go with it; an object lives as long as its last handle.

use bytes::Bytes;
use quorate_state::Fault;
use quorate_wire::Decode;

use crate::answer::{Answer, Opened};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, Inode, MAX_OPENS, OpenFile};
use crate::names::{New, check_name};
use crate::op::{Create, Open, access, flags};
use crate::types::{Handle, Ino, Kind, Nothing};

/// How many handles of an ended session go with one operation. Each costs a few rows, which no operation's weight counts.
const LET_GO_AT_ONCE: usize = 64;
/// How many bytes of locks, of all sessions, the objects have after which no more handles go at once: the rest of an object's locks are written anew.
const LOCKS_AT_ONCE: usize = 64 << 10;

impl Fs<'_, '_> {
    pub fn open(&mut self, op: &Open) -> Done<Answer> {
        if op.flags & !flags::ALL != 0 || op.flags & flags::EXCLUSIVE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.inode(op.ino)?;
        self.open_existing(op.ino, inode, op.flags)
    }

    pub fn create(&mut self, op: &Create) -> Done<Answer> {
        if op.flags & !flags::ALL != 0 {
            return Err(Errno::EINVAL.into());
        }
        self.search(op.parent)?;
        check_name(&op.name)?;
        if let Some(entry) = self.entry(op.parent, &op.name)? {
            if op.flags & flags::EXCLUSIVE != 0 {
                return Err(Errno::EEXIST.into());
            }
            if entry.kind == Kind::Directory {
                // open(2): O_CREAT on a directory.
                return Err(Errno::EISDIR.into());
            }
            let inode = self.inode(entry.ino)?;
            return self.open_existing(entry.ino, inode, op.flags);
        }
        self.may_add(op.parent)?;
        let new = New {
            kind: Kind::Regular,
            mode: op.mode,
            umask: op.umask,
            rdev: 0,
            size: 0,
        };
        let (ino, inode) = self.make(op.parent, &op.name, &new)?;
        let handle = self.add_open(ino, op.flags)?;
        Ok(Answer::Opened(Opened {
            handle,
            created: true,
            attr: self.attr(ino, &inode),
        }))
    }

    /// Whether the caller could open an object, now: for who has no use for a handle.
    pub fn check_open(&self, op: &Open) -> Done<Answer> {
        const ONCE: u32 = flags::TRUNC | flags::EXCLUSIVE;
        if op.flags & !flags::ALL != 0 || op.flags & ONCE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.inode(op.ino)?;
        self.may_open(op.ino, &inode, op.flags)?;
        Ok(self.answer(op.ino, &inode))
    }

    fn may_open(&self, ino: Ino, inode: &Inode, wanted: u32) -> Done<()> {
        let writes = wanted & (flags::WRITE | flags::TRUNC) != 0;
        match inode.kind {
            Kind::Regular => {}
            Kind::Directory if writes => return Err(Errno::EISDIR.into()),
            Kind::Directory if wanted & flags::EXEC != 0 => return Err(Errno::EACCES.into()),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP.into()),
            // What these do happens in the kernel of the machine that opens them.
            Kind::Fifo | Kind::Socket | Kind::Block | Kind::Char => {
                return Err(Errno::ENXIO.into());
            }
        }
        let mut mask = 0;
        if wanted & flags::EXEC != 0 {
            mask |= access::EXEC;
        } else if wanted & flags::READ != 0 {
            mask |= access::READ;
        }
        if writes {
            mask |= access::WRITE;
        }
        self.need(ino, inode, mask)
    }

    fn open_existing(&mut self, ino: Ino, mut inode: Inode, wanted: u32) -> Done<Answer> {
        self.may_open(ino, &inode, wanted)?;
        let handle = self.add_open(ino, wanted)?;
        if wanted & flags::TRUNC != 0 {
            self.truncate(ino, &mut inode, 0)?;
            self.written(ino, &mut inode)?;
            self.put_inode(ino, &inode);
        }
        Ok(Answer::Opened(Opened {
            handle,
            created: false,
            attr: self.attr(ino, &inode),
        }))
    }

    fn add_open(&mut self, ino: Ino, wanted: u32) -> Done<Handle> {
        let appends = wanted & flags::APPEND != 0;
        let handle = Handle::opened(ino, self.call.now, appends).ok_or(Errno::ENFILE)?;
        let mut rights = wanted & (flags::READ | flags::WRITE | flags::APPEND);
        if wanted & flags::EXEC != 0 {
            rights |= flags::READ;
        }
        self.note_open(handle, rights)?;
        Ok(handle)
    }

    /// Notes a handle of this session. `EMFILE` if it has as many as it can have.
    pub fn note_open(&mut self, handle: Handle, rights: u32) -> Done<()> {
        let open = self.count(layout::open_count_key(self.session()), 1)?;
        if open > MAX_OPENS {
            return Err(Errno::EMFILE.into());
        }
        if open == 1 && !self.admission.is_member(&self.call.client) {
            let key = layout::guest_session_key(self.session());
            self.put(key, &self.call.client);
        }
        let (session, ino) = (self.session(), handle.ino);
        let key = layout::open_key(session, handle.number);
        self.put(key, &OpenFile { ino, rights });
        self.count(layout::open_by_ino_key(ino, session), 1)?;
        Ok(())
    }

    /// Adds to a count that is absent while it is 0; gives the new count.
    pub fn count(&mut self, key: Bytes, change: i32) -> Done<u32> {
        let count: u32 = self.load(&key)?.unwrap_or(0);
        let count = count.checked_add_signed(change).ok_or(Errno::EOVERFLOW)?;
        if count == 0 {
            self.txn.delete(key);
        } else {
            self.put(key, &count);
        }
        Ok(count)
    }

    /// A handle of this session; `EBADF` if it has none such.
    pub fn open_file(&self, handle: Handle) -> Done<OpenFile> {
        self.load(&layout::open_key(self.session(), handle.number))?
            .filter(|open: &OpenFile| open.ino == handle.ino)
            .ok_or(Errno::EBADF.into())
    }

    pub fn release(&mut self, handle: Handle) -> Done<Answer> {
        let open = self.open_file(handle)?;
        let session = self.session();
        self.txn.delete(layout::open_key(session, handle.number));
        let others = self.count(layout::open_count_key(session), -1)?;
        if others == 0 && !self.admission.is_member(&self.call.client) {
            self.txn.delete(layout::guest_session_key(session));
        }
        let left = self.count(layout::open_by_ino_key(open.ino, session), -1)?;
        self.drop_locks(open.ino, handle, left == 0)?;
        let inode = self.inode(open.ino)?;
        if inode.nlink == 0 && !self.is_open(open.ino)? {
            self.abandon(open.ino, &inode)?;
        }
        Ok(Answer::Done(Nothing))
    }

    /// Whether anyone has the object open.
    pub fn is_open(&self, ino: Ino) -> Done<bool> {
        let from = layout::open_by_ino_key(ino, 0);
        let to = layout::open_by_ino_key(ino, u64::MAX);
        Ok(!self.scan(&from, &to, 1)?.is_empty())
    }

    /// The session has ended: lets go of some of what it holds; whether that was all. A session may hold [`MAX_OPENS`] handles.
    pub fn end_session(&mut self) -> Done<bool> {
        let session = self.session();
        let ended_key = layout::ended_key(session);
        // Not from the first: with each step there would be more to pass over that is gone. None comes any more.
        let before: Option<u64> = self.load(&ended_key)?;
        let last = self.let_go_of_some(before.unwrap_or(0))?;
        let is_all = self.txn.get(&layout::open_count_key(session))?.is_none();
        if !is_all {
            self.put(ended_key, &last);
        } else if before.is_some() {
            self.txn.delete(ended_key);
        }
        Ok(is_all)
    }

    /// Lets go of some of what a session holds that goes on: it may take others meanwhile, with lower numbers as well.
    pub fn let_go_of_session(&mut self) -> Done<()> {
        self.let_go_of_some(0).map(drop)
    }

    /// Lets go of some of the session's handles from this number on; gives the last of them.
    fn let_go_of_some(&mut self, first: u64) -> Done<u64> {
        let session = self.session();
        let mut last = first;
        let from = layout::open_key(session, first);
        let to = layout::open_key(session, u64::MAX);
        let mut locks = 0;
        for (key, value) in self.scan(&from, &to, LET_GO_AT_ONCE)? {
            if locks >= LOCKS_AT_ONCE {
                break;
            }
            let open = OpenFile::from_bytes(value).map_err(|_| damaged(&key))?;
            let number = layout::number_at(&key, 1).ok_or_else(|| damaged(&key))?;
            let ino = open.ino;
            let table = self.txn.get(&layout::locks_key(ino))?;
            locks += table.map_or(0, |table| table.len());
            self.release(Handle { ino, number })?;
            last = number;
        }
        Ok(last)
    }
}

fn damaged(key: &[u8]) -> Fault {
    Fault::value(key, "it is no handle")
}

//! Opening, reading and writing files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fuser::FopenFlags;
use quorate_files::answer::{Data, Made};
use quorate_files::op::{Create, Make, Open, Place, Read, flags};
use quorate_files::{Action, Answer, Attr, Errno, Handle, Ino, Kind, Nothing, Who};
use rustix::fs::OFlags;

use super::changes::Pages;
use super::convert::{Result, has, open_flags};
use super::core::{Core, OldPages};
use super::handles::OpenFile;
use super::holds::TOLD_AFTER;
use super::inode::{At, Inode, Origin, Told};
use super::names::{Bits, MODE_BITS};
use super::{MAX_REQUEST_BYTES, ahead};
use crate::session::random;
use crate::volume::{CallError, Called};

/// For how long handles that nobody has any more are gathered: a program that makes many files closes one every few milliseconds.
const RELEASE_AFTER: Duration = Duration::from_millis(50);
/// How often a file is to be made whose name others give to another one and take away again.
const MAKE_ATTEMPTS: usize = 5;
/// For how long files are gathered that were held and are closed.
const LET_GO_AFTER: Duration = Duration::from_millis(100);

/// A file that was opened, and what the kernel is told with it.
#[derive(Debug)]
pub(super) struct JustOpened {
    pub file: Arc<OpenFile>,
    pub attr: Attr,
    pub answer: FopenFlags,
}

impl Core {
    pub async fn open(self: &Arc<Core>, who: &Who, ino: Ino, how: i32) -> Result<JustOpened> {
        let flags = open_flags(how);
        let truncates = flags & flags::TRUNC != 0;
        if let Some(inode) = self.handles.inode(ino).filter(|i| i.is_unsettled()) {
            // Whether it may be opened may depend on them.
            self.flush(&inode).await;
        }
        if truncates {
            // The kernel asks for the truncation first, and refuses it afterwards if the file is being executed; it
            // does so in time only where the file is opened for writing too.
            if flags & flags::WRITE == 0 && self.handles.is_executed(ino) {
                return Err(fuser::Errno::ETXTBSY);
            }
            // What was written before must not come after.
            self.flush_ino(ino).await;
        }
        let _changing = truncates.then(|| self.changing());
        let open = Open { ino, flags };
        let opened = self.ask_held(ino, || self.ask_to_open(who, &open)).await;
        let (attr, handle) = opened.inspect_err(|error| {
            self.pins.failed(ino, error);
            if let CallError::Refused(_) = error {
                self.on_refused(ino, (*error).into());
            }
        })?;
        if attr.nlink == 0 && !self.handles.is_open(ino) && !self.pins.holds(ino) {
            // By a name that has become another's: the kernel is to look it up again. A program may open once more what it
            // has open (/proc/self/fd), with or without a name.
            self.pins.gone();
            if let Some((_, handle)) = handle {
                let _ = self.volume.release(who, handle).await;
            }
            return Err(fuser::Errno::ESTALE);
        }
        let file = self.handles.add(ino, who, flags, handle);
        self.changes.open(ino);
        Ok(self.just_opened(file, attr, how).await)
    }

    /// Asks whether a file may be opened; by opening it, if that changes it, or if so many are open that the group may hold no more: who
    /// opens one too many is told. A refusal is not taken without an agreement: a guest's is in the log.
    async fn ask_to_open(&self, who: &Who, open: &Open) -> Called<(Attr, Option<(u64, Handle)>)> {
        if open.flags & flags::TRUNC == 0 && !self.handles.are_many() {
            match self.volume.check_open(who, open.clone()).await {
                Ok(attr) => return Ok((attr, None)),
                // What a guest's credentials are not about is as if it were not there.
                Err(CallError::Refused(Errno::EACCES | Errno::ESTALE)) => {}
                Err(error) => return Err(error),
            }
        }
        let generation = self.volume.generation(open.ino);
        let opened = self.volume.open(who, open.clone()).await?;
        let handle = self.of_session(who, generation, opened.handle).await;
        Ok((opened.attr, handle))
    }

    pub async fn create(
        self: &Arc<Core>,
        who: &Who,
        parent: Ino,
        name: Bytes,
        bits: Bits,
        how: i32,
    ) -> Result<JustOpened> {
        self.changeable(parent)?;
        let _changing = self.changing();
        if !self.is_of_one_group() || self.handles.are_many() {
            return self.create_at_group(who, parent, name, bits, how).await;
        }
        // What is made here needs no handle at the group, as what is opened needs none.
        for attempt in 1.. {
            let made = self.make(who, parent, name.clone(), bits, how).await?;
            // Also if this was asked twice, and made the first time.
            if made.created || has(how, OFlags::EXCL) {
                return self.just_made(who, made.attr, None, how).await;
            }
            if made.attr.kind == Kind::Directory {
                break;
            }
            // Somebody else was first.
            let mut opened = match self.open(who, made.attr.ino, how).await {
                // It has lost the name again.
                Err(fuser::Errno::ESTALE) if attempt < MAKE_ATTEMPTS => continue,
                opened => opened?,
            };
            opened.attr = self.fresh_or_close(&opened.file, opened.attr, how).await?;
            return Ok(opened);
        }
        Err(fuser::Errno::EISDIR)
    }

    /// Makes a file and opens it at the group, or opens what has the name.
    async fn create_at_group(
        self: &Arc<Core>,
        who: &Who,
        parent: Ino,
        name: Bytes,
        bits: Bits,
        how: i32,
    ) -> Result<JustOpened> {
        let mut flags = open_flags(how);
        if has(how, OFlags::EXCL) {
            flags |= flags::EXCLUSIVE;
        }
        let create = Create {
            parent,
            name,
            mode: bits.mode & MODE_BITS,
            umask: bits.umask,
            flags,
        };
        let generations = self.volume.generations();
        let created = self.change_names(who, vec![parent], Action::Create(create));
        let Answer::Opened(opened) = created.await? else {
            return Err(CallError::Garbled.into());
        };
        let generation = self.volume.generation_in(&generations, opened.attr.ino);
        let handle = self.of_session(who, generation, opened.handle).await;
        self.just_made(who, opened.attr, handle, how).await
    }

    async fn just_made(
        self: &Arc<Core>,
        who: &Who,
        attr: Attr,
        handle: Option<(u64, Handle)>,
        how: i32,
    ) -> Result<JustOpened> {
        let file = self.handles.add(attr.ino, who, open_flags(how), handle);
        self.changes.open(file.ino());
        let attr = self.fresh_or_close(&file, attr, how).await?;
        Ok(self.just_opened(file, attr, how).await)
    }

    /// As [`Core::fresh`], for a file of which the kernel hears nothing where that fails.
    async fn fresh_or_close(
        self: &Arc<Core>,
        file: &Arc<OpenFile>,
        attr: Attr,
        how: i32,
    ) -> Result<Attr> {
        let old = match has(how, OFlags::TRUNC) {
            true => OldPages::CutOff,
            false => OldPages::Dropped,
        };
        let fresh = self.fresh_with(attr, old).await;
        if fresh.is_err()
            && let Some(file) = self.handles.remove(file.number)
        {
            self.release(file).await;
        }
        fresh
    }

    /// Makes a file, or finds what has the name.
    async fn make(
        &self,
        who: &Who,
        parent: Ino,
        name: Bytes,
        bits: Bits,
        how: i32,
    ) -> Result<Made> {
        let make = Make {
            parent,
            name,
            mode: bits.mode & MODE_BITS,
            umask: bits.umask,
            // So that it is known for one's own where the answer was lost with the session, and it is asked for again.
            verifier: has(how, OFlags::EXCL).then(random),
        };
        match self
            .change_names(who, vec![parent], Action::Make(make))
            .await?
        {
            Answer::Made(made) => Ok(made),
            _ => Err(CallError::Garbled.into()),
        }
    }

    async fn just_opened(&self, file: Arc<OpenFile>, attr: Attr, how: i32) -> JustOpened {
        let mut answer = FopenFlags::empty();
        let counts = self.caching.accesses && !has(how, OFlags::NOATIME);
        file.counts.store(counts, Ordering::Release);
        if open_flags(how) & flags::WRITE != 0 {
            file.inode.learn(&attr);
        }
        if self.changes.is_news(&attr) {
            self.forget_attributes(attr.ino);
        }
        let keeps = match self.changes.look(&attr) {
            Pages::Current => true,
            // The kernel cuts off all that it has when it is answered. What programs have changed in it is of before the truncation: to have
            // it dropped now would write it after.
            Pages::Old(dropping) if has(how, OFlags::TRUNC) => {
                self.changes.dropped(dropping);
                false
            }
            Pages::Old(dropping) => self.renew_pages(dropping).await,
            // Then the answer will do, which has the kernel drop what it has.
            Pages::Unknown(dropping) => {
                self.changes.dropped(dropping);
                false
            }
        };
        if keeps {
            answer |= FopenFlags::FOPEN_KEEP_CACHE;
            if file.allows(flags::READ) && !file.allows(flags::WRITE) {
                // The kernel may have all that will be read of it.
                self.was_read(&file, &attr);
            }
        }
        if has(how, OFlags::APPEND) {
            // Where the bytes go, only the service knows: the kernel must not cache them at its own idea of the end.
            answer |= FopenFlags::FOPEN_DIRECT_IO;
        }
        JustOpened { file, attr, answer }
    }

    /// An open sees what was closed elsewhere, so also the size: the kernel is to ask for it, however new its own is.
    fn forget_attributes(&self, ino: Ino) {
        // A negative offset leaves pages alone, so this waits for nobody.
        const ATTRIBUTES_ONLY: i64 = -1;
        if let Some(notifier) = self.notifier.get()
            && let Err(e) = notifier.inval_inode(self.root.number(ino), ATTRIBUTES_ONLY, 0)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("the kernel keeps old attributes: {e}");
        }
    }

    /// After a change of a file that had set-ID bits. The kernel leaves it to the service to take them away, and would show them as long as its
    /// attributes are new enough.
    pub fn forget_set_id(&self, file: &OpenFile, had_set_id: bool) {
        if had_set_id {
            self.forget_attributes(file.ino());
        }
    }

    pub async fn read(
        self: &Arc<Core>,
        number: u64,
        offset: u64,
        len: u32,
        how: i32,
    ) -> Result<Bytes> {
        let file = self.handles.get(number)?;
        // All of it, not only what overlaps: the file's end may lie in what is not written yet.
        self.flush(&file.inode).await;
        // Also of what was read ahead.
        file.in_force(self)?;
        if !has(how, OFlags::DIRECT)
            && let Some(data) = self.read_ahead(&file, offset, u64::from(len)).await
        {
            return Ok(data);
        }
        let data = self.read_now(&file, offset, len).await?;
        file.ahead.on_answer(&data.attr);
        Ok(data.data)
    }

    async fn read_now(&self, file: &OpenFile, offset: u64, len: u32) -> Result<Data> {
        let read = |target| {
            Ok(Action::Read(Read {
                target,
                offset,
                len: len.min(MAX_REQUEST_BYTES),
            }))
        };
        let done = file.with(self, &file.who, true, read).await;
        match done.inspect_err(|errno| self.on_refused(file.ino(), *errno))? {
            Answer::Data(data) => {
                self.changes.note(&data.attr);
                self.was_read(file, &data.attr);
                Ok(data)
            }
            _ => Err(CallError::Garbled.into()),
        }
    }

    /// A file was read, or will be, that has these attributes.
    fn was_read(&self, file: &OpenFile, attr: &Attr) {
        if file.counts.load(Ordering::Acquire) {
            self.accesses.note(attr);
        }
    }

    /// A read's bytes, if they were read ahead; and more is read ahead.
    async fn read_ahead(
        self: &Arc<Core>,
        file: &Arc<OpenFile>,
        offset: u64,
        len: u64,
    ) -> Option<Bytes> {
        let plan = file.ahead.on_read(offset, len, &self.room);
        for wanted in plan.wanted {
            let (core, file) = (self.clone(), file.clone());
            self.runtime.spawn(async move {
                let read = core.read_now(&file, wanted.offset, ahead::BLOCK_BYTES as u32);
                let read = read.await.ok();
                if let Some(data) = &read {
                    file.ahead.on_answer(&data.attr);
                }
                // Whoever waits for it asks for himself if it failed, and is told why.
                wanted.answer.send_replace(Some(read));
            });
        }
        if plan.blocks.is_empty() {
            return None;
        }
        let is_newest = |attr: &Attr| self.changes.is_newest(attr);
        let data = ahead::gather(plan.blocks, offset, len, is_newest).await;
        if data.is_none() {
            file.ahead.clear();
        }
        data
    }

    pub async fn write(
        self: &Arc<Core>,
        number: u64,
        offset: u64,
        data: Bytes,
        how: i32,
        origin: Origin,
    ) -> Result<u32> {
        let file = self.handles.get(number)?;
        file.in_force(self)?;
        if let Some(errno) = file.inode.failure(&file, Told::Writer) {
            return Err(errno);
        }
        if file.inode.is_unsettled() {
            // The times that were set are from before this write.
            self.flush_apart(&file.inode).await;
        }
        let had_set_id = file.inode.has_set_id();
        let append = has(how, OFlags::APPEND);
        let through = self.caching.sync || has(how, OFlags::DSYNC) || has(how, OFlags::DIRECT);
        if !through {
            let at = if append { At::End } else { At::Offset(offset) };
            self.buffer(&file, at, &data, origin).await?;
            self.forget_set_id(&file, had_set_id);
            return Ok(data.len() as u32);
        }
        self.flush_apart(&file.inode).await;
        for (index, part) in parts(&data).enumerate() {
            let place = match append {
                true => Place::End(Nothing),
                false => Place::At(offset + index as u64 * u64::from(MAX_REQUEST_BYTES)),
            };
            self.write_apart(&file, place, part, origin).await?;
        }
        self.forget_set_id(&file, had_set_id);
        Ok(data.len() as u32)
    }

    /// As [`Core::flush`], which goes to its end also if this is left off.
    async fn flush_apart(self: &Arc<Core>, inode: &Arc<Inode>) {
        let (core, inode, busy) = (self.clone(), inode.clone(), self.busy());
        let flushing = self.runtime.spawn(async move {
            let _busy = busy;
            core.flush(&inode).await;
        });
        let _ = flushing.await;
    }

    /// As [`Core::write_now`], which goes to its end also if this is left off.
    async fn write_apart(
        self: &Arc<Core>,
        file: &Arc<OpenFile>,
        place: Place,
        part: Bytes,
        origin: Origin,
    ) -> Result<()> {
        let (core, file, busy) = (self.clone(), file.clone(), self.busy());
        let writing = self.runtime.spawn(async move {
            let _busy = busy;
            core.write_now(&file, place, &part, origin).await
        });
        writing.await.unwrap_or(Err(fuser::Errno::EIO))
    }

    /// close(2) waits for this.
    pub async fn close(self: &Arc<Core>, number: u64, owner: u64) -> Result<()> {
        let file = self.handles.get(number)?;
        file.inode.closed();
        self.flush(&file.inode).await;
        // Not as fsync(2): a child process closes what it has inherited, and must not take the news from its parent.
        let failure = file.inode.failure(&file, Told::Closer);
        if failure.is_some() {
            file.told.store(true, Ordering::Release);
        }
        let in_force = self.has_lost_none(&file, owner);
        if file.inode.locked.load(Ordering::Acquire) {
            self.drop_posix_locks(&file, owner).await;
        }
        in_force?;
        failure.map_or(Ok(()), Err)
    }

    /// The last descriptor is gone; nobody waits.
    pub async fn release(self: &Arc<Core>, file: Arc<OpenFile>) {
        self.flush(&file.inode).await;
        // Nobody is told by it, so it stays for who syncs.
        if let Some(errno) = file.inode.failure(&file, Told::Closer)
            && !file.told.load(Ordering::Acquire)
        {
            let ino = file.ino().0;
            tracing::error!(
                ino,
                errno = errno.code(),
                "data was lost, and nobody was told"
            );
        }
        // Not before: what was written under a lock that is lost now is not to be written.
        file.inode.granted.release(file.number);
        if file.has_handle(&self.volume) && !file.inode.locked.load(Ordering::Acquire) {
            // Together with others, and with what is asked next: nobody waits for it. A lock somebody may wait for.
            self.holds.gather(RELEASE_AFTER).await;
        }
        file.release(&self.volume).await;
        self.changes.close(file.ino());
        if self.handles.done(&file, &self.holds) {
            self.holds.gather(LET_GO_AFTER).await;
            self.tell_later(TOLD_AFTER);
        }
    }

    pub async fn fsync(self: &Arc<Core>, number: u64) -> Result<()> {
        let file = self.handles.get(number)?;
        self.flush(&file.inode).await;
        // What is at the group is as durable as it gets: an answer says that 2f+1 replicas have it on disk.
        let failure = file.inode.failure(&file, Told::Syncer);
        file.in_force(self)?;
        failure.map_or(Ok(()), Err)
    }
}

fn parts(data: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    let step = MAX_REQUEST_BYTES as usize;
    (0..data.len())
        .step_by(step)
        .map(move |from| data.slice(from..data.len().min(from + step)))
}

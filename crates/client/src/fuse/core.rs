//! What the tasks of a mount share.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fuser::FileAttr;
use quorate_files::op::{Place, Write};
use quorate_files::{Action, Answer, Attr, Ino, Nothing, Target, Who};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::Instant;

use super::ahead::Room;
use super::begin::begin;
use super::caching::Caching;
use super::caller::Callers;
use super::changes::{Changes, Dropping};
use super::convert::Result;
use super::directories::Directories;
use super::handles::{Handles, OpenFile};
use super::holds::{Holds, TOLD_AFTER};
use super::inode::{At, Inode, Origin, Sealed};
use super::listing::Listings;
use super::owners::Owners;
use super::pins::Pins;
use super::plain::Plain;
use super::shares::{Root, SHARES, Shares, Start};
use super::withdrawn::Withdrawn;
use crate::accesses::Accesses;
use crate::volume::{CallError, Volume};

/// The most bytes of all files that wait to be written; then writers wait.
const DIRTY_BYTES: usize = 64 << 20;
/// How old a buffer is when it is sent. It is looked for such ones as often, so it may become twice as old.
const BUFFER_AGE: Duration = Duration::from_millis(500);
/// How often attributes that were overtaken by own writes are asked for again.
const FRESH_ATTEMPTS: usize = 8;

/// A mount.
#[derive(Debug)]
pub(super) struct Core {
    pub volume: Volume,
    /// What the kernel knows as the root.
    pub root: Root,
    /// What is in the root, where that is no directory of the volume.
    pub shares: Option<Shares>,
    /// Whose files are, as a guest sees it; nothing for others, whose ids are the volume's. To a guest, what is not in scope of a credential any
    /// more is as if it were gone.
    pub owners: Option<Owners>,
    pub caching: Caching,
    pub runtime: Handle,
    pub handles: Handles,
    pub holds: Holds,
    pub withdrawn: Withdrawn,
    pub changes: Changes,
    pub pins: Pins,
    pub plain: Plain,
    pub directories: Directories,
    pub callers: Callers,
    pub listings: Listings,
    pub accesses: Arc<Accesses>,
    pub notifier: OnceCell<fuser::Notifier>,
    pub room: Room,
    budget: Arc<Semaphore>,
    /// Rises before and after each own change: what was listed before one is not shown after it.
    epoch: AtomicU64,
    /// How many operations are under way.
    busy: watch::Sender<usize>,
}

/// What is to become of the kernel's pages of a file of which attributes show a foreign change.
#[derive(Clone, Copy, Debug)]
pub(super) enum OldPages {
    /// The kernel is to have dropped them before it is answered.
    Dropped,
    /// It is to drop them, and nobody waits for it. Where a size is set it writes no page before it is answered, and to drop a page that a program
    /// has changed through a mapping is to write it first.
    DroppedLater,
    /// The answer has it cut them off. What programs have changed in them is not to be written any more: it would come after the truncation.
    CutOff,
}

/// The writing of something.
type Work = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// An operation under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Core>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.send_modify(|n| *n -= 1);
    }
}

/// An own change: the listings of before are not shown from its start on.
pub(super) struct Changing<'a>(&'a AtomicU64);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Core {
    pub fn new(volume: Volume, start: Start, caching: Caching, runtime: Handle) -> Arc<Core> {
        Arc::new(Core {
            accesses: Accesses::new(volume.clone(), runtime.clone()),
            volume,
            root: Root::of(&start),
            owners: start.acting().cloned().map(Owners::of_this_user),
            shares: match start {
                Start::Shares(shares, _) => Some(shares),
                Start::Volume | Start::Object(_) | Start::Shared(..) => None,
            },
            caching,
            runtime,
            handles: Handles::default(),
            holds: Holds::default(),
            withdrawn: Withdrawn::default(),
            changes: Changes::default(),
            pins: Pins::default(),
            plain: Plain::new(caching.least()),
            directories: Directories::default(),
            callers: Callers::default(),
            listings: Listings::default(),
            notifier: OnceCell::new(),
            room: Room::default(),
            budget: Arc::new(Semaphore::new(DIRTY_BYTES)),
            epoch: AtomicU64::new(0),
            busy: watch::Sender::new(0),
        })
    }

    /// Whether it is mounted by credentials.
    pub fn is_guest(&self) -> bool {
        self.owners.is_some()
    }

    /// Whether one group keeps the volume, and judges by the rights of this machine's users: a guest's scope can end at any time, and several groups have no operation
    /// that makes a file without opening it.
    pub fn is_of_one_group(&self) -> bool {
        !self.is_guest() && self.volume.group().is_some()
    }

    /// Attributes as the kernel gets them.
    pub fn told(&self, attr: &Attr) -> FileAttr {
        let mut shown = self.root.attr(attr);
        if let Some(owners) = self.owners.as_ref().filter(|_| attr.ino != SHARES) {
            (shown.uid, shown.gid) = owners.shown(attr);
        }
        shown
    }

    pub fn busy(self: &Arc<Core>) -> Busy {
        self.busy.send_modify(|n| *n += 1);
        Busy(self.clone())
    }

    /// Waits until nothing is under way and all is written.
    pub async fn finish(self: &Arc<Core>) {
        self.flush_all().await;
        self.accesses.tell().await;
        let mut busy = self.busy.subscribe();
        // The sender lives as long as `self`.
        let _ = busy.wait_for(|n| *n == 0).await;
    }

    /// Waits until all that was written by now is at the group.
    pub async fn flush_all(self: &Arc<Core>) {
        for inode in self.handles.inodes() {
            self.flush(&inode).await;
        }
    }

    pub fn changing(&self) -> Changing<'_> {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        Changing(&self.epoch)
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Sends buffers that have become old, for as long as the mount is.
    pub async fn keep_young(core: std::sync::Weak<Core>) {
        loop {
            tokio::time::sleep(BUFFER_AGE).await;
            let Some(core) = core.upgrade() else { return };
            core.notice_lost_locks();
            core.handles.pause_readers();
            core.seal(BUFFER_AGE);
            core.tell_later(TOLD_AFTER);
            core.keep_withdrawn();
        }
    }

    fn seal(self: &Arc<Core>, age: Duration) {
        for inode in self.handles.inodes() {
            inode.seal(age);
            self.pump(&inode);
            if inode.is_ripe(age) {
                let (core, busy) = (self.clone(), self.busy());
                self.runtime.spawn(async move {
                    let _busy = busy;
                    core.flush(&inode).await;
                });
            }
        }
    }

    /// Takes in a write, to be sent soon.
    pub async fn buffer(
        self: &Arc<Core>,
        file: &Arc<OpenFile>,
        mut at: At,
        mut data: &[u8],
        origin: Origin,
    ) -> Result<()> {
        while !data.is_empty() {
            let len = data.len() as u32;
            let budget = match self.budget.clone().try_acquire_many_owned(len) {
                Ok(budget) => budget,
                Err(_) => {
                    self.seal(Duration::ZERO);
                    // Never closed.
                    let budget = self.budget.clone().acquire_many_owned(len).await;
                    budget.map_err(|_| fuser::Errno::EIO)?
                }
            };
            let taken = file.inode.put(file, at, data, origin, budget);
            let taken = taken.ok_or(fuser::Errno::EBADF)?;
            data = &data[taken..];
            if let At::Offset(offset) = &mut at {
                *offset += taken as u64;
            }
            self.pump(&file.inode);
        }
        Ok(())
    }

    /// Sends what may be sent. What is asked after it is ordered after it, as a rule.
    pub fn pump(self: &Arc<Core>, inode: &Arc<Inode>) {
        let mut failed = 0;
        // All that fails at once is gone through here, however long the queue is: after a lost lock that is all of it.
        while let Some(sealed) = inode.next() {
            let number = sealed.number;
            let mut work = self.write_back(sealed);
            // Up to where it waits for the answer, here and now: a task would begin at some later time.
            match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(sent) => failed += usize::from(!self.written(inode, number, sent)),
                Poll::Pending => self.await_written(inode, number, work),
            }
        }
        if failed > 0 {
            self.on_failed(inode, failed);
        }
    }

    fn await_written(self: &Arc<Core>, inode: &Arc<Inode>, number: u64, work: Work) {
        let (core, busy, inode) = (self.clone(), self.busy(), inode.clone());
        begin(&self.runtime, async move {
            let _busy = busy;
            let done = core.written(&inode, number, work.await);
            core.pump(&inode);
            if !done {
                core.on_failed(&inode, 1);
            }
        });
    }

    fn write_back(self: &Arc<Core>, sealed: Sealed) -> Work {
        let core = self.clone();
        Box::pin(async move { core.write_out(&sealed).await })
    }

    /// A write has come to its end. Whether it was done.
    fn written(&self, inode: &Inode, number: u64, sent: Result<()>) -> bool {
        if let Err(errno) = sent {
            let (ino, errno) = (inode.ino.0, errno.code());
            tracing::debug!(ino, errno, "a write failed");
            self.changes.doubt(inode.ino);
        }
        inode.finished(number, sent.err());
        sent.is_ok()
    }

    /// The kernel's pages have what was not written. After the end of the write: who reads such a page may wait for that.
    fn on_failed(self: &Arc<Core>, inode: &Arc<Inode>, writes: usize) {
        let errno = inode.last_failure().map(|errno| errno.code());
        tracing::warn!(
            ino = inode.ino.0,
            writes,
            errno,
            "data could not be written"
        );
        self.drop_pages_later(inode);
    }

    /// The kernel may have pages of a file that are from nowhere: it is to drop them, now and at the next open.
    pub fn doubt_pages(self: &Arc<Core>, ino: Ino) {
        self.changes.doubt(ino);
        if let Some(inode) = self.handles.inode(ino) {
            self.drop_pages_later(&inode);
        }
    }

    /// As [`Core::drop_pages`], and waits for nothing.
    pub fn drop_pages_later(self: &Arc<Core>, inode: &Arc<Inode>) {
        // One after another for a file, and one for all that became old since the last began.
        if inode.old_pages.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (core, busy, inode) = (self.clone(), self.busy(), inode.clone());
        self.runtime.spawn(async move {
            let _busy = busy;
            let mut known = 1;
            while known > 0 {
                core.drop_pages(inode.ino).await;
                known = inode.old_pages.fetch_sub(known, Ordering::AcqRel) - known;
            }
        });
    }

    async fn write_out(&self, sealed: &Sealed) -> Result<()> {
        let place = match sealed.at {
            At::Offset(offset) => Place::At(offset),
            At::End => Place::End(Nothing),
        };
        let write = || self.write_now(&sealed.file, place.clone(), &sealed.data, sealed.origin);
        match write().await {
            // To a guest who may only append it depends on where the file ends, and what was sent before may have come after this.
            Err(errno) if sealed.is_beside && errno.code() == fuser::Errno::EACCES.code() => {
                sealed.file.inode.drained_before(sealed.number).await;
                write().await
            }
            written => written,
        }
    }

    /// Writes, and waits for it.
    pub async fn write_now(
        &self,
        file: &OpenFile,
        place: Place,
        data: &bytes::Bytes,
        origin: Origin,
    ) -> Result<()> {
        let _changing = self.changing();
        let repeatable = matches!(place, Place::At(_));
        let write = |target| {
            if origin == Origin::Mapping {
                // It may have waited for long, and been sent before.
                self.takes_pages(file.ino())?;
            }
            Ok(Action::Write(Write {
                target,
                place: place.clone(),
                data: data.clone(),
            }))
        };
        let answer = match origin == Origin::Mapping && file.inode.granted.is_any() {
            // What is sent again once the session is lost may be done in the next one before that is known here: only by a handle is it refused there.
            true => {
                let write = |handle| write(Target::Handle(handle));
                let written = file.with_handle(self, &file.who, repeatable, write);
                written.await?.1
            }
            false => file.with(self, &file.who, repeatable, write).await?,
        };
        match answer {
            Answer::Written(written) => {
                match place {
                    Place::At(_) => self.changes.own(&written.attr),
                    Place::End(_) => self.changes.own_elsewhere(&written.attr),
                }
                file.inode.wrote(&written.attr);
                Ok(())
            }
            _ => Err(CallError::Garbled.into()),
        }
    }

    /// As [`Core::flush`], for a file that may be open here.
    pub async fn flush_ino(self: &Arc<Core>, ino: Ino) {
        if let Some(inode) = self.handles.inode(ino) {
            self.flush(&inode).await;
        }
    }

    /// Attributes that show all own writes: those given, unless they were overtaken.
    pub async fn fresh(self: &Arc<Core>, attr: Attr) -> Result<Attr> {
        self.fresh_with(attr, OldPages::Dropped).await
    }

    /// The same, where the kernel's pages can't be dropped at any time.
    pub async fn fresh_with(self: &Arc<Core>, mut attr: Attr, old: OldPages) -> Result<Attr> {
        for _ in 0..FRESH_ATTEMPTS {
            let dirty = self.handles.inode(attr.ino).filter(|i| i.is_dirty());
            if dirty.is_none() && !self.changes.is_stale(&attr) {
                break;
            }
            if let Some(inode) = dirty {
                self.flush(&inode).await;
            }
            let target = self.handles.target(attr.ino);
            attr = self.volume.get_attr(&Who::root(), target).await?;
        }
        if let Some(dropping) = self.changes.foreign(&attr) {
            match old {
                OldPages::Dropped => drop(self.renew_pages(dropping).await),
                OldPages::DroppedLater => self.renew_pages_later(dropping),
                OldPages::CutOff => self.changes.dropped(dropping),
            }
        }
        if let Some(inode) = self.handles.inode(attr.ino) {
            inode.learn(&attr);
            inode.is_shown(&attr);
        }
        self.plain.learn(&attr, Instant::now());
        self.directories.learn(&attr);
        Ok(self.directories.newest(attr))
    }

    /// Has the kernel drop pages of before, and notes it. Whether it has.
    pub async fn renew_pages(&self, dropping: Dropping) -> bool {
        let dropped = self.drop_pages(dropping.ino).await;
        if dropped {
            self.changes.dropped(dropping);
        }
        dropped
    }

    /// As [`Core::renew_pages`], and waits for nothing.
    fn renew_pages_later(self: &Arc<Core>, dropping: Dropping) {
        let (core, busy) = (self.clone(), self.busy());
        self.runtime.spawn(async move {
            let _busy = busy;
            core.renew_pages(dropping).await;
        });
    }

    /// Has the kernel drop what it knows of a file's content. Whether it has.
    pub async fn drop_pages(&self, ino: Ino) -> bool {
        let Some(notifier) = self.notifier.get().cloned() else {
            return false;
        };
        let number = self.root.number(ino);
        // It waits for pages that are being read, so not on a thread of the runtime.
        let dropped = tokio::task::spawn_blocking(move || notifier.inval_inode(number, 0, 0));
        match dropped.await {
            Ok(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("the kernel keeps old pages: {e}");
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Bench;
    use super::super::inode::{BUFFER_BYTES, Told};
    use super::super::sample;
    use super::*;
    use quorate_files::answer::{Version, Written};
    use quorate_files::op::flags;
    use quorate_files::{Errno, Handle};

    /// What is refused where something sent before it is still under way is sent once more after that; what was alone is not.
    #[tokio::test]
    async fn what_has_overtaken_is_sent_again() {
        const INO: Ino = Ino(7);
        let bench = Bench::new(&[]);
        let (core, who) = (&bench.core, Who::root());
        let handle = Handle {
            ino: INO,
            number: 2,
        };
        let file = core.handles.add(INO, &who, flags::WRITE, Some((1, handle)));
        let (inode, attr) = (&file.inode, sample::attr(INO));
        let refused = || Err(CallError::Refused(Errno::EACCES));
        let written = Answer::Written(Written {
            offset: BUFFER_BYTES,
            before: Version {
                size: BUFFER_BYTES,
                mtime: attr.mtime,
                ctime: attr.ctime,
            },
            attr,
        });
        let answers = |next: Vec<_>| bench.fake.changes.lock().unwrap().extend(next);
        let put = async |offset, data: &[u8]| {
            let budget = core.budget.clone().acquire_many_owned(data.len() as u32);
            let (at, budget) = (At::Offset(offset), budget.await.unwrap());
            inode.put(&file, at, data, Origin::Program, budget).unwrap();
            inode.seal(Duration::ZERO);
        };
        put(0, &[1; BUFFER_BYTES as usize]).await;
        let first = inode.next().expect("it is under way");
        put(BUFFER_BYTES, b"x").await;
        answers(vec![refused(), Ok(written)]);
        core.pump(inode);
        assert_eq!(bench.kinds(), ["Write"]);
        assert!(inode.is_dirty(), "it waits for the first");
        inode.finished(first.number, None);
        core.flush(inode).await;
        assert_eq!(bench.kinds(), ["Write"]);
        assert!(inode.failure(&file, Told::Closer).is_none());

        answers(vec![refused()]);
        put(0, b"y").await;
        core.flush(inode).await;
        assert_eq!(bench.kinds(), ["Write"]);
        let failure = inode.failure(&file, Told::Closer);
        assert_eq!(
            failure.map(|errno| errno.code()),
            Some(fuser::Errno::EACCES.code())
        );
    }
}

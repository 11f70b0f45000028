//! Requests as tasks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{INodeNo, ReplyEmpty, ReplyOpen, Request};
use quorate_files::{Ino, Who};
use tokio::runtime::Handle;

use super::super::begin::begin;
use super::super::caller;
use super::super::convert::Result;
use super::super::core::Core;
use super::super::data::JustOpened;
use super::super::locking::Wanted;
use super::reply::Answer;

/// The file system that the FUSE library calls.
#[derive(Debug)]
pub(in super::super) struct Front {
    core: Arc<Core>,
    runtime: Handle,
}

impl Front {
    pub fn new(core: Arc<Core>, runtime: Handle) -> Front {
        Front { core, runtime }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// The object with the kernel's number.
    pub(super) fn ino(&self, number: INodeNo) -> Ino {
        self.core.root.ino(number)
    }

    pub(super) fn who(&self, req: &Request) -> Who {
        self.core.callers.who(req.pid(), req.uid(), req.gid())
    }

    /// Does the work in a task and answers.
    pub(super) fn answer<R: Answer<T>, T: Send + 'static, W>(
        &self,
        req: &Request,
        reply: R,
        work: impl FnOnce(Arc<Core>) -> W,
    ) where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.core.clone());
        self.spawn(req.pid(), reply, work, |_| {});
    }

    /// As [`Front::answer`], for what opens a file: if nobody waits for it any more it is closed again.
    pub(super) fn answer_opened<R: Answer<JustOpened>, W>(
        &self,
        req: &Request,
        reply: R,
        work: impl FnOnce(Arc<Core>) -> W,
    ) where
        W: Future<Output = Result<JustOpened>> + Send + 'static,
    {
        let work = work(self.core.clone());
        let (core, runtime) = (self.core.clone(), self.runtime.clone());
        let undo = move |opened: JustOpened| {
            // The kernel has not heard that it is to drop its pages.
            core.changes.doubt(opened.attr.ino);
            release(&core, &runtime, opened.file.number);
        };
        self.spawn(req.pid(), reply, work, undo);
    }

    /// As [`Front::answer`], for what changes a file's content beside the kernel's pages, which the kernel drops when it hears that it is done.
    pub(super) fn answer_changed<R: Answer<T>, T: Send + 'static, W>(
        &self,
        req: &Request,
        reply: R,
        ino: Ino,
        work: impl FnOnce(Arc<Core>) -> W,
    ) where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.core.clone());
        let core = self.core.clone();
        self.spawn(req.pid(), reply, work, move |_| core.doubt_pages(ino));
    }

    /// Opens a directory.
    pub(super) fn answer_listing(&self, req: &Request, reply: ReplyOpen, dir: Ino) {
        let (core, who) = (self.core.clone(), self.who(req));
        let work = async move { core.open_dir(who, dir).await };
        let core = self.core.clone();
        self.spawn(req.pid(), reply, work, move |number| {
            core.listings.remove(number)
        });
    }

    /// As [`Front::answer`], for a lock: if nobody waits for it any more its owner has what he had before.
    pub(super) fn answer_lock(&self, req: &Request, reply: ReplyEmpty, wanted: Wanted) {
        let core = self.core.clone();
        let work = async move { core.set_lock(wanted).await };
        let (core, runtime) = (self.core.clone(), self.runtime.clone());
        let undo = move |changed| {
            let busy = core.busy();
            runtime.spawn(async move {
                let _busy = busy;
                core.undo_lock(changed).await;
            });
        };
        self.spawn(req.pid(), reply, work, undo);
    }

    /// As [`Front::answer`], for what is left off where it waits if the process is killed meanwhile: it does no more then.
    pub(super) fn answer_or_leave<R: Answer<T>, T: Send + 'static, W>(
        &self,
        req: &Request,
        reply: R,
        work: impl FnOnce(Arc<Core>) -> W,
    ) where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.core.clone());
        let (core, busy, pid) = (self.core.clone(), self.core.busy(), req.pid());
        begin(&self.runtime, async move {
            let _busy = busy;
            let done = {
                let work = std::pin::pin!(work);
                tokio::select! {
                    biased;
                    done = work => done,
                    () = caller::killed(pid) => Err(fuser::Errno::EINTR),
                }
            };
            // What was left off is gone by now.
            match done {
                Ok(value) => reply.give(&core, value),
                Err(errno) => reply.fail(errno),
            }
        });
    }

    /// Does the work in a task, which answers by itself.
    pub(super) fn start<W>(&self, work: impl FnOnce(Arc<Core>) -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        begin(&self.runtime, work(self.core.clone()));
    }

    /// Lets go of an open file in a task.
    pub(super) fn release_later(&self, number: u64) {
        release(&self.core, &self.runtime, number);
    }

    /// If the process is killed meanwhile, it is let go and the work goes on, but for further steps of what takes several: then `undo` gets what nobody waits
    /// for.
    fn spawn<R: Answer<T>, T: Send + 'static>(
        &self,
        pid: u32,
        reply: R,
        work: impl Future<Output = Result<T>> + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) {
        let busy = self.core.busy();
        let core = self.core.clone();
        begin(&self.runtime, async move {
            let _busy = busy;
            let (work, left) = caller::seen(work);
            let mut work = Box::pin(work);
            tokio::select! {
                biased;
                result = &mut work => match result {
                    Ok(value) => reply.give(&core, value),
                    Err(errno) => reply.fail(errno),
                },
                () = caller::killed(pid) => {
                    left.store(true, Ordering::Release);
                    reply.fail(fuser::Errno::EINTR);
                    if let Ok(value) = work.await {
                        undo(value);
                    }
                }
            }
        });
    }
}

fn release(core: &Arc<Core>, runtime: &Handle, number: u64) {
    if let Some(file) = core.handles.remove(number) {
        let (core, busy) = (core.clone(), core.busy());
        begin(runtime, async move {
            let _busy = busy;
            core.release(file).await;
        });
    }
}

//! Tasks that begin on the thread that has the request.
//!
//! To hand a request to a thread of the runtime wakes that thread, only for it to find out that it has to wait for the group. So the first
//! steps are done where the request is; what has to wait then goes on in the runtime, and a thread of it is woken once, with the answer.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Stage {
    /// It is at its first steps; it may have been woken meanwhile.
    Beginning { woken: bool },
    /// It waits.
    Waiting(Work),
    /// It is done, or the runtime has it.
    Over,
}

struct Begun {
    stage: Mutex<Stage>,
    runtime: Handle,
}

impl Begun {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        let mut stage = self.stage();
        if let Stage::Beginning { woken } = &mut *stage {
            *woken = true;
            return;
        }
        let before = std::mem::replace(&mut *stage, Stage::Over);
        // It may be dropped at once, where the runtime has ended, and wake others.
        drop(stage);
        if let Stage::Waiting(work) = before {
            self.runtime.spawn(work);
        }
    }
}

/// Does the first steps of some work, up to where it waits; the rest is a task of the runtime. The caller must not hold what the work may want.
pub(super) fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let begun = Arc::new(Begun {
        stage: Mutex::new(Stage::Beginning { woken: false }),
        runtime: runtime.clone(),
    });
    let waker = Waker::from(begun.clone());
    let mut work: Work = Box::pin(work);
    // For timers, and for what it spawns.
    let _entered = runtime.enter();
    let polled = catch_unwind(AssertUnwindSafe(|| {
        work.as_mut().poll(&mut Context::from_waker(&waker))
    }));
    let mut stage = begun.stage();
    // A panic ends the work alone, as in the runtime, and has been told: this thread serves others.
    if !matches!(polled, Ok(Poll::Pending)) {
        *stage = Stage::Over;
        return;
    }
    if let Stage::Beginning { woken: false } = *stage {
        *stage = Stage::Waiting(work);
        return;
    }
    *stage = Stage::Over;
    drop(stage);
    runtime.spawn(work);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).enable_time().build().unwrap()
    }

    /// What has nothing to wait for is done when `begin` returns, on the caller's thread; what waits goes on elsewhere when it is woken,
    /// also if that was before it was put aside.
    #[test]
    fn work_goes_on_where_it_is_woken() {
        let runtime = runtime();
        let (tell, told) = mpsc::channel::<ThreadId>();
        let at_once = tell.clone();
        begin(runtime.handle(), async move {
            at_once.send(thread::current().id()).unwrap();
        });
        assert_eq!(told.try_recv(), Ok(thread::current().id()));

        let (answer, answered) = oneshot::channel::<()>();
        let later = tell.clone();
        begin(runtime.handle(), async move {
            later.send(thread::current().id()).unwrap();
            answered.await.unwrap();
            // Waits once more, for the runtime's own timer.
            tokio::time::sleep(Duration::from_millis(1)).await;
            later.send(thread::current().id()).unwrap();
        });
        assert_eq!(told.try_recv(), Ok(thread::current().id()));
        assert!(told.try_recv().is_err());
        answer.send(()).unwrap();
        let elsewhere = told.recv_timeout(PATIENCE).unwrap();
        assert_ne!(elsewhere, thread::current().id());

        let mut polls = 0;
        begin(
            runtime.handle(),
            poll_fn(move |context| {
                polls += 1;
                if polls == 1 {
                    context.waker().wake_by_ref();
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                tell.send(thread::current().id()).unwrap();
                Poll::Ready(())
            }),
        );
        let elsewhere = told.recv_timeout(PATIENCE).unwrap();
        assert_ne!(elsewhere, thread::current().id());
        // Each of them was done once, and is gone with what it had.
        assert_eq!(
            told.recv_timeout(PATIENCE),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }

    /// What panics at its beginning, or waits when the runtime ends, is dropped, and whoever began it goes on.
    #[test]
    fn what_can_not_go_on_is_dropped() {
        let runtime = runtime();
        let (kept, dropped) = mpsc::channel::<()>();
        begin(runtime.handle(), async move {
            let _kept = kept;
            panic!("a defect");
        });
        assert_eq!(dropped.try_recv(), Err(mpsc::TryRecvError::Disconnected));

        let (kept, dropped) = mpsc::channel::<()>();
        let (answer, answered) = oneshot::channel::<()>();
        begin(runtime.handle(), async move {
            let _kept = kept;
            let _ = answered.await;
        });
        assert_eq!(dropped.try_recv(), Err(mpsc::TryRecvError::Empty));
        runtime.shutdown_background();
        drop(answer);
        assert_eq!(
            dropped.recv_timeout(PATIENCE),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}

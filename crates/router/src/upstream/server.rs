//! A server, as each thread has it: a connection, and a socket for datagrams where the server takes them.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use quorate_nfs::call;
use quorate_nfs::xdr::Writer;
use quorate_nfs::{MAX_THREADS, thread};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::datagrams::Datagrams;
use super::{Line, Load, Unsent, Waiter};

const NFS: (u32, u32) = (call::PROGRAM, call::VERSION);

/// See the module. What a thread has of it begins when the thread needs it, and all of it ends with this.
#[derive(Debug)]
pub struct Server {
    address: String,
    speaks_udp: bool,
    load: Arc<Load>,
    /// By thread.
    ways: Box<[OnceLock<Ways>]>,
}

/// Of one thread.
#[derive(Debug)]
struct Ways {
    line: (Arc<Line>, AbortHandle),
    datagrams: Option<(Arc<Datagrams>, AbortHandle)>,
}

impl Drop for Ways {
    fn drop(&mut self) {
        self.line.1.abort();
        self.datagrams.iter().for_each(|(_, task)| task.abort());
    }
}

impl Server {
    /// At `host:port`.
    pub(super) fn new(address: String, speaks_udp: bool, load: Arc<Load>) -> Server {
        Server {
            address,
            speaks_udp,
            load,
            ways: (0..MAX_THREADS).map(|_| OnceLock::new()).collect(),
        }
    }

    fn ways(&self) -> &Ways {
        self.ways[thread()].get_or_init(|| {
            let address = || self.address.clone();
            let line = Arc::new(Line::new(address(), self.load.clone()));
            let served = line.clone();
            let task = tokio::spawn(async move { served.serve().await });
            let datagrams = self.speaks_udp.then(|| {
                let datagrams = Arc::new(Datagrams::new(address(), self.load.clone()));
                let served = datagrams.clone();
                let task = tokio::spawn(async move { served.serve().await });
                (datagrams, task.abort_handle())
            });
            Ways {
                line: (line, task.abort_handle()),
                datagrams,
            }
        })
    }

    /// The connection.
    pub fn line(&self) -> &Line {
        &self.ways().line.0
    }

    /// The socket for datagrams, if the server takes them.
    pub fn datagrams(&self) -> Option<&Datagrams> {
        self.ways().datagrams.as_ref().map(|(socket, _)| &**socket)
    }

    /// Where it is, as `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where it takes datagrams, if it does.
    pub(crate) fn udp_address(&self) -> Option<&str> {
        self.speaks_udp.then_some(&*self.address)
    }

    /// Asks for nothing, so that there is a connection where there can be one; whether there is.
    pub(crate) async fn comes_up(&self) -> bool {
        let write = |w: &mut Writer| super::head(w, NFS, 0, (0, 0, &[]));
        self.line().is_up() || self.call(write).await.is_some()
    }

    /// The reply to a call, over the connection.
    pub(super) async fn call(&self, write: impl Fn(&mut Writer)) -> Option<Bytes> {
        loop {
            let (reply, answered) = oneshot::channel();
            match self.line().send(|| Waiter::Task(reply), &write) {
                Ok(()) => return answered.await.ok(),
                Err(Unsent::Down) => return None,
                Err(Unsent::Full) => self.line().has_room().await,
            }
        }
    }
}

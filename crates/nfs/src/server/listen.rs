//! Several threads, each with a runtime, a listener and a socket for datagrams, at one port.
//!
//! What comes over a connection stays on its thread, so that no task wakes another thread. The system spreads connections by a hash of their
//! addresses and ports, and so all datagrams of one source come to one thread.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::sync::{mpsc, watch};

use super::{Answers, Limits, connections, datagrams};
use crate::Drops;

/// A call over UDP, and from where it came.
pub type Again = (Bytes, SocketAddr);

/// The most threads.
pub const MAX_THREADS: usize = 64;
/// How many connections wait to be taken.
const BACKLOG: i32 = 1024;
/// How many calls wait that came by another way.
const MAX_AGAIN: usize = 256;
/// How often another free port is looked for, where any will do: one that is free for TCP may be in use over UDP.
const TRIES: usize = 32;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the thread that asks, below [`MAX_THREADS`], among those that serve together; 0 for all others.
pub fn thread() -> usize {
    NUMBER.get()
}

/// Listeners that are bound.
#[derive(Debug)]
pub struct Listeners {
    address: SocketAddr,
    sockets: Vec<Sockets>,
    limits: Limits,
    again: Option<mpsc::Receiver<Again>>,
}

/// Of one thread.
#[derive(Debug)]
struct Sockets {
    tcp: TcpListener,
    udp: Option<UdpSocket>,
}

impl Listeners {
    /// Listens at an address for so many threads; over UDP too, at the same port, if that is wanted.
    ///
    /// # Errors
    /// The system's, as where somebody listens there; and for UDP without an address of its own.
    pub fn bind(address: SocketAddr, threads: usize, udp: bool) -> io::Result<Listeners> {
        if udp && address.ip().is_unspecified() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "UDP needs one address to listen on: replies must come from the address that calls go to",
            ));
        }
        let mut tries = TRIES;
        loop {
            tries -= 1;
            match Listeners::try_bind(address, threads.clamp(1, MAX_THREADS), udp) {
                Err(e)
                    if e.kind() == io::ErrorKind::AddrInUse && address.port() == 0 && tries > 0 => {
                }
                bound => return bound,
            }
        }
    }

    fn try_bind(address: SocketAddr, threads: usize, udp: bool) -> io::Result<Listeners> {
        // Alone: who shares a port would not see that another program has it.
        let tcp = stream(address, false)?;
        let address = tcp.local_addr()?;
        let datagram = |shared| udp.then(|| datagram(address, shared)).transpose();
        let first = Sockets {
            tcp,
            udp: datagram(false)?,
        };
        let mut sockets = vec![first];
        if threads > 1 {
            sockets.clear();
            for _ in 0..threads {
                sockets.push(Sockets {
                    tcp: stream(address, true)?,
                    udp: datagram(true)?,
                });
            }
        }
        Ok(Listeners {
            address,
            sockets,
            limits: Limits::default(),
            again: None,
        })
    }

    /// Where they listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The way in for calls over UDP that came by another way, each with its source; few wait there. They are taken while this serves, by
    /// its first socket.
    pub fn again(&mut self) -> mpsc::Sender<Again> {
        let (calls, again) = mpsc::channel(MAX_AGAIN);
        self.again = Some(again);
        calls
    }

    /// What is dropped of what comes over UDP.
    pub fn drops(&self) -> Arc<Drops> {
        self.limits.dropped.clone()
    }

    /// Serves until it is dropped: the first listener by who asks, each other by a thread of its own. A front is served by one of these at
    /// a time: what it keeps for a thread ends with that.
    ///
    /// # Errors
    /// The system's: a listener is broken, or there can be no thread.
    pub async fn serve(self, front: Arc<impl Answers>) -> io::Result<()> {
        let (stop, stopped) = watch::channel(());
        let mut crew = Crew {
            stop: Some(stop),
            threads: Vec::new(),
        };
        let (failed, mut failures) = mpsc::unbounded_channel();
        let mut again = self.again;
        let mut sockets = self.sockets.into_iter();
        let own = sockets.next();
        for (number, sockets) in sockets.enumerate() {
            let (front, limits) = (front.clone(), self.limits.clone());
            let (mut stopped, failed) = (stopped.clone(), failed.clone());
            let work = move || {
                NUMBER.set(number + 1);
                let serve = async {
                    tokio::select! {
                        served = sockets.serve(&front, &limits, None) => served,
                        // That nobody can say so any more is how it is said.
                        _ = stopped.changed() => Ok(()),
                    }
                };
                if let Err(e) = on_a_runtime(serve) {
                    let _ = failed.send(e);
                }
            };
            let thread = std::thread::Builder::new().name(format!("serve-{}", number + 1));
            crew.threads.push(thread.spawn(work)?);
        }
        drop(failed);
        let own = async {
            match own {
                Some(own) => own.serve(&front, &self.limits, again.take()).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            served = own => served,
            Some(failure) = failures.recv() => Err(failure),
        }
    }
}

fn on_a_runtime(serve: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve);
    // Nobody waits for what it has asked the system.
    runtime.shutdown_background();
    served
}

/// Ends threads, and waits for their end.
struct Crew {
    stop: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.stop = None;
        for thread in self.threads.drain(..) {
            // One that has panicked has ended too.
            let _ = thread.join();
        }
    }
}

impl Sockets {
    async fn serve(
        self,
        front: &Arc<impl Answers>,
        limits: &Limits,
        again: Option<mpsc::Receiver<Again>>,
    ) -> io::Result<()> {
        let connections = connections(self.tcp.try_into()?, front, limits);
        match self.udp {
            None => connections.await,
            Some(udp) => tokio::select! {
                served = connections => served,
                served = datagrams::serve(udp.try_into()?, front, limits, again) => served,
            },
        }
    }
}

fn socket(address: SocketAddr, kind: SocketType, shared: bool) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    // What is left of connections of a server before does not count.
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

fn stream(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = socket(address, SocketType::STREAM, shared)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn datagram(address: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    Ok(socket(address, SocketType::DGRAM, shared)?.into())
}

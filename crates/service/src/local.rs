//! A whole group in this process, to try a service and to test it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use quorate_client::{InlineSession, Session};
use quorate_execution::Service;
use quorate_net::group::{Files, Problem, Purpose};
use quorate_net::{Group, Identity, KeyError, generate};
use quorate_node::{Daemon, DaemonError, Options};
use quorate_wire::KeyPair;
use tempfile::TempDir;

/// Why there is no local group.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The caller's mistake.
    #[error(transparent)]
    Group(#[from] Problem),
    /// See [`DaemonError`].
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// See [`KeyError`].
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The environment's fault.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Replicas of a service in this process, on loopback, with real links, logs and stores. Replicas and files go when it is
/// dropped.
#[derive(Debug)]
pub struct Local {
    group: Arc<Group>,
    clients: Vec<KeyPair>,
    replicas: Vec<Daemon>,
    directory: TempDir,
}

impl Local {
    /// How many clients the group knows.
    pub const CLIENTS: usize = 4;

    /// Starts a group of 1, 4, 7... replicas, which execute one operation after the other.
    ///
    /// # Errors
    /// Where no such group can be, or the machine gives no files or ports.
    pub fn start<S: Service + Clone>(replicas: usize, service: S) -> Result<Local, LocalError> {
        Local::start_with(replicas, 0, service)
    }

    /// The same, with this many threads in each replica for operations that don't conflict ([`Service::uses`]).
    ///
    /// # Errors
    /// As [`Local::start`].
    pub fn start_with<S: Service + Clone>(
        replicas: usize,
        workers: usize,
        service: S,
    ) -> Result<Local, LocalError> {
        let keys: Vec<KeyPair> = (0..replicas)
            .map(|_| generate())
            .collect::<Result<_, _>>()?;
        let clients: Vec<KeyPair> = (0..Local::CLIENTS)
            .map(|_| generate())
            .collect::<Result<_, _>>()?;
        let mut members = Vec::new();
        // All ports are held until all are known, so that they differ.
        let ports: Vec<_> = (0..replicas)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()?;
        for (port, key) in ports.iter().zip(&keys) {
            members.push((port.local_addr()?.to_string(), key.public()));
        }
        drop(ports);
        let named = clients.iter().enumerate();
        let named = named.map(|(n, key)| (format!("client-{n}"), key.public()));
        let (files, purpose) = (Files::default(), Purpose::Service);
        let group = Arc::new(Group::new(
            "local",
            members,
            named.collect(),
            files,
            purpose,
        )?);
        let directory = TempDir::new()?;
        let mut local = Local {
            group: group.clone(),
            clients,
            replicas: Vec::new(),
            directory,
        };
        for (me, key) in group.quorum().replicas().zip(keys) {
            let data = local.directory.path().join(me.to_string());
            let options = Options {
                first_start: true,
                workers,
                ..Options::new(group.clone(), me, key, data)
            };
            let replica = Daemon::start(options, service.clone())?;
            local.replicas.push(replica);
        }
        Ok(local)
    }

    /// A new session of the first client.
    ///
    /// # Errors
    /// If the system gives no more threads or file descriptors.
    pub fn session(&self) -> io::Result<Session> {
        Session::connect(&self.group, &self.identity(0))
    }

    /// A new session of the first client, in the thread that calls.
    ///
    /// # Errors
    /// If the system gives no more file descriptors.
    pub fn inline_session(&self) -> io::Result<InlineSession> {
        InlineSession::connect(&self.group, &self.identity(0))
    }

    /// Who a client is, for sessions of another one than the first ([`Call::client`](crate::Call::client) tells them apart), and for those with
    /// results that are long: `Session::connect_for_results(local.group(), &local.identity(1), longest)`.
    ///
    /// # Panics
    /// If there is no such client: they count from 0 to one less than [`Local::CLIENTS`].
    pub fn identity(&self, client: usize) -> Identity {
        Identity::new(&self.clients[client])
    }

    /// The group, for those who connect by themselves.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.replicas.iter().for_each(|r| r.stopper().stop());
        for replica in self.replicas.drain(..) {
            // It ends in any case, and nobody is left to be told how.
            let _ = replica.wait();
        }
    }
}

//! The MOUNT protocol, version 3 (RFC 1813, appendix I): from a path to the handle that everything begins with.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quorate_files::op::Lookup;
use quorate_files::{Kind, Target, Who};

use super::Front;
use crate::exports::components;
use crate::rpc::{Accepted, Head, accepted};
use crate::status::Status;
use crate::xdr::{Reader, Writer};

/// The program's number.
pub const PROGRAM: u32 = 100_005;
/// The one version that is served.
pub const VERSION: u32 = 3;

/// The longest path (`MNTPATHLEN`).
const MAX_PATH_BYTES: usize = crate::exports::MAX_PATH_BYTES;
/// The most mounts that are remembered. It is for people to look at and nothing depends on it.
const MAX_MOUNTS: usize = 256;
/// A list of all of them, or of all exports.
pub(super) const MAX_REPLY_BYTES: usize = MAX_MOUNTS * (MAX_PATH_BYTES + 76);
/// `AUTH_SYS`, the one flavor that says who calls.
const AUTH_SYS: u32 = 1;

/// Who has mounted what, as far as clients have said.
#[derive(Debug, Default)]
pub(super) struct Mounts(Mutex<BTreeSet<(IpAddr, Bytes)>>);

impl Mounts {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<(IpAddr, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: IpAddr, path: &Bytes) {
        let mut mounts = self.lock();
        if mounts.len() < MAX_MOUNTS {
            // A copy, so that not the whole call is kept.
            mounts.insert((client, Bytes::copy_from_slice(path)));
        }
    }
}

impl Front {
    pub(super) async fn mount(&self, peer: SocketAddr, head: Head, mut r: Reader) -> Writer {
        let success = || accepted(head.xid, Accepted::Success, 0);
        let path = |r: &mut Reader| r.opaque(MAX_PATH_BYTES, "path");
        let client = peer.ip();
        match head.procedure {
            // NULL
            0 => success(),
            // MNT
            1 => match path(&mut r) {
                Ok(path) => {
                    let mut w = success();
                    self.write_mount(&mut w, peer, &head, &path).await;
                    w
                }
                Err(_) => accepted(head.xid, Accepted::Garbage, 0),
            },
            // DUMP
            2 => {
                let mut w = success();
                for (client, path) in self.mounts.lock().iter() {
                    w.bool(true);
                    w.opaque(client.to_string().as_bytes());
                    w.opaque(path);
                }
                w.bool(false);
                w
            }
            // UMNT
            3 => match path(&mut r) {
                Ok(path) => {
                    self.mounts.lock().remove(&(client, path));
                    success()
                }
                Err(_) => accepted(head.xid, Accepted::Garbage, 0),
            },
            // UMNTALL
            4 => {
                self.mounts.lock().retain(|(other, _)| *other != client);
                success()
            }
            // EXPORT
            5 => {
                let mut w = success();
                let all = self.settings.exports.all().iter();
                for export in all.filter(|export| export.admits(client)) {
                    w.bool(true);
                    w.opaque(&export.text());
                    // To whom else it is offered is nobody's business.
                    w.bool(false);
                }
                w.bool(false);
                w
            }
            _ => accepted(head.xid, Accepted::NoProcedure, 0),
        }
    }

    async fn write_mount(&self, w: &mut Writer, peer: SocketAddr, head: &Head, path: &Bytes) {
        let patience = self.settings.patience;
        let found = tokio::time::timeout(patience, self.find_mount(peer, head, path));
        // MOUNT has no word for later.
        let found = found.await.unwrap_or(Err(Status::ServerFault));
        match found {
            Ok(handle) => {
                w.u32(Status::Ok as u32);
                w.opaque(&handle);
                [1, AUTH_SYS].into_iter().for_each(|word| w.u32(word));
                self.mounts.add(peer.ip(), path);
            }
            Err(status) => w.u32(match status {
                Status::Perm
                | Status::NoEnt
                | Status::Io
                | Status::Acces
                | Status::NotDir
                | Status::Inval
                | Status::NameTooLong => status as u32,
                // What other words MOUNT does not have.
                _ => Status::ServerFault as u32,
            }),
        }
    }

    async fn find_mount(
        &self,
        peer: SocketAddr,
        head: &Head,
        path: &[u8],
    ) -> Result<Vec<u8>, Status> {
        if components(path).any(|name| name == b"." || name == b"..") {
            return Err(Status::Inval);
        }
        let (export, rest) = self.settings.exports.of_path(path).ok_or(Status::Acces)?;
        if !export.admits(peer.ip()) || export.secure && peer.port() >= 1024 {
            return Err(Status::Acces);
        }
        // It may be another directory by now.
        let mut ino = match export.path.is_empty() {
            true => self.root(export).await?,
            false => self.find_root(export).await?,
        };
        let who = export.who(&head.credential);
        for name in rest {
            let name = Bytes::copy_from_slice(name);
            ino = self
                .volume
                .lookup(&who, Lookup { parent: ino, name })
                .await?
                .ino;
        }
        let attr = self.volume.get_attr(&Who::root(), Target::Ino(ino)).await?;
        match attr.kind {
            Kind::Directory => Ok(self.handle(export, ino).to_vec()),
            _ => Err(Status::NotDir),
        }
    }
}

//! MOUNT: handles of directories by their paths.

use std::fmt::Debug;

use bytes::Bytes;
use quorate_nfs::Peer;
use quorate_nfs::exports::components;
use quorate_nfs::rpc::{Accepted, Head, accepted};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};

use super::{AUTH_SYS, Proxy};
use crate::coordinator::Found;
use crate::intent::{Log, Name};

/// The longest path in a MOUNT.
const MAX_PATH_BYTES: usize = 1024;

impl<L: Log + Debug + 'static> Proxy<L> {
    pub(super) async fn mount(&self, peer: Peer, head: &Head, mut r: Reader) -> Writer {
        let mut w = accepted(head.xid, Accepted::Success, 64);
        match head.procedure {
            // NULL, UMNT, UMNTALL: nothing is kept of who has mounted.
            0 | 3 | 4 => {}
            1 => match r.opaque(MAX_PATH_BYTES, "path") {
                Err(_) => return accepted(head.xid, Accepted::Garbage, 0),
                Ok(path) => match self.find_mount(peer, &path).await {
                    Ok(handle) => {
                        w.u32(0);
                        w.opaque(&handle);
                        [1, AUTH_SYS].into_iter().for_each(|word| w.u32(word));
                    }
                    Err(status) => w.u32(match status {
                        Status::NoEnt | Status::Acces | Status::NotDir | Status::NameTooLong => {
                            status as u32
                        }
                        _ => Status::ServerFault as u32,
                    }),
                },
            },
            2 => w.bool(false),
            5 => {
                w.bool(true);
                w.opaque(b"/");
                w.bool(false);
                w.bool(false);
            }
            _ => return accepted(head.xid, Accepted::NoProcedure, 0),
        }
        w
    }

    async fn find_mount(&self, peer: Peer, path: &[u8]) -> Result<Vec<u8>, Status> {
        self.export(peer)?;
        let _passage = self.buckets().pass_all().await;
        let mut dir = self.coordinator.root().clone();
        for name in components(path) {
            if matches!(name, b"." | b"..") {
                return Err(Status::NoEnt);
            }
            let name = Bytes::copy_from_slice(name);
            dir = match self.coordinator.find(&Name { dir, name }).await? {
                Found::Thing(thing, _) if thing.is_dir => thing.object,
                Found::Thing(..) => return Err(Status::NotDir),
                Found::Nothing { .. } => return Err(Status::NoEnt),
            };
        }
        dir.write()
    }
}

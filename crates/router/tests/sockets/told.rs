//! A server that is told how to answer, and tells what came.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_nfs::rpc::{Credential, read_head};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Reader;
use quorate_nfs::{Answers, Peer};
use quorate_router::attrs::ATTR_BYTES;

use super::calls::CREATE;
use super::model;
use super::responder::Responder;

/// Where the attributes of what CREATE gives are in a reply: after its head, the status, a handle of eight bytes, and that they are there.
const ATTRS: usize = 24 + 4 + 16 + 4;

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manner {
    Well,
    Never,
    /// When it is told to answer otherwise.
    Held,
    /// That the procedure was not called.
    Refusing,
    /// With results that are none.
    Garbled,
    /// With more than was asked for.
    Long,
    /// CREATE with no attributes.
    Bare,
    /// CREATE as if the name were there and it were not to be.
    Guarding,
}

/// A server that can be told how to answer, and tells as whom calls came.
pub struct Told {
    pub manner: Mutex<Manner>,
    pub came: Mutex<Vec<Credential>>,
    /// How many calls of each procedure came.
    procedures: Mutex<BTreeMap<u32, usize>>,
    server: Arc<Responder>,
}

impl Told {
    pub fn new() -> Arc<Told> {
        Arc::new(Told {
            manner: Mutex::new(Manner::Well),
            came: Mutex::default(),
            procedures: Mutex::default(),
            server: Arc::new(Responder(Mutex::new(model::Server::default()))),
        })
    }

    /// How many calls of a procedure came.
    pub fn count(&self, procedure: u32) -> usize {
        let procedures = self.procedures.lock().unwrap();
        procedures.get(&procedure).copied().unwrap_or(0)
    }

    pub fn manner(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }
}

pub struct Teller(pub Arc<Told>);

impl Answers for Teller {
    type Call = Bytes;

    fn admits(&self, _: IpAddr) -> bool {
        true
    }

    fn parse(&self, record: Bytes) -> Option<Bytes> {
        Some(record)
    }

    fn reply_bytes(&self, _: &Bytes) -> usize {
        1 << 16
    }

    async fn answer(self: &Arc<Self>, peer: Peer, record: Bytes) -> Vec<u8> {
        let told = &self.0;
        let head = read_head(&mut Reader::new(record.clone())).unwrap();
        told.came.lock().unwrap().push(head.credential);
        *told
            .procedures
            .lock()
            .unwrap()
            .entry(head.procedure)
            .or_default() += 1;
        let mut manner = *told.manner.lock().unwrap();
        while manner == Manner::Held {
            tokio::time::sleep(Duration::from_millis(5)).await;
            manner = *told.manner.lock().unwrap();
        }
        if manner == Manner::Never {
            std::future::pending::<()>().await;
        }
        let mut reply = told.server.answer(peer, record).await;
        match manner {
            Manner::Bare if head.procedure == CREATE => {
                reply[ATTRS - 1] = 0;
                reply.drain(ATTRS..ATTRS + ATTR_BYTES);
            }
            Manner::Guarding if head.procedure == CREATE => {
                reply.truncate(24);
                // And no attributes of the directory, before and after.
                for word in [Status::Exist as u32, 0, 0] {
                    reply.extend_from_slice(&word.to_be_bytes());
                }
            }
            Manner::Refusing => reply[20..24].copy_from_slice(&5u32.to_be_bytes()),
            Manner::Garbled => reply.truncate(26),
            Manner::Long => reply.resize(1 << 19, 0),
            Manner::Well | Manner::Never | Manner::Held | Manner::Bare | Manner::Guarding => {}
        }
        reply
    }
}

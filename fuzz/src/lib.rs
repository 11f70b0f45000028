//! What the fuzz targets do with their input. Each takes any bytes, and panics where Quorate does what it must not.
//!
//! [`codec`]: encodings. [`credential`]: credentials. [`links`]: frames, handshakes and calls over NFS. [`disk`]: files. [`transfer`]: pieces of a state. [`service`]:
//! operations. [`ledger`]: what routers share. [`router`]: calls and replies that go through one. [`replica`] and [`group`]: sequences of inputs to agreement cores.

mod choices;
pub mod codec;
pub mod credential;
pub mod disk;
pub mod group;
mod host;
pub mod ledger;
pub mod links;
mod peers;
pub mod replica;
pub mod router;
pub mod service;
pub mod transfer;

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// What is fed with bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name, also of its corpus.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
    /// How dear one input is: the mutations that CI tries are divided by this.
    pub cost: u32,
}

const fn target(name: &'static str, run: fn(&[u8]), cost: u32) -> Target {
    Target { name, run, cost }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("peer_message", codec::peer_message, 1),
    target("client_message", codec::client_message, 1),
    target("replica_message", codec::replica_message, 1),
    target("record", codec::record, 1),
    target("op", codec::op, 1),
    target("outcome", codec::outcome, 1),
    target("evidence", codec::evidence, 20),
    target("statement", codec::statement, 10),
    target("credential", credential::credential, 20),
    target("key_holder", codec::key_holder, 1),
    target("ledger_op", codec::ledger_op, 1),
    target("ledger_record", codec::ledger_record, 1),
    target("router_handle", router::handle, 1),
    target("router_call", router::call, 1),
    target("router_reply", router::reply, 1),
    target("router_record", router::record, 1),
    target("router_setup", router::setup, 1),
    target("tree_node", codec::tree_node, 1),
    target("frame", codec::frame, 1),
    target("nfs", links::nfs, 1),
    target("nfs_handle", links::nfs_handle, 1),
    target("rpc_records", links::rpc_records, 1),
    target("link", links::link, 1),
    target("handshake", links::handshake, 20),
    target("group_file", disk::group_file, 10),
    target("key_file", disk::key_file, 10),
    target("log", disk::log, 50),
    target("disk_small", disk::small, 1),
    target("store", disk::store, 500),
    target("transfer", transfer::transfer, 10),
    target("service", service::service, 20),
    target("ledger", ledger::ledger, 20),
    target("replica", replica::replica, 50),
    target("group", group::group, 100),
];

/// The names of all targets, for people.
pub fn names() -> String {
    let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    names.join(", ")
}

/// Does `work`, which may allocate so many bytes in all. Right only where no other thread allocates.
fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let before = MEMORY.total_allocated();
    let done = work();
    let used = MEMORY.total_allocated().wrapping_sub(before);
    assert!(used <= bytes, "{used} bytes were allocated, of {bytes}");
    done
}

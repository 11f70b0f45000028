//! One volume of many NFS version 3 servers: a router between clients and the servers that people have.
//!
//! - [`handle`], [`layout`], [`attrs`]: what clients see: handles, where new directories go, one space of file numbers.
//! - [`map`], [`buckets`], [`table`]: which bucket of directories is on which volume, and what its objects are called there.
//! - [`mover`]: buckets that move while they are in use; [`shelf`]: the router's own directories on volumes.
//! - [`ask`]: the few things that the coordinator asks of servers; [`coordinator`]: what touches two of them, done whole or not
//!   at all; [`intent`]: its log; [`names`]: what calls hold meanwhile. None of these knows a socket, a clock or a disk; tests drive them over servers in memory.
//! - [`shared`]: the log and what is held, on a group, for several routers; [`silence`]: when one is taken for gone; [`fence`]: what keeps
//!   its late orders from doing harm; [`takeover`]: finishing what it has left.
//! - [`rewrite`]: replies that go straight through. [`proxy`]: which call goes where.
//! - [`upstream`], [`journal`], [`setup`], [`config`], [`volumes`]: sockets, the log's file, the volumes' first use, the operator's file
//!   and the operator's orders.
//! - [`kernel`]: calls that the system itself passes on, over UDP and over TCP.
//! - [`span`]: the same for a mount, which has the groups' own operations in place of NFS.
//!
//! docs/router.md is the design, and says what of it is not built.

pub mod ask;
pub mod attrs;
pub mod buckets;
pub mod config;
pub mod coordinator;
pub mod fence;
#[doc(hidden)]
pub mod fuzzing;
pub mod handle;
pub mod intent;
pub mod journal;
pub mod kernel;
pub mod layout;
pub mod map;
pub mod mover;
pub mod names;
pub mod proxy;
pub mod rewrite;
pub mod setup;
pub mod shared;
pub mod shelf;
pub mod silence;
pub mod span;
pub mod table;
pub mod takeover;
pub mod upstream;
pub mod volumes;

//! The client on groups of real replicas, in this process.

mod accesses;
mod acl;
mod caching;
mod common;
mod copy;
mod directories;
mod exercise;
mod failures;
mod files;
mod holds;
mod locks;
mod making;
mod mapped;
mod options;
mod sealers;
mod service;
mod sharing;
mod verifiers;

//! The client on groups of real replicas, in this process.

mod acl;
mod caching;
mod common;
mod copy;
mod files;
mod holds;
mod options;
mod service;
mod sharing;

//! The file service, without a network and a disk.

mod accesses;
mod acl;
mod appending;
mod audit;
mod canonical;
#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod codec;
mod common;
mod conflicts_cells;
mod conflicts_dropped;
mod conflicts_pairs;
mod conflicts_table;
mod content;
mod copy;
mod credentials;
mod flight;
mod gate;
mod gate_model;
mod giving_back;
mod guest_listing;
mod guest_users;
mod leftovers;
mod linger;
mod listing;
mod locks;
mod model;
mod parallel;
mod passed_on;
mod places;
mod quota;
mod reading;
mod rows;
mod script;
mod semantics;
mod sharing;
#[path = "../../../execution/tests/it/support/mod.rs"]
mod support;
mod taken_names;
mod tree;
mod widening;

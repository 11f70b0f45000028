//! The agreement core from outside: what comes in, and what it may say to that.

mod adversary;
#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod catch_up;
mod checked;
mod client;
mod epochs;
mod evidence;
mod floods;
mod guests;
mod judge;
mod late_claims;
mod reads;
mod records;
mod recovery;
mod statements;
mod superseded;
mod support;
mod suspects;
mod switches;
mod traps;
mod turns;
mod two_new_views;
mod vouched;
mod withheld;

//! What routers of one volume share: a replicated service that keeps what each is about to do, who may touch what, and
//! small values that all go by.
//!
//! - An *epoch* is the time of one router: it is registered, renewed before its lease has run out, and left. Its number is never used again. An
//!   epoch whose lease has run out in agreed time can be *taken over*: a new epoch gets all that was under way in it, and the old one is
//!   gone. Nothing that says its number is accepted from then on. What the old router has sent elsewhere, this can't stop: see docs/router.md.
//! - A *key* is held by one epoch at a time; what it stands for is the routers' business (a directory).
//! - An *intention* is begun under keys that its epoch holds, and keeps them until it has ended, also when its epoch is taken over.
//! - A *value* has a name and a version, and is replaced by who names the version that is there.
//!
//! [`op`] is what can be asked and what is answered; [`Ledger`] is the [`Service`](quorate_execution::Service). Only keys that the group's
//! file lists may ask. All is bounded: see the limits in [`op`]. The crate is `no_std`.
#![no_std]

extern crate alloc;

#[doc(hidden)]
pub mod fuzzing;
pub mod op;
mod records;
mod service;

pub use service::Ledger;

#[cfg(test)]
mod tests;

//! What one link says.

use alloc::vec::Vec;
use core::fmt;

use quorate_wire::{Digest, PublicKey};

use crate::{Caveat, Rights};

/// Which volume a credential is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeId(pub Digest);

/// An object's number. It is never used again, so a credential for a deleted file says nothing about a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u128);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a link is about: never a path, whose meaning others can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The file or directory.
    pub object: ObjectId,
    /// Whether all that is below it, at the time of use, is meant too.
    pub subtree: bool,
}

/// Seconds of agreed time since 1970-01-01 00:00 UTC, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first second.
    pub not_before: u64,
    /// The last second.
    pub not_after: u64,
}

impl Window {
    /// Whether all of `other` is in this one.
    pub fn contains(&self, other: &Window) -> bool {
        self.not_before <= other.not_before && other.not_after <= self.not_after
    }
}

/// What an issuer says to a subject in one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Who may, and who signs the next link.
    pub subject: PublicKey,
    /// With what.
    pub scope: Scope,
    /// What.
    pub rights: Rights,
    /// When.
    pub window: Window,
    /// How many links may still follow.
    pub depth: u8,
    /// The issuer's number for it. Who takes it back says issuer and serial, so all links under one are taken back together.
    pub serial: u64,
    /// On which conditions; at most one of each kind, in the order of kinds.
    pub caveats: Vec<Caveat>,
}

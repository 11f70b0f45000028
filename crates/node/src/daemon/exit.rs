//! With which code a replica's process ends, for service managers and scripts: those of sysexits.h.

use std::io::ErrorKind;

use quorate_net::group::GroupError;
use quorate_net::keys::KeyError;
use quorate_store::StoreError;

use super::DaemonError;
use crate::wal::WalError;

/// What is on the disk is damaged, lost or of another kind, and the replica can't mend it by itself.
const DATA: u8 = 65;
/// A file that it needs can't be read.
const NO_INPUT: u8 = 66;
/// Something that it needs is not there: its address, its key holder.
const UNAVAILABLE: u8 = 69;
/// The replica itself can't go on.
const SOFTWARE: u8 = 70;
/// A disk has refused a read, a write or a sync, or is full.
const IO: u8 = 74;
/// Another process is in the way.
const BUSY: u8 = 75;
/// Permission is missing.
const PERMISSION: u8 = 77;
/// The operator's mistake: options, or files that don't belong together.
pub const CONFIG: u8 = 78;

impl DaemonError {
    /// The exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::NoSuchReplica(..)
            | DaemonError::WrongKey(_)
            | DaemonError::OtherGroup(_)
            | DaemonError::NobodyToAsk
            | DaemonError::NotLost(_)
            | DaemonError::HasRun(_)
            | DaemonError::NoKeyHolder
            | DaemonError::NotADemonstration => CONFIG,
            DaemonError::Lost { .. }
            | DaemonError::Forgotten(_)
            | DaemonError::Alone(_)
            | DaemonError::StateDamaged(_)
            | DaemonError::UnknownRecord(_) => DATA,
            DaemonError::Key(e) => of_key(e),
            DaemonError::KeyHolder(_) | DaemonError::Listen(_) | DaemonError::Missed(_) => {
                UNAVAILABLE
            }
            DaemonError::Store(e) => of_store(e),
            DaemonError::Wal(e) => of_log(e),
            DaemonError::Io { source, .. } => match source.kind() {
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => PERMISSION,
                _ => IO,
            },
            DaemonError::Disk(_) => IO,
            DaemonError::Fatal(_) | DaemonError::Panicked(_) => SOFTWARE,
        }
    }
}

/// Of a key file that a replica was given.
pub fn of_key(error: &KeyError) -> u8 {
    match error {
        KeyError::Missing(_) => NO_INPUT,
        KeyError::NotAllowed(_) | KeyError::Exposed { .. } => PERMISSION,
        KeyError::Io { .. } => IO,
        _ => CONFIG,
    }
}

/// Of a group file that a replica was given.
pub fn of_group(error: &GroupError) -> u8 {
    match error {
        GroupError::Missing(_) => NO_INPUT,
        GroupError::NotAllowed(_) => PERMISSION,
        _ => CONFIG,
    }
}

fn of_store(error: &StoreError) -> u8 {
    match error {
        StoreError::Locked { .. } => BUSY,
        StoreError::Permission { .. } => PERMISSION,
        StoreError::Full { .. } | StoreError::Io { .. } => IO,
        StoreError::Corrupt { .. } | StoreError::Version { .. } => DATA,
    }
}

fn of_log(error: &WalError) -> u8 {
    match error {
        WalError::InUse(_) => BUSY,
        WalError::Full(_) | WalError::Io { .. } | WalError::Failed => IO,
        _ => DATA,
    }
}

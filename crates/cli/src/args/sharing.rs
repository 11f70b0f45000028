//! What can be said of what is shared with others.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use quorate_wire::PublicKey;

use super::credential::{parse_key, parse_until};

/// Which group, and as whom.
#[derive(Debug, ClapArgs)]
pub struct Manager {
    /// The group file [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// Your key file [default: owner.key beside the group file, else client.key].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Take credentials back, with all that was passed on below them.
///
/// The group agrees on it: from one operation to the next the credential allows nothing any more, anywhere; also not through files that are open. It
/// holds for copies that were never brought, too. The owner may take back everything; who has the right `revoke`, what was passed on
/// below its own credential.
///
/// Examples:
///   quorate revoke bob.cred                                        this credential, as its owner
///   quorate revoke --holder KEY                                    all that this key has
///   quorate revoke carol.cred --key bob.key --by bob.cred          as Bob, who passed it on
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Revoke {
    /// The credential: its last link is taken back, by issuer and serial.
    #[arg(value_name = "FILE", required_unless_present_any = ["holder", "epoch"], conflicts_with_all = ["holder", "epoch"])]
    pub file: Option<PathBuf>,
    /// Take back every link to this key.
    #[arg(long, value_name = "KEY", value_parser = parse_key, conflicts_with = "epoch")]
    pub holder: Option<PublicKey>,
    /// Take back every link that you have signed with a serial below this.
    #[arg(long, value_name = "SERIAL")]
    pub epoch: Option<u64>,
    /// Your own credential, with the right `revoke`; the owner needs none.
    #[arg(long, value_name = "FILE")]
    pub by: Option<PathBuf>,
    /// The last day or second, in UTC, for which it is kept [default: the end of the credential; without one, for ever].
    #[arg(long, value_name = "DATE", value_parser = parse_until)]
    pub until: Option<u64>,
    #[command(flatten)]
    pub manager: Manager,
}

/// List who has been let in to what: the credentials that the volume keeps.
///
/// What was signed and never brought is not among them. Clients that the group file names need no credential and are not listed.
#[derive(Debug, ClapArgs)]
pub struct Shares {
    /// Only those about this file or directory, on a mount, or about something in it or above it.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub manager: Manager,
}

/// Print the audit log of what was done by credentials, and check that its rows are bound to each other.
///
/// Each row has the digest of the one before, and the group vouches for the last. Reads are not in it, but for opening a file. The last
/// 65,536 rows are kept.
///
/// Exit code: 0 all rows are bound, 1 they are not, or they can't be had.
#[derive(Debug, ClapArgs)]
pub struct Audit {
    /// The first row, by its number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub manager: Manager,
}

//! What can be said of what is shared with others.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use quorate_net::hex;
use quorate_wire::{Digest, PublicKey};

use super::credential::{parse_epoch, parse_key, parse_until};

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
/// The group agrees on it: from one operation to the next it does nothing by the credential any more, anywhere; also not through files that are
/// open. What the kernel of a holder's machine had read of an open file before, its mount has it forget within some seconds. It
/// holds for copies that were never brought, too. The owner may take back everything; who has the right `revoke`, what was passed on
/// below its own credential.
///
/// Examples:
///   quorate revoke bob.cred                                        this credential, as its owner
///   quorate revoke --holder KEY                                    all that this key has
///   quorate revoke --epoch 2027-01-31                              what you signed before that day
///   quorate revoke carol.cred --key bob.key --by bob.cred          as Bob, who passed it on
///   quorate revoke --undo --holder KEY                             give that back
///
/// Serials are their issuers' to choose, so --epoch binds those alone who give rising ones, as `quorate` does. Of somebody who may not mean
/// well take back the key (--holder): all that it has passed on goes with it.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Revoke {
    /// The credential: its last link is taken back, by issuer and serial.
    #[arg(value_name = "FILE", required_unless_present_any = ["holder", "epoch"], conflicts_with_all = ["holder", "epoch"])]
    pub file: Option<PathBuf>,
    /// Take back every link to this key.
    #[arg(long, value_name = "KEY", value_parser = parse_key, conflicts_with = "epoch")]
    pub holder: Option<PublicKey>,
    /// Take back every link with a serial below this: of those that you have signed, or --issuer has. A day or second stands for the
    /// serials that were given by default before it; whoever signs can give others.
    #[arg(long, value_name = "SERIAL|DATE", value_parser = parse_epoch)]
    pub epoch: Option<u64>,
    /// Whose links --epoch is about [default: your own].
    #[arg(long, value_name = "KEY", value_parser = parse_key, requires = "epoch")]
    pub issuer: Option<PublicKey>,
    /// Your own credential, with the right `revoke`; the owner needs none.
    #[arg(long, value_name = "FILE")]
    pub by: Option<PathBuf>,
    /// The last day or second, in UTC, for which it is kept [default: until nothing that it is known to hit holds any more; of
    /// --holder and --epoch by the owner, for ever].
    #[arg(long, value_name = "DATE", value_parser = parse_until)]
    pub until: Option<u64>,
    /// End the revocation that says so, in place of making it: what it took back holds again when it is brought, which mounts that are there do
    /// by themselves, within four minutes.
    #[arg(long, conflicts_with = "until")]
    pub undo: bool,
    /// As the owner: end one that somebody made by the credential with this digest, as `quorate shares` shows it.
    #[arg(long, value_name = "DIGEST", value_parser = parse_digest, requires = "undo", conflicts_with = "by")]
    pub under: Option<Digest>,
    #[command(flatten)]
    pub manager: Manager,
}

/// List who has been let in to what: the credentials that the volume keeps; and, where no PATH is given, what was taken back.
///
/// What was signed and never brought is not among them. Clients that the group file names need no credential and are not listed. A row tells what
/// a credential allows at most: the modes of files may forbid more.
///
/// Whom the group file does not name sees what it has brought itself, by any of its credentials, and what others have brought that was passed on from
/// the one that it gives, directly or by others, as long as the group has that in force: nothing else of what others have, and not what was taken back
/// and let go of.
///
/// Examples:
///   quorate shares ~/shared/plans                           as the owner or a client
///   quorate shares --key bob.key --credential bob.cred      as Bob: what he has and passed on
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Shares {
    /// Only those about this file or directory, on a mount, or about something in it or above it.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// A credential for the key, where the group file does not name that.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub credential: Option<PathBuf>,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub manager: Manager,
}

/// Print the audit log of what was done by credentials, and check that its rows are bound to each other.
///
/// Each row has the digest of the one before, and the group vouches for the last. Reading and opening change nothing and are not in it; that a
/// guest's mount has had a file open for a second is (`hold`). Of what changes nothing, what is as the row before has none, and who does
/// much of it has no more rows than its share: how many there are beside them is told. The last 65,536 rows are kept; with --json they can be
/// kept elsewhere, and checked there.
///
/// Examples:
///   quorate audit --json > audit.jsonl       all that the group keeps, with the head
///   quorate audit verify audit.jsonl         whether anything in the file was changed; asks no group
///
/// Exit code: 0 all rows are bound, 1 they are not, or they can't be had.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub struct Audit {
    #[command(subcommand)]
    pub command: Option<AuditCommand>,
    /// The first row, by its number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub from: u64,
    /// Print JSON, one object a line: the rows, and at last the head.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub manager: Manager,
}

/// What can be done with a log that was exported.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    Verify(AuditVerify),
}

/// Check an exported log by itself: that each row is bound to the one before, and the last to the head.
///
/// Who could change the file could make up another log that is bound as well. So note the head that it prints, or keep it with somebody else, and
/// give it again.
///
/// Where the export begins later than the log did, that is said and no more: old rows are let go of, and `quorate audit` can begin later (`--from`). Of rows that
/// somebody has cut off there the others tell nothing.
///
/// Exit code: 0 all rows are bound, 1 they are not, or the file is no such log.
#[derive(Debug, ClapArgs)]
pub struct AuditVerify {
    /// What `quorate audit --json` has printed.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The head that it must have.
    #[arg(long, value_name = "DIGEST", value_parser = parse_digest)]
    pub head: Option<Digest>,
    /// The number of the row that it must begin with; 0 is the first of the log.
    #[arg(long, value_name = "N")]
    pub first: Option<u64>,
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    let digest = hex::decode32(text).ok_or("a digest has 64 hexadecimal digits")?;
    Ok(Digest(digest))
}

//! What can be said of quotas.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::size;

/// Limit how much there can be in a directory and below it.
///
/// The replicas count, exactly, and refuse what would exceed a limit before any of it is done ("disk quota exceeded"). df(1) of a path below the
/// directory shows what the quota leaves. User 0 sets quotas, or whoever has the key of the volume's owner.
///
/// Examples:
///   quorate quota set /srv/team/build --bytes 10G --files 1M
///   quorate quota show /srv/team/build/some/file
///   quorate quota list
///   quorate quota clear /srv/team/build
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Quota {
    Set(QuotaSet),
    Show(QuotaShow),
    List(QuotaList),
    Clear(QuotaClear),
}

/// Which group, and with which key.
#[derive(Debug, ClapArgs)]
pub struct Access {
    /// The group file [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// Your key file: a client's or the owner's [default: owner.key beside the group file, else client.key].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Give a directory a quota, or change it.
///
/// What is there already is counted, and may be more: then nothing can be added until there is less. A directory below with a quota of its own
/// counts for that alone.
///
/// Files move in and out; a directory that has entries does not, nor does a file with several names: rename(2) and link(2) say, as between
/// file systems, "cross-device link", and mv(1) copies.
#[derive(Debug, ClapArgs)]
pub struct QuotaSet {
    /// The directory, on a mount.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How much space: bytes, or with K, M, G, T, P in steps of 1,024; `none` for no limit [default: as it is].
    #[arg(long, value_name = "SIZE", value_parser = bytes, required_unless_present = "files")]
    pub bytes: Option<Limit>,
    /// How many files and directories, itself among them: a number, or with K, M, G in steps of 1,000; `none` for no limit
    /// [default: as it is].
    #[arg(long, value_name = "N", value_parser = files)]
    pub files: Option<Limit>,
    #[command(flatten)]
    pub access: Access,
}

/// Show the quota that a file or directory counts under, and what is in use.
///
/// Exit code: 0 there is one, 1 there is none.
#[derive(Debug, ClapArgs)]
pub struct QuotaShow {
    /// The file or directory, on a mount.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub access: Access,
}

/// List all quotas of a volume.
#[derive(Debug, ClapArgs)]
pub struct QuotaList {
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub access: Access,
}

/// Take a directory's quota away.
#[derive(Debug, ClapArgs)]
pub struct QuotaClear {
    /// The directory, on a mount.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    #[command(flatten)]
    pub access: Access,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

fn bytes(text: &str) -> Result<Limit, String> {
    limit(text, 1024)
}

fn files(text: &str) -> Result<Limit, String> {
    limit(text, 1000)
}

/// A number with a letter for a power of the step, or `none`.
fn limit(text: &str, step: u64) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    size::number(text, step).map(|limit| Limit(Some(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit may be nothing, and there may be none.
    #[test]
    fn limits_are_read() {
        assert_eq!(bytes("10G"), Ok(Limit(Some(10 << 30))));
        assert_eq!(files("1M"), Ok(Limit(Some(1_000_000))));
        assert_eq!(files("none"), Ok(Limit(None)));
        assert_eq!(bytes("0"), Ok(Limit(Some(0))));
        assert!(bytes("nothing").is_err());
    }
}

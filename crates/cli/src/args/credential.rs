//! What can be said of credentials.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use quorate_credential::{Caveat, Rights, calendar};
use quorate_net::hex;
use quorate_wire::PublicKey;

/// Sign that a key may do something with a file, or with a directory and all below it.
///
/// The credential goes to standard output, as text that can be sent by mail. It is worth nothing without the private half of the
/// key that it is for, with which its holder mounts: `quorate mount --credential`.
///
/// Examples:
///   quorate grant ~/shared/plans --to KEY --rights r --until 2027-01-31 > bob.cred
///   quorate grant ~/shared/inbox --to KEY --rights lookup,create,append --until 2027-01-31 \
///       --caveat prefix=report- --caveat quota=1000000000
///
/// The second is an inbox: files can be copied into it and added to, and are neither read, changed nor listed.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Grant {
    /// The file or directory, on a mount.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// What may be done: r, w, rw, all, or names with commas between them: lookup, readdir, read, write, append, create,
    /// unlink, rename-from, rename-into, setattr, link, delegate, revoke.
    #[arg(long, value_parser = parse_rights)]
    pub rights: Rights,
    /// The last day or second, in UTC: 2027-01-31, or 2027-01-31T18:00:00Z.
    #[arg(long, value_name = "DATE", value_parser = parse_until)]
    pub until: u64,
    /// The first day or second, in UTC [default: a minute ago, since clocks differ].
    #[arg(long, value_name = "DATE", value_parser = parse_from)]
    pub from: Option<u64>,
    /// Only this directory, and nothing below it.
    #[arg(long)]
    pub this_only: bool,
    #[command(flatten)]
    pub link: Link,
    /// The owner's key file [default: owner.key beside the group file].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The group file, which says who the owner is [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
}

/// Sign that another key may do a part of what a credential allows you.
///
/// Nothing can be gained by passing on: rights, time and scope are those of the credential or less, and `--depth` must have been
/// granted. Nobody is asked. Nothing is signed below a credential whose signatures do not hold, or that has ended by this machine's clock.
///
/// Example:
///   quorate delegate bob.cred --key bob.key --to KEY --rights r > carol.cred
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Delegate {
    /// The credential; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Your key file: the one of the key that the credential is for.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Which of the rights [default: all of the credential's but delegate and revoke].
    #[arg(long, value_parser = parse_rights)]
    pub rights: Option<Rights>,
    /// The last day or second, in UTC [default: the credential's].
    #[arg(long, value_name = "DATE", value_parser = parse_until)]
    pub until: Option<u64>,
    /// The first day or second, in UTC [default: the credential's].
    #[arg(long, value_name = "DATE", value_parser = parse_from)]
    pub from: Option<u64>,
    /// Only this file or directory below the credential's, on a mount.
    #[arg(long, value_name = "PATH")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub link: Link,
}

/// What every link has.
#[derive(Debug, ClapArgs)]
pub struct Link {
    /// The public key of who may, in 64 hexadecimal digits, as `quorate keygen` prints it.
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub to: PublicKey,
    /// How many times it may be passed on; each time once less. It gives the right delegate as well, but not revoke: without that in --rights the holder
    /// can't take back what it has passed on.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    pub depth: u8,
    /// The number to take it back by [default: the nanosecond at which it is signed, counted from 1970].
    #[arg(long, value_name = "N")]
    pub serial: Option<u64>,
    /// A condition; at most one of each kind. prefix=NAME: only names directly in it that begin so. quota=BYTES: no more is
    /// written; each name that is made counts as 256, so it bounds empty files too, and what takes more of the volume as that (a block of 4096). tag=TEXT: for the audit log. ids=UID:GID: acts as this user and group. Repeatable.
    #[arg(long = "caveat", value_name = "KIND=VALUE", value_parser = parse_caveat)]
    pub caveats: Vec<Caveat>,
}

/// Show or check a credential.
#[derive(Debug, Subcommand)]
pub enum Credential {
    Show(Show),
    Verify(Verify),
}

/// Print what a credential says. Nothing is said about whether it holds: see `verify`.
///
/// The summary in front of it is compared with what is signed. Where there are words in front, and no summary among them, that is said.
///
/// Exit code: 0 it was printed, 1 the summary in front of it says something else than what is signed, 2 it can't be read.
#[derive(Debug, ClapArgs)]
pub struct Show {
    /// The credential; - for standard input. Words around it, as in a mail, do no harm.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Check that a credential holds: its signatures, that no link gives more than the one before, and its time. Nobody is asked.
///
/// The summary in front of it is compared with what is signed. Where there are words in front, and no summary among them, that is said.
///
/// Exit code: 0 it holds, 1 it does not or its summary is untrue, 2 it or the group file can't be read.
#[derive(Debug, ClapArgs)]
pub struct Verify {
    /// The credential; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The group file [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// The only key that may have issued it [default: the owner's that the group file names].
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub owner: Option<PublicKey>,
    /// The key that it must be for.
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub subject: Option<PublicKey>,
    /// When it must hold, in UTC [default: now].
    #[arg(long, value_name = "DATE", value_parser = parse_from)]
    pub at: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

pub(super) fn parse_key(text: &str) -> Result<PublicKey, String> {
    let key = hex::decode32(text).ok_or("a public key has 64 hexadecimal digits")?;
    Ok(PublicKey(key))
}

fn parse_rights(text: &str) -> Result<Rights, String> {
    let rights = Rights::parse(text).map_err(|word| format!("there is no right {word:?}"))?;
    Ok(rights)
}

const NO_DATE: &str = "write it as 2027-01-31 or 2027-01-31T18:00:00Z";

fn parse_from(text: &str) -> Result<u64, String> {
    calendar::parse(text).ok_or_else(|| NO_DATE.into())
}

/// A serial; or all that were given by default before a day or second.
pub(super) fn parse_epoch(text: &str) -> Result<u64, String> {
    if let Ok(serial) = text.parse() {
        return Ok(serial);
    }
    let seconds = calendar::parse(text).ok_or_else(|| format!("{NO_DATE}, or a serial"))?;
    Ok(seconds.saturating_mul(1_000_000_000))
}

/// A day alone means its end.
pub(super) fn parse_until(text: &str) -> Result<u64, String> {
    let last = match text.contains([':']) {
        true => 0,
        false => calendar::DAY - 1,
    };
    Ok(parse_from(text)? + last)
}

fn parse_caveat(text: &str) -> Result<Caveat, String> {
    let (kind, value) = text.split_once('=').ok_or("write it as KIND=VALUE")?;
    let number = |value: &str| {
        let number = value.parse::<u64>();
        number.map_err(|_| format!("{value:?} is no number"))
    };
    let id = |value: &str| {
        let id = value.parse::<u32>();
        id.map_err(|_| format!("{value:?} is no numeric id"))
    };
    match kind {
        "prefix" => Ok(Caveat::NamePrefix(value.as_bytes().to_vec().into())),
        "quota" => Ok(Caveat::ByteQuota(number(value)?)),
        "rate" => Err(
            "no replica rations operations, so this condition would not be kept: a credential with it is refused everywhere"
                .into(),
        ),
        "tag" => Ok(Caveat::AuditTag(value.into())),
        "ids" => {
            let (uid, gid) = value.split_once(':').ok_or("write it as ids=UID:GID")?;
            Ok(Caveat::Ids {
                uid: id(uid)?,
                gid: id(gid)?,
            })
        }
        _ => Err(format!("{kind:?} is none of prefix, quota, tag, ids")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day ends with its last second, and a second is itself.
    #[test]
    fn until_is_the_end_of_a_day() {
        let next = parse_from("2027-02-01").unwrap();
        assert_eq!(parse_until("2027-01-31"), Ok(next - 1));
        assert_eq!(parse_until("2027-01-31T23:59:59Z"), Ok(next - 1));
        assert!(parse_until("2027-02-30").is_err());
    }

    /// Each kind of caveat can be said, and nothing else.
    #[test]
    fn caveats_are_read() {
        let ids = Caveat::Ids { uid: 1000, gid: 5 };
        assert_eq!(parse_caveat("ids=1000:5"), Ok(ids));
        assert_eq!(parse_caveat("quota=9"), Ok(Caveat::ByteQuota(9)));
        let tag = Caveat::AuditTag("a=b".into());
        assert_eq!(parse_caveat("tag=a=b"), Ok(tag));
        for text in [
            "tag",
            "quota=1k",
            "rate=9",
            "ids=1000",
            "ids=-1:0",
            "colour=red",
        ] {
            assert!(parse_caveat(text).is_err(), "{text}");
        }
    }
}

//! What can be said of mounts.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser};

use super::parse_route;

/// Mount a group's files.
///
/// Results are taken only when 2f+1 replicas say the same. Stays in the foreground until SIGINT, SIGTERM or
/// `quorate umount DIR`.
///
/// Who opens a file sees all that was closed or synced before, on whatever mount (close-to-open). Attributes and names may be a
/// second old; -o says otherwise, with the words of nfs(5):
///   ro, noexec                   nothing is changed, or executed
///   actimeo=SECONDS              attributes and names may be so old
///   acregmin=, acregmax=         the same for files; what is old is trusted for longer
///   acdirmin=, acdirmax=         the same for directories and names
///   sync                         each write is at the group before it returns
///   noac                         sync, and each look and read asks the group
///   allow_other, noallow_other   whether other users come in [default: if the system
///                                lets them; by a credential, no]
///   key=, credential=, log=      as the options with these names, for fstab(5)
///   noatime, nodiratime          reading changes no time of access, or none of directories
/// Always so: nosuid, nodev. See docs/mount.md.
///
/// Whom the group file does not name mounts by credentials. With one that is about a directory, that directory is the mount's root. With several,
/// or a directory of them, the root has an entry for each, with the name of its file; what is put into the directory later, or taken out
/// of it, is seen within some seconds. What may be done there follows from the credential and the volume's modes, never from the local user's id;
/// what belongs to whom the holder acts as is shown as belonging to who mounts. With allow_other all users of the machine act by the credential.
///
/// In place of a group file it may be the file of a volume of several groups: `volumes = [...]` of group files and a [coordinator], as
/// `quorate route --help` has it. The mount then spans them, with no server in between; up to 16 such mounts and routers, on as
/// many machines, serve one volume together. Nobody mounts it by credentials: those are of one group. See docs/router.md for what else it does not have.
///
/// Examples:
///   quorate mount group.toml ~/shared        as a client that the group file names
///   quorate mount group.toml ~/plans --key bob.key --credential bob.cred
///   quorate mount group.toml ~/shared --key bob.key --credential ~/credentials
///   quorate mount group.toml ~/shared --background -o ro,actimeo=60
///   quorate mount volume.toml ~/shared                                       several groups as one
#[derive(Debug, Default, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Mount {
    /// The group file, or the file of a volume of several groups.
    #[arg(value_name = "GROUP")]
    pub group: PathBuf,
    /// Where; must be a directory.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The client's key file [default: client.key beside the group file].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// A credential for the key, or a directory with such files (*.cred). Repeatable.
    #[arg(long, value_name = "FILE|DIR")]
    pub credential: Vec<PathBuf>,
    /// Reach replica N here instead of at its address in the group file, such as through a tunnel. Repeatable.
    #[arg(long, value_name = "N=HOST:PORT", value_parser = parse_route)]
    pub route: Vec<(u8, String)>,
    /// Mount options, separated by commas.
    #[arg(short = 'o', long, value_delimiter = ',', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Return when it is mounted; it stays until `quorate umount DIR`.
    #[arg(long)]
    pub background: bool,
    /// With --background: write here what goes wrong after that [default: nowhere].
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The process that --background starts.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub in_background: bool,
    /// End when standard input ends: so a mount does not outlive the benchmark that started it.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Mount a group's files as mount(8) and fstab(5) have it: what `quorate` does where it is called `mount.quorate`.
///
/// Install it with `ln -s "$(command -v quorate)" /sbin/mount.quorate`. A line of /etc/fstab:
///   /etc/quorate/group.toml  /srv/team  quorate  _netdev,nofail,key=/etc/quorate/client.key  0  0
///
/// Options are those of `quorate mount --help`. Returns when it is mounted.
/// Exit code as mount(8) has it: 0 mounted, 1 wrong use, 32 not mounted.
#[derive(Debug, Parser)]
#[command(
    name = "mount.quorate",
    version,
    verbatim_doc_comment,
    max_term_width = 100
)]
pub struct MountHelper {
    /// The group file.
    #[arg(value_name = "GROUP")]
    pub group: PathBuf,
    /// Where; must be a directory.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Mount options, separated by commas.
    #[arg(short = 'o', value_delimiter = ',', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Say what happens.
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Check the group file and the options only.
    #[arg(short = 'f')]
    pub fake: bool,
    /// Leave the table of mounts alone, which nobody writes.
    #[arg(short = 'n')]
    pub no_table: bool,
    /// The type, which is known.
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

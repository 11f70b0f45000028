//! What can be said on the command line.

mod bench;
mod credential;
pub mod help;
mod mount;
mod protocol;
mod quota;
mod replica;
mod sharing;
mod size;
mod time;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use quorate_fault::Fault;

pub use bench::{Bench, Benchmark, Files, Measure, Micro, Recovery, Router};
pub use credential::{Credential, Delegate, Grant, Link, Show, Verify};
pub use mount::{Mount, MountHelper};
pub use protocol::ProtocolArgs;
pub use quota::{Access, Quota, QuotaClear, QuotaList, QuotaSet, QuotaShow};
pub use replica::{ConflictsArg, Keyholder, Programs, Recover, Replica, ScheduleArgs, Supervise};
pub use sharing::{Audit, AuditCommand, AuditVerify, Manager, Revoke, Shares};
pub use time::Period;

/// A network file system that stays right when some of its servers lie.
///
/// A group of 3f+1 replicas agrees on every operation; up to f of them may be broken, hacked or malicious, and the
/// people who use the files notice nothing.
///
/// To try it on this machine: `quorate up`. In earnest: `quorate init` once, then `quorate replica` on each server
/// and `quorate mount` on each client.
///
/// Results go to standard output. A command whose results can't be written, as on a full disk, says so and ends with exit code 74; where whoever
/// read them has gone it ends as it would have.
#[derive(Debug, Parser)]
#[command(name = "quorate", version = quorate_bench::report::VERSION, max_term_width = 100)]
pub struct Args {
    /// Say more: -v what happens, -vv details. QUORATE_LOG takes filters like `quorate_node=debug`.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Up(Up),
    Init(Init),
    Keygen(Keygen),
    Keyholder(Keyholder),
    Replica(Replica),
    Supervise(Supervise),
    Programs(Programs),
    Recover(Recover),
    Schedule(ScheduleArgs),
    Mount(Mount),
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    Nfs(Nfs),
    Route(Route),
    #[command(subcommand)]
    Volume(Volume),
    Status(Status),
    #[command(subcommand)]
    Evidence(Evidence),
    Grant(Grant),
    Delegate(Delegate),
    #[command(subcommand)]
    Credential(Credential),
    Revoke(Revoke),
    Shares(Shares),
    Audit(Audit),
    #[command(subcommand)]
    Quota(Quota),
    Bench(Bench),
}

/// Start a whole group on this machine and mount it.
///
/// Makes keys and the group file on first use; a second `up` on the same directory finds all files again. Replicas run as
/// child processes and are started again when they die. Ctrl-C unmounts and stops them all.
///
/// Examples:
///   quorate up                                  four replicas, files under the data directory
///   quorate up --mount ~/shared                 mounted where you like
///   quorate up --fault 2=lie                    replica 2 lies; the files stay right
///   quorate up --groups 2                       two groups as one volume
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Up {
    /// How many replicas a new group has: 1, 4, 7, ... A group of 3f+1 tolerates f faulty ones [default: 4].
    #[arg(long, value_name = "N")]
    pub replicas: Option<usize>,
    /// Several groups of so many replicas each, mounted as one volume (docs/router.md), and a group of one replica for what
    /// they must agree on: 2 to 4. Directories are spread over the groups. Makes volume.toml in the data directory, with which
    /// `quorate mount` mounts it once more on this machine: all listen on 127.0.0.1. Replicas don't recover on request then.
    #[arg(long, value_name = "N", value_parser = groups)]
    pub groups: Option<usize>,
    /// Where keys, logs and state are kept; made for this user alone, so that a mount for others is to be elsewhere [default:
    /// $XDG_DATA_HOME/quorate/local].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where to mount; made if it is not there [default: `files` in the data directory].
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Do not mount.
    #[arg(long, conflicts_with = "mount")]
    pub no_mount: bool,
    /// First of the ports on 127.0.0.1 for a new group; replica N listens on PORT+N [default: 7400].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// How much content a new volume may hold: bytes, or with K, M, G, T, P in steps of 1,024. It stays as it is [default: four fifths of
    /// what the data directory's disk has free for each copy].
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    pub capacity: Option<u64>,
    /// Let a replica misbehave, for a demonstration: lie, equivocate, silent, slow, leap, corrupt-state, mutate, restless,
    /// flood, mislead, shirk, starve, withhold, dawdle, linger, bare. Repeatable.
    #[arg(long, value_name = "N=KIND", value_parser = parse_fault)]
    pub fault: Vec<(u8, Fault)>,
    /// Make a new group without key holders: processes apart from the replicas that have the keys by which these are known, so that the keys of
    /// all links can be renewed. Whoever takes a key from a replica has it for good then.
    #[arg(long)]
    pub no_key_holders: bool,
    #[command(flatten)]
    pub protocol: ProtocolArgs,
    /// Execute operations that don't conflict on so many threads in each replica; 0: one after the other [default: 0].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub workers: Option<u16>,
    /// Check signatures on so many threads beside the one that orders, in each replica; 0: on that one [default: by the number of
    /// processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=64))]
    pub verifiers: Option<u16>,
    /// Encrypt and write what is long on so many threads beside the one that orders, in each replica; 0: on that one [default: by the number of
    /// processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=64))]
    pub sealers: Option<u16>,
    /// Renew the keys of all links so often instead of every 15 s; 0: never. Kept for the next time. A group is made so that its clients rely on it.
    #[arg(long, value_name = "TIME", value_parser = time::refresh)]
    pub key_refresh: Option<Duration>,
    /// Have each replica recover so often (90s, 10m, 2h), or `off`; kept for the next time. What `quorate schedule --every` sets later holds until another word stands here.
    #[arg(long = "recover-every", value_name = "TIME", value_parser = time::period)]
    pub every: Option<Period>,
    /// Leave replicas that die dead.
    #[arg(long)]
    pub no_restart: bool,
    /// Print one JSON object a line instead of the status line. Its "event" is "ready" (with "replicas" and
    /// "mount"), "note" (with "text": what goes on, which replica died...), or "status": how the group is, with what
    /// the status line shows: "state" (whole, degraded or down), "mount", "view", "batches" (how many are executed),
    /// "lag" (how many the last replica is behind) and "silent" (who does not answer). A status comes when the
    /// state, the view or the silent replicas change, and every 5 seconds. With --groups both have "groups": such an object for
    /// each, with its name as "group"; "state" is that of the worst.
    #[arg(long)]
    pub json: bool,
}

/// Make the keys and the group file of a new group.
///
/// Writes DIR/group.toml, for each replica a directory DIR/replica-N with its key and DIR/holder-N with that of its key holder, a process
/// apart from it that lets its keys be renewed (`quorate keyholder --help`), and keys of clients: DIR/client.key, and DIR/supervisor-N.key, with which
/// `quorate supervise` asks the other replicas. Give each server the group file, its own replica-N, its own holder-N for the key holder's user
/// alone, and its own supervisor-N.key, and each client machine the group file and a client key of its own (--clients); keep the keys secret.
/// Where holder-N is closed to the replica's user, as it should be, the socket of the two is to be elsewhere: `quorate keyholder --socket` and
/// `quorate replica --key-holder` say where.
///
/// A group's addresses stay as they are: use DNS names.
///
/// Example:
///   quorate init --name team ./team \
///       --replicas a.example:7400,b.example:7400,c.example:7400,d.example:7400
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Init {
    /// Where to write; made if it is not there. Nothing in it is overwritten.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The group's name, shown to people.
    #[arg(long, default_value = "quorate")]
    pub name: String,
    /// The replicas' addresses as all members reach them, in order of their numbers; 3f+1 of them.
    #[arg(
        long,
        value_delimiter = ',',
        required = true,
        value_name = "HOST:PORT,..."
    )]
    pub replicas: Vec<String>,
    /// For how many clients keys are made: client.key, client-2.key and so on. Each can mount as often as 16 times at once; no client is taken away
    /// from a group later, nor added.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Clients beside those whose keys are made here, as NAME=PUBLIC-KEY (see `quorate keygen`). Repeatable.
    #[arg(long, value_name = "NAME=KEY")]
    pub client: Vec<String>,
    /// Make no key holders. A replica then keeps the key by which it is known, and whoever takes it from there has it for good.
    #[arg(long)]
    pub no_key_holders: bool,
    /// The longest after which replicas take other keys (1500ms, 15s, 2m), which the group file says: clients let go of a replica that has
    /// taken none for three times as long, and 15 s. 0: it says nothing, and they never do [default: 15s].
    #[arg(long, value_name = "TIME", value_parser = time::refresh, conflicts_with = "no_key_holders")]
    pub key_refresh: Option<Duration>,
    /// The identity key of a replica whose key holder has it already, such as what `quorate keyholder --tpm ... --enroll` has printed:
    /// none is made for it. Repeat it for others.
    #[arg(long, value_name = "N=KEY", conflicts_with = "no_key_holders")]
    pub identity: Vec<String>,
    /// The volume's owner: a public key, or a key file of which the public half is taken. Who shows a credential that this key has signed
    /// (see `quorate grant --help`) is let in without being a client [default: nobody is].
    #[arg(long, value_name = "KEY|FILE")]
    pub owner: Option<String>,
    /// Make a group for routers (`quorate route`): it keeps what several of them share, and no files.
    #[arg(long, conflicts_with_all = ["owner", "capacity"])]
    pub coordinator: bool,
    /// How much content the volume may hold: bytes, or with K, M, G, T, P in steps of 1,024. Less, by 1G and a fifth, than the smallest disk
    /// on which a replica will keep it: writers are then told that it is full, before a full disk stops its replica. There is room for one file, directory
    /// or link in 16K of it. It stays as it is [default: four fifths of what the disk of the group's directory here has free].
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    pub capacity: Option<u64>,
    #[command(flatten)]
    pub protocol: ProtocolArgs,
}

/// Make a key file and print its public key.
#[derive(Debug, ClapArgs)]
pub struct Keygen {
    /// The file to write; it must not exist.
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Serve a group's files over NFS version 3, for machines that have no Quorate on them.
///
/// What this serves, it believes only when 2f+1 replicas say the same; but its clients believe it alone. So run it on the
/// machine that mounts, if you can. Stays in the foreground until SIGINT or SIGTERM; it can be killed at any time, and mounts go on
/// when it is back.
///
/// MOUNT and NFS are at one port, there is no port mapper and there are no locks:
///   mount -t nfs -o vers=3,tcp,mountproto=tcp,port=2049,mountport=2049,nolock 127.0.0.1:/ /mnt
///
/// Whom the group file does not name serves what a credential about a directory lets in to; paths of exports begin there. All its clients
/// then act as the credential says, whatever users they are.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Nfs {
    /// The group file.
    #[arg(value_name = "GROUP")]
    pub group: PathBuf,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049")]
    pub listen: SocketAddr,
    /// What is offered to whom, see docs/nfs.md [default: the whole volume, to this machine, without its superuser's rights].
    #[arg(long, value_name = "FILE")]
    pub exports: Option<PathBuf>,
    /// The client's key file [default: client.key beside the group file]. File handles hold as long as it is the same.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// A credential for the key, about a directory and all below it.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub credential: Option<PathBuf>,
    /// End when standard input ends: so a server does not outlive the benchmark that started it.
    #[arg(long, hide = true)]
    pub with_parent: bool,
    /// Listen on an address that other machines reach. NFS version 3 has neither encryption nor proof of who calls: whoever can
    /// send from an address that an export names acts as any user, and whoever is on the way reads and changes everything.
    #[arg(long)]
    pub trust_network: bool,
}

/// Make one volume of several NFS version 3 servers, and serve it over NFS.
///
/// Directories are spread over the servers when they are made; a file lives with its directory. Servers need nothing but an export that
/// this machine may write with user 0's rights (no_root_squash, no_subtree_check), and nobody else is to change what lies there.
/// Stays in the foreground until SIGINT or SIGTERM; it can be killed at any time, and mounts go on when it is back: what was
/// under way is finished or undone first. See docs/router.md.
///
/// A configuration:
///   listen = "127.0.0.1:2049"
///   udp = false                          # also over UDP; docs/router.md says whom that lets in
///   transport = "user"                   # or kernel, where it can; auto: where that is better
///   away = "jukebox"                     # or wait: calls wait for a server that is away
///   log = "route.log"                    # what is under way on two servers; keep it, on a disk
///   volumes = ["nfs://a.example/export", "nfs://b.example/export?mountport=20048&udp=yes"]
///   policy = "hash"                      # or round_robin, least_full, stay
///   switch_percent = 100                 # how many new directories are spread, of all
///   buckets = 64                         # in how many parts they can move later; for good
///   move_mib_per_s = 0                   # how fast at most; 0: no limit
///   [pin]
///   archive = 1                          # /archive goes to the second volume
///   [[export]]                           # to whom, as docs/nfs.md has it; here: this machine
///   path = "/"
///
/// Several routers serve the same volumes when they share a log on a group that `quorate init --coordinator` made. In place of `log`:
///   [coordinator]
///   group = "routers/group.toml"         # of one replica or four, which run as `quorate replica`
///   key = "routers/client.key"           # [default: client.key beside the group file]
/// When one dies, another finishes what it had begun. One that can't reach the group ends: let a supervisor start it again.
/// `quorate volume` moves nothing then.
///
/// In place of a URL a volume may be the path of a group file, with ?key=FILE for another key than client.key beside it: then the volume is that
/// Quorate group, without a server in between.
///
/// Volumes have numbers in their order, from 0, and keep them; `quorate volume` adds others later, and takes volumes away. Then:
///   mount -t nfs -o vers=3,tcp,mountproto=tcp,port=2049,mountport=2049,nolock 127.0.0.1:/ /mnt
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Route {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Listen on an address that other machines reach. NFS version 3 has neither encryption nor proof of who calls.
    #[arg(long)]
    pub trust_network: bool,
    /// Begin a new log for volumes that have been used, where theirs is lost.
    #[arg(long)]
    pub new_log: bool,
    /// Serve clients with so many threads, each with connections to the servers of its own. What comes over a connection stays on one
    /// thread; the system spreads connections by their addresses and ports.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    /// Print one JSON object a line: "event" is "ready" (with "address" and how many "volumes"), or "status" every 5 seconds with what
    /// `quorate volume list --json` prints, and with `udp` in "udp_dropped" how many datagrams were dropped, by reason, and
    /// where the kernel passes calls on, in "udp_switch" and "tcp_switch" how many.
    #[arg(long)]
    pub json: bool,
}

/// Add volumes to a running router and take them away, while they are in use.
///
/// Directories lie in buckets, and buckets on volumes: a bucket moves with all its directories and files while clients go on; their handles
/// stay good. Data moves in the background (move_mib_per_s in the configuration is its limit); a router that dies meanwhile undoes the
/// move that was under way when it starts again, and goes on with what drains.
///
/// To replace a server:
///   quorate volume add nfs://new.example/export --config route.toml
///   quorate volume list --config route.toml
///   quorate volume drain 1 --config route.toml
///   quorate volume remove 1 --config route.toml
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Volume {
    /// Show volumes: what they hold, their load, how fast they answer, and what is moving.
    List {
        #[command(flatten)]
        router: RouterConfig,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Print what Prometheus reads, for its node exporter's textfile collector.
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
    },
    /// Add an export that was never used, and move buckets there until volumes hold equally many.
    Add {
        /// nfs://HOST[:PORT]/EXPORT[?mountport=N][&udp=yes], or the path of a group file (*.toml[?key=FILE]), from the working directory.
        #[arg(value_name = "URL")]
        url: String,
        #[command(flatten)]
        router: RouterConfig,
        /// Do not wait until buckets have moved.
        #[arg(long)]
        detach: bool,
    },
    /// Move all that a volume holds to the others.
    Drain {
        /// The volume's number.
        #[arg(value_name = "N")]
        volume: u16,
        #[command(flatten)]
        router: RouterConfig,
        /// Move no more: what is left stays.
        #[arg(long)]
        stop: bool,
        /// Do not wait for the end.
        #[arg(long, conflicts_with = "stop")]
        detach: bool,
    },
    /// End an empty volume's part in the set; its number is never used again.
    Remove {
        /// The volume's number.
        #[arg(value_name = "N")]
        volume: u16,
        #[command(flatten)]
        router: RouterConfig,
    },
    /// Move buckets until volumes hold equally many.
    Balance {
        #[command(flatten)]
        router: RouterConfig,
        /// Do not wait for the end.
        #[arg(long)]
        detach: bool,
    },
}

/// Of which router.
#[derive(Debug, ClapArgs)]
pub struct RouterConfig {
    /// The configuration of the router, which runs on this machine.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Unmount a directory; also one whose `quorate mount` has died.
#[derive(Debug, ClapArgs)]
pub struct Umount {
    /// The mounted directory.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Detach at once, even if programs still use it.
    #[arg(long)]
    pub lazy: bool,
}

/// Show how each replica of a group is.
///
/// Each replica speaks for itself, so compare: correct ones agree on view, stable checkpoint and its root. Where a supervisor of theirs runs on
/// this machine, it says how long an attacker has at most to take more than f of them (the window of vulnerability), or why that can't be said.
/// Exit code: 0 all replicas answer and agree, 1 the group works but is not whole, or a supervisor that was named does not answer, 2 the group does
/// not work, or could not be asked.
#[derive(Debug, ClapArgs)]
pub struct Status {
    /// The group file [default: that of `quorate up`].
    #[arg(value_name = "GROUP")]
    pub group: Option<PathBuf>,
    /// The client's key file [default: client.key beside the group file].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// How long to wait for the replicas.
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    pub timeout_ms: u64,
    /// Ask the supervisor in this directory too; those in DIR, in DIR/supervisor-N and, where that is not there, in DIR/replica-N, where DIR
    /// has the group file, are asked anyhow. Repeatable.
    #[arg(long, value_name = "DIR")]
    pub supervisor: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print what Prometheus reads, for its node exporter's textfile collector:
    /// quorate status GROUP --prometheus > quorate.prom.new; mv quorate.prom.new quorate.prom
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// Show proof that a replica has contradicted itself.
///
/// Replicas keep what they notice in `evidence` in their directories. Such a file can be given to anybody who has the group
/// file: two statements under one replica's key of which a correct replica makes one at most.
#[derive(Debug, Subcommand)]
pub enum Evidence {
    List(EvidenceList),
    Show(EvidenceFile),
    Verify(EvidenceFile),
}

/// List what the replicas on this machine have found.
///
/// Exit code: 0 also if there is none; 2 if that can't be told.
#[derive(Debug, ClapArgs)]
pub struct EvidenceList {
    /// The group file [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// A replica's directory [default: each replica-N beside the group file].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Check a file of evidence against the group file; nothing else is asked or believed. (`show` prints what it says.)
///
/// Exit code: 0 it convicts a replica of this group, 1 it proves nothing, 2 it or the group file can't be read.
#[derive(Debug, ClapArgs)]
pub struct EvidenceFile {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The group file [default: that of `quorate up`].
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn groups(text: &str) -> Result<usize, String> {
    let most = crate::commands::up::groups::MAX_GROUPS;
    match text.parse() {
        Ok(count) if (2..=most).contains(&count) => Ok(count),
        _ => Err(format!("2 to {most} groups can run on one machine")),
    }
}

fn parse_fault(text: &str) -> Result<(u8, Fault), String> {
    let (id, kind) = text
        .split_once('=')
        .ok_or("write it as N=KIND, for example 2=lie")?;
    let kind = kind.parse().map_err(|e| format!("{e}"))?;
    Ok((parse_id(id)?, kind))
}

fn parse_route(text: &str) -> Result<(u8, String), String> {
    let (id, address) = text
        .split_once('=')
        .ok_or("write it as N=HOST:PORT, for example 2=192.0.2.7:7400")?;
    Ok((parse_id(id)?, address.into()))
}

fn parse_id(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no replica's number"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// The command line is consistent in itself.
    #[test]
    fn the_command_line_is_well_formed() {
        super::Args::command().debug_assert();
        super::MountHelper::command().debug_assert();
    }
}

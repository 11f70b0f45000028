//! Running a replica, looking after it, and having it recover.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use quorate_fault::Fault;

use super::{Period, parse_route, size, time};

/// See [`Conflicts`](quorate_execution::graph::Conflicts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConflictsArg {
    /// As the service declares.
    Declared,
    /// Any with any.
    All,
}

/// Hold a replica's identity key, apart from the replica.
///
/// Signs two kinds of statements for the replica, each with a number of its own: that a key is the replica's for a while, and that the
/// replica recovers. It signs nothing else, and gives the key to nobody. So who breaks into the replica can have statements signed
/// while it is there, and is left with nothing when the replica has renewed its keys twice.
///
/// That is worth what the separation is worth: run it as a user of its own, and name the replica's user. Of the files only
/// the group file is the replica's to read. The counter must never be brought back from a backup: then the same numbers would be
/// signed again. A key whose counter is lost or damaged is to be replaced.
///
/// Example, in a service that runs as the user `quorate-key`, for a replica that runs as `quorate-2`:
///   quorate keyholder --group /etc/quorate/group.toml --id 2 --user quorate-2 \
///       --key /var/lib/quorate-key/key --counter /var/lib/quorate-key/counter \
///       --socket /run/quorate-key/socket
///
/// The same with a key that never leaves a TPM 2.0, which counts as well. --enroll makes it, once, and prints what `quorate init
/// --identity 2=...` wants:
///   quorate keyholder --tpm device:/dev/tpmrm0 --enroll --key /var/lib/quorate-key/tpm
///   quorate keyholder --tpm device:/dev/tpmrm0 --key /var/lib/quorate-key/tpm \
///       --group /etc/quorate/group.toml --id 2 \
///       --user quorate-2 --socket /run/quorate-key/socket
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Keyholder {
    /// The replica's number in the group file.
    #[arg(long, value_name = "N", required_unless_present = "enroll")]
    pub id: Option<u8>,
    /// The group file.
    #[arg(long, value_name = "FILE", required_unless_present = "enroll")]
    pub group: Option<PathBuf>,
    /// The TPM that has the key: device:/dev/tpmrm0, or swtpm:host=127.0.0.1,port=2321.
    #[arg(long, value_name = "TCTI", conflicts_with = "counter")]
    pub tpm: Option<String>,
    /// Make a key and a counter in the TPM, write to the file --key which they are, print the public key, and end.
    #[arg(long, requires_all = ["tpm", "key"], conflicts_with_all = ["id", "group"])]
    pub enroll: bool,
    /// The identity key [default: holder-N/key beside the group file]; with --tpm the file that says which one it is [default:
    /// holder-N/tpm].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// How many statements the key has signed [default: holder-N/counter beside the group file].
    #[arg(long, value_name = "FILE")]
    pub counter: Option<PathBuf>,
    /// Where to listen: where the replica's user may enter all directories above [default: holder-N/socket beside the group file].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The user that the replica runs as, a name or a number; all others are refused [default: this process's own].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// End when standard input ends: so a key holder does not outlive the `quorate up` that started it.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Run one replica of a group.
///
/// Stays in the foreground until SIGINT or SIGTERM, as a service manager wants it. Log and state are kept in the data directory, which
/// is this replica's alone; started again on it, the replica goes on where it was. What is damaged there comes from the other replicas
/// again. Without its log a replica does not know what it has told the others: then it is silent until the group has gone on
/// beyond all that it may have said, and `quorate status` says that it recovers.
///
/// A disk that refuses a read, a write or a sync, or is full, ends it with a message before anything is said that is not safe. Exit codes are those of
/// sysexits.h: 0, it was told to end; 65, what is on the disk is damaged, lost or of another kind, and the others can't help; 66 and 77, a file is
/// missing or may not be used; 69, its address or its key holder is not there; 70, a defect; 74, the disk; 75, another process is in the way; 78,
/// options or files that don't belong together.
#[derive(Debug, ClapArgs)]
pub struct Replica {
    /// The replica's number in the group file.
    #[arg(long, value_name = "N")]
    pub id: u8,
    /// The group file.
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// The replica's key file [default: replica-N/key beside the group file]. Not read in a group whose replicas have key holders.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The socket of its key holder, in a group whose replicas have any [default: holder-N/socket beside the group file].
    #[arg(long, value_name = "PATH")]
    pub key_holder: Option<PathBuf>,
    /// Tk: take another key for links, and make all links anew, each time that so long has passed, in a group whose replicas have key
    /// holders; no more than the group file says (key_refresh_ms), and 0, never, only where it says nothing [default: 15s]. What was stolen with a replica's memory is of use for two such periods.
    #[arg(long, value_name = "TIME", value_parser = time::refresh, overrides_with = "key_refresh")]
    pub key_refresh: Option<Duration>,
    /// The replica's directory [default: replica-N beside the group file].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Make the data directory; for a replica that has never run and whose directory was not brought here from
    /// `quorate init`. Refused where one has run.
    #[arg(long)]
    pub first_start: bool,
    /// Make the data directory again; for a replica that has run and whose disk is lost for good. The others help it back, and it
    /// counts among the faulty ones until then. Never where the old directory may turn up again, such as a disk that is not mounted. For one start
    /// alone: the next one is refused with it. A supervisor that keeps what is its own elsewhere needs no such option: see `quorate recover`.
    #[arg(long, conflicts_with = "first_start")]
    pub lost_disk: bool,
    /// Recover: believe nothing that this replica has written. Its log is set aside, each piece of its state is compared with what the
    /// others have, and it counts among the faulty ones until it is back. For a machine that may have been tampered with, or as a habit:
    /// see `quorate recover`.
    #[arg(long, conflicts_with_all = ["first_start", "lost_disk"])]
    pub recover: bool,
    /// What its supervisor has seen: the highest number of a certificate of each replica, in order. With --recover older ones are refused, whatever
    /// is written here.
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        requires = "recover",
        hide = true
    )]
    pub seen: Vec<u64>,
    /// Listen here instead of on the address in the group file, such as 0.0.0.0:7400 behind address translation.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Reach replica N here instead of at its address in the group file, such as through a tunnel. Repeatable.
    #[arg(long, value_name = "N=HOST:PORT", value_parser = parse_route)]
    pub route: Vec<(u8, String)>,
    /// Execute operations that don't conflict on so many threads, at the same time; 0: one after the other, on the thread
    /// that orders them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub workers: u16,
    /// Which operations may be at work at the same time where there are workers. *all*: none beside another, one after the other; with one
    /// worker that is the system BASE, to be compared with.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = ConflictsArg::Declared)]
    pub conflicts: ConflictsArg,
    /// Check signatures on so many threads beside the one that orders; 0: on that one [default: none on up to 3 processors, then one for
    /// each two beyond the first two, up to 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=64))]
    pub verifiers: Option<u16>,
    /// Hand signatures to these threads when there are so many; for tests.
    #[arg(long, value_name = "N", hide = true)]
    pub verify_from: Option<u16>,
    /// Encrypt and write what is long, such as content of files, on so many threads beside the one that orders; 0: on that one [default: none
    /// on up to 3 processors, then 1, and 2 from 8 on].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=64))]
    pub sealers: Option<u16>,
    /// Hand to these threads what has so many bytes; for tests.
    #[arg(long, value_name = "BYTES", hide = true)]
    pub seal_from: Option<u32>,
    /// How much memory pages of the state's file may take, in all from 4M to 64G: with K, M, G in steps of 1,024. What else a replica has in memory is bounded by what
    /// replicas agree on, whatever this says.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::cache)]
    pub cache: u64,
    /// Ask for another primary when a request has waited for so long, at the latest: a group whose batches are quick does so sooner, by what they took of late, down to 250 ms. For replicas
    /// that are far apart; all of a group should have the same.
    #[arg(long, value_name = "TIME", default_value = "2500ms", value_parser = time::patience)]
    pub patience: Duration,
    /// Misbehave, for a demonstration. Refused unless the group was made by `quorate up`.
    #[arg(long, value_name = "KIND", hide = true)]
    pub fault: Option<Fault>,
    /// End when standard input ends: so a replica does not outlive the `quorate up` that started it.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Run one replica and look after it from outside: start it again when it dies, and have it recover.
///
/// The replica runs as a child process that can't talk to it, but to say how it is while it recovers. Recoveries are begun by the schedule (--recover-every, or
/// `quorate schedule`) or by `quorate recover`. What it says goes to standard error, what the replica says to messages.log in the replica's
/// directory, or with --user in the supervisor's.
///
/// With --user the replica runs as another user than this process, which is root's: who takes the replica over can neither end nor trace
/// the supervisor, nor write what it goes by. What is the supervisor's own is then in a directory of its own (--state), which
/// `quorate recover` and `quorate schedule` are told with --data; the replica's directory is to belong to that user, and what is above it to
/// root. When the replica is to recover all processes of that user are ended, and all is taken away there that is no file of a replica's: each
/// replica on a machine needs a user of its own.
///
/// Examples:
///   quorate supervise --group team/group.toml --id 2 --recover-every 1h -- --listen 0.0.0.0:7400
///   quorate supervise --group /etc/quorate/group.toml --id 2 --user quorate-2 \
///       --data /var/lib/quorate/replica-2 \
///       --state /var/lib/quorate-supervisor --programs /etc/quorate/programs \
///       -- --key-holder /run/quorate-key/socket
/// The second goes with the key holder of the example in `quorate keyholder --help`.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Supervise {
    /// The replica's number in the group file.
    #[arg(long, value_name = "N")]
    pub id: u8,
    /// The group file.
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// The replica's directory [default: replica-N beside the group file].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Run the replica as this user, a name or UID:GID, in no other group than its first. Only root can.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Where the supervisor keeps its schedule, what it knows of recoveries, its socket, and what the replica says [default: the replica's
    /// directory; with --user supervisor-N beside the group file].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A client's key file, to ask the other replicas how they are [default: supervisor-N.key beside the group file, or client.key where that is not
    /// there].
    #[arg(long, value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// Reach replica N here instead of at its address in the group file; for the others' the replica does so, too. For this one's own where its address does
    /// not lead to it from this machine, as behind address translation. Repeatable.
    #[arg(long, value_name = "N=HOST:PORT", value_parser = parse_route)]
    pub route: Vec<(u8, String)>,
    /// Have the replica recover so often (90s, 10m, 2h), or `off`; kept in its directory (--state). What `quorate schedule --every` sets later holds, also when this process is started
    /// again with the same word here; another word here holds again.
    #[arg(long = "recover-every", value_name = "TIME", value_parser = time::period)]
    pub every: Option<Period>,
    /// Run the replica only while this program's digest stands in FILE: lines of `quorate programs`. It is looked at before each start; what
    /// runs is what was looked at. Where the program's file is another one since, or FILE can't be read, what was listed last runs on from memory, also when the replica recovers, with an alarm. Where
    /// that was taken off FILE as well the replica stays as it is.
    #[arg(long, value_name = "FILE")]
    pub programs: Option<PathBuf>,
    /// Keep a watchdog of this machine quiet, such as /dev/watchdog: if this process stands still, the machine starts again. systemd's
    /// (WatchdogSec=, Type=notify) needs no option.
    #[arg(long, value_name = "DEVICE")]
    pub watchdog: Option<PathBuf>,
    /// Options of `quorate replica`, after `--`.
    #[arg(last = true, value_name = "OPTIONS")]
    pub replica: Vec<OsString>,
}

/// Print the BLAKE3 digests of programs, as `quorate supervise --programs` wants them listed.
///
/// Make the list where you have built the program or checked its signature, not on a server that may have been tampered with. With more
/// than one line an old and a new version are good at the same time.
///
/// Example:
///   quorate programs /usr/bin/quorate >> /etc/quorate/programs
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Programs {
    /// The programs [default: this one].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Have a replica recover now, and wait until it is back.
///
/// Proactive recovery: nothing that the replica has written is believed. It is ended and started again, silent until the group has gone
/// on beyond all that it may have said; each piece of its state is compared with what the others have, and what is wrong comes from
/// them. Files stay in use meanwhile. Refused where the group would stop without the replica, or another supervisor has one recover at the same
/// moment; a supervisor of one replica waits 2.5 s first to see that.
///
/// Also for a replica whose disk is lost, where its supervisor keeps what is its own elsewhere (`quorate supervise --state`): its directory is made again.
/// Not for a disk that is not mounted.
///
/// Examples:
///   quorate recover 2                           of the group that `quorate up` runs
///   quorate recover 2 --data /srv/team/replica-2    which `quorate supervise` runs there
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment)]
pub struct Recover {
    /// The replica's number.
    #[arg(value_name = "N")]
    pub id: u8,
    /// The directory of `quorate up` or of the supervised replica [default: $XDG_DATA_HOME/quorate/local].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Even if the group stops meanwhile; and anew, where it is recovering.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See and set how often replicas recover by themselves (Tw) and take other keys for their links (Tk).
///
/// Each recovers at its own time within the period, by the clock, so that they recover one after the other. A turn is put off while the group would
/// stop without the replica, and is missed, with an alarm, where that lasts.
///
/// Examples:
///   quorate schedule                            of the group that `quorate up` runs
///   quorate schedule --every 10m                each replica, every ten minutes
///   quorate schedule --every off
///   quorate schedule --every 30m --key-refresh 15s
#[derive(Debug, ClapArgs)]
#[command(name = "schedule", verbatim_doc_comment)]
pub struct ScheduleArgs {
    /// The directory of `quorate up` or of the supervised replica [default: $XDG_DATA_HOME/quorate/local].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// From now on so often (90s, 10m, 2h), or `off`, also where a --recover-every with which the supervisor is started again says what it said before. At the least 20s, and where replicas have key holders more than half of what the group file says of
    /// their keys (30s where that is more): key holders sign for no more recoveries.
    #[arg(long, value_name = "TIME", value_parser = time::period)]
    pub every: Option<Period>,
    /// In a group whose replicas have key holders: other keys so often (1500ms, 15s, 2m), at most what the group file says and at least half of that, since key holders sign no more often; or 0 for never, where it says nothing. Each replica goes by it from its next
    /// start on, which is its next recovery.
    #[arg(long, value_name = "TIME", value_parser = time::refresh)]
    pub key_refresh: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::super::{Args, Command};

    /// The command of a unit in `dist/systemd`, of replica 2.
    fn command(unit: &str) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
        let text = std::fs::read_to_string(path.join(unit)).unwrap();
        let text = text.replace("\\\n", " ").replace("%i", "2");
        let line = text.lines().find_map(|l| l.strip_prefix("ExecStart="));
        line.unwrap().split_whitespace().map(Into::into).collect()
    }

    /// What the units run is understood, with the options that the supervisor passes on to the replica.
    #[test]
    fn units_say_what_there_is() {
        let holder = Args::try_parse_from(command("quorate-keyholder@.service")).unwrap();
        let Command::Keyholder(holder) = holder.command else {
            panic!("another command")
        };
        let supervise = Args::try_parse_from(command("quorate-replica@.service")).unwrap();
        let Command::Supervise(supervise) = supervise.command else {
            panic!("another command")
        };
        assert_eq!((holder.id, supervise.id), (Some(2), 2));
        // Its own: a recovery ends all processes of the replica's user.
        assert_eq!(supervise.user.as_deref(), Some("quorate-2"));
        assert_eq!(holder.user, supervise.user);
        let mut replica = ["quorate", "replica", "--id", "2", "--group", "group.toml"]
            .map(Into::into)
            .to_vec();
        replica.extend(supervise.replica);
        let replica = Args::try_parse_from(replica).unwrap();
        let Command::Replica(replica) = replica.command else {
            panic!("another command")
        };
        assert_eq!(replica.key_holder, holder.socket);
    }

    /// systemd understands each line of the units, and does not pass over one as it does with a word that it does not know.
    #[test]
    fn units_are_what_systemd_understands() {
        let place = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
        let mut command = std::process::Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]);
        for unit in ["quorate-keyholder", "quorate-replica"] {
            let text = std::fs::read_to_string(from.join(format!("{unit}@.service"))).unwrap();
            // The program need not be installed.
            let text = text.replace("ExecStart=/usr/bin/quorate ", "ExecStart=/bin/sh ");
            let path = place.path().join(format!("{unit}@2.service"));
            std::fs::write(&path, text).unwrap();
            command.arg(path);
        }
        let Ok(verified) = command.output() else {
            return crate::supervision::left_out("systemd-analyze (Debian: systemd) is missing");
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        let about_ours = said.lines().filter(|line| line.contains("quorate"));
        let about_ours: Vec<&str> = about_ours.collect();
        assert!(verified.status.success() && about_ours.is_empty(), "{said}");
    }

    /// A unit's limit ends no replica that keeps to the bounds that are told: half of their sum more is for what is not counted there,
    /// the allocator, what TLS holds and the supervisor.
    #[test]
    fn a_unit_has_room_for_what_a_sound_replica_may_take() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let protocol = read("docs/protocol.md");
        let sum = protocol.lines().find_map(|l| l.strip_prefix("| sum |"));
        let words: Vec<&str> = sum.unwrap().split_whitespace().collect();
        let before_unit = words.windows(2).filter(|pair| pair[1].starts_with("GiB"));
        let sums: Vec<f64> = before_unit.map(|pair| pair[0].parse().unwrap()).collect();
        assert_eq!(sums.len(), 2, "without workers and with four: {words:?}");
        let most = sums.into_iter().fold(0.0, f64::max);

        let unit = read("dist/systemd/quorate-replica@.service");
        let limit = unit.lines().find_map(|l| l.strip_prefix("MemoryMax="));
        let limit: f64 = limit
            .and_then(|l| l.strip_suffix('G'))
            .unwrap()
            .parse()
            .unwrap();
        assert!(limit >= 1.5 * most, "{limit} GiB for {most} GiB");
        // And the words beside the limits say the same.
        for text in [unit, read("docs/recovery.md")] {
            assert!(text.contains(&format!("bounds come to {most:.1} GiB for 100 clients")));
            assert!(text.contains(&format!("MemoryMax={limit}G")));
        }
    }
}

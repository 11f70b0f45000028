//! Keeps proof of others' misbehaviour in files, for the operators: `evidence/` in the replica's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::thread;

use quorate_net::{Group, disk};
use quorate_wire::evidence::{Evidence, Kept, Subject};
use quorate_wire::{Digest, Quorum};

/// The directory's name.
pub const DIRECTORY: &str = "evidence";
/// What the files' names end in.
pub const SUFFIX: &str = ".evidence";
/// The most files about one replica. One is enough to convict it, and who contradicts itself all the time must not fill a disk.
const FILES_PER_REPLICA: usize = 16;
/// More than two messages, the longest there are, with all that is signed with them.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// All that is read at a start, in bytes: a replica that starts reads and checks it before it says anything.
const MAX_BYTES: u64 = 256 << 20;

/// The files of evidence of one replica.
#[derive(Debug)]
pub(crate) struct EvidenceKeeper {
    directory: PathBuf,
    group: Digest,
    quorum: Quorum,
    names: BTreeSet<String>,
}

/// The name of the file about something: so there is one of each.
fn name_of(subject: &Subject) -> String {
    let Subject {
        replica,
        kind,
        view,
        seq,
    } = subject;
    let (replica, view, seq) = (replica.0, view.0, seq.0);
    format!("{}{kind}-{view}-{seq}{SUFFIX}", prefix_of(replica))
}

fn prefix_of(replica: u8) -> String {
    format!("{replica}-")
}

/// What may be in the directory: as many files about each replica as are kept, under the names of such, and not too much to be read at a start. Whoever has
/// had the replica may have left millions.
#[derive(Debug)]
pub(super) struct Allowance {
    replicas: usize,
    files: BTreeMap<u8, usize>,
    bytes: u64,
}

impl Allowance {
    /// In a group of so many.
    pub fn new(replicas: usize) -> Allowance {
        Allowance {
            replicas,
            files: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Whether one more may be there, and counts it.
    pub fn admits(&mut self, name: &str, file: &fs::Metadata) -> bool {
        let Some(replica) = about(name).filter(|id| usize::from(*id) < self.replicas) else {
            return false;
        };
        let files = self.files.entry(replica).or_default();
        let bytes = self.bytes.saturating_add(file.len());
        let admits = file.is_file()
            && file.len() <= MAX_FILE_BYTES
            && bytes <= MAX_BYTES
            && *files < FILES_PER_REPLICA;
        if admits {
            (*files, self.bytes) = (*files + 1, bytes);
        }
        admits
    }
}

/// Which replica a file is about, by its name, if that is one of such a file.
fn about(name: &str) -> Option<u8> {
    let mut words = name.strip_suffix(SUFFIX)?.split('-');
    let number = |word: Option<&str>| word?.parse::<u64>().ok();
    number(words.next_back())?;
    number(words.next_back())?;
    let replica = words.next()?.parse().ok()?;
    words.next().map(|_| replica)
}

impl EvidenceKeeper {
    /// Goes on with what is in a replica's directory. What proves nothing, or not what its name says, is taken away: it would count
    /// against the most that are kept, and whoever has had the replica may have left it there for that.
    pub fn new(data: &Path, group: &Group) -> EvidenceKeeper {
        let directory = data.join(DIRECTORY);
        let mut names = BTreeSet::new();
        let mut allowance = Allowance::new(group.quorum().n());
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if !name.ends_with(SUFFIX) {
                continue;
            }
            let admits = entry
                .metadata()
                .is_ok_and(|it| allowance.admits(&name, &it));
            let proved = match admits {
                true => proves(&path, group),
                false => Ok(None),
            };
            let proved = match proved {
                Ok(subject) => subject.is_some_and(|subject| name_of(&subject) == name),
                // What it proves is not known, and may be that again at the next start.
                Err(e) => {
                    tracing::warn!("{} can't be read, and stays: {e}", path.display());
                    true
                }
            };
            if proved {
                names.insert(name.into_owned());
            } else if let Err(e) = fs::remove_file(&path) {
                tracing::warn!("{} proves nothing, and stays: {e}", path.display());
            }
        }
        EvidenceKeeper {
            group: group.id(),
            quorum: group.quorum(),
            names,
            directory,
        }
    }

    /// Keeps what was checked; not more than is of use.
    pub fn keep(&mut self, evidence: Evidence) {
        let Ok(subject) = evidence.subject(self.quorum) else {
            return;
        };
        let (name, prefix) = (name_of(&subject), prefix_of(subject.replica.0));
        let about_it = self.names.iter().filter(|n| n.starts_with(&prefix));
        if about_it.count() >= FILES_PER_REPLICA || !self.names.insert(name.clone()) {
            return;
        }
        let path = self.directory.join(name);
        tracing::warn!(
            replica = subject.replica.0,
            "a replica has contradicted itself ({}): the proof is kept in {}",
            subject.kind,
            path.display()
        );
        let group = self.group;
        let work = move || {
            let bytes = Kept { group, evidence }.to_file();
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            if let Err(e) = made.and_then(|()| disk::create(&path, &bytes, 0o600)) {
                tracing::warn!("{}: the proof could not be kept: {e}", path.display());
            }
        };
        // Seldom, and bounded above; this thread waits for no disk. Nobody waits for that one either, whatever becomes of it.
        let thread = thread::Builder::new().name("evidence".into());
        if let Err(e) = thread.spawn(work) {
            tracing::warn!("the proof could not be kept: {e}");
        }
    }
}

/// What a file proves, if it does.
fn proves(path: &Path, group: &Group) -> std::io::Result<Option<Subject>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    let verified = Kept::from_file(&bytes.into()).ok().and_then(|kept| {
        let verified = kept.evidence.verify(group.quorum(), &group.signing_keys());
        verified.ok().filter(|_| kept.group == group.id())
    });
    Ok(verified)
}

/// The files of evidence of a replica, by name; none where it has kept none yet. `data`: the replica's directory.
///
/// # Errors
/// [`std::io::Error`]: there is no such replica, or it can't be told what it has.
pub fn files(data: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(data.join(DIRECTORY)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return fs::metadata(data).map(|_| Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(SUFFIX));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_net::group::{Files, Purpose};
    use quorate_wire::evidence::TwoViewChanges;
    use quorate_wire::message::{SignedViewChange, ViewChange};
    use quorate_wire::{KeyPair, ReplicaId, Seq, Signer, View};
    use std::time::Duration;

    fn key(replica: u8) -> KeyPair {
        KeyPair::from_seed(&[replica + 1; 32])
    }

    fn evidence(group: &Group, replica: u8, view: u64) -> Evidence {
        let signer = Signer::standing(group.id(), key(replica));
        let change = |stable| ViewChange {
            view: View(view),
            replica: ReplicaId(replica),
            stable: Seq(stable),
            checkpoints: vec![(Seq(stable), Digest::ZERO)],
            prepared: vec![],
            preprepared: vec![],
        };
        let sign = |stable| SignedViewChange::sign(change(stable), &signer).into_inner();
        let (first, second) = (sign(0), sign(1));
        Evidence::ViewChanges(TwoViewChanges { first, second })
    }

    /// One file for each thing, so many for each replica, and the same again after a restart.
    #[test]
    fn files_are_bounded_and_not_doubled() {
        let directory = tempfile::tempdir().unwrap();
        let replicas = (0..4).map(|r| {
            (
                format!("192.0.2.1:{}", 7000 + u16::from(r)),
                key(r).public(),
            )
        });
        let clients = vec![("laptop".to_string(), key(9).public())];
        let files_of = Files::default();
        let group = Group::new(
            "home",
            replicas.collect(),
            clients,
            files_of,
            Purpose::Service,
        );
        let group = group.unwrap();
        for _ in 0..2 {
            let mut keeper = EvidenceKeeper::new(directory.path(), &group);
            for view in 1..=40 {
                keeper.keep(evidence(&group, 2, view));
                keeper.keep(evidence(&group, 2, view));
            }
            keeper.keep(evidence(&group, 3, 1));
            let kept = || files(directory.path()).unwrap();
            for _ in 0..1000 {
                if kept().len() > FILES_PER_REPLICA {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(kept().len(), FILES_PER_REPLICA + 1);
        }
        // What proves nothing, or something else than its name says, counts for nothing, and is gone.
        let place = directory.path().join(DIRECTORY);
        let proof = files(directory.path()).unwrap().pop().unwrap();
        for n in 0..FILES_PER_REPLICA {
            fs::write(place.join(format!("1-{n}{SUFFIX}")), b"").unwrap();
            fs::copy(&proof, place.join(format!("1-copy-{n}{SUFFIX}"))).unwrap();
        }
        // Neither does what is not even read: more than are kept, or too long.
        for view in 0..3 * FILES_PER_REPLICA {
            let name = place.join(format!("0-view-change-{view}-0{SUFFIX}"));
            let file = fs::File::create(name).unwrap();
            file.set_len(MAX_FILE_BYTES + view as u64 % 2).unwrap();
        }
        let mut keeper = EvidenceKeeper::new(directory.path(), &group);
        keeper.keep(evidence(&group, 1, 7));
        let about_it = || files(directory.path()).unwrap().len() - FILES_PER_REPLICA - 1;
        for _ in 0..1000 {
            if about_it() > 0 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(about_it(), 1);
        for path in files(directory.path()).unwrap() {
            let kept = Kept::from_file(&fs::read(path).unwrap().into()).unwrap();
            assert_eq!(kept.group, group.id());
            let subject = kept.evidence.verify(group.quorum(), &group.signing_keys());
            assert!(subject.is_ok(), "{subject:?}");
        }
    }

    /// What an intruder may leave is bounded in number, in length, and in all.
    #[test]
    fn there_is_little_to_read() {
        let place = tempfile::tempdir().unwrap();
        let file = |length| {
            let file = fs::File::create(place.path().join("file")).unwrap();
            file.set_len(length).unwrap();
            file.metadata().unwrap()
        };
        let of = |replica: usize, view: usize| format!("{replica}-view-change-{view}-0{SUFFIX}");
        let mut allowance = Allowance::new(4);
        let mut admits = |name: &str, length| allowance.admits(name, &file(length));
        let short: usize = (0..1000).filter(|n| admits(&of(n % 10, *n), 1)).count();
        assert_eq!(short, 4 * FILES_PER_REPLICA);
        let mut allowance = Allowance::new(4);
        let mut admits = |name: &str, length| allowance.admits(name, &file(length));
        let long = (0..40).filter(|n| admits(&of(n % 4, *n), MAX_FILE_BYTES));
        assert_eq!(long.count() as u64, MAX_BYTES / MAX_FILE_BYTES);
        for wrong in [
            "1-words",
            "1-1-2",
            "x-new-view-1-2",
            "1-new-view-1-x",
            "300-a-1-2",
        ] {
            assert_eq!(about(&format!("{wrong}{SUFFIX}")), None, "{wrong}");
        }
        assert_eq!(about(&of(3, 7)), Some(3));
        let mut allowance = Allowance::new(4);
        assert!(!allowance.admits(&of(1, 1), &fs::metadata(place.path()).unwrap()));
        assert!(!allowance.admits(&of(1, 1), &file(MAX_FILE_BYTES + 1)));
    }
}

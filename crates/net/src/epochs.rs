//! Whose key a link has been made with, where replicas have epoch keys.
//!
//! TLS establishes that the other side has a key; the certificate that comes as its first frame says whose that key is. Of each replica the
//! highest number of a certificate is remembered, on disk as well where there is one, before a link counts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_wire::{
    Counters, Decode, DecodeError, Digest, EpochCertificate, IdentityKey, PublicKey, ReplicaId,
    StatementError,
};

use crate::clock;
use crate::disk;
use crate::group::{BELIEVED_AT_LEAST, BELIEVED_PERIODS, Group};
use crate::holder::Pace;

const TITLE: &str =
    "quorate epochs: the highest number of a certificate that was seen of each replica";
/// A line for each of 64 replicas has some 60 bytes.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// Why a link's certificate was refused.
#[derive(Debug)]
pub(crate) enum CertificateError {
    /// The first frame is none.
    NotOne(DecodeError),
    /// The identity has not signed it for this group, or has signed newer ones.
    Statement(StatementError),
    /// It is that of another key than the one that TLS has established: somebody else's.
    AnotherKey,
    /// Another replica answers than the one that was called.
    AnotherReplica(ReplicaId),
    /// For so long none of this replica that is newer has been seen, and one should have been.
    NotFollowed(Duration),
    /// More newer ones were seen of late than a replica has use for. Another time it may be right.
    TooSoon,
    /// It is right, and its number can't be written down here.
    NotKept(io::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::NotOne(e) => write!(f, "it is none: {e}"),
            CertificateError::Statement(e) => write!(f, "{e}"),
            CertificateError::AnotherKey => f.write_str("it is not that of the key of this link"),
            CertificateError::AnotherReplica(id) => {
                write!(f, "it is of replica {}, and another one was called", id.0)
            }
            CertificateError::NotFollowed(longest) => write!(
                f,
                "no newer one of this replica has come for {} s: its key holder does not work, it does not renew its keys, or somebody who has an old key of \
                 it stands in its place",
                longest.as_secs_f64()
            ),
            CertificateError::TooSoon => {
                f.write_str("too many newer ones of this replica have come of late")
            }
            CertificateError::NotKept(e) => write!(f, "its number can't be kept: {e}"),
        }
    }
}

/// What is known of the replicas' epoch keys.
#[derive(Debug)]
pub struct Epochs {
    group: Digest,
    identities: Vec<IdentityKey>,
    seen: Counters,
    /// How many newer ones of each replica are taken: each is written down, for which everything else waits, and who has taken over a replica can have
    /// gathered many.
    paces: Vec<Pace>,
    file: Option<PathBuf>,
    /// Whether a number counts only once it is written down.
    must_keep: bool,
    term: Option<Term>,
}

/// For how long a certificate is believed that no newer one follows. The numbers alone say which of those that were seen is old; who is cut off from all
/// that have seen newer ones would take an old one for ever.
#[derive(Debug)]
struct Term {
    longest: Duration,
    /// Of each replica, when the newest was seen first.
    since: Vec<Instant>,
}

impl Epochs {
    /// Of a group of whose replicas nothing was seen; `None` in a group without key holders.
    pub fn of(group: &Group) -> Option<Epochs> {
        let identities = group.identities()?.to_vec();
        Some(Epochs {
            group: group.id(),
            seen: Counters::new(identities.len()),
            paces: identities
                .iter()
                .map(|_| Pace::of_others(clock::now()))
                .collect(),
            identities,
            file: None,
            must_keep: false,
            term: None,
        })
    }

    /// The same for a client: a certificate counts only as long as newer ones follow it, as often as the group file says that they do.
    pub(crate) fn of_client(group: &Group) -> Option<Epochs> {
        let mut epochs = Epochs::of(group)?;
        let since = vec![clock::now(); epochs.identities.len()];
        epochs.term = group.protocol().key_refresh.map(|every| Term {
            longest: BELIEVED_AT_LEAST.max(every * BELIEVED_PERIODS),
            since,
        });
        Some(epochs)
    }

    /// The same, with what is written down in the file `path`, and will be. A file that is not there or not whole is as good as empty: old
    /// certificates pass once more, until newer ones are seen.
    ///
    /// # Errors
    /// If the file is there and can't be read.
    pub fn kept(group: &Group, path: &Path) -> io::Result<Option<Epochs>> {
        let Some(mut epochs) = Epochs::of(group) else {
            return Ok(None);
        };
        epochs.file = Some(path.into());
        epochs.must_keep = true;
        if let Some(text) = read(path)? {
            epochs.take(&text, path);
        }
        Ok(Some(epochs))
    }

    /// The same, of which these numbers were seen and nothing that is in the file: it is written anew. For a replica that does not believe what it
    /// has written, and hears from its supervisor what is known of the others.
    ///
    /// # Errors
    /// If the file can't be written, or there are as many numbers as another group has replicas.
    pub fn anew(group: &Group, path: &Path, highest: &[u64]) -> io::Result<Option<Epochs>> {
        let Some(mut epochs) = Epochs::of(group) else {
            return Ok(None);
        };
        if highest.len() != epochs.identities.len() {
            let why = format!(
                "{} numbers of certificates in a group of {}",
                highest.len(),
                epochs.identities.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        epochs.seen = Counters::from_highest(highest.to_vec());
        epochs.file = Some(path.into());
        epochs.must_keep = true;
        epochs.keep(&epochs.seen)?;
        Ok(Some(epochs))
    }

    /// Numbers that were seen according to who has kept them elsewhere: none is taken back, and the file gets those that it has not got.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn raise(&mut self, highest: &[u64]) -> io::Result<()> {
        let before = self.highest().iter().copied();
        let others = highest.iter().copied().chain(std::iter::repeat(0));
        let both: Vec<u64> = before.zip(others).map(|(a, b)| a.max(b)).collect();
        if both != self.highest() {
            self.seen = Counters::from_highest(both);
            self.keep(&self.seen)?;
        }
        Ok(())
    }

    /// The same, for who goes on where the file can't be read or written: what it lacks is learnt anew.
    pub fn noted(group: &Group, path: &Path) -> Option<Epochs> {
        let mut epochs = Epochs::of(group)?;
        epochs.file = Some(path.into());
        match read(path) {
            Ok(text) => text.iter().for_each(|text| epochs.take(text, path)),
            Err(e) => tracing::warn!("{}: {e}", path.display()),
        }
        Some(epochs)
    }

    /// Why nothing can be used of a file in which that was noted, if so.
    pub fn lost(group: &Group, path: &Path) -> Option<String> {
        let epochs = Epochs::of(group)?;
        let why = match read(path) {
            Ok(Some(text)) if epochs.parse(&text).is_some() => return None,
            Ok(Some(_)) => "it is damaged, or of another group".into(),
            Ok(None) => "it is not there".into(),
            Err(e) => e.to_string(),
        };
        Some(format!("{}: {why}", path.display()))
    }

    /// The highest number of a certificate that was seen, of each replica; 0 where there was none.
    pub fn highest(&self) -> &[u64] {
        self.seen.highest()
    }

    fn take(&mut self, text: &str, path: &Path) {
        match self.parse(text) {
            Some(highest) => self.seen = Counters::from_highest(highest),
            None => tracing::warn!(
                "{} is damaged, or of another group: which certificates of the others are old is learnt anew",
                path.display()
            ),
        }
    }

    /// The certificate in `bytes`, if it says whose key `key` is.
    pub(crate) fn judge(
        &mut self,
        key: &PublicKey,
        bytes: Bytes,
    ) -> Result<EpochCertificate, CertificateError> {
        self.judge_at(key, bytes, clock::now())
    }

    fn judge_at(
        &mut self,
        key: &PublicKey,
        bytes: Bytes,
        now: Instant,
    ) -> Result<EpochCertificate, CertificateError> {
        let certificate = EpochCertificate::from_bytes(bytes).map_err(CertificateError::NotOne)?;
        if certificate.epoch != *key {
            return Err(CertificateError::AnotherKey);
        }
        // The signature comes last: it costs most, and strangers can ask for it.
        let is_new = self.seen.check(certificate.replica, certificate.counter);
        is_new.map_err(CertificateError::Statement)?;
        if let Some(longest) = self.overdue(certificate.replica, certificate.counter, now) {
            return Err(CertificateError::NotFollowed(longest));
        }
        let is_newer = certificate.counter > self.seen.of(certificate.replica);
        let pace = self.paces.get(usize::from(certificate.replica.0));
        if is_newer && pace.is_some_and(|pace| !pace.wait(now).is_zero()) {
            return Err(CertificateError::TooSoon);
        }
        self.verify(&certificate, now)?;
        Ok(certificate)
    }

    /// A certificate that somebody passes on: whether it is newer than all that were seen of its replica. Others cost nothing.
    pub(crate) fn learn(
        &mut self,
        certificate: &EpochCertificate,
    ) -> Result<bool, CertificateError> {
        if certificate.counter <= self.seen.of(certificate.replica) {
            return Ok(false);
        }
        self.verify(certificate, clock::now())?;
        Ok(true)
    }

    /// Whether a link that rests on a replica's certificate of this number is to end.
    pub(crate) fn is_void(&self, replica: ReplicaId, number: u64) -> bool {
        self.seen.check(replica, number).is_err()
    }

    /// Whether nothing counted any more at some time that rests on a replica's certificate of this number, since none that is newer had come for so long.
    pub(crate) fn overdue(&self, replica: ReplicaId, number: u64, at: Instant) -> Option<Duration> {
        let longest = self.term.as_ref()?.longest;
        let is_new = number > self.seen.of(replica);
        (!is_new && self.over_at(replica)? <= at).then_some(longest)
    }

    /// When a replica's newest certificate counts no more, unless one follows it.
    pub(crate) fn over_at(&self, replica: ReplicaId) -> Option<Instant> {
        let term = self.term.as_ref()?;
        Some(*term.since.get(usize::from(replica.0))? + term.longest)
    }

    fn verify(
        &mut self,
        certificate: &EpochCertificate,
        now: Instant,
    ) -> Result<(), CertificateError> {
        let signed = certificate.verify(&self.group, &self.identities);
        signed.map_err(CertificateError::Statement)?;
        let mut seen = self.seen.clone();
        if seen.saw(certificate.replica, certificate.counter) {
            if let Some(pace) = self.paces.get_mut(usize::from(certificate.replica.0)) {
                pace.took(now);
            }
            self.keep(&seen).map_err(CertificateError::NotKept)?;
            self.seen = seen;
            let since = self.term.as_mut().map(|term| &mut term.since);
            if let Some(since) = since.and_then(|s| s.get_mut(usize::from(certificate.replica.0))) {
                *since = now;
            }
        }
        Ok(())
    }

    /// What a replica certified before the one before this number is void, from now on also where that can't be written down.
    pub(crate) fn void(&mut self, replica: ReplicaId, number: u64) -> io::Result<()> {
        match self.seen.saw(replica, number) {
            true => self.keep(&self.seen),
            false => Ok(()),
        }
    }

    fn keep(&self, seen: &Counters) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        match disk::replace(file, self.text(seen).as_bytes(), 0o600) {
            Err(e) if !self.must_keep => {
                tracing::warn!("{}: {e}", file.display());
                Ok(())
            }
            kept => kept,
        }
    }

    /// As [`Epochs::judge`], of the replica that was called.
    pub(crate) fn judge_called(
        &mut self,
        called: ReplicaId,
        key: &PublicKey,
        bytes: Bytes,
    ) -> Result<EpochCertificate, CertificateError> {
        let certificate = self.judge(key, bytes)?;
        match certificate.replica == called {
            true => Ok(certificate),
            false => Err(CertificateError::AnotherReplica(certificate.replica)),
        }
    }

    /// Each number stands there twice, the second time as what is missing to the highest, so that no damage makes it another one.
    pub(crate) fn text(&self, seen: &Counters) -> String {
        let lines = seen
            .highest()
            .iter()
            .map(|n| format!("{n} {}\n", u64::MAX - n));
        format!("{TITLE}\n{}\n{}", self.group, lines.collect::<String>())
    }

    pub(crate) fn parse(&self, text: &str) -> Option<Vec<u64>> {
        let lines = text.lines().skip(2);
        let highest = lines.map(|line| line.split(' ').next()?.parse().ok());
        let highest: Vec<u64> = highest.collect::<Option<_>>()?;
        let fits = highest.len() == self.identities.len();
        let again = self.text(&Counters::from_highest(highest.clone()));
        (fits && again == text).then_some(highest)
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    use std::io::Read;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Files, Protocol, Purpose};
    use quorate_wire::{Encode, KeyPair};

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn group() -> Group {
        let replicas = (0..4).map(|i| (format!("127.0.0.1:{}", 7000 + i), key(i as u8).public()));
        let identities: Vec<PublicKey> = (50..54).map(|i| key(i).public()).collect();
        let (replicas, files) = (replicas.collect(), Files::default());
        let group = Group::new("test", replicas, Vec::new(), files, Purpose::Service);
        group.unwrap().with_identities(&identities).unwrap()
    }

    fn certificate(replica: u8, counter: u64, epoch: u8) -> Bytes {
        let (identity, me) = (key(50 + replica), ReplicaId(replica));
        let epoch = key(epoch).public();
        EpochCertificate::sign(&identity, group().id(), me, counter, epoch)
            .to_bytes()
            .into()
    }

    fn old(counter: u64, least: u64) -> String {
        StatementError::Old { counter, least }.to_string()
    }

    /// A certificate counts for its own key, for the replica that was called, and until there are two newer ones.
    #[test]
    fn a_certificate_is_for_a_key_and_a_while() {
        let mut epochs = Epochs::of(&group()).unwrap();
        let mut judge = |key_of: u8, bytes| {
            let judged = epochs.judge(&key(key_of).public(), bytes);
            judged.map(|it| it.replica).map_err(|e| e.to_string())
        };
        assert_eq!(judge(100, certificate(1, 5, 100)), Ok(ReplicaId(1)));
        let another = CertificateError::AnotherKey.to_string();
        assert_eq!(judge(101, certificate(1, 5, 100)), Err(another));
        assert_eq!(judge(101, certificate(1, 6, 101)), Ok(ReplicaId(1)));
        assert_eq!(judge(100, certificate(1, 5, 100)), Ok(ReplicaId(1)));
        assert_eq!(judge(102, certificate(1, 7, 102)), Ok(ReplicaId(1)));
        assert_eq!(judge(100, certificate(1, 5, 100)), Err(old(5, 6)));
        assert!(judge(100, Bytes::from_static(b"short")).is_err());
        let called = epochs.judge_called(ReplicaId(2), &key(102).public(), certificate(1, 7, 102));
        assert!(matches!(
            called,
            Err(CertificateError::AnotherReplica(ReplicaId(1)))
        ));
    }

    /// What somebody passes on counts as what was shown, and nothing that is older or that nobody signed.
    #[test]
    fn a_certificate_is_passed_on() {
        let mut epochs = Epochs::of(&group()).unwrap();
        let at = |counter| {
            let (id, epoch) = (group().id(), key(100).public());
            EpochCertificate::sign(&key(51), id, ReplicaId(1), counter, epoch)
        };
        let is_void = |epochs: &Epochs, number| epochs.is_void(ReplicaId(1), number);
        assert!(epochs.learn(&at(5)).unwrap());
        assert!(!is_void(&epochs, 4) && is_void(&epochs, 3));
        assert!(!epochs.learn(&at(4)).unwrap());
        let forged = EpochCertificate {
            counter: 9,
            ..at(6)
        };
        let of_nobody = EpochCertificate {
            replica: ReplicaId(9),
            ..at(6)
        };
        assert!(epochs.learn(&forged).is_err() && epochs.learn(&of_nobody).is_err());
        assert_eq!(epochs.highest(), [0, 5, 0, 0]);
    }

    /// Numbers that a log has count beside those of a file that is older: what was refused once stays so, also after the next start.
    #[test]
    fn numbers_are_raised_and_never_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("epochs");
        let before = Epochs::anew(&group(), &path, &[7, 480, 0, 0]);
        let mut epochs = before.unwrap().unwrap();
        epochs.raise(&[3, 500, 0, 0]).unwrap();
        epochs.raise(&[9]).unwrap();
        assert_eq!(epochs.highest(), [9, 500, 0, 0]);
        assert!(
            epochs
                .judge(&key(100).public(), certificate(1, 490, 100))
                .is_err()
        );
        let again = Epochs::kept(&group(), &path).unwrap().unwrap();
        assert_eq!(again.highest(), [9, 500, 0, 0]);
    }

    /// Newer ones that come one after the other are written down a few times, and then as often as a sound replica renews its keys; the last one is taken in
    /// the end, and what is not newer at any time.
    #[test]
    fn many_newer_ones_are_written_down_seldom() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("epochs");
        let mut epochs = Epochs::kept(&group(), &path).unwrap().unwrap();
        let (epoch, began) = (key(100).public(), clock::now());
        let mut judge = |replica, counter, after| {
            let certificate = certificate(replica, counter, 100);
            epochs.judge_at(&epoch, certificate, began + Duration::from_millis(after))
        };
        let mut taken = Vec::new();
        for counter in 1..=100 {
            match judge(3, counter, 0) {
                Ok(_) => taken.push(counter),
                Err(e) => assert!(matches!(e, CertificateError::TooSoon), "{e}"),
            }
        }
        assert_eq!(taken, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(judge(3, 8, 0).is_ok() && judge(3, 7, 0).is_ok());
        assert!(judge(2, 100, 0).is_ok(), "of another one");
        assert!(judge(3, 100, 400).is_err());
        assert!(judge(3, 100, 500).is_ok());
        let kept = Epochs::kept(&group(), &path).unwrap().unwrap();
        assert_eq!(kept.highest(), [0, 0, 100, 100]);
    }

    /// A client believes a certificate no longer than three periods unless a newer one follows, whoever shows that; who has seen none of a replica takes any.
    #[test]
    fn a_certificate_that_none_follows_is_not_believed() {
        let protocol = Protocol {
            key_refresh: Some(Duration::from_secs(15)),
            ..Protocol::default()
        };
        let group = group().with_protocol(protocol);
        let mut epochs = Epochs::of_client(&group).unwrap();
        let epoch = key(100);
        let at = |counter| {
            let (id, epoch) = (group.id(), epoch.public());
            EpochCertificate::sign(&key(51), id, ReplicaId(1), counter, epoch)
        };
        let let_pass = |epochs: &mut Epochs, seconds| {
            let since = &mut epochs.term.as_mut().unwrap().since[1];
            *since = since.checked_sub(Duration::from_secs(seconds)).unwrap();
        };
        let judge = |epochs: &mut Epochs, counter| {
            let judged = epochs.judge(&epoch.public(), at(counter).to_bytes().into());
            judged.map(drop).map_err(|e| e.to_string())
        };
        let_pass(&mut epochs, 100);
        assert_eq!(judge(&mut epochs, 5), Ok(()));
        let_pass(&mut epochs, 44);
        assert_eq!(judge(&mut epochs, 5), Ok(()));
        let_pass(&mut epochs, 2);
        let refused = judge(&mut epochs, 5).unwrap_err();
        assert!(refused.contains("for 45 s"), "{refused}");
        assert!(judge(&mut epochs, 4).is_err());
        assert!(!epochs.learn(&at(5)).unwrap(), "it is no newer one");
        assert!(judge(&mut epochs, 5).is_err());
        assert!(epochs.learn(&at(6)).unwrap());
        assert_eq!(judge(&mut epochs, 6), Ok(()));
        assert_eq!(judge(&mut epochs, 5), Ok(()), "it is the last but one");
        // Seconds are soon lost where a machine is busy.
        let protocol = Protocol {
            key_refresh: Some(Duration::from_secs(1)),
            ..Protocol::default()
        };
        let busy = group.clone().with_protocol(protocol);
        let mut often = Epochs::of_client(&busy).unwrap();
        let of_often = |counter| {
            let (id, epoch) = (busy.id(), epoch.public());
            let certificate = EpochCertificate::sign(&key(51), id, ReplicaId(1), counter, epoch);
            Bytes::from(certificate.to_bytes())
        };
        let judge_often = |epochs: &mut Epochs| {
            let judged = epochs.judge(&epoch.public(), of_often(5));
            judged.map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(judge_often(&mut often), Ok(()));
        let_pass(&mut often, 13);
        assert_eq!(judge_often(&mut often), Ok(()));
        let_pass(&mut often, 2);
        assert!(judge_often(&mut often).unwrap_err().contains("for 15 s"));
        // A replica goes by numbers alone, and so does a client of a group that says nothing.
        for epochs in [
            Epochs::of(&group).unwrap(),
            Epochs::of_client(&self::group()).unwrap(),
        ] {
            assert!(epochs.term.is_none());
            assert_eq!(epochs.over_at(ReplicaId(1)), None);
        }
    }

    /// What nobody signed raises no number: else a stranger could shut a replica out.
    #[test]
    fn forged_numbers_are_not_remembered() {
        let mut epochs = Epochs::of(&group()).unwrap();
        let (stranger, epoch) = (key(99), key(100).public());
        let id = group().id();
        let forged = EpochCertificate::sign(&stranger, id, ReplicaId(1), 1 << 60, epoch);
        assert!(epochs.judge(&epoch, forged.to_bytes().into()).is_err());
        assert!(epochs.judge(&epoch, certificate(1, 1, 100)).is_ok());
    }

    /// A replica that recovers goes by what its supervisor has seen, and by nothing that is written where it could have written itself.
    #[test]
    fn what_somebody_else_has_seen_is_begun_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("epochs");
        let epoch = key(100).public();
        let (newest, old_one) = (certificate(0, u64::MAX, 100), certificate(3, 7, 100));
        let mut before = Epochs::kept(&group(), &path).unwrap().unwrap();
        assert!(before.judge(&epoch, newest).is_ok());
        let mut epochs = Epochs::anew(&group(), &path, &[4, 0, 0, 9])
            .unwrap()
            .unwrap();
        let refused = epochs.judge(&epoch, old_one.clone()).unwrap_err();
        assert_eq!(refused.to_string(), old(7, 8));
        assert!(epochs.judge(&epoch, certificate(0, 5, 100)).is_ok());
        let mut again = Epochs::kept(&group(), &path).unwrap().unwrap();
        assert_eq!(again.highest(), [5, 0, 0, 9]);
        assert!(again.judge(&epoch, old_one).is_err());
        let of_others = Epochs::anew(&group(), &path, &[4, 0]).unwrap_err();
        assert_eq!(of_others.kind(), io::ErrorKind::InvalidInput);
    }

    /// A supervisor goes on where its directory takes nothing, with what it has seen since it was started.
    #[test]
    fn what_is_noted_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let epoch = key(100).public();
        let path = directory.path().join("certificates");
        let mut epochs = Epochs::noted(&group(), &path).unwrap();
        assert!(epochs.judge(&epoch, certificate(1, 6, 100)).is_ok());
        let noted = Epochs::noted(&group(), &path).unwrap();
        assert_eq!(noted.highest(), [0, 6, 0, 0]);
        for nowhere in [
            directory.path().join("none").join("certificates"),
            directory.path().into(),
        ] {
            let mut epochs = Epochs::noted(&group(), &nowhere).unwrap();
            assert!(epochs.judge(&epoch, certificate(1, 6, 100)).is_ok());
            assert!(epochs.judge(&epoch, certificate(1, 4, 100)).is_err());
        }
    }

    /// What was seen outlives the process; damage is noticed, and makes nothing worse than it was at the beginning.
    #[test]
    fn what_was_seen_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("epochs");
        let open = || Epochs::kept(&group(), &path).unwrap().unwrap();
        let epoch = key(100).public();
        assert!(open().judge(&epoch, certificate(3, 9, 100)).is_ok());
        assert!(open().judge(&epoch, certificate(0, 4, 100)).is_ok());
        let refused = open().judge(&epoch, certificate(3, 7, 100)).unwrap_err();
        assert_eq!(refused.to_string(), old(7, 8));
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(open().seen, Counters::new(4), "byte {at}");
        }
    }
}

//! Mounting by credentials: which there are, that the group has them, and what the mount's root shows.

mod bringing;
mod names;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use quorate_client::fuse::{Acting, Shares, Start};
use quorate_client::{CallError, LetIn, Session, Volume};
use quorate_credential::{Chain, Refusal, Rights, Trust, VolumeId};
use quorate_files::op::PutCredential;
use quorate_files::{Ino, Who};
use quorate_net::{Group, Identity};
use quorate_wire::{KeyPair, PublicKey};
use tokio::task::JoinHandle;

use super::{credential, sharing};
use bringing::{Bringing, without_place};
use names::Names;

/// How often directories of credentials are looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// A named credential that begins within so many seconds is waited for: clocks differ.
const SOON: u64 = 600;
/// The names of credentials in a directory.
const EXTENSION: &str = "cred";

/// A credential that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    chain: Chain,
    until: u64,
    object: Ino,
    subtree: bool,
    /// As which user and group of the volume its holder acts, where it says so.
    ids: Option<(u32, u32)>,
}

/// A credential on its way to the group.
#[derive(Debug)]
struct OnItsWay {
    chain: Chain,
    name: PathBuf,
    answer: JoinHandle<Result<(), CallError>>,
}

/// The credentials of somebody whom the group file does not name.
#[derive(Debug)]
pub struct Guest {
    group: Group,
    key: KeyPair,
    places: Vec<PathBuf>,
    shares: Shares,
    acting: Acting,
    let_in: LetIn,
    held: BTreeMap<Bytes, Held>,
    names: Names,
    /// What the group has, or does not take.
    bringing: Bringing,
    on_its_way: Option<OnItsWay>,
    /// What was said last of each file that is of no use.
    complaints: BTreeMap<PathBuf, String>,
}

impl Guest {
    /// Reads what there is now. Waits for what was named and begins in a moment.
    ///
    /// # Errors
    /// If a file that was named is of no use. A directory may be empty yet.
    pub async fn new(group: &Group, key: KeyPair, places: &[PathBuf]) -> Result<Guest> {
        if group.owner().is_none() {
            bail!("the group has no owner, so nobody comes in by a credential");
        }
        if group.is_client(&key.public()) {
            bail!("the group file names this key: mount without --credential");
        }
        let mut guest = Guest {
            group: group.clone(),
            key,
            places: places.to_vec(),
            shares: Shares::default(),
            acting: Acting::default(),
            let_in: LetIn::default(),
            held: BTreeMap::new(),
            names: Names::default(),
            bringing: Bringing::default(),
            on_its_way: None,
            complaints: BTreeMap::new(),
        };
        for place in places.iter().filter(|place| !place.is_dir()) {
            guest.begun(place).await?;
        }
        guest.look();
        if guest.held.is_empty() {
            say!(
                "no credential here is for the key {} yet: the mount is empty until one comes",
                guest.key.public()
            );
        }
        Ok(guest)
    }

    /// With which it comes to the replicas: the credential that holds longest. Without one they let nobody in.
    pub fn identity(&self) -> Identity {
        match self.longest() {
            Some(chain) => Identity::of_guest(&self.key, chain),
            None => Identity::new(&self.key),
        }
    }

    /// The volume as it is for this guest, by a session of its own.
    pub fn volume(&self, session: &Session) -> Volume {
        Volume::of_guest(session.clone(), self.let_in.clone())
    }

    /// What the mount begins with.
    pub fn start(&self) -> Start {
        let one_file = self.places.len() == 1 && !self.places[0].is_dir();
        match self.held.values().next() {
            Some(held) if one_file && held.subtree => {
                Start::Shared(held.object, self.acting.clone())
            }
            _ => Start::Shares(self.shares.clone(), self.acting.clone()),
        }
    }

    /// Brings credentials to the group, now and again: those that have come since, and all when the session is another.
    pub async fn keep(mut self, session: Session, volume: Volume) {
        let mut shown = self.longest();
        loop {
            self.look();
            if self.longest() != shown {
                session.renew(&self.group, &self.identity());
                shown = self.longest();
            }
            // Who is not answered has to look at its files meanwhile: perhaps all of them have ended, or one comes by which it is let in.
            let _ = tokio::time::timeout(PERIOD, self.bring(&session, &volume)).await;
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Brings the credentials that the group has not, one after the other. Who gives up goes on where it was with the next call.
    pub async fn bring(&mut self, session: &Session, volume: &Volume) {
        let held: Vec<&Chain> = self.held.values().map(|held| &held.chain).collect();
        self.bringing.begin(&held);
        let left: Vec<Chain> = without_place(&held).into_iter().cloned().collect();
        self.arrived(session).await;
        if self.bringing.looks() {
            let generation = session.generation();
            let found = tokio::time::timeout(PERIOD, sharing::all_grants(volume, None)).await;
            if let Ok(Ok(found)) = found {
                self.bringing.found(generation, |chain| {
                    let bytes = chain.to_bytes();
                    let mut found = found.iter();
                    found.any(|kept| !kept.is_revoked && kept.chain == bytes)
                });
            }
        }
        for (name, Held { chain, .. }) in self.held.clone() {
            let name = PathBuf::from(String::from_utf8_lossy(&name).into_owned());
            if left.contains(&chain) {
                let why = "the group keeps no more credentials of this key, or no more links in them, and others end later: it is not brought";
                self.complain(&name, why.into());
                continue;
            }
            if !self.bringing.is_due(&chain, session.generation()) {
                continue;
            }
            let put = PutCredential {
                chain: chain.to_bytes().into(),
            };
            let volume = volume.clone();
            let answer = tokio::spawn(async move {
                let put = volume.put_credential(&Who::root(), put).await;
                put.map(drop)
            });
            self.on_its_way = Some(OnItsWay {
                chain,
                name,
                answer,
            });
            self.arrived(session).await;
        }
    }

    /// Returns when there is an answer to what is on its way, if something is. It stays on its way where nobody waits for that: another attempt would be
    /// ordered besides.
    async fn arrived(&mut self, session: &Session) {
        let Some(OnItsWay { answer, .. }) = &mut self.on_its_way else {
            return;
        };
        let outcome = answer.await.unwrap_or(Err(CallError::Lost));
        let Some(OnItsWay { chain, name, .. }) = self.on_its_way.take() else {
            return;
        };
        // The session may have been opened for it.
        let generation = session.generation().max(1);
        self.bringing.note(&chain, generation, outcome);
        if let Err(why @ (CallError::Refused(_) | CallError::Garbled)) = outcome {
            self.complain(&name, format!("the group does not take it: {why}"));
        }
    }

    fn longest(&self) -> Option<Chain> {
        let longest = self.held.values().max_by_key(|held| held.until);
        longest.map(|held| held.chain.clone())
    }

    /// Looks at all places again, and has the mount show what there is.
    fn look(&mut self) {
        let mut held = BTreeMap::new();
        let mut files = self.files();
        let all = Path::new("--credential");
        match names::bound(&mut files) {
            Some(why) => self.complain(all, why),
            None => drop(self.complaints.remove(all)),
        }
        self.names.retain(&files);
        for file in files {
            match self.read(&file) {
                Ok(found) => {
                    self.complaints.remove(&file);
                    held.insert(self.names.of(&file), found);
                }
                Err(why) => self.complain(&file, format!("{why:#}")),
            }
        }
        self.let_in.set(!held.is_empty());
        self.held = held;
        let objects = self
            .held
            .iter()
            .map(|(name, held)| (name.clone(), held.object));
        self.shares.set(objects.collect());
        self.acting.set(self.held.values().map(|held| held.ids));
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for place in &self.places {
            let Ok(entries) = std::fs::read_dir(place) else {
                files.push(place.clone());
                continue;
            };
            let paths = entries.flatten().map(|entry| entry.path());
            let mut found: Vec<PathBuf> = paths
                .filter(|path| path.extension() == Some(OsStr::new(EXTENSION)))
                .collect();
            found.sort();
            files.extend(found);
        }
        files
    }

    fn read(&self, file: &Path) -> Result<Held> {
        let chain = credential::read(file)?.chain;
        judge(&self.group, &self.key.public(), &chain)
            .with_context(|| format!("the credential in {}", file.display()))
    }

    /// Returns when a file that was named can be used. Whoever signed it may have a clock that is ahead of this one.
    async fn begun(&self, file: &Path) -> Result<()> {
        let mut has_said = false;
        loop {
            let Err(why) = self.read(file) else {
                return Ok(());
            };
            let wait = match why.downcast_ref() {
                Some(Refusal::NotYet(from)) => from.saturating_sub(credential::now()),
                _ => return Err(why),
            };
            if wait > SOON {
                return Err(why);
            }
            if !has_said {
                say!("quorate: {why:#}: waiting for that, {wait} s");
                has_said = true;
            }
            tokio::time::sleep(Duration::from_secs(wait.max(1))).await;
        }
    }

    fn complain(&mut self, file: &Path, why: String) {
        if self.complaints.get(file) != Some(&why) {
            say!("quorate: {}: {why}", file.display());
            self.complaints.insert(file.into(), why);
        }
    }
}

/// The credential, if it is one that this key can use now.
fn judge(group: &Group, key: &PublicKey, chain: &Chain) -> Result<Held> {
    let owner = group.owner();
    let trust = Trust {
        volume: VolumeId(group.id()),
        owners: owner.as_slice(),
    };
    let grant = chain.verify(&trust).map_err(|why| anyhow!("{why}"))?;
    if grant.subject != *key {
        bail!(
            "it is for the key {}, and this one is {key}: a copy is worth nothing without its key",
            grant.subject
        );
    }
    let now = credential::now();
    let holds = grant.holds(*key, now, Rights::NONE);
    holds?;
    let scope = chain
        .links()
        .last()
        .context("a chain has a link")?
        .terms
        .scope;
    let object = u64::try_from(scope.object.0).context("there is no such object")?;
    Ok(Held {
        until: grant.window.not_after,
        object: Ino(object),
        subtree: scope.subtree,
        ids: grant.ids,
        chain: chain.clone(),
    })
}

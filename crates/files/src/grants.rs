//! Credentials that were brought: kept while they hold, listed, and let go of when they end.
//!
//! A chain is verified once, when it comes. What is kept is its bytes, in rows that nobody else writes; the rest is read from them again.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::{Chain, Grant, Rights, Trust, Use, VolumeId, verify::Reach};
use quorate_state::Fault;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, PublicKey};

use crate::answer::{self, Answer, KeptGrant};
use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::layout::{
    self, EXPIRED_PER_OP, MAX_GRANTS, MAX_GRANTS_PER_SUBJECT, MAX_LINKS_PER_SUBJECT, SWEPT_PER_OP,
    Sharing, Written, tag,
};
use crate::op::{GrantPlace, Grants, MAX_ROWS, PassedOn, PutCredential};
use crate::types::Ino;
use crate::walk::{Walk, object, steps};

/// How much of an object's path is told.
pub(crate) const MAX_PATH_BYTES: usize = 1024;
/// A page of a listing ends here: a result may have little more than 1 MiB.
const MAX_PAGE_BYTES: usize = 512 << 10;

/// How many rows that end are looked through for a credential, where there are as many as there can be.
const ENDS_LOOKED_AT: usize = 256;

/// And where so many steps were gone for its rows, up from what their links are about: each may be deep down and have many names.
const MAX_PAGE_STEPS: usize = 8_192;

/// A credential that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub bytes: Bytes,
    pub chain: Chain,
    pub grant: Grant,
}

impl Kept {
    fn read(key: &[u8], bytes: Bytes) -> Result<Kept, Fault> {
        let chain = Chain::from_bytes(bytes.clone()).map_err(|e| Fault::value(key, e))?;
        let grant = chain.verified_before();
        Ok(Kept {
            bytes,
            chain,
            grant,
        })
    }

    /// By whose hands it has come: the subjects of all links but the last, the first one first.
    fn hosts(&self) -> Vec<PublicKey> {
        let reaches = self.grant.reaches.iter().skip(1);
        reaches.map(|reach| reach.issuer).collect()
    }

    fn key(&self) -> Bytes {
        layout::grant_key(self.grant.subject, self.grant.id)
    }

    /// The rows by which it is found from each link that it was passed on from.
    fn below_keys(&self) -> impl Iterator<Item = Bytes> {
        let above = self.grant.reaches.iter().rev().skip(1);
        above.map(|link| layout::below_key(link.id, self.grant.subject, self.grant.id))
    }
}

/// The links with a byte quota.
pub(crate) fn rationed(grant: &Grant) -> impl Iterator<Item = (usize, &Reach)> {
    let reaches = grant.reaches.iter().enumerate();
    reaches.filter(|(_, reach)| reach.quota.is_some())
}

/// The objects of a credential's links, each once, the last link's first.
fn objects(grant: &Grant) -> Vec<Ino> {
    let mut objects = Vec::new();
    for reach in grant.reaches.iter().rev() {
        let ino = u64::try_from(reach.scope.object.0).map_or(Ino(0), Ino);
        if !objects.contains(&ino) {
            objects.push(ino);
        }
    }
    objects
}

/// The ways of the objects that a page of a listing tells of. Each is read once; the steps count as often as they are looked at, since each link is
/// held against them.
#[derive(Default)]
struct Ways {
    known: BTreeMap<Ino, Arc<[Walk]>>,
    steps: usize,
}

impl Ways {
    /// None where the object is gone.
    fn of(&mut self, fs: &Fs<'_, '_>, ino: Ino) -> Done<Arc<[Walk]>> {
        let walks = match self.known.get(&ino) {
            Some(walks) => {
                self.steps += walks.iter().map(Vec::len).sum::<usize>();
                return Ok(walks.clone());
            }
            None => match fs.walks_and_steps(ino, true) {
                Ok((walks, steps)) => {
                    self.steps += steps;
                    walks
                }
                Err(Stop::Refused(_)) => {
                    self.steps += 1;
                    Vec::new()
                }
                Err(fault) => return Err(fault),
            },
        };
        let walks: Arc<[Walk]> = walks.into();
        self.known.insert(ino, walks.clone());
        Ok(walks)
    }
}

impl Fs<'_, '_> {
    /// Agreed time in whole seconds.
    pub fn second(&self) -> u64 {
        self.call.now.0 / 1_000_000_000
    }

    pub fn put_credential(&mut self, op: &PutCredential) -> Done<Answer> {
        let owner = self.admission.owner.ok_or(Errno::ENOTSUP)?;
        let chain = Chain::from_bytes(op.chain.clone()).map_err(|_| Errno::EINVAL)?;
        // What costs little comes before signatures.
        if chain.subject() != self.call.client && !is_on(Mutant::ThievesKept) {
            return Err(Errno::EPERM.into());
        }
        if chain.links().last().map(|link| link.terms.window.not_after) < Some(self.second()) {
            return Err(Errno::EACCES.into());
        }
        let volume = VolumeId(self.admission.volume);
        if chain.volume() != volume || chain.owner() != owner {
            return Err(Errno::EINVAL.into());
        }
        // A copy, so that the state does not keep the whole request alive.
        let kept = Kept {
            bytes: Bytes::copy_from_slice(&op.chain),
            grant: chain.verified_before(),
            chain,
        };
        if self.is_revoked(&kept)? {
            return Err(Errno::EACCES.into());
        }
        // Mounts bring theirs again with each session: what is kept, signatures too, was verified when it came.
        let known = self.txn.get(&kept.key())?;
        if known.as_ref() != Some(&kept.bytes) {
            let trust = Trust {
                volume,
                owners: &[owner],
            };
            let verified = kept.chain.verify(&trust);
            verified.map_err(|_| Errno::EINVAL)?;
        }
        self.tidy()?;
        let id = kept.grant.id;
        match self.txn.get(&kept.key())? {
            None => self.keep(&kept)?,
            // One that was kept before there were these rows gets them when it is brought again.
            Some(_) => self.list_below(&kept)?,
        }
        Ok(Answer::Granted(id))
    }

    /// Keeps a credential that holds.
    fn keep(&mut self, kept: &Kept) -> Done<()> {
        self.make_room(kept)?;
        let hosts = kept.hosts();
        let mut sharing = self.sharing()?;
        if sharing.grants >= MAX_GRANTS {
            self.drop_first_to_end()?;
            sharing = self.sharing()?;
        }
        sharing.grants += 1;
        self.put_sharing(&sharing);
        self.count_hosts(&hosts, 1)?;
        for (at, reach) in rationed(&kept.grant) {
            let key = layout::written_key(reach.id);
            if self.txn.get(&key)?.is_some() {
                continue;
            }
            // The link's own end, which others that are passed on from it may reach.
            let until = kept.chain.links()[at].terms.window.not_after;
            let above = &hosts[..at];
            let written = Written {
                bytes: 0,
                hosts: above.into(),
                until,
            };
            self.put(key.clone(), &written);
            self.txn.put(layout::expiry_key(until, &key), Bytes::new());
            self.count_hosts(above, 1)?;
        }
        let room = MAX_GRANTS - sharing.grants;
        for (place, host) in hosts.iter().enumerate() {
            let passed_on: Option<u32> = self.load(&layout::host_key(*host))?;
            if passed_on > Some(layout::most_passed_on(place, room)) {
                return Err(Errno::EDQUOT.into());
            }
        }
        let key = kept.key();
        let until = kept.grant.window.not_after;
        self.txn.put(layout::expiry_key(until, &key), Bytes::new());
        self.txn.put(key, kept.bytes.clone());
        self.list_below(kept)?;
        self.counters.shared += 1;
        Ok(())
    }

    /// Has a credential found from each link that it was passed on from.
    fn list_below(&mut self, kept: &Kept) -> Done<()> {
        for key in kept.below_keys() {
            if self.txn.get(&key)?.is_none() {
                self.txn.put(key, Bytes::new());
            }
        }
        Ok(())
    }

    /// Counts something for all who have passed it on.
    fn count_hosts(&mut self, hosts: &[PublicKey], change: i32) -> Done<()> {
        for host in hosts {
            self.count(layout::host_key(*host), change)?;
        }
        Ok(())
    }

    /// Lets go of the credential that ends first of all. What else ends is looked through for it, not without bound.
    fn drop_first_to_end(&mut self) -> Done<()> {
        let ends = self.scan(&[tag::EXPIRY], &[tag::EXPIRY + 1], ENDS_LOOKED_AT)?;
        let mut rows = ends.iter().map(|(key, _)| key.slice(9..));
        let row = rows.find(|row| row.first() == Some(&tag::GRANT));
        let row = row.ok_or(Errno::ENOSPC)?;
        let bytes = self.txn.get(&row)?.ok_or_else(|| damaged(&row))?;
        self.drop_grant(&Kept::read(&row, bytes)?)
    }

    /// Lets go of those of the same subject that end first, until there is room for one more. What a guest's operations cost grows with
    /// the links of its credentials, so they are counted too.
    fn make_room(&mut self, kept: &Kept) -> Done<()> {
        let mut others = self.grants_of(kept.grant.subject)?;
        others.sort_by_key(|k| (k.grant.window.not_after, k.grant.id));
        let length = |kept: &Kept| kept.chain.links().len();
        let mut links = length(kept) + others.iter().map(length).sum::<usize>();
        let mut grants = 1 + others.len();
        for first in &others {
            if grants <= MAX_GRANTS_PER_SUBJECT && links <= MAX_LINKS_PER_SUBJECT {
                break;
            }
            self.drop_grant(first)?;
            grants -= 1;
            links -= length(first);
        }
        Ok(())
    }

    fn drop_grant(&mut self, kept: &Kept) -> Done<()> {
        let key = kept.key();
        let until = kept.grant.window.not_after;
        self.txn.delete(layout::expiry_key(until, &key));
        self.txn.delete(key);
        for key in kept.below_keys() {
            self.txn.delete(key);
        }
        let mut sharing = self.sharing()?;
        sharing.grants -= 1;
        self.put_sharing(&sharing);
        self.count_hosts(&kept.hosts(), -1)
    }

    /// The credentials of a key, in the order of their digests. Those that have ended or are revoked may be among them.
    pub fn grants_of(&self, subject: PublicKey) -> Done<Vec<Kept>> {
        let (from, to) = layout::grants_of(subject);
        let rows = self.scan(&from, &to, MAX_GRANTS_PER_SUBJECT)?;
        let kept = rows.into_iter().map(|(key, bytes)| Kept::read(&key, bytes));
        Ok(kept.collect::<Result<_, _>>()?)
    }

    /// One credential of a key.
    pub fn grant_of(&self, subject: PublicKey, id: Digest) -> Done<Option<Kept>> {
        let key = layout::grant_key(subject, id);
        let bytes = self.txn.get(&key)?;
        Ok(bytes.map(|bytes| Kept::read(&key, bytes)).transpose()?)
    }

    /// Whether a credential holds now: it has begun, has not ended, and is not revoked.
    pub fn is_in_force(&self, kept: &Kept) -> Done<bool> {
        Ok(self.standing(kept)?.0)
    }

    /// Whether a credential holds now, and until which second that does not change by itself.
    pub fn standing(&self, kept: &Kept) -> Done<(bool, u64)> {
        let window = &kept.grant.window;
        let now = self.second();
        let late = u64::from(is_on(Mutant::LateEnd));
        Ok(if now < window.not_before {
            (false, window.not_before - 1)
        } else if now > window.not_after.saturating_add(late) {
            (false, u64::MAX)
        } else {
            match self.revoked_until(kept)? {
                Some(until) => (false, until),
                None => (true, window.not_after),
            }
        })
    }

    pub fn sharing(&self) -> Done<Sharing> {
        let sharing = self.load(&layout::sharing_key())?;
        Ok(sharing.unwrap_or(Sharing {
            grants: 0,
            revocations: 0,
            sweep: None,
            audited: 0,
            audit: Digest::ZERO,
            untold: 0,
        }))
    }

    pub fn put_sharing(&mut self, sharing: &Sharing) {
        self.put(layout::sharing_key(), sharing);
    }

    /// Lets go of a few rows that have ended or are revoked.
    pub fn tidy(&mut self) -> Done<()> {
        // Below the first key of this second: all that ended before it.
        let from = layout::expiry_key(0, &[]);
        let to = layout::expiry_key(self.second(), &[]);
        for (key, _) in self.scan(&from, &to, EXPIRED_PER_OP)? {
            let row = key.slice(9..);
            match row.first() {
                Some(&tag::GRANT) => {
                    let bytes = self.txn.get(&row)?.ok_or_else(|| damaged(&row))?;
                    self.drop_grant(&Kept::read(&row, bytes)?)?;
                }
                Some(&tag::WRITTEN) => {
                    let written: Written = self.load(&row)?.ok_or_else(|| damaged(&row))?;
                    self.txn.delete(row);
                    self.txn.delete(key);
                    self.count_hosts(&written.hosts, -1)?;
                }
                Some(&tag::REVOCATION) => self.drop_revocation(&row)?,
                _ => return Err(damaged(&key).into()),
            }
        }
        self.sweep()
    }

    /// Looks for credentials that are revoked, so that they take no place from others.
    fn sweep(&mut self) -> Done<()> {
        let Some(from) = self.sharing()?.sweep else {
            return Ok(());
        };
        let found = self.scan(&from, &[tag::GRANT + 1], SWEPT_PER_OP + 1)?;
        for (key, bytes) in found.iter().take(SWEPT_PER_OP) {
            let kept = Kept::read(key, bytes.clone())?;
            if self.is_revoked(&kept)? {
                self.drop_grant(&kept)?;
            }
        }
        let mut sharing = self.sharing()?;
        sharing.sweep = found.get(SWEPT_PER_OP).map(|(key, _)| key.clone());
        let again = layout::sweep_again_key();
        if sharing.sweep.is_none() && self.txn.get(&again)?.is_some() {
            self.txn.delete(again);
            sharing.sweep = Some(Bytes::from_static(&[tag::GRANT]));
        }
        self.put_sharing(&sharing);
        Ok(())
    }

    /// Something more is revoked. A search that goes on comes to its end first, or whoever revokes all the time would keep it at the beginning.
    pub fn sweep_for_more(&mut self) -> Done<()> {
        let first = Bytes::from_static(&[tag::GRANT]);
        let mut sharing = self.sharing()?;
        match &sharing.sweep {
            Some(at) if *at != first => self.txn.put(layout::sweep_again_key(), Bytes::new()),
            _ => {
                sharing.sweep = Some(first);
                self.put_sharing(&sharing);
            }
        }
        Ok(())
    }

    pub fn grants(&mut self, op: &Grants) -> Done<Answer> {
        if op.count == 0 {
            return Err(Errno::EINVAL.into());
        }
        let limit = op.count.min(MAX_ROWS) as usize;
        self.may_ask_about(op.about)?;
        let own = layout::grants_of(self.call.client);
        let (first, end) = match self.admission.is_member(&self.call.client) {
            true => (
                Bytes::from_static(&[tag::GRANT]),
                Bytes::from_static(&[tag::GRANT + 1]),
            ),
            false => own,
        };
        // The key after that of the last row: there is none between.
        let after = |place: &GrantPlace| {
            let key = layout::grant_key(place.subject, place.id);
            Bytes::from([&key[..], &[0]].concat())
        };
        let from = op.after.as_ref().map_or(first.clone(), after).max(first);
        let found = match from < end {
            true => self.scan(&from, &end, limit + 1)?,
            false => Vec::new(),
        };
        self.tell(found, limit, op.about)
    }

    pub fn passed_on(&mut self, op: &PassedOn) -> Done<Answer> {
        if op.count == 0 {
            return Err(Errno::EINVAL.into());
        }
        let limit = op.count.min(MAX_ROWS) as usize;
        if !self.admission.is_member(&self.call.client) && !is_on(Mutant::SharesOpen) {
            // What it has no more is no more its to ask about.
            let own = self.grant_of(self.call.client, op.link)?;
            let in_force = match &own {
                Some(own) => self.is_in_force(own)?,
                None => false,
            };
            if !in_force {
                return Err(Errno::EPERM.into());
            }
        }
        self.may_ask_about(op.about)?;
        let (first, end) = layout::below_range(op.link);
        // The key after that of the last row: there is none between.
        let after = |place: &GrantPlace| {
            let key = layout::below_key(op.link, place.subject, place.id);
            Bytes::from([&key[..], &[0]].concat())
        };
        let from = op.after.as_ref().map_or(first, after);
        let rows = match from < end {
            true => self.scan(&from, &end, limit + 1)?,
            false => Vec::new(),
        };
        let mut found = Vec::new();
        for (row, _) in rows {
            let [subject, id] = [1, 2].map(|at| layout::key_at(&row, at));
            let (subject, id) = subject.zip(id).ok_or_else(|| damaged(&row))?;
            let key = layout::grant_key(PublicKey(subject), Digest(id));
            let bytes = self.txn.get(&key)?.ok_or_else(|| damaged(&row))?;
            found.push((key, bytes));
        }
        self.tell(found, limit, op.about)
    }

    /// Where an object is that it may not look at is nothing that a guest can ask.
    fn may_ask_about(&self, about: Option<Ino>) -> Done<()> {
        let Some(about) = about.filter(|_| !self.admission.is_member(&self.call.client)) else {
            return Ok(());
        };
        let guest = self.guest(self.call.client)?;
        match self.rights_on(&guest, about)?.contains(Rights::LOOKUP) {
            true => Ok(()),
            false => Err(Errno::EACCES.into()),
        }
    }

    /// A page of a listing: so many of these rows at most, where there is one more if there are more.
    fn tell(&self, found: Vec<(Bytes, Bytes)>, limit: usize, about: Option<Ino>) -> Done<Answer> {
        let mut more = found.len() > limit;
        let (mut next, mut bytes_told) = (None, 0);
        let mut ways = Ways::default();
        let mut grants = Vec::new();
        for (key, bytes) in found.into_iter().take(limit) {
            // Rows may be as long as chains and paths can be; what follows comes with the next page.
            bytes_told += bytes.len() + MAX_PATH_BYTES;
            let kept = Kept::read(&key, bytes)?;
            if (bytes_told > MAX_PAGE_BYTES || ways.steps > MAX_PAGE_STEPS) && next.is_some() {
                more = true;
                break;
            }
            let objects = objects(&kept.grant);
            // Whether it is revoked is asked of each link for each one above it.
            let links = kept.grant.reaches.len();
            ways.steps += links * (links + 1) / 2;
            next = Some(GrantPlace {
                subject: kept.grant.subject,
                id: kept.grant.id,
            });
            let reaches = self.reaches(&kept.grant, &objects, &mut ways)?;
            // Where it comes to nothing, it is for people to see where it was to come to.
            let place = reaches.or(objects.first().copied()).unwrap_or(Ino(0));
            if !self.is_about(&kept, place, about, &mut ways)? {
                continue;
            }
            let written = rationed(&kept.grant).map(|(_, reach)| self.written_under(reach));
            let is_told = self.admission.is_member(&self.call.client);
            grants.push(KeptGrant {
                written: written.collect::<Done<_>>()?,
                reaches,
                path: match is_told {
                    true => self.path_of(place, &mut ways)?,
                    false => None,
                },
                is_revoked: self.is_revoked(&kept)?,
                chain: kept.bytes,
            });
        }
        let next = next.filter(|_| more);
        Ok(Answer::Grants(answer::Grants { grants, next }))
    }

    /// Where an object is, for people; no longer than a listing can bear.
    fn path_of(&self, ino: Ino, ways: &mut Ways) -> Done<Option<Bytes>> {
        let walks = ways.of(self, ino)?;
        let Some(walk) = walks.first() else {
            return Ok(None);
        };
        if ino == Ino::ROOT {
            return Ok(Some(Bytes::from_static(b"/")));
        }
        let names = walk.iter().rev().map(|(_, name)| &name[..]);
        let names: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
        if names.len() + 1 != walk.len() || names.is_empty() {
            return Ok(None);
        }
        let path = names.join(&b'/');
        let from = path.len().saturating_sub(MAX_PATH_BYTES);
        Ok(Some(Bytes::copy_from_slice(&path[from..])))
    }

    /// Which of the objects of a credential's links is in the scope of all of them. There is one at most: all others are above it.
    fn reaches(&self, grant: &Grant, objects: &[Ino], ways: &mut Ways) -> Done<Option<Ino>> {
        for ino in objects {
            let walks = ways.of(self, *ino)?;
            let is_in = |walk: &Walk| {
                let u = Use {
                    subject: grant.subject,
                    now: grant.window.not_before,
                    rights: Rights::NONE,
                    walk: &steps(walk),
                    name: None,
                };
                grant.covers(&u).is_ok()
            };
            if walks.iter().any(is_in) {
                return Ok(Some(*ino));
            }
        }
        Ok(None)
    }

    /// Whether a credential that comes to a place is about an object, something in it, or a tree that it is in.
    fn is_about(&self, kept: &Kept, place: Ino, about: Option<Ino>, ways: &mut Ways) -> Done<bool> {
        let (Some(about), Some(last)) = (about, kept.grant.reaches.last()) else {
            return Ok(about.is_none());
        };
        if place == about {
            return Ok(true);
        }
        let mut is_below = |low: Ino, high: Ino| {
            let walks = ways.of(self, low)?;
            let mut steps = walks.iter().flatten();
            Ok::<bool, Stop>(steps.any(|(step, _)| *step == object(high)))
        };
        let is_in_it = last.scope.subtree && is_below(about, place)?;
        Ok(is_in_it || is_below(place, about)?)
    }

    /// How much was written under a link.
    pub fn written_under(&self, reach: &Reach) -> Done<u64> {
        let written: Option<Written> = self.load(&layout::written_key(reach.id))?;
        Ok(written.map_or(0, |written| written.bytes))
    }
}

fn damaged(key: &[u8]) -> Fault {
    Fault::value(key, "what it says is to go is not there")
}

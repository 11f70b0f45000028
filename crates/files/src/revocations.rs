//! Taking back what was granted.
//!
//! A revocation is one row, whatever it matches: credentials are held against these rows at each use, so it counts from the operation
//! after it on, for what was brought before and for what is brought later. What it matches lies below the link by which the revoker has
//! the right; the owner's lies below none.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::Rights;
use quorate_state::Fault;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Decode, Digest};

use crate::answer::{self, Answer, KeptRevocation};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::grants::Kept;
use crate::layout::{self, MAX_REVOCATIONS, MAX_REVOCATIONS_PER_GRANT, Revocation, revocation_key};
use crate::op::{MAX_ROWS, Restore, RevocationPlace, Revocations, Revoke, Revoked, Serial};
use crate::types::Nothing;

impl Fs<'_, '_> {
    /// Below which link the caller may take back by a credential of its own, or the owner by none; and until which second.
    fn revoker(&self, by: Option<Digest>) -> Done<(Digest, u64)> {
        let owner = self.admission.owner.ok_or(Errno::ENOTSUP)?;
        let Some(id) = by else {
            return match self.call.client == owner {
                true => Ok((Digest::ZERO, u64::MAX)),
                false => Err(Errno::EPERM.into()),
            };
        };
        let kept = self.grant_of(self.call.client, id)?;
        let kept = kept.ok_or(Errno::EPERM)?;
        match kept.grant.rights.contains(Rights::REVOKE) && self.is_in_force(&kept)? {
            true => Ok((id, kept.grant.window.not_after)),
            false => Err(Errno::EPERM.into()),
        }
    }

    pub fn revoke(&mut self, op: &Revoke) -> Done<Answer> {
        let (under, end) = self.revoker(op.by)?;
        // It would match nothing.
        if op.until.is_some_and(|until| until < self.second()) {
            return Err(Errno::EINVAL.into());
        }
        self.tidy()?;
        let until = op.until.map_or(end, |until| until.min(end));
        let below = match &op.what {
            Revoked::Epoch(of) => of.serial,
            Revoked::Serial(_) | Revoked::Key(_) => 0,
        };
        let mut new = Revocation { below, until };
        let key = revocation_key(under, &op.what);
        match self.load::<Revocation>(&key)? {
            // It says as much already.
            Some(old) if old.below >= new.below && old.until >= new.until => {
                return Ok(Answer::Done(Nothing));
            }
            Some(old) => {
                self.txn.delete(layout::expiry_key(old.until, &key));
                // Taking back once more gives nothing back.
                new.below = new.below.max(old.below);
                new.until = new.until.max(old.until);
            }
            None => self.count_revocation(under)?,
        }
        self.txn
            .put(layout::expiry_key(new.until, &key), Bytes::new());
        self.put(key, &new);
        self.counters.shared += 1;
        self.sweep_for_more()?;
        Ok(Answer::Done(Nothing))
    }

    /// Ends a revocation. What it took back and was let go of since is not there before it is brought again.
    pub fn restore(&mut self, op: &Restore) -> Done<Answer> {
        let is_owner = self.admission.owner == Some(self.call.client);
        let under = match op.by {
            // The owner answers for all that is below it.
            Some(id) if is_owner => id,
            by => self.revoker(by)?.0,
        };
        let key = revocation_key(under, &op.what);
        if self.txn.get(&key)?.is_none() {
            return Err(Errno::ENOENT.into());
        }
        self.drop_revocation(&key)?;
        self.counters.shared += 1;
        Ok(Answer::Done(Nothing))
    }

    pub fn revocations(&mut self, op: &Revocations) -> Done<Answer> {
        if op.count == 0 {
            return Err(Errno::EINVAL.into());
        }
        if !self.admission.is_member(&self.call.client) {
            return Err(Errno::EPERM.into());
        }
        let limit = op.count.min(MAX_ROWS) as usize;
        let (first, end) = layout::revocations();
        // The key after that of the last row: there is none between.
        let after = |place: &RevocationPlace| {
            let key = revocation_key(place.by.unwrap_or(Digest::ZERO), &place.what);
            Bytes::from([&key[..], &[0]].concat())
        };
        let from = op.after.as_ref().map_or(first, after);
        let found = self.scan(&from, &end, limit + 1)?;
        let rows = found.iter().take(limit).map(|(key, bytes)| {
            let row = Revocation::from_bytes(bytes.clone()).map_err(|e| Fault::value(key, e))?;
            let (under, what) = layout::revoked_by(key, row.below).ok_or_else(|| odd(key))?;
            Ok(KeptRevocation {
                by: (under != Digest::ZERO).then_some(under),
                what,
                until: row.until,
            })
        });
        let revocations = rows.collect::<Result<Vec<_>, Fault>>()?;
        let last = revocations.last().filter(|_| found.len() > limit);
        let next = last.map(|last| RevocationPlace {
            by: last.by,
            what: last.what.clone(),
        });
        Ok(Answer::Revocations(answer::Revocations {
            revocations,
            next,
        }))
    }

    fn count_revocation(&mut self, under: Digest) -> Done<()> {
        let is_owner = under == Digest::ZERO;
        let mut sharing = self.sharing()?;
        let most = match is_owner {
            true => MAX_REVOCATIONS,
            false => MAX_REVOCATIONS / 2,
        };
        if sharing.revocations >= most {
            return Err(Errno::ENOSPC.into());
        }
        sharing.revocations += 1;
        self.put_sharing(&sharing);
        let of_this = self.count(layout::revoker_key(under), 1)?;
        if !is_owner && of_this > MAX_REVOCATIONS_PER_GRANT {
            return Err(Errno::ENOSPC.into());
        }
        Ok(())
    }

    /// Forgets a revocation that has ended.
    pub fn drop_revocation(&mut self, key: &Bytes) -> Done<()> {
        let row: Revocation = self.load(key)?.ok_or_else(|| odd(key))?;
        let under = layout::key_at(key, 0).map(Digest);
        let under = under.ok_or_else(|| odd(key))?;
        self.txn.delete(layout::expiry_key(row.until, key));
        self.txn.delete(key.clone());
        let mut sharing = self.sharing()?;
        sharing.revocations -= 1;
        self.put_sharing(&sharing);
        self.count(layout::revoker_key(under), -1)?;
        Ok(())
    }

    /// Whether a link of a credential is taken back by the owner, or by the holder of a link above it.
    pub fn is_revoked(&self, kept: &Kept) -> Done<bool> {
        Ok(self.revoked_until(kept)?.is_some())
    }

    /// Until which second a credential is taken back; by which revocation of several is not said.
    pub fn revoked_until(&self, kept: &Kept) -> Done<Option<u64>> {
        if self.sharing()?.revocations == 0 {
            return Ok(None);
        }
        let links = kept.chain.links().iter().zip(&kept.grant.reaches);
        // The first so many links stand above, and the last of them is the revoker's.
        for above in 0..links.len() {
            let under = match above.checked_sub(1) {
                None => Digest::ZERO,
                Some(at) => kept.grant.reaches[at].id,
            };
            if self.load::<u32>(&layout::revoker_key(under))?.is_none() {
                continue;
            }
            let first = match (
                is_on(Mutant::SerialStopsThere),
                is_on(Mutant::RevokedBelowAll),
            ) {
                (true, _) => links.len() - 1,
                (_, true) => 0,
                _ => above,
            };
            for (link, reach) in links.clone().skip(first) {
                let of = Serial {
                    issuer: reach.issuer,
                    serial: reach.serial,
                };
                let ways = [
                    Revoked::Serial(of.clone()),
                    Revoked::Key(link.terms.subject),
                    Revoked::Epoch(of),
                ];
                for what in ways {
                    if let Some(until) = self.matches(under, &what)? {
                        return Ok(Some(until));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Until when there is a revocation of this. Of an epoch: of one above the serial.
    fn matches(&self, under: Digest, what: &Revoked) -> Done<Option<u64>> {
        let is_overlooked = match what {
            Revoked::Serial(_) => false,
            Revoked::Key(_) => is_on(Mutant::KeysOverlooked),
            Revoked::Epoch(_) => is_on(Mutant::EpochsOverlooked),
        };
        if is_overlooked {
            return Ok(None);
        }
        let row: Option<Revocation> = self.load(&revocation_key(under, what))?;
        let row = row.filter(|row| {
            let epoch = match what {
                Revoked::Epoch(of) if is_on(Mutant::EpochIncluded) => of.serial <= row.below,
                Revoked::Epoch(of) => of.serial < row.below,
                Revoked::Serial(_) | Revoked::Key(_) => true,
            };
            epoch && self.second() <= row.until
        });
        Ok(row.map(|row| row.until))
    }
}

fn odd(key: &[u8]) -> Fault {
    Fault::value(key, "it is no revocation")
}

//! `quorate revoke`.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::Volume;
use quorate_credential::{Chain, Grant, Trust, VolumeId, calendar};
use quorate_files::Who;
use quorate_files::op::{self, PutCredential, Revoked, Serial};
use quorate_net::Identity;
use quorate_wire::Digest;

use super::credential;
use super::revocations;
use super::sharing::{all_grants, ask, manager, read_kept};
use crate::args::Revoke;

/// How long it is looked which credentials are hit: the revocation does not wait for more.
const COUNTING: Duration = Duration::from_secs(5);

pub fn run(args: &Revoke) -> Result<()> {
    let (group, key) = manager(&args.manager)?;
    let now = credential::now();
    if let Some(until) = args.until.filter(|until| *until < now) {
        bail!(
            "--until: {} UTC is over, so nothing would be taken back",
            calendar::show(until)
        );
    }
    let by = args
        .by
        .as_ref()
        .map(|file| credential::read(file))
        .transpose()?;
    let by = by.map(|read| read.chain);
    let is_owner = group.owner() == Some(key.public());
    if args.under.is_some() && !is_owner {
        bail!("only the owner ends what others have taken back (--under)");
    }
    let is_member = group.is_client(&key.public());
    let identity = match &by {
        None if is_owner => Identity::new(&key),
        None => bail!(
            "the key {} is not the owner's: give your own credential, with the right to revoke (--by)",
            key.public()
        ),
        Some(chain) if chain.subject() != key.public() => {
            bail!("the credential that you revoke by is another key's (--by)")
        }
        Some(_) if is_member => Identity::new(&key),
        Some(chain) => Identity::of_guest(&key, chain.clone()),
    };
    let (what, ends) = match (&args.file, args.holder, args.epoch) {
        (Some(file), _, _) => {
            let owner = group.owner();
            let trust = Trust {
                volume: VolumeId(group.id()),
                owners: owner.as_slice(),
            };
            let chain = credential::read(file)?.chain;
            let (what, ends) = of_file(&chain, &trust, by.as_ref())
                .with_context(|| format!("revoking {}", file.display()))?;
            if ends < now && !args.undo {
                bail!(
                    "revoking {}: it ended with {} UTC, and all that could have been passed on with it",
                    file.display(),
                    calendar::show(ends)
                );
            }
            (what, Some(ends))
        }
        (None, Some(holder), _) => (Revoked::Key(holder), None),
        (None, None, Some(serial)) => {
            let issuer = args.issuer.unwrap_or(key.public());
            (Revoked::Epoch(Serial { issuer, serial }), None)
        }
        (None, None, None) => bail!("say what: a credential, --holder or --epoch"),
    };
    let under = by.as_ref().map(Chain::id);
    if args.undo {
        ask(&group, &identity, async |volume| {
            bring_own(volume, by.as_ref()).await?;
            revocations::end(volume, what, under.or(args.under)).await
        })?;
        tell!(
            "the revocation is ended: what it took back holds when it is brought, as a mount does when it begins"
        );
        return Ok(());
    }
    let hits = ask(&group, &identity, async |volume| {
        bring_own(volume, by.as_ref()).await?;
        // Others are told of their own credentials alone.
        let can_count = is_member || (ends.is_some() && under.is_none() && args.until.is_none());
        let hits = match can_count {
            true => {
                let hits = tokio::time::timeout(COUNTING, hits(volume, &what, under)).await;
                hits.ok().and_then(Result::ok)
            }
            false => None,
        };
        let last_end = hits.as_ref().map(|hits| hits.last_end);
        let until = kept_until(args.until, ends.filter(|_| under.is_none()), last_end);
        let by = under;
        let op = op::Revoke { what, by, until };
        volume.revoke(&Who::root(), op).await.context("revoking")?;
        Ok(hits)
    })?;
    match hits.map(|hits| hits.in_force) {
        Some(1) => tell!("revoked: one credential that the group has"),
        Some(0) => tell!("revoked: no credential that the group has, but what is brought later"),
        Some(count) => tell!("revoked: {count} credentials that the group has"),
        None => tell!("revoked"),
    }
    Ok(())
}

async fn bring_own(volume: &Volume, by: Option<&Chain>) -> Result<()> {
    let Some(chain) = by else {
        return Ok(());
    };
    let chain = chain.to_bytes().into();
    let put = volume
        .put_credential(&Who::root(), PutCredential { chain })
        .await;
    put.map(drop).context("your own credential (--by)")
}

/// Until when a revocation is kept: as is wished; or to the end of all that it matches by what it names, which ends then, and by what the
/// group has. Where one of these is not known, as long as what it hits could last: for good, or to the end of the credential by which
/// it is done.
fn kept_until(wished: Option<u64>, ends: Option<u64>, last_end: Option<u64>) -> Option<u64> {
    wished.or_else(|| Some(ends?.max(last_end?)))
}

/// The last link of a credential, and when all that its issuer could have signed with that serial below the same link has ended. An error
/// where a revocation by the owner, or by the holder of `by`, would not match it.
fn of_file(chain: &Chain, trust: &Trust<'_>, by: Option<&Chain>) -> Result<(Revoked, u64)> {
    let grant = chain
        .verify(trust)
        .map_err(|why| anyhow!("this group would not take it anyway: {why}"))?;
    if let Some(by) = by {
        let above = by.links().len();
        let is_below = grant.reaches.len() > above && grant.reaches[above - 1].id == by.id();
        if !is_below {
            bail!("it was not passed on from the credential that you revoke by (--by)");
        }
    }
    let last = grant.reaches.last().context("a chain has a link")?;
    let of = Serial {
        issuer: last.issuer,
        serial: last.serial,
    };
    // Nothing lasts longer than what it is passed on from.
    let widest = &chain.links()[chain.links().len().saturating_sub(2)].terms;
    Ok((Revoked::Serial(of), widest.window.not_after))
}

/// What a revocation hits, of what the group has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hits {
    /// Credentials that are not revoked yet.
    in_force: usize,
    /// When the last link that it matches ends: serials are the issuer's, and one may have been given twice.
    last_end: u64,
}

async fn hits(volume: &Volume, what: &Revoked, under: Option<Digest>) -> Result<Hits> {
    let mut hits = Hits::default();
    for kept in all_grants(volume, None).await? {
        let chain = read_kept(&kept)?;
        let Some(end) = last_hit(&chain, &chain.verified_before(), what, under) else {
            continue;
        };
        hits.last_end = hits.last_end.max(end);
        hits.in_force += usize::from(!kept.is_revoked);
    }
    Ok(hits)
}

/// When the last of a credential's links ends that a revocation matches; `under`: by the holder of which link.
pub fn last_hit(
    chain: &Chain,
    grant: &Grant,
    what: &Revoked,
    under: Option<Digest>,
) -> Option<u64> {
    let mut reaches = grant.reaches.iter();
    let above = match under {
        None => 0,
        Some(id) => 1 + reaches.position(|reach| reach.id == id)?,
    };
    let links = chain.links().iter().zip(&grant.reaches).skip(above);
    let hit = links.filter(|(link, reach)| match what {
        Revoked::Serial(of) => reach.issuer == of.issuer && reach.serial == of.serial,
        Revoked::Key(key) => link.terms.subject == *key,
        Revoked::Epoch(of) => reach.issuer == of.issuer && reach.serial < of.serial,
    });
    hit.map(|(link, _)| link.terms.window.not_after).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_credential::{ObjectId, Rights, Scope, Terms, Window};
    use quorate_wire::{KeyPair, PublicKey};

    const VOLUME: VolumeId = VolumeId(Digest([7; 32]));

    fn key(number: u8) -> KeyPair {
        KeyPair::from_seed(&[number; 32])
    }

    fn terms(subject: u8, serial: u64) -> Terms {
        Terms {
            subject: key(subject).public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights: Rights::ALL,
            window: Window {
                not_before: 0,
                not_after: 1000 - u64::from(subject),
            },
            depth: 9 - subject,
            serial,
            caveats: Vec::new(),
        }
    }

    fn of(issuer: u8, serial: u64) -> Revoked {
        Revoked::Serial(Serial {
            issuer: key(issuer).public(),
            serial,
        })
    }

    /// What says "revoked" takes something back: a credential of another volume or owner, and one that was not passed on from the one
    /// that it is revoked by, are no use.
    #[test]
    fn what_would_not_be_hit_is_refused() {
        let owners: [PublicKey; 1] = [key(0).public()];
        let trust = Trust {
            volume: VOLUME,
            owners: &owners,
        };
        let bobs = [1, 2].map(|serial| Chain::issue(VOLUME, &key(0), terms(1, serial)).unwrap());
        let carols = bobs
            .each_ref()
            .map(|bob| bob.delegate(&key(1), terms(2, 3)).unwrap());
        let [carol, other] = &carols;
        let dave = carol.delegate(&key(2), terms(3, 4)).unwrap();
        let judged = |chain: &Chain, by| of_file(chain, &trust, by).ok();

        assert_eq!(judged(&bobs[0], None), Some((of(0, 1), 999)));
        assert_eq!(judged(carol, None), Some((of(1, 3), 999)));
        assert_eq!(judged(carol, Some(&bobs[0])), Some((of(1, 3), 999)));
        assert_eq!(judged(&dave, Some(&bobs[0])), Some((of(2, 4), 998)));
        assert_eq!(judged(carol, Some(&bobs[1])), None, "by another of Bob's");
        assert_eq!(judged(other, Some(&bobs[0])), None);
        assert_eq!(judged(&bobs[0], Some(&bobs[0])), None, "by itself");
        assert_eq!(judged(carol, Some(&dave)), None, "by what is below it");

        let elsewhere = VolumeId(Digest([8; 32]));
        let foreign = Chain::issue(elsewhere, &key(0), terms(1, 1)).unwrap();
        assert_eq!(judged(&foreign, None), None, "another volume");
        let foreign = Chain::issue(VOLUME, &key(9), terms(1, 1)).unwrap();
        assert_eq!(judged(&foreign, None), None, "another owner");
        let mut forged = carol.to_bytes();
        *forged.last_mut().unwrap() ^= 1;
        let forged = Chain::from_bytes(forged.into()).unwrap();
        assert_eq!(judged(&forged, None), None, "not signed");
    }

    /// A revocation is not kept for less than what it hits may last, also if that can't be found out in time.
    #[test]
    fn it_is_kept_as_long_as_what_it_hits() {
        assert_eq!(kept_until(Some(5), Some(7), None), Some(5));
        assert_eq!(kept_until(None, Some(7), Some(9)), Some(9));
        assert_eq!(kept_until(None, Some(7), Some(0)), Some(7));
        assert_eq!(kept_until(None, Some(7), None), None);
        assert_eq!(kept_until(None, None, Some(9)), None);
    }

    /// What is said to be hit is what replicas match.
    #[test]
    fn hits_are_below_whoever_revokes() {
        let bob = Chain::issue(VOLUME, &key(0), terms(1, 1)).unwrap();
        let carol = bob.delegate(&key(1), terms(2, 3)).unwrap();
        let hit = |what, under: Option<&Chain>| {
            last_hit(
                &carol,
                &carol.verified_before(),
                &what,
                under.map(Chain::id),
            )
        };
        assert_eq!(hit(of(0, 1), None), Some(999));
        assert_eq!(hit(of(0, 1), Some(&bob)), None);
        assert_eq!(hit(of(1, 3), Some(&bob)), Some(998));
        assert_eq!(hit(of(1, 3), Some(&carol)), None);
        let holder = Revoked::Key(key(2).public());
        assert_eq!(hit(holder, None), Some(998));
        let epoch = |serial| {
            let issuer = key(1).public();
            Revoked::Epoch(Serial { issuer, serial })
        };
        assert_eq!(hit(epoch(3), None), None);
        assert_eq!(hit(epoch(4), Some(&bob)), Some(998));
    }
}

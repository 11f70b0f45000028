//! Whether a chain holds, and what it comes to; whether that covers a use.
//!
//! The two are apart because the first costs signatures and never changes: it is done once, when a chain is brought. The second
//! is asked for each operation, and costs a walk up the tree.

use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, PublicKey};

use crate::{Caveat, Chain, Link, Malformed, ObjectId, Rights, Scope, VolumeId, Window};

/// Why a chain or a use of it is refused. A link's number counts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no chain.
    Malformed(Malformed),
    /// It is for another volume.
    WrongVolume,
    /// Its first issuer is no owner of the volume.
    WrongOwner,
    /// The link's issuer has not the right to pass anything on.
    NotDelegable(usize),
    /// No link may follow there, or the link allows as many to follow as the one before.
    DepthExceeded(usize),
    /// The link is about something that is not in what the one before is about.
    WidenedScope(usize),
    /// The link gives rights that the one before does not.
    WidenedRights(usize),
    /// The link begins before the one before it, or ends after it.
    WidenedTime(usize),
    /// The link's subject is the owner, or a subject before.
    RepeatedKey(usize),
    /// The link gives user ids that the owner's own link does not: who passes on could make others act as whom he can't act as himself.
    OtherIds(usize),
    /// The link's signature is not its issuer's over these terms at this place: changed, in another order, or from another chain.
    BrokenChain(usize),
    /// The chain is another key's.
    WrongSubject,
    /// It begins at this second.
    NotYet(u64),
    /// It ended with this second.
    Expired(u64),
    /// These rights are missing.
    MissingRights(Rights),
    /// The object is not, or no longer, what the link is about.
    OutOfScope(usize),
    /// The link allows no such name.
    WrongName(usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::calendar::show;
        let link = |at: &usize| at.saturating_add(1);
        match self {
            Refusal::Malformed(why) => why.fmt(f),
            Refusal::WrongVolume => write!(f, "it is for another volume"),
            Refusal::WrongOwner => {
                write!(f, "its first link is not signed by an owner of the volume")
            }
            Refusal::WidenedScope(n) => {
                write!(f, "link {} is about more than the link before it", link(n))
            }
            Refusal::WidenedRights(n) => {
                write!(f, "link {} gives rights that its issuer has not", link(n))
            }
            Refusal::WidenedTime(n) => {
                write!(
                    f,
                    "link {} holds at times when the link before it does not",
                    link(n)
                )
            }
            Refusal::OtherIds(n) => write!(
                f,
                "link {} fixes user ids that the owner's link does not fix",
                link(n)
            ),
            Refusal::NotDelegable(n) => {
                write!(f, "the issuer of link {} may not pass anything on", link(n))
            }
            Refusal::DepthExceeded(n) => {
                write!(
                    f,
                    "link {} passes on more often than the link before it allows",
                    link(n)
                )
            }
            Refusal::RepeatedKey(n) => {
                write!(f, "the subject of link {} is in the chain already", link(n))
            }
            Refusal::BrokenChain(n) => write!(
                f,
                "link {} is not signed by its issuer, at this place and with these words",
                link(n)
            ),
            Refusal::WrongSubject => write!(f, "it is another key's"),
            Refusal::NotYet(from) => write!(f, "it does not hold before {} UTC", show(*from)),
            Refusal::Expired(until) => write!(f, "it ended with {} UTC", show(*until)),
            Refusal::MissingRights(rights) => write!(f, "it does not allow: {rights}"),
            Refusal::OutOfScope(n) => write!(f, "the object is not what link {} is about", link(n)),
            Refusal::WrongName(n) => write!(f, "link {} does not allow such a name", link(n)),
        }
    }
}

impl core::error::Error for Refusal {}

impl From<Malformed> for Refusal {
    fn from(why: Malformed) -> Refusal {
        Refusal::Malformed(why)
    }
}

/// What a chain is held against.
#[derive(Clone, Copy, Debug)]
pub struct Trust<'a> {
    /// The volume.
    pub volume: VolumeId,
    /// The keys that may issue first links.
    pub owners: &'a [PublicKey],
}

/// Where one link of a grant reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The link's digest.
    pub id: Digest,
    /// Who signed it.
    pub issuer: PublicKey,
    /// Under which number.
    pub serial: u64,
    /// What it is about.
    pub scope: Scope,
    /// How names directly in its object must begin.
    pub prefix: Option<Bytes>,
    /// How many bytes may be written under it.
    pub quota: Option<u64>,
}

/// What a chain that holds comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The chain's digest.
    pub id: Digest,
    /// Who may.
    pub subject: PublicKey,
    /// What.
    pub rights: Rights,
    /// When.
    pub window: Window,
    /// As which user and group, where that is fixed.
    pub ids: Option<(u32, u32)>,
    /// Where: all of these together.
    pub reaches: Vec<Reach>,
}

/// One object on the way from what an operation is about up to the volume's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The object.
    pub object: ObjectId,
    /// Its name in the next step's object; empty for the last.
    pub name: &'a [u8],
}

/// An operation, as far as a grant must know it.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// The key with which the client's link is authenticated.
    pub subject: PublicKey,
    /// The agreed time, in seconds.
    pub now: u64,
    /// What the operation needs.
    pub rights: Rights,
    /// The object that it is about, and those that it is in, up to the root. The caller bounds how many.
    pub walk: &'a [Step<'a>],
    /// The name in that object that the operation looks up, makes or takes away.
    pub name: Option<&'a [u8]>,
}

impl Chain {
    /// Checks all that does not depend on a use of it: form, volume, owner, that each link narrows the one before, and signatures.
    /// The time is looked at when it is used.
    ///
    /// # Errors
    /// The first [`Refusal`]: link by link in the order of that list, and then signatures, since they cost the most.
    pub fn verify(&self, trust: &Trust) -> Result<Grant, Refusal> {
        if self.volume() != trust.volume {
            return Err(Refusal::WrongVolume);
        }
        if !trust.owners.contains(&self.owner()) {
            return Err(Refusal::WrongOwner);
        }
        narrows(self)?;
        let digests: Vec<Digest> = self.digests().collect();
        // One by one and strictly: chains are checked by other programs too, and what this takes all rules for signatures take. Nothing here is
        // ever checked together, so no link holds in one chain and not in a longer one.
        for (at, (link, digest)) in self.links().iter().zip(&digests).enumerate() {
            if is_on(Mutant::ForgeriesTaken) && at + 1 == digests.len() {
                continue;
            }
            let held = self.issuer(at).verify_strict(digest, &link.signature);
            held.map_err(|_| Refusal::BrokenChain(at))?;
        }
        Ok(self.grant(&digests).expect("a chain has a link"))
    }

    /// What a chain comes to that was verified before. For who has kept its bytes where nobody else writes: nothing is checked.
    pub fn verified_before(&self) -> Grant {
        let digests: Vec<Digest> = self.digests().collect();
        self.grant(&digests).expect("a chain has a link")
    }

    fn grant(&self, digests: &[Digest]) -> Option<Grant> {
        let (last, id) = (self.links().last()?, digests.last()?);
        let links = self.links().iter().zip(digests).enumerate();
        let reaches = links.map(|(at, (link, id))| Reach {
            id: *id,
            issuer: self.issuer(at),
            serial: link.terms.serial,
            scope: link.terms.scope,
            prefix: find(link, |caveat| match caveat {
                Caveat::NamePrefix(prefix) => Some(prefix.clone()),
                _ => None,
            }),
            quota: find(link, |caveat| match caveat {
                Caveat::ByteQuota(bytes) => Some(*bytes),
                _ => None,
            }),
        });
        Some(Grant {
            id: *id,
            subject: last.terms.subject,
            rights: last.terms.rights,
            window: last.terms.window,
            ids: self.links().first().and_then(ids),
            reaches: reaches.collect(),
        })
    }
}

fn find<T>(link: &Link, of: impl Fn(&Caveat) -> Option<T>) -> Option<T> {
    link.terms.caveats.iter().find_map(of)
}

fn ids(link: &Link) -> Option<(u32, u32)> {
    find(link, |caveat| match caveat {
        Caveat::Ids { uid, gid } => Some((*uid, *gid)),
        _ => None,
    })
}

/// Whether each link of a chain gives a part of what the one before it gives.
pub(crate) fn narrows(chain: &Chain) -> Result<(), Refusal> {
    let links = chain.links();
    let mut fixed = None;
    for (at, link) in links.iter().enumerate() {
        let before = &links[..at];
        if let Some(parent) = before.last() {
            within(at, &parent.terms, &link.terms)?;
        }
        let subject = link.terms.subject;
        let repeats = subject == chain.owner() || before.iter().any(|b| b.terms.subject == subject);
        if repeats && !is_on(Mutant::LoopsTaken) {
            return Err(Refusal::RepeatedKey(at));
        }
        let own = ids(link);
        if at == 0 {
            fixed = own;
        } else if own.is_some() && own != fixed && !is_on(Mutant::OthersIds) {
            return Err(Refusal::OtherIds(at));
        }
    }
    Ok(())
}

fn within(at: usize, parent: &crate::Terms, child: &crate::Terms) -> Result<(), Refusal> {
    if !parent.rights.contains(Rights::DELEGATE) && !is_on(Mutant::AnyonesPassedOn) {
        return Err(Refusal::NotDelegable(at));
    }
    let most = match is_on(Mutant::DepthUncounted) {
        true => parent.depth.saturating_add(1),
        false => parent.depth,
    };
    if child.depth >= most {
        return Err(Refusal::DepthExceeded(at));
    }
    // In a subtree any object can be named: whether it is in there is asked at each use, since it can be moved.
    let is_alone = !parent.scope.subtree && !is_on(Mutant::WidenedScope);
    if is_alone && child.scope != parent.scope {
        return Err(Refusal::WidenedScope(at));
    }
    if !parent.rights.contains(child.rights) && !is_on(Mutant::WidenedRights) {
        return Err(Refusal::WidenedRights(at));
    }
    if !parent.window.contains(&child.window) && !is_on(Mutant::WidenedTime) {
        return Err(Refusal::WidenedTime(at));
    }
    Ok(())
}

impl Grant {
    /// Whether it gives a key so many rights at a time, in seconds, wherever that may be.
    ///
    /// # Errors
    /// The first [`Refusal`], in that order.
    pub fn holds(&self, subject: PublicKey, now: u64, rights: Rights) -> Result<(), Refusal> {
        if subject != self.subject && !is_on(Mutant::HolderUnchecked) {
            return Err(Refusal::WrongSubject);
        }
        if now < self.window.not_before {
            return Err(Refusal::NotYet(self.window.not_before));
        }
        let late = u64::from(is_on(Mutant::LateExpiry));
        if now > self.window.not_after.saturating_add(late) {
            return Err(Refusal::Expired(self.window.not_after));
        }
        let missing = rights.without(self.rights);
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Refusal::MissingRights(missing)),
        }
    }

    /// Whether it covers a use: who, when, what, and where. What is written is counted against quotas by the caller.
    ///
    /// The work is bounded by the links and the steps of the walk.
    ///
    /// # Errors
    /// The first [`Refusal`], in that order.
    pub fn covers(&self, u: &Use) -> Result<(), Refusal> {
        self.holds(u.subject, u.now, u.rights)?;
        let first = match is_on(Mutant::LastScopeAlone) {
            true => self.reaches.len().saturating_sub(1),
            false => 0,
        };
        let mut reaches = self.reaches.iter().enumerate().skip(first);
        reaches.try_for_each(|(at, reach)| reach.covers(at, u))
    }
}

impl Reach {
    fn covers(&self, at: usize, u: &Use) -> Result<(), Refusal> {
        let out = Refusal::OutOfScope(at);
        let is_it = |step: &Step| step.object == self.scope.object;
        let above = u.walk.iter().position(is_it).ok_or(out)?;
        if above > 0 && !self.scope.subtree {
            return Err(out);
        }
        let Some(prefix) = &self.prefix else {
            return Ok(());
        };
        // The name by which the link's object is left: of the step below it, or what the operation names in it.
        let name = match above.checked_sub(1) {
            Some(below) => Some(u.walk[below].name),
            None => u.name,
        };
        let looking = Rights::LOOKUP | Rights::READDIR;
        let fits = match name {
            Some(name) if is_on(Mutant::PrefixesConfused) => {
                name.starts_with(prefix) || prefix.starts_with(name)
            }
            Some(name) => name.starts_with(prefix),
            None => looking.contains(u.rights),
        };
        fits.then_some(()).ok_or(Refusal::WrongName(at))
    }
}

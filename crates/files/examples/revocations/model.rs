//! What should be so, without a look at the service: lists that are looked through from the beginning for each question.

use std::collections::{BTreeMap, BTreeSet};

use quorate_files::op::Revoked;
use quorate_files::{Handle, Ino};
use quorate_wire::Digest;

use crate::grants::{About, DIR_NAMES, DIRS, Grant, Link, NAMES};

/// A name of a file: in which directory, and what.
pub type Name = (usize, &'static str);

/// What is taken back, below which link (none: by the owner), and until which second.
#[derive(Clone)]
pub struct TakenBack {
    pub by: Option<Digest>,
    pub what: Revoked,
    pub until: u64,
}

impl TakenBack {
    /// Whether it is about the same. An issuer has one epoch.
    fn is_of(&self, by: Option<Digest>, what: &Revoked) -> bool {
        let is_same = match (&self.what, what) {
            (Revoked::Epoch(one), Revoked::Epoch(other)) => one.issuer == other.issuer,
            (one, other) => one == other,
        };
        self.by == by && is_same
    }

    fn hits(&self, link: &Link) -> bool {
        match &self.what {
            Revoked::Key(key) => *key == link.subject,
            Revoked::Serial(of) => of.issuer == link.issuer && of.serial == link.serial,
            Revoked::Epoch(of) => of.issuer == link.issuer && link.serial < of.serial,
        }
    }
}

/// A file that a guest has opened.
#[derive(Clone)]
pub struct Open {
    pub guest: usize,
    pub file: usize,
    pub handle: Handle,
    /// Whether it was let go of, since the guest was out.
    pub is_gone: bool,
}

#[derive(Clone)]
pub struct Model {
    pub brought: BTreeSet<usize>,
    pub revoked: Vec<TakenBack>,
    /// Whether the second directory is in the first one.
    pub is_nested: bool,
    pub names: [BTreeSet<Name>; 2],
    /// What was written under links with a quota.
    pub written: BTreeMap<Digest, u64>,
    pub open: Vec<Open>,
    /// Which guest has each file locked for itself alone.
    pub locked: [Option<usize>; 2],
}

impl Model {
    pub fn new() -> Model {
        Model {
            brought: BTreeSet::new(),
            revoked: Vec::new(),
            is_nested: false,
            names: [0, 1].map(|file| BTreeSet::from([(file, NAMES[file][0])])),
            written: BTreeMap::new(),
            open: Vec::new(),
            locked: [None; 2],
        }
    }

    pub fn holds(&self, grant: &Grant, now: u64) -> bool {
        let is_hit = |taken: &TakenBack| {
            let below = match taken.by {
                None => Some(0),
                Some(id) => {
                    let at = grant.links.iter().position(|link| link.id == id);
                    at.map(|at| at + 1)
                }
            };
            let links = below.map_or(&[][..], |below| &grant.links[below..]);
            now <= taken.until && links.iter().any(|link| taken.hits(link))
        };
        now <= grant.until && !self.revoked.iter().any(is_hit)
    }

    /// Taking back once more gives nothing back; what is over is forgotten. What is hit is let go of.
    pub fn take_back(&mut self, grants: &[Grant], mut new: TakenBack, now: u64) {
        self.revoked.retain(|old| now <= old.until);
        if let Some(old) = self.give_back(new.by, &new.what) {
            new.until = new.until.max(old.until);
            if let (Revoked::Epoch(new), Revoked::Epoch(old)) = (&mut new.what, old.what) {
                new.serial = new.serial.max(old.serial);
            }
        }
        self.revoked.push(new);
        let is_hit = |grant: &Grant| now <= grant.until && !self.holds(grant, now);
        let hit = self.brought.iter().copied();
        let hit: Vec<usize> = hit.filter(|at| is_hit(&grants[*at])).collect();
        self.brought.retain(|at| !hit.contains(at));
    }

    /// Ends what was taken back, if anything was.
    pub fn give_back(&mut self, by: Option<Digest>, what: &Revoked) -> Option<TakenBack> {
        let at = self.revoked.iter().position(|old| old.is_of(by, what))?;
        Some(self.revoked.swap_remove(at))
    }

    /// The guest's credentials in force, in the order of their digests.
    pub fn in_force(&self, grants: &[Grant], guest: usize, now: u64) -> Vec<usize> {
        let brought = self.brought.iter().copied();
        let own = brought.filter(|at| grants[*at].guest == guest);
        own.filter(|at| self.holds(&grants[*at], now)).collect()
    }

    /// The directories above a name from below, each with the name that is used in it.
    fn way(&self, (dir, name): Name) -> Vec<(Ino, &'static str)> {
        let root = |dir: usize| (Ino::ROOT, DIR_NAMES[dir]);
        match (dir, self.is_nested) {
            (1, true) => vec![(DIRS[1], name), (DIRS[0], DIR_NAMES[1]), root(0)],
            (dir, _) => vec![(DIRS[dir], name), root(dir)],
        }
    }

    /// Those in force that are about a file: by one of its names, all links of it.
    pub fn about(&self, grants: &[Grant], guest: usize, file: usize, now: u64) -> Vec<usize> {
        let covers = |grant: &Grant, way: &[(Ino, &str)]| {
            let is_on = |link: &Link| {
                let About { dir, prefix } = link.about;
                let mut way = way.iter();
                way.any(|(at, name)| *at == dir && name.starts_with(prefix))
            };
            grant.links.iter().all(is_on)
        };
        let mut all = self.in_force(grants, guest, now);
        all.retain(|at| {
            let mut names = self.names[file].iter();
            names.any(|name| covers(&grants[*at], &self.way(*name)))
        });
        all
    }

    /// Has the first of some credentials pay for so many bytes that can, and says whether there is one.
    pub fn pay(&mut self, grants: &[Grant], by: &[usize], bytes: u64) -> bool {
        let rationed = |at: usize| {
            let links = grants[at].links.iter();
            links.filter_map(|link| link.quota.map(|quota| (link.id, quota)))
        };
        let has_room = |at: &usize| {
            rationed(*at).all(|(id, quota)| self.written.get(&id).unwrap_or(&0) + bytes <= quota)
        };
        let Some(payer) = by.iter().copied().find(has_room) else {
            return false;
        };
        for (id, _) in rationed(payer) {
            *self.written.entry(id).or_default() += bytes;
        }
        true
    }

    /// Locks a file for a guest that may do it. Where another has it locked: only if that one could not lock it now.
    pub fn lock(&mut self, grants: &[Grant], guest: usize, file: usize, now: u64) -> bool {
        let other = self.locked[file].filter(|holder| *holder != guest);
        let is_free = other.is_none_or(|other| self.about(grants, other, file, now).is_empty());
        if is_free {
            self.locked[file] = Some(guest);
        }
        is_free
    }

    /// A guest without any credential in force was refused a change: it keeps nothing open and nothing locked.
    pub fn put_out(&mut self, guest: usize) {
        let own = self.open.iter_mut().filter(|open| open.guest == guest);
        own.for_each(|open| open.is_gone = true);
        for locked in &mut self.locked {
            locked.take_if(|holder| *holder == guest);
        }
    }
}

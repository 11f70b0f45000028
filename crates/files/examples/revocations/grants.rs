//! Who there is, what there is, and the credentials that the guests have.

use bytes::Bytes;
use quorate_credential::{Caveat, Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_files::Ino;
use quorate_wire::{Digest, KeyPair, PublicKey};

pub const VOLUME: Digest = Digest([1; 32]);
pub const GUESTS: usize = 3;
/// The second at which histories begin.
pub const START: u64 = 1_800_000_000;
/// Two directories, with a file in each.
pub const DIRS: [Ino; 2] = [Ino(2), Ino(3)];
pub const DIR_NAMES: [&str; 2] = ["first", "second"];
pub const FILES: [Ino; 2] = [Ino(4), Ino(5)];
/// The names that each file can have, in either directory; the first is what it begins with.
pub const NAMES: [[&str; 2]; 2] = [["one", "uno"], ["two", "other"]];

/// The owner's key is number 0; then come the guests'.
pub fn key(number: usize) -> KeyPair {
    KeyPair::from_seed(&[number as u8 + 1; 32])
}

/// What a link is about: the root or one of the directories, and how names in it must begin.
#[derive(Clone, Copy)]
pub struct About {
    pub dir: Ino,
    pub prefix: &'static str,
}

/// A link, and what the model knows of it.
pub struct Link {
    pub id: Digest,
    pub subject: PublicKey,
    pub issuer: PublicKey,
    pub serial: u64,
    pub about: About,
    pub quota: Option<u64>,
}

/// A credential.
pub struct Grant {
    pub bytes: Bytes,
    pub id: Digest,
    pub guest: usize,
    /// The last second.
    pub until: u64,
    pub links: Vec<Link>,
}

/// A link that is to be signed.
#[derive(Clone, Copy)]
struct Plan {
    to: usize,
    about: About,
    until: u64,
    quota: Option<u64>,
}

impl Plan {
    fn new(to: usize, dir: Ino, prefix: &'static str) -> Plan {
        Plan {
            to,
            about: About { dir, prefix },
            until: u64::MAX,
            quota: None,
        }
    }

    fn until(self, until: u64) -> Plan {
        Plan { until, ..self }
    }

    fn quota(self, bytes: u64) -> Plan {
        let quota = Some(bytes);
        Plan { quota, ..self }
    }
}

/// Nine for each guest, in the order of their digests: of each directory one that was granted, of which one ends soon; one by another guest's hands,
/// whose own one has a quota that both share; one by two others' hands, of whom the first has it by the name of a directory; one for names
/// alone; one with a quota; and what these were passed on from, which their holders can revoke by.
pub fn grants() -> Vec<Grant> {
    let [first, second] = DIRS;
    let mut all: Vec<Grant> = Vec::new();
    for guest in 0..GUESTS {
        let [next, last] = [1, 2].map(|by| (guest + by) % GUESTS);
        let plans: [&[Plan]; 6] = [
            &[Plan::new(guest, first, "")],
            &[Plan::new(guest, second, "").until(START + 4)],
            &[
                Plan::new(next, first, "").quota(4),
                Plan::new(guest, first, ""),
            ],
            &[
                Plan::new(last, Ino::ROOT, "sec"),
                Plan::new(next, Ino::ROOT, ""),
                Plan::new(guest, second, "").until(START + 6),
            ],
            &[Plan::new(guest, first, "o")],
            &[Plan::new(guest, second, "").quota(3)],
        ];
        for (number, plans) in plans.iter().enumerate() {
            let serial = (guest * 10 + number) as u64;
            all.extend((1..=plans.len()).map(|links| grant(&plans[..links], serial)));
        }
    }
    all.sort_by_key(|grant| grant.id);
    all
}

fn grant(plans: &[Plan], serial: u64) -> Grant {
    let mut chain: Option<Chain> = None;
    for (at, plan) in plans.iter().enumerate() {
        let prefix = Some(Bytes::from(plan.about.prefix)).filter(|prefix| !prefix.is_empty());
        let caveats = prefix.map(Caveat::NamePrefix).into_iter();
        let terms = Terms {
            subject: key(1 + plan.to).public(),
            scope: Scope {
                object: ObjectId(plan.about.dir.0.into()),
                subtree: true,
            },
            rights: Rights::ALL,
            window: Window {
                not_before: 0,
                not_after: plan.until,
            },
            depth: 5 - at as u8,
            serial,
            caveats: caveats.chain(plan.quota.map(Caveat::ByteQuota)).collect(),
        };
        let longer = match &chain {
            None => Chain::issue(VolumeId(VOLUME), &key(0), terms),
            Some(chain) => chain.delegate(&key(1 + plans[at - 1].to), terms),
        };
        chain = Some(longer.expect("it can be said"));
    }
    let chain = chain.expect("it has a link");
    let reaches = chain.verified_before().reaches;
    let links = plans.iter().zip(&reaches).map(|(plan, reach)| Link {
        id: reach.id,
        subject: key(1 + plan.to).public(),
        issuer: reach.issuer,
        serial,
        about: plan.about,
        quota: plan.quota,
    });
    let last = plans[plans.len() - 1];
    Grant {
        bytes: chain.to_bytes().into(),
        id: chain.id(),
        guest: last.to,
        until: last.until,
        links: links.collect(),
    }
}

//! Who passes credentials on fills no place but its own.

use quorate_credential::{Caveat, Chain};
use quorate_files::op::*;
use quorate_files::{Errno, Ino};

use crate::common::Result;
use crate::sharing::{Volume, key, public, terms};

/// A chain by way of the keys 1, 2 and so on, to a subject.
fn by_way_of(v: &Volume, hosts: u8, subject: u8, serial: u64, caveats: &[Caveat]) -> Chain {
    let t = |to: u8, at: u8| {
        let mut t = terms(to, 1);
        t.depth = 10 - at;
        t.serial = serial;
        t.caveats = caveats.to_vec();
        t
    };
    let next = |at: u8| if at <= hosts { at } else { subject };
    let first = v.issue(next(1), t(next(1), 0));
    (1..=hosts).fold(first, |chain, at| {
        chain.delegate(&key(at), t(next(at + 1), at)).unwrap()
    })
}

/// The fourth in a chain passes on all that it can: it has 64 places, and those above it have theirs, for others and for themselves.
#[test]
fn who_is_below_does_not_fill_what_is_above() -> Result<()> {
    let mut v = Volume::new();
    for n in 0..64 {
        let chain = by_way_of(&v, 4, 100 + n, 0, &[]);
        v.put(100 + n, &chain)?;
    }
    let more = by_way_of(&v, 4, 99, 0, &[]);
    assert_eq!(v.put(99, &more), Err(Errno::EDQUOT));
    for hosts in 0..4 {
        let own = by_way_of(&v, hosts, hosts + 1, 0, &[]);
        v.put(hosts + 1, &own)?;
        let other = by_way_of(&v, hosts, 180 + hosts, 0, &[]);
        v.put(180 + hosts, &other)?;
    }
    v.check();
    // Whoever is above takes the places away with what it takes back.
    v.revoke(0, Revoked::Key(public(4)), None, None)?;
    for n in 0..4 {
        v.revoke(0, Revoked::Key(public(220 + n)), None, None)?;
    }
    assert_eq!(v.grants(100).len(), 0);
    v.restore(0, Revoked::Key(public(4)), None)?;
    v.put(99, &more)?;
    v.check();
    Ok(())
}

/// Links with a quota have rows of their own, and are counted for those by whose hands they have come.
#[test]
fn quotas_take_places_too() -> Result<()> {
    let mut v = Volume::new();
    let quota = [Caveat::ByteQuota(1)];
    let mut kept = 0;
    let refused = loop {
        let chain = by_way_of(&v, 4, 100 + kept, 0, &quota);
        match v.put(100 + kept, &chain) {
            Ok(_) => kept += 1,
            Err(errno) => break errno,
        }
    };
    // Of the fourth key: the credential and its last link.
    assert_eq!((kept, refused), (32, Errno::EDQUOT));
    v.check();
    Ok(())
}

/// Where there are as many as there can be, what the owner grants puts out what ends first, and what others pass on waits.
#[test]
fn a_full_house_has_room_for_the_owners_guests() -> Result<()> {
    let mut v = Volume::new();
    let mut t = terms(1, 1);
    t.window.not_after = v.second() + 10;
    let early = v.issue(1, t);
    v.put(1, &early)?;
    let late = v.share(2, Ino::ROOT, quorate_credential::Rights::ALL);
    v.put(2, &late)?;
    v.revoke(0, Revoked::Key(public(9)), None, Some(v.second() + 1))?;
    v.count_grants(65_536);
    let passed_on = by_way_of(&v, 1, 3, 0, &[]);
    assert_eq!(v.put(3, &passed_on), Err(Errno::EDQUOT));
    let first_hand = v.issue(4, terms(4, 1));
    v.put(4, &first_hand)?;
    assert_eq!(v.grants(1).len(), 0);
    assert_eq!((v.grants(2).len(), v.grants(4).len()), (1, 1));
    v.count_grants(2);
    v.check();
    Ok(())
}

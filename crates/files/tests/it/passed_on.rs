//! What was passed on from a credential is listed to who holds that, and nothing else is.

use std::collections::BTreeSet;

use quorate_credential::{Caveat, Chain, Rights};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Ino};
use quorate_wire::Digest;

use crate::common::Result;
use crate::guest_listing::count;
use crate::sharing::{MEMBER, Volume, key, public, terms};

/// A part of a chain, for so many seconds.
fn pass_on(v: &Volume, from: &Chain, by: u8, to: u8, serial: u64, seconds: u64) -> Chain {
    let last = &from.links().last().unwrap().terms;
    let mut t = terms(to, 1);
    t.depth = last.depth - 1;
    t.serial = serial;
    t.window.not_after = v.second() + seconds;
    from.delegate(&key(by), t).unwrap()
}

fn ids(v: &mut Volume, who: u8, link: Digest) -> Result<BTreeSet<Digest>> {
    let found = v.passed_on(who, link, 100)?;
    let ids: BTreeSet<_> = found.iter().map(|kept| v.chain(kept).id()).collect();
    assert_eq!(ids.len(), found.len(), "each once");
    assert!(found.iter().all(|kept| kept.path.is_none() || who == 0));
    Ok(ids)
}

/// Bob has passed on to Carol and Dave, Carol to Erin; Frank has his from the owner, and has passed it on to Erin as well. Each sees what is below its
/// own credential, at any depth, and nobody sees what is beside or above it.
#[test]
fn each_sees_what_is_below() -> Result<()> {
    let mut v = Volume::new();
    let (bob, frank) = (v.issue(1, terms(1, 1)), v.issue(5, terms(5, 1)));
    let carol = pass_on(&v, &bob, 1, 2, 1, 1000);
    let dave = pass_on(&v, &bob, 1, 3, 2, 1000);
    let erin = pass_on(&v, &carol, 2, 4, 3, 900);
    let other = pass_on(&v, &frank, 5, 4, 4, 900);
    let all = [
        (1, &bob),
        (2, &carol),
        (3, &dave),
        (4, &erin),
        (5, &frank),
        (4, &other),
    ];
    for (who, chain) in all {
        v.put(who, chain)?;
    }
    let set = |chains: &[&Chain]| chains.iter().map(|chain| chain.id()).collect();
    assert_eq!(ids(&mut v, 1, bob.id())?, set(&[&carol, &dave, &erin]));
    assert_eq!(ids(&mut v, 2, carol.id())?, set(&[&erin]));
    assert_eq!(ids(&mut v, 3, dave.id())?, set(&[]));
    assert_eq!(ids(&mut v, 5, frank.id())?, set(&[&other]));
    for who in [0, MEMBER] {
        assert_eq!(v.passed_on(who, bob.id(), 100)?.len(), 3, "members see all");
    }
    // By another's credential, by a link in the midst of one's own chain, by one that is not there.
    let refused = [
        (2, bob.id()),
        (4, carol.id()),
        (3, frank.id()),
        (1, carol.id()),
        (1, Digest([9; 32])),
    ];
    for (who, link) in refused {
        assert_eq!(
            v.passed_on(who, link, 100).map(drop),
            Err(Errno::EPERM),
            "{who}"
        );
    }
    let op = PassedOn {
        link: bob.id(),
        about: None,
        after: None,
        count: 0,
    };
    assert_eq!(v.run(1, Action::PassedOn(op)), Err(Errno::EINVAL));
    v.check();
    Ok(())
}

/// Pages of any length come to the same, and where somebody goes on from a place of somebody else's nothing else is told.
#[test]
fn they_come_in_pages() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    v.put(1, &bob)?;
    let mut all = BTreeSet::new();
    for to in 10..20 {
        for serial in 0..3 {
            let chain = pass_on(&v, &bob, 1, to, serial, 1000);
            all.insert(v.put(to, &chain)?);
        }
        v.share(to, Ino::ROOT, Rights::READING);
    }
    for count in [1, 2, 7, 29, 30, 31, 1000] {
        let found = v.passed_on(1, bob.id(), count)?;
        assert_eq!(found.len(), 30);
        assert_eq!(
            found
                .iter()
                .map(|kept| v.chain(kept).id())
                .collect::<BTreeSet<_>>(),
            all
        );
    }
    let ends = [([0; 32], 30), ([0xff; 32], 0)];
    for (place, expected) in ends {
        let subject = quorate_wire::PublicKey(place);
        let after = Some(GrantPlace {
            subject,
            id: Digest(place),
        });
        let op = PassedOn {
            link: bob.id(),
            about: None,
            after,
            count: 100,
        };
        let Answer::Grants(page) = v.run(1, Action::PassedOn(op))? else {
            panic!("no page");
        };
        assert_eq!(page.grants.len(), expected);
    }
    Ok(())
}

/// What was passed on is about files with many names deep down: a page ends when it has gone so many steps up from them, and nothing is left out.
#[test]
fn pages_go_so_many_steps() -> Result<()> {
    let mut v = Volume::new();
    let mut deep = v.dir(Ino::ROOT, b"shared");
    let shared = deep;
    for _ in 0..60 {
        deep = v.dir(deep, b"dir");
    }
    let mut t = terms(1, shared.0);
    t.caveats.push(Caveat::NamePrefix("d".into()));
    let bob = v.issue(1, t);
    v.put(1, &bob)?;
    let mut all = BTreeSet::new();
    for to in 10..70 {
        // Each about a file of its own, that has 20 names.
        let name = |n: usize| format!("file {to} {n}");
        let file = v.file(deep, name(0).as_bytes());
        for n in 1..20 {
            v.link(MEMBER, file, deep, name(n).as_bytes())?;
        }
        let mut t = terms(to, file.0);
        t.depth = 4;
        t.window.not_after = v.second() + 1000;
        let chain = bob.delegate(&key(1), t).unwrap();
        all.insert(v.put(to, &chain)?);
    }
    let reads = count(&mut v);
    for about in [None, Some(deep)] {
        let (mut found, mut after, mut pages) = (BTreeSet::new(), None, 0);
        loop {
            let op = PassedOn {
                link: bob.id(),
                about,
                after,
                count: 256,
            };
            reads.take();
            let Answer::Grants(page) = v.run(1, Action::PassedOn(op))? else {
                panic!("no page");
            };
            // With and without memory.
            let each = reads.take() / 2;
            assert!(each < 25_000, "{each} rows");
            found.extend(page.grants.iter().map(|kept| v.chain(kept).id()));
            assert!(page.grants.iter().all(|kept| kept.reaches.is_some()));
            (after, pages) = (page.next, pages + 1);
            if after.is_none() {
                break;
            }
        }
        assert!(found == all && pages < all.len());
    }
    Ok(())
}

/// Rows go with what they are about: when it ends, is taken back, or makes room; and who has lost its own is told nothing any more.
#[test]
fn nothing_is_left_of_what_has_gone() -> Result<()> {
    let mut v = Volume::new();
    let rows = |v: &mut Volume| v.contents().keys().filter(|key| key[0] == 0x2c).count();
    let bob = v.issue(1, terms(1, 1));
    v.put(1, &bob)?;
    let carol = pass_on(&v, &bob, 1, 2, 1, 1000);
    let short = pass_on(&v, &bob, 1, 3, 2, 10);
    let dave = pass_on(&v, &carol, 2, 3, 3, 500);
    for (who, chain) in [(2, &carol), (3, &short), (3, &dave)] {
        v.put(who, chain)?;
    }
    assert_eq!(rows(&mut v), 4, "Dave's stands below two");
    // One that ends.
    v.wait(11);
    v.put(2, &carol)?;
    assert_eq!(rows(&mut v), 3);
    assert_eq!(ids(&mut v, 1, bob.id())?, [carol.id(), dave.id()].into());
    v.check();
    // One that makes room: Dave's ends before all that come now.
    for serial in 10..10 + 64 {
        let more = pass_on(&v, &bob, 1, 3, serial, 800);
        v.put(3, &more)?;
    }
    assert_eq!(rows(&mut v), 1 + 64);
    v.check();
    // Carol's link is taken back, and is let go of with the next operations.
    let of = Serial {
        issuer: public(1),
        serial: 1,
    };
    v.revoke(1, Revoked::Serial(of.clone()), Some(bob.id()), None)?;
    let listed = v.passed_on(1, bob.id(), 100)?;
    let hers = listed.iter().find(|kept| v.chain(kept).id() == carol.id());
    assert!(hers.is_none_or(|kept| kept.is_revoked));
    assert_eq!(v.passed_on(2, carol.id(), 100).map(drop), Err(Errno::EPERM));
    for _ in 0..4 {
        v.put(1, &bob)?;
    }
    assert_eq!(rows(&mut v), 64);
    // When that is ended and it is brought again, it is there again.
    v.restore(1, Revoked::Serial(of), Some(bob.id()))?;
    v.put(2, &carol)?;
    assert!(ids(&mut v, 1, bob.id())?.contains(&carol.id()));
    // Bob's own is taken back, and with it all.
    v.revoke(0, Revoked::Key(public(1)), None, None)?;
    assert_eq!(v.passed_on(1, bob.id(), 100).map(drop), Err(Errno::EPERM));
    for _ in 0..5 {
        v.revoke(0, Revoked::Key(public(99)), None, None)?;
    }
    assert_eq!(rows(&mut v), 0);
    v.check();
    Ok(())
}

/// A volume from before there were these rows: they come when a credential is brought again, as each mount does with each session, and nothing is amiss
/// where it goes without having had them.
#[test]
fn older_volumes_get_them_by_and_by() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    let carol = pass_on(&v, &bob, 1, 2, 1, 1000);
    let dave = pass_on(&v, &bob, 1, 3, 2, 10);
    for (who, chain) in [(1, &bob), (2, &carol), (3, &dave)] {
        v.put(who, chain)?;
    }
    let old = v.contents().into_keys().filter(|key| key[0] == 0x2c);
    let old: Vec<_> = old.collect();
    let mut txn = v.state.begin();
    for key in old {
        txn.delete(key);
    }
    txn.commit();
    assert_eq!(ids(&mut v, 1, bob.id())?, [].into());
    v.wait(11);
    v.put(2, &carol)?;
    assert_eq!(ids(&mut v, 1, bob.id())?, [carol.id()].into());
    v.check();
    Ok(())
}

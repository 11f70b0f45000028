//! Credentials that are brought, listed, taken back and let go of.

use std::collections::BTreeSet;

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, key, public, terms};
use bytes::Bytes;
use quorate_credential::{Caveat, Refusal, Rights};
use quorate_files::op::MAX_ROWS;
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Ino};

/// A credential is for the key that brings it, for this volume, by its owner, and for now.
#[test]
fn only_what_holds_is_kept() {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    assert_eq!(v.put(2, &bob), Err(Errno::EPERM), "theft");
    let mut bytes = bob.to_bytes();
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(v.put_bytes(1, bytes), Err(Errno::EINVAL), "forged");
    assert_eq!(v.put_bytes(1, vec![1; 8193]), Err(Errno::EINVAL));
    let other = v.issue_by(9, 1, terms(1, 1));
    assert_eq!(v.put(1, &other), Err(Errno::EINVAL), "no owner");
    let mut past = terms(1, 1);
    past.window.not_after = v.second() - 1;
    let past = v.issue(1, past);
    assert_eq!(v.put(1, &past), Err(Errno::EACCES));
    assert_eq!(v.put(1, &bob), Ok(bob.id()));
    assert_eq!(v.put(1, &bob), Ok(bob.id()), "again is the same");
    assert_eq!(v.grants(1).len(), 1);
    assert_eq!(v.grants(2).len(), 0, "a guest sees its own");
    assert_eq!(v.grants(crate::sharing::MEMBER).len(), 1);
    assert_eq!(v.grants(0).len(), 1);
    v.check();
}

/// Who may pass on can't make others act as users that he can't act as himself.
#[test]
fn only_the_owner_says_as_whom() {
    let mut v = Volume::new();
    let root = Caveat::Ids { uid: 0, gid: 0 };
    let bob = v.issue(1, terms(1, 1));
    let mut to_carol = terms(2, 1);
    to_carol.depth = 3;
    to_carol.caveats.push(root.clone());
    let refused = bob.delegate(&key(1), to_carol.clone());
    assert_eq!(refused, Err(Refusal::OtherIds(1)));
    let mut first = terms(1, 1);
    first.caveats.push(root);
    let carol = v.issue(1, first).delegate(&key(1), to_carol).unwrap();
    assert_eq!(v.put(2, &carol), Ok(carol.id()));
}

/// 64 for a key: one more puts out the one that ends first.
#[test]
fn the_first_to_end_goes() {
    let mut v = Volume::new();
    let mut ids = Vec::new();
    for n in 0..65 {
        let mut t = terms(1, 1);
        t.serial = n;
        t.window.not_after = v.second() + 1000 - n;
        let chain = v.issue(1, t);
        v.put(1, &chain).unwrap();
        ids.push(chain.id());
    }
    let kept: Vec<_> = v.grants(1).iter().map(|g| v.chain(g).id()).collect();
    assert_eq!(kept.len(), 64);
    assert!(
        !kept.contains(&ids[63]),
        "ended first of those that were there"
    );
    assert!(kept.contains(&ids[64]));
    v.check();
}

/// Long chains fill a key's place sooner: their links are counted. What ends first goes, and as much of it as is needed.
#[test]
fn links_are_counted() {
    let mut v = Volume::new();
    let long = |v: &Volume, n: u8| {
        let mut t = terms(10, 1);
        t.depth = 15;
        t.serial = n.into();
        t.window.not_after = v.second() + 1000 + u64::from(n);
        let first = v.issue(10, t.clone());
        let pass_on = |chain: quorate_credential::Chain, at: u8| {
            let mut t = t.clone();
            t.subject = public(if at == 15 { 1 } else { 10 + at });
            t.depth = 15 - at;
            chain.delegate(&key(9 + at), t).unwrap()
        };
        (1..16).fold(first, pass_on)
    };
    let mut ids = Vec::new();
    for n in 0..9 {
        let chain = long(&v, n);
        assert_eq!(chain.links().len(), 16);
        v.put(1, &chain).unwrap();
        ids.push(chain.id());
    }
    let kept = |v: &mut Volume| -> Vec<_> { v.grants(1).iter().map(|g| v.chain(g).id()).collect() };
    assert_eq!(kept(&mut v).len(), 8, "128 links");
    assert!(!kept(&mut v).contains(&ids[0]));
    let mut t = terms(1, 1);
    t.window.not_after = v.second() + 5000;
    let short = v.issue(1, t);
    v.put(1, &short).unwrap();
    assert_eq!(kept(&mut v).len(), 8, "one long one for a short one");
    assert!(!kept(&mut v).contains(&ids[1]) && kept(&mut v).contains(&short.id()));
    v.check();
}

/// What has ended is let go, with its count of bytes and its revocations.
#[test]
fn nothing_is_left_after_the_end() {
    let mut v = Volume::new();
    let empty = v.rows();
    for n in 0..10 {
        let mut t = terms(1, 1);
        t.serial = n;
        t.caveats.push(Caveat::ByteQuota(5));
        t.window.not_after = v.second() + 10;
        let chain = v.issue(1, t);
        v.put(1, &chain).unwrap();
    }
    let what = Revoked::Key(public(3));
    let until = Some(v.second() + 10);
    v.revoke(0, what, None, until).unwrap();
    assert!(v.rows() > empty + 20);
    v.wait(12);
    for _ in 0..3 {
        let what = Revoked::Key(public(4));
        let until = Some(v.second());
        v.revoke(0, what, None, until).unwrap();
    }
    assert_eq!(v.grants(0).len(), 0);
    // The last revocation is still there, and so are what it is counted by and the one row of counts.
    assert!(v.rows() <= empty + 4, "{} rows", v.rows());
    v.check();
}

/// What is kept is not verified again when it is brought again; with another signature it is.
#[test]
fn what_is_kept_was_verified() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    let mut forged = bob.to_bytes();
    *forged.last_mut().unwrap() ^= 1;
    v.put(1, &bob)?;
    assert_eq!(v.put_bytes(1, forged.clone()), Err(Errno::EINVAL));
    // Nobody can have that kept; it shows that nobody looks.
    let (row, _) = v
        .contents()
        .into_iter()
        .find(|(key, _)| key[0] == 0x1c)
        .unwrap();
    let mut txn = v.state.begin();
    txn.put(row, forged.clone().into());
    txn.commit();
    assert_eq!(v.put_bytes(1, forged), Ok(bob.id()));
    assert_eq!(v.put(1, &bob), Ok(bob.id()));
    Ok(())
}

/// The search for what was revoked comes to its end whoever revokes all the time: the same again, or something that is new each time.
#[test]
fn who_revokes_all_the_time_keeps_no_search_from_its_end() -> Result<()> {
    let mut keys: Vec<u8> = (1..=100).collect();
    keys.sort_by_key(|key| public(*key).0);
    let (last, guest) = (keys[99], keys[0]);
    let of_nobody = |serial| {
        let issuer = public(150);
        Revoked::Epoch(Serial { issuer, serial })
    };
    let again: [&dyn Fn(u64) -> Revoked; 2] = [&|_| Revoked::Key(public(last)), &of_nobody];
    for what in again {
        let mut v = Volume::new();
        for key in &keys {
            v.share(*key, Ino::ROOT, Rights::ALL);
        }
        v.revoke(0, Revoked::Key(public(last)), None, None)?;
        assert_eq!(v.grants(0).len(), 100);
        for n in 1..=6 {
            v.mkdir(guest, Ino::ROOT, format!("dir {n}").as_bytes())?;
            v.revoke(0, what(n), None, None)?;
            v.check();
        }
        assert_eq!(v.grants(0).len(), 99);
    }
    Ok(())
}

/// What comes while a search goes on is searched for from the first again.
#[test]
fn what_is_revoked_behind_a_search_is_found() -> Result<()> {
    let mut keys: Vec<u8> = (1..=100).collect();
    keys.sort_by_key(|key| public(*key).0);
    let mut v = Volume::new();
    for key in &keys {
        v.share(*key, Ino::ROOT, Rights::ALL);
    }
    v.revoke(0, Revoked::Key(public(keys[99])), None, None)?;
    v.revoke(0, Revoked::Key(public(keys[1])), None, None)?;
    for n in 0..8 {
        v.mkdir(keys[0], Ino::ROOT, format!("dir {n}").as_bytes())?;
        v.check();
    }
    assert_eq!(v.grants(0).len(), 98);
    assert_eq!(v.contents().keys().filter(|key| key[0] == 0x2d).count(), 0);
    Ok(())
}

/// Revocation by serial, key and epoch, by the owner and by who is above; not by others.
#[test]
fn who_is_above_takes_back() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    let mut t = terms(2, 1);
    t.depth = 3;
    let carol = bob.delegate(&key(1), t).unwrap();
    let mut t = terms(3, 1);
    t.depth = 2;
    t.rights = Rights::READING;
    t.serial = 7;
    let dave = carol.delegate(&key(2), t).unwrap();
    for (who, chain) in [(1, &bob), (2, &carol), (3, &dave)] {
        v.put(who, chain)?;
    }
    let daves = |v: &mut Volume| v.grants(3).iter().filter(|g| !g.is_revoked).count();
    let serial = |issuer, serial| Serial {
        issuer: public(issuer),
        serial,
    };
    let of_dave = Revoked::Serial(serial(2, 7));
    // Dave is below, a member is not above, and nobody revokes by a credential that is another's.
    let by = |chain: &quorate_credential::Chain| Some(chain.id());
    assert_eq!(
        v.revoke(3, of_dave.clone(), by(&dave), None),
        Err(Errno::EPERM)
    );
    assert_eq!(
        v.revoke(3, of_dave.clone(), by(&carol), None),
        Err(Errno::EPERM)
    );
    assert_eq!(v.revoke(3, of_dave.clone(), None, None), Err(Errno::EPERM));
    assert_eq!(
        v.revoke(crate::sharing::MEMBER, of_dave.clone(), None, None),
        Err(Errno::EPERM)
    );
    // Carol can't take back her own link, or Bob's: they are not below it.
    v.revoke(2, Revoked::Key(public(2)), by(&carol), None)?;
    v.revoke(2, Revoked::Key(public(1)), by(&carol), None)?;
    assert_eq!(daves(&mut v), 1);
    v.revoke(1, Revoked::Epoch(serial(2, 7)), by(&bob), None)?;
    assert_eq!(daves(&mut v), 1, "7 is not below 7");
    v.revoke(1, Revoked::Epoch(serial(2, 8)), by(&bob), None)?;
    assert_eq!(daves(&mut v), 0);
    assert_eq!(v.put(3, &dave), Err(Errno::EACCES));
    assert_eq!(v.grants(2).iter().filter(|g| !g.is_revoked).count(), 1);
    // A later epoch that is lower gives nothing back.
    v.revoke(1, Revoked::Epoch(serial(2, 1)), by(&bob), None)?;
    assert_eq!(v.put(3, &dave), Err(Errno::EACCES));
    v.revoke(0, Revoked::Serial(serial(0, 0)), None, None)?;
    assert_eq!(v.put(1, &bob), Err(Errno::EACCES));
    assert_eq!(v.put(2, &carol), Err(Errno::EACCES));
    v.check();
    Ok(())
}

/// Serials are their issuers' to choose: who means no good gives numbers that no epoch is above. What takes all back that a key has passed on is to take
/// back the key.
#[test]
fn an_epoch_binds_those_who_count_alone() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    let mut t = terms(2, 1);
    t.depth = 3;
    t.serial = u64::MAX;
    let carol = bob.delegate(&key(1), t).unwrap();
    v.put(2, &carol)?;
    let of_bob = Serial {
        issuer: public(1),
        serial: u64::MAX,
    };
    v.revoke(0, Revoked::Epoch(of_bob), None, None)?;
    assert_eq!(v.put(2, &carol), Ok(carol.id()));
    assert!(!v.grants(2)[0].is_revoked);
    v.revoke(0, Revoked::Key(public(1)), None, None)?;
    assert_eq!(v.put(2, &carol), Err(Errno::EACCES));
    assert_eq!(v.grants(2).len(), 0);
    v.check();
    Ok(())
}

/// A revocation that is over before it begins would take back nothing, so it is none.
#[test]
fn what_is_over_is_not_revoked() {
    let mut v = Volume::new();
    let bob = v.share(1, Ino::ROOT, Rights::ALL);
    let what = || Revoked::Key(public(2));
    let (past, now) = (Some(v.second() - 1), Some(v.second()));
    assert_eq!(v.revoke(0, what(), None, past), Err(Errno::EINVAL));
    let by = Some(bob.id());
    assert_eq!(v.revoke(1, what(), by, past), Err(Errno::EINVAL));
    assert_eq!(v.revoke(1, what(), by, now), Ok(()));
    assert_eq!(v.revoke(0, what(), None, now), Ok(()));
    v.check();
}

/// What was taken back costs no signatures: those of a chain that somebody brings again and again are not looked at.
#[test]
fn what_is_revoked_is_refused_before_signatures() {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    v.revoke(0, Revoked::Key(public(1)), None, None).unwrap();
    assert_eq!(v.put(1, &bob), Err(Errno::EACCES));
    let mut forged = bob.to_bytes();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(v.put_bytes(1, forged), Err(Errno::EACCES));
    let other = v.issue_by(9, 1, terms(1, 1));
    assert_eq!(v.put(1, &other), Err(Errno::EINVAL), "no owner");
}

/// Listings come page by page, each credential once.
#[test]
fn listings_have_pages() {
    let mut v = Volume::new();
    for who in 1..=9 {
        for serial in 0..5 {
            let mut t = terms(who, 1);
            t.serial = serial;
            let chain = v.issue(who, t);
            v.put(who, &chain).unwrap();
        }
    }
    for page in [1, 2, 7, 44, 45, 46, 1000] {
        let all = v.grants_by(0, page);
        assert_eq!(all.len(), 45);
        let ids: std::collections::BTreeSet<_> = all.iter().map(|g| v.chain(g).id()).collect();
        assert_eq!(ids.len(), 45);
    }
    let none = Grants {
        about: None,
        after: None,
        count: 0,
    };
    assert_eq!(v.run(0, Action::Grants(none)), Err(Errno::EINVAL));
}

/// A page ends before an answer is too long, however long chains are; all of them are told, each once.
#[test]
fn pages_are_bounded_by_bytes() {
    const LINKS: u8 = 16;
    let mut v = Volume::new();
    let about = |subject, serial: u64, at: u8| {
        let mut t = terms(subject, 1);
        t.depth = LINKS - 1 - at;
        t.serial = serial;
        let prefix = Bytes::from(vec![b'p'; 255]);
        t.caveats = vec![Caveat::NamePrefix(prefix), Caveat::AuditTag("t".repeat(64))];
        t
    };
    let (mut ids, mut longest) = (BTreeSet::new(), 0);
    for who in 1..=9 {
        for serial in 0..8 {
            // By way of fifteen others.
            let host = if who < 5 { 100 } else { 120 };
            let mut chain = v.issue(host, about(host, serial, 0));
            for at in 1..LINKS {
                let subject = if at + 1 < LINKS { host + at } else { who };
                let by = key(host + at - 1);
                let longer = chain.delegate(&by, about(subject, serial, at));
                chain = longer.unwrap();
            }
            longest = longest.max(chain.to_bytes().len());
            ids.insert(v.put(who, &chain).unwrap());
        }
    }
    assert!(longest > 7_000);
    let first = Action::Grants(Grants {
        about: None,
        after: None,
        count: MAX_ROWS,
    });
    let Ok(Answer::Grants(page)) = v.run(0, first) else {
        panic!("no page");
    };
    let bytes: usize = page.grants.iter().map(|kept| kept.chain.len()).sum();
    assert!(page.grants.len() < ids.len() && page.next.is_some());
    assert!((256 << 10..=512 << 10).contains(&bytes), "{bytes}");
    let all = v.grants_by(0, MAX_ROWS);
    assert_eq!(all.len(), ids.len());
    assert_eq!(
        all.iter().map(|g| v.chain(g).id()).collect::<BTreeSet<_>>(),
        ids
    );
}

/// What is about an object is found from above and from below.
#[test]
fn listings_can_be_about_something() {
    let mut v = Volume::new();
    let (a, b) = (v.dir(Ino::ROOT, b"a"), v.dir(Ino::ROOT, b"b"));
    let (low, file) = (v.dir(a, b"low"), v.file(b, b"file"));
    for (guest, object) in [(1, Ino::ROOT), (2, a), (3, low), (4, file)] {
        v.share(guest, object, Rights::READING);
    }
    let mut t = terms(5, a.0);
    t.scope.subtree = false;
    let alone = v.issue(5, t);
    v.put(5, &alone).unwrap();
    for (about, expected) in [
        (Ino::ROOT, &[1, 2, 3, 4, 5][..]),
        (a, &[1, 2, 3, 5]),
        (low, &[1, 2, 3]),
        (b, &[1, 4]),
        (Ino(999), &[]),
    ] {
        let op = Grants {
            about: Some(about),
            after: None,
            count: 100,
        };
        let Ok(Answer::Grants(found)) = v.run(0, Action::Grants(op)) else {
            panic!("no grants");
        };
        let found: std::collections::BTreeSet<_> =
            found.grants.iter().map(|g| v.chain(g).subject()).collect();
        let expected = expected.iter().map(|n| public(*n)).collect();
        assert_eq!(found, expected, "{about:?}");
    }
}

/// Members are told where things are; guests are not, and it follows moves.
#[test]
fn members_are_told_where() -> Result<()> {
    let mut v = Volume::new();
    let above = v.dir(Ino::ROOT, b"above");
    let shared = v.dir(above, b"shared");
    v.share(1, shared, Rights::ALL);
    let path = |v: &mut Volume, key| v.grants(key)[0].path.clone();
    assert_eq!(path(&mut v, 0).as_deref(), Some(&b"above/shared"[..]));
    assert_eq!(path(&mut v, 1), None);
    v.rename(MEMBER, (above, b"shared"), (Ino::ROOT, b"moved"))?;
    assert_eq!(path(&mut v, MEMBER).as_deref(), Some(&b"moved"[..]));
    v.run(
        MEMBER,
        Action::Rmdir(Rmdir {
            parent: Ino::ROOT,
            name: "moved".into(),
        }),
    )?;
    assert_eq!(path(&mut v, 0), None, "it is gone");
    v.share(1, Ino::ROOT, Rights::ALL);
    let paths: Vec<_> = v.grants(0).into_iter().map(|kept| kept.path).collect();
    assert!(paths.contains(&Some("/".into())), "{paths:?}");
    Ok(())
}

/// What a credential comes to is what is in the scope of all its links, whatever the last one names; and nothing, when that is moved away.
#[test]
fn listings_tell_what_all_links_come_to() -> Result<()> {
    let mut v = Volume::new();
    let above = v.dir(Ino::ROOT, b"above");
    let (shared, other) = (v.dir(above, b"pub-shared"), v.dir(Ino::ROOT, b"other"));
    let low = v.dir(shared, b"low");
    let mut t = terms(1, above.0);
    t.caveats.push(Caveat::NamePrefix("pub-".into()));
    let bob = v.issue(1, t);
    // To the whole volume; to what is there in the end; and to what is elsewhere.
    let named = [(2, Ino::ROOT), (3, low), (4, other)];
    for (subject, object) in named {
        let mut t = terms(subject, object.0);
        t.depth = 1;
        let chain = bob.delegate(&key(1), t).unwrap();
        v.put(subject, &chain)?;
    }
    let told = |v: &mut Volume, about| {
        let op = Grants {
            about,
            after: None,
            count: 100,
        };
        let Ok(Answer::Grants(found)) = v.run(MEMBER, Action::Grants(op)) else {
            panic!("no grants");
        };
        named.map(|(subject, _)| {
            let mut grants = found.grants.iter();
            let kept = grants.find(|kept| v.chain(kept).subject() == public(subject));
            kept.map(|kept| (kept.reaches, kept.path.clone()))
        })
    };
    let [carol, dave, erin] = told(&mut v, None);
    assert_eq!(carol, Some((Some(above), Some("above".into()))));
    let path = Some("above/pub-shared/low".into());
    assert_eq!(dave, Some((Some(low), path)));
    assert_eq!(erin, Some((None, Some("other".into()))));
    let [carol, dave, erin] = told(&mut v, Some(other)).map(|kept| kept.is_some());
    assert_eq!([carol, dave, erin], [false, false, true]);

    v.rename(MEMBER, (above, b"pub-shared"), (above, b"own"))?;
    let [_, dave, _] = told(&mut v, None);
    assert_eq!(dave, Some((None, Some("above/own/low".into()))));
    v.rename(MEMBER, (above, b"own"), (Ino::ROOT, b"pub-shared"))?;
    assert_eq!(told(&mut v, None)[1].as_ref().unwrap().0, None);
    v.rename(MEMBER, (Ino::ROOT, b"pub-shared"), (above, b"pub-again"))?;
    assert_eq!(told(&mut v, None)[1].as_ref().unwrap().0, Some(low));
    Ok(())
}

/// Who brought and took back what is logged, also where it was refused, and every row is bound to all before.
#[test]
fn the_log_is_a_chain() {
    let mut v = Volume::new();
    let bob = v.issue(1, terms(1, 1));
    v.put(2, &bob).unwrap_err();
    v.put(1, &bob).unwrap();
    v.revoke(0, Revoked::Key(public(1)), None, None).unwrap();
    assert_eq!(
        v.run(1, Action::Audit(Audit { from: 0, count: 9 })),
        Err(Errno::EPERM)
    );
    let log = v.log_of(0);
    let errnos: Vec<_> = log.rows.iter().map(|row| row.error()).collect();
    assert_eq!(errnos, [Some(Errno::EPERM), None, None]);
    let who: Vec<_> = log.rows.iter().map(|row| row.subject).collect();
    assert_eq!(who, [public(2), public(1), public(0)]);
    let mut before = quorate_wire::Digest::ZERO;
    for (n, row) in log.rows.iter().enumerate() {
        assert_eq!((row.sequence, row.before), (n as u64, before));
        before = row.digest();
    }
    assert_eq!((log.next, log.head), (3, before));
    assert!(matches!(
        v.run(0, Action::Ping(quorate_files::Nothing)),
        Ok(Answer::Done(_))
    ));
}

//! Revocations are listed, and ended by who made them or the owner.

use std::collections::BTreeSet;

use quorate_credential::Rights;
use quorate_execution::{Rest, Service};
use quorate_files::op::*;
use quorate_files::{Action, Errno, Ino, Nothing};
use quorate_wire::Digest;

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, key, public, refused, terms};

const BOB: u8 = 1;
const CAROL: u8 = 2;

fn serial(issuer: u8, serial: u64) -> Serial {
    Serial {
        issuer: public(issuer),
        serial,
    }
}

/// What was taken back by key holds again when that is ended, also by a decision that was made before; and so by serial and by epoch.
#[test]
fn what_is_given_back_holds_again() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(Ino::ROOT, b"file");
    let mut t = terms(BOB, 1);
    t.serial = 7;
    let bob = v.issue(BOB, t);
    v.put(BOB, &bob)?;
    for what in [
        Revoked::Key(public(BOB)),
        Revoked::Serial(serial(0, 7)),
        Revoked::Epoch(serial(0, 8)),
    ] {
        v.read_ino(BOB, file)?;
        v.revoke(0, what.clone(), None, None)?;
        refused(v.read_ino(BOB, file), Errno::EACCES);
        assert_eq!(v.put(BOB, &bob), Err(Errno::EACCES));
        v.restore(0, what.clone(), None)?;
        // It was let go of when it was of no use.
        v.put(BOB, &bob)?;
        v.read_ino(BOB, file)?;
        assert_eq!(v.restore(0, what, None), Err(Errno::ENOENT));
        v.check();
    }
    assert_eq!(v.revocations(9), []);
    Ok(())
}

/// Two revocations of one thing are two: what is ended is one of them.
#[test]
fn one_of_two_is_ended() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(BOB, terms(BOB, 1));
    v.put(BOB, &bob)?;
    let mut t = terms(CAROL, 1);
    t.depth = 1;
    let carol = bob.delegate(&key(BOB), t).unwrap();
    let what = Revoked::Key(public(CAROL));
    v.revoke(0, what.clone(), None, None)?;
    v.revoke(BOB, what.clone(), Some(bob.id()), None)?;
    v.restore(0, what.clone(), None)?;
    assert_eq!(v.put(CAROL, &carol), Err(Errno::EACCES));
    v.restore(BOB, what, Some(bob.id()))?;
    v.put(CAROL, &carol)?;
    v.check();
    Ok(())
}

/// A holder ends what it made itself and nothing else; the owner ends everything; nobody else anything.
#[test]
fn who_may_give_back() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(BOB, terms(BOB, 1));
    v.put(BOB, &bob)?;
    let mut t = terms(CAROL, 1);
    t.depth = 1;
    let carol = bob.delegate(&key(BOB), t).unwrap();
    v.put(CAROL, &carol)?;
    let what = || Revoked::Key(public(9));
    let (by_bob, by_carol) = (Some(bob.id()), Some(carol.id()));
    v.revoke(0, what(), None, None)?;
    v.revoke(BOB, what(), by_bob, None)?;
    v.revoke(CAROL, what(), by_carol, None)?;
    for (who, by) in [
        (BOB, None),
        (BOB, by_carol),
        (CAROL, None),
        (CAROL, by_bob),
        (MEMBER, None),
        (MEMBER, by_bob),
        (9, None),
    ] {
        assert_eq!(
            v.restore(who, what(), by),
            Err(Errno::EPERM),
            "{who} {by:?}"
        );
    }
    assert_eq!(v.revocations(9).len(), 3);
    v.restore(CAROL, what(), by_carol)?;
    v.restore(0, what(), by_bob)?;
    v.restore(0, what(), None)?;
    assert_eq!(v.revocations(9), []);
    // Who is taken back itself gives nothing back.
    v.revoke(BOB, what(), by_bob, None)?;
    v.revoke(0, Revoked::Key(public(BOB)), None, None)?;
    assert_eq!(v.restore(BOB, what(), by_bob), Err(Errno::EPERM));
    v.check();
    Ok(())
}

/// Members are told of each once, whatever the pages: by whom, what, and until when.
#[test]
fn they_are_listed() -> Result<()> {
    let mut v = Volume::new();
    let bob = v.issue(BOB, terms(BOB, 1));
    v.put(BOB, &bob)?;
    let until = v.second() + 100;
    let mut expected = BTreeSet::new();
    let mut expect = |by: Option<Digest>, what: &Revoked, until: u64| {
        expected.insert(format!("{by:?} {what:?} {until}"));
    };
    for n in 0..5 {
        for (by, who) in [(None, 0), (Some(bob.id()), BOB)] {
            let ever = match by {
                None => u64::MAX,
                Some(_) => 4_000_000_000,
            };
            let what = Revoked::Serial(serial(0, u64::MAX - n));
            v.revoke(who, what.clone(), by, None)?;
            expect(by, &what, ever);
            let what = Revoked::Key(public(50 + n as u8));
            v.revoke(who, what.clone(), by, Some(until))?;
            expect(by, &what, until);
            let what = Revoked::Epoch(serial(60 + n as u8, n));
            v.revoke(who, what.clone(), by, None)?;
            expect(by, &what, ever);
        }
    }
    for page in [1, 2, 7, 29, 30, 31, 1000] {
        let all = v.revocations(page);
        assert_eq!(all.len(), 30);
        let told = all.iter();
        let told: BTreeSet<_> = told
            .map(|row| format!("{:?} {:?} {}", row.by, row.what, row.until))
            .collect();
        assert_eq!(told, expected);
    }
    let ask = |count| Action::Revocations(Revocations { after: None, count });
    assert_eq!(v.run(BOB, ask(9)), Err(Errno::EPERM));
    assert_eq!(v.run(0, ask(0)), Err(Errno::EINVAL));
    v.wait(200);
    v.revoke(0, Revoked::Key(public(9)), None, None)?;
    assert_eq!(v.revocations(1000).len(), 21, "ten have ended");
    v.check();
    Ok(())
}

/// A guest holds many files, and loses some of them when its credential ends. It gets another one, and opens a file, whose handle has a lower number than those that it has lost. When its session
/// ends all of that is let go of: what is never done keeps all sessions that end later waiting.
#[test]
fn who_has_lost_files_ends_with_what_it_took_since() -> Result<()> {
    let mut v = Volume::new();
    let files: Vec<Ino> = (0..100u32)
        .map(|n| v.file(Ino::ROOT, format!("{n}").as_bytes()))
        .collect();
    let bob = v.share(BOB, Ino::ROOT, Rights::ALL);
    let hold = Hold {
        keep: files.clone(),
        let_go: Vec::new(),
    };
    v.run(BOB, Action::Hold(hold))?;
    let what = Revoked::Serial(serial(0, BOB.into()));
    v.revoke(0, what.clone(), None, None)?;
    v.run(BOB, Action::Ping(Nothing))?;
    v.check();
    v.restore(0, what, None)?;
    v.put(BOB, &bob)?;
    v.open(BOB, files[0], flags::READ)?;
    v.check();
    let call = v.call(BOB);
    let mut txn = v.state.begin();
    let mut rests = (0..10).map(|_| v.service.session_ended(&mut txn, &call).unwrap());
    assert!(rests.any(|rest| rest == Rest::Nothing));
    drop(rests);
    txn.commit();
    v.check();
    Ok(())
}

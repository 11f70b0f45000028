//! Directories that go while something is under way in them.

use std::pin::Pin;

use super::model::PLACED;
use super::*;

/// How often something is polled that comes to an end: many times as often as any of it takes.
const POLLS: usize = 100_000;

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls until something holds.
pub fn poll_until<T: std::fmt::Debug>(
    mut future: Pin<&mut impl Future<Output = T>>,
    holds: impl Fn() -> bool,
) {
    for _ in 0..POLLS {
        if holds() {
            return;
        }
        let polled = poll(future.as_mut());
        assert!(polled.is_pending(), "{polled:?}");
    }
    panic!("it never comes to that");
}

pub fn end<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    for _ in 0..POLLS {
        if let Poll::Ready(ended) = poll(future.as_mut()) {
            return ended;
        }
    }
    panic!("it never ends");
}

/// Clients see `/x` and, in another bucket, `/b/y`: empty directories.
fn prepared() -> World {
    let many = world(VOLUMES);
    let all = [
        Op::Mkdir(vec![b"b"], Bucket(1)),
        Op::Mkdir(vec![b"b", b"y"], Bucket(1)),
        Op::Mkdir(vec![b"x"], HOME),
    ];
    for op in all {
        run(act(&router(&many), VOLUMES, &op)).unwrap().unwrap();
    }
    many
}

/// What has a path, whoever may see it.
fn handle(router: &Router<'_>, path: &Path) -> Handle {
    let at = run(name(router, path)).unwrap().unwrap();
    match run(router.find(&at)).unwrap().unwrap() {
        Found::Thing(thing, _) => thing.object,
        found => panic!("{found:?}"),
    }
}

/// The names in a directory of a server.
pub fn listed(world: &World, dir: &Handle) -> Vec<Bytes> {
    let ask = Ask::ReadDir {
        dir: dir.key.clone(),
        cookie: 0,
        verifier: 0,
    };
    let listed = world.lock().servers[dir.bucket.0 as usize].ask(ask);
    match listed.unwrap() {
        Given::Entries { entries, .. } => entries.into_iter().map(|entry| entry.name).collect(),
        other => panic!("{other:?}"),
    }
}

fn straight(world: &World, bucket: Bucket, ask: Ask) {
    let done = world.lock().servers[bucket.0 as usize].ask(ask);
    done.unwrap();
}

/// Makes a directory in one that a client has open.
fn fill(world: &World, dir: &Handle) {
    let at = Place {
        dir: dir.key.clone(),
        name: b"z"[..].into(),
    };
    straight(world, dir.bucket, Ask::Mkdir(at, NewAttrs::default()));
}

/// What a RENAME replaces turns out not to be empty, when its directory seems to be: that is not removed meanwhile.
#[test]
fn the_directory_of_what_is_replaced_stays() {
    let many = prepared();
    let (routed, names) = (router(&many), Names::default());
    let (b, y) = (
        handle(&routed, &vec![b"b"]),
        handle(&routed, &vec![b"b", b"y"]),
    );
    let before = tree(&routed);
    many.lock().yields = true;
    let (rename, rmdir) = (
        Op::Rename(vec![b"x"], vec![b"b", b"y"]),
        Op::Rmdir(vec![b"b"]),
    );
    let mut renaming = pin!(act_beside(&routed, &names, VOLUMES, &rename));
    poll_until(renaming.as_mut(), || listed(&many, &b).is_empty());
    fill(&many, &y);
    let mut removing = pin!(act_beside(&routed, &names, VOLUMES, &rmdir));
    for _ in 0..100 {
        let polled = poll(removing.as_mut());
        assert!(polled.is_pending(), "{polled:?}");
    }
    assert_eq!(end(renaming.as_mut()), Err(Status::NotEmpty));
    assert_eq!(end(removing.as_mut()), Err(Status::NotEmpty));
    many.lock().yields = false;
    let mut expected = before;
    expected.insert(b"/b/y/z".to_vec(), None);
    assert_eq!(tree(&routed), expected);
    assert_clean(&many, &routed, 1, 0);
}

/// If others remove it all the same, the RENAME ends, and what it took is where an operator finds it, also after the next start.
#[test]
fn what_has_no_place_any_more_is_kept() {
    let many = prepared();
    let routed = router(&many);
    let (b, y) = (
        handle(&routed, &vec![b"b"]),
        handle(&routed, &vec![b"b", b"y"]),
    );
    many.lock().yields = true;
    let rename = Op::Rename(vec![b"x"], vec![b"b", b"y"]);
    let mut renaming = pin!(act(&routed, VOLUMES, &rename));
    poll_until(renaming.as_mut(), || listed(&many, &b).is_empty());
    fill(&many, &y);
    let placed = listed(
        &many,
        &Handle {
            key: fh(PLACED),
            ..b.clone()
        },
    );
    let at = Place {
        dir: fh(PLACED),
        name: placed[0].clone(),
    };
    straight(&many, b.bucket, Ask::Rmdir(at));
    assert_eq!(end(renaming.as_mut()), Err(Status::NotEmpty));
    many.lock().yields = false;
    assert!(many.lock().open.is_empty());
    recover(&many, &mut Random(1));
    assert!(is_staged(&many, &y));
    assert_eq!(listed(&many, &y), [&b"z"[..]]);
    handle(&router(&many), &vec![b"x"]);
}

/// While a directory lies in `staging`, whoever has it open is not told that that is above it, on the way from one name to another and on the way out;
/// and whoever may not search it is told nothing.
#[test]
fn nobody_is_led_to_staging() {
    let there = Op::Mkdir(vec![b"c"], Bucket(1));
    for (path, op) in [
        (b"x", Op::Rename(vec![b"x"], vec![b"b", b"z"])),
        // A stub that its own server renames.
        (b"c", Op::Rename(vec![b"c"], vec![b"x", b"z"])),
        (b"c", Op::Rmdir(vec![b"c"])),
    ] {
        let many = prepared();
        run(act(&router(&many), VOLUMES, &there)).unwrap().unwrap();
        let routed = router(&many);
        let object = handle(&routed, &vec![path]);
        let above = run(routed.parent(&object)).unwrap().unwrap();
        assert_eq!(above, root());
        let (mut waited, mut done) = (0, false);
        let mut acting = pin!(act(&routed, VOLUMES, &op));
        while !done {
            many.lock().yields = true;
            if let Poll::Ready(acted) = poll(acting.as_mut()) {
                acted.unwrap();
                done = true;
            }
            many.lock().yields = false;
            match run(routed.parent(&object)).unwrap() {
                Ok(above) => assert!(!is_hidden(&many, &above), "{op:?}: {above:?}"),
                Err(Status::Jukebox) => waited += 1,
                Err(Status::Stale) => {}
                other => panic!("{op:?}: {other:?}"),
            }
        }
        assert!(waited > 0, "{op:?}");
        assert_clean(&many, &routed, 1, 0);
    }
    let many = prepared();
    let routed = router(&many);
    let b = handle(&routed, &vec![b"b"]);
    let above = |who: Who| run(routed.parent_for(&who, &b)).unwrap();
    assert_eq!(above(Who::root()), Ok(root()));
    many.lock().unsearchable = true;
    assert_eq!(above(Who::root()), Err(Status::Acces));
}

/// A directory that changes its parent, and waits for a server that is away, does not keep others waiting for ever.
#[test]
fn directories_wait_for_each_other_not_for_ever() {
    let many = prepared();
    let there = Op::Mkdir(vec![b"c"], Bucket(2));
    run(act(&router(&many), VOLUMES, &there)).unwrap().unwrap();
    let routed = router(&many);
    many.lock().yields = true;
    let x = handle_of(&many, b"x");
    let to_b = Op::Rename(vec![b"x"], vec![b"b", b"x"]);
    let mut renaming = pin!(act(&routed, VOLUMES, &to_b));
    poll_until(renaming.as_mut(), || is_staged(&many, &x));
    let other = Op::Rename(vec![b"c"], vec![b"b", b"c"]);
    let mut waiting = pin!(act(&routed, VOLUMES, &other));
    for _ in 0..100 {
        assert_eq!(poll(waiting.as_mut()), Poll::Pending);
    }
    many.lock().impatient = true;
    assert_eq!(end(waiting.as_mut()), Err(Status::Jukebox));
    assert_eq!(end(renaming.as_mut()), Ok(()));
    assert_eq!(end(pin!(act(&routed, VOLUMES, &other))), Ok(()));
    many.lock().yields = false;
    assert_eq!(tree(&routed).len(), 4);
    assert_clean(&many, &routed, 1, 0);
}

/// What has a name in the root's own bucket.
fn handle_of(world: &World, name: &'static [u8]) -> Handle {
    let place = Place {
        dir: root().key,
        name: name.into(),
    };
    let found = world.lock().servers[HOME.0 as usize].ask(Ask::Lookup(place));
    match found.unwrap() {
        Given::Object(object) => Handle {
            bucket: HOME,
            key: object.handle,
        },
        other => panic!("{other:?}"),
    }
}

/// Whether it is none of those that clients may see: they are below `root`, or directly below `placed`.
fn is_hidden(world: &World, dir: &Handle) -> bool {
    let up = Place {
        dir: dir.key.clone(),
        name: b".."[..].into(),
    };
    let above = world.lock().servers[dir.bucket.0 as usize].ask(Ask::Lookup(up));
    let Given::Object(above) = above.unwrap() else {
        panic!("no directory");
    };
    *dir != root() && [fh(ROOT), fh(ROOT + 1), shared().staging].contains(&above.handle)
}

/// Whether something lies in the directory of the last life in its bucket's `staging`.
fn is_staged(world: &World, object: &Handle) -> bool {
    let lives = Handle {
        key: shared().staging,
        ..object.clone()
    };
    let look = |dir: &Fh, name: &Bytes| {
        let place = Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        let found = world.lock().servers[object.bucket.0 as usize].ask(Ask::Lookup(place));
        match found.unwrap() {
            Given::Object(object) => object.handle,
            other => panic!("{other:?}"),
        }
    };
    listed(world, &lives).iter().any(|life| {
        let own = Handle {
            key: look(&lives.key, life),
            ..object.clone()
        };
        let names = listed(world, &own);
        names.iter().any(|name| look(&own.key, name) == object.key)
    })
}

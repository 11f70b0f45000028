//! Buckets that move between servers in memory, while trees are used and when the router dies.

#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../crash/model.rs"]
mod model;
mod world;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::NewAttrs;
use quorate_router::ask::{Ask, Servers};
use quorate_router::layout::{Bucket, HOME, Volume};
use quorate_router::map::Use;
use quorate_router::mover::{MoveError, Mover};

use model::{FAULTS, Fault, World};
use world::{
    Op, Random, Router, VOLUMES, act, assert_clean, empty, file_number, listing, op, router, run,
    shelves, some, text, tree,
};

fn mover<'a>(world: &'a World, router: &Router<'a>) -> Mover<&'a World, &'a World> {
    let volumes = router.servers.map().volumes.len();
    let shelves = Arc::new(shelves(volumes).into());
    Mover::new(router.servers.clone(), world, shelves)
}

/// What must not change when a bucket moves: by path the handle, the file's number, when it was changed, and what is in it.
type Seen = BTreeMap<Vec<u8>, (Vec<u8>, u64, [(u32, u32); 2], u32, Option<Bytes>)>;

fn seen(router: &Router<'_>) -> Seen {
    let mut all = Seen::new();
    let mut todo = vec![(router.root().clone(), Vec::new())];
    while let Some((dir, path)) = todo.pop() {
        let attrs = run(router.attrs(&dir)).unwrap().unwrap();
        let number = file_number(router, &dir, &attrs);
        let about = (number, attrs.times(), attrs.mode());
        let handle = dir.write().unwrap();
        all.insert(path.clone(), (handle, about.0, about.1, about.2, None));
        for (name, object, is_dir) in listing(router, &dir) {
            let path = [&path[..], b"/", &name].concat();
            if is_dir {
                todo.push((object, path));
                continue;
            }
            let attrs = run(router.attrs(&object)).unwrap().unwrap();
            let number = file_number(router, &object, &attrs);
            let text = Some(text(router, &object));
            let handle = object.write().unwrap();
            all.insert(path, (handle, number, attrs.times(), attrs.mode(), text));
        }
    }
    let mut numbers: BTreeMap<u64, &Vec<u8>> = BTreeMap::new();
    for (handle, number, ..) in all.values() {
        let other = numbers.insert(*number, handle);
        assert!(other.is_none_or(|other| other == handle), "{number} twice");
    }
    all
}

/// A bucket, and a volume where it is not.
fn any_move(random: &mut Random, router: &Router<'_>) -> (Bucket, Volume) {
    let map = router.servers.map();
    let bucket = Bucket(random.below(map.buckets.len() as u64) as u32);
    let others = map.serving().filter(|&v| Some(v) != map.volume(bucket));
    let others: Vec<_> = others.collect();
    (bucket, others[random.below(others.len() as u64) as usize])
}

/// What was seen before a move is seen after it, by the handles from before; also by a router that starts then.
#[test]
fn nothing_is_seen_of_a_move() {
    for seed in 0..40 {
        let mut random = Random(seed + 500);
        let (many, _) = some(&mut random, seed);
        let before = seen(&router(&many));
        let running = router(&many);
        for _ in 0..8 {
            let (bucket, to) = any_move(&mut random, &running);
            let moved = run(mover(&many, &running).move_bucket(bucket, to));
            assert_eq!(moved, Some(Ok(())), "seed {seed}: {bucket:?} to {to:?}");
            assert_eq!(running.servers.map().volume(bucket), Some(to));
            assert_eq!(seen(&running), before, "seed {seed}");
            assert_eq!(seen(&router(&many)), before, "seed {seed}, anew");
            assert_clean(&many, &running);
        }
    }
}

/// Polls once.
fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Operations between the steps of moves end as they would without; the tree is the same.
#[test]
fn trees_are_used_while_buckets_move() {
    let (mut moves, mut waits, mut during, mut busy) = (0, 0, 0, 0);
    for seed in 0..120 {
        let mut random = Random(seed + 900);
        let (many, one) = some(&mut random, seed);
        let (routed, alone) = (router(&many), router(&one));
        let mover = mover(&many, &routed);
        for _ in 0..4 {
            let (bucket, to) = any_move(&mut random, &routed);
            let mut moving = pin!(mover.move_bucket(bucket, to));
            let often = 1 + random.below(12);
            loop {
                many.lock().yields = true;
                let polled = poll(moving.as_mut());
                many.lock().yields = false;
                if let Poll::Ready(moved) = polled {
                    // One that could not go on is undone, and may be tried again.
                    match moved {
                        Ok(()) => moves += 1,
                        Err(MoveError::Busy) => busy += 1,
                        Err(other) => panic!("seed {seed}: {other}"),
                    }
                    break;
                }
                if random.below(often) > 0 {
                    continue;
                }
                let op = op(&mut random);
                let expected = run(act(&alone, &op)).unwrap();
                let mut acting = pin!(act(&routed, &op));
                during += 1;
                let done = loop {
                    if let Poll::Ready(done) = poll(acting.as_mut()) {
                        break done;
                    }
                    // It is kept waiting for the end of the move.
                    waits += 1;
                    many.lock().yields = true;
                    let polled = poll(moving.as_mut());
                    many.lock().yields = false;
                    if polled.is_ready() {
                        moves += 1;
                        moving.set(mover.move_bucket(bucket, to));
                    }
                };
                assert_eq!(done, expected, "seed {seed}: {op:?}");
            }
            assert_eq!(tree(&routed), tree(&alone), "seed {seed}");
        }
        assert_eq!(tree(&router(&many)), tree(&alone), "seed {seed}, anew");
        assert_clean(&many, &routed);
    }
    println!("{moves} moves, {busy} given up; {during} operations meanwhile, {waits} waits");
    assert!(moves > 200 && during > 2_000 && waits > 20 && busy < moves / 4);
}

/// Where cookies are places in a list, as the model's are, a listing that goes on after a name above was taken away leaves out one that nobody has
/// touched. That one has moved as well, whenever the other goes.
#[test]
fn names_that_a_listing_leaves_out_move_too() {
    const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
    let many = world::world(VOLUMES, 3);
    for name in NAMES {
        let made = Op::Make(vec![name], name[0].into());
        run(act(&router(&many), &made)).unwrap().unwrap();
    }
    let many = many.lock().clone();
    let mut moved_at = None;
    for step in 0..200 {
        let many = World(many.clone().into());
        let routed = router(&many);
        let (mover, to) = (mover(&many, &routed), Volume(1));
        let mut moving = pin!(mover.move_bucket(HOME, to));
        let mut removed = false;
        for polled in 0.. {
            if polled == step {
                many.lock().yields = false;
                let gone = run(act(&routed, &Op::Remove(vec![NAMES[0]])));
                removed = gone.is_some_and(|done| done == Ok(()));
            }
            many.lock().yields = true;
            if let Poll::Ready(moved) = poll(moving.as_mut()) {
                moved.unwrap();
                break;
            }
        }
        many.lock().yields = false;
        let seen: Vec<_> = tree(&routed).into_keys().collect();
        let left = NAMES[usize::from(removed)..].iter();
        let expected: Vec<_> = left.map(|name| [b"/", *name].concat()).collect();
        assert_eq!(seen, expected, "removed after {step} steps");
        assert_clean(&many, &routed);
        if !removed {
            moved_at = moved_at.or(Some(step));
        }
    }
    assert!(moved_at.is_some_and(|at| at > 30), "{moved_at:?}");
}

/// What is ordered while a bucket is copied is done at once, but for the end of a volume; and the move heeds it.
#[test]
fn orders_do_not_wait_for_moves() {
    for seed in 0..20 {
        let mut random = Random(seed + 7_000);
        let (many, _) = some(&mut random, seed);
        let running = router(&many);
        let before = seen(&running);
        let mover = mover(&many, &running);
        let (bucket, to) = any_move(&mut random, &running);
        let map = running.servers.map();
        let from = map.volume(bucket).unwrap();
        let third = map.serving().find(|&v| v != from && v != to).unwrap();
        let goes_on = seed % 2 == 0;
        let drained = if goes_on { third } else { to };
        let mut moving = pin!(mover.move_bucket(bucket, to));
        many.lock().yields = true;
        for _ in 0..8 {
            assert!(poll(moving.as_mut()).is_pending(), "seed {seed}");
        }
        many.lock().yields = false;
        assert_eq!(run(mover.put_to(drained, Use::Draining)), Some(Ok(())));
        let mut removing = pin!(mover.put_to(from, Use::Removed));
        assert!(poll(removing.as_mut()).is_pending(), "seed {seed}");
        let (moved, at) = match goes_on {
            true => (Ok(()), to),
            false => (Err(MoveError::Nowhere), from),
        };
        assert_eq!(run(moving.as_mut()), Some(moved), "seed {seed}");
        let removed = match running.servers.map().held(from) {
            0 => Ok(()),
            _ => Err(MoveError::Nowhere),
        };
        assert_eq!(poll(removing), Poll::Ready(removed), "seed {seed}");
        let map = running.servers.map();
        assert_eq!(map.volume(bucket), Some(at), "seed {seed}");
        assert_eq!(map.member(drained).unwrap().state, Use::Draining);
        assert_eq!(seen(&running), before, "seed {seed}");
        assert_eq!(seen(&router(&many)), before, "seed {seed}, anew");
        assert_clean(&many, &running);
    }
}

/// At each step of moves each fault happens once. Afterwards all is there that was, by the handles from before, and nothing else.
#[test]
fn each_step_of_a_move_can_be_the_last() {
    let (mut runs, mut gone_through, mut undone) = (0u64, 0u64, 0u64);
    for seed in 0..6 {
        let mut random = Random(seed + 20_000);
        let (many, _) = some(&mut random, seed);
        let before = seen(&router(&many));
        let many = many.lock().clone();
        for _ in 0..2 {
            let whole = World(many.clone().into());
            let running = router(&whole);
            let (bucket, to) = any_move(&mut random, &running);
            let steps = whole.lock().steps;
            assert_eq!(
                run(mover(&whole, &running).move_bucket(bucket, to)),
                Some(Ok(()))
            );
            let used = whole.lock().steps - steps;
            for at in 1..=used {
                for fault in FAULTS.into_iter().chain([Fault::Restart]) {
                    let told =
                        format!("seed {seed}, {bucket:?} to {to:?}, {fault:?} at {at} of {used}");
                    let faulty = World(many.clone().into());
                    faulty.lock().fault = Some((steps + at, fault));
                    let running = router(&faulty);
                    let moved = run(mover(&faulty, &running).move_bucket(bucket, to));
                    faulty.lock().fault = None;
                    // The one that goes on, if it lives; and one that starts.
                    if moved.is_some() {
                        assert_eq!(seen(&running), before, "{told}");
                    }
                    // One that failed has left nothing, also before the next start.
                    if matches!(moved, Some(Err(_))) {
                        assert_clean(&faulty, &running);
                    }
                    sweep(&faulty, &mut random);
                    let anew = router(&faulty);
                    assert_eq!(seen(&anew), before, "{told}, anew");
                    assert_clean(&faulty, &anew);
                    let has_moved = anew.servers.map().volume(bucket) == Some(to);
                    match moved {
                        Some(Ok(())) => assert!(has_moved, "{told}"),
                        Some(Err(_)) => assert!(!has_moved, "{told}"),
                        None => {}
                    }
                    runs += 1;
                    gone_through += u64::from(has_moved);
                    undone += u64::from(!has_moved);
                }
            }
        }
    }
    println!("{runs} runs of moves; {gone_through} went through, {undone} undone");
    assert!(runs > 2_000 && gone_through > 200 && undone > 1_000);
}

/// As a router does when it starts; it may die a few times more.
fn sweep(world: &World, random: &mut Random) {
    for again in 0..5 {
        let dies = again < 4 && random.below(2) == 0;
        let at = world.lock().steps + 1 + random.below(12);
        world.lock().fault = dies.then_some((at, Fault::CrashAfter));
        let router = router(world);
        if run(mover(world, &router).sweep()).is_some() {
            world.lock().fault = None;
            return;
        }
    }
    panic!("it never ends");
}

/// A server that gives a directory other attributes than it is told gets no bucket, and nothing is seen of that.
#[test]
fn what_a_volume_does_not_keep_does_not_go_there() {
    let (many, _) = some(&mut Random(1), 1);
    let running = router(&many);
    let sticky = NewAttrs {
        mode: Some(0o1777),
        ..NewAttrs::default()
    };
    let root = running.root().clone();
    let ask = Ask::SetAttr(root.key, sticky);
    let set = run(running.servers.ask(root.bucket, &Who::root(), ask)).unwrap();
    set.unwrap();
    let before = seen(&running);
    let from = running.servers.map().volume(root.bucket).unwrap();
    let mut others = (0..VOLUMES).map(Volume).filter(|&to| to != from);
    let (to, good) = (others.next().unwrap(), others.next().unwrap());
    many.lock().servers[usize::from(to.0)].dir_modes = 0o777;
    let mover = mover(&many, &running);
    let moved = run(mover.move_bucket(root.bucket, to)).unwrap();
    assert!(matches!(moved, Err(MoveError::Differs(v, _)) if v == to.0));
    assert_eq!(seen(&running), before);
    assert_clean(&many, &running);
    run(mover.move_bucket(root.bucket, good)).unwrap().unwrap();
    assert_eq!(seen(&running), before);
}

/// A volume comes, another goes with all that was on it, and what is asked by handles from before finds it.
#[test]
fn volumes_come_and_go() {
    for seed in 0..10 {
        let mut random = Random(seed + 3_000);
        let (many, _) = some(&mut random, seed);
        let running = router(&many);
        let before = seen(&running);
        many.lock().servers.push(empty());
        let shelves = Arc::new(shelves(usize::from(VOLUMES) + 1).into());
        let mover = Mover::new(running.servers.clone(), &many, shelves);
        let (new, old) = (Volume(VOLUMES), Volume(random.below(VOLUMES.into()) as u16));
        run(mover.join("new".into(), new)).unwrap().unwrap();
        assert_eq!(
            run(mover.put_to(old, Use::Removed)).unwrap(),
            Err(MoveError::Nowhere),
            "it has buckets"
        );
        run(mover.put_to(old, Use::Draining)).unwrap().unwrap();
        while let Some((bucket, to)) = running.servers.map().next_move(true) {
            assert_ne!(to, old);
            run(mover.move_bucket(bucket, to)).unwrap().unwrap();
        }
        run(mover.put_to(old, Use::Removed)).unwrap().unwrap();
        let map = running.servers.map();
        assert_eq!(map.member(new).map(|m| m.state), Some(Use::Serving));
        assert!(map.held(new) > 0 && map.held(old) == 0);
        assert_eq!(
            run(mover.put_to(old, Use::Serving)).unwrap(),
            Err(MoveError::Nowhere)
        );
        // Whatever is asked of the old one would fail.
        many.lock().servers[usize::from(old.0)] = empty();
        assert_eq!(seen(&running), before, "seed {seed}");
        assert_eq!(seen(&router(&many)), before, "seed {seed}, anew");
    }
}

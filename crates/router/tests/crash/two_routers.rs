//! Two routers on the replicated service that keeps their log. One dies, or all that it does is late, at any step; the other takes over, and clients
//! go on there; then the first wakes up, or the order arrives that was late. That changes nothing any more.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_execution::{Call, Service};
use quorate_files::Who;
use quorate_ledger::Ledger;
use quorate_ledger::op::Reply;
use quorate_nfs::call::Place;
use quorate_nfs::status::Status;
use quorate_router::ask::{Ask, Given, Servers};
use quorate_router::coordinator::Coordinator;
use quorate_router::fence::enter;
use quorate_router::handle::Handle;
use quorate_router::layout::{Bucket, HOME};
use quorate_router::shared::{Group, Shared, SharedError};
use quorate_router::silence::Silence;
use quorate_router::takeover::settle;
use quorate_state::{MemorySnapshot, State as Replicated};
use quorate_wire::codec::Decode;
use quorate_wire::{PublicKey, SessionId, Time};

use super::model::{Fault, World};
use super::removed::{end, listed, poll_until};
use super::{Op, Path, Random, VOLUMES, act, assert_clean, op, root, router, run, shared, some};

/// The longest that there can be: nothing here takes as long, so that no router stops by its own clock.
const LEASE: Duration = Duration::from_secs(300);

/// The service, on one replica without a network.
struct Keeping {
    ledger: Ledger,
    state: Replicated,
    now: u64,
    /// The step at which an intention was begun.
    begun_at: Option<u64>,
}

/// A router's way to the servers and to the service; both count as steps.
#[derive(Clone)]
struct Way {
    world: Arc<World>,
    keeping: Arc<Mutex<Keeping>>,
    client: u8,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "way of {}", self.client)
    }
}

impl Servers<Bucket> for Way {
    async fn ask(&self, volume: Bucket, who: &Who, ask: Ask) -> Result<Given, Status> {
        (&*self.world).ask(volume, who, ask).await
    }

    async fn pause(&self) {}
}

impl Group for Way {
    async fn call(&self, op: Bytes) -> Result<Bytes, SharedError> {
        let executed = self.world.step(false, |world| {
            let mut keeping = self.keeping.lock().unwrap();
            let keeping = &mut *keeping;
            keeping.now += 1;
            let call = Call {
                client: PublicKey([self.client; 32]),
                session: SessionId(self.client.into()),
                now: Time(keeping.now),
            };
            let mut txn = keeping.state.begin();
            let reply = keeping.ledger.execute(&mut txn, &call, &op).unwrap();
            txn.commit();
            if matches!(Reply::from_bytes(reply.clone()), Ok(Reply::Number(_))) {
                keeping.begun_at = Some(world.steps);
            }
            Ok(reply)
        });
        executed.await.map_err(|_| SharedError::Lost)
    }

    async fn pause(&self, _: Duration) {
        panic!("nobody else holds it");
    }
}

type Routing = Coordinator<Way, Shared<Way>>;

fn keeping() -> Arc<Mutex<Keeping>> {
    let ledger = Ledger::new([PublicKey([1; 32]), PublicKey([2; 32])]);
    let mut state = Replicated::new(Arc::new(MemorySnapshot::default()));
    let mut txn = state.begin();
    ledger.genesis(&mut txn).unwrap();
    txn.commit();
    let now = 1 << 40;
    let begun_at = None;
    Arc::new(Mutex::new(Keeping {
        ledger,
        state,
        now,
        begun_at,
    }))
}

fn begin(way: &Way) -> Routing {
    let instance = [way.client; 16];
    let begin = async {
        let registered = Shared::register(way.clone(), [7; 16], instance, LEASE).await;
        let log = registered.unwrap();
        let mut own = Vec::new();
        for volume in (0..VOLUMES).map(Bucket) {
            // The world's own first life has the number 1.
            own.push(enter(way, volume, &shared(), log.epoch()).await.unwrap());
        }
        Coordinator::new(way.clone(), log, own, root())
    };
    run(begin).expect("nothing dies")
}

/// The group's time leaps past all leases, again and again, while both routers go on: neither is taken over. One that is silent is, once it has
/// stopped by its own clock; and one that begins anew is at once.
#[test]
fn nobody_is_taken_over_for_a_leap_of_time() {
    let world = Arc::new(super::world(VOLUMES));
    let keeping = keeping();
    let way = |client| Way {
        world: world.clone(),
        keeping: keeping.clone(),
        client,
    };
    let (first, second) = (begin(&way(1)), begin(&way(2)));
    let log = first.log();
    let (patience, renewal) = (log.lease(), log.renewal());
    let mut silence = Silence::default();
    #[allow(clippy::disallowed_methods)] // Where time begins is all the same here.
    let mut clock = Instant::now();
    let mut look = |clock| {
        let run_out = run(log.run_out()).unwrap().unwrap();
        let over = silence.told(&run_out, patience, clock);
        (run_out.into_keys().collect::<Vec<_>>(), over)
    };
    let other = second.log().epoch();
    for _ in 0..20 {
        keeping.lock().unwrap().now += LEASE.as_nanos() as u64 + 1;
        assert_eq!(look(clock), (vec![other], vec![]));
        run(second.log().renew()).unwrap().unwrap();
        clock += renewal;
    }
    // It did renew in between, each time: that it has run out whenever it is looked at is no silence.
    assert_eq!(look(clock), (vec![], vec![]));
    keeping.lock().unwrap().now += LEASE.as_nanos() as u64 + 1;
    let silent_since = clock;
    while clock < silent_since + patience {
        assert_eq!(look(clock), (vec![other], vec![]));
        clock += renewal;
    }
    assert_eq!(look(clock), (vec![other], vec![other]));
    begin(&way(2));
    assert_eq!(look(clock), (vec![other], vec![other]));
    let again = begin(&way(2)).log().epoch();
    let (run_out, over) = look(clock);
    assert!(run_out == over && !over.is_empty() && !over.contains(&again));
}

/// Something about the same names, or anything.
fn next_op(random: &mut Random, last: &Op) -> Op {
    let paths: Vec<Path> = match last {
        Op::Mkdir(path, _) | Op::Make(path, _) | Op::Rmdir(path) | Op::Remove(path) => {
            vec![path.clone()]
        }
        Op::Rename(from, to) | Op::Link(from, to) => vec![from.clone(), to.clone()],
    };
    let path = paths[random.below(paths.len() as u64) as usize].clone();
    let other = super::path(random);
    match random.below(8) {
        0 => Op::Make(path, random.next()),
        1 => Op::Mkdir(path, Bucket(random.below(VOLUMES.into()) as u32)),
        2 => Op::Rename(path, other),
        3 => Op::Rename(other, path),
        4 => Op::Rmdir(path),
        5 => Op::Remove(path),
        _ => op(random),
    }
}

const DEATHS: [Fault; 4] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::Late,
    Fault::LateAndLast,
];

#[test]
fn each_step_can_be_late_or_the_last() {
    let (mut runs, mut operations, mut late, mut done_after, mut undone) = (0u64, 0, 0u64, 0, 0);
    let mut again = 0u64;
    for seed in 0..90 {
        let mut random = Random(seed + 77_000);
        let (many, one) = some(&mut random, seed);
        let (many, one) = (many.lock().clone(), one.lock().clone());
        for _ in 0..40 {
            let op = op(&mut random);
            let start = || {
                let world = World(many.clone().into());
                // Its directory is as those of former routers: gone.
                for server in &mut world.lock().servers {
                    server.remove_staged(1);
                }
                let (world, keeping) = (Arc::new(world), keeping());
                let way = |client| Way {
                    world: world.clone(),
                    keeping: keeping.clone(),
                    client,
                };
                let (first, second) = (begin(&way(1)), begin(&way(2)));
                let way = way(2);
                (world, keeping, way, first, second)
            };
            let (whole, kept, _, first, _) = start();
            // In every other tree what is replaced seems to be empty, so that it has to be given back.
            let hides = seed % 2 == 1;
            whole.lock().hides = hides;
            let steps = whole.lock().steps;
            let outcome = run(act(&first, VOLUMES, &op)).unwrap();
            let used = whole.lock().steps - steps;
            // What goes straight has no intention.
            let Some(begun_at) = kept.lock().unwrap().begun_at else {
                continue;
            };
            operations += 1;
            let alone = World(one.clone().into());
            let before = super::tree(&router(&alone));
            assert_eq!(run(act(&router(&alone), 1, &op)).unwrap(), outcome);
            let after = super::tree(&router(&alone));
            for at in 1..=used {
                for fault in DEATHS {
                    // What comes before are questions, and at most a straight order that fails.
                    if steps + at < begun_at && matches!(fault, Fault::Late | Fault::LateAndLast) {
                        continue;
                    }
                    let told = format!("seed {seed}, {op:?}, {fault:?} at {at} of {used}");
                    let (world, keeping, way, first, second) = start();
                    world.lock().fault = Some((steps + at, fault));
                    let mut acting = Box::pin(act(&first, VOLUMES, &op));
                    world.lock().hides = hides;
                    assert_eq!(run(acting.as_mut()), None, "{told}");
                    world.lock().hides = false;
                    keeping.lock().unwrap().now += LEASE.as_nanos() as u64 + 1;
                    let settled = run(async {
                        let dead = second.log().renew().await.unwrap();
                        assert_eq!(dead.len(), 1, "{told}");
                        let (heir, ancestors) = second.log().take_over(dead).await.unwrap();
                        let hidden = vec![shared(); VOLUMES as usize];
                        settle(&way, &hidden, &root(), &heir, &ancestors)
                            .await
                            .unwrap()
                    });
                    let settled = settled.expect("it ends").len();
                    assert!(settled <= 1, "{told}");
                    let found = super::tree(&second);
                    assert!(found == before || found == after, "{told}: {found:?}");
                    let is_done = found == after;
                    done_after += u64::from(is_done && before != after);
                    undone += u64::from(!is_done);
                    // Clients go on elsewhere.
                    let alone = World(one.clone().into());
                    if is_done {
                        assert_eq!(run(act(&router(&alone), 1, &op)).unwrap(), outcome);
                    }
                    let next = next_op(&mut random, &op);
                    let expected = run(act(&router(&alone), 1, &next)).unwrap();
                    let answer = run(act(&second, VOLUMES, &next)).unwrap();
                    assert_eq!(answer, expected, "{told}, then {next:?}");
                    let now = super::tree(&second);
                    assert_eq!(now, super::tree(&router(&alone)), "{told}, then {next:?}");
                    if world.lock().holds_back {
                        world.lock().fault = None;
                        world.lock().holds_back = false;
                        let answer = run(acting.as_mut());
                        assert!(
                            fault == Fault::LateAndLast || answer.is_some(),
                            "{told}: it never ends"
                        );
                        // Only what was over may be called done.
                        if let Some(Ok(())) = answer {
                            assert!(is_done && settled == 0, "{told}");
                        }
                        // And only what was not done may be begun again.
                        if answer == Some(Err(Status::Jukebox)) {
                            assert!(!is_done || before == after, "{told}");
                            again += 1;
                        }
                        assert_eq!(super::tree(&second), now, "{told}, then {next:?}");
                        late += 1;
                    }
                    // A directory that was made late for a name that never was.
                    let orphans = usize::from(matches!(op, Op::Mkdir(..)));
                    assert_clean(&world, &second, 1, orphans);
                    runs += 1;
                }
            }
        }
    }
    println!(
        "{runs} runs of {operations} operations, {late} with late orders, {again} of which may be begun again; {done_after} done, {undone} undone"
    );
    assert!(runs > 10_000 && late > 5_000 && done_after > 1_000 && undone > 1_000);
}

/// All names in the directories that lives of routers have in `staging` of the root's bucket.
fn staged(world: &World) -> Vec<Bytes> {
    let dir = |key| Handle { key, ..root() };
    let lives = dir(shared().staging);
    let mut all = Vec::new();
    for name in listed(world, &lives) {
        let place = Place {
            dir: lives.key.clone(),
            name,
        };
        let found = world.lock().servers[HOME.0 as usize].ask(Ask::Lookup(place));
        let Ok(Given::Object(life)) = found else {
            panic!("{found:?}");
        };
        all.extend(listed(world, &dir(life.handle)));
    }
    all.sort();
    all
}

/// What can't be settled yet, since a server does not answer, does not hold up what was begun after it.
#[test]
fn what_is_left_waits_for_its_own_servers() {
    let world = Arc::new(super::world(VOLUMES));
    for server in &mut world.lock().servers {
        server.remove_staged(1);
    }
    let keeping = keeping();
    let way = |client| Way {
        world: world.clone(),
        keeping: keeping.clone(),
        client,
    };
    let (first, second) = (begin(&way(1)), begin(&way(2)));
    world.lock().yields = true;
    for (n, name) in [b"a", b"b"].into_iter().enumerate() {
        let op = Op::Mkdir(vec![name], Bucket(1));
        let mut making = std::pin::pin!(act(&first, VOLUMES, &op));
        poll_until(making.as_mut(), || staged(&world).len() > n);
    }
    world.lock().yields = false;
    keeping.lock().unwrap().now += LEASE.as_nanos() as u64 + 1;
    let taken_over = run(async {
        let dead = second.log().renew().await.unwrap();
        second.log().take_over(dead).await.unwrap()
    });
    let (heir, ancestors) = taken_over.unwrap();
    let both = staged(&world);
    // Lives have such numbers as well.
    world.lock().unanswered = Some(both[0].slice(..17));
    world.lock().yields = true;
    let (way, hidden, top) = (way(2), vec![shared(); VOLUMES as usize], root());
    let mut settling = std::pin::pin!(settle(&way, &hidden, &top, &heir, &ancestors));
    poll_until(settling.as_mut(), || staged(&world) == both[..1]);
    world.lock().unanswered = None;
    assert_eq!(end(settling.as_mut()).unwrap().len(), 2);
    world.lock().yields = false;
    assert_clean(&world, &second, 1, 0);
}

use std::collections::BTreeSet;

use quorate_wire::codec::Encode;
use tokio::time::{sleep, timeout};

use super::*;

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    /// It is carried out, and the answer does not come.
    Done,
    Lost,
}

/// A group that grants what no other has.
#[derive(Clone, Debug, Default)]
struct Sharing(Arc<Mutex<BTreeMap<Key, Epoch>>>);

impl Group for Sharing {
    async fn call(&self, op: Bytes) -> Result<Bytes, SharedError> {
        let mut held = self.0.lock().unwrap();
        let reply = match Op::from_bytes(op).unwrap() {
            Op::Hold(Keys { epoch, keys }) => {
                let others = keys.iter().filter_map(|key| held.get(key));
                match others.copied().find(|&other| other != epoch) {
                    Some(other) => Reply::Refused(Refused::Held(other)),
                    None => {
                        held.extend(keys.into_iter().map(|key| (key, epoch)));
                        Reply::Done(())
                    }
                }
            }
            Op::Release(Keys { keys, .. }) => {
                held.retain(|key, _| !keys.contains(key));
                Reply::Done(())
            }
            other => panic!("{other:?}"),
        };
        Ok(reply.to_bytes().into())
    }

    async fn pause(&self, time: Duration) {
        sleep(time).await;
    }
}

/// Two routers of which each still has one directory, and wants that of the other as well, do not wait for each other.
#[tokio::test]
async fn what_is_left_from_before_is_given_to_who_has_the_rest() {
    let group = Sharing::default();
    let router = |epoch| Shared::new(group.clone(), epoch, Duration::from_secs(300), now());
    let (one, other) = (router(1), router(2));
    let dir = |key: &'static [u8]| Handle {
        key: key.into(),
        ..moves()
    };
    drop(one.hold(vec![dir(b"a")]).await.unwrap());
    drop(other.hold(vec![dir(b"b")]).await.unwrap());
    let both = |router: Shared<Sharing>| async move {
        let held = router.hold(vec![dir(b"a"), dir(b"b")]).await;
        drop(held.unwrap());
        // As it is done all the time.
        loop {
            sleep(LINGER).await;
            router.sweep().await;
            if router.dirs().is_empty() {
                break;
            }
        }
    };
    let all = async { tokio::join!(both(one), both(other)) };
    timeout(TERM * 60, all).await.expect("both go on");
}

/// A group that grants all.
#[derive(Clone, Debug)]
struct Granting(Arc<Mutex<(Fate, BTreeSet<Key>)>>);

impl Granting {
    fn new() -> Granting {
        Granting(Arc::new(Mutex::new((Fate::Answered, BTreeSet::new()))))
    }
}

impl Group for Granting {
    async fn call(&self, op: Bytes) -> Result<Bytes, SharedError> {
        let fate = {
            let (fate, held) = &mut *self.0.lock().unwrap();
            match Op::from_bytes(op).unwrap() {
                _ if *fate == Fate::Lost => {}
                Op::Hold(Keys { keys, .. }) => held.extend(keys),
                Op::Release(Keys { keys, .. }) => held.retain(|key| !keys.contains(key)),
                other => panic!("{other:?}"),
            }
            *fate
        };
        if fate != Fate::Answered {
            std::future::pending::<()>().await;
        }
        Ok(Reply::Done(()).to_bytes().into())
    }

    async fn pause(&self, time: Duration) {
        sleep(time).await;
    }
}

/// A change that waits for a server that is away does not hold up others in its directory, and nobody waits for a place that is lost.
#[tokio::test]
async fn a_change_that_takes_long_holds_up_no_other_of_this_router() {
    let shared = Shared::new(Granting::new(), 1, Duration::from_secs(300), now());
    let hold = || timeout(TERM * 20, shared.hold(vec![moves()]));
    let stuck = hold().await.expect("nobody has it").unwrap();
    sleep(TERM).await;
    drop(hold().await.expect("it goes on").unwrap());
    sleep(TERM).await;
    shared.0.lost.store(true, Ordering::Release);
    let late = hold().await.expect("it ends");
    assert_eq!(late.err(), Some(Status::Jukebox));
    drop(stuck);
}

/// Who is cut off while a directory is asked for, or let go of for others, leaves nothing held that nobody knows of.
#[tokio::test]
async fn what_is_cut_off_is_let_go_of() {
    for (term_is_over, fate) in [
        (false, Fate::Done),
        (false, Fate::Lost),
        (true, Fate::Done),
        (true, Fate::Lost),
    ] {
        let group = Granting::new();
        let shared = Shared::new(group.clone(), 1, Duration::from_secs(300), now());
        if term_is_over {
            drop(shared.hold(vec![moves()]).await.unwrap());
            sleep(TERM).await;
        }
        group.0.lock().unwrap().0 = fate;
        let cut_off = timeout(AGAIN * 10, shared.hold(vec![moves()])).await;
        cut_off.expect_err("there is no answer");
        group.0.lock().unwrap().0 = Fate::Answered;
        shared.sweep().await;
        let held = group.0.lock().unwrap().1.clone();
        assert_eq!(held, BTreeSet::new(), "{term_is_over}, {fate:?}");
        // Who wants it next has it.
        let hold = shared.hold(vec![moves()]).await.unwrap();
        assert_eq!(group.0.lock().unwrap().1.len(), 1);
        drop(hold);
    }
}

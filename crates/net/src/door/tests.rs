use quorate_wire::KeyPair;

use super::*;
use crate::group::{Files, Purpose};

fn keeper() -> Keeper {
    let identity = Identity::new(&KeyPair::from_seed(&[1; 32]));
    let members = vec![("127.0.0.1:1".into(), identity.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, Vec::new(), files, purpose).unwrap();
    let group = Arc::new(group);
    let poll = Poll::new().unwrap();
    let waker = Waker::new(poll.registry()).unwrap();
    Keeper {
        listener: TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap(),
        poll,
        accepting: true,
        pause_until: None,
        config: identity.server_config(&group),
        opening: Opening::accepting(&identity, &group),
        group,
        epochs: None,
        orders: Arc::default(),
        limits: Box::new(|_| None),
        handshakes: 1,
        strangers: BTreeMap::new(),
        turns: Turns::default(),
        work: Work::new(clock::now()),
        next_stranger: FIRST_STRANGER,
        dialers: Vec::new(),
        has_ended: mpsc::sync_channel(1).1,
        arrivals: mpsc::sync_channel(1).0,
        pending: Arc::default(),
        wake: waker.clone(),
        waker,
        scratch: vec![0; READ_BYTES],
        log: LogLimit::default(),
    }
}

/// A pause of accepting that is over while there is no time for those who knock keeps the thread from nothing, nor awake.
#[test]
fn a_pause_ends_without_time_for_anybody() {
    let mut keeper = keeper();
    let now = clock::now();
    keeper.pause_until = Some(now);
    keeper.work.spend(Duration::from_secs(10));
    keeper.receive(now);
    assert_eq!(keeper.next_due(), None);
    assert!(keeper.work.due() > now && keeper.accepting);
}

use super::*;
use crate::ClientLinks;
use crate::group::{Files, Purpose};
use quorate_wire::KeyPair;

/// More than a handshake takes on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the thread that lets others in has panicked, waiting for links fails and names it: a replica that goes on with the links that it has
/// would lose one after the other.
#[test]
fn links_do_not_outlive_their_door() {
    let key = |seed: u8| KeyPair::from_seed(&[seed; 32]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let members = vec![(listener.local_addr().unwrap().to_string(), key(1).public())];
    let clients = vec![("client".into(), key(9).public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Arc::new(Group::new("home", members, clients, files, purpose).unwrap());
    let (me, identity) = (ReplicaId(0), Identity::new(&key(1)));
    let again = listener.try_clone().unwrap();
    let limits = Limits::default();
    let mut links = ReplicaLinks::start(group.clone(), me, &identity, listener, limits).unwrap();
    links.poll(Some(Duration::ZERO)).unwrap();
    let options = DoorOptions {
        listener: again,
        group: group.clone(),
        identity,
        epochs: None,
        limits: Box::new(|who| panic!("{who:?} comes, as asked")),
        handshakes: limits.handshakes,
    };
    links.door = Door::open(options, |_, _| Vec::new(), links.waker()).unwrap();

    let mut client = ClientLinks::connect(&group, &Identity::new(&key(9))).unwrap();
    let until = clock::now() + PATIENCE;
    let told = loop {
        assert!(clock::now() < until, "nobody notices");
        client.poll(Some(Duration::from_millis(5))).unwrap();
        client.flush();
        if let Err(e) = links.poll(Some(Duration::from_millis(5))) {
            break e.to_string();
        }
    };
    assert!(
        told.contains("\"door\"") && told.contains("comes, as asked"),
        "{told}"
    );
}

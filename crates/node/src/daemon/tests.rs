use super::*;
use bytes::Bytes;
use quorate_execution::{Call, Rest};
use quorate_net::group::{Files, Purpose};
use quorate_net::threads;
use quorate_state::{Fault as StoreFault, Layer, Txn};
use quorate_wire::Seq;

/// Says nothing.
#[derive(Clone, Debug)]
struct Silence;

impl Service for Silence {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), StoreFault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, _: &Bytes) -> Result<Bytes, StoreFault> {
        Ok(Bytes::new())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, StoreFault> {
        Ok(Rest::Nothing)
    }
}

/// A replica of which a thread has panicked ends, with a word that names the thread and an exit code that says that it was a defect. It does not
/// wait for what that thread would have said.
#[test]
fn a_replica_ends_with_each_of_its_threads() {
    let key = KeyPair::from_seed(&[1; 32]);
    let members = vec![("127.0.0.1:7400".to_owned(), key.public())];
    let clients = vec![("client".to_owned(), KeyPair::from_seed(&[9; 32]).public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("silence", members, clients, files, purpose);
    let group = Arc::new(group.unwrap());
    for thread in ["log", "store", "worker 3", "verifier 1", "keys"] {
        let data = tempfile::tempdir().unwrap();
        let data = data.path().join("replica-0");
        let options = Options {
            first_start: true,
            listen: Some("127.0.0.1:0".into()),
            ..Options::new(group.clone(), ReplicaId(0), key.clone(), data)
        };
        let replica = Daemon::start(options, Silence).unwrap();
        let died = replica.stopper().0.died();
        threads::spawn(thread, died, || panic!("as asked")).unwrap();
        let ended = replica.wait().unwrap_err();
        let told = ended.to_string();
        assert!(matches!(ended, DaemonError::Panicked(_)), "{told}");
        assert!(
            told.contains(&format!("\"{thread}\"")) && told.contains("as asked"),
            "{told}"
        );
        assert_eq!(ended.exit_code(), 70);
    }
}

/// No key of a client's counts for longer than twice the time in which links are made anew.
#[test]
fn keys_of_clients_last_no_longer_than_two_renewals() {
    assert_eq!(client_keys_last_ms(None), CLIENT_KEYS_LAST_MS);
    for (refresh, lasts) in [(1, 500), (2, 1_000), (15, 14_000), (3_600, 30_000)] {
        let refresh = Duration::from_secs(refresh);
        assert_eq!(client_keys_last_ms(Some(refresh)), lasts, "{refresh:?}");
    }
}

/// A state that was set aside and can't be opened for a while loses nothing meanwhile: the replica may go back to it.
#[test]
fn what_is_set_aside_keeps_its_values_while_it_can_not_be_opened() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path();
    let options = StoreOptions::default();
    let restore = |past| restore::restore(data, past, false, options, Silence).unwrap();
    let (key, value) = (Bytes::from_static(b"large"), Bytes::from(vec![7; 64 << 10]));
    let layer = Layer::from([(key.clone(), Some(value.clone()))]);
    let mut found = restore(restore::Past::None);
    found.store.checkpoint(Seq(128), &layer, true).unwrap();
    drop(found);
    // Somebody else has it open.
    let open = restore(restore::Past::Distrusted).former;
    assert!(open.is_some());
    let mut found = restore(restore::Past::Logged);
    assert!(found.former.is_none() && found.former_log);
    // A segment stays as long as a snapshot from before it was empty.
    drop(found.restored);
    for seq in [128, 256] {
        let store = &mut found.store;
        store.checkpoint(Seq(seq), &Layer::new(), true).unwrap();
    }
    drop((found.store, found.wal, found.hold));
    drop(open);
    assert!(aside::take_back(data).unwrap());
    let found = restore(restore::Past::TakenBack);
    let read = found.store.newest().snapshot.get(&key).unwrap();
    assert!(read == Some(value));
}

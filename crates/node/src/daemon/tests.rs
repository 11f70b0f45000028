use super::*;
use bytes::Bytes;
use quorate_execution::{Call, Rest};
use quorate_net::group::{Files, Purpose};
use quorate_net::threads;
use quorate_state::{Fault as StoreFault, Txn};

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

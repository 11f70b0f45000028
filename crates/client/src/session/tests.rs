use quorate_net::group::{Files, Purpose};
use quorate_wire::KeyPair;

use super::*;

/// A session with a group that nobody runs, whose thread does this.
fn session(drive: impl FnOnce(Driver) -> io::Result<()> + Send + 'static) -> Session {
    let keys = [1, 2].map(|seed| KeyPair::from_seed(&[seed; 32]));
    let members = vec![("127.0.0.1:1".into(), keys[0].public())];
    let clients = vec![("client".into(), keys[1].public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, clients, files, purpose).unwrap();
    Session::driven_by(drive, &group, &Identity::new(&keys[1]), SHORT_RESULT).unwrap()
}

/// A thread that panics, or that the system refuses something, is the end of the session, and whoever lives by it is told why.
#[test]
fn the_end_of_its_thread_is_told() {
    let panicked = session(|_| panic!("no flour"));
    let refused = session(|_| Err(io::Error::other("no water")));
    for (session, words) in [(panicked, "no flour"), (refused, "no water")] {
        let failed = block::on(session.failed());
        assert!(failed.to_string().contains(words), "{failed}");
        // Also for who asks when it is so already.
        assert_eq!(block::on(session.failed()), failed);
        let called = session.call_blocking(Bytes::from_static(b"op"));
        assert_eq!(called, Err(NoResult::SessionLost));
    }
}

/// Who closes a session does not see it fail.
#[test]
fn a_session_that_is_closed_has_not_failed() {
    let (sender, ended) = mpsc::channel();
    let session = session(move |driver| {
        let ran = driver.run();
        sender.send(ran.is_ok()).unwrap();
        ran
    });
    let failed = session.failed();
    session.close_blocking();
    assert_eq!(ended.recv(), Ok(true));
    assert_eq!(block::on_for(Duration::ZERO, failed), None);
}

use rustix::net::sockopt::tcp_user_timeout;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// A line to a server, whose end of the connection this is; a call waits for its answer.
struct Asked {
    listener: TcpListener,
    server: TcpStream,
    answer: oneshot::Receiver<Bytes>,
    serving: JoinHandle<()>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// With a queue of one connection that nobody has accepted, or two.
fn listen() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(1).unwrap()
}

async fn ask() -> Asked {
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    let line = Arc::new(Line::new(address, Arc::default()));
    let served = line.clone();
    let serving = tokio::spawn(async move { served.serve().await });
    let (reply, answer) = oneshot::channel();
    line.send(|| Waiter::Task(reply), |w| w.u32(7)).unwrap();
    let (server, _) = listener.accept().await.unwrap();
    Asked {
        listener,
        server,
        answer,
        serving,
    }
}

/// Has as many connections as the system takes that nobody accepts: then it is silent.
async fn silence(listener: &TcpListener) -> Vec<TcpStream> {
    let mut taken = Vec::new();
    let to = listener.local_addr().unwrap();
    while let Ok(connected) = timeout(SILENCE, TcpStream::connect(to)).await {
        taken.push(connected.unwrap());
        assert!(taken.len() < 100);
    }
    taken
}

/// Whose machine takes no connections is waited for no longer than it takes to see that.
#[tokio::test]
async fn a_silent_machine_is_given_up() {
    let mut asked = ask().await;
    let _taken = silence(&asked.listener).await;
    let given_up = timeout(ANSWER_TIME / 2, &mut asked.answer).await;
    assert!(given_up.expect("it waits on").is_err());
}

/// A server that thinks for long is waited for, while its machine answers.
#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let mut asked = ask().await;
    let mut call = [0; 12];
    asked.server.read_exact(&mut call).await.unwrap();
    let mut probes = 0;
    let thinks = async {
        while probes < 3 {
            let (_probe, _) = asked.listener.accept().await.unwrap();
            probes += 1;
        }
    };
    timeout(Duration::from_secs(60), thinks).await.unwrap();
    let reply = [&record_head(8), &call[4..]].concat();
    asked.server.write_all(&reply).await.unwrap();
    let answer = (&mut asked.answer).await.unwrap();
    assert_eq!(answer, call[4..]);
}

/// What comes while a machine is asked counts, though it be a part of a reply.
#[tokio::test]
async fn a_machine_that_sends_is_not_silent() {
    let mut asked = ask().await;
    let mut call = [0; 12];
    asked.server.read_exact(&mut call).await.unwrap();
    // By then its silence has lasted long enough for the first question, which gets no answer either.
    let _taken = silence(&asked.listener).await;
    tokio::time::sleep(SILENCE / 2).await;
    let reply = [&record_head(16), &call[4..], &[7; 8]].concat();
    for byte in &reply {
        asked.server.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(SILENCE / 4).await;
    }
    let answer = (&mut asked.answer).await.unwrap();
    assert_eq!(answer, reply[4..]);
}

/// That there is no way to a machine is known at once, and no sign of life.
#[tokio::test]
async fn a_machine_without_a_way_to_it_is_given_up() {
    let line = Line::new(String::new(), Arc::default());
    let (reply, _answer) = oneshot::channel();
    line.send(|| Waiter::Task(reply), |w| w.u32(7)).unwrap();
    let nowhere = (Ipv4Addr::BROADCAST, 2049).into();
    let watched = timeout(ANSWER_TIME / 2, line.watch(Ok(nowhere))).await;
    watched.expect("it is watched on");
}

/// An address that does not answer leaves time for the next.
#[tokio::test]
async fn each_address_of_a_name_has_its_time() {
    let (silent, other) = (listen(), listen());
    let _taken = silence(&silent).await;
    let both = [&silent, &other].map(|listener| listener.local_addr().unwrap());
    let connected = connect_to_one(both.into_iter()).await.unwrap();
    assert_eq!(connected.peer_addr().unwrap(), both[1]);
    assert!(tcp_user_timeout(&connected).unwrap() > 0);
}

use rustix::net::sockopt::tcp_user_timeout;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// A line to a server, whose end of the connection this is; a call waits for its answer.
struct Asked {
    line: Arc<Line>,
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
        line,
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

/// A call that is passed on; says when it is given up.
#[derive(Debug)]
struct Given(Option<oneshot::Sender<()>>);

impl Passed for Given {
    fn answered(mut self: Box<Self>, _: &[u8]) {
        self.0 = None;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.take().map(|given_up| given_up.send(()));
    }
}

/// Behind a server that hangs nobody waits, who could be told so and ask again; until it answers anything.
#[tokio::test]
async fn a_server_that_hangs_takes_no_calls() {
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    let line = Arc::new(Line::new(address, Arc::default()));
    let served = line.clone();
    let serving = tokio::spawn(async move { served.serve().await });
    let (given_up, is_given_up) = oneshot::channel();
    let (reply, mut answer) = oneshot::channel();
    let passed = Box::new(Given(Some(given_up)));
    line.send(|| Waiter::Task(reply), |w| w.u32(7)).unwrap();
    line.send(|| Waiter::Passed(passed), |w| w.u32(8)).unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    // Its machine takes connections.
    let machine = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let mut call = [0; 12];
    server.read_exact(&mut call).await.unwrap();
    timeout(Duration::from_secs(60), is_given_up)
        .await
        .unwrap()
        .unwrap();
    assert!(!line.is_up());
    let refused = line.send(|| unreachable!(), |_| unreachable!());
    assert_eq!(refused, Err(Unsent::Down));
    answer.try_recv().unwrap_err();

    let reply = [&record_head(8), &call[4..]].concat();
    server.write_all(&reply).await.unwrap();
    assert_eq!((&mut answer).await.unwrap(), call[4..]);
    assert!(line.is_up());
    let (reply, _answer) = oneshot::channel();
    line.send(|| Waiter::Task(reply), |w| w.u32(9)).unwrap();
    machine.abort();
    serving.abort();
}

/// One call that takes long is no hanging, where the server answers others.
#[tokio::test]
async fn a_server_that_is_busy_with_one_call_takes_others() {
    let mut asked = ask().await;
    let (given_up, mut is_given_up) = oneshot::channel();
    let mut call = [0; 12];
    asked.server.read_exact(&mut call).await.unwrap();
    let passed = Box::new(Given(Some(given_up)));
    let line = asked.line.clone();
    line.send(|| Waiter::Passed(passed), |w| w.u32(8)).unwrap();
    asked.server.read_exact(&mut call).await.unwrap();
    let slow = call;
    let machine = async { while asked.listener.accept().await.is_ok() {} };
    let server = &mut asked.server;
    let answers = async {
        // It is asked for nothing: a call with an empty credential and no arguments.
        let mut head = [0; 8];
        server.read_exact(&mut head).await.unwrap();
        let len = u32::from_be_bytes(head[..4].try_into().unwrap()) & 0x7fff_ffff;
        let mut rest = vec![0; len as usize - 4];
        server.read_exact(&mut rest).await.unwrap();
        let reply = [&record_head(4), &head[4..]].concat();
        server.write_all(&reply).await.unwrap();
        tokio::time::sleep(NOTHING_TIME + 2 * LOOK_TIME).await;
    };
    tokio::select! {
        () = machine => unreachable!(),
        answered = timeout(Duration::from_secs(60), answers) => answered.unwrap(),
    }
    is_given_up.try_recv().unwrap_err();
    let reply = [&record_head(8), &slow[4..]].concat();
    server.write_all(&reply).await.unwrap();
    assert!(is_given_up.await.is_err(), "it is answered");
}

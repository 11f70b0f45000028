//! A machine before a server. It can fall silent for all that begins then.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub struct Gate {
    pub port: u16,
    accepting: AbortHandle,
    /// It stays, with its queue.
    _listener: Arc<TcpListener>,
    /// Connections that nobody accepts.
    queue: Vec<TcpStream>,
}

impl Gate {
    /// Before a server on a port of this machine.
    pub fn to(server: u16) -> Gate {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = Arc::new(socket.listen(1).unwrap());
        let port = listener.local_addr().unwrap().port();
        let accepts = listener.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (mut client, _) = accepts.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Gate {
            port,
            accepting: accepting.abort_handle(),
            _listener: listener,
            queue: Vec::new(),
        }
    }

    /// No connection is answered from here on. Those that are there stay.
    pub async fn shut(&mut self) {
        self.accepting.abort();
        let to = ("127.0.0.1", self.port);
        while let Ok(connected) = timeout(Duration::from_secs(2), TcpStream::connect(to)).await {
            self.queue.push(connected.unwrap());
            assert!(self.queue.len() < 100);
        }
    }
}

//! Connections that somebody else carries: calls that are for here, and their replies, go over another connection in the client's place.

use std::fmt::Debug;
use std::pin::Pin;

use tokio::net::TcpStream;

/// What somebody does in his own time.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is served of a client's connection.
#[derive(Debug)]
pub struct Carried {
    /// Where its calls come and replies go.
    pub stream: TcpStream,
    /// Who carries them from there to the client, if that is not the client's own connection. It ends with the connection.
    pub carrier: Option<Box<dyn Carrier>>,
}

impl From<TcpStream> for Carried {
    /// A client's own.
    fn from(stream: TcpStream) -> Carried {
        Carried {
            stream,
            carrier: None,
        }
    }
}

/// Who carries records between a client and what is served in its place.
pub trait Carrier: Debug + Send + Sync {
    /// Waits until the client takes replies: none are given before.
    fn room(&self) -> Doing<'_, ()>;

    /// Carries until the connection has to end, and says why.
    fn ended(&self) -> Doing<'_, String>;
}

//! A service, a replica of it and a client, each a process of its own: `cargo run --example last_word` says how.
//!
//! The files are those that `quorate init --no-key-holders` makes. `cargo run --example processes` runs all of it on this machine.

use std::error::Error;
use std::path::Path;

use quorate_service::{
    Bytes, Call, Daemon, Fault, Group, Identity, InlineSession, Options, ReplicaId, Service, Txn,
    keys,
};

const USAGE: &str = "last_word replica DIR ID [new], to be stopped by the end of its standard input; last_word client DIR WORD";

/// Keeps the last word that was said, if it is short, and answers with the one before it; `?` only asks.
#[derive(Clone, Debug)]
struct LastWord;

impl Service for LastWord {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"?"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let before = txn.get(b"word")?.unwrap_or_default();
        // No result is longer than `Service::result_bytes` says where nothing is said.
        if !self.is_read_only(op) && op.len() <= 64 {
            txn.put("word".into(), op.clone());
        }
        Ok(before)
    }
}

/// `first_start`: it has never run. One that has run and lost its directory must not be started so: it would not know what it has promised.
fn replica(directory: &Path, id: u8, first_start: bool) -> Result<(), Box<dyn Error>> {
    let group = Group::load(&directory.join("group.toml"))?.into();
    let data = directory.join(format!("replica-{id}"));
    let key = keys::load(&data.join("key"))?;
    let options = Options {
        first_start,
        ..Options::new(group, ReplicaId(id), key, data)
    };
    let replica = Daemon::start(options, LastWord)?;
    let stopper = replica.stopper();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stopper.stop();
    });
    Ok(replica.wait()?)
}

fn client(directory: &Path, word: &str) -> Result<(), Box<dyn Error>> {
    let group = Group::load(&directory.join("group.toml"))?;
    let identity = Identity::new(&keys::load(&directory.join("client.key"))?);
    let mut session = InlineSession::connect(&group, &identity)?;
    let before = session.call(Bytes::copy_from_slice(word.as_bytes()))?;
    println!("{word}, after {:?}", String::from_utf8_lossy(&before));
    session.close();
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["replica", directory, id] => replica(directory.as_ref(), id.parse()?, false),
        ["replica", directory, id, "new"] => replica(directory.as_ref(), id.parse()?, true),
        ["client", directory, word] => client(directory.as_ref(), word),
        _ => Err(USAGE.into()),
    }
}

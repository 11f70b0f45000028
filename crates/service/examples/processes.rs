//! Replicas and clients as processes of their own, as on servers of their own: `cargo run --example processes`.
//!
//! Makes keys and a group file, starts four replicas, has a client write to them, kills the primary with SIGKILL, has
//! another client read what the first one wrote, and starts the killed one again, from its directory.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use quorate_service::{
    Bytes, Call, Daemon, Fault, Files, Group, Identity, InlineSession, Options, Purpose, ReplicaId,
    Rest, Service, Txn, keys,
};

/// Keeps the last word that was said, and answers with the one before it; `?` only asks.
#[derive(Clone, Debug)]
struct LastWord;

impl Service for LastWord {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"?"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let before = txn.get(b"word")?.unwrap_or_default();
        if op.as_ref() != b"?" {
            txn.put("word".into(), op.clone());
        }
        Ok(before)
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

/// What is done once, before the first start: each replica and client has a key, and all have the group file.
fn make_group(directory: &Path) -> Result<()> {
    let ports: Vec<_> = (0..4)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    let mut replicas = Vec::new();
    for (id, port) in ports.iter().enumerate() {
        let key = keys::generate()?;
        keys::save(&directory.join(format!("{id}.key")), &key)?;
        replicas.push((port.local_addr()?.to_string(), key.public()));
    }
    let key = keys::generate()?;
    keys::save(&directory.join("client.key"), &key)?;
    let clients = vec![("client".into(), key.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("words", replicas, clients, files, purpose)?;
    Ok(group.save(&directory.join("group.toml"))?)
}

/// `is_new`: it has never run. One that has run and lost its directory must not be started so: it would not know what it has promised.
fn replica(directory: &Path, id: u8, is_new: bool) -> Result<()> {
    let group = Group::load(&directory.join("group.toml"))?.into();
    let key = keys::load(&directory.join(format!("{id}.key")))?;
    let options = Options {
        first_start: is_new,
        ..Options::new(group, ReplicaId(id), key, directory.join(id.to_string()))
    };
    let replica = Daemon::start(options, LastWord)?;
    let stopper = replica.stopper();
    // Standard input ends when nobody needs this replica any more.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stopper.stop();
    });
    Ok(replica.wait()?)
}

fn client(directory: &Path, word: &str) -> Result<()> {
    let group = Group::load(&directory.join("group.toml"))?;
    let identity = Identity::new(&keys::load(&directory.join("client.key"))?);
    let mut session = InlineSession::connect(&group, &identity)?;
    let before = session.call(Bytes::copy_from_slice(word.as_bytes()))?;
    println!("{word}, after {:?}", String::from_utf8_lossy(&before));
    session.close();
    Ok(())
}

/// This program again, as one of the others.
fn spawn(directory: &Path, role: &str, what: &str) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(directory).args([role, what]);
    Ok(command.stdin(Stdio::piped()).spawn()?)
}

fn all(directory: &Path) -> Result<()> {
    make_group(directory)?;
    let mut replicas = Vec::new();
    for id in 0..4 {
        replicas.push(spawn(directory, "new-replica", &id.to_string())?);
    }
    let say = |word| {
        spawn(directory, "client", word)?
            .wait()
            .map_err(anyhow::Error::from)
    };
    ensure!(say("hello")?.success(), "the first client failed");
    replicas[0].kill()?;
    replicas[0].wait()?;
    ensure!(say("goodbye")?.success(), "the second client failed");
    replicas[0] = spawn(directory, "replica", "0")?;
    // Without the one that was started again there are too few.
    replicas[1].kill()?;
    ensure!(say("?")?.success(), "the third client failed");
    for mut replica in replicas {
        drop(replica.stdin.take());
        replica.wait()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [directory, "new-replica", id] => replica(directory.as_ref(), id.parse()?, true),
        [directory, "replica", id] => replica(directory.as_ref(), id.parse()?, false),
        [directory, "client", word] => client(directory.as_ref(), word),
        _ => all(tempfile::tempdir()?.path()),
    }
}

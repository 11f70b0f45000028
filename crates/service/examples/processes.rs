//! Replicas and clients as processes of their own, as on servers of their own: `cargo run --example processes`.
//!
//! Makes keys and a group file, starts four replicas of the service of `last_word`, has a client write to them, kills the primary with SIGKILL, has
//! another client read what the first one wrote, and starts the killed one again, from its directory.

use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use quorate_service::{Files, Group, Purpose, keys};

mod last_word;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is done once, before the first start, as `quorate init --no-key-holders` does it: each replica and client has a key, and all have the group file.
fn make_group(directory: &Path) -> Result<()> {
    let ports: Vec<_> = (0..4)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    let mut replicas = Vec::new();
    for (id, port) in ports.iter().enumerate() {
        let key = keys::generate()?;
        let data = directory.join(format!("replica-{id}"));
        std::fs::create_dir(&data)?;
        keys::save(&data.join("key"), &key)?;
        replicas.push((port.local_addr()?.to_string(), key.public()));
    }
    let key = keys::generate()?;
    keys::save(&directory.join("client.key"), &key)?;
    let clients = vec![("client".into(), key.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("words", replicas, clients, files, purpose)?;
    Ok(group.save(&directory.join("group.toml"))?)
}

/// This program again, as one of the others.
fn spawn(directory: &Path, role: &str, what: &[&str]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role).arg(directory).args(what);
    Ok(command.stdin(Stdio::piped()).spawn()?)
}

fn all(directory: &Path) -> Result<()> {
    make_group(directory)?;
    let mut replicas = Vec::new();
    for id in ["0", "1", "2", "3"] {
        replicas.push(spawn(directory, "replica", &[id, "new"])?);
    }
    let say = |word: &str| -> Result<()> {
        match spawn(directory, "client", &[word])?.wait()?.success() {
            true => Ok(()),
            false => Err(format!("the client that was to say {word:?} failed").into()),
        }
    };
    say("hello")?;
    replicas[0].kill()?;
    replicas[0].wait()?;
    say("goodbye")?;
    replicas[0] = spawn(directory, "replica", &["0"])?;
    // Without the one that was started again there are too few.
    replicas[1].kill()?;
    say("?")?;
    for mut replica in replicas {
        drop(replica.stdin.take());
        replica.wait()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().len() {
        1 => all(tempfile::tempdir()?.path()),
        _ => last_word::main(),
    }
}

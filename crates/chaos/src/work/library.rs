//! A client of the library: each operation is one of the file service's.

use std::sync::Arc;

use bytes::Bytes;
use quorate_client::volume::CallError;
use quorate_client::{Session, Volume};
use quorate_files::op::{
    Link, Lookup, Mknod, Place, Read, ReadDir, Rename, RenameMode, Unlink, Write,
};
use quorate_files::{Action, Answer, Errno, Ino, Kind, Nothing, Target, Who};

use super::Shared;
use super::choose::Chooser;
use super::layout::{Layout, content, name_from, name_of, token_of};
use crate::history::{DIRECTORIES, Mode, Op, Outcome, Slot, extend};

/// The most that a log is read at once; longer logs are not read to their ends.
const LOG_BYTES: u32 = 1 << 20;

/// A client's session.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its volume.
    pub volume: Volume,
    /// On whose behalf.
    pub who: Who,
}

impl Client {
    /// A client that acts for this process's user.
    pub fn new(session: Session) -> Client {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        Client {
            volume: Volume::new(session),
            who: Who::new(uid.as_raw(), gid.as_raw()),
        }
    }
}

/// Asks for one thing after the other until it is told to stop.
pub async fn library(client: Client, number: u8, layout: Layout, shared: Arc<Shared>, seed: u64) {
    let mut chooser = Chooser::new(seed, number, false);
    while !shared.is_over() {
        let op = chooser.next(&layout);
        if let Some(outcome) = record(&client, number, &layout, &shared, op.clone()).await {
            learn(&mut chooser, &op, &outcome);
        }
        tokio::time::sleep(shared.rest(&mut chooser)).await;
    }
    shared.left();
}

/// Reads everything once, to see what is left of what was acknowledged.
pub async fn look_at_all(client: &Client, number: u8, layout: &Layout, shared: &Shared) {
    let registers = (0..layout.registers()).map(|register| Op::Read { register });
    let logs = (0..layout.logs()).map(|log| Op::ReadLog { log });
    let lists = (0..layout.trees())
        .flat_map(|tree| (0..DIRECTORIES).map(move |directory| Op::List { tree, directory }));
    for op in registers.chain(logs).chain(lists) {
        record(client, number, layout, shared, op).await;
    }
}

async fn record(
    client: &Client,
    number: u8,
    layout: &Layout,
    shared: &Shared,
    op: Op,
) -> Option<Outcome> {
    let place = shared.recorder.begin(number, false, op.clone());
    let outcome = perform(client, layout, &op).await?;
    shared.recorder.end(place, outcome.clone());
    Some(outcome)
}

fn learn(chooser: &mut Chooser, op: &Op, outcome: &Outcome) {
    if let Op::Create { at, .. } | Op::Look { at } = op
        && let Outcome::Made(ino) | Outcome::Found(ino) = outcome
    {
        chooser.learn(at.tree, *ino);
    }
}

/// Sends an operation once. `None`: the session was lost, and nobody knows what became of it.
async fn perform(client: &Client, layout: &Layout, op: &Op) -> Option<Outcome> {
    match client.volume.once(&client.who, action(layout, op)).await {
        Ok(answer) => Some(outcome(layout, op, answer)),
        Err(CallError::Refused(errno)) => Some(refusal(op, errno)),
        Err(CallError::Lost) => None,
        Err(CallError::Garbled) => Some(Outcome::Torn("no answer of the file service".into())),
    }
}

fn action(layout: &Layout, op: &Op) -> Action {
    let parent = |slot: &Slot| layout.directory(slot.tree, slot.directory);
    let name = |slot: &Slot| Bytes::from(name_of(slot.name));
    match op {
        Op::Write { register, token } => {
            let (ino, length) = layout.register(*register);
            write(ino, Place::At(0), content(*token, length))
        }
        Op::Append { log, token } => {
            write(layout.log(*log), Place::End(Nothing), content(*token, 8))
        }
        Op::Read { register } => {
            let (ino, length) = layout.register(*register);
            // One byte more than there may be.
            read(ino, length as u32 + 1)
        }
        Op::ReadLog { log } => read(layout.log(*log), LOG_BYTES),
        Op::Create { at, .. } => Action::Mknod(Mknod {
            parent: parent(at),
            name: name(at),
            kind: Kind::Regular,
            mode: 0o644,
            umask: 0,
            rdev: 0,
        }),
        Op::Remove { at } => Action::Unlink(Unlink {
            parent: parent(at),
            name: name(at),
        }),
        Op::Rename { from, to, mode, .. } => Action::Rename(Rename {
            parent: parent(from),
            name: name(from),
            new_parent: parent(to),
            new_name: name(to),
            mode: match mode {
                Mode::Replace => RenameMode::Replace,
                Mode::NoReplace => RenameMode::NoReplace,
                Mode::Exchange => RenameMode::Exchange,
            },
        }),
        Op::Link { ino, at } => Action::Link(Link {
            ino: Ino(*ino),
            parent: parent(at),
            name: name(at),
        }),
        Op::Look { at } => Action::Lookup(Lookup {
            parent: parent(at),
            name: name(at),
        }),
        Op::List { tree, directory } => Action::ReadDir(ReadDir {
            target: Target::Ino(layout.directory(*tree, *directory)),
            cookie: 0,
            count: 100,
            plus: false,
        }),
    }
}

fn write(ino: Ino, place: Place, data: Bytes) -> Action {
    Action::Write(Write {
        target: Target::Ino(ino),
        place,
        data,
    })
}

fn read(ino: Ino, len: u32) -> Action {
    Action::Read(Read {
        target: Target::Ino(ino),
        offset: 0,
        len,
    })
}

fn outcome(layout: &Layout, op: &Op, answer: Answer) -> Outcome {
    match (op, answer) {
        (Op::Write { .. }, Answer::Written(_)) => Outcome::Done,
        (Op::Append { .. }, Answer::Written(written)) => Outcome::At(written.offset),
        (Op::Read { register }, Answer::Data(data)) => {
            let (_, length) = layout.register(*register);
            token_of(&data.data, length).map_or_else(Outcome::Torn, Outcome::Value)
        }
        (Op::ReadLog { .. }, Answer::Data(data)) => {
            let (tokens, rest) = data.data.as_chunks::<8>();
            if !rest.is_empty() {
                return Outcome::Torn(format!("a log of {} bytes", data.data.len()));
            }
            let tokens = tokens.iter().map(|token| u64::from_le_bytes(*token));
            Outcome::Log {
                bytes: data.data.len() as u64,
                digest: tokens.fold(0, extend),
            }
        }
        (Op::Create { .. }, Answer::Attr(attr)) => Outcome::Made(attr.ino.0),
        (Op::Look { .. }, Answer::Attr(attr)) => Outcome::Found(attr.ino.0),
        (Op::Link { ino, .. }, Answer::Attr(attr)) if attr.ino.0 == *ino => Outcome::Done,
        (Op::Remove { .. } | Op::Rename { .. }, Answer::Done(_)) => Outcome::Done,
        (Op::List { .. }, Answer::Entries(entries)) if entries.end => {
            let entries = entries.entries.iter();
            let named = entries.filter(|e| e.name != "." && e.name != "..");
            Outcome::Listing(named.map(|e| (name_from(&e.name), e.ino.0)).collect())
        }
        (_, answer) => Outcome::Torn(format!("the answer {answer:?}")),
    }
}

fn refusal(op: &Op, errno: Errno) -> Outcome {
    match (op, errno) {
        (Op::Remove { .. } | Op::Rename { .. } | Op::Look { .. }, Errno::ENOENT) => {
            Outcome::Missing
        }
        (Op::Link { .. }, Errno::ENOENT) => Outcome::Missing,
        (Op::Link { .. }, Errno::ESTALE) => Outcome::Stale,
        (Op::Create { .. } | Op::Rename { .. } | Op::Link { .. }, Errno::EEXIST) => Outcome::Exists,
        (_, errno) => Outcome::Refused(errno.code()),
    }
}

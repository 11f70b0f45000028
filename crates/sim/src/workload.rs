//! What clients ask for.

use bytes::Bytes;
use quorate_files::answer::Answer;
use quorate_files::op::{
    Create, Hold, Link, Lookup, Mkdir, Open, Place, Read, Rename, RenameMode, Unlink, Write, flags,
};
use quorate_files::{Action, Handle, Ino, Op, Target, Who};
use quorate_wire::message::Outcome;
use quorate_wire::{Decode, Encode};

use crate::dice::Dice;
use crate::knobs::{Knobs, Workload};
use crate::service::{APPEND, CAS, GET, List, ListOp};
use crate::sharing;

/// A client's choices, and what it knows of the state.
#[derive(Debug)]
pub struct Asker {
    client: usize,
    dice: Dice,
    lengths: Vec<u64>,
    inos: Vec<Ino>,
    /// What it has made and not let go.
    handles: Vec<Handle>,
}

impl Asker {
    /// The choices of a client.
    pub fn new(seed: u64, client: usize) -> Asker {
        Asker {
            client,
            dice: Dice::new(seed, 100 + client as u64),
            lengths: vec![0; 256],
            inos: vec![Ino::ROOT],
            handles: Vec::new(),
        }
    }

    /// The next operation, and whether it only reads. `token` is a number that no other operation has.
    pub fn next(&mut self, knobs: &Knobs, token: u64) -> (Bytes, bool) {
        let large = match self.dice.per_mille(knobs.large) {
            true => 17_000 + self.dice.below(30_000) as usize,
            false => 0,
        };
        match knobs.workload {
            Workload::KeyValue => self.list(knobs, token, large),
            Workload::Files => self.files(knobs, token, large),
            Workload::Shared if self.dice.per_mille(sharing::share(self.client)) => {
                let action = sharing::action(&mut self.dice, self.client, knobs.clients);
                (Op::new(Who::root(), action).to_bytes(), false)
            }
            Workload::Shared => self.files(knobs, token, large),
        }
    }

    fn list(&mut self, knobs: &Knobs, token: u64, large: usize) -> (Bytes, bool) {
        let key = self.dice.below(knobs.keys) as u8;
        let reads = self.dice.per_mille(knobs.reads);
        let kind = match reads {
            true => GET,
            false if self.dice.per_mille(200) => CAS,
            false => APPEND,
        };
        let op = ListOp {
            kind,
            key,
            token,
            expected: self.lengths[usize::from(key)] as u32,
            work: match knobs.heavy > 0 && self.dice.per_mille(knobs.heavy) {
                // Of some a batch has several, of some one.
                true => self.dice.pick(&[100, 1_000, 3_000, 8_193, 20_000]),
                false => 0,
            },
            padding: vec![token as u8; large.max(self.dice.below(80) as usize)].into(),
        };
        (op.to_bytes().into(), reads)
    }

    fn files(&mut self, knobs: &Knobs, token: u64, large: usize) -> (Bytes, bool) {
        let ino = self.dice.pick(&self.inos);
        let name = self.name(knobs);
        let action = match self.dice.per_mille(knobs.reads) {
            true => self.look(ino, name),
            false => self.change(knobs, token, large, ino, name),
        };
        let op = Op::new(Who::root(), action);
        let reads = op.is_read_only();
        (op.to_bytes(), reads)
    }

    fn look(&mut self, ino: Ino, name: Bytes) -> Action {
        let read = |target| {
            Action::Read(Read {
                target,
                offset: 0,
                len: 4096,
            })
        };
        match self.dice.below(6) {
            0..3 => Action::Lookup(Lookup { parent: ino, name }),
            3 => Action::CheckOpen(Open {
                ino,
                flags: flags::READ,
            }),
            // As who has it open without having said so.
            4 => read(Target::Checked(ino)),
            _ => read(Target::Ino(ino)),
        }
    }

    fn change(&mut self, knobs: &Knobs, token: u64, large: usize, ino: Ino, name: Bytes) -> Action {
        let other = self.dice.pick(&self.inos);
        match self.dice.below(11) {
            0 | 1 => Action::Create(Create {
                parent: ino,
                name,
                mode: 0o644,
                umask: 0,
                flags: flags::READ | flags::WRITE,
            }),
            2 => Action::Mkdir(Mkdir {
                parent: ino,
                name,
                mode: 0o755,
                umask: 0,
            }),
            3 => Action::Unlink(Unlink { parent: ino, name }),
            4 => Action::Link(Link {
                ino,
                parent: other,
                name,
            }),
            5 => Action::Rename(Rename {
                parent: ino,
                name,
                new_parent: other,
                new_name: self.name(knobs),
                mode: RenameMode::Replace,
            }),
            6 | 7 => Action::Hold(Hold {
                keep: vec![ino],
                let_go: vec![other],
            }),
            8 if !self.handles.is_empty() => {
                let at = self.dice.below(self.handles.len() as u64) as usize;
                Action::Release(self.handles.swap_remove(at))
            }
            _ => Action::Write(Write {
                target: match self.dice.below(3) {
                    0 => Target::Checked(ino),
                    _ => Target::Ino(ino),
                },
                place: Place::At(self.dice.below(70_000)),
                data: vec![token as u8; large.max(1)].into(),
            }),
        }
    }

    fn name(&mut self, knobs: &Knobs) -> Bytes {
        format!("n{}", self.dice.below(knobs.keys * 3)).into()
    }

    /// An operation has this outcome.
    pub fn learn(&mut self, knobs: &Knobs, op: &Bytes, outcome: &Outcome) {
        let Outcome::Done(answer) = outcome else {
            return;
        };
        match knobs.workload {
            Workload::KeyValue => {
                if let (Ok(op), Ok(list)) = (
                    ListOp::from_bytes(op.clone()),
                    List::from_bytes(answer.clone()),
                ) {
                    self.lengths[usize::from(op.key)] = list.tokens.len() as u64;
                }
            }
            Workload::Files | Workload::Shared => {
                let outcome = quorate_files::Outcome::from_bytes(answer.clone());
                let ino = match outcome.map(|o| o.0) {
                    Ok(Ok(Answer::Attr(attr))) => attr.ino,
                    Ok(Ok(Answer::Opened(opened))) => {
                        self.handles.push(opened.handle);
                        opened.attr.ino
                    }
                    _ => return,
                };
                if self.inos.len() < 12 && !self.inos.contains(&ino) {
                    self.inos.push(ino);
                }
            }
        }
    }
}

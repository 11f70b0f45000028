//! A client's choices.

use super::layout::Layout;
use crate::dice::Dice;
use crate::history::{DIRECTORIES, Mode, NAMES, Op, Slot};

/// How many numbers of files a client remembers.
const KNOWN: usize = 8;

/// What a client asks for, one thing after the other.
#[derive(Debug)]
pub(super) struct Chooser {
    dice: Dice,
    mounted: bool,
    /// Which token is the last; each client has tokens of its own.
    token: u64,
    /// Files that it has met, with their trees.
    known: Vec<(u8, u64)>,
}

impl Chooser {
    pub fn new(seed: u64, client: u8, mounted: bool) -> Chooser {
        Chooser {
            dice: Dice::new(seed, 1000 + u64::from(client)),
            mounted,
            token: (u64::from(client) + 1) << 40,
            known: Vec::new(),
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }

    /// The client has met a file.
    pub fn learn(&mut self, tree: u8, ino: u64) {
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        self.known.push((tree, ino));
    }

    pub fn next(&mut self, layout: &Layout) -> Op {
        self.token += 1;
        let token = self.token;
        let registers = match self.mounted {
            true => layout.mounted_registers(),
            false => layout.registers(),
        };
        let register = self.dice.below(u64::from(registers)) as u8;
        let log = self.dice.below(u64::from(layout.logs())) as u8;
        match self.dice.below(100) {
            0..20 => Op::Write { register, token },
            20..40 => Op::Read { register },
            40..50 if !self.mounted => Op::Append { log, token },
            50..55 if !self.mounted => Op::ReadLog { log },
            _ => self.tree(layout, token),
        }
    }

    fn tree(&mut self, layout: &Layout, token: u64) -> Op {
        let tree = self.dice.below(u64::from(layout.trees())) as u8;
        let at = self.slot(tree);
        match self.dice.below(20) {
            0..6 => Op::Create { at, token },
            6..9 => Op::Remove { at },
            9..13 => Op::Rename {
                from: at,
                to: self.slot(tree),
                mode: match self.mounted {
                    true => self.dice.pick(&[Mode::Replace, Mode::NoReplace]),
                    false => self
                        .dice
                        .pick(&[Mode::Replace, Mode::NoReplace, Mode::Exchange]),
                },
                cached: self.mounted,
            },
            13 if !self.mounted && !self.known.is_empty() => {
                let (tree, ino) = self.dice.pick(&self.known);
                let at = self.slot(tree);
                Op::Link { ino, at }
            }
            14..16 => Op::List {
                tree,
                directory: at.directory,
            },
            _ => Op::Look { at },
        }
    }

    fn slot(&mut self, tree: u8) -> Slot {
        Slot {
            tree,
            directory: self.dice.below(u64::from(DIRECTORIES)) as u8,
            name: self.dice.below(u64::from(NAMES)) as u8,
        }
    }
}

//! One history: what happens in it, and the service held against the model after each operation.

use bytes::Bytes;
use quorate_execution::{Call, Service};
use quorate_files::op::{
    Hold, Link, Lock, LockKind, LockSpace, Open, Place, PutCredential, Read, Rename, RenameMode,
    Restore, Revoke, Revoked, Serial, Unlink, Write, flags,
};
use quorate_files::{Action, Answer, Errno, FileService, Ino, Op, Outcome, Target, Who};
use quorate_state::State;
use quorate_wire::{SessionId, Time};

use crate::grants::{DIR_NAMES, DIRS, FILES, GUESTS, Grant, NAMES, START, key};
use crate::model::{self, Model, TakenBack};

/// Why a history is not as it should be.
type Step = Result<(), String>;
type Done = Result<Answer, Errno>;

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % most as u64) as usize
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

#[derive(Default)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
    pub by_handles: u64,
    pub unpaid: u64,
    pub locked_out: u64,
    pub revocations: u64,
    pub by_holders: u64,
    pub given_back: u64,
    pub undone: u64,
}

pub struct History<'a> {
    service: &'a FileService,
    grants: &'a [Grant],
    state: State,
    now: u64,
    model: Model,
    dice: Dice,
    counts: &'a mut Counts,
}

/// What a key asks for and gets: the owner (0) or a guest.
pub fn call(
    service: &FileService,
    state: &mut State,
    now: u64,
    number: usize,
    action: Action,
) -> Done {
    let call = Call {
        client: key(number).public(),
        session: SessionId(1 + number as u64),
        now: Time(now),
    };
    let op = Op::new(Who::root(), action).to_bytes();
    let mut txn = state.begin();
    let result = service.execute(&mut txn, &call, &op).expect("memory");
    txn.commit();
    Outcome::from_bytes(result).expect("a result").0
}

impl<'a> History<'a> {
    pub fn new(
        service: &'a FileService,
        grants: &'a [Grant],
        state: State,
        seed: u64,
        counts: &'a mut Counts,
    ) -> History<'a> {
        History {
            service,
            grants,
            state,
            now: START * 1_000_000_000,
            model: Model::new(),
            dice: Dice(seed),
            counts,
        }
    }

    fn run(&mut self, number: usize, action: Action) -> Done {
        self.now += 1_000;
        call(self.service, &mut self.state, self.now, number, action)
    }

    fn second(&self) -> u64 {
        self.now / 1_000_000_000
    }

    pub fn step(&mut self) -> Step {
        match self.dice.below(14) {
            0..=2 => self.bring(),
            3 => self.revoke(),
            4 => self.give_back(),
            5 => self.move_something(),
            6 => {
                self.now += 1_000_000_000 * self.dice.below(3) as u64;
                Ok(())
            }
            7 => self.in_vain(),
            8 => self.open(),
            9 | 10 => self.use_open(),
            _ => self.use_it(),
        }
    }

    /// Steps that are undone, as where a view changes. What comes instead comes at the same times.
    fn in_vain(&mut self) -> Step {
        let (model, now) = (self.model.clone(), self.now);
        self.state.begin_tentative();
        for _ in 0..self.dice.below(5) {
            match self.dice.below(7) {
                0 => self.bring()?,
                1 => self.revoke()?,
                2 => self.give_back()?,
                3 => self.move_something()?,
                4 => self.open()?,
                5 => self.use_open()?,
                _ => self.use_it()?,
            }
        }
        self.state.drop_tentative();
        (self.model, self.now) = (model, now);
        self.counts.undone += 1;
        Ok(())
    }

    fn bring(&mut self) -> Step {
        let at = self.dice.below(self.grants.len());
        let grant = &self.grants[at];
        let chain = grant.bytes.clone();
        let put = Action::PutCredential(PutCredential { chain });
        let put = self.run(1 + grant.guest, put);
        let holds = self.model.holds(grant, self.second());
        if put.is_ok() != holds {
            return Err(format!("credential {at} is brought: {put:?}"));
        }
        if holds {
            self.model.brought.insert(at);
        }
        Ok(())
    }

    /// Whether somebody may take back by a credential, or by none as the owner.
    fn may_revoke(&self, number: usize, by: Option<&Grant>) -> bool {
        let Some(by) = by else {
            return number == 0;
        };
        let in_force = self.model.in_force(self.grants, by.guest, self.second());
        number == 1 + by.guest && in_force.iter().any(|at| self.grants[*at].id == by.id)
    }

    /// By the owner, by a guest that has passed it on, by one that has not, or by who may not: by serial, by key or by epoch, of any link.
    fn revoke(&mut self) -> Step {
        let grants = self.grants;
        let mut grant = self.dice.of(grants);
        if grant.links.len() == 1 {
            // What was passed on is the third part of all.
            grant = self.dice.of(grants);
        }
        let place = self.dice.below(grant.links.len());
        let link = &grant.links[place];
        let (issuer, serial) = (link.issuer, link.serial);
        let what = match self.dice.below(6) {
            0 => Revoked::Key(link.subject),
            1 => Revoked::Epoch(Serial {
                issuer,
                serial: serial + self.dice.below(2) as u64,
            }),
            _ => Revoked::Serial(Serial { issuer, serial }),
        };
        let lasts = self.dice.below(12) as u64;
        let wished = (lasts < 3).then(|| self.second() + lasts);
        // What a link was passed on from is a credential as well.
        let by = match self.dice.below(8) {
            0 => Some(self.dice.of(grants)),
            1..=5 if place > 0 => {
                let above = grant.links[self.dice.below(place)].id;
                grants.iter().find(|grant| grant.id == above)
            }
            _ => None,
        };
        let number = match self.dice.one_in(16) {
            true => self.dice.below(1 + GUESTS),
            false => by.map_or(0, |by| 1 + by.guest),
        };
        let by_id = by.map(|by| by.id);
        let op = Revoke {
            what: what.clone(),
            by: by_id,
            until: wished,
        };
        let done = self.run(number, Action::Revoke(op));
        let may = self.may_revoke(number, by);
        if done.is_ok() != may {
            return Err(format!(
                "a revocation by {number}, allowed: {may}: {done:?}"
            ));
        }
        if may {
            let end = by.map_or(u64::MAX, |by| by.until);
            let new = TakenBack {
                by: by_id,
                what,
                until: wished.map_or(end, |wished| wished.min(end)),
            };
            self.counts.revocations += 1;
            self.counts.by_holders += u64::from(by.is_some());
            self.model.take_back(grants, new, self.now / 1_000_000_000);
        }
        Ok(())
    }

    /// The owner ends a revocation, its own or somebody else's; or who has made it; or who may not.
    fn give_back(&mut self) -> Step {
        if self.model.revoked.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.model.revoked.len());
        let TakenBack { by, what, until } = self.model.revoked[at].clone();
        let grant = by.and_then(|id| self.grants.iter().find(|grant| grant.id == id));
        let number = match self.dice.below(8) {
            0 => self.dice.below(1 + GUESTS),
            1..=3 => grant.map_or(0, |by| 1 + by.guest),
            _ => 0,
        };
        let op = Restore {
            what: what.clone(),
            by,
        };
        let done = self.run(number, Action::Restore(op));
        let may = number == 0 || self.may_revoke(number, grant);
        let is_over = until < self.second();
        match done {
            Ok(_) if may => self.counts.given_back += 1,
            // One that is over may be there still.
            Err(Errno::ENOENT) if may && is_over => {}
            Err(Errno::EPERM) if !may => return Ok(()),
            done => {
                return Err(format!(
                    "{number} ends a revocation, allowed: {may}: {done:?}"
                ));
            }
        }
        self.model.give_back(by, &what);
        Ok(())
    }

    /// A directory is moved, or a name of a file; or a file gets another name, or loses one.
    fn move_something(&mut self) -> Step {
        if self.dice.one_in(3) {
            let (from, to) = match self.model.is_nested {
                false => (Ino::ROOT, DIRS[0]),
                true => (DIRS[0], Ino::ROOT),
            };
            self.model.is_nested = !self.model.is_nested;
            return self.rename(from, to, DIR_NAMES[1]);
        }
        let file = self.dice.below(FILES.len());
        let all = [0, 1].map(|dir| NAMES[file].map(|name| (dir, name)));
        let (names, free): (Vec<_>, Vec<_>) = all
            .into_iter()
            .flatten()
            .partition(|name| self.model.names[file].contains(name));
        let (dir, name) = *self.dice.of(&names);
        match self.dice.below(3) {
            0 if !free.is_empty() => {
                let (dir, name) = *self.dice.of(&free);
                self.model.names[file].insert((dir, name));
                self.owner(Action::Link(Link {
                    ino: FILES[file],
                    parent: DIRS[dir],
                    name: name.into(),
                }))
            }
            1 if names.len() > 1 => {
                self.model.names[file].remove(&(dir, name));
                self.owner(Action::Unlink(Unlink {
                    parent: DIRS[dir],
                    name: name.into(),
                }))
            }
            _ if free.contains(&(1 - dir, name)) => {
                self.model.names[file].remove(&(dir, name));
                self.model.names[file].insert((1 - dir, name));
                self.rename(DIRS[dir], DIRS[1 - dir], name)
            }
            _ => Ok(()),
        }
    }

    fn rename(&mut self, from: Ino, to: Ino, name: &'static str) -> Step {
        self.owner(Action::Rename(Rename {
            parent: from,
            name: name.into(),
            new_parent: to,
            new_name: name.into(),
            mode: RenameMode::Replace,
        }))
    }

    fn owner(&mut self, action: Action) -> Step {
        let said = format!("{action:?}");
        let done = self.run(0, action);
        done.map(drop).map_err(|e| format!("{said}: {e}"))
    }

    fn open(&mut self) -> Step {
        let (guest, file) = (self.dice.below(GUESTS), self.dice.below(FILES.len()));
        let op = Open {
            ino: FILES[file],
            flags: flags::READ | flags::WRITE,
        };
        let opened = self.run(1 + guest, Action::Open(op));
        let by = self.asked(guest, file, true);
        if let Ok(Answer::Opened(opened)) = &opened {
            self.model.open.push(model::Open {
                guest,
                file,
                handle: opened.handle,
                is_gone: false,
            });
        }
        self.expect(guest, file, !by.is_empty(), &opened)
    }

    /// By what was opened before. What was let go of meanwhile is gone, whatever the guest may do by now.
    fn use_open(&mut self) -> Step {
        if self.model.open.is_empty() {
            return Ok(());
        }
        let model::Open {
            guest,
            file,
            handle,
            is_gone,
        } = self.dice.of(&self.model.open).clone();
        self.counts.by_handles += 1;
        if self.dice.one_in(2) {
            return self.use_by(guest, file, Target::Handle(handle), is_gone);
        }
        let lock = Action::Lock(Lock {
            handle,
            space: LockSpace::Posix,
            owner: 0,
            pid: 1,
            start: 0,
            end: 9,
            kind: LockKind::Write,
            test: false,
        });
        let result = self.run(1 + guest, lock);
        let may = !self.asked(guest, file, true).is_empty() && !is_gone;
        let now = self.second();
        let allowed = may && self.model.lock(self.grants, guest, file, now);
        self.counts.locked_out += u64::from(may && !allowed);
        self.expect(guest, file, allowed, &result)
    }

    fn use_it(&mut self) -> Step {
        let (guest, file) = (self.dice.below(GUESTS), self.dice.below(FILES.len()));
        if !self.dice.one_in(5) {
            return self.use_by(guest, file, Target::Ino(FILES[file]), false);
        }
        let (keep, let_go) = ([FILES[file]].into(), Vec::new());
        let held = self.run(1 + guest, Action::Hold(Hold { keep, let_go }));
        let by = self.asked(guest, file, true);
        self.expect(guest, file, !by.is_empty(), &held)
    }

    /// Looks, reads or writes.
    fn use_by(&mut self, guest: usize, file: usize, target: Target, is_gone: bool) -> Step {
        let (offset, len) = (0, 10);
        let data = Bytes::from_static(&b"xx"[..1 + self.dice.below(2)]);
        let bytes = data.len() as u64;
        let (action, is_change) = match self.dice.below(4) {
            0 => (Action::GetAttr(target), false),
            1 => {
                let op = Read {
                    target,
                    offset,
                    len,
                };
                (Action::Read(op), false)
            }
            _ => {
                let place = Place::At(offset);
                let op = Write {
                    target,
                    place,
                    data,
                };
                (Action::Write(op), true)
            }
        };
        let result = self.run(1 + guest, action);
        let by = self.asked(guest, file, is_change);
        let may = !by.is_empty() && !is_gone;
        let allowed = may && (!is_change || self.model.pay(self.grants, &by, bytes));
        self.counts.unpaid += u64::from(may && !allowed);
        self.expect(guest, file, allowed, &result)
    }

    /// A guest has asked for something with a file: which of its credentials give it that. Where it asked for a change, and none is in force at
    /// all, it is out.
    fn asked(&mut self, guest: usize, file: usize, is_change: bool) -> Vec<usize> {
        let now = self.second();
        if is_change && self.model.in_force(self.grants, guest, now).is_empty() {
            self.model.put_out(guest);
        }
        self.model.about(self.grants, guest, file, now)
    }

    fn expect(&mut self, guest: usize, file: usize, allowed: bool, result: &Done) -> Step {
        match allowed {
            true => self.counts.allowed += 1,
            false => self.counts.refused += 1,
        }
        match result.is_ok() == allowed {
            true => Ok(()),
            false => Err(format!(
                "guest {guest} uses file {file}, allowed: {allowed}: {result:?}"
            )),
        }
    }
}

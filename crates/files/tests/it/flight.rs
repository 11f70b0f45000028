//! The file service as a replica with workers executes it: batches that are tentative, kept, or undone and executed again, repeats, sessions that end
//! and expire, checkpoints, reads, states that are given up, and restarts; under random schedules, and on threads.

use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::Executor;
use quorate_execution::graph::Conflicts;
use quorate_files::op::*;
use quorate_files::{Admission, FileService, Outcome};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::message::{self, Control, Request};
use quorate_wire::{ClientId, Decode, Encode, PublicKey, RequestNumber, SessionId, Time};

use crate::script::{GUESTS, Known, Maker, Raw, SMALL, about_credentials, admission, owner};
use crate::sharing;
use crate::support::flight::{Agreed, World};

/// Members of a volume, each with a session; the first has two.
const MEMBERS: [PublicKey; 3] = [PublicKey([7; 32]), PublicKey([7; 32]), PublicKey([8; 32])];

/// A batch: how many microseconds after the one before, and what its operations are made of.
type Batch = (u64, Vec<Raw>);

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    // Mostly at once; at times what lingers is over meanwhile, or sessions are.
    let passed = prop_oneof![
        12 => 0..2_000_u64,
        3 => Just(7_000_000),
        1 => Just(31_000_000),
        1 => Just(46_000_000),
    ];
    prop::collection::vec((passed, prop::collection::vec(any::<Raw>(), 1..12)), 1..20)
}

/// A client's place: it has a session whenever it asks.
struct Seat {
    client: ClientId,
    session: Option<SessionId>,
    next: u64,
}

/// Batches that make sense in their order, and what is known from their results in that order.
struct Script {
    executor: Executor<FileService>,
    state: State,
    time: Time,
    seats: Vec<Seat>,
    known: Known,
    opened: u64,
    batch: Vec<Request>,
    /// What only reads, of all that was asked.
    reads: Vec<(ClientId, SessionId, Bytes)>,
    done: usize,
    refused: usize,
}

impl Script {
    fn new(service: FileService) -> Script {
        let executor = Executor::new(service);
        let mut state = State::new(std::sync::Arc::new(MemorySnapshot::default()));
        executor.genesis(&mut state).unwrap();
        let keys = [0, GUESTS[0], GUESTS[1]].map(sharing::public);
        let seats = MEMBERS.into_iter().chain(keys).map(|client| Seat {
            client,
            session: None,
            next: 1,
        });
        Script {
            executor,
            state,
            time: Time(1_800_000_000_000_000_000),
            seats: seats.collect(),
            known: Known::default(),
            opened: 0,
            batch: Vec::new(),
            reads: Vec::new(),
            done: 0,
            refused: 0,
        }
    }

    fn batch(&mut self, (passed_us, raws): &Batch, with_guests: bool) -> Agreed {
        // Not always one of those at which every change also deletes what has lingered.
        self.time.0 += passed_us * 1_000 + 37;
        for raw in raws {
            let guest = GUESTS[usize::from(raw[3]) % GUESTS.len()];
            if with_guests {
                for (key, action) in about_credentials(raw, guest, self.reads.len() < 2) {
                    let seat = self.seat_of(sharing::public(key));
                    self.ask(seat, raw, Op::new(Who::root(), action));
                }
            }
            let seat = match with_guests && raw[7] % 3 == 0 {
                true => self.seat_of(sharing::public(guest)),
                false => usize::from(raw[9]) % MEMBERS.len(),
            };
            if raw[1] < 6 {
                self.close(seat);
                continue;
            }
            let known = &self.known;
            let maker = Maker { raw, known };
            let action = maker.action();
            // Handles are of their session; somebody else's is no handle.
            let of_handle = owner(&action, known).filter(|_| raw[8] >= 10);
            let at = |session| {
                let mut seats = self.seats.iter();
                seats.position(|seat| seat.session == Some(SessionId(session)))
            };
            let seat = of_handle.and_then(at).unwrap_or(seat);
            let who = maker.who();
            let rights_of = match &action {
                Action::SetAttr(op) => match &op.target {
                    Target::Handle(handle) => Some(handle.ino),
                    Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => Some(*ino),
                },
                Action::SetXattr(op) => Some(op.ino),
                _ => None,
            };
            self.ask(seat, raw, Op::new(who, action));
            // Who may write was changed: the next one asks at once, by number. Chance rarely makes this case.
            if let Some(ino) = rights_of {
                let write = Action::Write(Write {
                    target: Target::Ino(ino),
                    place: Place::At(0),
                    data: Bytes::copy_from_slice(raw),
                });
                self.ask(
                    usize::from(raw[4]) % MEMBERS.len(),
                    raw,
                    Op::new(Who::new(1000, 100), write),
                );
            }
            // It is ordered twice.
            if raw[0] >= 240
                && let Some(again) = self.batch.last().cloned()
            {
                self.execute(again);
            }
        }
        Agreed {
            time: self.time,
            requests: std::mem::take(&mut self.batch),
        }
    }

    fn seat_of(&self, client: ClientId) -> usize {
        let mut seats = self.seats.iter();
        seats.position(|seat| seat.client == client).unwrap()
    }

    fn execute(&mut self, request: Request) -> message::Outcome {
        let (executor, state) = (&mut self.executor, &mut self.state);
        let done = executor.execute(state, self.time, [&request]).unwrap();
        self.batch.push(request);
        message::Outcome::from_bytes(done[0].outcome.clone()).unwrap()
    }

    /// What concerns sessions themselves.
    fn control(&mut self, seat: usize, control: &Control) -> message::Outcome {
        self.opened += 1;
        let number = RequestNumber(self.opened);
        let op = control.to_bytes().into();
        self.execute(Request::new(
            self.seats[seat].client,
            SessionId(0),
            number,
            op,
        ))
    }

    fn close(&mut self, seat: usize) {
        if let Some(session) = self.seats[seat].session.take() {
            self.control(seat, &Control::Close(session));
        }
    }

    fn ask(&mut self, seat: usize, raw: &Raw, op: Op) {
        let session = match self.seats[seat].session {
            Some(session) => session,
            None => match self.control(seat, &Control::Open(())) {
                message::Outcome::Done(id) => SessionId::from_bytes(id).unwrap(),
                other => panic!("{other:?}"),
            },
        };
        let Seat {
            client,
            session: kept,
            next,
        } = &mut self.seats[seat];
        if kept.replace(session).is_none() {
            *next = 1;
        }
        let number = *next;
        *next += 1;
        let client = *client;
        let answered = number.saturating_sub(u64::from(raw[6]) % 8);
        let (number, answered) = (RequestNumber(number), RequestNumber(answered));
        let bytes = op.to_bytes();
        if op.is_read_only() {
            self.reads.push((client, session, bytes.clone()));
        }
        match self.execute(Request::after(client, session, number, answered, bytes)) {
            message::Outcome::Done(result) => match Outcome::from_bytes(result).unwrap().0 {
                Ok(answer) => {
                    self.known.learn(session.0, &answer);
                    self.done += 1;
                }
                Err(_) => self.refused += 1,
            },
            message::Outcome::NoSession(()) => self.seats[seat].session = None,
            other => panic!("{other:?}"),
        }
    }
}

/// The volume of the tests, and whether it has guests.
fn service(with_guests: bool) -> FileService {
    let mut admission = match with_guests {
        true => admission(),
        false => Admission::members_only(),
    };
    admission.members.extend(MEMBERS);
    FileService::new(SMALL, admission)
}

/// How many operations were at work at once at most, and how many were done and refused.
fn play(
    batches: &[Batch],
    schedule: &[(u8, u8)],
    with_guests: bool,
    threads: usize,
) -> (usize, usize, usize) {
    let service = service(with_guests);
    let mut script = Script::new(service.clone());
    let agreed = batches.iter().map(|b| script.batch(b, with_guests));
    let agreed = agreed.collect();
    let reads = &script.reads;
    let read = |which: u8| reads.get(usize::from(which) % reads.len().max(1)).cloned();
    // In order, each decision about a guest is made anew.
    let plain = service.clone().without_memory();
    let world = World::new(service, plain, Conflicts::Declared, threads);
    let most = world.play(agreed, schedule, read).most;
    (most, script.done, script.refused)
}

fn schedule() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 20..300)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..crate::cases::cases(300) })]

    /// Whatever the schedule, replies, checkpoints, reads and the state are those of the agreed order.
    #[test]
    fn files_beside_each_other_are_as_after_each_other(batches in batches(), schedule in schedule()) {
        play(&batches, &schedule, false, 0);
    }

    /// The same where guests are among those who ask, and each worker remembers what it decided about them.
    #[test]
    fn and_so_they_are_where_there_are_guests(batches in batches(), schedule in schedule()) {
        play(&batches, &schedule, true, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, ..crate::cases::cases(40) })]

    /// The same on threads, which are over when they like.
    #[test]
    fn and_so_they_are_on_threads(batches in batches(), schedule in schedule(), with_guests in any::<bool>()) {
        play(&batches, &schedule, with_guests, 4);
    }
}

/// The properties say something only if much is done, and much at once.
#[test]
fn much_is_done_at_once() {
    let byte = |i: u32, j: usize| (i.wrapping_mul(2_654_435_761 + 97 * j as u32) >> 13) as u8;
    let raw = |i: u32| std::array::from_fn(|j| byte(i, j));
    let batches: Vec<Batch> = (0..40)
        .map(|at| (10, (at * 10..at * 10 + 10).map(raw).collect()))
        .collect();
    let schedule: Vec<(u8, u8)> = (0..97_u8).map(|i| (i.wrapping_mul(83) % 80, i)).collect();
    let (most, done, refused) = play(&batches, &schedule, false, 0);
    assert!(
        most >= 3 && done >= 150 && refused >= 30,
        "{most} {done} {refused}"
    );
    let (most, done, refused) = play(&batches, &schedule, true, 0);
    assert!(
        most >= 3 && done >= 150 && refused >= 30,
        "{most} {done} {refused}"
    );
}

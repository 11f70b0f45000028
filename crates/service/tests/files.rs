//! What the file service declares, by the check that services of others are tried with.

use quorate_files::op::*;
use quorate_files::{Admission, FileService, Genesis, Handle, Ino, Nothing};
use quorate_service::check::{self, Mistake};
use quorate_service::{
    Bytes, Call, Fault, KeyPair, Ran, Rest, Service, SessionId, Time, Txn, Uses,
};

/// As replicas call it: the end of a session is none of its affairs where it holds nothing, while the service would take the occasion to tidy up.
struct AsCalled {
    files: FileService,
    /// Whether reads are said to touch nothing, which is wrong.
    reads_touch_nothing: bool,
}

impl Service for AsCalled {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        self.files.genesis(txn)
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        self.files.is_read_only(op)
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        self.files.execute(txn, call, op)
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        match self.files.uses_at_end(txn, call)? {
            Some(_) => self.files.session_ended(txn, call),
            None => Ok(Rest::Nothing),
        }
    }

    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        self.files.uses_at_end(txn, call)
    }

    fn uses(&self, call: &Call, op: &Bytes) -> Uses {
        match self.reads_touch_nothing && self.is_read_only(op) {
            true => Uses::none(),
            false => self.files.uses(call, op),
        }
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        self.files.result_bytes(op)
    }

    fn run(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        self.files.run(txn, call, op)
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        call: &Call,
        op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        self.files.settle(txn, call, op, ran)
    }
}

/// Operations in their order, of two sessions.
#[derive(Default)]
struct Script(Vec<(Call, Bytes)>);

impl Script {
    /// Answers with the time that it has.
    fn ask(&mut self, session: u64, action: Action) -> Time {
        let call = Call {
            client: KeyPair::from_seed(&[1; 32]).public(),
            session: SessionId(session),
            now: Time(1_000_000_001 + 1_000 * self.0.len() as u64),
        };
        self.0.push((call, Op::new(Who::root(), action).to_bytes()));
        call.now
    }

    /// Makes a file, and has it open.
    fn create(&mut self, session: u64, name: &'static str, ino: Ino) -> Target {
        let at = self.ask(
            session,
            Action::Create(Create {
                parent: Ino::ROOT,
                name: Bytes::from_static(name.as_bytes()),
                mode: 0o644,
                umask: 0,
                flags: flags::READ | flags::WRITE,
            }),
        );
        Target::Handle(Handle::opened(ino, at, false).expect("it is early"))
    }

    fn write(&mut self, session: u64, target: &Target, offset: u64, len: usize) {
        self.ask(
            session,
            Action::Write(Write {
                target: target.clone(),
                place: Place::At(offset),
                data: Bytes::from(vec![len as u8; len]),
            }),
        );
    }

    fn read(&mut self, session: u64, target: &Target) {
        let (target, offset, len) = (target.clone(), 0, 200_000);
        self.ask(
            session,
            Action::Read(Read {
                target,
                offset,
                len,
            }),
        );
    }

    fn unlink(&mut self, name: &'static str) {
        let (parent, name) = (Ino::ROOT, Bytes::from_static(name.as_bytes()));
        self.ask(1, Action::Unlink(Unlink { parent, name }));
    }

    fn look(&mut self, name: &'static str, ino: Ino) {
        let (parent, name) = (Ino::ROOT, Bytes::from_static(name.as_bytes()));
        self.ask(2, Action::Lookup(Lookup { parent, name }));
        self.ask(2, Action::GetAttr(Target::Ino(ino)));
    }
}

fn lock(target: &Target, test: bool) -> Action {
    let Target::Handle(handle) = *target else {
        panic!("locks are taken through handles");
    };
    Action::Lock(Lock {
        handle,
        space: LockSpace::Posix,
        owner: 1,
        pid: 1,
        start: 0,
        end: 9,
        kind: LockKind::Write,
        test,
    })
}

/// Two sessions write to one file and to two, look at names and objects, cut, lock, copy, remove and let go.
fn script() -> Vec<(Call, Bytes)> {
    let mut script = Script::default();
    let (a, b) = (Ino(2), Ino(3));
    let first = script.create(1, "a", a);
    script.look("b", b);
    let second = script.create(2, "b", b);
    script.write(1, &first, 0, 5_000);
    script.write(2, &second, 0, 70_000);
    script.write(1, &first, 65_536, 10);
    script.read(1, &first);
    script.look("a", a);
    script.write(1, &first, 100, 10);
    script.read(2, &Target::Ino(a));
    script.ask(1, lock(&first, false));
    script.ask(1, lock(&first, true));
    script.ask(2, lock(&second, true));
    script.ask(
        2,
        Action::CopyRange(CopyRange {
            from: Target::Ino(a),
            offset: 0,
            to: second.clone(),
            to_offset: 0,
            len: 70_000,
        }),
    );
    script.write(2, &Target::Ino(a), 0, 100);
    script.read(2, &second);
    script.ask(
        1,
        Action::SetAttr(SetAttr {
            target: first.clone(),
            mode: Some(0o600),
            uid: None,
            gid: None,
            size: Some(10),
            atime: None,
            mtime: None,
        }),
    );
    script.ask(2, Action::Access(Access { ino: a, mask: 4 }));
    script.write(1, &first, 20, 10);
    script.ask(2, Action::StatFs(Nothing));
    script.unlink("a");
    script.look("a", a);
    script.read(1, &first);
    script.ask(2, Action::Ping(Nothing));
    for (session, target) in [(1, &first), (2, &second)] {
        if let Target::Handle(handle) = target {
            script.ask(session, Action::Release(*handle));
        }
        script.read(session, target);
        script.look("b", a);
    }
    script.0
}

fn service(reads_touch_nothing: bool) -> AsCalled {
    let genesis = Genesis::for_all(1 << 20, 100);
    AsCalled {
        files: FileService::new(genesis, Admission::members_only()),
        reads_touch_nothing,
    }
}

/// What it declares holds for these, beside each other and beside the ends of both sessions.
#[test]
fn the_file_service_declares_what_it_touches() {
    check::uses_by(&service(false), &script(), 1).expect("it is declared");
}

/// And it would show if it did not.
#[test]
fn less_would_show() {
    let found = check::uses_by(&service(true), &script(), 1);
    assert!(matches!(found, Err(Mistake::Dependent { .. })), "{found:?}");
}

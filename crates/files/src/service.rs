//! The dispatch: from bytes to an operation, and from its end to a result.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use bytes::Bytes;
use quorate_execution::graph::{Scope, Uses};
use quorate_execution::{Call, Ran, Reading, Rest, Service};
use quorate_state::{Fault, Layer, Txn};
use quorate_wire::{Decode, Encode, Time};

use crate::Admission;
use crate::answer::{self, Answer, Attr, Outcome};
use crate::audit::Noted;
use crate::conflicts;
use crate::data::Placed;
use crate::decisions::Memory;
use crate::errno::Errno;
use crate::fs::{Caller, Done, Fs, Stop};
use crate::guest;
use crate::layout::{self, Counters, FIRST_COOKIE, Inode};
use crate::op::{Action, MAX_GROUPS, Op, Who, WithAttrs};
use crate::perm::MODE_BITS;
use crate::reading;
use crate::types::{Ino, Kind, Nothing, Stamp};
use crate::weight;

/// What a new volume is like. Part of the group's configuration: equal on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Space for content, in bytes.
    pub capacity_bytes: u64,
    /// How many objects there can be, the root among them.
    pub capacity_inodes: u64,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Its group.
    pub root_gid: u32,
    /// Its mode bits.
    pub root_mode: u32,
}

impl Genesis {
    /// A volume of this size in whose root everybody may make files of their own.
    pub fn for_all(capacity_bytes: u64, capacity_inodes: u64) -> Genesis {
        Genesis {
            capacity_bytes,
            capacity_inodes,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o1777,
        }
    }
}

/// The file service. Has no state of its own but what a new volume is like, and who needs no credential. What it remembers of
/// guests changes no result: only how soon it is there.
#[derive(Clone, Debug)]
pub struct FileService {
    genesis: Genesis,
    admission: Arc<Admission>,
    memory: RefCell<Memory>,
}

impl FileService {
    /// A service whose new volumes are as `genesis` says. An existing volume keeps what it was made with.
    pub fn new(genesis: Genesis, admission: Admission) -> FileService {
        let admission = Arc::new(admission);
        let memory = RefCell::default();
        FileService {
            genesis,
            admission,
            memory,
        }
    }

    /// The same service, but each decision about a guest is made anew. To hold the one against the other.
    pub fn without_memory(self) -> FileService {
        let memory = RefCell::new(Memory::none());
        FileService { memory, ..self }
    }

    fn outcome(&self, txn: &mut Txn<'_>, call: &Call, op: &Op) -> Result<Outcome, Fault> {
        let caller = self.caller(call, &op.who);
        match self.admission.is_member(&call.client) {
            true => run(txn, &caller, &op.action),
            false => guest::run(txn, &caller, &self.memory, &op.action),
        }
    }

    fn caller<'a>(&'a self, call: &'a Call, who: &'a Who) -> Caller<'a> {
        let admission = &self.admission;
        Caller {
            call,
            who,
            admission,
        }
    }
}

impl Service for FileService {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        let counters = Counters {
            next_ino: Ino::ROOT.0 + 1,
            used_bytes: 0,
            used_inodes: 1,
            capacity_bytes: self.genesis.capacity_bytes,
            capacity_inodes: self.genesis.capacity_inodes,
            dead_first: 0,
            dead_next: 0,
            moves: 0,
            shared: 0,
        };
        // Not a clock's time: the genesis state is the same wherever and whenever it is made.
        let start = Stamp::from(Time(0));
        let root = Inode {
            kind: Kind::Directory,
            mode: self.genesis.root_mode & MODE_BITS,
            nlink: 2,
            uid: self.genesis.root_uid,
            gid: self.genesis.root_gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            data: 0,
            atime: start,
            mtime: start,
            ctime: start,
            btime: start,
            change: 1,
            parent: Ino::ROOT,
            next_cookie: FIRST_COOKIE,
            xattrs: 0,
            xattr_list_bytes: 0,
            xattr_bytes: 0,
        };
        txn.put(layout::counters_key(), Bytes::from(counters.to_bytes()));
        txn.put(layout::inode_key(Ino::ROOT), Bytes::from(root.to_bytes()));
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        // A glance at the tag first: a write's megabyte is not copied only to be judged.
        tag_of(op).is_some_and(may_be_read_only)
            && Op::from_slice(op).is_ok_and(|op| op.is_read_only())
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        Ok(match Op::from_bytes(op.clone()) {
            Ok(op) => self.outcome(txn, call, &op)?.to_bytes(),
            Err(_) => Outcome(Err(Errno::EPROTO)).to_bytes(),
        })
    }

    fn read(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Reading, Fault> {
        let Ok(mut op) = Op::from_bytes(op.clone()) else {
            return self.execute(txn, call, op).map(Reading::from);
        };
        let wanted = reading::take_wanted(&mut op.action);
        let outcome = self.outcome(txn, call, &op)?;
        match wanted {
            Some(wanted) => {
                reading::with_content(txn, &self.caller(call, &op.who), outcome, wanted)
            }
            None => Ok(Reading::from(outcome.to_bytes())),
        }
    }

    fn uses(&self, call: &Call, op: &Bytes) -> Uses {
        match Op::from_bytes(op.clone()) {
            // What a guest may do follows from much of the state. What only looks runs beside others that do.
            Ok(op) if !self.admission.is_member(&call.client) => match op.is_read_only() {
                true => Uses::none().read(Scope::Everything),
                false => Uses::everything(),
            },
            Ok(op) => conflicts::uses(call, &op.action),
            // It changes nothing, and its result is always the same.
            Err(_) => Uses::none(),
        }
    }

    fn weight(&self, op: &Bytes) -> usize {
        let op = Op::from_bytes(op.clone());
        op.map_or(0, |op| weight::weight(&op.action))
    }

    fn result_bytes(&self, _: &Bytes) -> usize {
        weight::RESULT
    }

    fn work(op: &Bytes) -> usize {
        let op = Op::from_bytes(op.clone());
        op.map_or(0, |op| weight::work(&op.action))
    }

    fn run(&self, txn: &mut Txn<'_>, call: &Call, bytes: &Bytes) -> Result<Ran, Fault> {
        if !self.admission.is_member(&call.client) {
            return self.execute(txn, call, bytes).map(Ran::Done);
        }
        let Ok(op) = Op::from_bytes(bytes.clone()) else {
            return self.execute(txn, call, bytes).map(Ran::Done);
        };
        let Action::Write(write) = &op.action else {
            let caller = self.caller(call, &op.who);
            return Ok(Ran::Done(run(txn, &caller, &op.action)?.to_bytes()));
        };
        let placed = or_undo(txn, |txn| {
            let (_, placed) = Fs::new(txn, &self.caller(call, &op.who))?.place(write)?;
            Ok(placed)
        })?;
        Ok(match placed {
            Ok(placed) => Ran::Settle(Bytes::from(placed.to_bytes())),
            Err(errno) => Ran::Done(Outcome(Err(errno)).to_bytes()),
        })
    }

    fn settle(
        &self,
        txn: &mut Txn<'_>,
        call: &Call,
        op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        let lost = |e| {
            Fault::Store(alloc::format!(
                "what a write's first step said is lost: {e}"
            ))
        };
        let op = Op::from_bytes(op.clone()).map_err(lost)?;
        let placed = Placed::from_bytes(ran).map_err(lost)?;
        let outcome = or_undo(txn, |txn| {
            change(txn, &self.caller(call, &op.who), |fs| {
                let inode = fs.inode(placed.ino)?;
                let answer = fs.settle_write(inode, &placed)?;
                if conflicts::sweeps(call, &op.action) {
                    fs.end_lingering()?;
                }
                Ok(answer)
            })
        })?;
        if outcome.is_err() {
            // What was placed goes too.
            txn.rollback();
        }
        Ok(Outcome(outcome).to_bytes())
    }

    /// Handles are all that a session has: locks are taken through them.
    fn uses_at_end(&self, txn: &Txn<'_>, call: &Call) -> Result<Option<Uses>, Fault> {
        let count = txn.get(&layout::open_count_key(call.session.0))?;
        Ok(count.map(|_| conflicts::uses_at_end(call)))
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        let who = Who::root();
        let mut fs = Fs::new(txn, &self.caller(call, &who))?;
        let done = fs
            .end_session()
            .and_then(|is_all| fs.end_lingering().map(|()| is_all))
            .and_then(|is_all| fs.reclaim().map(|()| is_all))
            .and_then(|is_all| fs.finish().map(|()| is_all));
        match done {
            Ok(true) => Ok(Rest::Nothing),
            Ok(false) => Ok(Rest::More),
            Err(Stop::Failed(fault)) => Err(fault),
            Err(Stop::Refused(errno)) => Err(Fault::Store(alloc::format!(
                "what a session held can't be let go: {errno}"
            ))),
        }
    }
}

fn run(txn: &mut Txn<'_>, caller: &Caller<'_>, action: &Action) -> Result<Outcome, Fault> {
    match action {
        Action::WithAttrs(with) => {
            let act = |txn: &mut Txn<'_>| run_action(txn, caller, &with.action);
            with_attrs(txn, caller, with, act, |_, attr| Ok(Some(attr)))
        }
        action => run_action(txn, caller, action),
    }
}

fn run_action(txn: &mut Txn<'_>, caller: &Caller<'_>, action: &Action) -> Result<Outcome, Fault> {
    if action.is_read_only() {
        return run_read(txn, caller, action);
    }
    let outcome = or_undo(txn, |txn| change(txn, caller, |fs| dispatch(fs, action)))?;
    let is_logged = matches!(
        action,
        Action::PutCredential(_) | Action::Revoke(_) | Action::Restore(_)
    );
    if is_logged && caller.admission.owner.is_some() {
        let refused = outcome.as_ref().err();
        log(txn, caller, &Noted::asked(action, refused))?;
    }
    Ok(Outcome(outcome))
}

/// An action, with the attributes of some objects as the caller may see them.
pub(crate) fn with_attrs(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    op: &WithAttrs,
    act: impl FnOnce(&mut Txn<'_>) -> Result<Outcome, Fault>,
    see: impl Fn(&Fs<'_, '_>, Attr) -> Done<Option<Attr>>,
) -> Result<Outcome, Fault> {
    let look = |txn: &mut Txn<'_>| {
        let fs = Fs::new(txn, caller)?;
        let seen = |ino| see(&fs, fs.attr(ino, &fs.inode(ino)?));
        let attrs = op.objects.iter().map(|ino| match seen(*ino) {
            Ok(attr) => Ok(attr),
            Err(Stop::Refused(_)) => Ok(None),
            Err(Stop::Failed(fault)) => Err(fault),
        });
        attrs.collect::<Result<Vec<_>, Fault>>()
    };
    let before = look(txn)?;
    let first = before.first().and_then(Option::as_ref);
    let outcome = match op.guard {
        Some(guard) if first.is_none_or(|attr| attr.ctime != guard) => Outcome(Err(Errno::EAGAIN)),
        Some(_) | None => act(txn)?,
    };
    let answer = match op.action.is_read_only() {
        true => answer::WithAttrs {
            before: Vec::new(),
            after: before,
            outcome: Box::new(outcome),
        },
        false => answer::WithAttrs {
            after: look(txn)?,
            before,
            outcome: Box::new(outcome),
        },
    };
    Ok(Outcome(Ok(Answer::WithAttrs(answer))))
}

/// Does a change, and what goes with every one of them.
pub(crate) fn change(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    work: impl FnOnce(&mut Fs<'_, '_>) -> Done<Answer>,
) -> Done<Answer> {
    let mut fs = Fs::new(txn, caller)?;
    let answer = work(&mut fs)?;
    fs.reclaim()?;
    fs.finish()?;
    Ok(answer)
}

/// Adds a row to the audit log, and lets go of what has ended.
pub(crate) fn log(txn: &mut Txn<'_>, caller: &Caller<'_>, noted: &Noted<'_>) -> Result<(), Fault> {
    always(txn, caller, |fs| {
        fs.tidy()?;
        fs.note(noted)
    })
}

/// A change in which nothing can be refused.
pub(crate) fn always(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    work: impl FnOnce(&mut Fs<'_, '_>) -> Done<()>,
) -> Result<(), Fault> {
    let done = change(txn, caller, |fs| {
        work(fs)?;
        Ok(Answer::Done(Nothing))
    });
    done.map(drop).map_err(|stop| match stop {
        Stop::Refused(errno) => Fault::Store(alloc::format!("what can't be refused is: {errno}")),
        Stop::Failed(fault) => fault,
    })
}

/// Does some work. Where it is refused, what it wrote is undone: and only that, for the caller's own writes may be in the
/// transaction already.
pub(crate) fn or_undo<T>(
    txn: &mut Txn<'_>,
    work: impl FnOnce(&mut Txn<'_>) -> Done<T>,
) -> Result<Result<T, Errno>, Fault> {
    let before = txn.writes().clone();
    match work(txn) {
        Ok(done) => Ok(Ok(done)),
        Err(Stop::Refused(errno)) => {
            back_to(txn, before);
            Ok(Err(errno))
        }
        Err(Stop::Failed(fault)) => Err(fault),
    }
}

pub(crate) fn run_read(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    action: &Action,
) -> Result<Outcome, Fault> {
    let before = txn.writes().len();
    let done = dispatch(&mut Fs::new(txn, caller)?, action);
    assert_eq!(txn.writes().len(), before, "a read wrote");
    match done {
        Ok(answer) => Ok(Outcome(Ok(answer))),
        Err(Stop::Refused(errno)) => Ok(Outcome(Err(errno))),
        Err(Stop::Failed(fault)) => Err(fault),
    }
}

/// Makes the transaction's writes what they were.
fn back_to(txn: &mut Txn<'_>, before: Layer) {
    txn.rollback();
    for (key, value) in before {
        match value {
            Some(value) => txn.put(key, value),
            None => txn.delete(key),
        }
    }
}

pub(crate) fn dispatch(fs: &mut Fs<'_, '_>, action: &Action) -> Done<Answer> {
    let answer = act(fs, action)?;
    if conflicts::sweeps(fs.call, action) {
        fs.end_lingering()?;
    }
    Ok(answer)
}

fn act(fs: &mut Fs<'_, '_>, action: &Action) -> Done<Answer> {
    match action {
        Action::Ping(_) => Ok(Answer::Done(Nothing)),
        Action::Lookup(op) => fs.lookup(op),
        Action::GetAttr(target) => fs.get_attr(target),
        Action::SetAttr(op) => fs.set_attr(op),
        Action::Access(op) => fs.access(op),
        Action::Open(op) => fs.open(op),
        Action::CheckOpen(op) => fs.check_open(op),
        Action::Hold(op) => fs.hold(op),
        Action::Accessed(op) => fs.accessed(op),
        Action::Create(op) => fs.create(op),
        Action::Release(handle) => fs.release(*handle),
        Action::Read(op) => fs.read(op),
        Action::Write(op) => fs.write(op),
        Action::Mkdir(op) => fs.mkdir(op),
        Action::Mknod(op) => fs.mknod(op),
        Action::Symlink(op) => fs.symlink(op),
        Action::Readlink(ino) => fs.readlink(*ino),
        Action::Link(op) => fs.link(op),
        Action::Unlink(op) => fs.unlink(op),
        Action::Rmdir(op) => fs.rmdir(op),
        Action::Rename(op) => fs.rename(op),
        Action::ReadDir(op) => fs.read_dir(op),
        Action::StatFs(_) => Ok(Answer::StatFs(fs.stat())),
        Action::StatFsOf(ino) => fs.stat_fs_of(*ino),
        Action::Fsync(target) => {
            fs.target(target)?;
            Ok(Answer::Done(Nothing))
        }
        Action::Fallocate(op) => fs.fallocate(op),
        Action::Seek(op) => fs.seek(op),
        Action::SetXattr(op) => fs.set_xattr(op),
        Action::GetXattr(op) => fs.get_xattr(op),
        Action::ListXattr(op) => fs.list_xattr(op),
        Action::RemoveXattr(op) => fs.remove_xattr(op),
        Action::Lock(op) => fs.lock(op),
        Action::Make(op) => fs.make_file(op),
        Action::CopyRange(op) => fs.copy(op),
        Action::PutCredential(op) => fs.put_credential(op),
        Action::Revoke(op) => fs.revoke(op),
        Action::Restore(op) => fs.restore(op),
        Action::Revocations(op) => fs.revocations(op),
        Action::Grants(op) => fs.grants(op),
        Action::PassedOn(op) => fs.passed_on(op),
        Action::Audit(op) => fs.audit(op),
        Action::SetQuota(op) => fs.set_quota(op),
        Action::Adopt(op) => fs.adopt(op),
        Action::Quotas(op) => fs.quotas(op),
        // The codec refuses one within another.
        Action::WithAttrs(_) => Err(Errno::EPROTO.into()),
    }
}

/// The tag of an encoded operation's action: it stands after user, group, and the counted groups.
fn tag_of(op: &[u8]) -> Option<u8> {
    let count = op.get(8..12)?;
    let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]) as usize;
    if count > MAX_GROUPS {
        return None;
    }
    op.get(12 + 4 * count).copied()
}

/// Whether an action with this tag can be read-only; whether it is, [`Action::is_read_only`] says.
fn may_be_read_only(tag: u8) -> bool {
    const WRITE: u8 = 10;
    const SET_XATTR: u8 = 24;
    tag != WRITE && tag != SET_XATTR
}

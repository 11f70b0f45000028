//! Operations of guests: asked about, done as whom the credential says, counted and logged; and answers cut down to what they may see.

mod listing;
mod shown;
#[cfg(test)]
mod tests;

pub(crate) use shown::Allowed;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::RefCell;

use quorate_state::{Fault, Txn};

use crate::answer::{Answer, Decision, Outcome};
use crate::audit::{Noted, is_change, made};
use crate::decisions::Memory;
use crate::errno::Errno;
use crate::fs::{Caller, Done, Fs, Stop};
use crate::gate::{Guest, Pass};
use crate::grants::rationed;
use crate::layout::{self, ENTRY_BYTES, Written};
use crate::needs::is_free;
use crate::op::{Action, FallocateMode, Hold};
use crate::service::{always, change, dispatch, log, or_undo, run_read, with_attrs};
use crate::types::Ino;
use shown::{may, show};

pub(crate) fn run(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    memory: &RefCell<Memory>,
    action: &Action,
) -> Result<Outcome, Fault> {
    let fs = Fs::new(txn, caller)?;
    if is_free(action) {
        return free(txn, caller, action);
    }
    // By itself: what is taken out is not borrowed while the operation is at work.
    let known = memory.borrow_mut().take(&fs);
    let guest = match known.map_or_else(|| fs.guest(caller.call.client).map(Box::new), Ok) {
        Ok(guest) => guest,
        Err(stop) => return refused(stop),
    };
    let outcome = match action {
        Action::WithAttrs(with) => {
            let act = |txn: &mut Txn<'_>| run_action(txn, caller, &guest, &with.action);
            with_attrs(txn, caller, with, act, |fs, attr| fs.seen(&guest, attr))
        }
        action if is_simple(action) => read(fs, &guest, action),
        action => run_action(txn, caller, &guest, action),
    };
    guest.rest();
    memory.borrow_mut().keep(caller.call.client, guest);
    outcome
}

/// Whether an operation reads, and its answer is what a member gets but for the attributes.
fn is_simple(action: &Action) -> bool {
    action.is_read_only() && !matches!(action, Action::ReadDir(_) | Action::Access(_))
}

/// One view of the state for all of it: whether it is allowed, the answer, and what is shown of that.
fn read(fs: Fs<'_, '_>, guest: &Guest, action: &Action) -> Result<Outcome, Fault> {
    let before = fs.txn.writes().len();
    let pass = match fs.judge(guest, action) {
        Ok(pass) => pass,
        Err(stop) => return refused(stop),
    };
    let mut fs = fs.acting_as(&pass.who);
    let mut done = dispatch(&mut fs, action);
    assert_eq!(fs.txn.writes().len(), before, "a read wrote");
    let shown = match &mut done {
        Ok(answer) => fs.show(guest, answer),
        Err(_) => Ok(()),
    };
    match shown.and(done) {
        Ok(answer) => Ok(Outcome(Ok(answer))),
        Err(stop) => refused(stop),
    }
}

fn refused(stop: Stop) -> Result<Outcome, Fault> {
    match stop {
        Stop::Refused(errno) => Ok(Outcome(Err(errno))),
        Stop::Failed(fault) => Err(fault),
    }
}

fn run_action(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    action: &Action,
) -> Result<Outcome, Fault> {
    if is_free(action) {
        let outcome = free(txn, caller, action)?;
        guest.has_changed(&Fs::new(txn, caller)?);
        return Ok(outcome);
    }
    if let Action::Hold(op) = action {
        return hold(txn, caller, guest, action, op);
    }
    let fs = Fs::new(txn, caller)?;
    let judged = fs.judge(guest, action);
    let child = match fs.child(action) {
        Ok(child) => child,
        Err(stop) => return refused(stop),
    };
    let pass = match judged {
        Ok(pass) => pass,
        Err(Stop::Failed(fault)) => return Err(fault),
        Err(Stop::Refused(errno)) if action.is_read_only() => return Ok(Outcome(Err(errno))),
        Err(Stop::Refused(errno)) => return deny(txn, caller, guest, action, child, errno),
    };
    let own = Caller {
        who: &pass.who,
        ..*caller
    };
    if action.is_read_only() {
        let outcome = match action {
            Action::ReadDir(op) => listing::list(txn, &own, guest, op)?,
            Action::Access(op) => may(txn, &own, guest, op)?,
            action => run_read(txn, &own, action)?,
        };
        return show(txn, &own, guest, outcome.0);
    }
    let outcome = or_undo(txn, |txn| {
        change(txn, &own, |fs| {
            let with_hidden = match action {
                Action::SetAttr(op) => Some(Action::SetAttr(fs.with_hidden(guest, op)?)),
                _ => None,
            };
            let before = fs.counters.used_bytes;
            let answer = dispatch(fs, with_hidden.as_ref().unwrap_or(action))?;
            // What is written may take far more of the volume than it is: a byte takes a block.
            let taken = fs.counters.used_bytes.saturating_sub(before);
            fs.pay(guest, &pass, written(action, &answer).max(taken))?;
            Ok(answer)
        })
    })?;
    guest.has_changed(&Fs::new(txn, caller)?);
    let by = pass.by.map(|at| &guest.grants[at]);
    let (made, refused) = match &outcome {
        Ok(answer) => (made(action, answer), None),
        Err(errno) => (None, Some(errno)),
    };
    let noted = Noted {
        action,
        child: made.unwrap_or(child),
        refused,
        decision: Decision::Allowed,
        by,
        is_change: outcome.is_ok() && is_change(action, child),
    };
    log(txn, &own, &noted)?;
    show(txn, &own, guest, outcome)
}

/// Logs that a change is not allowed.
fn deny(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    action: &Action,
    child: Ino,
    errno: Errno,
) -> Result<Outcome, Fault> {
    if guest.grants.is_empty() {
        let_go(txn, caller)?;
    }
    let by = match Fs::new(txn, caller)?.in_spite_of(guest, action) {
        Ok(by) => by.map(|at| &guest.grants[at]),
        Err(stop) => return refused(stop),
    };
    let noted = Noted {
        child,
        ..Noted::denied(action, &errno, by)
    };
    log(txn, caller, &noted)?;
    Ok(Outcome(Err(errno)))
}

/// Holds files. Each is judged by itself. The log tells which are held that were not before, in a row for each credential by which they are;
/// where the guest may not hold one of them it holds none, and the log tells of that one.
fn hold(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    action: &Action,
    op: &Hold,
) -> Result<Outcome, Fault> {
    let keep = |keep: Vec<Ino>| {
        let let_go = Vec::new();
        Action::Hold(Hold { keep, let_go })
    };
    let asked: BTreeSet<Ino> = op.keep.iter().copied().collect();
    let mut new: BTreeMap<Option<usize>, Vec<Ino>> = BTreeMap::new();
    for ino in asked {
        let one = keep([ino].into());
        let fs = Fs::new(txn, caller)?;
        let judged = fs.judge(guest, &one);
        match judged.and_then(|pass| Ok((pass.by, fs.held(ino)?))) {
            Ok((by, None)) => new.entry(by).or_default().push(ino),
            Ok((_, Some(_))) => {}
            Err(Stop::Refused(errno)) => return deny(txn, caller, guest, &one, Ino(0), errno),
            Err(Stop::Failed(fault)) => return Err(fault),
        }
    }
    let pass = Pass::free();
    let own = Caller {
        who: &pass.who,
        ..*caller
    };
    let outcome = or_undo(txn, |txn| change(txn, &own, |fs| dispatch(fs, action)))?;
    guest.has_changed(&Fs::new(txn, caller)?);
    if let Ok(Answer::Held(held)) = &outcome {
        new.retain(|_, files| {
            files.retain(|ino| !held.gone.contains(ino));
            !files.is_empty()
        });
    }
    for (by, files) in new {
        let held = keep(files);
        let noted = Noted {
            decision: Decision::Allowed,
            by: by.map(|at| &guest.grants[at]),
            ..Noted::asked(&held, outcome.as_ref().err())
        };
        log(txn, &own, &noted)?;
        if outcome.is_err() {
            // It is about all of them.
            break;
        }
    }
    Ok(Outcome(outcome))
}

/// What is allowed to whoever is let in; credentials and revocations are looked at by themselves.
fn free(txn: &mut Txn<'_>, caller: &Caller<'_>, action: &Action) -> Result<Outcome, Fault> {
    let pass = Pass::free();
    let own = Caller {
        who: &pass.who,
        ..*caller
    };
    if action.is_read_only() {
        return run_read(txn, &own, action);
    }
    let outcome = or_undo(txn, |txn| change(txn, &own, |fs| dispatch(fs, action)))?;
    match action {
        // A session lasts as long as its client says something, so this comes now and again.
        Action::Ping(_) => always(txn, caller, |fs| match fs.may_anything()? {
            true => Ok(()),
            false => fs.let_go_of_session(),
        })?,
        Action::Release(_) | Action::Hold(_) => {}
        _ => log(txn, &own, &Noted::asked(action, outcome.as_ref().err()))?,
    }
    Ok(Outcome(outcome))
}

/// Lets go of some of what a guest has open or locked that has no credential any more: it keeps no space and nobody waiting.
fn let_go(txn: &mut Txn<'_>, caller: &Caller<'_>) -> Result<(), Fault> {
    always(txn, caller, |fs| fs.let_go_of_session())
}

/// How many bytes an operation counts as that has brought something. A name costs what it takes of the volume's space, whatever it is of: so who
/// makes many empty files, or many names of one, comes to an end too.
fn written(action: &Action, answer: &Answer) -> u64 {
    match (action, answer) {
        (Action::Write(op), _) => op.data.len() as u64,
        (Action::Symlink(op), _) => ENTRY_BYTES + op.target.len() as u64,
        // Where the name was there, nothing is paid for.
        (
            Action::Create(_)
            | Action::Make(_)
            | Action::Mkdir(_)
            | Action::Mknod(_)
            | Action::Link(_),
            _,
        ) => ENTRY_BYTES,
        (Action::SetXattr(op), _) => (op.name.len() + op.value.len()) as u64,
        (Action::CopyRange(op), Answer::Progress(progress)) => {
            progress.done.saturating_sub(op.to_offset)
        }
        (Action::Fallocate(op), Answer::Progress(progress)) => match op.mode {
            FallocateMode::PunchHole => 0,
            FallocateMode::Allocate
            | FallocateMode::KeepSize
            | FallocateMode::ZeroRange
            | FallocateMode::ZeroRangeKeepSize => progress.done.saturating_sub(op.offset),
        },
        _ => 0,
    }
}

impl Fs<'_, '_> {
    /// Whether the caller has a credential in force, or nothing open that it would need one for.
    fn may_anything(&self) -> Done<bool> {
        let open: Option<u32> = self.load(&layout::open_count_key(self.session()))?;
        Ok(open.is_none() || !self.guest(self.call.client)?.grants.is_empty())
    }

    /// Counts what was written: against the first credential that has room under all its links.
    fn pay(&mut self, guest: &Guest, pass: &Pass, bytes: u64) -> Done<()> {
        if bytes == 0 || pass.payers.is_empty() {
            return Ok(());
        }
        for at in &pass.payers {
            let mut paid = Vec::new();
            for (_, reach) in rationed(&guest.grants[*at].grant) {
                let key = layout::written_key(reach.id);
                let mut written: Written = self.load(&key)?.ok_or(Errno::EDQUOT)?;
                written.bytes = written.bytes.saturating_add(bytes);
                let fits = reach.quota.is_none_or(|quota| written.bytes <= quota);
                paid.push((fits, key, written));
            }
            if paid.iter().all(|(fits, _, _)| *fits) {
                for (_, key, written) in paid {
                    self.put(key, &written);
                }
                return Ok(());
            }
        }
        Err(Errno::EDQUOT.into())
    }
}

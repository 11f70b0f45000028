//! What guests are shown: attributes cut down to what they may, and what access(2) is told. By several credentials a guest may act as several
//! users, so what holds of an object is asked for each of them.

use alloc::vec::Vec;

use quorate_credential::Rights;
use quorate_state::{Fault, Txn};

use super::refused;
use crate::answer::{Answer, Attr, Outcome};
use crate::decisions::Part;
use crate::errno::Errno;
use crate::fs::{Caller, Done, Fs, Stop};
use crate::gate::{Guest, Ids, all, who};
use crate::needs::object;
use crate::op::{Access, Action, SetAttr, access};
use crate::service::run_read;
use crate::types::{Ino, Kind};

/// What a guest's credentials give with an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed {
    /// All together.
    pub rights: Rights,
    /// As each user that it can act as; nothing where that is one.
    each: Vec<(Ids, Rights)>,
}

impl Guest {
    /// What the parts come to.
    pub fn allowed(&self, parts: &[Part]) -> Allowed {
        let given_as = |ids: &Ids| {
            let of = parts.iter();
            let of = of.filter(|part| self.grants[usize::from(part.by)].grant.ids == *ids);
            (*ids, of.fold(Rights::NONE, |sum, part| sum | part.rights))
        };
        Allowed {
            rights: all(parts),
            each: match &self.ids[..] {
                [] | [_] => Vec::new(),
                several => several.iter().map(given_as).collect(),
            },
        }
    }
}

impl Allowed {
    /// Together with what is given by another way.
    pub fn and(mut self, other: &Allowed) -> Allowed {
        self.rights = self.rights | other.rights;
        for ((_, rights), (_, more)) in self.each.iter_mut().zip(&other.each) {
            *rights = *rights | *more;
        }
        self
    }

    /// The permission bits of an object that mean nothing to the guest. Those of the class that it takes for its own are what it may as the users
    /// who are in that.
    fn hidden(&self, kind: Kind, owner: (u32, u32)) -> u32 {
        if kind == Kind::Symlink {
            return 0;
        }
        let bits = accesses(self.rights, kind);
        let mut shown = bits << 6 | bits << 3 | bits;
        let classes = self.each.iter().map(|(ids, _)| shift(*ids, owner));
        if let Some(own) = classes.max() {
            let of_class = self
                .each
                .iter()
                .filter(|(ids, _)| shift(*ids, owner) == own);
            let rights = of_class.fold(Rights::NONE, |sum, (_, rights)| sum | *rights);
            shown = shown & !(0o7 << own) | accesses(rights, kind) << own;
        }
        0o777 & !shown
    }

    /// Makes attributes what the guest sees: no permission bit is shown that means nothing to it.
    pub fn cut(&self, attr: &mut Attr) {
        attr.mode &= !self.hidden(attr.kind, (attr.uid, attr.gid));
    }
}

/// Where in a mode the bits of the class are that a user is in.
fn shift(ids: Ids, owner: (u32, u32)) -> u32 {
    let who = who(ids);
    match who.uid == owner.0 {
        true => 6,
        false if who.gid == owner.1 => 3,
        false => 0,
    }
}

/// Which accesses a set of rights comes to.
fn accesses(rights: Rights, kind: Kind) -> u32 {
    let any = |of: Rights| !(rights & of).is_empty();
    let moves = Rights::RENAME_FROM | Rights::RENAME_INTO;
    let (read, write, exec) = match kind {
        Kind::Directory => (
            any(Rights::READDIR),
            any(Rights::CREATE | Rights::UNLINK | Rights::LINK | moves),
            any(Rights::LOOKUP),
        ),
        _ => (
            any(Rights::READ),
            any(Rights::WRITE | Rights::APPEND),
            any(Rights::READ),
        ),
    };
    let bits = [
        (read, access::READ),
        (write, access::WRITE),
        (exec, access::EXEC),
    ];
    bits.iter()
        .filter(|(has, _)| *has)
        .map(|(_, bit)| bit)
        .sum()
}

/// Only what both the mode bits and the credentials allow. Each kind of access is done as the first user as whom it is given, so it is
/// his modes that count for it.
pub(super) fn may(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    op: &Access,
) -> Result<Outcome, Fault> {
    let first = run_read(txn, caller, &Action::Access(op.clone()))?;
    let Outcome(Ok(Answer::Allowed(as_first))) = first else {
        return Ok(first);
    };
    let fs = Fs::new(txn, caller)?;
    let asked = fs.inode(op.ino).and_then(|inode| {
        let allowed = fs.allowed_on(guest, op.ino)?;
        Ok((allowed, inode.kind))
    });
    let (allowed, kind) = match asked {
        Ok(asked) => asked,
        Err(stop) => return refused(stop),
    };
    if allowed.each.is_empty() {
        let mask = as_first & accesses(allowed.rights, kind);
        return Ok(Outcome(Ok(Answer::Allowed(mask))));
    }
    let (mut left, mut may) = (op.mask, 0);
    for (ids, rights) in allowed.each {
        let mask = left & accesses(rights, kind);
        left &= !mask;
        let own = Caller {
            who: &who(ids),
            ..*caller
        };
        let as_this = run_read(txn, &own, &Action::Access(Access { mask, ..op.clone() }))?;
        match as_this {
            Outcome(Ok(Answer::Allowed(mask))) => may |= mask,
            other => return Ok(other),
        }
    }
    Ok(Outcome(Ok(Answer::Allowed(may))))
}

pub(super) fn show(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    outcome: Result<Answer, Errno>,
) -> Result<Outcome, Fault> {
    let fs = Fs::new(txn, caller)?;
    let shown = outcome.map_err(Stop::from).and_then(|mut answer| {
        fs.show(guest, &mut answer)?;
        Ok(answer)
    });
    match shown {
        Ok(answer) => Ok(Outcome(Ok(answer))),
        Err(stop) => refused(stop),
    }
}

impl Fs<'_, '_> {
    /// Attributes of an object that was named; nothing where the guest may not look at it.
    pub(super) fn seen(&self, guest: &Guest, mut attr: Attr) -> Done<Option<Attr>> {
        let allowed = self.allowed_on(guest, attr.ino)?;
        allowed.cut(&mut attr);
        Ok(allowed.rights.contains(Rights::LOOKUP).then_some(attr))
    }

    /// A change of attributes with the permission bits that the guest is not shown as they are: a program takes the mode that it sees, and changes
    /// a part of it.
    pub(super) fn with_hidden(&self, guest: &Guest, op: &SetAttr) -> Done<SetAttr> {
        let mut op = op.clone();
        if let Some(mode) = &mut op.mode {
            let ino = object(&op.target);
            let inode = self.inode(ino)?;
            let allowed = self.allowed_on(guest, ino)?;
            let hidden = allowed.hidden(inode.kind, (inode.uid, inode.gid));
            *mode = *mode & !hidden | inode.mode & hidden;
        }
        Ok(op)
    }

    /// Makes an answer what a guest gets.
    pub(super) fn show(&self, guest: &Guest, answer: &mut Answer) -> Done<()> {
        let attr = match answer {
            Answer::Attr(attr) => attr,
            Answer::Opened(opened) => &mut opened.attr,
            Answer::Data(data) => &mut data.attr,
            Answer::Written(written) => &mut written.attr,
            Answer::Progress(progress) => &mut progress.attr,
            Answer::Made(made) => &mut made.attr,
            Answer::Quotas(rows) => {
                for row in &mut rows.quotas {
                    // It limits the guest also from above what is shared. Where that is, is nobody's to tell.
                    if !self
                        .allowed_on(guest, row.dir)?
                        .rights
                        .contains(Rights::LOOKUP)
                    {
                        row.dir = Ino(0);
                    }
                }
                return Ok(());
            }
            // Nothing that says more than was asked for.
            Answer::Done(_)
            | Answer::Bytes(_)
            | Answer::Size(_)
            | Answer::Entries(_)
            | Answer::StatFs(_)
            | Answer::Allowed(_)
            | Answer::Offset(_)
            | Answer::Lock(_)
            | Answer::WithAttrs(_)
            | Answer::Granted(_)
            | Answer::Grants(_)
            | Answer::Audit(_)
            | Answer::Revocations(_)
            | Answer::Adopted(_)
            | Answer::Held(_) => return Ok(()),
        };
        self.allowed_on(guest, attr.ino)?.cut(attr);
        Ok(())
    }

    /// What a guest may do with an object; nothing if it is gone.
    pub(super) fn allowed_on(&self, guest: &Guest, ino: Ino) -> Done<Allowed> {
        match self.given_on(guest, ino, |given| guest.allowed(given)) {
            Ok(allowed) => Ok(allowed),
            Err(Stop::Refused(_)) => Ok(Allowed::default()),
            Err(fault) => Err(fault),
        }
    }
}

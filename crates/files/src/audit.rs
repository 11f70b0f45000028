//! The audit log: what guests did in the agreed order, and who brought or took back what. Each row has the digest of the one before,
//! so the last one's digest binds all of them, also those that are no longer kept.
//!
//! What has changed a tree or content always has a row. Of all else, which guests can ask for again and again at no cost to themselves, what would
//! be as the row before has none, and those who have come by one first subject have a share of the rows: what goes beyond it is only counted.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::{Caveat, Chain};
use quorate_wire::{Encode, PublicKey};

use crate::answer::{self, Answer, AuditRow, Decision};
use crate::errno::Errno;
use crate::fs::Stop;
use crate::fs::{Done, Fs};
use crate::gate::Guest;
use crate::grants::Kept;
use crate::layout::{self, AUDIT_ROWS, AUDIT_SHARE};
use crate::needs::{At, object};
use crate::op::{Action, Audit, MAX_ROWS, Restore, Revoke, Serial, flags};
use crate::types::Ino;

/// A page ends here, however many rows were asked for: a result may have little more than 1 MiB.
const MAX_PAGE_BYTES: usize = 512 << 10;

/// The share of those who come by no credential that is known to hold.
const STRANGERS: PublicKey = PublicKey([0; 32]);

/// What a row is about.
pub(crate) struct Noted<'a> {
    pub action: &'a Action,
    /// What has the name that the action is about, or had it before.
    pub child: Ino,
    pub refused: Option<&'a Errno>,
    pub decision: Decision,
    /// The credential that it was allowed by, or that it was denied in spite of.
    pub by: Option<&'a Kept>,
    /// Whether a tree or content was changed.
    pub is_change: bool,
}

impl<'a> Noted<'a> {
    /// What asks for itself who may do it.
    pub fn asked(action: &'a Action, refused: Option<&'a Errno>) -> Noted<'a> {
        Noted {
            action,
            child: Ino(0),
            refused,
            decision: match refused {
                None => Decision::Allowed,
                Some(_) => Decision::Denied,
            },
            by: None,
            is_change: false,
        }
    }

    pub fn denied(action: &'a Action, errno: &'a Errno, by: Option<&'a Kept>) -> Noted<'a> {
        Noted {
            decision: Decision::Denied,
            by,
            ..Noted::asked(action, Some(errno))
        }
    }
}

impl Fs<'_, '_> {
    pub fn audit(&mut self, op: &Audit) -> Done<Answer> {
        if op.count == 0 {
            return Err(Errno::EINVAL.into());
        }
        if !self.admission.is_member(&self.call.client) {
            return Err(Errno::EPERM.into());
        }
        let sharing = self.sharing()?;
        let from = op.from.max(sharing.audited.saturating_sub(AUDIT_ROWS));
        let to = sharing
            .audited
            .min(from.saturating_add(op.count.min(MAX_ROWS).into()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for sequence in from..to {
            let row = self.audit_row(sequence)?.ok_or(Errno::ESTALE)?;
            bytes += row.to_bytes().len();
            if bytes > MAX_PAGE_BYTES && !rows.is_empty() {
                break;
            }
            rows.push(row);
        }
        Ok(Answer::Audit(answer::Audit {
            rows,
            next: sharing.audited,
            head: sharing.audit,
            untold: sharing.untold,
        }))
    }

    fn audit_row(&self, sequence: u64) -> Done<Option<AuditRow>> {
        self.load(&layout::audit_key(sequence))
    }

    /// In spite of which of its credentials a guest is denied something: the first that is about what it needs, else the first.
    pub fn in_spite_of(&self, guest: &Guest, action: &Action) -> Done<Option<usize>> {
        let needs = match self.needs(action) {
            Ok(needs) => needs,
            Err(Stop::Refused(_)) => Vec::new(),
            Err(fault) => return Err(fault),
        };
        for need in &needs {
            let (At::Object(ino) | At::New(ino, _)) = need.at;
            match self.decided(guest, ino, |decision| decision.reached) {
                Ok(Some(by)) => return Ok(Some(by.into())),
                Ok(None) | Err(Stop::Refused(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok((!guest.grants.is_empty()).then_some(0))
    }

    /// What an action gives a name to, if that is there already, or takes one from.
    pub fn child(&self, action: &Action) -> Done<Ino> {
        let (dir, name) = match action {
            Action::Create(op) => (op.parent, &op.name),
            Action::Make(op) => (op.parent, &op.name),
            Action::Mkdir(op) => (op.parent, &op.name),
            Action::Mknod(op) => (op.parent, &op.name),
            Action::Symlink(op) => (op.parent, &op.name),
            Action::Unlink(op) => (op.parent, &op.name),
            Action::Rmdir(op) => (op.parent, &op.name),
            Action::Rename(op) => (op.parent, &op.name),
            _ => return Ok(Ino(0)),
        };
        Ok(self.entry(dir, name)?.map_or(Ino(0), |entry| entry.ino))
    }

    /// Adds a row, or counts that there is none.
    pub fn note(&mut self, noted: &Noted<'_>) -> Done<()> {
        let Noted {
            action, decision, ..
        } = *noted;
        let (links, tags) = match action {
            Action::PutCredential(op) => match Chain::from_bytes(op.chain.clone()) {
                Ok(chain) => (serials(&chain), tags(&chain)),
                Err(_) => Default::default(),
            },
            Action::Revoke(Revoke { by: Some(id), .. })
            | Action::Restore(Restore { by: Some(id), .. }) => {
                match self.grant_of(self.call.client, *id)? {
                    Some(by) => (serials(&by.chain), tags(&by.chain)),
                    None => Default::default(),
                }
            }
            _ => match noted.by {
                Some(by) => (serials(&by.chain), tags(&by.chain)),
                None => Default::default(),
            },
        };
        let revoked = match action {
            Action::Revoke(op) => Some(op.what.clone()),
            Action::Restore(op) => Some(op.what.clone()),
            _ => None,
        };
        let held = match action {
            Action::Hold(op) if noted.refused.is_none() => op.keep.clone(),
            _ => Vec::new(),
        };
        let is_signed =
            decision == Decision::Allowed || !matches!(action, Action::PutCredential(_));
        let first = links
            .get(1)
            .map_or(self.call.client, |second| second.issuer);
        let share = match is_signed && !links.is_empty() {
            true => first,
            false => STRANGERS,
        };
        let has_place = noted.is_change || self.admission.is_member(&self.call.client);
        let mut sharing = self.sharing()?;
        let row = AuditRow {
            sequence: sharing.audited,
            before: sharing.audit,
            time: self.now(),
            subject: self.call.client,
            links,
            tags,
            action: action.tag(),
            object: about(action),
            other: other(action),
            child: noted.child,
            decision,
            errno: noted.refused.map_or(0, |errno| errno.code()),
            revoked,
            held,
            share: (!has_place).then_some(share),
            untold: sharing.untold,
        };
        if let Some(share) = row.share {
            let used: Option<u32> = self.load(&layout::audited_key(share))?;
            if used >= Some(AUDIT_SHARE) || self.is_as_before(&row)? {
                sharing.untold += 1;
                self.put_sharing(&sharing);
                return Ok(());
            }
            self.count(layout::audited_key(share), 1)?;
        }
        sharing.audited += 1;
        sharing.audit = row.digest();
        self.put_sharing(&sharing);
        self.put(layout::audit_key(row.sequence), &row);
        if let Some(old) = row.sequence.checked_sub(AUDIT_ROWS) {
            let gone = self.audit_row(old)?.and_then(|row| row.share);
            if let Some(share) = gone {
                self.count(layout::audited_key(share), -1)?;
            }
            self.txn.delete(layout::audit_key(old));
        }
        Ok(())
    }

    /// Whether a row would say the same as the one before, but for when.
    fn is_as_before(&self, row: &AuditRow) -> Done<bool> {
        let Some(before) = row.sequence.checked_sub(1) else {
            return Ok(false);
        };
        let Some(before) = self.audit_row(before)? else {
            return Ok(false);
        };
        let again = AuditRow {
            sequence: row.sequence,
            before: row.before,
            time: row.time,
            untold: row.untold,
            ..before
        };
        Ok(again == *row)
    }
}

/// Whether an action that was done has changed a tree or content. `child` is what had the name before that it is about.
pub(crate) fn is_change(action: &Action, child: Ino) -> bool {
    match action {
        Action::SetAttr(_)
        | Action::Write(_)
        | Action::Mkdir(_)
        | Action::Mknod(_)
        | Action::Symlink(_)
        | Action::Link(_)
        | Action::Unlink(_)
        | Action::Rmdir(_)
        | Action::Rename(_)
        | Action::Fallocate(_)
        | Action::SetXattr(_)
        | Action::RemoveXattr(_)
        | Action::CopyRange(_) => true,
        Action::Open(op) => op.flags & flags::TRUNC != 0,
        Action::Create(op) => child == Ino(0) || op.flags & flags::TRUNC != 0,
        Action::Make(_) => child == Ino(0),
        _ => false,
    }
}

/// What has got a name by an action, if its answer says so.
pub(crate) fn made(action: &Action, answer: &Answer) -> Option<Ino> {
    match (action, answer) {
        (_, Answer::Opened(opened)) => Some(opened.attr.ino),
        (_, Answer::Made(made)) => Some(made.attr.ino),
        (Action::Mkdir(_) | Action::Mknod(_) | Action::Symlink(_), Answer::Attr(attr)) => {
            Some(attr.ino)
        }
        _ => None,
    }
}

fn serials(chain: &Chain) -> Vec<Serial> {
    let links = chain.links().iter().enumerate().map(|(at, link)| Serial {
        issuer: chain.issuer(at),
        serial: link.terms.serial,
    });
    links.collect()
}

fn tags(chain: &Chain) -> Vec<Bytes> {
    let caveats = chain.links().iter().flat_map(|link| &link.terms.caveats);
    let tags = caveats.filter_map(|caveat| match caveat {
        Caveat::AuditTag(tag) => Some(Bytes::copy_from_slice(tag.as_bytes())),
        _ => None,
    });
    tags.collect()
}

/// The object that an operation is mostly about.
fn about(action: &Action) -> Ino {
    match action {
        Action::Ping(_)
        | Action::StatFs(_)
        | Action::PutCredential(_)
        | Action::Revoke(_)
        | Action::Restore(_)
        | Action::Revocations(_)
        | Action::Grants(_)
        | Action::PassedOn(_)
        | Action::Audit(_) => Ino(0),
        Action::GetAttr(target) | Action::Fsync(target) => object(target),
        Action::SetAttr(op) => object(&op.target),
        Action::Read(op) => object(&op.target),
        Action::Write(op) => object(&op.target),
        Action::ReadDir(op) => object(&op.target),
        Action::Seek(op) => object(&op.target),
        Action::Fallocate(op) => object(&op.target),
        Action::CopyRange(op) => object(&op.to),
        Action::Release(handle) => handle.ino,
        Action::Lock(op) => op.handle.ino,
        Action::Readlink(ino) | Action::StatFsOf(ino) => *ino,
        Action::SetQuota(op) => op.dir,
        Action::Adopt(op) => op.dir,
        Action::Quotas(op) => op.about.unwrap_or(Ino(0)),
        Action::Access(op) => op.ino,
        Action::Open(op) | Action::CheckOpen(op) => op.ino,
        Action::Hold(op) => op.keep.first().copied().unwrap_or(Ino(0)),
        Action::Accessed(op) => op.objects.first().map_or(Ino(0), |seen| seen.ino),
        Action::Link(op) => op.ino,
        Action::SetXattr(op) => op.ino,
        Action::GetXattr(op) => op.ino,
        Action::ListXattr(op) => op.ino,
        Action::RemoveXattr(op) => op.ino,
        Action::Lookup(op) => op.parent,
        Action::Create(op) => op.parent,
        Action::Make(op) => op.parent,
        Action::Mkdir(op) => op.parent,
        Action::Mknod(op) => op.parent,
        Action::Symlink(op) => op.parent,
        Action::Unlink(op) => op.parent,
        Action::Rmdir(op) => op.parent,
        Action::Rename(op) => op.parent,
        Action::WithAttrs(op) => about(&op.action),
    }
}

/// The second object that an operation is about.
fn other(action: &Action) -> Ino {
    match action {
        Action::Rename(op) => op.new_parent,
        Action::Link(op) => op.parent,
        Action::CopyRange(op) => object(&op.from),
        Action::WithAttrs(op) => other(&op.action),
        _ => Ino(0),
    }
}

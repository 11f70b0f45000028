//! The audit log: what guests did in the agreed order, and who brought or took back what. Each row has the digest of the one before,
//! so the last one's digest binds all of them, also those that are no longer kept.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::{Caveat, Chain};

use crate::answer::{self, Answer, AuditRow, Decision};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::grants::Kept;
use crate::layout::{self, AUDIT_ROWS};
use crate::needs::object;
use crate::op::{Action, Audit, MAX_ROWS, Revoke, Serial};
use crate::types::Ino;

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
        let rows = (from..to).map(|sequence| {
            let row = self.load::<AuditRow>(&layout::audit_key(sequence))?;
            Ok(row.ok_or(Errno::ESTALE)?)
        });
        Ok(Answer::Audit(answer::Audit {
            rows: rows.collect::<Done<_>>()?,
            next: sharing.audited,
            head: sharing.audit,
        }))
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

    /// Adds a row.
    pub fn note(
        &mut self,
        action: &Action,
        child: Ino,
        refused: Option<&Errno>,
        decision: Decision,
        by: Option<&Kept>,
    ) -> Done<()> {
        let (links, tags) = match action {
            Action::PutCredential(op) => match Chain::from_bytes(op.chain.clone()) {
                Ok(chain) => (serials(&chain), tags(&chain)),
                Err(_) => Default::default(),
            },
            Action::Revoke(Revoke { by: Some(id), .. }) => {
                match self.grant_of(self.call.client, *id)? {
                    Some(by) => (serials(&by.chain), tags(&by.chain)),
                    None => Default::default(),
                }
            }
            _ => match by {
                Some(by) => (serials(&by.chain), tags(&by.chain)),
                None => Default::default(),
            },
        };
        let revoked = match action {
            Action::Revoke(op) => Some(op.what.clone()),
            _ => None,
        };
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
            child,
            decision,
            errno: refused.map_or(0, |errno| errno.code()),
            revoked,
        };
        sharing.audited += 1;
        sharing.audit = row.digest();
        self.put_sharing(&sharing);
        self.put(layout::audit_key(row.sequence), &row);
        if let Some(old) = row.sequence.checked_sub(AUDIT_ROWS) {
            self.txn.delete(layout::audit_key(old));
        }
        Ok(())
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
        | Action::Grants(_)
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

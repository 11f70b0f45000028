//! The audit log: what guests did in the agreed order, and who brought or took back what. Each row has the digest of the one before,
//! so the last one's digest binds all of them, also those that are no longer kept.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::Caveat;

use crate::answer::{self, Answer, AuditRow, Decision};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::grants::Kept;
use crate::layout::{self, AUDIT_ROWS};
use crate::needs::object;
use crate::op::{Action, Audit, MAX_ROWS, Serial};
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

    /// Adds a row.
    pub fn note(
        &mut self,
        action: &Action,
        refused: Option<&Errno>,
        decision: Decision,
        by: Option<&Kept>,
    ) -> Done<()> {
        let mut sharing = self.sharing()?;
        let row = AuditRow {
            sequence: sharing.audited,
            before: sharing.audit,
            time: self.now(),
            subject: self.call.client,
            links: by.map(serials).unwrap_or_default(),
            tags: by.map(tags).unwrap_or_default(),
            action: action.tag(),
            object: about(action),
            other: other(action),
            decision,
            errno: refused.map_or(0, |errno| errno.code()),
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

fn serials(kept: &Kept) -> Vec<Serial> {
    let links = kept.grant.reaches.iter().map(|reach| Serial {
        issuer: reach.issuer,
        serial: reach.serial,
    });
    links.collect()
}

fn tags(kept: &Kept) -> Vec<Bytes> {
    let caveats = kept
        .chain
        .links()
        .iter()
        .flat_map(|link| &link.terms.caveats);
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

//! The audit log: what guests did in the agreed order, and who brought or took back what. Each row has the digest of the one before,
//! so the last one's digest binds all of them, also those that are no longer kept.

use crate::answer::{self, Answer, AuditRow};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, AUDIT_ROWS};
use crate::op::{Audit, MAX_ROWS};

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

    /// Adds a row; its number, the digest before it and the time are put in here.
    pub fn note(&mut self, mut row: AuditRow) -> Done<()> {
        let mut sharing = self.sharing()?;
        row.sequence = sharing.audited;
        row.before = sharing.audit;
        row.time = self.now();
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

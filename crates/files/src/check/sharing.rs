//! What must hold of credentials, revocations and the audit log.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::{Chain, verify::Reach};
use quorate_wire::{Digest, PublicKey};

use super::{value, want};
use crate::answer::AuditRow;
use crate::layout::{
    AUDIT_ROWS, MAX_GRANTS, MAX_GRANTS_PER_HOLDER, MAX_GRANTS_PER_SUBJECT, MAX_LINKS_PER_SUBJECT,
    MAX_REVOCATIONS, Revocation, Sharing, Written, expiry_key, grant_key, key_at, tag,
};

/// All rows about credentials, in the order of their keys.
pub(super) fn check(rows: &[(Bytes, Bytes)]) -> Result<(), String> {
    let (mut holders, mut holder_counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut revokers, mut revoker_counts) = (BTreeMap::new(), BTreeMap::new());
    let mut subjects: BTreeMap<PublicKey, (usize, usize)> = BTreeMap::new();
    let (mut ends, mut end_rows): (Vec<Bytes>, Vec<Bytes>) = (Vec::new(), Vec::new());
    let mut audit: Vec<AuditRow> = Vec::new();
    let mut sharing: Option<Sharing> = None;
    for (key, bytes) in rows {
        let odd = || format!("odd key {key:02x?}");
        let first = || key_at(key, 0).ok_or_else(odd);
        match key[0] {
            tag::GRANT => {
                let chain = Chain::from_bytes(bytes.clone()).map_err(|e| format!("{e}"))?;
                let grant = chain.verified_before();
                want(*key == grant_key(grant.subject, grant.id), odd)?;
                let (grants, links) = subjects.entry(grant.subject).or_default();
                *grants += 1;
                *links += chain.links().len();
                *holders.entry(holder(&chain, &grant.reaches)).or_default() += 1;
                ends.push(expiry_key(grant.window.not_after, key));
            }
            tag::HOLDER => {
                holder_counts.insert(PublicKey(first()?), value::<u32>(key, bytes)?);
            }
            tag::WRITTEN => {
                let written: Written = value(key, bytes)?;
                *holders.entry(written.holder).or_default() += 1;
                ends.push(expiry_key(written.until, key));
            }
            tag::REVOCATION => {
                let row: Revocation = value(key, bytes)?;
                *revokers.entry(Digest(first()?)).or_default() += 1;
                ends.push(expiry_key(row.until, key));
            }
            tag::REVOKER => {
                revoker_counts.insert(Digest(first()?), value::<u32>(key, bytes)?);
            }
            tag::EXPIRY => end_rows.push(key.clone()),
            tag::SHARING => sharing = Some(value(key, bytes)?),
            tag::AUDIT => audit.push(value(key, bytes)?),
            _ => return Err(odd()),
        }
    }
    ends.sort();
    want(ends == end_rows, || {
        "the ends of credentials are noted wrong".into()
    })?;
    want(holders == holder_counts, || {
        "the credentials of holders are counted wrong".into()
    })?;
    want(revokers == revoker_counts, || {
        "revocations are counted wrong".into()
    })?;
    let grants: usize = subjects.values().map(|(grants, _)| grants).sum();
    let revocations: u32 = revokers.values().sum();
    let bounded = grants <= MAX_GRANTS as usize
        && revocations <= MAX_REVOCATIONS
        && holders.values().all(|n| *n <= MAX_GRANTS_PER_HOLDER)
        && subjects.values().all(|(grants, links)| {
            *grants <= MAX_GRANTS_PER_SUBJECT && *links <= MAX_LINKS_PER_SUBJECT
        });
    want(bounded, || "too many credentials".into())?;
    let Some(sharing) = sharing else {
        return want(rows.is_empty(), || "credentials without counts".into());
    };
    let counted = (sharing.grants as usize, sharing.revocations);
    want(counted == (grants, revocations), || {
        format!("{grants} credentials and {revocations} revocations, {counted:?} are counted")
    })?;
    check_audit(&sharing, &audit)
}

fn holder(chain: &Chain, reaches: &[Reach]) -> PublicKey {
    match reaches.get(1) {
        Some(second) => second.issuer,
        None => chain.subject(),
    }
}

/// The newest rows, without a gap, each bound to the one before.
fn check_audit(sharing: &Sharing, rows: &[AuditRow]) -> Result<(), String> {
    let first = sharing.audited.saturating_sub(AUDIT_ROWS);
    let numbers = rows.iter().map(|row| row.sequence);
    want(numbers.eq(first..sharing.audited), || {
        "the audit log has gaps".into()
    })?;
    let pairs = rows.iter().zip(rows.iter().skip(1));
    let mut bound = pairs.map(|(row, next)| row.digest() == next.before);
    let head = rows
        .last()
        .is_none_or(|last| last.digest() == sharing.audit);
    want(bound.all(|holds| holds) && head, || {
        "the audit log was changed".into()
    })
}

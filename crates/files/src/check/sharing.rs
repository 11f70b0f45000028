//! What must hold of credentials, revocations and the audit log.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::Chain;
use quorate_wire::{Digest, PublicKey};

use super::{value, want};
use crate::answer::AuditRow;
use crate::layout::{
    AUDIT_ROWS, AUDIT_SHARE, MAX_GRANTS, MAX_GRANTS_PER_SUBJECT, MAX_LINKS_PER_SUBJECT,
    MAX_PASSED_ON, MAX_REVOCATIONS, Revocation, Sharing, Written, below_key, expiry_key, grant_key,
    key_at, tag,
};

/// All rows about credentials, in the order of their keys.
pub(super) fn check(rows: &[(Bytes, Bytes)]) -> Result<(), String> {
    let (mut hosts, mut host_counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut revokers, mut revoker_counts) = (BTreeMap::new(), BTreeMap::new());
    let mut subjects: BTreeMap<PublicKey, (usize, usize)> = BTreeMap::new();
    let (mut ends, mut end_rows): (Vec<Bytes>, Vec<Bytes>) = (Vec::new(), Vec::new());
    let (mut below, mut below_rows): (Vec<Bytes>, Vec<Bytes>) = (Vec::new(), Vec::new());
    let mut audit: Vec<AuditRow> = Vec::new();
    let mut sharing: Option<Sharing> = None;
    let mut sweeps_again = false;
    let mut share_counts: BTreeMap<PublicKey, u32> = BTreeMap::new();
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
                for second in grant.reaches.iter().skip(1) {
                    *hosts.entry(second.issuer).or_default() += 1;
                }
                ends.push(expiry_key(grant.window.not_after, key));
                let above = grant.reaches.iter().rev().skip(1);
                below.extend(above.map(|link| below_key(link.id, grant.subject, grant.id)));
            }
            tag::HOST => {
                host_counts.insert(PublicKey(first()?), value::<u32>(key, bytes)?);
            }
            tag::WRITTEN => {
                let written: Written = value(key, bytes)?;
                for host in &written.hosts {
                    *hosts.entry(*host).or_default() += 1;
                }
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
            tag::BELOW => below_rows.push(key.clone()),
            tag::SHARING => sharing = Some(value(key, bytes)?),
            tag::SWEEP_AGAIN => sweeps_again = true,
            tag::AUDIT => audit.push(value(key, bytes)?),
            tag::AUDITED => {
                share_counts.insert(PublicKey(first()?), value::<u32>(key, bytes)?);
            }
            _ => return Err(odd()),
        }
    }
    ends.sort();
    want(ends == end_rows, || {
        "the ends of credentials are noted wrong".into()
    })?;
    below.sort();
    want(below == below_rows, || {
        "what was passed on is listed wrong".into()
    })?;
    want(hosts == host_counts, || {
        "what was passed on is counted wrong".into()
    })?;
    want(revokers == revoker_counts, || {
        "revocations are counted wrong".into()
    })?;
    let grants: usize = subjects.values().map(|(grants, _)| grants).sum();
    let revocations: u32 = revokers.values().sum();
    let bounded = grants <= MAX_GRANTS as usize
        && revocations <= MAX_REVOCATIONS
        && hosts.values().all(|n| *n <= MAX_PASSED_ON)
        && subjects.values().all(|(grants, links)| {
            *grants <= MAX_GRANTS_PER_SUBJECT && *links <= MAX_LINKS_PER_SUBJECT
        });
    want(bounded, || "too many credentials".into())?;
    let Some(sharing) = sharing else {
        return want(rows.is_empty(), || "credentials without counts".into());
    };
    want(sharing.sweep.is_some() || !sweeps_again, || {
        "a search that does not go on is to begin again".into()
    })?;
    let counted = (sharing.grants as usize, sharing.revocations);
    want(counted == (grants, revocations), || {
        format!("{grants} credentials and {revocations} revocations, {counted:?} are counted")
    })?;
    check_shares(&audit, &share_counts)?;
    check_audit(&sharing, &audit)
}

/// Each share of the log is what its rows are, and no more than it may be.
fn check_shares(rows: &[AuditRow], counts: &BTreeMap<PublicKey, u32>) -> Result<(), String> {
    let mut shares: BTreeMap<PublicKey, u32> = BTreeMap::new();
    for share in rows.iter().filter_map(|row| row.share) {
        *shares.entry(share).or_default() += 1;
    }
    let is_bounded = shares.values().all(|rows| *rows <= AUDIT_SHARE);
    want(is_bounded && shares == *counts, || {
        "the shares of the audit log are counted wrong".into()
    })
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

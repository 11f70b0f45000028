//! What was taken back: had from the group, shown, and ended.

use anyhow::{Context, Result, bail};
use quorate_client::{CallError, Volume};
use quorate_credential::{Chain, calendar};
use quorate_files::answer::KeptRevocation;
use quorate_files::op::{self, MAX_ROWS, RevocationPlace, Revoked, Serial};
use quorate_files::{Errno, Who};
use quorate_net::hex;
use quorate_wire::{Digest, PublicKey};
use serde_json::{Value, json};

use super::revoke;
use super::sharing::short;

/// All revocations that the group keeps.
pub async fn all(volume: &Volume) -> Result<Vec<KeptRevocation>> {
    let (mut all, mut after): (Vec<KeptRevocation>, Option<RevocationPlace>) = (Vec::new(), None);
    loop {
        let op = op::Revocations {
            after,
            count: MAX_ROWS,
        };
        let part = volume.revocations(&Who::root(), op).await;
        let part = part.context("listing what was taken back")?;
        all.extend(part.revocations);
        match part.next {
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}

/// Ends a revocation: the owner's own, or one by the credential with this digest.
pub async fn end(volume: &Volume, what: Revoked, by: Option<Digest>) -> Result<()> {
    match volume.restore(&Who::root(), op::Restore { what, by }).await {
        Err(CallError::Refused(Errno::ENOENT)) => {
            bail!("there is no such revocation: `quorate shares` lists what was taken back")
        }
        done => done.map(drop).context("ending a revocation"),
    }
}

/// The owner's revocation that a credential meets as soon as it is brought, if there is one.
pub fn against<'a>(all: &'a [KeptRevocation], chain: &Chain) -> Option<&'a KeptRevocation> {
    let grant = chain.verified_before();
    let mut all = all.iter();
    all.find(|kept| {
        kept.by.is_none() && revoke::last_hit(chain, &grant, &kept.what, None).is_some()
    })
}

/// What is taken back, in few words.
pub fn words(what: &Revoked) -> String {
    match what {
        Revoked::Serial(of) => format!("{} of {}", of.serial, short(&of.issuer)),
        Revoked::Key(holder) => format!("all to {}", short(holder)),
        Revoked::Epoch(of) => format!("below {} of {}", of.serial, short(&of.issuer)),
    }
}

/// When it is forgotten.
pub fn until(kept: &KeptRevocation) -> String {
    match kept.until {
        u64::MAX => "for ever".into(),
        until => calendar::show(until),
    }
}

/// A line of the list, for people.
pub fn row(kept: &KeptRevocation) -> String {
    let by = match &kept.by {
        None => "the owner".to_string(),
        Some(id) => format!("credential {id}"),
    };
    format!(
        "revoked: {}; until {}; by {by}",
        words(&kept.what),
        until(kept)
    )
}

pub fn row_json(kept: &KeptRevocation) -> Value {
    json!({
        "revoked": what_json(&kept.what),
        "by": kept.by.map(|id| id.to_string()),
        "until": kept.until,
    })
}

/// What is taken back, so that [`what_from`] can read it. Serials are text: they may be larger than numbers in JSON can be.
pub fn what_json(what: &Revoked) -> Value {
    let serial = |kind: &str, of: &Serial| json!({ "kind": kind, "issuer": of.issuer.to_string(), "serial": of.serial.to_string() });
    match what {
        Revoked::Serial(of) => serial("serial", of),
        Revoked::Epoch(of) => serial("epoch", of),
        Revoked::Key(holder) => json!({ "kind": "key", "key": holder.to_string() }),
    }
}

pub fn what_from(value: &Value) -> Result<Option<Revoked>> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(match value["kind"].as_str() {
        Some("serial") => Revoked::Serial(serial_from(value)?),
        Some("epoch") => Revoked::Epoch(serial_from(value)?),
        Some("key") => Revoked::Key(key_from(&value["key"])?),
        _ => bail!("what was revoked is neither a serial, nor an epoch, nor a key"),
    }))
}

pub fn serial_from(value: &Value) -> Result<Serial> {
    let serial = value["serial"].as_str().and_then(|text| text.parse().ok());
    Ok(Serial {
        issuer: key_from(&value["issuer"])?,
        serial: serial.context("a serial is no number")?,
    })
}

pub fn key_from(value: &Value) -> Result<PublicKey> {
    let bytes = value.as_str().and_then(hex::decode32);
    Ok(PublicKey(
        bytes.context("64 hexadecimal digits are wanted")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_credential::{ObjectId, Rights, Scope, Terms, VolumeId, Window};
    use quorate_wire::KeyPair;

    /// Who signs for a key that was taken back is told by which revocation; not by one that a holder made, which is about what is below it, nor by one
    /// that says something else.
    #[test]
    fn what_meets_a_new_credential_is_found() {
        let [owner, bob] = [0, 1].map(|seed| KeyPair::from_seed(&[seed; 32]));
        let terms = Terms {
            subject: bob.public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights: Rights::ALL,
            window: Window {
                not_before: 0,
                not_after: 9,
            },
            depth: 0,
            serial: 7,
            caveats: Vec::new(),
        };
        let chain = Chain::issue(VolumeId(Digest([7; 32])), &owner, terms).unwrap();
        let found = |by, what| {
            let until = 1;
            against(&[KeptRevocation { by, what, until }], &chain).is_some()
        };
        let issuer = owner.public();
        let epoch = |serial| Revoked::Epoch(Serial { issuer, serial });
        let to_bob = Revoked::Key(bob.public());
        assert!(found(None, to_bob.clone()));
        assert!(!found(Some(Digest([1; 32])), to_bob));
        assert!(!found(None, Revoked::Key(issuer)));
        assert!(found(None, epoch(8)) && !found(None, epoch(7)));
        assert!(found(None, Revoked::Serial(Serial { issuer, serial: 7 })));
    }
}

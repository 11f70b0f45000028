//! Credentials, before two verifiers of which the second shares no code with the first.

use std::str;

use bytes::Bytes;
use quorate_credential::armour::{self, Summary};
use quorate_credential::{Caveat, Chain, Trust};

#[path = "../../crates/credential/tests/it/naive/mod.rs"]
mod naive;
#[path = "../../crates/credential/tests/it/support/mod.rs"]
pub mod support;

use support::{Raw, VOLUME, public};

/// What reading may cost, at the most: a chain has 16 links of a few hundred bytes in memory.
const MEMORY: usize = 64 << 10;

/// The bytes as a chain and as a text. A chain is also signed anew, by keys that are known, so that what it says is looked at and not
/// its signatures alone.
pub fn credential(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data)
        && let Ok(read) = armour::read(text)
    {
        in_mail(&read.chain);
    }
    let bytes = Bytes::copy_from_slice(data);
    let Ok(chain) = crate::within(MEMORY, || Chain::from_bytes(bytes)) else {
        assert_eq!(naive::authority(data, &VOLUME.0.0, &public(0).0), None);
        return;
    };
    assert_eq!(chain.to_bytes(), data, "another form of {chain:?}");
    in_mail(&chain);
    judged(data);
    let number = |key: &[u8; 32]| {
        (0..20)
            .find(|n| public(*n).0 == *key)
            .unwrap_or(key[0] % 20)
    };
    let mut issuer = 0;
    let links = chain.links().iter().map(|link| {
        let terms = &link.terms;
        let raw = Raw {
            issuer,
            subject: number(&terms.subject.0),
            object: terms.scope.object.0,
            subtree: terms.scope.subtree.into(),
            rights: terms.rights.bits(),
            from: terms.window.not_before,
            until: terms.window.not_after,
            depth: terms.depth,
            serial: terms.serial,
            caveats: terms.caveats.iter().map(parts).collect(),
        };
        issuer = raw.subject;
        raw
    });
    let links: Vec<Raw> = links.collect();
    let signed = support::assemble(&links);
    let read = Chain::from_bytes(signed.clone().into());
    assert!(read.is_ok(), "{links:?}");
    judged(&signed);
}

/// Its text form is read again, and its summary is true.
fn in_mail(chain: &Chain) {
    let read = armour::read(&armour::write(chain)).expect("our own text");
    assert_eq!((&read.chain, read.summary), (chain, Summary::True));
}

/// Both verifiers say the same of a chain, which is whether they take it.
pub fn judged(bytes: &[u8]) -> bool {
    let owners = &[public(0)];
    let trust = Trust {
        volume: VOLUME,
        owners,
    };
    let chain = Chain::from_bytes(bytes.to_vec().into());
    let ours = chain.ok().and_then(|chain| chain.verify(&trust).ok());
    let theirs = naive::authority(bytes, &VOLUME.0.0, &public(0).0);
    assert_eq!(ours.as_ref().map(support::said), theirs);
    ours.is_some()
}

fn parts(caveat: &Caveat) -> (u8, Vec<u8>) {
    let body = match caveat {
        Caveat::NamePrefix(prefix) => prefix.to_vec(),
        Caveat::ByteQuota(bytes) => bytes.to_le_bytes().to_vec(),
        Caveat::AuditTag(tag) => tag.clone().into_bytes(),
        Caveat::Ids { uid, gid } => [uid.to_le_bytes(), gid.to_le_bytes()].concat(),
    };
    (caveat.kind(), body)
}

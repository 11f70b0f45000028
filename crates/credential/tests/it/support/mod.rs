//! Chains that the crate itself would not make: links of any terms, rightly signed, put together byte by byte.
#![allow(dead_code)]

use quorate_credential::{Grant, Rights, VolumeId};
use quorate_wire::{Digest, KeyPair, PublicKey};

use super::naive::Authority;

pub const VOLUME: VolumeId = VolumeId(Digest([7; 32]));

/// The key pair with a number; 0 is the owner's.
pub fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number.wrapping_add(1); 32])
}

pub fn public(number: u8) -> PublicKey {
    key(number).public()
}

/// One link, as a test wants it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub issuer: u8,
    pub subject: u8,
    pub object: u128,
    pub subtree: u8,
    pub rights: u16,
    pub from: u64,
    pub until: u64,
    pub depth: u8,
    pub serial: u64,
    pub caveats: Vec<(u8, Vec<u8>)>,
}

impl Raw {
    /// All rights on the root's tree for a long time, from one key to the next.
    pub fn link(number: u8) -> Raw {
        Raw {
            issuer: number,
            subject: number + 1,
            object: 1,
            subtree: 1,
            rights: Rights::ALL.bits(),
            from: 100,
            until: 200,
            depth: 15_u8.saturating_sub(number),
            serial: u64::from(number),
            caveats: Vec::new(),
        }
    }

    pub fn terms(&self) -> Vec<u8> {
        let mut out = public(self.subject).0.to_vec();
        out.extend(self.object.to_le_bytes());
        out.push(self.subtree);
        out.extend(self.rights.to_le_bytes());
        out.extend(self.from.to_le_bytes());
        out.extend(self.until.to_le_bytes());
        out.push(self.depth);
        out.extend(self.serial.to_le_bytes());
        out.push(self.caveats.len() as u8);
        for (kind, body) in &self.caveats {
            out.extend([*kind, body.len() as u8]);
            out.extend(body);
        }
        out
    }
}

/// The bytes of a chain on [`VOLUME`], each link signed by the issuer that it names.
pub fn assemble(links: &[Raw]) -> Vec<u8> {
    let mut out = vec![1];
    out.extend(VOLUME.0.0);
    out.extend(public(0).0);
    out.push(links.len() as u8);
    let mut parent = [0; 32];
    for link in links {
        let terms = link.terms();
        let mut hasher = blake3::Hasher::new_derive_key("quorate v1 credential link");
        hasher.update(&[1]).update(&VOLUME.0.0);
        hasher
            .update(&public(link.issuer).0)
            .update(&parent)
            .update(&terms);
        parent = *hasher.finalize().as_bytes();
        out.extend(terms);
        out.extend(key(link.issuer).sign(&Digest(parent)).0);
    }
    out
}

/// All of what the crate says that a chain comes to, in the words of the second verifier.
pub fn said(grant: &Grant) -> Authority {
    let reaches = || grant.reaches.iter();
    let last = reaches().last().map(|reach| reach.id);
    assert_eq!(Some(grant.id), last, "a chain is named by its last link");
    Authority {
        subject: grant.subject.0,
        scopes: reaches()
            .map(|r| (r.scope.object.0, r.scope.subtree))
            .collect(),
        rights: grant.rights.bits(),
        from: grant.window.not_before,
        until: grant.window.not_after,
        ids: grant.ids,
        prefixes: reaches()
            .map(|r| r.prefix.as_ref().map(|p| p.to_vec()))
            .collect(),
        quotas: reaches().map(|r| r.quota).collect(),
        signed: reaches().map(|r| (r.issuer.0, r.serial, r.id.0)).collect(),
    }
}

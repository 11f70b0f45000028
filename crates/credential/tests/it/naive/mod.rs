//! A second verifier, written from docs/credentials.md alone. It shares no code with the crate: bytes are counted by hand. Digests and
//! signatures are asked directly of the libraries that the crate has them of, too. It is not fast, and gives no reasons.
#![allow(dead_code)]

use ed25519_dalek::{Signature, VerifyingKey};

/// What a chain comes to: (subject, object and subtree of each link, rights, first and last second, ids, prefixes, quotas; of each link who signed it, under
/// which number, and what its signature is over).
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Authority {
    pub subject: [u8; 32],
    pub scopes: Vec<(u128, bool)>,
    pub rights: u16,
    pub from: u64,
    pub until: u64,
    pub ids: Option<(u32, u32)>,
    pub prefixes: Vec<Option<Vec<u8>>>,
    pub quotas: Vec<Option<u64>>,
    pub signed: Vec<([u8; 32], u64, [u8; 32])>,
}

struct Cursor<'a>(&'a [u8], usize);

impl<'a> Cursor<'a> {
    fn next(&mut self, n: usize) -> Option<&'a [u8]> {
        let part = self.0.get(self.1..self.1 + n);
        self.1 += n;
        part
    }

    fn number(&mut self, n: usize) -> Option<u128> {
        let part = self.next(n)?;
        Some(
            part.iter()
                .rev()
                .fold(0, |sum, byte| sum * 256 + u128::from(*byte)),
        )
    }
}

fn key(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().unwrap()
}

/// What the bytes allow on a volume with one owner, or `None`.
pub fn authority(bytes: &[u8], volume: &[u8; 32], owner: &[u8; 32]) -> Option<Authority> {
    if bytes.len() > 8192 {
        return None;
    }
    let mut c = Cursor(bytes, 0);
    if c.number(1)? != 1 || c.next(32)? != volume || c.next(32)? != owner {
        return None;
    }
    let count = c.number(1)?;
    if count == 0 || count > 16 {
        return None;
    }
    let mut out = Authority::default();
    let mut keys = vec![*owner];
    let mut parent = [0; 32];
    let mut depth = 16;
    for number in 0..count {
        let start = c.1;
        let subject = key(c.next(32)?);
        let object = c.number(16)?;
        let subtree = c.number(1)?;
        let rights = c.number(2)? as u16;
        let (from, until) = (c.number(8)? as u64, c.number(8)? as u64);
        let own_depth = c.number(1)?;
        let serial = c.number(8)? as u64;
        let caveats = c.number(1)?;
        if subtree > 1 || rights >= 1 << 13 || until < from || own_depth >= depth || caveats > 8 {
            return None;
        }
        if keys.contains(&subject) {
            return None;
        }
        if number > 0 {
            let (last_object, last_subtree) = *out.scopes.last()?;
            let same = (last_object, last_subtree) == (object, subtree == 1);
            let more = rights & !out.rights != 0 || from < out.from || until > out.until;
            if out.rights & (1 << 11) == 0 || more || !last_subtree && !same {
                return None;
            }
        }
        let (mut prefix, mut quota, mut last_kind) = (None, None, 0);
        for _ in 0..caveats {
            let kind = c.number(1)?;
            let length = c.number(1)? as usize;
            let body = c.next(length)?;
            let number = |bytes: &[u8]| Cursor(bytes, 0).number(bytes.len()).unwrap_or(0);
            if kind <= last_kind {
                return None;
            }
            last_kind = kind;
            match (kind, length) {
                (1, 1..=255) if !body.contains(&0) && !body.contains(&b'/') => {
                    prefix = Some(body.to_vec());
                }
                (2, 8) => quota = Some(number(body) as u64),
                (4, 1..=64) if body.iter().all(|b| (32..127).contains(b)) => {}
                (5, 8) => {
                    let own = (number(&body[..4]) as u32, number(&body[4..]) as u32);
                    if out.scopes.is_empty() {
                        out.ids = Some(own);
                    }
                    // Only the owner says as whom.
                    if out.ids != Some(own) {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        let terms = &bytes[start..c.1];
        let issuer = *keys.last()?;
        let mut hasher = blake3::Hasher::new_derive_key("quorate v1 credential link");
        hasher
            .update(&[1])
            .update(volume)
            .update(&issuer)
            .update(&parent)
            .update(terms);
        parent = *hasher.finalize().as_bytes();
        let signature = Signature::from_slice(c.next(64)?).ok()?;
        out.signed.push((issuer, serial, parent));
        let issuer = VerifyingKey::from_bytes(&issuer).ok()?;
        issuer.verify_strict(&parent, &signature).ok()?;
        keys.push(subject);
        depth = own_depth;
        (out.subject, out.rights, out.from, out.until) = (subject, rights, from, until);
        out.scopes.push((object, subtree == 1));
        out.prefixes.push(prefix);
        out.quotas.push(quota);
    }
    (c.1 == bytes.len()).then_some(out)
}

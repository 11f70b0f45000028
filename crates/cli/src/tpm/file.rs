//! Which key and counter of a TPM are a replica's identity.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use quorate_net::{disk, hex};
use quorate_wire::IdentityKey;

const TITLE: &str = "quorate tpm: names a key that only one TPM has, and its counter there; for the key holder's user alone";
/// Such a file is some 350 bytes; a longer file is another file.
const MAX_BYTES: u64 = 4096;

/// What the file says.
#[derive(Clone, PartialEq, Eq)]
pub struct Named {
    /// The public half, which the chip must have for the label.
    pub key: IdentityKey,
    /// The counter's NV index.
    pub index: u32,
    /// From this and its own secret the chip makes the key, always the same.
    pub label: [u8; 32],
    /// What key and counter ask for.
    pub secret: [u8; 32],
}

impl Named {
    fn text(&self) -> String {
        let (label, secret) = (hex::encode(&self.label), hex::encode(&self.secret));
        let (key, index) = (self.key, self.index);
        format!("{TITLE}\nkey {key}\ncounter 0x{index:08x}\nlabel {label}\nsecret {secret}\n")
    }

    fn parse(whole: &str) -> Option<Named> {
        let mut lines = whole.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let mut line = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let named = Named {
            key: IdentityKey::from_text(line("key")?)?,
            index: u32::from_str_radix(line("counter")?.strip_prefix("0x")?, 16).ok()?,
            label: hex::decode32(line("label")?)?,
            secret: hex::decode32(line("secret")?)?,
        };
        // One form for each, and nothing after it.
        (named.text() == whole).then_some(named)
    }

    /// Writes the file, which must not be there.
    pub fn save(&self, path: &Path) -> Result<()> {
        disk::create(path, self.text().as_bytes(), 0o600)
            .with_context(|| format!("can't write {}", path.display()))
    }

    /// Reads the file, and holds it as long as the other value lives: there is one key holder for each key.
    pub fn load(path: &Path) -> Result<(Named, File)> {
        let shown = path.display();
        let file = File::open(path).with_context(|| {
            format!("{shown}: it is made by `quorate keyholder --tpm TCTI --enroll --key {shown}`")
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another key holder works with {shown}: there is one for each key")
            }
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| shown.to_string()),
        }
        let mut bytes = Vec::new();
        let read = (&file).take(MAX_BYTES).read_to_end(&mut bytes);
        read.with_context(|| shown.to_string())?;
        let named = std::str::from_utf8(&bytes).ok().and_then(Named::parse);
        let named = named.with_context(|| {
            format!(
                "{shown} names no key of a TPM: give the file that --enroll has written (--key)"
            )
        })?;
        Ok((named, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::{Certifies, P256Pair};

    /// What is written is read; whatever is changed about it is refused or says something else.
    #[test]
    fn a_file_has_one_form() {
        let pair = P256Pair::from_secret(&[7; 32]).expect("a secret number");
        let named = Named {
            key: pair.identity(),
            index: 0x0180_5101,
            label: [1; 32],
            secret: [2; 32],
        };
        let good = named.text();
        assert!(Named::parse(&good) == Some(named.clone()));
        for at in 0..good.len() {
            assert!(Named::parse(&good[..at]).is_none());
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            let read = std::str::from_utf8(&bad).ok().and_then(Named::parse);
            assert!(read.is_none_or(|read| read != named), "byte {at}");
        }
        assert!(Named::parse(&format!("{good}\n")).is_none());
    }
}

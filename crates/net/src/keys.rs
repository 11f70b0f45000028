//! Key files: the secret seed of an Ed25519 key, readable by its owner alone.
//!
//! The same key speaks for its owner in TLS handshakes and under signed messages. The file also holds the
//! public half, so that a damaged seed is noticed and not taken for another identity.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_wire::KeyPair;

use crate::{disk, hex};

const TITLE: &str = "quorate private key: whoever reads this can act in its owner's name";
/// A key file is some 250 bytes; a longer file is another file.
const MAX_FILE_BYTES: u64 = 4096;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operator named a file that is not there.
    #[error(
        "there is no key file {0}: name another one (--key), or bring it back: only keys that the group file lists are let in"
    )]
    Missing(PathBuf),
    /// The file is another user's.
    #[error(
        "this user may not read the key file {0}: run this as the user that it belongs to, or name another key file (--key)"
    )]
    NotAllowed(PathBuf),
    /// The operator would lose a key.
    #[error(
        "{0} exists already and a key is not overwritten: choose another name, or move it away"
    )]
    Exists(PathBuf),
    /// Others may have read the key.
    #[error(
        "{path} can be read or changed by others (mode {mode:03o}): if nobody else had access, \
         say `chmod 600 {path}`, else make a new key"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is not, or no longer, a key file.
    #[error("{0} is not a whole key file: restore it from your backup, or make a new key")]
    Corrupt(PathBuf),
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The environment's fault.
    #[error("the operating system gives no randomness for a key: {0}")]
    NoRandomness(getrandom::Error),
}

impl KeyError {
    /// Of a file that can't be read.
    fn from_read(path: &Path, source: io::Error) -> KeyError {
        match source.kind() {
            io::ErrorKind::NotFound => KeyError::Missing(path.into()),
            io::ErrorKind::PermissionDenied => KeyError::NotAllowed(path.into()),
            _ => KeyError::Io {
                path: path.into(),
                source,
            },
        }
    }
}

/// A new key from the operating system's randomness.
///
/// # Errors
/// [`KeyError::NoRandomness`].
pub fn generate() -> Result<KeyPair, KeyError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(KeyError::NoRandomness)?;
    Ok(KeyPair::from_seed(&seed))
}

/// Writes a key to a new file of mode 0600.
///
/// # Errors
/// [`KeyError::Exists`] or [`KeyError::Io`].
pub fn save(path: &Path, key: &KeyPair) -> Result<(), KeyError> {
    let seed = hex::encode(&key.seed());
    let text = format!("{TITLE}\nseed   {seed}\npublic {}\n", key.public());
    disk::create(path, text.as_bytes(), 0o600).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyError::Exists(path.into()),
        _ => KeyError::Io {
            path: path.into(),
            source,
        },
    })
}

/// Reads a key file.
///
/// # Errors
/// Any [`KeyError`] but `Exists` and `NoRandomness`.
pub fn load(path: &Path) -> Result<KeyPair, KeyError> {
    let io_error = |source| KeyError::from_read(path, source);
    let file = File::open(path).map_err(io_error)?;
    // Asked of the open file, so that nobody can put another one in its place in between.
    let mode = file.metadata().map_err(io_error)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.into(),
            mode,
        });
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES)
        .read_to_end(&mut text)
        .map_err(io_error)?;
    let text = String::from_utf8(text).map_err(|_| KeyError::Corrupt(path.into()))?;
    parse(&text).ok_or_else(|| KeyError::Corrupt(path.into()))
}

fn parse(text: &str) -> Option<KeyPair> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let seed = hex::decode32(lines.next()?.strip_prefix("seed ")?.trim())?;
    let public = hex::decode32(lines.next()?.strip_prefix("public ")?.trim())?;
    let key = KeyPair::from_seed(&seed);
    (key.public().0 == public && lines.next().is_none()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A key comes back from its file, and the file is never overwritten.
    #[test]
    fn a_saved_key_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = generate().unwrap();
        save(&path, &key).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(load(&path).unwrap().public(), key.public());
        assert!(matches!(save(&path, &key), Err(KeyError::Exists(_))));
        assert_ne!(generate().unwrap().public(), key.public());
    }

    /// A file that others can read is refused, and the message says what to do.
    #[test]
    fn an_exposed_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        save(&path, &generate().unwrap()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load(&path).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { mode: 0o640, .. }));
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    /// Whoever may not read a key is told whose it is to use. Made up here: root may read everything.
    #[test]
    fn another_users_key_is_named_as_such() {
        let path = Path::new("client.key");
        let error = KeyError::from_read(path, io::Error::from_raw_os_error(13)).to_string();
        for words in ["client.key", "belongs to", "--key"] {
            assert!(error.contains(words), "{error}");
        }
    }

    /// A missing file, and any single changed character of the key, are told apart from a key.
    #[test]
    fn a_damaged_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(matches!(load(&path), Err(KeyError::Missing(_))));
        save(&path, &generate().unwrap()).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() - 1 {
            let mut bad = good.clone();
            // Flips a digit to another digit, a letter to another letter.
            bad[at] = if bad[at] == b'1' { b'2' } else { b'1' };
            fs::write(&path, &bad).unwrap();
            if let Ok(key) = load(&path) {
                // The spaces of the alignment carry no meaning.
                assert_eq!(
                    key.public(),
                    parse(std::str::from_utf8(&good).unwrap()).unwrap().public()
                );
            }
        }
        fs::write(&path, &good[..good.len() / 2]).unwrap();
        assert!(matches!(load(&path), Err(KeyError::Corrupt(_))));
    }
}

//! What is offered to whom, and as whom they act there: a small file in the manner of exports(5).

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use quorate_files::Who;
use serde::Deserialize;

use crate::rpc::Credential;

/// The most exports of a server.
const MAX_EXPORTS: usize = 256;
/// The longest path of an export, and of a mount (`MNTPATHLEN`).
pub const MAX_PATH_BYTES: usize = 1024;
/// The user and group who stand for nobody.
const NOBODY: u32 = 65534;

/// Why there are no exports.
#[derive(Debug, thiserror::Error)]
pub enum ExportsError {
    /// The file can't be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// What the file says has no meaning.
    #[error("the exports: {0}")]
    Text(String),
}

/// Who loses which ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Squash {
    /// User and group 0.
    #[default]
    RootSquash,
    /// Everybody.
    AllSquash,
    /// Nobody.
    NoRootSquash,
}

/// A subtree of the volume that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its number in handles, which follows from the path alone.
    pub id: u64,
    /// The names on the way there from the volume's root.
    pub path: Vec<Vec<u8>>,
    /// Who may use it.
    pub clients: Vec<Network>,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Whether calls must come from a port below 1024, which only a client machine's superuser can send from.
    pub secure: bool,
    /// Whose ids are replaced.
    pub squash: Squash,
    /// The user that takes their place.
    pub anonuid: u32,
    /// And the group.
    pub anongid: u32,
}

/// All that is offered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<RawExport>")]
pub struct Exports {
    exports: Vec<Export>,
}

impl Default for Exports {
    /// The whole volume, to this machine alone.
    fn default() -> Exports {
        let raw = RawExport {
            path: "/".into(),
            clients: None,
            read_only: false,
            secure: true,
            squash: Squash::default(),
            anonuid: NOBODY,
            anongid: NOBODY,
        };
        Exports {
            exports: vec![raw.parsed(loopback())],
        }
    }
}

impl TryFrom<Vec<RawExport>> for Exports {
    type Error = ExportsError;

    fn try_from(raw: Vec<RawExport>) -> Result<Exports, ExportsError> {
        Exports::checked(raw)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    export: Vec<RawExport>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExport {
    path: String,
    clients: Option<Vec<String>>,
    #[serde(default)]
    read_only: bool,
    #[serde(default = "yes")]
    secure: bool,
    #[serde(default)]
    squash: Squash,
    #[serde(default = "nobody")]
    anonuid: u32,
    #[serde(default = "nobody")]
    anongid: u32,
}

fn yes() -> bool {
    true
}

fn nobody() -> u32 {
    NOBODY
}

fn loopback() -> Vec<Network> {
    ["127.0.0.0/8", "::1"]
        .iter()
        .filter_map(|text| Network::parse(text))
        .collect()
}

impl RawExport {
    fn parsed(self, clients: Vec<Network>) -> Export {
        let path: Vec<Vec<u8>> = components(self.path.as_bytes())
            .map(<[u8]>::to_vec)
            .collect();
        let hash = blake3::derive_key("quorate v1 nfs export", &path.join(&b'/'));
        let mut id = [0; 8];
        id.copy_from_slice(&hash[..8]);
        Export {
            id: u64::from_be_bytes(id),
            path,
            clients,
            read_only: self.read_only,
            secure: self.secure,
            squash: self.squash,
            anonuid: self.anonuid,
            anongid: self.anongid,
        }
    }
}

impl Exports {
    /// Reads a file of exports.
    ///
    /// # Errors
    /// [`ExportsError`]: by the operator.
    pub fn load(path: &Path) -> Result<Exports, ExportsError> {
        let text = std::fs::read_to_string(path).map_err(|source| ExportsError::Io {
            path: path.into(),
            source,
        })?;
        Exports::parse(&text)
    }

    /// Reads exports from text.
    ///
    /// # Errors
    /// [`ExportsError::Text`].
    pub fn parse(text: &str) -> Result<Exports, ExportsError> {
        let wrong = |what: String| ExportsError::Text(what);
        let raw: Raw = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        Exports::checked(raw.export)
    }

    fn checked(raw: Vec<RawExport>) -> Result<Exports, ExportsError> {
        let wrong = |what: String| ExportsError::Text(what);
        if raw.is_empty() || raw.len() > MAX_EXPORTS {
            return Err(wrong(format!("there must be 1 to {MAX_EXPORTS}")));
        }
        let mut exports: Vec<Export> = Vec::new();
        for raw in raw {
            let path = raw.path.clone();
            let names = || components(path.as_bytes());
            if !path.starts_with('/') || names().any(|name| name == b"." || name == b"..") {
                return Err(wrong(format!("{path:?} is no path from the root")));
            }
            if path.len() > MAX_PATH_BYTES {
                return Err(wrong(format!("a path of more than {MAX_PATH_BYTES} bytes")));
            }
            let clients = match &raw.clients {
                None => loopback(),
                Some(texts) => {
                    let parse = |text: &String| {
                        Network::parse(text).ok_or_else(|| {
                            wrong(format!(
                                "{text:?} is no address and no network such as 192.168.7.0/24"
                            ))
                        })
                    };
                    texts.iter().map(parse).collect::<Result<_, _>>()?
                }
            };
            let export = raw.parsed(clients);
            if exports.iter().any(|other| other.id == export.id) {
                return Err(wrong(format!("{path:?} is there twice")));
            }
            exports.push(export);
        }
        Ok(Exports { exports })
    }

    /// All of them.
    pub fn all(&self) -> &[Export] {
        &self.exports
    }

    /// The export with a number.
    pub fn by_id(&self, id: u64) -> Option<&Export> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// The export that a path lies in, the nearest of several, and the names from there on.
    pub fn of_path<'a, 'p>(&'a self, path: &'p [u8]) -> Option<(&'a Export, Vec<&'p [u8]>)> {
        let names: Vec<&[u8]> = components(path).collect();
        let above = self.exports.iter().filter(|export| {
            let own = export.path.iter().map(Vec::as_slice);
            export.path.len() <= names.len() && own.eq(names[..export.path.len()].iter().copied())
        });
        let nearest = above.max_by_key(|export| export.path.len())?;
        Some((nearest, names[nearest.path.len()..].to_vec()))
    }

    /// Whether anything is offered to an address.
    pub fn admit(&self, address: IpAddr) -> bool {
        self.exports.iter().any(|export| export.admits(address))
    }
}

impl Export {
    /// Whether it is offered to an address.
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.clients.iter().any(|network| network.has(address))
    }

    /// The path, as clients give it.
    pub fn text(&self) -> Vec<u8> {
        match self.path.is_empty() {
            true => b"/".to_vec(),
            false => self
                .path
                .iter()
                .flat_map(|name| [b"/", &name[..]].concat())
                .collect(),
        }
    }

    /// As whom a caller acts.
    pub fn who(&self, credential: &Credential) -> Who {
        let Credential::Sys { uid, gid, groups } = credential else {
            return Who::new(self.anonuid, self.anongid);
        };
        let mut groups = groups.clone();
        let (uid, gid, count) = self.squashed(*uid, *gid, &mut groups);
        groups.truncate(count);
        Who { uid, gid, groups }
    }

    /// As whom somebody acts who says that he is this user, with this group and these further groups: they are changed in place, and
    /// so many are left.
    pub fn squashed(&self, uid: u32, gid: u32, groups: &mut [u32]) -> (u32, u32, usize) {
        let other = |id: u32, other: u32| match id {
            0 => other,
            _ => id,
        };
        match self.squash {
            Squash::AllSquash => (self.anonuid, self.anongid, 0),
            Squash::NoRootSquash => (uid, gid, groups.len()),
            Squash::RootSquash => {
                let squash = |gid: &mut u32| *gid = other(*gid, self.anongid);
                groups.iter_mut().for_each(squash);
                let (uid, gid) = (other(uid, self.anonuid), other(gid, self.anongid));
                (uid, gid, groups.len())
            }
        }
    }
}

/// The names in a path.
pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// From an address, or an address and how many of its bits count: `192.168.7.0/24`.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|&bits| bits <= most)?,
            None => most,
        };
        Some(Network { address, bits })
    }

    /// For IPv4: an address, and which of its bits count.
    pub fn v4(&self) -> Option<(Ipv4Addr, u32)> {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
                Some((address, mask))
            }
            IpAddr::V6(_) => None,
        }
    }

    /// Whether an address is one of them.
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

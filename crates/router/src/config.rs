//! The operator's file: which volumes, offered to whom, and how directories are spread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use quorate_nfs::Exports;
use serde::Deserialize;

use crate::layout::{Layout, Policy, Volume};
use crate::map::MAX_BUCKETS;
use crate::upstream::GROUP;

/// The most volumes.
pub const MAX_VOLUMES: usize = 1024;
/// How many buckets a set has if nothing else is said, or two for each volume.
const BUCKETS: u32 = 64;
const NFS_PORT: u16 = 2049;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// What it says has no meaning.
    #[error("{path}: {what}")]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// As the operator wrote it.
    pub url: String,
    /// `host:port` of NFS; or [`GROUP`] and the files of a Quorate group, which is reached in this process.
    pub nfs: String,
    /// `host:port` of MOUNT.
    pub mount: String,
    /// The export's path.
    pub path: String,
    /// Whether NFS is there over UDP too, at the same port.
    pub udp: bool,
}

/// Where the coordinator's log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// In a file: one router alone.
    File(PathBuf),
    /// On a group: several routers.
    Group {
        /// The group file.
        group: PathBuf,
        /// The router's key file; none: the one beside the group file.
        key: Option<PathBuf>,
        /// Which router this is, in all its lives; made at its first start.
        instance: PathBuf,
    },
}

/// Who passes calls on that one server can answer as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// The router's process.
    #[default]
    User,
    /// The system, by programs that the router gives to it; where that can't be, the process.
    Kernel,
    /// The system where it can and is the better: over UDP, and for clients over TCP that mostly read and write much at a time.
    Auto,
}

/// What becomes of a call whose server can't be reached, where it was not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Away {
    /// Its client is told to come again.
    #[default]
    Jukebox,
    /// It waits a while for the server.
    Wait,
}

/// The file.
#[derive(Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Whether calls are taken over UDP too.
    pub udp: bool,
    /// Who passes calls on.
    pub transport: Transport,
    /// What becomes of calls to a server that can't be reached.
    pub away: Away,
    /// The coordinator's log.
    pub keeper: Keeper,
    /// The volumes, in order of their numbers.
    pub volumes: Vec<Location>,
    /// To whom `/` is offered, and as whom they act.
    pub exports: Exports,
    /// How many buckets a new set has.
    pub buckets: u32,
    /// The most bytes a second that are moved in the background; 0: as fast as it goes.
    pub move_rate: u64,
    /// Directories of the root by name, and where they go.
    pub pins: BTreeMap<Vec<u8>, Volume>,
    policy: Policy,
    switch_percent: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default = "listen")]
    listen: SocketAddr,
    #[serde(default)]
    udp: bool,
    #[serde(default)]
    transport: Transport,
    #[serde(default)]
    away: Away,
    log: Option<PathBuf>,
    coordinator: Option<RawCoordinator>,
    volumes: Vec<String>,
    #[serde(default)]
    export: Option<Exports>,
    #[serde(default)]
    policy: Policy,
    #[serde(default = "all")]
    switch_percent: u8,
    buckets: Option<u32>,
    #[serde(default)]
    move_mib_per_s: u32,
    #[serde(default)]
    pin: BTreeMap<String, u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCoordinator {
    group: PathBuf,
    key: Option<PathBuf>,
    instance: Option<PathBuf>,
}

fn listen() -> SocketAddr {
    ([127, 0, 0, 1], NFS_PORT).into()
}

fn all() -> u8 {
    100
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConfigError`]: by the operator.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io {
            path: path.into(),
            source,
        })?;
        let beside = path.parent().unwrap_or(Path::new(""));
        Config::parse(&text, beside, path).map_err(|what| ConfigError::Text {
            path: path.into(),
            what,
        })
    }

    /// Whether a file is one of these, right or wrong, and not something else such as a group file.
    pub fn is_at(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let table = toml::from_str::<toml::Table>(&text);
        table.is_ok_and(|table| table.contains_key("volumes"))
    }

    /// Reads it from text; relative paths begin at a directory.
    fn parse(text: &str, beside: &Path, path: &Path) -> Result<Config, String> {
        let raw: Raw = toml::from_str(text).map_err(|e| e.to_string())?;
        if raw.volumes.is_empty() || raw.volumes.len() > MAX_VOLUMES {
            return Err(format!("there must be 1 to {MAX_VOLUMES} volumes"));
        }
        let volumes: Vec<Location> = raw
            .volumes
            .iter()
            .map(|url| Location::parse_beside(url, beside))
            .collect::<Result<_, _>>()?;
        for (n, volume) in volumes.iter().enumerate() {
            let same = |other: &Location| (&other.nfs, &other.path) == (&volume.nfs, &volume.path);
            if volumes[..n].iter().any(same) {
                return Err(format!("{:?} is there twice", volume.url));
            }
        }
        if raw.switch_percent > 100 {
            return Err("switch_percent must be 0 to 100".into());
        }
        let exports = raw.export.unwrap_or_default();
        if exports.all().len() != 1 || !exports.all()[0].path.is_empty() {
            return Err("the one export must be of path \"/\"".into());
        }
        let keeper = match (raw.log, raw.coordinator) {
            (Some(log), None) => Keeper::File(beside.join(log)),
            (None, Some(raw)) => Keeper::Group {
                group: beside.join(raw.group),
                key: raw.key.map(|key| beside.join(key)),
                instance: match raw.instance {
                    Some(instance) => beside.join(instance),
                    None => path.with_extension("instance"),
                },
            },
            (None, None) => {
                return Err("there must be a log = \"FILE\", or a [coordinator] with group = \"GROUP FILE\"".into());
            }
            (Some(_), Some(_)) => {
                return Err("with a [coordinator] the log is on its group: leave `log` out".into());
            }
        };
        let pins = raw.pin.into_iter();
        let pins = pins.map(|(name, volume)| (name.into_bytes(), Volume(volume)));
        let buckets = raw.buckets.unwrap_or(BUCKETS.max(2 * volumes.len() as u32));
        if !(volumes.len()..=MAX_BUCKETS).contains(&(buckets as usize)) {
            return Err(format!(
                "buckets must be {} (a volume has one at least) to {MAX_BUCKETS}",
                volumes.len()
            ));
        }
        Ok(Config {
            listen: raw.listen,
            udp: raw.udp,
            transport: raw.transport,
            away: raw.away,
            keeper,
            volumes,
            exports,
            buckets,
            move_rate: u64::from(raw.move_mib_per_s) << 20,
            pins: pins.collect(),
            policy: raw.policy,
            switch_percent: raw.switch_percent,
        })
    }

    /// The socket through which operators talk to the router.
    pub fn socket(&self) -> PathBuf {
        match &self.keeper {
            Keeper::File(log) => log.with_extension("sock"),
            Keeper::Group { instance, .. } => instance.with_extension("sock"),
        }
    }

    /// The rules of placement.
    pub fn layout(&self) -> Layout {
        Layout::new(self.policy, self.switch_percent, self.pins.clone())
    }
}

impl Location {
    /// Whether it is a Quorate group, which is reached in this process.
    pub fn is_group(&self) -> bool {
        self.nfs.starts_with(GROUP)
    }

    /// From what the operator wrote; relative paths of group files and keys begin at a directory.
    ///
    /// # Errors
    /// In words.
    pub fn parse_beside(text: &str, beside: &Path) -> Result<Location, String> {
        let (file, key) = match text.split_once("?key=") {
            Some((file, key)) => (file, Some(key)),
            None => (text, None),
        };
        if file.contains("://") || !file.ends_with(".toml") {
            return Location::parse(text);
        }
        let file = beside.join(file);
        let key = match key {
            Some(key) => beside.join(key),
            None => file.with_file_name("client.key"),
        };
        Location::parse(&format!("{}?key={}", file.display(), key.display()))
    }

    /// From `nfs://host[:port]/path[?mountport=N][&udp=yes]`, or `FILE.toml?key=FILE`: a group file, and the key of a client of the group.
    ///
    /// # Errors
    /// In words.
    pub fn parse(url: &str) -> Result<Location, String> {
        let wrong = || {
            format!(
                "{url:?} is no volume: write nfs://HOST[:PORT]/EXPORT[?mountport=N][&udp=yes], or the path of a group file (*.toml)"
            )
        };
        if let Some((file, key)) = url.split_once("?key=")
            && file.ends_with(".toml")
        {
            let nfs = format!("{GROUP}{file}\n{key}");
            return Ok(Location {
                url: url.into(),
                mount: nfs.clone(),
                nfs,
                path: "/".into(),
                udp: false,
            });
        }
        let rest = url.strip_prefix("nfs://").ok_or_else(wrong)?;
        let (rest, options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, options.split('&').collect()),
            None => (rest, Vec::new()),
        };
        let (host, path) = rest.split_once('/').ok_or_else(wrong)?;
        let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        // An IPv6 address stands in brackets, which the port follows.
        let (name, own) = match host.rsplit_once(':') {
            Some((name, text)) if !text.ends_with(']') => (name, port(text)?),
            _ => (host, NFS_PORT),
        };
        if name.is_empty() {
            return Err(wrong());
        }
        let (mut mount, mut udp) = (own, false);
        for option in options {
            match option.split_once('=') {
                Some(("mountport", text)) => mount = port(text)?,
                Some(("udp", "yes")) => udp = true,
                _ => return Err(wrong()),
            }
        }
        Ok(Location {
            url: url.into(),
            nfs: format!("{name}:{own}"),
            mount: format!("{name}:{mount}"),
            path: format!("/{path}"),
            udp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let path = Path::new("/etc/quorate/route.toml");
        Config::parse(text, Path::new("/etc/quorate"), path)
    }

    #[test]
    fn a_file_is_what_it_says() {
        let config = parse(
            "log = \"r.log\"\nvolumes = [\"nfs://a/x/y?mountport=20048&udp=yes\", \"nfs://[::1]:3000/\"]\n\
             policy = \"stay\"\n[pin]\nhome = 1\n[[export]]\npath = \"/\"\nsecure = false\n",
        )
        .unwrap();
        assert_eq!(config.keeper, Keeper::File("/etc/quorate/r.log".into()));
        let shared = parse("volumes = [\"nfs://a/\"]\n[coordinator]\ngroup = \"c/group.toml\"");
        let expected = Keeper::Group {
            group: "/etc/quorate/c/group.toml".into(),
            key: None,
            instance: "/etc/quorate/route.instance".into(),
        };
        assert_eq!(shared.unwrap().keeper, expected);
        let [one, two] = &config.volumes[..] else {
            panic!("two");
        };
        let parts = |l: &Location| (l.nfs.clone(), l.mount.clone(), l.path.clone());
        assert_eq!(
            parts(one),
            ("a:2049".into(), "a:20048".into(), "/x/y".into())
        );
        assert_eq!(
            parts(two),
            ("[::1]:3000".into(), "[::1]:3000".into(), "/".into())
        );
        assert_eq!((one.udp, two.udp, config.udp), (true, false, false));
        assert_eq!(config.pins.get(&b"home"[..]), Some(&Volume(1)));
        assert_eq!(config.buckets, 64);
        assert!(!config.exports.all()[0].secure);
        assert_eq!(config.away, Away::Jukebox);
        let config = parse(
            "log = \"l\"\ntransport = \"auto\"\naway = \"wait\"\nvolumes = [\"a/group.toml\", \"/b/g.toml?key=k\"]",
        )
        .unwrap();
        assert_eq!(config.transport, Transport::Auto);
        assert_eq!(config.away, Away::Wait);
        let nfs: Vec<_> = config.volumes.iter().map(|v| &v.nfs[..]).collect();
        assert_eq!(
            nfs,
            [
                "group:/etc/quorate/a/group.toml\n/etc/quorate/a/client.key",
                "group:/b/g.toml\n/etc/quorate/k"
            ]
        );
    }

    #[test]
    fn mistakes_are_told() {
        for (text, told) in [
            ("log = \"l\"\nvolumes = []", "1 to 1024"),
            ("log = \"l\"\nvolumes = [\"a:/x\"]", "nfs://HOST"),
            ("log = \"l\"\nvolumes = [\"nfs://a\"]", "nfs://HOST"),
            ("log = \"l\"\nvolumes = [\"nfs://a:x/\"]", "nfs://HOST"),
            ("log = \"l\"\nvolumes = [\"nfs://a/?udp=no\"]", "nfs://HOST"),
            (
                "log = \"l\"\nvolumes = [\"nfs://a/\", \"nfs://a:2049/\"]",
                "twice",
            ),
            (
                "log = \"l\"\nvolumes = [\"nfs://a/\"]\ntransport = \"kern\"",
                "kern",
            ),
            ("log = \"l\"\nvolumes = [\"nfs://a/\"]\npolcy = 1", "polcy"),
            (
                "log = \"l\"\nvolumes = [\"nfs://a/\"]\nbuckets = 0",
                "buckets",
            ),
            ("volumes = [\"nfs://a/\"]", "log"),
            (
                "log = \"l\"\nvolumes = [\"nfs://a/\"]\n[coordinator]\ngroup = \"g\"",
                "leave `log` out",
            ),
            (
                "log = \"l\"\nvolumes = [\"nfs://a/\"]\n[[export]]\npath = \"/x\"",
                "path \"/\"",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}

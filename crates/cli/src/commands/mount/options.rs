//! Mount options as mount(8), fstab(5) and nfs(5) have them. docs/mount.md says what each is here, and why some are not.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_client::fuse::{Caching, Lifetime, MountOptions, TTL};

/// The longest that attributes can be taken for granted, in seconds.
const MAX_SECONDS: u64 = 86_400;

/// What `-o` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How to mount.
    pub mount: MountOptions,
    /// What a table of mounts has no other place for.
    pub key: Option<PathBuf>,
    pub credential: Vec<PathBuf>,
    pub log: Option<PathBuf>,
}

/// Bounds as they are given, in seconds.
#[derive(Debug, Default)]
struct Bounds {
    min: Option<u64>,
    max: Option<u64>,
}

impl Bounds {
    /// What is not given follows what is.
    fn lifetime(&self, kind: &str) -> Result<Lifetime> {
        let default = TTL.as_secs();
        let least = self
            .min
            .unwrap_or_else(|| default.min(self.max.unwrap_or(default)));
        let most = self.max.unwrap_or(default.max(least));
        if least > most {
            bail!("-o ac{kind}min={least},ac{kind}max={most}: the least is more than the most");
        }
        Ok(Lifetime {
            least: Duration::from_secs(least),
            most: Duration::from_secs(most),
        })
    }
}

/// Reads options. What is said later counts. What others use and what is always so is accepted.
///
/// # Errors
/// Each option that there is not, by its name.
pub fn parse(group_name: &str, options: &[String]) -> Result<Options> {
    let mut out = Options::default();
    out.mount.name = group_name.into();
    let (mut files, mut directories) = (Bounds::default(), Bounds::default());
    let (mut sync, mut noac) = (false, false);
    let (mut accesses, mut of_directories) = (true, true);
    for option in options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        match (name, value) {
            ("ro", None) => out.mount.read_only = true,
            ("rw", None) => out.mount.read_only = false,
            ("exec", None) => out.mount.no_exec = false,
            ("noexec", None) => out.mount.no_exec = true,
            ("allow_other", None) => out.mount.allow_other = Some(true),
            ("noallow_other", None) => out.mount.allow_other = Some(false),
            ("sync", None) => sync = true,
            ("async", None) => sync = false,
            ("ac", None) => noac = false,
            ("noac", None) => noac = true,
            ("actimeo", Some(value)) => {
                let time = Some(seconds(option, value)?);
                for bounds in [&mut files, &mut directories] {
                    *bounds = Bounds {
                        min: time,
                        max: time,
                    };
                }
            }
            ("acregmin", Some(value)) => files.min = Some(seconds(option, value)?),
            ("acregmax", Some(value)) => files.max = Some(seconds(option, value)?),
            ("acdirmin", Some(value)) => directories.min = Some(seconds(option, value)?),
            ("acdirmax", Some(value)) => directories.max = Some(seconds(option, value)?),
            ("actimeo" | "acregmin" | "acregmax" | "acdirmin" | "acdirmax", None) => {
                bail!("-o {name}: say for how many seconds, as in {name}=3")
            }
            ("key", Some(file)) => out.key = Some(path(option, file)?),
            ("credential", Some(file)) => out.credential.push(path(option, file)?),
            ("log", Some(file)) => out.log = Some(path(option, file)?),
            ("", None) => {}
            // For those who read the table of mounts, not for file systems.
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            ("comment", Some(_)) => {}
            ("defaults" | "_netdev" | "auto" | "noauto" | "nofail" | "silent", None) => {}
            // Always so.
            ("default_permissions" | "nodev" | "nosuid" | "dirsync" | "cto", None) => {}
            ("noatime", None) => accesses = false,
            ("atime" | "relatime", None) => accesses = true,
            ("nodiratime", None) => of_directories = false,
            ("diratime", None) => of_directories = true,
            ("strictatime" | "norelatime" | "lazytime", None) => bail!(
                "-o {option}: a time of access changes when it is older than the last change or a day old (relatime), or not at all \
                 (noatime); leave it away"
            ),
            ("dev" | "suid", None) => bail!(
                "-o {option}: what others put into a volume must not become a right on this machine; a mount is always \
                 nodev and nosuid"
            ),
            ("nocto", None) => bail!(
                "-o nocto: who opens a file sees what was closed before, always; for fewer questions use actimeo=SECONDS"
            ),
            ("remount", None) => {
                bail!("-o remount: options are set for good; unmount, and mount again")
            }
            _ => bail!(
                "-o {option}: there is no such mount option; there are ro, rw, noexec, sync, noac, actimeo=, acregmin=, acregmax=, \
                 acdirmin=, acdirmax= (seconds), allow_other, noallow_other, key=, credential= and log="
            ),
        }
    }
    out.mount.caching = match noac {
        true => Caching {
            files: Lifetime::fixed(Duration::ZERO),
            directories: Lifetime::fixed(Duration::ZERO),
            sync: true,
            validate_reads: true,
            ..Caching::default()
        },
        false => Caching {
            files: files.lifetime("reg")?,
            directories: directories.lifetime("dir")?,
            sync,
            ..Caching::default()
        },
    };
    out.mount.caching.accesses = accesses;
    out.mount.caching.accesses_of_directories = accesses && of_directories;
    Ok(out)
}

/// A table of mounts is read wherever one is.
fn path(option: &str, file: &str) -> Result<PathBuf> {
    let file = PathBuf::from(file);
    if !file.is_absolute() {
        bail!("-o {option}: give the whole path, from / on");
    }
    Ok(file)
}

fn seconds(option: &str, value: &str) -> Result<u64> {
    let seconds: u64 = value
        .parse()
        .with_context(|| format!("-o {option}: {value:?} is no number of seconds"))?;
    if seconds > MAX_SECONDS {
        bail!("-o {option}: {MAX_SECONDS} seconds, a day, is the most");
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Options> {
        let options: Vec<String> = text.split(',').map(str::to_owned).collect();
        parse("team", &options)
    }

    fn lifetimes(text: &str) -> [u64; 4] {
        let caching = of(text).expect(text).mount.caching;
        [
            caching.files.least,
            caching.files.most,
            caching.directories.least,
            caching.directories.most,
        ]
        .map(|time| time.as_secs())
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", of(text).expect_err(text))
    }

    /// Each option does what it says, and nothing said is the default.
    #[test]
    fn options_are_read() {
        let default = of("defaults,_netdev,nofail,x-systemd.automount").expect("others' options");
        let plain = MountOptions {
            name: "team".into(),
            ..MountOptions::default()
        };
        assert_eq!(default.mount, plain);
        let strict = of("ro,noexec,nosuid,nodev,noatime,allow_other")
            .expect("options")
            .mount;
        assert!(strict.read_only && strict.no_exec && strict.allow_other == Some(true));
        assert!(!of("ro,rw").expect("both").mount.read_only);
        assert!(!strict.caching.accesses && !strict.caching.accesses_of_directories);
        let files_alone = of("noatime,relatime,nodiratime").expect("times").mount;
        assert!(files_alone.caching.accesses && !files_alone.caching.accesses_of_directories);
        assert!(of("sync").expect("it").mount.caching.sync);
        assert!(!of("sync,async").expect("both").mount.caching.sync);
        let helper = of("key=/etc/k,credential=/a,credential=/b,log=/var/log/q").expect("files");
        assert_eq!(helper.key, Some("/etc/k".into()));
        assert_eq!(helper.credential.len(), 2);
        assert_eq!(helper.log, Some("/var/log/q".into()));
    }

    /// Times are those that are said; what is not said follows.
    #[test]
    fn times_follow_each_other() {
        assert_eq!(lifetimes("defaults"), [1, 1, 1, 1]);
        assert_eq!(lifetimes("actimeo=30"), [30, 30, 30, 30]);
        assert_eq!(lifetimes("acregmin=3,acregmax=60"), [3, 60, 1, 1]);
        assert_eq!(lifetimes("acregmin=3,acdirmax=9"), [3, 3, 1, 9]);
        assert_eq!(lifetimes("acregmax=0"), [0, 0, 1, 1]);
        assert_eq!(lifetimes("actimeo=30,acdirmin=5"), [30, 30, 5, 30]);
        assert_eq!(lifetimes("noac,actimeo=30"), [0, 0, 0, 0]);
        assert_eq!(lifetimes("noac,ac,actimeo=30"), [30, 30, 30, 30]);
        let noac = of("noac").expect("it").mount.caching;
        assert!(noac.sync && noac.validate_reads);
    }

    /// What there is not is refused by its name, and what can't be had with the reason.
    #[test]
    fn others_are_refused_by_name() {
        assert!(refusal("ro,frobnicate").contains("-o frobnicate: there is no such"));
        assert!(refusal("ro=1").contains("-o ro=1: there is no such"));
        assert!(refusal("vers=3").contains("vers=3"));
        assert!(refusal("actimeo").contains("seconds"));
        assert!(refusal("actimeo=soon").contains("\"soon\" is no number"));
        assert!(refusal("actimeo=86401").contains("a day"));
        assert!(refusal("acregmin=5,acregmax=4").contains("acregmin=5,acregmax=4"));
        assert!(refusal("key=client.key").contains("whole path"));
        assert!(refusal("suid").contains("nosuid"));
        assert!(refusal("strictatime").contains("time of access"));
        assert!(refusal("remount").contains("mount again"));
        assert!(refusal("nocto").contains("actimeo"));
    }
}

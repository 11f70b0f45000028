//! nfs-ganesha, a user's NFS server of a local directory: a process of its own with its own configuration and ports on loopback.
//!
//! It starts only where a port mapper takes its ports. So that the machine's is left alone, it gets one of its own, in a network where nobody
//! else is; they meet at a socket of a `/run` that is theirs alone. What it writes about its state goes into a directory that vanishes with it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::mounted;
use super::nfs::Endpoint;
use super::system::is_installed;

/// Its name in tables.
pub const NAME: &str = "nfs-ganesha";
/// What it takes, and in which Debian packages that is.
const PROGRAMS: [(&str, &str); 3] = [
    ("ganesha.nfsd", "nfs-ganesha, nfs-ganesha-vfs"),
    ("rpcbind", "rpcbind"),
    ("unshare", "util-linux"),
];
/// How long it may take to start, and to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Runs as the first process of a PID namespace: with it all others end. Prints the server's number as the machine has it. $1: the place.
const SCRIPT: &str = r#"
# What is mounted over FUSE here must not stay mounted there: its process could not end.
sed -n 's/^\([^ ]* \)\{4\}\([^ ]*\) .* - fuse[. ].*/\2/p' /proc/self/mountinfo | while read -r at; do
    umount -n -c -l "$(printf %b "$at")" || true
done
mount -t tmpfs none /run
mount -t tmpfs none /var/lib/nfs
mkdir -p /run/rpcbind
unshare --net rpcbind -f -w &
looks=0
while [ ! -S /run/rpcbind.sock ]; do
    looks=$((looks + 1))
    [ $looks -lt 100 ]
    sleep 0.1
done
sh -c 'read -r number rest < /proc/self/stat; echo "$number"; exec ganesha.nfsd -F -f "$1/ganesha.conf" -L "$1/ganesha.log" -p "$1/ganesha.pid"' sh "$1" &
cat > /dev/null
"#;

/// Why it can't run here, if it can't.
pub fn missing() -> Option<String> {
    let here =
        |program: &str| is_installed(program) || Path::new("/usr/sbin").join(program).is_file();
    if let Some((program, packages)) = PROGRAMS.iter().find(|(program, _)| !here(program)) {
        return Some(format!("{program} is not installed (Debian: {packages})"));
    }
    match rustix::process::getuid().is_root() {
        true => None,
        false => Some("it opens files by handle, which takes the superuser's rights".into()),
    }
}

/// A server that runs. It ends when this is dropped, and its files go.
#[derive(Debug)]
pub struct Ganesha {
    child: Child,
    pid: u32,
    endpoint: Endpoint,
    place: TempDir,
}

impl Ganesha {
    /// Starts it on a new directory under `data`.
    ///
    /// # Errors
    /// Where it does not serve in time.
    pub async fn start(data: &Path) -> Result<Ganesha> {
        let place = mounted::place(data)?;
        let path = place.path().canonicalize()?;
        if path.starts_with("/run") || path.starts_with("/var/lib/nfs") {
            bail!(
                "{} is hidden from it: give another place (--data)",
                path.display()
            );
        }
        let served = served(&path);
        std::fs::create_dir(&served)?;
        let [nfs, mount] = free_ports()?;
        std::fs::write(
            path.join("ganesha.conf"),
            configuration(&served, nfs, mount),
        )?;
        let mut child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child=KILL"])
            .args(["sh", "-euc", SCRIPT, "sh"])
            .arg(&path)
            .env(
                "PATH",
                "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
            )
            // Its end tells the script that nobody needs it any more.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(path.join("messages.log"))?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("can't start unshare")?;
        let mut said = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let pid = timeout(PATIENCE, said.next_line()).await;
        let pid = pid.ok().and_then(Result::ok).flatten();
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
            bail!("{NAME} does not start; {}", last_words(&path));
        };
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let ganesha = Ganesha {
            child,
            pid,
            endpoint: Endpoint {
                nfs: address(nfs),
                mount: address(mount),
                path: served.display().to_string(),
            },
            place,
        };
        match timeout(PATIENCE, ganesha.listens()).await {
            Ok(()) => Ok(ganesha),
            Err(_) => bail!("{NAME} does not serve; {}", ganesha.last_words()),
        }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The directory that it serves.
    pub fn served(&self) -> PathBuf {
        served(self.place.path())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The last line that it has said, for when something goes wrong.
    pub fn last_words(&self) -> String {
        last_words(self.place.path())
    }

    /// Ends it.
    ///
    /// # Errors
    /// Where it can't be ended.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    async fn listens(&self) {
        let Endpoint { nfs, mount, .. } = &self.endpoint;
        while TcpStream::connect(nfs).is_err() || TcpStream::connect(mount).is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn served(place: &Path) -> PathBuf {
    place.join("served")
}

fn last_words(place: &Path) -> String {
    let said = ["ganesha.log", "messages.log"].map(|log| {
        let said = std::fs::read(place.join(log)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines().last().map(str::to_owned)
    });
    let said: Vec<String> = said.into_iter().flatten().collect();
    format!("it said: {}", said.join("; "))
}

/// Two ports of loopback on which nobody listens.
fn free_ports() -> Result<[u16; 2]> {
    let both = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let [nfs, mount] = both.map(|listener| listener.local_addr().map(|address| address.port()));
    Ok([nfs?, mount?])
}

/// As it comes, but for what is asked of it: version 3 over TCP, on loopback.
fn configuration(served: &Path, nfs: u16, mount: u16) -> String {
    let served = served.display();
    format!(
        "NFS_CORE_PARAM {{
    Protocols = 3;
    NFS_Port = {nfs};
    MNT_Port = {mount};
    Bind_addr = 127.0.0.1;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
}}
EXPORT {{
    Export_Id = 1;
    Path = {served};
    Pseudo = /served;
    Access_Type = RW;
    Squash = No_Root_Squash;
    Protocols = 3;
    Transports = TCP;
    SecType = sys;
    PrivilegedPort = true;
    FSAL {{ Name = VFS; }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::site::{Processes, Site};
    use crate::files::work::{Scale, Work};

    const QUICK: Scale = Scale {
        quick: true,
        seconds: 0.02,
    };

    /// A server of its own is written to and read from, is the process that is said, and leaves nothing.
    #[tokio::test]
    async fn it_serves_and_goes() {
        if let Some(reason) = missing() {
            eprintln!("left out: {reason}");
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let ganesha = Ganesha::start(data.path()).await.unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", ganesha.pid()));
        assert_eq!(name.unwrap().trim(), "ganesha.nfsd");
        let site = Site {
            directory: scratch.path().to_owned(),
            nfs: Some(ganesha.endpoint().clone()),
            beneath: vec![ganesha.served()],
            processes: Processes::default(),
            stop: std::sync::Arc::default(),
        };
        let phases = Work::OverNfs.measure(&site, QUICK).await.unwrap();
        assert_eq!(phases.len(), 4);
        assert_eq!(std::fs::read_dir(ganesha.served()).unwrap().count(), 0);
        let (process, endpoint) = (
            format!("/proc/{}", ganesha.pid()),
            ganesha.endpoint().clone(),
        );
        ganesha.stop().await.unwrap();
        assert!(!Path::new(&process).exists(), "it runs on");
        assert!(TcpStream::connect(endpoint.nfs).is_err());
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }
}

//! Servers in processes of their own, a router before them, and the files of the load.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use quorate_nfs::call::{self, Fh, NewAttrs, Place};
use quorate_nfs::records::{REPLY_BYTES, Records};
use quorate_nfs::xdr::{Reader, Writer};
use quorate_router::ask::{Ask, Given};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::load::{Attributes, Names};
use super::network::{ALL, Network};
use super::tree::{Tree, content};
use crate::cpu;
use crate::group::Launcher;
use crate::rpc::{MNT, MOUNT, read_reply, write_call};

/// How long a process may take to start, and a call while files are made.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where a router's handle says on which volume its object is, and where the server's own handle begins (docs/router.md).
const VOLUME: std::ops::Range<usize> = 2..4;
const SERVERS_OWN: usize = 8;
/// The router's configuration.
const CONFIG: &str = "route.toml";
/// The same for one by the kernel.
const KERNEL_CONFIG: &str = "kernel.toml";
/// What a router says that can't do that.
const IN_USER_SPACE: &str = "in user space, not by the system";

/// The processes; they end when this is dropped, and their files go.
#[derive(Debug)]
pub struct Site {
    servers: Vec<(Child, SocketAddr)>,
    router: Router,
    launcher: Launcher,
    directory: TempDir,
    /// None: all on the loopback.
    network: Option<Network>,
}

/// How a router is to pass calls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    pub threads: usize,
    /// Whether the kernel is to.
    pub kernel: bool,
}

#[derive(Debug)]
struct Router {
    child: Child,
    address: SocketAddr,
    manner: Manner,
    /// Why the kernel does not, if it was to.
    refused: Option<String>,
    /// Takes what it says for ever how it is.
    heard: AbortHandle,
}

impl Router {
    async fn start(launcher: &Launcher, directory: &Path, manner: Manner) -> Result<Router> {
        let log = directory.join("router.log");
        let file = directory.join(match manner.kernel {
            false => CONFIG,
            true => KERNEL_CONFIG,
        });
        let config = file.display().to_string();
        let threads = format!("--threads={}", manner.threads);
        let arguments = ["--config".into(), config, threads, "--trust-network".into()];
        let (child, mut lines) = spawn(launcher, &arguments, &log)?;
        let ready: Value = serde_json::from_str(&said(&mut lines, &log).await?)?;
        let address = ready["address"].as_str().context("the router's address")?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let refused = said.lines().find(|line| line.contains(IN_USER_SPACE));
        if manner.kernel && refused.is_none() {
            // Until servers have answered.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(Router {
            child,
            address: address.parse()?,
            manner,
            refused: refused.map(Into::into),
            heard: tokio::spawn(hear(lines)).abort_handle(),
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.heard.abort();
    }
}

async fn hear(mut lines: Lines<BufReader<ChildStdout>>) {
    while let Ok(Some(_)) = lines.next_line().await {}
}

impl Site {
    /// Starts so many servers, and a router before them.
    /// `network`: on which they are, if not on the loopback.
    pub async fn start(
        servers: usize,
        data: &Path,
        server: &Launcher,
        router: &Launcher,
        network: Option<Network>,
    ) -> Result<Site> {
        let (server, router) = match &network {
            Some(network) => (network.for_server(server), network.for_router(router)),
            None => (server.clone(), router.clone()),
        };
        let at = network
            .as_ref()
            .map_or(Ipv4Addr::LOCALHOST, Network::servers);
        let directory = tempfile::Builder::new()
            .prefix("quorate-bench-")
            .tempdir_in(data)
            .with_context(|| format!("can't make a directory in {}", data.display()))?;
        let mut running = Vec::new();
        for number in 0..servers {
            let log = directory.path().join(format!("server-{number}.log"));
            let (child, mut lines) = spawn(&server, &[format!("--at={at}")], &log)?;
            let port = said(&mut lines, &log).await?.parse()?;
            running.push((child, SocketAddr::from((at, port))));
        }
        let listen = network
            .as_ref()
            .map_or(Ipv4Addr::LOCALHOST, Network::router);
        for (file, transport) in [(CONFIG, "user"), (KERNEL_CONFIG, "kernel")] {
            let config = configuration(listen, transport, running.iter().map(|(_, at)| *at));
            std::fs::write(directory.path().join(file), config)?;
        }
        let manner = Manner {
            threads: 1,
            kernel: false,
        };
        Ok(Site {
            servers: running,
            router: Router::start(&router, directory.path(), manner).await?,
            launcher: router,
            directory,
            network,
        })
    }

    /// Has a router of this manner; what there is has the same names afterwards. Gives why it has another, if it has.
    pub async fn have(&mut self, manner: Manner) -> Result<Option<String>> {
        if self.router.manner != manner {
            self.router
                .child
                .kill()
                .await
                .context("ending the router")?;
            let directory = self.directory.path();
            self.router = Router::start(&self.launcher, directory, manner).await?;
        }
        Ok(self.router.refused.clone())
    }

    /// How many seconds of processor time the router has used: its processor, where it has one.
    pub fn used_by_router(&self) -> Result<f64> {
        match &self.network {
            Some(network) => network.busy(),
            None => cpu::seconds(self.pids()?.0),
        }
    }

    pub fn router(&self) -> SocketAddr {
        self.router.address
    }

    pub fn servers(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|(_, address)| *address).collect()
    }

    /// The router's process, and the servers'.
    pub fn pids(&self) -> Result<(u32, Vec<u32>)> {
        let id = |child: &Child| child.id().context("a process has ended");
        let servers = self.servers.iter().map(|(child, _)| id(child));
        Ok((id(&self.router.child)?, servers.collect::<Result<_>>()?))
    }

    /// Makes all directories and files through the router, and writes down what it calls them.
    pub async fn fill(&self, tree: &mut Tree) -> Result<()> {
        let mut caller = Caller::connect(self.router()).await?;
        let mut mount = Writer::default();
        mount.opaque(b"/");
        let mut mounted = caller.call((MOUNT, MNT), &mount.out).await?;
        ensure!(mounted.u32()? == 0, "the router refuses to be mounted");
        let root = mounted.opaque(64, "handle")?;
        for at in 0..tree.dirs.len() {
            let parent = tree.dirs[at].parent;
            let dir = parent.map_or(&root, |parent| &tree.dirs[parent].handle);
            let name = tree.dirs[at].name.clone().into();
            let made = caller.make(dir, name, Ask::Mkdir).await;
            tree.dirs[at].handle = made.context("making a directory")?;
        }
        for number in 0..tree.files.len() {
            let file = &mut tree.files[number];
            let dir = &tree.dirs[file.dir].handle;
            let made = caller.make(dir, file.name.clone(), Ask::Create).await;
            file.handle = made.context("making a file")?;
            let ask = Ask::Write {
                file: file.handle.clone(),
                offset: 0,
                data: content(number, 0, file.bytes as usize).into(),
                stable: true,
            };
            match caller.ask(&ask).await? {
                Given::Written { count, .. } if u64::from(count) == file.bytes => {}
                other => bail!("a file is not written: {other:?}"),
            }
        }
        Ok(())
    }

    /// The files as the router calls them.
    pub async fn routed(&self, tree: &Tree) -> Result<Names> {
        let mut names = Names {
            dirs: tree.dirs.iter().map(|dir| dir.handle.clone()).collect(),
            files: tree.files.iter().map(|file| file.handle.clone()).collect(),
            numbers: vec![None; tree.files.len()],
        };
        let mut caller = Caller::connect(self.router()).await?;
        for (number, file) in names.numbers.iter_mut().zip(&names.files) {
            *number = Some(caller.number(file).await?);
        }
        Ok(names)
    }

    /// The files as their servers call them, and on which server each is.
    pub async fn direct(&self, tree: &Tree) -> Result<(Names, Vec<usize>)> {
        let own = |handle: &Fh| handle.slice(SERVERS_OWN.min(handle.len())..);
        let mut names = Names {
            dirs: tree.dirs.iter().map(|dir| own(&dir.handle)).collect(),
            files: tree.files.iter().map(|file| own(&file.handle)).collect(),
            numbers: vec![None; tree.files.len()],
        };
        let volume = |handle: &Fh| Some(u16::from_be_bytes(handle.get(VOLUME)?.try_into().ok()?));
        let volumes = tree.files.iter().map(|file| volume(&file.handle));
        let volumes = volumes.map(|volume| volume.context("a router's handle"));
        let volumes: Vec<_> = volumes.map(|v| v.map(usize::from)).collect::<Result<_>>()?;
        for (server, address) in self.servers().into_iter().enumerate() {
            let mut caller = Caller::connect(address).await?;
            let here = volumes.iter().enumerate().filter(|(_, at)| **at == server);
            for (file, _) in here {
                names.numbers[file] = Some(caller.number(&names.files[file]).await?);
            }
        }
        Ok((names, volumes))
    }
}

fn configuration(
    listen: Ipv4Addr,
    transport: &str,
    servers: impl Iterator<Item = SocketAddr>,
) -> String {
    let url = |at| format!("\"nfs://{at}/?udp=yes\"");
    let urls: Vec<_> = servers.map(url).collect();
    format!(
        "listen = \"{listen}:0\"\nudp = true\ntransport = \"{transport}\"\nlog = \"route.log\"\nvolumes = [{}]\n\
         [[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\nclients = [\"127.0.0.0/8\", \"{ALL}\"]\n",
        urls.join(", ")
    )
}

fn spawn(
    launcher: &Launcher,
    arguments: &[String],
    log: &PathBuf,
) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut child = Command::new(&launcher.program)
        .args(&launcher.arguments)
        .args(arguments)
        // Its end tells a server that nobody needs it any more.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(log)?)
        // Ctrl-C in the terminal is for the benchmark, which then ends them.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("can't start {}", launcher.program.display()))?;
    let stdout = child.stdout.take().context("no pipe")?;
    Ok((child, BufReader::new(stdout).lines()))
}

/// The first line that a process says.
async fn said(lines: &mut Lines<BufReader<ChildStdout>>, log: &Path) -> Result<String> {
    match timeout(PATIENCE, lines.next_line()).await {
        Ok(Ok(Some(line))) => Ok(line),
        _ => bail!(
            "a process does not start: {}",
            std::fs::read_to_string(log).unwrap_or_default()
        ),
    }
}

/// One call after the other.
struct Caller {
    stream: TcpStream,
    coming: Records,
    xid: u32,
}

impl Caller {
    async fn connect(address: SocketAddr) -> Result<Caller> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("can't connect to {address}"))?;
        Ok(Caller {
            stream,
            coming: Records::new(REPLY_BYTES),
            xid: 0,
        })
    }

    /// The results of a call.
    async fn call(&mut self, procedure: (u32, u32), arguments: &[u8]) -> Result<Reader> {
        self.xid += 1;
        let mut out = Vec::new();
        write_call(&mut out, self.xid, procedure, arguments);
        let answered = async {
            self.stream.write_all(&out).await?;
            loop {
                if let Some(record) = self.coming.take()? {
                    return Ok(Bytes::copy_from_slice(record));
                }
                let come = self.coming.fill(&mut self.stream).await?;
                ensure!(come > 0, "the connection was closed");
            }
        };
        let answered = timeout(PATIENCE, answered).await;
        let record: Result<Bytes> = answered.context("no answer")?;
        let (xid, results) = read_reply(record?)?;
        ensure!(xid == self.xid, "an answer to nothing");
        Ok(results)
    }

    async fn ask(&mut self, ask: &Ask) -> Result<Given> {
        let procedure = (call::PROGRAM, ask.procedure());
        let results = self.call(procedure, &ask.write()).await?;
        let given = ask.read(results.rest().clone());
        given.map_err(|status| anyhow::anyhow!("it is refused: {status:?}"))
    }

    async fn make(&mut self, dir: &Fh, name: Bytes, how: fn(Place, NewAttrs) -> Ask) -> Result<Fh> {
        let place = Place {
            dir: dir.clone(),
            name,
        };
        let attrs = NewAttrs {
            mode: Some(0o755),
            ..NewAttrs::default()
        };
        match self.ask(&how(place, attrs)).await? {
            Given::Object(object) => Ok(object.handle),
            other => bail!("{other:?}"),
        }
    }

    /// The number of a file.
    async fn number(&mut self, file: &Fh) -> Result<u64> {
        let mut w = Writer::default();
        w.opaque(file);
        let mut r = self.call((call::PROGRAM, 1), &w.out).await?;
        ensure!(r.u32()? == 0, "a file that was made is not there");
        Ok(Attributes::read(&mut r)?.number)
    }
}

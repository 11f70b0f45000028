//! The switch for UDP: `bpf/udp_switch.bpf.c`, on the ingress of all interfaces, and what user space has to do for it.
//!
//! For each volume whose server speaks UDP a task asks the server twice a second whether it is there. The switch passes calls on to it while it
//! is. Replies that the switch can't pass on come to a socket here, with their calls in a table of the switch, and those calls are done again
//! by the proxy. When the process ends, however it does, the system takes the program away.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use bytes::Bytes;
use quorate_nfs::exports::Squash;
use quorate_nfs::xdr::Writer;
use quorate_nfs::{Exports, call, widen};
use serde::Serialize;
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::net::{LOOPBACK, index, interface_to, interfaces};
use super::{Shortcut, Unavailable, array, fsid_words, lock, refused, table, turn};
use crate::buckets::Buckets;
use crate::layout::{Bucket, Volume};
use crate::upstream::{Upstreams, bind_low, head, results};

/// The program.
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/udp_switch.bpf.o");
const PROGRAM: &str = "udp_switch";

// Sizes and places of the program's tables, in words.
const SLOTS: u32 = 8192;
const MAX_VOLUMES: u16 = 1024;
const MAX_NETWORKS: usize = 8;
const CONFIG_WORDS: usize = 9 + 2 * MAX_NETWORKS;
const SLOT_WORDS: usize = 9 + (512 + 400) / 4;
type Config = [u32; CONFIG_WORDS];
type VolumeEntry = [u32; 6];
type Slot = [u32; SLOT_WORDS];
/// How many calls were passed on, were answered, and came back.
type Count = [u64; 3];

/// How often servers are asked, and how long they may be silent.
const ASK_TIME: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_millis(1500);
/// How often it is looked for new volumes and interfaces, and calls are counted.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// How long it may take to find the addresses of a name.
const RESOLVE_TIME: Duration = Duration::from_secs(2);
/// How many replies are taken before others have their turn.
const BATCH: usize = 64;

/// How many calls a switch has seen since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Calls that went to a server.
    pub passed: u64,
    /// Of these, how many replies went to clients.
    pub answered: u64,
    /// How many replies came back to be done again in user space.
    pub done_again: u64,
}

/// See the module.
#[derive(Debug)]
pub struct UdpSwitch {
    /// Ends the program with this.
    program: Mutex<Ebpf>,
    tables: Arc<Tables>,
    /// The interfaces that it is on.
    on: Mutex<Vec<String>>,
    back: UdpSocket,
    buckets: Arc<Buckets<Upstreams>>,
    loopback: u32,
}

/// The program's tables.
struct Tables {
    buckets: Mutex<Array<MapData, u32>>,
    volumes: Mutex<Array<MapData, VolumeEntry>>,
    slots: Array<MapData, Slot>,
    counts: PerCpuArray<MapData, Count>,
    /// From where replies come.
    servers: Mutex<BTreeMap<Volume, SocketAddrV4>>,
    passed: Mutex<BTreeMap<Volume, Count>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = lock(&self.servers);
        f.debug_struct("Tables")
            .field("servers", &*servers)
            .finish_non_exhaustive()
    }
}

/// As it lies on the network.
fn raw(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

fn raw_port(port: u16) -> u32 {
    u16::from_ne_bytes(port.to_be_bytes()).into()
}

impl UdpSwitch {
    /// Gives the program to the system, for calls to an address where the router listens too.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn start(
        listen: SocketAddr,
        exports: &Exports,
        fsid: u64,
        buckets: Arc<Buckets<Upstreams>>,
    ) -> Result<UdpSwitch, Unavailable> {
        let SocketAddr::V4(listen) = listen else {
            return Err(Unavailable::Configuration(
                "it is for IPv4, and the router listens over IPv6",
            ));
        };
        let loopback = index(LOOPBACK)?;
        let back = match bind_low(true).await {
            Some(back) => back,
            None => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
        };
        widen(&back);
        let config = config(listen, back.local_addr()?.port(), loopback, exports, fsid)?;
        let mut program = EbpfLoader::new().load(OBJECT).map_err(|e| refused(&e))?;
        let mut table = |name: &str| table(&mut program, name);
        let mut first = |name: &str| array::<u32>(table(name)?);
        let (mut numbers, open) = (first("numbers")?, first("buckets")?);
        let mut configs: Array<_, Config> = array(table("config")?)?;
        let tables = Tables {
            buckets: Mutex::new(open),
            volumes: Mutex::new(array(table("volumes")?)?),
            slots: array(table("slots")?)?,
            counts: PerCpuArray::try_from(table("counts")?).map_err(|e| refused(&e))?,
            servers: Mutex::default(),
            passed: Mutex::default(),
        };
        // Nobody else is to know them.
        let first = crate::upstream::random_number();
        let set = numbers.set(0, first, 0).and(configs.set(0, config, 0));
        set.map_err(|e| refused(&e))?;
        {
            let program = classifier(&mut program)?;
            program.load().map_err(|e| refused(&e))?;
        }
        let switch = UdpSwitch {
            program: Mutex::new(program),
            tables: Arc::new(tables),
            on: Mutex::default(),
            back,
            buckets: buckets.clone(),
            loopback,
        };
        switch.attach()?;
        buckets.add_shortcut(switch.tables.clone());
        Ok(switch)
    }

    /// Has the program look at what comes in on interfaces where it does not yet.
    fn attach(&self) -> Result<(), Unavailable> {
        let names = interfaces()?;
        let on = &mut *lock(&self.on);
        on.retain(|name| names.contains(name));
        for name in names {
            if on.contains(&name) {
                continue;
            }
            let mut program = lock(&self.program);
            // By a link that ends with this process; kernels before 6.6 have none for this.
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            let attached = classifier(&mut program)?.attach_with_options(
                &name,
                TcAttachType::Ingress,
                options,
            );
            attached.map_err(|e| refused(&e))?;
            on.push(name);
        }
        Ok(())
    }

    /// Does for the switch what it can't do itself, while it is served. `again`: calls that the proxy is to do.
    pub async fn serve(&self, again: mpsc::Sender<(Bytes, SocketAddr)>) {
        tokio::select! {
            () = self.look() => {}
            () = self.take_back(again) => {}
        }
    }

    /// What was passed on so far.
    pub fn passed(&self) -> Passed {
        let mut all = Passed::default();
        for count in lock(&self.tables.passed).values() {
            all.passed += count[0];
            all.answered += count[1];
            all.done_again += count[2];
        }
        all
    }

    async fn look(&self) {
        let mut watched: BTreeMap<Volume, (String, AbortHandle)> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let present: Vec<Volume> = self.buckets.map().present().collect();
            watched.retain(|volume, (_, task)| {
                let stays = present.contains(volume);
                if !stays {
                    task.abort();
                    self.tables.switch_off(*volume);
                }
                stays
            });
            for volume in present {
                let found = self.buckets.servers.server(volume);
                let Some((server, load)) = found.filter(|_| volume.0 < MAX_VOLUMES) else {
                    continue;
                };
                self.tables.count(volume, &load);
                let Some(address) = server.udp_address() else {
                    continue;
                };
                if watched.get(&volume).is_some_and(|(at, _)| at == address) {
                    continue;
                }
                let watch = watch(self.tables.clone(), volume, address.into(), self.loopback);
                let task = tasks.spawn(watch);
                watched.insert(volume, (address.into(), task));
            }
            if let Err(error) = self.attach() {
                tracing::warn!(%error, "an interface without the switch");
            }
            tokio::time::sleep(LOOK_TIME).await;
        }
    }

    /// Takes replies that the switch could not pass on.
    async fn take_back(&self, again: mpsc::Sender<(Bytes, SocketAddr)>) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            if self.back.readable().await.is_err() {
                return;
            }
            for _ in 0..BATCH {
                match self.back.try_recv_from(&mut buffer) {
                    Ok((len, SocketAddr::V4(from))) => {
                        if let Some(call) = self.tables.call(&buffer[..len], from) {
                            // Where there is no room, the client sends it again.
                            let _ = again.try_send(call);
                        }
                    }
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    // A server's machine that refuses a packet: its own task finds out.
                    Err(_) => {}
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

fn classifier(program: &mut Ebpf) -> Result<&mut SchedClassifier, Unavailable> {
    let found = program.program_mut(PROGRAM);
    let found = found.and_then(|program| program.try_into().ok());
    found.ok_or_else(|| Unavailable::Program("it is not in the object".into()))
}

fn config(
    listen: SocketAddrV4,
    port_back: u16,
    loopback: u32,
    exports: &Exports,
    fsid: u64,
) -> Result<Config, Unavailable> {
    let no = |why| Err(Unavailable::Configuration(why));
    let [export] = exports.all() else {
        return no("there is more than one export");
    };
    let networks: Vec<_> = export.clients.iter().filter_map(|n| n.v4()).collect();
    if networks.len() > MAX_NETWORKS {
        return no("it is for exports to 8 networks at most");
    }
    if export.squash == Squash::AllSquash {
        return no("it changes nobody's ids, and the export squashes all");
    }
    let fsid = fsid_words(fsid);
    let mut config = [0; CONFIG_WORDS];
    let heads = [
        raw(*listen.ip()),
        raw_port(listen.port()),
        raw_port(port_back),
        u32::from(export.squash == Squash::RootSquash),
        u32::from(export.secure),
        fsid[0],
        fsid[1],
        loopback,
        networks.len() as u32,
    ];
    let networks = networks.into_iter().flat_map(|(address, mask)| {
        let mask = u32::from_ne_bytes(mask.to_be_bytes());
        [raw(address) & mask, mask]
    });
    let words = heads.into_iter().chain(networks);
    config
        .iter_mut()
        .zip(words)
        .for_each(|(to, word)| *to = word);
    Ok(config)
}

impl Shortcut for Tables {
    fn set(&self, bucket: Bucket, volume: Option<Volume>) {
        let entry = volume.map_or(0, |volume| u32::from(volume.0) + 1);
        if let Err(error) = lock(&self.buckets).set(bucket.0, entry, 0) {
            tracing::error!(%error, bucket = bucket.0, "the switch does not learn where a bucket is");
        }
    }
}

impl Tables {
    fn switch(&self, volume: Volume, entry: VolumeEntry) {
        if let Err(error) = lock(&self.volumes).set(volume.0.into(), entry, 0) {
            tracing::error!(%error, volume = volume.0, "the switch does not learn where a server is");
        }
    }

    fn switch_off(&self, volume: Volume) {
        self.switch(volume, [0; 6]);
        lock(&self.servers).remove(&volume);
    }

    /// The call that a reply is to, and from whom.
    fn call(&self, reply: &[u8], from: SocketAddrV4) -> Option<(Bytes, SocketAddr)> {
        let number = u32::from_be_bytes(*reply.first_chunk()?);
        let slot = self.slots.get(&(number % SLOTS), 0).ok()?;
        let [held, _, address, port, _, volume, _, _, len, ..] = slot;
        let volume = Volume(volume as u16);
        if held != number || number == 0 || lock(&self.servers).get(&volume) != Some(&from) {
            return None;
        }
        let words = slot.iter().skip(9).flat_map(|word| word.to_ne_bytes());
        let call: Vec<u8> = words.take(len as usize).collect();
        let port = u16::from_be_bytes((port as u16).to_ne_bytes());
        let client = SocketAddrV4::new(address.to_ne_bytes().into(), port);
        Some((call.into(), client.into()))
    }

    /// Counts what has passed for a volume.
    fn count(&self, volume: Volume, load: &crate::upstream::Load) {
        let Ok(parts) = self.counts.get(&volume.0.into(), 0) else {
            return;
        };
        let mut sum = Count::default();
        for part in parts.iter() {
            sum.iter_mut().zip(part).for_each(|(sum, n)| *sum += n);
        }
        let before = lock(&self.passed).insert(volume, sum).unwrap_or_default();
        let more = sum[0].saturating_sub(before[0]);
        load.calls
            .fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Keeps the switch informed of a server, for ever.
async fn watch(tables: Arc<Tables>, volume: Volume, address: String, loopback: u32) {
    loop {
        if let Err(error) = attend(&tables, volume, &address, loopback).await {
            tracing::debug!(%address, %error, "not for the switch");
        }
        tables.switch_off(volume);
        tokio::time::sleep(ASK_TIME).await;
    }
}

/// While a server is there.
async fn attend(tables: &Tables, volume: Volume, address: &str, loopback: u32) -> io::Result<()> {
    let addresses = timeout(RESOLVE_TIME, lookup_host(address)).await;
    let addresses = addresses.map_err(|_| io::ErrorKind::TimedOut)??;
    let server = addresses.into_iter().find_map(|at| match at {
        SocketAddr::V4(at) => Some(at),
        SocketAddr::V6(_) => None,
    });
    let server = server.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(server).await?;
    let SocketAddr::V4(own) = socket.local_addr()? else {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    };
    let interface = interface_to(*server.ip(), *own.ip())?;
    let interface = interface.ok_or(io::ErrorKind::NetworkUnreachable)?;
    debug_assert_ne!(loopback, 0);
    let entry = [
        1,
        raw(*server.ip()),
        raw_port(server.port()),
        raw(*own.ip()),
        interface,
        turn(volume),
    ];
    let mut xid = crate::upstream::random_number();
    let mut buffer = [0; 1024];
    let (mut is_on, mut heard) = (false, Instant::now());
    loop {
        xid = xid.wrapping_add(1);
        let asked = Instant::now();
        let mut w = Writer::default();
        w.u32(xid);
        head(&mut w, (call::PROGRAM, call::VERSION), 0, (0, 0, &[]));
        socket.send(&w.out).await?;
        while let Ok(came) = timeout(
            ASK_TIME.saturating_sub(asked.elapsed()),
            socket.recv(&mut buffer),
        )
        .await
        {
            let reply = &buffer[..came?];
            if reply.first_chunk() != Some(&xid.to_be_bytes()) || results(reply).is_err() {
                continue;
            }
            heard = Instant::now();
            if !is_on {
                is_on = true;
                lock(&tables.servers).insert(volume, server);
                tables.switch(volume, entry);
            }
        }
        if heard.elapsed() > SILENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

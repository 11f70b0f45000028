//! Three machines of one: a router between the load and the servers, each in a network namespace, and the router with a processor of its own.
//!
//! What the system does for a router is nobody's processor time but the processor's. So the first processor takes in all packets of the router's
//! machine (receive packet steering) and runs its process, and nothing else that is measured; how long it was busy is what the router cost, on all ways. The load, on
//! this machine's own network, and the servers share the others. Calls that go to servers straight are forwarded by the router's machine.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::group::Launcher;

/// Addresses that are for such measurements (RFC 2544).
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const BEHIND: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const SERVERS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const SERVERS_NETWORK: &str = "198.18.1.0/24";
/// Their network.
pub const ALL: &str = "198.18.0.0/15";
/// Ends of the two wires: load and router, router and servers. The first is on this machine's own network.
const WIRES: [[&str; 2]; 2] = [["qbench-load", "front"], ["back", "wire"]];
const NAMESPACES: [&str; 2] = ["qbench-router", "qbench-servers"];

/// See the module; all of it goes when this is dropped.
#[derive(Debug)]
pub struct Network(());

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// If this is not root, there is one processor, or the system has none of this; and where another benchmark has made it.
    pub fn make() -> Result<Network> {
        let processors = std::thread::available_parallelism()?.get();
        ensure!(processors > 1, "it takes two processors");
        let [router, servers] = NAMESPACES;
        ip(&["netns", "add", router])?;
        // From here on what was made goes again.
        let network = Network(());
        ip(&["netns", "add", servers])?;
        let [[load, front], [back, wire]] = WIRES;
        ip(&[
            "link", "add", load, "type", "veth", "peer", "name", front, "netns", router,
        ])?;
        ip(&[
            "link", "add", back, "netns", router, "type", "veth", "peer", "name", wire, "netns",
            servers,
        ])?;
        let own = [(None, load, CLIENT)];
        let others = [
            (Some(router), front, ROUTER),
            (Some(router), back, BEHIND),
            (Some(servers), wire, SERVERS),
        ];
        let rest = format!("{:x}", ((1u64 << processors.min(32)) - 1) & !1);
        for (namespace, end, address) in own.into_iter().chain(others) {
            let address = format!("{address}/24");
            in_namespace(namespace, &["ip", "address", "add", &address, "dev", end])?;
            in_namespace(namespace, &["ip", "link", "set", end, "up"])?;
            let by = if namespace == Some(router) {
                "1"
            } else {
                &rest
            };
            let steer = format!("echo {by} > /sys/class/net/{end}/queues/rx-0/rps_cpus");
            in_namespace(namespace, &["sh", "-c", &steer])?;
        }
        for namespace in NAMESPACES {
            in_namespace(Some(namespace), &["ip", "link", "set", "lo", "up"])?;
        }
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        in_namespace(Some(router), &["sh", "-c", forward])?;
        ip(&["route", "add", SERVERS_NETWORK, "via", &ROUTER.to_string()])?;
        in_namespace(
            Some(servers),
            &["ip", "route", "add", "default", "via", &BEHIND.to_string()],
        )?;
        let mut others = CpuSet::new();
        (1..processors).for_each(|n| others.set(n));
        sched_setaffinity(None, &others).context("can't leave a processor to the router")?;
        Ok(network)
    }

    /// Where the router listens.
    pub fn router(&self) -> Ipv4Addr {
        ROUTER
    }

    /// Where servers are.
    pub fn servers(&self) -> Ipv4Addr {
        SERVERS
    }

    /// How a router is started there.
    pub fn for_router(&self, launcher: &Launcher) -> Launcher {
        within(NAMESPACES[0], Some("0"), launcher)
    }

    /// How a server is started there; it keeps off the router's processor as this process does.
    pub fn for_server(&self, launcher: &Launcher) -> Launcher {
        within(NAMESPACES[1], None, launcher)
    }

    /// How many seconds the router's processor has been busy.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn busy(&self) -> Result<f64> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu0 "));
        let ticks = line.context("no such processor")?.split_whitespace();
        let ticks: Vec<u64> = ticks.map_while(|word| word.parse().ok()).collect();
        // User, nice, system; idle, waiting for disks; interrupts of two kinds.
        let [user, nice, system, _idle, _waiting, hard, soft, ..] = ticks[..] else {
            bail!("less than is told of a processor");
        };
        let busy = user + nice + system + hard + soft;
        Ok(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Wires go with a namespace at one of their ends, as soon as nobody is in it; this one at once.
        let _ = ip(&["link", "delete", WIRES[0][0]]);
        for namespace in NAMESPACES {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

fn within(namespace: &str, processor: Option<&str>, launcher: &Launcher) -> Launcher {
    let mut arguments = vec!["netns", "exec", namespace];
    if let Some(processor) = processor {
        arguments.extend(["taskset", "-c", processor]);
    }
    let mut arguments: Vec<String> = arguments.into_iter().map(Into::into).collect();
    arguments.push(launcher.program.display().to_string());
    arguments.extend(launcher.arguments.iter().cloned());
    Launcher {
        program: "ip".into(),
        arguments,
    }
}

fn in_namespace(namespace: Option<&str>, command: &[&str]) -> Result<()> {
    match (namespace, command) {
        (Some(namespace), _) => ip(&[&["netns", "exec", namespace], command].concat()),
        (None, [program, arguments @ ..]) => run(program, arguments),
        (None, []) => Ok(()),
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} can't be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        said.trim()
    );
    Ok(())
}

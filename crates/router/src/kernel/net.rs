//! What the system tells of its network, in text.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

/// Kinds of interfaces whose packets begin with an Ethernet head (`ARPHRD_ETHER`, `ARPHRD_LOOPBACK`).
const KINDS: [&str; 2] = ["1", "772"];
/// The loopback's name.
pub const LOOPBACK: &str = "lo";

/// The names of the interfaces whose packets begin with an Ethernet head, but those that are parts of another: a bridge, or the like.
pub fn interfaces() -> io::Result<Vec<String>> {
    // Of this network namespace, whatever is mounted as /sys.
    let text = std::fs::read_to_string("/proc/self/net/dev")?;
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let names = names.map(|(name, _)| name.trim().to_string());
    let is_ethernet = |name: &String| {
        let kind = std::fs::read_to_string(format!("/sys/class/net/{name}/type"));
        let is_part = std::fs::exists(format!("/sys/class/net/{name}/master"));
        kind.is_ok_and(|kind| KINDS.contains(&kind.trim())) && !is_part.unwrap_or(true)
    };
    Ok(names.filter(is_ethernet).collect())
}

/// The number of an interface.
pub fn index(name: &str) -> io::Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(name_to_index(any, name)?)
}

/// The interface on the way to an address; `own`: the address of this machine from which one sends there.
pub fn interface_to(address: Ipv4Addr, own: Ipv4Addr) -> io::Result<Option<u32>> {
    if address == own || address.is_loopback() {
        return index(LOOPBACK).map(Some);
    }
    let text = std::fs::read_to_string("/proc/self/net/route")?;
    way(&text, address).map(index).transpose()
}

/// The interface of the narrowest route to an address.
fn way(routes: &str, address: Ipv4Addr) -> Option<&str> {
    const UP: u32 = 1;
    let mut best: Option<(u32, u32, &str)> = None;
    for line in routes.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, to, _gateway, flags, _used, _uses, metric, mask, ..] = words[..] else {
            continue;
        };
        // As the bytes lie in memory.
        let hex = |text| u32::from_str_radix(text, 16).ok();
        let (Some(to), Some(flags), Some(mask)) = (hex(to), hex(flags), hex(mask)) else {
            continue;
        };
        let metric = metric.parse::<u32>().unwrap_or(u32::MAX);
        if flags & UP == 0 || u32::from_ne_bytes(address.octets()) & mask != to {
            continue;
        }
        let rank = (mask.count_ones(), u32::MAX - metric);
        if best.is_none_or(|(bits, low, _)| rank > (bits, low)) {
            best = Some((rank.0, rank.1, name));
        }
    }
    best.map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_route_is_taken() {
        let line = |name: &str, to: [u8; 4], flags: u32, metric: u32, mask: [u8; 4]| {
            let (to, mask) = (u32::from_ne_bytes(to), u32::from_ne_bytes(mask));
            format!(
                "{name}\t{to:08X}\t00000000\t{flags:04X}\t0\t0\t{metric}\t{mask:08X}\t0\t0\t0\n"
            )
        };
        let routes = [
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
                .to_string(),
            line("far", [0, 0, 0, 0], 3, 100, [0, 0, 0, 0]),
            line("wide", [10, 0, 0, 0], 1, 5, [255, 0, 0, 0]),
            line("dear", [10, 9, 0, 0], 1, 7, [255, 255, 0, 0]),
            line("near", [10, 9, 0, 0], 1, 6, [255, 255, 0, 0]),
            line("down", [10, 9, 8, 0], 0, 0, [255, 255, 255, 0]),
        ]
        .concat();
        let to = |address: [u8; 4]| way(&routes, address.into());
        assert_eq!(to([10, 9, 8, 7]), Some("near"));
        assert_eq!(to([10, 1, 0, 1]), Some("wide"));
        assert_eq!(to([192, 0, 2, 1]), Some("far"));
        assert_eq!(way("", [10, 0, 0, 1].into()), None);
    }
}

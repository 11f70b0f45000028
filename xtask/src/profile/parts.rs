//! To which part of a replica's work a sample belongs.

use std::fmt::Write as _;

/// The parts, in the order of the table.
const PARTS: [&str; 18] = [
    YIELD,
    LOOK,
    SLEEP,
    SOCKETS,
    DISK,
    KERNEL,
    "agreement",
    "shared buffers, trees and tables",
    "execution, sessions, replies, state, store",
    "BLAKE3",
    "signatures",
    "TLS: sealing and opening",
    "copying and comparing",
    "allocating and freeing",
    "links: frames, queues",
    "encoding",
    LOOP,
    REST,
];
const YIELD: &str = "kernel: giving way to another process that can run, while looking for more";
const LOOK: &str = "kernel: looking for more where there is nothing";
const SLEEP: &str = "kernel: sleeping, waking and being woken";
const SOCKETS: &str = "kernel: sockets, with the receiver's half, which loopback does at once";
const DISK: &str = "kernel: files and disk";
const KERNEL: &str = "kernel: the rest";
const LOOP: &str = "the replica's loop, and what joins the parts";
const REST: &str = "the rest";

/// What the kernel does, by what some function of the stack has in its name; the first that fits.
const OF_KERNEL: &[(&str, &[&str])] = &[
    (YIELD, &["sched_yield"]),
    (
        DISK,
        &[
            "fsync",
            "fdatasync",
            "ext4_",
            "xfs_",
            "jbd2",
            "submit_bio",
            "blk_",
            "pwrite64",
            "pwritev",
        ],
    ),
    (
        SLEEP,
        &["schedule", "try_to_wake_up", "wake_up_", "futex", "eventfd"],
    ),
    (
        SOCKETS,
        &[
            "tcp_",
            "sock_",
            "inet_",
            "__sys_send",
            "__sys_recv",
            "net_rx",
            "unix_stream",
        ],
    ),
    (LOOK, &["epoll", "ep_poll", "do_poll", "do_sys_poll"]),
];

/// What a function does wherever it is called from, by what its own name has in it; the first that fits.
const OF_LEAF: &[(&str, &[&str])] = &[
    ("BLAKE3", &["blake3"]),
    ("signatures", &["ed25519", "curve25519", "sha512", "sha2::"]),
    (
        "TLS: sealing and opening",
        &[
            "rustls",
            "ring::",
            "ring_core",
            "aes_",
            "gcm_",
            "ghash",
            "chacha",
            "poly1305",
            "aws_lc",
        ],
    ),
    (
        "copying and comparing",
        &["memcpy", "memmove", "memcmp", "memset", "bcmp"],
    ),
    (
        "allocating and freeing",
        &[
            "malloc",
            "calloc",
            "realloc",
            "cfree",
            "_int_free",
            "unlink_chunk",
            "__rust_",
            "__rdl_",
            "sysmalloc",
            "tcache",
        ],
    ),
    (
        "shared buffers, trees and tables",
        &[
            "bytes::",
            "hashbrown",
            "alloc::collections",
            "vec_deque",
            "foldhash",
        ],
    ),
];

/// Else it is the work of the first of these crates that the stack has, from the leaf up.
const OF_CRATES: &[(&str, &[&str])] = &[
    ("agreement", &["quorate_agreement"]),
    (
        "execution, sessions, replies, state, store",
        &[
            "quorate_execution",
            "quorate_state",
            "quorate_store",
            "quorate_service",
            "quorate_files",
            "quorate_credential",
        ],
    ),
    ("links: frames, queues", &["quorate_net"]),
    ("encoding", &["quorate_wire"]),
    (LOOP, &["quorate_replica", "quorate_node"]),
];

/// To which part a stack, from the leaf up, belongs.
fn part(stack: &[String]) -> &'static str {
    let has = |name: &String, texts: &[&str]| texts.iter().any(|text| name.contains(text));
    let leaf = &stack[0];
    if leaf.starts_with("k:") {
        let mut parts = OF_KERNEL.iter();
        let found = parts.find(|(_, texts)| stack.iter().any(|name| has(name, texts)));
        return found.map_or(KERNEL, |(part, _)| part);
    }
    if let Some((part, _)) = OF_LEAF.iter().find(|(_, texts)| has(leaf, texts)) {
        return part;
    }
    let of_crate = |name| OF_CRATES.iter().find(|(_, texts)| has(name, texts));
    let found = stack.iter().find_map(of_crate);
    found.map_or(REST, |(part, _)| part)
}

/// How many samples each part has.
pub struct Shares {
    all: usize,
    parts: Vec<(&'static str, usize)>,
}

impl Shares {
    pub fn of(stacks: &[Vec<String>]) -> Shares {
        let mut parts: Vec<(&str, usize)> = PARTS.iter().map(|part| (*part, 0)).collect();
        for stack in stacks {
            let found = part(stack);
            let at = parts.iter().position(|(part, _)| *part == found);
            parts[at.unwrap_or(PARTS.len() - 1)].1 += 1;
        }
        let all = stacks.len();
        Shares { all, parts }
    }

    /// As a table in Markdown, without parts that have less than half of a hundredth.
    pub fn table(&self, measured: Option<&str>) -> String {
        let mut out = format!("{} samples", self.all);
        if let Some(measured) = measured {
            let _ = write!(out, "; {measured}");
        }
        out.push_str("\n\n| | share |\n|---|---|\n");
        for (part, samples) in &self.parts {
            let share = *samples as f64 * 100.0 / self.all.max(1) as f64;
            if share >= 0.5 {
                let _ = writeln!(out, "| {part} | {share:.0} % |");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The leaf decides where what it does is the same for all; else who called it; and in the kernel what was asked of it.
    #[test]
    fn each_stack_has_its_part() {
        for (stack, expected) in [
            (&["k:finish_task_switch", "k:do_sched_yield"][..], YIELD),
            (&["k:__schedule", "k:ep_poll", "epoll_wait"], SLEEP),
            (&["k:ep_send_events", "k:do_epoll_wait"], LOOK),
            (
                &["k:_raw_spin_unlock", "k:try_to_wake_up", "k:tcp_rcv"],
                SLEEP,
            ),
            (&["k:copy_from_iter", "k:tcp_sendmsg"], SOCKETS),
            (&["k:memcpy", "k:ext4_write", "k:vfs_write"], DISK),
            (&["k:clear_page"], KERNEL),
            (
                &["__memmove_avx", "quorate_agreement::core"],
                "copying and comparing",
            ),
            (
                &[
                    "core::slice::sort",
                    "quorate_agreement::core",
                    "quorate_node::run",
                ],
                "agreement",
            ),
            (&["core::ptr::drop", "quorate_node::run"], LOOP),
            (&["main"], REST),
        ] {
            let stack: Vec<String> = stack.iter().map(|name| (*name).into()).collect();
            assert_eq!(part(&stack), expected, "{stack:?}");
        }
        let stacks = [vec!["k:do_sched_yield".into()], vec!["main".into()]];
        let table = Shares::of(&stacks).table(Some("1 us"));
        assert!(table.starts_with("2 samples; 1 us\n"));
        assert!(table.contains(&format!("| {YIELD} | 50 % |")));
        assert!(table.contains("| the rest | 50 % |"));
    }
}

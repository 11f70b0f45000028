//! One file for each command.

pub mod audit;
pub mod bench;
pub mod credential;
pub mod evidence;
pub mod grant;
pub mod guest;
pub mod init;
pub mod keygen;
pub mod keyholder;
pub mod mount;
pub mod nfs;
pub mod programs;
pub mod quota;
pub mod recover;
pub mod replica;
pub mod revocations;
pub mod revoke;
pub mod room;
pub mod route;
pub mod sharing;
pub mod status;
pub mod supervise;
pub mod umount;
pub mod up;
pub mod volume;

mod script;

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_net::Group;
use quorate_net::holder::pace;
use quorate_wire::ReplicaId;

/// The runtime on which a command's links run.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")
}

/// The group, with the addresses at which this process is to reach replicas instead.
fn with_routes(group: Group, routes: &[(u8, String)]) -> Result<Group> {
    let with = |group: Group, (id, address): &(u8, String)| {
        let routed = group.with_route(ReplicaId(*id), address);
        routed.map_err(|problem| anyhow!("--route {id}={address}: {problem}"))
    };
    routes.iter().try_fold(group, with)
}

/// Refuses a group that keeps no files.
fn check_files(group: &Group) -> Result<()> {
    if group.is_coordinator() {
        bail!(
            "the group {} keeps no files: it is for routers (`quorate route --help`); give the file of another group",
            group.name()
        );
    }
    Ok(())
}

/// Refuses the number of a replica that the group does not have.
fn check_id(group: &Group, id: u8) -> Result<()> {
    let last = group.quorum().n() - 1;
    if usize::from(id) > last {
        bail!("--id {id}: the replicas of this group are numbered from 0 to {last}");
    }
    Ok(())
}

/// Tk, unless it is said.
pub const KEY_REFRESH: Duration = Duration::from_secs(15);

/// How often the replicas of a group with key holders take other keys, as somebody may have said.
///
/// # Errors
/// If clients would not wait for that.
pub fn key_refresh(group: &Group, said: Option<Duration>) -> Result<Duration> {
    let longest = group.protocol().key_refresh;
    let usual = longest.map_or(KEY_REFRESH, |longest| longest.min(KEY_REFRESH));
    let every = said.unwrap_or(usual);
    if let Some(longest) = longest
        && (every.is_zero() || every > longest)
    {
        bail!(
            "--key-refresh: the group file says that replicas take other keys every {} s at least (key_refresh_ms), and clients let go of those \
             that do not: say as much or less",
            longest.as_secs_f64()
        );
    }
    Ok(every)
}

/// The same, as somebody says it now.
///
/// # Errors
/// Besides, if key holders would not sign so often.
pub fn new_key_refresh(group: &Group, said: Duration) -> Result<Duration> {
    let every = key_refresh(group, Some(said))?;
    let shortest = pace(group);
    if !every.is_zero() && every < shortest {
        bail!(
            "--key-refresh: the key holders of this group certify a key every {} s in the long run, by what the group file says (key_refresh_ms): say as \
             much or more",
            shortest.as_secs_f64()
        );
    }
    Ok(every)
}

/// The same, as it was said before: no more often than key holders sign.
///
/// # Errors
/// If clients would not wait for that.
fn possible_key_refresh(group: &Group, said: Option<Duration>) -> Result<Duration> {
    let (every, shortest) = (key_refresh(group, said)?, pace(group));
    if every.is_zero() || every >= shortest {
        return Ok(every);
    }
    tracing::warn!(
        "--key-refresh: key holders certify a key every {} s in the long run, and so often it is",
        shortest.as_secs_f64()
    );
    Ok(shortest)
}

/// Refuses to serve NFS to other machines, unless that is wanted.
fn check_reach(listen: SocketAddr, trust_network: bool) -> Result<()> {
    if !listen.ip().to_canonical().is_loopback() && !trust_network {
        bail!(
            "{listen} can be reached by other machines, and NFS version 3 takes their word for who they are: listen on \
             127.0.0.1, or say --trust-network if everyone who can send there may act as any user"
        );
    }
    Ok(())
}

/// Done when the process is asked to end, or its terminal is gone.
fn asked_to_end() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    // nohup(1) has it ignored.
    let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
            return std::future::pending().await;
        };
        let hung_up = async {
            match hangup {
                Some(Ok(mut hangup)) => hangup.recv().await,
                Some(Err(_)) | None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Whether who started this process has it ignore that its terminal goes.
fn ignores_hangup() -> bool {
    const SIGHUP: u64 = 1;
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    ignored.is_some_and(|signals| signals & SIGHUP != 0)
}

/// Done when whoever holds the other end of standard input is gone; never where nobody is to be waited for.
async fn parent_gone(with_parent: bool) {
    parent_gone_after(with_parent, |_| {}).await;
}

/// The same; `hear` gets what it says until then, byte by byte.
async fn parent_gone_after(with_parent: bool, hear: impl FnMut(u8) + Send + 'static) {
    if !with_parent {
        return std::future::pending().await;
    }
    let (gone, wait) = tokio::sync::oneshot::channel::<()>();
    // A thread of its own: the runtime would wait for a blocking read when it ends.
    std::thread::spawn(move || {
        wait_for_parent(hear);
        drop(gone);
    });
    // It is dropped, never sent.
    let _ = wait.await;
}

/// Returns when whoever holds the other end of standard input is gone.
fn wait_for_parent(mut hear: impl FnMut(u8)) {
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {
        hear(byte[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_net::group::{Files, Protocol, Purpose};
    use quorate_wire::KeyPair;
    use rustix::process::{Signal, getpid, kill_process};

    /// What replicas are told from now on is neither more seldom than clients wait for nor more often than key holders sign; what they were told before is
    /// made to fit.
    #[test]
    fn keys_are_renewed_as_often_as_can_be() {
        let key = |seed| KeyPair::from_seed(&[seed; 32]).public();
        let replicas = (0..4).map(|i| (format!("127.0.0.1:740{i}"), key(1 + i)));
        let identities: Vec<_> = (50..54).map(key).collect();
        let (files, purpose) = (Files::default(), Purpose::Service);
        let group = Group::new("test", replicas.collect(), Vec::new(), files, purpose).unwrap();
        let protocol = Protocol {
            key_refresh: Some(KEY_REFRESH),
            ..Protocol::default()
        };
        let group = group.with_identities(&identities).unwrap();
        let group = group.with_protocol(protocol);
        let seconds = Duration::from_secs;
        for bad in [0, 1, 7, 16] {
            assert!(new_key_refresh(&group, seconds(bad)).is_err(), "{bad}");
        }
        for good in [8, 15] {
            let said = seconds(good);
            assert_eq!(new_key_refresh(&group, said).unwrap(), said);
            assert_eq!(possible_key_refresh(&group, Some(said)).unwrap(), said);
        }
        assert_eq!(possible_key_refresh(&group, None).unwrap(), KEY_REFRESH);
        let often = possible_key_refresh(&group, Some(seconds(1))).unwrap();
        assert_eq!(often, Duration::from_millis(7_500));
        assert!(possible_key_refresh(&group, Some(seconds(16))).is_err());
    }

    /// Who closes the terminal in which a mount or a server runs has it end in order.
    #[tokio::test]
    async fn a_lost_terminal_ends_it() {
        if ignores_hangup() {
            println!("skipped: SIGHUP is ignored here");
            return;
        }
        let end = asked_to_end();
        kill_process(getpid(), Signal::HUP).unwrap();
        let patience = std::time::Duration::from_secs(10);
        tokio::time::timeout(patience, end).await.unwrap();
    }
}

//! `quorate route`.

mod coordination;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use quorate_nfs::serve;
use quorate_router::config::{Config, Keeper};
use quorate_router::coordinator::Coordinator;
use quorate_router::intent::Log;
use quorate_router::proxy::Proxy;
use quorate_router::setup::set_up;
use quorate_router::upstream::{GROUP, Load, Upstream, Upstreams, check_group};
use serde_json::json;
use tokio::net::TcpListener;

use crate::args::Route;
use crate::commands;

/// How often status is told.
const INTERVAL: Duration = Duration::from_secs(5);

pub fn run(args: &Route) -> Result<()> {
    let config = Config::load(&args.config)?;
    commands::check_reach(config.listen, args.trust_network)?;
    commands::runtime()?.block_on(route(args, config))
}

async fn route(args: &Route, config: Config) -> Result<()> {
    for volume in &config.volumes {
        if let Some(group) = volume.nfs.strip_prefix(GROUP) {
            check_group(group).with_context(|| format!("the volume {}", volume.url))?;
        }
    }
    let mut new = [0; 16];
    getrandom::fill(&mut new).map_err(|e| anyhow!("no random numbers: {e}"))?;
    let upstreams = config
        .volumes
        .iter()
        .map(|v| Upstream::start(v.nfs.clone()));
    let upstreams = Upstreams(upstreams.collect());
    let stop = commands::asked_to_end();
    tokio::pin!(stop);
    let volumes = tokio::select! {
        volumes = set_up(&upstreams, &config.volumes, new) => volumes?,
        () = &mut stop => return Ok(()),
    };
    let was_used = volumes.set != new;
    match config.keeper.clone() {
        Keeper::File(log) => {
            let begin = coordination::in_file(args, &log, upstreams, &volumes, was_used);
            let coordinator = tokio::select! {
                begun = begin => begun?,
                () = &mut stop => return Ok(()),
            };
            tokio::select! {
                served = offer(args, &config, coordinator, volumes.tops, volumes.set) => served,
                () = &mut stop => Ok(()),
            }
        }
        Keeper::Group {
            group,
            key,
            instance,
        } => {
            let begin = coordination::on_group(args, &group, key, &instance, &volumes, was_used);
            let shared = tokio::select! {
                begun = begin => begun?,
                () = &mut stop => return Ok(()),
            };
            let begin = shared.begin(&upstreams, &volumes);
            let kept = shared.keep(&upstreams, &volumes);
            let (tops, set) = (volumes.tops.clone(), volumes.set);
            let served = async { offer(args, &config, begin.await?, tops, set).await };
            let ended = tokio::select! {
                served = served => served,
                lost = kept => lost,
                () = &mut stop => Ok(()),
            };
            shared.leave(&upstreams, &volumes).await;
            ended
        }
    }
}

/// Serves clients.
async fn offer<L: Log + Debug + 'static>(
    args: &Route,
    config: &Config,
    coordinator: Coordinator<Upstreams, L>,
    tops: Vec<bytes::Bytes>,
    set: [u8; 16],
) -> Result<()> {
    let upstreams = &coordinator.servers;
    let loads: Vec<_> = upstreams.0.iter().map(|u| u.load.clone()).collect();
    let proxy = Proxy::new(
        coordinator,
        config.layout(),
        config.exports.clone(),
        tops,
        set,
    );
    proxy.look_at_space().await;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.with_context(|| format!("can't listen on {}", config.listen))?;
    let address = listener.local_addr().context("where it listens")?;
    match args.json {
        true => println!(
            "{}",
            json!({"event": "ready", "address": address.to_string(), "volumes": loads.len()})
        ),
        false => eprintln!(
            "serving {} volumes as one over NFS at {address}",
            loads.len()
        ),
    }
    let told = async {
        if !args.json {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(INTERVAL).await;
            let of = |(number, load): (usize, &Arc<Load>)| {
                json!({
                    "number": number,
                    "url": config.volumes[number].url,
                    "connected": load.up.load(Ordering::Relaxed),
                    "calls": load.calls.load(Ordering::Relaxed),
                    "unanswered": load.unanswered.load(Ordering::Relaxed),
                })
            };
            let volumes: Vec<_> = loads.iter().enumerate().map(of).collect();
            println!("{}", json!({"event": "status", "volumes": volumes}));
        }
    };
    tokio::select! {
        served = serve(listener, proxy) => served.context("serving"),
        () = told => Ok(()),
    }
}

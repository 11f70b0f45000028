//! `quorate route`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_nfs::serve;
use quorate_router::config::Config;
use quorate_router::coordinator::Coordinator;
use quorate_router::intent::Number;
use quorate_router::journal::Journal;
use quorate_router::proxy::Proxy;
use quorate_router::setup::set_up;
use quorate_router::upstream::{Load, Upstream, Upstreams};
use serde_json::json;
use tokio::net::TcpListener;

use crate::args::Route;
use crate::commands;

/// How often status is told.
const INTERVAL: Duration = Duration::from_secs(5);

pub fn run(args: &Route) -> Result<()> {
    let config = Config::load(&args.config)?;
    commands::check_reach(config.listen, args.trust_network)?;
    commands::runtime()?.block_on(async {
        tokio::select! {
            served = route(args, config) => served,
            () = commands::asked_to_end() => Ok(()),
        }
    })
}

async fn route(args: &Route, config: Config) -> Result<()> {
    let mut new = [0; 16];
    getrandom::fill(&mut new).map_err(|e| anyhow!("no random numbers: {e}"))?;
    let upstreams = config
        .volumes
        .iter()
        .map(|v| Upstream::start(v.nfs.clone()));
    let upstreams = Upstreams(upstreams.collect());
    let loads: Vec<_> = upstreams.0.iter().map(|u| u.load.clone()).collect();
    let volumes = set_up(&upstreams, &config.volumes, new).await?;
    if volumes.set != new && !config.log.exists() && !args.new_log {
        bail!(
            "these volumes have been used, and their log {} is not there: bring it back. If it is lost, an operation on two servers that was \
             under way may have left a name that leads nowhere: say --new-log to go on all the same",
            config.log.display()
        );
    }
    let (journal, open) = Journal::open(&config.log, volumes.set)?;
    let coordinator = Coordinator::new(upstreams, journal, volumes.hidden, volumes.root);
    for (number, intent) in &open {
        let done = coordinator.recover(Number(*number), intent).await;
        let done = done.map_err(|status| anyhow!("recovering: {status:?}"))?;
        let what = if done { "finished" } else { "undone" };
        eprintln!("an operation that was under way is {what}: {intent:?}");
    }
    let proxy = Proxy::new(
        coordinator,
        config.layout(),
        config.exports.clone(),
        volumes.tops,
        volumes.set,
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

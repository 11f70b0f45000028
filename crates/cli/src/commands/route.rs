//! `quorate route`.

pub mod coordination;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_nfs::Listeners;
use quorate_router::config::{Config, Keeper, Transport};
use quorate_router::coordinator::Coordinator;
use quorate_router::intent::Log;
use quorate_router::journal::kept_map;
use quorate_router::kernel::{Choice, TcpSwitch, UdpSwitch};
use quorate_router::mover::Mover;
use quorate_router::proxy::Proxy;
use quorate_router::setup::{SetupError, set_up, survey};
use quorate_router::shelf::Shelves;
use quorate_router::upstream::{GROUP, check_group};
use quorate_router::volumes;
use serde_json::json;

use crate::args::Route;
use crate::commands;
use crate::commands::script::Script;
use crate::commands::volume::control;
use coordination::{Buckets, Ground, Instance};

/// How often status is told.
const INTERVAL: Duration = Duration::from_secs(5);
/// Before a server is asked again that did not answer, at the start.
const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: &Route) -> Result<()> {
    let config = Config::load(&args.config)?;
    commands::check_reach(config.listen, args.trust_network)?;
    // Each client has a connection, and each thread one to each server; those that the kernel carries have more.
    quorate_net::open_files::allow_many();
    // Each thread has a runtime of its own: in one for all, a call's tasks would wake other threads, at many times the cost of what they do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")?;
    runtime.block_on(route(args, config))
}

/// Finds or makes all that is on the volumes.
pub async fn prepare(config: &Config) -> Result<(Ground, Arc<Shelves>)> {
    for volume in &config.volumes {
        if let Some(group) = volume.nfs.strip_prefix(GROUP) {
            check_group(group).with_context(|| format!("the volume {}", volume.url))?;
        }
    }
    let mut new = [0; 16];
    getrandom::fill(&mut new).map_err(|e| anyhow!("no random numbers: {e}"))?;
    let survey = survey(&config.volumes, new).await?;
    let (set, was_used) = (survey.set, !survey.is_new);
    let kept = match &config.keeper {
        Keeper::File(log) => kept_map(log)?,
        Keeper::Group { .. } => None,
    };
    let volumes = set_up(survey, kept, config.buckets, config.move_rate).await?;
    let map = volumes.buckets.map();
    for (name, volume) in &config.pins {
        if map.present().all(|present| present != *volume) {
            bail!(
                "{:?} is pinned to volume {}, and there is none of that number",
                String::from_utf8_lossy(name),
                volume.0
            );
        }
    }
    let ground = Ground {
        set,
        was_used,
        buckets: volumes.buckets,
        hidden: volumes.hidden,
        root: volumes.root,
    };
    Ok((ground, Arc::new(volumes.shelves.into())))
}

/// The same, for as long as it takes until all servers answer.
async fn prepare_at_last(config: &Config) -> Result<(Ground, Arc<Shelves>)> {
    let mut told = String::new();
    loop {
        let error = match prepare(config).await {
            Ok(prepared) => return Ok(prepared),
            Err(error) => error,
        };
        let Some(SetupError::Unanswered(url)) = error.downcast_ref() else {
            return Err(error);
        };
        if told != *url {
            say!("waiting for the server of {url}, which does not answer");
            told.clone_from(url);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn route(args: &Route, config: Config) -> Result<()> {
    let stop = commands::asked_to_end();
    tokio::pin!(stop);
    let (ground, shelves) = tokio::select! {
        prepared = prepare_at_last(&config) => prepared?,
        () = &mut stop => return Ok(()),
    };
    match config.keeper.clone() {
        Keeper::File(log) => {
            let begin = coordination::in_file(args, &log, &ground);
            let coordinator = tokio::select! {
                begun = begin => begun?,
                () = &mut stop => return Ok(()),
            };
            tokio::select! {
                served = offer(args, &config, coordinator, shelves, ground.set, true) => served,
                () = &mut stop => Ok(()),
            }
        }
        Keeper::Group {
            group,
            key,
            instance,
        } => {
            let instance = Arc::new(Instance::of(&instance)?);
            let begin = coordination::on_group(args.new_log, &group, key, instance, &ground);
            let shared = tokio::select! {
                begun = begin => begun?,
                () = &mut stop => return Ok(()),
            };
            let begin = shared.begin(&ground);
            let kept = shared.keep(&ground);
            let set = ground.set;
            let served = async { offer(args, &config, begin.await?, shelves, set, false).await };
            let ended = tokio::select! {
                served = served => served,
                lost = kept => lost,
                () = &mut stop => Ok(()),
            };
            shared.leave(&ground).await;
            ended
        }
    }
}

/// Serves clients. `alone`: no other router serves the same volumes.
async fn offer<L: Log + Debug + Clone + 'static>(
    args: &Route,
    config: &Config,
    coordinator: Coordinator<Buckets, L>,
    shelves: Arc<Shelves>,
    set: [u8; 16],
    alone: bool,
) -> Result<()> {
    let buckets = coordinator.servers.clone();
    let mover = Mover::new(buckets.clone(), coordinator.log().clone(), shelves.clone());
    let keeper = Arc::new(volumes::Keeper::new(mover, shelves.clone(), set, alone));
    let layout = Arc::new(config.layout());
    let exports = config.exports.clone();
    let mut proxy = Proxy::new(coordinator, layout.clone(), exports, shelves, set);
    proxy.set_away(config.away);
    let streams = tcp_switch(config, proxy.fsid(), &buckets);
    if let Some(streams) = &streams {
        proxy.set_streams(streams.clone());
    }
    proxy.look_at_space().await;
    let listeners = Listeners::bind(config.listen, args.threads.into(), config.udp);
    let mut listeners = listeners.with_context(|| format!("can't listen on {}", config.listen))?;
    let (address, dropped) = (listeners.address(), listeners.drops());
    let switch = udp_switch(config, address, proxy.fsid(), &buckets).await;
    let again = listeners.again();
    let control = control::listen(config.socket())?;
    let count = buckets.map().present().count();
    let script = args.json.then(Script::listens);
    match &script {
        Some(script) => script
            .tell(&json!({"event": "ready", "address": address.to_string(), "volumes": count})),
        None => say!("serving {count} volumes as one over NFS at {address}"),
    }
    let overview = {
        let keeper = keeper.clone();
        move || keeper.overview(|volume| layout.free(volume))
    };
    let status = overview.clone();
    let told = async {
        let Some(script) = &script else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(INTERVAL).await;
            let mut told = json!(status());
            told["event"] = json!("status");
            if config.udp {
                told["udp_dropped"] = json!(dropped.all().collect::<BTreeMap<_, _>>());
            }
            if let Some(switch) = &switch {
                told["udp_switch"] = json!(switch.passed());
            }
            if let Some(streams) = &streams {
                told["tcp_switch"] = json!(streams.streamed());
            }
            script.tell(&told);
        }
    };
    let switched = async {
        match &switch {
            Some(switch) => switch.serve(again).await,
            None => std::future::pending().await,
        }
    };
    let carried = async {
        match &streams {
            Some(streams) => streams.serve().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = listeners.serve(Arc::new(proxy)) => served.context("serving"),
        () = told => Ok(()),
        () = switched => Ok(()),
        () = carried => Ok(()),
        () = keeper.run() => Ok(()),
        () = control.obey(&keeper, overview) => Ok(()),
    }
}

/// The system's own way for calls over UDP, if it is wanted and can be.
async fn udp_switch(
    config: &Config,
    address: SocketAddr,
    fsid: u64,
    buckets: &Buckets,
) -> Option<UdpSwitch> {
    if config.transport == Transport::User || !config.udp {
        return None;
    }
    match UdpSwitch::start(address, &config.exports, fsid, buckets.clone()).await {
        Ok(switch) => Some(switch),
        Err(why) => {
            say!("calls over UDP are passed on in user space, not by the system: {why}");
            None
        }
    }
}

/// The system's own way for calls over TCP, if it is wanted and can be.
fn tcp_switch(config: &Config, fsid: u64, buckets: &Buckets) -> Option<Arc<TcpSwitch>> {
    let choice = match config.transport {
        Transport::User => return None,
        Transport::Kernel => Choice::All,
        Transport::Auto => Choice::ByUse,
    };
    match TcpSwitch::start(&config.exports, fsid, buckets.clone(), choice) {
        Ok(switch) => Some(Arc::new(switch)),
        Err(why) => {
            say!("calls over TCP are passed on in user space, not by the system: {why}");
            None
        }
    }
}

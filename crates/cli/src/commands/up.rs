//! `quorate up`: a whole group on this machine, mounted.

mod display;
pub mod groups;
mod lock;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_net::Group;
use quorate_net::group::{Files, Purpose, show_capacity};
use quorate_wire::Quorum;

use crate::args::Up;
use crate::commands::{self, init, mount, room, status};
use crate::paths;
use crate::supervision::{
    Certificates, Children, Control, Launch, Records, Recoveries, Role, Schedule,
    check_may_recover, signing_pace,
};
use display::Display;
use lock::Lock;

/// How often children are looked after and the status line is drawn.
const PERIOD: Duration = Duration::from_millis(500);
/// How often a new group is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a new group has to answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub fn run(args: &Up) -> Result<()> {
    let data = match &args.data {
        Some(data) => data.clone(),
        None => paths::local_group()?,
    };
    let directory = match (&args.mount, args.no_mount) {
        (_, true) => None,
        (Some(directory), _) => Some(directory.clone()),
        (None, _) => Some(data.join("files")),
    };
    // It is told to others, who may be elsewhere.
    let directory = directory.map(std::path::absolute).transpose();
    let directory = directory.context("can't tell where to mount")?;
    if groups::is_wanted(args, &data) {
        return groups::run(args, &data, directory);
    }
    // Held to the end: the replicas' ports and directories are for one `up` at a time.
    let held = Lock::take_if_there(&data, directory.as_deref())?;
    // What is refused is refused before anything is made.
    if let Some(directory) = &directory {
        mount::check(directory)?;
    }
    if !paths::group_file(&data).exists() {
        check_new(args)?;
    }
    let _lock = match held {
        Some(lock) => lock,
        None => Lock::take(&data, directory.as_deref())?,
    };
    if let Some(directory) = &directory {
        mount::prepare(directory)?;
    }
    let group = Arc::new(find_or_make_group(args, &data)?);
    commands::runtime()?.block_on(serve(args, &data, group, directory))
}

fn find_or_make_group(args: &Up, data: &Path) -> Result<Group> {
    let file = paths::group_file(data);
    if file.exists() {
        let group = Group::load(&file)?;
        check_existing(args, data, 1, &group)?;
        check_faults(args, group.quorum())?;
        return Ok(group);
    }
    // Looked at once more: somebody may have had the lock meanwhile.
    let addresses = check_new(args)?;
    let purpose = Purpose::Demonstration;
    init::create(
        data,
        "local",
        &addresses,
        Vec::new(),
        init::Kind {
            files: files(args, data, 1, addresses.len())?,
            purpose,
            protocol: args.protocol.protocol(),
            key_holders: key_holders(args),
            owner: init::Owner::Made,
            clients: 1,
            supervisors: false,
        },
        &BTreeMap::new(),
    )
}

/// How much each of so many new groups may hold that are a volume together, where so many copies of anything come to lie in the data directory.
fn files(args: &Up, data: &Path, groups: usize, copies: usize) -> Result<Files> {
    let capacity_bytes = match args.capacity {
        Some(bytes) => bytes.div_ceil(groups as u64),
        None => room::shared(data, groups * copies)?,
    };
    Ok(Files {
        capacity_bytes,
        inodes: room::objects(capacity_bytes),
    })
}

/// The addresses of a new group, if there can be one.
fn check_new(args: &Up) -> Result<Vec<String>> {
    addresses(args, replicas(args)?.n())
}

/// How large a new group is.
fn replicas(args: &Up) -> Result<Quorum> {
    let replicas = args.replicas.unwrap_or(4);
    let Some(quorum) = Quorum::new(replicas) else {
        bail!("--replicas {replicas}: a group has 3f+1 replicas: 1, 4, 7, 10...");
    };
    check_faults(args, quorum)?;
    Ok(quorum)
}

/// So many addresses that are free.
fn addresses(args: &Up, count: usize) -> Result<Vec<String>> {
    let port = args.port.unwrap_or(7400);
    if usize::from(port) + count - 1 > usize::from(u16::MAX) {
        bail!("--port {port}: {count} ports from there on are needed");
    }
    let address = |id: usize| format!("127.0.0.1:{}", usize::from(port) + id);
    let addresses: Vec<String> = (0..count).map(address).collect();
    for address in &addresses {
        // Once the group file is made its addresses stay, so a port that is taken is better found now.
        std::net::TcpListener::bind(address).with_context(|| {
            format!("can't listen on {address}: choose other ports for the new group (--port)")
        })?;
    }
    Ok(addresses)
}

/// Options that only a new group follows must not be passed over in silence.
fn check_existing(args: &Up, data: &Path, groups: usize, group: &Group) -> Result<()> {
    let n = group.quorum().n();
    if args.replicas.is_some_and(|replicas| replicas != n) {
        bail!(
            "the group in {} has {n} replicas: leave --replicas away, or choose another --data",
            data.display()
        );
    }
    if args.no_key_holders && group.identities().is_some() {
        bail!(
            "the group in {} has key holders: leave --no-key-holders away, or choose another --data",
            data.display()
        );
    }
    let holds = group.files().capacity_bytes;
    if args
        .capacity
        .is_some_and(|bytes| bytes.div_ceil(groups as u64) != holds)
    {
        bail!(
            "the volume in {} holds up to {}, and that stays: leave --capacity away, or choose another --data",
            data.display(),
            show_capacity(holds * groups as u64)
        );
    }
    if let Some(option) = args.protocol.differs_from(group.protocol()) {
        bail!(
            "the group in {} was made otherwise: leave {option} away, or choose another --data",
            data.display()
        );
    }
    let first = &group.replicas()[0].address;
    if args
        .port
        .is_some_and(|port| !first.ends_with(&format!(":{port}")))
    {
        bail!(
            "the group in {} listens from {first} on: leave --port away, or choose another --data",
            data.display()
        );
    }
    Ok(())
}

fn check_faults(args: &Up, quorum: Quorum) -> Result<()> {
    for (id, _) in &args.fault {
        if usize::from(*id) >= quorum.n() {
            bail!(
                "--fault {id}=...: the replicas are numbered from 0 to {}",
                quorum.n() - 1
            );
        }
    }
    Ok(())
}

fn warn_of_too_many_faults(args: &Up, quorum: Quorum) {
    let faulty: std::collections::BTreeSet<u8> = args.fault.iter().map(|(id, _)| *id).collect();
    if faulty.len() > quorum.f() {
        say!(
            "quorate: {} faulty replicas are more than this group tolerates ({}): expect the worst",
            faulty.len(),
            quorum.f()
        );
    }
}

/// How each process of the group is started.
fn launches(args: &Up, data: &Path, group: &Group) -> Vec<Launch> {
    let has_holders = group.identities().is_some();
    let launch = |role: Role| {
        let (id, log) = match role {
            Role::Replica(id) => (id, paths::replica(data, id)),
            Role::Holder(id) => (id, paths::holder(data, id)),
        };
        let mut arguments: Vec<OsString> = vec!["--id".into(), id.to_string().into()];
        arguments.extend(["--group".into(), paths::group_file(data).into()]);
        let faults = args.fault.iter().rev();
        // A coordinator's group is none for demonstrations.
        let mut faults = faults.filter(|_| !group.is_coordinator());
        let fault = faults.find(|(at, _)| *at == id);
        if let (Role::Replica(_), Some(workers)) = (role, args.workers) {
            arguments.extend(["--workers".into(), workers.to_string().into()]);
        }
        if let (Role::Replica(_), Some(verifiers)) = (role, args.verifiers) {
            arguments.extend(["--verifiers".into(), verifiers.to_string().into()]);
        }
        if let (Role::Replica(_), Some(sealers)) = (role, args.sealers) {
            arguments.extend(["--sealers".into(), sealers.to_string().into()]);
        }
        if let (Role::Replica(_), Some((_, fault))) = (role, fault) {
            arguments.extend(["--fault".into(), fault.to_string().into()]);
        }
        Launch {
            role,
            account: None,
            data: matches!(role, Role::Replica(_)).then(|| log.clone()),
            log: log.join("messages.log"),
            // It would be on the same disk.
            note: None,
            arguments,
        }
    };
    let roles = group.quorum().replicas().flat_map(|r| {
        let holder = has_holders.then_some(Role::Holder(r.0));
        holder.into_iter().chain([Role::Replica(r.0)])
    });
    roles.map(launch).collect()
}

/// What a new group is made with.
fn key_holders(args: &Up) -> Option<Duration> {
    let every = args.key_refresh.unwrap_or(commands::KEY_REFRESH);
    (!args.no_key_holders).then_some(every)
}

fn set_key_refresh(args: &Up, group: &Group, schedule: &mut Schedule) -> Result<()> {
    let Some(every) = args.key_refresh else {
        return Ok(());
    };
    if group.identities().is_none() {
        bail!(
            "--key-refresh: the replicas of this group have no key holders, and so no keys that could be renewed"
        );
    }
    schedule.set_key_refresh(commands::new_key_refresh(group, every)?);
    Ok(())
}

async fn serve(
    args: &Up,
    data: &Path,
    group: Arc<Group>,
    directory: Option<PathBuf>,
) -> Result<()> {
    warn_of_too_many_faults(args, group.quorum());
    let mut display = Display::new(args.json);
    let mut schedule = Schedule::load(data);
    let every = args.every.map(|every| every.0);
    if every.flatten().is_some() {
        check_may_recover(&group).map_err(anyhow::Error::msg)?;
    }
    schedule.hear_command_line(every, signing_pace(&group))?;
    set_key_refresh(args, &group, &mut schedule)?;
    let (records, word) = Records::load(data);
    let launches = launches(args, data, &group);
    let certificates = Certificates::new(&group, data);
    let known = certificates.known();
    let mut children = Children::start(
        launches,
        !args.no_restart,
        None,
        Some(certificates),
        schedule.key_refresh(),
        records.begun().map(|(id, _)| id),
    )?;
    let identity = status::of_directory(&group, data)?;
    let stop = commands::asked_to_end();
    tokio::pin!(stop);

    display.say("starting the replicas");
    let watch =
        status::Watch::start(&group, &identity, known).context("connecting to the group")?;
    let answers = async {
        while status::Health::judge(group.quorum(), &watch.reports()) == status::Health::Down {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = &mut stop => return children.stop().await,
        answered = tokio::time::timeout(START_TIMEOUT, answers) => {
            if answered.is_err() {
                let why = children.explain();
                children.stop().await?;
                bail!("the group does not come up.{why}");
            }
        }
        () = children.too_many_refuse(group.quorum().f()) => {
            let why = children.explain();
            children.stop().await?;
            bail!("too many replicas do not start.{why}");
        }
    }
    let mounted = match &directory {
        Some(directory) => {
            let options = mount::default_options(&group);
            Some(mount::start(&group, &paths::client_key(data), directory, options).await?)
        }
        None => None,
    };
    display.ready(&group, directory.as_deref());
    let owner = paths::owner_key(data);
    if group.owner().is_some() && owner.exists() && directory.is_some() {
        display.event(&format!(
            "to share with others: `quorate grant PATH --to THEIR-KEY --rights r --until DATE`, signed by {}",
            owner.display()
        ));
    }

    let mut control = Control::listen(data)?;
    word.iter().for_each(|text| display.event(text));
    let mut recoveries = Recoveries::new(group.clone(), schedule, records, data);
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            () = &mut stop => break Ok(()),
            ended = mount::ended(mounted.as_ref()) => {
                if ended.is_ok() {
                    display.event("the files were unmounted by somebody else, so the group is stopped too");
                }
                break ended;
            }
            (request, answers) = control.next() => {
                let told = recoveries.request(&request, answers, &watch.reports(), &mut children);
                told.iter().for_each(|text| display.event(text));
                continue;
            }
            () = tokio::time::sleep(LOOK), if recoveries.is_busy() => {}
            _ = period.tick() => {
                display.status(&group, &watch.reports(), directory.as_deref());
            }
        }
        let mut events = children.look_after()?;
        events.extend(recoveries.look(&watch.reports(), &mut children));
        events.iter().for_each(|text| display.event(text));
    };
    display.say("unmounting and stopping");
    if let Some(mounted) = &mounted {
        mount::finish(mounted).await.context("unmounting")?;
    }
    children.stop().await?;
    display.done();
    ended
}

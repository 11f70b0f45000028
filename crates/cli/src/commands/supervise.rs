//! `quorate supervise`.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_net::Group;

use crate::args::Supervise;
use crate::commands::{self, status};
use crate::paths;
use crate::supervision::{
    Account, Certificates, Children, Control, Launch, Lock, Programs, Records, Recoveries, Role,
    Schedule, SignsOfLife, check_may_recover, signing_pace,
};

/// How often the replica is looked after.
const PERIOD: Duration = Duration::from_millis(200);

pub fn run(args: &Supervise) -> Result<()> {
    let group = commands::with_routes(Group::load(&args.group)?, &args.route)?;
    let group = Arc::new(group);
    commands::check_id(&group, args.id)?;
    let beside = paths::beside(&args.group);
    let client_key = args
        .client_key
        .clone()
        .unwrap_or_else(|| own_key(&beside, args.id));
    let identity = status::identity_of(&group, &client_key, "--client-key")
        .context("the supervisor asks the other replicas how they are, as a client")?;
    let data = args
        .data
        .clone()
        .unwrap_or_else(|| paths::replica(&beside, args.id));
    let account = args.user.as_deref().map(Account::named).transpose()?;
    let state = own_directory(args, account, &data, &client_key)?;
    // Held to the end.
    let _lock = Lock::take(&state)?;
    let mut arguments: Vec<OsString> = vec![
        "--id".into(),
        args.id.to_string().into(),
        "--group".into(),
        args.group.clone().into(),
    ];
    arguments.extend(["--data".into(), data.clone().into()]);
    // To the others it goes by the same ways; a way to itself is the supervisor's alone.
    for (id, address) in args.route.iter().filter(|(id, _)| *id != args.id) {
        arguments.extend(["--route".into(), format!("{id}={address}").into()]);
    }
    arguments.extend(args.replica.iter().cloned());
    let launch = Launch {
        role: Role::Replica(args.id),
        log: state.join("messages.log"),
        data: Some(data.clone()),
        // In the replica's directory it would say nothing.
        note: (state != data && check_may_recover(&group).is_ok()).then(|| state.join("ground")),
        account,
        arguments,
    };
    let mut schedule = Schedule::load(&state);
    let every = args.every.map(|every| every.0);
    if every.flatten().is_some() {
        check_may_recover(&group).map_err(anyhow::Error::msg)?;
    }
    schedule.hear_command_line(every, signing_pace(&group))?;
    let programs = args.programs.clone().map(Programs::new);
    let runtime = commands::runtime()?;
    // Starting a process needs the runtime.
    let _entered = runtime.enter();
    let certificates = Certificates::new(&group, &state);
    let known = certificates.known();
    let (records, word) = Records::load(&state);
    word.iter().for_each(|text| tell(text));
    let lost = certificates.lost(word.is_some() || !records.is_empty());
    lost.iter().for_each(|text| tell(text));
    let children = Children::start(
        vec![launch],
        true,
        programs,
        Some(certificates),
        schedule.key_refresh(),
        records.begun().map(|(id, _)| id),
    )?;
    let control = Control::listen(&state)?;
    let recoveries = Recoveries::new(group.clone(), schedule, records, &state);
    let watch =
        status::Watch::start(&group, &identity, known).context("connecting to the group")?;
    // Not before all is there: a supervisor that fails each time that it is started is not to have the machine start anew.
    let signs = SignsOfLife::new(args.watchdog.as_deref())?;
    runtime.block_on(serve(watch, children, control, recoveries, signs))
}

/// The key that `quorate init` has made for this supervisor; where it was not brought here, that of all clients.
fn own_key(beside: &Path, id: u8) -> PathBuf {
    match paths::supervisor_key(beside, id) {
        own if own.exists() => own,
        _ => paths::client_key(beside),
    }
}

/// Where the supervisor keeps what is its own. The replica's user, where that is another one, must have no hand in it, nor in what it goes by.
fn own_directory(
    args: &Supervise,
    account: Option<Account>,
    data: &Path,
    client_key: &PathBuf,
) -> Result<PathBuf> {
    let beside = paths::beside(&args.group);
    let state = match (&args.state, account) {
        (Some(state), _) => state.clone(),
        (None, None) => return Ok(data.to_path_buf()),
        (None, Some(_)) => paths::supervisor(&beside, args.id),
    };
    let mut made = DirBuilder::new();
    made.recursive(true)
        .mode(0o700)
        .create(&state)
        .with_context(|| format!("can't make the supervisor's directory, {}", state.display()))?;
    let Some(account) = account else {
        return Ok(state);
    };
    if !rustix::process::geteuid().is_root() {
        bail!("--user: only root can run the replica as another user; run the supervisor as root");
    }
    leave_terminal()?;
    // Nothing that the replica starts gains rights by its file's owner: neither those to mount something, nor to have something run later.
    rustix::thread::set_no_new_privs(true)?;
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let rests_on = [&state, &args.group, client_key, &program].into_iter();
    for path in rests_on.chain(&args.programs) {
        check_untouched(account, path)?;
    }
    // The replica's directory itself is its user's, and the supervisor works in it.
    check_untouched(account, &paths::beside(data))?;
    if std::fs::symlink_metadata(data).is_ok_and(|it| it.is_symlink()) {
        bail!(
            "--user: {} is a symbolic link: say where it leads",
            data.display()
        );
    }
    Ok(state)
}

/// What the supervisor goes by is to be where it says, and nothing that the replica's user could change.
fn check_untouched(account: Account, path: &Path) -> Result<()> {
    let plain = path.canonicalize();
    let plain = plain.with_context(|| path.display().to_string())?;
    if std::path::absolute(path)? != plain {
        bail!(
            "--user: {} leads through a symbolic link, which could be exchanged; say {}",
            path.display(),
            plain.display()
        );
    }
    if let Some(part) = account.could_change(path)? {
        bail!(
            "the replica's user (number {}) could change {}, and with it {}, which the supervisor goes by: both are to be root's, with \
             all directories above",
            account.uid,
            part.display(),
            path.display()
        );
    }
    Ok(())
}

/// A terminal would be the replica's as well, which could type on it.
fn leave_terminal() -> Result<()> {
    // In vain where a shell has started it as a job.
    let _ = rustix::process::setsid();
    if std::fs::File::open("/dev/tty").is_ok() {
        bail!(
            "--user: start it without a terminal, as a service or with setsid(1): a replica that was taken over could type on it"
        );
    }
    Ok(())
}

async fn serve(
    watch: status::Watch,
    mut children: Children,
    mut control: Control,
    mut recoveries: Recoveries,
    mut signs: SignsOfLife,
) -> Result<()> {
    signs.ready();
    let stop = commands::asked_to_end();
    tokio::pin!(stop);
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut stop => {
                signs.end();
                return children.stop().await;
            }
            (request, answers) = control.next() => {
                let told = recoveries.request(&request, answers, &watch.reports(), &mut children);
                told.iter().for_each(|text| tell(text));
            }
            _ = period.tick() => {
                // Who hears of no replica lets none recover: better to be started anew.
                if watch.has_ended() {
                    bail!("the replicas can't be asked how they are any more");
                }
                signs.give();
                let mut events = children.look_after()?;
                events.extend(recoveries.look(&watch.reports(), &mut children));
                events.iter().for_each(|text| tell(text));
            }
        }
    }
}

/// Where a service manager keeps what it is told.
fn tell(text: &str) {
    say!("quorate: {text}");
}

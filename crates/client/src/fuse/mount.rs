//! Mounting and unmounting, and what can be in the way.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fuser::{Config, MountOption, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tokio::sync::watch;

use super::caching::Caching;
use super::core::Core;
use super::front::Front;
use super::shares::Start;
use crate::session::SessionFailed;
use crate::volume::Volume;

/// How long the end of a mount waits for what is not written yet.
const FINISH: Duration = Duration::from_secs(20);
/// Threads that take requests from the kernel and begin to work on them; and as many that go on when there is an answer.
const THREADS: usize = 2;
/// How long an agent that is gone may take to be known for one: the kernel says so at once.
const PATIENCE: Duration = Duration::from_secs(2);
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// What our mounts have in the list of mounts, before the group's name.
const SOURCE: &str = "quorate:";

/// How to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The group's name, for the list of mounts.
    pub name: String,
    /// Whether other users than the one who mounts may come in. By default they may, where the system allows that; not on a guest's mount, where
    /// all who come in act by the guest's credentials.
    pub allow_other: Option<bool>,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Whether no program is executed from here.
    pub no_exec: bool,
    /// What is kept on this machine, and for how long.
    pub caching: Caching,
}

impl MountOptions {
    /// Whether reading changes times of access. What is mounted by credentials, or can't be changed, keeps them.
    fn has_accesses(&self, is_guest: bool) -> bool {
        self.caching.accesses && !self.read_only && !is_guest
    }
}

/// Why a volume can't be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel lacks FUSE.
    #[error(
        "{DEVICE} is missing: load the kernel's module with `modprobe fuse`; a container needs `--device {DEVICE}`"
    )]
    NoDevice,
    /// The device may not be opened.
    #[error(
        "{DEVICE} may not be opened: {0}; a container needs `--device {DEVICE} --cap-add SYS_ADMIN`"
    )]
    DeviceDenied(std::io::Error),
    /// Who is not root needs the helper.
    #[error(
        "{HELPER} is missing, which mounts for users other than root: install the package fuse3"
    )]
    NoHelper,
    /// There is nothing at the path.
    #[error("{0} does not exist: make a directory to mount at")]
    NoDirectory(PathBuf),
    /// The path is something else.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// An agent that mounted there is gone.
    #[error("{0} is a mount whose agent has died: take it away with `quorate umount {0}`")]
    Dead(PathBuf),
    /// Something of ours is there already.
    #[error("{0} is mounted already: take it away with `quorate umount {0}`")]
    AlreadyMounted(PathBuf),
    /// The system's configuration keeps others out.
    #[error(
        "other users may not be let in: write `user_allow_other` into /etc/fuse.conf, or mount without them"
    )]
    AllowOtherDenied,
    /// Anything else.
    #[error("mounting at {0} failed: {1}")]
    Failed(PathBuf, std::io::Error),
}

/// Why a volume can't be unmounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open there, or somebody's working directory is.
    #[error(
        "{0} is in use: close what is open there (`fuser -vm {0}` lists it), or unmount lazily"
    )]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// Anything else.
    #[error("unmounting {0} failed: {1}")]
    Failed(PathBuf, String),
    /// The group did not take what was left.
    #[error(
        "the mount has ended, but the group did not answer in time: what was not synced may be lost"
    )]
    Unwritten,
}

/// A mount. Dropped without [`Mounted::unmount`], it goes when nobody uses it any more.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    core: Weak<Core>,
    ended: watch::Receiver<Option<bool>>,
}

/// Mounts a volume at a directory. The mount owns the volume's session and closes it at its end. May block for a moment;
/// the first operation waits for the group, not this.
///
/// # Errors
/// [`MountError`], which says what to do.
pub fn mount(volume: Volume, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    mount_from(volume, Start::Volume, dir, options)
}

/// The same, where the mount's root is another than the volume's.
///
/// # Errors
/// [`MountError`], which says what to do.
pub fn mount_from(
    volume: Volume,
    start: Start,
    dir: &Path,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    let dir = check_directory(dir)?;
    check_device()?;
    let config = config(options, start.acting().is_some())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("mount")
        .enable_time()
        .build()
        .map_err(|e| MountError::Failed(dir.clone(), e))?;
    let mut caching = options.caching;
    caching.accesses = options.has_accesses(start.acting().is_some());
    caching.accesses_of_directories &= caching.accesses;
    let core = Core::new(volume, start, caching, runtime.handle().clone());
    let front = Front::new(core.clone(), runtime.handle().clone());
    let session = fuser::Session::new(front, &dir, &config)
        .map_err(|e| MountError::Failed(dir.clone(), e))?;
    let _ = core.notifier.set(session.notifier());
    runtime.spawn(Core::keep_young(Arc::downgrade(&core)));

    let shared = Arc::downgrade(&core);
    let (ended, receiver) = watch::channel(None);
    let thread = std::thread::Builder::new().name("fuse".into());
    let serve = move || {
        if let Err(e) = session.run() {
            tracing::error!("the connection to the kernel broke: {e}");
        }
        runtime.block_on(async {
            let written = tokio::time::timeout(FINISH, core.finish()).await.is_ok();
            core.volume.close().await;
            ended.send_replace(Some(written));
        });
        // What still runs waits for the kernel, which may never answer.
        runtime.shutdown_background();
    };
    thread
        .spawn(serve)
        .map_err(|e| MountError::Failed(dir.clone(), e))?;
    Ok(Mounted {
        dir,
        core: shared,
        ended: receiver,
    })
}

impl Mounted {
    /// The directory, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until the mount has ended, whoever unmounts it, and all is written.
    ///
    /// # Errors
    /// [`UnmountError::Unwritten`].
    pub async fn wait(&self) -> Result<(), UnmountError> {
        let mut ended = self.ended.clone();
        let written = match ended.wait_for(Option::is_some).await {
            Ok(written) => *written == Some(true),
            Err(_) => false,
        };
        if written {
            Ok(())
        } else {
            Err(UnmountError::Unwritten)
        }
    }

    /// Done when a session of the mount has failed: all that is asked of the mount fails from then on, and so it stays. Never else.
    pub fn failed(&self) -> impl Future<Output = SessionFailed> + Send + use<> {
        // Without the core, which ends with the mount.
        let failed = self.core.upgrade().map(|core| core.volume.failed());
        async move {
            match failed {
                Some(failed) => failed.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Unmounts, writes what is left, and closes the session.
    ///
    /// # Errors
    /// [`UnmountError`]. After [`UnmountError::Busy`] the mount is as it was.
    pub async fn unmount(&self) -> Result<(), UnmountError> {
        if self.ended.borrow().is_some() {
            return self.wait().await;
        }
        let dir = self.dir.clone();
        let done = tokio::task::spawn_blocking(move || unmount_at(&dir, false)).await;
        match done {
            Ok(Ok(())) => self.wait().await,
            // Somebody else was faster.
            Ok(Err(UnmountError::NotMounted(_))) => self.wait().await,
            Ok(Err(error)) => Err(error),
            Err(e) => Err(UnmountError::Failed(self.dir.clone(), e.to_string())),
        }
    }
}

impl Mounted {
    /// Ends a mount although it may be in use, as after a lazy unmount: writes what is left and closes the session, so that others
    /// need not wait for its lease to have its locks. Programs that still use the mount get errors from now on.
    ///
    /// # Errors
    /// [`UnmountError::Unwritten`].
    pub async fn abandon(&self) -> Result<(), UnmountError> {
        let Some(core) = self.core.upgrade() else {
            return self.wait().await;
        };
        // Not until nothing is under way: a program may wait for a lock, for as long as it likes.
        let written = tokio::time::timeout(FINISH, core.flush_all()).await;
        core.volume.close().await;
        written.map_err(|_| UnmountError::Unwritten)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.ended.borrow().is_none() && is_ours(&self.dir) {
            let _ = unmount_at(&self.dir, true);
        }
    }
}

/// Takes a mount away, also one whose agent has died. Lazily: from the tree at once, and altogether when nobody uses it.
///
/// # Errors
/// [`UnmountError`].
pub fn unmount_at(dir: &Path, lazy: bool) -> Result<(), UnmountError> {
    let flags = match lazy {
        true => UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
        false => UnmountFlags::NOFOLLOW,
    };
    let path = followed(dir);
    let dir = path.as_path();
    let path = dir.to_owned();
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(UnmountError::Busy(path)),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            Err(UnmountError::NotMounted(path))
        }
        Err(rustix::io::Errno::PERM) => unmount_by_helper(dir, lazy),
        Err(e) => Err(UnmountError::Failed(path, e.to_string())),
    }
}

/// Where a path leads that may be a symbolic link. It is mounted where that leads; and nothing is asked of a mount there, which may be dead.
fn followed(dir: &Path) -> PathBuf {
    const MAX_LINKS: usize = 40;
    // Without a slash at its end, which would have the link followed.
    let mut path: PathBuf = dir.components().collect();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

fn unmount_by_helper(dir: &Path, lazy: bool) -> Result<(), UnmountError> {
    let failed = |why: String| UnmountError::Failed(dir.to_owned(), why);
    let flags = if lazy { "-uz" } else { "-u" };
    let output = Command::new(HELPER)
        .arg(flags)
        .arg("--")
        .arg(dir)
        .output()
        .map_err(|e| failed(format!("{HELPER}: {e}")))?;
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if text.contains("busy") => Err(UnmountError::Busy(dir.to_owned())),
        false if text.contains("not found") => Err(UnmountError::NotMounted(dir.to_owned())),
        false => Err(failed(text.trim().to_owned())),
    }
}

fn check_directory(dir: &Path) -> Result<PathBuf, MountError> {
    let path = || dir.to_owned();
    let metadata = std::fs::metadata(dir).map_err(|e| match e.kind() {
        ErrorKind::NotFound => MountError::NoDirectory(path()),
        ErrorKind::NotADirectory => MountError::NotADirectory(path()),
        ErrorKind::NotConnected => MountError::Dead(path()),
        _ => MountError::Failed(path(), e),
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(path()));
    }
    let dir = dir
        .canonicalize()
        .map_err(|e| MountError::Failed(path(), e))?;
    if is_ours(&dir) {
        return Err(MountError::AlreadyMounted(dir));
    }
    Ok(dir)
}

/// Whether a path is the mount of an agent that is gone.
///
/// The kernel goes on answering for such a one from what it remembers, for as long as it may, so it has to be told to ask the agent. An agent that lives and
/// is slow is not gone.
pub fn is_dead(dir: &Path) -> bool {
    let flags = AtFlags::STATX_FORCE_SYNC;
    let asked = dir.to_owned();
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let found = statx(CWD, &asked, flags, StatxFlags::BASIC_STATS);
        let _ = answer.send(found.map(drop));
    });
    let found = answered.recv_timeout(PATIENCE);
    matches!(found, Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// Whether the topmost mount at a path is one of a volume. The path must have no symbolic links.
fn is_ours(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found = false;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        if let (Some(source), Some(at)) = (fields.next(), fields.next())
            && Path::new(&unescaped(at)) == dir
        {
            found = source.starts_with(SOURCE);
        }
    }
    found
}

/// The list of mounts writes white space and backslashes as three octal digits.
fn unescaped(field: &str) -> String {
    let mut out = field.to_owned();
    for (code, text) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        out = out.replace(code, text);
    }
    out
}

/// Whether this user can mount at all.
///
/// # Errors
/// [`MountError`], which says what to do.
pub fn check_device() -> Result<(), MountError> {
    let open = std::fs::File::options().read(true).write(true).open(DEVICE);
    match open {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(MountError::NoDevice),
        Err(e) => return Err(MountError::DeviceDenied(e)),
    }
    let helper = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(HELPER).exists())
    };
    if !is_root() && !helper() {
        return Err(MountError::NoHelper);
    }
    Ok(())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn others_are_allowed() -> bool {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    is_root() || conf.lines().any(|line| line.trim() == "user_allow_other")
}

fn config(options: &MountOptions, is_guest: bool) -> Result<Config, MountError> {
    let allow_other = match options.allow_other {
        Some(true) if !others_are_allowed() => return Err(MountError::AllowOtherDenied),
        Some(allow) => allow,
        // A credential is its holder's: whoever else comes in does so by it.
        None => !is_guest && others_are_allowed(),
    };
    let mut mount_options = vec![
        MountOption::FSName(format!("{SOURCE}{}", printable(&options.name))),
        MountOption::Subtype("quorate".into()),
        // What others put into a volume must not become root's right on this machine.
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    if !is_guest {
        // A guest acts in the volume as its credentials say, whoever it is on this machine. What a kernel finds by the ids that it knows is of no
        // use then: the service alone decides, and the kernel asks it (lookups, opens, access(2), changes).
        mount_options.push(MountOption::DefaultPermissions);
    }
    if options.read_only {
        mount_options.push(MountOption::RO);
    }
    if !options.has_accesses(is_guest) {
        mount_options.push(MountOption::NoAtime);
    }
    if options.no_exec {
        mount_options.push(MountOption::NoExec);
    }
    let mut config = Config::default();
    config.mount_options = mount_options;
    config.acl = match allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    Ok(config)
}

/// A name that can't be taken for more mount options.
fn printable(name: &str) -> String {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .map(|c| if fits(c) { c } else { '_' })
        .collect()
}

//! A user of this machine who is not the superuser.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{program, scratch};

/// Somebody with nothing but files of his own. Without root, who alone can act as others, it is the user of the tests.
#[derive(Debug)]
pub struct LocalUser {
    pub uid: u32,
    pub gid: u32,
    place: tempfile::TempDir,
    is_other: bool,
}

impl LocalUser {
    /// With these ids, and with the command under test.
    pub fn new(ids: (u32, u32)) -> LocalUser {
        let is_other = rustix::process::geteuid().is_root();
        let own = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let (uid, gid) = if is_other { ids } else { own };
        let user = LocalUser {
            uid,
            gid,
            place: scratch(),
            is_other,
        };
        user.takes(user.place.path());
        // Where it was built others may not look.
        let built = env!("CARGO_BIN_EXE_quorate");
        let own = user.at("quorate");
        let linked = std::fs::hard_link(built, &own);
        linked
            .or_else(|_| std::fs::copy(built, &own).map(drop))
            .expect("the command under test");
        user
    }

    /// A file of his.
    pub fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Gives him a file of somebody else's.
    pub fn gets(&self, file: &Path, name: &str) {
        std::fs::copy(file, self.at(name)).expect("a copy");
        self.takes(&self.at(name));
    }

    fn takes(&self, path: &Path) {
        chown(path, Some(self.uid), Some(self.gid)).expect("an owner");
    }

    /// A new directory of his.
    pub fn scratch(&self) -> tempfile::TempDir {
        let place = scratch();
        self.takes(place.path());
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.path(), open).expect("a mode");
        place
    }

    /// A program that he runs.
    pub fn program(&self, name: &str) -> Command {
        let mut command = program(name);
        if self.is_other {
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// The command under test, as he runs it.
    pub fn quorate(&self) -> Command {
        self.program(self.at("quorate").to_str().expect("a test's directory"))
    }
}

//! Mode bits: what they grant, and those that changes take away. With ACLs it is [`crate::rights`] that decides.

use crate::errno::Errno;
use crate::layout::Inode;
use crate::op::{Who, access};
use crate::types::Kind;

/// Set-user-ID.
pub const SETUID: u32 = 0o4000;
/// Set-group-ID; on a directory: its group goes to what is made in it.
pub const SETGID: u32 = 0o2000;
/// On a directory: names are removed by owners alone.
pub const STICKY: u32 = 0o1000;
/// All mode bits.
pub const MODE_BITS: u32 = 0o7777;
/// Those of them that say who may do what.
pub const PERMISSION_BITS: u32 = 0o777;

const GROUP_EXEC: u32 = 0o010;
const ANY_EXEC: u32 = 0o111;

/// What the mode bits alone grant: bits of [`access`].
pub(crate) fn granted(inode: &Inode, who: &Who) -> u32 {
    let all = access::READ | access::WRITE | access::EXEC;
    let granted = if who.is_root() {
        // Linux, capabilities(7): the superuser passes all but execution of what nobody can execute.
        if inode.kind == Kind::Directory || inode.mode & ANY_EXEC != 0 {
            all
        } else {
            access::READ | access::WRITE
        }
    } else if who.uid == inode.uid {
        inode.mode >> 6
    } else if who.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    granted & all
}

/// Whether the caller is the owner or the superuser.
pub(crate) fn owns(inode: &Inode, who: &Who) -> bool {
    who.is_root() || who.uid == inode.uid
}

/// Whether the caller is in a group or the superuser.
pub(crate) fn in_group(who: &Who, gid: u32) -> bool {
    who.is_root() || who.in_group(gid)
}

/// unlink(2): in a sticky directory, names go by the owner of the directory or of the object.
pub(crate) fn check_sticky(dir: &Inode, child: &Inode, who: &Who) -> Result<(), Errno> {
    if dir.mode & STICKY == 0 || owns(dir, who) || owns(child, who) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// A write or truncation by anyone but the superuser takes away what would run with the owner's rights.
pub(crate) fn mode_after_write(inode: &Inode, who: &Who) -> u32 {
    if who.is_root() || inode.kind != Kind::Regular {
        return inode.mode;
    }
    without_setid(inode, who)
}

/// chown(2): a change of owner or group does so even for the superuser, except on directories.
pub(crate) fn mode_after_chown(inode: &Inode, who: &Who) -> u32 {
    if inode.kind == Kind::Directory {
        return inode.mode;
    }
    without_setid(inode, who)
}

fn without_setid(inode: &Inode, who: &Who) -> u32 {
    let mut mode = inode.mode & !SETUID;
    // Without group execution the bit once meant mandatory locking: it stays for those who may set it.
    if mode & GROUP_EXEC != 0 || !in_group(who, inode.gid) {
        mode &= !SETGID;
    }
    mode
}

/// Mode, but for the umask, and group of a new object.
pub(crate) fn for_new(dir: &Inode, who: &Who, kind: Kind, mode: u32) -> (u32, u32) {
    let inherits = dir.mode & SETGID != 0;
    let gid = if inherits { dir.gid } else { who.gid };
    let mode = match kind {
        Kind::Symlink => 0o777,
        Kind::Directory => (mode & 0o1777) | (dir.mode & SETGID),
        _ => {
            let mode = mode & MODE_BITS;
            let runs_as_group = mode & SETGID != 0 && mode & GROUP_EXEC != 0;
            if runs_as_group && inherits && !in_group(who, dir.gid) {
                mode & !SETGID
            } else {
                mode
            }
        }
    };
    (mode, gid)
}

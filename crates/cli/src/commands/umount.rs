//! `quorate umount`.

use anyhow::Result;
use quorate_client::fuse;

use crate::args::Umount;

pub fn run(args: &Umount) -> Result<()> {
    Ok(fuse::unmount_at(&args.directory, args.lazy)?)
}

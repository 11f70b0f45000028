//! `quorate programs`.

use anyhow::{Context, Result};

use crate::args::Programs;
use crate::supervision::digest;

pub fn run(args: &Programs) -> Result<()> {
    let own = std::env::current_exe().context("can't find this program's own file")?;
    let files = match args.files.is_empty() {
        true => vec![own],
        false => args.files.clone(),
    };
    for file in files {
        tell!("{}  {}", digest(&file)?, file.display());
    }
    Ok(())
}

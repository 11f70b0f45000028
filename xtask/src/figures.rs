//! `cargo xtask figures`: the mount beside a plain FUSE passthrough to the same disk, measured in one run.
//!
//! Each work is done on one and then on the other, several times, so that what else the machine does meets both; the
//! middle of the results counts. Processor time is that of the processes that serve a mount, not of the program
//! that uses it. All is bounded: programs that take too long are ended, and then the run fails.

mod place;
mod program;
mod report;
mod side;
mod tree;
mod work;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::packages;
use place::Place;
use report::Report;
use side::Side;
use work::{WORKS, Work};

/// What the measurement needs beside the kernel's FUSE.
const NEEDS: &[(&str, &str)] = &[
    ("fusermount3", "fuse3"),
    ("bindfs", "bindfs"),
    ("fio", "fio"),
    ("tar", "tar"),
];

pub const USAGE: &str = "\
cargo xtask figures [--rounds N] [--data DIR] [--json FILE]
    measures a mount of four replicas beside a plain FUSE passthrough (bindfs): unpacking 2,000 files, 512 MiB written
    and read in order, 4 KiB random reads and writes, processor time, memory. N rounds (3 unless told) of both in turn;
    DIR (target/figures) says which disk. Needs the Debian packages bindfs and fio, and a machine that does nothing else";

/// How long one work may take.
const WORK_LIMIT: Duration = Duration::from_secs(900);

struct Options {
    rounds: usize,
    data: PathBuf,
    json: Option<PathBuf>,
}

pub fn main(args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    let missing = packages::missing(NEEDS);
    if !missing.is_empty() {
        return Err(format!("missing: apt-get install {}", missing.join(" ")));
    }
    let quorate = crate::up::build()?;
    let place = Place::make(&options.data)?;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tree = tree::pack(place.path())?;
    let sides = [
        Side::passthrough(place.path())?,
        Side::quorate(place.path(), &quorate)?,
    ];
    let mut report = Report::new(options.rounds, load.trim());
    let steps = options.rounds * WORKS.len() * sides.len();
    let progress = progress(steps as u64)?;
    for round in 0..options.rounds {
        for work in WORKS {
            for turn in 0..sides.len() {
                let side = &sides[(round + turn) % sides.len()];
                progress.set_message(format!("{} on {}", work.name, side.name()));
                let before = side.cpu();
                let result = in_time(work, side, &tree)
                    .map_err(|e| format!("{} on {}: {e}", work.name, side.name()))?;
                report.note(work, side, result, side.cpu() - before);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    for side in &sides {
        report.note_memory(side);
    }
    for side in sides {
        side.stop()?;
    }
    print!("{}", report.table());
    if let Some(file) = &options.json {
        let text = format!("{:#}\n", report.json());
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// Does a work in a thread of its own: one that hangs in a mount hangs until the mount is ended.
fn in_time(work: &'static Work, side: &Side, tree: &Path) -> Result<f64, String> {
    let (result, done) = mpsc::channel();
    let (mount, beneath, tree) = (side.directory(), side.beneath(), tree.to_owned());
    std::thread::spawn(move || {
        // Nobody is there to hear it if it took too long.
        let _ = result.send((work.run)(&mount, &beneath, &tree));
    });
    done.recv_timeout(WORK_LIMIT)
        .unwrap_or_else(|_| Err("took too long".into()))
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        rounds: 3,
        data: crate::up::target().join("figures"),
        json: None,
    };
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match name.as_str() {
            "--rounds" => options.rounds = value.parse().map_err(|_| USAGE)?,
            "--data" => options.data = value.into(),
            "--json" => options.json = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    match options.rounds {
        1..=99 => Ok(options),
        _ => Err("--rounds: from 1 to 99".into()),
    }
}

fn progress(steps: u64) -> Result<ProgressBar, String> {
    let style = ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {pos}/{len} {msg}");
    let bar = ProgressBar::new(steps).with_style(style.map_err(|e| e.to_string())?);
    bar.enable_steady_tick(Duration::from_millis(500));
    Ok(bar)
}

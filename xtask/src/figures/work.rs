//! What is done on each mount.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use super::program;

/// How much is written and read in order.
const BYTES: u64 = 512 << 20;
const STEP: usize = 1 << 20;
/// The file in which reads and writes happen at random places, how many at most, and for how long at most.
const RANDOM_FILE: &str = "64M";
const RANDOM_BYTES: &str = "32M";
const RANDOM_SECONDS: &str = "20";

/// A kind of work: on a mount, with the directory beneath it if there is one, and the archive.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub name: &'static str,
    pub unit: &'static str,
    /// Whether a small result is a good one.
    pub less_is_better: bool,
    pub run: fn(&Path, &Path, &Path) -> Result<f64, String>,
}

const fn rate(
    name: &'static str,
    unit: &'static str,
    run: fn(&Path, &Path, &Path) -> Result<f64, String>,
) -> Work {
    Work {
        name,
        unit,
        less_is_better: false,
        run,
    }
}

/// In this order: later ones use what earlier ones have left.
pub const WORKS: &[Work] = &[
    Work {
        name: "unpack 2,000 files",
        unit: "s",
        less_is_better: true,
        run: unpack,
    },
    rate("write 512 MiB, fsync", "MB/s", write),
    rate("read it again", "MB/s", read),
    rate("read it cold", "MB/s", read_cold),
    rate("4 KiB random read", "1/s", random_read),
    rate("4 KiB random write", "1/s", random_write),
];

fn unpack(mount: &Path, _: &Path, archive: &Path) -> Result<f64, String> {
    let target = mount.join("unpacked");
    if target.exists() {
        std::fs::remove_dir_all(&target).map_err(|e| e.to_string())?;
    }
    std::fs::create_dir(&target).map_err(|e| e.to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(&target);
    let (_, took) = timed(|| program::run(&mut tar))?;
    Ok(took.as_secs_f64())
}

fn write(mount: &Path, _: &Path, _: &Path) -> Result<f64, String> {
    let path = mount.join("large");
    let _ = std::fs::remove_file(&path);
    // Not zeros, which some stores treat apart.
    let block: Vec<u8> = (0..STEP).map(|n| (n * 31 % 251) as u8).collect();
    let (_, took) = timed(|| {
        let mut file = File::create(&path)?;
        for _ in 0..BYTES / STEP as u64 {
            file.write_all(&block)?;
        }
        file.sync_all()
    })
    .map_err(|e: std::io::Error| e.to_string())?;
    Ok(megabytes_a_second(took))
}

fn read(mount: &Path, _: &Path, _: &Path) -> Result<f64, String> {
    read_all(&mount.join("large")).map_err(|e| e.to_string())
}

/// With nothing of it in the kernel's page cache, neither the mount's nor the disk's beneath.
fn read_cold(mount: &Path, beneath: &Path, _: &Path) -> Result<f64, String> {
    for path in [mount.join("large"), beneath.join("large")] {
        if let Ok(file) = File::open(path) {
            fadvise(&file, 0, None, Advice::DontNeed).map_err(|e| e.to_string())?;
        }
    }
    read_all(&mount.join("large")).map_err(|e| e.to_string())
}

fn read_all(path: &Path) -> std::io::Result<f64> {
    let mut block = vec![0; STEP];
    let (_, took) = timed(|| {
        let mut file = File::open(path)?;
        while file.read(&mut block)? > 0 {}
        Ok::<_, std::io::Error>(())
    })?;
    Ok(megabytes_a_second(took))
}

/// Past the page cache of the mount: what the file system itself does.
fn random_read(mount: &Path, _: &Path, _: &Path) -> Result<f64, String> {
    let job = fio(mount, &["--rw=randread", "--direct=1"])?;
    number(&job, "/jobs/0/read/iops")
}

/// Up to and with the last byte's way to the disk.
fn random_write(mount: &Path, _: &Path, _: &Path) -> Result<f64, String> {
    let job = fio(mount, &["--rw=randwrite", "--end_fsync=1"])?;
    let count = number(&job, "/jobs/0/write/total_ios")?;
    let took_ms = number(&job, "/jobs/0/job_runtime")?;
    Ok(count * 1_000.0 / took_ms.max(1.0))
}

fn fio(mount: &Path, options: &[&str]) -> Result<Value, String> {
    let mut fio = Command::new("fio");
    fio.arg("--name=random").arg("--filename=random");
    fio.args(["--bs=4k", "--ioengine=psync", "--output-format=json"]);
    fio.arg(format!("--size={RANDOM_FILE}"));
    fio.arg(format!("--io_size={RANDOM_BYTES}"));
    fio.arg(format!("--runtime={RANDOM_SECONDS}"));
    let text = program::run(fio.args(options).current_dir(mount))?;
    // Notes may come before it.
    let json = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(json).map_err(|e| format!("fio: {e}"))
}

fn number(job: &Value, at: &str) -> Result<f64, String> {
    let number = job.pointer(at).and_then(Value::as_f64);
    number.ok_or(format!("fio does not say {at}"))
}

fn megabytes_a_second(took: Duration) -> f64 {
    BYTES as f64 / 1e6 / took.as_secs_f64().max(1e-9)
}

#[allow(clippy::disallowed_methods)] // Times are what is measured.
fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let started = Instant::now();
    work().map(|value| (value, started.elapsed()))
}

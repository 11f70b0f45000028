//! Runs the committed corpus and mutations of it, without a fuzzer: what CI can do anywhere. The same every time.
//!
//! `replay [--mutations N] [--seed S] [TARGET | FILE]...`: N inputs of a cheap target, fewer of a dear one. A FILE is run
//! alone, through the target that its directory is named after.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quorate_fuzz::{TARGETS, Target};

const USAGE: &str = "replay [--mutations N] [--seed S] [TARGET | FILE]...";
/// The longest input that a mutation makes.
const LONGEST: usize = 4096;

struct Options {
    mutations: u32,
    seed: u64,
    targets: Vec<&'static Target>,
    files: Vec<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        mutations: 0,
        seed: 1,
        targets: Vec::new(),
        files: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok()).ok_or(USAGE);
        match arg.as_str() {
            "--mutations" => options.mutations = number()? as u32,
            "--seed" => options.seed = number()?,
            name => match TARGETS.iter().find(|t| t.name == name) {
                Some(target) => options.targets.push(target),
                None if Path::new(name).is_file() => options.files.push(name.into()),
                None => {
                    let known = quorate_fuzz::names();
                    return Err(format!("{name} is no file and none of {known}\n{USAGE}"));
                }
            },
        }
    }
    if options.targets.is_empty() && options.files.is_empty() {
        options.targets = TARGETS.iter().collect();
    }
    Ok(options)
}

fn main() -> ExitCode {
    let done = options().and_then(|options| {
        for file in &options.files {
            alone(file)?;
        }
        options
            .targets
            .iter()
            .try_for_each(|target| run(target, &options))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn alone(file: &Path) -> Result<(), String> {
    let directory = file.parent().and_then(Path::file_name);
    let target = TARGETS
        .iter()
        .find(|t| directory.is_some_and(|d| d == t.name));
    let target = target.ok_or("the file's directory is no target's name")?;
    let data = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    attempt(target, &data)
}

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn corpus(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    let directory = home().join("corpus").join(target.name);
    let entries = fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    // In the order of names, so that each run is the same.
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let data = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        files.insert(path, data);
    }
    match files.is_empty() {
        true => Err(format!("{} is empty", directory.display())),
        false => Ok(files.into_values().collect()),
    }
}

#[allow(clippy::disallowed_methods)] // For people, who want to know what takes long.
fn run(target: &Target, options: &Options) -> Result<(), String> {
    let started = std::time::Instant::now();
    let corpus = corpus(target)?;
    for data in &corpus {
        attempt(target, data)?;
    }
    let mut dice = Dice(options.seed ^ 0x9e37_79b9_7f4a_7c15);
    let mutations = options.mutations / target.cost;
    for _ in 0..mutations {
        attempt(target, &mutate(&corpus, &mut dice))?;
    }
    println!(
        "{:16} {} inputs of the corpus and {mutations} mutations, {:.1} s",
        target.name,
        corpus.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Runs one input; one that fails is written down.
fn attempt(target: &Target, data: &[u8]) -> Result<(), String> {
    let ran = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    if ran.is_ok() {
        return Ok(());
    }
    let directory = home().join("artifacts").join(target.name);
    let sum = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = directory.join(format!("crash-{sum:016x}"));
    let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, data));
    written.map_err(|e| format!("{}: {e}", path.display()))?;
    Err(format!(
        "{} failed; its input is {}",
        target.name,
        path.display()
    ))
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
}

/// An input of the corpus with a few changes.
fn mutate(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut data = corpus[dice.below(corpus.len())].clone();
    for _ in 0..=dice.below(6) {
        let at = dice.below(data.len() + 1);
        let some = 1 + dice.below(8);
        let end = (at + some).min(data.len());
        match dice.below(8) {
            0 if at < data.len() => data[at] ^= 1 << dice.below(8),
            1 if at < data.len() => data[at] = dice.roll() as u8,
            2 if at < data.len() => data[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5)],
            3 => drop(data.splice(at..at, dice.roll().to_le_bytes().into_iter().take(some))),
            4 => drop(data.drain(at..end)),
            5 => {
                let part = data[at..end].to_vec();
                let to = dice.below(data.len() + 1);
                data.splice(to..to, part);
            }
            6 => {
                let other = &corpus[dice.below(corpus.len())];
                let from = dice.below(other.len() + 1);
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => data.truncate(data.len() - dice.below(data.len() / 2 + 1)),
        }
        data.truncate(LONGEST);
    }
    data
}

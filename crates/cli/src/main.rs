//! The `quorate` command.

#[macro_use]
mod words;

mod args;
mod commands;
mod operators;
mod paths;
mod supervision;
mod tpm;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use args::{Args, Command, MountHelper};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As what mount(8) looks for a helper.
const MOUNT_HELPER: &str = "mount.quorate";
/// Its exit code where nothing is mounted (mount(8)).
const MOUNT_FAILURE: u8 = 32;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called).file_name() == Some(MOUNT_HELPER.as_ref()) {
        return mount_helper();
    }
    let args = args();
    start_logging(args.verbose);
    words::ended(run(args))
}

fn run(args: Args) -> ExitCode {
    let verbose = args.verbose;
    let result = match args.command {
        Command::Up(args) => commands::up::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Keygen(args) => commands::keygen::run(&args),
        Command::Keyholder(args) => commands::keyholder::run(&args),
        Command::Replica(args) => return commands::replica::run(&args),
        Command::Supervise(args) => commands::supervise::run(&args),
        Command::Programs(args) => commands::programs::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
        Command::Schedule(args) => commands::recover::schedule(&args),
        Command::Mount(args) => commands::mount::run(&args, verbose),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Nfs(args) => commands::nfs::run(&args),
        Command::Route(args) => commands::route::run(&args),
        Command::Volume(args) => commands::volume::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Grant(args) => commands::grant::run(&args),
        Command::Delegate(args) => commands::grant::delegate(&args),
        Command::Revoke(args) => commands::revoke::run(&args),
        Command::Shares(args) => commands::sharing::shares(&args),
        Command::Audit(args) => commands::audit::run(&args),
        Command::Quota(args) => match commands::quota::run(&args) {
            Ok(code) => return code,
            Err(e) => Err(e),
        },
        Command::Credential(args) => return commands::credential::run(&args),
        Command::Evidence(args) => return commands::evidence::run(&args),
        Command::Status(args) => return commands::status::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&e),
    }
}

/// As [`Parser::parse`], with help that flows.
fn args() -> Args {
    let mut command = args::help::flowing(Args::command());
    let read = Args::from_arg_matches(&command.get_matches_mut());
    read.unwrap_or_else(|error| error.format(&mut command).exit())
}

fn mount_helper() -> ExitCode {
    let helper = match MountHelper::try_parse() {
        Ok(helper) => helper,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    start_logging(helper.verbose);
    match commands::mount::run_as_helper(helper) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            fail(&e);
            ExitCode::from(MOUNT_FAILURE)
        }
    }
}

/// Says what went wrong, outermost first, and gives the exit code of a failure.
fn fail(error: &anyhow::Error) -> ExitCode {
    say!("quorate: {}", words::of(error));
    ExitCode::FAILURE
}

fn start_logging(verbose: u8) {
    let default = match verbose {
        // fuser complains when somebody else has unmounted or a program was interrupted, as is usual.
        0 => "warn,fuser=off",
        1 => "info,fuser=off",
        2 => "quorate=debug,info",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("QUORATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say so where the line could not be written, and panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

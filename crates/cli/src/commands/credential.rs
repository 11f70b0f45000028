//! `quorate credential`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use quorate_credential::armour::{self, Armoured, Summary};
use quorate_credential::{Chain, Grant, Refusal, Rights, Trust, VolumeId, calendar};
use quorate_net::Group;
use quorate_wire::PublicKey;
use serde_json::{Value, json};

use crate::args::{Credential, Show, Verify};
use crate::{paths, words};

pub fn run(args: &Credential) -> ExitCode {
    let done = match args {
        Credential::Show(args) => show(args),
        Credential::Verify(args) => verify(args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            say!("quorate: {}", words::of(&e));
            ExitCode::from(2)
        }
    }
}

/// The time since 1970 on this machine's clock.
#[allow(
    clippy::disallowed_methods,
    reason = "people mean their own now; replicas have theirs"
)]
fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// This machine's time in seconds.
pub fn now() -> u64 {
    since_1970().as_secs()
}

/// This machine's time in nanoseconds, until the year 2554.
pub fn nanoseconds() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a credential from a file, or from standard input if that is `-`. Says so if its summary is not true.
pub fn read(file: &Path) -> Result<Armoured> {
    let name = match file.to_str() {
        Some("-") => "standard input".into(),
        _ => file.display().to_string(),
    };
    let from: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(file).with_context(|| name.clone())?),
    };
    // One byte more than is read as a credential, so that what is cut off here is refused there.
    let mut bytes = Vec::new();
    let taken = from
        .take(armour::MAX_TEXT as u64 + 1)
        .read_to_end(&mut bytes);
    taken.with_context(|| name.clone())?;
    let read =
        armour::read(&String::from_utf8_lossy(&bytes)).map_err(|e| anyhow!("{name}: {e}"))?;
    if read.summary == Summary::Untrue {
        say!(
            "quorate: the words in front of the credential in {name} are not what is signed: do not believe them"
        );
    }
    Ok(read)
}

/// The same, where somebody wants to know what it says: tells too where words were compared with nothing.
fn read_to_tell(file: &Path) -> Result<Armoured> {
    let read = read(file)?;
    if read.summary == Summary::NotFound {
        say!(
            "quorate: there are words in front of the credential, but no summary that could be compared with what is signed: what they say of it counts for nothing"
        );
    }
    Ok(read)
}

fn show(args: &Show) -> Result<bool> {
    let read = read_to_tell(&args.file)?;
    if args.json {
        tell!("{}", as_json(&read));
    } else {
        words::put(&armour::summary(&read.chain));
    }
    Ok(read.summary != Summary::Untrue)
}

fn verify(args: &Verify) -> Result<bool> {
    let read = read_to_tell(&args.file)?;
    let file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let group = Group::load(&file)?;
    if args.owner.is_none() && group.owner().is_none() {
        bail!(
            "{} names no owner: say whose credentials count (--owner KEY)",
            file.display()
        );
    }
    let owners: Vec<PublicKey> = match args.owner {
        Some(owner) => vec![owner],
        None => group.owner().into_iter().collect(),
    };
    let trust = Trust {
        volume: VolumeId(group.id()),
        owners: &owners,
    };
    let judged = judge(
        &read.chain,
        &trust,
        args.subject,
        args.at.unwrap_or_else(now),
    );
    let holds = judged.is_ok() && read.summary != Summary::Untrue;
    if args.json {
        let mut out = as_json(&read);
        out["holds"] = json!(judged.is_ok());
        out["reason"] = json!(judged.err().map(|why| why.to_string()));
        tell!("{out}");
    } else {
        tell!("{}", verdict(&judged, read.summary));
    }
    Ok(holds)
}

fn judge(
    chain: &Chain,
    trust: &Trust,
    subject: Option<PublicKey>,
    at: u64,
) -> Result<Grant, Refusal> {
    let grant = chain.verify(trust)?;
    grant.holds(subject.unwrap_or(grant.subject), at, Rights::NONE)?;
    Ok(grant)
}

fn verdict(judged: &Result<Grant, Refusal>, summary: Summary) -> String {
    let signed = match judged {
        Ok(grant) => format!(
            "it holds until {} UTC: {} may {}",
            calendar::show(grant.window.not_after),
            grant.subject,
            grant.rights
        ),
        Err(why) => format!("it does not hold: {why}"),
    };
    match summary {
        Summary::Untrue => format!(
            "its summary is untrue: do not take it from whoever sent it. Of what is signed, which says something else: {signed}"
        ),
        Summary::True | Summary::Missing | Summary::NotFound => signed,
    }
}

fn as_json(read: &Armoured) -> Value {
    let chain = &read.chain;
    let links = links_json(chain);
    json!({
        "id": chain.id().to_string(),
        "volume": chain.volume().0.to_string(),
        "owner": chain.owner().to_string(),
        "links": links,
        "summary": match read.summary {
            Summary::True => "true",
            Summary::Missing => "missing",
            Summary::NotFound => "not found",
            Summary::Untrue => "untrue",
        },
    })
}

/// What the links of a credential say.
pub fn links_json(chain: &Chain) -> Vec<Value> {
    let links = chain.links().iter().enumerate().map(|(at, link)| {
        let terms = &link.terms;
        let caveats = terms.caveats.iter().map(ToString::to_string);
        json!({
            "issuer": chain.issuer(at).to_string(),
            "subject": terms.subject.to_string(),
            "object": terms.scope.object.to_string(),
            "subtree": terms.scope.subtree,
            "rights": terms.rights.names().collect::<Vec<_>>(),
            "not_before": terms.window.not_before,
            "not_after": terms.window.not_after,
            "depth": terms.depth,
            "serial": terms.serial.to_string(),
            "caveats": caveats.collect::<Vec<_>>(),
        })
    });
    links.collect()
}

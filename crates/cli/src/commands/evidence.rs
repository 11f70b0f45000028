//! `quorate evidence`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use quorate_net::Group;
use quorate_node::daemon::evidence::files;
use quorate_wire::Decode;
use quorate_wire::evidence::{Certificate, Evidence, Kept, Kind, NoProof, Subject};
use quorate_wire::message::{PeerMessage, SignedMessage};
use serde_json::{Value, json};

use crate::args;
use crate::{paths, words};

pub fn run(args: &args::Evidence) -> ExitCode {
    let done = match args {
        args::Evidence::List(args) => list(args),
        args::Evidence::Show(args) => show(args),
        args::Evidence::Verify(args) => verify(args),
    };
    match done {
        Ok(code) => code,
        Err(e) => {
            say!("quorate: {}", words::of(&e));
            ExitCode::from(2)
        }
    }
}

/// What a file comes to.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    Convicts,
    OtherGroup,
    Nothing(NoProof),
}

impl Verdict {
    fn of(kept: &Kept, group: &Group) -> Verdict {
        if kept.group != group.id() {
            return Verdict::OtherGroup;
        }
        match kept.evidence.verify(group.quorum(), &group.signing_keys()) {
            Ok(_) => Verdict::Convicts,
            Err(reason) => Verdict::Nothing(reason),
        }
    }

    fn words(self) -> String {
        match self {
            Verdict::Convicts => "proved".into(),
            Verdict::OtherGroup => "it is about another group".into(),
            Verdict::Nothing(reason) => format!("it proves nothing: {reason}"),
        }
    }
}

fn load_group(named: Option<&PathBuf>) -> Result<(PathBuf, Group)> {
    let file = match named {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let group = Group::load(&file)?;
    Ok((file, group))
}

fn load(file: &Path) -> Result<Kept> {
    let name = || format!("reading {}", file.display());
    let bytes = fs::read(file).with_context(name)?;
    Kept::from_file(&bytes.into()).with_context(name)
}

fn list(args: &args::EvidenceList) -> Result<ExitCode> {
    let (file, group) = load_group(args.group.as_ref())?;
    let directories = match &args.data {
        Some(data) => vec![data.clone()],
        None => {
            let beside = paths::beside(&file);
            let ids = group.quorum().replicas();
            ids.map(|id| paths::replica(&beside, id.0)).collect()
        }
    };
    let mut found = Vec::new();
    let mut is_any = false;
    for data in &directories {
        match files(data) {
            Ok(files) => {
                is_any = true;
                found.extend(files);
            }
            // Of several replicas those that run elsewhere are not here.
            Err(e) if args.data.is_none() && e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e).with_context(|| format!("the evidence of {}", data.display()));
            }
        }
    }
    if !is_any {
        bail!(
            "there is no replica's directory beside {}: say where it is (--data)",
            file.display()
        );
    }
    let mut all = Vec::new();
    for path in found {
        let judged = load(&path).map(|kept| {
            let verdict = Verdict::of(&kept, &group);
            (kept.evidence.subject(group.quorum()).ok(), verdict)
        });
        if args.json {
            all.push(line_json(&path, judged));
        } else {
            tell!("{}: {}", path.display(), line(judged));
        }
    }
    if args.json {
        tell!("{}", json!({ "group": group.name(), "evidence": all }));
    }
    Ok(ExitCode::SUCCESS)
}

fn line(judged: Result<(Option<Subject>, Verdict)>) -> String {
    match judged {
        Ok((Some(subject), verdict)) => format!("{}; {}", about(&subject), verdict.words()),
        Ok((None, verdict)) => verdict.words(),
        Err(e) => words::of(&e),
    }
}

fn line_json(path: &Path, judged: Result<(Option<Subject>, Verdict)>) -> Value {
    let (subject, verdict, error) = match judged {
        Ok((subject, verdict)) => (subject, Some(verdict), None),
        Err(e) => (None, None, Some(words::of(&e))),
    };
    json!({
        "file": path.display().to_string(),
        "proved": matches!(verdict, Some(Verdict::Convicts)),
        "reason": verdict.map(Verdict::words).or(error),
        "about": subject.as_ref().map(about_json),
    })
}

fn about(subject: &Subject) -> String {
    if subject.kind == Kind::State {
        return format!(
            "replica {} signed a state for place {} that is not what f+1 others have signed",
            subject.replica, subject.seq.0
        );
    }
    format!(
        "replica {} signed two different {} messages (view {}, place {})",
        subject.replica, subject.kind, subject.view.0, subject.seq.0
    )
}

fn about_json(subject: &Subject) -> Value {
    json!({
        "replica": subject.replica.0,
        "kind": subject.kind.name(),
        "view": subject.view.0,
        "seq": subject.seq.0,
    })
}

fn show(args: &args::EvidenceFile) -> Result<ExitCode> {
    let kept = load(&args.file)?;
    let (first, second) = statements(&kept.evidence);
    if args.json {
        let group = kept.group.to_string();
        tell!(
            "{}",
            json!({ "group": group, "statements": [first, second] })
        );
    } else {
        tell!("group {}\none: {first}\nthe other: {second}", kept.group);
    }
    Ok(ExitCode::SUCCESS)
}

/// The two statements, for people.
fn statements(evidence: &Evidence) -> (String, String) {
    match evidence {
        Evidence::ViewChanges(two) => (
            format!("{:?}", two.first.body),
            format!("{:?}", two.second.body),
        ),
        Evidence::NewViews(two) => (
            format!("{:?}", two.first.body),
            format!("{:?}", two.second.body),
        ),
        Evidence::Messages(two) => (words_of(&two.first), words_of(&two.second)),
        Evidence::Checkpoint(wrong) => {
            (words_of(&wrong.said), certificate_words(&wrong.certificate))
        }
        Evidence::Piece(wrong) => {
            let piece = wrong.piece().map(|(name, bytes)| {
                let name = name.escape_ascii();
                format!("{} bytes as what is at {name}, with another digest than the nodes above give it", bytes.len())
            });
            let piece = piece.unwrap_or_else(|| "no piece".into());
            (piece, certificate_words(&wrong.certificate))
        }
    }
}

fn certificate_words(certificate: &Certificate) -> String {
    let signed = certificate.signed.iter();
    let words = signed.map(|(replica, m)| format!("replica {replica}: {}", words_of(m)));
    words.collect::<Vec<_>>().join("; ")
}

fn words_of(m: &SignedMessage) -> String {
    match PeerMessage::from_bytes(m.content.clone()) {
        // The requests in it are not what it is about, and may be long.
        Ok(PeerMessage::PrePrepare(m)) => format!(
            "PrePrepare {{ view: {:?}, seq: {:?}, batch: {:?} }}",
            m.view, m.seq, m.batch
        ),
        Ok(message) => format!("{message:?}"),
        Err(e) => format!("no message: {e}"),
    }
}

fn verify(args: &args::EvidenceFile) -> Result<ExitCode> {
    let (_, group) = load_group(args.group.as_ref())?;
    let kept = load(&args.file)?;
    let verdict = Verdict::of(&kept, &group);
    let subject = kept.evidence.subject(group.quorum()).ok();
    if args.json {
        let mut out = line_json(&args.file, Ok((subject, verdict)));
        out["group"] = json!(kept.group.to_string());
        tell!("{out}");
    } else {
        tell!("{}", line(Ok((subject, verdict))));
    }
    let proved = matches!(verdict, Verdict::Convicts);
    Ok(ExitCode::from(u8::from(!proved)))
}

//! `quorate audit`: the audit log, had from the group and checked; and an export of it, checked by itself.

use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quorate_credential::calendar;
use quorate_files::answer::{AuditRow, Decision};
use quorate_files::op::{self, MAX_ROWS};
use quorate_files::{Ino, Stamp, Who};
use quorate_net::hex;
use quorate_wire::Digest;
use serde_json::{Value, json};

use super::revocations;
use super::sharing::{SHORT, as_member, ask, manager, short};
use crate::args::{Audit, AuditCommand, AuditVerify};

/// What the actions of the audit log are called, by their numbers.
const ACTIONS: [&str; 44] = [
    "",
    "ping",
    "lookup",
    "getattr",
    "setattr",
    "access",
    "open",
    "create",
    "release",
    "read",
    "write",
    "mkdir",
    "mknod",
    "symlink",
    "readlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "readdir",
    "statfs",
    "fsync",
    "fallocate",
    "seek",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "lock",
    "",
    "create",
    "copy",
    "bring",
    "revoke",
    "grants",
    "audit",
    "setquota",
    "adopt",
    "quotas",
    "statfs",
    "checkopen",
    "hold",
    "restore",
    "revocations",
];

pub fn run(args: &Audit) -> Result<()> {
    if let Some(AuditCommand::Verify(verified)) = &args.command {
        return verify(verified);
    }
    let (group, key) = manager(&args.manager)?;
    let (rows, last) = ask(&group, &as_member(&group, &key)?, async |volume| {
        let (mut rows, mut from): (Vec<AuditRow>, u64) = (Vec::new(), args.from);
        loop {
            let op = op::Audit {
                from,
                count: MAX_ROWS,
            };
            let part = volume
                .audit(&Who::root(), op)
                .await
                .context("reading the log")?;
            let last = part.rows.last().map(|row| row.sequence);
            rows.extend(part.rows);
            let end = (part.head, part.untold);
            match last {
                // Who is asked later may have more rows; the head is of all that there were when the last part was read.
                Some(last) if last + 1 < part.next => from = last + 1,
                _ => return Ok((rows, end)),
            }
        }
    })?;
    let (head, untold) = last;
    if !args.json {
        tell!(
            "{:>6}  {:19}  {:SHORT$}  {:12}  {:>8}  DECISION",
            "ROW",
            "TIME",
            "WHO",
            "WHAT",
            "OBJECT"
        );
    }
    for row in &rows {
        match args.json {
            true => tell!("{}", row_json(row)),
            false => tell!("{}", row_text(row)),
        }
    }
    if args.json {
        tell!("{}", json!({ "head": head.to_string() }));
    }
    if untold > 0 {
        say!(
            "quorate: {untold} operations that changed nothing have no row: they were as the one before, or of guests who had used up their share"
        );
    }
    check(&rows, &head)
}

/// `quorate audit verify`: no group is asked.
fn verify(args: &AuditVerify) -> Result<()> {
    let file = || args.file.display().to_string();
    let opened =
        std::fs::File::open(&args.file).with_context(|| format!("can't read {}", file()))?;
    let mut seen = Seen::default();
    for (line, at) in BufReader::new(opened).lines().zip(1..) {
        let line = line.with_context(|| format!("can't read {}", file()))?;
        seen.line(&line)
            .with_context(|| format!("{}, line {at}", file()))?;
    }
    let head = seen.end(args.head).with_context(file)?;
    if let Some(first) = args.first {
        seen.begins_with(first).with_context(file)?;
    }
    tell!("{}", seen.verdict(&head));
    Ok(())
}

/// What an exported log has said up to a line.
#[derive(Default)]
struct Seen {
    /// The first row's number, and the last row.
    rows: Option<(u64, AuditRow)>,
    head: Option<Digest>,
}

impl Seen {
    fn line(&mut self, line: &str) -> Result<()> {
        let value: Value = serde_json::from_str(line).context("it is no JSON")?;
        if self.head.is_some() {
            bail!("there is more after the head");
        }
        if let Some(head) = value.get("head") {
            self.head = Some(digest(head)?);
            return Ok(());
        }
        let row = row_from(&value)?;
        if row_json(&row) != value {
            bail!("its words say something else than its numbers, or there is more in it");
        }
        let first = match &self.rows {
            Some((first, before)) => {
                bound(before, &row)?;
                *first
            }
            None => row.sequence,
        };
        self.rows = Some((first, row));
        Ok(())
    }

    /// Whether nothing is missing at its beginning, which no digest tells: older rows are let go of.
    fn begins_with(&self, wanted: u64) -> Result<()> {
        match &self.rows {
            Some((first, _)) if *first == wanted => Ok(()),
            Some((first, _)) => bail!("it begins with row {first}, and not {wanted}"),
            None => bail!("it has no rows, and is to begin with row {wanted}"),
        }
    }

    /// What is known of an export that has come to its end.
    fn verdict(&self, head: &Digest) -> String {
        match &self.rows {
            Some((0, last)) => format!("rows 0 to {} are bound, head {head}", last.sequence),
            Some((first, last)) => format!(
                "rows {first} to {} are bound, head {head}\nit begins with row {first}: rows before it are not in this file, and nothing is known of them",
                last.sequence
            ),
            None => format!(
                "no rows, head {head}\nnothing was verified but that the file has the form of an export: no row is bound to the head"
            ),
        }
    }

    /// The head, if all is bound to it; and to what somebody has kept elsewhere.
    fn end(&self, kept: Option<Digest>) -> Result<Digest> {
        let head = self
            .head
            .context("it does not end with the head: a part is missing")?;
        if let Some((_, last)) = &self.rows {
            ends_with(last, &head)?;
        }
        match kept {
            Some(kept) if kept != head => bail!("its head is {head}, and not {kept}"),
            _ => Ok(head),
        }
    }
}

/// Whether each row is bound to the one before, and the last to what the group vouches for.
fn check(rows: &[AuditRow], head: &Digest) -> Result<()> {
    for pair in rows.windows(2) {
        let [before, row] = pair else { continue };
        bound(before, row)?;
    }
    rows.last().map_or(Ok(()), |last| ends_with(last, head))
}

fn bound(before: &AuditRow, row: &AuditRow) -> Result<()> {
    if row.before != before.digest() || before.sequence.checked_add(1) != Some(row.sequence) {
        bail!(
            "row {} is not bound to the one before: the log was changed",
            row.sequence
        );
    }
    Ok(())
}

fn ends_with(last: &AuditRow, head: &Digest) -> Result<()> {
    if last.digest() != *head {
        bail!(
            "row {} is not the last that the group vouches for",
            last.sequence
        );
    }
    Ok(())
}

fn action(row: &AuditRow) -> &'static str {
    ACTIONS.get(usize::from(row.action)).copied().unwrap_or("?")
}

fn decision(row: &AuditRow) -> &'static str {
    match row.decision {
        Decision::Denied => "denied",
        Decision::Allowed => "allowed",
    }
}

fn row_text(row: &AuditRow) -> String {
    let seconds = u64::try_from(row.time.secs).unwrap_or(0);
    let error = row.error().map(|errno| format!(": {errno}"));
    let held = row.held.iter().skip(1);
    let others: String = [&row.other, &row.child]
        .into_iter()
        .chain(held)
        .filter(|other| other.0 > 0)
        .map(|other| format!(" (and {})", other.0))
        .collect();
    let revoked = row.revoked.as_ref();
    let revoked = revoked.map(|what| format!(" {}", revocations::words(what)));
    // The link that is taken back to end it; those above are in the export.
    let link = row.links.last();
    let link = link.map(|link| format!("{} of {}", link.serial, short(&link.issuer)));
    let by = match (action(row), link) {
        ("bring", Some(link)) => format!(" {link}"),
        (_, Some(link)) => format!(" by {link}"),
        (_, None) => String::new(),
    };
    let tags = match row.tags.is_empty() {
        true => String::new(),
        false => format!(" [{}]", row.tag_text()),
    };
    format!(
        "{:>6}  {:19}  {:SHORT$}  {:12}  {:>8}  {}{}{others}{by}{}{tags}",
        row.sequence,
        calendar::show(seconds),
        short(&row.subject),
        action(row),
        row.object.0,
        decision(row),
        error.unwrap_or_default(),
        revoked.unwrap_or_default(),
    )
}

/// All that the row's digest is over, and the words for it.
fn row_json(row: &AuditRow) -> Value {
    let links = row.links.iter().map(
        |link| json!({ "issuer": link.issuer.to_string(), "serial": link.serial.to_string() }),
    );
    json!({
        "sequence": row.sequence,
        "before": row.before.to_string(),
        "time": row.time.secs,
        "nanos": row.time.nanos,
        "subject": row.subject.to_string(),
        "links": links.collect::<Vec<_>>(),
        "tags": row.tags.iter().map(|tag| String::from_utf8_lossy(tag)).collect::<Vec<_>>(),
        "action": action(row),
        "action_number": row.action,
        "object": row.object.0,
        "other": row.other.0,
        "child": row.child.0,
        "decision": decision(row),
        "error": row.error().map(|errno| errno.to_string()),
        "error_number": row.errno,
        "revoked": row.revoked.as_ref().map(revocations::what_json),
        "held": row.held.iter().map(|ino| ino.0).collect::<Vec<_>>(),
        "share": row.share.map(|key| key.to_string()),
        "untold": row.untold,
    })
}

/// The row that [`row_json`] has written.
fn row_from(value: &Value) -> Result<AuditRow> {
    let field = |name: &str| {
        let found = value.get(name);
        found.with_context(|| format!("{name} is missing"))
    };
    let number = |name: &str| {
        let found = field(name)?.as_u64();
        found.with_context(|| format!("{name} is no number"))
    };
    let list = |name: &str| {
        let found = field(name)?.as_array();
        found.with_context(|| format!("{name} is no list"))
    };
    let links = list("links")?.iter().map(revocations::serial_from);
    let held = list("held")?.iter().map(|ino| {
        let ino = ino.as_u64().context("what is held is no number")?;
        Ok(Ino(ino))
    });
    let share = Some(field("share")?).filter(|share| !share.is_null());
    let tags = list("tags")?.iter().map(|tag| {
        let tag = tag.as_str().context("a tag is no text")?;
        Ok(Bytes::copy_from_slice(tag.as_bytes()))
    });
    Ok(AuditRow {
        sequence: number("sequence")?,
        before: digest(field("before")?)?,
        time: Stamp {
            secs: field("time")?.as_i64().context("time is no number")?,
            nanos: number("nanos")?.try_into().context("nanos")?,
        },
        subject: revocations::key_from(field("subject")?)?,
        links: links.collect::<Result<_>>()?,
        tags: tags.collect::<Result<_>>()?,
        action: number("action_number")?
            .try_into()
            .context("action_number")?,
        object: Ino(number("object")?),
        other: Ino(number("other")?),
        child: Ino(number("child")?),
        decision: match field("decision")?.as_str() {
            Some("allowed") => Decision::Allowed,
            Some("denied") => Decision::Denied,
            _ => bail!("the decision is neither allowed nor denied"),
        },
        errno: number("error_number")?.try_into().context("error_number")?,
        revoked: revocations::what_from(field("revoked")?)?,
        held: held.collect::<Result<_>>()?,
        share: share.map(revocations::key_from).transpose()?,
        untold: number("untold")?,
    })
}

fn digest(value: &Value) -> Result<Digest> {
    let bytes = value.as_str().and_then(hex::decode32);
    Ok(Digest(bytes.context("64 hexadecimal digits are wanted")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_files::op::{Revoked, Serial};
    use quorate_wire::PublicKey;

    fn row(sequence: u64, before: Digest) -> AuditRow {
        AuditRow {
            sequence,
            before,
            time: Stamp { secs: 5, nanos: 0 },
            subject: PublicKey([7; 32]),
            links: Vec::new(),
            tags: Vec::new(),
            action: 10,
            object: Ino(2),
            other: Ino(0),
            child: Ino(0),
            decision: Decision::Allowed,
            errno: 0,
            revoked: None,
            held: Vec::new(),
            share: None,
            untold: 0,
        }
    }

    /// A row tells the last link of the credential by which something was done, or that was brought; where there is none, nothing.
    #[test]
    fn a_row_tells_the_serial() {
        let mut row = row(3, Digest::ZERO);
        assert!(row_text(&row).ends_with("allowed"), "{}", row_text(&row));
        row.links = [(8, 77), (9, 78)]
            .map(|(issuer, serial)| Serial {
                issuer: PublicKey([issuer; 32]),
                serial,
            })
            .into();
        row.tags.push("plan".into());
        let said = format!("allowed by 78 of {} [plan]", "09".repeat(SHORT / 2));
        assert!(row_text(&row).ends_with(&said), "{}", row_text(&row));
    }

    /// A log that was changed anywhere is noticed, also at its end.
    #[test]
    fn a_changed_log_is_noticed() {
        let first = row(0, Digest::ZERO);
        let second = row(1, first.digest());
        let third = row(2, second.digest());
        let (head, rows) = (third.digest(), vec![first, second, third]);
        assert!(check(&rows, &head).is_ok());
        assert!(check(&rows[1..], &head).is_ok());
        assert!(check(&[], &head).is_ok());
        assert!(check(&rows[..2], &head).is_err());
        for at in 0..3 {
            let mut changed = rows.clone();
            changed[at].object = Ino(3);
            assert!(check(&changed, &head).is_err(), "row {at}");
            let mut shorter = rows.clone();
            shorter.remove(at);
            assert_eq!(check(&shorter, &head).is_err(), at > 0, "without row {at}");
        }
    }

    fn said(lines: &[String]) -> Result<Digest> {
        let mut seen = Seen::default();
        lines.iter().try_for_each(|line| seen.line(line))?;
        seen.end(None)
    }

    /// What was exported says by itself whether it was changed, wherever that is.
    #[test]
    fn an_export_is_verified_without_a_group() {
        let mut first = row(3, Digest([1; 32]));
        let issuer = PublicKey([9; 32]);
        first.links.push(Serial {
            issuer,
            serial: u64::MAX,
        });
        first.tags.push("a \"tag\" of {it}".into());
        first.errno = 13;
        let mut second = row(4, first.digest());
        second.other = Ino(77);
        second.held = vec![Ino(2), Ino(79)];
        second.share = Some(issuer);
        second.untold = 3;
        second.child = Ino(78);
        second.decision = Decision::Denied;
        second.time.secs = -1;
        let of = Serial { issuer, serial: 5 };
        let revoked = [
            Revoked::Key(issuer),
            Revoked::Epoch(of.clone()),
            Revoked::Serial(of),
        ];
        let revoked = revoked.map(|what| AuditRow {
            revoked: Some(what),
            ..first.clone()
        });
        second.revoked = revoked[2].revoked.clone();
        let head = second.digest();
        for row in [&first, &second].into_iter().chain(&revoked) {
            let again: Value = serde_json::from_str(&row_json(row).to_string()).unwrap();
            assert_eq!(row_from(&again).unwrap(), *row);
        }
        let mut lines: Vec<String> = [&first, &second]
            .map(|row| row_json(row).to_string())
            .into();
        lines.push(json!({ "head": head.to_string() }).to_string());
        assert_eq!(said(&lines).unwrap(), head);
        for (old, new) in [
            ("\"object\":2", "\"object\":3"),
            ("\"other\":77", "\"other\":78"),
            ("\"child\":78", "\"child\":79"),
            ("\"held\":[2,79]", "\"held\":[2]"),
            ("\"untold\":3", "\"untold\":0"),
            ("\"share\":null", "\"share\":\"\""),
            ("\"kind\":\"serial\"", "\"kind\":\"epoch\""),
            ("\"revoked\":null", "\"revoked\":0"),
            ("\"nanos\":0", "\"nanos\":1"),
            ("\"write\"", "\"read\""),
            ("\"denied\"", "\"allowed\""),
            ("\"error_number\":13", "\"error_number\":0"),
            ("{it}", "{us}"),
            ("18446744073709551615", "1"),
        ] {
            let changed: Vec<String> = lines.iter().map(|line| line.replace(old, new)).collect();
            assert_ne!(changed, lines, "{old} is in it");
            assert!(said(&changed).is_err(), "{old}");
        }
        assert!(said(&lines[1..]).is_ok(), "older rows may be gone");
        assert!(said(&lines[..2]).is_err(), "its end may not");
        assert!(said(&[lines[0].clone(), lines[2].clone()]).is_err());
        let mut seen = Seen::default();
        lines.iter().for_each(|line| seen.line(line).unwrap());
        assert!(seen.end(Some(Digest::ZERO)).is_err(), "another head");
        assert!(seen.line(&lines[0]).is_err(), "more after the head");
    }

    /// An export whose first rows are not in it is bound all the same: that it begins later is told, and can be refused. One without rows shows nothing.
    #[test]
    fn what_is_not_in_an_export_is_told() {
        let first = row(0, Digest::ZERO);
        let second = row(1, first.digest());
        let head = second.digest();
        let rows = [first, second].map(|row| row_json(&row).to_string());
        let end = json!({ "head": head.to_string() }).to_string();
        for (cut, said) in [
            (0, "rows 0 to 1 are bound"),
            (
                1,
                "it begins with row 1: rows before it are not in this file",
            ),
            (2, "nothing was verified"),
        ] {
            let mut seen = Seen::default();
            let lines = rows[cut..].iter().chain([&end]);
            lines.for_each(|line| seen.line(line).unwrap());
            assert_eq!(seen.end(None).unwrap(), head);
            let verdict = seen.verdict(&head);
            assert!(verdict.contains(said), "{verdict}");
            assert_eq!(
                verdict.lines().count(),
                1 + usize::from(cut > 0),
                "{verdict}"
            );
            assert_eq!(seen.begins_with(0).is_ok(), cut == 0);
            assert_eq!(seen.begins_with(1).is_ok(), cut == 1);
        }
    }
}

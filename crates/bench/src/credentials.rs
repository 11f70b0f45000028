//! What credentials cost: a large file in order and the search of a source tree, on the local disk, on other file systems that are given, and on
//! groups of ours by who asks: a client that the group names, of which nothing is asked, and guests by chains of one and five links. After
//! DisCFS (Miltchev and others, 2003), Figures 5 to 7.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quorate_credential::{Caveat, Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window, armour};
use quorate_net::{Group, keys};
use quorate_wire::KeyPair;

use crate::files::figures::{self, figure};
use crate::files::service::Serving;
use crate::files::site::Unit;
use crate::files::system::{Kind, System, Way};
use crate::files::work::Work;
use crate::files::{self, Case, Files, OVER_NFS, Options, Row, ganesha};
use crate::report::{Report, Table};

/// Whom nothing is asked, and guests by chains of so many links.
const MEMBER: &str = "Quorate, no credential";
const GUESTS: [(&str, usize); 2] = [("Quorate, 1 link", 1), ("Quorate, 5 links", 5)];
/// How much slower than without credentials it may be, and how fast beside NFS.
const MOST_COST: f64 = 0.02;
const LEAST_OF_NFS: f64 = 0.80;

/// Nothing yet.
pub fn report(options: &Options) -> Files {
    Files {
        machine: Report::new("credentials", options.run.seconds, &options.run.data),
        files: Vec::new(),
        left_out: Vec::new(),
    }
}

/// Runs the benchmark.
///
/// # Errors
/// As of [`files::run`].
pub async fn run(options: &Options, files: &mut Files) -> Result<()> {
    let over_nfs = files::over_nfs(groups(Way::Nfs), files);
    let cases = [Work::Bonnie, Work::Search].map(|work| Case { work, wait_ms: 0 });
    let mounted = mounted(&options.beside);
    let parts = [(over_nfs, vec![OVER_NFS]), (mounted, cases.to_vec())];
    files::measure(options, &parts, files).await
}

fn mounted(given: &[(String, PathBuf)]) -> Vec<System> {
    let given = given.iter().map(|(name, directory)| System {
        name: name.clone(),
        kind: Kind::Given(directory.clone()),
    });
    let local = System {
        name: "local".into(),
        kind: Kind::Local,
    };
    let own = groups(Way::Mount);
    [local].into_iter().chain(given).chain(own).collect()
}

/// The groups by who asks.
fn groups(way: Way) -> Vec<System> {
    let system = |(name, links): (&str, usize)| System {
        name: name.into(),
        kind: Kind::Group {
            way,
            replicas: 4,
            workers: 1,
            one_by_one: false,
            serving: Serving::default(),
            chain: Some(links),
        },
    };
    let all = [(MEMBER, 0)].into_iter().chain(GUESTS);
    all.map(system).collect()
}

/// Writes a guest's key and a credential for the volume's root, of so many links, beside the group file; gives both files.
///
/// # Errors
/// Where a file can't be written.
pub(crate) fn credential(
    group: &Group,
    owner: &KeyPair,
    links: usize,
    directory: &Path,
) -> Result<(PathBuf, PathBuf)> {
    let holders = (0..links).map(|_| keys::generate());
    let holders = holders.collect::<Result<Vec<_>, _>>()?;
    let ids = Caveat::Ids {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    let terms = |at: usize, caveats| Terms {
        subject: holders[at].public(),
        scope: Scope {
            object: ObjectId(1),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: u64::MAX,
        },
        depth: (links - 1 - at) as u8,
        serial: at as u64,
        caveats,
    };
    let first = Chain::issue(VolumeId(group.id()), owner, terms(0, vec![ids]));
    let mut chain = first.map_err(|why| anyhow::anyhow!("{why}"))?;
    for at in 1..links {
        let longer = chain.delegate(&holders[at - 1], terms(at, Vec::new()));
        chain = longer.map_err(|why| anyhow::anyhow!("{why}"))?;
    }
    let (key, file) = (directory.join("guest.key"), directory.join("guest.cred"));
    keys::save(&key, holders.last().context("a chain has a link")?)?;
    std::fs::write(&file, armour::write(&chain))?;
    Ok((key, file))
}

/// A table of each part, what was left out, and the goals.
pub fn tables(files: &Files) -> Vec<Table> {
    let mut tables: Vec<_> = figures::parts(files).into_iter().map(table).collect();
    tables.push(figures::left_out(files));
    tables.push(goals(files));
    tables.retain(|table| !table.is_empty());
    tables
}

fn table(part: Vec<&Row>) -> Table {
    let mut systems: Vec<&str> = Vec::new();
    let mut phases: Vec<&Row> = Vec::new();
    for row in &part {
        if !systems.contains(&row.system.as_str()) {
            systems.push(&row.system);
        }
        if phases.iter().all(|known| known.phase != row.phase) {
            phases.push(row);
        }
    }
    let mut heads = vec!["phase", "unit"];
    heads.extend(&systems);
    heads.extend(GUESTS.map(|(name, _)| match name {
        "Quorate, 1 link" => "1 link costs",
        _ => "5 links cost",
    }));
    let title = format!(
        "{}: medians; costs are against a client without a credential",
        part[0].part
    );
    let mut table = Table::new(&title, &heads);
    for line in phases {
        let of = |system: &str| {
            let mut alike = part.iter().filter(|row| row.phase == line.phase);
            alike.find(|row| row.system == system).copied()
        };
        let mut cells = vec![line.phase.to_string(), line.unit.to_string()];
        let shown = |row: &Row| figure(row.unit, row.median);
        cells.extend(systems.iter().map(|s| of(s).map_or("-".into(), shown)));
        for (guest, _) in GUESTS {
            cells.push(match (of(guest), of(MEMBER)) {
                (Some(guest), Some(member)) => percent(cost(guest, member)),
                _ => String::new(),
            });
        }
        table.row(cells);
    }
    table
}

/// How much more time it takes, as a part of the other's.
fn cost(row: &Row, other: &Row) -> f64 {
    let ratio = match row.unit {
        Unit::Seconds => row.median / other.median,
        Unit::Megabytes | Unit::Operations => other.median / row.median,
    };
    ratio - 1.0
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

/// What was wanted and what it came to. Whether it is reached says the reader, who knows what else the machine did.
fn goals(files: &Files) -> Table {
    let mut table = Table::new("Goals", &["figure", "goal", "measured"]);
    let of = |like: &Row, system: &str| {
        let mut rows = files.files.iter();
        rows.find(|row| (row.part, row.phase, &*row.system) == (like.part, like.phase, system))
    };
    for (guest, _) in GUESTS {
        let rows = || files.files.iter().filter(|row| row.system == guest);
        let mounted = rows().filter(|row| row.part != Work::OverNfs.part());
        let costs = mounted.filter_map(|row| Some((cost(row, of(row, MEMBER)?), row)));
        if let Some((most, row)) = costs.max_by(|a, b| a.0.total_cmp(&b.0)) {
            table.row(vec![
                format!("{guest}: the phase that it costs most"),
                format!("at most {}", percent(MOST_COST)),
                format!("{} ({}: {})", percent(most), row.part, row.phase),
            ]);
        }
        let reads = rows().filter(|row| row.phase.starts_with("read"));
        for row in reads.filter(|row| row.part == Work::OverNfs.part()) {
            let nfs = of(row, ganesha::NAME);
            table.row(vec![
                format!("{guest}: {}, beside {}", row.phase, ganesha::NAME),
                format!("at least {:.0} %", 100.0 * LEAST_OF_NFS),
                match nfs {
                    Some(nfs) => format!("{:.0} %", 100.0 * row.median / nfs.median),
                    None => "not measured".into(),
                },
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::site::Cpu;

    fn row(phase: &'static str, unit: Unit, system: &str, median: f64) -> Row {
        Row {
            part: "Bonnie",
            workload: String::new(),
            wait_ms: 0,
            clients: 1,
            phase,
            unit,
            system: system.into(),
            median,
            rounds: vec![median],
            cpu: Cpu::default(),
        }
    }

    /// More time is a cost whatever the figure counts, and the goals name the worst.
    #[test]
    fn costs_are_of_time() {
        let member = row("write", Unit::Megabytes, MEMBER, 100.0);
        let guest = row("write", Unit::Megabytes, GUESTS[0].0, 80.0);
        assert_eq!(percent(cost(&guest, &member)), "+25.0 %");
        let member_s = row("find", Unit::Seconds, MEMBER, 2.0);
        let guest_s = row("find", Unit::Seconds, GUESTS[0].0, 1.0);
        assert_eq!(percent(cost(&guest_s, &member_s)), "-50.0 %");
        let files = Files {
            machine: Report::new("credentials", 1.0, std::path::Path::new("/")),
            files: vec![member, guest, member_s, guest_s],
            left_out: Vec::new(),
        };
        let shown = goals(&files).to_string();
        assert!(shown.contains("+25.0 % (Bonnie: write)"), "{shown}");
    }

    /// A chain of as many links as were asked for, for this group and the key beside it.
    #[test]
    fn credentials_hold() {
        use quorate_credential::Trust;
        use quorate_net::group::{Files, Purpose};
        let owner = keys::generate().unwrap();
        let replicas = vec![("127.0.0.1:1".into(), keys::generate().unwrap().public())];
        let group = Group::new(
            "g",
            replicas,
            Vec::new(),
            Files::default(),
            Purpose::Service,
        );
        let group = group.unwrap().with_owner(owner.public()).unwrap();
        for links in [1, 5] {
            let directory = tempfile::tempdir().unwrap();
            let (key, file) = credential(&group, &owner, links, directory.path()).unwrap();
            let chain = armour::read(&std::fs::read_to_string(file).unwrap())
                .unwrap()
                .chain;
            let trust = Trust {
                volume: VolumeId(group.id()),
                owners: &[owner.public()],
            };
            let grant = chain.verify(&trust).unwrap();
            assert_eq!(grant.subject, keys::load(&key).unwrap().public());
            assert_eq!(chain.links().len(), links);
        }
    }
}

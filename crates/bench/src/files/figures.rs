//! Tables and plots of a run.

use super::site::{Cpu, Unit};
use super::system::{BASE, CBASE, PASSED};
use super::{Files, Row};
use crate::paper;
use crate::plot::{Mark, Plot};
use crate::report::{Table, show};

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unit::Seconds => "s",
            Unit::Megabytes => "MB/s",
            Unit::Operations => "1/s",
        })
    }
}

/// A table for each part.
pub fn tables(files: &Files) -> Vec<Table> {
    let mut tables: Vec<_> = parts(files).into_iter().map(table).collect();
    tables.push(left_out(files));
    tables.retain(|table| !table.is_empty());
    tables
}

/// What was not measured.
pub(crate) fn left_out(files: &Files) -> Table {
    let heads = ["left out", "why"];
    let mut left_out = Table::new("Not measured", &heads);
    for file_system in &files.left_out {
        left_out.row(vec![file_system.system.clone(), file_system.reason.clone()]);
    }
    left_out
}

/// The rows, by part and by whether writes wait.
pub(crate) fn parts(files: &Files) -> Vec<Vec<&Row>> {
    let mut parts: Vec<Vec<&Row>> = Vec::new();
    for row in &files.files {
        let alike = |other: &Row| other.part == row.part && other.wait_ms == row.wait_ms;
        match parts.iter_mut().find(|part| alike(part[0])) {
            Some(part) => part.push(row),
            None => parts.push(vec![row]),
        }
    }
    parts
}

/// A line for each phase and a column for each file system.
fn table(part: Vec<&Row>) -> Table {
    let first = part[0];
    let mut systems: Vec<&str> = Vec::new();
    let mut lines: Vec<&Row> = Vec::new();
    for row in &part {
        if !systems.contains(&row.system.as_str()) {
            systems.push(&row.system);
        }
        if !lines.iter().any(|line| is_alike(line, row)) {
            lines.push(row);
        }
    }
    let mut heads = vec!["phase, clients", "unit"];
    heads.extend(&systems);
    heads.extend([
        "speed to passthrough",
        "to BASE-FS",
        "paper",
        "CPU: replicas",
        "mount",
        "workload",
    ]);
    let mut table = Table::new(&title(first), &heads);
    for line in lines {
        let of = |system: &str| {
            let mut alike = part.iter().filter(|row| is_alike(row, line));
            alike.find(|row| row.system == system).copied()
        };
        let ours = of(CBASE);
        let name = [line.phase, &line.workload].join("");
        let mut cells = vec![format!("{name}, {}", line.clients), line.unit.to_string()];
        let figure = |row: &Row| figure(row.unit, row.median);
        cells.extend(systems.iter().map(|s| of(s).map_or("-".into(), figure)));
        let ratio = |other: &str| match (ours, of(other)) {
            (Some(ours), Some(other)) => format!("{:.2}", speed(ours, other)),
            _ => String::new(),
        };
        cells.extend([ratio(PASSED), ratio(BASE)]);
        cells.push(paper::files(line.part, line.phase, line.clients, line.wait_ms).into());
        let cpu = |of: fn(&Cpu) -> f64| {
            ours.map_or(String::new(), |row| processor_time(row.unit, of(&row.cpu)))
        };
        cells.extend([cpu(|c| c.replicas), cpu(|c| c.mount), cpu(|c| c.workload)]);
        table.row(cells);
    }
    table
}

/// Parts of a second are what most phases take on a local disk.
pub(crate) fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds if value < 1.0 => format!("{value:.3}"),
        _ => show(value),
    }
}

fn title(row: &Row) -> String {
    let waits = match row.wait_ms {
        0 => String::new(),
        ms => format!(", where each write waits {ms} ms in the server"),
    };
    format!(
        "{}{waits}; speed, and processor time for one of the unit, are CBASE-FS's; paper: to BASE-FS",
        row.part
    )
}

fn is_alike(a: &Row, b: &Row) -> bool {
    (a.phase, &a.workload, a.clients) == (b.phase, &b.workload, b.clients)
}

/// How many times as fast one is as the other.
fn speed(row: &Row, other: &Row) -> f64 {
    match row.unit {
        Unit::Seconds => other.median / row.median,
        Unit::Megabytes | Unit::Operations => row.median / other.median,
    }
}

fn processor_time(unit: Unit, seconds: f64) -> String {
    match unit {
        Unit::Seconds => format!("{} s", show(seconds)),
        Unit::Megabytes => format!("{} ms", show(seconds * 1e3)),
        Unit::Operations => format!("{} us", show(seconds * 1e6)),
    }
}

/// A plot over the number of clients for each phase of a part that has several, with names for their files.
pub fn plots(files: &Files) -> Vec<(String, Plot)> {
    let mut plots = Vec::new();
    for part in parts(files) {
        let mut drawn: Vec<(&str, &str)> = Vec::new();
        for row in &part {
            let key = (row.phase, row.workload.as_str());
            if drawn.contains(&key) || part.iter().all(|r| r.clients == row.clients) {
                continue;
            }
            drawn.push(key);
            plots.push(plot(row, &part));
        }
    }
    plots
}

fn plot(like: &Row, part: &[&Row]) -> (String, Plot) {
    let part = part.iter().copied();
    let drawn = part.filter(|row| (row.phase, &row.workload) == (like.phase, &like.workload));
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in drawn.clone() {
        let point = (row.clients as f64, row.median);
        match lines.iter_mut().find(|(name, _)| *name == row.system) {
            Some((_, points)) => points.push(point),
            None => lines.push((row.system.clone(), vec![point])),
        }
    }
    // To BASE-FS here, as it was there.
    let mark = |row: &Row| {
        let given = paper::files(row.part, row.phase, row.clients, row.wait_ms);
        let (least, most) = paper::range(given)?;
        let (from, to) = match row.unit {
            Unit::Seconds => (row.median / most, row.median / least),
            Unit::Megabytes | Unit::Operations => (row.median * least, row.median * most),
        };
        Some(Mark {
            line: CBASE.into(),
            x: row.clients as f64,
            from,
            to,
        })
    };
    let of_base = drawn.filter(|row| row.system == BASE);
    let paper = of_base.filter_map(mark).collect();
    let (waits, figure) = match like.wait_ms {
        0 => (String::new(), ""),
        ms => (format!(", {ms} ms a write"), " (DSN 2004, Figure 6)"),
    };
    let name = format!("{} {}{}{waits}", like.part, like.phase, like.workload);
    let file: String = name
        .chars()
        .filter(|c| *c != ',' && *c != '+')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect();
    let plot = Plot {
        title: format!("{name}{figure}"),
        x: "clients",
        y: match like.unit {
            Unit::Seconds => "seconds",
            Unit::Megabytes => "MB/s",
            Unit::Operations => "operations/s",
        },
        lines,
        paper,
    };
    (format!("files-{}", file.replace("--", "-")), plot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn row(part: &'static str, unit: Unit, clients: usize, system: &str, median: f64) -> Row {
        Row {
            part,
            workload: String::new(),
            wait_ms: 0,
            clients,
            phase: "phase",
            unit,
            system: system.into(),
            median,
            rounds: vec![median],
            cpu: Cpu {
                replicas: 0.002,
                ..Cpu::default()
            },
        }
    }

    fn files(rows: Vec<Row>) -> Files {
        Files {
            machine: Report::new("files", 1.0, std::path::Path::new("/")),
            files: rows,
            left_out: Vec::new(),
        }
    }

    /// Twice the time is half the speed, twice the rate twice the speed; what was not measured is a dash.
    #[test]
    fn speeds_are_compared() {
        let rows = vec![
            row("small files", Unit::Seconds, 1, PASSED, 1.0),
            row("small files", Unit::Seconds, 1, CBASE, 2.0),
            row("4 KiB reads", Unit::Operations, 1, BASE, 100.0),
            row("4 KiB reads", Unit::Operations, 1, CBASE, 200.0),
            row("4 KiB reads", Unit::Operations, 16, CBASE, 300.0),
        ];
        let tables = tables(&files(rows));
        let cells = |table: usize, line: usize| -> Vec<String> {
            let shown = tables[table].to_string();
            let line = shown.lines().nth(line).unwrap();
            line.split("  ")
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(String::from)
                .collect()
        };
        assert_eq!(tables.len(), 2);
        assert_eq!(cells(0, 2)[..5], ["phase, 1", "s", "1.00", "2.00", "0.50"]);
        assert_eq!(cells(1, 2)[..5], ["phase, 1", "1/s", "100", "200", "2.00"]);
        assert!(cells(1, 2).contains(&"2000 us".into()));
        assert_eq!(cells(1, 3)[..4], ["phase, 16", "1/s", "-", "300"]);
    }

    /// What has several numbers of clients is drawn over them, and nothing else.
    #[test]
    fn plots_are_over_clients() {
        let rows = vec![
            row("small files", Unit::Seconds, 1, CBASE, 2.0),
            row("4 KiB writes", Unit::Operations, 1, CBASE, 200.0),
            row("4 KiB writes", Unit::Operations, 16, CBASE, 300.0),
        ];
        let plots = plots(&files(rows));
        assert_eq!(plots.len(), 1);
        let (name, plot) = &plots[0];
        assert_eq!(name, "files-4-KiB-writes-phase");
        assert_eq!(plot.lines[0].1, [(1.0, 200.0), (16.0, 300.0)]);
        assert_eq!(plot.paper, []);
    }

    /// How many times as fast as BASE-FS the paper's CBASE-FS was is drawn from BASE-FS here.
    #[test]
    fn plots_have_the_papers_ratios() {
        let waiting = |clients, system, median| Row {
            wait_ms: 20,
            ..row("4 KiB writes", Unit::Operations, clients, system, median)
        };
        let rows = vec![
            waiting(1, BASE, 40.0),
            waiting(64, BASE, 50.0),
            waiting(64, CBASE, 900.0),
        ];
        let plots = plots(&files(rows));
        let mark = Mark {
            line: CBASE.into(),
            x: 64.0,
            from: 1000.0,
            to: 1000.0,
        };
        assert_eq!(plots[0].1.paper, [mark]);
    }
}

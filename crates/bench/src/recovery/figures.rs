//! Recoveries as tables and plots.

use super::{Compared, Got, Phases, Recovery};
use crate::paper;
use crate::plot::Plot;
use crate::report::{Table, median, show};

/// A phase: its name here, that of the paper's row beside it, and its figure.
type Phase = (&'static str, &'static str, fn(&Phases) -> f64);

const PHASES: [Phase; 10] = [
    ("shut down", "save state", |p| p.shutdown),
    ("restart", "reboot", |p| p.restart),
    ("restore", "restore state", |p| p.restore),
    ("new keys", "send new-key", |p| p.new_keys),
    ("estimation", "estimation", |p| p.estimation),
    ("ordering, meanwhile", "send request", |p| p.ordering),
    ("check and fetch", "fetch and check", |p| p.check_and_fetch),
    ("vote again", "", |p| p.vote),
    ("catch up", "", |p| p.catch_up),
    ("total", "total", |p| p.total),
];

/// The tables of a run.
pub fn tables(recovery: &Recovery) -> Vec<Table> {
    let mut tables = Vec::new();
    if !recovery.recovered.is_empty() {
        tables.push(phases(recovery));
    }
    for (part, title) in [
        (
            "recoveries",
            "Four replicas recover in turn, one after the other, once in each period Tw",
        ),
        (
            "keys",
            "All keys of links are renewed, once in each period Tk",
        ),
    ] {
        let rows = recovery.compared.iter().filter(|row| row.part == part);
        let rows: Vec<&Compared> = rows.filter(|row| !row.rounds.is_empty()).collect();
        if !rows.is_empty() {
            tables.push(compared(
                &format!(
                    "{title}; {} clients write 4 KiB and read them",
                    recovery.writers
                ),
                &rows,
            ));
        }
    }
    tables
}

fn phases(recovery: &Recovery) -> Table {
    let rows: Vec<_> = recovery
        .recovered
        .iter()
        .filter(|r| !r.rounds.is_empty() || r.missed > 0)
        .collect();
    let names = rows.iter().map(|row| {
        let kind = if row.tampered {
            "1 % overwritten"
        } else {
            "sound"
        };
        format!("{} MB, {kind}", row.state_mb)
    });
    let names: Vec<String> = names.collect();
    let mut heads = vec!["seconds, median"];
    heads.extend(names.iter().map(String::as_str));
    heads.extend(["paper: 205 MB", "paper: 1 GB"]);
    let mut table = Table::new("A recovery, step by step (PBFT 2002, Table 4)", &heads);
    for (name, row_of_paper, figure) in PHASES {
        let mut cells = vec![name.to_string()];
        let of = |p: &Phases| figure(p) / 1000.0;
        cells.extend(
            rows.iter()
                .map(|row| show(median(row.rounds.iter().map(of).collect()))),
        );
        let paper = paper::RECOVERY.iter().find(|row| row[0] == row_of_paper);
        cells.extend(
            paper
                .map_or(["", ""], |row| [row[1], row[2]])
                .map(String::from),
        );
        table.row(cells);
    }
    let mut row = |name: &str, cell: &dyn Fn(&super::Recovered) -> String| {
        let mut cells = vec![name.to_string()];
        cells.extend(rows.iter().map(|row| cell(row)));
        table.row(cells);
    };
    row("pieces damaged", &|row| {
        show(median(row.rounds.iter().map(|p| p.damaged).collect()))
    });
    row("came to nothing", &|row| row.missed.to_string());
    row("client errors", &|row| row.client_errors.to_string());
    table
}

fn compared(title: &str, rows: &[&Compared]) -> Table {
    let heads = [
        "period",
        "files/s, median",
        "of never",
        "p50 ms",
        "p99 ms",
        "errors",
        "recoveries",
        "missed",
    ];
    let mut table = Table::new(title, &heads);
    let of =
        |row: &Compared, figure: fn(&Got) -> f64| median(row.rounds.iter().map(figure).collect());
    let never = rows.iter().find(|row| row.period_s.is_none());
    let never = never.map_or(f64::NAN, |row| of(row, |got| got.ops_per_s));
    for row in rows {
        let speed = of(row, |got| got.ops_per_s);
        table.row(vec![
            row.period_s.map_or("never".into(), |s| format!("{s} s")),
            show(speed),
            format!("{} %", show(100.0 * speed / never)),
            show(of(row, |got| got.p50_ms)),
            show(of(row, |got| got.p99_ms)),
            row.rounds
                .iter()
                .map(|got| got.errors)
                .sum::<usize>()
                .to_string(),
            row.rounds
                .iter()
                .map(|got| got.recoveries)
                .sum::<usize>()
                .to_string(),
            row.rounds
                .iter()
                .map(|got| got.missed)
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table
}

/// The plots of a run: work done over the period, as a share of what is done without.
pub fn plots(recovery: &Recovery) -> Vec<(String, Plot)> {
    let plot = |(part, title, x): (&'static str, &str, &'static str)| {
        let rows = recovery.compared.iter().filter(|row| row.part == part);
        let rows: Vec<&Compared> = rows.filter(|row| !row.rounds.is_empty()).collect();
        let of = |figure: fn(&Got) -> f64| {
            let point = |row: &&Compared| {
                let period = row.period_s? as f64;
                Some((period, median(row.rounds.iter().map(figure).collect())))
            };
            let mut points: Vec<_> = rows.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let never = rows.iter().find(|row| row.period_s.is_none());
        let never = never.map(|row| median(row.rounds.iter().map(|got| got.ops_per_s).collect()));
        let with = of(|got| got.ops_per_s);
        let without = never.map(|never| with.iter().map(|(x, _)| (*x, never)).collect());
        let lines = vec![
            ("with".to_string(), with.clone()),
            ("never".to_string(), without.unwrap_or_default()),
        ];
        let plot = Plot {
            title: title.into(),
            x,
            y: "files written in a second",
            lines,
            paper: Vec::new(),
        };
        (format!("recovery-{part}"), plot)
    };
    [
        (
            "recoveries",
            "Work with staggered recoveries",
            "period Tw in seconds",
        ),
        (
            "keys",
            "Work while keys are renewed",
            "period Tk in seconds",
        ),
    ]
    .map(plot)
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Recovered};
    use super::*;
    use crate::group::Launcher;
    use crate::run;

    fn empty() -> Recovery {
        let run = run::Options {
            launcher: Launcher {
                program: "quorate".into(),
                arguments: Vec::new(),
            },
            data: "/tmp".into(),
            rounds: 1,
            seconds: 1.0,
            quick: false,
            only: Vec::new(),
        };
        Recovery::new(&Options {
            run,
            state_mb: Vec::new(),
            periods_s: Vec::new(),
            in_a_row: 1,
            refresh_s: Vec::new(),
        })
    }

    /// Medians in seconds stand beside the paper's row; a share is of what there was without, of the same run.
    #[test]
    fn figures_stand_beside_the_papers() {
        let mut recovery = empty();
        assert!(tables(&recovery).is_empty());
        let round = |total| Phases {
            total,
            ..Phases::default()
        };
        recovery.recovered.push(Recovered {
            state_mb: 20,
            tampered: true,
            rounds: vec![round(1_000.0), round(3_000.0), round(9_000.0)],
            missed: 1,
            client_errors: 2,
        });
        let row = |period_s, ops_per_s| Compared {
            part: "keys",
            period_s,
            rounds: vec![Got {
                ops_per_s,
                missed: period_s.map_or(0, |_| 3),
                ..Got::default()
            }],
        };
        recovery.compared = vec![row(None, 200.0), row(Some(15), 198.0)];
        let tables = tables(&recovery);
        let text: Vec<String> = tables.iter().map(ToString::to_string).collect();
        let line = |text: &str, name: &str| {
            let line = text.lines().find(|l| l.trim_start().starts_with(name));
            line.unwrap()
                .split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            line(&text[0], "total"),
            ["total", "3.00", "42.59", "143.68"]
        );
        assert_eq!(line(&text[0], "client errors"), ["client", "errors", "2"]);
        assert_eq!(line(&text[0], "came to nothing")[3], "1");
        assert_eq!(line(&text[1], "15 s")[2..5], ["198", "99.0", "%"]);
        assert_eq!(line(&text[1], "15 s").last().unwrap(), "3");
        let plot = &plots(&recovery)[1].1;
        assert_eq!(plot.lines[0].1, [(15.0, 198.0)]);
        assert_eq!(plot.lines[1].1, [(15.0, 200.0)]);
    }
}

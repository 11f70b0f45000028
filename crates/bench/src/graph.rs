//! What the parallelizer takes by itself: operations go through the dependency graph on this thread, without replicas, network or
//! workers. The overhead of Figure 4 without what Figure 4 measures along with it.

use quorate_execution::graph::{Conflicts, Graph, Scope, Uses};
use rustix::time::{ClockId, clock_gettime};

use crate::paper;
use crate::report::{Figures, Report, Row};
use crate::run::Options;

/// See [`Row::part`].
pub const PART: &str = "graph";
/// Operations of one measurement.
const OPERATIONS: usize = 200_000;
/// How many are in the graph at the same time: one batch, and several.
const IN_GRAPH: [usize; 2] = [64, 512];

/// Operations that use the same kinds of things.
struct Kind {
    name: &'static str,
    conflicts: Conflicts,
    uses: fn(u64) -> Uses,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "null, CBASE",
        conflicts: Conflicts::Declared,
        uses: |_| Uses::none(),
    },
    Kind {
        name: "null, BASE",
        conflicts: Conflicts::All,
        uses: |_| Uses::none(),
    },
    Kind {
        name: "one of 50 buckets",
        conflicts: Conflicts::Declared,
        uses: |at| Uses::none().write(Scope::Object(1, at % 50)),
    },
    // As the file service declares it: who asks, the extent, and the file's attributes.
    Kind {
        name: "a write to one of 64 files",
        conflicts: Conflicts::Declared,
        uses: |at| {
            let file = at % 64;
            Uses::none()
                .settle(Scope::Class(9))
                .read(Scope::Range(4, 1, file, file))
                .write(Scope::Range(1, file, at, at))
                .settle(Scope::Object(2, file))
                .settle(Scope::Object(3, file))
        },
    },
];

/// Measures each kind, with a round that is not reported first.
pub fn measure(options: &Options, report: &mut Report) {
    for kind in &KINDS {
        for in_graph in IN_GRAPH {
            let name = format!("{PART}, {}, {in_graph} in it", kind.name);
            if !options.only.iter().all(|word| name.contains(word)) {
                continue;
            }
            let operations = match options.quick {
                true => OPERATIONS / 100,
                false => OPERATIONS,
            };
            let round = || Figures {
                replica_cpu_us: cost_us(kind, in_graph, operations),
                ..Figures::default()
            };
            round();
            let rounds: Vec<_> = (0..options.rounds).map(|_| round()).collect();
            report.rows.push(Row {
                part: PART,
                workload: kind.name.into(),
                variant: "graph".into(),
                clients: 1,
                in_flight: in_graph,
                ideal_ops_per_s: None,
                paper: paper::of(PART, kind.name, "graph"),
                median: Figures::medians(&rounds),
                rounds,
            });
        }
    }
}

/// This thread's processor time for one operation, in microseconds: what else runs on the machine is not in it.
fn cost_us(kind: &Kind, in_graph: usize, operations: usize) -> f64 {
    let mut graph = Graph::new(kind.conflicts, in_graph);
    let mut next = 0;
    let before = thread_us();
    while next < operations as u64 {
        while graph.has_room() {
            graph.insert((kind.uses)(next));
            next += 1;
        }
        while !graph.is_empty() {
            while let Some(id) = graph.take_ready() {
                graph.ran(id);
            }
            while let Some(id) = graph.take_settleable() {
                graph.done(id);
            }
        }
    }
    (thread_us() - before) / next as f64
}

fn thread_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

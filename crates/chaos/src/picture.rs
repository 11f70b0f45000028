//! A round as a picture: faults above, answers and their times below, over one axis of time.

use std::fmt::Write;

use crate::report::Round;
use crate::schedule::{Act, Fault, Trouble};

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 60.0;
const LANE: f64 = 18.0;
const PLOT: f64 = 140.0;
/// How long one column of the plots is, in milliseconds.
const COLUMN_MS: u64 = 250;
/// Times of answers are drawn from 0.1 ms to 100 s, ten times more for each step.
const DECADES: f64 = 6.0;

/// Draws a round as SVG.
pub fn draw(round: &Round) -> String {
    let last = round.answers.last().map_or(0, |(at, _)| *at);
    let total = last.max(round.schedule.duration_ms).max(1) + COLUMN_MS;
    let x = |ms: u64| LEFT + (WIDTH - LEFT - 20.0) * ms as f64 / total as f64;
    let lanes = lanes(&round.schedule.acts);
    let count = lanes.iter().copied().max().map_or(0, |lane| lane + 1);
    let faults_end = 40.0 + LANE * count as f64;
    let (rates, times) = (faults_end + PLOT + 20.0, faults_end + 2.0 * PLOT + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        times + 40.0,
        escape(&format!(
            "seed {}: {} operations",
            round.seed, round.operations
        ))
    );
    for (act, lane) in round.schedule.acts.iter().zip(&lanes) {
        let (from, y) = (x(act.start_ms), 34.0 + LANE * *lane as f64);
        let width = (x(act.end_ms) - from).max(2.0);
        let text = escape(&act.fault.to_string());
        // Writing to a String can't fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" fill=\"{}\" fill-opacity=\"0.6\"><title>{text}</title></rect>\
             <text x=\"{:.1}\" y=\"{}\" font-size=\"9\">{text}</text>",
            color(&act.fault),
            from + 2.0,
            y + 10.0
        );
    }
    let columns = columns(round, total);
    let most = columns.iter().map(|c| c.answers).max().unwrap_or(0).max(1);
    let per_second = most as u64 * 1000 / COLUMN_MS;
    axis(&mut svg, rates, &format!("{per_second}/s"), "answers");
    axis(&mut svg, times, "100 s", "longest time");
    for (at, column) in (0..).zip(&columns) {
        let from = x(at * COLUMN_MS);
        let width = (x((at + 1) * COLUMN_MS) - from).max(1.0);
        let mut bar = |bottom: f64, height: f64, color: &str| {
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>",
                bottom - height
            );
        };
        bar(rates, PLOT * column.answers as f64 / most as f64, "#4477aa");
        // From 0.1 ms.
        let decades = (column.longest_us.max(100) as f64 / 100.0).log10();
        bar(times, PLOT * (decades / DECADES).min(1.0), "#cc6677");
    }
    let seconds = total / 1000;
    for second in (0..=seconds).step_by((seconds as usize / 12).max(1)) {
        let at = x(second * 1000);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\">{second} s</text>",
            times + 16.0
        );
    }
    svg + "</svg>\n"
}

/// Faults that overlap lie below each other.
fn lanes(acts: &[Act]) -> Vec<usize> {
    let mut free_from: Vec<u64> = Vec::new();
    let mut lanes = Vec::new();
    for act in acts {
        let lane = free_from.iter().position(|from| *from <= act.start_ms);
        let lane = lane.unwrap_or(free_from.len());
        match free_from.get_mut(lane) {
            Some(from) => *from = act.end_ms,
            None => free_from.push(act.end_ms),
        }
        lanes.push(lane);
    }
    lanes
}

#[derive(Clone, Copy, Debug, Default)]
struct Column {
    answers: usize,
    longest_us: u64,
}

fn columns(round: &Round, total_ms: u64) -> Vec<Column> {
    let mut columns = vec![Column::default(); (total_ms / COLUMN_MS) as usize + 1];
    for (at, took) in &round.answers {
        let column = &mut columns[(at / COLUMN_MS) as usize];
        column.answers += 1;
        column.longest_us = column.longest_us.max(*took);
    }
    columns
}

fn axis(svg: &mut String, bottom: f64, top: &str, what: &str) {
    let right = WIDTH - 20.0;
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {} V{bottom} H{right}\" fill=\"none\" stroke=\"black\"/>\
         <text x=\"4\" y=\"{}\">{top}</text><text x=\"{}\" y=\"{}\">{what}</text>",
        bottom - PLOT,
        bottom - PLOT + 10.0,
        LEFT + 4.0,
        bottom - PLOT + 10.0
    );
}

fn color(fault: &Fault) -> &'static str {
    match fault {
        Fault::Kill { .. } => "#222222",
        Fault::Pause { .. } => "#888888",
        Fault::FullDisk { .. } | Fault::CutWrite { .. } | Fault::Rot { .. } => "#aa3377",
        Fault::Network { trouble, .. } => match trouble {
            Trouble::Hold | Trouble::Cut => "#ee6677",
            Trouble::Delay { .. } | Trouble::Limit { .. } => "#ccbb44",
            Trouble::Corrupt { .. } => "#66ccee",
        },
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Cast, Schedule};

    /// Every fault stands in the picture, and overlapping ones are not drawn over each other.
    #[test]
    fn a_round_is_drawn() {
        let cast = Cast {
            replicas: 4,
            clients: 3,
            disks: true,
            rots: 1,
            forgetful: None,
        };
        let schedule = Schedule::draw(3, 40_000, &cast);
        let lanes = lanes(&schedule.acts);
        for (at, one) in schedule.acts.iter().enumerate() {
            for (other, lane) in schedule.acts[..at].iter().zip(&lanes) {
                assert!(*lane != lanes[at] || other.end_ms <= one.start_ms);
            }
        }
        let round = Round {
            answers: vec![(0, 100), (41_000, 2_000_000)],
            schedule: schedule.clone(),
            ..Round::default()
        };
        let svg = draw(&round);
        for act in &schedule.acts {
            assert!(svg.contains(&escape(&act.fault.to_string())));
        }
        assert!(svg.ends_with("</svg>\n"));
    }
}

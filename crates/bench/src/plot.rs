//! Plots as SVG files, in the manner of the papers' figures.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A plot of lines over one axis.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What is shown, and which figure of which paper it redraws.
    pub title: String,
    /// What lies to the right.
    pub x: &'static str,
    /// What goes up.
    pub y: &'static str,
    /// The lines: name and points.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// What the paper gives beside them.
    pub paper: Vec<Mark>,
}

/// A paper's figure for a line: a value, or from one to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The line's name.
    pub line: String,
    /// Where: the papers' texts seldom say, so that it stands where the line is highest.
    pub x: f64,
    /// The least that it is.
    pub from: f64,
    /// The most.
    pub to: f64,
}

const SIZE: (u32, u32) = (900, 480);
/// For the lines' names, beside the plot: in it they would hide points.
const NAMES: i32 = 190;
/// Half of the width of what marks a paper's figure.
const CROSS: i32 = 6;
/// Told apart on white paper, the first ones also in grey.
const COLORS: [RGBColor; 9] = [
    RGBColor(0x1b, 0x5e, 0xa8),
    RGBColor(0xd0, 0x58, 0x1a),
    RGBColor(0x2f, 0x85, 0x3a),
    RGBColor(0x7b, 0x3f, 0xa0),
    RGBColor(0x8a, 0x6a, 0x10),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0xb8, 0x24, 0x6b),
    RGBColor(0x0f, 0x80, 0x88),
    RGBColor(0x9a, 0xa4, 0x1c),
];

/// The label of a place on an axis: where there is little room below it, places have fractions.
fn label(value: f64) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    format!("{rounded}")
}

/// Where in the plot a name stands.
fn place(at: usize) -> (i32, i32) {
    (SIZE.0 as i32 - NAMES + 12, 48 + 20 * at as i32)
}

fn style<'a>() -> TextStyle<'a> {
    ("sans-serif", 13).into_font().into()
}

impl Plot {
    /// Writes the plot to a file, unless there is nothing to be seen.
    ///
    /// # Errors
    /// Where the file can't be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let points = self.lines.iter().flat_map(|(_, points)| points).copied();
        let points = points.chain(self.paper.iter().map(|mark| (mark.x, mark.to)));
        let finite = points.filter(|(x, y)| x.is_finite() && y.is_finite());
        let (right, top) = finite.fold((0.0, 0.0), |(right, top): (f64, f64), (x, y)| {
            (right.max(x), top.max(y))
        });
        if right == 0.0 || top == 0.0 {
            return Ok(());
        }
        // The backend's errors borrow from it; their text does not.
        let drawn = self.draw(path, right * 1.02, top * 1.1);
        drawn.map_err(|e| anyhow!("can't draw {}: {e}", path.display()))
    }

    fn draw(&self, path: &Path, right: f64, top: f64) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            .margin_right(NAMES)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).light_line_style(WHITE);
        mesh.x_label_formatter(&|x| label(*x));
        mesh.y_label_formatter(&|y| label(*y));
        mesh.draw()?;
        for (at, (name, points)) in self.lines.iter().enumerate() {
            let color = COLORS[at % COLORS.len()];
            let points = points.iter().copied().filter(|(_, y)| y.is_finite());
            let line = LineSeries::new(points, color.stroke_width(2)).point_size(3);
            chart.draw_series(line)?;
            let (x, y) = place(at);
            let sample = [(x, y), (x + 18, y)];
            root.draw(&PathElement::new(sample, color.stroke_width(2)))?;
            root.draw(&Text::new(name.as_str(), (x + 24, y - 6), style()))?;
            // A cross in the line's colour; two, and what lies between, where the text gives no single figure.
            for mark in self.paper.iter().filter(|mark| mark.line == *name) {
                let ends = [(mark.x, mark.from), (mark.x, mark.to)];
                let cross = |end| Cross::new(end, CROSS, color.stroke_width(2));
                chart.draw_series(ends.into_iter().map(cross))?;
                if mark.from < mark.to {
                    let between = PathElement::new(ends, color.stroke_width(1));
                    chart.draw_series([between])?;
                }
            }
        }
        if !self.paper.is_empty() {
            let (x, y) = place(self.lines.len());
            root.draw(&Cross::new((x + 9, y), CROSS, BLACK.stroke_width(2)))?;
            root.draw(&Text::new("paper", (x + 24, y - 6), style()))?;
        }
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbours on an axis have labels of their own.
    #[test]
    fn labels_differ() {
        assert_eq!([0.0, 0.5, 1.0, 1.5].map(label), ["0", "0.5", "1", "1.5"]);
        assert_eq!([100_000.0, 0.1 + 0.2].map(label), ["100000", "0.3"]);
    }

    /// Names and numbers stand in the file; a plot of nothing leaves none.
    #[test]
    fn a_plot_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.svg");
        let mut plot = Plot {
            title: "Throughput".into(),
            x: "clients",
            y: "operations/s",
            lines: vec![("BFT".into(), Vec::new())],
            paper: Vec::new(),
        };
        plot.save(&path).unwrap();
        assert!(!path.exists());
        plot.lines[0].1 = vec![(1.0, 10.0), (200.0, f64::NAN), (100.0, 900.0)];
        plot.save(&path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("BFT") && svg.contains("Throughput") && svg.contains("clients"));
        assert!(!svg.contains("paper"));
    }

    /// What a paper gives is marked in its line's colour, and has a name of its own; the plot reaches up to it.
    #[test]
    fn a_papers_figures_are_marked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.svg");
        let mark = |from, to| Mark {
            line: "BFT".into(),
            x: 100.0,
            from,
            to,
        };
        let mut plot = Plot {
            title: "Throughput".into(),
            x: "clients",
            y: "operations/s",
            lines: vec![("BFT".into(), vec![(1.0, 10.0), (100.0, 900.0)])],
            paper: Vec::new(),
        };
        let draw = |plot: &Plot| {
            plot.save(&path).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            let names = svg.lines().filter(|line| *line == "paper").count();
            let in_color = svg.matches("#1B5EA8").count();
            (names, in_color, svg.contains("\n5000\n"))
        };
        let (names, without, high) = draw(&plot);
        assert_eq!((names, high), (0, false));
        plot.paper = vec![mark(400.0, 400.0)];
        let (names, one, high) = draw(&plot);
        assert_eq!((names, high), (1, false));
        plot.paper.push(mark(600.0, 5000.0));
        let (names, range, high) = draw(&plot);
        assert_eq!((names, high), (1, true));
        assert!(without < one && one < range, "{without} {one} {range}");
    }
}

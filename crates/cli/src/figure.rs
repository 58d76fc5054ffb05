//! `keyaki plot`: the reads of a query over time, as in figures 8 and 9 of the paper on out-of-order execution.

use std::path::Path;
use std::sync::Arc;

use keyaki_exec::StatsSnapshot;
use plotters::prelude::*;

use crate::arguments::PlotArguments;
use crate::database;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::plot;
use crate::run::{Runner, Target};
use crate::terminal::{significant, thousands};

/// Size of the figure in pixels.
const SIZE: (u32, u32) = (960, 640);
/// Points of a curve.
const POINTS: usize = 400;
/// Colours of the curves. The first two also differ in brightness.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xe0, 0x7b, 0x39),
    RGBColor(0x4b, 0x9b, 0x5f),
    RGBColor(0xb5, 0x47, 0x3c),
    RGBColor(0x7d, 0x5b, 0xa6),
    RGBColor(0x6f, 0x6f, 0x6f),
];

/// The reads of one scan or pipeline in one execution.
struct Curve {
    name: String,
    /// Milliseconds from the first read of the execution to the start and the end.
    start_ms: f64,
    end_ms: f64,
    /// Means of equal parts of the time between.
    in_flight: Vec<f64>,
    per_second: Vec<f64>,
}

impl Curve {
    fn of(name: String, snapshot: &StatsSnapshot, first_ns: u64) -> Curve {
        let start_ms = (snapshot.started_ns - first_ns) as f64 / 1e6;
        Curve {
            name,
            start_ms,
            end_ms: start_ms + snapshot.elapsed_ns as f64 / 1e6,
            in_flight: plot::bins(&snapshot.timeline, snapshot.elapsed_ns, POINTS),
            per_second: plot::rates(&snapshot.timeline, snapshot.elapsed_ns, POINTS),
        }
    }

    /// Points in milliseconds; the curve begins and ends at zero.
    fn points(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let at_ms = |part: f64| self.start_ms + (self.end_ms - self.start_ms) * part / values.len().max(1) as f64;
        let inner = values.iter().enumerate().map(|(i, value)| (at_ms(i as f64 + 0.5), *value));
        std::iter::once((self.start_ms, 0.0)).chain(inner).chain(std::iter::once((self.end_ms, 0.0))).collect()
    }
}

pub async fn run(arguments: &PlotArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let sql = arguments.sql.join(" ");
    let options = keyaki::Options { must_exist: true, ..arguments.open.options()? };
    std::fs::File::create(&arguments.output).map_err(Failure::file(&arguments.output))?;
    let database = database::open(&arguments.database, options)?;
    let mut curves = Vec::new();
    for execution in arguments.execution.settings() {
        let mut runner = Runner::new(&database, Mode::Csv, interrupts.clone());
        runner.target = Target::Nowhere;
        runner.statement(&format!("SET keyaki.execution = '{execution}'")).await?;
        if !arguments.warm {
            runner.statement("DROP CACHES").await?;
        }
        // Each execution is one of the same rows, and changes are errors.
        runner.statement("BEGIN READ ONLY").await?;
        runner.statement(&sql).await?;
        let snapshots: Vec<(String, StatsSnapshot)> =
            runner.session()?.last_stats().into_iter().map(|(name, stats)| (name, stats.snapshot())).collect();
        runner.statement("ROLLBACK").await?;
        let first_ns = snapshots.iter().map(|(_, snapshot)| snapshot.started_ns).min().unwrap_or(0);
        let shown = execution.replace('_', " ");
        for (name, snapshot) in snapshots.iter().filter(|(_, snapshot)| !snapshot.timeline.is_empty()) {
            let ms = significant(snapshot.elapsed_ns as f64 / 1e6);
            println!("{shown}, {name}: {} reads in {ms} ms", thousands(snapshot.reads));
            curves.push(Curve::of(format!("{name}, {shown}"), snapshot, first_ns));
        }
    }
    if curves.is_empty() {
        let hint = if arguments.warm { " (without --warm, pages are read from the device)" } else { "" };
        return Err(Failure::message(format!("the statement read no pages from the device{hint}")));
    }
    draw(&arguments.output, &sql, &curves)
        .map_err(|error| Failure::message(format!("{}: {error}", arguments.output.display())))?;
    println!("drawn in {}", arguments.output.display());
    Ok(())
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Draws the reads in flight above the reads per second.
fn draw(file: &Path, title: &str, curves: &[Curve]) -> Drawn {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title: String = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String =
        if title.chars().count() > 110 { title.chars().take(109).chain(['…']).collect() } else { title };
    let root = root.titled(&shown, ("sans-serif", 16))?;
    let (above, below) = root.split_vertically(SIZE.1 / 2 - 20);
    panel(&above, "reads in flight", curves, |curve| &curve.in_flight)?;
    panel(&below, "reads per second", curves, |curve| &curve.per_second)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    what: &str,
    curves: &[Curve],
    values: impl Fn(&Curve) -> &[f64],
) -> Drawn {
    let end_ms = curves.iter().map(|curve| curve.end_ms).fold(1e-3, f64::max);
    let most = curves.iter().flat_map(&values).copied().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..end_ms, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds")
        .y_desc(what)
        .y_label_formatter(&|value| significant(*value))
        .x_label_formatter(&|value| significant(*value))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points(values(curve)), style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use keyaki_exec::Sample;

    use super::*;

    #[test]
    fn a_figure_has_all_curves() {
        let timeline = (1..=50).map(|i| Sample { at_ns: i * 1_000_000, in_flight: (i % 7) as u32, reads: i * 3 });
        let snapshot = StatsSnapshot {
            started_ns: 7_000_000,
            elapsed_ns: 60_000_000,
            timeline: timeline.collect(),
            ..Default::default()
        };
        let curve = Curve::of("t, in order".into(), &snapshot, 5_000_000);
        assert_eq!((curve.start_ms, curve.end_ms), (2.0, 62.0));
        let points = curve.points(&curve.in_flight);
        assert_eq!((points[0], points[points.len() - 1]), ((2.0, 0.0), (62.0, 0.0)));
        let other = Curve::of("t <out of order>".into(), &snapshot, 7_000_000);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("figure.svg");
        draw(&file, &"SELECT a <  b ".repeat(40), &[curve, other]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert_eq!(text.matches("t, in order").count(), 2);
        assert_eq!(text.matches("t &lt;out of order&gt;").count(), 2);
        assert!(text.contains("reads in flight") && text.contains("reads per second"));
        assert!(draw(Path::new("/no/such/directory/f.svg"), "x", &[]).is_err());
    }
}

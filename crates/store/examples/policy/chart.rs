//! Charts of the trade-off between writes and reads, for both policies, beside the asymptotic costs of the Bε-tree
//! paper.
//!
//! Table 1 of the paper (Bender et al., 2015): an insert costs log_B N / (ε B^(1-ε)) transfers of nodes, which are F
//! log_F N times the bytes of a row with the fan-out F = B^ε (section 1.2); a point query costs log_B N / ε = log_F N
//! transfers, a range of k rows k/B more. Big O hides a constant: each curve is scaled to the simulated figure of the
//! leveled policy at the default parameters.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use keyaki_store::{MergePolicy, Options};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::{Figures, Workload, simulate};

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (960, 680);
const TIERED: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const LEVELED: RGBColor = RGBColor(0xe0, 0x7b, 0x39);
const PAPER: RGBColor = RGBColor(0x6f, 0x6f, 0x6f);
/// Bytes that the store writes per second while it inserts, on the machine of `docs/measurements/store.md`: 618,000
/// rows of 116 bytes with 3.84 bytes written for each byte.
const WRITE_RATE: f64 = 618e3 * 116.0 * 3.84;

/// One figure of a simulation.
struct Panel {
    title: &'static str,
    figure: fn(&Figures) -> f64,
    /// The cost in the paper for a fan-out and a number of rows, up to a factor.
    paper: fn(f64, f64) -> f64,
    /// A part of the figure that depends on neither, to which this cost is added.
    base: f64,
}

fn levels(fan_out: f64, rows: f64) -> f64 {
    rows.ln() / fan_out.ln()
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "Bytes written per byte inserted, with the log",
        figure: |figures| figures.amplification + figures.log,
        paper: |fan_out, rows| fan_out * levels(fan_out, rows),
        base: 0.0,
    },
    Panel {
        title: "Inserts, thousand rows/s (estimated)",
        figure: |figures| WRITE_RATE / 116e3 / (figures.amplification + figures.log),
        paper: |fan_out, rows| 1.0 / (fan_out * levels(fan_out, rows)),
        base: 0.0,
    },
    Panel {
        title: "Pages per point read, without filters and cache",
        figure: |figures| figures.costs.pages_unfiltered,
        paper: levels,
        base: 0.0,
    },
    Panel {
        title: "Pages per scan of 1,000 rows, without a cache",
        figure: |figures| figures.costs.pages_scanned,
        paper: levels,
        base: 1984.0 / 69.0,
    },
];

/// Draws the charts `store-fan-out.svg` and `store-node-size.svg`.
pub fn draw(directory: &Path, workload: &Workload, options: &Options) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    let fan_outs = [4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    let with_fan_out = |fan_out: f64| Options { fan_out: fan_out as usize, ..options.clone() };
    let default = options.fan_out as f64;
    chart(&directory.join("store-fan-out.svg"), workload, "fan-out", default, &fan_outs, &with_fan_out)?;
    let sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let with_size = |size: f64| Options { node_buffer_bytes: (size * f64::from(1 << 20)) as usize, ..options.clone() };
    let default = options.node_buffer_bytes as f64 / f64::from(1 << 20);
    chart(&directory.join("store-node-size.svg"), workload, "node buffer, MiB", default, &sizes, &with_size)
}

fn chart(
    path: &Path,
    workload: &Workload,
    axis: &str,
    default: f64,
    values: &[f64],
    options: &dyn Fn(f64) -> Options,
) -> Result<(), Box<dyn Error>> {
    let with = |value: f64, merge_policy| simulate(workload, &Options { merge_policy, ..options(value) });
    let curve = |policy| values.iter().map(|value| (*value, with(*value, policy))).collect::<Vec<(f64, Figures)>>();
    let curves = [curve(MergePolicy::Tiered), curve(MergePolicy::Leveled)];
    let reference = with(default, MergePolicy::Leveled);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let label = |value: &f64| {
        let options = options(*value);
        let node_rows = options.node_buffer_bytes as f64 / workload.row_bytes as f64;
        format!("{value:.0} (ε = {:.2})", (options.fan_out as f64).ln() / node_rows.ln())
    };
    let (million, row_bytes) = (workload.keys / 1_000_000, workload.row_bytes);
    let title = format!("Costs by {axis}: {million} million rows of {row_bytes} bytes (simulated)");
    let area = area.titled(&title, ("sans-serif", 16))?;
    for (panel, area) in PANELS.iter().zip(area.split_evenly((2, 2))) {
        let rows = workload.keys as f64;
        let paper = |value: f64| (panel.paper)(options(value).fan_out as f64, rows);
        let scale = ((panel.figure)(&reference) - panel.base) / paper(default);
        let dashed: Vec<(f64, f64)> = values.iter().map(|value| (*value, panel.base + scale * paper(*value))).collect();
        let solid = curves.each_ref().map(|curve| {
            curve.iter().map(|(value, figures)| (*value, (panel.figure)(figures))).collect::<Vec<(f64, f64)>>()
        });
        let heights = || dashed.iter().chain(solid.iter().flatten()).map(|(_, height)| *height);
        let (low, high) = (heights().fold(f64::INFINITY, f64::min), heights().fold(0.0, f64::max));
        // The axis of a logarithmic scale has a label for each digit of each power of ten.
        let curves = Curves { x: values[0]..values[values.len() - 1], solid, dashed };
        if high > 8.0 * low {
            curves.draw(&area, panel.title, (low * 0.8..high * 1.25).log_scale(), &label)?;
        } else {
            curves.draw(&area, panel.title, 0.0..high * 1.1, &label)?;
        }
    }
    area.present()?;
    println!("wrote {}", path.display());
    Ok(())
}

/// The curves of a panel: those of the policies, and that of the paper.
struct Curves {
    x: Range<f64>,
    solid: [Vec<(f64, f64)>; 2],
    dashed: Vec<(f64, f64)>,
}

impl Curves {
    fn draw<Y>(
        self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        title: &str,
        y: Y,
        label: &dyn Fn(&f64) -> String,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(40)
            .caption(title, ("sans-serif", 14))
            .x_label_area_size(24)
            .y_label_area_size(44)
            .build_cartesian_2d(self.x.log_scale().base(2.0), y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .label_style(("sans-serif", 10))
            .x_label_formatter(label)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (points, (name, colour)) in self.solid.into_iter().zip([("tiered", TIERED), ("leveled", LEVELED)]) {
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            // The names are beside the curves.
            let end = points[points.len() - 2];
            chart.draw_series([
                EmptyElement::at(end) + Text::new(name, (-14, -18), ("sans-serif", 12).into_font().color(&colour))
            ])?;
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        }
        let end = self.dashed[1];
        chart.draw_series([
            EmptyElement::at(end) + Text::new("paper", (-24, -18), ("sans-serif", 12).into_font().color(&PAPER))
        ])?;
        chart.draw_series(DashedLineSeries::new(self.dashed, 4, 4, PAPER.into()))?;
        Ok(())
    }
}

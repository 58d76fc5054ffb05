//! Charts as SVG: grouped bars and scatter plots on logarithmic scales.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

const COLOURS: [&str; 10] =
    ["#1b6ca8", "#e07b39", "#4b9b5f", "#b5473c", "#7d5ba6", "#8c6d46", "#d36ba6", "#6f6f6f", "#b0a21f", "#3aa6a6"];

/// Draws the charts for which the rows have figures.
pub fn draw(directory: &Path, rows: &[Value]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_string();
    let of = |figure: &'static str| rows.iter().filter(move |row| row["figure"] == figure);
    let displacement: Vec<_> =
        of("displacement").map(|row| (text(row, "workload"), text(row, "parameters"), row["mean"].as_f64())).collect();
    chart(&directory.join("vast-displacement-mean.svg"), "Mean displacement, rows", &displacement)?;
    let max: Vec<_> =
        of("displacement").map(|row| (text(row, "workload"), text(row, "parameters"), row["max"].as_f64())).collect();
    chart(&directory.join("vast-displacement-max.svg"), "Greatest displacement, rows", &max)?;
    let mut bytes = Vec::new();
    for row in of("bytes read") {
        for kind in ["summaries", "unpacked", "plain", "binary tree"] {
            bytes.push((
                format!("{}, {} rows", text(row, "workload"), row["rows"]),
                kind.to_string(),
                row[kind].as_f64(),
            ));
        }
    }
    chart(&directory.join("vast-bytes-read.svg"), "Bytes read by a range search (computed)", &bytes)?;
    let threads: Vec<_> = of("threads")
        .map(|row| (text(row, "workload"), format!("{} threads", row["threads"]), row["per_second"].as_f64()))
        .collect();
    chart(&directory.join("vast-threads.svg"), "Range searches per second (0.1 % of the rows each)", &threads)?;
    let mut workloads: Vec<String> = of("lookups").map(|row| text(row, "workload")).collect();
    workloads.dedup();
    for workload in workloads {
        let points: Vec<Point> = of("lookups")
            .filter(|row| row["workload"] == *workload)
            .filter_map(|row| {
                Some((text(row, "name"), row["bits"].as_f64()?, row["single"].as_f64()?, row["batched"].as_f64()?))
            })
            .collect();
        let name: String = workload.chars().filter(|letter| letter.is_ascii_alphanumeric()).collect();
        scatter(&directory.join(format!("vast-lookups-{name}.svg")), &workload, &points)?;
    }
    Ok(())
}

/// Name, size of the index in bits per key, nanoseconds of a single lookup and of a lookup in a batch.
type Point = (String, f64, f64, f64);

/// Draws lookup time against index size. Peers without an index are at the left edge.
fn scatter(path: &Path, workload: &str, points: &[Point]) -> std::io::Result<()> {
    let (left, top, width, height) = (60.0, 50.0, 520.0, 320.0);
    let (least_bits, most_bits): (f64, f64) = (0.005, 512.0);
    let (least, most): (f64, f64) = (10.0, 10_000.0);
    let place = |value: f64, least: f64, most: f64| (value.clamp(least, most) / least).ln() / (most / least).ln();
    let (x, y) = (
        |bits: f64| left + width * place(bits, least_bits, most_bits),
        |time: f64| top + height * (1.0 - place(time, least, most)),
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 430\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"20\" font-size=\"14\">Lookup time (ns) by size of the index (bits per key): {workload}</text>\n\
         <text x=\"{left}\" y=\"38\">filled: batched; hollow: single</text>\n"
    );
    for time in [10.0, 100.0, 1000.0, 10_000.0] {
        let (at, end) = (y(time), left + width);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{end}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{time}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    for bits in [0.01, 0.1, 1.0, 10.0, 100.0] {
        let (at, end) = (x(bits), top + height);
        let _ = writeln!(
            svg,
            "<line x1=\"{at}\" x2=\"{at}\" y1=\"{top}\" y2=\"{end}\" stroke=\"#ddd\"/>\
             <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{bits}</text>",
            end + 16.0
        );
    }
    for (number, (name, bits, single, batched)) in points.iter().enumerate() {
        let (colour, at) = (COLOURS[number % COLOURS.len()], x(*bits));
        let (one, many, beside) = (y(*single), y(*batched), top + 18.0 * number as f64);
        let _ = writeln!(
            svg,
            "<line x1=\"{at}\" x2=\"{at}\" y1=\"{one}\" y2=\"{many}\" stroke=\"{colour}\" opacity=\"0.4\"/>\n\
             <circle cx=\"{at}\" cy=\"{one}\" r=\"5\" fill=\"white\" stroke=\"{colour}\" stroke-width=\"2\"><title>{name}, single: {single:.1} ns, {bits:.3} bits</title></circle>\n\
             <circle cx=\"{at}\" cy=\"{many}\" r=\"5\" fill=\"{colour}\"><title>{name}, batched: {batched:.1} ns, {bits:.3} bits</title></circle>\n\
             <rect x=\"{}\" y=\"{beside}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            left + width + 20.0,
            left + width + 36.0,
            beside + 9.0
        );
    }
    svg.push_str("</svg>\n");
    std::fs::write(path, svg)
}

/// Group, series, figure.
type Bar = (String, String, Option<f64>);

/// Draws grouped bars.
fn chart(path: &Path, title: &str, bars: &[Bar]) -> std::io::Result<()> {
    if bars.is_empty() {
        return Ok(());
    }
    let unique = |of: fn(&Bar) -> &String| {
        let mut all: Vec<&String> = Vec::new();
        bars.iter().map(of).for_each(|name| {
            if !all.contains(&name) {
                all.push(name);
            }
        });
        all
    };
    let (groups, series) = (unique(|bar| &bar.0), unique(|bar| &bar.1));
    let figures = || bars.iter().filter_map(|bar| bar.2).filter(|&figure| figure > 0.0);
    let (least, most) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    let (low, high) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let (left, top, plot) = (70.0, 40.0, 260.0);
    let group_width = 14.0 * series.len() as f64 + 24.0;
    let width = left + group_width * groups.len() as f64 + 220.0;
    let y = |figure: f64| top + plot * (1.0 - (figure.log10() - low) / (high - low));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} 460\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{left}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    let mut line = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    for power in low as i32..=high as i32 {
        let at = y(10f64.powi(power));
        let end = left + group_width * groups.len() as f64;
        line(format!("<line x1=\"{left}\" x2=\"{end}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/>"));
        line(format!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">10^{power}</text>", left - 6.0, at + 4.0));
    }
    for (at, group) in groups.iter().enumerate() {
        let start = left + group_width * at as f64 + 12.0;
        for (number, name) in series.iter().enumerate() {
            let bar = bars.iter().find(|bar| bar.0 == **group && bar.1 == **name);
            if let Some(figure) = bar.and_then(|bar| bar.2).filter(|&figure| figure > 0.0) {
                let (x, from) = (start + 14.0 * number as f64, y(figure));
                let (height, colour) = (top + plot - from, COLOURS[number % COLOURS.len()]);
                line(format!(
                    "<rect x=\"{x}\" y=\"{from}\" width=\"12\" height=\"{height}\" fill=\"{colour}\"><title>{group}, {name}: {figure:.1}</title></rect>"
                ));
            }
        }
        let (x, below) = (start + group_width / 2.0 - 12.0, top + plot + 14.0);
        line(format!(
            "<text x=\"{x}\" y=\"{below}\" text-anchor=\"end\" transform=\"rotate(-35 {x} {below})\">{group}</text>"
        ));
    }
    for (number, name) in series.iter().enumerate() {
        let (x, at) = (left + group_width * groups.len() as f64 + 12.0, top + 16.0 * number as f64);
        line(format!(
            "<rect x=\"{x}\" y=\"{at}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
            COLOURS[number % COLOURS.len()]
        ));
        line(format!("<text x=\"{}\" y=\"{}\">{name}</text>", x + 15.0, at + 9.0));
    }
    line("</svg>".into());
    std::fs::write(path, svg)
}

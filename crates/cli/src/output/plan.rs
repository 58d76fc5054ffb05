//! Plans of EXPLAIN as drawn trees that fit the terminal.
//!
//! A plan is a text with an operator per line, indented by two spaces for each level, as DataFusion prints it. EXPLAIN ANALYZE
//! adds `metrics=[output_rows=…, elapsed_compute=…, …]`, and the shell turns `statistics=[Rows=…]` on. Estimated rows, rows and time
//! stand in columns before the tree. Operators with a large share of the time are highlighted.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};

use super::layout::{width, wrap};
use super::{Format, Screen, clean, formatters};
use crate::terminal;

/// Operators with at least this share of the time are highlighted.
const SLOW: f64 = 0.25;
/// Lower bound of the cells for the text of an operator.
const TEXT_MIN: usize = 24;
/// Cells for each level of the tree: usually, and for deeper trees on narrower terminals.
const LEVELS: [usize; 3] = [3, 2, 1];

/// True for results of EXPLAIN.
pub fn is_plan(schema: &Schema) -> bool {
    let is_text = |ty: &DataType| matches!(ty, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8);
    let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    columns == ["plan_type", "plan"] && schema.fields().iter().all(|field| is_text(field.data_type()))
}

/// Writes plans as trees.
pub struct Plans {
    screen: Option<Screen>,
    line: Option<usize>,
}

impl Plans {
    pub fn new(screen: Option<Screen>, line: Option<usize>) -> Plans {
        Plans { screen, line }
    }
}

impl Format for Plans {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        let formatters = formatters(batch.columns(), "")?;
        for row in 0..batch.num_rows() {
            let [kind, plan] = [0, 1].map(|column| clean(formatters[column].value(row).to_string()));
            let colours = self.screen.is_some_and(|screen| screen.colours);
            let [bold, reset] = if colours { ["\x1b[1m", "\x1b[0m"] } else { ["", ""] };
            writeln!(out, "{bold}{}{reset}", kind.replace('_', " ").to_lowercase())?;
            for line in drawn(&plan, self.line, colours) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    fn end(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// An operator of a plan.
#[derive(Debug, Default, PartialEq)]
struct Operator {
    depth: usize,
    text: String,
    estimate: String,
    rows: String,
    time_ns: Option<f64>,
    /// The other measured numbers.
    measured: String,
}

/// Reads an operator from a line. Without metrics and statistics, the whole line is its text.
fn operator(line: &str) -> Operator {
    let text = line.trim_start_matches(' ');
    let mut operator = Operator { depth: (line.len() - text.len()) / 2, ..Operator::default() };
    let (text, statistics) = part(text, ", statistics=[");
    let (text, metrics) = part(text, ", metrics=[");
    operator.text = text.into();
    operator.estimate = statistics.and_then(estimate).unwrap_or_default();
    if operator.estimate.is_empty() {
        operator.estimate = value(text, "est_rows=").map(|rows| format!("~{rows}")).unwrap_or_default();
    }
    let mut measured = Vec::new();
    for metric in metrics.unwrap_or_default().split(", ").filter(|metric| !metric.is_empty()) {
        match metric.split_once('=') {
            Some(("output_rows", rows)) => operator.rows = rows.into(),
            Some(("elapsed_compute", time)) => operator.time_ns = nanoseconds(time),
            Some((_, value)) if is_zero(value) => {}
            _ => measured.push(metric),
        }
    }
    operator.measured = measured.join(", ");
    operator
}

/// Divides a text at a list in brackets, which is at its end.
fn part<'a>(text: &'a str, start: &str) -> (&'a str, Option<&'a str>) {
    match text.rfind(start) {
        Some(at) if text.ends_with(']') => (&text[..at], Some(&text[at + start.len()..text.len() - 1])),
        _ => (text, None),
    }
}

/// The number of rows in statistics: `Rows=Exact(5)`, `Rows=Inexact(5)`, `Rows=Absent`.
fn estimate(statistics: &str) -> Option<String> {
    let rows = statistics.strip_prefix("Rows=")?;
    let number = |text: &str| text.split(')').next()?.parse().ok().map(terminal::thousands);
    match rows.strip_prefix("Exact(") {
        Some(exact) => number(exact),
        None => number(rows.strip_prefix("Inexact(")?).map(|rows| format!("~{rows}")),
    }
}

/// The value after a name in the text of an operator.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(name)?;
    rest.split([',', ' ', ']']).next()
}

fn is_zero(value: &str) -> bool {
    let number = value.trim_end_matches(|c: char| c.is_alphabetic() || c == ' ' || c == '%');
    number.parse::<f64>() == Ok(0.0)
}

/// A time such as `1.5ms`.
fn nanoseconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        "µs" | "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(digits.trim().parse::<f64>().ok()? * unit)
}

/// A time for people.
fn shown(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// The lines of the tree, after a line with the names of the columns if there are numbers.
fn drawn(plan: &str, line: Option<usize>, colours: bool) -> Vec<String> {
    let operators: Vec<Operator> = plan.lines().filter(|line| !line.trim().is_empty()).map(operator).collect();
    let all_ns: f64 = operators.iter().filter_map(|operator| operator.time_ns).sum();
    let share = |operator: &Operator| operator.time_ns.map(|ns| ns / all_ns).filter(|share| share.is_finite());
    let columns = columns(&operators, &share);
    let numbers_width: usize = columns.iter().map(|(_, _, width)| width + 2).sum();
    let depth = operators.iter().map(|operator| operator.depth + 1).max().unwrap_or(0);
    let fits = |level: &usize| line.is_none_or(|line| numbers_width + level * depth + TEXT_MIN <= line);
    let level = LEVELS.into_iter().find(fits).unwrap_or(1);
    let mut lines = Vec::new();
    if !columns.is_empty() {
        let names: String = columns.iter().map(|(name, _, width)| format!("{name:>width$}  ")).collect();
        lines.push(format!("{names}operator"));
    }
    for (index, operator) in operators.iter().enumerate() {
        let [first, further] = guides(&operators, index, level);
        let room =
            line.map(|line| line.saturating_sub(numbers_width + width(&first).max(width(&further))).max(TEXT_MIN));
        let parts =
            |text: &str, inset: usize| room.map_or_else(|| vec![text.to_string()], |room| wrap(text, room - inset));
        let numbers: String = columns.iter().map(|(_, values, width)| format!("{:>width$}  ", values[index])).collect();
        let is_slow = operators.len() > 1 && share(operator).is_some_and(|share| share >= SLOW);
        for (number, part) in parts(&operator.text, 0).into_iter().enumerate() {
            let (numbers, guide) = match number {
                0 => (numbers.clone(), &first),
                _ => (" ".repeat(numbers_width), &further),
            };
            lines.push(match colours && is_slow {
                true => format!("\x1b[1;33m{numbers}\x1b[0m{guide}\x1b[1;33m{part}\x1b[0m"),
                false => format!("{numbers}{guide}{part}"),
            });
        }
        for part in parts(&operator.measured, 2).iter().filter(|part| !part.is_empty()) {
            let [dim, reset] = if colours { ["\x1b[2m", "\x1b[0m"] } else { ["", ""] };
            lines.push(format!("{}{further}{dim}  {part}{reset}", " ".repeat(numbers_width)));
        }
    }
    lines
}

/// The columns of numbers that have values: name, value of each operator, width.
fn columns(
    operators: &[Operator],
    share: &dyn Fn(&Operator) -> Option<f64>,
) -> Vec<(&'static str, Vec<String>, usize)> {
    let time = |operator: &Operator| operator.time_ns.map(shown).unwrap_or_default();
    let percent =
        |operator: &Operator| share(operator).map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default();
    type Text<'a> = &'a dyn Fn(&Operator) -> String;
    let all: [(&str, Text<'_>); 4] = [
        ("estimated", &|operator| operator.estimate.clone()),
        ("rows", &|operator| operator.rows.clone()),
        ("time", &time),
        ("share", &percent),
    ];
    let columns = all.into_iter().map(|(name, of)| {
        let values: Vec<String> = operators.iter().map(of).collect();
        let width = values.iter().map(|value| width(value)).max().unwrap_or(0);
        (name, values, width)
    });
    let columns = columns.filter(|(_, _, width)| *width > 0);
    columns.map(|(name, values, width)| (name, values, width.max(name.len()))).collect()
}

/// The lines of the tree before the first line of an operator, and before its further lines, with `level` cells for each level.
fn guides(operators: &[Operator], index: usize, level: usize) -> [String; 2] {
    let depth = operators[index].depth;
    // True if another child of the ancestor at this depth follows.
    let continues = |depth: usize| {
        let next = operators[index + 1..].iter().find(|operator| operator.depth <= depth);
        next.is_some_and(|operator| operator.depth == depth)
    };
    let cells = |text: &str| format!("{:<level$}", text.chars().take(level.max(2) - 1).collect::<String>());
    let above: String = (1..depth).map(|depth| cells(if continues(depth) { "│" } else { "" })).collect();
    let below = cells(if operators.get(index + 1).is_some_and(|next| next.depth > depth) { "│" } else { "" });
    let (branch, line) = match (depth, continues(depth)) {
        (0, _) => (String::new(), String::new()),
        (_, true) => (cells("├─"), cells("│")),
        (_, false) => (cells("└─"), cells("")),
    };
    [format!("{above}{branch}"), format!("{above}{line}{below}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_trees() {
        let plan = "Sort: a\n  Join: x = y\n    Join: y = z\n      Scan: t\n      Scan: u\n    Scan: v\n";
        let expected =
            ["Sort: a", "└─ Join: x = y", "   ├─ Join: y = z", "   │  ├─ Scan: t", "   │  └─ Scan: u", "   └─ Scan: v"];
        assert_eq!(drawn(plan, None, false), expected);
    }

    #[test]
    fn estimates_are_beside_rows() {
        let plan = "SortExec: [a], metrics=[output_rows=12, elapsed_compute=1.5ms, spill_count=0, output_bytes=1.5 KB], \
                    statistics=[Rows=Inexact(1000), Bytes=Absent, [(Col[0]:)]]\n  \
                    ScanExec: t, est_rows=191, metrics=[output_rows=7, elapsed_compute=500µs, spilled_bytes=0.0 B]\n";
        let expected = [
            "estimated  rows      time  share  operator",
            "   ~1,000    12    1.5 ms   75 %  SortExec: [a]",
            "                                  │    output_bytes=1.5 KB",
            "     ~191     7  500.0 µs   25 %  └─ ScanExec: t, est_rows=191",
        ];
        assert_eq!(drawn(plan, None, false), expected);
        let coloured = drawn(plan, None, true);
        assert!(coloured[1].starts_with("\x1b[1;33m") && coloured[2].contains("\x1b[2m"), "{coloured:?}");
    }

    #[test]
    fn trees_fit_the_terminal() {
        let text = "Projection: ".to_string() + &["column"; 30].join(", ");
        let plan = format!("{text}\n  {text}\n    {text}\n    {text}\n");
        for line in [40, 80, 200] {
            let lines = drawn(&plan, Some(line), false);
            assert!(lines.iter().all(|text| width(text) <= line), "{lines:#?}");
            let joined: String = lines.concat();
            assert_eq!(joined.matches("column").count(), 120);
        }
    }

    /// Deep trees with numbers have narrow levels, so that their texts have room.
    #[test]
    fn deep_trees_fit_the_terminal() {
        let operator = |depth: usize| {
            format!(
                "{}Join: t{depth}, metrics=[output_rows=12345, elapsed_compute=1.5ms, expr_0_eval_time=971.123ms]\n",
                "  ".repeat(depth)
            )
        };
        for depth in [3, 8, 20] {
            let plan: String = (0..depth).map(operator).collect();
            let lines = drawn(&plan, Some(80), false);
            assert!(lines.iter().all(|text| width(text) <= 80), "{lines:#?}");
            assert_eq!(
                lines.iter().filter(|line| line.contains("expr_0_eval_time=971.123ms")).count(),
                depth,
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn numbers_of_metrics() {
        assert_eq!(estimate("Rows=Exact(5), Bytes=Absent"), Some("5".into()));
        assert_eq!((estimate("Rows=Absent, Bytes=Absent"), estimate("")), (None, None));
        assert_eq!((nanoseconds("2ns"), nanoseconds("1.5s"), nanoseconds("x")), (Some(2.0), Some(1.5e9), None));
        assert!(is_zero("0") && is_zero("0.0 B") && is_zero("0ns") && !is_zero("1.0 B") && !is_zero("x"));
        // A text that only resembles metrics remains.
        assert_eq!(operator("  Filter: a = ', metrics=[x'").text, "Filter: a = ', metrics=[x'");
    }
}

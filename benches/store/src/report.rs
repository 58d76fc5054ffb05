//! The table, with Keyaki's figures, targets and peers, and the same as JSON rows.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use keyaki_bench_report::{Better, Rows};

use crate::metrics::{Figures, KEYS, METRICS, Metric};
use crate::options::{Options, Workload};
use crate::system::Name;

/// The figures of a metric: of all systems that have one.
fn of(metric: &Metric, figures: &BTreeMap<Name, Figures>) -> BTreeMap<Name, f64> {
    let key = (metric.workload, metric.name.to_string());
    figures.iter().filter_map(|(name, figures)| Some((*name, *figures.get(&key)?))).collect()
}

/// Prints the figures of the selected workloads.
pub fn print(options: &Options, figures: &BTreeMap<Name, Figures>) {
    let has_figures = |name: &Name| *name != Name::Keyaki && !figures[name].is_empty();
    let peers: Vec<Name> = figures.keys().copied().filter(has_figures).collect();
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let header = ["workload", "metric", "unit", "target", Name::Keyaki.title()];
    table.set_header(header.into_iter().chain(peers.iter().map(|name| name.title())));
    for metric in METRICS.iter().filter(|metric| options.wants(metric.workload)) {
        let values = of(metric, figures);
        if values.is_empty() {
            continue;
        }
        let keyaki = values.get(&Name::Keyaki).copied();
        let reached = keyaki
            .zip(metric.target)
            .and_then(|(keyaki, target)| target.is_reached(keyaki, values.get(&Name::Rocksdb).copied()));
        let verdict = match reached {
            Some(true) => " reached",
            Some(false) => " missed",
            None => "",
        };
        let ours = keyaki.map_or("-".into(), |value| format!("{}{verdict}", number(value)));
        let target = metric.target.map_or(String::new(), |target| target.to_string());
        let cells = [metric.title.into(), metric.name.into(), metric.unit.into(), target, ours];
        table.add_row(cells.into_iter().chain(peers.iter().map(|name| match (values.get(name), keyaki) {
            (Some(&value), Some(keyaki)) => format!("{} ({})", number(value), ratio(metric.better, keyaki, value)),
            (Some(&value), None) => number(value),
            (None, _) => "-".into(),
        })));
    }
    println!("{table}");
    println!("In brackets: above 1 where Keyaki is better.");
    for (name, figures) in figures {
        if let Some(&keys) = figures.get(&(Workload::Insert, KEYS.into()))
            && (keys as u64) < options.keys
        {
            println!("{}: only {keys} keys were inserted in {} s.", name.title(), options.seconds);
        }
    }
}

/// Adds a row for each metric and peer.
pub fn rows(options: &Options, figures: &BTreeMap<Name, Figures>) -> Rows {
    let mut rows = Rows::new("store");
    for metric in METRICS.iter().filter(|metric| options.wants(metric.workload)) {
        let mut values = of(metric, figures);
        let Some(keyaki) = values.remove(&Name::Keyaki) else { continue };
        if values.is_empty() {
            rows.figure(metric.title, metric.name, metric.unit, keyaki);
        }
        for (peer, value) in values {
            rows.compare(metric.title, (metric.name, metric.unit, metric.better), keyaki, (peer.title(), value));
        }
    }
    rows
}

fn ratio(better: Better, keyaki: f64, peer: f64) -> String {
    let ratio = match better {
        Better::Higher => keyaki / peer,
        Better::Lower => peer / keyaki,
    };
    if ratio.is_finite() { format!("{ratio:.2}x") } else { "-".into() }
}

/// A figure with three significant digits at least.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        assert_eq!([0.0, 0.01234, 1.5, 123456.7].map(number), ["0", "0.0123", "1.50", "123457"]);
    }

    #[test]
    fn ratios_are_above_one_where_keyaki_is_better() {
        assert_eq!(ratio(Better::Higher, 2.0, 1.0), "2.00x");
        assert_eq!(ratio(Better::Lower, 2.0, 1.0), "0.50x");
        assert_eq!(ratio(Better::Lower, 0.0, 1.0), "-");
    }
}

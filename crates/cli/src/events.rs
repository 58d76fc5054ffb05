//! The reads of a query over time as trace events: JSON in the format of Chrome's tracing, which Perfetto shows.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use keyaki_exec::{Stats, StatsSnapshot};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::plot;

/// The process of all events; its threads are the operators.
const PROCESS: u32 = 1;
/// Parts of an operator's time for which a rate is computed.
const RATES: usize = 200;

/// Writes the operators that a statement has started: a span for each, with its counters, and its reads in flight and
/// per second over time. Returns the number of events.
///
/// # Errors
/// [`Failure::File`].
pub fn write(file: &Path, sql: &str, stats: &[(String, Stats)]) -> Result<usize> {
    let stats: Vec<(&str, StatsSnapshot)> =
        stats.iter().map(|(name, stats)| (name.as_str(), stats.snapshot())).collect();
    let events = events(sql, &stats);
    let count = events.len();
    let document = json!({ "displayTimeUnit": "ms", "traceEvents": events });
    let mut out = BufWriter::new(File::create(file).map_err(Failure::file(file))?);
    serde_json::to_writer(&mut out, &document).map_err(|error| Failure::file(file)(error.into()))?;
    out.flush().map_err(Failure::file(file))?;
    Ok(count)
}

fn events(sql: &str, stats: &[(&str, StatsSnapshot)]) -> Vec<Value> {
    let started_ns = stats.iter().map(|(_, snapshot)| snapshot.started_ns).min().unwrap_or(0);
    let mut events = vec![json!({ "ph": "M", "pid": PROCESS, "name": "process_name", "args": { "name": sql } })];
    for (i, (name, snapshot)) in stats.iter().enumerate() {
        let thread = i + 1;
        let name = format!("{thread} {name}");
        let us = |ns: u64| ns as f64 / 1e3;
        let start_ns = snapshot.started_ns - started_ns;
        let common = json!({ "pid": PROCESS, "tid": thread });
        let mut add = |fields: Value| {
            let mut event = common.clone();
            if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
                event.extend(fields);
            }
            events.push(event);
        };
        add(json!({ "ph": "M", "name": "thread_name", "args": { "name": name } }));
        add(json!({
            "ph": "X", "name": name, "ts": us(start_ns), "dur": us(snapshot.elapsed_ns),
            "args": {
                "rows": snapshot.rows,
                "pages requested": snapshot.pages_requested,
                "pages cached": snapshot.pages_cached,
                "pages shared": snapshot.pages_shared,
                "pages read": snapshot.pages_read,
                "reads": snapshot.reads,
                "bytes read": snapshot.bytes_read,
                "reads in flight, at most": snapshot.in_flight_max,
                "tasks": snapshot.tasks,
            },
        }));
        let mut count = |what: &str, at_ns: u64, value: f64| {
            let name = format!("{what}: {name}");
            add(json!({ "ph": "C", "name": name, "ts": us(start_ns + at_ns), "args": { what: value } }));
        };
        if snapshot.timeline.is_empty() {
            continue;
        }
        for sample in &snapshot.timeline {
            count("reads in flight", sample.at_ns, f64::from(sample.in_flight));
        }
        count("reads in flight", snapshot.elapsed_ns, 0.0);
        let rates = plot::rates(&snapshot.timeline, snapshot.elapsed_ns, RATES);
        for (i, rate) in rates.into_iter().enumerate() {
            count("reads per second", snapshot.elapsed_ns * i as u64 / RATES as u64, rate.round());
        }
        count("reads per second", snapshot.elapsed_ns, 0.0);
    }
    events
}

#[cfg(test)]
mod tests {
    use keyaki_exec::Sample;

    use super::*;

    #[test]
    fn operators_are_spans_with_counters() {
        let sample = |at_ns, in_flight, reads| Sample { at_ns, in_flight, reads };
        let timeline = vec![sample(1_000, 3, 1), sample(2_000, 1, 4)];
        let scan = StatsSnapshot { started_ns: 5_000, elapsed_ns: 4_000, reads: 4, timeline, ..Default::default() };
        let idle = StatsSnapshot { started_ns: 7_000, elapsed_ns: 500, ..Default::default() };
        let events = events("SELECT 1", &[("scan t", scan), ("scan u", idle)]);
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        let spans = of("X");
        assert_eq!(spans.len(), 2);
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(0.0), Some(4.0)));
        assert_eq!((spans[1]["ts"].as_f64(), spans[1]["name"].as_str()), (Some(2.0), Some("2 scan u")));
        assert_eq!(spans[0]["args"]["reads"], 4);
        let flight: Vec<_> = of("C").into_iter().filter_map(|event| event["args"].get("reads in flight")).collect();
        assert_eq!(flight, [&json!(3.0), &json!(1.0), &json!(0.0)]);
        // All four reads are in the rates: a rate holds for a part of 20 ns.
        let rates = of("C").into_iter().filter_map(|event| event["args"]["reads per second"].as_f64());
        let reads: f64 = rates.sum::<f64>() * 20.0 / 1e9;
        assert!((reads - 4.0).abs() < 0.01, "{reads}");
    }
}

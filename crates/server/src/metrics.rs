//! Figures of a server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Kinds of statements by their first words. Others are `other`.
const KINDS: [(&str, &[&str]); 7] = [
    ("select", &["SELECT", "WITH", "VALUES", "TABLE"]),
    ("insert", &["INSERT"]),
    ("update", &["UPDATE", "MERGE"]),
    ("delete", &["DELETE", "TRUNCATE"]),
    ("copy", &["COPY"]),
    ("transaction", &["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"]),
    ("definition", &["CREATE", "ALTER", "DROP", "GRANT", "REVOKE", "COMMENT"]),
];
const OTHER: usize = KINDS.len();
/// Upper bounds of the histogram of durations in microseconds.
const BOUNDS_US: [u64; 10] = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
/// The number of classes of SQLSTATEs is bounded by the protocol of the server; more are not counted.
const CLASSES_MAX: usize = 64;

/// Counters since the start of the server.
#[derive(Debug, Default)]
pub struct Metrics {
    connections: AtomicU64,
    statements: [AtomicU64; OTHER + 1],
    /// Number of durations up to each bound, and above the last one.
    durations: [AtomicU64; BOUNDS_US.len() + 1],
    duration_us: AtomicU64,
    /// Handshakes of TLS that have failed, and handshakes that were refused after many failures.
    handshakes_failed: AtomicU64,
    handshakes_refused: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
    /// By the class of the SQLSTATE.
    errors: Mutex<BTreeMap<String, u64>>,
    /// Connections that were refused, by the class of the SQLSTATE.
    refused: Mutex<BTreeMap<String, u64>>,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Counts an error with a SQLSTATE.
fn count(classes: &Mutex<BTreeMap<String, u64>>, sqlstate: &str) {
    let class = sqlstate.get(..2).unwrap_or_default();
    let mut classes = classes.lock();
    if let Some(count) = classes.get_mut(class) {
        *count += 1;
    } else if classes.len() < CLASSES_MAX {
        classes.insert(class.into(), 1);
    }
}

impl Metrics {
    /// Counts a connection after its startup.
    pub fn connected(&self) {
        add(&self.connections, 1);
    }

    /// Counts a connection that was refused.
    pub fn refused(&self, sqlstate: &str) {
        count(&self.refused, sqlstate);
    }

    /// Counts a handshake of TLS that has failed.
    pub fn handshake_failed(&self) {
        add(&self.handshakes_failed, 1);
    }

    /// Counts a handshake of TLS that was refused.
    pub fn handshake_refused(&self) {
        add(&self.handshakes_refused, 1);
    }

    /// Counts an executed request, with the first word of its text, and the SQLSTATE if it has failed.
    pub fn executed(&self, first_word: &str, elapsed: Duration, sqlstate: Option<&str>) {
        let is = |word: &&str| word.eq_ignore_ascii_case(first_word);
        let kind = KINDS.iter().position(|(_, words)| words.iter().any(is)).unwrap_or(OTHER);
        add(&self.statements[kind], 1);
        let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        add(&self.durations[BOUNDS_US.partition_point(|bound| *bound < us)], 1);
        add(&self.duration_us, us);
        if let Some(sqlstate) = sqlstate {
            count(&self.errors, sqlstate);
        }
    }

    /// Counts bytes of the protocol.
    pub fn transferred(&self, received: u64, sent: u64) {
        add(&self.bytes_received, received);
        add(&self.bytes_sent, sent);
    }

    /// All figures, with the number of open connections and figures of the store.
    pub fn text(&self, connections: usize, store: &[(String, f64)]) -> String {
        let mut text = Text(String::new());
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        text.family("keyaki_connections", "gauge");
        text.value("keyaki_connections", "", connections);
        text.family("keyaki_connections_total", "counter");
        text.value("keyaki_connections_total", "", get(&self.connections));
        text.family("keyaki_connections_refused_total", "counter");
        text.classes("keyaki_connections_refused_total", &self.refused);
        for (name, counter) in [("failed", &self.handshakes_failed), ("refused", &self.handshakes_refused)] {
            let name = format!("keyaki_tls_handshakes_{name}_total");
            text.family(&name, "counter");
            text.value(&name, "", get(counter));
        }
        text.family("keyaki_statements_total", "counter");
        let kinds = KINDS.iter().map(|(kind, _)| *kind).chain(["other"]);
        for (kind, counter) in kinds.zip(&self.statements) {
            text.value("keyaki_statements_total", &format!("{{kind=\"{kind}\"}}"), get(counter));
        }
        text.family("keyaki_statement_errors_total", "counter");
        text.classes("keyaki_statement_errors_total", &self.errors);
        text.family("keyaki_statement_duration_seconds", "histogram");
        let mut total = 0;
        let bounds = BOUNDS_US.iter().map(|us| (*us as f64 / 1e6).to_string()).chain(["+Inf".into()]);
        for (bound, counter) in bounds.zip(&self.durations) {
            total += get(counter);
            text.value("keyaki_statement_duration_seconds_bucket", &format!("{{le=\"{bound}\"}}"), total);
        }
        text.value("keyaki_statement_duration_seconds_sum", "", get(&self.duration_us) as f64 / 1e6);
        text.value("keyaki_statement_duration_seconds_count", "", total);
        for (name, counter) in [("received", &self.bytes_received), ("sent", &self.bytes_sent)] {
            let name = format!("keyaki_bytes_{name}_total");
            text.family(&name, "counter");
            text.value(&name, "", get(counter));
        }
        for (name, value) in store {
            let name = format!("keyaki_store_{name}");
            text.family(&name, "gauge");
            text.value(&name, "", value);
        }
        text.0
    }
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn classes(&mut self, name: &str, classes: &Mutex<BTreeMap<String, u64>>) {
        for (class, count) in classes.lock().iter() {
            self.value(name, &format!("{{class=\"{class}\"}}"), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_text() {
        let metrics = Metrics::default();
        metrics.connected();
        metrics.refused("28P01");
        metrics.handshake_failed();
        metrics.executed("select", Duration::from_micros(100), None);
        metrics.executed("WITH", Duration::from_millis(2), Some("42703"));
        metrics.executed("MOVE", Duration::from_secs(1000), Some("42601"));
        metrics.transferred(10, 20);
        let text = metrics.text(3, &[("cache_hits".into(), 7.0)]);
        for line in [
            "# TYPE keyaki_connections gauge",
            "keyaki_connections 3",
            "keyaki_connections_total 1",
            "keyaki_connections_refused_total{class=\"28\"} 1",
            "keyaki_tls_handshakes_failed_total 1",
            "keyaki_tls_handshakes_refused_total 0",
            "keyaki_statements_total{kind=\"select\"} 2",
            "keyaki_statements_total{kind=\"insert\"} 0",
            "keyaki_statements_total{kind=\"other\"} 1",
            "keyaki_statement_errors_total{class=\"42\"} 2",
            "keyaki_statement_duration_seconds_bucket{le=\"0.0001\"} 1",
            "keyaki_statement_duration_seconds_bucket{le=\"0.003\"} 2",
            "keyaki_statement_duration_seconds_bucket{le=\"100\"} 2",
            "keyaki_statement_duration_seconds_bucket{le=\"+Inf\"} 3",
            "keyaki_statement_duration_seconds_sum 1000.0021",
            "keyaki_statement_duration_seconds_count 3",
            "keyaki_bytes_received_total 10",
            "keyaki_bytes_sent_total 20",
            "keyaki_store_cache_hits 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}

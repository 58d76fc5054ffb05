//! The rows that every benchmark writes as JSON, one form for all (see `cargo xtask bench`).

use std::path::Path;

use serde::Serialize;

/// One figure, with a peer's figure of the same run where there is one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    bench: &'static str,
    workload: String,
    metric: String,
    unit: String,
    keyaki: f64,
    peer: Option<f64>,
    peer_name: Option<String>,
    /// Above 1 where Keyaki is better; none if the figures cannot be ranked.
    ratio: Option<f64>,
}

/// The direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// The rows of one benchmark.
#[derive(Debug)]
pub struct Rows {
    bench: &'static str,
    rows: Vec<Row>,
}

impl Rows {
    /// No rows of the benchmark with this name (its name in `cargo xtask bench`).
    pub fn new(bench: &'static str) -> Self {
        Self { bench, rows: Vec::new() }
    }

    /// A figure without a peer.
    pub fn figure(&mut self, workload: &str, metric: &str, unit: &str, keyaki: f64) {
        self.push(workload, metric, unit, keyaki, None, None);
    }

    /// A figure beside a peer's.
    pub fn compare(
        &mut self,
        workload: &str,
        metric: (&str, &str, Better),
        keyaki: f64,
        (peer_name, peer): (&str, f64),
    ) {
        let (metric, unit, better) = metric;
        let ratio = match better {
            Better::Lower => peer / keyaki,
            Better::Higher => keyaki / peer,
        };
        let ratio = Some(ratio).filter(|ratio| ratio.is_finite());
        self.push(workload, metric, unit, keyaki, Some((peer_name, peer)), ratio);
    }

    /// A figure beside a reference that it reproduces, so that neither is better.
    pub fn reproduce(&mut self, workload: &str, metric: &str, unit: &str, keyaki: f64, reference: (&str, f64)) {
        self.push(workload, metric, unit, keyaki, Some(reference), None);
    }

    fn push(
        &mut self,
        workload: &str,
        metric: &str,
        unit: &str,
        keyaki: f64,
        peer: Option<(&str, f64)>,
        ratio: Option<f64>,
    ) {
        self.rows.push(Row {
            bench: self.bench,
            workload: workload.into(),
            metric: metric.into(),
            unit: unit.into(),
            keyaki,
            peer: peer.map(|(_, figure)| figure).filter(|figure| figure.is_finite()),
            peer_name: peer.map(|(name, _)| name.into()),
            ratio,
        });
    }

    /// Writes the rows as a JSON array.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, serde_json::to_string_pretty(&self.rows)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_above_one_where_keyaki_is_better() {
        let mut rows = Rows::new("b");
        rows.compare("w", ("time", "s", Better::Lower), 2.0, ("p", 4.0));
        rows.compare("w", ("rate", "1/s", Better::Higher), 2.0, ("p", 4.0));
        rows.figure("w", "time", "s", 2.0);
        let ratios: Vec<_> = rows.rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(2.0), Some(0.5), None]);
        let text = serde_json::to_string(&rows.rows[2]).unwrap();
        let fields = r#""unit":"s","keyaki":2.0,"peer":null,"peer_name":null,"ratio":null}"#;
        assert!(text.ends_with(fields), "{text}");
    }
}

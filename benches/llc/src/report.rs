//! Tables for people, rows for programs.

use std::path::Path;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Value>,
}

impl Report {
    /// Something beside the figures.
    pub fn note(&mut self, what: &str, value: Value) {
        self.rows.push(json!({ "what": what, "value": value }));
    }

    /// A figure.
    pub fn figure(&mut self, workload: &str, metric: &str, value: impl Into<Value>) {
        self.rows.push(json!({ "workload": workload, "metric": metric, "value": value.into() }));
    }

    pub fn write(&self, path: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
        if let Some(path) = path {
            std::fs::write(path, serde_json::to_string_pretty(&self.rows)?)?;
        }
        Ok(())
    }
}

pub fn table(title: &str, header: &[&str]) -> Table {
    println!("\n{title}");
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    table
}

//! Runs the small statements in DuckDB, with the Python interpreter that the environment variable `KEYAKI_PYTHON` names.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::Experiment::{Count, Delete, Group, Index, Insert, InsertMany, Point, Update};
use crate::{Arguments, Result};

const SCRIPT: &str = include_str!("../duckdb_side.py");

/// DuckDB's median microseconds by the names of the experiments; none without the environment variable.
pub fn times(arguments: &Arguments) -> Result<BTreeMap<String, f64>> {
    let supported = [Point, Index, Group, Insert, Update, Delete, InsertMany, Count];
    let wanted = supported.iter().filter(|experiment| arguments.experiments.contains(experiment));
    let wanted: Vec<String> = wanted.map(ToString::to_string).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let Some(python) = std::env::var_os("KEYAKI_PYTHON") else {
        println!("no figures of DuckDB: KEYAKI_PYTHON does not name a Python interpreter");
        return Ok(BTreeMap::new());
    };
    let directory = tempfile::tempdir_in(".")?;
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).arg(directory.path().join("duckdb"));
    // DuckDB takes a hundred times as long for a statement.
    let statements = (arguments.statements / 10).max(1);
    command.args(["--rows", &arguments.rows.to_string(), "--statements", &statements.to_string()]);
    let output = command.args(["--experiments", &wanted.join(",")]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the script of DuckDB failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

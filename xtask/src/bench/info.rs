//! Where and when a run of the benches took place.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::run::{Result, root};

/// The content of `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Processor, cores, memory, kernel.
    pub machine: String,
    /// Date of the run's start in UTC, as `2026-01-31`.
    pub date: String,
    /// Hash of the commit, followed by ` (modified)` if tracked files differ from it.
    pub commit: String,
    /// The command of each bench, by its name.
    pub commands: BTreeMap<String, String>,
}

impl RunInfo {
    pub fn collect(commands: BTreeMap<String, String>) -> Result<Self> {
        let commit = output("git", &["rev-parse", "--short=12", "HEAD"])?;
        let modified = !output("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        let commit = if modified { format!("{commit} (modified)") } else { commit };
        Ok(Self { machine: machine(), date: output("date", &["--utc", "+%F"])?, commit, commands })
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }

    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }
}

/// The trimmed standard output of a program that runs in the repository.
fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// One line about the machine, without the parts that the system does not report.
fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cores = std::thread::available_parallelism().ok().map(|cores| format!("{cores} cores"));
    let memory = field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let parts = [
        field("/proc/cpuinfo", "model name"),
        cores,
        memory.map(|kib| format!("{:.0} GiB", kib / (1024.0 * 1024.0))),
        kernel.map(|release| format!("Linux {}", release.trim())),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

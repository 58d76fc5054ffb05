//! The layers inside a crate: a module may use its own folder and the folders of lower steps.
//!
//! [`LAYERS`] lists the top-level modules of a crate in their order. [`source`] parses the crate's sources into a tree of
//! modules with their imports and paths, [`resolve`] follows each path through modules and re-exports to the top-level
//! modules it touches, and this module compares their steps. Test modules follow the same rule. There are no exceptions.

mod collect;
mod resolve;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::Result;
use resolve::Touched;
use source::Sources;

/// Crate folder and the order of its top-level modules, lowest step first. Modules of one step, separated by commas, must
/// not use each other.
const LAYERS: &[(&str, &str)] = &[
    (
        "crates/device",
        "memory, model < interface < os, simulated < metered, paced, threads, uring < select < calibrate, conformance",
    ),
    (
        "crates/masstree",
        "sync, key, value < guard, arena, node < retire < tree < descend < write < split, unlink, ascending, scan \
         < range < map < batch, estimate, stats < partition, bulk < tests",
    ),
    ("crates/llc", "machine, mask, stats < calibrate, resctrl, sim < software < governor"),
    ("crates/vast", "error, key, memory < header, sorted, serial < simd < tree, packed < index < tests"),
    ("crates/store", "base < codec < message < buffer < log < pages < locator < tree < engine < key_value"),
    ("crates/exec", "base < query < runtime < source < operators < executor"),
    (
        "crates/publish",
        "error < format, parallel, random < remote < cache, repository < collector, files, publisher, reader < copy",
    ),
    ("crates/tpch", "table < rows"),
    ("crates/keyaki", "base < values < catalog < engine < table < plan < write < sql < session"),
    (
        "crates/server",
        "failure, metrics, socket, tls, types < frames, options, registry, values < auth, copy < shared \
         < connection, http < server",
    ),
    ("crates/cluster", "error, security, share, version < stages < codec < channel < coordinator, worker"),
    (
        "crates/python",
        "classes, extensions, parameters, process < batches, failure, statements < decode, encode, progress, registry, shelves, source < frames < handle < result, stream < api < _keyaki, adbc",
    ),
    (
        "crates/cli",
        "remote < allocator, directories, failure, interrupt, intervals, notify, pager, similar, terminal \
         < bars, connection, database, device, new_database, output, plot, program < arguments, events, expert < cluster, configuration, log, manual, misspelt, run < backup, caches, check, dump, figure, publish, repair, restore, serve, \
         trace < calibrate < demo, shell",
    ),
];

/// Checks every crate of [`LAYERS`].
pub fn check(root: &Path) -> Result<()> {
    let mut violations = Vec::new();
    for (folder, order) in LAYERS {
        let sources = root.join(folder).join("src");
        let [library, program] = ["lib.rs", "main.rs"].map(|name| sources.join(name));
        let sources = Sources::read(root, if library.exists() { &library } else { &program })?;
        violations.extend(check_sources(&sources, &Order::parse(order)));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
}

/// The steps of one crate: the names of its top-level modules, lowest step first.
struct Order<'a> {
    steps: Vec<Vec<&'a str>>,
}

impl<'a> Order<'a> {
    /// Parses the form `base < codec < buffer, log`.
    fn parse(text: &'a str) -> Self {
        Self { steps: text.split('<').map(|step| step.split(',').map(str::trim).collect()).collect() }
    }

    /// The step of a top-level module; the lowest is 1.
    fn step(&self, module: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.contains(&module)).map(|index| index + 1)
    }
}

/// One line for each path that leads to the same or a higher step, and for each module without a step.
fn check_sources(sources: &Sources, order: &Order<'_>) -> Vec<String> {
    let top: BTreeSet<&str> = sources.top_level().collect();
    let listed = || order.steps.iter().flatten().copied();
    let mut violations: Vec<String> = sources.unreached.clone();
    for module in top.iter().filter(|module| order.step(module).is_none()) {
        violations.push(format!("{}: module {module} has no layer", sources.root_file()));
    }
    for module in listed().filter(|module| !top.contains(module)) {
        violations
            .push(format!("{}: module {module} is in the table of layers, but does not exist", sources.root_file()));
    }
    for (id, module) in sources.modules.iter().enumerate() {
        let Some(own) = sources.layer(id) else { continue };
        let Some(own_step) = order.step(own) else { continue };
        for path in &module.paths {
            let place = format!("{}:{}: {own} (step {own_step})", module.file, path.line);
            let known = sources.touched_by_import(id, path);
            let upward = sources.touched(id, path).into_iter().filter_map(|touched| match touched {
                _ if known.contains(&touched) => None,
                Touched::Root => Some(format!("{place} uses the crate root: {path}")),
                Touched::Layer(other) if other == own => None,
                Touched::Layer(other) => {
                    let step = order.step(other).filter(|&step| step >= own_step)?;
                    Some(format!("{place} uses {other} (step {step}): {path}"))
                }
            });
            violations.extend(upward);
        }
    }
    violations.dedup();
    violations
}

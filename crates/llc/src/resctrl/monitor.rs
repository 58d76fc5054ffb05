//! Monitoring counters: `mon_data/mon_L3_<domain>/{llc_occupancy, mbm_total_bytes, mbm_local_bytes}`.

use serde::Serialize;

use super::{Error, Operation, Result, Tree};

/// Usage of a group, summed over domains. A counter is `None` if the hardware lacks it or cannot read it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Bytes of the last level that the group occupies.
    pub occupancy_bytes: Option<u64>,
    /// Bytes from and to memory since the group was created.
    pub total_bytes: Option<u64>,
    /// Bytes from and to the memory of the same socket since the group was created.
    pub local_bytes: Option<u64>,
}

/// Reads the counters of a group (`""`: the default class).
pub(super) fn read(tree: &dyn Tree, group: &str) -> Result<Usage> {
    let directory = if group.is_empty() { "mon_data".to_string() } else { format!("{group}/mon_data") };
    let domains = tree
        .directories(&directory)
        .map_err(|error| Error::new(Operation::ReadCounters, &directory, &error, String::new()))?;
    let mut usage = Usage::default();
    for domain in domains.iter().filter(|name| name.starts_with("mon_L3_")) {
        let counter = |file: &str| {
            // "Unavailable" and "Error" are transient states, not numbers.
            tree.read(&format!("{directory}/{domain}/{file}")).ok()?.trim().parse::<u64>().ok()
        };
        add(&mut usage.occupancy_bytes, counter("llc_occupancy"));
        add(&mut usage.total_bytes, counter("mbm_total_bytes"));
        add(&mut usage.local_bytes, counter("mbm_local_bytes"));
    }
    Ok(usage)
}

/// Adds a counter; an absent counter changes nothing.
fn add(sum: &mut Option<u64>, value: Option<u64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }
}

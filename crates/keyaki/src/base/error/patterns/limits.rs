//! Exhausted memory and disk space.

use super::{Pattern, pattern};
use crate::base::error::Error;

const QUERY_MEMORY_REMEDY: &str = "raise the memory of the database";

pub(super) const PATTERNS: &[Pattern] = &[
    pattern(
        "{}Failed to allocate additional {} for {} with {} already allocated for this reservation - {} remain available \
         for the total memory pool: {}",
        |c| Error::OutOfMemory {
            consumer: consumer(c[2]),
            requested: size(c[1]),
            available: size(c[4]),
            budget: c[5].split_once("pool_size: ").and_then(|(_, rest)| size(rest.split(')').next().unwrap_or(rest))),
            remedy: QUERY_MEMORY_REMEDY,
        },
    ),
    pattern("Not enough memory to continue external sort{}", |_| query_memory("the sort")),
    pattern("The used disk space during the spilling process has exceeded the allowable limit of {}. {}", |c| {
        Error::SpillLimit { limit: c[0].into() }
    }),
];

pub(super) fn query_memory(consumer: &str) -> Error {
    Error::OutOfMemory {
        consumer: consumer.into(),
        requested: None,
        available: None,
        budget: None,
        remedy: QUERY_MEMORY_REMEDY,
    }
}

/// A description of DataFusion's memory consumer, for example of `ExternalSorter[3]`.
fn consumer(name: &str) -> String {
    let name = name.split(['[', '#']).next().unwrap_or(name);
    let words: [(&str, &str); 10] = [
        ("TopK", "ORDER BY with LIMIT"),
        ("Sort", "the sort"),
        ("HashJoin", "the hash join"),
        ("NestedLoopJoin", "the nested loop join"),
        ("SMJ", "the merge join"),
        ("Aggregate", "the aggregation"),
        ("Grouped", "the aggregation"),
        ("Repartition", "the repartitioning"),
        ("Window", "the window functions"),
        ("Materialized", "the outer query"),
    ];
    let known = words.iter().find(|(part, _)| name.contains(part));
    known.map_or_else(|| name.to_string(), |(_, words)| (*words).to_string())
}

/// Parses a size such as `896.0 MB` to bytes. DataFusion's units are powers of 1024.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let shift = ["B", "KB", "MB", "GB", "TB"].iter().position(|known| *known == unit)? * 10;
    Some((number.parse::<f64>().ok()? * (1u64 << shift) as f64) as u64)
}

/// At least one text for each pattern.
#[cfg(test)]
pub(super) const EXAMPLES: &[super::Example] = &[
    (
        "Additional allocation failed for ExternalSorter[0] with top memory consumers (across reservations) as:\n  \
         ExternalSorter[0]#1(can spill: true) consumed 1.0 MB\nError: Failed to allocate additional 2.0 MB for \
         ExternalSorter[0] with 1.0 MB already allocated for this reservation - 512.0 KB remain available for the total \
         memory pool: fair(pool_size: 8.0 MB)",
        "53200",
        "out of memory: the sort needs 2.0 MiB, 512.0 KiB of the budget of 8.0 MiB are left (raise the memory of the \
         database)",
    ),
    (
        "Not enough memory to continue external sort. Consider more",
        "53200",
        "out of memory: the sort needs more memory, which exceeds the budget (raise the memory of the database)",
    ),
    (
        "The used disk space during the spilling process has exceeded the allowable limit of 100.0 GB. Try increasing x",
        "53100",
        "temporary files of the query exceed 100.0 GB",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("1.5 KB"), Some(1536));
        assert_eq!(size("2.0 GB"), Some(2 << 30));
        assert_eq!(size("many"), None);
    }
}

//! Which runs of a node are merged: size-tiered merging, as in SplinterDB and log-structured merge trees.
//!
//! A node receives many small runs between two of its moves to the same child. Merging all runs each time would rewrite
//! the large ones, which are results of earlier merges, again and again. Therefore neighbours of similar size are
//! merged: a message is rewritten about once for each tier of sizes.

use std::ops::Range;

/// The neighbouring runs to merge: the range with the fewest bytes for each run that disappears, and the longest one among
/// equals. `bytes` has the bytes of each of at least two runs, in the order of their age.
pub(super) fn cheapest_merge(bytes: &[u64]) -> Range<usize> {
    assert!(bytes.len() >= 2, "{} runs are merged", bytes.len());
    let mut ends = vec![0];
    ends.extend(bytes.iter().scan(0, |sum, bytes| {
        *sum += bytes;
        Some(*sum)
    }));
    let cost = |window: &Range<usize>| (ends[window.end] - ends[window.start]) as f64 / (window.len() - 1) as f64;
    let windows = (2..=bytes.len()).rev().flat_map(|len| (0..=bytes.len() - len).map(move |from| from..from + len));
    windows.min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0..bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_runs_are_not_merged_with_several_small_ones() {
        assert_eq!(cheapest_merge(&[1, 1]), 0..2);
        assert_eq!(cheapest_merge(&[1, 1, 100, 1]), 0..2);
        assert_eq!(cheapest_merge(&[5; 12]), 0..12);
        assert_eq!(cheapest_merge(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 12]), 0..12);
        assert_eq!(cheapest_merge(&[40, 1, 1, 1, 1, 40, 40]), 1..5);
    }

    /// With runs of equal size, each byte is rewritten about once for each tier.
    #[test]
    fn bytes_are_rewritten_once_for_each_tier() {
        const MOST: usize = 12;
        let (mut runs, mut rewritten): (Vec<u64>, u64) = (Vec::new(), 0);
        for _ in 0..100 {
            runs.insert(0, 1);
            while runs.len() > MOST {
                let window = cheapest_merge(&runs);
                let merged = runs[window.clone()].iter().sum();
                rewritten += merged;
                runs.splice(window, [merged]);
            }
        }
        assert_eq!(runs.iter().sum::<u64>(), 100, "no run disappears");
        assert!(rewritten < 4 * 100, "{rewritten} bytes are rewritten");
    }
}

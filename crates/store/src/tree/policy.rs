//! The decisions of flushes, as functions of sizes.
//!
//! [`Flusher`](super::Flusher) carries them out on extents. `examples/policy` carries them out on sizes alone, and so
//! predicts write amplification and read costs of databases that are too large for a test.
//!
//! | | [`MergePolicy::Tiered`] | [`MergePolicy::Leveled`] |
//! |---|---|---|
//! | a child receives messages | by reference: no message is written | merged into its only run |
//! | a node has too many runs | with more than `runs_per_node` | with more than one |
//! | runs merged | neighbours of similar size, see [`tiers`](super::tiers) | all |
//!
//! Both move messages to the child with the most pending bytes once a node exceeds its buffer, as in section 1 of the
//! Bε-tree paper, and rebuild a leaf whenever it receives messages.

use std::cmp::Reverse;
use std::ops::Range;

use crate::base::{MergePolicy, Options};
use crate::tree::tiers::cheapest_merge;

/// A node moves messages down, however few bytes they take, if they are more than this part of the rows below it.
const SMALL_MESSAGES_SHARE: u64 = 4;
/// The same on a full disk.
const SMALL_MESSAGES_SHARE_FULL: u64 = 32;
/// A leaf is rebuilt for the messages of a root buffer if they have at least this part of its bytes.
const DIRECT_SHARE: usize = 8;

/// The decisions for a tree with these options.
#[derive(Debug, Clone, Copy)]
pub struct FlushPolicy<'a> {
    /// The options of the store.
    pub options: &'a Options,
    /// True if the data file cannot grow.
    pub disk_is_full: bool,
}

/// The sizes of an inner node.
#[derive(Debug, Clone, Default)]
pub struct NodeSizes {
    /// Bytes of messages in each run, newest first.
    pub runs: Vec<u64>,
    /// Number of messages in all runs.
    pub messages: u64,
    /// Number of rows in the leaves below.
    pub rows: u64,
    /// Number of data pages in the leaves below.
    pub pages: u64,
}

/// The next step that brings a node within its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlushStep {
    /// The child with the most pending bytes receives its messages.
    MoveDown,
    /// These neighbouring runs are merged into one.
    Merge(Range<usize>),
}

impl FlushPolicy<'_> {
    /// The next step for a node; `None` if it is within its limits. Messages are moved before runs are merged, so that
    /// moved messages are not part of the merge.
    pub fn next_step(&self, node: &NodeSizes) -> Option<FlushStep> {
        if self.is_over_budget(node) {
            return Some(FlushStep::MoveDown);
        }
        if node.runs.len() <= self.runs_max() {
            return None;
        }
        Some(FlushStep::Merge(match self.options.merge_policy {
            MergePolicy::Leveled if !self.disk_is_full => 0..node.runs.len(),
            MergePolicy::Tiered | MergePolicy::Leveled => cheapest_merge(&node.runs),
        }))
    }

    fn is_over_budget(&self, node: &NodeSizes) -> bool {
        node.runs.iter().sum::<u64>() > self.options.node_buffer_bytes as u64 || self.has_many_small(node)
    }

    /// True if the messages of a node are many compared with the rows below it but take few bytes, as deletes do.
    /// Moving them down frees the space of deleted rows, which the byte budget alone would not.
    fn has_many_small(&self, node: &NodeSizes) -> bool {
        let row_bytes = node.pages * self.options.page_bytes as u64 / node.rows.max(1);
        let share = if self.disk_is_full { SMALL_MESSAGES_SHARE_FULL } else { SMALL_MESSAGES_SHARE };
        let bytes: u64 = node.runs.iter().sum();
        node.messages > node.rows / share && bytes < node.messages.saturating_mul(row_bytes) / 2
    }

    fn runs_max(&self) -> usize {
        match self.options.merge_policy {
            MergePolicy::Leveled if !self.disk_is_full => 1,
            MergePolicy::Tiered | MergePolicy::Leveled => self.options.runs_per_node.max(1),
        }
    }

    /// True if an inner node merges the messages that it receives into its run, rather than referring to the runs of
    /// its parent. On a full disk it does not: there is space for runs of buffers and for leaves only.
    pub fn merges_received(&self) -> bool {
        self.options.merge_policy == MergePolicy::Leveled && !self.disk_is_full
    }

    /// The children with pending messages, those with the most bytes first. `bytes` has the pending bytes of each
    /// child.
    pub fn heaviest_children(&self, bytes: &[u64]) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..bytes.len()).filter(|slot| bytes[*slot] > 0).collect();
        slots.sort_by_key(|slot| Reverse(bytes[*slot]));
        slots
    }

    /// Length in bytes at which the writer of a leaf's replacement begins another leaf, for a leaf of `leaf_bytes`
    /// bytes that receives about `message_bytes` bytes of messages. The new leaves get equal lengths, none above
    /// `Options::leaf_bytes`. Encoded rows are assumed to take half the bytes of messages.
    pub fn leaf_target_bytes(&self, leaf_bytes: usize, message_bytes: usize) -> usize {
        let total = leaf_bytes + message_bytes / 2;
        let target = total / total.div_ceil(self.options.leaf_bytes).max(1);
        target.max(self.options.page_bytes)
    }

    /// True if a leaf of `leaf_bytes` bytes is rebuilt for `message_bytes` bytes in a root buffer. Rebuilding a large
    /// leaf for few messages would write too much; they become a run instead.
    pub fn rebuilds_directly(&self, leaf_bytes: usize, message_bytes: usize) -> bool {
        message_bytes >= leaf_bytes / DIRECT_SHARE
    }

    /// True if two neighbouring leaves with these bytes of data pages are joined: one has at most a quarter of the
    /// target size and both together at most three quarters, which leaves room before the next split.
    pub fn joins_leaves(&self, a: u64, b: u64) -> bool {
        let full = self.options.leaf_bytes as u64;
        a.min(b) <= full / 4 && a + b <= full / 4 * 3
    }

    /// True if two neighbouring inner nodes with these numbers of children are joined.
    pub fn joins_nodes(&self, a: usize, b: usize) -> bool {
        a + b <= self.options.fan_out
    }

    /// The children of each node that replaces a node with `children` children: one node unless it has more than twice
    /// `fan_out` children, otherwise nodes of equal size with at most `fan_out` children.
    pub fn divide(&self, children: usize) -> Vec<Range<usize>> {
        let most = self.options.fan_out.max(2);
        let nodes = if children <= 2 * most { 1 } else { children.div_ceil(most) };
        (0..nodes).map(|i| i * children / nodes..(i + 1) * children / nodes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(runs: &[u64]) -> NodeSizes {
        let bytes: u64 = runs.iter().sum();
        NodeSizes { runs: runs.to_vec(), messages: bytes / 100, rows: 1_000_000, pages: 12_500 }
    }

    #[test]
    fn a_node_within_its_limits_needs_no_step() {
        let options = Options { runs_per_node: 3, node_buffer_bytes: 1000, ..Options::default() };
        let policy = FlushPolicy { options: &options, disk_is_full: false };
        assert_eq!(policy.next_step(&node(&[500, 250, 250])), None);
        assert_eq!(policy.next_step(&node(&[500, 250, 251])), Some(FlushStep::MoveDown));
        assert_eq!(policy.next_step(&node(&[10, 10, 10, 900])), Some(FlushStep::Merge(0..3)));
        assert!(!policy.merges_received());
    }

    #[test]
    fn leveled_nodes_have_one_run() {
        let options = Options { merge_policy: MergePolicy::Leveled, node_buffer_bytes: 1000, ..Options::default() };
        let policy = FlushPolicy { options: &options, disk_is_full: false };
        assert_eq!(policy.next_step(&node(&[1000])), None);
        assert_eq!(policy.next_step(&node(&[10, 10, 10, 900])), Some(FlushStep::Merge(0..4)));
        assert_eq!(policy.next_step(&node(&[101, 900])), Some(FlushStep::MoveDown));
        assert!(policy.merges_received());
        let full = FlushPolicy { disk_is_full: true, ..policy };
        assert!(!full.merges_received() && full.next_step(&node(&[10, 10, 10, 10])).is_none());
    }

    /// Small messages for a large part of the rows move down within the budget, sooner on a full disk.
    #[test]
    fn many_small_messages_move_down() {
        let options = Options::default();
        let deletes = |messages| NodeSizes { runs: vec![messages * 10], messages, rows: 100_000, pages: 1250 };
        let step =
            |messages, disk_is_full| FlushPolicy { options: &options, disk_is_full }.next_step(&deletes(messages));
        assert_eq!(step(25_000, false), None);
        assert_eq!(step(25_001, false), Some(FlushStep::MoveDown));
        assert_eq!(step(25_000, true), Some(FlushStep::MoveDown));
    }

    #[test]
    fn leaves_and_nodes_are_divided_evenly() {
        let options = Options { leaf_bytes: 1 << 20, fan_out: 16, ..Options::default() };
        let policy = FlushPolicy { options: &options, disk_is_full: false };
        assert_eq!(policy.leaf_target_bytes(1 << 20, 0), 1 << 20);
        assert_eq!(policy.leaf_target_bytes(1 << 20, 1 << 10), (1 << 19) + 256);
        assert_eq!(policy.leaf_target_bytes(0, 0), options.page_bytes);
        assert_eq!(policy.divide(32), vec![0..32]);
        assert_eq!(policy.divide(33), vec![0..11, 11..22, 22..33]);
        assert_eq!(policy.heaviest_children(&[0, 3, 7, 3]), vec![2, 1, 3]);
    }
}

//! A Bε-tree of sizes: each run has the number of its messages for each child of its node, each leaf the number of its
//! rows.
//!
//! Keys are uniform over `[0, 1)`. The messages of a flush are distributed over the children by binomial draws, which
//! is the exact distribution of the counts of independent keys. The steps are those of the store's flusher, and all
//! decisions are made by the same code, [`FlushPolicy`]. Messages are inserts of new keys, so nodes are never joined.

use std::ops::Range;
use std::rc::Rc;

use keyaki_primitives::Random;
use keyaki_store::{FlushPolicy, FlushStep, NodeSizes, Options};

/// Length in bytes of an entry of an index page, and of the filter for a key.
const INDEX_ENTRY_BYTES: u64 = 16;
const FILTER_BYTES: u64 = 2;
const BLOCK_BYTES: u64 = 4096;
/// Draws below this number of keys are exact, others are those of the normal distribution.
const EXACT_DRAWS: u64 = 24;

/// Sizes of encoded rows and messages.
#[derive(Debug, Clone, Copy)]
pub struct Encoding {
    /// Length of a data page in bytes.
    pub page_bytes: u64,
    /// Rows, or messages, in a data page.
    pub page_rows: u64,
    /// Bytes of a message, as the store estimates them before a flush.
    pub message_bytes: f64,
}

/// An extent of rows or messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    pub rows: u64,
    /// Bytes of the index page with the filter.
    pub index_bytes: u64,
    /// All bytes.
    pub bytes: u64,
}

impl Encoding {
    fn extent(&self, rows: u64) -> Extent {
        let pages = rows.div_ceil(self.page_rows);
        let index_bytes = (pages * INDEX_ENTRY_BYTES + rows * FILTER_BYTES).next_multiple_of(BLOCK_BYTES);
        Extent { rows, index_bytes, bytes: pages * self.page_bytes + index_bytes }
    }

    /// The extents of rows that are written with a target length, as by the store's extent writer.
    fn extents(&self, rows: u64, target_bytes: u64) -> impl Iterator<Item = Extent> {
        let most = target_bytes.div_ceil(self.page_bytes).max(1) * self.page_rows;
        (0..rows.div_ceil(most)).map(move |i| self.extent(most.min(rows - i * most)))
    }

    /// Estimated bytes of messages in data pages.
    fn pending_bytes(&self, messages: u64) -> u64 {
        messages * self.page_bytes / self.page_rows
    }
}

/// Bytes written so far, by purpose.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    /// Runs of root buffers.
    pub buffers: u64,
    /// Merges of runs, and of received messages into runs.
    pub merges: u64,
    pub leaves: u64,
    /// Node tables of checkpoints.
    pub node_tables: u64,
}

/// Where the messages of a run were written: the extents, for the space that it takes.
#[derive(Debug)]
pub struct Origin {
    /// Positions of keys, with the number of messages before each.
    pub counts: Vec<(f64, u64)>,
    pub extents: Vec<Extent>,
}

impl Origin {
    /// The extents with messages in `[low, high)`.
    pub fn extents_in(&self, low: f64, high: f64) -> Range<usize> {
        let before = |position: f64| {
            let after = self.counts.partition_point(|(at, _)| *at <= position).clamp(1, self.counts.len() - 1);
            let ((a, from), (b, to)) = (self.counts[after - 1], self.counts[after]);
            from as f64 + (to - from) as f64 * ((position - a) / (b - a)).clamp(0.0, 1.0)
        };
        let each = self.extents[0].rows as f64;
        // Bounds that meet by rounding do not count.
        let (first, last) = (before(low) + 1.0, before(high) - 1.0);
        let first = ((first / each) as usize).min(self.extents.len() - 1);
        first..((last / each) as usize + 1).clamp(first + 1, self.extents.len())
    }
}

#[derive(Debug, Clone)]
pub struct Run {
    /// Number of messages for each child.
    pub rows: Vec<u64>,
    pub origin: Rc<Origin>,
}

#[derive(Debug)]
pub enum Child {
    Leaf(Extent),
    Inner(Box<Inner>),
}

#[derive(Debug)]
pub struct Inner {
    /// Lower bounds of the children, and the upper bound of the last one.
    pub bounds: Vec<f64>,
    pub children: Vec<Child>,
    /// Newest first.
    pub runs: Vec<Run>,
}

impl Child {
    fn rows(&self) -> u64 {
        match self {
            Child::Leaf(leaf) => leaf.rows,
            Child::Inner(inner) => inner.children.iter().map(Child::rows).sum(),
        }
    }
}

impl Inner {
    /// The sizes that decide about flushes. In a load of new rows, messages are as large as rows, so that the number of
    /// rows below never decides.
    fn sizes(&self, encoding: &Encoding) -> NodeSizes {
        let messages = |run: &Run| run.rows.iter().sum::<u64>();
        let runs = self.runs.iter().map(|run| encoding.pending_bytes(messages(run))).collect();
        let (rows, pages) = (encoding.page_rows, 1);
        NodeSizes { runs, messages: self.runs.iter().map(messages).sum(), rows, pages }
    }
}

/// A tree and the bytes written to make it.
#[derive(Debug)]
pub struct Tree {
    pub root: Inner,
    pub encoding: Encoding,
    pub written: Written,
    options: Options,
    random: Random,
}

impl Tree {
    pub fn new(options: &Options, encoding: Encoding, seed: u64) -> Tree {
        let root = Inner { bounds: vec![0.0, 1.0], children: vec![Child::Leaf(Extent::default())], runs: Vec::new() };
        Tree { root, encoding, written: Written::default(), options: options.clone(), random: Random::new(seed) }
    }

    /// Flushes a root buffer of `rows` new keys, uniform over `[low, high)`.
    pub fn flush(&mut self, rows: u64, low: f64, high: f64) {
        let mut root =
            std::mem::replace(&mut self.root, Inner { bounds: Vec::new(), children: Vec::new(), runs: Vec::new() });
        let message_bytes = (rows as f64 * self.encoding.message_bytes) as usize;
        match root.children.as_slice() {
            [Child::Leaf(leaf)]
                if root.runs.is_empty() && self.policy().rebuilds_directly(leaf.bytes as usize, message_bytes) =>
            {
                self.rebuild_leaf(&mut root, 0, rows, message_bytes);
            }
            _ => {
                let widths = root.bounds.windows(2).map(|slot| (slot[1].min(high) - slot[0].max(low)).max(0.0));
                let rows = split(&mut self.random, rows, &widths.collect::<Vec<f64>>());
                let (run, bytes) = self.write_run(&root, rows);
                self.written.buffers += bytes;
                root.runs.insert(0, run);
                self.settle(&mut root);
            }
        }
        self.root = self.grow(root);
    }

    fn policy(&self) -> FlushPolicy<'_> {
        FlushPolicy { options: &self.options, disk_is_full: false }
    }

    fn settle(&mut self, node: &mut Inner) {
        while let Some(step) = self.policy().next_step(&node.sizes(&self.encoding)) {
            match step {
                FlushStep::Merge(runs) => self.merge(node, runs),
                FlushStep::MoveDown => self.move_down(node),
            }
        }
    }

    fn merge(&mut self, node: &mut Inner, merged: Range<usize>) {
        let mut rows = vec![0; node.children.len()];
        for run in &node.runs[merged.clone()] {
            rows.iter_mut().zip(&run.rows).for_each(|(sum, rows)| *sum += rows);
        }
        let (run, bytes) = self.write_run(node, rows);
        self.written.merges += bytes;
        node.runs.splice(merged, [run]);
    }

    fn write_run(&self, node: &Inner, rows: Vec<u64>) -> (Run, u64) {
        let mut sum = 0;
        let counts = node.bounds.iter().zip(std::iter::once(&0).chain(&rows)).map(|(bound, rows)| {
            sum += rows;
            (*bound, sum)
        });
        let counts: Vec<(f64, u64)> = counts.collect();
        let extents: Vec<Extent> = self.encoding.extents(sum, self.options.leaf_bytes as u64).collect();
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        (Run { rows, origin: Rc::new(Origin { counts, extents }) }, bytes)
    }

    fn move_down(&mut self, node: &mut Inner) {
        let pending = |slot| node.runs.iter().map(|run| self.encoding.pending_bytes(run.rows[slot])).sum();
        let pending: Vec<u64> = (0..node.children.len()).map(pending).collect();
        let slot = self.policy().heaviest_children(&pending)[0];
        let share: Vec<(u64, Rc<Origin>)> =
            node.runs.iter_mut().map(|run| (std::mem::take(&mut run.rows[slot]), run.origin.clone())).collect();
        node.runs.retain(|run| run.rows.iter().any(|rows| *rows > 0));
        if let Child::Leaf(_) = &node.children[slot] {
            let rows = share.iter().map(|(rows, _)| rows).sum();
            return self.rebuild_leaf(node, slot, rows, pending[slot] as usize);
        }
        let Child::Inner(mut child) = std::mem::replace(&mut node.children[slot], Child::Leaf(Extent::default()))
        else {
            return;
        };
        let widths: Vec<f64> = child.bounds.windows(2).map(|slot| slot[1] - slot[0]).collect();
        let received = share.into_iter().filter(|(rows, _)| *rows > 0);
        let received: Vec<Run> =
            received.map(|(rows, origin)| Run { rows: split(&mut self.random, rows, &widths), origin }).collect();
        child.runs.splice(0..0, received);
        if self.policy().merges_received() {
            let runs = 0..child.runs.len();
            self.merge(&mut child, runs);
        }
        self.settle(&mut child);
        let divided = self.divide(*child);
        let starts = divided.iter().skip(1).map(|node| node.bounds[0]).collect();
        let joins = |other: Option<&Child>| matches!(other, Some(Child::Inner(other)) if self.policy().joins_nodes(other.children.len(), divided[0].children.len()));
        let beside = [slot.checked_sub(1), Some(slot + 1)].map(|other| node.children.get(other?));
        assert!(divided.len() > 1 || !beside.into_iter().any(joins), "a node shrinks without deletes");
        replace(node, slot, divided.into_iter().map(|inner| Child::Inner(Box::new(inner))).collect(), starts);
    }

    fn rebuild_leaf(&mut self, node: &mut Inner, slot: usize, rows: u64, message_bytes: usize) {
        let Child::Leaf(old) = &node.children[slot] else { return };
        let target = self.policy().leaf_target_bytes(old.bytes as usize, message_bytes);
        let leaves: Vec<Extent> = self.encoding.extents(old.rows + rows, target as u64).collect();
        self.written.leaves += leaves.iter().map(|leaf| leaf.bytes).sum::<u64>();
        let (low, high, all) = (node.bounds[slot], node.bounds[slot + 1], (old.rows + rows) as f64);
        let (mut before, mut starts) = (0, Vec::new());
        for leaf in &leaves[..leaves.len() - 1] {
            before += leaf.rows;
            let share = before as f64 / all;
            // The position of a key of this rank.
            let share = share + normal(&mut self.random) * (share * (1.0 - share) / all).sqrt();
            let least = starts.last().copied().unwrap_or(low);
            let start: f64 = low + (high - low) * share;
            starts.push(start.clamp(least.next_up(), high.next_down()));
        }
        let single = leaves.len() == 1;
        replace(node, slot, leaves.into_iter().map(Child::Leaf).collect(), starts);
        if single {
            self.join_leaves(node, slot);
        }
    }

    /// Joins a small leaf with a neighbour.
    fn join_leaves(&mut self, node: &mut Inner, slot: usize) {
        for left in [Some(slot), slot.checked_sub(1)].into_iter().flatten() {
            let Some([Child::Leaf(a), Child::Leaf(b)]) = node.children.get(left..left + 2) else { continue };
            let data_bytes = |leaf: &Extent| leaf.bytes - leaf.index_bytes;
            if !self.policy().joins_leaves(data_bytes(a), data_bytes(b)) {
                continue;
            }
            let joined = self.encoding.extent(a.rows + b.rows);
            self.written.leaves += joined.bytes;
            node.children.splice(left..left + 2, [Child::Leaf(joined)]);
            node.bounds.remove(left + 1);
            for run in &mut node.runs {
                run.rows[left] += run.rows.remove(left + 1);
            }
            return;
        }
    }

    fn divide(&self, node: Inner) -> Vec<Inner> {
        let slots = self.policy().divide(node.children.len());
        if slots.len() == 1 {
            return vec![node];
        }
        let mut children = node.children.into_iter();
        let divided = slots.into_iter().map(|slots| {
            let runs =
                node.runs.iter().map(|run| Run { rows: run.rows[slots.clone()].to_vec(), origin: run.origin.clone() });
            Inner {
                bounds: node.bounds[slots.start..=slots.end].to_vec(),
                children: children.by_ref().take(slots.len()).collect(),
                runs: runs.filter(|run| run.rows.iter().any(|rows| *rows > 0)).collect(),
            }
        });
        divided.collect()
    }

    /// Adds levels above a root with too many children.
    fn grow(&self, mut root: Inner) -> Inner {
        loop {
            let mut divided = self.divide(root);
            if divided.len() == 1 {
                return divided.remove(0);
            }
            let mut bounds: Vec<f64> = divided.iter().map(|node| node.bounds[0]).collect();
            bounds.push(1.0);
            let children = divided.into_iter().map(|node| Child::Inner(Box::new(node))).collect();
            root = Inner { bounds, children, runs: Vec::new() };
        }
    }

    /// Number of rows in leaves.
    pub fn leaf_rows(&self) -> u64 {
        self.root.children.iter().map(Child::rows).sum()
    }
}

/// Replaces a child without pending messages by children whose lower bounds, after the first, are `starts`.
fn replace(node: &mut Inner, slot: usize, children: Vec<Child>, starts: Vec<f64>) {
    for run in &mut node.runs {
        run.rows.splice(slot + 1..slot + 1, std::iter::repeat_n(0, starts.len()));
    }
    node.bounds.splice(slot + 1..slot + 1, starts);
    node.children.splice(slot..=slot, children);
}

/// The numbers of `count` independent keys in slots with these widths.
fn split(random: &mut Random, count: u64, widths: &[f64]) -> Vec<u64> {
    let (mut left, mut width) = (count, widths.iter().sum::<f64>());
    let last = widths.iter().rposition(|width| *width > 0.0).unwrap_or(0);
    let draw = |(slot, slot_width): (usize, &f64)| {
        let drawn = if slot == last { left } else { binomial(random, left, slot_width / width) };
        left -= drawn;
        width -= slot_width;
        drawn
    };
    widths.iter().enumerate().map(draw).collect()
}

/// The number of successes of `count` trials.
fn binomial(random: &mut Random, count: u64, probability: f64) -> u64 {
    let probability = probability.clamp(0.0, 1.0);
    if count < EXACT_DRAWS {
        return (0..count).map(|_| u64::from(unit(random) < probability)).sum();
    }
    let mean = count as f64 * probability;
    let drawn = mean + normal(random) * (mean * (1.0 - probability)).sqrt();
    (drawn.round().max(0.0) as u64).min(count)
}

/// A number of the standard normal distribution, approximately: the sum of twelve uniform ones.
fn normal(random: &mut Random) -> f64 {
    let sum: u64 =
        (0..3).map(|_| random.next_u64()).flat_map(|bits| [0, 16, 32, 48].map(|at| bits >> at & 0xffff)).sum();
    (sum as f64 + 6.0) / 65_536.0 - 6.0
}

/// A number in `[0, 1)`.
pub fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

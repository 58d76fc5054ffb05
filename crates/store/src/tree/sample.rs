//! A uniform sample of the rows of a tree, and sketches of its columns, kept up by flushes and bulk loads.
//!
//! A row is in the sample if the hash of its key begins with `level` zeros, so each flush knows which of its messages
//! concern the sample. It applies them as it would to a leaf: an insert replaces the row of its key, a delete removes it,
//! and an upsert changes it. The sample therefore has exactly the rows of the tree, without its buffers, whose keys are
//! selected (coordinated sampling; Cohen and Kaplan, "Leveraging discarded samples for tighter estimation of
//! multiple-set aggregates", 2009). The level rises as the tree grows.
//!
//! ```text
//! buffer ──────────────> run of the root
//!   ├ selected keys ──┐
//!   │ leaves of the sample ──> new leaves of the sample
//!   └ values of all columns ──> a HyperLogLog sketch for each column
//! ```
//!
//! A sketch keeps values that no row has any more. After many changes, and if deletes have left too few rows in the
//! sample, sample and sketches of a tree of moderate size are built again from all its rows.
//!
//! *Invariants.* A sample belongs to the version of the tree that was published with it, and is written with it by
//! checkpoints. Trees below [`ROWS_MIN`] rows have no sample: they can be read as a whole.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use keyaki_primitives::HyperLogLog;
use xxhash_rust::xxh3::xxh3_64;

use crate::base::{
    ColumnType, Error, KeyRange, Prior, Result, Schema, is_selected, is_selected_hash, selection_hash, uuids,
    wide_of_interval,
};
use crate::buffer::RootBuffer;
use crate::codec::{Codecs, ColumnBuilder, compact, encode_lists};
use crate::pages::{Extent, ExtentWriter, Files};
use crate::tree::rewrite::{Output, read_rows};
use crate::tree::{Flusher, InnerNode, Run, TreeView};

/// Maximum number of rows of a sample. It has about half as many when its level has risen.
const ROWS_MAX: u64 = 16 << 10;
/// Trees with at most this many rows have no sample.
const ROWS_MIN: u64 = ROWS_MAX;
/// Trees that have shrunk to at most this many rows have no sample any more.
const ROWS_ENOUGH: u64 = ROWS_MIN / 2;
/// Maximum bytes of a sample on disk, unless it has one row.
const BYTES_MAX: u64 = 4 << 20;
/// Maximum bytes of the arrays from which the sample of a load is written.
const ARRAY_BYTES_MAX: usize = 16 << 20;
/// A sample is built from all rows of a tree with at most this many rows and bytes.
const BUILD_ROWS_MAX: u64 = 1 << 20;
const BUILD_BYTES_MAX: u64 = 128 << 20;
/// A sample with fewer rows than `ROWS_MAX` and fewer bytes than `BYTES_MAX` divided by this is built again.
const POOR_SHARE: u64 = 16;
/// The sketches are built again after this many messages for each row.
const STALE_FACTOR: u64 = 4;
/// Maximum level: only one key in 2^48 is selected.
pub(crate) const LEVEL_MAX: u32 = 48;

/// The sample of a version of a tree.
#[derive(Debug, Clone)]
pub(crate) struct TreeSample {
    /// Each row was selected with probability 2^-level.
    pub level: u32,
    /// The selected rows, as leaves in key order.
    pub leaves: Vec<Arc<Extent>>,
    pub sketches: Sketches,
}

/// The values that the columns of a tree have had.
#[derive(Debug, Clone)]
pub(crate) struct Sketches {
    /// One for each column.
    pub columns: Vec<HyperLogLog>,
    /// Number of rows and messages added.
    pub added: u64,
    /// Number of upserts that were added without the values that they set.
    pub missed: u64,
}

/// A uniform sample of the rows of a tree, and its distinct values. Returned by [`TreeView::sample`].
#[derive(Debug, Clone)]
pub struct Sample {
    /// The selected rows, with all columns, in key order.
    pub rows: RecordBatch,
    /// Estimated number of rows from which they were selected: those of the tree without its buffers.
    pub of_rows: u64,
    /// Estimated number of distinct values of each column, other than null. Values that have been deleted or replaced count
    /// as well, up to several times the number of rows.
    pub distinct: Vec<f64>,
    /// Number of rows and messages that the distinct values were counted from: more than `of_rows` if rows have been
    /// deleted or replaced.
    pub counted: u64,
    /// Number of upserts among them whose values were not counted.
    pub missed: u64,
}

/// The lowest level for a number of rows.
fn level_of(rows: u64) -> u32 {
    let parts = rows.div_ceil(ROWS_MAX).max(1);
    (u64::BITS - (parts - 1).leading_zeros()).min(LEVEL_MAX)
}

impl Sketches {
    pub fn new(columns: usize) -> Sketches {
        Sketches { columns: vec![HyperLogLog::default(); columns], added: 0, missed: 0 }
    }

    /// Adds the values of all columns of a tree with this schema.
    pub fn add(&mut self, schema: &Schema, columns: &[ArrayRef]) {
        for ((sketch, column), array) in self.columns.iter_mut().zip(schema.columns()).zip(columns) {
            add_values(sketch, column.ty, array);
        }
    }

    fn merge(&mut self, other: &Sketches) {
        self.columns.iter_mut().zip(&other.columns).for_each(|(own, other)| own.merge(other));
        self.added = self.added.saturating_add(other.added);
        self.missed = self.missed.saturating_add(other.missed);
    }
}

/// Adds the values that are not null.
fn add_values(sketch: &mut HyperLogLog, ty: ColumnType, column: &ArrayRef) {
    fn add(sketch: &mut HyperLogLog, column: &dyn Array, hashes: impl Iterator<Item = u64>) {
        match column.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => hashes.for_each(|hash| sketch.add(hash)),
            Some(nulls) => nulls.iter().zip(hashes).filter(|(valid, _)| *valid).for_each(|(_, hash)| sketch.add(hash)),
        }
    }
    macro_rules! words {
        ($ty:ty, $word:expr) => {{
            let values = column.as_primitive::<$ty>().values();
            add(sketch, column, values.iter().map(|value| mix($word(*value))))
        }};
    }
    match ty {
        ColumnType::Boolean => {
            add(sketch, column, column.as_boolean().values().iter().map(|value| mix(u64::from(value))))
        }
        ColumnType::Int8 => words!(Int8Type, |value| value as u64),
        ColumnType::Int16 => words!(Int16Type, |value| value as u64),
        ColumnType::Int32 => words!(Int32Type, |value| value as u64),
        ColumnType::Int64 => words!(Int64Type, |value| value as u64),
        ColumnType::Float32 => words!(Float32Type, |value: f32| u64::from(value.to_bits())),
        ColumnType::Float64 => words!(Float64Type, f64::to_bits),
        ColumnType::Date => words!(Date32Type, |value| value as u64),
        ColumnType::Timestamp { .. } => words!(TimestampMicrosecondType, |value| value as u64),
        ColumnType::Time => words!(Time64MicrosecondType, |value| value as u64),
        ColumnType::Decimal { .. } => {
            let values = column.as_primitive::<Decimal128Type>().values();
            add(sketch, column, values.iter().map(|value| mix_wide(*value as u128)));
        }
        ColumnType::Uuid => add(sketch, column, uuids(column).iter().map(|uuid| mix_wide(u128::from_le_bytes(*uuid)))),
        ColumnType::Interval => {
            let values = column.as_primitive::<IntervalMonthDayNanoType>().values();
            add(sketch, column, values.iter().map(|value| mix_wide(wide_of_interval(value) as u128)));
        }
        ColumnType::Text => {
            let values = column.as_string_view();
            add(sketch, column, (0..values.len()).map(|row| xxh3_64(values.value(row).as_bytes())));
        }
        ColumnType::List(ty) => {
            let values = encode_lists(column.as_list(), ty);
            add(sketch, column, (0..values.len()).map(|row| xxh3_64(values.value(row))));
        }
        ColumnType::Bytes => {
            let values = column.as_binary_view();
            add(sketch, column, (0..values.len()).map(|row| xxh3_64(values.value(row))));
        }
    }
}

/// A hash of a number: the finalizer of MurmurHash3.
#[inline]
fn mix(value: u64) -> u64 {
    let mut hash = value ^ 0x9e37_79b9_7f4a_7c15;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[inline]
fn mix_wide(value: u128) -> u64 {
    mix(value as u64 ^ mix((value >> 64) as u64))
}

/// Collects the sample and the sketches of a stream of rows.
#[derive(Debug)]
pub(crate) struct Sampler {
    codecs: Arc<Codecs>,
    level: u32,
    /// The selected rows, compacted.
    rows: Vec<RecordBatch>,
    /// The hashes of their keys.
    hashes: Vec<u64>,
    bytes: usize,
    sketches: Sketches,
}

impl Sampler {
    pub fn new(codecs: &Arc<Codecs>) -> Sampler {
        let (codecs, sketches) = (codecs.clone(), Sketches::new(codecs.schema.columns().len()));
        Sampler { codecs, level: 0, rows: Vec::new(), hashes: Vec::new(), bytes: 0, sketches }
    }

    /// Adds rows: all columns, without nulls in columns that are not nullable.
    ///
    /// # Errors
    /// [`Error::Arrow`] if the arrays of the sample become too large.
    pub fn push(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let rows = columns.first().map_or(0, |column| column.len());
        self.sketches.add(&self.codecs.schema, columns);
        self.sketches.added += rows as u64;
        let encoder = self.codecs.key.encoder(&columns[..self.codecs.schema.key_columns()]);
        let (mut key, level) = (Vec::new(), self.level);
        let hashes = (0..rows).map(|row| {
            key.clear();
            encoder.encode(row, &mut key);
            selection_hash(&key)
        });
        let hashes: Vec<u64> = hashes.collect();
        let selected: BooleanArray = hashes.iter().map(|hash| Some(is_selected_hash(*hash, level))).collect();
        self.hashes.extend(hashes.iter().filter(|hash| is_selected_hash(**hash, level)));
        if selected.true_count() > 0 {
            let batch = RecordBatch::try_new(self.codecs.schema.arrow().clone(), columns.to_vec());
            let selected = batch.and_then(|batch| filter_record_batch(&batch, &selected)).map_err(arrow)?;
            let selected = compact(&selected);
            self.bytes += selected.get_array_memory_size();
            self.rows.push(selected);
        }
        if self.bytes > ARRAY_BYTES_MAX && self.rows.len() > 1 {
            // Most of it may be overhead of small batches.
            self.rows = vec![compact(&self.all_rows()?)];
            self.bytes = self.rows[0].get_array_memory_size();
        }
        while (self.hashes.len() as u64 > ROWS_MAX || self.bytes > ARRAY_BYTES_MAX)
            && self.hashes.len() > 1
            && self.level < LEVEL_MAX
        {
            self.raise_level()?;
        }
        Ok(())
    }

    fn all_rows(&self) -> Result<RecordBatch> {
        concat_batches(self.codecs.schema.arrow(), &self.rows).map_err(arrow)
    }

    fn raise_level(&mut self) -> Result<()> {
        self.level += 1;
        let level = self.level;
        let kept: BooleanArray = self.hashes.iter().map(|hash| Some(is_selected_hash(*hash, level))).collect();
        let rows = self.all_rows()?;
        let rows = compact(&filter_record_batch(&rows, &kept).map_err(arrow)?);
        self.hashes.retain(|hash| is_selected_hash(*hash, level));
        self.bytes = rows.get_array_memory_size();
        self.rows = vec![rows];
        Ok(())
    }

    /// Writes the selected rows, in the order of their keys, and returns the sample.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Arrow`], device errors.
    pub fn finish(self, mut writer: ExtentWriter) -> Result<TreeSample> {
        if !self.hashes.is_empty() {
            let rows = self.all_rows()?;
            writer.write(rows.columns(), None, 0, true)?;
        }
        Ok(TreeSample { level: self.level, leaves: writer.finish()?, sketches: self.sketches })
    }
}

/// The messages of a transaction that concern the sample of a tree, and the sketches of all its messages.
#[derive(Debug)]
pub(crate) struct SampledMessages {
    /// All messages whose keys a sample of this level has are there.
    level: u32,
    messages: Arc<RootBuffer>,
    /// Maximum bytes of the messages.
    bytes_max: usize,
    sketches: Sketches,
}

impl SampledMessages {
    /// The messages of a buffer, and sketches that have their values. `level` is that of the sample.
    pub fn new(level: u32, buffer: &RootBuffer, bytes_max: usize, mut sketches: Sketches) -> SampledMessages {
        sketches.added = sketches.added.saturating_add(buffer.len() as u64);
        SampledMessages { level, messages: selected_messages(&[buffer], level), bytes_max, sketches }.limited()
    }

    /// Adds messages that are newer.
    pub fn extend(&mut self, newer: SampledMessages) {
        let level = self.level.max(newer.level);
        self.sketches.merge(&newer.sketches);
        let messages = selected_messages(&[&self.messages, &newer.messages], level);
        let sketches = std::mem::replace(&mut self.sketches, Sketches::new(0));
        *self = SampledMessages { level, messages, sketches, ..*self }.limited();
    }

    /// The messages for so high a level that they are within their limit.
    fn limited(mut self) -> Self {
        while self.messages.bytes() > self.bytes_max && self.level < LEVEL_MAX {
            self.level += 1;
            self.messages = selected_messages(&[&self.messages], self.level);
        }
        self
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.messages.bytes() + self.sketches.columns.len() * size_of::<HyperLogLog>()
    }
}

/// The messages of buffers, oldest first, whose keys a sample of this level has.
fn selected_messages(buffers: &[&RootBuffer], level: u32) -> Arc<RootBuffer> {
    let (selected, guard) = (RootBuffer::default(), keyaki_masstree::pin());
    for buffer in buffers {
        buffer.walk(&KeyRange::all(), false, &guard, |key, newest| {
            if is_selected(key, level) {
                let chain: Vec<_> = std::iter::successors(Some(newest), |message| message.older()).collect();
                // The knowledge is about the row below the oldest message.
                let mut prior = newest.prior();
                for message in chain.into_iter().rev() {
                    selected.writer(message.sequence(), &guard).insert(key, message.message(), prior);
                    prior = Prior::Unknown;
                }
            }
            true
        });
    }
    Arc::new(selected)
}

fn arrow(error: arrow_schema::ArrowError) -> Error {
    Error::Arrow(Arc::new(error))
}

/// Estimated number of rows of a tree, with its messages. Blind messages spoil sums, but not samples.
fn rows_of(root: &InnerNode, sample: Option<&TreeSample>) -> u64 {
    match sample {
        Some(sample) if !root.is_settled() => sample.tree_rows(),
        _ => root.rows().saturating_add_signed(root.net_rows()),
    }
}

impl TreeSample {
    /// The sample of the tree with the further columns of `schema`, which have their missing values.
    pub fn extended(&self, schema: &Schema) -> TreeSample {
        let mut sketches = self.sketches.clone();
        for (column, definition) in schema.columns().iter().enumerate().skip(sketches.columns.len()) {
            let (mut sketch, mut value) = (HyperLogLog::default(), ColumnBuilder::new(definition.ty, 1));
            value.append_scalar(schema.missing_value(column), 1);
            add_values(&mut sketch, definition.ty, &value.finish());
            sketches.columns.push(sketch);
        }
        TreeSample { level: self.level, leaves: self.leaves.clone(), sketches }
    }

    /// The sample with its rows, which were selected from `of_rows` rows.
    ///
    /// # Errors
    /// [`Error::Corrupt`], device errors.
    pub fn read(&self, of_rows: u64, files: &Files, codecs: &Codecs) -> Result<Sample> {
        let rows = read_rows(&self.leaves, files, codecs)?;
        let distinct = self.sketches.columns.iter().map(HyperLogLog::count).collect();
        let Sketches { added, missed, .. } = self.sketches;
        Ok(Sample { rows, of_rows, distinct, counted: added, missed })
    }

    /// True if the sample is not larger than samples may be.
    pub fn is_within_limits(&self) -> bool {
        self.rows() <= 1 || self.rows() <= ROWS_MAX && self.bytes() <= BYTES_MAX
    }

    fn rows(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.meta.rows).sum()
    }

    /// Estimated number of rows that were sampled.
    fn tree_rows(&self) -> u64 {
        self.rows().saturating_mul(1 << self.level)
    }

    fn bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.meta.len).sum()
    }

    /// True if a sample built from all `rows` rows of the tree would be much better.
    fn is_poor(&self, rows: u64) -> bool {
        let is_small = self.rows() < ROWS_MAX / POOR_SHARE && self.bytes() < BYTES_MAX / POOR_SHARE;
        is_small && self.level > level_of(rows) || self.sketches.added / STALE_FACTOR > rows
    }
}

impl Flusher<'_> {
    /// No sample if it is damaged, or if the disk is full: samples serve estimates only.
    pub fn unless_damaged(&self, sample: Result<Option<Arc<TreeSample>>>) -> Result<Option<Arc<TreeSample>>> {
        match sample {
            Err(error) if error.is_damage() || matches!(error, Error::DiskFull { .. }) => {
                tracing::warn!(%error, tree = %self.tree, "the sample of a tree is given up");
                Ok(None)
            }
            sample => sample,
        }
    }

    /// The sample of `root`, which has the messages of `buffer` on top of the tree that `old` is the sample of. `sketches`
    /// are those of `old` with the values in `buffer`; `None` without `old`.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub(super) fn sample_flushed(
        &self,
        root: &InnerNode,
        old: Option<&Arc<TreeSample>>,
        sketches: Option<Sketches>,
        buffer: &Arc<RootBuffer>,
    ) -> Result<Option<Arc<TreeSample>>> {
        let (Some(old), Some(sketches)) = (old, sketches) else {
            return if self.codecs.schema.is_sampled() { self.sample_all(root, rows_of(root, None)) } else { Ok(None) };
        };
        let rows_max = rows_of(root, None).min(old.tree_rows().saturating_add(buffer.len() as u64));
        let level = old.level.max(level_of(rows_max));
        let is_touched = level > old.level || buffer.has_selected_key(level);
        let leaves = match is_touched {
            true => self.sample_leaves(level, Some(buffer), &[&old.leaves])?,
            false => old.leaves.clone(),
        };
        self.sample_if_useful(root, TreeSample { level, leaves, sketches })
    }

    /// The sample, or one built from all rows of `root` if that is much better; `None` for a small tree.
    fn sample_if_useful(&self, root: &InnerNode, sample: TreeSample) -> Result<Option<Arc<TreeSample>>> {
        let Some(sample) = self.limited(sample)? else { return Ok(None) };
        let rows = rows_of(root, Some(&sample));
        match rows {
            ..=ROWS_ENOUGH => Ok(None),
            _ if sample.is_poor(rows) && self.can_build(root, rows) => self.sample_of(root),
            _ => Ok(Some(sample)),
        }
    }

    /// The sample of `root`, which has messages of a transaction on top of the tree of `old_root`. `None` if there is no
    /// sample of a large tree.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn sample_spilled(
        &self,
        (old_root, old): (&InnerNode, Option<&Arc<TreeSample>>),
        messages: &SampledMessages,
        root: &InnerNode,
    ) -> Result<Option<Arc<TreeSample>>> {
        let old = match old {
            Some(old) => old.clone(),
            None if rows_of(root, None) > ROWS_MIN && self.can_build(old_root, rows_of(old_root, None)) => {
                match self.sample_of(old_root)? {
                    Some(old) => old,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let mut sketches = old.sketches.clone();
        sketches.merge(&messages.sketches);
        let rows_max = rows_of(root, None).min(old.tree_rows().saturating_add(messages.sketches.added));
        let level = old.level.max(level_of(rows_max)).max(messages.level);
        let leaves = self.sample_leaves(level, Some(&messages.messages), &[&old.leaves])?;
        self.sample_if_useful(root, TreeSample { level, leaves, sketches })
    }

    /// The sample after extents have been added to the tree of `old_root`, with their sample and their sketches. `None` if
    /// there is no sample of a large tree that had rows before.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn sample_loaded(
        &self,
        (old_root, old): (&InnerNode, Option<&Arc<TreeSample>>),
        loaded: TreeSample,
        root: &InnerNode,
    ) -> Result<Option<Arc<TreeSample>>> {
        let rows = rows_of(root, None);
        if !self.codecs.schema.is_sampled() || rows <= ROWS_MIN {
            return Ok(None);
        }
        let old = match old {
            Some(old) => Some(old.clone()),
            None if old_root.is_empty() => None,
            None if self.can_build(old_root, rows_of(old_root, None)) => match self.sample_of(old_root)? {
                Some(old) => Some(old),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let (least, of_old) = old.as_ref().map_or((0, 0), |old| (old.level, old.tree_rows()));
        let rows_max = rows.min(of_old.saturating_add(loaded.tree_rows()));
        let level = level_of(rows_max).max(loaded.level).max(least);
        let mut sketches = loaded.sketches;
        let mut leaves = vec![&*loaded.leaves];
        if let Some(old) = &old {
            sketches.merge(&old.sketches);
            leaves.push(&old.leaves);
        }
        let leaves = match leaves.len() == 1 && level == loaded.level {
            true => loaded.leaves,
            false => self.sample_leaves(level, None, &leaves)?,
        };
        self.limited(TreeSample { level, leaves, sketches })
    }

    /// The sample of a tree of `rows` rows, built from all of them; `None` for a small or a large tree.
    fn sample_all(&self, root: &InnerNode, rows: u64) -> Result<Option<Arc<TreeSample>>> {
        if rows <= ROWS_MIN || !self.can_build(root, rows) {
            return Ok(None);
        }
        self.sample_of(root)
    }

    /// True if a tree of `rows` rows is small enough to build a sample from all of them.
    fn can_build(&self, root: &InnerNode, rows: u64) -> bool {
        rows <= BUILD_ROWS_MAX && root.pages() * self.options.page_bytes as u64 + root.run_bytes() <= BUILD_BYTES_MAX
    }

    /// The sample to which the messages of a large buffer are applied, if the tree has none so far.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub(super) fn sample_before(&self, root: &InnerNode, buffer: &RootBuffer) -> Result<Option<Arc<TreeSample>>> {
        let is_due = self.codecs.schema.is_sampled() && buffer.len() as u64 > ROWS_MIN;
        if !is_due || !self.can_build(root, rows_of(root, None)) {
            return Ok(None);
        }
        self.sample_of(root)
    }

    /// The sample of all rows of a tree.
    fn sample_of(&self, root: &InnerNode) -> Result<Option<Arc<TreeSample>>> {
        let mut rows = self.rewrite(Output::Rows);
        let mut level: Vec<&InnerNode> = vec![root];
        while !level.is_empty() {
            // The keys of nodes on one level are disjoint and ascend, so their newest runs can be read as one, and so on.
            for age in 0..level.iter().map(|node| node.runs.len()).max().unwrap_or(0) {
                let runs = level.iter().filter_map(|node| node.runs.get(age));
                rows.add_run(&Run::new(runs.flat_map(|run| run.parts().iter().cloned()).collect()));
            }
            level = level.into_iter().flat_map(InnerNode::inner_children).collect();
        }
        rows.add_leaves(&root.leaves());
        let mut sampler = Sampler::new(self.codecs);
        rows.sample(&mut sampler)?;
        let sample = sampler.finish(self.writer(self.options.leaf_bytes))?;
        self.limited(sample)
    }

    /// The rows of samples, the newer ones first, that a sample of this level has, after the messages of `buffer`.
    fn sample_leaves(
        &self,
        level: u32,
        buffer: Option<&Arc<RootBuffer>>,
        samples: &[&[Arc<Extent>]],
    ) -> Result<Vec<Arc<Extent>>> {
        let mut rows = self.rewrite(Output::Rows).selecting(level);
        if let Some(buffer) = buffer {
            rows.add_buffer(buffer);
        }
        samples.iter().for_each(|leaves| rows.add_leaves(*leaves));
        let mut writer = self.writer(self.options.leaf_bytes);
        rows.write(&mut writer)?;
        writer.finish()
    }

    /// The sample with so high a level that it does not exceed its limits; `None` if there is no such level, because someone
    /// has chosen keys by their hash.
    fn limited(&self, mut sample: TreeSample) -> Result<Option<Arc<TreeSample>>> {
        while !sample.is_within_limits() && sample.level < LEVEL_MAX {
            sample.level += 1;
            sample.leaves = self.sample_leaves(sample.level, None, &[&sample.leaves])?;
        }
        Ok(sample.is_within_limits().then(|| Arc::new(sample)))
    }
}

impl TreeView {
    /// The number of keys with changes in buffers, which the sample does not have; `None` if the store keeps no sample.
    pub fn unsampled_changes(&self) -> Option<u64> {
        self.version.sample.as_ref()?;
        let spilled = self.own_runs().iter().flat_map(Run::parts).map(|part| part.rows);
        Some(self.buffers().map(|(buffer, _)| buffer.len() as u64).chain(spilled).sum())
    }

    /// The sample of the tree; `None` if the store keeps none: of small trees, of trees whose schema is not
    /// [sampled](Schema::sampled), as those of older programs, and if a sample was damaged. Reads up to 4 MiB of the data
    /// file. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`], device errors.
    pub fn sample(&self) -> Result<Option<Sample>> {
        let Some(sample) = &self.version.sample else { return Ok(None) };
        let of_rows = rows_of(&self.version.root, Some(sample));
        sample.read(of_rows, &self.files, &self.version.codecs).map(Some)
    }
}

//! Rewriting of sorted messages and rows by flushes, column by column.
//!
//! ```text
//!   buffer ── block of decoded messages ──┐
//!   run ───── block of a decoded page ────┤ order of next keys ──> picks (block, row) ──> columns ──> extents
//!   leaf ──── block of a decoded page ────┘
//! ```
//!
//! Each input is decoded block by block. The merge compares only the keys. It picks the rows of the output by block and
//! number; once there are enough for a batch, their columns are gathered at once. Neighbours from one block are found by
//! comparing them with the next key of the other inputs only. Upserts that meet other messages of their key, or a leaf,
//! are resolved one by one.
//!
//! A rewrite may select the keys of a [sample](super::sample), give its rows to a [`Sampler`] instead of an extent, and
//! add the values that it writes to [`Sketches`].
//!
//! Unlike [`Merge`](super::Merge), which serves reads, it blocks, reads all columns, and never needs a part of a page
//! again: pages are read in groups, past the cache ([`page_feed`](super::page_feed)).
//!
//! *Invariants.* Memory is bounded by two groups of pages and one decoded page for each input, and a batch of rows with
//! the decoded pages that they are from.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave;

use crate::base::{Direction, KeyRange, Prior, Result, is_selected};
use crate::buffer::{BufferCursor, RootBuffer};
use crate::codec::{Codecs, MessageKind, RunColumns};
use crate::message::{Block, BlockBuilder, MessageBytes, Resolver, Upserts};
use crate::pages::{Extent, ExtentWriter, Files};
use crate::tree::page_feed::{GroupReads, PageFeed};
use crate::tree::{Part, Run, Sampler, Sketches};

/// Memory of a small row, with its key, in bytes.
const ROW_BYTES: usize = 128;
/// Number of a block in a pick, until the block of resolved messages exists.
const RESOLVED: usize = usize::MAX;

/// What a rewrite gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// One message for each key.
    Messages,
    /// The rows after all messages, which are those of a leaf.
    Rows,
}

/// A merge of inputs into new extents.
#[derive(Debug)]
pub(crate) struct Rewrite<'a> {
    codecs: &'a Arc<Codecs>,
    files: &'a Files,
    output: Output,
    /// Newest first.
    inputs: Vec<Input>,
    reads: GroupReads<'a>,
    /// The next key of each input, in descending order: the last one is the next.
    order: Vec<Head>,
    /// The current blocks of the inputs, and those with rows that are picked and not yet written.
    blocks: Vec<Block>,
    /// Block and row of each row of the output.
    picks: Vec<(usize, usize)>,
    /// What is known about the row below each picked message; empty for rows.
    priors: Vec<Prior>,
    /// Messages or rows that more than one message has been resolved to.
    resolved: BlockBuilder,
    /// Bytes of the blocks that are not the current ones of inputs.
    passed_bytes: usize,
    /// Bytes of decoded pages above which a batch is written.
    batch_bytes: usize,
    resolver: Resolver,
    /// Keys that a sample of this level does not have are left out.
    level: u32,
    /// Receives the values of all written messages and rows.
    sketches: Option<&'a mut Sketches>,
}

/// The receiver of the result.
enum Target<'t> {
    Extents(&'t mut ExtentWriter),
    Sampler(&'t mut Sampler),
}

#[derive(Debug)]
struct Input {
    feed: Feed,
    /// The current block and the next row in it.
    block: usize,
    row: usize,
}

#[derive(Debug)]
enum Feed {
    Buffer(BufferCursor),
    Pages(PageFeed),
}

/// The next key of an input.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// See [`Block::prefix`].
    prefix: u128,
    input: usize,
}

impl<'a> Rewrite<'a> {
    /// A rewrite without inputs, in batches of about `batch_bytes` decoded bytes, or one larger page.
    pub fn new(codecs: &'a Arc<Codecs>, files: &'a Files, output: Output, batch_bytes: usize) -> Self {
        Rewrite {
            codecs,
            files,
            output,
            inputs: Vec::new(),
            reads: GroupReads::new(files),
            order: Vec::new(),
            blocks: Vec::new(),
            picks: Vec::new(),
            priors: Vec::new(),
            resolved: BlockBuilder::default(),
            passed_bytes: 0,
            batch_bytes,
            resolver: Resolver::default(),
            level: 0,
            sketches: None,
        }
    }

    /// Leaves out the keys that a sample of this level does not have. For [`Output::Rows`].
    pub fn selecting(self, level: u32) -> Self {
        assert!(self.output == Output::Rows && self.inputs.is_empty(), "the rows of a sample are selected");
        Rewrite { level, ..self }
    }

    /// Adds the values of all messages and rows that are written to sketches.
    pub fn observed(self, sketches: Option<&'a mut Sketches>) -> Self {
        Rewrite { sketches, ..self }
    }

    /// Adds all messages of a buffer. They must be older than all messages added before.
    pub fn add_buffer(&mut self, buffer: &Arc<RootBuffer>) {
        let cursor = BufferCursor::new(buffer.clone(), KeyRange::all(), u64::MAX, Direction::Ascending);
        let cursor = cursor.selecting(self.level);
        self.add(Feed::Buffer(cursor));
    }

    /// Adds the messages of a run. They must be older than all messages added before.
    pub fn add_run(&mut self, run: &Run) {
        self.add(Feed::Pages(PageFeed::new(run.parts().iter().cloned().collect(), false)));
    }

    /// Adds the rows of leaves in ascending order, which are older than all messages.
    pub fn add_leaves<'l>(&mut self, leaves: impl IntoIterator<Item = &'l Arc<Extent>>) {
        let parts = leaves.into_iter().map(|extent| Part::whole(extent.clone())).collect();
        self.add(Feed::Pages(PageFeed::new(parts, true)));
    }

    fn add(&mut self, feed: Feed) {
        self.inputs.push(Input { feed, block: 0, row: 0 });
    }

    /// Writes the result of all inputs.
    ///
    /// # Errors
    /// Device errors, [`crate::Error::DiskFull`], [`crate::Error::Corrupt`], errors of upsert functions.
    pub fn write(self, writer: &mut ExtentWriter) -> Result<()> {
        self.run(&mut Target::Extents(writer))
    }

    /// Gives the result of all inputs, which are rows, to a sampler.
    ///
    /// # Errors
    /// Those of [`Rewrite::write`].
    pub fn sample(self, sampler: &mut Sampler) -> Result<()> {
        assert!(self.output == Output::Rows, "a sample has rows");
        self.run(&mut Target::Sampler(sampler))
    }

    fn run(mut self, target: &mut Target<'_>) -> Result<()> {
        for input in &mut self.inputs {
            if let Feed::Pages(pages) = &mut input.feed {
                pages.start(&mut self.reads, self.codecs)?;
            }
        }
        for input in 0..self.inputs.len() {
            self.next_block(input)?;
        }
        while let Some(head) = self.order.pop() {
            if self.order.last().is_some_and(|next| has_same_key(&self.inputs, &self.blocks, *next, head)) {
                self.resolve(head)?;
            } else {
                self.pick_run(head)?;
            }
            if self.is_full() || self.picks.len() >= self.batch_bytes / ROW_BYTES {
                self.write_batch(target, false)?;
                if self.is_full() {
                    // The rows that are left are from large pages.
                    self.write_batch(target, true)?;
                }
            }
        }
        self.write_batch(target, true)
    }

    fn is_full(&self) -> bool {
        self.passed_bytes + self.resolved.bytes() >= self.batch_bytes
    }

    fn key(&self, head: Head) -> &[u8] {
        let Input { block, row, .. } = self.inputs[head.input];
        self.blocks[block].key(row)
    }

    /// True if `a` comes before `b`: by key, then the newer one.
    fn is_before(&self, a: Head, b: Head) -> bool {
        match a.prefix.cmp(&b.prefix) {
            std::cmp::Ordering::Equal => self.key(a).cmp(self.key(b)).then(a.input.cmp(&b.input)).is_lt(),
            prefixes => prefixes.is_lt(),
        }
    }

    /// Puts the next key of an input into the order; reads its next block if there is none in the current one.
    #[inline]
    fn put_back(&mut self, input: usize) -> Result<()> {
        let Input { block, row, .. } = self.inputs[input];
        if row == self.blocks[block].len() {
            self.passed_bytes += self.blocks[block].bytes();
            return self.next_block(input);
        }
        self.put(Head { prefix: self.blocks[block].prefix(row), input });
        Ok(())
    }

    #[inline]
    fn put(&mut self, head: Head) {
        let mut at = self.order.len();
        while at > 0 && self.is_before(self.order[at - 1], head) {
            at -= 1;
        }
        self.order.insert(at, head);
    }

    /// Reads the next block of an input, and puts its first key into the order.
    fn next_block(&mut self, input: usize) -> Result<()> {
        let functions = Upserts::new(&self.files.upserts, self.codecs);
        let block = match &mut self.inputs[input].feed {
            Feed::Buffer(cursor) => {
                let mut builder = BlockBuilder::default();
                cursor.next_messages(&mut builder, functions)?;
                if builder.len() == 0 {
                    return Ok(());
                }
                builder.finish(self.codecs)?
            }
            Feed::Pages(pages) => match pages.next(&mut self.reads, self.codecs)? {
                Some((page, rows)) => Block::of_page(&page, rows, self.codecs)?,
                None => return Ok(()),
            },
        };
        let prefix = block.prefix(0);
        (self.inputs[input].block, self.inputs[input].row) = (self.blocks.len(), 0);
        self.blocks.push(block);
        self.put(Head { prefix, input });
        Ok(())
    }

    /// Picks the rows of the input from its next one on whose keys come before the next key of the other inputs.
    fn pick_run(&mut self, head: Head) -> Result<()> {
        let Input { block: number, row: first, .. } = self.inputs[head.input];
        let block = &self.blocks[number];
        let end = match self.order.last() {
            None => block.len(),
            Some(next) => {
                let mut end = first + 1;
                while end < block.len()
                    && (block.prefix(end) < next.prefix
                        || block.prefix(end) == next.prefix && block.key(end) < self.key(*next))
                {
                    end += 1;
                }
                end
            }
        };
        match self.output {
            Output::Messages => {
                self.priors.extend((first..end).map(|row| block.prior(row)));
                self.picks.extend((first..end).map(|row| (number, row)));
            }
            Output::Rows if !block.has_changes() => {
                let level = self.level;
                let selected = (first..end).filter(|row| is_selected(block.key(*row), level));
                self.picks.extend(selected.map(|row| (number, row)));
            }
            Output::Rows => {
                for row in first..end {
                    if !is_selected(self.blocks[number].key(row), self.level) {
                        continue;
                    }
                    match self.blocks[number].kind(row) {
                        MessageKind::Insert => self.picks.push((number, row)),
                        MessageKind::Delete => {}
                        MessageKind::Upsert => self.apply_upserts(&[(number, row)])?,
                    }
                }
            }
        }
        self.inputs[head.input].row = end;
        self.put_back(head.input)
    }

    /// Resolves the messages of the next key, which more than one input has.
    fn resolve(&mut self, newest: Head) -> Result<()> {
        let mut heads = vec![newest];
        let (inputs, blocks) = (&self.inputs, &self.blocks);
        while let Some(next) = self.order.pop_if(|next| has_same_key(inputs, blocks, *next, newest)) {
            heads.push(next);
        }
        let is_selected = is_selected(self.key(newest), self.level);
        let place = |head: &Head| (self.inputs[head.input].block, self.inputs[head.input].row);
        let messages: Vec<(usize, usize)> = heads.iter().map(place).collect();
        let ((block, row), (oldest_block, oldest_row)) = (messages[0], messages[messages.len() - 1]);
        match (self.blocks[block].kind(row), self.output) {
            _ if !is_selected => {}
            (MessageKind::Upsert, _) => self.apply_upserts(&messages)?,
            (MessageKind::Delete, Output::Rows) => {}
            (MessageKind::Insert, Output::Rows) => self.picks.push((block, row)),
            (_, Output::Messages) => {
                self.picks.push((block, row));
                self.priors.push(self.blocks[oldest_block].prior(oldest_row));
            }
        }
        for head in heads {
            self.inputs[head.input].row += 1;
            self.put_back(head.input)?;
        }
        Ok(())
    }

    /// Resolves messages of one key, newest first, of which the newest is an upsert.
    fn apply_upserts(&mut self, messages: &[(usize, usize)]) -> Result<()> {
        let functions = Upserts::new(&self.files.upserts, self.codecs);
        let mut value = Vec::new();
        for &(block, row) in messages {
            let block = &self.blocks[block];
            match block.kind(row) {
                MessageKind::Insert => {
                    value.clear();
                    self.codecs.row.encode(&block.columns, row, &mut value);
                    self.resolver.add_message(MessageBytes::Insert(&value));
                }
                MessageKind::Delete => self.resolver.add_message(MessageBytes::Delete),
                MessageKind::Upsert => self.resolver.add_operands(block.operands(row)),
            }
            self.resolver.set_prior(block.prior(row));
        }
        let Some((change, prior)) = self.resolver.finish(functions)? else { return Ok(()) };
        let (block, row) = messages[0];
        let key = self.blocks[block].key(row);
        let pick = (RESOLVED, self.resolved.len());
        match self.output {
            Output::Messages => {
                self.resolved.push_change(key, &change, prior);
                self.priors.push(prior);
            }
            Output::Rows => match change.apply(None, functions)? {
                Some(value) => self.resolved.push(key, MessageBytes::Insert(&value), prior),
                None => return Ok(()),
            },
        }
        self.picks.push(pick);
        Ok(())
    }

    /// Writes the picked rows. Unless `all` is set, the last ones are left for the next batch if they may not fill a
    /// page.
    fn write_batch(&mut self, target: &mut Target<'_>, all: bool) -> Result<()> {
        if self.resolved.len() > 0 {
            let number = self.blocks.len();
            self.blocks.push(self.resolved.finish(self.codecs)?);
            self.picks.iter_mut().filter(|pick| pick.0 == RESOLVED).for_each(|pick| pick.0 = number);
        }
        if !self.picks.is_empty() {
            let columns: Vec<ArrayRef> = (0..self.codecs.schema.columns().len()).map(|i| self.gather(i)).collect();
            let messages = match self.output {
                Output::Messages => Some(RunColumns {
                    kinds: self.picks.iter().map(|&(block, row)| self.blocks[block].kind(row)).collect(),
                    operands: self
                        .picks
                        .iter()
                        .map(|&(block, row)| self.blocks[block].operands(row).to_vec())
                        .collect(),
                    priors: self.priors.clone(),
                }),
                Output::Rows => None,
            };
            let written = match target {
                Target::Extents(writer) => match writer.write(&columns, messages.as_ref(), 0, all)? {
                    0 => writer.write(&columns, messages.as_ref(), 0, true)?,
                    written => written,
                },
                Target::Sampler(sampler) => {
                    sampler.push(&columns)?;
                    self.picks.len()
                }
            };
            if let Some(sketches) = &mut self.sketches {
                let columns: Vec<ArrayRef> = columns.iter().map(|column| column.slice(0, written)).collect();
                sketches.add(&self.codecs.schema, &columns);
                let kinds = messages.iter().flat_map(|messages| &messages.kinds[..written]);
                sketches.missed += kinds.filter(|kind| **kind == MessageKind::Upsert).count() as u64;
            }
            self.picks.drain(..written);
            self.priors.drain(..written.min(self.priors.len()));
        }
        self.drop_blocks();
        Ok(())
    }

    /// Column `i` of the picked rows.
    fn gather(&self, i: usize) -> ArrayRef {
        let arrays: Vec<&dyn Array> = self.blocks.iter().map(|block| &*block.columns[i]).collect();
        interleave(&arrays, &self.picks).unwrap_or_else(|error| panic!("columns of one type: {error}"))
    }

    /// Drops the blocks that are neither picked nor the current ones of inputs.
    fn drop_blocks(&mut self) {
        let mut is_picked = vec![false; self.blocks.len()];
        self.picks.iter().for_each(|&(block, _)| is_picked[block] = true);
        let mut is_current = vec![false; self.blocks.len()];
        self.order.iter().for_each(|head| is_current[self.inputs[head.input].block] = true);
        self.passed_bytes = 0;
        // The new number of each kept block.
        let mut numbers = vec![usize::MAX; self.blocks.len()];
        for (old, block) in std::mem::take(&mut self.blocks).into_iter().enumerate() {
            if !is_current[old] && is_picked[old] {
                self.passed_bytes += block.bytes();
            }
            if is_current[old] || is_picked[old] {
                numbers[old] = self.blocks.len();
                self.blocks.push(block);
            }
        }
        self.picks.iter_mut().for_each(|pick| pick.0 = numbers[pick.0]);
        for head in &self.order {
            let block = &mut self.inputs[head.input].block;
            *block = numbers[*block];
        }
    }
}

/// All rows of leaves, which must not be many.
///
/// # Errors
/// Device errors, [`crate::Error::Corrupt`], [`crate::Error::Arrow`].
pub(crate) fn read_rows(leaves: &[Arc<Extent>], files: &Files, codecs: &Codecs) -> Result<RecordBatch> {
    let parts = leaves.iter().map(|extent| Part::whole(extent.clone())).collect();
    let (mut feed, mut reads) = (PageFeed::new(parts, true), GroupReads::new(files));
    let mut batches = Vec::new();
    let arrow = |error| crate::Error::Arrow(Arc::new(error));
    while let Some((page, rows)) = feed.next(&mut reads, codecs)? {
        let block = Block::of_page(&page, rows, codecs)?;
        batches.push(RecordBatch::try_new(codecs.schema.arrow().clone(), block.columns).map_err(arrow)?);
    }
    concat_batches(codecs.schema.arrow(), &batches).map_err(arrow)
}

fn has_same_key(inputs: &[Input], blocks: &[Block], a: Head, b: Head) -> bool {
    let key = |head: Head| blocks[inputs[head.input].block].key(inputs[head.input].row);
    a.prefix == b.prefix && key(a) == key(b)
}

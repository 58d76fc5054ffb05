//! Merges sorted streams of batches with a loser tree.
//!
//! Each inner node stores the loser of the match played there; `tree[0]` stores the overall winner: the stream with the
//! smallest head. After the winner advances, only the matches on its path to the root are replayed. Heads are compared
//! by the first 16 bytes of their encoded keys as one integer, and by the full keys only if these are equal. Among
//! equal keys the earlier stream wins, so the merge is stable.
//!
//! Winners are recorded as (batch, row) and copied column by column when an output batch is full.

use std::cmp::Ordering;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::Rows;
use keyaki_store::{BlockingPages, Cursor, block_on};

use crate::Result;
use crate::write::bulk::sort::{SortKey, prefix};
use crate::write::bulk::spill::RunReader;

/// Source of a sorted stream.
#[derive(Debug)]
pub(super) enum Input<'s> {
    Run(RunReader),
    /// Batches in memory, in reverse order.
    Memory(Vec<RecordBatch>),
    /// A cursor over a tree; all columns are read.
    Tree(Box<Cursor<'s, &'s BlockingPages>>),
}

impl Input<'_> {
    fn next(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        match self {
            Input::Run(run) => run.next(),
            Input::Memory(batches) => Ok(batches.pop()),
            Input::Tree(cursor) => {
                let Some(chunk) = block_on(cursor.next())? else { return Ok(None) };
                let columns: Vec<usize> = (0..schema.fields().len()).collect();
                Ok(Some(RecordBatch::try_new(schema.clone(), chunk.to_arrays(&columns)?)?))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct RunMerge<'s> {
    schema: SchemaRef,
    key: SortKey,
    batch_rows: usize,
    streams: Vec<Stream<'s>>,
    /// Indices into `streams`: `tree[0]` is the winner, the others are losers.
    tree: Vec<usize>,
    /// Batches that `picked` refers to.
    batches: Vec<RecordBatch>,
    /// Rows of the next output batch: position in `batches`, row.
    picked: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Stream<'s> {
    input: Input<'s>,
    /// Encoded keys of the current batch.
    keys: Option<Rows>,
    /// The head: the next row of the current batch.
    row: usize,
    /// Position of the current batch in `RunMerge::batches`.
    batch: usize,
    /// First 16 bytes of the head's key; `None` at the end of the stream.
    head: Option<u128>,
}

impl<'s> RunMerge<'s> {
    /// Merges `inputs`, which are sorted by `key`, into batches of `batch_rows` rows.
    pub fn new(schema: SchemaRef, key: SortKey, inputs: Vec<Input<'s>>, batch_rows: usize) -> Result<Self> {
        let streams: Vec<Stream<'s>> =
            inputs.into_iter().map(|input| Stream { input, keys: None, row: 0, batch: 0, head: None }).collect();
        let tree = vec![usize::MAX; streams.len().max(1)];
        let mut merge = RunMerge { schema, key, batch_rows, streams, tree, batches: Vec::new(), picked: Vec::new() };
        for stream in 0..merge.streams.len() {
            merge.refill(stream)?;
        }
        for stream in (0..merge.streams.len()).rev() {
            merge.enter(stream);
        }
        Ok(merge)
    }

    /// The next rows in key order; `None` at the end.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.picked.len() < self.batch_rows {
            let Some(&winner) = self.tree.first().filter(|winner| **winner != usize::MAX) else { break };
            let stream = &mut self.streams[winner];
            let (Some(_), Some(keys)) = (stream.head, &stream.keys) else { break };
            self.picked.push((stream.batch, stream.row));
            stream.row += 1;
            if stream.row < keys.num_rows() {
                stream.head = Some(prefix(keys.row(stream.row).data()));
            } else {
                self.refill(winner)?;
            }
            self.replay(winner);
        }
        self.take_picked()
    }

    fn take_picked(&mut self) -> Result<Option<RecordBatch>> {
        if self.picked.is_empty() {
            return Ok(None);
        }
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let output = interleave_record_batch(&batches, &self.picked)?;
        self.picked.clear();
        // Keep only the current batches of the streams.
        let mut kept = Vec::with_capacity(self.streams.len());
        for stream in self.streams.iter_mut().filter(|stream| stream.head.is_some()) {
            kept.push(self.batches[stream.batch].clone());
            stream.batch = kept.len() - 1;
        }
        self.batches = kept;
        debug_assert_eq!(output.schema(), self.schema);
        Ok(Some(output))
    }

    /// Reads the next batch of a stream that is not empty.
    fn refill(&mut self, stream: usize) -> Result<()> {
        let stream = &mut self.streams[stream];
        stream.head = None;
        stream.keys = None;
        while let Some(batch) = stream.input.next(&self.schema)? {
            if batch.num_rows() > 0 {
                let keys = self.key.encode(&batch)?;
                stream.head = Some(prefix(keys.row(0).data()));
                stream.keys = Some(keys);
                stream.row = 0;
                stream.batch = self.batches.len();
                self.batches.push(batch);
                break;
            }
        }
        Ok(())
    }

    /// Plays the first matches of a stream: it ascends until it reaches a node without an opponent and stays there.
    fn enter(&mut self, stream: usize) {
        let mut winner = stream;
        let mut node = (self.streams.len() + stream) / 2;
        while node > 0 {
            if self.tree[node] == usize::MAX {
                self.tree[node] = winner;
                return;
            }
            if self.before(self.tree[node], winner) {
                std::mem::swap(&mut self.tree[node], &mut winner);
            }
            node /= 2;
        }
        self.tree[0] = winner;
    }

    /// Replays the matches on the path of a stream whose head has changed.
    fn replay(&mut self, stream: usize) {
        let mut winner = stream;
        let mut node = (self.streams.len() + stream) / 2;
        while node > 0 {
            if self.before(self.tree[node], winner) {
                std::mem::swap(&mut self.tree[node], &mut winner);
            }
            node /= 2;
        }
        self.tree[0] = winner;
    }

    /// True if the head of stream `a` comes before the head of stream `b`.
    fn before(&self, a: usize, b: usize) -> bool {
        let (left, right) = (&self.streams[a], &self.streams[b]);
        let order = match (left.head, right.head) {
            (Some(left_head), Some(right_head)) => {
                left_head.cmp(&right_head).then_with(|| match (&left.keys, &right.keys) {
                    (Some(left_keys), Some(right_keys)) => {
                        left_keys.row(left.row).data().cmp(right_keys.row(right.row).data())
                    }
                    _ => Ordering::Equal,
                })
            }
            // Exhausted streams come last.
            (left_head, right_head) => left_head.is_none().cmp(&right_head.is_none()),
        };
        order.then(a.cmp(&b)) == Ordering::Less
    }
}

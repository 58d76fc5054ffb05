//! The runs of a transaction: messages that were moved from its buffers to the data file, and become runs of the roots of
//! their trees with the commit.

use std::sync::Arc;

use crate::base::Result;
use crate::buffer::RootBuffer;
use crate::pages::Priority;
use crate::tree::rewrite::Output;
use crate::tree::{Flusher, Run, SampledMessages, Sketches};

/// A transaction has at most this many runs of a tree before some are merged.
const RUNS_MAX: usize = 8;
/// The messages of a transaction that concern the sample of a tree take at most this share of the memory of root buffers,
/// within bounds in bytes.
const SAMPLE_SHARE: usize = 16;
const SAMPLE_BYTES_MIN: usize = 64 << 10;
const SAMPLE_BYTES_MAX: usize = 4 << 20;
/// A run is merged with newer ones if it has at most this many times their messages.
const SIZE_RATIO: u64 = 2;

impl Flusher<'_> {
    /// Writes the messages of a buffer as a run. For a sampled tree, also returns the messages that its sample needs. `level`
    /// is that of the sample, or 0 without one.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn spill(&self, buffer: &Arc<RootBuffer>, level: u32) -> Result<(Run, Option<SampledMessages>)> {
        let schema = &self.codecs.schema;
        let mut sketches = schema.is_sampled().then(|| Sketches::new(schema.columns().len()));
        let mut messages = self.rewrite(Output::Messages).observed(sketches.as_mut());
        messages.add_buffer(buffer);
        let run = self.write_run(messages, self.purpose)?;
        let sampled = sketches.map(|sketches| {
            let bytes_max = (self.options.buffer_bytes / SAMPLE_SHARE).clamp(SAMPLE_BYTES_MIN, SAMPLE_BYTES_MAX);
            SampledMessages::new(level, buffer, bytes_max, sketches)
        });
        Ok((run, sampled))
    }

    /// Merges the newest of more than [`RUNS_MAX`] runs, which are newest first. Runs of similar sizes are merged, so that a
    /// message is written again a logarithmic number of times.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn compact(&self, runs: &mut Vec<Run>) -> Result<()> {
        while runs.len() > RUNS_MAX {
            let mut rows = runs[0].rows();
            let mut count = 1;
            while count < runs.len() && (count == 1 || runs[count].rows() <= rows.saturating_mul(SIZE_RATIO)) {
                rows += runs[count].rows();
                count += 1;
            }
            let mut messages = self.rewrite(Output::Messages);
            runs[..count].iter().for_each(|run| messages.add_run(run));
            let merged = self.write_run(messages, self.purpose)?;
            runs.splice(..count, [merged]);
        }
        Ok(())
    }

    /// True if a run has a message of this key.
    ///
    /// # Errors
    /// Device errors, [`crate::Error::Corrupt`].
    pub fn has_message(&self, run: &Run, key: &[u8]) -> Result<bool> {
        let Some(part) = run.part_of(key) else {
            return Ok(false);
        };
        let schema = &self.codecs.schema;
        let index = self.files.read_index(&part.extent, schema)?;
        if !index.may_contain(key) {
            return Ok(false);
        }
        let number = index.find(key);
        let page = self.files.read_page(index.entry(number).0, schema, Priority::Lookup)?;
        index.check_data_page(number, &page, false)?;
        Ok(page.lower_bound(key, false) < page.lower_bound_above(key))
    }
}

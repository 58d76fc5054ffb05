//! The rows of a scan: messages and the rows of a leaf merged at once, without a copy of keys or values.

use std::sync::Arc;

use super::part::Settled;
use super::{HeadState, Merge, Source};
use crate::base::{Direction, Key, Result};
use crate::codec::{ChunkPart, Codecs, Page};
use crate::message::{Change, PageRow, Upserts};
use crate::pages::PageSource;

/// Maximum bytes of pages and rows that a chunk keeps in memory, beside the pages that its merge had open before; the last
/// row may exceed it.
const BYTES_MAX: usize = 1 << 20;

/// Merged rows in the direction of the merge.
#[derive(Debug, Default)]
pub(crate) struct MergedRows {
    pub parts: Vec<ChunkPart>,
    rows: usize,
    bytes: usize,
}

impl MergedRows {
    /// True if there are as many rows as wanted, or as many bytes as a chunk may keep.
    fn is_full(&self, rows_max: usize) -> bool {
        self.rows >= rows_max || self.bytes >= BYTES_MAX
    }

    fn push_page(&mut self, page: &Arc<Page>, rows: std::ops::Range<usize>, direction: Direction) {
        self.rows += rows.len();
        let (start, end) = (rows.start as u32, rows.end as u32);
        if let Some(ChunkPart::Page { page: last, rows: before, .. }) = self.parts.last_mut()
            && Arc::ptr_eq(last, page)
        {
            match direction {
                Direction::Ascending if before.end == start => return before.end = end,
                Direction::Descending if before.start == end => return before.start = start,
                _ => {}
            }
        }
        let reversed = direction == Direction::Descending;
        self.parts.push(ChunkPart::Page { page: page.clone(), rows: start..end, reversed });
    }

    fn push_change(&mut self, key: Key, change: &Change, direction: Direction, functions: Upserts<'_>) -> Result<()> {
        match change {
            Change::Row(PageRow { page, row }) => self.push_page(page, *row as usize..*row as usize + 1, direction),
            change => {
                if let Some(value) = change.apply(None, functions)? {
                    self.rows += 1;
                    self.bytes += key.len() + value.len();
                    self.parts.push(ChunkPart::Row { key, value });
                }
            }
        }
        Ok(())
    }
}

impl Merge {
    /// Adds the next rows to `rows`, whose first pages are read, until the next page is needed or there are `rows_max` rows.
    /// Returns false if an upsert needs a page of the leaf with all columns, see [`Merge::complete_leaf`].
    ///
    /// # Errors
    /// As [`Merge::take`].
    pub fn take_rows(
        &mut self,
        rows: &mut MergedRows,
        rows_max: usize,
        codecs: &Codecs,
        functions: Upserts<'_>,
    ) -> Result<bool> {
        while !rows.is_full(rows_max)
            && let Some(head) = self.order.last().copied().filter(|head| head.state == HeadState::Key)
        {
            if !self.take_settled(head.source, rows, codecs) {
                if self.lacks_columns() {
                    return Ok(false);
                }
                if let Source::Part(part) = &mut self.sources[head.source] {
                    rows.bytes += part.take_page_bytes();
                }
                if let Some((key, change, _)) = self.take(functions)? {
                    let pushed = rows.push_change(key, &change, self.direction, functions);
                    self.failed = pushed.as_ref().err().cloned();
                    pushed?;
                }
            }
        }
        Ok(true)
    }

    /// True if the chunk is complete.
    pub fn is_chunk(&self, rows: &MergedRows, rows_max: usize) -> bool {
        self.order.is_empty() || rows.is_full(rows_max)
    }

    /// Takes the key of the first head, `source`, if its newest message settles the row, and the rows of the same page that
    /// come before the next head.
    fn take_settled(&mut self, source: usize, rows: &mut MergedRows, codecs: &Codecs) -> bool {
        let Source::Part(part) = &mut self.sources[source] else { return false };
        let Some(settled) = part.settled() else { return false };
        if settled == Settled::Row {
            rows.bytes += part.take_page_bytes();
        }
        self.order.pop();
        let direction = self.direction;
        let mut compared = std::mem::take(&mut self.compared);
        let next = self.order.last().copied();
        if let Some(next) = next {
            compared.clear();
            compared.extend_from_slice(self.sources[next.source].key());
        }
        let Source::Part(part) = &mut self.sources[source] else { unreachable!("checked above") };
        let is_shared = next.is_some_and(|next| next.state == HeadState::Key && part.key() == compared);
        let taken = match settled {
            Settled::Row if !is_shared => {
                let bound = next.map(|next| (next.prefix, compared.as_slice()));
                part.rows_before(bound, &codecs.schema, &codecs.key)
            }
            _ => part.current().map_or(0..0, |(_, row)| row..row + 1),
        };
        if settled == Settled::Row
            && let Some((page, _)) = part.current()
        {
            rows.push_page(page, taken.clone(), direction);
        }
        if let Some(state) = part.advance(taken.len()) {
            self.put(source, state);
        }
        if is_shared {
            self.skip(&compared);
        }
        self.compared = compared;
        true
    }

    /// Takes the messages, and the row of the leaf, with a key whose newest message is settled.
    fn skip(&mut self, key: &[u8]) {
        while let Some(head) = self.order.last().copied()
            && head.state == HeadState::Key
            && self.sources[head.source].key() == key
        {
            self.order.pop();
            let next = match &mut self.sources[head.source] {
                Source::Part(part) => part.advance(1),
                Source::Buffer(cursor) => cursor.skip().then_some(HeadState::Key),
            };
            if let Some(state) = next {
                self.put(head.source, state);
            }
        }
    }

    /// True if the newest message of the next key is an upsert of a row of the leaf whose page lacks columns.
    fn lacks_columns(&self) -> bool {
        let Some(newest) = self.order.last() else { return false };
        if matches!(&self.sources[newest.source], Source::Buffer(cursor) if !cursor.is_upsert()) {
            return false;
        }
        let key = self.sources[newest.source].key();
        let same = self.order.iter().rev().take_while(|head| head.prefix == newest.prefix);
        let mut same = same.filter(|head| self.sources[head.source].key() == key);
        same.any(|head| match &self.sources[head.source] {
            Source::Part(part) if part.is_leaf() => part.current().is_some_and(|(page, _)| !page.is_whole()),
            _ => false,
        })
    }

    /// Reads the current page of the leaf, and the later ones, with all columns.
    ///
    /// # Errors
    /// Errors of the page source, after which the call may be repeated.
    pub async fn complete_leaf<P: PageSource>(&mut self, schema: &Arc<crate::base::Schema>, pages: &P) -> Result<()> {
        for source in &mut self.sources {
            if let Source::Part(part) = source
                && part.is_leaf()
            {
                part.complete_page(schema, pages).await?;
            }
        }
        Ok(())
    }
}

//! Lookups of single keys: the messages in the buffers and in the runs on the path.
//!
//! The filters of nearly all runs rule the key out. A lookup therefore spends its time on waiting for memory: for the extent
//! of each run, then for its index page, then for a block of its filter. Each step is taken for all runs before the next one,
//! so that the processor loads the memory of all runs at once.
//!
//! Index pages that extents hold are not requested from the source, whose counters miss them.

use std::sync::Arc;

use crate::base::Result;
use crate::buffer::RootBuffer;
use crate::codec::Page;
use crate::message::{Change, Resolver};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::{Cursor, Part};

impl<P: PageSource> Cursor<'_, P> {
    /// The change that the messages of one key resolve to. Reads no run older than the newest insert or delete.
    pub(super) async fn point_change(
        &self,
        key: &[u8],
        hash: u64,
        parts: &[&Part],
        leaf: Option<&Arc<Extent>>,
    ) -> Result<Option<Change>> {
        let mut resolver = Resolver::default();
        if let Some((buffer, sequence)) = self.view.own_buffer() {
            add_messages(&mut resolver, buffer, key, sequence);
        }
        let own_parts: Vec<_> = self.view.own_runs().iter().filter_map(|run| run.candidate(key)).collect();
        for candidate in candidates(&own_parts, None, hash) {
            self.add_point(&mut resolver, key, hash, candidate).await?;
        }
        for (buffer, sequence) in self.view.committed_buffers() {
            if !resolver.is_settled() {
                add_messages(&mut resolver, buffer, key, sequence);
            }
        }
        if resolver.is_settled() {
            return Ok(resolver.finish(self.view.upserts())?.map(|(change, _)| change));
        }
        for candidate in candidates(parts, leaf, hash) {
            self.add_point(&mut resolver, key, hash, candidate).await?;
        }
        Ok(resolver.finish(self.view.upserts())?.map(|(change, _)| change))
    }

    /// Adds the message of a key in a part of a run, unless newer ones settle the result.
    async fn add_point(
        &self,
        resolver: &mut Resolver,
        key: &[u8],
        hash: u64,
        (part, index): (&Part, Option<Arc<Page>>),
    ) -> Result<()> {
        if resolver.is_settled() || !part.may_contain(key) {
            return Ok(());
        }
        let schema = self.view.schema();
        let index = match index {
            Some(index) => index,
            None => self.read_index(&part.extent).await?,
        };
        if !index.may_contain_hash(hash) {
            return Ok(());
        }
        let number = index.find(key);
        let page = self.source.page(index.entry(number).0, schema, Priority::Lookup).await?;
        index.check_data_page(number, &page, false)?;
        page.check_all_columns()?;
        let row = page.lower_bound(key, false);
        if row < page.lower_bound_above(key) {
            resolver.add_row(&page, row, self.view.upserts().rows())?;
        }
        Ok(())
    }
}

/// The parts whose filters admit the hash of a key, or whose index pages are not in memory. Loads the extent of the leaf, too.
fn candidates<'a>(parts: &[&'a Part], leaf: Option<&Arc<Extent>>, hash: u64) -> Vec<(&'a Part, Option<Arc<Page>>)> {
    let extents = || parts.iter().map(|part| &part.extent).chain(leaf);
    extents().for_each(|extent| extent.prefetch());
    extents().for_each(|extent| extent.prefetch_index());
    let with_index = parts.iter().map(|part| {
        let index = part.extent.held_index();
        if let Some(index) = &index {
            index.prefetch_filter(hash);
        }
        (*part, index)
    });
    let mut found: Vec<_> = with_index.collect();
    found.retain(|(_, index)| index.as_ref().is_none_or(|index| index.may_contain_hash(hash)));
    found
}

/// Adds the messages of a key in a buffer, newest first, until they settle the result.
fn add_messages(resolver: &mut Resolver, buffer: &RootBuffer, key: &[u8], sequence: u64) {
    buffer.visit(key, sequence, |message| {
        resolver.add_message(message);
        !resolver.is_settled()
    });
}

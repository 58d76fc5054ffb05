//! The tasks of a pipeline: reading a range of the driver, and looking up the matches of rows with one key.
//!
//! They are `async` functions over a page source and a sink of rows. These determine the execution mode: the same functions
//! run out of order and in order.

use std::future::Future;
use std::sync::Arc;

use keyaki_store::{Direction, KeyRange, PageSource, TreeView};

use super::outer_batch::{Lookup, OuterBatch};
use super::plan::PipelinePlan;
use super::row_buffer::{MatchTracker, RowBuffer};
use crate::base::{Join, Result};
use crate::query::Query;

/// Receives the rows of tasks.
pub(crate) trait RowSink: Sync {
    /// Adds rows to the buffer of a level, and flushes it if it is due.
    fn append<T>(&self, level: usize, add: impl FnOnce(&mut RowBuffer) -> Result<T>) -> Result<T>;

    /// The query of the tasks.
    fn query(&self) -> &Query;

    /// Resolves when the level may take more rows, and fails once the query is stopped.
    fn room(&self, level: usize) -> impl Future<Output = Result<()>> + Send;
}

/// Reads a range of the driver into level 0.
pub(crate) async fn read_driver<P: PageSource, S: RowSink>(
    plan: &PipelinePlan,
    view: &TreeView,
    source: &P,
    range: KeyRange,
    sink: &S,
) -> Result<()> {
    let level = &plan.levels[0];
    let mut cursor = view.cursor(source, range, Direction::Ascending);
    while let Some(chunk) = cursor.next().await? {
        sink.query().record_columns(&chunk, &level.inner_columns);
        sink.append(0, |buffer| buffer.append_driver(level, &chunk))?;
        sink.room(0).await?;
    }
    Ok(())
}

/// Finds the matches of a lookup of step `step`, for level `step + 1`.
pub(crate) async fn look_up<P: PageSource, S: RowSink>(
    plan: &PipelinePlan,
    step: usize,
    source: &P,
    lookup: &Lookup,
    sink: &S,
) -> Result<()> {
    let (to, level) = (step + 1, &plan.levels[step + 1]);
    let tracker = level.must_track_matches().then(|| MatchTracker::new(lookup));
    let view = &plan.steps[step].view;
    let mut cursor = view.cursor(source, KeyRange::prefix(lookup.key().to_vec()), Direction::Ascending);
    let mut has_match = false;
    while let Some(chunk) = cursor.next().await? {
        if chunk.rows() == 0 {
            continue;
        }
        has_match = true;
        // The first match decides without a filter, the first match of each row with one.
        let is_decided = tracker.as_ref().is_none_or(|tracker| tracker.all_matched());
        if level.join.is_existence() && is_decided {
            break;
        }
        sink.query().record_columns(&chunk, &level.inner_columns);
        let mut position = 0;
        while position < lookup.rows().len() {
            position =
                sink.append(to, |buffer| buffer.append_matches(level, lookup, position, &chunk, tracker.as_ref()))?;
            sink.room(to).await?;
        }
    }
    let single = match tracker {
        Some(tracker) => tracker.settle(level.join),
        None if has_match && level.join == Join::LeftSemi => Some(lookup.rows().to_vec()),
        None if !has_match && level.join.keeps_unmatched() => Some(lookup.rows().to_vec()),
        None => None,
    };
    match single {
        Some(rows) => append_single(sink, to, &lookup.outer, &rows),
        None => Ok(()),
    }
}

/// Adds outer rows that continue without a match's columns to level `to`.
pub(crate) fn append_single<S: RowSink>(sink: &S, to: usize, outer: &Arc<OuterBatch>, rows: &[u32]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sink.append(to, |buffer| {
        buffer.append_single(outer, rows);
        Ok(())
    })
}

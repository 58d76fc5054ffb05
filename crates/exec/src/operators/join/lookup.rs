//! The tasks of a pipeline: walking over a range of the driver, and looking up the matches of a row.
//!
//! They are ordinary `async` functions over a page source and a sink for rows; which of these they get decides whether
//! they run out of order or in order.

use std::future::Future;
use std::sync::Arc;

use keyaki_store::{Direction, KeyRange, PageSource};

use super::buffer::{Buffer, Matches};
use super::outer::Lookup;
use super::plan::Plan;
use crate::query::Query;
use crate::{Join, Result};

/// Where tasks put their rows.
pub(crate) trait Sink: Sync {
    /// Adds rows to the buffer of a level, and works on the buffer if it is due.
    fn append<T>(&self, level: usize, add: impl FnOnce(&mut Buffer) -> Result<T>) -> Result<T>;
    fn query(&self) -> &Query;
    /// Resolves when the level may take more rows.
    fn room(&self, level: usize) -> impl Future<Output = Result<()>> + Send;
}

/// Reads a range of the driver into level 0.
pub(crate) async fn drive<P: PageSource, S: Sink>(plan: &Plan, source: &P, range: KeyRange, sink: &S) -> Result<()> {
    let level = &plan.levels[0];
    let mut cursor = level.view.cursor(source, range, Direction::Ascending);
    while let Some(chunk) = cursor.next().await? {
        sink.query().decoded(&chunk, &level.inner_columns);
        sink.append(0, |buffer| buffer.append_driver(level, &chunk))?;
        sink.room(0).await?;
    }
    Ok(())
}

/// Finds the matches of a lookup of step `step`, for level `step + 1`.
pub(crate) async fn look_up<P: PageSource, S: Sink>(
    plan: &Plan,
    step: usize,
    source: &P,
    lookup: &Lookup,
    sink: &S,
) -> Result<()> {
    let (to, level) = (step + 1, &plan.levels[step + 1]);
    let matches = level.must_track_matches().then(|| Matches::new(lookup));
    let mut cursor = level.view.cursor(source, KeyRange::prefix(lookup.key().to_vec()), Direction::Ascending);
    let mut found = false;
    while let Some(chunk) = cursor.next().await? {
        if chunk.rows() == 0 {
            continue;
        }
        found = true;
        sink.query().decoded(&chunk, &level.inner_columns);
        let mut position = 0;
        while position < lookup.rows().len() {
            position =
                sink.append(to, |buffer| buffer.append_matches(level, lookup, position, &chunk, matches.as_ref()))?;
            sink.room(to).await?;
        }
    }
    let unmatched = match matches {
        Some(matches) => matches.settle(),
        None if level.join == Join::LeftOuter && !found => Some(lookup.rows().to_vec()),
        None => None,
    };
    match unmatched {
        Some(rows) => append_lone(sink, to, &lookup.outer, &rows),
        None => Ok(()),
    }
}

/// Outer rows that go on to level `to` without a match.
pub(crate) fn append_lone<S: Sink>(sink: &S, to: usize, outer: &Arc<super::outer::Outer>, rows: &[u32]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sink.append(to, |buffer| {
        buffer.append_lone(outer, rows);
        Ok(())
    })
}

//! EXPLAIN ANALYZE of a published database: the requests to the object store while the statement ran.

use std::future::Future;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use futures::stream;
use keyaki_publish::ReadStats;

use super::{Outcome, SqlSession};
use crate::base::options::Prices;
use crate::{Error, Result};

/// The kind of the row with the requests of the session's database. That of an attached one has its name behind it.
const KIND: &str = "object_store";

/// The result of EXPLAIN ANALYZE, with a row for the requests of each published database, the session's own or an attached
/// one. Requests of other statements that run at the same time count, too: they share frames.
///
/// # Errors
/// Those of the statement.
pub(super) async fn measured(session: &SqlSession, run: impl Future<Output = Result<Outcome>>) -> Result<Outcome> {
    let own = session.engine.version.clone().map(|version| (KIND.to_owned(), version));
    let attached = session.attachments.lock().versions();
    let attached = attached.into_iter().map(|(name, version)| (format!("{KIND} {name}"), version));
    let versions = own.into_iter().chain(attached).map(|(kind, version)| (kind, version.stats(), version));
    let versions: Vec<_> = versions.collect();
    if versions.is_empty() {
        return run.await;
    }
    let Outcome::Rows(rows) = run.await? else {
        return Err(Error::Internal("EXPLAIN ANALYZE has returned no rows".into()));
    };
    let (schema, prices) = (rows.schema(), session.options().prices);
    let of_last = schema.clone();
    // They are made after the plan has been executed, which the first row waits for.
    let last = stream::iter(versions)
        .map(move |(kind, before, version)| Ok(row(&of_last, &kind, &shown(&before, &version.stats(), prices))?));
    Ok(Outcome::Rows(Box::pin(RecordBatchStreamAdapter::new(schema, rows.chain(last)))))
}

fn row(schema: &SchemaRef, kind: &str, text: &str) -> Result<RecordBatch> {
    let columns = [kind, text].into_iter().zip(schema.fields()).map(|(value, field)| {
        let value: ArrayRef = Arc::new(StringArray::from(vec![value]));
        Ok(arrow::compute::cast(&value, field.data_type())?)
    });
    Ok(RecordBatch::try_new(schema.clone(), columns.collect::<Result<Vec<_>>>()?)?)
}

fn shown(before: &ReadStats, after: &ReadStats, prices: Prices) -> String {
    let since = |of: &dyn Fn(&ReadStats) -> u64| of(after) - of(before);
    let (requests, bytes) = (since(&|stats| stats.requests.reads), since(&|stats| stats.requests.bytes_read));
    let mut text = format!("requests={requests}, ranges={}, bytes={bytes}", since(&|stats| stats.ranges));
    let others: [(&str, u64); 6] = [
        ("retries", since(&|stats| stats.requests.retries)),
        ("second_requests", since(&|stats| stats.requests.hedges)),
        ("damaged", since(&|stats| stats.requests.damaged)),
        ("frames_in_memory", since(&|stats| stats.memory_hits)),
        ("frames_on_disk", since(&|stats| stats.disk_hits)),
        ("frames_shared", since(&|stats| stats.shared)),
    ];
    for (name, number) in others.into_iter().filter(|(_, number)| *number > 0) {
        text.push_str(&format!(", {name}={number}"));
    }
    if prices != Prices::default() {
        let cost = requests as f64 / 1e3 * prices.request + bytes as f64 / 1e9 * prices.transfer;
        text.push_str(&format!(", cost={cost:.7}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use keyaki_publish::RequestStats;

    use super::*;

    #[test]
    fn differences_and_costs() {
        let stats = |reads, bytes_read, ranges, shared| ReadStats {
            requests: RequestStats { reads, bytes_read, ..RequestStats::default() },
            ranges,
            shared,
            ..ReadStats::default()
        };
        let (before, after) = (stats(10, 1_000, 8, 2), stats(2_010, 1_000_001_000, 1_900, 2));
        let text = "requests=2000, ranges=1892, bytes=1000000000";
        assert_eq!(shown(&before, &after, Prices::default()), text);
        let prices = Prices { request: 0.0004, transfer: 0.09 };
        assert_eq!(shown(&before, &after, prices), format!("{text}, cost=0.0908000"));
        assert!(shown(&before, &stats(10, 1_000, 8, 5), prices).ends_with(", frames_shared=3, cost=0.0000000"));
    }
}

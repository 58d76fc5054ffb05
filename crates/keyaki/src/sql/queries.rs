//! Records the statements of the long path for the system view `keyaki_queries`, and makes its rows.

use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::ast::Statement as Sql;
use futures::StreamExt;

use super::{Outcome, SqlSession, transaction};
use crate::base::interrupt::Execution;
use crate::engine::queries::{Query, Reads, RunningQuery, Status};
use crate::values::zone::STORED;
use crate::{Error, Result};

/// The text of a statement of another user.
const HIDDEN: &str = "<insufficient privilege>";

/// False for statements that control transactions and settings, which would displace others, and for EXECUTE, whose prepared
/// statement is recorded.
pub(super) fn is_recorded(statement: &Sql) -> bool {
    let of_session = matches!(
        statement,
        Sql::Set(_)
            | Sql::Reset(_)
            | Sql::ShowVariable { .. }
            | Sql::Prepare { .. }
            | Sql::Execute { .. }
            | Sql::Deallocate { .. }
    );
    !of_session && !transaction::is_control(statement)
}

/// Runs a statement and records it under its text until the end of its rows, unless the text is `None`.
///
/// # Errors
/// Errors of the statement.
pub(super) async fn recorded(
    session: &SqlSession,
    execution: &Execution<'_>,
    text: Option<&str>,
    work: impl Future<Output = Result<Outcome>>,
) -> Result<Outcome> {
    let Some(text) = text else { return work.await };
    let mut query = session.start(execution, text);
    match work.await {
        Ok(Outcome::Rows(rows)) => Ok(Outcome::Rows(watched(rows, query))),
        Ok(Outcome::Done { tag, rows }) => {
            if let Some(rows) = rows {
                query.add_rows(rows);
            }
            query.end();
            Ok(Outcome::Done { tag, rows })
        }
        Err(error) => {
            query.fail(error.sqlstate());
            Err(error)
        }
    }
}

/// Passes on the rows of a statement that has begun.
fn watched(rows: SendableRecordBatchStream, query: RunningQuery) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let rows = futures::stream::unfold((rows, query), |(mut rows, mut query)| async move {
        let next = rows.next().await;
        let next = next.map(|batch| batch.map_err(Error::from));
        match &next {
            Some(Ok(batch)) => query.add_rows(batch.num_rows() as u64),
            Some(Err(error)) => query.fail(error.sqlstate()),
            None => query.end(),
        }
        Some((next?.map_err(Into::into), (rows, query)))
    });
    // Callers may poll again after the end.
    Box::pin(RecordBatchStreamAdapter::new(schema, rows.fuse()))
}

/// The rows of `keyaki_queries`. `user`: the user whose statements are shown with their texts; `None` for all.
pub(super) fn view(queries: &[Arc<Query>], user: Option<Option<&str>>) -> datafusion::error::Result<RecordBatch> {
    let text = |of: &dyn Fn(&Query) -> Option<String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(queries.iter().map(|query| of(query))))
    };
    let number = |of: &dyn Fn(&Query) -> Option<u64>| -> datafusion::error::Result<ArrayRef> {
        Ok(cast(&UInt64Array::from_iter(queries.iter().map(|query| of(query))), &DataType::Int64)?)
    };
    let read = |of: fn(&Reads) -> u64| number(&|query| Some(of(&query.reads)));
    let started = queries.iter().map(|query| {
        let since = query.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_micros() as i64
    });
    let elapsed = queries.iter().map(|query| query.elapsed.as_micros() as f64 / 1e3);
    let status = |query: &Query| match query.status {
        Status::Running => "running",
        Status::Done => "done",
        Status::Stopped => "stopped",
        Status::Failed(_) => "failed",
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", number(&|query| Some(query.id))?),
        ("session", number(&|query| Some(query.session.unsigned_abs().into()))?),
        ("status", text(&|query| Some(status(query).into()))),
        ("started_at", Arc::new(TimestampMicrosecondArray::from_iter_values(started).with_timezone(STORED))),
        ("elapsed_ms", Arc::new(Float64Array::from_iter_values(elapsed))),
        ("rows", number(&|query| query.rows)?),
        ("pages_cached", read(|reads| reads.pages_cached)?),
        ("pages_shared", read(|reads| reads.pages_shared)?),
        ("pages_read", read(|reads| reads.pages_read)?),
        ("reads", read(|reads| reads.reads)?),
        ("bytes_read", read(|reads| reads.bytes)?),
        ("in_flight_max", read(|reads| reads.in_flight_max)?),
        (
            "sqlstate",
            text(&|query| match &query.status {
                Status::Failed(state) => Some(state.code().into()),
                _ => None,
            }),
        ),
        (
            "query",
            text(&|query| match user {
                Some(user) if query.user.as_deref() != user => Some(HIDDEN.into()),
                _ => Some(query.text.clone()),
            }),
        ),
    ];
    let field = |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), true);
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    Ok(RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, column)| column).collect())?)
}

//! Suggestions of indexes.

use std::pin::pin;

use futures::future::BoxFuture;

use super::Session;
use crate::Result;
use crate::engine::sessions::shown;
use crate::sql::suggestions::{self, IndexSuggestions};

impl Session {
    /// Suggests indexes that would lower the estimated cost of a query by at least a tenth, and by at least 0.1 ms. For UPDATE,
    /// DELETE, MERGE and INSERT of a query, they are those for the query that finds or computes the rows.
    ///
    /// Candidates follow from the conditions, joins, orders and groups of the query. Their costs are those of the planner, with
    /// the sizes that the indexes would have: nothing is created, and nothing is executed apart from reading a sample of each
    /// table. The additional cost of writes is not considered.
    ///
    /// # Errors
    /// `Syntax` if `sql` does not contain exactly one statement; `Unsupported` for other statements; `UndefinedParameter` for
    /// statements with parameters; errors of planning, for example `NotFound` and `UndefinedColumn`; errors of reading rows.
    pub async fn suggest_indexes(&self, sql: &str) -> Result<IndexSuggestions> {
        self.suggest_boxed(sql).await
    }

    fn suggest_boxed<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<IndexSuggestions>> {
        Box::pin(async move {
            let _active = self.begin(shown(sql))?;
            self.run(&self.execution(), pin!(suggestions::suggest(&self.sql, sql))).await
        })
    }
}

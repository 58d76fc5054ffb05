//! Prepared statements of the async API.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use arrow::datatypes::{DataType, SchemaRef};
use futures::future::BoxFuture;

use super::Session;
use crate::base::interrupt::Execution;
use crate::base::value::{Value, ValueRef};
use crate::sql::named::{self, Named};
use crate::sql::prepared::{Description, Executed, Prepared as Statement};
use crate::sql::{Outcome, located, split};
use crate::{JsonType, Result};

/// A statement that was parsed and described once ([`Session::prepare`]). Changes of the catalog do not invalidate it: it
/// is described again when its tables have changed.
#[derive(Debug, Clone)]
pub struct Prepared {
    statement: Arc<Statement>,
    description: Arc<Description>,
}

impl Prepared {
    /// `declared`: the OIDs of the types of the leading parameters, 0 for unknown ones.
    pub(super) async fn new(session: &Session, sql: &str, declared: &[u32]) -> Result<Prepared> {
        let text = split::single(sql)?;
        let explained = |error| located::explained(&session.sql, &text, error);
        let statement = Arc::new(Statement::parse(&text).map_err(explained)?);
        let description = statement.describe(&session.sql).await.map_err(explained)?;
        if let Some(declared) = statement.declared(&description, declared)
            && let Ok(description) = declared.describe(&session.sql).await
        {
            return Ok(Prepared { statement: Arc::new(declared), description });
        }
        Ok(Prepared { statement, description })
    }

    /// True if the statement, prepared again in `session`, would have the same parameters and columns. False does not mean that
    /// they differ.
    ///
    /// # Errors
    /// Errors of planning the statement.
    pub async fn is_current(&self, session: &Session) -> Result<bool> {
        session.refresh()?;
        let described = self.statement.describe(&session.sql).await;
        Ok(Arc::ptr_eq(&described?, &self.description))
    }

    /// The text of the statement.
    pub fn sql(&self) -> &str {
        &self.statement.text
    }

    /// The types of the parameters, as of the preparation; `None` for parameters that take values of any type.
    pub fn parameters(&self) -> &[Option<DataType>] {
        &self.description.parameters
    }

    /// For each parameter, the type of documents that it has by a cast, or as the value of a column.
    pub fn document_parameters(&self) -> &[Option<JsonType>] {
        &self.description.documents
    }

    /// The columns of the result, as of the preparation; `None` for statements that return no rows.
    pub fn columns(&self) -> Option<&SchemaRef> {
        self.description.columns.as_ref()
    }

    /// True for queries, which change nothing.
    pub(super) fn is_query(&self) -> bool {
        self.statement.is_query()
    }

    /// Executes the statement with a value for each parameter.
    ///
    /// # Errors
    /// `ParameterCount`; `Context` with the parameter for a value that cannot be converted to its type; errors of the
    /// statement.
    pub async fn query(&self, session: &Session, values: &[Value]) -> Result<Outcome> {
        self.query_boxed(session, values).await
    }

    fn query_boxed<'a>(&'a self, session: &'a Session, values: &'a [Value]) -> BoxFuture<'a, Result<Outcome>> {
        Box::pin(async move {
            let values: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
            let _active = session.begin(self.statement.shown.clone())?;
            let execution = session.execution();
            session.run(&execution, pin!(self.execute(session, &execution, &values))).await?.into_outcome()
        })
    }

    /// The text in `pg_stat_activity`.
    pub(super) fn shown(&self) -> &Arc<str> {
        &self.statement.shown
    }

    pub(super) async fn execute(
        &self,
        session: &Session,
        execution: &Execution<'_>,
        values: &[ValueRef<'_>],
    ) -> Result<Executed> {
        self.statement.execute(&session.sql, execution, values).await
    }
}

impl Session {
    /// Gives a name to a statement that the client of a server has prepared. EXECUTE, DEALLOCATE and
    /// `pg_prepared_statements` see it as those of PREPARE. `types`: the OIDs of the types of its parameters. `statement`: `None`
    /// for a statement that only the server can execute, such as COPY.
    ///
    /// # Errors
    /// `AlreadyExists`.
    pub fn keep_prepared(&self, name: &str, text: &str, types: Vec<u32>, statement: Option<&Prepared>) -> Result<()> {
        let statement = statement.map(|prepared| prepared.statement.clone());
        let named = Named { text: text.into(), statement, types, from_sql: false, prepared_at: SystemTime::now() };
        named::add(&self.sql, name, named)
    }

    /// The statement with a name, described under the newest definitions; `None` if there is none, and for statements that only
    /// the server can execute.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn kept_prepared(&self, name: &str) -> Result<Option<Prepared>> {
        let found = self.sql.named.lock().get(name).and_then(|named| named.statement.clone());
        let Some(statement) = found else { return Ok(None) };
        let description = self.run(&self.execution(), Box::pin(statement.describe(&self.sql))).await?;
        Ok(Some(Prepared { statement, description }))
    }

    /// True if there is a statement with a name.
    pub fn has_prepared(&self, name: &str) -> bool {
        self.sql.named.lock().contains_key(name)
    }

    /// Removes the statement with a name, if there is one.
    pub fn forget_prepared(&self, name: &str) {
        self.sql.named.lock().remove(name);
    }

    /// Number of times that statements of SQL have removed prepared statements.
    pub fn prepared_removals(&self) -> u64 {
        self.sql.named_removals.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Database;
    use crate::{Options, Result};

    #[tokio::test]
    async fn queries_of_tables_have_templates() -> Result<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::open(dir.path().join("db"), Options::default())?;
        let session = database.session();
        let tables = "CREATE TABLE t (a BIGINT PRIMARY KEY, b TEXT); CREATE VIEW v AS SELECT a, b || '!' AS c FROM t;
            CREATE TABLE h (x INTEGER); CREATE SEQUENCE s; INSERT INTO t VALUES (1, 'one'), (2, 'two')";
        session.execute(tables).await?;
        for (sql, has_template) in [
            ("SELECT b, count(*) FROM t WHERE a > $1 GROUP BY b", true),
            ("SELECT c FROM v WHERE c <> $1 ORDER BY c DESC", true),
            ("SELECT a FROM t WHERE b IN (SELECT 'two' FROM h RIGHT JOIN v ON x = a) AND a < $1", true),
            ("WITH q AS (SELECT max(a) AS m FROM t) SELECT m + $1, now() FROM q", true),
            ("SELECT $1 + 1", true),
            // The short path.
            ("SELECT b FROM t WHERE a = $1", false),
            // Tables, functions and files of one statement.
            ("SELECT a, nextval('s') FROM t GROUP BY a HAVING a > $1", false),
            ("SELECT a, random() FROM t GROUP BY a", false),
            ("SELECT t.a FROM t, keyaki_indexes AS i WHERE i.table_name <> b", false),
            ("SELECT a FROM t JOIN generate_series(1, 3) AS g (i) ON i = a", false),
            ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r", false),
            ("INSERT INTO h SELECT a FROM t", false),
        ] {
            let prepared = session.prepare(sql).await?;
            assert_eq!(prepared.description.has_template(), has_template, "{sql}");
        }
        Ok(())
    }

    /// A template keeps no rows, and follows the catalog.
    #[tokio::test]
    async fn templates_read_the_newest_rows() -> Result<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::open(dir.path().join("db"), Options::default())?;
        let [session, other] = [database.session(), database.session()];
        session
            .execute("CREATE TABLE t (a BIGINT PRIMARY KEY, b INTEGER); INSERT INTO t VALUES (1, 1), (2, 1)")
            .await?;
        let prepared = session.prepare("SELECT b, count(*), max(a) FROM t WHERE a >= $1 GROUP BY b").await?;
        assert!(prepared.description.has_template());
        let rows = async |session: &Session, least: i64| {
            let batches = prepared.query(session, &[Value::Integer(least)]).await?.collect().await?;
            let shown = arrow::util::pretty::pretty_format_batches(&batches)?.to_string();
            Result::Ok(shown.lines().nth(3).unwrap_or_default().replace(' ', ""))
        };
        assert_eq!(rows(&session, 0).await?, "|1|2|2|");
        session.execute("INSERT INTO t VALUES (3, 1)").await?;
        assert_eq!(rows(&session, 2).await?, "|1|2|3|");
        other.execute("BEGIN; INSERT INTO t VALUES (4, 1)").await?;
        assert_eq!(rows(&other, 2).await?, "|1|3|4|");
        assert_eq!(rows(&session, 2).await?, "|1|2|3|");
        other.execute("ROLLBACK; ALTER TABLE t ALTER COLUMN b TYPE TEXT; CREATE INDEX t_b ON t (b)").await?;
        assert_eq!(rows(&session, 1).await?, "|1|3|3|");
        session.execute("BEGIN").await?;
        session.execute("SELECT * FROM missing").await.map(drop).expect_err("an error");
        let error = rows(&session, 1).await.expect_err("the transaction has failed");
        assert_eq!(error.sqlstate().code(), "25P02");
        session.execute("ROLLBACK; DROP TABLE t").await?;
        assert_eq!(rows(&session, 1).await.expect_err("no table").sqlstate().code(), "42P01");
        Ok(())
    }
}

//! Statements: parsing, dispatch and execution.
//!
//! [`split`] tokenises a script once and splits it into statements. Statements that sqlparser lacks or parses in
//! another form (CHECKPOINT, DROP CACHES, ANALYZE, COPY, WARM, PIN, UNPIN) are recognised by their first words and
//! parsed here. sqlparser parses all others. `dispatch` executes DDL, DML and settings in this folder; DataFusion plans
//! queries, SHOW TABLES and EXPLAIN.
//!
//! *Invariant.* Nothing is ignored. DataFusion would execute CREATE TABLE in memory, write files, and drop clauses that
//! it does not implement. Such statements and clauses are `Unsupported` errors instead; `strict` checks the clauses of
//! queries.

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::sql::sqlparser::ast::{ObjectType, Query, Statement as Sql};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use futures::StreamExt;

use crate::base::syntax;
use crate::{Error, Result};

mod analyze;
mod cache;
pub(crate) mod copy;
mod ddl;
pub(crate) mod dml;
mod index;
pub(crate) mod info;
mod names;
mod outcome;
mod session;
mod settings;
pub(crate) mod show;
pub(crate) mod split;
mod state;
mod strict;
mod system;
mod vast;
mod views;

use split::Statement;
use state::StatementState;

pub use info::{IndexInfo, TableInfo};
pub(crate) use names::relation_name;
pub use outcome::Outcome;
pub(crate) use session::SqlSession;

/// A parsed statement.
enum Parsed {
    Checkpoint,
    DropCaches,
    Copy(copy::Copy),
    /// The table to analyze; `None` for all tables.
    Analyze(Option<String>),
    Cache(cache::CacheStatement),
    Sql(Box<Sql>),
}

/// Parses and executes one statement.
pub(crate) async fn run(session: &SqlSession, statement: &Statement<'_>) -> Result<Outcome> {
    match parse(statement)? {
        Parsed::Checkpoint => checkpoint(session).await,
        Parsed::DropCaches => drop_caches(session),
        Parsed::Copy(copy) => copy::run(session, copy).await,
        Parsed::Analyze(table) => analyze::run(session, table.as_deref()).await,
        Parsed::Cache(statement) => cache::run(session, statement).await,
        Parsed::Sql(sql) => dispatch(session, *sql).await,
    }
}

fn parse(statement: &Statement<'_>) -> Result<Parsed> {
    let words = statement.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut parser = statement.parser();
    let parsed = match words.as_slice() {
        ["CHECKPOINT"] if statement.has_tokens(1) => return Ok(Parsed::Checkpoint),
        ["DROP", "CACHES"] if statement.has_tokens(2) => return Ok(Parsed::DropCaches),
        ["ANALYZE"] if statement.has_tokens(1) => return Ok(Parsed::Analyze(None)),
        ["COPY", ..] => Parsed::Copy(copy::parse(&mut parser)?),
        ["WARM", ..] => Parsed::Cache(cache::parse(cache::Action::Warm, &mut parser)?),
        ["PIN", ..] => Parsed::Cache(cache::parse(cache::Action::Pin, &mut parser)?),
        ["UNPIN", ..] => Parsed::Cache(cache::parse(cache::Action::Unpin, &mut parser)?),
        ["ANALYZE", ..] => Parsed::Analyze(Some(parse_analyze(&mut parser)?)),
        _ => Parsed::Sql(Box::new(parser.parse_statement().map_err(syntax)?)),
    };
    expect_end(&mut parser)?;
    Ok(parsed)
}

fn parse_analyze(parser: &mut Parser<'_>) -> Result<String> {
    parser.expect_keyword(Keyword::ANALYZE).map_err(syntax)?;
    let _ = parser.parse_keyword(Keyword::TABLE);
    relation_name(&parser.parse_object_name(false).map_err(syntax)?)
}

/// Checks that the statement has no further tokens.
///
/// # Errors
/// `Syntax` with the first unexpected token.
fn expect_end(parser: &mut Parser<'_>) -> Result<()> {
    let next = parser.peek_token();
    match next.token {
        Token::EOF => Ok(()),
        _ => {
            Err(parser.expected::<()>("end of statement", next).map_or_else(syntax, |()| Error::syntax("syntax error")))
        }
    }
}

async fn dispatch(session: &SqlSession, statement: Sql) -> Result<Outcome> {
    let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
    match statement {
        Sql::Query(_) | Sql::ShowTables { .. } | Sql::ShowColumns { .. } | Sql::ShowFunctions { .. } => {
            query(session, statement).await
        }
        Sql::ExplainTable { .. } | Sql::ShowCreate { .. } => query(session, statement).await,
        Sql::Explain { statement: ref inner, ref options, query_plan, estimate, .. } => {
            if options.is_some() || query_plan || estimate {
                return unsupported("options of EXPLAIN other than ANALYZE, VERBOSE and FORMAT");
            }
            match **inner {
                Sql::Query(_) => query(session, statement).await,
                _ => unsupported("EXPLAIN of statements other than queries"),
            }
        }
        Sql::Insert(insert) => dml::insert::run(session, insert).await,
        Sql::Update(update) => dml::update::run(session, update).await,
        Sql::Delete(delete) => dml::delete::run(session, delete).await,
        Sql::CreateTable(create) => ddl::create_table(session, create).await,
        Sql::CreateIndex(create) => index::create(session, create).await,
        Sql::CreateView(create) => views::create(session, create).await,
        Sql::Drop { object_type, if_exists, names, cascade, restrict: _, purge, temporary, table } => {
            if cascade || purge || temporary || table.is_some() {
                return unsupported("CASCADE, PURGE and TEMPORARY in DROP");
            }
            match object_type {
                ObjectType::Table => ddl::drop_table(session, &names, if_exists).await,
                ObjectType::Index => ddl::drop_index(session, &names, if_exists).await,
                ObjectType::View => views::drop(session, &names, if_exists).await,
                other => unsupported(&format!("DROP {other}")),
            }
        }
        Sql::Set(set) => settings::set(session, set),
        Sql::Reset(reset) => settings::reset(session, &reset),
        Sql::ShowVariable { variable } => settings::show(session, &variable),
        Sql::StartTransaction { .. } | Sql::Commit { .. } | Sql::Rollback { .. } | Sql::Savepoint { .. } => {
            unsupported("transactions of several statements (each statement is a transaction)")
        }
        Sql::Truncate(_) => unsupported("TRUNCATE (use DELETE)"),
        Sql::Merge(_) => unsupported("MERGE"),
        Sql::AlterTable(_) => unsupported("ALTER TABLE"),
        Sql::Vacuum(_) => unsupported("VACUUM (free space is reused automatically)"),
        other => unsupported(&first_words(&other)),
    }
}

/// The first three words of a statement, for error messages.
fn first_words(statement: &Sql) -> String {
    statement.to_string().split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

async fn query(session: &SqlSession, statement: Sql) -> Result<Outcome> {
    let state = StatementState::reading(session)?;
    let plan = state.plan(statement).await?;
    Ok(Outcome::Rows(state.run(&plan).await?))
}

async fn checkpoint(session: &SqlSession) -> Result<Outcome> {
    let store = session.engine.store.clone();
    let task = tokio::task::spawn_blocking(move || store.checkpoint());
    task.await.map_err(|error| Error::task(&error))??;
    Ok(Outcome::done("CHECKPOINT"))
}

fn drop_caches(session: &SqlSession) -> Result<Outcome> {
    session.engine.store.drop_caches();
    Ok(Outcome::done("DROP CACHES"))
}

/// Reads and discards all rows of an outcome. The result has the same schema and no rows.
pub(crate) async fn drain(outcome: Outcome) -> Result<Outcome> {
    let Outcome::Rows(mut rows) = outcome else { return Ok(outcome) };
    while let Some(batch) = rows.next().await {
        batch?;
    }
    let rows: SendableRecordBatchStream = Box::pin(EmptyRecordBatchStream::new(rows.schema()));
    Ok(Outcome::Rows(rows))
}

/// Parses a single query: the stored definition of a view.
pub(crate) fn parse_query(sql: &str) -> Result<Box<Query>> {
    let mut parser = split::single(sql)?.parser();
    let query = parser.parse_query().map_err(syntax)?;
    expect_end(&mut parser)?;
    Ok(query)
}

/// Parses a single expression: the stored default of a column.
pub(crate) fn parse_expr(sql: &str) -> Result<datafusion::sql::sqlparser::ast::Expr> {
    let mut parser = split::single(sql)?.parser();
    let expr = parser.parse_expr().map_err(syntax)?;
    expect_end(&mut parser)?;
    Ok(expr)
}

/// The columns of a view as (name, SQL type). A type without an SQL equivalent is shown as Arrow's type.
pub(crate) async fn view_columns(session: &SqlSession, name: &str) -> Result<Vec<(String, String)>> {
    let state = StatementState::reading(session)?;
    let plan = state.plan_query(*parse_query(&format!("SELECT * FROM {}", names::quoted(name)))?).await?;
    let columns = plan.schema().fields().iter().map(|field| {
        let ty = crate::catalog::types::from_arrow(field.data_type());
        (
            field.name().clone(),
            ty.map_or_else(|_| field.data_type().to_string(), crate::catalog::types::column_type_name),
        )
    });
    Ok(columns.collect())
}

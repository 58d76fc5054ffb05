//! Statements: parsing, dispatch and execution.
//!
//! [`split`] tokenises a script once and splits it into statements. Statements that sqlparser lacks or parses in
//! another form (CHECKPOINT, DROP CACHES, ANALYZE, BACKUP, PUBLISH, EXPORT, IMPORT, CHECK, VACUUM, COPY, WARM, PIN,
//! UNPIN, BEGIN IMMEDIATE, CREATE SEQUENCE, some forms of ALTER) are recognised by their first words and parsed here. sqlparser
//! parses all others. `dispatch` executes DDL, DML and settings in this folder; DataFusion plans queries, SHOW TABLES and
//! EXPLAIN. Statements of a few rows by key take the [`short`] path instead: from [`plan_cache`], or as [`prepared`]
//! statements with [`parameters`].
//!
//! *Invariant.* Nothing is ignored. DataFusion would execute CREATE TABLE in memory, write files, and drop clauses that
//! it does not implement. Such statements and clauses are `Unsupported` errors instead; `strict` checks the clauses of
//! queries.

use std::sync::Arc;
use std::time::SystemTime;

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::sql::sqlparser::ast::{
    DescribeAlias, Expr, Ident, ObjectName, ObjectNamePart, ObjectType, Query, SelectItem, SetExpr, Statement as Sql,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use futures::StreamExt;

use crate::base::interrupt::{Execution, Stage};
use crate::base::syntax;
use crate::base::value::value_at;
use crate::catalog::{RelationName, SqlType};
use crate::{Error, ObjectKind, PlanCacheMode, Result};

pub(crate) mod access;
pub(crate) mod advisory;
mod alter;
mod analyze;
pub(crate) mod attached;
mod backup;
mod cache;
mod calls;
mod casts;
pub(crate) mod channels;
mod check;
mod client_settings;
pub(crate) mod cluster;
mod columns;
mod concurrent_index;
mod constants;
pub(crate) mod copy;
pub(crate) mod cursors;
mod ddl;
mod declared;
mod describe;
mod discard;
pub(crate) mod dml;
mod documents;
mod export;
pub(crate) mod expressions;
mod file_access;
mod file_tables;
mod files;
mod fragments;
mod grouping_sets;
mod index;
pub(crate) mod info;
mod information_schema;
mod interval_literals;
mod json_calls;
mod literal_row;
pub(crate) mod local;
pub(crate) mod located;
mod locking;
pub(crate) mod named;
mod names;
mod normalize;
pub(crate) mod notices;
pub(crate) mod on_commit;
mod ordered;
mod outcome;
mod parameters;
mod patterns;
mod pg_catalog;
mod plan_cache;
mod precedence;
pub(crate) mod prepared;
mod program_tables;
mod publish;
mod qualify;
mod quantified;
mod queries;
mod recursion;
mod renames;
pub(crate) mod repair;
mod repeat;
mod requests;
mod result_names;
mod roles;
mod row_values;
mod schemas;
mod sequence_options;
pub(crate) mod sequences;
mod series;
mod session;
mod set_config;
mod settings;
mod shadowed;
mod short;
pub(crate) mod show;
mod skipped;
pub(crate) mod split;
mod state;
mod storage;
mod strict;
pub(crate) mod suggestions;
mod symmetric;
mod synonyms;
mod system;
mod table_functions;
mod template;
mod time_calls;
mod tokens;
mod transaction;
mod untyped;
mod using;
mod vacuum;
mod vast;
mod views;
mod visit;
mod windows;
mod with_queries;
mod zones;

use named::Named;
use prepared::{Executed, Prepared};
use split::Statement;
use state::StatementState;

pub use client_settings::POSTGRESQL_VERSION;
pub use copy::program::{CopyFormat, ProgramCopy};
pub use file_access::FileAccess;
pub(crate) use fragments::{parse_expr, parse_idents, parse_name, parse_query};
pub use info::{IndexInfo, SequenceInfo, TableInfo};
pub use outcome::Outcome;
pub(crate) use plan_cache::PlanCache;
pub use program_tables::ProgramTable;
pub(crate) use program_tables::ProgramTables;
pub use result_names::ResultNames;
pub(crate) use session::{SqlSession, login};

/// A parsed statement.
enum Parsed {
    Checkpoint,
    DropCaches,
    Copy(copy::Copy),
    /// The table to analyze; `None` for all tables.
    Analyze(Option<ObjectName>),
    Cache(cache::CacheStatement),
    Check(check::Check),
    Vacuum(vacuum::Vacuum),
    Backup(backup::Backup),
    Publish(publish::Publish),
    Attach(attached::AttachStatement),
    Export(export::Export),
    Import(export::import::Import),
    Alter(Box<alter::Alter>),
    CreateSequence(Box<sequences::CreateSequence>),
    Role(Box<roles::RoleStatement>),
    Constraints(transaction::SetConstraints),
    Cursor(cursors::CursorStatement),
    Sql(Box<Sql>),
}

impl Parsed {
    /// The statement, if only superusers may execute it.
    fn of_superusers(&self) -> Option<&'static str> {
        Some(match self {
            Parsed::Checkpoint => "execute CHECKPOINT",
            Parsed::DropCaches => "execute DROP CACHES",
            Parsed::Cache(_) => "execute WARM, PIN and UNPIN",
            Parsed::Check(_) => "execute CHECK",
            Parsed::Backup(_) => "execute BACKUP",
            Parsed::Publish(_) => "execute PUBLISH",
            Parsed::Attach(_) => "execute ATTACH and DETACH",
            Parsed::Export(_) => "execute EXPORT",
            Parsed::Import(_) => "execute IMPORT",
            // These check the relations that they use.
            Parsed::Copy(_)
            | Parsed::Analyze(_)
            | Parsed::Vacuum(_)
            | Parsed::Alter(_)
            | Parsed::CreateSequence(_)
            | Parsed::Role(_)
            | Parsed::Constraints(_)
            | Parsed::Cursor(_)
            | Parsed::Sql(_) => return None,
        })
    }
}

/// Executes a text of one statement from the plan cache; `None` if it is not there.
pub(crate) async fn run_cached(session: &SqlSession, execution: &Execution<'_>, sql: &str) -> Result<Option<Executed>> {
    if session.transaction.check().is_err() {
        // The long path reports it, unless the statement ends the transaction.
        return Ok(None);
    }
    match session.plan_cache() {
        PlanCacheMode::Off => Ok(None),
        mode => session.plans.execute(session, execution, sql, mode).await,
    }
}

/// Parses and executes one statement.
pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: &Statement<'_>) -> Result<Outcome> {
    let parsed = parse(statement)?;
    let is_recorded =
        !matches!(&parsed, Parsed::Sql(sql) if !queries::is_recorded(sql)) && !roles::has_secret(statement);
    let work = Box::pin(run_parsed(session, execution, parsed));
    queries::recorded(session, execution, is_recorded.then_some(statement.text), work).await
}

async fn run_parsed(session: &SqlSession, execution: &Execution<'_>, parsed: Parsed) -> Result<Outcome> {
    if !matches!(parsed, Parsed::Sql(_)) {
        session.transaction.check()?;
    }
    if let Some(what) = parsed.of_superusers() {
        access::superuser(session, what)?;
    }
    if !matches!(parsed, Parsed::Sql(_)) {
        session.transaction.acknowledged(&session.engine).await?;
    }
    match parsed {
        Parsed::Checkpoint => checkpoint(session, execution).await,
        Parsed::DropCaches => drop_caches(session),
        Parsed::Copy(copy) => copy::run(session, execution, copy).await,
        Parsed::Analyze(table) => analyze::run(session, execution, table.as_ref()).await,
        Parsed::Cache(statement) => cache::run(session, execution, statement).await,
        Parsed::Backup(backup) => Box::pin(backup::run(session, execution, backup)).await,
        Parsed::Publish(publish) => Box::pin(publish::run(session, execution, publish)).await,
        Parsed::Attach(statement) => Box::pin(attached::run(session, execution, statement)).await,
        Parsed::Export(export) => Box::pin(export::run(session, execution, export)).await,
        Parsed::Import(import) => Box::pin(export::import::run(session, execution, import)).await,
        Parsed::Check(check) => Box::pin(check::run(session, execution, check)).await,
        Parsed::Vacuum(vacuum) => Box::pin(vacuum::run(session, execution, vacuum)).await,
        Parsed::Alter(alter) => {
            Box::pin(before_change_of_definitions(session, execution)).await?;
            Box::pin(alter::run(session, execution, *alter)).await
        }
        Parsed::Role(role) => Box::pin(roles::run(session, execution, *role)).await,
        Parsed::Constraints(set) => Box::pin(transaction::set_constraints(session, execution, set)).await,
        Parsed::Cursor(statement) => Box::pin(cursors::run(session, statement)).await,
        Parsed::CreateSequence(create) => sequences::create(session, execution, *create).await,
        Parsed::Sql(sql) if matches!(*sql, Sql::Prepare { .. }) => dispatch(session, execution, *sql).await,
        Parsed::Sql(sql) => match parameters::count(&sql)? {
            0 => dispatch(session, execution, *sql).await,
            _ => Err(Error::UndefinedParameter { name: "$1".into() }),
        },
    }
}

fn parse(statement: &Statement<'_>) -> Result<Parsed> {
    match parse_any(statement) {
        Err(Error::Syntax { .. }) if roles::has_secret(statement) => Err(Error::syntax(
            "syntax error in a statement with PASSWORD (the password is a text in single quotes, or NULL)",
        )),
        parsed => parsed,
    }
}

fn parse_any(statement: &Statement<'_>) -> Result<Parsed> {
    let words = statement.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["ALTER", ..] = words.as_slice()
        && let Some(alter) = alter::parse(statement)?
    {
        return Ok(Parsed::Alter(Box::new(alter)));
    }
    if let Some(role) = roles::parse(statement)? {
        return Ok(Parsed::Role(Box::new(role)));
    }
    let mut parser = statement.parser();
    let parsed = match words.as_slice() {
        ["CHECKPOINT"] if statement.has_tokens(1) => return Ok(Parsed::Checkpoint),
        ["DROP", "CACHES"] if statement.has_tokens(2) => return Ok(Parsed::DropCaches),
        ["ANALYZE"] if statement.has_tokens(1) => return Ok(Parsed::Analyze(None)),
        ["RESET", "TIME", "ZONE"] if statement.has_tokens(3) => return parse(&split::single("RESET timezone")?),
        ["COPY", ..] => Parsed::Copy(copy::parse(&mut parser)?),
        ["BACKUP", ..] => Parsed::Backup(backup::parse(&mut parser)?),
        ["PUBLISH", "DATABASE", ..] => Parsed::Publish(publish::parse(&mut parser)?),
        ["ATTACH" | "DETACH", ..] => Parsed::Attach(attached::parse(&mut parser)?),
        ["EXPORT", ..] => Parsed::Export(export::parse(&mut parser)?),
        ["IMPORT", ..] => Parsed::Import(export::import::parse(&mut parser)?),
        ["CHECK", ..] => Parsed::Check(check::parse(&mut parser)?),
        ["VACUUM", ..] => Parsed::Vacuum(vacuum::parse(&mut parser)?),
        ["SET", "CONSTRAINTS", ..] => Parsed::Constraints(transaction::parse_constraints(&mut parser)?),
        ["FETCH" | "MOVE" | "CLOSE", ..] => Parsed::Cursor(cursors::parse(&mut parser)?),
        ["WARM", ..] => Parsed::Cache(cache::parse(cache::Action::Warm, &mut parser)?),
        ["PIN", ..] => Parsed::Cache(cache::parse(cache::Action::Pin, &mut parser)?),
        ["UNPIN", ..] => Parsed::Cache(cache::parse(cache::Action::Unpin, &mut parser)?),
        ["BEGIN", "DEFERRED" | "IMMEDIATE" | "EXCLUSIVE", ..] => {
            Parsed::Sql(Box::new(transaction::parse(&mut parser)?))
        }
        ["CREATE", "SEQUENCE", ..] | ["CREATE", "TEMP" | "TEMPORARY", "SEQUENCE", ..] => {
            Parsed::CreateSequence(Box::new(sequence_options::parse_create(&mut parser)?))
        }
        ["ANALYZE", ..] => Parsed::Analyze(Some(parse_analyze(&mut parser)?)),
        _ => {
            let tokens = match words.as_slice() {
                ["CREATE", ..] if words.contains(&"TABLE") => Some(skipped::in_create(&statement.tokens)?),
                ["ALTER", "TABLE", ..] => Some(skipped::in_alter(&statement.tokens)?),
                ["DROP", "INDEX", "CONCURRENTLY", ..] => Some(skipped::in_drop_index(&statement.tokens)),
                ["REPLACE", "INTO", ..] => Some(skipped::in_replace(&statement.tokens)),
                ["MERGE", ..] => skipped::in_merge(&statement.tokens),
                ["INSERT" | "EXPLAIN" | "PREPARE" | "WITH", ..] => {
                    skipped::in_insert(&statement.tokens)?.or_else(|| skipped::in_merge(&statement.tokens))
                }
                _ => None,
            };
            let locking = locking::in_clauses(tokens.as_deref().unwrap_or(&statement.tokens));
            if let Some(tokens) = locking.or(tokens) {
                parser = split::parser(tokens);
            }
            let mut sql = parser.parse_statement().map_err(syntax)?;
            precedence::correct(&mut sql);
            symmetric::expand(&mut sql);
            with_queries::before_changes(&mut sql)?;
            Parsed::Sql(Box::new(sql))
        }
    };
    expect_end(&mut parser)?;
    Ok(parsed)
}

/// True for the first words of statements that define roles or change that of the session.
fn words_of_role(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().take(3).map(String::as_str).collect();
    matches!(
        words.as_slice(),
        ["CREATE" | "ALTER" | "DROP", "ROLE" | "USER" | "GROUP", ..]
            | ["SET" | "RESET", "ROLE", ..]
            | ["SET" | "RESET", "SESSION", "AUTHORIZATION" | "ROLE", ..]
            | ["SET", "SESSION", "SESSION", ..]
            | ["GRANT" | "REVOKE", ..]
            | ["ALTER", "DEFAULT", "PRIVILEGES", ..]
            | ["DROP" | "REASSIGN", "OWNED", ..]
    )
}

fn parse_analyze(parser: &mut Parser<'_>) -> Result<ObjectName> {
    parser.expect_keyword(Keyword::ANALYZE).map_err(syntax)?;
    let _ = parser.parse_keyword(Keyword::TABLE);
    parser.parse_object_name(false).map_err(syntax)
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

/// Makes the deferred checks of the open transaction, before a statement that may change or remove foreign keys: the checks
/// know these by their names.
///
/// # Errors
/// As [`dml::foreign_keys::verify_deferred`].
async fn before_change_of_definitions(session: &SqlSession, execution: &Execution<'_>) -> Result<()> {
    if session.transaction.is_open() {
        dml::foreign_keys::verify_deferred(session, execution, None).await?;
        session.deferred.verified();
    }
    Ok(())
}

/// True for statements that may change or remove foreign keys.
fn changes_foreign_keys(statement: &Sql) -> bool {
    match statement {
        Sql::AlterTable(_) | Sql::AlterSchema(_) | Sql::AlterIndex { .. } | Sql::Drop { .. } | Sql::Truncate(_) => true,
        Sql::CreateTable(create) => create.or_replace,
        _ => false,
    }
}

async fn dispatch(session: &SqlSession, execution: &Execution<'_>, statement: Sql) -> Result<Outcome> {
    if !transaction::is_allowed_after_failure(&statement) {
        session.transaction.check()?;
    }
    if changes_foreign_keys(&statement) {
        Box::pin(before_change_of_definitions(session, execution)).await?;
    }
    let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
    match statement {
        Sql::ShowTables { terse: _, history: false, extended: false, full: false, external: false, show_options } => {
            query(session, execution, show::tables(session, &show_options)?).await
        }
        Sql::Query(_) | Sql::ShowColumns { .. } | Sql::ShowFunctions { .. } => {
            query(session, execution, statement).await
        }
        Sql::ExplainTable { describe_alias: _, hive_format: None, has_table_keyword: _, table_name } => {
            describe::relation(session, &table_name).await
        }
        Sql::ShowCreate { obj_type, obj_name } => show::show_create(session, &obj_type, &obj_name),
        Sql::Explain { statement: ref inner, ref options, query_plan, estimate, describe_alias, analyze, .. } => {
            if options.is_some() || query_plan || estimate {
                return unsupported("options of EXPLAIN other than ANALYZE, VERBOSE and FORMAT");
            }
            match **inner {
                Sql::Query(ref described) if describe_alias != DescribeAlias::Explain => {
                    describe::query(session, Query::clone(described)).await
                }
                Sql::Query(_) if analyze && locking::is_locking(&statement) => {
                    unsupported("EXPLAIN ANALYZE of queries with FOR UPDATE and FOR SHARE")
                }
                Sql::Query(_) if analyze => {
                    requests::measured(session, query(session, execution, locking::without(&statement)?)).await
                }
                Sql::Query(_) => query(session, execution, locking::without(&statement)?).await,
                _ if describe_alias != DescribeAlias::Explain => {
                    unsupported("DESCRIBE of statements other than queries (use EXPLAIN)")
                }
                Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) | Sql::Merge(_) => {
                    dml::explain::run(session, statement).await
                }
                _ => unsupported("EXPLAIN of statements other than queries and changes of rows"),
            }
        }
        Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) | Sql::Merge(_) => change(session, execution, statement).await,
        Sql::CreateTable(create) => ddl::create_table(session, execution, create).await,
        Sql::AlterTable(alter) => Box::pin(ddl::alter_table(session, execution, alter)).await,
        Sql::AlterIndex { name, operation } => ddl::alter_index(session, execution, &name, &operation).await,
        Sql::Comment { object_type, object_name, comment, if_exists: false } => {
            ddl::comment(session, execution, &object_type, &object_name, comment).await
        }
        Sql::Truncate(truncate) => ddl::truncate(session, execution, truncate).await,
        Sql::CreateIndex(create) => index::create(session, execution, create).await,
        Sql::CreateSchema {
            schema_name,
            if_not_exists,
            with: None,
            options: None,
            default_collate_spec: None,
            clone: None,
        } => schemas::create(session, execution, &schema_name, if_not_exists).await,
        Sql::AlterSchema(alter) => schemas::alter(session, execution, &alter).await,
        Sql::CreateView(create) => views::create(session, execution, create).await,
        Sql::AlterView { name, columns, query, with_options } if with_options.is_empty() => {
            views::replace(session, execution, name, columns, query).await
        }
        Sql::Drop { object_type, if_exists, names, cascade, restrict: _, purge, temporary, table } => {
            if purge || temporary || table.is_some() {
                return unsupported("PURGE and TEMPORARY in DROP");
            }
            match object_type {
                ObjectType::Table => ddl::drop_table(session, execution, &names, if_exists, cascade).await,
                ObjectType::Index => ddl::drop_index(session, execution, &names, if_exists, cascade).await,
                ObjectType::View => views::drop(session, execution, &names, if_exists, cascade).await,
                ObjectType::Sequence => sequences::drop(session, execution, &names, if_exists, cascade).await,
                ObjectType::Schema => schemas::drop(session, execution, &names, if_exists, cascade).await,
                other => unsupported(&format!("DROP {other}")),
            }
        }
        Sql::Prepare { name, data_types, statement } => prepare(session, &name, &data_types, *statement),
        Sql::Execute {
            name: Some(name),
            parameters,
            has_parentheses: _,
            immediate: false,
            into,
            using,
            output: false,
            default: false,
        } if into.is_empty() && using.is_empty() => Box::pin(execute(session, execution, &name, parameters)).await,
        Sql::Declare { stmts } => Box::pin(cursors::declare(session, execution, stmts)).await,
        Sql::LISTEN { channel } => channels::listen(session, &channel),
        Sql::UNLISTEN { channel } => channels::unlisten(session, &channel),
        Sql::NOTIFY { channel, payload } => channels::notify(session, &channel, payload.as_deref()),
        Sql::Deallocate { name, prepare: _ } => named::deallocate(session, &name),
        Sql::Discard { object_type } => discard::run(session, object_type).await,
        Sql::Set(set) => settings::set(session, set),
        Sql::Reset(reset) => settings::reset(session, &reset),
        Sql::ShowVariable { variable } => settings::show(session, &variable),
        _ if transaction::is_control(&statement) => transaction::run(session, execution, statement).await,
        other => unsupported(&match alternative(&other) {
            Some(alternative) => format!("{} ({alternative})", first_words(&other)),
            None => first_words(&other),
        }),
    }
}

/// Executes a statement that changes rows.
async fn change(session: &SqlSession, execution: &Execution<'_>, statement: Sql) -> Result<Outcome> {
    repeat::begin(session, execution);
    let may_repeat = execution.decision().locks().is_some();
    let mut statement = statement;
    let _locked = Box::pin(locking::resolve(session, execution, &mut statement)).await?;
    let mut statement = Some(statement);
    loop {
        let this = if may_repeat { statement.clone() } else { statement.take() };
        let this = this.ok_or_else(|| Error::Internal("a statement that takes no locks has run again".into()))?;
        let changed = match this {
            Sql::Insert(insert) => dml::insert::run(session, execution, insert).await,
            Sql::Update(update) => dml::update::run(session, execution, update).await,
            Sql::Delete(delete) => dml::delete::run(session, execution, delete).await,
            Sql::Merge(merge) => Box::pin(dml::merge::run(session, execution, merge)).await,
            other => Err(Error::Internal(format!("{} changes no rows", first_words(&other)))),
        };
        if repeat::again(session, execution).await? {
            continue;
        }
        if matches!(changed, Ok(Outcome::Rows(_)) | Err(_)) {
            session.transaction.acknowledged(&session.engine).await?;
        }
        return changed;
    }
}

/// An alternative to a statement that is not supported.
fn alternative(statement: &Sql) -> Option<&'static str> {
    Some(match statement {
        Sql::CreateType { .. } => "use TEXT with CHECK (column IN (…)) for an enumeration",
        Sql::CreateDomain(_) => "use CHECK constraints of the columns",
        Sql::CreateTrigger(_) | Sql::CreateFunction(_) | Sql::CreateProcedure { .. } => {
            "use generated columns, constraints, or the program that uses the database"
        }
        Sql::CreateExtension(_) => "all functions are built in",
        Sql::LockTables { .. } | Sql::Lock(_) => "use BEGIN IMMEDIATE",
        _ => return None,
    })
}

/// The first three words of a statement, for error messages.
fn first_words(statement: &Sql) -> String {
    statement.to_string().split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// PREPARE.
fn prepare(
    session: &SqlSession,
    name: &Ident,
    types: &[datafusion::sql::sqlparser::ast::DataType],
    statement: Sql,
) -> Result<Outcome> {
    if !matches!(statement, Sql::Query(_) | Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) | Sql::Merge(_)) {
        return Err(Error::Unsupported(format!("PREPARE of {}", first_words(&statement))));
    }
    let types = types.iter().map(crate::catalog::types::from_sql).collect::<Result<Vec<_>>>()?;
    let text: Box<str> = statement.to_string().into();
    let prepared = Prepared::of(&text, statement, types.iter().map(|ty| ty.column.arrow()).collect())?;
    let named = Named {
        text,
        statement: Some(Arc::new(prepared)),
        types: types.into_iter().map(pg_catalog::type_oid).collect(),
        from_sql: true,
        prepared_at: SystemTime::now(),
    };
    named::add(session, &names::plain_ident(name), named)?;
    Ok(Outcome::done("PREPARE"))
}

/// EXECUTE. The values are constant expressions.
async fn execute(
    session: &SqlSession,
    execution: &Execution<'_>,
    name: &ObjectName,
    values: Vec<Expr>,
) -> Result<Outcome> {
    let name = match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] => names::plain_ident(ident),
        _ => return Err(Error::NotFound { kind: ObjectKind::PreparedStatement, name: name.to_string() }),
    };
    let prepared = named::find(session, &name)?;
    parameters::check_count(prepared.parameters(), values.len())?;
    let arrays = constants(session, values).await?;
    let description = prepared.describe(session).await?;
    let values = arrays.iter().map(|array| value_at(array, 0)).collect::<Option<Vec<_>>>();
    if let Some(values) = values {
        return prepared.execute(session, execution, &values).await?.into_outcome();
    }
    let both = arrays.iter().zip(&description.parameters).enumerate();
    let zone = session.zone();
    let bound = both.map(|(i, (array, ty))| parameters::bind_array(i, array, ty.as_ref(), zone));
    prepared.execute_long(session, execution, &bound.collect::<Result<Vec<_>>>()?).await
}

/// The values of constant expressions, as arrays of one value.
async fn constants(session: &SqlSession, values: Vec<Expr>) -> Result<Vec<arrow::array::ArrayRef>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = *parse_query("SELECT NULL")?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        let item = |(i, expr)| SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', format!("${}", i + 1)) };
        select.projection = values.into_iter().enumerate().map(item).collect();
    }
    let state = StatementState::reading(session)?;
    let plan = state.plan_query(query).await?;
    let rows = Outcome::Rows(state.run(&plan).await?).collect().await?;
    let first = rows.iter().find(|batch| batch.num_rows() > 0);
    let first = first.ok_or_else(|| Error::Internal("constant expressions gave no row".into()))?;
    Ok(first.columns().iter().map(|column| column.slice(0, 1)).collect())
}

async fn query(session: &SqlSession, execution: &Execution<'_>, mut statement: Sql) -> Result<Outcome> {
    if locking::is_locking(&statement) {
        return Box::pin(locking::query(session, execution, statement)).await;
    }
    let note = match Box::pin(cluster::query(session, &statement)).await? {
        cluster::Answer::Outcome(Outcome::Rows(rows)) => {
            return Ok(Outcome::Rows(session.transaction.watch(&session.engine, rows)));
        }
        cluster::Answer::Outcome(outcome) => return Ok(outcome),
        cluster::Answer::Note(note) => Some(note),
        cluster::Answer::Nothing => None,
    };
    // Before the snapshot: the statement sees the changes of the sessions that had the locks.
    advisory::apply(session, &mut statement).await?;
    let state = StatementState::reading(session)?;
    set_config::apply(session, &mut statement)?;
    let plan = state.plan(statement).await?;
    let outbox = if session.transaction.is_open() { None } else { state.outbox() };
    let rows = state.run(&plan).await?;
    let rows = match outbox {
        Some(outbox) => channels::watched(session, outbox, rows),
        None => rows,
    };
    let rows = match note {
        Some(note) => cluster::with_note(rows, &note)?,
        None => rows,
    };
    Ok(Outcome::Rows(session.transaction.watch(&session.engine, rows)))
}

async fn checkpoint(session: &SqlSession, execution: &Execution<'_>) -> Result<Outcome> {
    session.engine.check_read_write("CHECKPOINT")?;
    let (store, decision) = (session.engine.store.clone(), execution.decision().clone());
    let task = tokio::task::spawn_blocking(move || -> Result<()> {
        decision.commit()?;
        store.checkpoint()?;
        decision.reach(Stage::Committed);
        Ok(())
    });
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

/// The columns of a view as (name, SQL type). A type without an SQL equivalent is shown as Arrow's type.
pub(crate) async fn view_columns(session: &SqlSession, name: &RelationName) -> Result<Vec<(String, String)>> {
    let state = StatementState::reading(session)?;
    let plan = state.plan_query(*parse_query(&format!("SELECT * FROM {}", names::full_sql(name)))?).await?;
    let analyzed = state.analyzed(plan.clone())?;
    let columns = analyzed.schema().fields().iter().zip(documents::columns(&plan)).map(|(field, json)| {
        let ty = crate::catalog::types::from_arrow(field.data_type());
        let ty = ty.map(|ty| SqlType { json, ..ty.into() }.to_string());
        (columns::shown(field.name()).to_string(), ty.unwrap_or_else(|_| field.data_type().to_string()))
    });
    Ok(columns.collect())
}

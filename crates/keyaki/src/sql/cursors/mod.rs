//! Cursors: DECLARE, FETCH, MOVE, CLOSE and `pg_cursors`.
//!
//! A cursor is the stream of rows of a query, with a position ([`rows`]). FETCH reads from the stream what it returns, and no
//! more. The query sees the database as of DECLARE: a cursor is insensitive.
//!
//! A cursor ends with its transaction. At the commit, a cursor WITH HOLD reads all its remaining rows, which it keeps in memory;
//! it then belongs to the session. ROLLBACK TO a savepoint closes the cursors that were declared after the savepoint.
//!
//! | module | contents |
//! |---|---|
//! | [`rows`] | the rows of a cursor, kept ones and those of the stream, and its position |
//! | [`statement`] | FETCH, MOVE and CLOSE: parsing |

mod rows;
mod statement;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::sql::sqlparser::ast::{Declare, DeclareType, Query, Statement as Sql};
use futures::StreamExt;
use parking_lot::Mutex;

use super::names::plain_ident;
use super::{Outcome, SqlSession, query};
use crate::base::interrupt::Execution;
use crate::{Error, ObjectKind, Result};
use rows::CursorRows;
pub(super) use statement::{CursorStatement, fetched_cursor, parse};

/// Maximum number of cursors of a session.
const CURSORS_MAX: usize = 1_000;
/// The key in the metadata of a schema that marks the rows of a cursor with the option BINARY.
pub(crate) const BINARY: &str = "keyaki.binary_cursor";

/// The cursors of a session.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    known: Mutex<BTreeMap<String, Arc<Cursor>>>,
    /// The names of the transaction's savepoints, with the number of the next cursor at each.
    savepoints: Mutex<Vec<(String, u64)>>,
    next: AtomicU64,
    /// `known` or `savepoints` may have elements.
    has_any: AtomicBool,
}

/// A cursor.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The statement that has declared it.
    pub text: String,
    pub is_binary: bool,
    pub scrolls: bool,
    pub is_holdable: bool,
    pub declared_at: SystemTime,
    schema: SchemaRef,
    /// Cursors that were declared later have greater numbers.
    number: u64,
    /// The number of its transaction; `None` for a cursor that belongs to the session.
    transaction: Mutex<Option<u64>>,
    rows: Arc<tokio::sync::Mutex<CursorRows>>,
}

fn missing(name: &str) -> Error {
    Error::NotFound { kind: ObjectKind::Cursor, name: name.into() }
}

impl Cursors {
    /// The cursor with a name.
    ///
    /// # Errors
    /// `NotFound`.
    fn find(&self, name: &str) -> Result<Arc<Cursor>> {
        self.known.lock().get(name).cloned().ok_or_else(|| missing(name))
    }

    /// Checks that a cursor may have a name.
    ///
    /// # Errors
    /// `AlreadyExists`; `PrerequisiteState` if there are too many.
    fn check_new(&self, name: &str) -> Result<()> {
        let known = self.known.lock();
        if known.contains_key(name) {
            return Err(Error::AlreadyExists { kind: ObjectKind::Cursor, name: name.into() });
        }
        match known.len() < CURSORS_MAX {
            true => Ok(()),
            false => Err(Error::PrerequisiteState(format!("a session has at most {CURSORS_MAX} cursors"))),
        }
    }

    /// False if there is certainly none.
    pub fn may_have_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Names and cursors.
    pub fn list(&self) -> Vec<(String, Arc<Cursor>)> {
        self.known.lock().iter().map(|(name, cursor)| (name.clone(), cursor.clone())).collect()
    }

    /// The columns of a cursor; `None` if there is none with the name.
    pub fn columns(&self, name: &str) -> Option<SchemaRef> {
        self.known.lock().get(name).map(|cursor| cursor.schema.clone())
    }

    /// Closes a cursor. False if there is none with the name.
    pub fn close(&self, name: &str) -> bool {
        let closed = self.known.lock().remove(name);
        closed.is_some()
    }

    /// Closes all cursors.
    pub fn close_all(&self) {
        let closed = std::mem::take(&mut *self.known.lock());
        drop(closed);
    }

    /// Adds a savepoint.
    pub fn save(&self, name: &str) {
        self.savepoints.lock().push((name.into(), self.next.load(Ordering::Relaxed)));
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Removes the newest savepoint with a name, and later ones.
    pub fn release(&self, name: &str) {
        let mut savepoints = self.savepoints.lock();
        if let Some(place) = savepoints.iter().rposition(|(known, _)| known == name) {
            savepoints.truncate(place);
        }
    }

    /// Closes the cursors since the newest savepoint with a name, and removes later savepoints.
    pub fn roll_back_to(&self, name: &str) {
        let mut savepoints = self.savepoints.lock();
        let Some(place) = savepoints.iter().rposition(|(known, _)| known == name) else { return };
        savepoints.truncate(place + 1);
        let first = savepoints[place].1;
        self.known.lock().retain(|_, cursor| cursor.transaction.lock().is_none() || cursor.number < first);
    }
}

/// Closes the cursors of transactions that have ended.
pub(crate) fn end(session: &SqlSession) {
    let cursors = &session.cursors;
    if !cursors.may_have_any() {
        return;
    }
    let current = session.transaction.number();
    if current.is_none() {
        cursors.savepoints.lock().clear();
    }
    let mut known = cursors.known.lock();
    known.retain(|_, cursor| cursor.transaction.lock().is_none_or(|number| current == Some(number)));
    cursors.has_any.store(current.is_some() || !known.is_empty(), Ordering::Relaxed);
}

/// Reads the remaining rows of the cursors WITH HOLD of the open transaction, before its commit.
///
/// # Errors
/// Errors of the queries; `OutOfMemory`; `PrerequisiteState` for a cursor whose rows are being read.
pub(super) async fn hold(session: &SqlSession) -> Result<()> {
    let current = session.transaction.number();
    let held = |(_, cursor): &(String, Arc<Cursor>)| cursor.is_holdable && *cursor.transaction.lock() == current;
    for (name, cursor) in session.cursors.list().into_iter().filter(held) {
        let mut rows = cursor.rows.try_lock().map_err(|_| in_use(&name))?;
        rows.read_all().await?;
    }
    Ok(())
}

/// Makes the cursors WITH HOLD of a transaction those of the session, after its commit.
pub(super) fn keep(session: &SqlSession, transaction: Option<u64>) {
    for (_, cursor) in session.cursors.list() {
        let mut of = cursor.transaction.lock();
        if cursor.is_holdable && *of == transaction {
            *of = None;
        }
    }
}

fn in_use(name: &str) -> Error {
    Error::PrerequisiteState(format!("cursor \"{name}\" is in use: a result of FETCH is being read"))
}

/// The query of DECLARE; `None` for other statements.
pub(super) fn declared_query(statement: &Sql) -> Option<&Query> {
    match statement {
        Sql::Declare { stmts } => match stmts.as_slice() {
            [Declare { declare_type: Some(DeclareType::Cursor), for_query: Some(query), .. }] => Some(query),
            _ => None,
        },
        _ => None,
    }
}

/// DECLARE.
///
/// # Errors
/// `NoActiveTransaction` outside of a transaction, unless it is WITH HOLD; `AlreadyExists`; `PrerequisiteState` if there are too
/// many; errors of the query.
pub(super) async fn declare(
    session: &SqlSession,
    execution: &Execution<'_>,
    mut statements: Vec<Declare>,
) -> Result<Outcome> {
    let text = Sql::Declare { stmts: statements.clone() }.to_string();
    let (Some(declare), true) = (statements.pop(), statements.is_empty()) else {
        return Err(Error::Unsupported("DECLARE of several names".into()));
    };
    let Declare { names, declare_type: Some(DeclareType::Cursor), binary, scroll, hold, for_query, .. } = declare
    else {
        return Err(Error::Unsupported("DECLARE other than of cursors".into()));
    };
    let ([name], Some(for_query)) = (names.as_slice(), for_query) else {
        return Err(Error::syntax("DECLARE needs the name and the query of a cursor"));
    };
    let name = plain_ident(name);
    let (is_holdable, scrolls) = (hold == Some(true), scroll == Some(true));
    let transaction = session.transaction.number();
    if transaction.is_none() && !is_holdable {
        return Err(Error::NoActiveTransaction("DECLARE CURSOR can only be used in transaction blocks".into()));
    }
    let cursors = &session.cursors;
    cursors.check_new(&name)?;
    let Outcome::Rows(stream) = Box::pin(query(session, execution, Sql::Query(for_query))).await? else {
        return Err(Error::Internal("a query without rows".into()));
    };
    let is_binary = binary == Some(true);
    let schema = if is_binary { marked(&stream.schema()) } else { stream.schema() };
    let pool = &session.engine.base_state.runtime_env().memory_pool;
    let mut rows = CursorRows::new(stream, scrolls, MemoryConsumer::new("rows of a cursor").register(pool));
    if transaction.is_none() {
        rows.read_all().await?;
    }
    let cursor = Cursor {
        text,
        is_binary,
        scrolls,
        is_holdable,
        declared_at: SystemTime::now(),
        schema,
        number: cursors.next.fetch_add(1, Ordering::Relaxed),
        transaction: Mutex::new(transaction),
        rows: Arc::new(tokio::sync::Mutex::new(rows)),
    };
    cursors.known.lock().insert(name, Arc::new(cursor));
    cursors.has_any.store(true, Ordering::Relaxed);
    Ok(Outcome::done("DECLARE CURSOR"))
}

/// The schema of binary rows.
fn marked(schema: &SchemaRef) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    metadata.insert(BINARY.into(), "true".into());
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}

/// FETCH, MOVE and CLOSE.
///
/// # Errors
/// `NotFound`; `PrerequisiteState` for directions that need SCROLL, and for a cursor that has failed; errors of the query.
pub(super) async fn run(session: &SqlSession, statement: CursorStatement) -> Result<Outcome> {
    match statement {
        CursorStatement::Close(None) => {
            session.cursors.close_all();
            Ok(Outcome::done("CLOSE CURSOR ALL"))
        }
        CursorStatement::Close(Some(name)) => match session.cursors.close(&name) {
            true => Ok(Outcome::done("CLOSE CURSOR")),
            false => Err(missing(&name)),
        },
        CursorStatement::Fetch(direction, name) => {
            let rows = fetched(session, direction, &name).await?;
            Ok(Outcome::Rows(session.transaction.watch(&session.engine, rows)))
        }
        CursorStatement::Move(direction, name) => {
            let mut rows = fetched(session, direction, &name).await?;
            let mut count = 0;
            while let Some(batch) = rows.next().await {
                count += batch?.num_rows() as u64;
            }
            Ok(Outcome::rows("MOVE", count))
        }
    }
}

/// The rows in a direction. The cursor moves as they are read.
async fn fetched(
    session: &SqlSession,
    direction: statement::Direction,
    name: &str,
) -> Result<SendableRecordBatchStream> {
    let cursor = session.cursors.find(name)?;
    let rows = cursor.rows.clone().try_lock_owned().map_err(|_| in_use(name))?;
    rows::fetch(rows, name, cursor.schema.clone(), direction).await
}

//! Named prepared statements of PREPARE and of a server's protocol. They share one namespace, as in PostgreSQL: EXECUTE,
//! DEALLOCATE and `pg_prepared_statements` see both.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use datafusion::sql::sqlparser::ast::Ident;
use parking_lot::Mutex;

use super::names::plain_ident;
use super::prepared::Prepared;
use super::{Outcome, SqlSession};
use crate::{Error, ObjectKind, Result};

/// The prepared statements of a session, by name.
pub(crate) type NamedStatements = Arc<Mutex<BTreeMap<String, Named>>>;

/// A prepared statement with a name.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// The text of the request that has prepared it.
    pub text: Box<str>,
    /// `None` for statements that only the server can execute.
    pub statement: Option<Arc<Prepared>>,
    /// The types of the parameters: OIDs of `pg_type`.
    pub types: Vec<u32>,
    /// PREPARE has prepared it.
    pub from_sql: bool,
    pub prepared_at: SystemTime,
}

fn missing(name: &str) -> Error {
    Error::NotFound { kind: ObjectKind::PreparedStatement, name: name.into() }
}

/// Maximum number of prepared statements of a session.
const STATEMENTS_MAX: usize = 10_000;
/// Maximum bytes of the texts of the prepared statements of a session.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// Adds a statement.
///
/// # Errors
/// `AlreadyExists`; `PrerequisiteState` if there are too many; `LimitExceeded` if their texts are too long.
pub(crate) fn add(session: &SqlSession, name: &str, named: Named) -> Result<()> {
    let mut known = session.named.lock();
    if known.len() >= STATEMENTS_MAX {
        return Err(Error::PrerequisiteState(format!("a session has at most {STATEMENTS_MAX} prepared statements")));
    }
    let bytes: usize = known.values().map(|known| known.text.len()).sum();
    if bytes + named.text.len() > TEXT_BYTES_MAX {
        let limit = TEXT_BYTES_MAX >> 20;
        return Err(Error::LimitExceeded(format!("the prepared statements of a session have at most {limit} MiB")));
    }
    match known.entry(name.into()) {
        Entry::Occupied(known) => {
            Err(Error::AlreadyExists { kind: ObjectKind::PreparedStatement, name: known.key().clone() })
        }
        Entry::Vacant(free) => {
            free.insert(named);
            Ok(())
        }
    }
}

/// The statement with a name, for EXECUTE.
///
/// # Errors
/// `NotFound`; `PrerequisiteState` for a statement that only the server can execute; `Unsupported` for an EXECUTE statement, which
/// could execute itself without end.
pub(super) fn find(session: &SqlSession, name: &str) -> Result<Arc<Prepared>> {
    let known = session.named.lock();
    let named = known.get(name).ok_or_else(|| missing(name))?;
    let statement = named.statement.clone().ok_or_else(|| {
        Error::PrerequisiteState(format!("prepared statement \"{name}\" can be executed by the protocol only"))
    })?;
    match statement.is_execute() {
        true => {
            Err(Error::Unsupported(format!("EXECUTE of prepared statement \"{name}\", which is an EXECUTE statement")))
        }
        false => Ok(statement),
    }
}

/// DEALLOCATE.
///
/// # Errors
/// `NotFound`.
pub(super) fn deallocate(session: &SqlSession, name: &Ident) -> Result<Outcome> {
    if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all") {
        deallocate_all(session);
        return Ok(Outcome::done("DEALLOCATE ALL"));
    }
    let name = plain_ident(name);
    session.named.lock().remove(&name).ok_or_else(|| missing(&name))?;
    note_removal(session);
    Ok(Outcome::done("DEALLOCATE"))
}

/// Removes all statements.
pub(super) fn deallocate_all(session: &SqlSession) {
    session.named.lock().clear();
    note_removal(session);
}

fn note_removal(session: &SqlSession) {
    session.named_removals.fetch_add(1, Ordering::Release);
}

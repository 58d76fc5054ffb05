//! The plan cache: statements without parameters, parsed and compiled once for all texts that differ in their literals.
//!
//! A text enters the cache when its key ([`super::normalize`]) occurs for the second time, and only if its statement has
//! the form of the short path: for other statements, planning is a small part of the work. Literals that are not
//! parameters of an entry must be equal. All sessions of a database share the cache.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::sql::sqlparser::ast::Statement as Sql;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::names::SearchPath;
use super::normalize::{Literal, LiteralKind, Normalized, normalize, parameterize};
use super::prepared::{Executed, Prepared};
use super::roles::Acting;
use super::{Parsed, SqlSession};
use crate::base::interrupt::Execution;
use crate::base::value::ValueRef;
use crate::values::zone::Zone;
use crate::{Error, PlanCacheMode, Result};

/// Maximum estimated bytes of all entries.
const BYTES_MAX: usize = 32 << 20;
/// Estimated bytes of an entry for each parameter, for syntax tree and plan.
const PARAMETER_BYTES: usize = 512;
/// Maximum number of entries with the same hash.
const ENTRIES_PER_KEY: usize = 8;
/// Number of keys whose first occurrence, or whose refusal, is remembered.
const SEEN_MAX: usize = 4096;

/// Statements by key.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the hash of the key.
    entries: HashMap<u64, Vec<Arc<Entry>>>,
    /// Estimated bytes of the entries.
    bytes: usize,
    /// Hashes of keys that occurred once.
    seen: HashSet<u64>,
    /// Hashes of keys whose statements do not have the form of the short path, with the version of the catalog.
    refused: HashMap<u64, u64>,
}

/// A statement whose literals are parameters, except for the fixed ones.
#[derive(Debug)]
struct Entry {
    key: Box<str>,
    /// The time zone of its sessions: it changes the meaning of texts and the types of results.
    zone: Zone,
    /// The search path of its sessions: it changes the meaning of names.
    path: Arc<SearchPath>,
    /// The roles of its sessions: they decide on what the statement may do.
    acting: Option<Arc<Acting>>,
    prepared: Prepared,
    /// For each parameter, its position among the literals.
    parameters: Vec<usize>,
    /// The other literals, with their positions.
    fixed: Vec<(usize, Fixed)>,
    /// Parameters are values of rows, not operands of comparisons.
    assigns: bool,
}

#[derive(Debug, PartialEq)]
enum Fixed {
    Number(bool, Box<str>),
    Text(Box<str>),
}

impl Fixed {
    fn of(literal: &Literal<'_>) -> Fixed {
        match &literal.kind {
            LiteralKind::Number { negative, digits } => Fixed::Number(*negative, (*digits).into()),
            LiteralKind::Text(text) => Fixed::Text(text.as_ref().into()),
        }
    }

    fn equals(&self, literal: &Literal<'_>) -> bool {
        match (self, &literal.kind) {
            (Fixed::Number(sign, known), LiteralKind::Number { negative, digits }) => {
                sign == negative && **known == **digits
            }
            (Fixed::Text(known), LiteralKind::Text(text)) => **known == **text,
            _ => false,
        }
    }
}

impl PlanCache {
    /// Executes a statement from the cache; `None` if the long path has to.
    ///
    /// # Errors
    /// Errors of the statement.
    pub async fn execute(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        sql: &str,
        mode: PlanCacheMode,
    ) -> Result<Option<Executed>> {
        let Some(normalized) = normalize(sql) else { return Ok(None) };
        let zone = session.zone();
        let hash = xxh3_64(normalized.key.as_bytes()) ^ hash_of(zone) ^ hash_of_user(session);
        let entry = match self.find(hash, &normalized, session) {
            Some(entry) => entry,
            None if mode != PlanCacheMode::Always && self.is_first(hash) => return Ok(None),
            None if self.is_refused(hash, session.engine.catalog_version()) => return Ok(None),
            None => match Box::pin(Entry::new(session, sql, &normalized)).await {
                Some(entry) => self.insert(hash, Arc::new(entry)),
                None => {
                    self.refuse(hash, session.engine.catalog_version());
                    return Ok(None);
                }
            },
        };
        // An error here, for example after a table was dropped, is reported by the long path.
        let Ok(description) = entry.prepared.describe(session).await else { return Ok(None) };
        if !description.is_short() {
            return Ok(None);
        }
        let value = |(literal, ty): (&usize, &Option<DataType>)| {
            normalized.literals[*literal].kind.value(ty.as_ref()?, entry.assigns)
        };
        let values: Option<Vec<ValueRef<'_>>> =
            entry.parameters.iter().zip(&description.parameters).map(value).collect();
        let Some(values) = values else { return Ok(None) };
        match description.execute_short(session, execution, &values).await {
            // The text has no parameters: the long path describes the error in its terms.
            Err(Error::Context { .. }) => Ok(None),
            executed => executed,
        }
    }

    fn find(&self, hash: u64, normalized: &Normalized<'_>, session: &SqlSession) -> Option<Arc<Entry>> {
        let zone = session.zone();
        let state = self.state.lock();
        let entries = state.entries.get(&hash)?;
        let matches = |entry: &&Arc<Entry>| {
            *entry.key == *normalized.key
                && entry.zone == zone
                && session.has_path(&entry.path)
                && session.acts_as(&entry.acting)
                && entry.fixed.iter().all(|(place, fixed)| fixed.equals(&normalized.literals[*place]))
        };
        entries.iter().find(matches).cloned()
    }

    /// True if no key with this hash has occurred before; records it.
    fn is_first(&self, hash: u64) -> bool {
        let seen = &mut self.state.lock().seen;
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(hash)
    }

    fn is_refused(&self, hash: u64, version: u64) -> bool {
        self.state.lock().refused.get(&hash) == Some(&version)
    }

    fn refuse(&self, hash: u64, version: u64) {
        let refused = &mut self.state.lock().refused;
        if refused.len() >= SEEN_MAX {
            refused.clear();
        }
        refused.insert(hash, version);
    }

    fn insert(&self, hash: u64, entry: Arc<Entry>) -> Arc<Entry> {
        let mut state = self.state.lock();
        if state.bytes + entry.bytes() > BYTES_MAX {
            state.entries.clear();
            state.bytes = 0;
        }
        state.bytes += entry.bytes();
        let entries = state.entries.entry(hash).or_default();
        let removed = if entries.len() >= ENTRIES_PER_KEY { Some(entries.remove(0)) } else { None };
        entries.push(entry.clone());
        state.bytes -= removed.map_or(0, |removed| removed.bytes());
        entry
    }
}

/// Different for different time zones; 0 for UTC.
fn hash_of(zone: Zone) -> u64 {
    if zone.is_utc() { 0 } else { xxh3_64(zone.to_string().as_bytes()) }
}

/// Different for different users; 0 for a session without a role.
fn hash_of_user(session: &SqlSession) -> u64 {
    session.acting().map_or(0, |acting| xxh3_64(acting.current_user().as_bytes()))
}

impl Entry {
    /// Estimated bytes in memory.
    fn bytes(&self) -> usize {
        let parameters = self.parameters.len() + self.fixed.len();
        self.key.len() + 2 * self.prepared.text.len() + PARAMETER_BYTES * (1 + parameters)
    }

    /// Parses and compiles a statement; `None` if it does not have the form of the short path.
    async fn new(session: &SqlSession, sql: &str, normalized: &Normalized<'_>) -> Option<Entry> {
        let statement = super::split::single(sql).ok()?;
        let Parsed::Sql(mut parsed) = super::parse(&statement).ok()? else { return None };
        let assigns = matches!(*parsed, Sql::Insert(_));
        // The text of the statement may start behind white space; positions count from the start of `sql`.
        let parameters = parameterize(&mut parsed, sql, &normalized.literals);
        let mut is_parameter = vec![false; normalized.literals.len()];
        parameters.iter().for_each(|&place| is_parameter[place] = true);
        let fixed = normalized.literals.iter().enumerate().filter(|(place, _)| !is_parameter[*place]);
        let fixed = fixed.map(|(place, literal)| (place, Fixed::of(literal))).collect();
        let prepared = Prepared::of(statement.text, *parsed, Vec::new()).ok()?;
        let short = prepared.describe(session).await.ok()?.is_short();
        let (zone, path, acting) = (session.zone(), session.path(), session.acting());
        let key = normalized.key.as_str().into();
        short.then(|| Entry { key, zone, path, acting, prepared, parameters, fixed, assigns })
    }
}

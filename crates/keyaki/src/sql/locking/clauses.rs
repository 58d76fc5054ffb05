//! The locking clauses of a query, and the tables of its FROM list that they name.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    GroupByExpr, LockClause, LockType, NonBlock, ObjectName, Query, Select, SetExpr, Statement, TableAlias,
    TableFactor, TableWithJoins, Visit, Visitor, VisitorMut,
};

use super::tokens::mode_words;
use crate::base::row_locks::LockMode;
use crate::sql::names::plain_ident;
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, Result};

/// The statement in errors about rows that cannot be locked.
pub(super) const NAME: &str = "SELECT FOR UPDATE";

/// What a query does if another transaction has locked one of its rows. The last one wins if several clauses name a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WhenLocked {
    Wait,
    Skip,
    Fail,
}

/// How the rows of a table are locked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub mode: LockMode,
    pub when_locked: WhenLocked,
}

impl Request {
    fn joined(self, other: Request) -> Request {
        Request { mode: self.mode.max(other.mode), when_locked: self.when_locked.max(other.when_locked) }
    }
}

/// The tables and subqueries whose rows a query locks, by their names in the query.
#[derive(Debug, Clone)]
pub(crate) struct Clauses {
    pub(super) requests: Vec<(String, Request)>,
    /// The query has a limit or an offset.
    pub(super) has_limit: bool,
}

impl Clauses {
    /// The request for a name.
    pub(super) fn of(&self, name: &str) -> Option<Request> {
        self.requests.iter().find(|(known, _)| known == name).map(|(_, request)| *request)
    }

    /// True if rows that others have locked are left out.
    pub(super) fn skips(&self) -> bool {
        self.requests.iter().any(|(_, request)| request.when_locked == WhenLocked::Skip)
    }
}

/// Takes the locking clauses out of a query; `None` if it has none.
///
/// # Errors
/// `Unsupported` if the rows of the result are no rows of tables; `MissingFromEntry` for an unknown name; `Syntax`.
pub(super) fn take(query: &mut Query) -> Result<Option<Clauses>> {
    let locks = std::mem::take(&mut query.locks);
    if locks.is_empty() {
        return Ok(None);
    }
    let select = plain_select(query)?;
    let mut common = Common(Vec::new());
    if let Some(with) = &query.with {
        common.0.extend(with.cte_tables.iter().map(|cte| plain_ident(&cte.alias.name)));
    }
    let mut items = Vec::new();
    select.from.iter().for_each(|from| common.add(from, &mut items));
    let mut requests: Vec<(String, Request)> = Vec::new();
    let mut add = |name: &str, request: Request| match requests.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = known.joined(request),
        None => requests.push((name.into(), request)),
    };
    for lock in &locks {
        let (request, name) = parts(lock)?;
        let Some(name) = name else {
            // As in PostgreSQL, the others of the list are not locked.
            items.iter().filter(|item| item.kind.is_none()).for_each(|item| add(&item.name, request));
            continue;
        };
        match items.iter().find(|item| item.name == name) {
            Some(Item { kind: None, .. }) => add(&name, request),
            Some(Item { kind: Some(kind), .. }) => {
                return Err(Error::Unsupported(format!("FOR UPDATE and FOR SHARE of {kind} \"{name}\"")));
            }
            None => return Err(Error::MissingFromEntry(name)),
        }
    }
    let has_limit = query.limit_clause.is_some() || query.fetch.is_some();
    Ok(Some(Clauses { requests, has_limit }))
}

/// The SELECT of a query whose rows are those of its tables.
fn plain_select(query: &Query) -> Result<&Select> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("FOR UPDATE and FOR SHARE with {what}"))),
        false => Ok(()),
    };
    let select = match query.body.as_ref() {
        SetExpr::Select(select) => select,
        SetExpr::SetOperation { op, .. } => {
            return Err(Error::Unsupported(format!("FOR UPDATE and FOR SHARE with {op}")));
        }
        SetExpr::Values(_) => return Err(Error::Unsupported("FOR UPDATE and FOR SHARE with VALUES".into())),
        _ => {
            return Err(Error::Unsupported(
                "FOR UPDATE and FOR SHARE behind parentheses (lock in the inner query)".into(),
            ));
        }
    };
    refuse(select.distinct.is_some(), "DISTINCT")?;
    let is_grouped = match &select.group_by {
        GroupByExpr::All(_) => true,
        GroupByExpr::Expressions(exprs, modifiers) => !exprs.is_empty() || !modifiers.is_empty(),
    };
    refuse(is_grouped, "GROUP BY")?;
    refuse(select.having.is_some(), "HAVING")?;
    refuse(select.qualify.is_some(), "QUALIFY")?;
    Ok(select)
}

/// The request of a clause, and the name behind OF.
fn parts(lock: &LockClause) -> Result<(Request, Option<String>)> {
    let idents = lock.of.iter().flat_map(|of| &of.0).map(|part| part.as_ident());
    let idents = idents.collect::<Option<Vec<_>>>().unwrap_or_default();
    let (words, name) = match idents.split_first() {
        Some((first, rest)) if mode_words(first).is_some() => (mode_words(first), rest),
        _ => (None, idents.as_slice()),
    };
    let mode = match (lock.lock_type, words) {
        (LockType::Update, None) => LockMode::Update,
        (LockType::Update, Some(_)) => LockMode::NoKeyUpdate,
        (LockType::Share, None) => LockMode::Share,
        (LockType::Share, Some(_)) => LockMode::KeyShare,
    };
    let when_locked = match lock.nonblock {
        None => WhenLocked::Wait,
        Some(NonBlock::SkipLocked) => WhenLocked::Skip,
        Some(NonBlock::Nowait) => WhenLocked::Fail,
    };
    let name = match name {
        [] => None,
        [name] => Some(plain_ident(name)),
        _ => return Err(Error::syntax("FOR UPDATE and FOR SHARE must specify unqualified relation names")),
    };
    Ok((Request { mode, when_locked }, name))
}

/// An item of a FROM list.
struct Item {
    name: String,
    /// The kind of an item that has no rows to lock.
    kind: Option<&'static str>,
}

/// The names of the WITH queries.
struct Common(Vec<String>);

impl Common {
    fn add(&self, from: &TableWithJoins, items: &mut Vec<Item>) {
        let joined = from.joins.iter().map(|join| &join.relation);
        for factor in std::iter::once(&from.relation).chain(joined) {
            self.add_factor(factor, items);
        }
    }

    fn add_factor(&self, factor: &TableFactor, items: &mut Vec<Item>) {
        let alias_of = |alias: &Option<TableAlias>| alias.as_ref().map(|alias| plain_ident(&alias.name));
        let (name, kind) = match factor {
            TableFactor::Table { name, alias, args: None, .. } => {
                let kind = self.is_common(name).then_some("the WITH query");
                let last = name.0.last().and_then(|part| part.as_ident()).map(plain_ident);
                (alias_of(alias).or(last), kind)
            }
            TableFactor::Derived { alias, .. } => (alias_of(alias), None),
            TableFactor::NestedJoin { table_with_joins, alias: None } => return self.add(table_with_joins, items),
            TableFactor::NestedJoin { alias, .. } => (alias_of(alias), None),
            TableFactor::Table { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. } => (alias_of(alias), Some("the function")),
            _ => (None, None),
        };
        if let Some(name) = name {
            items.push(Item { name, kind });
        }
    }

    fn is_common(&self, name: &ObjectName) -> bool {
        match name.0.as_slice() {
            [name] => name.as_ident().is_some_and(|name| self.0.contains(&plain_ident(name))),
            _ => false,
        }
    }
}

/// True if a query in a statement has locking clauses.
pub(in crate::sql) fn is_locking(statement: &impl Visit) -> bool {
    struct Find;
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            if query.locks.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }
    walk(statement, &mut Find).is_break()
}

/// True if a statement is a query and no query within it has locking clauses.
pub(in crate::sql) fn is_outermost(statement: &Statement) -> bool {
    let Statement::Query(query) = statement else { return false };
    let mut query = query.clone();
    query.locks.clear();
    !is_locking(&query)
}

/// The statement without the locking clauses of its queries, which has the same columns and parameters.
///
/// # Errors
/// As [`take`].
pub(in crate::sql) fn without(statement: &Statement) -> Result<Statement> {
    struct Strip;
    impl VisitorMut for Strip {
        type Break = Error;
        fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
            match take(query) {
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        }
    }
    let mut statement = statement.clone();
    match walk_mut(&mut statement, &mut Strip) {
        ControlFlow::Continue(()) => Ok(statement),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The locking clauses of a statement that is a query.
///
/// # Errors
/// As [`take`].
pub(in crate::sql) fn of_query(statement: &Statement) -> Result<Option<Clauses>> {
    match statement {
        Statement::Query(query) if !query.locks.is_empty() => take(&mut query.clone()),
        _ => Ok(None),
    }
}

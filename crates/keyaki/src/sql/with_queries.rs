//! WITH queries with MATERIALIZED, and WITH queries before INSERT, UPDATE, DELETE and MERGE.
//!
//! `WITH q AS (…) UPDATE t … FROM q` has no place for its WITH queries in the syntax tree of UPDATE. [`before_changes`]
//! adds them to each query within the statement that uses one of them. A name in FROM or USING becomes a subquery. The
//! parts of the statement are planned as one or several queries. [`gathered`] moves the added WITH clauses to the start of
//! such a query, so that all its references mean the same rows.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CteAsMaterialized, ObjectName, Query, SetExpr, Statement, TableAlias, TableFactor, Visitor, VisitorMut, With,
};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::names::plain_ident;
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, Result};

/// Quotes the first token of a WITH clause that this module has added. No text of a statement has it.
const ADDED_QUOTE: char = '`';

/// The names of the WITH queries of a statement that are declared AS MATERIALIZED.
pub(crate) fn materialized(statement: &Statement) -> Vec<String> {
    #[derive(Default)]
    struct Names(Vec<String>);
    impl Visitor for Names {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
            let declared = ctes.filter(|cte| matches!(cte.materialized, Some(CteAsMaterialized::Materialized)));
            self.0.extend(declared.map(|cte| plain_ident(&cte.alias.name)));
            ControlFlow::Continue(())
        }
    }
    let mut names = Names::default();
    _ = walk(statement, &mut names);
    names.0
}

/// True for INSERT, UPDATE, DELETE and MERGE as the body of a query.
pub(super) fn is_change(query: &Query) -> bool {
    matches!(*query.body, SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_))
}

/// The error for a change of rows inside of a query.
pub(super) const NESTED_CHANGE: &str =
    "INSERT, UPDATE, DELETE and MERGE inside of a query (use several statements in a transaction)";

/// Replaces a query whose body changes rows by the statement that changes them.
///
/// # Errors
/// `Unsupported` for WITH queries that change rows.
pub(super) fn before_changes(statement: &mut Statement) -> Result<()> {
    let query = match statement {
        Statement::Explain { statement, .. } | Statement::Prepare { statement, .. } => {
            return before_changes(statement);
        }
        Statement::Query(query) if is_change(query) => query,
        _ => return Ok(()),
    };
    let Some(mut with) = query.with.take() else { return Ok(()) };
    let mut change = match query.body.as_ref() {
        SetExpr::Insert(change) | SetExpr::Update(change) | SetExpr::Delete(change) | SetExpr::Merge(change) => {
            change.clone()
        }
        _ => return Ok(()),
    };
    if contains_change(&with) {
        return Err(Error::Unsupported(NESTED_CHANGE.into()));
    }
    let word = Token::make_word("WITH", Some(ADDED_QUOTE));
    with.with_token = AttachedToken(TokenWithSpan::wrap(word));
    let names = with.cte_tables.iter().map(|cte| plain_ident(&cte.alias.name)).collect();
    // The first table of these statements is the one that they change.
    let targets = usize::from(!matches!(change, Statement::Insert(_)));
    let mut add = Add { with, names, depth: 0, targets };
    if let ControlFlow::Break(error) = walk_mut(&mut change, &mut add) {
        return Err(error);
    }
    *statement = change;
    Ok(())
}

fn contains_change(with: &With) -> bool {
    struct Find;
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            if is_change(query) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    walk(with, &mut Find).is_break()
}

/// Adds WITH queries to the outermost queries of a statement.
struct Add {
    with: With,
    names: Vec<String>,
    /// Number of open queries.
    depth: usize,
    /// Number of tables to skip.
    targets: usize,
}

impl Add {
    /// True for the name of one of the WITH queries.
    fn names(&self, name: &ObjectName) -> bool {
        match &name.0[..] {
            [name] => name.as_ident().is_some_and(|name| self.names.contains(&plain_ident(name))),
            _ => false,
        }
    }

    fn is_used(&self, query: &Query) -> bool {
        struct Uses<'a>(&'a Add);
        impl Visitor for Uses<'_> {
            type Break = ();
            fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<()> {
                if self.0.names(name) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        }
        walk(query, &mut Uses(self)).is_break()
    }
}

/// True for the rows of an INSERT: their expressions belong to the statement.
fn is_values(query: &Query) -> bool {
    query.with.is_none() && matches!(*query.body, SetExpr::Values(_))
}

impl VisitorMut for Add {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if is_values(query) {
            return ControlFlow::Continue(());
        }
        if self.depth == 0
            && self.is_used(query)
            && let Err(error) = add(query, self.with.clone())
        {
            return ControlFlow::Break(error);
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.depth -= usize::from(!is_values(query));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        if self.targets > 0 {
            self.targets -= 1;
            return ControlFlow::Continue(());
        }
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return ControlFlow::Continue(()) };
        if !self.names(name) {
            return ControlFlow::Continue(());
        }
        let mut subquery = match super::parse_query(&format!("SELECT * FROM {name}")) {
            Ok(subquery) => subquery,
            Err(error) => return ControlFlow::Break(error),
        };
        subquery.with = Some(self.with.clone());
        let own_name = name.0.first().and_then(|name| name.as_ident()).cloned();
        let own_name = own_name.map(|name| TableAlias { explicit: true, name, columns: Vec::new(), at: None });
        let alias = alias.take().or(own_name);
        *factor = TableFactor::Derived { lateral: false, subquery, alias, sample: None };
        ControlFlow::Continue(())
    }
}

/// Puts a WITH clause before a query, which may have one itself.
fn add(query: &mut Query, with: With) -> Result<()> {
    if query.with.is_some() {
        let inner = std::mem::replace(query, *super::parse_query("SELECT 1")?);
        *query.body = SetExpr::Query(Box::new(inner));
    }
    query.with = Some(with);
    Ok(())
}

/// Moves the WITH clauses that [`before_changes`] has added to the start of the query to be planned.
///
/// # Errors
/// None for the template of this module.
pub(super) fn gathered(statement: &mut Statement) -> Result<()> {
    struct Take(Option<With>);
    impl VisitorMut for Take {
        type Break = ();
        fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
            if query.with.as_ref().is_some_and(is_added) {
                self.0 = query.with.take();
            }
            ControlFlow::Continue(())
        }
    }
    let mut taken = Take(None);
    _ = walk_mut(statement, &mut taken);
    let Some(with) = taken.0 else { return Ok(()) };
    let query = match statement {
        Statement::Explain { statement, .. } => statement.as_mut(),
        other => other,
    };
    match query {
        Statement::Query(query) => add(query, with),
        _ => Err(Error::Internal("a WITH clause outside of a query".into())),
    }
}

fn is_added(with: &With) -> bool {
    matches!(&with.with_token.0.token, Token::Word(word) if word.quote_style == Some(ADDED_QUOTE))
}

//! Columns merged by JOIN … USING and NATURAL JOIN, and rows as values.
//!
//! `x JOIN y USING (n)` has one column `n` beside `x.n` and `y.n`: `x.n` for inner and left joins, `y.n` for right
//! joins and `coalesce(x.n, y.n)` for full joins. DataFusion takes `x.n` or `y.n`, depending on their order and on the
//! aliases, also as the key of a further join, and refuses the name in WHERE.
//!
//! [`as_conditions`] replaces USING and NATURAL by ON, the unqualified names of merged columns by their values, and `*`
//! by `x.*, y.* EXCLUDE (n)`. In `*`, a merged column takes the place of the first column that it merges.
//!
//! In an expression of ORDER BY, a name means a column of FROM before one of the select list, as in PostgreSQL; DataFusion
//! finds both. [`ordering`] gives the columns of the select list other names.
//!
//! `to_json(x)` of a relation `x` becomes an object of its columns.
//!
//! *Invariant.* A SELECT keeps USING, NATURAL and `*` if they depend on columns that are not known here, for example those
//! of a table function without column aliases. DataFusion then plans them.

mod columns;
mod ordering;
mod scope;
mod wildcards;

pub(super) use ordering::is_aggregate;

use std::mem::take;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, JoinConstraint, JoinOperator, OrderBy, OrderByExpr,
    OrderByKind, Query, Select, SelectItem, SetExpr, Statement, TableFactor, TableWithJoins, Value, VisitMut, Visitor,
    VisitorMut, With,
};

use self::columns::{Columns, declared};
use self::scope::{Factor, Meaning, Merged, Scope, constraint, joined, only};
use self::wildcards::output;
use super::json_calls::{function_call, is_to_json};
use super::names::plain_ident;
use crate::catalog::Catalog;
use crate::sql::visit::{walk, walk_mut};
use crate::values::json::build::TO_JSON;
use crate::{Error, Result};

/// Replaces USING and NATURAL in a statement whose result columns are named and whose relations are qualified. `is_result`:
/// its columns are shown under their names ([`super::columns::shown`]), and not used by other queries.
///
/// # Errors
/// `AmbiguousColumn` for a name that means several columns.
pub(super) fn as_conditions(statement: &mut Statement, catalog: &Catalog, is_result: bool) -> Result<()> {
    struct Find;
    impl VisitorMut for Find {
        type Break = ();
        fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
            if select.from.iter_mut().any(merges) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
            if ordering::may_collide(query) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if name_as_json(expr).is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if walk_mut(statement, &mut Find).is_continue() {
        return Ok(());
    }
    let is_result = is_result && matches!(statement, Statement::Query(_));
    match walk_mut(statement, &mut Using { is_result, ..Using::new(catalog) }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The name in `to_json(name)`.
fn name_as_json(expr: &Expr) -> Option<&Ident> {
    let Expr::Function(function) = expr else { return None };
    let FunctionArguments::List(list) = &function.args else { return None };
    match &list.args[..] {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Identifier(name)))] if is_to_json(function) => Some(name),
        _ => None,
    }
}

/// True for an item of FROM with USING or NATURAL.
fn merges(item: &mut TableWithJoins) -> bool {
    let mut found = false;
    each_constraint(item, &mut |constraint| {
        found |= matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural);
    });
    found
}

/// Calls `f` for the constraints of an item of FROM, in the order of [`Scope::constraints`].
fn each_constraint(item: &mut TableWithJoins, f: &mut dyn FnMut(&mut JoinConstraint)) {
    if let TableFactor::NestedJoin { table_with_joins, .. } = &mut item.relation {
        each_constraint(table_with_joins, f);
    }
    for join in &mut item.joins {
        if let TableFactor::NestedJoin { table_with_joins, .. } = &mut join.relation {
            each_constraint(table_with_joins, f);
        }
        constraint(&mut join.join_operator).into_iter().for_each(&mut *f);
    }
}

/// A query while its parts are visited.
struct OpenQuery {
    /// Its WITH and ORDER BY clauses, which are visited separately.
    with: Option<With>,
    order_by: Option<OrderBy>,
    /// Its body is one SELECT, whose columns ORDER BY can use.
    is_select: bool,
    /// The names of its columns are not used.
    is_value: bool,
    /// Number of WITH queries before it.
    common: usize,
    /// The names of its columns, and others under which they are computed.
    names: Vec<(Ident, Ident)>,
}

struct Using<'a> {
    catalog: &'a Catalog,
    /// False while only names of columns are computed.
    visits: bool,
    /// The columns of the outermost query are shown under their names.
    is_result: bool,
    /// The next query is a value or a condition: the names of its columns are not used.
    is_value: bool,
    /// The names and columns of WITH queries.
    common: Vec<(String, Columns)>,
    queries: Vec<OpenQuery>,
    /// The FROM clauses of the open SELECTs, which are visited separately.
    from: Vec<Vec<TableWithJoins>>,
    /// The columns that expressions can use, outermost first.
    scopes: Vec<Scope>,
}

impl<'a> Using<'a> {
    fn new(catalog: &'a Catalog) -> Using<'a> {
        let (common, queries, from, scopes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Using { catalog, visits: true, is_result: false, is_value: false, common, queries, from, scopes }
    }

    /// The value of a merged column; `None` for other names.
    ///
    /// # Errors
    /// `AmbiguousColumn`, `Unsupported` for a column of tables whose names mean other tables here.
    fn value(&self, name: &Ident) -> Result<Option<Expr>> {
        let name = plain_ident(name);
        for (depth, scope) in self.scopes.iter().enumerate().rev() {
            match scope.meaning(&name) {
                Meaning::Merged(i) => {
                    let (Merged { value, equal, .. }, inner) = (&scope.merged[i], &self.scopes[depth + 1..]);
                    let Some(hiding) = hiding(value, inner) else { return Ok(Some(value.clone())) };
                    let visible = equal.iter().find(|other| self::hiding(other, inner).is_none());
                    return visible.cloned().map(Some).ok_or_else(|| {
                        Error::Unsupported(format!(
                            "column \"{name}\" of a join with USING inside of a query with another table {hiding} \
                             (use another alias)"
                        ))
                    });
                }
                Meaning::Ambiguous if scope.merged(&name).next().is_some() => return Err(Error::AmbiguousColumn(name)),
                Meaning::Missing if !scope.aliases.contains(&name) => {}
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The object of a relation's columns; `None` if the name means a column.
    ///
    /// # Errors
    /// `Unsupported` for a relation whose columns are not known.
    fn row(&self, name: &Ident) -> Result<Option<Expr>> {
        let plain = plain_ident(name);
        for scope in self.scopes.iter().rev() {
            match (scope.meaning(&plain), scope.factor(name)) {
                (Meaning::Missing, Some(factor)) => {
                    let columns = factor.columns.iter().flatten();
                    let members = columns.filter_map(|column| {
                        let key = Expr::Value(Value::SingleQuotedString(column.clone()).into());
                        Some([key, function_call(TO_JSON, vec![factor.column(column)?])])
                    });
                    return Ok(Some(function_call("json_build_object", members.flatten().collect())));
                }
                (Meaning::Missing, None) => {}
                (Meaning::Unknown, Some(_)) => {
                    return Err(Error::Unsupported(format!(
                        "the row \"{name}\" as a value beside relations whose columns are not known (name them: t(a, b))"
                    )));
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn visit_within(&mut self, scope: &Scope, node: &mut impl VisitMut) -> ControlFlow<Error> {
        self.scopes.push(scope.clone());
        walk_mut(node, self)?;
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    /// The columns of FROM. Its subqueries and conditions are visited.
    fn from(&mut self, items: &mut [TableWithJoins]) -> ControlFlow<Error, Scope> {
        let mut scope = Scope::default();
        for item in items {
            let tables = self.tables(item, &scope)?;
            scope = scope.beside(tables);
        }
        ControlFlow::Continue(scope)
    }

    /// The columns of an item of FROM. LATERAL subqueries can use the columns `before` it.
    fn tables(&mut self, item: &mut TableWithJoins, before: &Scope) -> ControlFlow<Error, Scope> {
        let mut scope = self.factor(&mut item.relation, before)?;
        for join in &mut item.joins {
            let right = self.factor(&mut join.relation, &before.clone().beside(scope.clone()))?;
            let side = match join.join_operator {
                JoinOperator::LeftSemi(_) | JoinOperator::LeftAnti(_) => Some(scope.clone()),
                JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_) => Some(right.clone()),
                _ => None,
            };
            scope = flow(joined(scope, right, &mut join.join_operator))?;
            if self.visits
                && let Some(JoinConstraint::On(condition)) = constraint(&mut join.join_operator)
            {
                self.visit_within(&scope, condition)?;
            }
            if let Some(Scope { factors, merged, .. }) = side {
                scope = Scope { factors, merged, ..scope };
            }
        }
        ControlFlow::Continue(scope)
    }

    fn factor(&mut self, factor: &mut TableFactor, before: &Scope) -> ControlFlow<Error, Scope> {
        if let TableFactor::NestedJoin { table_with_joins, alias: alias @ Some(_) } = factor
            && merges(table_with_joins)
        {
            let mut subquery = flow(super::parse_query("SELECT * FROM x"))?;
            if let SetExpr::Select(select) = subquery.body.as_mut() {
                select.from = vec![(**table_with_joins).clone()];
            }
            *factor = TableFactor::Derived { lateral: false, subquery, alias: alias.take(), sample: None };
        }
        let (alias, columns, nested) = match factor {
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let nested = self.tables(table_with_joins, before)?;
                let Some(alias) = alias else { return ControlFlow::Continue(nested) };
                (Some(alias.name.clone()), declared(Some(alias)), nested)
            }
            TableFactor::Table { name, alias, args, .. } => {
                let own = only(name).filter(|name| args.is_none() && name.quote_style != Some('\''));
                let columns = if args.is_none() { self.relation_columns(name) } else { None };
                let name = alias.as_ref().map(|alias| &alias.name).or(own);
                (name.cloned(), declared(alias.as_ref()).or(columns), Scope::default())
            }
            TableFactor::Derived { subquery, alias, .. } => {
                let columns = declared(alias.as_ref()).or_else(|| self.query_columns(subquery));
                (alias.as_ref().map(|alias| alias.name.clone()), columns, Scope::default())
            }
            TableFactor::UNNEST { alias, .. } | TableFactor::Function { alias, .. } => {
                let alias = alias.as_ref();
                (alias.map(|alias| alias.name.clone()), declared(alias), Scope::default())
            }
            _ => (None, None, Scope::default()),
        };
        match factor {
            TableFactor::NestedJoin { .. } => {}
            TableFactor::Derived { lateral: true, .. } if self.visits => self.visit_within(before, factor)?,
            _ if self.visits => walk_mut(factor, self)?,
            _ => {}
        }
        let Scope { constraints, is_undecided, .. } = nested;
        let factors = vec![Factor { alias, columns }];
        ControlFlow::Continue(Scope { factors, constraints, is_undecided, ..Scope::default() })
    }
}

/// The qualifier of a column in `value` that means a table of the inner scopes.
fn hiding(value: &Expr, inner: &[Scope]) -> Option<Ident> {
    struct Find<'a>(&'a [Scope]);
    impl Visitor for Find<'_> {
        type Break = Ident;
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Ident> {
            match expr {
                Expr::CompoundIdentifier(parts) if self.0.iter().any(|inner| inner.factor(&parts[0]).is_some()) => {
                    ControlFlow::Break(parts[0].clone())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    walk(value, &mut Find(inner)).break_value()
}

fn flow<T>(result: Result<T>) -> ControlFlow<Error, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error),
    }
}

impl VisitorMut for Using<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let (common, mut with) = (self.common.len(), query.with.take());
        let is_value = take(&mut self.is_value);
        let is_result = take(&mut self.is_result);
        if let Some(With { recursive, cte_tables, .. }) = &mut with {
            for cte in cte_tables {
                let (name, columns) = (plain_ident(&cte.alias.name), self.common_columns(cte));
                if *recursive {
                    self.common.push((name.clone(), columns.clone()));
                }
                walk_mut(&mut cte.query, self)?;
                self.common.push((name, columns));
            }
        }
        let (order_by, is_select) = (query.order_by.take(), matches!(*query.body, SetExpr::Select(_)));
        self.is_result = is_result;
        self.queries.push(OpenQuery { with, order_by, is_select, is_value, common, names: Vec::new() });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let Some(OpenQuery { with, order_by, common, names, .. }) = self.queries.pop() {
            (query.with, query.order_by) = (with, order_by);
            self.common.truncate(common);
            if !names.is_empty() {
                flow(ordering::under_names(query, &names))?;
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let mut from = take(&mut select.from);
        let mut scope = self.from(&mut from)?;
        if !scope.is_undecided && scope.constraints.iter().any(Option::is_some) {
            let expanded = select.projection.iter().map(|item| match item {
                SelectItem::Wildcard(_) => scope.expanded(),
                item => Some(vec![item.clone()]),
            });
            if let Some(items) = expanded.collect::<Option<Vec<_>>>() {
                select.projection = items.into_iter().flatten().collect();
                let mut constraints = take(&mut scope.constraints).into_iter();
                let mut set = |constraint: &mut JoinConstraint| {
                    constraints.next().flatten().into_iter().for_each(|new| *constraint = new);
                };
                from.iter_mut().for_each(|item| each_constraint(item, &mut set));
            }
        }
        let is_alias = |item: &&SelectItem| matches!(item, SelectItem::ExprWithAlias { .. });
        scope.aliases = select.projection.iter().filter(is_alias).filter_map(output).collect();
        self.from.push(from);
        self.scopes.push(scope);
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(Expr::Identifier(name)) = item
                && let Some(expr @ Expr::Function(_)) = flow(self.value(name))?
            {
                *item = SelectItem::ExprWithAlias { expr, alias: name.clone() };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let is_outermost = self.is_result && self.queries.len() == 1;
        if let (Some(query), Some(scope)) = (self.queries.last_mut(), self.scopes.last().cloned())
            && query.is_select
            && let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by
        {
            let mut keys: Vec<OrderByExpr> = take(keys);
            let names = ordering::renamed(select, &mut keys, &scope, is_outermost || query.is_value);
            for key in &mut keys {
                match &key.expr {
                    Expr::Identifier(name) if scope.outputs(&select.projection, &plain_ident(name)) => {}
                    _ => walk_mut(key, self)?,
                }
            }
            if let Some(OpenQuery { order_by: Some(OrderBy { kind, .. }), .. }) = self.queries.last_mut() {
                *kind = OrderByKind::Expressions(keys);
            }
            if let (Some(names), Some(query)) = (names, self.queries.last_mut()) {
                query.names = names;
            }
        }
        self.scopes.pop();
        select.from = self.from.pop().unwrap_or_default();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.is_value = matches!(expr, Expr::Subquery(_) | Expr::Exists { .. });
        if let Some(name) = name_as_json(expr)
            && let Some(row) = flow(self.row(name))?
        {
            *expr = row;
        }
        if let Expr::Identifier(name) = expr
            && let Some(value) = flow(self.value(name))?
        {
            *expr = value;
        }
        ControlFlow::Continue(())
    }
}

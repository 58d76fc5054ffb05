//! Names of the select list that hide columns of FROM in ORDER BY.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, OrderBy, OrderByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor,
    Visitor,
};

use super::scope::{Meaning, Scope};
use crate::Result;
use crate::sql::columns::repeated;
use crate::sql::names::plain_ident;
use crate::sql::parse_query;
use crate::sql::visit::{visit_expressions, walk};

/// True if an expression of ORDER BY uses a name of the select list, or if `*` may have one.
pub(super) fn may_collide(query: &Query) -> bool {
    let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &query.order_by else { return false };
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    let mut aliases = select.projection.iter().filter_map(alias);
    if aliases.next().is_none() {
        return false;
    }
    select.projection.iter().any(is_wildcard) || keys.iter().any(|key| !is_plain(&key.expr))
}

fn alias(item: &SelectItem) -> Option<&Ident> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias),
        _ => None,
    }
}

fn is_wildcard(item: &SelectItem) -> bool {
    matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
}

/// True for a name or position in the select list.
fn is_plain(key: &Expr) -> bool {
    matches!(key, Expr::Identifier(_) | Expr::Value(_))
}

/// Functions whose arguments are columns of single rows.
const AGGREGATES: [&str; 21] = [
    "array_agg",
    "avg",
    "bit_and",
    "bit_or",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "first_value",
    "json_agg",
    "last_value",
    "max",
    "median",
    "min",
    "stddev",
    "stddev_pop",
    "string_agg",
    "string_agg_by_row",
    "sum",
    "var_pop",
    "variance",
];

/// True for calls of these functions.
pub(in crate::sql) fn is_aggregate(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else { return false };
    let name = function.name.0.last().and_then(|name| name.as_ident()).map(plain_ident);
    function.over.is_none() && name.is_some_and(|name| AGGREGATES.contains(&name.as_str()))
}

/// The columns that are keys of GROUP BY; `None` for a SELECT without groups. Beside aggregates, other columns have no value
/// for a group.
fn grouped(select: &Select) -> Option<HashSet<String>> {
    let has_aggregates = || {
        visit_expressions(&select.projection, |expr| {
            if is_aggregate(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .is_break()
    };
    match &select.group_by {
        GroupByExpr::Expressions(keys, modifiers) if keys.is_empty() && modifiers.is_empty() => {
            has_aggregates().then(HashSet::new)
        }
        GroupByExpr::Expressions(keys, _) => Some(keys.iter().filter_map(column).collect()),
        GroupByExpr::All(_) => Some(HashSet::new()),
    }
}

/// The name of a column.
fn column(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(plain_ident(name)),
        Expr::CompoundIdentifier(parts) => parts.last().map(plain_ident),
        _ => None,
    }
}

/// Collects the names that mean columns of FROM in ORDER BY.
struct Used<'a> {
    grouped: Option<HashSet<String>>,
    scope: &'a Scope,
    /// Number of open aggregates.
    aggregates: usize,
    names: HashSet<String>,
}

impl Visitor for Used<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.aggregates += usize::from(is_aggregate(expr));
        let Some(name) = column(expr) else { return ControlFlow::Continue(()) };
        let meaning = self.scope.meaning(&name);
        let is_column = match expr {
            Expr::Identifier(_) => {
                let has_value = self.aggregates > 0 || self.grouped.as_ref().is_none_or(|keys| keys.contains(&name));
                has_value && matches!(meaning, Meaning::Column(_) | Meaning::Merged(_) | Meaning::Ambiguous)
            }
            _ => true,
        };
        if is_column {
            self.names.insert(name);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.aggregates -= usize::from(is_aggregate(expr));
        ControlFlow::Continue(())
    }
}

/// Gives other names to the columns of the select list whose names are columns of FROM in `keys`, or in `*`. Returns the
/// names and the other ones of all columns, for [`under_names`]; `None` if nothing has changed, or if the columns are
/// shown under their names, because the query is the outermost one.
pub(super) fn renamed(
    select: &mut Select,
    keys: &mut [OrderByExpr],
    scope: &Scope,
    is_outermost: bool,
) -> Option<Vec<(Ident, Ident)>> {
    let has_wildcard = select.projection.iter().any(is_wildcard);
    if select.distinct.is_some() || has_wildcard && !is_outermost {
        return None;
    }
    let mut used = Used { grouped: grouped(select), scope, aggregates: 0, names: HashSet::new() };
    for key in keys.iter().filter(|key| !is_plain(&key.expr)) {
        let _ = walk(&key.expr, &mut used);
    }
    let mut used = used.names;
    if has_wildcard {
        used.extend(scope.columns().into_iter().flatten());
    }
    let marks = select.projection.len() + 1;
    let mut is_changed = false;
    let mut names = Vec::new();
    for item in &mut select.projection {
        match item {
            SelectItem::ExprWithAlias { alias, .. } => {
                let name = plain_ident(alias);
                let other = if used.contains(&name) { repeated(&name, marks) } else { alias.clone() };
                if other != *alias {
                    is_changed = true;
                    // A name alone means the column of the select list.
                    for key in keys.iter_mut().filter(|_| !has_wildcard) {
                        if matches!(&key.expr, Expr::Identifier(key) if plain_ident(key) == name) {
                            key.expr = Expr::Identifier(other.clone());
                        }
                    }
                }
                names.push((alias.clone(), other.clone()));
                *alias = other;
            }
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => names.push((name.clone(), name.clone())),
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
                let name = parts.last()?.clone();
                names.push((name.clone(), name));
            }
            _ => {}
        }
    }
    (is_changed && !is_outermost).then_some(names)
}

/// The query with the names of its columns.
///
/// # Errors
/// None is expected.
pub(super) fn under_names(query: &mut Query, names: &[(Ident, Ident)]) -> Result<()> {
    let columns: Vec<String> = names.iter().map(|(name, other)| format!("{other} AS {name}")).collect();
    let named = parse_query(&format!("SELECT {} FROM (SELECT 1) AS ordered", columns.join(", ")))?;
    let inner = std::mem::replace(query, *named);
    if let SetExpr::Select(select) = query.body.as_mut()
        && let TableFactor::Derived { subquery, .. } = &mut select.from[0].relation
    {
        **subquery = inner;
    }
    Ok(())
}

//! Names of the select list that hide columns of FROM in ORDER BY.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, OrderBy, OrderByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor, visit_expressions,
};

use super::scope::{Meaning, Scope};
use crate::Result;
use crate::sql::columns::repeated;
use crate::sql::names::plain_ident;
use crate::sql::parse_query;

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
    let mut used = HashSet::new();
    for key in keys.iter().filter(|key| !is_plain(&key.expr)) {
        let _ = visit_expressions(&key.expr, |expr| {
            match expr {
                Expr::Identifier(name) => {
                    let name = plain_ident(name);
                    if matches!(scope.meaning(&name), Meaning::Column(_) | Meaning::Merged(_) | Meaning::Ambiguous) {
                        used.insert(name);
                    }
                }
                Expr::CompoundIdentifier(parts) => used.extend(parts.last().map(plain_ident)),
                _ => {}
            }
            ControlFlow::<()>::Continue(())
        });
    }
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

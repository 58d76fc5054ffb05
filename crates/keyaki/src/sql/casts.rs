//! Distinguishes casts in aggregations.
//!
//! DataFusion names a cast by its operand, and refuses an aggregation in which a name occurs twice: `GROUP BY at, at::date`.
//! [`distinguish`] puts the casts of such a SELECT into a CASE whose condition is always true and contains the type. The
//! optimizer removes it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, DataType, Expr, GroupByExpr, Ident, OrderBy, Query, Select, SelectItem,
    SetExpr, UnaryOperator, Value, Visit, VisitMut, Visitor, VisitorMut,
};

use super::names::plain_ident;
use crate::catalog::types;
use crate::sql::visit::{walk, walk_mut};

/// Distinguishes the casts of all queries of a statement whose aggregations would have a name twice.
pub(crate) fn distinguish(statement: &mut (impl Visit + VisitMut)) {
    if walk(statement, &mut Find).is_break() {
        let _ = walk_mut(statement, &mut Queries);
    }
}

/// Breaks at the first cast.
struct Find;

impl Visitor for Find {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Cast { .. }) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Queries;

impl VisitorMut for Queries {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        // The keys of ORDER BY have to be the same expressions as those of the select list.
        match repeats_name(&query.body, query.order_by.as_ref()) {
            true => walk_mut(query, &mut Wrap),
            false => ControlFlow::Continue(()),
        }
    }
}

fn repeats_name(body: &SetExpr, order_by: Option<&OrderBy>) -> bool {
    match body {
        SetExpr::Select(select) => names_of(select, order_by).is_break(),
        SetExpr::SetOperation { left, right, .. } => repeats_name(left, None) || repeats_name(right, None),
        // A query in parentheses is visited itself.
        _ => false,
    }
}

/// Breaks if two expressions of an aggregation, or two calls of functions, differ only in their casts.
fn names_of(select: &Select, order_by: Option<&OrderBy>) -> ControlFlow<()> {
    let mut names = Names::default();
    let grouped = match &select.group_by {
        GroupByExpr::All(_) => true,
        GroupByExpr::Expressions(keys, modifiers) => {
            keys.iter().try_for_each(|key| names.add_key(key))?;
            !keys.is_empty() || !modifiers.is_empty()
        }
    };
    let mut results = select.projection.iter().filter_map(|item| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    });
    if grouped {
        // They can be keys by their position or alias.
        results.try_for_each(|expr| names.add(expr))?;
    }
    walk(select, &mut names)?;
    // Its aggregates are computed with those of the select list.
    order_by.map_or(ControlFlow::Continue(()), |order_by| walk(order_by, &mut names))
}

/// Expressions by their text without casts.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// As [`Names::add`], for a key of GROUP BY.
    fn add_key(&mut self, key: &Expr) -> ControlFlow<()> {
        match key {
            Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
                sets.iter().flatten().try_for_each(|key| self.add(key))
            }
            key => self.add(key),
        }
    }

    /// Breaks if another expression differs only in its casts.
    fn add(&mut self, expr: &Expr) -> ControlFlow<()> {
        let mut expr = expr.clone();
        let _ = walk_mut(&mut expr, &mut Unqualify);
        let text = expr.to_string();
        let _ = walk_mut(&mut expr, &mut Strip);
        match self.0.insert(expr.to_string(), text.clone()) {
            Some(other) if other != text => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Visitor for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Function(_)) { self.add(expr) } else { ControlFlow::Continue(()) }
    }
}

/// Writes columns without their tables, casts in one form, and no parentheses.
struct Unqualify;

impl VisitorMut for Unqualify {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let column = match expr {
            Expr::Identifier(ident) => Some(&*ident),
            Expr::CompoundIdentifier(parts) => parts.last(),
            _ => None,
        };
        if let Some(column) = column.map(plain_ident) {
            *expr = Expr::Identifier(column.as_str().into());
        } else if let Expr::Nested(inner) = expr {
            *expr = std::mem::replace(inner, nothing());
        } else if let Expr::Cast { kind, data_type, .. } = expr {
            let ty = Ident::with_quote('"', type_of(kind, data_type));
            (*kind, *data_type) = (CastKind::Cast, DataType::Custom(ty.into(), Vec::new()));
        }
        ControlFlow::Continue(())
    }
}

/// Replaces casts, and the sign that makes no difference, by their operands.
struct Strip;

impl VisitorMut for Strip {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: operand, .. } | Expr::UnaryOp { op: UnaryOperator::Plus, expr: operand } = expr {
            *expr = std::mem::replace(operand, nothing());
        }
        ControlFlow::Continue(())
    }
}

/// Puts casts into a CASE.
struct Wrap;

impl VisitorMut for Wrap {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { kind, data_type, .. } = expr {
            let ty = Expr::value(Value::SingleQuotedString(type_of(kind, data_type)));
            let condition = Expr::BinaryOp { left: Box::new(ty.clone()), op: BinaryOperator::Eq, right: Box::new(ty) };
            *expr = Expr::Case {
                case_token: AttachedToken::empty(),
                end_token: AttachedToken::empty(),
                operand: None,
                conditions: vec![CaseWhen { condition, result: std::mem::replace(expr, nothing()) }],
                else_result: None,
            };
        }
        ControlFlow::Continue(())
    }
}

/// A text for the type of a cast, which is the same for all names of the type.
fn type_of(kind: &CastKind, data_type: &DataType) -> String {
    let ty = match types::from_sql(data_type) {
        Ok(ty) => format!("{:?}", ty.column),
        Err(_) => data_type.to_string().to_ascii_lowercase(),
    };
    match kind {
        CastKind::Cast | CastKind::DoubleColon => ty,
        CastKind::TryCast | CastKind::SafeCast => format!("TRY {ty}"),
    }
}

fn nothing() -> Expr {
    Expr::value(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    fn is_changed(sql: &str) -> bool {
        let mut statement = single(sql).unwrap().parser().parse_statement().unwrap();
        let before = statement.to_string();
        distinguish(&mut statement);
        statement.to_string() != before
    }

    #[test]
    fn casts_that_repeat_a_name_are_put_into_case() {
        for sql in [
            "SELECT max(a), max(a::int) FROM t",
            "SELECT max(A), max(CAST(t.a AS int)) FROM t",
            "SELECT 1 FROM t GROUP BY a, (a::date)",
            "SELECT a AS b, a::date AS c FROM t GROUP BY b, c",
            "SELECT a, a::date FROM t GROUP BY ALL",
            "SELECT 1 WHERE 2 IN (SELECT max(a) FROM t HAVING max(a::int) > 1)",
            "SELECT sum(v) FROM t GROUP BY a ORDER BY sum(v::int)",
            "SELECT count(*) FROM t GROUP BY ROLLUP (a, a::date)",
            "SELECT max(a::int), max(TRY_CAST(a AS int)) FROM t",
            "(SELECT 1 UNION SELECT sum(a) OVER () + sum(a::int) OVER () FROM t)",
        ] {
            assert!(is_changed(sql), "{sql}");
        }
    }

    #[test]
    fn other_casts_stay() {
        for sql in [
            "SELECT a, a::date FROM t",
            "SELECT max(a::int), max(a::int), max(b) FROM t",
            "SELECT a::date, max(b::int) FROM t GROUP BY a::date",
            "SELECT a::date, max(b::int) FROM t GROUP BY 1",
            "SELECT a::integer, max(CAST(b AS bigint)) FROM t GROUP BY CAST(a AS int) ORDER BY max(b::int8)",
        ] {
            assert!(!is_changed(sql), "{sql}");
        }
    }
}

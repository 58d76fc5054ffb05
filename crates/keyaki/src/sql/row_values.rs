//! Comparisons of rows, `(a, b) = (c, d)`, as comparisons of their columns.
//!
//! DataFusion compares rows as structs, for which NULL equals NULL, and has no subqueries of several columns.
//!
//! | comparison | becomes |
//! |---|---|
//! | `(a, b) = (c, d)` | `a = c AND b = d` |
//! | `(a, b) < (c, d)` | `a <= c AND (a < c OR b < d)`: the first condition selects a range of an index |
//! | `(a, b) IN ((c, d), …)` | `(a, b) = (c, d) OR …` |
//! | `(a, b) = (SELECT c, d …)` | `(SELECT a = c AND b = d FROM (SELECT c, d …))` |
//! | `(a, b) IN (SELECT c, d …)` in WHERE | `EXISTS (SELECT … WHERE a = c AND b = d)`: a semi join |
//! | `(a, b) NOT IN (SELECT c, d …)` in WHERE | `NOT EXISTS (SELECT … WHERE (c = a OR c IS NULL OR a IS NULL) AND …)` |
//! | `(a, b) IN (SELECT c, d …)` elsewhere | an aggregate with NULL as a third truth value |
//!
//! The optimizer removes the conditions of columns that are NOT NULL, so that NOT IN becomes an anti join.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, Select, SelectItem,
    SetExpr, TableAlias, TableAliasColumnDef, TableFactor, UnaryOperator, Value, VisitMut, VisitorMut,
};

use super::names::plain_ident;
use super::parameters::{call, fill};
use super::synonyms::width;
use crate::sql::visit::walk_mut;
use crate::{Error, Result};

/// Replaces comparisons of rows in a statement or an expression.
///
/// # Errors
/// `Syntax` for rows of different lengths.
pub(crate) fn compare(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut Compare::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The columns of a subquery of one row, as subqueries of one column each.
///
/// # Errors
/// `Syntax` for another number of columns; `Unsupported` for a subquery with LIMIT, whose executions may return other
/// rows.
pub(super) fn columns_of(subquery: &Query, width: usize) -> Result<Vec<Expr>> {
    if subquery.limit_clause.is_some() || subquery.fetch.is_some() {
        return Err(Error::Unsupported("assignment of a subquery with LIMIT to several columns (use FROM)".into()));
    }
    let row = vec![Expr::Value(Value::Null.into()); width];
    (0..width)
        .map(|column| {
            let mut set = Compare::default().set(&row, subquery.clone())?;
            let item = SelectItem::UnnamedExpr(set.columns.swap_remove(column));
            let mut query = set.query("SELECT 1 FROM q", None)?;
            if let SetExpr::Select(select) = query.body.as_mut() {
                select.projection = vec![item];
            }
            Ok(Expr::Subquery(Box::new(query)))
        })
        .collect()
}

/// The number names the subqueries of a statement.
#[derive(Default)]
struct Compare(usize);

impl VisitorMut for Compare {
    type Break = Error;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        match select.selection.as_mut().map_or(Ok(()), |condition| self.condition(condition)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match self.replaced(expr) {
            Ok(Some(replaced)) => *expr = replaced,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

impl Compare {
    /// Replaces IN of a condition for which NULL means the same as false.
    fn condition(&mut self, expr: &mut Expr) -> Result<()> {
        match expr {
            Expr::Nested(inner) => return self.condition(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
                self.condition(left)?;
                return self.condition(right);
            }
            _ => {}
        }
        let Some(Member { row, subquery, negated }) = Member::of(expr, false) else { return Ok(()) };
        let set = self.set(&row, subquery)?;
        let conditions = set.columns.iter().zip(row).map(|(column, value)| match negated {
            false => Ok(binary(column.clone(), BinaryOperator::Eq, value)),
            true => {
                let parts = [column.clone(), value.clone(), column.clone(), value];
                call("(NULL = NULL OR NULL IS NULL OR NULL IS NULL)", parts)
            }
        });
        let condition = all(conditions.collect::<Result<Vec<_>>>()?, &BinaryOperator::And);
        let subquery = Box::new(set.query("SELECT 1 FROM q", Some(condition))?);
        *expr = Expr::Exists { subquery, negated };
        Ok(())
    }

    /// The expression in place of a comparison of rows; `None` for other expressions.
    fn replaced(&mut self, expr: &Expr) -> Result<Option<Expr>> {
        if let Some(Member { row, subquery, negated }) = Member::of(expr, false) {
            return self.is_in(row, subquery, negated).map(Some);
        }
        Ok(Some(match expr {
            Expr::BinaryOp { left, op, right } if is_comparison(op) => match (values(left), values(right)) {
                (Some(left), Some(right)) => nested(compared(&left, op, &right)?),
                (Some(row), None) => match subquery(right) {
                    Some(subquery) => self.only_row(&row, subquery, |row, columns| compared(row, op, columns))?,
                    None => return Ok(None),
                },
                (None, Some(row)) => match subquery(left) {
                    Some(subquery) => self.only_row(&row, subquery, |row, columns| compared(columns, op, row))?,
                    None => return Ok(None),
                },
                (None, None) => return Ok(None),
            },
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => {
                let (Some(left), Some(right)) = (values(left), values(right)) else { return Ok(None) };
                check_lengths(&left, &right)?;
                let distinct = matches!(expr, Expr::IsDistinctFrom(..));
                let pairs = left.into_iter().zip(right).map(|(left, right)| match distinct {
                    true => Expr::IsDistinctFrom(Box::new(left), Box::new(right)),
                    false => Expr::IsNotDistinctFrom(Box::new(left), Box::new(right)),
                });
                let op = if distinct { BinaryOperator::Or } else { BinaryOperator::And };
                nested(all(pairs.collect(), &op))
            }
            Expr::IsNull(row) | Expr::IsNotNull(row) => {
                let Some(row) = values(row) else { return Ok(None) };
                let tests = row.into_iter().map(|value| match expr {
                    Expr::IsNull(_) => Expr::IsNull(Box::new(value)),
                    _ => Expr::IsNotNull(Box::new(value)),
                });
                nested(all(tests.collect(), &BinaryOperator::And))
            }
            Expr::InList { expr, list, negated } => {
                let (Some(row), Some(list)) = (values(expr), list.iter().map(values).collect::<Option<Vec<_>>>())
                else {
                    return Ok(None);
                };
                let equal = list.iter().map(|other| compared(&row, &BinaryOperator::Eq, other).map(nested));
                let any = nested(all(equal.collect::<Result<_>>()?, &BinaryOperator::Or));
                if *negated { not(any) } else { any }
            }
            Expr::Between { expr, negated, low, high } => {
                let (Some(row), Some(low), Some(high)) = (values(expr), values(low), values(high)) else {
                    return Ok(None);
                };
                let from = nested(compared(&row, &BinaryOperator::GtEq, &low)?);
                let to = nested(compared(&row, &BinaryOperator::LtEq, &high)?);
                let both = nested(binary(from, BinaryOperator::And, to));
                if *negated { not(both) } else { both }
            }
            _ => return Ok(None),
        }))
    }

    /// `row IN (subquery)` with NULL as a third truth value.
    fn is_in(&mut self, row: Vec<Expr>, subquery: Query, negated: bool) -> Result<Expr> {
        let set = self.set(&row, subquery)?;
        let equal = nested(compared(&row, &BinaryOperator::Eq, &set.columns)?);
        let template = "SELECT CASE WHEN bool_or(NULL) THEN true WHEN count(*) > 0 THEN NULL ELSE false END FROM q";
        let mut query = set.query(template, Some(call("NULL IS NOT FALSE", [equal.clone()])?))?;
        if let SetExpr::Select(select) = query.body.as_mut() {
            fill(&mut select.projection, &mut std::iter::once(equal));
        }
        let member = Expr::Subquery(Box::new(query));
        Ok(if negated { not(member) } else { member })
    }

    /// `(SELECT comparison FROM (subquery))`, where the subquery has at most one row.
    fn only_row(
        &mut self,
        row: &[Expr],
        subquery: &Query,
        comparison: impl Fn(&[Expr], &[Expr]) -> Result<Expr>,
    ) -> Result<Expr> {
        let set = self.set(row, subquery.clone())?;
        let compared = comparison(row, &set.columns)?;
        let mut query = set.query("SELECT 1 FROM q", None)?;
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.projection = vec![SelectItem::ExprWithAlias { expr: compared, alias: Ident::new("result") }];
        }
        Ok(Expr::Subquery(Box::new(query)))
    }

    /// A subquery whose columns are compared with a row.
    fn set(&mut self, row: &[Expr], subquery: Query) -> Result<Set> {
        if let Some(width) = width(&subquery.body)
            && width != row.len()
        {
            let amount = if width > row.len() { "many" } else { "few" };
            return Err(Error::syntax(format!("subquery has too {amount} columns")));
        }
        self.0 += 1;
        let name = Ident::new(format!("__set_{}", self.0));
        let names: Vec<Ident> = (1..=row.len()).map(|column| Ident::new(format!("value_{column}"))).collect();
        let columns = names.iter().map(|column| Expr::CompoundIdentifier(vec![name.clone(), column.clone()])).collect();
        let declared = names.into_iter().map(|name| TableAliasColumnDef { name, data_type: None }).collect();
        let alias = Some(TableAlias { explicit: true, name, columns: declared, at: None });
        let relation = TableFactor::Derived { lateral: false, subquery: Box::new(subquery), alias, sample: None };
        Ok(Set { relation, columns })
    }
}

/// A subquery in FROM, and its columns.
struct Set {
    relation: TableFactor,
    columns: Vec<Expr>,
}

impl Set {
    /// A query from a template, of the set in place of its table.
    fn query(self, template: &str, condition: Option<Expr>) -> Result<Query> {
        let mut query = *super::parse_query(template)?;
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.selection = condition;
            if let Some(from) = select.from.first_mut() {
                from.relation = self.relation;
            }
        }
        Ok(query)
    }
}

/// `row IN (subquery)`.
struct Member {
    row: Vec<Expr>,
    subquery: Query,
    negated: bool,
}

impl Member {
    /// `None` for other expressions. `inverted`: the expression is the operand of NOT.
    fn of(expr: &Expr, inverted: bool) -> Option<Member> {
        let (row, subquery, negated) = match expr {
            Expr::Nested(inner) if inverted => return Member::of(inner, inverted),
            Expr::UnaryOp { op: UnaryOperator::Not, expr } if !inverted => return Member::of(expr, true),
            Expr::InSubquery { expr, subquery, negated } => (expr, subquery.as_ref(), *negated),
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, self::subquery(right)?, false),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, self::subquery(right)?, true),
            _ => return None,
        };
        Some(Member { row: values(row)?, subquery: subquery.clone(), negated: negated != inverted })
    }
}

/// The values of `(a, b)` and of `ROW(a, b)`.
fn values(expr: &Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Nested(inner) => values(inner),
        Expr::Tuple(values) if !values.is_empty() => Some(values.clone()),
        Expr::Function(Function { name, args: FunctionArguments::List(list), over: None, .. }) => {
            let [name] = &name.0[..] else { return None };
            if plain_ident(name.as_ident()?) != "row" || list.args.is_empty() {
                return None;
            }
            let value = |arg: &FunctionArg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
                _ => None,
            };
            list.args.iter().map(value).collect()
        }
        _ => None,
    }
}

fn subquery(expr: &Expr) -> Option<&Query> {
    match expr {
        Expr::Nested(inner) => subquery(inner),
        Expr::Subquery(query) => Some(query),
        _ => None,
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    matches!(op, B::Eq | B::NotEq | B::Lt | B::LtEq | B::Gt | B::GtEq)
}

fn check_lengths(left: &[Expr], right: &[Expr]) -> Result<()> {
    match left.len() == right.len() {
        true => Ok(()),
        false => Err(Error::syntax("unequal number of entries in row expressions")),
    }
}

/// `left op right` of rows.
fn compared(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Result<Expr> {
    check_lengths(left, right)?;
    let pairs = || left.iter().cloned().zip(right.iter().cloned());
    let strict = match op {
        BinaryOperator::Eq => {
            let pairs = pairs().map(|(left, right)| binary(left, BinaryOperator::Eq, right));
            return Ok(all(pairs.collect(), &BinaryOperator::And));
        }
        BinaryOperator::NotEq => {
            let pairs = pairs().map(|(left, right)| binary(left, BinaryOperator::NotEq, right));
            return Ok(all(pairs.collect(), &BinaryOperator::Or));
        }
        BinaryOperator::Lt | BinaryOperator::LtEq => BinaryOperator::Lt,
        _ => BinaryOperator::Gt,
    };
    let or_equal = if strict == BinaryOperator::Lt { BinaryOperator::LtEq } else { BinaryOperator::GtEq };
    let mut pairs = pairs().rev();
    let Some((left, right)) = pairs.next() else { return Err(Error::syntax("a row has no values")) };
    let last = binary(left, op.clone(), right);
    Ok(pairs.fold(last, |rest, (left, right)| {
        let decided = binary(left.clone(), strict.clone(), right.clone());
        let either = nested(binary(decided, BinaryOperator::Or, rest));
        binary(binary(left, or_equal.clone(), right), BinaryOperator::And, either)
    }))
}

/// The expressions joined by AND or OR, as a tree of little depth.
fn all(mut exprs: Vec<Expr>, op: &BinaryOperator) -> Expr {
    if exprs.len() > 1 {
        let right = exprs.split_off(exprs.len() / 2);
        return nested(binary(all(exprs, op), op.clone(), all(right, op)));
    }
    exprs.pop().unwrap_or_else(|| Expr::Value(Value::Null.into()))
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

fn nested(expr: Expr) -> Expr {
    match expr {
        Expr::Nested(_) => expr,
        other => Expr::Nested(Box::new(other)),
    }
}

fn not(expr: Expr) -> Expr {
    nested(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) })
}

#[cfg(test)]
mod tests {
    use super::compare;
    use crate::sql::parse_expr;

    #[test]
    fn rows_become_conditions_of_columns() {
        for (given, expected) in [
            ("(a, b) = (1, 2)", "(a = 1 AND b = 2)"),
            ("(a, b) <> ROW(1, 2)", "(a <> 1 OR b <> 2)"),
            ("(a, b, c) < (1, 2, 3)", "(a <= 1 AND (a < 1 OR b <= 2 AND (b < 2 OR c < 3)))"),
            ("(a, b) >= (1, 2)", "(a >= 1 AND (a > 1 OR b >= 2))"),
            ("NOT (a, b) IN ((1, 2), (3, 4))", "NOT ((a = 1 AND b = 2) OR (a = 3 AND b = 4))"),
            ("(a, b) IS NOT NULL", "(a IS NOT NULL AND b IS NOT NULL)"),
        ] {
            let mut expr = parse_expr(given).unwrap();
            compare(&mut expr).unwrap();
            assert_eq!(expr.to_string(), expected);
        }
        for wrong in ["(a, b) = (1, 2, 3)", "(a, b) IN (SELECT 1)", "(a, b) IN ((1, 2), (3, 4, 5))"] {
            assert!(compare(&mut parse_expr(wrong).unwrap()).is_err(), "{wrong}");
        }
    }
}

//! Comparisons with the elements of an array, `x = ANY (array)` and `x <> ALL (array)`, as calls of functions, and with
//! the rows of a subquery as IN and NOT IN.
//!
//! DataFusion plans the former as functions of arrays for which elements that are NULL do not count, and the latter as joins
//! without equality.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, VisitMut, VisitorMut};

use super::parameters::call;
use crate::sql::visit::walk_mut;
use crate::values::arrays::quantified_name;
use crate::{Error, Result};

/// Replaces ANY and ALL of arrays in a statement or an expression, and `= ANY` and `<> ALL` of subqueries.
///
/// # Errors
/// None for the templates of this module.
pub(crate) fn as_calls(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut AsCalls) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct AsCalls;

impl VisitorMut for AsCalls {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Some(member) = membership(expr) {
            *expr = member;
            return ControlFlow::Continue(());
        }
        let (name, args) = match expr {
            Expr::AnyOp { left, compare_op, right, .. } if !matches!(**right, Expr::Subquery(_)) => {
                (quantified_name(compare_op, false), [left, right])
            }
            Expr::AllOp { left, compare_op, right } if !matches!(**right, Expr::Subquery(_)) => {
                (quantified_name(compare_op, true), [left, right])
            }
            _ => return ControlFlow::Continue(()),
        };
        let Some(name) = name else { return ControlFlow::Continue(()) };
        match call(&format!("\"{name}\"(NULL, NULL)"), args.map(|arg| (**arg).clone())) {
            Ok(call) => *expr = call,
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// IN for `= ANY (SELECT …)`, NOT IN for `<> ALL (SELECT …)`.
fn membership(expr: &Expr) -> Option<Expr> {
    let (left, right, negated) = match expr {
        Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
        Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
        _ => return None,
    };
    let Expr::Subquery(subquery) = &**right else { return None };
    Some(Expr::InSubquery { expr: left.clone(), subquery: subquery.clone(), negated })
}

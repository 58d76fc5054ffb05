//! Forms of SQL for which DataFusion knows others.
//!
//! | form | becomes |
//! |---|---|
//! | `FETCH FIRST n ROWS ONLY` | `LIMIT n` |
//! | `mod(a, b)` | `(a % b)` |
//! | `~a` | `(a # -1)`: all bits are inverted |

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Fetch, Function, FunctionArg, FunctionArgExpr, FunctionArguments, LimitClause, Query, UnaryOperator,
    VisitMut, VisitorMut,
};

use super::names::plain_ident;
use super::parameters::call;
use crate::{Error, Result};

/// Replaces the forms in a statement or an expression.
///
/// # Errors
/// None for the templates of this module.
pub(crate) fn replace(node: &mut impl VisitMut) -> Result<()> {
    match node.visit(&mut Replace) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Replace;

impl VisitorMut for Replace {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let Some(Fetch { with_ties: false, percent: false, quantity }) = &query.fetch else {
            return ControlFlow::Continue(());
        };
        let rows = match quantity.clone().map_or_else(|| crate::sql::parse_expr("1"), Ok) {
            Ok(rows) => rows,
            Err(error) => return ControlFlow::Break(error),
        };
        let none = LimitClause::LimitOffset { limit: None, offset: None, limit_by: Vec::new() };
        if let LimitClause::LimitOffset { limit: limit @ None, .. } = query.limit_clause.get_or_insert(none) {
            *limit = Some(rows);
            query.fetch = None;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let replaced = match expr {
            Expr::UnaryOp { op: UnaryOperator::BitwiseNot, expr } => call("(NULL # -1)", [(**expr).clone()]),
            Expr::Function(function) => match arguments_of_mod(function) {
                Some([a, b]) => call("(NULL % NULL)", [a.clone(), b.clone()]),
                None => return ControlFlow::Continue(()),
            },
            _ => return ControlFlow::Continue(()),
        };
        match replaced {
            Ok(replaced) => *expr = replaced,
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// The arguments of `mod(a, b)`.
fn arguments_of_mod(function: &Function) -> Option<[&Expr; 2]> {
    let [name] = &function.name.0[..] else { return None };
    let FunctionArguments::List(list) = &function.args else { return None };
    let is_plain = function.over.is_none() && function.filter.is_none() && list.clauses.is_empty();
    if plain_ident(name.as_ident()?) != "mod" || !is_plain {
        return None;
    }
    match &list.args[..] {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(a)), FunctionArg::Unnamed(FunctionArgExpr::Expr(b))] => {
            Some([a, b])
        }
        _ => None,
    }
}

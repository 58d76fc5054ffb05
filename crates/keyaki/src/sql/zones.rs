//! `AT TIME ZONE` as a call of the function `timezone`.
//!
//! DataFusion plans `x AT TIME ZONE z` as a cast, which keeps the instant and its type.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, VisitMut, VisitorMut};

use super::parameters::call;
use crate::sql::visit::walk_mut;
use crate::{Error, Result};

/// Replaces AT TIME ZONE in a statement or an expression.
///
/// # Errors
/// None for the template of this module.
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
        if let Expr::AtTimeZone { timestamp, time_zone } = expr {
            match call("timezone(NULL, NULL)", [(**time_zone).clone(), (**timestamp).clone()]) {
                Ok(call) => *expr = call,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

//! Literals of type INTERVAL, as PostgreSQL reads them.
//!
//! DataFusion reads other texts, and reads some texts otherwise. [`read`] replaces the text of a literal by one that both
//! read alike.

use std::ops::ControlFlow;

use arrow::datatypes::IntervalMonthDayNano;
use datafusion::sql::sqlparser::ast::{DateTimeField, Expr, Interval, UnaryOperator, Value, VisitMut, VisitorMut};

use crate::base::intervals::{self, Problem};
use crate::sql::visit::walk_mut;
use crate::{Error, Result};

/// Replaces the texts of literals in a statement or an expression.
///
/// # Errors
/// `InvalidText`, `OutOfRange`; `Unsupported` for fields that would cut off a part of the text.
pub(crate) fn read(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut Read) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Read;

impl VisitorMut for Read {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        // DataFusion would put the sign before the text, where it belongs to the first part only.
        if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: operand } = expr
            && let Expr::Interval(literal) = operand.as_ref()
        {
            **operand = Expr::Nested(Box::new(Expr::Interval(literal.clone())));
        }
        if let Expr::Interval(literal) = expr {
            match parsed(literal) {
                Ok(IntervalMonthDayNano { months, days, nanoseconds }) => {
                    let text = format!("{months} months {days} days {nanoseconds} nanoseconds");
                    *expr = Expr::Interval(Interval {
                        value: Box::new(Expr::Value(Value::SingleQuotedString(text).into())),
                        leading_field: None,
                        leading_precision: None,
                        last_field: None,
                        fractional_seconds_precision: None,
                    });
                }
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

fn parsed(literal: &Interval) -> Result<IntervalMonthDayNano> {
    let unsupported = |how: &str| Error::Unsupported(format!("{literal} ({how})"));
    let Interval { value, leading_field, leading_precision, last_field, fractional_seconds_precision } = literal;
    if last_field.is_some() || leading_precision.is_some() || fractional_seconds_precision.is_some() {
        return Err(unsupported("write units into the text: INTERVAL '1 day 2 hours'"));
    }
    let Some(mut text) = text(value) else {
        return Err(unsupported("multiply an interval by the expression: n * INTERVAL '1 day'"));
    };
    if let Some(field) = leading_field {
        // PostgreSQL cuts off smaller parts than the field, except for seconds.
        let is_whole = text.trim_ascii().trim_start_matches(['+', '-']).bytes().all(|byte| byte.is_ascii_digit());
        if !is_whole && !matches!(field, DateTimeField::Second | DateTimeField::Seconds) {
            return Err(unsupported("write the unit into the text: INTERVAL '1.5 days'"));
        }
        text = format!("{text} {field}");
    }
    intervals::parse(&text).map_err(|problem| match problem {
        Problem::Syntax => Error::invalid_text("interval", &text, None),
        Problem::Range => Error::out_of_range("interval", &text, None),
    })
}

/// The text of a literal; numbers and their signs may be outside of quotes.
fn text(value: &Expr) -> Option<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => Some(text.clone()),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match expr.as_ref() {
            Expr::Value(value) => match &value.value {
                Value::Number(text, _) => Some(format!("-{text}")),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

//! Corrects the precedence of IS [NOT] DISTINCT FROM, and of a minus sign before `^`.
//!
//! sqlparser 0.62 takes everything to the right as the operand: `a IS DISTINCT FROM b AND c` becomes
//! `a IS DISTINCT FROM (b AND c)`. In SQL, NOT, AND and OR bind less tightly. Parentheses are nodes of the syntax tree,
//! so an AND or OR that is an operand without parentheses was misplaced; [`correct`] moves it up. It reads `-a ^ b` as
//! `-(a ^ b)`, PostgreSQL as `(-a) ^ b`.

use std::ops::ControlFlow;

use crate::sql::visit::{walk, walk_mut};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Visit, VisitMut, Visitor, VisitorMut};

/// Corrects all expressions of a parsed statement, query or expression.
pub(super) fn correct(parsed: &mut (impl Visit + VisitMut)) {
    if walk(parsed, &mut Find).is_break() {
        let _ = walk_mut(parsed, &mut Correct);
    }
}

fn is_distinct_from(expr: &Expr) -> bool {
    matches!(expr, Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..))
}

fn is_power(expr: &Expr) -> bool {
    matches!(expr, Expr::BinaryOp { op: BinaryOperator::PGExp, .. })
}

fn is_negated_power(expr: &Expr) -> bool {
    matches!(expr, Expr::UnaryOp { op: UnaryOperator::Minus, expr } if is_power(expr))
}

/// Puts the sign before the first operand of the powers.
fn with_sign(power: Expr) -> Expr {
    match power {
        Expr::BinaryOp { left, op: op @ BinaryOperator::PGExp, right } => {
            Expr::BinaryOp { left: Box::new(with_sign(*left)), op, right }
        }
        expr => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(expr) },
    }
}

/// Puts an operand before the first one of the powers.
fn before(first: Expr, power: Expr) -> Expr {
    let op = BinaryOperator::PGExp;
    match power {
        Expr::BinaryOp { left, op: BinaryOperator::PGExp, right } => {
            Expr::BinaryOp { left: Box::new(before(first, *left)), op, right }
        }
        expr => Expr::BinaryOp { left: Box::new(first), op, right: Box::new(expr) },
    }
}

struct Find;

impl Visitor for Find {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let is_corrected = is_distinct_from(expr) || is_negated_power(expr);
        if is_corrected { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Correct;

impl VisitorMut for Correct {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if is_negated_power(expr) {
            if let Expr::UnaryOp { expr: power, .. } = std::mem::replace(expr, placeholder()) {
                *expr = with_sign(*power);
            }
            return ControlFlow::Continue(());
        }
        // Powers are computed from left to right.
        if let Expr::BinaryOp { left, op: BinaryOperator::PGExp, right } = expr
            && is_power(right)
        {
            let left = std::mem::replace(left.as_mut(), placeholder());
            let right = std::mem::replace(right.as_mut(), placeholder());
            *expr = before(left, right);
            return ControlFlow::Continue(());
        }
        let tightness = tightness(expr);
        let operand = match expr {
            Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => right,
            Expr::UnaryOp { op: UnaryOperator::Not, expr } => expr,
            Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, right, .. } => right,
            _ => return ControlFlow::Continue(()),
        };
        if self::tightness(operand) < tightness {
            let operand = std::mem::replace(operand.as_mut(), placeholder());
            let outer = std::mem::replace(expr, placeholder());
            *expr = lifted(outer, operand, tightness);
        }
        ControlFlow::Continue(())
    }
}

/// How tightly the operator at the root of an expression binds.
fn tightness(expr: &Expr) -> u8 {
    match expr {
        Expr::BinaryOp { op: BinaryOperator::Or, .. } => 0,
        Expr::BinaryOp { op: BinaryOperator::And, .. } => 1,
        Expr::UnaryOp { op: UnaryOperator::Not, .. } => 2,
        other if is_distinct_from(other) => 3,
        _ => 4,
    }
}

fn placeholder() -> Expr {
    Expr::Value(datafusion::sql::sqlparser::ast::Value::Null.into())
}

/// Puts `outer`, whose last operand is missing, at the start of `operand`, above the first part that binds more tightly.
fn lifted(mut outer: Expr, operand: Expr, tight: u8) -> Expr {
    match operand {
        Expr::BinaryOp { left, op: op @ (BinaryOperator::And | BinaryOperator::Or), right }
            if tightness(&Expr::BinaryOp {
                left: Box::new(placeholder()),
                op: op.clone(),
                right: Box::new(placeholder()),
            }) < tight =>
        {
            let left = Box::new(lifted(outer, *left, tight));
            Expr::BinaryOp { left, op, right }
        }
        operand => {
            match &mut outer {
                Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => **right = operand,
                Expr::UnaryOp { expr, .. } => **expr = operand,
                Expr::BinaryOp { right, .. } => **right = operand,
                _ => {}
            }
            outer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::split::single;

    /// The tree of an expression, with all parentheses.
    fn tree(sql: &str) -> String {
        let mut expr = single(sql).unwrap().parser().parse_expr().unwrap();
        correct(&mut expr);
        shown(&expr)
    }

    fn shown(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", shown(left), shown(right)),
            Expr::IsDistinctFrom(left, right) => format!("({} <> {})", shown(left), shown(right)),
            Expr::IsNotDistinctFrom(left, right) => format!("({} == {})", shown(left), shown(right)),
            Expr::UnaryOp { expr, .. } => format!("!{}", shown(expr)),
            Expr::Nested(inner) => shown(inner),
            other => other.to_string(),
        }
    }

    #[test]
    fn and_or_and_not_bind_less_tightly() {
        assert_eq!(tree("a IS DISTINCT FROM b AND c"), "((a <> b) AND c)");
        assert_eq!(tree("a IS NOT DISTINCT FROM b OR c AND d"), "((a == b) OR (c AND d))");
        assert_eq!(tree("p AND a IS DISTINCT FROM b OR c"), "((p AND (a <> b)) OR c)");
        assert_eq!(tree("NOT a IS DISTINCT FROM b AND c"), "(!(a <> b) AND c)");
        assert_eq!(tree("a IS DISTINCT FROM b AND c IS DISTINCT FROM d OR e"), "(((a <> b) AND (c <> d)) OR e)");
        assert_eq!(tree("a IS DISTINCT FROM (b AND c)"), "(a <> (b AND c))");
        assert_eq!(tree("p OR a IS DISTINCT FROM b + 1 OR c"), "(p OR ((a <> (b + 1)) OR c))");
        assert_eq!(tree("p AND (q OR a IS DISTINCT FROM b)"), "(p AND (q OR (a <> b)))");
    }

    #[test]
    fn signs_bind_more_tightly_than_powers() {
        assert_eq!(tree("-a ^ b"), "(!a ^ b)");
        assert_eq!(tree("-a ^ b ^ c"), "((!a ^ b) ^ c)");
        assert_eq!(tree("-(a ^ b)"), "!(a ^ b)");
        assert_eq!(tree("a - b ^ c"), "(a - (b ^ c))");
        assert_eq!(tree("2 ^ -a ^ b"), "((2 ^ !a) ^ b)");
    }
}

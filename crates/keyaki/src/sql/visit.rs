//! Traversal of syntax trees with one compiled copy of sqlparser's code.
//!
//! sqlparser's `Visit::visit` is generic over the visitor: each visitor compiles the traversal of all statements again, which
//! was half of the code of this crate. The functions of this module traverse with one visitor, which calls the actual one through
//! a table of functions. `clippy.toml` forbids the generic functions elsewhere.

#![allow(clippy::disallowed_methods)]

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, Value, ValueWithSpan, Visit, VisitMut, Visitor, VisitorMut,
};

use crate::{Error, Result};

/// Traverses a syntax tree.
pub(super) fn walk<V: Visitor>(node: &impl Visit, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut keep = Keep { visitor, result: None };
    let ended = node.visit(&mut Walk(&mut keep));
    result(ended, keep.result)
}

/// Traverses a syntax tree, which the visitor may change.
pub(super) fn walk_mut<V: VisitorMut>(node: &mut impl VisitMut, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut keep = Keep { visitor, result: None };
    let ended = node.visit(&mut WalkMut(&mut keep));
    result(ended, keep.result)
}

/// True if there is a query in the syntax tree.
pub(super) fn has_query(node: &impl Visit) -> bool {
    struct Queries;
    impl Visitor for Queries {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    walk(node, &mut Queries).is_break()
}

/// Checks that a text, which a definition stores, has the literals of the syntax tree that it was made of: the text of a literal with
/// a quote behind a backslash or another quote is that of another one.
///
/// # Errors
/// `Unsupported`.
pub(super) fn check_literals<P: Visit>(
    node: &impl Visit,
    text: &str,
    parse: impl FnOnce(&str) -> Result<P>,
) -> Result<()> {
    struct Literals(Vec<Value>);
    impl Visitor for Literals {
        type Break = ();
        fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<()> {
            self.0.push(value.value.clone());
            ControlFlow::Continue(())
        }
    }
    let (mut own, mut parsed) = (Literals(Vec::new()), Literals(Vec::new()));
    _ = walk(node, &mut own);
    let is_parsed = parse(text).is_ok_and(|node| walk(&node, &mut parsed).is_continue());
    match is_parsed && own.0 == parsed.0 {
        true => Ok(()),
        false => Err(Error::Unsupported(format!("a definition with the text of these literals: {text}"))),
    }
}

/// Calls `f` with each expression before the expressions in it.
pub(super) fn visit_expressions<B>(node: &impl Visit, f: impl FnMut(&Expr) -> ControlFlow<B>) -> ControlFlow<B> {
    walk(node, &mut Before(f, std::marker::PhantomData))
}

/// Calls `f` with each expression after the expressions in it.
pub(super) fn visit_expressions_mut<B>(
    node: &mut impl VisitMut,
    f: impl FnMut(&mut Expr) -> ControlFlow<B>,
) -> ControlFlow<B> {
    walk_mut(node, &mut After(f, std::marker::PhantomData))
}

fn result<B>(ended: ControlFlow<()>, result: Option<B>) -> ControlFlow<B> {
    match (ended, result) {
        (ControlFlow::Break(()), Some(result)) => ControlFlow::Break(result),
        (ControlFlow::Continue(()), None) => ControlFlow::Continue(()),
        _ => unreachable!("a traversal breaks if and only if its visitor does"),
    }
}

struct Before<F, B>(F, std::marker::PhantomData<B>);

impl<B, F: FnMut(&Expr) -> ControlFlow<B>> Visitor for Before<F, B> {
    type Break = B;
    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<B> {
        (self.0)(expr)
    }
}

struct After<F, B>(F, std::marker::PhantomData<B>);

impl<B, F: FnMut(&mut Expr) -> ControlFlow<B>> VisitorMut for After<F, B> {
    type Break = B;
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<B> {
        (self.0)(expr)
    }
}

/// A visitor, and the value with which it has ended the traversal.
struct Keep<'v, V, B> {
    visitor: &'v mut V,
    result: Option<B>,
}

impl<V, B> Keep<'_, V, B> {
    fn keep(&mut self, ended: ControlFlow<B>) -> ControlFlow<()> {
        match ended {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(result) => {
                self.result = Some(result);
                ControlFlow::Break(())
            }
        }
    }
}

/// The visitor of all traversals.
struct Walk<'v>(&'v mut dyn Visitor<Break = ()>);

/// The visitor of all traversals that may change the tree.
struct WalkMut<'v>(&'v mut dyn VisitorMut<Break = ()>);

/// Passes the calls of a traversal on.
macro_rules! forward {
    ($trait:ident: $($method:ident($node:ty);)*) => {
        impl<V: $trait> $trait for Keep<'_, V, V::Break> {
            type Break = ();
            $(fn $method(&mut self, node: $node) -> ControlFlow<()> {
                let ended = self.visitor.$method(node);
                self.keep(ended)
            })*
        }
    };
    ($walk:ident, $trait:ident: $($method:ident($node:ty);)*) => {
        impl $trait for $walk<'_> {
            type Break = ();
            $(fn $method(&mut self, node: $node) -> ControlFlow<()> {
                self.0.$method(node)
            })*
        }
        forward!($trait: $($method($node);)*);
    };
}

forward!(Walk, Visitor:
    pre_visit_query(&Query);
    post_visit_query(&Query);
    pre_visit_select(&Select);
    post_visit_select(&Select);
    pre_visit_relation(&ObjectName);
    post_visit_relation(&ObjectName);
    pre_visit_table_factor(&TableFactor);
    post_visit_table_factor(&TableFactor);
    pre_visit_expr(&Expr);
    post_visit_expr(&Expr);
    pre_visit_statement(&Statement);
    post_visit_statement(&Statement);
    pre_visit_value(&ValueWithSpan);
    post_visit_value(&ValueWithSpan);
);

forward!(WalkMut, VisitorMut:
    pre_visit_query(&mut Query);
    post_visit_query(&mut Query);
    pre_visit_select(&mut Select);
    post_visit_select(&mut Select);
    pre_visit_relation(&mut ObjectName);
    post_visit_relation(&mut ObjectName);
    pre_visit_table_factor(&mut TableFactor);
    post_visit_table_factor(&mut TableFactor);
    pre_visit_expr(&mut Expr);
    post_visit_expr(&mut Expr);
    pre_visit_statement(&mut Statement);
    post_visit_statement(&mut Statement);
    pre_visit_value(&mut ValueWithSpan);
    post_visit_value(&mut ValueWithSpan);
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parse_query;

    #[test]
    fn a_break_ends_the_traversal_with_its_value() {
        let query = parse_query("SELECT a + 1, b FROM t WHERE c = 2").unwrap();
        let mut seen = Vec::new();
        let ended = visit_expressions(&query, |expr| {
            seen.push(expr.to_string());
            if expr.to_string() == "b" { ControlFlow::Break("found") } else { ControlFlow::Continue(()) }
        });
        assert_eq!(ended, ControlFlow::Break("found"));
        assert_eq!(seen, ["a + 1", "a", "1", "b"]);
        assert!(visit_expressions(&query, |_| ControlFlow::<()>::Continue(())).is_continue());
    }

    #[test]
    fn changes_follow_those_of_inner_expressions() {
        let mut query = parse_query("SELECT a + b").unwrap();
        let mut seen = Vec::new();
        let _ = visit_expressions_mut(&mut query, |expr| {
            seen.push(expr.to_string());
            if let Expr::Identifier(ident) = expr {
                ident.value.push('x');
            }
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(seen, ["a", "b", "ax + bx"]);
        assert_eq!(query.to_string(), "SELECT ax + bx");
    }
}

//! `x [NOT] BETWEEN SYMMETRIC a AND b`, which sqlparser 0.62 does not read.
//!
//! [`mark`] changes the tokens to ``x BETWEEN `symmetric`(a) AND b`` before the parser reads them. [`expand`] replaces the
//! mark in the syntax tree by `(x BETWEEN a AND b OR x BETWEEN b AND a)`. ASYMMETRIC is the default and is removed.

use std::ops::ControlFlow;

use crate::sql::visit::{walk, walk_mut};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Visit, VisitMut,
    Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

const NAME: &str = "symmetric";
/// Quotes the mark. No name in PostgreSQL's dialect has this quote.
const QUOTE: char = '`';

/// Marks the first bound of each BETWEEN SYMMETRIC.
pub(super) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    let is_given = |token: &TokenWithSpan| is_word(&token.token, "SYMMETRIC") || is_word(&token.token, "ASYMMETRIC");
    if !tokens.iter().any(is_given) {
        return;
    }
    let places: Vec<usize> = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)))
        .map(|(place, _)| place)
        .collect();
    let is = |at: usize, word: &str| places.get(at).is_some_and(|place| is_word(&tokens[*place].token, word));
    let mut edits: Vec<(usize, &[&str])> = Vec::new();
    for at in 1..places.len() {
        if !is(at - 1, "BETWEEN") || is(at + 1, "AND") {
            continue;
        }
        if is(at, "ASYMMETRIC") {
            edits.push((places[at], &[]));
        } else if is(at, "SYMMETRIC")
            && let Some(end) = end_of_bound(tokens, &places, at + 1)
        {
            edits.push((places[at], &[NAME, "("]));
            edits.push((places[end], &[")", "AND"]));
        }
    }
    edits.sort_unstable_by_key(|(place, _)| *place);
    for (place, words) in edits.into_iter().rev() {
        let span = tokens[place].span;
        let new = words.iter().map(|word| TokenWithSpan::new(as_token(word), span));
        tokens.splice(place..=place, new.collect::<Vec<_>>());
    }
}

/// The place of the AND behind the bound that starts at `start`.
fn end_of_bound(tokens: &[TokenWithSpan], places: &[usize], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, place) in places.iter().enumerate().skip(start) {
        match &tokens[*place].token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.checked_sub(1)?,
            token if is_word(token, "CASE") => depth += 1,
            token if is_word(token, "END") => depth = depth.checked_sub(1)?,
            token if depth == 0 && is_word(token, "AND") => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_word(token: &Token, expected: &str) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(expected))
}

fn as_token(word: &str) -> Token {
    match word {
        "(" => Token::LParen,
        ")" => Token::RParen,
        NAME => Token::make_word(NAME, Some(QUOTE)),
        word => Token::make_keyword(word),
    }
}

/// Replaces the marks in a parsed statement, query or expression.
pub(super) fn expand(parsed: &mut (impl Visit + VisitMut)) {
    struct Find;
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if marked(expr).is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if walk(parsed, &mut Find).is_break() {
        let _ = walk_mut(parsed, &mut Expand);
    }
}

/// The first bound of an expression with a mark.
fn marked(expr: &Expr) -> Option<&Expr> {
    let Expr::Between { low, .. } = expr else { return None };
    let Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) = low.as_ref() else { return None };
    let is_mark = name.0.first().and_then(|part| part.as_ident()).is_some_and(|name| name.quote_style == Some(QUOTE));
    match &list.args[..] {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(bound))] if is_mark => Some(bound),
        _ => None,
    }
}

struct Expand;

impl VisitorMut for Expand {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Some(low) = marked(expr).cloned() else { return ControlFlow::Continue(()) };
        if let Expr::Between { expr: operand, negated, high, .. } = expr {
            let (low, negated) = (Box::new(low), *negated);
            let between = |low: &Expr, high: &Expr| {
                let (low, high) = (Box::new(low.clone()), Box::new(high.clone()));
                Box::new(Expr::Between { expr: operand.clone(), negated: false, low, high })
            };
            let (left, right) = (between(&low, high), between(high, &low));
            let either = Expr::Nested(Box::new(Expr::BinaryOp { left, op: BinaryOperator::Or, right }));
            *expr = match negated {
                false => either,
                true => Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(either) })),
            };
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use crate::sql::parse_expr;

    #[test]
    fn bounds_are_swapped() {
        for (given, expected) in [
            ("x BETWEEN SYMMETRIC a + 1 AND b", "(x BETWEEN a + 1 AND b OR x BETWEEN b AND a + 1)"),
            ("x NOT BETWEEN SYMMETRIC 2 AND 1 AND y", "(NOT (x BETWEEN 2 AND 1 OR x BETWEEN 1 AND 2)) AND y"),
            ("x BETWEEN ASYMMETRIC 2 AND 1", "x BETWEEN 2 AND 1"),
            ("x BETWEEN symmetric AND 1", "x BETWEEN symmetric AND 1"),
            (
                "x BETWEEN SYMMETRIC (CASE WHEN a AND b THEN 1 END) AND f(c AND d)",
                "(x BETWEEN (CASE WHEN a AND b THEN 1 END) AND f(c AND d) \
                 OR x BETWEEN f(c AND d) AND (CASE WHEN a AND b THEN 1 END))",
            ),
            (
                "x BETWEEN SYMMETRIC CASE WHEN a AND b THEN 1 END AND 2",
                "(x BETWEEN CASE WHEN a AND b THEN 1 END AND 2 OR x BETWEEN 2 AND CASE WHEN a AND b THEN 1 END)",
            ),
        ] {
            assert_eq!(parse_expr(given).unwrap().to_string(), expected);
        }
    }
}

//! The constraint that one filter puts on one column.
//!
//! Supported forms are comparisons with constants, BETWEEN, IN, IS NULL, LIKE with a constant prefix, boolean columns,
//! and AND and OR of these. The column may be inside a lossless cast. Every other form gives the set of all values, not
//! exact.
//!
//! Invariant: every row for which the filter is true has a value of the set. If the constraint is exact, the filter is
//! true for every row with a value of the set.

use std::ops::Bound;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, InList, Like};
use datafusion::logical_expr::{Between, Expr, Operator};

use super::constant::{Domain, ValuePosition};
use super::interval::{Value, ValueSet};

/// Every row that passes the filter has a value of `set` in the column. If `exact`, the converse holds too.
#[derive(Debug, Clone)]
pub(super) struct Constraint {
    pub set: ValueSet,
    pub exact: bool,
}

impl Constraint {
    fn unknown() -> Self {
        Constraint { set: ValueSet::all(), exact: false }
    }
    fn exact(set: ValueSet) -> Self {
        Constraint { set, exact: true }
    }
}

/// The set of all values but null.
pub(super) fn not_null(domain: &Domain) -> ValueSet {
    ValueSet::interval(Bound::Excluded(domain.null()), Bound::Unbounded)
}

/// Returns the constraint of `filter` on the column that `is_column` identifies.
pub(super) fn of(filter: &Expr, domain: &Domain, is_column: &dyn Fn(&Column) -> bool) -> Constraint {
    let recurse = |expr: &Expr| of(expr, domain, is_column);
    match filter {
        Expr::Alias(alias) => recurse(&alias.expr),
        Expr::Literal(ScalarValue::Boolean(Some(true)), _) => Constraint::exact(ValueSet::all()),
        Expr::Literal(ScalarValue::Boolean(_) | ScalarValue::Null, _) => Constraint::exact(ValueSet::empty()),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            let (a, b) = (recurse(left), recurse(right));
            Constraint { set: a.set.intersect(&b.set), exact: a.exact && b.exact }
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let (a, b) = (recurse(left), recurse(right));
            Constraint { set: ValueSet::union([a.set, b.set]), exact: a.exact && b.exact }
        }
        _ => {
            let mut found = leaf(filter, domain, is_column).unwrap_or_else(Constraint::unknown);
            found.exact &= !domain.is_float();
            found
        }
    }
}

/// The constraint of a condition other than AND and OR. Returns `None` if the form is not supported.
fn leaf(filter: &Expr, domain: &Domain, is_column: &dyn Fn(&Column) -> bool) -> Option<Constraint> {
    let subject = |expr: &Expr| Subject::of(expr, domain, is_column);
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (left.as_ref(), right.as_ref()) {
            (expr, Expr::Literal(constant, _)) => compare(subject(expr)?, *op, constant, domain),
            (Expr::Literal(constant, _), expr) => compare(subject(expr)?, op.swap()?, constant, domain),
            _ => None,
        },
        Expr::Between(Between { expr, negated, low, high }) => {
            let (Expr::Literal(low, _), Expr::Literal(high, _)) = (low.as_ref(), high.as_ref()) else { return None };
            let subject = subject(expr)?;
            let (above, below) = if *negated { (Operator::Lt, Operator::Gt) } else { (Operator::GtEq, Operator::LtEq) };
            let a = compare(subject, above, low, domain)?;
            let b = compare(subject, below, high, domain)?;
            let set = if *negated { ValueSet::union([a.set, b.set]) } else { a.set.intersect(&b.set) };
            Some(Constraint { set, exact: a.exact && b.exact })
        }
        Expr::InList(list) => in_list(list, subject(&list.expr)?, domain),
        Expr::IsNull(expr) => subject(expr)?.is_bare().then(|| Constraint::exact(ValueSet::point(domain.null()))),
        Expr::IsNotNull(expr) => subject(expr)?.is_bare().then(|| Constraint::exact(not_null(domain))),
        Expr::Like(like) => prefix(like, subject(&like.expr)?, domain),
        Expr::Column(_) | Expr::IsTrue(_) | Expr::IsFalse(_) | Expr::Not(_) => boolean(filter, domain, is_column),
        _ => None,
    }
}

/// The constraint of `b`, `b IS TRUE`, `NOT b` or `b IS FALSE` on a boolean column.
fn boolean(filter: &Expr, domain: &Domain, is_column: &dyn Fn(&Column) -> bool) -> Option<Constraint> {
    let (column, value) = match filter {
        Expr::IsTrue(inner) => (inner.as_ref(), true),
        Expr::IsFalse(inner) | Expr::Not(inner) => (inner.as_ref(), false),
        other => (other, true),
    };
    match column {
        Expr::Column(name) if is_column(name) => match domain.place(&ScalarValue::Boolean(Some(value)))? {
            ValuePosition::At(value) => Some(Constraint::exact(ValueSet::point(value))),
            _ => None,
        },
        _ => None,
    }
}

/// The column side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    Bare,
    /// The column inside lossless casts.
    Cast,
}

impl Subject {
    fn is_bare(self) -> bool {
        self == Subject::Bare
    }

    fn of(expr: &Expr, domain: &Domain, is_column: &dyn Fn(&Column) -> bool) -> Option<Subject> {
        match expr {
            Expr::Alias(alias) => Subject::of(&alias.expr, domain, is_column),
            Expr::Column(name) => is_column(name).then_some(Subject::Bare),
            Expr::Cast(cast) if domain.casts_losslessly(cast.field.data_type()) => {
                Subject::of(&cast.expr, domain, is_column).map(|_| Subject::Cast)
            }
            _ => None,
        }
    }
}

/// The constraint of `subject op constant`. Returns `None` if the constant has no exact position or the operator is not
/// supported.
fn compare(subject: Subject, op: Operator, constant: &ScalarValue, domain: &Domain) -> Option<Constraint> {
    if constant.is_null() {
        return match op {
            Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                Some(Constraint::exact(ValueSet::empty()))
            }
            Operator::IsNotDistinctFrom if subject.is_bare() => Some(Constraint::exact(ValueSet::point(domain.null()))),
            Operator::IsDistinctFrom if subject.is_bare() => Some(Constraint::exact(not_null(domain))),
            _ => None,
        };
    }
    let place = domain.place(constant)?;
    let null = ValueSet::point(domain.null());
    let set = match op {
        Operator::Eq => equal(&place),
        Operator::NotEq => {
            // -0 and 0 are equal for some operators and distinct for others.
            if domain.is_float() {
                return None;
            }
            equal(&place).complement().intersect(&not_null(domain))
        }
        Operator::Lt => below(&place, false, domain),
        Operator::LtEq => below(&place, true, domain),
        Operator::Gt => above(&place, false, domain),
        Operator::GtEq => above(&place, true, domain),
        Operator::IsNotDistinctFrom => equal(&place),
        Operator::IsDistinctFrom if !domain.is_float() => ValueSet::union([equal(&place).complement(), null]),
        _ => return None,
    };
    if domain.is_float() {
        return Some(Constraint { set: with_both_zeros(set, &place, domain), exact: false });
    }
    Some(Constraint::exact(set))
}

/// The set of values equal to a constant.
fn equal(place: &ValuePosition) -> ValueSet {
    match place {
        ValuePosition::At(value) => ValueSet::point(value.clone()),
        ValuePosition::After(_) | ValuePosition::Below | ValuePosition::Above => ValueSet::empty(),
    }
}

/// The set of non-null values below a constant, or equal to it if `or_equal`.
fn below(place: &ValuePosition, or_equal: bool, domain: &Domain) -> ValueSet {
    let null = || Bound::Excluded(domain.null());
    match place {
        ValuePosition::At(value) if or_equal => ValueSet::interval(null(), Bound::Included(value.clone())),
        ValuePosition::At(value) => ValueSet::interval(null(), Bound::Excluded(value.clone())),
        ValuePosition::After(value) => ValueSet::interval(null(), Bound::Included(value.clone())),
        ValuePosition::Below => ValueSet::empty(),
        ValuePosition::Above => ValueSet::interval(null(), Bound::Unbounded),
    }
}

/// The set of values above a constant, or equal to it if `or_equal`.
fn above(place: &ValuePosition, or_equal: bool, domain: &Domain) -> ValueSet {
    match place {
        ValuePosition::At(value) if or_equal => ValueSet::interval(Bound::Included(value.clone()), Bound::Unbounded),
        ValuePosition::At(value) | ValuePosition::After(value) => {
            ValueSet::interval(Bound::Excluded(value.clone()), Bound::Unbounded)
        }
        ValuePosition::Below => ValueSet::interval(Bound::Excluded(domain.null()), Bound::Unbounded),
        ValuePosition::Above => ValueSet::empty(),
    }
}

/// Adds -0 and 0 to the set if the constant is one of them.
fn with_both_zeros(set: ValueSet, place: &ValuePosition, domain: &Domain) -> ValueSet {
    let zeros: Vec<Value> = [-0.0f64, 0.0]
        .iter()
        .filter_map(|&zero| {
            let scalar = match domain.ty() {
                keyaki_store::ColumnType::Float32 => ScalarValue::Float32(Some(zero as f32)),
                _ => ScalarValue::Float64(Some(zero)),
            };
            match domain.place(&scalar) {
                Some(ValuePosition::At(value)) => Some(value),
                _ => None,
            }
        })
        .collect();
    match place {
        ValuePosition::At(value) if zeros.contains(value) => {
            ValueSet::union(zeros.into_iter().map(ValueSet::point).chain(std::iter::once(set)))
        }
        _ => set,
    }
}

/// The constraint of `subject [NOT] IN (constants)`.
fn in_list(list: &InList, subject: Subject, domain: &Domain) -> Option<Constraint> {
    let mut sets = Vec::with_capacity(list.list.len());
    let mut exact = true;
    for item in &list.list {
        let Expr::Literal(constant, _) = item else { return None };
        if constant.is_null() && list.negated {
            // `x NOT IN (…, NULL)` is never true.
            return Some(Constraint::exact(ValueSet::empty()));
        }
        let op = if list.negated { Operator::NotEq } else { Operator::Eq };
        let one = compare(subject, op, constant, domain)?;
        exact &= one.exact;
        sets.push(one.set);
    }
    let set = if list.negated {
        // Intersects all sets by one union of their complements.
        ValueSet::union(sets.iter().map(ValueSet::complement)).complement()
    } else {
        ValueSet::union(sets)
    };
    Some(Constraint { set, exact })
}

/// The constraint of `column LIKE 'abc%...'`: the prefix before the first wildcard. Exact if the rest is `%` or empty.
fn prefix(like: &Like, _subject: Subject, domain: &Domain) -> Option<Constraint> {
    if like.negated || like.case_insensitive || like.escape_char.is_some() {
        return None;
    }
    let Expr::Literal(pattern, _) = like.pattern.as_ref() else { return None };
    let pattern = pattern.try_as_str()??;
    let end = pattern.find(['%', '_', '\\']).unwrap_or(pattern.len());
    let (text, rest) = pattern.split_at(end);
    let place = |text: &str| match domain.place(&ScalarValue::Utf8View(Some(text.to_owned())))? {
        ValuePosition::At(value) => Some(value),
        _ => None,
    };
    if rest.is_empty() {
        return Some(Constraint::exact(ValueSet::point(place(text)?)));
    }
    let low = if text.is_empty() { Bound::Excluded(domain.null()) } else { Bound::Included(place(text)?) };
    let high = match text_above(text) {
        Some(text) => Bound::Excluded(place(&text)?),
        None => Bound::Unbounded,
    };
    Some(Constraint { set: ValueSet::interval(low, high), exact: rest == "%" })
}

/// Returns the least text above every text that starts with `prefix`, or `None` if there is none. UTF-8 sorts in the
/// order of code points.
fn text_above(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let next = match u32::from(last) + 1 {
            0xd800 => 0xe000,
            code => code,
        };
        if let Some(next) = char::from_u32(next) {
            text.push(next);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::text_above;

    #[test]
    fn text_above_is_the_upper_bound_of_a_prefix() {
        assert_eq!(text_above("abc").as_deref(), Some("abd"));
        assert_eq!(text_above("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(text_above("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(text_above("\u{10ffff}"), None);
        assert_eq!(text_above(""), None);
    }
}

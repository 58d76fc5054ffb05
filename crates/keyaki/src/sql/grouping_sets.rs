//! Clauses of grouping in the forms that DataFusion has.
//!
//! `GROUP BY CUBE (a, a)`, whose keys DataFusion takes for two columns, becomes sets with one of them. `GROUP BY a,
//! ROLLUP (b)` becomes `GROUP BY GROUPING SETS ((a, b), (a))`, and `GROUP BY (a, b)` becomes `GROUP BY a, b`.
//!
//! DataFusion adds functionally dependent columns to all sets: if `a` is a key of the table, all sets contain `b`.
//!
//! `HAVING c` without GROUP BY and aggregates, which makes all rows one group, becomes `HAVING c AND count(*) >= 0`.
//! Positions in DISTINCT ON become the expressions of the select list.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Distinct, Expr, GroupByExpr, Select, SelectItem, TableFactor, TableWithJoins, Value, Visit,
    VisitMut, VisitorMut,
};

use crate::sql::using::is_aggregate;
use crate::sql::visit::{visit_expressions, walk_mut};
use crate::{Error, Result};

/// Maximum number of sets, PostgreSQL's.
const SETS_MAX: usize = 4096;
/// The clause, for errors.
const GROUP_BY: &str = "GROUP BY";

/// Combines the elements of GROUP BY in all queries of a statement.
///
/// # Errors
/// `TooComplex` for too many sets, `Unsupported` for sets within sets.
pub(super) fn combine(node: &mut impl VisitMut) -> Result<()> {
    match walk_mut(node, &mut Combine) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

fn too_many() -> Error {
    Error::TooComplex(format!("too many grouping sets: more than {SETS_MAX}"))
}

struct Combine;

impl VisitorMut for Combine {
    type Break = Error;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        if let Some(Distinct::On(keys)) = &mut select.distinct
            && let Err(error) = resolve(keys, "SELECT DISTINCT ON", &select.projection)
        {
            return ControlFlow::Break(error);
        }
        let is_ungrouped = matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
        let has_aggregates = calls_aggregates(&select.projection) || calls_aggregates(&select.having);
        if let Some(condition) = select.having.take_if(|_| is_ungrouped && !has_aggregates) {
            match crate::sql::parse_expr("count(*) >= 0") {
                Ok(always) => select.having = Some(conjunction(condition, always)),
                Err(error) => return ControlFlow::Break(error),
            }
        }
        if let GroupByExpr::Expressions(elements, _) = &mut select.group_by {
            let sets = elements.iter_mut().filter_map(|element| match element {
                Expr::GroupingSets(sets) | Expr::Rollup(sets) | Expr::Cube(sets) => Some(sets),
                _ => None,
            });
            for set in sets.flatten() {
                if let Err(error) = resolve(set, GROUP_BY, &select.projection) {
                    return ControlFlow::Break(error);
                }
            }
            if elements.iter().any(|element| matches!(element, Expr::Tuple(_))) {
                let keys = std::mem::take(elements).into_iter().flat_map(|element| match element {
                    Expr::Tuple(keys) => keys,
                    element => vec![element],
                });
                *elements = keys.collect();
            }
        }
        let GroupByExpr::Expressions(elements, modifiers) = &select.group_by else { return ControlFlow::Continue(()) };
        let is_same: IsSame = if is_one_table(&select.from) { is_same_column } else { is_equal };
        let is_combined = |element: &Expr| has_tuple(element) || repeats_a_key(element, is_same);
        if modifiers.is_empty()
            && elements.iter().any(is_set)
            && (elements.len() > 1 || elements.iter().any(is_combined))
        {
            match combined(elements, &select.projection, is_same) {
                Ok(sets) => select.group_by = GroupByExpr::Expressions(vec![Expr::GroupingSets(sets)], Vec::new()),
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

fn is_set(element: &Expr) -> bool {
    matches!(element, Expr::GroupingSets(_) | Expr::Rollup(_) | Expr::Cube(_))
}

/// True for ROLLUP and CUBE with an element of several keys: `ROLLUP ((a, b), c)`.
fn has_tuple(element: &Expr) -> bool {
    matches!(element, Expr::Rollup(parts) | Expr::Cube(parts) if parts.iter().any(|part| part.len() != 1))
}

/// A test for keys that are the same.
type IsSame = fn(&Expr, &Expr) -> bool;

fn is_equal(a: &Expr, b: &Expr) -> bool {
    a == b
}

/// As [`is_equal`], also for a column of the only table with and without the name of the table.
fn is_same_column(a: &Expr, b: &Expr) -> bool {
    match (a, b) {
        (Expr::Identifier(name), Expr::CompoundIdentifier(path))
        | (Expr::CompoundIdentifier(path), Expr::Identifier(name)) => path.last() == Some(name),
        _ => a == b,
    }
}

fn is_one_table(from: &[TableWithJoins]) -> bool {
    let [TableWithJoins { relation, joins }] = from else { return false };
    joins.is_empty() && matches!(relation, TableFactor::Table { .. } | TableFactor::Derived { .. })
}

fn repeats_a_key(element: &Expr, is_same: IsSame) -> bool {
    let (Expr::GroupingSets(parts) | Expr::Rollup(parts) | Expr::Cube(parts)) = element else { return false };
    let repeats = |keys: &[&Expr]| {
        let mut pairs = keys.iter().enumerate().flat_map(|(i, a)| keys[..i].iter().map(move |b| (a, b)));
        pairs.any(|(a, b)| is_same(a, b))
    };
    match element {
        Expr::GroupingSets(_) => parts.iter().any(|set| repeats(&set.iter().collect::<Vec<_>>())),
        _ => repeats(&parts.iter().flatten().collect::<Vec<_>>()),
    }
}

/// True for calls of common aggregates. A further aggregate does not change the result of others.
fn calls_aggregates(node: &impl Visit) -> bool {
    visit_expressions(node, |expr| if is_aggregate(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        .is_break()
}

fn conjunction(left: Expr, right: Expr) -> Expr {
    let nested = |expr| Box::new(Expr::Nested(Box::new(expr)));
    Expr::BinaryOp { left: nested(left), op: BinaryOperator::And, right: nested(right) }
}

/// The combinations of a set of each element.
fn combined(elements: &[Expr], projection: &[SelectItem], is_same: IsSame) -> Result<Vec<Vec<Expr>>> {
    let mut sets: Vec<Vec<Expr>> = vec![Vec::new()];
    for element in elements {
        let choices = choices(element, projection)?;
        if sets.len() * choices.len() > SETS_MAX {
            return Err(too_many());
        }
        if choices.iter().flatten().any(is_set) {
            return Err(Error::Unsupported("grouping sets within GROUPING SETS (list the sets)".into()));
        }
        let with = |set: &Vec<Expr>| {
            let set = set.clone();
            choices.iter().map(move |choice| {
                let mut set = set.clone();
                for key in choice {
                    if !set.iter().any(|other| is_same(other, key)) {
                        set.push(key.clone());
                    }
                }
                set
            })
        };
        sets = sets.iter().flat_map(|set| with(set).collect::<Vec<_>>()).collect();
    }
    Ok(sets)
}

/// The sets of keys that one element of GROUP BY stands for.
fn choices(element: &Expr, projection: &[SelectItem]) -> Result<Vec<Vec<Expr>>> {
    let resolved = |key: &Expr| named(key, GROUP_BY, projection);
    // The positions in sets are resolved.
    let keys = |parts: &[Vec<Expr>]| parts.iter().flatten().cloned().collect::<Vec<_>>();
    Ok(match element {
        Expr::GroupingSets(sets) => sets.iter().map(|set| keys(std::slice::from_ref(set))).collect(),
        Expr::Rollup(parts) => (0..=parts.len()).rev().map(|len| keys(&parts[..len])).collect(),
        Expr::Cube(parts) => {
            let subsets = 1usize.checked_shl(parts.len() as u32).filter(|subsets| *subsets <= SETS_MAX);
            let subsets = subsets.ok_or_else(too_many)?;
            let chosen = |subset: usize| {
                let parts = parts.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
                keys(&parts.map(|(_, part)| part.clone()).collect::<Vec<_>>())
            };
            (0..subsets).rev().map(chosen).collect()
        }
        Expr::Tuple(parts) => vec![parts.iter().map(resolved).collect::<Result<_>>()?],
        key => vec![vec![resolved(key)?]],
    })
}

/// Replaces positions by the expressions of the select list.
///
/// # Errors
/// As [`named`].
fn resolve(keys: &mut [Expr], clause: &str, projection: &[SelectItem]) -> Result<()> {
    keys.iter_mut().try_for_each(|key| {
        *key = named(key, clause, projection)?;
        Ok(())
    })
}

/// The expression of the select list that a number stands for. Other keys stay.
///
/// # Errors
/// `InvalidColumnReference` for a position that the select list does not have, `Unsupported` for one behind `*`.
fn named(key: &Expr, clause: &str, projection: &[SelectItem]) -> Result<Expr> {
    let Expr::Value(value) = key else { return Ok(key.clone()) };
    let Value::Number(number, _) = &value.value else { return Ok(key.clone()) };
    let missing = || Error::InvalidColumnReference(format!("{clause} position {number} is not in select list"));
    let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1)).ok_or_else(missing)?;
    for item in projection.iter().take(place + 1) {
        if matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)) {
            return Err(Error::Unsupported(format!("{clause} with a position behind * (name the column)")));
        }
    }
    match projection.get(place) {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => Ok(expr.clone()),
        _ => Err(missing()),
    }
}

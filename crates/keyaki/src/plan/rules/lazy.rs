//! Conditions that protect others: `n <> 0 AND 100 / n > 5`.
//!
//! DataFusion evaluates both operands of AND and OR for all rows of a batch, unless one of them decides most rows, and
//! replaces CASE with boolean results by AND and OR. A division then fails for rows that the other operand excludes. As
//! in PostgreSQL, an operand that divides, or that calls a function which fails for some arguments (`PARTIAL` and
//! [`domains`]), is evaluated here only for the rows for which no earlier one decides.
//! Operands with columns that it does not use do not protect it, so that it stays a condition of as few tables as
//! before.
//!
//! | expression | becomes |
//! |---|---|
//! | `a AND b` | `a AND CASE true WHEN a IS NOT FALSE THEN b ELSE false END` |
//! | `a OR b` | `a OR CASE true WHEN a THEN true ELSE b END` |
//! | `CASE WHEN a THEN b … END` | `CASE true WHEN a THEN b … END`, which DataFusion does not replace |
//! | `sum(b) FILTER (WHERE a)` | `sum(CASE true WHEN a THEN b END) FILTER (WHERE a)`, if `b` can fail |
//!
//! The protecting operands stay conditions of their own, for which indexes can be used. CASE keeps its branches
//! if one of them divides, converts a text, or calls one of the functions of `PARTIAL` and [`domains`].

use std::collections::HashSet;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunctionParams, Case, Cast, ScalarFunction, WindowFunctionParams};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_binary, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Filter, JoinType, LogicalPlan, Operator, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};

use super::lists::is_subquery;
use super::rewritten;
use crate::base::tree::{PlanTree, Tree};
use crate::values::domains;

/// The arguments of regular expressions behind the text.
const PATTERN: &[usize] = &[1, 2, 3, 4, 5];

/// Functions that fail for some arguments, beside those of [`domains`], and the places of these arguments. No place
/// stands for all of them.
const PARTIAL: [(&str, &[usize]); 33] = [
    ("chr", &[]),
    ("date_trunc", &[0, 2]),
    ("decode", &[]),
    ("div", &[1]),
    ("factorial", &[]),
    ("format", &[0]),
    ("get_byte", &[]),
    ("json_remove_path", &[]),
    ("lcm", &[]),
    ("like_pattern", &[]),
    ("make_date", &[]),
    ("make_time", &[]),
    ("make_timestamp", &[]),
    ("overlay", &[2, 3]),
    ("posix_pattern", &[]),
    ("printf", &[0]),
    ("regexp_all_matches", PATTERN),
    ("regexp_count", PATTERN),
    ("regexp_instr", PATTERN),
    ("regexp_like", PATTERN),
    ("regexp_match", PATTERN),
    ("regexp_replace", PATTERN),
    ("regexp_split_to_array", PATTERN),
    ("regexp_substr", PATTERN),
    ("set_byte", &[]),
    ("similar_pattern", &[]),
    ("split_part", &[2]),
    ("substr", &[2]),
    ("timezone", &[0]),
    ("to_char", &[1]),
    ("to_date", &[]),
    ("to_timestamp", &[]),
    ("width_bucket", &[]),
];

/// Functions in place of `/` and `%`.
const DIVIDING: [&str; 2] = ["divide", "remainder"];

/// The rule. Operands have their types already, and operators are not replaced yet.
#[derive(Debug)]
pub(in crate::plan) struct LazyConditions;

impl AnalyzerRule for LazyConditions {
    fn name(&self) -> &str {
        "lazy_conditions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut |node| rewritten(node, lazy))?.data)
    }
}

/// Protects the conditions of a filter, a scan or a join from each other. Their order is not that of the statement:
/// those of views, derived tables and WITH queries come together only when the optimizer pushes filters down.
#[derive(Debug)]
pub(super) struct ProtectConditions;

impl OptimizerRule for ProtectConditions {
    fn name(&self) -> &str {
        "protect_conditions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::TableScan(mut scan) => {
                let protected = protected(&scan.filters)?;
                let changed = protected.is_some();
                scan.filters = protected.unwrap_or(scan.filters);
                Ok(Transformed::new_transformed(LogicalPlan::TableScan(scan), changed))
            }
            LogicalPlan::Filter(filter) => {
                let conditions: Vec<Expr> = split_conjunction(&filter.predicate).into_iter().cloned().collect();
                match protected(&conditions)?.and_then(conjunction) {
                    Some(predicate) => {
                        Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)))
                    }
                    None => Ok(Transformed::no(LogicalPlan::Filter(filter))),
                }
            }
            LogicalPlan::Join(mut join) if join.join_type == JoinType::Inner => {
                let filter = join.filter.iter().flat_map(split_conjunction);
                let protected = protected(&filter.cloned().collect::<Vec<_>>())?.and_then(conjunction);
                let changed = protected.is_some();
                join.filter = protected.or(join.filter);
                Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
            }
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Conditions of which none divides for rows that another one excludes; `None` if they need no change.
pub(in crate::plan) fn protected(conditions: &[Expr]) -> Result<Option<Vec<Expr>>> {
    let mut changed = false;
    let mut all = Vec::with_capacity(conditions.len());
    for condition in conditions {
        let others = conditions.iter().filter(|other| *other != condition);
        let guard = match divides(condition)? && !is_lazy(condition) && !joins(condition) {
            true => conjunction(guards(others, condition)?),
            false => None,
        };
        changed |= guard.is_some();
        all.push(match guard {
            Some(guard) => choice(guard.is_not_false(), condition.clone(), lit(false)),
            None => condition.clone(),
        });
    }
    Ok(changed.then_some(all))
}

fn lazy(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if divides(&right)? && !is_lazy(&right) && !is_chain(&right, op) && !joins(&right) =>
        {
            let guard = guard(&left, op, &right)?;
            let right = match (guard, op) {
                (None, _) => right,
                (Some(guard), Operator::And) => Box::new(choice(guard.is_not_false(), *right, lit(false))),
                (Some(guard), _) => Box::new(choice(guard, lit(true), *right)),
            };
            Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right })))
        }
        Expr::Case(case) if case.expr.is_none() && is_condition(&case, schema)? => {
            Ok(Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })))
        }
        Expr::AggregateFunction(mut call) => {
            let AggregateFunctionParams { args, filter, order_by, .. } = &mut call.params;
            let order = order_by.iter_mut().map(|sort| &mut sort.expr);
            let changed = protect(args.iter_mut().chain(order), filter.as_deref(), schema)?;
            Ok(Transformed::new_transformed(Expr::AggregateFunction(call), changed))
        }
        Expr::WindowFunction(mut call) => {
            let WindowFunctionParams { args, filter, .. } = &mut call.params;
            let changed = protect(args.iter_mut(), filter.as_deref(), schema)?;
            Ok(Transformed::new_transformed(Expr::WindowFunction(call), changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Makes the arguments of an aggregate that can fail NULL in rows that do not pass its filter. Returns true if there are any.
fn protect<'a>(
    arguments: impl Iterator<Item = &'a mut Expr>,
    filter: Option<&Expr>,
    schema: &DFSchema,
) -> Result<bool> {
    let Some(filter) = filter.filter(|filter| !filter.is_volatile()) else { return Ok(false) };
    let mut changed = false;
    for argument in arguments {
        if can_fail(argument, schema)? && !is_lazy(argument) {
            let nothing = lit(ScalarValue::try_from(&argument.get_type(schema)?)?);
            *argument = choice(filter.clone(), argument.clone(), nothing);
            changed = true;
        }
    }
    Ok(changed)
}

/// The operands of a chain of AND or OR that protect another one: they use its columns only, can be evaluated twice,
/// and do not divide.
fn guard(chain: &Expr, op: Operator, protected: &Expr) -> Result<Option<Expr>> {
    let operands = match op {
        Operator::And => split_conjunction(chain),
        _ => split_binary(chain, op),
    };
    let guards = guards(operands.into_iter(), protected)?;
    Ok(match op {
        Operator::And => conjunction(guards),
        _ => disjunction(guards),
    })
}

/// Those of some operands that protect another one.
fn guards<'a>(operands: impl Iterator<Item = &'a Expr>, protected: &Expr) -> Result<Vec<Expr>> {
    let known = columns_of(protected)?;
    let mut guards = Vec::new();
    for operand in operands {
        let columns = columns_of(operand)?;
        let is_own = !columns.is_empty() && columns.is_subset(&known);
        if is_own && !divides(operand)? && !operand.is_volatile() && !has_query(operand)? {
            guards.push(operand.clone());
        }
    }
    Ok(guards)
}

/// The columns that an expression uses, also those of outer queries.
fn columns_of(expr: &Expr) -> Result<HashSet<Column>> {
    let mut columns = HashSet::new();
    expr.apply_dyn(&mut |expr| {
        if let Expr::Column(column) | Expr::OuterReferenceColumn(_, column) = expr {
            columns.insert(column.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(columns)
}

/// `CASE true WHEN condition THEN one ELSE other END`.
fn choice(condition: Expr, one: Expr, other: Expr) -> Expr {
    let branches = vec![(Box::new(condition), Box::new(one))];
    Expr::Case(Case { expr: Some(Box::new(lit(true))), when_then_expr: branches, else_expr: Some(Box::new(other)) })
}

/// True for a result of this rule.
fn is_lazy(expr: &Expr) -> bool {
    matches!(expr, Expr::Case(Case { expr: Some(value), .. }) if **value == lit(true))
}

/// True for a chain of the same operator, whose operands are protected one by one.
fn is_chain(expr: &Expr, operator: Operator) -> bool {
    matches!(expr, Expr::BinaryExpr(BinaryExpr { op, .. }) if *op == operator)
}

/// True for an equality between columns of different tables, which may be the key of a join.
fn joins(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return false };
    let tables = |expr: &Expr| expr.column_refs().into_iter().map(|column| column.relation.clone()).collect::<Vec<_>>();
    let (left, right) = (tables(left), tables(right));
    !left.is_empty() && !right.is_empty() && left.iter().all(|table| !right.contains(table))
}

fn has_query(expr: &Expr) -> Result<bool> {
    expr.exists_dyn(&mut |expr| Ok(is_subquery(expr)))
}

/// True for a CASE of conditions that can fail.
fn is_condition(case: &Case, schema: &DFSchema) -> Result<bool> {
    let results = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
    let mut fails = false;
    for expr in case.when_then_expr.iter().map(|(when, _)| when).chain(results.clone()) {
        fails |= can_fail(expr, schema)?;
    }
    let is_boolean = |expr: &Expr| expr.get_type(schema).is_ok_and(|ty| ty == arrow::datatypes::DataType::Boolean);
    Ok(fails && results.into_iter().any(|result| is_boolean(result)))
}

/// True if a function fails for some values of columns.
fn is_partial(call: &ScalarFunction) -> Result<bool> {
    let name = call.func.name();
    let places: &[usize] = match PARTIAL.iter().find(|(partial, _)| *partial == name) {
        Some((_, places)) => places,
        None if domains::NAMES.contains(&name) => &[],
        None => return Ok(false),
    };
    for (place, arg) in call.args.iter().enumerate() {
        if (places.is_empty() || places.contains(&place)) && !columns_of(arg)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if an expression divides by a number that depends on columns, or calls a partial function.
fn divides(expr: &Expr) -> Result<bool> {
    expr.exists_dyn(&mut |expr| {
        let divisor = match expr {
            Expr::ScalarFunction(call) if is_partial(call)? => return Ok(true),
            Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => right.as_ref(),
            // In place of the operators, after `ReplaceOperators`.
            Expr::ScalarFunction(ScalarFunction { func, args }) if DIVIDING.contains(&func.name()) => match &args[..] {
                [_, divisor] => divisor,
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        Ok(!is_never_zero(divisor) && !columns_of(divisor)?.is_empty())
    })
}

/// True if an expression can fail for a value of its columns, other than by leaving the range of a number, or if it
/// divides by zero.
fn can_fail(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    expr.exists_dyn(&mut |expr| match expr {
        Expr::ScalarFunction(call) => is_partial(call),
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => {
            Ok(is_zero(right)? || !is_number(right) && !is_never_zero(right) && !columns_of(expr)?.is_empty())
        }
        Expr::Cast(Cast { expr, field }) => {
            let is_read = !field.data_type().is_string() && expr.get_type(schema).is_ok_and(|ty| ty.is_string());
            Ok(is_read && !columns_of(expr)?.is_empty())
        }
        _ => Ok(false),
    })
}

/// True for a constant that is zero, or cannot be computed.
fn is_zero(expr: &Expr) -> Result<bool> {
    if !columns_of(expr)?.is_empty() || expr.is_volatile() || has_query(expr)? {
        return Ok(false);
    }
    let value = ExprSimplifier::new(SimplifyContext::default()).simplify(expr.clone());
    Ok(value.map_or(true, |value| value.as_literal().is_some_and(is_zero_value)))
}

/// True for `nullif(x, 0)`.
fn is_never_zero(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == "nullif" => {
            matches!(&args[..], [_, Expr::Literal(value, _)] if is_zero_value(value))
        }
        Expr::Cast(Cast { expr, .. }) => is_never_zero(expr),
        _ => false,
    }
}

fn is_zero_value(value: &ScalarValue) -> bool {
    ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| *value == zero)
}

/// True for a literal other than zero and NULL.
fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => {
            !value.is_null() && ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| *value != zero)
        }
        Expr::Cast(Cast { expr, .. }) => is_number(expr),
        _ => false,
    }
}

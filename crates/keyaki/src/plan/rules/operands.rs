//! Common types of operands, where DataFusion 55 chooses types that cannot represent all values.
//!
//! - Decimals and floats, also as elements of arrays: DataFusion converts both to DECIMAL(30, 15), so small numbers become
//!   zero and large ones are errors. The common type is DOUBLE PRECISION, as in PostgreSQL.
//! - Timestamps and texts, dates or timestamps with nanoseconds: DataFusion converts all to nanoseconds, which end in the
//!   year 2262. The common type is that of columns, with microseconds.
//! - UUIDs and texts: DataFusion has no common type. Texts become UUIDs.
//! - Arrays and texts: texts become arrays.
//! - Intervals and texts: as UUIDs. Differences of timestamps become intervals, too.
//! - Decimals in CASE and UNION: DataFusion finds their common type too late for operators above, which take the type of the
//!   first one. Quotients get their digits again ([`refitted`]).
//! - Literals of texts beside values of other types in CASE, in functions that return one of their arguments, in UNION,
//!   and beside booleans: the literals get the type of the others. Marks of literals ([`marked`]) are removed.
//!
//! [`ConvertOperands`] runs before DataFusion resolves the types.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, Case, InList};
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Projection, Union, cast};
use datafusion::optimizer::AnalyzerRule;

use super::rewritten;
use crate::base::arrays::{element_type, innermost, is_list, list_of};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::tree::{PlanTree, Tree};
use crate::base::uuids::{UUID, is_uuid};
use crate::values::operators::{has_added_digits, refitted};
use crate::values::untyped::marked;

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct ConvertOperands;

impl AnalyzerRule for ConvertOperands {
    fn name(&self) -> &str {
        "convert_operands"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let mut is_changed = false;
        let converted = plan.transform_up_with_subqueries_dyn(&mut |plan| {
            // Inputs and subqueries with other types come before the nodes that use them.
            let plan = if is_changed { plan.recompute_schema()? } else { plan };
            let converted = rewrite(plan)?;
            is_changed |= converted.transformed;
            Ok(converted)
        })?;
        Ok(converted.data)
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let plan = match plan {
        LogicalPlan::TableScan(_) => return Ok(Transformed::no(plan)),
        LogicalPlan::Union(union) => return convert_union(union),
        other => other,
    };
    let schema = merge_schema(&plan.inputs());
    let mut found = false;
    plan.apply_expressions_dyn(&mut |expr| {
        found |= expr.exists_dyn(&mut |expr| {
            Ok(has_added_digits(expr) || Operands::of(expr).is_some_and(|operands| operands.are_converted(&schema)))
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(Transformed::no(plan));
    }
    // The columns of VALUES have their types already, and a decimal with more digits is of another type.
    let keeps_digits = matches!(plan, LogicalPlan::Values(_));
    rewritten(plan, |expr, schema| match Operands::of(&expr).and_then(|operands| operands.common(schema)) {
        Some(Common::Literal(DataType::Decimal128(..))) if keeps_digits => Ok(Transformed::no(expr)),
        _ => convert(expr, schema)?.transform_data(|expr| Ok(refitted(expr, schema))),
    })
}

/// The operands of an expression that get a common type.
struct Operands<'a> {
    operands: Vec<&'a Expr>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Texts are converted as well.
    Comparison,
    /// The result is one of the operands: literals are converted.
    Selection,
    /// As a selection, of the results of a CASE: decimals are converted, too.
    Branches,
    /// Decimals beside floats only are converted.
    Elements,
}

/// Functions that return one of their arguments.
const SELECTING: [&str; 4] = ["coalesce", "nullif", "greatest", "least"];

/// Functions of arrays and elements, or of elements.
const OF_ELEMENTS: [&str; 12] = [
    "make_array",
    "array_append",
    "array_prepend",
    "array_concat",
    "array_position",
    "array_positions",
    "array_has",
    "array_remove",
    "array_remove_n",
    "array_remove_all",
    "array_replace",
    "array_replace_all",
];

impl<'a> Operands<'a> {
    fn of(expr: &'a Expr) -> Option<Operands<'a>> {
        let compared = |operands| Some(Operands { operands, kind: Kind::Comparison });
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() => {
                compared(vec![left, right])
            }
            Expr::InList(InList { expr, list, .. }) => compared(std::iter::once(expr.as_ref()).chain(list).collect()),
            Expr::Between(Between { expr, low, high, .. }) => compared(vec![expr, low, high]),
            Expr::ScalarFunction(call) if SELECTING.contains(&call.func.name()) => {
                Some(Operands { operands: call.args.iter().collect(), kind: Kind::Selection })
            }
            Expr::ScalarFunction(call) if OF_ELEMENTS.contains(&call.func.name()) => {
                Some(Operands { operands: call.args.iter().collect(), kind: Kind::Elements })
            }
            Expr::Case(case) => {
                let results = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
                let operands = results.chain(case.else_expr.as_deref()).collect();
                Some(Operands { operands, kind: Kind::Branches })
            }
            _ => None,
        }
    }

    /// True if an operand is converted or has a mark.
    fn are_converted(&self, schema: &DFSchema) -> bool {
        self.operands.iter().any(|operand| marked(operand).is_some()) || self.common(schema).is_some()
    }

    /// The common type; `None` if DataFusion's represents all values.
    fn common(&self, schema: &DFSchema) -> Option<Common> {
        // Types of parameters may not be known yet.
        let types = || self.operands.iter().filter_map(|operand| operand.get_type(schema).ok());
        match self.kind {
            Kind::Elements => {
                let floats = Common::of(types(), false).filter(|common| matches!(common, Common::Float));
                let has_marks = self.operands.iter().any(|operand| marked(operand).is_some());
                floats.or_else(|| if has_marks { self.literal(schema) } else { None })
            }
            Kind::Comparison => Common::of(types(), true).or_else(|| self.literal(schema)),
            Kind::Selection => Common::of(types(), false).or_else(|| self.literal(schema)),
            Kind::Branches => {
                let common = Common::of(types(), false).or_else(|| self.literal(schema));
                common.or_else(|| Common::decimal(&types().collect::<Vec<_>>()))
            }
        }
    }

    /// The common type of the other operands, if there are literals of texts.
    fn literal(&self, schema: &DFSchema) -> Option<Common> {
        let (literals, others): (Vec<&Expr>, Vec<&Expr>) =
            self.operands.iter().partition(|operand| is_untyped(operand));
        let others = others.iter().map(|operand| operand.get_type(schema).ok()).collect::<Option<Vec<_>>>()?;
        let common = Common::literal(!literals.is_empty(), &others)?;
        match (&common, self.kind) {
            // DataFusion converts literals beside other types.
            (Common::Literal(ty), Kind::Comparison) if *ty != DataType::Boolean => None,
            _ => Some(common),
        }
    }
}

/// True for a text whose type depends on its surroundings.
fn is_untyped(expr: &Expr) -> bool {
    literal_type(expr, &DataType::Null).is_some()
}

/// The common type of operands of different types.
#[derive(Debug, Clone)]
enum Common {
    Float,
    /// The type of timestamps, and whether texts are converted.
    Timestamp(DataType, bool),
    /// Texts are converted to UUIDs.
    Uuid,
    /// Texts and durations are converted to intervals.
    Interval,
    /// Texts are converted to arrays of this type.
    Array(DataType),
    /// Literals of texts are converted to this type.
    Literal(DataType),
    /// Decimals and integers are converted to this type.
    Decimal(DataType),
}

impl Common {
    /// The common type; `None` if DataFusion's represents all values.
    fn of(types: impl IntoIterator<Item = DataType>, with_texts: bool) -> Option<Common> {
        let types: Vec<DataType> = types.into_iter().collect();
        let innermost = || types.iter().map(innermost);
        if innermost().any(DataType::is_floating) && innermost().any(DataType::is_decimal) {
            return Some(Common::Float);
        }
        if let Some(array) = types.iter().find(|ty| is_list(ty)) {
            return types.iter().any(DataType::is_string).then(|| Common::Array(array.clone()));
        }
        if types.iter().any(is_uuid) {
            return types.iter().any(DataType::is_string).then_some(Common::Uuid);
        }
        if types.contains(&INTERVAL) {
            let is_other = |ty: &DataType| ty.is_string() || is_interval(ty) && *ty != INTERVAL;
            return types.iter().any(is_other).then_some(Common::Interval);
        }
        let timestamp = types.iter().find(|ty| matches!(ty, DataType::Timestamp(TimeUnit::Microsecond, _)))?;
        let common = Common::Timestamp(timestamp.clone(), with_texts);
        types.iter().any(|ty| common.converted(ty).is_some()).then_some(common)
    }

    /// The type of literals of texts beside `others`; `None` without literals, and if others are texts, too.
    fn literal(has_literals: bool, others: &[DataType]) -> Option<Common> {
        if !has_literals || others.iter().any(DataType::is_string) {
            return None;
        }
        let others: Vec<DataType> = others.iter().filter(|ty| !ty.is_null()).cloned().collect();
        let is_nested = |ty: &DataType| ty.is_nested() && !is_list(ty);
        let common = if others.is_empty() { None } else { type_union_resolution(&others) };
        common.filter(|ty| !is_nested(ty)).map(Common::Literal)
    }

    /// The type of different decimals, or of decimals and integers.
    fn decimal(types: &[DataType]) -> Option<Common> {
        let types: Vec<DataType> = types.iter().filter(|ty| !ty.is_null()).cloned().collect();
        let is_exact = |ty: &DataType| ty.is_decimal() || ty.is_integer();
        let has_decimals = types.iter().any(DataType::is_decimal) && types.iter().all(is_exact);
        let differ = types.windows(2).any(|pair| pair[0] != pair[1]);
        if has_decimals && differ { type_union_resolution(&types).map(Common::Decimal) } else { None }
    }

    /// The type of literals with a mark.
    fn of_marked(&self) -> DataType {
        match self {
            Common::Float => DataType::Float64,
            Common::Timestamp(ty, _) | Common::Array(ty) | Common::Literal(ty) | Common::Decimal(ty) => ty.clone(),
            Common::Uuid => UUID,
            Common::Interval => INTERVAL,
        }
    }

    /// The type to which an operand of type `ty` is converted; `None` if it stays as it is.
    fn converted(&self, ty: &DataType) -> Option<DataType> {
        match (self, ty) {
            (Common::Float, ty) if innermost(ty).is_decimal() => Some(floats_of(ty)),
            (Common::Timestamp(common, _), DataType::Date32) => Some(common.clone()),
            (Common::Timestamp(_, _), DataType::Timestamp(TimeUnit::Nanosecond, zone)) => {
                Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
            }
            (Common::Timestamp(common, true), ty) if ty.is_string() => Some(common.clone()),
            (Common::Uuid, ty) if ty.is_string() => Some(UUID),
            (Common::Decimal(common), ty) if ty != common && !ty.is_null() => Some(common.clone()),
            (Common::Array(array), ty) if ty.is_string() => Some(array.clone()),
            (Common::Interval, ty) if ty.is_string() || is_interval(ty) && *ty != INTERVAL => Some(INTERVAL),
            _ => None,
        }
    }

    fn convert(&self, operand: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        if let Some(literal) = marked(&operand) {
            let ty = literal_type(literal, &self.of_marked());
            return Ok(Transformed::yes(match ty {
                Some(ty) => cast(literal.clone(), ty),
                None => literal.clone(),
            }));
        }
        if let Common::Literal(ty) = self {
            return Ok(match literal_type(&operand, ty) {
                Some(ty) => Transformed::yes(cast(operand, ty)),
                None => Transformed::no(operand),
            });
        }
        let Ok(ty) = operand.get_type(schema) else { return Ok(Transformed::no(operand)) };
        Ok(match self.converted(&ty) {
            Some(ty) => Transformed::yes(cast(operand, ty)),
            None => Transformed::no(operand),
        })
    }
}

/// Floats, in arrays of the dimensions of a type.
fn floats_of(ty: &DataType) -> DataType {
    element_type(ty).map_or(DataType::Float64, |element| list_of(floats_of(element)))
}

/// Converts the operands of an expression to their common type.
fn convert(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some(operands) = Operands::of(&expr).filter(|operands| operands.are_converted(schema)) else {
        return Ok(Transformed::no(expr));
    };
    let common = operands.common(schema);
    let converted = |operand: Expr| match &common {
        Some(common) => common.convert(operand, schema),
        None => Ok(match marked(&operand) {
            Some(literal) => Transformed::yes(literal.clone()),
            None => Transformed::no(operand),
        }),
    };
    let Expr::Case(Case { expr: operand, when_then_expr, else_expr }) = expr else {
        return expr.map_children(converted);
    };
    let result = |then: Box<Expr>| converted(*then).map(|converted| Box::new(converted.data));
    let branches = when_then_expr.into_iter().map(|(when, then)| Ok((when, result(then)?)));
    let when_then_expr = branches.collect::<Result<Vec<_>>>()?;
    let else_expr = else_expr.map(result).transpose()?;
    Ok(Transformed::yes(Expr::Case(Case { expr: operand, when_then_expr, else_expr })))
}

/// Converts the columns of the inputs of a UNION to common types.
fn convert_union(union: Union) -> Result<Transformed<LogicalPlan>> {
    let width = union.inputs.iter().map(|input| input.schema().fields().len()).min().unwrap_or(0);
    let common: Vec<Option<Common>> = (0..width).map(|column| common_of_inputs(&union.inputs, column)).collect();
    if common.iter().all(Option::is_none) {
        // The types of all inputs may have changed alike.
        let is_current = union
            .inputs
            .first()
            .is_none_or(|first| first.schema().has_equivalent_names_and_types(&union.schema).is_ok());
        return Ok(match is_current {
            true => Transformed::no(LogicalPlan::Union(union)),
            false => Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)),
        });
    }
    let converted = |input: Arc<LogicalPlan>| -> Result<Arc<LogicalPlan>> {
        let mut found = false;
        let columns = input.schema().iter().enumerate().map(|(i, (qualifier, field))| {
            let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
            let ty = match common.get(i).and_then(Option::as_ref) {
                Some(Common::Literal(ty)) => type_of_literals(&input, i, ty),
                Some(common) => common.converted(field.data_type()),
                None => None,
            };
            match ty {
                Some(ty) => {
                    found = true;
                    cast(column, ty).alias_qualified(qualifier.cloned(), field.name())
                }
                None => column,
            }
        });
        let columns = columns.collect();
        Ok(match found {
            true => Arc::new(LogicalPlan::Projection(Projection::try_new(columns, input)?)),
            false => input,
        })
    };
    let inputs = union.inputs.into_iter().map(converted).collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?)))
}

fn common_of_inputs(inputs: &[Arc<LogicalPlan>], column: usize) -> Option<Common> {
    let types = |inputs: &[&Arc<LogicalPlan>]| -> Vec<DataType> {
        inputs.iter().map(|input| input.schema().field(column).data_type().clone()).collect()
    };
    let common = Common::of(types(&inputs.iter().collect::<Vec<_>>()), false);
    let common = common.or_else(|| {
        let (literals, others): (Vec<_>, Vec<_>) = inputs.iter().partition(|input| is_untyped_column(input, column));
        Common::literal(!literals.is_empty(), &types(&others))
    });
    common.or_else(|| Common::decimal(&types(&inputs.iter().collect::<Vec<_>>())))
}

/// True for a column of literals of texts.
fn is_untyped_column(plan: &LogicalPlan, column: usize) -> bool {
    type_of_literals(plan, column, &DataType::Null).is_some()
}

/// As [`literal_type`], for a column of literals.
fn type_of_literals(plan: &LogicalPlan, column: usize, common: &DataType) -> Option<DataType> {
    match plan {
        LogicalPlan::Projection(projection) => literal_type(&projection.expr.get(column)?.clone().unalias(), common),
        LogicalPlan::Union(union) => {
            let types = union.inputs.iter().map(|input| type_of_literals(input, column, common));
            type_union_resolution(&types.collect::<Option<Vec<_>>>()?)
        }
        _ => None,
    }
}

/// The type of a literal of a text beside values of a type: decimals keep all digits. `None` for other expressions.
fn literal_type(expr: &Expr, common: &DataType) -> Option<DataType> {
    let Expr::Literal(value, _) = marked(expr).unwrap_or(expr) else { return None };
    let text = value.try_as_str().flatten()?.trim().trim_start_matches(['+', '-']);
    let DataType::Decimal128(precision, scale) = *common else { return Some(common.clone()) };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let max = i64::from(DECIMAL128_MAX_PRECISION);
    let whole =
        (whole.len() as i64).saturating_add(exponent).max(i64::from(precision) - i64::from(scale)).clamp(0, max);
    let fraction = (fraction.len() as i64).saturating_sub(exponent).max(i64::from(scale)).clamp(0, max - whole);
    Some(DataType::Decimal128((whole + fraction).max(1) as u8, fraction as i8))
}

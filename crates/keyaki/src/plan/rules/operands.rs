//! Common types of operands, where DataFusion 55 chooses types that cannot represent all values.
//!
//! - Decimals and floats, also as elements of arrays: DataFusion converts both to DECIMAL(30, 15), so small numbers become
//!   zero and large ones are errors. The common type is DOUBLE PRECISION, as in PostgreSQL.
//! - Timestamps and texts, dates or timestamps with nanoseconds: DataFusion converts all to nanoseconds, which end in the
//!   year 2262. The common type is that of columns, with microseconds.
//! - UUIDs and texts: DataFusion has no common type. Texts become UUIDs.
//! - Arrays and texts: texts become arrays.
//! - Intervals and texts: as UUIDs. Differences of timestamps become intervals, too.
//!
//! [`ConvertOperands`] runs before DataFusion resolves the types.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, Case, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Projection, Union, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::base::arrays::{element_type, innermost, is_list, list_of};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::uuids::{UUID, is_uuid};

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct ConvertOperands;

impl AnalyzerRule for ConvertOperands {
    fn name(&self) -> &str {
        "convert_operands"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(rewrite)?.data)
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
    plan.apply_expressions(|expr| {
        found |=
            expr.exists(|expr| Ok(Operands::of(expr).is_some_and(|operands| operands.common(&schema).is_some())))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    let rewritten = plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(|expr| convert(expr, &schema))?.update_data(|expr| name.restore(expr)))
    })?;
    rewritten.map_data(LogicalPlan::recompute_schema)
}

/// The operands of an expression that get a common type.
struct Operands<'a> {
    operands: Vec<&'a Expr>,
    /// Texts are converted as well.
    is_comparison: bool,
    /// Decimals beside floats only are converted.
    only_decimals: bool,
}

/// Functions that return one of their arguments.
const SELECTING: [&str; 6] = ["coalesce", "nullif", "nvl", "ifnull", "greatest", "least"];

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
        let compared = |operands| Some(Operands { operands, is_comparison: true, only_decimals: false });
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() => {
                compared(vec![left, right])
            }
            Expr::InList(InList { expr, list, .. }) => compared(std::iter::once(expr.as_ref()).chain(list).collect()),
            Expr::Between(Between { expr, low, high, .. }) => compared(vec![expr, low, high]),
            Expr::ScalarFunction(call) if SELECTING.contains(&call.func.name()) => {
                Some(Operands { operands: call.args.iter().collect(), is_comparison: false, only_decimals: false })
            }
            Expr::ScalarFunction(call) if OF_ELEMENTS.contains(&call.func.name()) => {
                Some(Operands { operands: call.args.iter().collect(), is_comparison: false, only_decimals: true })
            }
            Expr::Case(case) => {
                let results = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
                let operands = results.chain(case.else_expr.as_deref()).collect();
                Some(Operands { operands, is_comparison: false, only_decimals: false })
            }
            _ => None,
        }
    }

    /// The common type; `None` if DataFusion's represents all values.
    fn common(&self, schema: &DFSchema) -> Option<Common> {
        // Types of parameters may not be known yet.
        let types = self.operands.iter().filter_map(|operand| operand.get_type(schema).ok());
        match Common::of(types, self.is_comparison) {
            Some(Common::Float) => Some(Common::Float),
            other => other.filter(|_| !self.only_decimals),
        }
    }
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
            (Common::Array(array), ty) if ty.is_string() => Some(array.clone()),
            (Common::Interval, ty) if ty.is_string() || is_interval(ty) && *ty != INTERVAL => Some(INTERVAL),
            _ => None,
        }
    }

    fn convert(&self, operand: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
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
    let Some(common) = Operands::of(&expr).and_then(|operands| operands.common(schema)) else {
        return Ok(Transformed::no(expr));
    };
    let Expr::Case(Case { expr: operand, when_then_expr, else_expr }) = expr else {
        return expr.map_children(|operand| common.convert(operand, schema));
    };
    let result = |then: Box<Expr>| common.convert(*then, schema).map(|converted| Box::new(converted.data));
    let branches = when_then_expr.into_iter().map(|(when, then)| Ok((when, result(then)?)));
    let when_then_expr = branches.collect::<Result<Vec<_>>>()?;
    let else_expr = else_expr.map(result).transpose()?;
    Ok(Transformed::yes(Expr::Case(Case { expr: operand, when_then_expr, else_expr })))
}

/// Converts the columns of the inputs of a UNION to common types.
fn convert_union(union: Union) -> Result<Transformed<LogicalPlan>> {
    let types_of =
        |column: usize| union.inputs.iter().map(move |input| input.schema().field(column).data_type().clone());
    let width = union.inputs.iter().map(|input| input.schema().fields().len()).min().unwrap_or(0);
    let common: Vec<Option<Common>> = (0..width).map(|column| Common::of(types_of(column), false)).collect();
    if common.iter().all(Option::is_none) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let converted = |input: Arc<LogicalPlan>| -> Result<Arc<LogicalPlan>> {
        let mut found = false;
        let columns = input.schema().iter().enumerate().map(|(i, (qualifier, field))| {
            let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
            match common.get(i).and_then(Option::as_ref).and_then(|common| common.converted(field.data_type())) {
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

//! Aggregates of few rows without GROUP BY, by DataFusion's accumulators: results and their types are those of the long
//! path.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::DFSchemaRef;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::aggregate::{AggregateFunctionExpr, LoweredAggregateBuilder};

use super::expressions::{Compiler, Expressions};
use super::steps::Rows;
use crate::Result;

/// The supported functions. Their results do not depend on the order of the rows.
const FUNCTIONS: [&str; 5] = ["count", "sum", "min", "max", "avg"];

/// Aggregates of all rows.
#[derive(Debug)]
pub(super) struct Aggregates {
    /// The arguments of all functions.
    arguments: Expressions,
    /// Each function with the positions of its arguments.
    functions: Vec<(Arc<AggregateFunctionExpr>, Range<usize>)>,
}

impl Aggregates {
    /// The row of results.
    ///
    /// # Errors
    /// Errors of the arguments and of the functions.
    pub fn apply(&self, rows: &Rows, parameters: &[ArrayRef]) -> Result<Rows> {
        let values = match rows.len {
            0 => Vec::new(),
            _ => self.arguments.evaluate(rows, parameters)?,
        };
        let result = |(function, arguments): &(Arc<AggregateFunctionExpr>, Range<usize>)| {
            let mut accumulator = function.create_accumulator()?;
            if rows.len > 0 {
                accumulator.update_batch(&values[arguments.clone()])?;
            }
            Ok(accumulator.evaluate()?.to_array()?)
        };
        Ok(Rows { columns: self.functions.iter().map(result).collect::<Result<_>>()?, len: 1 })
    }
}

impl Compiler<'_> {
    /// Aggregates of all rows of `input`; `None` if one is not supported.
    pub fn aggregates(&self, exprs: &[Expr], input: &DFSchemaRef) -> Option<Aggregates> {
        let schema = self.with_parameters(input)?;
        let physical = schema.as_arrow().clone();
        let context = PhysicalPlanningContext::default();
        let (mut arguments, mut functions) = (Vec::new(), Vec::new());
        for expr in exprs {
            if !is_supported(expr) {
                return None;
            }
            let expr = self.with_parameter_columns(expr)?;
            let builder = LoweredAggregateBuilder::new(&expr, &schema, &physical, &self.props, &context);
            let function = builder.build().ok()?.aggregate;
            let start = arguments.len();
            arguments.extend(function.expressions());
            functions.push((function, start..arguments.len()));
        }
        Some(Aggregates { arguments: Expressions::new(Arc::new(physical), arguments), functions })
    }
}

/// True for a supported function without DISTINCT, FILTER, ORDER BY and IGNORE NULLS.
fn is_supported(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_supported(&alias.expr),
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let AggregateFunctionParams { args: _, distinct, filter, order_by, null_treatment } = params;
            let is_plain = !distinct && filter.is_none() && order_by.is_empty() && null_treatment.is_none();
            is_plain && FUNCTIONS.contains(&func.name())
        }
        _ => false,
    }
}

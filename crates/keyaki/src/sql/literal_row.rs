//! Queries of literals, such as `SELECT 1`: their row is known without the optimizer and the physical planner.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Field;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::Result;

/// The row of a query without FROM whose values are literals; `None` for other plans. Pools of connections check these with
/// such queries, whose time is that of the optimizer and the physical planner otherwise.
pub(super) fn of(plan: &LogicalPlan) -> Result<Option<RecordBatch>> {
    let LogicalPlan::Projection(projection) = plan else { return Ok(None) };
    if !matches!(&*projection.input, LogicalPlan::EmptyRelation(empty) if empty.produce_one_row) {
        return Ok(None);
    }
    let literal = |expr: &Expr| match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Alias(alias) => alias.expr.as_literal().cloned(),
        _ => None,
    };
    let Some(values) = projection.expr.iter().map(literal).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let schema = projection.schema.inner();
    let is_typed = |(value, field): (&ScalarValue, &Arc<Field>)| value.data_type() == *field.data_type();
    if values.is_empty() || !values.iter().zip(schema.fields()).all(is_typed) {
        return Ok(None);
    }
    let columns = values.iter().map(ScalarValue::to_array).collect::<datafusion::error::Result<_>>()?;
    Ok(Some(RecordBatch::try_new(schema.clone(), columns)?))
}

//! What happens to the few rows of an access: filters, projections, sorts and limits, evaluated at once by DataFusion's
//! physical expressions. Parameters are additional columns behind those of the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{SortColumn, SortOptions, filter, lexsort_to_indices, prep_null_mask_filter, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;

use super::access::mismatch;
use crate::Result;

/// Rows as arrays of the same length.
#[derive(Debug)]
pub(super) struct Rows {
    pub columns: Vec<ArrayRef>,
    pub len: usize,
}

/// Expressions over the columns of [`Rows`], followed by the parameters.
#[derive(Debug)]
pub(super) struct Expressions {
    /// Schema of the columns and the parameters.
    pub schema: SchemaRef,
    pub expressions: Vec<Arc<dyn PhysicalExpr>>,
}

/// One operation on all rows.
#[derive(Debug)]
pub(super) enum Step {
    /// Keeps the rows for which all expressions are true.
    Filter(Expressions),
    /// The columns at these positions.
    Columns(Vec<usize>),
    Project(Expressions),
    /// Sorts by the expressions, and keeps the first rows if a number is given.
    Sort(Expressions, Vec<SortOptions>, Option<usize>),
    /// Skips the first rows, and keeps the first of the others if a number is given.
    Limit(usize, Option<usize>),
}

impl Step {
    /// Applies the step.
    ///
    /// # Errors
    /// Errors of the expressions.
    pub fn apply(&self, rows: Rows, parameters: &[ArrayRef]) -> Result<Rows> {
        match self {
            Step::Columns(places) => {
                let column = |&place: &usize| rows.columns.get(place).cloned();
                let columns =
                    places.iter().map(column).collect::<Option<Vec<_>>>().ok_or_else(|| mismatch("columns"))?;
                Ok(Rows { columns, len: rows.len })
            }
            // Expressions over no rows have no effect but errors, which they do not cause.
            Step::Filter(_) | Step::Sort(..) if rows.len == 0 => Ok(rows),
            Step::Filter(conditions) => {
                let mut kept: Option<BooleanArray> = None;
                for value in conditions.evaluate(&rows, parameters)? {
                    let mask = value.as_boolean_opt().ok_or_else(|| mismatch("conditions"))?;
                    let mask = if mask.null_count() == 0 { mask.clone() } else { prep_null_mask_filter(mask) };
                    kept = Some(match kept {
                        None => mask,
                        Some(kept) => arrow::compute::and(&kept, &mask)?,
                    });
                }
                let Some(kept) = kept else { return Ok(rows) };
                let len = kept.true_count();
                if len == rows.len {
                    return Ok(rows);
                }
                let columns =
                    rows.columns.iter().map(|column| filter(column, &kept)).collect::<std::result::Result<_, _>>()?;
                Ok(Rows { columns, len })
            }
            Step::Project(expressions) => Ok(Rows { columns: expressions.evaluate(&rows, parameters)?, len: rows.len }),
            Step::Sort(expressions, options, fetch) => {
                let values = expressions.evaluate(&rows, parameters)?.into_iter();
                let columns: Vec<SortColumn> = values
                    .zip(options)
                    .map(|(values, options)| SortColumn { values, options: Some(*options) })
                    .collect();
                let order = lexsort_to_indices(&columns, *fetch)?;
                let columns = rows
                    .columns
                    .iter()
                    .map(|column| take(column, &order, None))
                    .collect::<std::result::Result<_, _>>()?;
                Ok(Rows { columns, len: order.len() })
            }
            Step::Limit(skip, fetch) => {
                let start = (*skip).min(rows.len);
                let len = fetch.map_or(rows.len - start, |fetch| fetch.min(rows.len - start));
                Ok(Rows { columns: rows.columns.iter().map(|column| column.slice(start, len)).collect(), len })
            }
        }
    }
}

impl Expressions {
    /// The values of all expressions, for each row.
    fn evaluate(&self, rows: &Rows, parameters: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        columns.extend(rows.columns.iter().cloned());
        for parameter in parameters {
            columns.push(match rows.len {
                1 => parameter.clone(),
                len => ScalarValue::try_from_array(parameter, 0)?.to_array_of_size(len)?,
            });
        }
        if columns.len() != self.schema.fields().len() {
            return Err(mismatch("number of columns"));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        self.expressions.iter().map(|expression| Ok(expression.evaluate(&batch)?.into_array(rows.len)?)).collect()
    }
}

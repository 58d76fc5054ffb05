//! Operations on the few rows of an access: filters, projections, aggregates, sorts and limits, evaluated at once by
//! DataFusion's physical expressions. Parameters are additional columns behind those of the rows.

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::{SortColumn, SortOptions, filter, lexsort_to_indices, take};

use super::access::mismatch;
use super::aggregate::Aggregates;
use super::expressions::Expressions;
use crate::Result;

/// Rows as arrays of the same length.
#[derive(Debug)]
pub(super) struct Rows {
    pub columns: Vec<ArrayRef>,
    pub len: usize,
}

impl Rows {
    /// The rows for which the mask, which has no nulls, is true.
    ///
    /// # Errors
    /// Errors of Arrow.
    pub fn filtered(&self, mask: &BooleanArray) -> Result<Rows> {
        let columns = self.columns.iter().map(|column| filter(column, mask)).collect::<std::result::Result<_, _>>()?;
        Ok(Rows { columns, len: mask.true_count() })
    }
}

/// One operation on all rows.
#[derive(Debug)]
pub(super) enum Step {
    /// Keeps the rows for which all expressions are true.
    Filter(Expressions),
    /// The columns at these positions.
    Columns(Vec<usize>),
    Project(Expressions),
    /// One row of aggregates of all rows.
    Aggregate(Aggregates),
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
            Step::Filter(conditions) => match conditions.mask(&rows, parameters)? {
                Some(mask) => rows.filtered(&mask),
                None => Ok(rows),
            },
            Step::Aggregate(aggregates) => aggregates.apply(&rows, parameters),
            // Expressions over no rows have no effect but errors, which they do not cause.
            Step::Sort(..) if rows.len == 0 => Ok(rows),
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

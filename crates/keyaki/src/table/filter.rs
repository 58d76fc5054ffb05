//! DataFusion's physical expressions as filters of the executor.
//!
//! [`ExprFilter`] evaluates an expression over the columns of a batch. [`compact`] and [`remap`] translate column
//! indices between the output, the tree and the batch.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::prep_null_mask_filter;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::{snapshot_generation, snapshot_physical_expr};
use datafusion::physical_plan::expressions::Column;
use keyaki_exec::{Error, Filter, Result};
use parking_lot::Mutex;

use super::dynamic::without_lookups;
use crate::base::tree::Tree;

/// A boolean expression over the columns of the executor's batches. Rows for which it is null do not pass.
#[derive(Debug)]
pub(crate) struct ExprFilter {
    expr: Arc<dyn PhysicalExpr>,
    /// Dynamic filters are reduced to ranges.
    is_reduced: bool,
    /// The state of an expression with dynamic filters, and its generation.
    current: Mutex<Option<(u64, Arc<dyn PhysicalExpr>)>>,
}

impl ExprFilter {
    pub fn new(expr: Arc<dyn PhysicalExpr>) -> Self {
        ExprFilter { expr, is_reduced: false, current: Mutex::new(None) }
    }

    /// The same, with dynamic filters reduced to ranges ([`without_lookups`]).
    pub fn reduced(self) -> Self {
        ExprFilter { is_reduced: true, ..self }
    }

    /// The expression to evaluate now.
    fn current(&self) -> datafusion::error::Result<Arc<dyn PhysicalExpr>> {
        let generation = snapshot_generation(&self.expr);
        if generation == 0 || !self.is_reduced {
            return Ok(self.expr.clone());
        }
        let mut current = self.current.lock();
        if let Some((known, expr)) = &*current
            && *known == generation
        {
            return Ok(expr.clone());
        }
        let expr = without_lookups(snapshot_physical_expr(self.expr.clone())?);
        *current = Some((generation, expr.clone()));
        Ok(expr)
    }
}

impl Filter for ExprFilter {
    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        let failed = |error: datafusion::error::DataFusionError| Error::filter(crate::Error::from(error));
        let value = self.current().and_then(|expr| expr.evaluate(rows)).map_err(failed)?;
        let array = value.into_array(rows.num_rows()).map_err(failed)?;
        let mask = array.as_boolean_opt().ok_or_else(|| {
            let problem = format!("condition {} is of type {}", self.expr, array.data_type());
            Error::filter(crate::Error::Internal(problem))
        })?;
        Ok(if mask.null_count() == 0 { mask.clone() } else { prep_null_mask_filter(mask) })
    }
}

/// Returns the column indices that `expr` uses, in ascending order, and `expr` over a batch of these columns alone.
pub(crate) fn compact(expr: Arc<dyn PhysicalExpr>) -> datafusion::error::Result<(Vec<usize>, Arc<dyn PhysicalExpr>)> {
    let mut used: Vec<usize> = collect_columns(&expr).iter().map(Column::index).collect();
    used.sort_unstable();
    used.dedup();
    let place = |index: usize| used.binary_search(&index).unwrap_or(usize::MAX);
    let expr = remap(expr, &place)?;
    Ok((used, expr))
}

/// Replaces every column index of `expr` by `place(index)`.
pub(crate) fn remap(
    expr: Arc<dyn PhysicalExpr>,
    place: &dyn Fn(usize) -> usize,
) -> datafusion::error::Result<Arc<dyn PhysicalExpr>> {
    use datafusion::common::tree_node::Transformed;
    expr.transform_up_dyn(&mut |node| {
        Ok(match node.downcast_ref::<Column>() {
            Some(column) => Transformed::yes(Arc::new(Column::new(column.name(), place(column.index()))) as _),
            None => Transformed::no(node),
        })
    })
    .map(|t| t.data)
}

/// True if a scan can evaluate the filter row by row from the columns of its table: no subquery, aggregate, window
/// function, placeholder, outer reference or volatile function.
pub(crate) fn is_row_filter(filter: &Expr) -> bool {
    let mut own = true;
    // The closure never fails.
    let _ = filter.apply_dyn(&mut |node| {
        own &= !matches!(
            node,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Placeholder(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        );
        Ok(if own { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    own && !filter.is_volatile()
}

//! Sorts below joins.
//!
//! DataFusion removes ORDER BY from subqueries when it plans them, also below a LIMIT, where the order decides which rows
//! are returned. Keyaki switches this off. [`EliminateSort`] removes sorts whose order a join destroys, so that they do not
//! hide the join from the search for index pipelines.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, Sort};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// Removes sorts without a limit below joins.
#[derive(Debug)]
pub(super) struct EliminateSort;

impl OptimizerRule for EliminateSort {
    fn name(&self) -> &str {
        "eliminate_sort"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(_) => plan.map_children(without_sort),
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Removes the sort below projections, filters and aliases.
fn without_sort(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Sort(Sort { input, fetch: None, .. }) => {
            Ok(Transformed::yes(without_sort(Arc::unwrap_or_clone(input))?.data))
        }
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.map_children(without_sort)
        }
        other => Ok(Transformed::no(other)),
    }
}

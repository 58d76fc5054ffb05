//! INTERSECT ALL and EXCEPT ALL, which regard how often a row occurs.
//!
//! DataFusion plans them as semi and anti joins, which return each row as often as the left query. Here, equal rows get
//! numbers on both sides, and rows with the same number are joined: the rows of the left query occur as often as in the
//! query with fewer of them (INTERSECT ALL), or as often as they have no partner (EXCEPT ALL).

use std::sync::Arc;

use crate::base::tree::PlanTree;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

/// Names of the numbers of the left and the right query.
const NUMBERS: [&str; 2] = ["__keyaki_left_copy", "__keyaki_right_copy"];

/// The rule. It runs before the types of columns are compared.
#[derive(Debug)]
pub(in crate::plan) struct Multisets;

impl AnalyzerRule for Multisets {
    fn name(&self) -> &str {
        "multisets"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let counted = plan.transform_up_with_subqueries_dyn(&mut |node| match node {
            LogicalPlan::Join(join) if is_for_all(&join) => Ok(Transformed::yes(counted(join)?)),
            other => Ok(Transformed::no(other)),
        });
        Ok(counted?.data)
    }
}

/// True for the join of INTERSECT ALL or EXCEPT ALL. Without ALL, the left input has no equal rows. Joins of queries
/// have conditions in place of keys for which NULL equals NULL.
fn is_for_all(join: &Join) -> bool {
    let columns = join.left.schema().fields().len();
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.filter.is_none()
        && join.on.len() == columns
        && join.right.schema().fields().len() == columns
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(_))
        && join.left.schema().fields().iter().all(|field| field.name() != NUMBERS[0])
}

fn counted(mut join: Join) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = join.left.schema().columns().into_iter().map(Expr::Column).collect();
    let numbered = |input: &Arc<LogicalPlan>, name: &str| -> Result<Arc<LogicalPlan>> {
        let rows = input.schema().columns().into_iter().map(Expr::Column).collect();
        let number = row_number().partition_by(rows).build()?.alias(name);
        let plan = LogicalPlanBuilder::from(input.clone()).window(vec![number])?;
        Ok(Arc::new(plan.build()?))
    };
    let [left, right] = NUMBERS;
    (join.left, join.right) = (numbered(&join.left, left)?, numbered(&join.right, right)?);
    let number = |name: &str| Expr::Column(Column::new_unqualified(name));
    join.on.push((number(left), number(right)));
    let Join { left, right, on, filter, join_type, join_constraint, null_equality, null_aware, .. } = join;
    let join = Join::try_new(left, right, on, filter, join_type, join_constraint, null_equality, null_aware)?;
    LogicalPlanBuilder::from(LogicalPlan::Join(join)).project(columns)?.build()
}

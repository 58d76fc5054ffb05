//! The hooks into DataFusion's planning.
//!
//! [`KeyakiPlanner`] rewrites the optimized logical plan and calls DataFusion's physical planner, with an extension
//! that creates the operators of Keyaki's logical nodes. If the rewrite fails, release builds log a warning and plan
//! the original query; debug builds return the error.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::optimizer::{Optimizer, OptimizerContext};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::exec::{IndexPipelineExec, IndexPipelineOperator};
use super::first_rows::FirstRowsNode;
use super::first_rows_exec::{FirstRowsExec, FirstRowsOperator};
use super::input_exec::InputPipelineExec;
use super::materialize::{
    self, Materialize, MaterializeExec, MaterializedScan, MaterializedScanExec, MaterializedScanOperator,
};
use super::node::PipelineNode;
use super::rewrite::Rewriter;
use super::rules::pushdown;
use super::shared::{self, Shared, SharedExec};
use super::small;
use super::spill::{SpillingJoinExec, spilling};
use super::stoppable;
use super::summary::SummaryNode;
use super::summary_exec::{SummaryExec, SummaryOperator};
use super::window::WindowExec;
use crate::base::tree::Tree;
use crate::table::PlanContext;

/// DataFusion's query planner, preceded by [`Rewriter::rewrite`].
#[derive(Debug)]
pub(super) struct KeyakiPlanner {
    pub context: PlanContext,
}

#[async_trait]
impl QueryPlanner for KeyakiPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let config = Arc::new(session.config_options().clone());
        let is_distributed = self.context.distribution.is_some();
        // A part is executed where its rows are used.
        let logical_plan = &match is_distributed {
            true => self.repeated(logical_plan.clone(), &config)?,
            false => shared::share_equal_parts(logical_plan.clone())?,
        };
        let rewritten = Rewriter { context: &self.context, config }.rewrite(logical_plan.clone());
        let plan = match rewritten {
            Ok(plan) => plan,
            Err(error) if cfg!(debug_assertions) => return Err(error),
            // The original plan is slower but correct.
            Err(error) => {
                tracing::warn!(%error, "rewrite to index pipelines failed, using DataFusion's plan");
                logical_plan.clone()
            }
        };
        let small = match is_distributed {
            true => None,
            false => small::state_of(&plan, session.as_any().downcast_ref())?,
        };
        let session = small.as_ref().map_or(session, |small| small as &dyn Session);
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(PipelinePlanner)]);
        let is_sorted = plan.exists_dyn(&mut |node| Ok(matches!(node, LogicalPlan::Sort(_))))?;
        let physical = planner.create_physical_plan(&plan, session).await?;
        if is_distributed {
            // The operators whose inputs are exchanged between machines are DataFusion's.
            return cancellable(physical.transform_up_dyn(&mut WindowExec::replacing)?.data);
        }
        let stop = Arc::default();
        let checked = stoppable::checked(physical, &stop)?;
        let physical = spilling(checked.data, is_sorted)?;
        let physical = physical.transform_up_dyn(&mut WindowExec::replacing)?.data;
        let physical = shared::bind(materialize::bind(cancellable(physical)?)?)?;
        Ok(if checked.transformed { stoppable::stoppable(physical, stop) } else { physical })
    }
}

impl KeyakiPlanner {
    /// A plan without parts that are computed once and read elsewhere.
    fn repeated(&self, plan: LogicalPlan, config: &Arc<ConfigOptions>) -> Result<LogicalPlan> {
        let plan = shared::share_differing_parts(materialize::repeated(plan)?)?;
        let config = OptimizerContext::new_with_config_options(config.clone());
        Optimizer::with_rules(pushdown()).optimize(plan, &config, |_, _| {})
    }
}

/// Makes joins yield to the runtime at intervals. DataFusion makes only the operators yield that read tables: a join that
/// multiplies its input could otherwise not be cancelled for a long time.
fn cancellable(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let yielding = plan.transform_up_dyn(&mut |plan| {
        let is_join = plan.is::<CrossJoinExec>()
            || plan.is::<NestedLoopJoinExec>()
            || plan.is::<HashJoinExec>()
            || plan.is::<SpillingJoinExec>()
            || plan.is::<SortMergeJoinExec>();
        Ok(match is_join {
            true => Transformed::yes(Arc::new(CooperativeExec::new(plan)) as Arc<dyn ExecutionPlan>),
            false => Transformed::no(plan),
        })
    });
    Ok(yielding?.data)
}

/// Creates physical operators for pipeline, summary and first-rows nodes.
#[derive(Debug)]
struct PipelinePlanner;

impl PipelinePlanner {
    /// The operators of a plan that executes its scalar subqueries itself. Otherwise those of a whole statement are executed
    /// above all its operators, and an input that one of these subqueries shares would be executed before others.
    async fn on_its_own(
        &self,
        plan: &LogicalPlan,
        planner: &dyn PhysicalPlanner,
        state: &SessionState,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // The rules apply to the plan of the statement.
        let state =
            SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(Vec::new()).build();
        planner.create_physical_plan(plan, &state).await
    }
}

#[async_trait]
impl ExtensionPlanner for PipelinePlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(node) = node.as_any().downcast_ref::<SummaryNode>() {
            return Ok(Some(Arc::new(SummaryExec::new(SummaryOperator {
                spec: node.spec.0.clone(),
                context: node.spec.context.clone(),
            }))));
        }
        if let Some(node) = node.as_any().downcast_ref::<FirstRowsNode>() {
            return Ok(Some(Arc::new(FirstRowsExec::new(FirstRowsOperator {
                spec: node.spec.0.clone(),
                context: node.spec.context.clone(),
            }))));
        }
        if let Some(node) = node.as_any().downcast_ref::<Materialize>()
            && let [input, ..] = physical_inputs
        {
            let columns = node.positions()?;
            return Ok(Some(Arc::new(MaterializeExec::new(node.name.clone(), columns, input.clone()))));
        }
        if let Some(node) = node.as_any().downcast_ref::<MaterializedScan>() {
            let (columns, schema) = (node.columns.clone(), node.schema.inner().clone());
            let operator = MaterializedScanOperator::new(node.name.clone(), columns, schema, node.rows);
            return Ok(Some(Arc::new(MaterializedScanExec::new(operator))));
        }
        if let Some(node) = node.as_any().downcast_ref::<Shared>()
            && let [input, ..] = physical_inputs
        {
            let input = match (node.has_scalar_subqueries()?, session.as_any().downcast_ref::<SessionState>()) {
                (true, Some(state)) => self.on_its_own(&node.input, planner, state).await?,
                _ => input.clone(),
            };
            return Ok(Some(Arc::new(SharedExec::new(node.name.clone(), input))));
        }
        let Some(node) = node.as_any().downcast_ref::<PipelineNode>() else { return Ok(None) };
        let spec = &node.spec;
        let mut filters: Vec<Option<Arc<dyn PhysicalExpr>>> = Vec::with_capacity(spec.accesses.len());
        for access in &spec.accesses {
            filters.push(match &access.filter {
                Some(filter) => Some(planner.create_physical_expr(filter, &access.scope, session, planning)?),
                None => None,
            });
        }
        let operator = IndexPipelineOperator::new(spec.0.clone(), filters, spec.context.clone());
        Ok(Some(match physical_inputs {
            [] => Arc::new(IndexPipelineExec::new(operator)),
            [input, ..] => Arc::new(InputPipelineExec::new(operator, input.clone())),
        }))
    }
}

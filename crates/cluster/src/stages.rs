//! The division of a plan into stages.
//!
//! A leaf with several partitions is divided among the workers. A leaf with one partition is not: operators above it may rely on
//! having all its rows. `datafusion-distributed` puts an exchange below each operator that needs the rows of all partitions.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DesiredTaskCountHandler, DistributedExec, DistributedExt,
    NetworkBoundaryExt, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, SessionStateBuilderExt, WorkerResolver,
};
use keyaki::PlannedQuery;
use url::Url;
use xxhash_rust::xxh3::xxh3_64;

use crate::share::ShareExec;

/// A plan that is divided into stages.
#[derive(Debug)]
pub(crate) struct Divided {
    /// The last stage, with the others as inputs of its exchanges.
    pub plan: Arc<dyn ExecutionPlan>,
    /// The state with which the plan is executed.
    pub state: SessionState,
}

/// Divides a plan among workers. Returns `None` if a single machine is to execute it.
///
/// # Errors
/// Errors of planning.
pub(crate) async fn divide(planned: &PlannedQuery, workers: Vec<Url>) -> Result<Option<Divided>> {
    let state = SessionStateBuilder::new_from_existing(planned.state.clone())
        .with_query_planner(Arc::new(Done(planned.plan.clone())))
        .with_distributed_planner()
        .with_distributed_worker_resolver(Workers(workers))
        .with_distributed_desired_task_count_handler(TasksOfLeaf)
        .with_distributed_scale_up_leaf_node_handler(divided_leaf)
        .with_distributed_children_isolator_unions(false)?
        .with_distributed_broadcast_joins(true)?
        .build();
    let nothing = LogicalPlanBuilder::empty(false).build()?;
    let plan = state.query_planner().create_physical_plan(&nothing, &state).await?;
    Ok(plan.is::<DistributedExec>().then_some(Divided { plan, state }))
}

impl Divided {
    /// The plan for EXPLAIN.
    pub fn text(&self) -> String {
        displayable(self.plan.as_ref()).indent(false).to_string()
    }

    /// The plan with hashes of the key ranges that its leaves read.
    pub fn details(&self) -> String {
        displayable(self.plan.as_ref()).indent(true).to_string()
    }

    /// A hash of the plan, which is the same on all machines that plan the same query.
    pub fn digest(&self) -> u64 {
        xxh3_64(self.details().as_bytes())
    }

    /// The plans of all stages but the last, by their numbers.
    pub fn stages(&self) -> HashMap<usize, Arc<dyn ExecutionPlan>> {
        let mut stages = HashMap::new();
        collect(&self.plan, &mut stages);
        stages
    }
}

fn collect(plan: &Arc<dyn ExecutionPlan>, stages: &mut HashMap<usize, Arc<dyn ExecutionPlan>>) {
    if let Some(stage) = plan.as_network_boundary().map(|boundary| boundary.input_stage())
        && let Some(input) = stage.local_plan()
    {
        stages.insert(stage.num(), input.clone());
    }
    for child in plan.children() {
        collect(child, stages);
    }
}

/// The exchanges from which a stage takes rows, in the order of a visit from the root.
pub(crate) fn exchanges(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    if plan.is_network_boundary() {
        return vec![plan.clone()];
    }
    plan.children().into_iter().flat_map(exchanges).collect()
}

/// A planner whose plan is made.
#[derive(Debug)]
struct Done(Arc<dyn ExecutionPlan>);

#[async_trait]
impl QueryPlanner for Done {
    async fn create_physical_plan(&self, _: &LogicalPlan, _: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.0.clone())
    }
}

/// The addresses of the workers.
struct Workers(Vec<Url>);

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.0.clone())
    }
}

/// The number of tasks of a leaf's stage: as many as it has partitions, at most one for each worker.
struct TasksOfLeaf;

#[async_trait]
impl DesiredTaskCountHandler for TasksOfLeaf {
    async fn handle(&self, event: DesiredTaskCountEvent<'_>) -> Option<Result<DesiredTaskCountEventResponse>> {
        if !event.plan.children().is_empty() || event.plan.is_network_boundary() {
            return None;
        }
        Some(Ok(match event.plan.output_partitioning().partition_count() {
            0 | 1 => DesiredTaskCountEventResponse::maximum(1),
            partitions => DesiredTaskCountEventResponse::desired(partitions),
        }))
    }
}

/// A leaf of a stage with several tasks.
fn divided_leaf(event: ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
    if event.task_count < 2 || event.plan.is_network_boundary() {
        return None;
    }
    let share = ShareExec::new(event.plan.clone(), event.task_count);
    Some(Ok(ScaleUpLeafNodeEventResponse::new(Arc::new(share))))
}

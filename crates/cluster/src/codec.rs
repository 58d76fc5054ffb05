//! The encoding of a stage: its number and a hash of the plan, with the exchanges from which it takes rows.
//!
//! A worker has made the same plan ([`StagePlans`]). Only the addresses of the workers that execute other stages are not in it.

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use datafusion_distributed::{DistributedTaskContext, NetworkBoundaryExt};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use serde::{Deserialize, Serialize};

use crate::error::{PortableErrorsExec, portable};
use crate::share::ShareExec;
use crate::stages::{Divided, exchanges};

/// A stage without its operators, as it is sent to a worker.
#[derive(Debug)]
pub(crate) struct StageExec {
    stage: StageId,
    exchanges: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

/// A stage of a plan. Sent as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct StageId {
    number: usize,
    /// [`Divided::digest`].
    digest: u64,
}

impl StageExec {
    /// The stage with a number and a plan, of a divided plan with a digest.
    pub fn new(number: usize, digest: u64, plan: &Arc<dyn ExecutionPlan>) -> Self {
        let stage = StageId { number, digest };
        StageExec { stage, exchanges: exchanges(plan), properties: plan.properties().clone() }
    }
}

impl DisplayAs for StageExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "StageExec: {}", self.stage.number)
    }
}

impl ExecutionPlan for StageExec {
    fn name(&self) -> &str {
        "StageExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.exchanges.iter().collect()
    }

    fn with_new_children(self: Arc<Self>, exchanges: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(StageExec { exchanges, stage: self.stage, properties: self.properties.clone() }))
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(DataFusionError::Internal("a stage without its operators is executed".into()))
    }
}

/// The stages of a plan that a worker has made, for one task.
#[derive(Debug)]
pub(crate) struct StagePlans {
    digest: u64,
    text: String,
    stages: HashMap<usize, Arc<dyn ExecutionPlan>>,
}

impl StagePlans {
    /// The stages of a divided plan.
    pub fn of(divided: &Divided) -> Self {
        StagePlans { digest: divided.digest(), text: divided.details(), stages: divided.stages() }
    }

    /// The operators of a stage, with exchanges that have the addresses of other workers.
    fn stage(
        &self,
        stage: StageId,
        task: &DistributedTaskContext,
        exchanges: &[Arc<dyn ExecutionPlan>],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.stages.get(&stage.number).filter(|_| stage.digest == self.digest).ok_or_else(|| {
            tracing::error!(plan = %self.text, "the plan differs from that of the coordinator");
            let what = "a worker has planned the query differently than its coordinator: are both of the same build?";
            portable(keyaki::Error::Cluster(what.into()).into())
        })?;
        let mut exchanges = exchanges.iter();
        let plan = of_task(plan.clone(), task, &mut exchanges)?;
        match exchanges.next() {
            None => PortableErrorsExec::below_head(plan),
            Some(_) => Err(DataFusionError::Internal("a stage has more exchanges".into())),
        }
    }
}

/// A plan with the shares of a task, whose exchanges are replaced, in the order of a visit from the root.
fn of_task(
    plan: Arc<dyn ExecutionPlan>,
    task: &DistributedTaskContext,
    exchanges: &mut std::slice::Iter<'_, Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is_network_boundary() {
        let exchange = exchanges.next().filter(|exchange| exchange.schema() == plan.schema());
        return exchange.cloned().ok_or_else(|| DataFusionError::Internal("a stage has other exchanges".into()));
    }
    if let Some(share) = plan.downcast_ref::<ShareExec>() {
        return share.of_task(task);
    }
    let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
    if inputs.is_empty() {
        return Ok(plan);
    }
    let inputs = inputs.into_iter().map(|input| of_task(input, task, exchanges)).collect::<Result<Vec<_>>>()?;
    plan.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// The codec of [`StageExec`]. It decodes to the operators of the stage, from the [`StagePlans`] of the session.
#[derive(Debug)]
pub(crate) struct StageCodec;

impl PhysicalExtensionCodec for StageCodec {
    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(stage) = node.downcast_ref::<StageExec>() else {
            return Err(DataFusionError::Internal(format!("{} is no stage", node.name())));
        };
        serde_json::to_writer(bytes, &stage.stage).map_err(|error| DataFusionError::External(error.into()))
    }

    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let stage: StageId = serde_json::from_slice(bytes).map_err(|error| DataFusionError::External(error.into()))?;
        let plans = context.session_config().get_extension::<StagePlans>();
        let plans = plans.ok_or_else(|| DataFusionError::Internal("a session without stages".into()))?;
        let task = context.session_config().get_extension::<DistributedTaskContext>();
        let task = task.ok_or_else(|| DataFusionError::Internal("a session without a task".into()))?;
        plans.stage(stage, &task, inputs)
    }
}

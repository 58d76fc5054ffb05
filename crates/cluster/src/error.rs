//! Errors on their way from a worker to the coordinator.
//!
//! Between processes, errors are texts. [`PortableErrorsExec`] adds the code of an error of the query before it leaves a worker,
//! and [`received`] restores it. Errors of connections have no code: the coordinator looks which worker is lost.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use datafusion_distributed::BroadcastExec;
use futures::StreamExt;
use keyaki::{Error, SqlState};
use serde::{Deserialize, Serialize};

/// The beginning of the text of an error with a code.
const MARK: &str = "keyaki error ";

/// An error of a query. Sent as JSON behind [`MARK`].
#[derive(Serialize, Deserialize)]
struct Portable {
    state: String,
    message: String,
}

/// An error in the form in which it leaves a worker: that of a query with its code, others as they are.
pub(crate) fn portable(error: DataFusionError) -> DataFusionError {
    if received(&error).is_some() {
        return error;
    }
    let own = match of_query(error) {
        Ok(own) => own,
        Err(other) => return DataFusionError::Internal(other.to_string()),
    };
    let portable = Portable { state: own.sqlstate().code().into(), message: own.to_string() };
    match serde_json::to_string(&portable) {
        Ok(json) => DataFusionError::Execution(format!("{MARK}{json}")),
        Err(_) => DataFusionError::Execution(portable.message),
    }
}

/// The error of a query, which occurs on every machine.
///
/// # Errors
/// Other errors: of connections, of lost workers, and of invariants.
pub(crate) fn of_query(error: DataFusionError) -> std::result::Result<Error, Error> {
    if let Some(error) = received(&error) {
        return Ok(error);
    }
    let is_of_exchange = is_of_exchange(&error);
    match Error::from(error) {
        Error::Internal(text) => Err(Error::Internal(text)),
        other if is_of_exchange => Err(other),
        other => Ok(other),
    }
}

/// True for errors of the exchanges between tasks that have no type of their own.
fn is_of_exchange(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::Execution(text) => text.starts_with("Worker") || text.starts_with("JoinError"),
        DataFusionError::Context(_, error) | DataFusionError::Diagnostic(_, error) => is_of_exchange(error),
        DataFusionError::Shared(error) => is_of_exchange(error),
        DataFusionError::Collection(errors) => errors.iter().any(is_of_exchange),
        _ => false,
    }
}

/// The error of a query that a worker has sent; `None` for others.
fn received(error: &DataFusionError) -> Option<Error> {
    match error {
        DataFusionError::Execution(text) => {
            let portable: Portable = serde_json::from_str(text.strip_prefix(MARK)?).ok()?;
            let state = SqlState::of_code(&portable.state)?;
            Some(Error::Remote { state, message: portable.message })
        }
        DataFusionError::Context(_, error) | DataFusionError::Diagnostic(_, error) => received(error),
        DataFusionError::Shared(error) => received(error),
        DataFusionError::Collection(errors) => errors.iter().find_map(received),
        _ => None,
    }
}

/// An operator whose errors are portable. It stands for the operator, whose inputs and figures it shows as its own.
#[derive(Debug)]
pub(crate) struct PortableErrorsExec(Arc<dyn ExecutionPlan>);

impl PortableErrorsExec {
    /// Makes the errors of a stage portable, below the exchange at its head if it has one: readers replace that.
    pub fn below_head(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if !plan.is::<RepartitionExec>() && !plan.is::<BroadcastExec>() {
            return Ok(Arc::new(PortableErrorsExec(plan)));
        }
        let inputs = plan.children().into_iter().cloned();
        let inputs = inputs.map(|input| Arc::new(PortableErrorsExec(input)) as Arc<dyn ExecutionPlan>).collect();
        plan.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
}

impl DisplayAs for PortableErrorsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(format, f)
    }
}

impl ExecutionPlan for PortableErrorsExec {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.0.children()
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Arc::new(PortableErrorsExec(self.0.clone().replace_children(inputs, options)?)))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.0.execute(partition, context).map_err(portable)?;
        let schema = rows.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.map(|batch| batch.map_err(portable)))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.0.metrics()
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.0.statistics_from_inputs(inputs, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_queries_keep_their_codes() {
        let sent = portable(Error::DivisionByZero.into());
        let again = portable(DataFusionError::Shared(Arc::new(sent)).context("stage 1"));
        let received = received(&again).unwrap();
        assert_eq!((received.sqlstate().code(), received.to_string()), ("22012", Error::DivisionByZero.to_string()));
    }

    #[test]
    fn errors_of_connections_have_no_code() {
        let lost = DataFusionError::External("connection refused".into());
        let sent = portable(lost);
        assert!(received(&sent).is_none());
        assert!(sent.to_string().contains("connection refused"), "{sent}");
        let lost = "Worker::execute_task timed-out while waiting for the plan to be set by the coordinator".to_string();
        for lost in [sent, DataFusionError::Execution(lost)] {
            assert!(of_query(DataFusionError::Shared(Arc::new(lost))).is_err());
        }
        assert!(of_query(DataFusionError::Execution("Overflow happened on: 1 * 2".into())).is_ok());
        assert!(received(&DataFusionError::Execution(format!("{MARK}{{}}"))).is_none());
    }
}

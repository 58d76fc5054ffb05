//! Nested-loop joins that end when their result is dropped, and that do not occupy a thread of the runtime.
//!
//! DataFusion's nested-loop join compares all rows of one input with a batch of the other in one call of `poll_next`. If few
//! rows match, this call takes seconds or hours. Until it returns, the join cannot be cancelled, and the thread cannot serve
//! other tasks: as many such joins as the runtime has threads stop a server.
//!
//! [`stoppable`] changes the plans of statements with such joins:
//!
//! - The condition of each join is evaluated by a [`Checked`] expression. It fails when the result of the statement has been
//!   dropped. At intervals of [`OFFER_INTERVAL`], it offers the thread's place in the runtime to another thread
//!   (`block_in_place`).
//! - The operator [`StoppableExec`] above the plan executes it in a task of its own. Its consumer waits for a channel, and
//!   notices requests to cancel, timeouts, and the end of the connection.

use std::cell::Cell;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Error;
use crate::base::tree::Tree;

/// A thread that evaluates conditions offers its place in the runtime after this time.
const OFFER_INTERVAL: Duration = Duration::from_millis(5);

thread_local! {
    /// The last offer of the thread.
    static OFFERED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Says that the result of a statement has been dropped.
#[derive(Debug, Default)]
pub(super) struct Stop {
    is_stopped: AtomicBool,
    /// Number of streams of results.
    streams: AtomicUsize,
}

impl Stop {
    fn begin(self: &Arc<Self>) -> Reading {
        if self.streams.fetch_add(1, Ordering::AcqRel) == 0 {
            // The plan is executed again.
            self.is_stopped.store(false, Ordering::Release);
        }
        Reading { stop: self.clone(), has_ended: false }
    }
}

/// A stream of results. Dropping it before its end stops the joins of the statement.
struct Reading {
    stop: Arc<Stop>,
    has_ended: bool,
}

impl Reading {
    /// Notes the end of the stream.
    fn end(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.has_ended {
            self.stop.is_stopped.store(true, Ordering::Release);
        }
        self.stop.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Wraps the conditions of the nested-loop joins of a plan, if it has any.
///
/// # Errors
/// None is expected.
pub(super) fn checked(plan: Arc<dyn ExecutionPlan>, stop: &Arc<Stop>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    plan.transform_up_dyn(&mut |plan| {
        let join = plan.downcast_ref::<NestedLoopJoinExec>();
        let Some((join, filter)) = join.and_then(|join| Some((join, join.filter()?))) else {
            return Ok(Transformed::no(plan));
        };
        let condition = Arc::new(Checked { condition: filter.expression().clone(), stop: stop.clone() });
        let filter = JoinFilter::new(condition, filter.column_indices().to_vec(), filter.schema().clone());
        let join = NestedLoopJoinExecBuilder::from(join).with_filter(Some(filter)).build()?;
        Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
    })
}

/// The plan of a whole statement whose joins are [`checked`] with `stop`.
pub(super) fn stoppable(plan: Arc<dyn ExecutionPlan>, stop: Arc<Stop>) -> Arc<dyn ExecutionPlan> {
    Arc::new(StoppableExec { input: plan, stop })
}

/// The condition of a join.
#[derive(Debug)]
struct Checked {
    condition: Arc<dyn PhysicalExpr>,
    stop: Arc<Stop>,
}

impl PartialEq for Checked {
    fn eq(&self, other: &Self) -> bool {
        self.condition.eq(&other.condition)
    }
}

impl Eq for Checked {}

impl Hash for Checked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl Display for Checked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.condition.fmt(f)
    }
}

impl PhysicalExpr for Checked {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.condition.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.condition.nullable(input)
    }

    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.condition.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.stop.is_stopped.load(Ordering::Acquire) {
            return Err(Error::Cancelled.into());
        }
        match offers() {
            true => tokio::task::block_in_place(|| self.condition.evaluate(batch)),
            false => self.condition.evaluate(batch),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([condition]) => Ok(Arc::new(Checked { condition, stop: self.stop.clone() })),
            Err(_) => Err(DataFusionError::Internal("a checked condition has one child".into())),
        }
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }
}

/// True if the thread should offer its place in a runtime of several threads.
fn offers() -> bool {
    let now = Instant::now();
    let last = OFFERED.get();
    if last.is_some_and(|last| now.duration_since(last) < OFFER_INTERVAL) {
        return false;
    }
    OFFERED.set(Some(now));
    last.is_some() && Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Executes the plan of a statement in a task of its own.
#[derive(Debug)]
struct StoppableExec {
    input: Arc<dyn ExecutionPlan>,
    stop: Arc<Stop>,
}

impl DisplayAs for StoppableExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("StoppableExec")
    }
}

impl ExecutionPlan for StoppableExec {
    fn name(&self) -> &str {
        "StoppableExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(StoppableExec { input, stop: self.stop.clone() })),
            Err(_) => Err(DataFusionError::Internal("StoppableExec has one input".into())),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let (schema, mut reading) = (input.schema(), self.stop.begin());
        // The task starts when the result is first read.
        let mut rows = futures::stream::once(async move { in_task(input) }).flatten().boxed();
        let rows = futures::stream::poll_fn(move |context| {
            let next = rows.poll_next_unpin(context);
            if let Poll::Ready(None) = next {
                reading.end();
            }
            next
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The same rows, computed in a task of the current runtime, if there is one.
fn in_task(mut rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    if Handle::try_current().is_err() {
        return rows;
    }
    let mut builder = RecordBatchReceiverStream::builder(rows.schema(), 1);
    let sender = builder.tx();
    builder.spawn(async move {
        while let Some(batch) = rows.next().await {
            let is_last = batch.is_err();
            if sender.send(batch).await.is_err() || is_last {
                break;
            }
        }
        Ok(())
    });
    builder.build()
}

//! The inputs of a spilling join.
//!
//! The join reads an [`Input`] through a [`FeedExec`]. If it fails, the input still has its stream, and the batches that
//! the join has read as long as they were kept.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

use super::keys::KeyFilter;

/// One partition of an input.
pub(super) struct Input {
    plan: Arc<dyn ExecutionPlan>,
    partition: usize,
    /// The filter that gets the keys of the rows of a build side.
    filter: Option<Arc<KeyFilter>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stream: Option<SendableRecordBatchStream>,
    context: Option<Arc<TaskContext>>,
    /// Batches that the join has read, while they are kept.
    kept: Option<Vec<RecordBatch>>,
    started: bool,
    /// The stream has returned `None`.
    ended: bool,
    polled: bool,
    failed: bool,
}

impl Debug for Input {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Input {}", self.partition)
    }
}

impl Input {
    /// An input of the probe side.
    pub fn probe(plan: Arc<dyn ExecutionPlan>, partition: usize) -> Input {
        Input { plan, partition, filter: None, state: Mutex::default() }
    }

    /// An input of the build side: the batches that the join reads are kept.
    pub fn build(plan: Arc<dyn ExecutionPlan>, partition: usize, filter: Option<Arc<KeyFilter>>) -> Input {
        let state = State { kept: Some(Vec::new()), ..State::default() };
        Input { plan, partition, filter, state: Mutex::new(state) }
    }

    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// Executes the input, the first time.
    pub fn start(&self, context: &Arc<TaskContext>) -> Result<()> {
        let mut state = self.state.lock();
        if !state.started {
            state.started = true;
            state.stream = Some(self.plan.execute(self.partition, context.clone())?);
            state.context = Some(context.clone());
        }
        Ok(())
    }

    /// The join has started to read the input.
    pub fn is_polled(&self) -> bool {
        self.state.lock().polled
    }

    /// The input returned an error.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Stops keeping batches.
    fn forget(&self) {
        self.state.lock().kept = None;
    }

    /// Drops the stream and the batches.
    pub fn close(&self) {
        let mut state = self.state.lock();
        (state.stream, state.kept) = (None, None);
        self.give_up();
    }

    fn give_up(&self) {
        if let Some(filter) = &self.filter {
            filter.give_up();
        }
    }

    /// Takes the batches that the join has read, and the rest of the stream.
    pub fn take(&self) -> Result<(Vec<RecordBatch>, Option<SendableRecordBatchStream>)> {
        let mut state = self.state.lock();
        self.give_up();
        let kept = state.kept.take();
        let stream = state.stream.take();
        if (state.polled && kept.is_none()) || (stream.is_none() && !state.ended) {
            return Err(DataFusionError::Internal("an input of a spilling join was closed".into()));
        }
        Ok((kept.unwrap_or_default(), stream))
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let mut state = self.state.lock();
        state.polled = true;
        let Some(stream) = &mut state.stream else { return Poll::Ready(None) };
        let polled = stream.poll_next_unpin(cx);
        match &polled {
            Poll::Ready(Some(Ok(batch))) => {
                if let Some(kept) = &mut state.kept {
                    kept.push(batch.clone());
                }
            }
            Poll::Ready(Some(Err(_))) => state.failed = true,
            Poll::Ready(None) => {
                (state.stream, state.ended) = (None, true);
                if let (Some(filter), Some(kept), Some(context)) = (&self.filter, &state.kept, &state.context)
                    && let Err(error) = filter.end(kept, context)
                {
                    return Poll::Ready(Some(Err(error)));
                }
            }
            Poll::Pending => (),
        }
        polled
    }
}

/// An operator through which a join reads its inputs. It has its input as child, because a join looks for scans that
/// use its dynamic filter.
#[derive(Debug)]
pub(super) struct FeedExec {
    plan: Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<Input>>,
    /// The left input, which the join has read completely when it begins to read this one.
    left: Option<Vec<Arc<Input>>>,
}

impl FeedExec {
    pub fn new(plan: Arc<dyn ExecutionPlan>, inputs: Vec<Arc<Input>>, left: Option<Vec<Arc<Input>>>) -> FeedExec {
        FeedExec { plan, inputs, left }
    }
}

impl DisplayAs for FeedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FeedExec")
    }
}

impl ExecutionPlan for FeedExec {
    fn name(&self) -> &str {
        "FeedExec"
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.plan]
    }
    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }
    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }
    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }
    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.inputs[partition].clone();
        // With one left input for each partition, each right input releases its own.
        let left = self.left.as_ref().map(|left| left[partition.min(left.len() - 1)].clone());
        Ok(Box::pin(Fed { schema: input.schema(), input, left }))
    }
}

/// Reads an input without owning it.
struct Fed {
    schema: SchemaRef,
    input: Arc<Input>,
    left: Option<Arc<Input>>,
}

impl Stream for Fed {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(left) = &self.left {
            // The scans of this input read their ranges when they begin.
            if let Some(filter) = &left.filter {
                ready!(filter.poll_complete(cx));
            }
            left.forget();
            self.left = None;
        }
        self.input.poll(cx)
    }
}

impl RecordBatchStream for Fed {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

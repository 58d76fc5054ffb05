//! The kept rows: in memory, or in temporary files once the memory is exhausted.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, SpillManager};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use parking_lot::Mutex;

/// The rows of an operator, which is executed once.
#[derive(Default)]
pub(in crate::plan) struct SharedRows {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    source: Option<Source>,
    kept: Option<KeptRows>,
}

/// The operator whose rows are kept.
#[derive(Clone)]
struct Source {
    plan: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

type KeptRows = Shared<BoxFuture<'static, std::result::Result<Arc<Vec<Partition>>, Arc<DataFusionError>>>>;

/// The rows of one partition.
struct Partition {
    batches: Vec<RecordBatch>,
    /// The rows, if they are not in `batches`.
    file: Option<Arc<dyn SpillFile>>,
    manager: SpillManager,
    /// The memory of `batches`.
    _reservation: MemoryReservation,
}

impl Debug for SharedRows {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "SharedRows {{ started: {} }}", state.kept.is_some())
    }
}

impl SharedRows {
    /// Sets the operator, and drops rows that are kept.
    pub fn set_source(&self, plan: Arc<dyn ExecutionPlan>, metrics: ExecutionPlanMetricsSet) {
        *self.state.lock() = State { source: Some(Source { plan, metrics }), kept: None };
    }

    /// Number of partitions of the operator.
    pub fn partitions(&self) -> Result<usize> {
        Ok(self.source()?.plan.output_partitioning().partition_count())
    }

    fn source(&self) -> Result<Source> {
        let source = self.state.lock().source.clone();
        source.ok_or_else(|| DataFusionError::Internal("materialized rows have no source".into()))
    }

    /// Starts the operator at the first call.
    fn kept(&self, context: &Arc<TaskContext>) -> Result<KeptRows> {
        let mut state = self.state.lock();
        let Some(source) = state.source.clone() else {
            return Err(DataFusionError::Internal("materialized rows have no source".into()));
        };
        let context = context.clone();
        let start = || async move { keep(source, context).await.map(Arc::new).map_err(Arc::new) }.boxed().shared();
        Ok(state.kept.get_or_insert_with(start).clone())
    }

    /// The rows of one partition of the operator.
    pub fn partition(
        self: &Arc<Self>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.read(Some(partition), context)
    }

    /// The rows of all partitions.
    pub fn all(self: &Arc<Self>, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.read(None, context)
    }

    fn read(
        self: &Arc<Self>,
        partition: Option<usize>,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let kept = self.kept(context)?;
        let schema = self.source()?.plan.schema();
        let rows = async move {
            let kept = kept.await.map_err(DataFusionError::Shared)?;
            let wanted = partition.map_or(0..kept.len(), |partition| partition..partition + 1);
            let streams = wanted.map(move |partition| Partition::stream(&kept, partition));
            Ok::<_, DataFusionError>(futures::stream::iter(streams).flatten())
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.try_flatten_stream())))
    }
}

/// Executes all partitions of an operator, concurrently, and keeps their rows.
async fn keep(source: Source, context: Arc<TaskContext>) -> Result<Vec<Partition>> {
    let count = source.plan.output_partitioning().partition_count();
    let mut tasks = Vec::with_capacity(count);
    for partition in 0..count {
        let stream = source.plan.execute(partition, context.clone())?;
        let manager = SpillManager::new(
            context.runtime_env(),
            SpillMetrics::new(&source.metrics, partition),
            source.plan.schema(),
        );
        let manager = manager.with_compression_type(context.session_config().spill_compression());
        // The pool knows this name.
        let consumer = MemoryConsumer::new(format!("MaterializedRows[{partition}]"));
        let reservation = consumer.register(context.memory_pool());
        tasks.push(SpawnedTask::spawn(Partition::keep(stream, manager, reservation)));
    }
    let mut partitions = Vec::with_capacity(count);
    for task in tasks {
        partitions.push(task.join_unwind().await.map_err(|error| DataFusionError::External(Box::new(error)))??);
    }
    Ok(partitions)
}

impl Partition {
    async fn keep(
        mut stream: SendableRecordBatchStream,
        manager: SpillManager,
        reservation: MemoryReservation,
    ) -> Result<Partition> {
        let mut batches = Vec::new();
        // Batches may share buffers.
        let mut memory = RecordBatchMemoryCounter::new();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            if reservation.try_grow(memory.count_batch(&batch)).is_err() {
                let mut file = manager.create_in_progress_file("materialized rows")?;
                for batch in std::mem::take(&mut batches).into_iter().chain([batch]) {
                    file.append_batch(&batch)?;
                }
                reservation.free();
                while let Some(batch) = stream.next().await {
                    file.append_batch(&batch?)?;
                }
                let file = file.finish()?;
                return Ok(Partition { batches, file, manager, _reservation: reservation });
            }
            batches.push(batch);
        }
        Ok(Partition { batches, file: None, manager, _reservation: reservation })
    }

    /// The rows of `all[partition]`. The stream keeps them, and their reservation.
    fn stream(
        all: &Arc<Vec<Partition>>,
        partition: usize,
    ) -> impl futures::Stream<Item = Result<RecordBatch>> + Send + use<> {
        let own = &all[partition];
        let manager = own.manager.clone();
        let file = futures::stream::iter(own.file.clone());
        let file = file.map(move |file| manager.read_spill_as_stream_unbuffered(file, None)).try_flatten();
        let (all, count) = (all.clone(), own.batches.len());
        let batches = (0..count).map(move |place| Ok(all[partition].batches[place].clone()));
        futures::stream::iter(batches).chain(file)
    }
}

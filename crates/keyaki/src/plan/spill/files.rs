//! Inputs in temporary files, split into parts.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use datafusion::common::NullEquality;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SpillManager,
};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::input::Input;
use super::order::{self, Order};

/// Number of parts of an input that is split.
pub(super) const PARTS: usize = 16;
/// Seed of the hash function at depth 0. DataFusion's operators use other seeds.
const SEED: u64 = 0x6b65_7961_6b69;

/// How rows are assigned to parts.
#[derive(Debug, Clone)]
pub(super) enum Split {
    /// By a hash of the join keys. Rows with NULL in a key that cannot match are distributed evenly.
    Hash { keys: Vec<Arc<dyn PhysicalExpr>>, seed: u64, nulls: NullEquality },
    /// Evenly.
    Slices,
    /// All rows in one part.
    Whole,
}

impl Split {
    fn parts(&self) -> usize {
        match self {
            Split::Hash { .. } | Split::Slices => PARTS,
            Split::Whole => 1,
        }
    }

    /// Splits a batch. `next` is the part that receives the next row of those that are distributed evenly.
    fn apply(&self, batch: &RecordBatch, next: &mut usize) -> Result<Vec<(usize, RecordBatch)>> {
        let rows = batch.num_rows();
        match self {
            Split::Whole => Ok(vec![(0, batch.clone())]),
            Split::Slices => {
                let size = rows.div_ceil(PARTS).max(1);
                let slice = |first: usize| (first, batch.slice(first, size.min(rows - first)));
                let assign = |(_, slice)| {
                    *next = (*next + 1) % PARTS;
                    (*next, slice)
                };
                Ok((0..rows).step_by(size).map(slice).map(assign).collect())
            }
            Split::Hash { keys, seed, nulls } => {
                let parts = hashed(batch, keys, *seed, *nulls, next)?;
                let filled = parts.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
                filled.map(|(i, rows)| Ok((i, take_record_batch(batch, &UInt32Array::from(rows))?))).collect()
            }
        }
    }
}

/// The rows of a batch by part.
fn hashed(
    batch: &RecordBatch,
    keys: &[Arc<dyn PhysicalExpr>],
    seed: u64,
    nulls: NullEquality,
    next: &mut usize,
) -> Result<Vec<Vec<u32>>> {
    let rows = batch.num_rows();
    let keys = keys.iter().map(|key| key.evaluate(batch)?.into_array(rows)).collect::<Result<Vec<_>>>()?;
    let mut hashes = vec![0; rows];
    create_hashes(&keys, &RandomState::with_seed(SEED.wrapping_add(seed)), &mut hashes)?;
    let nulls = match nulls {
        NullEquality::NullEqualsNothing => keys.iter().filter_map(|key| key.logical_nulls()).collect(),
        NullEquality::NullEqualsNull => Vec::new(),
    };
    let mut parts = vec![Vec::new(); PARTS];
    for (row, hash) in hashes.into_iter().enumerate() {
        let part = if nulls.iter().any(|nulls| nulls.is_null(row)) {
            *next = (*next + 1) % PARTS;
            *next
        } else {
            // The upper bits: hash tables use the lower ones.
            (hash >> 32) as usize % PARTS
        };
        parts[part].push(row as u32);
    }
    Ok(parts)
}

/// An input in files.
pub(super) struct Parts {
    manager: SpillManager,
    /// One for each part, or `None` for a part without rows.
    files: Vec<Option<Arc<dyn SpillFile>>>,
    /// Each part is ordered by the numbers in its last column.
    is_numbered: bool,
}

impl Debug for Parts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} parts", self.files.len())
    }
}

impl Parts {
    /// Writes the rows of all partitions of an input to files, concurrently. `order` is that of the join, if this is the
    /// right input.
    ///
    /// # Panics
    /// If the order matters and the input has several partitions.
    pub async fn write(inputs: Vec<Arc<Input>>, split: Split, order: Order, manager: SpillManager) -> Result<Parts> {
        let is_numbered = order != Order::Any;
        assert!(!is_numbered || inputs.len() == 1, "rows of several partitions have no order");
        let file = |_| Ok(Mutex::new(manager.create_in_progress_file("a join")?));
        let files = Arc::new((0..split.parts()).map(file).collect::<Result<Vec<_>>>()?);
        let mut tasks = Vec::with_capacity(inputs.len());
        for input in inputs {
            let (kept, rest) = input.take()?;
            let (split, files, schema) = (split.clone(), files.clone(), manager.schema().clone());
            tasks.push(SpawnedTask::spawn(async move {
                let rest = futures::stream::iter(rest).flatten();
                let mut batches = futures::stream::iter(kept).map(Ok).chain(rest);
                let (mut next, mut rows) = (0, 0);
                while let Some(batch) = batches.next().await {
                    let mut batch = batch?;
                    if order == Order::Right {
                        batch = order::numbered(&batch, schema.clone(), rows)?;
                        rows += batch.num_rows() as u64;
                    }
                    for (part, batch) in split.apply(&batch, &mut next)? {
                        if batch.num_rows() > 0 {
                            files[part].lock().append_batch(&batch)?;
                        }
                    }
                }
                Ok::<(), DataFusionError>(())
            }));
        }
        for task in tasks {
            task.join_unwind().await.map_err(|error| DataFusionError::External(Box::new(error)))??;
        }
        let files = files.iter().map(|file| file.lock().finish()).collect::<Result<Vec<_>>>()?;
        Ok(Parts { manager, files, is_numbered })
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self, part: usize) -> bool {
        self.files[part].is_none()
    }

    /// An operator that reads a part.
    pub fn read(&self, part: usize) -> Arc<dyn ExecutionPlan> {
        let schema = self.manager.schema().clone();
        let orderings = self.is_numbered.then(|| order::by_number(&schema));
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(schema, orderings),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let (manager, file) = (self.manager.clone(), self.files[part].clone());
        Arc::new(FileExec { manager, file, properties: Arc::new(properties) })
    }
}

/// Reads a part.
struct FileExec {
    manager: SpillManager,
    file: Option<Arc<dyn SpillFile>>,
    properties: Arc<PlanProperties>,
}

impl Debug for FileExec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FileExec")
    }
}

impl DisplayAs for FileExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FileExec")
    }
}

impl ExecutionPlan for FileExec {
    fn name(&self) -> &str {
        "FileExec"
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
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
    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let manager = self.manager.clone();
        let open = futures::stream::iter(self.file.clone());
        let batches = open.map(move |file| manager.read_spill_as_stream_unbuffered(file, None)).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.manager.schema().clone(), batches)))
    }
}

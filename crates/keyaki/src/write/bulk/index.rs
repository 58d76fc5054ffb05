//! Writes secondary indexes: entries are sorted while rows arrive, and written after the last row.
//!
//! Entries of an in-memory index that is not unique are not sorted here. Its tree is built in bulk if it is empty;
//! otherwise the new entries become messages of the batch that installs the load.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::RecordBatch;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{BulkWriter, KeyRange, Loaded, MemoryBuilder, Snapshot, TreeId, WriteBatch};

use super::job::{Job, Part, Work, Workers};
use super::sort::{BATCH_ROWS, Sorter};
use super::unique::Unique;
use crate::Result;
use crate::base::interrupt::Decision;
use crate::base::progress::Progress;
use crate::catalog::{Catalog, Projection, Table};
use crate::engine::{Build, Engine, scanned};
use crate::write::WriteStatement;
use crate::write::origin::NoOrigin;

/// Worker that sorts the entries of an index, checks uniqueness and writes its tree.
pub(super) struct IndexSorter {
    job: Arc<Job>,
    index: usize,
    projection: Projection,
    sorter: Sorter,
}

impl IndexSorter {
    /// `projection` selects the columns of the index from the batches.
    pub fn new(job: &Arc<Job>, index: usize, projection: Projection) -> Result<Self> {
        let schema = &job.table.index_schemas[index];
        let (arrow, keys) = (schema.arrow().clone(), schema.key_columns());
        let sorter = Sorter::new(arrow, keys, job.sort_bytes, job.spill.clone())?;
        Ok(IndexSorter { job: job.clone(), index, projection, sorter })
    }
}

/// Destination of the entries of an index.
enum Sink {
    Device(Box<BulkWriter>),
    Memory { builder: MemoryBuilder, bytes: usize },
    Messages { messages: WriteBatch, bytes: usize },
}

impl Sink {
    fn new(job: &Job, index: usize) -> Result<Sink> {
        let (def, schema) = (&job.table.def.indexes[index], &job.table.index_schemas[index]);
        let store = &job.engine.store;
        if !def.method.is_in_memory() {
            return Ok(Sink::Device(Box::new(store.bulk_writer(def.tree, schema))));
        }
        match job.snapshot.tree(def.tree) {
            Ok(view) if !view.is_empty() => Ok(Sink::Messages { messages: WriteBatch::new(), bytes: 0 }),
            // The load may create the tree.
            Ok(_) | Err(keyaki_store::Error::TreeNotFound(_)) => {
                Ok(Sink::Memory { builder: store.memory_builder(def.tree, schema), bytes: 0 })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn push(&mut self, job: &Job, index: usize, batch: &RecordBatch) -> Result<()> {
        let (before, now) = match self {
            Sink::Device(writer) => {
                writer.push(batch)?;
                return Ok(());
            }
            Sink::Memory { builder, bytes } => {
                builder.push(batch)?;
                let before = std::mem::replace(bytes, builder.bytes());
                (before, *bytes)
            }
            Sink::Messages { messages, bytes } => {
                messages.insert(job.table.def.indexes[index].tree, &job.table.index_schemas[index], batch)?;
                let before = std::mem::replace(bytes, messages.bytes());
                (before, *bytes)
            }
        };
        let all = job.memory_bytes.fetch_add(now - before, Ordering::Relaxed) + now - before;
        job.engine.check_memory(all)
    }

    fn finish(self, job: &Job, index: usize) -> Result<Part> {
        let tree = job.table.def.indexes[index].tree;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(match self {
            // The keys contain the primary keys of new rows.
            Sink::Device(writer) => Part::Tree(tree, writer.finish()?.claim_new_keys()),
            Sink::Memory { builder, .. } => {
                let loaded = builder.finish(threads)?;
                job.engine.check_memory(loaded.bytes() as usize)?;
                Part::Tree(tree, loaded)
            }
            Sink::Messages { messages, .. } => Part::Messages(messages),
        })
    }
}

/// Worker that builds an in-memory index that is not unique.
pub(super) struct MemoryIndexer {
    job: Arc<Job>,
    index: usize,
    projection: Projection,
    sink: Sink,
}

impl MemoryIndexer {
    pub fn new(job: &Arc<Job>, index: usize, projection: Projection) -> Result<Self> {
        Ok(MemoryIndexer { job: job.clone(), index, projection, sink: Sink::new(job, index)? })
    }
}

impl Work for MemoryIndexer {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.sink.push(&self.job, self.index, &self.projection.apply(batch)?)
    }

    fn finish(self) -> Result<Part> {
        self.sink.finish(&self.job, self.index)
    }
}

impl Work for IndexSorter {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let entries = self.projection.apply(batch)?;
        if entries.num_rows() == 0 { Ok(()) } else { self.sorter.push(&entries) }
    }

    fn finish(self) -> Result<Part> {
        let IndexSorter { job, index, sorter, .. } = self;
        let mut unique = Unique::of_index(&job, index)?;
        let mut sink = Sink::new(&job, index)?;
        let mut merge = sorter.finish(Vec::new())?;
        while let Some(batch) = merge.next()? {
            job.check()?;
            unique.check_neighbours(&batch)?;
            unique.check_existing(&batch).map_err(|(error, _)| error)?;
            sink.push(&job, index, &batch)?;
            job.progress.advance(batch.num_rows() as u64);
        }
        sink.finish(&job, index)
    }
}

/// Builds the tree of a new index from the rows of the table, and installs it.
///
/// `table` is the definition with the index, which the catalog does not yet contain. `index` is its position in
/// `table.def.indexes` and `table.index_schemas`. `batch` creates the tree and stores the definition; `catalog`
/// contains it. Both take effect with the tree.
pub(in crate::write) async fn build_index(
    statement: &WriteStatement,
    table: &Arc<Table>,
    index: usize,
    batch: WriteBatch,
    catalog: Catalog,
) -> Result<()> {
    let start = Instant::now();
    let (_, snapshot) = statement.latest();
    let def = &table.def.indexes[index];
    if def.method.is_in_memory() && !def.unique {
        let loaded = build_in_memory(statement, table, index, snapshot).await?;
        statement.engine.install(&statement.writer, batch, loaded, Some(catalog)).await?;
        statement.engine.build_times.lock().insert(def.tree, start.elapsed());
        return Ok(());
    }
    let job = Job::new(statement, table, snapshot, Arc::new(NoOrigin));
    let loaded = load(&job, index).await?;
    statement.engine.install(&statement.writer, batch, loaded, Some(catalog)).await?;
    if def.method.is_in_memory() {
        statement.engine.build_times.lock().insert(def.tree, start.elapsed());
    }
    statement.progress.finish();
    Ok(())
}

/// Writes the entries of an index on the device for the rows of a snapshot, beside writers. `table` is as for
/// [`build_index`]. The caller installs the result.
///
/// # Errors
/// `Constraint` with the first duplicate key; `Cancelled`; errors of the expressions of the index.
pub(in crate::write) async fn load_index(
    engine: &Arc<Engine>,
    decision: &Arc<Decision>,
    progress: &Arc<dyn Progress>,
    (table, index): (&Arc<Table>, usize),
    snapshot: Snapshot,
) -> Result<Vec<(TreeId, Loaded)>> {
    load(&Job::beside_writers(engine, decision, progress, table, snapshot), index).await
}

/// Writes the entries of an index for the rows of the job's snapshot.
async fn load(job: &Arc<Job>, index: usize) -> Result<Vec<(TreeId, Loaded)>> {
    let table = &job.table;
    let view = job.snapshot.tree(table.def.tree)?;
    let total = view.estimate(&KeyRange::all()).rows as u64;
    job.progress.start(&format!("indexing {}", table.def.name), Some(total));
    let mut columns = Vec::new();
    let projection = Projection::of_index(table, index, |column| scanned(table, column, &mut columns))?;
    let mut rows = job.engine.executor.scan(Scan::whole(view, columns, BATCH_ROWS), ExecutionMode::OutOfOrder);
    let mut workers = Workers::of_index(job, index, projection)?;
    let sent = async {
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            job.progress.advance(batch.num_rows() as u64);
            if !workers.send(batch).await {
                break;
            }
        }
        Ok(())
    }
    .await;
    Ok(workers.finish(sent).await?.loaded)
}

/// Builds an in-memory index that is not unique with all threads: its entries are not compared with their neighbours.
async fn build_in_memory(
    statement: &WriteStatement,
    table: &Arc<Table>,
    index: usize,
    snapshot: Snapshot,
) -> Result<Vec<(TreeId, Loaded)>> {
    let job = Job::new(statement, table, snapshot, Arc::new(NoOrigin));
    // Dropping this future drops the workers, which stops the job.
    let _workers = Workers::none(&job);
    let work = move |engine: &Engine| {
        let mut built = Vec::new();
        let build = Build {
            store: &engine.store,
            executor: &engine.executor,
            table: &job.table,
            places: &[index],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes_max: engine.memory_index_bytes_max,
            progress: &*job.progress,
            check: &|| job.check(),
        };
        build.run(&job.snapshot, &mut |tree, loaded| {
            built.push((tree, loaded));
            Ok(())
        })?;
        Ok(built)
    };
    statement.blocking(work).await
}

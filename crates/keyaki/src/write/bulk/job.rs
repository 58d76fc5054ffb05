//! One load: what its threads share, and the threads.
//!
//! A worker that fails closes its queue, which ends the load; the others notice that their queues close without an end
//! mark and give up. Dropping the load's future has the same effect. The first error in the order of workers is told, so
//! that the same rows give the same message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use keyaki_store::{Loaded, Snapshot, TreeId, WriteBatch};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::index::{IndexSorter, MemoryIndexer};
use super::spill::SpillDir;
use super::table::TableWriter;
use crate::base::progress::Progress;
use crate::catalog::Table;
use crate::catalog::TableStatistics;
use crate::engine::{Engine, Writer};
use crate::write::WriteStatement;
use crate::write::origin::Origin;
use crate::write::statistics::Collector;
use crate::{Error, Result};

/// Batches waiting for a worker.
const QUEUE_BATCHES: usize = 4;
/// Least memory of a sorter.
const SORT_BYTES_MIN: usize = 256 << 10;

/// What the threads of a load share.
#[derive(Debug)]
pub(super) struct Job {
    pub engine: Arc<Engine>,
    pub table: Arc<Table>,
    pub snapshot: Snapshot,
    pub origin: Arc<dyn Origin>,
    pub progress: Arc<dyn Progress>,
    pub spill: SpillDir,
    /// Memory of one sorter.
    pub sort_bytes: usize,
    /// Bytes of new entries of indexes in memory.
    pub memory_bytes: AtomicUsize,
    stop: AtomicBool,
    /// Held until the last thread ends, whatever becomes of the statement.
    writer: Writer,
}

impl Job {
    pub fn new(
        statement: &WriteStatement,
        table: &Arc<Table>,
        snapshot: Snapshot,
        origin: Arc<dyn Origin>,
    ) -> Arc<Self> {
        let engine = statement.engine.clone();
        // Half of the memory of queries, in equal parts for the table (which may need none) and its indexes.
        let sorters = table.def.indexes.len() + 1;
        Arc::new(Job {
            table: table.clone(),
            snapshot,
            origin,
            progress: statement.progress.clone(),
            spill: SpillDir::new(&engine.path),
            sort_bytes: (engine.query_memory_bytes / 2 / sorters).max(SORT_BYTES_MIN),
            memory_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            writer: statement.writer.clone(),
            engine,
        })
    }

    /// # Errors
    /// `Cancelled` if the load was given up.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Adds a column of new rowids, if the table has hidden ones.
    pub async fn with_rowids(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if !self.table.def.hidden_rowid {
            return Ok(batch);
        }
        let (table, count) = (self.table.clone(), batch.num_rows() as u64);
        let reserve = move |engine: &Engine| engine.reserve_rowids(&table, count);
        let first = self.engine.blocking(&self.writer, reserve).await?;
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(Int64Array::from_iter_values(first..first + count as i64)));
        RecordBatch::try_new(self.table.arrow_with_rowid(), columns).map_err(Error::from)
    }
}

/// The columns of a tree from a batch of the table's columns (with the hidden rowid last, if there is one).
#[derive(Debug)]
pub(super) struct Projection {
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl Projection {
    /// `columns`: which table column each column of the tree is.
    pub fn new(table: &Table, columns: &[Option<usize>], schema: &keyaki_store::Schema) -> Self {
        let rowid = table.def.columns.len();
        let columns = columns.iter().map(|column| column.unwrap_or(rowid)).collect();
        Projection { columns, schema: schema.arrow().clone() }
    }

    /// A batch that has the tree's columns already.
    pub fn identity(schema: &keyaki_store::Schema) -> Self {
        Projection { columns: (0..schema.columns().len()).collect(), schema: schema.arrow().clone() }
    }

    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|&column| batch.column(column).clone()).collect();
        RecordBatch::try_new(self.schema.clone(), columns).map_err(Error::from)
    }
}

/// What a worker is fed.
enum Message {
    Rows(RecordBatch),
    End,
}

/// One arm of a load.
pub(super) trait Work: Send + 'static {
    fn push(&mut self, batch: &RecordBatch) -> Result<()>;
    fn finish(self) -> Result<Part>;
}

/// What a worker has made.
pub(super) enum Part {
    Tree(TreeId, Loaded),
    /// For an index in memory that has entries already.
    Messages(WriteBatch),
    Statistics(TableStatistics),
}

/// What a load has made.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub loaded: Vec<(TreeId, Loaded)>,
    pub messages: WriteBatch,
    pub statistics: Option<TableStatistics>,
    pub rows: u64,
}

/// The threads of a load. Dropping them makes them give up.
pub(super) struct Workers {
    job: Arc<Job>,
    arms: Vec<(Sender<Message>, JoinHandle<Result<Part>>)>,
    /// Indexes that are written after all rows have come.
    indexes: u64,
    rows: u64,
    done: bool,
}

impl Workers {
    /// For the table, all its indexes, and statistics.
    pub fn of_table(job: &Arc<Job>) -> Result<Self> {
        let mut workers = Workers::none(job);
        workers.start(TableWriter::new(job)?);
        for index in 0..job.table.def.indexes.len() {
            let columns = job.table.index_columns(index);
            let projection = Projection::new(&job.table, &columns, &job.table.index_schemas[index]);
            workers.start_index(index, projection)?;
        }
        workers.start(Collector::whole(job.table.arrow.clone()));
        Ok(workers)
    }

    /// For one index only; batches have the columns of its tree.
    pub fn of_index(job: &Arc<Job>, index: usize) -> Result<Self> {
        let mut workers = Workers::none(job);
        let projection = Projection::identity(&job.table.index_schemas[index]);
        workers.start_index(index, projection)?;
        Ok(workers)
    }

    fn start_index(&mut self, index: usize, projection: Projection) -> Result<()> {
        let job = self.job.clone();
        let def = &job.table.def.indexes[index];
        if def.method.is_in_memory() && !def.unique {
            self.start(MemoryIndexer::new(&job, index, projection)?);
        } else {
            self.start(IndexSorter::new(&job, index, projection)?);
            self.indexes += 1;
        }
        Ok(())
    }

    /// No threads; dropping it makes the job stop all the same.
    pub fn none(job: &Arc<Job>) -> Self {
        Workers { job: job.clone(), arms: Vec::new(), indexes: 0, rows: 0, done: false }
    }

    fn start(&mut self, work: impl Work) {
        let (sender, receiver) = channel(QUEUE_BATCHES);
        let job = self.job.clone();
        self.arms.push((sender, tokio::task::spawn_blocking(move || run(&job, work, receiver))));
    }

    /// Gives a batch to every worker; false if one of them has failed.
    pub async fn send(&mut self, batch: RecordBatch) -> bool {
        self.rows += batch.num_rows() as u64;
        for (sender, _) in &self.arms {
            if sender.send(Message::Rows(batch.clone())).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits for the workers. `sent`: how sending went; its error is told only if no worker has one.
    pub async fn finish(mut self, sent: Result<()>) -> Result<Written> {
        let arms = std::mem::take(&mut self.arms);
        let mut complete = sent.is_ok();
        let mut tasks = Vec::with_capacity(arms.len());
        for (sender, task) in arms {
            complete = complete && sender.send(Message::End).await.is_ok();
            tasks.push(task);
        }
        if !complete {
            self.job.stop.store(true, Ordering::Relaxed);
        } else if self.indexes > 0 {
            let phase = format!("writing indexes of {}", self.job.table.def.name);
            self.job.progress.start(&phase, Some(self.rows * self.indexes));
        }
        let mut written = Written { rows: self.rows, ..Written::default() };
        let mut failed = sent.err();
        for task in tasks {
            let part = match task.await {
                Ok(part) => part,
                Err(error) => Err(Error::task(&error)),
            };
            match part {
                Ok(Part::Tree(tree, loaded)) => written.loaded.push((tree, loaded)),
                Ok(Part::Messages(batch)) => written.messages.append(batch),
                Ok(Part::Statistics(statistics)) => written.statistics = Some(statistics),
                Err(error) => {
                    self.job.stop.store(true, Ordering::Relaxed);
                    if failed.as_ref().is_none_or(|failed| matches!(failed, Error::Cancelled)) {
                        failed = Some(error);
                    }
                }
            }
        }
        self.done = true;
        failed.map_or(Ok(written), Err)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if !self.done {
            self.job.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn run(job: &Job, mut work: impl Work, mut receiver: Receiver<Message>) -> Result<Part> {
    loop {
        match receiver.blocking_recv() {
            Some(Message::Rows(batch)) => {
                job.check()?;
                work.push(&batch)?;
            }
            Some(Message::End) => return work.finish(),
            None => return Err(Error::Cancelled),
        }
    }
}

impl Work for Collector {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let own: Vec<usize> = (0..self.width()).collect();
        // Without the hidden rowid, which may be the last column.
        Collector::push(self, &batch.project(&own)?)
    }
    fn finish(self) -> Result<Part> {
        Collector::finish(self, 0).map(Part::Statistics)
    }
}

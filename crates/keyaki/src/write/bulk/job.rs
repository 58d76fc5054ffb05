//! The threads of one load and their shared state.
//!
//! Each worker receives batches through a bounded queue until an end mark. A worker that fails closes its queue, which
//! ends the load. The queues of the other workers then close without an end mark, and they stop. Dropping the future of
//! the load has the same effect. Errors are reported in a fixed order of workers, so the same rows yield the same
//! message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::{Int64Array, RecordBatch};
use keyaki_store::{Loaded, Snapshot, TreeId, WriteBatch};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::change_log::LogSorter;
use super::index::{IndexSorter, MemoryIndexer};
use super::spill::SpillDir;
use super::table::TableWriter;
use crate::base::interrupt::Decision;
use crate::base::progress::Progress;
use crate::catalog::{Projection, Table, TableStatistics};
use crate::engine::{Engine, Writer};
use crate::write::WriteStatement;
use crate::write::origin::{NoOrigin, Origin};
use crate::{Error, Result};

/// Capacity of a worker's queue, in batches.
const QUEUE_BATCHES: usize = 4;
/// Minimum memory of a sorter in bytes.
const SORT_BYTES_MIN: usize = 256 << 10;

/// Shared state of the threads of a load.
#[derive(Debug)]
pub(super) struct Job {
    pub engine: Arc<Engine>,
    pub table: Arc<Table>,
    pub snapshot: Snapshot,
    pub origin: Arc<dyn Origin>,
    pub progress: Arc<dyn Progress>,
    pub spill: SpillDir,
    /// Memory of each sorter in bytes.
    pub sort_bytes: usize,
    /// Bytes of new entries of in-memory indexes.
    pub memory_bytes: AtomicUsize,
    stop: AtomicBool,
    decision: Arc<Decision>,
    /// The writer lock, held until the last thread ends, even if the statement is cancelled; `None` for the build of an
    /// index beside writers.
    _lock: Option<Writer>,
}

impl Job {
    pub fn new(
        statement: &WriteStatement,
        table: &Arc<Table>,
        snapshot: Snapshot,
        origin: Arc<dyn Origin>,
    ) -> Arc<Self> {
        let WriteStatement { engine, writer, progress, .. } = statement;
        Job::of(engine, (&writer.decision, Some(writer.clone())), progress, table, snapshot, origin)
    }

    /// The build of an index beside writers, for rows as of `snapshot`.
    pub fn beside_writers(
        engine: &Arc<Engine>,
        decision: &Arc<Decision>,
        progress: &Arc<dyn Progress>,
        table: &Arc<Table>,
        snapshot: Snapshot,
    ) -> Arc<Self> {
        Job::of(engine, (decision, None), progress, table, snapshot, Arc::new(NoOrigin))
    }

    fn of(
        engine: &Arc<Engine>,
        (decision, lock): (&Arc<Decision>, Option<Writer>),
        progress: &Arc<dyn Progress>,
        table: &Arc<Table>,
        snapshot: Snapshot,
        origin: Arc<dyn Origin>,
    ) -> Arc<Self> {
        // Half of the query memory, divided equally among the table, which may not need its part, its indexes, and the
        // change logs of the indexes that are being built.
        let sorters = table.def.indexes.len() + table.def.building.len() + 1;
        Arc::new(Job {
            table: table.clone(),
            snapshot,
            origin,
            progress: progress.clone(),
            spill: SpillDir::new(&engine.path),
            sort_bytes: (engine.query_memory_bytes / 2 / sorters).max(SORT_BYTES_MIN),
            memory_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            decision: decision.clone(),
            _lock: lock,
            engine: engine.clone(),
        })
    }

    /// Checks that the load continues.
    ///
    /// # Errors
    /// `Cancelled` if the load has failed or the statement was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { self.decision.check() }
    }

    /// Position of a table column in the batches of a load; `None` is the hidden rowid, which comes last.
    pub fn place(&self, column: Option<usize>) -> usize {
        column.unwrap_or(self.table.def.columns.len())
    }

    /// Appends a column of new rowids if the table has hidden rowids.
    pub async fn with_rowids(&self, writer: &Writer, batch: RecordBatch) -> Result<RecordBatch> {
        if !self.table.def.hidden_rowid {
            return Ok(batch);
        }
        let (table, count) = (self.table.clone(), batch.num_rows() as u64);
        let reserve = move |engine: &Engine| engine.reserve_rowids(&table, count);
        let first = self.engine.blocking(writer, reserve).await?;
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(Int64Array::from_iter_values(first..first + count as i64)));
        RecordBatch::try_new(self.table.arrow_with_rowid(), columns).map_err(Error::from)
    }
}

/// A message to a worker.
enum Message {
    Rows(RecordBatch),
    End,
}

/// The work of one arm of a load.
pub(super) trait Work: Send + 'static {
    /// Processes a batch.
    fn push(&mut self, batch: &RecordBatch) -> Result<()>;
    /// Completes the work after the last batch.
    fn finish(self) -> Result<Part>;
}

/// The result of a worker.
pub(super) enum Part {
    Tree(TreeId, Loaded),
    /// Messages for an in-memory index that has entries.
    Messages(WriteBatch),
    /// The table's own tree, with the statistics of the loaded rows.
    Table(Loaded, TableStatistics),
}

/// The result of a load.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub loaded: Vec<(TreeId, Loaded)>,
    pub messages: WriteBatch,
    pub statistics: Option<TableStatistics>,
    pub rows: u64,
}

/// The threads of a load. Dropping them stops the job.
pub(super) struct Workers {
    job: Arc<Job>,
    arms: Vec<(Sender<Message>, JoinHandle<Result<Part>>)>,
    /// Number of indexes that are written after the last row.
    indexes: u64,
    /// Rows sent.
    rows: u64,
    /// All workers have ended.
    done: bool,
}

impl Workers {
    /// Starts workers for the table, all its indexes and its change logs.
    pub fn of_table(job: &Arc<Job>) -> Result<Self> {
        let mut workers = Workers::none(job);
        workers.start(TableWriter::new(job)?);
        for index in 0..job.table.def.indexes.len() {
            let projection = Projection::of_index(&job.table, index, |column| job.place(column))?;
            workers.start_index(index, projection)?;
        }
        for build in &job.table.def.building {
            workers.start(LogSorter::new(job, build)?);
        }
        Ok(workers)
    }

    /// Starts a worker for one index. `projection` selects its entries from the batches.
    pub fn of_index(job: &Arc<Job>, index: usize, projection: Projection) -> Result<Self> {
        let mut workers = Workers::none(job);
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

    /// Starts no workers. Dropping the result stops the job.
    pub fn none(job: &Arc<Job>) -> Self {
        Workers { job: job.clone(), arms: Vec::new(), indexes: 0, rows: 0, done: false }
    }

    fn start(&mut self, work: impl Work) {
        let (sender, receiver) = channel(QUEUE_BATCHES);
        let job = self.job.clone();
        self.arms.push((sender, tokio::task::spawn_blocking(move || run(&job, work, receiver))));
    }

    /// Sends a batch to all workers. Returns false if one of them has failed.
    pub async fn send(&mut self, batch: RecordBatch) -> bool {
        self.rows += batch.num_rows() as u64;
        for (sender, _) in &self.arms {
            if sender.send(Message::Rows(batch.clone())).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Ends the queues and waits for the workers. `sent` is the result of sending the rows.
    ///
    /// # Errors
    /// The error of `sent`, unless it is `Cancelled`; else the first error in the order of workers other than
    /// `Cancelled`.
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
                Ok(Part::Table(loaded, statistics)) => {
                    written.loaded.push((self.job.table.def.tree, loaded));
                    written.statistics = Some(statistics);
                }
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

//! Rows of TPC-H tables as Arrow batches.
//!
//! A table is generated in parts of about [`PART_ROWS`] rows on several threads. [`Rows`] delivers the parts in order, so the
//! rows are in primary key order for any number of threads. The threads run at most [`WINDOW`] parts each ahead of the
//! consumer, which bounds memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use parking_lot::{Condvar, Mutex};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use crate::Table;

/// Approximate number of rows in a part.
const PART_ROWS: u64 = 100_000;
/// Parts per thread that may be generated ahead of the one being delivered.
const WINDOW: usize = 3;
const BATCH_ROWS: usize = 8192;

type Batch = Result<RecordBatch, ArrowError>;

/// An iterator over all rows of a table, as batches in primary key order.
///
/// After a batch that is an error the iterator ends. Dropping it early stops the threads.
#[derive(Debug)]
pub struct Rows {
    parts: Receiver<(usize, Vec<Batch>)>,
    /// Parts that were finished before their turn, by number.
    early: BTreeMap<usize, Vec<Batch>>,
    current: std::vec::IntoIter<Batch>,
    next_part: usize,
    part_count: usize,
    progress: Arc<Progress>,
}

/// The state that the generating threads share with the consumer.
#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The next part that no thread has begun.
    begun: usize,
    /// Parts that the consumer has begun to take.
    taken: usize,
    /// The consumer was dropped.
    cancelled: bool,
}

impl Rows {
    /// The rows of `table` at a scale factor, generated on one thread per core.
    pub fn new(table: Table, scale: f64) -> Rows {
        Rows::on_threads(table, scale, std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Like [`Rows::new`], on the given number of threads (at least one, at most one per part).
    pub fn on_threads(table: Table, scale: f64, threads: usize) -> Rows {
        let parts = table.rows(scale).div_ceil(PART_ROWS).clamp(1, 1 << 20) as usize;
        let threads = threads.clamp(1, parts);
        let progress = Arc::new(Progress::default());
        let (sender, receiver) = sync_channel(WINDOW * threads);
        for _ in 0..threads {
            let (sender, progress) = (sender.clone(), progress.clone());
            std::thread::spawn(move || generate(table, scale, parts, threads, &progress, &sender));
        }
        Rows {
            parts: receiver,
            early: BTreeMap::new(),
            current: Vec::new().into_iter(),
            next_part: 0,
            part_count: parts,
            progress,
        }
    }
}

/// Generates one part after another until all parts are begun or the consumer is dropped.
fn generate(
    table: Table,
    scale: f64,
    parts: usize,
    threads: usize,
    progress: &Progress,
    sender: &SyncSender<(usize, Vec<Batch>)>,
) {
    loop {
        let part = {
            let mut state = progress.state.lock();
            while !state.cancelled && state.begun < parts && state.begun >= state.taken + WINDOW * threads {
                progress.changed.wait(&mut state);
            }
            if state.cancelled || state.begun >= parts {
                return;
            }
            state.begun += 1;
            state.begun - 1
        };
        // Sending fails only if the consumer was dropped.
        if sender.send((part, batches(table, scale, part, parts).collect())).is_err() {
            return;
        }
    }
}

/// The batches of one part (counted from 0) of `parts`.
fn batches(table: Table, scale: f64, part: usize, parts: usize) -> Box<dyn Iterator<Item = Batch>> {
    let (part, parts) = (part as i32 + 1, parts as i32);
    match table {
        Table::Region => {
            Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
        Table::Nation => {
            Box::new(NationArrow::new(NationGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
        Table::Supplier => {
            Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
        Table::Customer => {
            Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
        Table::Part => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        Table::PartSupp => {
            Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
        Table::Orders => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        Table::LineItem => {
            Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
        }
    }
}

impl Iterator for Rows {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        loop {
            if let Some(batch) = self.current.next() {
                return Some(batch);
            }
            if self.next_part == self.part_count {
                return None;
            }
            let part = loop {
                if let Some(part) = self.early.remove(&self.next_part) {
                    break part;
                }
                match self.parts.recv() {
                    Ok((number, part)) => self.early.insert(number, part),
                    // A generating thread panicked. The error keeps the consumer from taking the rows for the whole table.
                    Err(_) => {
                        self.part_count = self.next_part;
                        return Some(Err(ArrowError::ComputeError("a thread that generates rows panicked".into())));
                    }
                };
            };
            self.current = part.into_iter();
            self.next_part += 1;
            self.progress.state.lock().taken = self.next_part;
            self.progress.changed.notify_all();
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.progress.state.lock().cancelled = true;
        self.progress.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;

    fn keys(rows: impl Iterator<Item = Batch>) -> Vec<i64> {
        rows.flat_map(|batch| batch.unwrap().column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    }

    #[test]
    fn parts_come_in_order_on_any_number_of_threads() {
        let one = keys(Rows::on_threads(Table::Orders, 0.2, 1));
        assert_eq!(one.len(), 300_000);
        assert!(one.is_sorted());
        assert_eq!(one, keys(Rows::on_threads(Table::Orders, 0.2, 3)));
        // Dropping the rows early ends the threads.
        drop(Rows::on_threads(Table::Orders, 0.2, 2));
    }

    #[test]
    fn every_table_has_its_rows() {
        for table in Table::ALL {
            let rows = keys(Rows::on_threads(table, 0.001, 2)).len() as u64;
            if table == Table::LineItem {
                assert!(rows > 5500 && rows < 6500, "{rows}");
            } else {
                assert_eq!(rows, table.rows(0.001), "{}", table.name());
            }
        }
    }
}

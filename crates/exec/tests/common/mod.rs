//! Small stores on a simulated device, and plain values for the expected results.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray};
use arrow_schema::DataType;
use futures::{StreamExt, stream};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_exec::{Error, Filter, Result, Rows};
use keyaki_store::{Column, ColumnType, Options, Schema, Store, TreeView, WriteBatch};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

pub type Row = Vec<Value>;

pub fn int(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

/// A table (k, id, v, t) with key (k, id). k and v may be null, id is the number of the row, t is a text made from v.
#[derive(Debug, Clone)]
pub struct Table {
    pub rows: Vec<(Option<i64>, Option<i64>)>,
}

pub const COLUMNS: usize = 4;

pub fn text_of(v: Option<i64>) -> Option<String> {
    v.map(|v| if v % 2 == 0 { format!("{v}") } else { format!("a text that does not fit into a view: {v}") })
}

impl Table {
    pub fn values(&self) -> Vec<Row> {
        let row = |(id, &(k, v)): (usize, &(Option<i64>, Option<i64>))| {
            vec![int(k), Value::Int(id as i64), int(v), text_of(v).map_or(Value::Null, Value::Text)]
        };
        self.rows.iter().enumerate().map(row).collect()
    }

    /// All rows, in the order of [`Table::values`].
    pub fn all(&self) -> RecordBatch {
        let numbers = |rows: Vec<Option<i64>>| Arc::new(Int64Array::from(rows)) as ArrayRef;
        let columns = vec![
            numbers(self.rows.iter().map(|row| row.0).collect()),
            numbers((0..self.rows.len()).map(|id| Some(id as i64)).collect()),
            numbers(self.rows.iter().map(|row| row.1).collect()),
            Arc::new(self.rows.iter().map(|row| text_of(row.1)).collect::<StringViewArray>()),
        ];
        RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()
    }

    /// The rows with the given numbers, sorted by key.
    fn batch(&self, mut ids: Vec<usize>) -> RecordBatch {
        ids.sort_by_key(|&id| (self.rows[id].0, id));
        let k: Int64Array = ids.iter().map(|&id| self.rows[id].0).collect();
        let v: Int64Array = ids.iter().map(|&id| self.rows[id].1).collect();
        let t: StringViewArray = ids.iter().map(|&id| text_of(self.rows[id].1)).collect();
        let id: Int64Array = ids.iter().map(|&id| Some(id as i64)).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(k), Arc::new(id), Arc::new(v), Arc::new(t)];
        RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()
    }
}

pub fn schema() -> Arc<Schema> {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    Arc::new(Schema::new(
        vec![
            column("k", ColumnType::Int64, true),
            column("id", ColumnType::Int64, false),
            column("v", ColumnType::Int64, true),
            column("t", ColumnType::Text, true),
        ],
        2,
    ))
}

pub struct Database {
    pub device: Simulated,
    pub store: Store,
    pub views: Vec<TreeView>,
}

pub fn options() -> Options {
    Options { page_bytes: 4096, leaf_bytes: 32 << 10, ..Options::default() }
}

impl Database {
    /// One tree per table. Rows for which `buffered` returns true stay in memory; the others are bulk-loaded.
    pub fn new(tables: &[Table], options: Options, buffered: impl Fn(usize) -> bool) -> Database {
        let device = Simulated::new(SimulatedOptions::default());
        let store = Store::open(device.device(), Path::new("/db"), options).unwrap();
        let schema = schema();
        let mut trees = Vec::new();
        for table in tables {
            let tree = store.new_tree_id();
            trees.push(tree);
            let (memory, disk): (Vec<_>, Vec<_>) = (0..table.rows.len()).partition(|&id| buffered(id));
            let mut batch = WriteBatch::new();
            batch.create_tree(tree, &schema);
            let mut writer = store.bulk_writer(tree, &schema);
            writer.push(&table.batch(disk)).unwrap();
            store.install(batch, vec![(tree, writer.finish().unwrap())]).unwrap();
            let mut batch = WriteBatch::new();
            batch.insert(tree, &schema, &table.batch(memory)).unwrap();
            store.commit(batch).unwrap();
        }
        let snapshot = store.snapshot();
        let views = trees.iter().map(|&tree| snapshot.tree(tree).unwrap()).collect();
        Database { device, store, views }
    }
}

/// True where the sum of `columns` modulo `modulus` is not `remainder`; null where one of the columns is null.
#[derive(Debug, Clone)]
pub struct SumFilter {
    pub columns: Vec<usize>,
    pub modulus: i64,
    pub remainder: i64,
}

impl SumFilter {
    pub fn passes(&self, row: &[Value]) -> bool {
        let mut sum = 0;
        for &column in &self.columns {
            match row[column] {
                Value::Int(value) => sum += value,
                _ => return false,
            }
        }
        sum.rem_euclid(self.modulus) != self.remainder
    }
}

impl Filter for SumFilter {
    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        Ok((0..rows.num_rows())
            .map(|row| {
                let mut sum = 0;
                for &column in &self.columns {
                    let column = rows.column(column).as_primitive::<Int64Type>();
                    if column.is_null(row) {
                        return None;
                    }
                    sum += column.value(row);
                }
                Some(sum.rem_euclid(self.modulus) != self.remainder)
            })
            .collect())
    }
}

/// The error of a [`FailingFilter`].
#[derive(Debug, PartialEq, Eq)]
pub struct FilterFailed;

impl std::fmt::Display for FilterFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("filter failed")
    }
}

impl std::error::Error for FilterFailed {}

/// Fails, or panics, at its n-th evaluation.
#[derive(Debug)]
pub struct FailingFilter {
    pub calls_left: AtomicUsize,
    pub panics: bool,
}

impl Filter for FailingFilter {
    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        if self.calls_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            assert!(!self.panics, "panic of the filter");
            return Err(Error::filter(FilterFailed));
        }
        Ok(BooleanArray::from(vec![true; rows.num_rows()]))
    }
}

pub fn values(batch: &RecordBatch) -> Vec<Row> {
    let value = |column: &ArrayRef, row: usize| match column.data_type() {
        _ if column.is_null(row) => Value::Null,
        DataType::Int64 => Value::Int(column.as_primitive::<Int64Type>().value(row)),
        DataType::Utf8View => Value::Text(column.as_string_view().value(row).into()),
        other => panic!("no values of {other}"),
    };
    (0..batch.num_rows()).map(|row| batch.columns().iter().map(|column| value(column, row)).collect()).collect()
}

/// All rows, in the order of the stream.
pub fn collect(rows: Rows) -> Result<Vec<Row>> {
    collect_pushing(rows, Vec::new())
}

/// Pushes batches whenever the pipeline takes rows, and collects the output.
pub fn collect_pushing(mut rows: Rows, pushed: Vec<RecordBatch>) -> Result<Vec<Row>> {
    let schema = rows.schema().clone();
    let mut pushed = pushed.into_iter();
    let batches = stream::poll_fn(move |context| {
        while rows.poll_push(context).is_ready() {
            match pushed.next().map(|batch| rows.push(&batch)) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => rows.end_push(),
            }
        }
        rows.poll_next_unpin(context)
    });
    let mut all = Vec::new();
    for batch in futures::executor::block_on_stream(batches) {
        let batch = batch?;
        assert_eq!(batch.schema(), schema);
        all.extend(values(&batch));
    }
    Ok(all)
}

/// The number of occurrences of each row.
pub fn multiset(rows: Vec<Row>) -> BTreeMap<Row, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row).or_default() += 1;
    }
    counts
}

/// Waits until `done` returns true. Fails after 30 seconds.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("timed out: {what}");
}

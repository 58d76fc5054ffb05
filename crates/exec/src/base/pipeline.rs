//! The description of a query: a scan, or a pipeline of a driving scan and index nested-loop steps.
//!
//! Columns are indices. The columns of a pipeline after a step are those before it, followed by those of the step's tree, as
//! selected by [`Step::keep`].

use std::fmt::Debug;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use keyaki_store::{Direction, KeyRange, TreeView};

use super::error::Result;
use super::mode::ExecutionMode;

/// A condition on rows, evaluated on batches.
pub trait Filter: Debug + Send + Sync {
    /// The mask of the rows that pass: one value per row of `rows`. Null counts as false.
    ///
    /// # Errors
    /// [`Error::filter`](crate::Error::filter) wraps errors of the implementation; they end the query.
    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray>;
}

/// A scan of one tree, in key order.
#[derive(Debug, Clone)]
pub struct Scan {
    /// The tree at one snapshot.
    pub view: TreeView,
    /// Key ranges to read: disjoint, and in the order of `direction`.
    pub ranges: Vec<KeyRange>,
    /// Ascending or descending key order.
    pub direction: Direction,
    /// Columns to return (indices into the tree's schema).
    pub columns: Vec<usize>,
    /// A filter with the columns it sees. They are decoded first; the other columns only for rows that pass.
    pub filter: Option<(Vec<usize>, Arc<dyn Filter>)>,
    /// Rows to return, at most.
    pub limit: Option<u64>,
    /// Rows per output batch, at most; 0 counts as 1.
    pub batch_rows: usize,
}

/// The driver of a pipeline: the outermost scan, whose rows start the lookups.
#[derive(Debug, Clone)]
pub struct Driver {
    /// The tree at one snapshot.
    pub view: TreeView,
    /// Disjoint key ranges to read.
    pub ranges: Vec<KeyRange>,
    /// Columns to read (indices into the tree's schema).
    pub columns: Vec<usize>,
    /// Over a batch of exactly `columns`.
    pub filter: Option<Arc<dyn Filter>>,
}

/// The treatment of a row without a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// It is dropped.
    Inner,
    /// It continues with nulls for the columns of the step's tree.
    LeftOuter,
}

/// The value of one leading key column of a step's tree.
#[derive(Debug, Clone)]
pub enum KeyPart {
    /// A column of the pipeline so far, of exactly the key column's Arrow type. Null never matches.
    Column(usize),
    /// An array of one value of the key column's Arrow type. Null never matches.
    Constant(ArrayRef),
}

/// One index nested-loop step: finds, for each row so far, the rows of `view` whose leading key columns equal `key`.
///
/// The columns after the step are those before it, followed by `columns` of the tree. The filter sees all of them; then
/// `keep` selects and reorders. Field names have no meaning.
#[derive(Debug, Clone)]
pub struct Step {
    /// The inner tree at one snapshot.
    pub view: TreeView,
    /// Values of the leading key columns of the tree, at most as many as its key has columns.
    pub key: Vec<KeyPart>,
    /// Columns of the tree to read (indices into its schema).
    pub columns: Vec<usize>,
    /// Inner or left outer.
    pub join: Join,
    /// A residual condition. With [`Join::LeftOuter`] it is part of the join condition.
    pub filter: Option<Arc<dyn Filter>>,
    /// Columns to keep, in this order; `None` keeps all.
    pub keep: Option<Vec<usize>>,
}

/// A driver and any number of steps.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The outermost scan.
    pub driver: Driver,
    /// Applied in this order.
    pub steps: Vec<Step>,
    /// In order or out of order.
    pub mode: ExecutionMode,
    /// Rows per output batch, at most; 0 counts as 1.
    pub batch_rows: usize,
    /// Bytes for buffered rows, pending lookups and output. Each level of the pipeline may overshoot its share by the rows
    /// that running tasks add.
    pub memory_bytes: usize,
}

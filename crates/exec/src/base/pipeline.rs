//! What to execute: a driving scan and index nested-loop steps.

use std::fmt::Debug;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use keyaki_store::{Direction, KeyRange, TreeView};

use crate::{ExecutionMode, Result};

/// A condition on rows; null counts as false. Evaluated on batches.
pub trait Filter: Debug + Send + Sync {
    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanArray>;
}

/// A scan of one tree.
#[derive(Debug, Clone)]
pub struct Scan {
    pub view: TreeView,
    /// Disjoint, in scan order.
    pub ranges: Vec<KeyRange>,
    pub direction: Direction,
    /// Columns to return (indices into the tree's schema).
    pub columns: Vec<usize>,
    /// Over `filter_columns`, which are decoded first; the others only for rows that pass.
    pub filter: Option<(Vec<usize>, Arc<dyn Filter>)>,
    /// Stop after so many rows.
    pub limit: Option<u64>,
    /// Rows per output batch.
    pub batch_rows: usize,
}

/// The outermost step of a pipeline: its rows start the lookups.
#[derive(Debug, Clone)]
pub struct Driver {
    pub view: TreeView,
    pub ranges: Vec<KeyRange>,
    pub columns: Vec<usize>,
    /// Over a batch of exactly `columns`.
    pub filter: Option<Arc<dyn Filter>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    Inner,
    /// Rows of the pipeline so far that find no match continue with nulls.
    LeftOuter,
}

/// Where a leading key column of the inner tree gets its value from.
#[derive(Debug, Clone)]
pub enum KeyPart {
    /// A column of the pipeline so far; it has exactly the key column's Arrow type. Null never matches.
    Column(usize),
    /// A constant: an array of one value of the key column's Arrow type.
    Constant(ArrayRef),
}

/// One index nested-loop step: for each row so far, the rows of `view` whose leading key columns equal `key`.
///
/// The pipeline's columns after the step are those before it, followed by `columns` of the tree; then `keep` (indices
/// into these) selects and reorders, after the filter. Field names do not matter.
#[derive(Debug, Clone)]
pub struct Step {
    pub view: TreeView,
    pub key: Vec<KeyPart>,
    pub columns: Vec<usize>,
    pub join: Join,
    /// Over all columns after the step, before `keep`. With `LeftOuter` it is part of the join condition.
    pub filter: Option<Arc<dyn Filter>>,
    pub keep: Option<Vec<usize>>,
}

/// A driving scan and any number of steps.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub driver: Driver,
    pub steps: Vec<Step>,
    pub mode: ExecutionMode,
    pub batch_rows: usize,
    /// Bytes that buffered rows, tasks and output of this pipeline may take, about.
    pub memory_bytes: usize,
}

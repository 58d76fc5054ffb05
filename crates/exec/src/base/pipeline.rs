//! The description of a query: a scan, or a pipeline of a driver and index nested-loop steps.
//!
//! Columns are indices. The columns of a pipeline after a step are those before it, followed by those of the step's tree, as
//! selected by [`Step::keep`].

use std::fmt::Debug;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
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
    /// Filters, each with the columns that it sees: a row must pass all of them. They are evaluated one after another.
    /// If few rows have passed the first ones, the columns of the others are decoded for these rows only.
    pub filters: Vec<(Vec<usize>, Arc<dyn Filter>)>,
    /// Rows to return, at most.
    pub limit: Option<u64>,
    /// Rows per output batch, at most; 0 counts as 1.
    pub batch_rows: usize,
    /// Further columns of the pages that stay in memory, because other parts of the query read them.
    pub kept: Vec<usize>,
}

impl Scan {
    /// All rows of a tree in key order.
    pub fn whole(view: TreeView, columns: Vec<usize>, batch_rows: usize) -> Scan {
        let (ranges, direction) = (vec![KeyRange::all()], Direction::Ascending);
        Scan { view, ranges, direction, columns, filters: Vec::new(), limit: None, batch_rows, kept: Vec::new() }
    }
}

/// The driver of a pipeline: the outermost rows, which start the lookups.
#[derive(Debug, Clone)]
pub enum Driver {
    /// The rows of a tree.
    Scan(DriverScan),
    /// Rows of this schema, which the consumer of the pipeline pushes ([`Rows::push`](crate::Rows::push)). Needs at least
    /// one step.
    Pushed(SchemaRef),
}

/// A driver that reads a tree.
#[derive(Debug, Clone)]
pub struct DriverScan {
    /// The tree at one snapshot.
    pub view: TreeView,
    /// Disjoint key ranges to read.
    pub ranges: Vec<KeyRange>,
    /// Columns to read (indices into the tree's schema).
    pub columns: Vec<usize>,
    /// Over a batch of exactly `columns`.
    pub filter: Option<Arc<dyn Filter>>,
}

/// The rows that a step passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Each row with each of its matches.
    Inner,
    /// As [`Join::Inner`]; rows without a match continue with nulls for the columns of the step's tree.
    LeftOuter,
    /// Rows that have a match, once, without the columns of the step's tree.
    LeftSemi,
    /// Rows without a match, without the columns of the step's tree.
    LeftAnti,
}

impl Join {
    /// True if rows continue without the columns of the step's tree.
    pub(crate) fn is_existence(self) -> bool {
        matches!(self, Join::LeftSemi | Join::LeftAnti)
    }

    /// True if rows without a match continue.
    pub(crate) fn keeps_unmatched(self) -> bool {
        matches!(self, Join::LeftOuter | Join::LeftAnti)
    }
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
/// `keep` selects and reorders. After a semi or anti join, `keep` selects from the columns before it. Field names have no
/// meaning.
#[derive(Debug, Clone)]
pub struct Step {
    /// The inner tree at one snapshot.
    pub view: TreeView,
    /// Values of the leading key columns of the tree, at most as many as its key has columns.
    pub key: Vec<KeyPart>,
    /// Columns of the tree to read (indices into its schema).
    pub columns: Vec<usize>,
    /// The kind of join.
    pub join: Join,
    /// A residual condition. Except with [`Join::Inner`], it is part of the join condition.
    pub filter: Option<Arc<dyn Filter>>,
    /// Columns to keep, in this order; `None` keeps all.
    pub keep: Option<Vec<usize>>,
}

/// A driver and any number of steps.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The outermost rows.
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
    /// Use and read pages with all their columns, for callers that look up further rows there.
    pub whole_pages: bool,
}

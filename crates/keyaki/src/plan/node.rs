//! The specification of an index pipeline, and the logical node that replaces a part of a join tree by it.
//!
//! A [`PipelineSpec`] lists accesses: the driver, which scans key ranges of a tree or takes the rows of another plan, then
//! lookup steps. Each access appends its columns to the columns of the pipeline, filters the rows and keeps the columns
//! that later accesses use.

use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, JoinType, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use keyaki_store::KeyRange;

use crate::table::{PlanContext, PlannedTree};

/// Source of one key column of a lookup step.
#[derive(Debug, Clone)]
pub(super) enum KeyValue {
    /// Position in the columns that the pipeline carries before the step.
    Column(usize),
    Constant(ScalarValue),
}

/// The driver of a pipeline or one of its lookup steps.
#[derive(Debug, Clone)]
pub(super) struct AccessSpec {
    /// Tree and alias for EXPLAIN: `customer.customer_acctbal as c`.
    pub name: String,
    /// Ranges or lookup key for EXPLAIN: `c_acctbal: 1 range` or `o_custkey = c.c_custkey`.
    pub condition: String,
    /// The tree; `None` if the driver takes the rows of the node's input.
    pub view: Option<PlannedTree>,
    /// Key ranges of the driver; empty for a step.
    pub ranges: Vec<KeyRange>,
    /// Values of the leading key columns of a step; empty for the driver.
    pub key: Vec<KeyValue>,
    /// Columns of the tree to decode and append to the columns of the pipeline, or those of the input, in order.
    pub columns: Vec<usize>,
    /// The join with the accesses before: `Inner`, `Left`, `LeftSemi` or `LeftAnti`. `Inner` for the driver.
    pub join: JoinType,
    /// Residual filter over `scope`.
    pub filter: Option<Expr>,
    /// Columns of the pipeline at the filter, before `keep`. After it, semi and anti joins have the columns before only.
    pub scope: DFSchemaRef,
    /// Positions in `scope` of the columns to carry on; `None` keeps all.
    pub keep: Option<Vec<usize>>,
}

/// An index pipeline with its estimates.
#[derive(Debug, Clone)]
pub(super) struct PipelineSpec {
    /// The context of the database of the trees.
    pub context: PlanContext,
    /// The driver, then the lookup steps; never empty.
    pub accesses: Vec<AccessSpec>,
    /// Positions of the output columns after the last access.
    pub output: Vec<usize>,
    /// Schema of the output.
    pub schema: DFSchemaRef,
    /// Estimated rows.
    pub rows: f64,
    /// Estimated distinct values of each output column.
    pub distinct: Vec<f64>,
    /// Estimated elapsed seconds.
    pub seconds: f64,
    /// Estimated elapsed seconds of the input, if there is one.
    pub input_seconds: f64,
    /// Estimated elapsed seconds of scans and hash joins over the same relations; `None` if the search has no such
    /// plan.
    pub without_seconds: Option<f64>,
}

impl PipelineSpec {
    /// Text of the accesses for EXPLAIN:
    /// `driver=customer.customer_acctbal[c_acctbal: 1 range] → orders.orders_custkey(o_custkey = customer.c_custkey)`
    pub fn path(&self) -> String {
        let access = |(i, access): (usize, &AccessSpec)| {
            let join = match access.join {
                JoinType::Left => "outer ",
                JoinType::LeftSemi => "semi ",
                JoinType::LeftAnti => "anti ",
                _ => "",
            };
            match i {
                0 => format!("driver={}[{}]", access.name, access.condition),
                _ => format!("{join}{}({})", access.name, access.condition),
            }
        };
        self.accesses.iter().enumerate().map(access).collect::<Vec<_>>().join(" → ")
    }

    /// Text of the estimates for EXPLAIN: `est_rows=12, est_ms=3.40, est_scan_ms=120`.
    pub fn estimates(&self) -> String {
        let mut text = format!("est_rows={:.0}, est_ms={}", self.rows, Milliseconds(self.seconds));
        if let Some(seconds) = self.without_seconds {
            text += &format!(", est_scan_ms={}", Milliseconds(seconds));
        }
        text
    }
}

/// Displays seconds as milliseconds with three significant digits, at most three decimals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Milliseconds(pub f64);

impl Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 * 1e3;
        let decimals = if ms >= 100.0 {
            0
        } else if ms >= 10.0 {
            1
        } else if ms >= 1.0 {
            2
        } else {
            3
        };
        write!(f, "{ms:.decimals$}")
    }
}

/// A shared value compared, ordered and hashed by address: equal to its clones alone. DataFusion requires these traits
/// of logical nodes; each rewrite creates its own specification, so that identity is equality.
#[derive(Debug)]
pub(super) struct PtrEq<T>(pub Arc<T>);

impl<T> Clone for PtrEq<T> {
    fn clone(&self) -> Self {
        PtrEq(self.0.clone())
    }
}
impl<T> Deref for PtrEq<T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
impl<T> PartialEq for PtrEq<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl<T> Eq for PtrEq<T> {}
impl<T> Hash for PtrEq<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}
impl<T> PartialOrd for PtrEq<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Arc::as_ptr(&self.0).partial_cmp(&Arc::as_ptr(&other.0))
    }
}

/// Logical node of an index pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct PipelineNode {
    pub spec: PtrEq<PipelineSpec>,
    /// The rows of the driver, if it is not a tree. Its columns are those of the first access.
    pub input: Option<LogicalPlan>,
}

impl PipelineNode {
    /// Estimated rows.
    pub fn rows(&self) -> f64 {
        self.spec.rows
    }
}

impl UserDefinedLogicalNodeCore for PipelineNode {
    fn name(&self) -> &str {
        "IndexPipeline"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.input.iter().collect()
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.spec.schema
    }
    // No expressions, so that optimizer rules cannot rewrite the filters of the pipeline.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexPipeline: {}, {}", self.spec.path(), self.spec.estimates())
    }
    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        assert_eq!(inputs.len(), usize::from(self.input.is_some()), "inputs of an index pipeline");
        Ok(PipelineNode { spec: self.spec.clone(), input: inputs.into_iter().next() })
    }
}

//! The logical node of a pipeline: a leaf that stands for a part of a join tree.

use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use keyaki_store::{KeyRange, TreeView};

/// Where a key column of a step comes from.
#[derive(Debug, Clone)]
pub(super) enum KeyValue {
    /// A column of the pipeline so far.
    Column(usize),
    Constant(ScalarValue),
}

/// The driver of a pipeline or one of its steps.
#[derive(Debug, Clone)]
pub(super) struct AccessSpec {
    /// `customer.customer_acctbal as c`, for display.
    pub name: String,
    /// `c_acctbal in 1 range` or `o_custkey = c.c_custkey`, for display.
    pub condition: String,
    pub view: TreeView,
    /// Of the driver.
    pub ranges: Vec<KeyRange>,
    /// Of a step.
    pub key: Vec<KeyValue>,
    /// Of the tree: appended to the pipeline's columns.
    pub columns: Vec<usize>,
    /// Null-supplying.
    pub outer: bool,
    pub filter: Option<Expr>,
    /// The pipeline's columns as the filter sees them.
    pub scope: DFSchemaRef,
    /// What is kept of them afterwards; none: all.
    pub keep: Option<Vec<usize>>,
}

/// A chosen pipeline with what was expected of it.
#[derive(Debug, Clone)]
pub(super) struct PipelineSpec {
    pub accesses: Vec<AccessSpec>,
    /// Columns after the last access that are the output.
    pub output: Vec<usize>,
    pub schema: DFSchemaRef,
    pub rows: f64,
    pub seconds: f64,
    /// What the same part of the query takes without pipelines; none if it was not asked.
    pub without_seconds: Option<f64>,
}

impl PipelineSpec {
    /// `driver=customer.customer_acctbal[c_acctbal: 1 range] → orders.orders_custkey(o_custkey = customer.c_custkey)`
    pub fn path(&self) -> String {
        let access = |(i, access): (usize, &AccessSpec)| {
            let outer = if access.outer { "outer " } else { "" };
            match i {
                0 => format!("driver={}[{}]", access.name, access.condition),
                _ => format!("{outer}{}({})", access.name, access.condition),
            }
        };
        self.accesses.iter().enumerate().map(access).collect::<Vec<_>>().join(" → ")
    }

    /// `est_rows=12, est_ms=3.4, est_scan_ms=120`
    pub fn estimates(&self) -> String {
        let mut text = format!("est_rows={:.0}, est_ms={}", self.rows, Milliseconds(self.seconds));
        if let Some(seconds) = self.without_seconds {
            text += &format!(", est_scan_ms={}", Milliseconds(seconds));
        }
        text
    }
}

/// Shows seconds as milliseconds with three significant digits.
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

/// What is the same as itself and its clones, and nothing else. Every rewrite makes its own specification of a node, and nodes
/// must be compared and hashed.
#[derive(Debug)]
pub(super) struct Same<T>(pub Arc<T>);

impl<T> Clone for Same<T> {
    fn clone(&self) -> Self {
        Same(self.0.clone())
    }
}
impl<T> Deref for Same<T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
impl<T> PartialEq for Same<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl<T> Eq for Same<T> {}
impl<T> Hash for Same<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}
impl<T> PartialOrd for Same<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Arc::as_ptr(&self.0).partial_cmp(&Arc::as_ptr(&other.0))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct PipelineNode {
    pub spec: Same<PipelineSpec>,
}

impl PipelineNode {
    pub fn rows(&self) -> f64 {
        self.spec.rows
    }
}

impl UserDefinedLogicalNodeCore for PipelineNode {
    fn name(&self) -> &str {
        "IndexPipeline"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.spec.schema
    }
    // What it evaluates is its own: nobody else may rewrite it.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexPipeline: {}, {}", self.spec.path(), self.spec.estimates())
    }
    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, _inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}

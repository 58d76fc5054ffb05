//! Rows that are computed once and read in several places of a plan.
//!
//! A correlated subquery needs the set of the values that its outer query has, beside the rows of the outer query. A
//! [`Materialize`] node keeps the rows of its input while the statement runs. [`MaterializedScan`]s with its name return
//! some of their columns again. So the outer query is evaluated once, and may return other rows each time: LIMIT, window
//! functions, volatile functions.
//!
//! The optimizer plans both as independent nodes. It may filter and prune the input: rows that a filter above the
//! `Materialize` rejects have no use for the values of a subquery. [`bind`] connects the operators of a physical plan.
//!
//! *Invariants.* The input of a `Materialize` contains no scan of it. A name belongs to one `Materialize`, or to copies of
//! one with copies of its scans.

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, Projection, UserDefinedLogicalNodeCore};

use super::facts::plan_rows;
use super::shared::{aggregates_floats, can_differ};
use crate::base::tree::PlanTree;

mod exec;
mod rows;

pub(super) use exec::{MaterializeExec, MaterializedScanExec, MaterializedScanOperator, bind};
pub(super) use rows::SharedRows;

/// Keeps the rows of its input for [`MaterializedScan`]s, and returns them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct Materialize {
    pub name: String,
    /// The columns that scans read.
    pub columns: Vec<Column>,
    pub input: LogicalPlan,
}

impl Materialize {
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// The node at the root of a plan.
    pub fn of(plan: &LogicalPlan) -> Option<&Materialize> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// Positions of the columns that scans read.
    pub fn positions(&self) -> Result<Vec<usize>> {
        self.columns.iter().map(|column| self.input.schema().index_of_column(column)).collect()
    }

    /// A scan of some of the columns that scans read.
    pub fn scan(&self, columns: &[Column]) -> Result<LogicalPlan> {
        let place = |column: &Column| {
            let place = self.columns.iter().position(|own| own == column);
            place.ok_or_else(|| DataFusionError::Internal(format!("column {column} is not kept")))
        };
        let places = columns.iter().map(place).collect::<Result<_>>()?;
        let schema = self.input.schema();
        let field = |column: &Column| {
            let (qualifier, field) = schema.qualified_field(schema.index_of_column(column)?);
            Ok((qualifier.cloned(), field.clone()))
        };
        let fields = columns.iter().map(field).collect::<Result<_>>()?;
        let schema = Arc::new(DFSchema::new_with_metadata(fields, Default::default())?);
        let rows = plan_rows(&self.input).max(1.0) as u64;
        let scan = MaterializedScan { name: self.name.clone(), columns: places, schema, rows };
        Ok(LogicalPlan::Extension(Extension { node: Arc::new(scan) }))
    }
}

impl UserDefinedLogicalNodeCore for Materialize {
    fn name(&self) -> &str {
        "Materialize"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }
    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn prevent_predicate_push_down_columns(&self) -> std::collections::HashSet<String> {
        Default::default()
    }
    fn necessary_children_exprs(&self, output: &[usize]) -> Option<Vec<Vec<usize>>> {
        let mut columns = self.positions().ok()?;
        columns.extend(output);
        columns.sort_unstable();
        columns.dedup();
        Some(vec![columns])
    }
    fn supports_limit_pushdown(&self) -> bool {
        true
    }
    fn fmt_for_explain(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Materialize: {}", self.name)
    }
    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[_; 1]>::try_from(inputs) {
            Ok([input]) => Ok(Materialize { input, ..self.clone() }),
            Err(_) => Err(DataFusionError::Internal("Materialize has one input".into())),
        }
    }
}

/// Returns columns of the rows of the [`Materialize`] with this name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MaterializedScan {
    pub name: String,
    /// Indices into [`Materialize::columns`].
    pub columns: Vec<usize>,
    pub schema: DFSchemaRef,
    /// Estimated rows.
    pub rows: u64,
}

impl MaterializedScan {
    /// The node at the root of a plan.
    fn of(plan: &LogicalPlan) -> Option<&MaterializedScan> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// The columns of the scan from the rows of its [`Materialize`].
    fn repeated(&self, kept: &Materialize) -> Result<LogicalPlan> {
        let column = |(place, (qualifier, field)): (&usize, (Option<&_>, &Arc<_>))| {
            let field: &arrow::datatypes::Field = field;
            Expr::Column(kept.columns[*place].clone()).alias_qualified(qualifier.cloned(), field.name())
        };
        let columns = self.columns.iter().zip(self.schema.iter()).map(column).collect();
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(kept.input.clone()))?))
    }
}

/// A plan in which each scan computes the kept rows again, for machines that do not share them. The plan stays if the rows could
/// be others each time.
pub(super) fn repeated(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut kept: HashMap<String, Materialize> = HashMap::new();
    let mut differs = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        if let Some(node) = Materialize::of(node) {
            differs |= can_differ(&node.input)? || aggregates_floats(&node.input)?;
            // Copies of a node may have got different filters.
            differs |= kept.insert(node.name.clone(), node.clone()).is_some_and(|other| other != *node);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if differs || kept.is_empty() {
        return Ok(plan);
    }
    let repeated = plan.transform_down_with_subqueries_dyn(&mut |node| {
        let mut node = Transformed::no(node);
        // The input of one may begin with another.
        loop {
            let input = match (Materialize::of(&node.data), MaterializedScan::of(&node.data)) {
                (Some(own), _) => own.input.clone(),
                (_, Some(scan)) => match kept.get(&scan.name) {
                    Some(own) => scan.repeated(own)?,
                    None => return Ok(node),
                },
                _ => return Ok(node),
            };
            node = Transformed::yes(input);
        }
    });
    Ok(repeated?.data)
}

impl PartialOrd for MaterializedScan {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (&self.name, &self.columns).partial_cmp(&(&other.name, &other.columns))
    }
}

impl UserDefinedLogicalNodeCore for MaterializedScan {
    fn name(&self) -> &str {
        "MaterializedScan"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn fmt_for_explain(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> = self.schema.columns().iter().map(Column::flat_name).collect();
        write!(f, "MaterializedScan: {}, columns=[{}]", self.name, columns.join(", "))
    }
    fn with_exprs_and_inputs(&self, _: Vec<Expr>, _: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}

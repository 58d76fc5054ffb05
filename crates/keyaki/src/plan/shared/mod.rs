//! Subqueries that occur several times in a statement and are executed once.
//!
//! DataFusion plans each reference to a WITH query on its own. Two executions of a query can have different rows if it
//! has volatile functions, LIMIT, or window functions that depend on the order of equal rows: then all references are
//! *shared* before the optimizer ([`share_with_queries`]), as they are for `AS MATERIALIZED`. Other subqueries are
//! optimized for each reference. Aggregates, DISTINCT and window functions that are still equal after that are shared,
//! too ([`share_equal_parts`]).
//!
//! Each occurrence becomes a [`Shared`] node with the same name and its own copy of the input, so that the optimizer
//! may remove any of them. No filter, limit or choice of columns is pushed below the node. [`bind`] keeps the input of
//! the first operator with a name; the others read the same rows.

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{
    Distinct, Expr, Extension, LogicalPlan, Sort, SubqueryAlias, TableScan, UserDefinedLogicalNodeCore,
    WindowFrameUnits, WindowFunctionDefinition,
};

use super::first_rows::unalias;
use super::materialize::{Materialize, MaterializedScan};
use super::subqueries::outer_columns;
use crate::base::tree::{PlanTree, Tree};
use crate::table::KeyakiTable;

mod exec;

pub(super) use exec::{SharedExec, bind};

/// One of several occurrences of a subquery that is executed once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct Shared {
    /// Occurrences with the same name have equal inputs.
    pub name: String,
    pub input: LogicalPlan,
}

impl Shared {
    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// True if an expression of the input has a scalar subquery.
    pub fn has_scalar_subqueries(&self) -> Result<bool> {
        self.input.exists_dyn(&mut |node| {
            let mut found = false;
            node.apply_expressions_dyn(&mut |expr| {
                found |= expr.exists_dyn(&mut |expr| Ok(matches!(expr, Expr::ScalarSubquery(_))))?;
                Ok(TreeNodeRecursion::Continue)
            })?;
            Ok(found)
        })
    }

    /// The node at the root of a plan.
    pub fn of(plan: &LogicalPlan) -> Option<&Shared> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }
}

impl UserDefinedLogicalNodeCore for Shared {
    fn name(&self) -> &str {
        "Shared"
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
    fn fmt_for_explain(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Shared: {}", self.name)
    }
    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[_; 1]>::try_from(inputs) {
            Ok([input]) => Ok(Shared { name: self.name.clone(), input }),
            Err(_) => Err(DataFusionError::Internal("Shared has one input".into())),
        }
    }
}

/// Shares the WITH queries that occur several times in a plan of DataFusion's planner and whose executions can differ,
/// or that are in `materialized`. `next` numbers them within a statement.
pub(crate) fn share_with_queries(
    plan: LogicalPlan,
    materialized: &[String],
    next: &dyn Fn() -> usize,
) -> Result<LogicalPlan> {
    let mut occurrences = HashMap::new();
    count_aliases(&plan, materialized, &mut occurrences)?;
    occurrences.retain(|_, count| *count > 1);
    if occurrences.is_empty() {
        return Ok(plan);
    }
    // The same input is the same object.
    let mut numbers: HashMap<*const LogicalPlan, usize> = HashMap::new();
    let shared = plan.transform_down_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::SubqueryAlias(alias) = &node else { return Ok(Transformed::no(node)) };
        let input = Arc::as_ptr(&alias.input);
        if !occurrences.contains_key(&input) {
            return Ok(Transformed::no(node));
        }
        let number = *numbers.entry(input).or_insert_with(next);
        let shared =
            Shared { name: format!("{} ({number})", alias.alias.table()), input: alias.input.as_ref().clone() };
        let alias = SubqueryAlias::try_new(Arc::new(shared.into_plan()), alias.alias.clone())?;
        Ok(Transformed::yes(LogicalPlan::SubqueryAlias(alias)))
    });
    Ok(shared?.data)
}

/// Counts the occurrences of inputs of aliases that must be shared if there are several. Inputs of further occurrences
/// are not visited.
fn count_aliases(
    plan: &LogicalPlan,
    materialized: &[String],
    occurrences: &mut HashMap<*const LogicalPlan, usize>,
) -> Result<()> {
    plan.apply_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::SubqueryAlias(alias) = node else { return Ok(TreeNodeRecursion::Continue) };
        if let Some(count) = occurrences.get_mut(&Arc::as_ptr(&alias.input)) {
            *count += 1;
            return Ok(TreeNodeRecursion::Jump);
        }
        let is_declared = materialized.iter().any(|name| *name == alias.alias.table());
        // The rows of the last step of a recursive query have its name, too.
        let is_query = !matches!(alias.input.as_ref(), LogicalPlan::TableScan(_));
        if is_query && (is_declared || can_differ(&alias.input)?) && outer_columns(&alias.input)?.is_empty() {
            occurrences.insert(Arc::as_ptr(&alias.input), 1);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// True if two executions of a plan can have different rows.
pub(super) fn can_differ(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        found |= matches!(
            node,
            LogicalPlan::Limit(_)
                | LogicalPlan::Sort(Sort { fetch: Some(_), .. })
                | LogicalPlan::Distinct(Distinct::On(_))
        );
        node.apply_expressions_dyn(&mut |expr| {
            found |= expr.is_volatile() || expr.exists_dyn(&mut |expr| Ok(takes_rows_in_order(expr)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if let LogicalPlan::Window(window) = node {
            found |= window.window_expr.iter().any(depends_on_order);
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// True if a plan has aggregates or window functions whose values are floats: several machines add them in another order each
/// time.
pub(super) fn aggregates_floats(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        let is_float = |ty: &DataType| matches!(ty, DataType::Float16 | DataType::Float32 | DataType::Float64);
        found |= matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Window(_))
            && node.schema().fields().iter().any(|field| is_float(field.data_type()));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Shares the parts of a plan for several machines whose rows could differ between two executions there: such a plan is executed
/// by one machine. Other equal parts are executed where their rows are used.
pub(super) fn share_differing_parts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let shared = share_equal_parts(plan.clone())?;
    let mut differs = false;
    shared.apply_with_subqueries_dyn(&mut |node| {
        if let Some(part) = Shared::of(node) {
            differs |= aggregates_floats(&part.input)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(if differs { shared } else { plan })
}

/// Aggregates whose results depend on the order of rows.
const ORDERED: [&str; 6] = ["array_agg", "string_agg", "string_agg_by_row", "first_value", "last_value", "nth_value"];

/// True for aggregates whose results depend on the order of rows, without ORDER BY.
fn takes_rows_in_order(expr: &Expr) -> bool {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else { return false };
    params.order_by.is_empty() && ORDERED.contains(&func.name())
}

/// True for window functions whose results depend on the order of rows that are equal in ORDER BY.
fn depends_on_order(expr: &Expr) -> bool {
    let Expr::WindowFunction(function) = unalias(expr) else { return true };
    let WindowFunction { fun, params } = function.as_ref();
    match fun {
        WindowFunctionDefinition::AggregateUDF(_) => params.window_frame.units == WindowFrameUnits::Rows,
        WindowFunctionDefinition::WindowUDF(function) => {
            !["rank", "dense_rank", "percent_rank", "cume_dist"].contains(&function.name())
        }
    }
}

/// Shares the aggregates, DISTINCT and window functions of an optimized plan that have equal inputs.
pub(super) fn share_equal_parts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut occurrences: HashMap<LogicalPlan, usize> = HashMap::new();
    let mut candidates = 0;
    plan.apply_with_subqueries_dyn(&mut |node| {
        candidates += usize::from(is_candidate(node));
        Ok(TreeNodeRecursion::Continue)
    })?;
    if candidates < 2 {
        return Ok(plan);
    }
    plan.apply_with_subqueries_dyn(&mut |node| {
        if is_candidate(node) && is_sharable(node)? {
            *occurrences.entry(node.clone()).or_default() += 1;
        }
        // The parts of a recursive query are executed many times.
        let is_recursive = matches!(node, LogicalPlan::RecursiveQuery(_));
        Ok(if is_recursive { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })?;
    occurrences.retain(|_, count| *count > 1);
    if occurrences.is_empty() {
        return Ok(plan);
    }
    let mut names: HashMap<LogicalPlan, String> = HashMap::new();
    let shared = plan.transform_down_with_subqueries_dyn(&mut |node| {
        if matches!(node, LogicalPlan::RecursiveQuery(_)) || Shared::of(&node).is_some() {
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
        }
        if !is_candidate(&node) || !occurrences.contains_key(&node) {
            return Ok(Transformed::no(node));
        }
        let next = format!("common part {}", names.len() + 1);
        let name = names.entry(node.clone()).or_insert(next).clone();
        Ok(Transformed::new(Shared { name, input: node }.into_plan(), true, TreeNodeRecursion::Jump))
    });
    Ok(shared?.data)
}

/// True for nodes that need all their input before the first row, and usually return fewer rows.
fn is_candidate(node: &LogicalPlan) -> bool {
    matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_))
}

/// True if all executions of a plan have the same rows, and it has no references to other parts of the statement.
fn is_sharable(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        match node {
            LogicalPlan::Extension(extension) => {
                let node = extension.node.as_any();
                found |= node.is::<Materialize>() || node.is::<MaterializedScan>() || node.is::<Shared>();
            }
            // Scans are compared by their names. Those of functions have the same name for all arguments.
            LogicalPlan::TableScan(TableScan { source, .. }) => {
                found |= !source_as_provider(source)?.is::<KeyakiTable>()
            }
            _ => {}
        }
        node.apply_expressions_dyn(&mut |expr| {
            found |= expr.is_volatile() || expr.contains_outer();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(!found)
}

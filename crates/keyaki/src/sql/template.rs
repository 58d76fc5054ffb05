//! Templates: queries whose names were resolved once, for executions on the long path with other values.
//!
//! An execution puts its values in place of the parameters, and tables as of its snapshot in place of those of the
//! template. The optimizer then works on a plan with literals: a value decides on the access paths of its own execution
//! only. A template belongs to one version of the catalog and one time zone, and keeps no snapshot.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Constraints, ParamValues};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan, TableSource, Volatility};
use datafusion::scalar::ScalarValue;

use super::state::StatementState;
use crate::Result;
use crate::base::tree::{PlanTree, Tree};
use crate::catalog::Table;
use crate::table::KeyakiTable;

/// The plan of a query before its analysis, with parameters, over tables without a snapshot.
#[derive(Debug)]
pub(super) struct Template(LogicalPlan);

impl Template {
    /// The template of a plan; `None` if the plan depends on its statement or session in other ways: by files, system views
    /// or functions such as `nextval`.
    pub fn of(plan: &LogicalPlan) -> Option<Template> {
        if uses_volatile_functions(plan) {
            return None;
        }
        let mut is_bound = false;
        let unbound = plan.clone().transform_up_with_subqueries_dyn(&mut |plan| {
            is_bound |= matches!(
                plan,
                LogicalPlan::Explain(_)
                    | LogicalPlan::Analyze(_)
                    | LogicalPlan::Statement(_)
                    | LogicalPlan::Dml(_)
                    | LogicalPlan::Ddl(_)
                    | LogicalPlan::Copy(_)
                    | LogicalPlan::DescribeTable(_)
                    | LogicalPlan::Extension(_)
            );
            let LogicalPlan::TableScan(scan) = plan else { return Ok(Transformed::no(plan)) };
            match Unbound::of(&scan) {
                Some(source) => Ok(Transformed::yes(LogicalPlan::TableScan(with_source(scan, Arc::new(source))))),
                None => {
                    is_bound = true;
                    Ok(Transformed::no(LogicalPlan::TableScan(scan)))
                }
            }
        });
        // The closure never fails.
        unbound.ok().filter(|_| !is_bound).map(|unbound| Template(unbound.data))
    }

    /// The plan of one execution: with a value for each parameter, of its type, and the tables of `state`, whose catalog is
    /// that of the template.
    ///
    /// # Errors
    /// Errors of DataFusion for values that do not fit their places.
    pub fn bind(&self, state: &StatementState, values: &[ArrayRef]) -> Result<LogicalPlan> {
        let values = values.iter().map(|value| ScalarValue::try_from_array(value, 0));
        let values = values.collect::<datafusion::error::Result<Vec<_>>>()?;
        let plan = self.0.clone().replace_params_with_values(&ParamValues::from(values))?;
        let bound = plan.transform_up_with_subqueries_dyn(&mut |plan| {
            let LogicalPlan::TableScan(scan) = plan else { return Ok(Transformed::no(plan)) };
            let Some(unbound) = scan.source.downcast_ref::<Unbound>() else {
                return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
            };
            let source = provider_as_source(Arc::new(state.provider(&unbound.table)));
            Ok(Transformed::yes(LogicalPlan::TableScan(with_source(scan, source))))
        });
        Ok(bound?.data)
    }
}

fn with_source(scan: TableScan, source: Arc<dyn TableSource>) -> TableScan {
    TableScan { source, ..scan }
}

/// A table in a template.
#[derive(Debug)]
struct Unbound {
    table: Arc<Table>,
    schema: SchemaRef,
    constraints: Option<Constraints>,
}

impl Unbound {
    /// The table of a scan; `None` for other tables than those of the database.
    fn of(scan: &TableScan) -> Option<Unbound> {
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<KeyakiTable>().filter(|table| !table.context.is_attached)?;
        (table.schema() == table.table.arrow).then(|| Unbound {
            table: table.table.clone(),
            schema: table.schema(),
            constraints: table.constraints().cloned(),
        })
    }
}

impl TableSource for Unbound {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.constraints.as_ref()
    }
}

/// True for plans with functions of the catalog, which have the state of one statement, and with functions that may depend on more than their arguments and the moment of the statement.
fn uses_volatile_functions(plan: &LogicalPlan) -> bool {
    let mut found = false;
    let visited = plan.apply_with_subqueries_dyn(&mut |plan| {
        plan.apply_expressions_dyn(&mut |expr| {
            expr.apply_dyn(&mut |expr| {
                found |= matches!(expr, Expr::ScalarFunction(call)
                    if call.func.signature().volatility == Volatility::Volatile
                        || call.func.name() == super::pg_catalog::FUNCTION);
                Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    });
    // The closures never fail.
    visited.is_err() || found
}

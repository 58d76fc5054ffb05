//! A correlated recursive query for all values of the domain at once: its rows, and those of its work table, carry the outer
//! values that they belong to.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::Column;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Projection, RecursiveQuery, TableScan};

use super::Rewriter;
use super::domain::Domain;
use super::references::outer_columns;
use crate::base::tree::PlanTree;

/// A recursive query that is being computed for all values of a domain.
#[derive(Debug)]
pub(super) struct Recursion {
    /// Name of the work table.
    name: String,
    /// Names of the outer columns in the work table, in the order of the domain.
    columns: Vec<String>,
}

impl Rewriter {
    /// A recursive query for each value of the domain.
    pub(super) fn recursive_for_all(&mut self, query: &RecursiveQuery, domain: &Domain) -> Result<LogicalPlan> {
        let first = self.for_all(&query.static_term, domain)?;
        let first = with_domain(domain, first, &query.static_term)?;
        let columns = domain.columns.iter().map(|(_, new)| new.name.clone()).collect();
        self.recursions.push(Recursion { name: query.name.clone(), columns });
        let next = self.for_all(&query.recursive_term, domain);
        self.recursions.pop();
        let next = with_domain(domain, next?, &query.recursive_term)?;
        let query = RecursiveQuery::try_new(query.name.clone(), Arc::new(first), Arc::new(next), query.is_distinct)?;
        Ok(LogicalPlan::RecursiveQuery(query))
    }

    /// True if the rows of a plan depend on the values of the domain.
    pub(super) fn depends(&self, plan: &LogicalPlan) -> Result<bool> {
        if !outer_columns(plan)?.is_empty() {
            return Ok(true);
        }
        let mut found = false;
        plan.apply_with_subqueries_dyn(&mut |node| {
            found |= matches!(node, LogicalPlan::TableScan(scan) if self.recursion_of(scan).is_some());
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(found)
    }

    /// The recursive query whose work table is scanned.
    fn recursion_of(&self, scan: &TableScan) -> Option<&Recursion> {
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<CteWorkTable>()?;
        self.recursions.iter().rev().find(|recursion| recursion.name == table.name())
    }

    /// The rows of a work table with the outer values that they belong to; `None` for other tables.
    pub(super) fn work_table_for_all(&self, scan: &TableScan, domain: &Domain) -> Result<Option<LogicalPlan>> {
        let Some(recursion) = self.recursion_of(scan) else { return Ok(None) };
        let types = domain.types()?;
        let outer = recursion.columns.iter().zip(types).map(|(name, ty)| Arc::new(Field::new(name, ty, true)));
        let own = scan.source.schema();
        let fields = outer.chain(own.fields().iter().cloned());
        let table = CteWorkTable::new(&recursion.name, Arc::new(Schema::new(fields.collect::<Vec<_>>())));
        let source = provider_as_source(Arc::new(table));
        let rows = LogicalPlanBuilder::scan(scan.table_name.clone(), source, None)?.build()?;
        let outer = recursion.columns.iter().zip(&domain.columns);
        let outer = outer
            .map(|(name, (_, new))| Expr::Column(Column::new(Some(scan.table_name.clone()), name)).alias(&new.name));
        let own = scan.projected_schema.columns().into_iter().map(Expr::Column);
        let columns = outer.chain(own).collect();
        Ok(Some(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?)))
    }
}

/// The columns of the domain, and then those of the original term.
fn with_domain(domain: &Domain, rows: LogicalPlan, original: &LogicalPlan) -> Result<LogicalPlan> {
    let own = original.schema().columns().into_iter().map(Expr::Column);
    let columns = domain.expressions().into_iter().chain(own).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?))
}

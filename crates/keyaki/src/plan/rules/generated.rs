//! Expressions of generated columns in conditions.
//!
//! [`UseGenerated`] replaces an expression in a filter by the generated column that has its values, so that the column's indexes
//! answer the filter. It runs after the rules that give the expression its final form, which those of definitions have too.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, JoinType, TableReference};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, ExprSchemable, Filter, LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::base::tree::{PlanTree, Tree};
use crate::table::KeyakiTable;

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct UseGenerated;

impl AnalyzerRule for UseGenerated {
    fn name(&self) -> &str {
        "use_generated_columns"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries_dyn(&mut rewrite)?.data)
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Filter(Filter { predicate, input, .. }) = &plan else { return Ok(Transformed::no(plan)) };
    let mut generated = Vec::new();
    collect(input, None, &mut generated)?;
    if generated.is_empty() {
        return Ok(Transformed::no(plan));
    }
    let schema = input.schema();
    let replaced = predicate.clone().transform_down_dyn(&mut |expr| {
        let found = generated.iter().find(|(other, _)| *other == expr);
        let found = found.and_then(|(_, column)| value(column, &expr, schema));
        Ok(match found {
            Some(column) => Transformed::new(column, true, TreeNodeRecursion::Jump),
            None => Transformed::no(expr),
        })
    })?;
    match replaced.transformed {
        true => Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(replaced.data, input.clone())?))),
        false => Ok(Transformed::no(plan)),
    }
}

/// The column, with the type of the expression; `None` if the conversion to the type of the column may have changed values.
fn value(column: &Column, expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    let (stored, ty) = (schema.data_type(column).ok()?.clone(), expr.get_type(schema).ok()?);
    let column = Expr::Column(column.clone());
    if stored == ty {
        Some(column)
    } else if stored.is_string() && ty.is_string() {
        Some(cast(column, ty))
    } else {
        None
    }
}

/// The expressions of the generated columns below a plan whose columns it returns unchanged. `alias` is the name of the plan.
fn collect(plan: &LogicalPlan, alias: Option<&TableReference>, found: &mut Vec<(Expr, Column)>) -> Result<()> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let Ok(provider) = source_as_provider(&scan.source) else { return Ok(()) };
            let Some(table) = provider.downcast_ref::<KeyakiTable>() else { return Ok(()) };
            let generation = table.table.compiled().and_then(|compiled| compiled.generation.as_ref());
            let relation = alias.unwrap_or(&scan.table_name);
            for generated in generation.iter().flat_map(|generation| &generation.columns) {
                let expr = generated.expr.clone().transform_up_dyn(&mut |expr| match expr {
                    Expr::Column(column) => {
                        Ok(Transformed::yes(Expr::Column(Column::new(Some(relation.clone()), column.name))))
                    }
                    other => Ok(Transformed::no(other)),
                })?;
                let name = &table.table.def.columns[generated.column].name;
                found.push((expr.data, Column::new(Some(relation.clone()), name)));
            }
            Ok(())
        }
        LogicalPlan::SubqueryAlias(subquery) => collect(&subquery.input, Some(alias.unwrap_or(&subquery.alias)), found),
        LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) => {
            plan.inputs().into_iter().try_for_each(|input| collect(input, alias, found))
        }
        // An alias gives the columns of both inputs one qualifier.
        LogicalPlan::Join(join) if alias.is_none() => {
            // An outer join adds nulls to a generated column whose expression need not be null.
            let (has_left, has_right) = match join.join_type {
                JoinType::Inner => (true, true),
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (false, true),
                JoinType::Full => (false, false),
            };
            let sides = [(has_left, &join.left), (has_right, &join.right)];
            sides.into_iter().filter(|(has, _)| *has).try_for_each(|(_, input)| collect(input, None, found))
        }
        _ => Ok(()),
    }
}

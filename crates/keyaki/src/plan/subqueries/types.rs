//! The types of references to outer queries. DataFusion 55 notes them while it plans a subquery, before it converts the
//! expressions of the outer query to common types, so that a reference to `CASE WHEN a THEN 1 ELSE 2.5 END` has the
//! type of the first branch.
//!
//! The rule precedes the conversion, which would convert the operands of the subquery to the wrong types. The types of
//! the outer columns are those of a copy of the outer query after its conversion. References also become nullable if
//! [`with_nullable_values`] makes the outer column nullable.

use std::sync::Arc;

use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema};
use datafusion::error::Result;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, Join, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

use super::has_subqueries;
use super::lateral::{lateral_of, marked};
use super::nullable::with_nullable_values;
use super::references::{outer_columns, subquery_of, with_subquery};
use crate::base::tree::{PlanTree, Tree};
use crate::plan::rules::{ConvertOperands, GroupFrames, PrepareIntervals};

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct OuterTypes;

impl AnalyzerRule for OuterTypes {
    fn name(&self) -> &str {
        "types_of_outer_references"
    }

    fn analyze(&self, plan: LogicalPlan, options: &ConfigOptions) -> Result<LogicalPlan> {
        match has_subqueries(&plan)? {
            true => Correction { options }.plan(plan, &[]),
            false => Ok(plan),
        }
    }
}

struct Correction<'o> {
    options: &'o ConfigOptions,
}

impl Correction<'_> {
    /// Gives the references of a plan to outer queries, whose columns are `scopes`, the innermost last, the types of
    /// the columns.
    fn plan(&self, plan: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<LogicalPlan> {
        match plan {
            LogicalPlan::Join(join) => {
                let is_outer = |column: &Column| scopes.iter().any(|scope| scope.has_column(column));
                let join = marked(join, is_outer)?;
                match lateral_of(&join) {
                    Some(_) => self.lateral(join, scopes),
                    None => self.inputs(LogicalPlan::Join(join), scopes),
                }
            }
            plan => self.inputs(plan, scopes),
        }
    }

    fn inputs(&self, plan: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<LogicalPlan> {
        let plan = plan.map_children(|child| self.plan(child, scopes).map(Transformed::yes))?.data;
        self.expressions(plan, scopes)
    }

    /// Corrects the subquery of a lateral join as one within the scope of the left input.
    fn lateral(&self, mut join: Join, scopes: &[Arc<DFSchema>]) -> Result<LogicalPlan> {
        let left = self.plan(join.left.as_ref().clone(), scopes)?;
        let mut inner = scopes.to_vec();
        inner.push(self.converted(left.clone())?.schema().clone());
        join.right = Arc::new(self.plan(join.right.as_ref().clone(), &inner)?);
        join.left = Arc::new(left);
        self.expressions(LogicalPlan::Join(join), scopes)
    }

    /// Corrects the expressions of a node, whose inputs are correct.
    fn expressions(&self, node: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<LogicalPlan> {
        let mut is_correlated = false;
        node.apply_expressions_dyn(&mut |expr| {
            expr.apply_dyn(&mut |expr| {
                if let Some(subquery) = subquery_of(expr) {
                    is_correlated |= !outer_columns(&subquery.subquery)?.is_empty();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        let mut inner = scopes.to_vec();
        if is_correlated {
            let inputs = node.inputs().into_iter().map(|input| self.converted(input.clone()));
            let inputs = inputs.collect::<Result<Vec<_>>>()?;
            inner.push(Arc::new(merge_schema(&inputs.iter().collect::<Vec<_>>())));
        }
        let node = node.map_expressions_dyn(&mut |expr| {
            expr.transform_up_dyn(&mut |expr| match expr {
                Expr::OuterReferenceColumn(field, column) => {
                    let actual = scopes.iter().rev().find_map(|scope| scope.field_from_column(&column).ok());
                    let is_wrong = |actual: &&FieldRef| {
                        actual.data_type() != field.data_type() || actual.is_nullable() && !field.is_nullable()
                    };
                    Ok(match actual.filter(is_wrong) {
                        Some(actual) => {
                            let nullable = field.is_nullable() || actual.is_nullable();
                            let field = field.as_ref().clone().with_data_type(actual.data_type().clone());
                            Transformed::yes(Expr::OuterReferenceColumn(field.with_nullable(nullable).into(), column))
                        }
                        None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                    })
                }
                expr => with_subquery(expr, |plan| self.plan(plan, &inner)).map(Transformed::yes),
            })
        })?;
        node.data.recompute_schema()
    }

    /// A plan after the conversion to common types and the correction of its nullability.
    fn converted(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = ConvertOperands.analyze(plan, self.options)?;
        let plan = PrepareIntervals.analyze(plan, self.options)?;
        let plan = GroupFrames.analyze(plan, self.options)?;
        with_nullable_values(TypeCoercion::new().analyze(plan, self.options)?)
    }
}

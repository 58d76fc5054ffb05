//! Outer joins whose conditions have subqueries over both tables.
//!
//! The rows of the preserved tables are numbered and joined by the other conditions. The conditions with subqueries are
//! then columns of the joined rows. Of the rows with one number, those for which they hold remain; if they hold for none,
//! one remains without the columns of the other table.

use std::sync::Arc;

use datafusion::common::{Column, DFSchemaRef, JoinType};
use datafusion::error::Result;
use datafusion::functions_aggregate::bool_and_or::bool_or_udaf;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder, Projection, WindowFunctionDefinition, lit, when,
};

use super::values::{Input, Position};
use super::{Rewriter, unsupported};

/// The forms in which a joined row is returned, as values of a column: with both tables, or with one.
const BOTH: i64 = 1;
const LEFT: i64 = 2;
const RIGHT: i64 = 3;

/// The columns of a table whose rows are numbered.
struct Numbered {
    number: String,
    /// True for the rows with this number if the conditions hold for one of them.
    any: String,
    /// Position among the rows with this number.
    first: String,
}

impl Numbered {
    fn new(rewriter: &mut Rewriter) -> Numbered {
        let [number, any, first] = ["number", "any", "first"].map(|what| rewriter.name(what));
        Numbered { number, any, first }
    }

    fn rows(&self, table: &LogicalPlan) -> Result<LogicalPlan> {
        LogicalPlanBuilder::from(table.clone()).window(vec![row_number().alias(&self.number)])?.build()
    }

    fn windows(&self, matched: &str) -> Result<Vec<Expr>> {
        let group = || vec![column(&self.number)];
        let bool_or = WindowFunctionDefinition::AggregateUDF(bool_or_udaf());
        let any = Expr::from(WindowFunction::new(bool_or, vec![column(matched)]));
        let any = any.partition_by(group()).build()?.alias(&self.any);
        Ok(vec![any, row_number().partition_by(group()).build()?.alias(&self.first)])
    }

    /// The condition for the row that is returned without the other table.
    fn is_alone(&self) -> Expr {
        let is_first = column(&self.first).eq(lit(1_u64));
        column(&self.number).is_not_null().and(column(&self.any).is_not_true()).and(is_first)
    }
}

fn column(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

impl Rewriter {
    /// An outer join `join` of the conditions without subqueries and `conditions`.
    ///
    /// # Errors
    /// `NotImplemented` for semi and anti joins.
    pub(super) fn outer_join(&mut self, join: Join, conditions: Vec<Expr>) -> Result<LogicalPlan> {
        let (keeps_left, keeps_right) = match join.join_type {
            JoinType::Left => (true, false),
            JoinType::Right => (false, true),
            JoinType::Full => (true, true),
            kind => {
                let kind = kind.to_string().to_uppercase();
                return Err(unsupported(format!("a subquery in ON of a {kind} join that uses columns of both tables")));
            }
        };
        let (left, right) = (Numbered::new(self), Numbered::new(self));
        let [matched, form] = ["matched", "form"].map(|what| self.name(what));
        let mut optional = Vec::new();
        optional.extend(keeps_right.then(|| (join.left.schema().clone(), RIGHT)));
        optional.extend(keeps_left.then(|| (join.right.schema().clone(), LEFT)));
        let schema = join.schema.clone();
        // A table that a joined row does not have has no number.
        let inputs = (Arc::new(left.rows(&join.left)?), Arc::new(right.rows(&join.right)?));
        let Join { on, filter, join_type, join_constraint, null_equality, .. } = join;
        let joined = Join::try_new(inputs.0, inputs.1, on, filter, join_type, join_constraint, null_equality, false)?;
        let is_pair = column(&left.number).is_not_null().and(column(&right.number).is_not_null());
        let marked = self.marked(LogicalPlan::Join(joined), conditions, is_pair, &matched)?;

        let mut grouped = LogicalPlanBuilder::from(marked);
        let mut forms = vec![(BOTH, column(&matched))];
        for (keeps, table, form) in [(keeps_left, &left, LEFT), (keeps_right, &right, RIGHT)] {
            if keeps {
                // Each node has windows of one partition.
                grouped = grouped.window(table.windows(&matched)?)?;
                forms.push((form, table.is_alone()));
            }
        }
        let grouped = grouped.build()?;
        let returned = match keeps_left && keeps_right {
            true => {
                // A row may be the one of both its tables.
                let all = forms.iter().map(|(form, _)| vec![lit(*form)]).collect();
                let all = LogicalPlanBuilder::values(all)?.project(vec![column("column1").alias(&form)])?.build()?;
                let is_returned = forms.into_iter().map(|(of, holds)| column(&form).eq(lit(of)).and(holds));
                let is_returned = is_returned.reduce(Expr::or).unwrap_or_else(|| lit(true));
                LogicalPlanBuilder::from(grouped).cross_join(all)?.filter(is_returned)?.build()?
            }
            false => {
                let is_returned = forms.iter().map(|(_, holds)| holds.clone()).reduce(Expr::or);
                let alone = if keeps_left { LEFT } else { RIGHT };
                let of = when(column(&matched), lit(BOTH)).otherwise(lit(alone))?.alias(&form);
                let mut columns: Vec<Expr> = grouped.schema().columns().into_iter().map(Expr::Column).collect();
                columns.push(of);
                let rows = LogicalPlanBuilder::from(grouped).filter(is_returned.unwrap_or_else(|| lit(true)))?;
                rows.project(columns)?.build()?
            }
        };
        let columns = returned_columns(&schema, &optional, &form)?;
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(returned))?))
    }

    /// The joined rows with the column `matched`: true for pairs for which the conditions hold, otherwise false.
    fn marked(
        &mut self,
        joined: LogicalPlan,
        conditions: Vec<Expr>,
        is_pair: Expr,
        matched: &str,
    ) -> Result<LogicalPlan> {
        let mut columns: Vec<Expr> = joined.schema().columns().into_iter().map(Expr::Column).collect();
        let mut input = Input::new(&joined, &conditions, self)?;
        let names = NamePreserver::new_for_projection();
        let conditions = self.expressions(conditions, &mut input, Position::Projected, &names)?;
        let holds = conjunction(conditions.into_iter().map(Expr::unalias)).unwrap_or_else(|| lit(true));
        columns.push(is_pair.and(holds.is_true()).alias(matched));
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input.finish()?))?))
    }
}

/// The columns of the join. Those of an optional table are NULL in rows of the form without it: `optional` has the tables and
/// these forms.
fn returned_columns(schema: &DFSchemaRef, optional: &[(DFSchemaRef, i64)], form: &str) -> Result<Vec<Expr>> {
    let value = |of: Column| {
        let value = Expr::Column(of.clone());
        let value = match optional.iter().find(|(table, _)| table.has_column(&of)) {
            Some((_, without)) => when(column(form).not_eq(lit(*without)), value).end()?,
            None => value,
        };
        Ok(value.alias_qualified(of.relation, of.name))
    };
    schema.columns().into_iter().map(value).collect()
}

//! Compilation and execution of queries: a logical plan becomes an access by key and steps, if it has the right form.
//!
//! The form is a stack of projections, filters, aggregates, sorts and limits over one scan of a Keyaki
//! table, in which conditions on leading key columns, or an order with a limit, bound the rows to read. The plan is the one that DataFusion's analyzer
//! and optimizer made, so every step means the same as on the long path.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::DFSchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, FetchType, LogicalPlan, Operator, SkipType, Volatility};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::expressions::Column as PhysicalColumn;

use super::access::Found;
use super::expressions::Compiler;
use super::order::First;
use super::scan::{Scan, scan_below_aliases};
use super::steps::Step;
use crate::Result;
use crate::catalog::Catalog;
use crate::engine::{Engine, Moment};
use crate::sql::SqlSession;

/// A query of few rows by key.
#[derive(Debug)]
pub(crate) struct Read {
    scan: Scan,
    steps: Vec<Step>,
    /// Schema of the result.
    pub schema: SchemaRef,
}

impl Read {
    /// Compiles an unoptimized plan of a query with parameters of the given types; `None` if the query does not have
    /// the form of the short path.
    pub fn compile(plan: &LogicalPlan, state: &SessionState, parameters: &[DataType]) -> Option<Read> {
        if !is_immutable(plan) || compares_lists(plan) {
            return None;
        }
        let schema = Arc::new(plan.schema().as_arrow().clone());
        let plan = state.optimize(plan).ok()?;
        let names_agree = plan.schema().fields().len() == schema.fields().len();
        let compiler = Compiler { parameters, props: state.execution_props().clone() };
        let (scan, steps) = compiler.stack(&plan, None)?;
        names_agree.then_some(Read { scan, steps, schema })
    }

    /// Reads the rows of the result as of the session's newest moment; `None` if the long path has to, or if the
    /// catalog is not `catalog`.
    ///
    /// # Errors
    /// Errors of the store and of expressions.
    pub async fn run(
        &self,
        session: &SqlSession,
        catalog: &Arc<Catalog>,
        parameters: &[ArrayRef],
    ) -> Result<Option<RecordBatch>> {
        let engine = &session.engine;
        let found = engine.with_moment(session.slot, |moment| match Arc::ptr_eq(&moment.catalog, catalog) {
            true => self.scan.access.read(&engine.store, moment, parameters),
            false => Ok(Found::Refused),
        });
        self.finish(engine, found?, parameters).await
    }

    /// As [`Read::run`], as of a moment of a writing statement.
    ///
    /// # Errors
    /// As [`Read::run`].
    pub async fn run_at(
        &self,
        engine: &Engine,
        mut moment: Moment,
        parameters: &[ArrayRef],
    ) -> Result<Option<RecordBatch>> {
        let found = self.scan.access.read(&engine.store, &mut moment, parameters)?;
        self.finish(engine, found, parameters).await
    }

    async fn finish(&self, engine: &Engine, found: Found, parameters: &[ArrayRef]) -> Result<Option<RecordBatch>> {
        let part = match found {
            Found::Rows(part) => part,
            Found::NotCached(query) => {
                match Box::pin(self.scan.access.read_uncached(&engine.executor, *query)).await? {
                    Some(part) => part,
                    None => return Ok(None),
                }
            }
            Found::Refused => return Ok(None),
        };
        let apply = |rows, step: &Step| step.apply(rows, parameters);
        let rows = match self.scan.rows(part, parameters) {
            Ok(Some(rows)) => self.steps.iter().try_fold(rows, apply),
            Ok(None) => return Ok(None),
            Err(error) => Err(error),
        };
        // The long path may evaluate an expression for fewer rows, or reports the error in its terms.
        let Ok(rows) = rows else { return Ok(None) };
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len));
        // The optimizer may change the nullability of columns and the kind of their text. Then the long path answers.
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), rows.columns, &options).ok())
    }
}

/// True if a plan has no expression whose value depends on anything but its rows and parameters, and no subquery.
fn is_immutable(plan: &LogicalPlan) -> bool {
    let mut immutable = true;
    let visit = |plan: &LogicalPlan| {
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                immutable &= match expr {
                    Expr::ScalarFunction(call) => call.func.signature().volatility == Volatility::Immutable,
                    Expr::AggregateFunction(call) => call.func.signature().volatility == Volatility::Immutable,
                    Expr::ScalarSubquery(_)
                    | Expr::Exists(_)
                    | Expr::InSubquery(_)
                    | Expr::SetComparison(_)
                    | Expr::OuterReferenceColumn(..)
                    | Expr::WindowFunction(_) => false,
                    _ => true,
                };
                Ok(if immutable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
            })
        })
    };
    // The closures never fail.
    plan.apply(visit).is_ok() && immutable
}

/// True if the optimizer may compare the values of two lists of which one has parameters. It intersects the lists of
/// `a IN ($1, 2) AND a IN ($2, $3)`, and takes different parameters for different values.
fn compares_lists(plan: &LogicalPlan) -> bool {
    // For each list, its column, and if it has other values than literals.
    let mut lists: Vec<(Option<String>, bool)> = Vec::new();
    let (mut projections, mut joins) = (0, 0);
    let column = |expr: &Expr| expr.try_as_col().map(|column| column.name.clone());
    let visit = |plan: &LogicalPlan| {
        projections += usize::from(matches!(plan, LogicalPlan::Projection(_)));
        joins += usize::from(matches!(plan, LogicalPlan::Join(_)));
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                match expr {
                    Expr::InList(list) => {
                        let is_given = list.list.iter().any(|value| !matches!(value, Expr::Literal(..)));
                        lists.push((column(&list.expr), is_given));
                    }
                    // The optimizer makes a list of `a = 1 OR a = 2`.
                    Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                        for side in [left, right] {
                            if let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = side.as_ref()
                                && ![left, right].iter().any(|side| matches!(side.as_ref(), Expr::Placeholder(_)))
                            {
                                lists.push((column(left).or_else(|| column(right)), false));
                            }
                        }
                    }
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    };
    // The closures never fail.
    if plan.apply(visit).is_err() {
        return true;
    }
    // Columns of different names are different if no operator renames columns or finds equal ones.
    let has_names = joins == 0 && projections <= 1;
    let differ = |a: &Option<String>, b: &Option<String>| has_names && a.is_some() && b.is_some() && a != b;
    let is_compared = |i: usize| (0..lists.len()).any(|j| i != j && !differ(&lists[i].0, &lists[j].0));
    (0..lists.len()).any(|i| lists[i].1 && is_compared(i))
}

impl Compiler<'_> {
    /// The scan and the steps, in the order of their application. `first` are the rows of the plan that the statement
    /// needs, if it needs no others.
    fn stack(&self, plan: &LogicalPlan, first: Option<First<usize>>) -> Option<(Scan, Vec<Step>)> {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => self.stack(&alias.input, first),
            LogicalPlan::TableScan(scan) => self.scan(scan, &[], first),
            LogicalPlan::Filter(filter) => {
                if let Some(scan) = scan_below_aliases(&filter.input) {
                    return self.scan(scan, &split_conjunction(&filter.predicate), first);
                }
                let (scan, mut steps) = self.stack(&filter.input, None)?;
                steps.push(Step::Filter(self.expressions([&filter.predicate], filter.input.schema())?));
                Some((scan, steps))
            }
            LogicalPlan::Projection(projection) => {
                let input = projection.input.schema();
                let first = first.and_then(|first| first.below(&projection.expr, input));
                let (scan, mut steps) = self.stack(&projection.input, first)?;
                steps.push(self.projection(&projection.expr, input)?);
                Some((scan, steps))
            }
            LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                let (scan, mut steps) = self.stack(&aggregate.input, None)?;
                steps.push(Step::Aggregate(self.aggregates(&aggregate.aggr_expr, aggregate.input.schema())?));
                Some((scan, steps))
            }
            LogicalPlan::Sort(sort) => {
                let input = sort.input.schema();
                let first = sort.fetch.and_then(|rows| First::of_sort(rows, &sort.expr, input));
                let (scan, mut steps) = self.stack(&sort.input, first)?;
                let expressions = self.expressions(sort.expr.iter().map(|sort| &sort.expr), input)?;
                let options =
                    sort.expr.iter().map(|sort| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first });
                steps.push(Step::Sort(expressions, options.collect(), sort.fetch));
                Some((scan, steps))
            }
            LogicalPlan::Limit(limit) => {
                let (SkipType::Literal(skip), FetchType::Literal(fetch)) =
                    (limit.get_skip_type().ok()?, limit.get_fetch_type().ok()?)
                else {
                    return None;
                };
                let rows = fetch.and_then(|fetch| skip.checked_add(fetch));
                let first = rows.map(|rows| First { rows, order: Vec::new() });
                let (scan, mut steps) = self.stack(&limit.input, first)?;
                steps.push(Step::Limit(skip, fetch));
                Some((scan, steps))
            }
            _ => None,
        }
    }

    fn projection(&self, exprs: &[Expr], input: &DFSchemaRef) -> Option<Step> {
        let project = self.expressions(exprs, input)?;
        let plain = |expr: &Arc<dyn PhysicalExpr>| expr.downcast_ref::<PhysicalColumn>().map(PhysicalColumn::index);
        let places: Option<Vec<usize>> = project.expressions.iter().map(plain).collect();
        let inputs = input.fields().len();
        Some(match places.filter(|places| places.iter().all(|place| *place < inputs)) {
            Some(places) => Step::Columns(places),
            None => Step::Project(project),
        })
    }
}

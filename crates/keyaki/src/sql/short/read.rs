//! Compilation and execution of queries: a logical plan becomes an access by key and steps, if it has the right form.
//!
//! The form is a stack of projections, filters, aggregates without GROUP BY, sorts and limits over one scan of a Keyaki
//! table, or over a join of a few. Conditions on leading key columns, or an order with a limit, bound the rows to read. The plan is the one that DataFusion's analyzer
//! and optimizer made, so every step means the same as on the long path.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::DFSchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, FetchType, LogicalPlan, Operator, SkipType, TableScan, Volatility};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::expressions::Column as PhysicalColumn;
use keyaki_store::Store;

use super::access::Found;
use super::expressions::Compiler;
use super::lookup::Lookup;
use super::order::First;
use super::scan::{Planned, Scan, scan_below_aliases};
use super::steps::{Rows, Step};
use crate::Result;
use crate::base::tree::{PlanTree, Tree};
use crate::catalog::Catalog;
use crate::engine::{Engine, Moment};
use crate::sql::columns::{labelled_columns, shown_schema};
use crate::sql::{SqlSession, documents};

/// A query of few rows by key.
#[derive(Debug)]
pub(crate) struct Read {
    source: Source,
    steps: Vec<Step>,
    /// Schema of the result.
    pub schema: SchemaRef,
}

/// One table, or several joined ones.
#[derive(Debug)]
struct Source {
    scan: Scan,
    /// The tables joined to the first, in this order.
    lookups: Vec<Lookup>,
}

impl Source {
    fn read(&self, store: &Store, moment: &mut Moment, parameters: &[ArrayRef]) -> Result<Found<Rows>> {
        let found = self.scan.access.read(store, moment, parameters)?;
        let mut found = found.try_map(|part| self.scan.rows(part, parameters))?;
        for lookup in &self.lookups {
            let Found::Rows(rows) = &found else { break };
            found = lookup.join(store, moment, parameters, rows)?;
        }
        Ok(found)
    }

    /// The number of cache misses after which a join takes the long path: one for each table.
    fn misses_max(&self) -> usize {
        if self.lookups.is_empty() { 0 } else { 1 + self.lookups.len() }
    }
}

impl Read {
    /// Compiles an unoptimized plan of a query with parameters of the given types; `None` if the query does not have
    /// the form of the short path.
    pub fn compile(plan: &LogicalPlan, state: &SessionState, parameters: &[DataType]) -> Option<Read> {
        if !is_immutable(plan) || compares_lists(plan) {
            return None;
        }
        let schema = documents::typed(shown_schema(plan.schema().inner()), plan);
        let plan = state.optimize(plan).ok()?;
        let names_agree = plan.schema().fields().len() == schema.fields().len();
        let compiler = Compiler { parameters, props: state.execution_props().clone() };
        let (source, steps) = compiler.stack(&plan, None)?;
        names_agree.then_some(Read { source, steps, schema })
    }

    /// Reads the rows of the result as of the open transaction, or of the session's newest moment; `None` if the long path has to, or if the
    /// catalog is not `catalog`.
    ///
    /// # Errors
    /// Errors of the executor.
    pub async fn run(
        &self,
        session: &SqlSession,
        catalog: &Arc<Catalog>,
        parameters: &[ArrayRef],
    ) -> Result<Option<RecordBatch>> {
        let engine = &session.engine;
        let read_at = |moment: &mut Moment| match Arc::ptr_eq(&moment.catalog, catalog) {
            true => self.source.read(&engine.store, moment, parameters),
            false => Ok(Found::Refused),
        };
        let read = || match session.transaction.moment(engine)? {
            Some((catalog, snapshot)) => read_at(&mut Moment::of(catalog, snapshot)),
            None => engine.with_moment(session.slot, read_at),
        };
        let mut found = read();
        // A page missing for a join is read together with the others of the same lookups, then the join starts again.
        for _ in 0..self.source.misses_max() {
            let Ok(Found::NotCached(query)) = found else { break };
            if Box::pin(query.read(&engine.executor)).await.is_err() {
                return Ok(None);
            }
            found = read();
        }
        self.finish(engine, found, parameters).await
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
        let found = self.source.read(&engine.store, &mut moment, parameters);
        self.finish(engine, found, parameters).await
    }

    async fn finish(
        &self,
        engine: &Engine,
        found: Result<Found<Rows>>,
        parameters: &[ArrayRef],
    ) -> Result<Option<RecordBatch>> {
        let rows = match found {
            Ok(Found::Rows(rows)) => Ok(rows),
            Ok(Found::NotCached(query)) if self.source.lookups.is_empty() => {
                let scan = &self.source.scan;
                let read = Box::pin(scan.access.read_uncached(&engine.executor, *query));
                let Some(part) = read.await? else { return Ok(None) };
                match scan.rows(part, parameters) {
                    Ok(Some(rows)) => Ok(rows),
                    Ok(None) => return Ok(None),
                    Err(error) => Err(error),
                }
            }
            Ok(Found::NotCached(_) | Found::Refused) => return Ok(None),
            Err(error) => Err(error),
        };
        let rows = rows.and_then(|rows| self.steps.iter().try_fold(rows, |rows, step| step.apply(rows, parameters)));
        // The long path may evaluate an expression for fewer rows, or reports the error in its terms.
        let Ok(rows) = rows else { return Ok(None) };
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len));
        // The optimizer may change the nullability of columns and the kind of their text. Then the long path answers.
        let columns = labelled_columns(rows.columns, &self.schema);
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).ok())
    }
}

/// True if a plan has no expression whose value depends on anything but its rows and parameters, and no subquery.
fn is_immutable(plan: &LogicalPlan) -> bool {
    let mut immutable = true;
    let mut visit = |plan: &LogicalPlan| {
        plan.apply_expressions_dyn(&mut |expr| {
            expr.apply_dyn(&mut |expr| {
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
    plan.apply_dyn(&mut visit).is_ok() && immutable
}

/// True if the optimizer may compare the values of two lists of which one has parameters. It intersects the lists of
/// `a IN ($1, 2) AND a IN ($2, $3)`, and takes different parameters for different values.
fn compares_lists(plan: &LogicalPlan) -> bool {
    // For each list, its column, and if it has other values than literals.
    let mut lists: Vec<(Option<String>, bool)> = Vec::new();
    let (mut projections, mut joins) = (0, 0);
    let column = |expr: &Expr| expr.try_as_col().map(|column| column.name.clone());
    let mut visit = |plan: &LogicalPlan| {
        projections += usize::from(matches!(plan, LogicalPlan::Projection(_)));
        joins += usize::from(matches!(plan, LogicalPlan::Join(_)));
        plan.apply_expressions_dyn(&mut |expr| {
            expr.apply_dyn(&mut |expr| {
                match expr {
                    Expr::InList(list) => {
                        let is_given = list.list.iter().any(|value| !matches!(value, Expr::Literal(..)));
                        lists.push((column(&list.expr), is_given));
                    }
                    // The optimizer makes a list of `a = 1 OR a = 2`.
                    Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                        for side in [left, right] {
                            match side.as_ref() {
                                Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) | Expr::InList(_) => {}
                                Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
                                    if ![left, right].iter().any(|side| matches!(side.as_ref(), Expr::Placeholder(_))) {
                                        lists.push((column(left).or_else(|| column(right)), false));
                                    }
                                }
                                // The optimizer may make equalities of it.
                                _ => lists.push((None, false)),
                            }
                        }
                    }
                    // The optimizer makes `a = 1 OR a = 2` of `NOT (a <> 1 AND a <> 2)`.
                    Expr::Not(_) => lists.push((None, false)),
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    };
    // The closures never fail.
    if plan.apply_dyn(&mut visit).is_err() {
        return true;
    }
    // Columns of different names are different if no operator renames columns or finds equal ones.
    let has_names = joins == 0 && projections <= 1;
    let differ = |a: &Option<String>, b: &Option<String>| has_names && a.is_some() && b.is_some() && a != b;
    let is_compared = |i: usize| (0..lists.len()).any(|j| i != j && !differ(&lists[i].0, &lists[j].0));
    (0..lists.len()).any(|i| lists[i].1 && is_compared(i))
}

impl Compiler<'_> {
    /// The source and the steps, in the order of their application. `first` are the rows of the plan that the statement
    /// needs, if it needs no others.
    fn stack(&self, plan: &LogicalPlan, first: Option<First<usize>>) -> Option<(Source, Vec<Step>)> {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => self.stack(&alias.input, first),
            LogicalPlan::TableScan(scan) => self.table(scan, &[], first),
            LogicalPlan::Join(_) => {
                let (scan, lookups, columns) = self.join(plan)?;
                Some((Source { scan, lookups }, vec![columns]))
            }
            LogicalPlan::Filter(filter) => {
                if let Some(scan) = scan_below_aliases(&filter.input) {
                    return self.table(scan, &split_conjunction(&filter.predicate), first);
                }
                let (source, mut steps) = self.stack(&filter.input, None)?;
                steps.push(Step::Filter(self.expressions([&filter.predicate], filter.input.schema())?));
                Some((source, steps))
            }
            LogicalPlan::Projection(projection) => {
                let input = projection.input.schema();
                let first = first.and_then(|first| first.below(&projection.expr, input));
                let (source, mut steps) = self.stack(&projection.input, first)?;
                steps.push(self.projection(&projection.expr, input)?);
                Some((source, steps))
            }
            LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                let (source, mut steps) = self.stack(&aggregate.input, None)?;
                steps.push(Step::Aggregate(self.aggregates(&aggregate.aggr_expr, aggregate.input.schema())?));
                Some((source, steps))
            }
            LogicalPlan::Sort(sort) => {
                let input = sort.input.schema();
                let first = sort.fetch.and_then(|rows| First::of_sort(rows, &sort.expr, input));
                let (source, mut steps) = self.stack(&sort.input, first)?;
                let expressions = self.expressions(sort.expr.iter().map(|sort| &sort.expr), input)?;
                let options =
                    sort.expr.iter().map(|sort| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first });
                steps.push(Step::Sort(expressions, options.collect(), sort.fetch));
                Some((source, steps))
            }
            LogicalPlan::Limit(limit) => {
                let (SkipType::Literal(skip), FetchType::Literal(fetch)) =
                    (limit.get_skip_type().ok()?, limit.get_fetch_type().ok()?)
                else {
                    return None;
                };
                let rows = fetch.and_then(|fetch| skip.checked_add(fetch));
                let first = rows.map(|rows| First { rows, order: Vec::new() });
                let (source, mut steps) = self.stack(&limit.input, first)?;
                steps.push(Step::Limit(skip, fetch));
                Some((source, steps))
            }
            _ => None,
        }
    }

    /// A query of one table.
    fn table(&self, scan: &TableScan, above: &[&Expr], first: Option<First<usize>>) -> Option<(Source, Vec<Step>)> {
        let Planned { scan, steps, joined: _ } = self.scan(scan, above, first, &[])?;
        Some((Source { scan, lookups: Vec::new() }, steps))
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

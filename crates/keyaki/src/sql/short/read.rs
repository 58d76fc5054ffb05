//! Compilation of queries: a logical plan becomes an access by key and steps, if it has the right form.
//!
//! The form is a stack of projections, filters, sorts and limits over one scan of a Keyaki table, in which filters fix
//! leading key columns. The plan is the one that DataFusion's analyzer and optimizer made, so every step means the same
//! as on the long path.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SessionState;
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, FetchType, LogicalPlan, Operator, SkipType, TableScan, Volatility};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::physical_plan::expressions::Column as PhysicalColumn;

use super::access::{Access, Equality, Found, KeySource};
use super::steps::{Expressions, Rows, Step};
use crate::Result;
use crate::catalog::Catalog;
use crate::engine::{Engine, Moment};
use crate::sql::SqlSession;
use crate::table::KeyakiTable;

/// A query of few rows by key.
#[derive(Debug)]
pub(crate) struct Read {
    access: Access,
    steps: Vec<Step>,
    /// Schema of the result.
    pub schema: SchemaRef,
}

impl Read {
    /// Compiles an unoptimized plan of a query with parameters of the given types; `None` if the query does not have
    /// the form of the short path.
    pub fn compile(plan: &LogicalPlan, state: &SessionState, parameters: &[DataType]) -> Option<Read> {
        if !is_immutable(plan) {
            return None;
        }
        let schema = Arc::new(plan.schema().as_arrow().clone());
        let plan = state.optimize(plan).ok()?;
        let names_agree = plan.schema().fields().len() == schema.fields().len();
        let compiler = Compiler { parameters, props: state.execution_props().clone() };
        let (access, steps) = compiler.stack(&plan)?;
        names_agree.then_some(Read { access, steps, schema })
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
            true => self.access.read(&engine.store, moment, parameters),
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
        let found = self.access.read(&engine.store, &mut moment, parameters)?;
        self.finish(engine, found, parameters).await
    }

    async fn finish(&self, engine: &Engine, found: Found, parameters: &[ArrayRef]) -> Result<Option<RecordBatch>> {
        let (columns, len) = match found {
            Found::Rows(columns, len) => (columns, len),
            Found::NotCached(query) => match Box::pin(self.access.read_uncached(&engine.executor, *query)).await? {
                Some(rows) => rows,
                None => return Ok(None),
            },
            Found::Refused => return Ok(None),
        };
        let mut rows = Rows { columns, len };
        for step in &self.steps {
            rows = match step.apply(rows, parameters) {
                Ok(rows) => rows,
                // The long path may evaluate an expression for fewer rows, or reports the error in its terms.
                Err(_) => return Ok(None),
            };
        }
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
                    Expr::ScalarSubquery(_)
                    | Expr::Exists(_)
                    | Expr::InSubquery(_)
                    | Expr::SetComparison(_)
                    | Expr::OuterReferenceColumn(..)
                    | Expr::AggregateFunction(_)
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

struct Compiler<'a> {
    parameters: &'a [DataType],
    props: ExecutionProps,
}

impl Compiler<'_> {
    /// The access and the steps, in the order of their application.
    fn stack(&self, plan: &LogicalPlan) -> Option<(Access, Vec<Step>)> {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => self.stack(&alias.input),
            LogicalPlan::TableScan(scan) => self.scan(scan, &[]),
            LogicalPlan::Filter(filter) => {
                if let Some(scan) = scan_below_aliases(&filter.input) {
                    let conditions: Vec<&Expr> = split_conjunction(&filter.predicate);
                    return self.scan(scan, &conditions);
                }
                let (access, mut steps) = self.stack(&filter.input)?;
                steps.push(Step::Filter(self.expressions([&filter.predicate], filter.input.schema())?));
                Some((access, steps))
            }
            LogicalPlan::Projection(projection) => {
                let (access, mut steps) = self.stack(&projection.input)?;
                let project = self.expressions(&projection.expr, projection.input.schema())?;
                let plain =
                    |expr: &Arc<dyn PhysicalExpr>| expr.downcast_ref::<PhysicalColumn>().map(PhysicalColumn::index);
                let inputs = projection.input.schema().fields().len();
                let places: Option<Vec<usize>> = project.expressions.iter().map(plain).collect();
                steps.push(match places.filter(|places| places.iter().all(|place| *place < inputs)) {
                    Some(places) => Step::Columns(places),
                    None => Step::Project(project),
                });
                Some((access, steps))
            }
            LogicalPlan::Sort(sort) => {
                let (access, mut steps) = self.stack(&sort.input)?;
                let expressions = self.expressions(sort.expr.iter().map(|sort| &sort.expr), sort.input.schema())?;
                let options =
                    sort.expr.iter().map(|sort| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first });
                steps.push(Step::Sort(expressions, options.collect(), sort.fetch));
                Some((access, steps))
            }
            LogicalPlan::Limit(limit) => {
                let (SkipType::Literal(skip), FetchType::Literal(fetch)) =
                    (limit.get_skip_type().ok()?, limit.get_fetch_type().ok()?)
                else {
                    return None;
                };
                let (access, mut steps) = self.stack(&limit.input)?;
                steps.push(Step::Limit(skip, fetch));
                Some((access, steps))
            }
            _ => None,
        }
    }

    /// A scan with the filters of the operator above it.
    fn scan(&self, scan: &TableScan, above: &[&Expr]) -> Option<(Access, Vec<Step>)> {
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<KeyakiTable>()?;
        if scan.fetch.is_some() && !above.is_empty() {
            // The limit counts rows before the conditions above.
            return None;
        }
        let provider_columns: Vec<usize> = match &scan.projection {
            Some(columns) => columns.clone(),
            None => (0..scan.projected_schema.fields().len()).collect(),
        };
        // Filters of the scan may use columns that it does not return: they are read as well, behind the others.
        let mut read = provider_columns.clone();
        for column in scan.filters.iter().flat_map(Expr::column_refs) {
            let column = table.resolve(column)?;
            if !read.contains(&column) {
                read.push(column);
            }
        }
        let columns: Vec<Option<usize>> = read.iter().map(|&column| table.table_column(column)).collect();
        let mut equalities = Vec::new();
        let mut remaining: Vec<&Expr> = Vec::new();
        for condition in scan.filters.iter().flat_map(split_conjunction).chain(above.iter().copied()) {
            match self.equality(condition, table) {
                // A second condition on the same column is an ordinary filter.
                Some(equality) if equalities.iter().all(|known: &Equality| known.column != equality.column) => {
                    equalities.push(equality);
                    // Whether the access uses the equality is known only below.
                    remaining.push(condition);
                }
                _ => remaining.push(condition),
            }
        }
        let access = Access::new(&table.table, columns, &equalities, &table.context.unusable)?;
        remaining.retain(|condition| {
            self.equality(condition, table).is_none_or(|equality| !access.answers(equality.column))
                || !is_first_on_its_column(self, condition, table, scan, above)
        });
        let mut steps = Vec::new();
        if !remaining.is_empty() {
            let provider_schema = datafusion::catalog::TableProvider::schema(table);
            let fields: Vec<FieldRef> = read.iter().map(|&column| provider_schema.fields()[column].clone()).collect();
            let fields = fields.iter().map(|field| field.as_ref().clone()).collect::<Vec<Field>>();
            let schema = DFSchema::try_from(arrow::datatypes::Schema::new(fields)).ok()?;
            // One expression: a condition is not evaluated for rows that an earlier one excludes.
            let all = conjunction(remaining.into_iter().cloned())?;
            let all = datafusion::logical_expr::expr_rewriter::unnormalize_col(all);
            steps.push(Step::Filter(self.expressions([&all], &Arc::new(schema))?));
        }
        if read.len() > provider_columns.len() {
            steps.push(Step::Columns((0..provider_columns.len()).collect()));
        }
        if let Some(fetch) = scan.fetch {
            steps.push(Step::Limit(0, Some(fetch)));
        }
        Some((access, steps))
    }

    /// The condition as `column = constant`, if it is one that a key answers exactly.
    fn equality(&self, condition: &Expr, table: &KeyakiTable) -> Option<Equality> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { return None };
        let (column, constant) = match (left.as_ref(), right.as_ref()) {
            (Expr::Column(column), constant) | (constant, Expr::Column(column)) => (column, constant),
            _ => return None,
        };
        let column = table.table_column(table.resolve(column)?);
        let ty = match column {
            Some(column) => table.table.def.columns[column].ty.column,
            None => keyaki_store::ColumnType::Int64,
        };
        // Operators and key encodings order floats differently.
        if matches!(ty, keyaki_store::ColumnType::Float32 | keyaki_store::ColumnType::Float64) {
            return None;
        }
        let ty = ty.arrow();
        let source = match constant {
            Expr::Placeholder(placeholder) => {
                let parameter = parameter_index(&placeholder.id)?;
                (*self.parameters.get(parameter)? == ty).then_some(KeySource::Parameter(parameter))?
            }
            Expr::Literal(value, _) if value.data_type() == ty => KeySource::Constant(value.to_array().ok()?),
            _ => return None,
        };
        Some(Equality { column, source })
    }

    /// Physical expressions over `input` and the parameters.
    fn expressions<'e>(
        &self,
        expressions: impl IntoIterator<Item = &'e Expr>,
        input: &DFSchemaRef,
    ) -> Option<Expressions> {
        let parameter = |(i, ty): (usize, &DataType)| Field::new(parameter_name(i), ty.clone(), true);
        let fields: Vec<Field> = self.parameters.iter().enumerate().map(parameter).collect();
        let parameters = DFSchema::try_from(arrow::datatypes::Schema::new(fields)).ok()?;
        let schema = input.join(&parameters).ok()?;
        let physical = |expr: &Expr| {
            let expr = self.with_parameter_columns(expr)?;
            create_physical_expr(&expr, &schema, &self.props, &PhysicalPlanningContext::default()).ok()
        };
        let expressions = expressions.into_iter().map(physical).collect::<Option<Vec<_>>>()?;
        // Rows of an outer input may be null in columns that are not nullable; the schema of a batch must admit them.
        Some(Expressions { schema: Arc::new(schema.as_arrow().clone()), expressions })
    }

    /// Replaces placeholders by the columns of their parameters; `None` if the types differ.
    fn with_parameter_columns(&self, expr: &Expr) -> Option<Expr> {
        let mut known = true;
        let replaced = expr.clone().transform(|expr| {
            let Expr::Placeholder(placeholder) = &expr else { return Ok(Transformed::no(expr)) };
            let parameter = parameter_index(&placeholder.id).filter(|&i| {
                let ty = placeholder.field.as_ref().map(|field| field.data_type());
                ty.is_some() && self.parameters.get(i) == ty
            });
            known &= parameter.is_some();
            let name = parameter_name(parameter.unwrap_or_default());
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
        });
        replaced.ok().map(|replaced| replaced.data).filter(|_| known)
    }
}

/// True if no earlier condition on the scan is an equality of the same column: only the first is part of the key.
fn is_first_on_its_column(
    compiler: &Compiler<'_>,
    condition: &Expr,
    table: &KeyakiTable,
    scan: &TableScan,
    above: &[&Expr],
) -> bool {
    let Some(own) = compiler.equality(condition, table) else { return false };
    let all = scan.filters.iter().flat_map(split_conjunction).chain(above.iter().copied());
    let mut same = all.filter(|other| compiler.equality(other, table).is_some_and(|other| other.column == own.column));
    same.next().is_some_and(|first| std::ptr::eq(first, condition))
}

/// The scan below any number of aliases.
fn scan_below_aliases(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::TableScan(scan) => Some(scan),
        LogicalPlan::SubqueryAlias(alias) => scan_below_aliases(&alias.input),
        _ => None,
    }
}

/// The index of the parameter `$n`, counted from 0.
pub(crate) fn parameter_index(id: &str) -> Option<usize> {
    id.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1)
}

fn parameter_name(index: usize) -> String {
    format!("${}", index + 1)
}

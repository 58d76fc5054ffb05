//! Compilation of scans: the conditions on a table become an access by key and a filter.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt32Array, new_null_array};
use arrow::datatypes::{Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::common::DFSchema;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::unnormalize_col;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Between, BinaryExpr, Expr, LogicalPlan, Operator, TableScan};
use keyaki_store::{ColumnType, Store};

use super::access::{Access, Found, Part};
use super::expressions::{Compiler, Expressions, parameter_index};
use super::keys::{Condition, KeySource, RANGES_MAX, Test, is_key_type};
use super::order::First;
use super::steps::{Rows, Step};
use crate::Result;
use crate::engine::Moment;
use crate::table::KeyakiTable;

/// The rows of one table that satisfy conditions.
#[derive(Debug)]
pub(super) struct Scan {
    pub access: Access,
    /// The conditions that the access does not answer.
    filter: Option<Expressions>,
    /// Number of leading columns of the access to return; the others are for the filter.
    columns: usize,
    /// Number of rows that the statement needs, if the access may end early.
    needed: Option<usize>,
}

impl Scan {
    /// Filters the rows that the access has found; `None` if there may be others that the statement needs.
    ///
    /// # Errors
    /// Errors of the conditions.
    pub fn rows(&self, part: Part, parameters: &[ArrayRef]) -> Result<Option<Rows>> {
        let Part { columns, len, complete } = part;
        let mut rows = Rows { columns, len };
        if let Some(mask) = self.mask(&rows, parameters)? {
            rows = rows.filtered(&mask)?;
        }
        rows.columns.truncate(self.columns);
        Ok(Some(rows).filter(|rows| complete || self.needed.is_some_and(|needed| rows.len >= needed)))
    }

    /// The rows for each of the rows `outer`, with the positions of the latter.
    ///
    /// # Errors
    /// Errors of the store and of the conditions.
    pub fn look_up(
        &self,
        store: &Store,
        moment: &mut Moment,
        parameters: &[ArrayRef],
        outer: &Rows,
    ) -> Result<Found<(Rows, UInt32Array)>> {
        self.access.read_each(store, moment, parameters, outer)?.try_map(|(columns, places)| {
            let (mut rows, mut places) = (Rows { columns, len: places.len() }, UInt32Array::from(places));
            if let Some(mask) = self.mask(&rows, parameters)? {
                rows = rows.filtered(&mask)?;
                places = filtered_places(&places, &mask);
            }
            rows.columns.truncate(self.columns);
            Ok(Some((rows, places)))
        })
    }

    fn mask(&self, rows: &Rows, parameters: &[ArrayRef]) -> Result<Option<BooleanArray>> {
        self.filter.as_ref().map_or(Ok(None), |filter| filter.mask(rows, parameters))
    }
}

/// The positions for which a mask without nulls is true.
pub(super) fn filtered_places(places: &UInt32Array, mask: &BooleanArray) -> UInt32Array {
    let both = places.values().iter().zip(mask.values());
    both.filter_map(|(place, kept)| kept.then_some(*place)).collect::<Vec<_>>().into()
}

/// A compiled scan.
pub(super) struct Planned {
    pub scan: Scan,
    /// The steps behind the scan.
    pub steps: Vec<Step>,
    /// For each equality with another table: true if all rows found satisfy it.
    pub joined: Vec<bool>,
}

impl Compiler<'_> {
    /// A scan with the filters of the operator above it. `first` are the rows that the statement needs, if it needs no
    /// others. `joined` are equalities of columns of the scan's result with columns of other tables.
    pub fn scan(
        &self,
        scan: &TableScan,
        above: &[&Expr],
        first: Option<First<usize>>,
        joined: &[(usize, KeySource)],
    ) -> Option<Planned> {
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<KeyakiTable>().filter(|table| !table.context.is_attached)?;
        if scan.fetch.is_some() && !above.is_empty() {
            // The limit counts rows before the conditions above.
            return None;
        }
        let returned: Vec<usize> = match &scan.projection {
            Some(columns) => columns.clone(),
            None => (0..scan.projected_schema.fields().len()).collect(),
        };
        // Filters of the scan may use columns that it does not return: they are read as well, behind the others.
        let mut read = returned.clone();
        for column in scan.filters.iter().flat_map(Expr::column_refs) {
            let column = table.resolve(column)?;
            if !read.contains(&column) {
                read.push(column);
            }
        }
        let first = match scan.fetch {
            Some(rows) => Some(First { rows, order: Vec::new() }),
            None => first,
        };
        let first = first.and_then(|first| first.map(|place| Some(table.table_column(*returned.get(place)?))));
        let conjuncts: Vec<&Expr> =
            scan.filters.iter().flat_map(split_conjunction).chain(above.iter().copied()).collect();
        let known: Vec<Option<Condition>> = conjuncts.iter().map(|conjunct| self.condition(conjunct, table)).collect();
        let exact = known.iter().all(Option::is_some);
        let mut conditions: Vec<Condition> = known.iter().flatten().cloned().collect();
        let own = conditions.len();
        for (place, source) in joined {
            let column = table.table_column(*returned.get(*place)?);
            conditions.push(Condition { column, test: Test::In(vec![source.clone()]) });
        }
        let columns = read.iter().map(|&column| table.table_column(column)).collect();
        let filters: Vec<Expr> = conjuncts.iter().map(|&conjunct| conjunct.clone()).collect();
        let is_usable = |index| table.implied(Some(index), &filters).is_some();
        let access = Access::new(&table.table, columns, &conditions, (first.as_ref(), exact), is_usable)?;
        let mut position = 0;
        let is_answered = known.iter().map(|condition| {
            position += usize::from(condition.is_some());
            condition.is_some() && access.answers(position - 1)
        });
        let remaining = conjuncts.into_iter().zip(is_answered).filter(|(_, answered)| !answered);
        // One expression: a condition is not evaluated for rows that an earlier one excludes.
        let filter = match conjunction(remaining.map(|(conjunct, _)| conjunct.clone())) {
            Some(all) => Some(self.filter_of_scan(table, &read, all)?),
            None => None,
        };
        let steps = scan.fetch.map(|fetch| Step::Limit(0, Some(fetch))).into_iter().collect();
        let needed = first.map(|first| first.rows);
        let joined = (own..conditions.len()).map(|condition| access.answers(condition)).collect();
        Some(Planned { scan: Scan { access, filter, columns: returned.len(), needed }, steps, joined })
    }

    /// A filter over the columns `read` of a table.
    fn filter_of_scan(&self, table: &KeyakiTable, read: &[usize], condition: Expr) -> Option<Expressions> {
        let schema = table.schema();
        let fields: Vec<Field> = read.iter().map(|&column| schema.fields()[column].as_ref().clone()).collect();
        let schema = DFSchema::try_from(Schema::new(fields)).ok()?;
        self.expressions([&unnormalize_col(condition)], &Arc::new(schema))
    }

    /// A conjunct as condition on one column, if ranges of keys can answer it exactly.
    fn condition(&self, conjunct: &Expr, table: &KeyakiTable) -> Option<Condition> {
        let (column, test) = match conjunct {
            Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) => return self.disjunction(conjunct, table),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (column, op, constant) = match (left.as_ref(), right.as_ref()) {
                    (column @ Expr::Column(_), constant) => (column, *op, constant),
                    (constant, column) => (column, op.swap()?, constant),
                };
                let (column, source) = self.source(column, constant, table)?;
                match op {
                    Operator::Eq => (column, Test::In(vec![source])),
                    Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                        (column, Test::Bounds(vec![(op, source)]))
                    }
                    _ => return None,
                }
            }
            Expr::Between(Between { expr, negated: false, low, high }) => {
                let (column, low) = self.source(expr, low, table)?;
                let (_, high) = self.source(expr, high, table)?;
                (column, Test::Bounds(vec![(Operator::GtEq, low), (Operator::LtEq, high)]))
            }
            Expr::InList(InList { expr, list, negated: false }) if list.len() <= RANGES_MAX => {
                let sources = list.iter().map(|value| self.source(expr, value, table));
                let (columns, sources): (Vec<_>, Vec<_>) = sources.collect::<Option<Vec<_>>>()?.into_iter().unzip();
                (*columns.first()?, Test::In(sources))
            }
            _ => return None,
        };
        Some(Condition { column, test })
    }

    /// `a = 1 OR a = 2 …` as condition: DataFusion writes short IN lists in this form.
    fn disjunction(&self, condition: &Expr, table: &KeyakiTable) -> Option<Condition> {
        let mut found: Option<Condition> = None;
        let mut rest = vec![condition];
        while let Some(next) = rest.pop() {
            if let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) = next {
                rest.extend([left.as_ref(), right.as_ref()]);
                continue;
            }
            let Condition { column, test: Test::In(values) } = self.condition(next, table)? else { return None };
            match &mut found {
                None => found = Some(Condition { column, test: Test::In(values) }),
                Some(Condition { column: other, test: Test::In(all) }) if *other == column => all.extend(values),
                Some(_) => return None,
            }
            if let Some(Condition { test: Test::In(all), .. }) = &found
                && all.len() > RANGES_MAX
            {
                return None;
            }
        }
        found
    }

    /// The column of a comparison with a constant, and the constant, if it has the column's type.
    fn source(&self, column: &Expr, constant: &Expr, table: &KeyakiTable) -> Option<(Option<usize>, KeySource)> {
        let Expr::Column(column) = column else { return None };
        let column = table.table_column(table.resolve(column)?);
        let ty = column.map_or(ColumnType::Int64, |column| table.table.def.columns[column].ty.column);
        if !is_key_type(ty) {
            return None;
        }
        let ty = ty.arrow();
        let source = match constant {
            Expr::Placeholder(placeholder) => {
                let parameter = parameter_index(&placeholder.id)?;
                (*self.parameters.get(parameter)? == ty).then_some(KeySource::Parameter(parameter))?
            }
            Expr::Literal(value, _) if value.data_type() == ty => KeySource::Constant(value.to_array().ok()?),
            Expr::Literal(value, _) if value.is_null() => KeySource::Constant(new_null_array(&ty, 1)),
            _ => return None,
        };
        Some((column, source))
    }
}

/// The scan below any number of aliases.
pub(super) fn scan_below_aliases(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::TableScan(scan) => Some(scan),
        LogicalPlan::SubqueryAlias(alias) => scan_below_aliases(&alias.input),
        _ => None,
    }
}

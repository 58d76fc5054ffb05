//! Blind upserts: INSERT … ON CONFLICT DO UPDATE and INSERT OR REPLACE as messages that read nothing (Bε-tree paper,
//! section 1.4).
//!
//! The statement must change rows by their primary key, in a table whose other trees do not depend on the old rows: one
//! without secondary indexes. Each assignment must combine the column with a value that does not depend on the old row:
//!
//! | assignment | change |
//! |---|---|
//! | `c = e` | set |
//! | `c = c + e`, `c = e + c`, `c = c - e` | add |
//! | `c = least(c, e)`, `c = greatest(c, e)` | minimum, maximum |
//! | `c = coalesce(c, e)` | set if the column is NULL |
//! | `c = coalesce(e, c)` | set unless `e` is NULL |
//! | `c = c || e` | append |
//!
//! The result is the same as that of the other path, and so are the errors: types whose conversion could round, values
//! that do not fit, and sums that could overflow take the other path, which reads the rows.

use std::ops::ControlFlow;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, UnaryOperator,
    Visitor,
};
use keyaki_store::{ColumnChange, ColumnType, WriteBatch};

use super::conflict::{EXCLUDED, ROW_NUMBER, excluded_column};
use crate::catalog::{Check, ColumnDef, Table};
use crate::sql::names::plain_ident;
use crate::sql::state::StatementState;
use crate::sql::visit::walk;
use crate::sql::{SqlSession, short};
use crate::write::RowBuffer;
use crate::write::assign::assign;
use crate::{Result, Switch};

/// The changes of a blind upsert.
#[derive(Debug, Clone)]
pub(crate) enum Blind {
    /// New rows replace old rows.
    Replace,
    /// For each table column its change; `Keep` for columns that are not assigned.
    Update(Vec<Assigned>),
}

/// The change of a column.
#[derive(Debug, Clone)]
pub(crate) struct Assigned {
    pub change: ColumnChange,
    /// The argument, over the columns of `excluded`; `None` with [`ColumnChange::Keep`].
    pub argument: Option<Expr>,
}

/// True if upserts of the table by its primary key need not read.
pub(super) fn is_possible(session: &SqlSession, table: &Table, key: &[usize]) -> bool {
    session.options().blind_upserts == Switch::On
        && !table.def.hidden_rowid
        && table.def.indexes.is_empty()
        && table.def.building.is_empty()
        && table.def.foreign_keys.is_empty()
        // The sequence of an identity column follows the values of new rows.
        && table.def.columns.iter().all(|column| column.identity.is_none())
        // A generated column may need the row that results.
        && !table.has_generated()
        && *key == table.def.primary_key
}

impl Blind {
    /// The changes of DO UPDATE; `None` if an assignment has another form. `alias` is the name of the target.
    pub fn of(table: &Table, alias: &Ident, columns: &[usize], values: &[Expr]) -> Option<Blind> {
        // A condition needs the row that results.
        let is_checked = |check: &Check| check.columns.iter().any(|column| columns.contains(column));
        if table.compiled().is_none_or(|compiled| compiled.checks.iter().any(is_checked)) {
            return None;
        }
        let keep = Assigned { change: ColumnChange::Keep, argument: None };
        let mut assigned = vec![keep; table.def.columns.len()];
        for (&column, value) in columns.iter().zip(values) {
            if table.def.primary_key.contains(&column) {
                return None;
            }
            let own = Own { alias: plain_ident(alias), column: &table.def.columns[column].name };
            let (change, argument) = own.change(value)?;
            let ty = table.def.columns[column].ty;
            // The whole of a text that grows is not known.
            let is_exact = change != ColumnChange::Append || (ty.column == ColumnType::Text && !ty.restricts_text());
            if !change.is_for(ty.column) || !is_exact {
                return None;
            }
            assigned[column] = Assigned { change, argument };
        }
        Some(Blind::Update(assigned))
    }

    /// For each value column of the table's tree, its change.
    fn changes(&self, table: &Table) -> Vec<ColumnChange> {
        let columns = table.table_columns();
        let values = columns[table.schema.key_columns()..].iter().flatten();
        match self {
            Blind::Replace => values.map(|_| ColumnChange::Set).collect(),
            // Dropped columns are behind those of the table.
            Blind::Update(assigned) => {
                values.map(|&column| assigned.get(column).map_or(ColumnChange::Keep, |a| a.change)).collect()
            }
        }
    }

    /// The messages that upsert `rows`, which have all columns of the table and different keys, with `arguments`: for each
    /// table column an array of its type, or `None` if the new rows have the arguments.
    pub fn messages(
        &self,
        table: &Table,
        rows: &[ArrayRef],
        arguments: Option<Vec<Option<ArrayRef>>>,
    ) -> Result<WriteBatch> {
        let (columns, dropped) = (table.table_columns(), table.dropped_columns());
        let len = rows.first().map_or(0, |column| column.len());
        let of_tree = |array: &dyn Fn(usize) -> ArrayRef| -> Vec<ArrayRef> {
            let values = columns.iter().flatten().map(|&column| match dropped.contains(&column) {
                true => table.dropped_values(column, len),
                false => array(column),
            });
            values.collect()
        };
        let rows = of_tree(&|column| rows[column].clone());
        let mut batch = WriteBatch::new();
        if matches!(self, Blind::Replace) {
            let rows = RecordBatch::try_new(table.schema.arrow().clone(), rows)?;
            batch.insert(table.def.tree, &table.schema, &rows)?;
            return Ok(batch);
        }
        let null = |column: usize| new_null_array(&table.def.columns[column].ty.column.arrow(), len);
        let arguments =
            arguments.map(|arrays| of_tree(&|column| arrays[column].clone().unwrap_or_else(|| null(column))));
        batch.upsert_rows(table.def.tree, &table.schema, &rows, &self.changes(table), arguments.as_deref())?;
        Ok(batch)
    }

    /// The messages that upsert `rows`; `None` if the arguments do not have the types or values that allow it. The new rows
    /// are registered as the table [`EXCLUDED`].
    ///
    /// # Errors
    /// Errors of the arguments.
    pub async fn batch(
        &self,
        session: &SqlSession,
        state: &StatementState,
        table: &Table,
        rows: &RecordBatch,
    ) -> Result<Option<WriteBatch>> {
        let arguments = match self {
            Blind::Update(assigned) if !assigned_from_new(table, assigned) => {
                match arguments(session, state, table, assigned, rows.num_rows()).await? {
                    Some(arguments) => Some(arguments),
                    None => return Ok(None),
                }
            }
            _ => None,
        };
        self.messages(table, rows.columns(), arguments).map(Some)
    }

    /// The arguments of a statement with one row of parameters and literals as cells, empty if the new row has the arguments;
    /// `None` if one of them has another form. `cell` returns the cell of a parameter or literal for a column.
    pub fn cells(
        &self,
        table: &Table,
        row: &short::Insert,
        cell: &dyn Fn(&Expr, usize) -> Option<short::Cell>,
    ) -> Option<Vec<Option<Vec<short::Cell>>>> {
        let Blind::Update(assigned) = self else { return Some(Vec::new()) };
        if assigned_from_new(table, assigned) {
            return Some(Vec::new());
        }
        let of_column = |(column, assigned): (usize, &Assigned)| match &assigned.argument {
            None => Some(None),
            Some(argument) => match excluded_name(argument) {
                Some(name) => {
                    let from = table.column(&name).ok()?;
                    let same = table.def.columns[from].ty == table.def.columns[column].ty;
                    // A missing cell is NULL.
                    let null = || vec![short::Cell::Constant(new_null_array(&DataType::Null, 1))];
                    same.then(|| Some(row.columns[from].clone().unwrap_or_else(null)))
                }
                None => cell(argument, column).map(|cell| Some(vec![cell])),
            },
        };
        assigned.iter().enumerate().map(of_column).collect()
    }

    /// The changes for EXPLAIN.
    pub fn describe(&self, table: &Table) -> String {
        let Blind::Update(assigned) = self else { return "replace".into() };
        let name = |change| match change {
            ColumnChange::Keep => "keep",
            ColumnChange::Set => "set",
            ColumnChange::Add => "add",
            ColumnChange::Min => "minimum",
            ColumnChange::Max => "maximum",
            ColumnChange::Fill => "set if null",
            ColumnChange::Replace => "set unless null",
            ColumnChange::Append => "append",
        };
        let columns = assigned.iter().zip(&table.def.columns).filter(|(assigned, _)| assigned.argument.is_some());
        let parts: Vec<String> =
            columns.map(|(assigned, column)| format!("{} {}", name(assigned.change), column.name)).collect();
        parts.join(", ")
    }
}

/// True if each argument is the value of the new row for the same column.
fn assigned_from_new(table: &Table, assigned: &[Assigned]) -> bool {
    assigned.iter().zip(&table.def.columns).all(|(assigned, column)| match &assigned.argument {
        None => true,
        Some(argument) => excluded_name(argument).as_deref() == Some(&column.name),
    })
}

/// The class of SQLSTATEs of values: overflow, division by zero, invalid text.
const DATA_EXCEPTION: &str = "22";

/// Evaluates the arguments over the new rows; `None` if a type or a value does not allow a blind change.
async fn arguments(
    session: &SqlSession,
    state: &StatementState,
    table: &Table,
    assigned: &[Assigned],
    len: usize,
) -> Result<Option<Vec<Option<ArrayRef>>>> {
    let mut expressions = vec![excluded_column(ROW_NUMBER.into())];
    expressions.extend(assigned.iter().filter_map(|assigned| assigned.argument.clone()));
    for expr in &mut expressions[1..] {
        super::conflict::qualify_excluded(expr);
    }
    let plan = state.plan_query(select_from_excluded(expressions)?).await?;
    let rows = match state.run(&plan).await {
        Ok(rows) => RowBuffer::reserved(&session.engine, "INSERT").collect(rows).await,
        Err(error) => Err(error),
    };
    let batches = match rows {
        Ok(rows) => rows.batches,
        // Rows without a conflict do not need their arguments, and `c - e` may be valid where `-e` is not.
        Err(error) if error.sqlstate().class() == DATA_EXCEPTION => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(schema) = batches.first().map(RecordBatch::schema) else { return Ok(None) };
    let batch = concat_batches(&schema, &batches)?;
    if batch.num_rows() != len || batch.column(0).as_primitive_opt::<Int64Type>().is_none() {
        return Ok(None);
    }
    // The rows may have been computed in another order.
    let batch = take_record_batch(&batch, &sort_to_indices(batch.column(0), None, None)?)?;
    let mut values = batch.columns()[1..].iter();
    let mut arguments = Vec::with_capacity(assigned.len());
    for (Assigned { change, argument }, column) in assigned.iter().zip(&table.def.columns) {
        let value = match argument {
            None => None,
            Some(_) => match values.next().and_then(|array| converted(*change, array, table, column, state)) {
                Some(value) => Some(value),
                None => return Ok(None),
            },
        };
        arguments.push(value);
    }
    Ok(Some(arguments))
}

/// An argument converted to the type of its column; `None` if the change would not have the same result as the
/// expression, or if the value does not fit.
fn converted(
    change: ColumnChange,
    values: &ArrayRef,
    table: &Table,
    column: &ColumnDef,
    state: &StatementState,
) -> Option<ArrayRef> {
    is_exact(change, values.data_type(), column).then(|| assign(values, &table.def.name, column, state.zone).ok())?
}

/// True if a change by an argument of a type is exactly the SQL expression, followed by the assignment.
pub(super) fn is_exact(change: ColumnChange, argument: &DataType, column: &ColumnDef) -> bool {
    use DataType as D;
    let is_text = matches!(argument, D::Utf8 | D::LargeUtf8 | D::Utf8View);
    let is_integer = argument.is_signed_integer();
    match (change, column.ty.column) {
        (ColumnChange::Keep | ColumnChange::Set, _) => true,
        (ColumnChange::Append, ColumnType::Text) => is_text && !column.ty.restricts_text(),
        (ColumnChange::Append, _) => false,
        (_, ColumnType::Int8 | ColumnType::Int16 | ColumnType::Int32 | ColumnType::Int64) => is_integer,
        (_, ColumnType::Float64) => is_integer || matches!(argument, D::Float32 | D::Float64),
        (_, ColumnType::Decimal { scale, .. }) => match argument {
            D::Decimal128(_, of_argument) => *of_argument <= scale,
            _ => is_integer,
        },
        (ColumnChange::Add, _) => false,
        (_, ColumnType::Text) => is_text,
        (_, ty) => *argument == ty.arrow(),
    }
}

/// `SELECT expressions FROM new rows`.
fn select_from_excluded(expressions: Vec<Expr>) -> Result<Query> {
    use datafusion::sql::sqlparser::ast::{SelectItem, SetExpr};
    let mut query = *crate::sql::parse_query(&format!("SELECT 1 FROM \"{EXCLUDED}\""))?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        let named = |(i, expr)| SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', format!("__{i}")) };
        select.projection = expressions.into_iter().enumerate().map(named).collect();
    }
    Ok(query)
}

/// The column of `excluded.column`.
fn excluded_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Nested(inner) => excluded_name(inner),
        Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [qualifier, column] if plain_ident(qualifier) == "excluded" => Some(plain_ident(column)),
            _ => None,
        },
        _ => None,
    }
}

/// A column of the target.
struct Own<'a> {
    alias: String,
    column: &'a str,
}

impl Own<'_> {
    /// The change that an assigned expression makes, with its argument.
    fn change(&self, expr: &Expr) -> Option<(ColumnChange, Option<Expr>)> {
        if self.is_own(expr) {
            return Some((ColumnChange::Keep, None));
        }
        if is_free(expr) {
            return Some((ColumnChange::Set, Some(expr.clone())));
        }
        let with = |change, argument: &Expr| is_free(argument).then(|| (change, Some(argument.clone())));
        match expr {
            Expr::Nested(inner) => self.change(inner),
            Expr::BinaryOp { left, op: BinaryOperator::Plus, right } if self.is_own(left) => {
                with(ColumnChange::Add, right)
            }
            Expr::BinaryOp { left, op: BinaryOperator::Plus, right } if self.is_own(right) => {
                with(ColumnChange::Add, left)
            }
            Expr::BinaryOp { left, op: BinaryOperator::Minus, right } if self.is_own(left) => {
                let inner = Box::new(Expr::Nested(right.clone()));
                let negated = Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner };
                is_free(right).then_some((ColumnChange::Add, Some(negated)))
            }
            Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right } if self.is_own(left) => {
                with(ColumnChange::Append, right)
            }
            Expr::Function(function) => {
                let (name, [first, second]) = (function_name(function)?, arguments_of(function)?);
                match name.as_str() {
                    "least" if self.is_own(first) => with(ColumnChange::Min, second),
                    "least" if self.is_own(second) => with(ColumnChange::Min, first),
                    "greatest" if self.is_own(first) => with(ColumnChange::Max, second),
                    "greatest" if self.is_own(second) => with(ColumnChange::Max, first),
                    "coalesce" if self.is_own(first) => with(ColumnChange::Fill, second),
                    "coalesce" if self.is_own(second) => with(ColumnChange::Replace, first),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn is_own(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Nested(inner) => self.is_own(inner),
            Expr::Identifier(name) => plain_ident(name) == self.column,
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [qualifier, column] => plain_ident(qualifier) == self.alias && plain_ident(column) == self.column,
                _ => false,
            },
            _ => false,
        }
    }
}

/// The name of a function without clauses; `None` for other functions.
fn function_name(function: &Function) -> Option<String> {
    let Function {
        name,
        parameters: FunctionArguments::None,
        filter: None,
        over: None,
        null_treatment: None,
        within_group,
        ..
    } = function
    else {
        return None;
    };
    match name.0.as_slice() {
        [name] if within_group.is_empty() => name.as_ident().map(plain_ident),
        _ => None,
    }
}

/// The two arguments of a function.
fn arguments_of(function: &Function) -> Option<[&Expr; 2]> {
    let FunctionArguments::List(list) = &function.args else { return None };
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(first)), FunctionArg::Unnamed(FunctionArgExpr::Expr(second))]
            if list.clauses.is_empty() && list.duplicate_treatment.is_none() =>
        {
            Some([first, second])
        }
        _ => None,
    }
}

/// True if an expression has no columns besides those of `excluded`, and no subqueries.
fn is_free(expr: &Expr) -> bool {
    struct Free;
    impl Visitor for Free {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::CompoundIdentifier(_) if excluded_name(expr).is_some() => ControlFlow::Continue(()),
                Expr::Identifier(_)
                | Expr::CompoundIdentifier(_)
                | Expr::CompoundFieldAccess { .. }
                | Expr::Wildcard(_)
                | Expr::QualifiedWildcard(..) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    walk(expr, &mut Free).is_continue()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Option<(ColumnChange, Option<String>)> {
        let own = Own { alias: "t".into(), column: "n" };
        let (change, argument) = own.change(&crate::sql::parse_expr(text).unwrap())?;
        Some((change, argument.map(|argument| argument.to_string())))
    }

    #[test]
    fn forms_of_assignments() {
        use ColumnChange::{Add, Append, Fill, Keep, Max, Min, Replace, Set};
        for (text, expected) in [
            ("n", Some((Keep, None))),
            ("t.n", Some((Keep, None))),
            ("excluded.n", Some((Set, Some("excluded.n")))),
            ("excluded.m * 2 + 1", Some((Set, Some("excluded.m * 2 + 1")))),
            ("NULL", Some((Set, Some("NULL")))),
            ("n + 1", Some((Add, Some("1")))),
            ("(t.n + excluded.n)", Some((Add, Some("excluded.n")))),
            ("excluded.m + \"n\"", Some((Add, Some("excluded.m")))),
            ("n - (excluded.n + 1)", Some((Add, Some("-((excluded.n + 1))")))),
            ("least(n, excluded.n)", Some((Min, Some("excluded.n")))),
            ("GREATEST(5, t.n)", Some((Max, Some("5")))),
            ("coalesce(n, 0)", Some((Fill, Some("0")))),
            ("coalesce(excluded.n, n)", Some((Replace, Some("excluded.n")))),
            ("n || ', ' ", Some((Append, Some("', '")))),
            // The result depends on the old row in another way.
            ("n + m", None),
            ("m + 1", None),
            ("m", None),
            ("u.n + 1", None),
            ("n * 2", None),
            ("1 - n", None),
            ("n + n", None),
            ("'a' || n", None),
            ("least(n, 1, 2)", None),
            ("coalesce(n, m)", None),
            ("n + (SELECT 1)", None),
            ("(SELECT 1)", None),
            ("greatest(n, (SELECT max(x) FROM u))", None),
        ] {
            let expected = expected.map(|(change, argument)| (change, argument.map(String::from)));
            assert_eq!(change(text), expected, "{text}");
        }
    }
}

//! INSERT … ON CONFLICT, INSERT OR REPLACE and INSERT OR IGNORE.
//!
//! The new rows become a table of the statement. A join with the target on the columns of a unique key finds the rows with
//! which they conflict; it is planned like any other join, so that many rows are looked up out of order. The result is one
//! change of the table ([`TableChange`]), with the matched rows as old rows. Rows conflict by a partial unique index if both
//! satisfy its predicate, which is a condition of the join then.
//!
//! | clause | rows with a conflict |
//! |---|---|
//! | DO NOTHING, OR IGNORE | are not inserted; of new rows that conflict with each other, the first is |
//! | DO UPDATE | update the existing row; two new rows for one row are an error, as in PostgreSQL |
//! | OR REPLACE | replace all rows that they conflict with; of new rows that conflict with each other, the last remains |

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::datasource::MemTable;
use datafusion::sql::sqlparser::ast::{
    Assignment, BinaryOperator, DoUpdate, Expr, Ident, Insert, JoinConstraint, JoinOperator, OnConflict,
    OnConflictAction, OnInsert, Query, SetExpr, SqliteOnConflict, TableWithJoins, Value, VisitorMut,
};

use super::blind::{self, Blind};
use super::literals::literal_cell;
use super::parts::{self, Effects};
use super::repeats::Repeats;
use super::unique_keys::{
    UniqueKey, all_rows, encoded_keys, first_of_each_key, keys_of, last_of_each_key, unique_keys_of,
};
use super::update::{assignments_of, old_and_new};
use super::{TargetTable, plain_ident};
use keyaki_store::WriteBatch;

use crate::catalog::{Catalog, RelationName, Table, types};
use crate::engine::{Engine, Writer};
use crate::sql::prepared::lone_parameter;
use crate::sql::state::StatementState;
use crate::sql::visit::{has_query, walk_mut};
use crate::sql::{SqlSession, short};
use crate::values::zone::Zone;
use crate::write::apply::{TableChange, distinct_rows};
use crate::write::rows::TableRows;
use crate::write::{BatchLimits, RowBuffer};
use crate::{Error, Result};

/// The table of the new rows: its name, the prefix of its columns, and the column with the number of the row.
pub(super) const EXCLUDED: &str = "__excluded";
const COLUMN_PREFIX: &str = "__new_";
pub(super) const ROW_NUMBER: &str = "__row";

/// What happens to rows with a conflict.
#[derive(Debug, Clone)]
pub(super) struct Conflict {
    /// The unique keys that can conflict. Other keys raise errors.
    keys: Vec<UniqueKey>,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    Nothing,
    Replace,
    Update { assignments: Vec<Assignment>, selection: Option<Box<Expr>> },
}

impl Conflict {
    /// The clause of an INSERT; `None` without one.
    ///
    /// # Errors
    /// `InvalidColumnReference` if no unique key has the columns; `NotFound` for an unknown constraint; `Unsupported`.
    pub fn of(insert: &Insert, engine: &Engine, table: &Table) -> Result<Option<Conflict>> {
        let all = || unique_keys_of(table);
        let or = match (&insert.or, insert.replace_into) {
            (None, false) => None,
            (Some(SqliteOnConflict::Replace), _) | (None, true) => Some(Action::Replace),
            (Some(SqliteOnConflict::Ignore), false) => Some(Action::Nothing),
            (Some(SqliteOnConflict::Abort | SqliteOnConflict::Fail), false) if insert.on.is_none() => return Ok(None),
            (Some(other), _) => {
                return Err(Error::Unsupported(format!("INSERT {other} (use OR REPLACE, OR IGNORE or ON CONFLICT)")));
            }
        };
        let (target, action) = match (&insert.on, or) {
            (None, None) => return Ok(None),
            (None, Some(action)) => return Ok(Some(Conflict { keys: all()?, action })),
            (Some(_), Some(_)) => return Err(Error::syntax("INSERT has both OR and ON CONFLICT")),
            (Some(OnInsert::OnConflict(OnConflict { conflict_target, action })), None) => (conflict_target, action),
            (Some(other), None) => return Err(Error::Unsupported(format!("INSERT …{other} (use ON CONFLICT)"))),
        };
        let keys = match target {
            Some(target) => keys_of(engine, table, target)?,
            None => all()?,
        };
        let action = match action {
            OnConflictAction::DoNothing => Action::Nothing,
            OnConflictAction::DoUpdate(DoUpdate { assignments, selection }) => {
                if keys.len() != 1 {
                    return Err(Error::syntax(
                        "ON CONFLICT DO UPDATE requires the columns of a unique key, or a constraint",
                    ));
                }
                Action::Update { assignments: assignments.clone(), selection: selection.clone().map(Box::new) }
            }
        };
        Ok(Some(Conflict { keys, action }))
    }

    /// The limits of the parts in which new rows may be inserted; `None` if the statement needs all of them. Parts have the
    /// same effect: a row of an earlier part is an existing row, which DO NOTHING keeps and OR REPLACE replaces.
    ///
    /// # Errors
    /// Errors of the definition of DO UPDATE.
    pub fn limits(
        &self,
        session: &SqlSession,
        catalog: &Catalog,
        table: &Table,
        writer: &Writer,
    ) -> Result<Option<BatchLimits>> {
        let mut assigned = Vec::new();
        if let Action::Update { assignments, selection } = &self.action {
            // A subquery sees the state before the statement. Rows are not sorted by expressions.
            if has_query(assignments) || has_query(selection) || self.key_columns().is_none() {
                return Ok(None);
            }
            assigned = assignments_of(table, assignments.to_vec())?.0;
        }
        let deletes = matches!(self.action, Action::Replace);
        let can_divide =
            parts::can_divide((catalog, table), writer, Effects { inserts: true, deletes, assigned: &assigned })?;
        Ok(can_divide.then(|| BatchLimits::of_joined_part(&session.engine, table)))
    }

    /// The columns of the only key that can conflict, by which rows are sorted that are inserted in parts.
    pub fn key_columns(&self) -> Option<&[usize]> {
        match self.keys.as_slice() {
            [key] if key.expressions.is_empty() => Some(&key.columns),
            _ => None,
        }
    }

    /// Checks that DO UPDATE affects no row twice.
    ///
    /// # Errors
    /// `AffectedTwice`.
    pub fn check_repeats(&self, table: &Table, rows: &RecordBatch, repeats: &mut Repeats) -> Result<()> {
        let (Action::Update { .. }, [key]) = (&self.action, self.keys.as_slice()) else { return Ok(()) };
        let mut all = all_rows(rows);
        all.add_virtual(table)?;
        let keys = encoded_keys(table, key, &all)?;
        let count = keys.len();
        match repeats.first(keys).len() < count {
            true => Err(Error::AffectedTwice { statement: "ON CONFLICT DO UPDATE" }),
            false => Ok(()),
        }
    }

    /// The change that inserts `rows` into the table, and the number of rows that it inserts and updates. `target` is the
    /// table, under its name in expressions.
    ///
    /// # Errors
    /// Errors of expressions.
    pub async fn change(
        &self,
        session: &SqlSession,
        state: &StatementState,
        target: &TargetTable,
        rows: &RecordBatch,
    ) -> Result<(TableChange, u64)> {
        let change = self.change_of(session, state, target, rows).await?;
        let count = match &self.action {
            // As in SQLite, rows that later rows replace count as well.
            Action::Replace => rows.num_rows(),
            Action::Nothing | Action::Update { .. } => change.new.len,
        };
        Ok((change, count as u64))
    }

    async fn change_of(
        &self,
        session: &SqlSession,
        state: &StatementState,
        target: &TargetTable,
        rows: &RecordBatch,
    ) -> Result<TableChange> {
        let table = &target.table;
        register(state, table, rows)?;
        match &self.action {
            Action::Nothing => {
                let mut taken = HashSet::new();
                for key in &self.keys {
                    let found = self.matches(session, state, target, key, Vec::new()).await?;
                    found.iter().for_each(|batch| taken.extend(numbers(batch)));
                }
                let new = first_of_each_key(table, &self.keys, rows, &taken)?;
                Ok(change(table, TableRows::default(), new))
            }
            Action::Replace => {
                let mut old = Vec::new();
                for key in &self.keys {
                    let found = self.matches(session, state, target, key, target.all_columns()).await?;
                    old.extend(
                        found.iter().map(|batch| {
                            old_and_new(table, &[], &without_number(batch), state.zone).map(|(old, _)| old)
                        }),
                    );
                }
                let old = TableRows::concat(&old.into_iter().collect::<Result<Vec<_>>>()?)?;
                let old = old.select(&UInt32Array::from(distinct_rows(table, &old)?))?;
                Ok(change(table, old, last_of_each_key(table, &self.keys, rows)?))
            }
            Action::Update { assignments, selection } => {
                self.update(session, state, target, rows, assignments, selection.as_deref()).await
            }
        }
    }

    /// The changes as messages that read nothing; `None` if the statement has to read. `alias` is the name of the target.
    pub fn blind(&self, session: &SqlSession, table: &Table, alias: &Ident) -> Result<Option<Blind>> {
        let [key] = self.keys.as_slice() else { return Ok(None) };
        if !blind::is_possible(session, table, &key.columns) {
            return Ok(None);
        }
        match &self.action {
            Action::Replace => Ok(Some(Blind::Replace)),
            Action::Update { assignments, selection: None } => {
                let (columns, values) = assignments_of(table, assignments.to_vec())?;
                Ok(Blind::of(table, alias, &columns, &values))
            }
            Action::Nothing | Action::Update { .. } => Ok(None),
        }
    }

    /// How rows with a conflict are found and changed, for EXPLAIN.
    pub fn describe(&self, table: &Table) -> String {
        let names = |key: &UniqueKey| {
            let names = key.columns.iter().map(|&column| table.def.columns[column].name.clone());
            let names: Vec<String> = names.chain(key.expressions.iter().map(Expr::to_string)).collect();
            let predicate = key.predicate.as_ref().map(|predicate| format!(" WHERE {predicate}"));
            format!("({}){}", names.join(", "), predicate.unwrap_or_default())
        };
        let keys: Vec<String> = self.keys.iter().map(names).collect();
        let action = match &self.action {
            Action::Nothing => "keep",
            Action::Replace => "replace",
            Action::Update { .. } => "update",
        };
        format!("read and {action} rows with the same {}", keys.join(" or "))
    }

    /// Adds the types of parameters that are assigned to a column or combined with it.
    pub fn add_types(&self, table: &Table, types: &mut [Option<DataType>]) -> Result<()> {
        let Action::Update { assignments, .. } = &self.action else { return Ok(()) };
        let (columns, values) = assignments_of(table, assignments.to_vec())?;
        for (&column, value) in columns.iter().zip(&values) {
            let (left, right) = match value {
                Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
                    (lone_parameter(left), lone_parameter(right))
                }
                value => (lone_parameter(value), None),
            };
            for parameter in [left, right].into_iter().flatten() {
                types[parameter].get_or_insert(table.def.columns[column].ty.column.arrow());
            }
        }
        Ok(())
    }

    /// The messages that insert `rows` by blind changes, and the number of rows; `None` if the values do not allow it.
    ///
    /// # Errors
    /// Errors of expressions.
    pub async fn blind_batch(
        &self,
        session: &SqlSession,
        state: &StatementState,
        table: &Table,
        blind: &Blind,
        rows: &RecordBatch,
    ) -> Result<Option<(WriteBatch, u64)>> {
        if matches!(blind, Blind::Replace) {
            let last = last_of_each_key(table, &self.keys, rows)?;
            let columns = last.columns.into_iter().collect::<Option<Vec<_>>>();
            let columns = columns.ok_or_else(|| Error::Internal("new rows have all columns".into()))?;
            return Ok(Some((blind.messages(table, &columns, None)?, rows.num_rows() as u64)));
        }
        register(state, table, rows)?;
        let batch = blind.batch(session, state, table, rows).await?;
        Ok(batch.map(|batch| (batch, rows.num_rows() as u64)))
    }

    async fn update(
        &self,
        session: &SqlSession,
        state: &StatementState,
        target: &TargetTable,
        rows: &RecordBatch,
        assignments: &[Assignment],
        selection: Option<&Expr>,
    ) -> Result<TableChange> {
        let table = &target.table;
        let [key] = self.keys.as_slice() else {
            return Err(Error::Internal("DO UPDATE has one key".into()));
        };
        let (assigned, mut values) = assignments_of(table, assignments.to_vec())?;
        let mut condition = selection.cloned().unwrap_or(Expr::value(Value::Boolean(true)));
        for expr in values.iter_mut().chain([&mut condition]) {
            qualify_excluded(expr);
        }
        let mut expressions = target.all_columns();
        expressions.extend(values);
        expressions.push(condition);
        let found = self.matches(session, state, target, key, expressions).await?;
        let mut matched = HashSet::new();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for batch in &found {
            matched.extend(numbers(batch));
            let (before, after) = updated(table, &assigned, &without_number(batch), state.zone)?;
            old.push(before);
            new.push(after);
        }
        let inserted = (0..rows.num_rows() as u32).filter(|row| !matched.contains(&i64::from(*row)));
        let mut inserted = all_rows(rows).select(&UInt32Array::from_iter_values(inserted))?;
        if table.def.hidden_rowid {
            inserted.rowid = Some(rowids(session, table, inserted.len).await?);
        }
        new.push(inserted);
        // Empty parts of the matches have no columns.
        new.retain(|rows| rows.len > 0);
        let (old, new) = (TableRows::concat(&old)?, TableRows::concat(&new)?);
        Ok(TableChange { pairs: old.len, ..change(table, old, new) })
    }

    /// Compiles an INSERT of one row for the short path: a query of the existing row by its key, with the values of the new
    /// row in place of `excluded`. `None` if it does not have the form. `insert` inserts the row.
    ///
    /// # Errors
    /// Errors of the definition of DO UPDATE.
    pub async fn short(
        &self,
        state: &StatementState,
        target: &TargetTable,
        row: &NewRow<'_>,
        types: &[Option<DataType>],
        insert: short::Insert,
        blind: Option<Blind>,
    ) -> Result<Option<short::Upsert>> {
        let ([key], Some(types)) = (self.keys.as_slice(), types.iter().cloned().collect::<Option<Vec<_>>>()) else {
            return Ok(None);
        };
        let table = &target.table;
        let mut expressions = target.all_columns();
        let (mut assigned, mut parameters) = (None, Vec::new());
        match &self.action {
            // The key of a row, and whether a partial index has an entry for it, depend on its values.
            _ if key.predicate.is_some() || !key.expressions.is_empty() => return Ok(None),
            // Replacing a row reads only the row with its key: a unique index would be a second key.
            Action::Replace if blind.is_none() => return Ok(None),
            Action::Replace => {
                let all: Vec<usize> = (0..table.def.columns.len()).filter(|c| !key.columns.contains(c)).collect();
                for &column in &all {
                    expressions.push(row.value(table, column)?);
                }
                expressions.push(Expr::value(Value::Boolean(true)));
                assigned = Some(all);
            }
            Action::Nothing => {}
            Action::Update { assignments, selection } => {
                let (columns, mut values) = assignments_of(table, assignments.to_vec())?;
                values.push(selection.as_deref().cloned().unwrap_or(Expr::value(Value::Boolean(true))));
                for expr in &mut values {
                    let new = |name: &str| row.value(table, table.column(name).ok()?).ok();
                    if walk_mut(expr, &mut NewColumns(new)).is_break() {
                        return Ok(None);
                    }
                }
                for (place, value) in values[..columns.len()].iter_mut().enumerate() {
                    if let Some(parameter) = lone_parameter(value) {
                        // Its type would be unknown. It takes the place of the null.
                        parameters.push((place, parameter));
                        *value = Expr::value(Value::Null);
                    }
                }
                expressions.extend(values);
                assigned = Some(columns);
            }
        }
        let equal = |&column: &usize| -> Result<Expr> {
            let left = Box::new(target.column(&table.def.columns[column].name));
            Ok(Expr::BinaryOp { left, op: BinaryOperator::Eq, right: Box::new(row.value(table, column)?) })
        };
        let condition = key.columns.iter().map(equal).collect::<Result<Vec<_>>>()?.into_iter().reduce(and);
        let Ok(plan) = state.plan_query(target.select(expressions, Vec::new(), condition)?).await else {
            return Ok(None);
        };
        let read = short::Read::compile(&plan, &state.state, &types);
        let blind = blind.and_then(|blind| {
            let cell = |expr: &Expr, column: usize| row.cell(table, expr, column, &blind, &types);
            let arguments = blind.cells(table, &insert, &cell)?;
            Some(short::BlindUpsert { blind, arguments })
        });
        Ok(read.map(|read| short::Upsert { insert, read, assigned, parameters, blind }))
    }

    /// The pairs of new rows and existing rows with the same key: the number of the new row, and `expressions`.
    async fn matches(
        &self,
        session: &SqlSession,
        state: &StatementState,
        target: &TargetTable,
        key: &UniqueKey,
        expressions: Vec<Expr>,
    ) -> Result<Vec<RecordBatch>> {
        let mut all = vec![excluded_column(ROW_NUMBER.into())];
        all.extend(expressions);
        let plan = state.plan_query(self.query(target, key, all)?).await?;
        Ok(RowBuffer::reserved(&session.engine, "INSERT").collect(state.run(&plan).await?).await?.batches)
    }

    /// `SELECT expressions FROM new rows JOIN target ON keys`.
    fn query(&self, target: &TargetTable, key: &UniqueKey, expressions: Vec<Expr>) -> Result<Query> {
        let name = |column: &usize| &target.table.def.columns[*column].name;
        let new = |name: &str| excluded_column(format!("{COLUMN_PREFIX}{name}"));
        let equal = |column| Expr::BinaryOp {
            left: Box::new(target.column(name(column))),
            op: BinaryOperator::Eq,
            right: Box::new(new(name(column))),
        };
        let same = |expr| Expr::BinaryOp {
            left: Box::new(of_columns(expr, &|name| target.column(name))),
            op: BinaryOperator::Eq,
            right: Box::new(of_columns(expr, &new)),
        };
        let of_both = key
            .predicate
            .iter()
            .flat_map(|predicate| [of_columns(predicate, &|name| target.column(name)), of_columns(predicate, &new)]);
        let condition =
            key.columns.iter().map(equal).chain(key.expressions.iter().map(same)).chain(of_both).reduce(and);
        let condition = condition.ok_or_else(|| Error::Internal("a key has columns".into()))?;
        let mut join = crate::sql::parse_query(&format!("SELECT 1 FROM a JOIN \"{EXCLUDED}\" ON true"))?;
        let mut joins = Vec::new();
        if let SetExpr::Select(select) = join.body.as_mut() {
            for TableWithJoins { joins: parsed, .. } in &mut select.from {
                joins.append(parsed);
            }
        }
        for join in &mut joins {
            join.join_operator = JoinOperator::Inner(JoinConstraint::On(condition.clone()));
        }
        target.select_joined(expressions, joins)
    }
}

/// The single new row of an INSERT.
pub(super) struct NewRow<'a> {
    /// The columns with values.
    pub columns: &'a [usize],
    pub values: &'a [Expr],
}

impl NewRow<'_> {
    /// The cell of an argument of a blind change: a parameter or a literal whose type makes the change exact.
    fn cell(
        &self,
        table: &Table,
        expr: &Expr,
        column: usize,
        blind: &Blind,
        types: &[DataType],
    ) -> Option<short::Cell> {
        let Blind::Update(assigned) = blind else { return None };
        let def = &table.def.columns[column];
        let change = assigned[column].change;
        if let Some(parameter) = lone_parameter(expr) {
            let ty = types.get(parameter)?;
            return blind::is_exact(change, ty, def).then_some(short::Cell::Parameter(parameter));
        }
        let array = literal_cell(expr, def)?;
        blind::is_exact(change, array.data_type(), def).then_some(short::Cell::Constant(array))
    }

    /// The value of a column, with the column's type. A parameter has this type.
    fn value(&self, table: &Table, column: usize) -> Result<Expr> {
        let given = self.columns.iter().position(|&c| c == column).map(|place| &self.values[place]);
        if let Some(parameter) = given.filter(|value| lone_parameter(value).is_some()) {
            return Ok(parameter.clone());
        }
        let name = types::column_type_name(table.def.columns[column].ty.column);
        let mut cast = crate::sql::parse_expr(&format!("CAST(NULL AS {name})"))?;
        if let (Expr::Cast { expr, .. }, Some(value)) = (&mut cast, given) {
            **expr = value.clone();
        }
        Ok(cast)
    }
}

fn and(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) }
}

/// The old and the new rows of DO UPDATE. A batch has all columns, the hidden rowid if there is one, the assigned values, and
/// the condition.
pub(crate) fn updated(
    table: &Table,
    assigned: &[usize],
    batch: &RecordBatch,
    zone: Zone,
) -> Result<(TableRows, TableRows)> {
    let (condition, values) = batch.columns().split_last().ok_or_else(|| Error::Internal("no condition".into()))?;
    let schema = Schema::new(batch.schema().fields()[..values.len()].to_vec());
    let rows = RecordBatch::try_new(Arc::new(schema), values.to_vec())?;
    let selected = arrow::compute::cast(condition, &DataType::Boolean)?;
    old_and_new(table, assigned, &arrow::compute::filter_record_batch(&rows, selected.as_boolean())?, zone)
}

/// Registers the new rows as a table of the statement.
fn register(state: &StatementState, table: &Table, rows: &RecordBatch) -> Result<()> {
    let mut fields = vec![Field::new(ROW_NUMBER, DataType::Int64, false)];
    let rename = |field: &Arc<Field>| field.as_ref().clone().with_name(format!("{COLUMN_PREFIX}{}", field.name()));
    fields.extend(table.arrow.fields().iter().map(rename));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(0..rows.num_rows() as i64))];
    columns.extend(rows.columns().iter().cloned());
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), columns)?;
    state.add_table(RelationName::public(EXCLUDED), Arc::new(MemTable::try_new(schema, vec![vec![batch]])?));
    Ok(())
}

/// A condition with the expressions that `column` returns in place of its unqualified columns.
fn of_columns(condition: &Expr, column: &dyn Fn(&str) -> Expr) -> Expr {
    struct Columns<'a>(&'a dyn Fn(&str) -> Expr);
    impl VisitorMut for Columns<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if let Expr::Identifier(ident) = expr {
                *expr = (self.0)(&plain_ident(ident));
            }
            ControlFlow::Continue(())
        }
    }
    let mut condition = condition.clone();
    let _ = walk_mut(&mut condition, &mut Columns(column));
    condition
}

/// Replaces `excluded.column` by the expression that the function returns; ends if there is none.
struct NewColumns<F>(F);

impl<F: FnMut(&str) -> Option<Expr>> VisitorMut for NewColumns<F> {
    type Break = ();
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let [qualifier, column] = parts.as_slice()
            && plain_ident(qualifier) == "excluded"
        {
            match (self.0)(&plain_ident(column)) {
                Some(new) => *expr = new,
                None => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }
}

/// Makes `excluded.column` refer to the table of new rows.
pub(super) fn qualify_excluded(expr: &mut Expr) {
    let new = |name: &str| Some(excluded_column(format!("{COLUMN_PREFIX}{name}")));
    let _ = walk_mut(expr, &mut NewColumns(new));
}

/// A column of the table of new rows.
pub(super) fn excluded_column(name: String) -> Expr {
    Expr::CompoundIdentifier(vec![Ident::with_quote('"', EXCLUDED), Ident::with_quote('"', name)])
}

/// The numbers of the new rows of a batch of matches.
fn numbers(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive_opt::<Int64Type>().map(|numbers| numbers.values().to_vec()).unwrap_or_default()
}

fn without_number(batch: &RecordBatch) -> RecordBatch {
    let mut batch = batch.clone();
    batch.remove_column(0);
    batch
}

/// Rowids for new rows of a table without a primary key.
pub(super) async fn rowids(session: &SqlSession, table: &Arc<Table>, count: usize) -> Result<ArrayRef> {
    let (engine, of) = (session.engine.clone(), table.clone());
    let task = tokio::task::spawn_blocking(move || engine.reserve_rowids(&of, count as u64));
    let first = task.await.map_err(|error| Error::task(&error))??;
    Ok(Arc::new(Int64Array::from_iter_values(first..first + count as i64)))
}

fn change(table: &Arc<Table>, old: TableRows, new: TableRows) -> TableChange {
    TableChange { table: table.clone(), old, new, pairs: 0, old_repeats: false, assigned: None }
}

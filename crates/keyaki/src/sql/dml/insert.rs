//! INSERT and CREATE TABLE AS.
//!
//! The source is planned as a query. A projection adds the defaults of unlisted columns. Each batch is converted to
//! rows of the table; the `write` layer then chooses between a write batch and a bulk load. VALUES of plain literals
//! bypass the planner ([`literals`]).

use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Insert, OnConflict, OnConflictAction, OnInsert, Query, SetExpr, TableObject, UnaryOperator, Value,
    Values,
};
use futures::StreamExt;
use keyaki_store::{ColumnType, WriteBatch};

use super::conflict::{Conflict, NewRow};
use super::parts::{self, Affected, Division, Effects};
use super::repeats::Repeats;
use super::returning::Returning;
use super::{TargetTable, assigned_column, defaults, foreign_keys, literals};
use crate::base::interrupt::Execution;
use crate::catalog::TableDef;
use crate::catalog::types::column_type_name;
use crate::catalog::{Privileges, Table};
use crate::engine::Writer;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::access;
use crate::sql::constants::is_text;
use crate::sql::expressions;
use crate::sql::prepared::{add_types, lone_parameter};
use crate::sql::sequences;
use crate::sql::short::{Insert as Short, ShortPlan};
use crate::sql::skipped;
use crate::sql::state::StatementState;
use crate::values::zone::Zone;
use crate::write::apply::TableChange;
use crate::write::assign::assign;
use crate::write::generated;
use crate::write::{self, AcceptedUpserts, BatchLimits, RowBuffer, WriteStatement, evaluate};
use crate::{Error, Result};

/// Explicit values for identity columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overriding {
    /// OVERRIDING SYSTEM VALUE: they are inserted, also if the column is ALWAYS.
    System,
    /// OVERRIDING USER VALUE: the sequence gives other ones.
    User,
}

impl Overriding {
    /// `None` without the clause.
    fn of(insert: &Insert) -> Option<Overriding> {
        match skipped::overriding(insert.columns.last()?)? {
            "USER" => Some(Overriding::User),
            "SYSTEM" => Some(Overriding::System),
            _ => None,
        }
    }
}

/// True for INSERT … BY NAME.
fn is_by_name(insert: &Insert) -> bool {
    insert.columns.last().and_then(skipped::overriding) == Some("NAME")
}

pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, mut insert: Insert) -> Result<Outcome> {
    check_plain(&insert)?;
    let TableObject::TableName(name) = &insert.table else {
        return Err(Error::Unsupported(format!("INSERT INTO {}", insert.table)));
    };
    let writer = session.writer(execution, "INSERT").await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let table = catalog.table(&session.relation(&catalog, name)?)?.clone();
    of_target(&insert).check(&session.authority(&catalog)?, &catalog, &table)?;
    expressions::compiled(session, &table)?;
    let columns = target_columns(&table, &insert)?;
    let overriding = Overriding::of(&insert);
    if overriding == Some(Overriding::User)
        && let Some(SetExpr::Values(values)) = insert.source.as_mut().map(|query| query.body.as_mut())
    {
        use_sequences(&table, columns.as_deref(), values);
    }
    let by_name = is_by_name(&insert);
    let conflict = Conflict::of(&insert, &session.engine, &table)?;
    let mut returning = Returning::of(insert.returning.clone(), alias(&insert, &table));
    let is_plain = conflict.is_none() && returning.is_none();
    let mut literals = None;
    if let Some(query) = &insert.source
        && !by_name
    {
        let all: Vec<usize> = (0..table.def.columns.len()).collect();
        literals = literals::rows(&table, columns.as_deref().unwrap_or(&all), query, session.zone())?;
        if let Some(batch) = literals.take_if(|_| is_plain) {
            let change = write::insertion(&table, &[batch])?;
            return Ok(Outcome::rows("INSERT", write::commit(session.write(writer), snapshot, change).await?));
        }
    }
    let alias = alias(&insert, &table);
    let state = StatementState::new(session, catalog, snapshot)?;
    sequences::permit_identity(&state.state, &table.def);
    let affected = match literals {
        Some(batch) => {
            let mut rows = RowBuffer::unreserved();
            rows.push(batch)?;
            Affected::All(rows)
        }
        None => {
            let source = match insert.source {
                Some(query) if by_name => named_source(&state, &table, *query).await?,
                Some(query) => plan_source(&state, &table, columns, *query, overriding).await?,
                None => InsertSource::new(LogicalPlanBuilder::empty(true).build()?, Vec::new()),
            };
            let rows = rows_of(&state, &table, source.with_defaults(&state, &table)?).await?;
            if is_plain {
                let rows = write::insert_query(session.write(writer), &table, rows).await?;
                return Ok(Outcome::rows("INSERT", rows));
            }
            let limits = match &conflict {
                Some(conflict) => conflict.limits(session, &state.catalog, &table, &writer)?,
                None => {
                    let effects = Effects { inserts: true, ..Effects::default() };
                    let can_divide = parts::can_divide((&state.catalog, &table), &writer, effects)?;
                    can_divide.then(|| BatchLimits::of_part(&session.engine, &table))
                }
            };
            Affected::read(session, "INSERT", rows, limits).await?
        }
    };
    let mut insertion = Insertion { session, table, alias, conflict, repeats: Repeats::default() };
    let may_be_blind = returning.is_none();
    let rows = match affected {
        Affected::All(rows) => {
            let rows = insertion.checked(&rows.batches)?;
            if may_be_blind {
                let statement = session.write(writer.clone());
                if let Some(accepted) = insertion.submit_blind(&state, &statement, &rows).await? {
                    drop(writer);
                    let rows = write::finish_upserts(statement, &insertion.table, accepted).await?;
                    return Ok(Outcome::rows("INSERT", rows));
                }
            }
            let (change, count) = insertion.change(&state, &rows).await?;
            if let Some(returning) = &mut returning {
                returning.rows(session, &state, &change.table, &change.new).await?;
            }
            foreign_keys::commit(session, writer, &state.catalog, state.snapshot.clone(), change).await?;
            count
        }
        Affected::Many(many) => {
            let key = insertion.conflict.as_ref().and_then(Conflict::key_columns);
            let many = many.sorted(session, &writer, "INSERT", key).await?;
            let mut division = Division::begin(session, writer, many).await?;
            while let Some(batches) = division.next().await? {
                let rows = insertion.checked(&batches)?;
                let (catalog, snapshot) = division.latest();
                let of_part = state.at(session, catalog, snapshot)?;
                if may_be_blind {
                    let statement = division.statement();
                    if let Some(accepted) = insertion.submit_blind(&of_part, &statement, &rows).await? {
                        division.count(write::finish_upserts(statement, &insertion.table, accepted).await?);
                        continue;
                    }
                }
                let (change, count) = insertion.change(&of_part, &rows).await?;
                if let Some(returning) = &mut returning {
                    returning.rows(session, &state, &change.table, &change.new).await?;
                }
                division.commit(change).await?;
                division.count(count);
            }
            division.finish().await?
        }
    };
    returning.map_or_else(|| Ok(Outcome::rows("INSERT", rows)), Returning::outcome)
}

/// The privileges for the target. ON CONFLICT reads the rows that conflict, unless it does nothing for any conflict.
pub(super) fn of_target(insert: &Insert) -> access::Target {
    let (mut needed, mut reads) = (Privileges::INSERT, insert.returning.is_some());
    match &insert.on {
        None => {}
        Some(OnInsert::OnConflict(OnConflict { conflict_target, action: OnConflictAction::DoNothing })) => {
            reads |= conflict_target.is_some();
        }
        Some(_) => {
            needed = needed.and(Privileges::UPDATE);
            reads = true;
        }
    }
    // INSERT OR REPLACE, OR IGNORE.
    if insert.or.is_some() || insert.replace_into || insert.overwrite {
        needed = needed.and(Privileges::UPDATE).and(Privileges::DELETE);
        reads = true;
    }
    access::Target::new(needed, reads)
}

/// An INSERT with ON CONFLICT or RETURNING.
struct Insertion<'s> {
    session: &'s SqlSession,
    table: Arc<Table>,
    /// The name of the table in expressions.
    alias: Ident,
    conflict: Option<Conflict>,
    /// The keys of the rows of DO UPDATE.
    repeats: Repeats,
}

impl Insertion<'_> {
    /// New rows, after the checks that they pass also if they conflict.
    ///
    /// # Errors
    /// `CheckViolation`, `AffectedTwice`.
    fn checked(&mut self, batches: &[RecordBatch]) -> Result<RecordBatch> {
        let rows = concat_batches(&self.table.arrow, batches)?;
        if let Some(conflict) = &self.conflict {
            write::checks::verify_batches(&self.table, batches)?;
            conflict.check_repeats(&self.table, &rows, &mut self.repeats)?;
        }
        Ok(rows)
    }

    /// Submits changes that read nothing; `None` if the rows have to be read. `state` is the newest for `statement`.
    ///
    /// # Errors
    /// Errors of expressions and of the store.
    async fn submit_blind(
        &self,
        state: &StatementState,
        statement: &WriteStatement,
        rows: &RecordBatch,
    ) -> Result<Option<AcceptedUpserts>> {
        let Insertion { session, table, alias, conflict: Some(conflict), .. } = self else { return Ok(None) };
        let Some(blind) = conflict.blind(session, table, alias)? else { return Ok(None) };
        match conflict.blind_batch(session, state, table, &blind, rows).await? {
            Some((batch, count)) => write::submit_upserts(statement, table, batch, count).await,
            None => Ok(None),
        }
    }

    /// The change that inserts the rows, and the number of rows that it inserts and updates.
    ///
    /// # Errors
    /// As [`Conflict::change`].
    async fn change(&self, state: &StatementState, rows: &RecordBatch) -> Result<(TableChange, u64)> {
        let Insertion { session, table, alias, conflict, .. } = self;
        match conflict {
            Some(conflict) => {
                conflict.change(session, state, &TargetTable::of(state, table, alias.clone())?, rows).await
            }
            None => Ok((write::insertion(table, std::slice::from_ref(rows))?, rows.num_rows() as u64)),
        }
    }
}

/// The name of the target in ON CONFLICT and RETURNING.
pub(super) fn alias(insert: &Insert, table: &Table) -> Ident {
    let given = insert.table_alias.as_ref().map(|alias| alias.alias.clone());
    given.unwrap_or_else(|| Ident::with_quote('"', table.def.name.name.clone()))
}

/// Adds the types of the parameters, and compiles the statement for the short path if it has the form.
///
/// # Errors
/// As [`run`], up to the execution.
pub(crate) async fn describe(
    session: &SqlSession,
    state: &StatementState,
    insert: &Insert,
    types: &mut [Option<DataType>],
) -> Result<Option<ShortPlan>> {
    check_plain(insert)?;
    let TableObject::TableName(name) = &insert.table else {
        return Err(Error::Unsupported(format!("INSERT INTO {}", insert.table)));
    };
    let table = state.table(name)?;
    of_target(insert).check(&state.authority, &state.catalog, &table)?;
    sequences::permit_identity(&state.state, &table.def);
    expressions::compiled(session, &table)?;
    let columns = target_columns(&table, insert)?;
    let conflict = Conflict::of(insert, &session.engine, &table)?;
    let Some(query) = &insert.source else { return Ok(None) };
    let all: Vec<usize> = (0..table.def.columns.len()).collect();
    let targets = columns.as_deref().unwrap_or(&all);
    if let Some(values) = literals::plain_values(query) {
        for row in &values {
            for (expr, &column) in row.iter().zip(targets) {
                if let Some(parameter) = lone_parameter(expr) {
                    types[parameter].get_or_insert(table.def.columns[column].ty.column.arrow());
                }
            }
        }
        if insert.returning.is_some() || Overriding::of(insert) == Some(Overriding::User) {
            return Ok(None);
        }
        let parameter_type = |parameter: usize| types[parameter].clone();
        if conflict.is_some() && table.has_generated() {
            // `excluded` has the generated columns of the new row.
            return Ok(None);
        }
        let Some(columns) = literals::cells(&table, targets, &values, &parameter_type, conflict.is_none()) else {
            return Ok(None);
        };
        let short = Short { table: table.clone(), rows: values.len(), columns };
        let (Some(conflict), [row]) = (&conflict, values.as_slice()) else {
            return Ok(conflict.is_none().then_some(ShortPlan::Insert(short)));
        };
        let target = TargetTable::of(state, &table, alias(insert, &table))?;
        let row = NewRow { columns: targets, values: row };
        conflict.add_types(&table, types)?;
        let blind = conflict.blind(session, &table, &alias(insert, &table))?;
        let upsert = conflict.short(state, &target, &row, types, short, blind).await?;
        return Ok(upsert.map(|upsert| ShortPlan::Upsert(Box::new(upsert))));
    }
    if !types.is_empty()
        && let Ok(plan) = state.plan_query((**query).clone()).await
    {
        add_types(types, &plan);
    }
    Ok(None)
}

/// A plan that produces values for a subset of a table's columns.
struct InsertSource {
    plan: LogicalPlan,
    /// The table column of each column of the plan.
    columns: Vec<usize>,
    /// Columns whose values are different for each row, with their expressions. They are evaluated for the rows of the
    /// plan in their order: sequences number the rows of ORDER BY.
    volatile: Vec<(usize, Arc<dyn PhysicalExpr>)>,
}

impl InsertSource {
    fn new(plan: LogicalPlan, columns: Vec<usize>) -> InsertSource {
        InsertSource { plan, columns, volatile: Vec::new() }
    }

    /// Adds the defaults of the other columns. A projection adds the defaults that are the same for all rows.
    fn with_defaults(mut self, state: &StatementState, table: &Table) -> Result<InsertSource> {
        let others = (0..table.def.columns.len()).filter(|column| {
            let is_given = self.columns.contains(column) || self.volatile.iter().any(|(given, _)| given == column);
            !is_given && table.def.columns[*column].has_default()
        });
        let mut missing = Vec::new();
        for column in others.collect::<Vec<_>>() {
            let def = &table.def.columns[column];
            match defaults::logical(state, def)?.is_volatile() {
                true => self.volatile.push((column, defaults::of_statement(state, def)?)),
                false => missing.push(column),
            }
        }
        if missing.is_empty() && !self.columns.is_empty() {
            return Ok(self);
        }
        let mut expressions: Vec<Logical> = self.plan.schema().columns().into_iter().map(Logical::Column).collect();
        for &column in &missing {
            let default = defaults::logical(state, &table.def.columns[column])?;
            expressions.push(default.alias(format!("__default_{column}")));
        }
        if expressions.is_empty() {
            // INSERT … DEFAULT VALUES: a projection needs a column.
            expressions.push(lit(ScalarValue::Null));
        }
        let plan = LogicalPlanBuilder::from(self.plan).project(expressions)?.build()?;
        Ok(InsertSource { plan, columns: [self.columns, missing].concat(), volatile: self.volatile })
    }
}

pub(super) fn check_plain(insert: &Insert) -> Result<()> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("INSERT … {what}"))),
        false => Ok(()),
    };
    // The pattern names every field, so that fields added by a new version of sqlparser do not compile unnoticed.
    let Insert {
        insert_token: _,
        optimizer_hints: _,
        or: _,
        ignore,
        into: _,
        table: _,
        table_alias: _,
        columns: _,
        overwrite,
        source,
        assignments,
        partitioned,
        after_columns,
        has_table_keyword,
        on: _,
        returning: _,
        output,
        replace_into: _,
        priority,
        insert_alias,
        settings,
        format_clause,
        multi_table_insert_type,
        multi_table_into_clauses,
        multi_table_when_clauses,
        multi_table_else_clause,
    } = insert;
    refuse(output.is_some(), "OUTPUT (use RETURNING)")?;
    refuse(*ignore, "IGNORE (use INSERT OR IGNORE)")?;
    refuse(
        *overwrite || *has_table_keyword || partitioned.is_some() || !after_columns.is_empty(),
        "OVERWRITE, TABLE and PARTITION",
    )?;
    refuse(!assignments.is_empty() || priority.is_some() || insert_alias.is_some(), "SET and priorities")?;
    refuse(settings.is_some() || format_clause.is_some(), "SETTINGS and FORMAT")?;
    let multi = multi_table_insert_type.is_some()
        || !multi_table_into_clauses.is_empty()
        || !multi_table_when_clauses.is_empty()
        || multi_table_else_clause.is_some();
    refuse(multi, "into several tables")?;
    let is_values = matches!(source.as_ref().map(|query| query.body.as_ref()), Some(SetExpr::Values(_)) | None);
    match is_by_name(insert) && is_values {
        true => Err(Error::syntax("INSERT BY NAME needs a query with names of columns, not VALUES")),
        false => Ok(()),
    }
}

/// Positions of the listed columns; `None` without a list.
///
/// # Errors
/// `UndefinedColumn`, `DuplicateColumn`; `GeneratedAlways` for values in VALUES.
pub(super) fn target_columns(table: &Table, insert: &Insert) -> Result<Option<Vec<usize>>> {
    let columns = listed_columns(table, insert)?;
    if let Some(SetExpr::Values(values)) = insert.source.as_ref().map(|query| query.body.as_ref()) {
        let all: Vec<usize> = (0..table.def.columns.len()).collect();
        let is_default = |row: &[Expr], position| row.get(position).is_none_or(defaults::is_default);
        let columns = columns.as_deref().unwrap_or(&all);
        sequences::check_given(table, columns, false, |position| {
            overrides(insert, table, columns[position])
                || values.rows.iter().all(|row| is_default(&row.content, position))
        })?;
    }
    Ok(columns)
}

/// True for an identity column of an INSERT with OVERRIDING.
fn overrides(insert: &Insert, table: &Table, column: usize) -> bool {
    table.def.columns[column].identity.is_some() && Overriding::of(insert).is_some()
}

/// Replaces values for identity columns by DEFAULT, for OVERRIDING USER VALUE.
fn use_sequences(table: &Table, columns: Option<&[usize]>, values: &mut Values) {
    for row in &mut values.rows {
        for (position, expr) in row.content.iter_mut().enumerate() {
            let column = columns.map_or(Some(position), |columns| columns.get(position).copied());
            if column.and_then(|column| table.def.columns.get(column)).is_some_and(|column| column.identity.is_some()) {
                *expr = Expr::Identifier(Ident::new("DEFAULT"));
            }
        }
    }
}

fn listed_columns(table: &Table, insert: &Insert) -> Result<Option<Vec<usize>>> {
    // The last one may stand for OVERRIDING.
    let columns = insert.columns.iter().filter(|column| skipped::overriding(column).is_none());
    if columns.clone().next().is_none() {
        return Ok(None);
    }
    let columns = columns.map(|name| assigned_column(table, name)).collect::<Result<Vec<_>>>()?;
    if let Some((_, &twice)) = columns.iter().enumerate().find(|(i, column)| columns[..*i].contains(column)) {
        return Err(Error::DuplicateColumn(table.def.columns[twice].name.clone()));
    }
    Ok(Some(columns))
}

/// The rows of a query whose columns have the names of the table's.
async fn named_source(state: &StatementState, table: &Table, query: Query) -> Result<InsertSource> {
    let plan = state.plan_query(query).await?;
    // As those of files, names that differ only in case are equal.
    let similar = |name: &str| table.def.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
    let column = |name: &String| table.column(name).or_else(|error| similar(name).ok_or(error));
    let columns = plan.schema().fields().iter().map(|field| column(field.name()));
    let columns = columns.collect::<Result<Vec<usize>>>()?;
    if let Some((_, twice)) = columns.iter().enumerate().find(|(i, column)| columns[..*i].contains(column)) {
        return Err(Error::DuplicateColumn(table.def.columns[*twice].name.clone()));
    }
    sequences::check_given(table, &columns, false, |_| false)?;
    Ok(InsertSource::new(plan, columns))
}

async fn plan_source(
    state: &StatementState,
    table: &Table,
    columns: Option<Vec<usize>>,
    mut query: Query,
    overriding: Option<Overriding>,
) -> Result<InsertSource> {
    let listed = columns.is_some();
    let columns = columns.unwrap_or_else(|| (0..table.def.columns.len()).collect());
    let is_values = matches!(query.body.as_ref(), SetExpr::Values(_));
    if let SetExpr::Values(values) = query.body.as_mut() {
        for row in &mut values.rows {
            for (expr, column) in row.content.iter_mut().zip(&columns) {
                if defaults::is_default(expr) {
                    *expr = defaults::sql(&table.def.columns[*column])?;
                }
            }
        }
        for (position, &column) in columns.iter().enumerate() {
            convert_texts(values, position, table.def.columns[column].ty.column)?;
        }
    }
    let plan = state.plan_query(query).await?;
    let given = plan.schema().fields().len();
    if given > columns.len() || (listed && given < columns.len()) {
        let (more, fewer) =
            if given > columns.len() { ("expressions", "target columns") } else { ("target columns", "expressions") };
        let message = format!("INSERT has more {more} than {fewer} ({given} expressions, {} columns)", columns.len());
        return Err(Error::syntax(message));
    }
    let columns = columns[..given].to_vec();
    if is_values {
        return Ok(InsertSource::new(plan, columns));
    }
    let is_identity = |position: usize| table.def.columns[columns[position]].identity.is_some();
    sequences::check_given(table, &columns, false, |position| overriding.is_some() && is_identity(position))?;
    let mut source = InsertSource::new(plan, columns);
    if overriding == Some(Overriding::User) {
        for &column in source.columns.iter().filter(|column| table.def.columns[**column].identity.is_some()) {
            source.volatile.push((column, defaults::of_statement(state, &table.def.columns[column])?));
        }
    }
    Ok(source)
}

/// Converts literals in a column of VALUES to the type of the table's column, as in PostgreSQL: DataFusion converts them
/// to a common type of their own. Texts beside other values are converted, other values for a column of texts, and
/// numbers for columns of floats and decimals.
fn convert_texts(values: &mut Values, position: usize, ty: ColumnType) -> Result<()> {
    let is_null = |expr: &Expr| matches!(expr, Expr::Value(value) if value.value == Value::Null);
    let is_numeric = values.rows.len() > 1 && matches!(ty, ColumnType::Float64 | ColumnType::Decimal { .. });
    let mut cells = values.rows.iter().filter_map(|row| row.content.get(position));
    let is_mixed = cells.clone().any(|cell| is_text(cell) || is_numeric && is_literal_number(cell))
        && cells.any(|cell| !is_text(cell) && !is_null(cell));
    let is_convertible = |cell: &Expr| match (ty, cell) {
        (ColumnType::Text, Expr::Value(value)) => matches!(value.value, Value::Number(..) | Value::Boolean(_)),
        (ColumnType::Text, cell) => matches!(cell, Expr::TypedString(_) | Expr::UnaryOp { .. } | Expr::Cast { .. }),
        (_, cell) => is_text(cell) || is_numeric && is_literal_number(cell),
    };
    let has_others = values.rows.iter().filter_map(|row| row.content.get(position)).any(is_convertible);
    if !is_mixed && (ty != ColumnType::Text || values.rows.len() == 1 || !has_others) {
        return Ok(());
    }
    let cast = crate::sql::parse_expr(&format!("CAST(NULL AS {})", column_type_name(ty)))?;
    for cell in
        values.rows.iter_mut().filter_map(|row| row.content.get_mut(position)).filter(|cell| is_convertible(cell))
    {
        let text = std::mem::replace(cell, cast.clone());
        if let Expr::Cast { expr, .. } = cell {
            **expr = text;
        }
    }
    Ok(())
}

/// True for a number, also below signs.
fn is_literal_number(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => matches!(value.value, Value::Number(..)),
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => is_literal_number(expr),
        _ => false,
    }
}

/// Runs the source and converts its batches to rows of the table: all columns in table order, converted and checked.
async fn rows_of(
    state: &StatementState,
    table: &Arc<Table>,
    source: InsertSource,
) -> Result<SendableRecordBatchStream> {
    let rows = state.run(&source.plan).await?;
    let (into, schema) = (table.clone(), table.arrow.clone());
    let zone = state.zone;
    let rows = rows.map(move |batch| Ok(complete(&into, &source, &batch?, zone)?));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// Creates the table `def` and inserts the rows of `plan`, whose columns correspond to the table's, in one commit with the
/// changes of the batch, which the catalog of the state has. Returns their number.
pub(crate) async fn create_as(
    session: &SqlSession,
    writer: &Writer,
    (state, batch): (&StatementState, WriteBatch),
    def: TableDef,
    plan: LogicalPlan,
) -> Result<u64> {
    let table = Arc::new(Table::new(def, None)?);
    let source = InsertSource::new(plan, (0..table.def.columns.len()).collect());
    let rows = rows_of(state, &table, source).await?;
    write::create_table_as(&session.write(writer.clone()), &state.catalog, table, rows, batch).await
}

/// Converts a batch of the source to rows of the table. Columns without a value become null, except generated ones.
fn complete(table: &Table, source: &InsertSource, batch: &RecordBatch, zone: Zone) -> Result<RecordBatch> {
    let arrays = table.def.columns.iter().enumerate().map(|(i, column)| {
        if column.generated.is_some() {
            return Ok(generated::unset(column, batch.num_rows()));
        }
        let volatile = source.volatile.iter().find(|(volatile, _)| *volatile == i);
        let values = match (volatile, source.columns.iter().position(|given| *given == i)) {
            (Some((_, values)), _) => evaluate(values, batch.num_rows())?,
            (None, Some(position)) => batch.column(position).clone(),
            (None, None) => new_null_array(&column.ty.column.arrow(), batch.num_rows()),
        };
        assign(&values, &table.def.name, column, zone)
    });
    generated::completed(table, arrays.collect::<Result<_>>()?)
}

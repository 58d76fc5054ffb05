//! MERGE: updates, deletes and inserts rows of a table by a join with a source.
//!
//! One query joins the target with the source. Its first column is the number of the clause that applies to the pair of
//! rows: the first whose kind and condition match. The other columns are the target's row and the values of all clauses,
//! which are evaluated only for rows of their clause. All changes together are one change of the table.
//!
//! | clauses | join |
//! |---|---|
//! | MATCHED | inner |
//! | NOT MATCHED \[BY TARGET\] | with all rows of the source |
//! | NOT MATCHED BY SOURCE | with all rows of the target |

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::sql::sqlparser::ast::{
    AssignmentTarget, BinaryOperator, CaseWhen, Expr, Ident, Join, JoinConstraint, JoinOperator, Merge, MergeAction,
    MergeClause, MergeClauseKind, MergeInsertExpr, MergeInsertKind, MergeUpdateExpr, OutputClause, Query, SelectItem,
    SetExpr, TableAlias, TableFactor, TableWithJoins, Value, VisitorMut,
};

use super::conflict::rowids;
use super::parts::{self, Affected, Division, Effects};
use super::repeats::Repeats;
use super::returning::Returning;
use super::update::{assignments_of, key_columns, old_and_new};
use super::{TargetTable, assigned_column, defaults, foreign_keys};
use crate::base::interrupt::Execution;
use crate::catalog::{Privileges, Table};
use crate::engine::Writer;
use crate::sql::expressions;
use crate::sql::prepared::add_types;
use crate::sql::state::StatementState;
use crate::sql::visit::walk_mut;
use crate::sql::{Outcome, SqlSession, access, sequences, skipped};
use crate::write::BatchLimits;
use crate::write::apply::{TableChange, row_keys};
use crate::write::assign::assign;
use crate::write::generated;
use crate::write::rows::TableRows;
use crate::{Error, Result};

/// A column of the source that is null in rows without a source row.
const SOURCE_MARK: &str = "__is_source";

pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, merge: Merge) -> Result<Outcome> {
    let writer = session.writer(execution, "MERGE").await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let items = returned(&merge)?.cloned();
    let source = TableWithJoins { relation: merge.source.clone(), joins: Vec::new() };
    let target = target_of(&state, &merge)?;
    let table = target.table.clone();
    let of_merge = |items| Returning::of_merge(items, target.alias().clone()).joined(&table, &[source]);
    let mut returning = items.map(of_merge);
    let others = returning.as_ref().map_or_else(Vec::new, |returning| returning.others().to_vec());
    let extra = others.len();
    let (clauses, query) = query_of(target, merge, others)?;
    let Clauses { target, clauses } = clauses;
    expressions::compiled(session, &table)?;
    let plan = state.plan_query(query).await?;
    let limits = limits(session, &state, &writer, &table, &clauses)?;
    let mut changes = Changes {
        has_actions: returning.is_some(),
        extra,
        repeats: Repeats::default(),
        session,
        state: &state,
        target: &target,
        clauses: &clauses,
    };
    let affected = state.run(&plan).await?;
    if let Some(returning) = &mut returning {
        returning.set_types(&affected.schema());
    }
    let rows = match Affected::read(session, "MERGE", affected, limits).await? {
        Affected::All(affected) => {
            let (change, actions) = changes.of(&affected.batches).await?;
            if let Some(returning) = &mut returning {
                returning.actions(session, &state, &table, &actions).await?;
            }
            drop(actions);
            foreign_keys::commit(session, writer, &state.catalog, state.snapshot.clone(), change).await?;
            affected.rows as u64
        }
        Affected::Many(many) => {
            // The row of the target is behind the number of the clause.
            let key: Vec<usize> = key_columns(&table).iter().map(|column| 1 + column).collect();
            let many = many.sorted(session, &writer, "MERGE", Some(&key)).await?;
            let mut division = Division::begin(session, writer, many).await?;
            while let Some(batches) = division.next().await? {
                let (change, actions) = changes.of(&batches).await?;
                if let Some(returning) = &mut returning {
                    returning.actions(session, &state, &table, &actions).await?;
                }
                drop(actions);
                division.commit(change).await?;
                division.count(batches.iter().map(|batch| batch.num_rows() as u64).sum());
            }
            division.finish().await?
        }
    };
    returning.map_or_else(|| Ok(Outcome::rows("MERGE", rows)), Returning::outcome)
}

/// The limits of the parts in which rows may be changed; `None` if the statement needs all of them.
fn limits(
    session: &SqlSession,
    state: &StatementState,
    writer: &Writer,
    table: &Table,
    clauses: &[Clause],
) -> Result<Option<BatchLimits>> {
    let mut effects = Effects::default();
    let mut assigned = Vec::new();
    for clause in clauses {
        match &clause.action {
            Action::Update { assigned: columns } => assigned.extend_from_slice(columns),
            Action::Delete => effects.deletes = true,
            Action::Insert => effects.inserts = true,
            Action::Nothing => {}
        }
    }
    // A new row may have the key of a row that a later part deletes.
    if effects.deletes && effects.inserts {
        return Ok(None);
    }
    let can_divide = parts::can_divide((&state.catalog, table), writer, Effects { assigned: &assigned, ..effects })?;
    Ok(can_divide.then(|| BatchLimits::of_part(&session.engine, table)))
}

/// Makes the changes of the rows of the query.
struct Changes<'s> {
    session: &'s SqlSession,
    state: &'s StatementState,
    target: &'s TargetTable,
    clauses: &'s [Clause],
    /// The changed rows are returned by action.
    has_actions: bool,
    /// The number of columns of other relations that are returned.
    extra: usize,
    /// The keys of the rows that are updated or deleted.
    repeats: Repeats,
}

impl Changes<'_> {
    /// The change of some of the rows, and the rows by action if they are returned.
    ///
    /// # Errors
    /// `AffectedTwice`; errors of the values.
    async fn of(&mut self, batches: &[RecordBatch]) -> Result<(TableChange, [(&'static str, Vec<TableRows>); 3])> {
        let Changes { session, state, target, clauses, has_actions, extra, .. } = *self;
        let table = &target.table;
        let mut actions = [("UPDATE", Vec::new()), ("DELETE", Vec::new()), ("INSERT", Vec::new())];
        // The rows of an action with the columns of other relations.
        let returned = |rows: &TableRows, batch: &RecordBatch| {
            let mut rows = rows.clone();
            rows.columns.extend(batch.columns()[batch.num_columns() - extra..].iter().cloned().map(Some));
            rows
        };
        let (mut old, mut new, mut deleted, mut inserted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for batch in batches {
            for (number, clause) in clauses.iter().enumerate() {
                let batch = rows_of_clause(batch, number)?;
                if batch.num_rows() == 0 {
                    continue;
                }
                let with_row = || clause.with_row(target, &batch);
                let (action, into, rows) = match &clause.action {
                    Action::Update { assigned } => {
                        let (before, after) = old_and_new(table, assigned, &with_row()?, state.zone)?;
                        old.push(before);
                        (0, &mut new, after)
                    }
                    Action::Delete => (1, &mut deleted, old_and_new(table, &[], &with_row()?, state.zone)?.0),
                    Action::Insert => (2, &mut inserted, new_rows(table, clause, &batch, state)?),
                    Action::Nothing => continue,
                };
                if has_actions {
                    actions[action].1.push(returned(&rows, &batch));
                }
                into.push(rows);
            }
        }
        let pairs = old.iter().map(|rows| rows.len).sum();
        old.append(&mut deleted);
        let old = TableRows::concat(&old)?;
        if self.repeats.first(row_keys(table, &old)?).len() < old.len {
            return Err(Error::AffectedTwice { statement: "MERGE" });
        }
        let mut inserted = TableRows::concat(&inserted)?;
        if inserted.len > 0 {
            if table.def.hidden_rowid {
                inserted.rowid = Some(rowids(session, table, inserted.len).await?);
            }
            new.push(inserted);
        }
        let assigned = clauses.iter().map(|clause| match &clause.action {
            Action::Update { assigned } => Some(generated::with_dependents(table, assigned.clone())),
            Action::Nothing => Some(Vec::new()),
            Action::Delete | Action::Insert => None,
        });
        // Rows that are deleted or inserted change all columns.
        let assigned = assigned.collect::<Option<Vec<_>>>().map(|columns| columns.concat());
        let (table, new) = (table.clone(), TableRows::concat(&new)?);
        Ok((TableChange { table, old, new, pairs, old_repeats: false, assigned }, actions))
    }
}

/// The target and the query of the affected rows, for EXPLAIN: a description of the changes, and the query.
///
/// # Errors
/// As [`run`], up to the execution.
pub(super) fn explained(state: &StatementState, merge: Merge) -> Result<(String, Query)> {
    let (clauses, query) = query_of(target_of(state, &merge)?, merge, Vec::new())?;
    let names: Vec<String> = clauses.clauses.iter().map(|clause| clause.describe(&clauses.target.table)).collect();
    Ok((format!("Merge into {}: {}", clauses.target.table.def.name, names.join("; ")), query))
}

/// Adds the types of the parameters.
///
/// # Errors
/// As [`run`], up to the execution.
pub(crate) async fn describe(state: &StatementState, merge: &Merge, types: &mut [Option<DataType>]) -> Result<()> {
    let (_, query) = query_of(target_of(state, merge)?, merge.clone(), Vec::new())?;
    // The query may need the values.
    if let Ok(plan) = state.plan_query(query).await {
        add_types(types, &plan);
    }
    Ok(())
}

/// The expressions of RETURNING.
///
/// # Errors
/// `Unsupported` for OUTPUT.
pub(super) fn returned(merge: &Merge) -> Result<Option<&Vec<SelectItem>>> {
    match &merge.output {
        Some(OutputClause::Returning { select_items, .. }) => Ok(Some(select_items)),
        Some(OutputClause::Output { .. }) => Err(Error::Unsupported("MERGE … OUTPUT (use RETURNING)".into())),
        None => Ok(None),
    }
}

/// The target with what happens to its rows.
struct Clauses {
    target: TargetTable,
    clauses: Vec<Clause>,
}

struct Clause {
    kind: Kind,
    action: Action,
    /// The columns of the query with the clause's values: one for each assigned or table column.
    values: std::ops::Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Matched,
    NotMatchedByTarget,
    NotMatchedBySource,
}

enum Action {
    Update {
        assigned: Vec<usize>,
    },
    Delete,
    Insert,
    /// DO NOTHING: the query does not return the rows.
    Nothing,
}

impl Clause {
    fn describe(&self, table: &Table) -> String {
        let names = |columns: &[usize]| {
            let names: Vec<&str> = columns.iter().map(|&column| table.def.columns[column].name.as_str()).collect();
            names.join(", ")
        };
        let action = match &self.action {
            Action::Update { assigned } => format!("set {}", names(assigned)),
            Action::Delete => "delete".into(),
            Action::Insert => "insert".into(),
            Action::Nothing => "nothing".into(),
        };
        let kind = match self.kind {
            Kind::Matched => "matched",
            Kind::NotMatchedByTarget => "not matched",
            Kind::NotMatchedBySource => "not matched by source",
        };
        format!("{kind}: {action}")
    }

    /// The columns of the target and the clause's values.
    fn with_row(&self, target: &TargetTable, batch: &RecordBatch) -> Result<RecordBatch> {
        let row = 1..1 + target.all_columns().len();
        let columns: Vec<usize> = row.chain(self.values.clone()).collect();
        Ok(batch.project(&columns)?)
    }
}

fn target_of(state: &StatementState, merge: &Merge) -> Result<TargetTable> {
    // The join reads the target.
    let needed = merge.clauses.iter().fold(Privileges::SELECT, |needed, clause| {
        needed.and(match &clause.action {
            action if is_nothing(action) => Privileges::NONE,
            MergeAction::Insert(_) => Privileges::INSERT,
            MergeAction::Update(_) => Privileges::UPDATE,
            MergeAction::Delete { .. } => Privileges::DELETE,
        })
    });
    let relation = TableWithJoins { relation: merge.table.clone(), joins: Vec::new() };
    let assigns_default = merge.clauses.iter().any(|clause| match &clause.action {
        MergeAction::Update(update) => defaults::are_assigned(&update.assignments),
        _ => false,
    });
    TargetTable::new(state, &relation, access::Target::new(needed, true).with_default(assigns_default))
}

/// The clauses, and the query of the rows to which they apply. It returns the expressions `others` last.
fn query_of(target: TargetTable, merge: Merge, others: Vec<Expr>) -> Result<(Clauses, Query)> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("MERGE … {what}"))),
        false => Ok(()),
    };
    let Merge { merge_token: _, optimizer_hints: _, into: _, table: _, source, on, clauses: given, output: _ } = merge;
    let all = target.all_columns();
    let (source, source_name) = marked(source)?;
    let mark = Expr::CompoundIdentifier(vec![source_name.clone(), Ident::with_quote('"', SOURCE_MARK)]);
    let mut clauses = Vec::new();
    let mut conditions = Vec::new();
    let mut values: Vec<(usize, Expr)> = Vec::new();
    for (number, clause) in given.into_iter().enumerate() {
        let MergeClause { when_token: _, clause_kind, predicate, action } = clause;
        let kind = match clause_kind {
            MergeClauseKind::Matched => Kind::Matched,
            MergeClauseKind::NotMatched | MergeClauseKind::NotMatchedByTarget => Kind::NotMatchedByTarget,
            MergeClauseKind::NotMatchedBySource => Kind::NotMatchedBySource,
        };
        let start = 1 + all.len() + values.len();
        let (action, mut of_clause) = match (action, kind) {
            (action, _) if is_nothing(&action) => (Action::Nothing, Vec::new()),
            (MergeAction::Insert(insert), Kind::NotMatchedByTarget) => {
                (Action::Insert, inserted(&target.table, insert)?)
            }
            (MergeAction::Update(update), Kind::Matched | Kind::NotMatchedBySource) => {
                let MergeUpdateExpr { update_token: _, assignments, update_predicate, delete_predicate } = update;
                refuse(update_predicate.is_some() || delete_predicate.is_some(), "UPDATE … WHERE (use WHEN … AND)")?;
                let (assigned, values) = assignments_of(&target.table, assignments)?;
                (Action::Update { assigned }, values)
            }
            (MergeAction::Delete { .. }, Kind::Matched | Kind::NotMatchedBySource) => (Action::Delete, Vec::new()),
            (MergeAction::Insert(_), _) => return Err(Error::syntax("MERGE inserts rows WHEN NOT MATCHED only")),
            _ => return Err(Error::syntax("MERGE WHEN NOT MATCHED has no row to update or delete")),
        };
        let mut predicate = predicate;
        // Rows without a partner have the columns of one side only.
        let only = match kind {
            Kind::Matched => None,
            Kind::NotMatchedByTarget => Some(&source_name),
            Kind::NotMatchedBySource => Some(target.alias()),
        };
        if let Some(relation) = only {
            of_clause.iter_mut().chain(&mut predicate).for_each(|expr| qualify(expr, relation));
        }
        values.extend(of_clause.into_iter().map(|value| (number, value)));
        clauses.push(Clause { kind, action, values: start..1 + all.len() + values.len() });
        conditions.push(predicate);
    }
    let has = |kind: Kind| clauses.iter().any(|clause| clause.kind == kind);
    let join = match (has(Kind::NotMatchedByTarget), has(Kind::NotMatchedBySource)) {
        (false, false) => JoinOperator::Inner,
        (true, false) => JoinOperator::Right,
        (false, true) => JoinOperator::Left,
        (true, true) => JoinOperator::FullOuter,
    };
    let row = all.last().cloned().filter(|_| target.table.def.hidden_rowid);
    let key = target.table.def.primary_key.first().map(|&c| target.column(&target.table.def.columns[c].name));
    let row = row.or(key).ok_or_else(|| Error::Internal("a table has a key".into()))?;
    let conditions = clauses.iter().zip(conditions).map(|(clause, predicate)| {
        let exists = |expr: &Expr| Expr::IsNotNull(Box::new(expr.clone()));
        let pair = match clause.kind {
            Kind::Matched => and(exists(&row), exists(&mark)),
            Kind::NotMatchedByTarget => Expr::IsNull(Box::new(row.clone())),
            Kind::NotMatchedBySource => Expr::IsNull(Box::new(mark.clone())),
        };
        predicate.into_iter().fold(pair, |pair, predicate| and(pair, Expr::Nested(Box::new(predicate))))
    });
    let number = |number: usize| Expr::value(Value::Number(number.to_string(), false));
    let result = |(i, clause): (usize, &Clause)| match clause.action {
        Action::Nothing => Expr::Value(Value::Null.into()),
        _ => number(i),
    };
    let applied = case(conditions.zip(clauses.iter().enumerate().map(result)).collect());
    let mut expressions = vec![applied.clone()];
    expressions.extend(all);
    // A value is evaluated only where its clause applies.
    expressions.extend(values.into_iter().map(|(clause, value)| {
        let applies =
            Expr::BinaryOp { left: Box::new(applied.clone()), op: BinaryOperator::Eq, right: Box::new(number(clause)) };
        case(vec![(applies, value)])
    }));
    expressions.extend(others);
    let join = Join { relation: source, global: false, join_operator: join(JoinConstraint::On(*on)) };
    let mut query = target.select_joined(expressions, vec![join])?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.selection = Some(Expr::IsNotNull(Box::new(applied)));
    }
    Ok((Clauses { target, clauses }, query))
}

fn is_nothing(action: &MergeAction) -> bool {
    match action {
        MergeAction::Insert(insert) => insert.columns.iter().any(skipped::is_nothing),
        MergeAction::Update(update) => update.assignments.iter().any(|assignment| match &assignment.target {
            AssignmentTarget::ColumnName(name) => skipped::is_nothing(name),
            AssignmentTarget::Tuple(_) => false,
        }),
        MergeAction::Delete { .. } => false,
    }
}

/// The values of an INSERT for all columns of the table.
fn inserted(table: &Table, insert: MergeInsertExpr) -> Result<Vec<Expr>> {
    let MergeInsertExpr { insert_token: _, columns, kind_token: _, kind, insert_predicate } = insert;
    if insert_predicate.is_some() {
        return Err(Error::Unsupported("MERGE … INSERT … WHERE (use WHEN … AND)".into()));
    }
    let MergeInsertKind::Values(mut values) = kind else {
        return Err(Error::Unsupported("MERGE … INSERT ROW (use VALUES)".into()));
    };
    let (Some(row), true) = (values.rows.pop(), values.rows.is_empty()) else {
        return Err(Error::syntax("MERGE inserts one row of VALUES"));
    };
    let columns = match columns.is_empty() {
        true => (0..table.def.columns.len().min(row.content.len())).collect(),
        false => columns.iter().map(|name| assigned_column(table, name)).collect::<Result<Vec<_>>>()?,
    };
    if columns.len() != row.content.len() {
        let (given, columns) = (row.content.len(), columns.len());
        return Err(Error::syntax(format!("INSERT has {given} expressions for {columns} target columns")));
    }
    if let Some((_, &twice)) = columns.iter().enumerate().find(|(i, column)| columns[..*i].contains(column)) {
        return Err(Error::DuplicateColumn(table.def.columns[twice].name.clone()));
    }
    sequences::check_given(table, &columns, false, |position| {
        row.content.get(position).is_none_or(defaults::is_default)
    })?;
    let mut values = table.def.columns.iter().map(defaults::sql).collect::<Result<Vec<_>>>()?;
    for (column, value) in columns.into_iter().zip(row.content) {
        if !defaults::is_default(&value) {
            values[column] = value;
        }
    }
    Ok(values)
}

/// Qualifies the names of columns that are not in subqueries.
fn qualify(expr: &mut Expr, relation: &Ident) {
    let _ = walk_mut(expr, &mut Qualify { relation, depth: 0 });
}

struct Qualify<'a> {
    relation: &'a Ident,
    /// Subqueries around the expression.
    depth: usize,
}

impl VisitorMut for Qualify<'_> {
    type Break = ();
    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }
    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Identifier(column) = expr
        {
            *expr = Expr::CompoundIdentifier(vec![self.relation.clone(), column.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// The source with one more column, which is true, and its name.
fn marked(source: TableFactor) -> Result<(TableFactor, Ident)> {
    let name = match &source {
        TableFactor::Table { name, alias, .. } => match alias {
            Some(alias) => alias.name.clone(),
            None => match name.0.last().and_then(|part| part.as_ident()) {
                Some(name) => name.clone(),
                None => return Err(Error::Unsupported(format!("MERGE … USING {name}"))),
            },
        },
        TableFactor::Derived { alias: Some(alias), .. } => alias.name.clone(),
        other => return Err(Error::Unsupported(format!("MERGE … USING {other} (use a subquery with an alias)"))),
    };
    let mut query = super::super::parse_query(&format!("SELECT *, TRUE AS \"{SOURCE_MARK}\""))?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        // The columns of the alias, not those of the table.
        if let Some(SelectItem::Wildcard(_)) = select.projection.first() {
            select.from = vec![TableWithJoins { relation: source, joins: Vec::new() }];
        }
    }
    let alias = TableAlias { explicit: true, name: name.clone(), columns: Vec::new(), at: None };
    Ok((TableFactor::Derived { lateral: false, subquery: query, alias: Some(alias), sample: None }, name))
}

fn and(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) }
}

/// `CASE WHEN condition THEN result … END`.
fn case(branches: Vec<(Expr, Expr)>) -> Expr {
    use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
    let conditions = branches.into_iter().map(|(condition, result)| CaseWhen { condition, result }).collect();
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions,
        else_result: None,
    }
}

/// The rows of a batch to which a clause applies.
fn rows_of_clause(batch: &RecordBatch, number: usize) -> Result<RecordBatch> {
    let applied = cast(batch.column(0), &DataType::Int64)?;
    let applied = applied.as_primitive::<Int64Type>();
    let selected = BooleanArray::from_unary(applied, |clause| clause == number as i64);
    Ok(filter_record_batch(batch, &selected)?)
}

/// The new rows of an INSERT.
fn new_rows(table: &Arc<Table>, clause: &Clause, batch: &RecordBatch, state: &StatementState) -> Result<TableRows> {
    let len = batch.num_rows();
    let values =
        table.def.columns.iter().zip(clause.values.clone()).map(|(column, position)| match &column.generated {
            Some(_) => Ok(generated::unset(column, len)),
            None => assign(batch.column(position), &table.def.name, column, state.zone),
        });
    let mut columns = values.collect::<Result<Vec<_>>>()?;
    generated::complete(table, &mut columns, len)?;
    Ok(TableRows { len, columns: columns.into_iter().map(Some).collect(), rowid: None })
}

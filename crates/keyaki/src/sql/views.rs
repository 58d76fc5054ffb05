//! CREATE VIEW, ALTER VIEW and DROP VIEW.
//!
//! A view is stored as the text of its SELECT and planned for each statement that uses it. CREATE VIEW plans the query
//! once to report errors. It resolves relations along the search path and stores their schemas in the text, except for
//! `public`.
//!
//! *Invariants.* No view uses itself, directly or through other views. Every table and view that a stored view uses
//! exists.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{
    CreateTableOptions, CreateView, Ident, ObjectName, Query, Select, SelectItem, Statement, ViewColumnDef, Visitor,
};
use keyaki_store::WriteBatch;

use super::access;
use super::columns::shown_schema;
use super::names::{new_name, plain_ident, quoted};
use super::notices;
use super::state::StatementState;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, DefaultKind, DocumentKind, RelationName, ViewDef, put, put_new, remove};
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::parse_query;
use crate::sql::visit::{check_literals, walk};
use crate::{Error, ObjectKind, Result};

/// A name of a column that no statement uses.
const RENAMED: &str = "__renamed_column";

pub(crate) async fn create(session: &SqlSession, execution: &Execution<'_>, create: CreateView) -> Result<Outcome> {
    check_plain(&create)?;
    define(session, execution, create, "CREATE VIEW", false).await
}

/// ALTER VIEW … AS: as CREATE OR REPLACE VIEW, of a view that exists.
pub(super) async fn replace(
    session: &SqlSession,
    execution: &Execution<'_>,
    name: ObjectName,
    columns: Vec<Ident>,
    query: Box<Query>,
) -> Result<Outcome> {
    let columns = columns.into_iter().map(|name| ViewColumnDef { name, data_type: None, options: None });
    let create = CreateView { or_replace: true, ..plain(name, columns.collect(), query) };
    define(session, execution, create, "ALTER VIEW", true).await
}

async fn define(
    session: &SqlSession,
    execution: &Execution<'_>,
    mut create: CreateView,
    tag: &'static str,
    must_exist: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, tag).await?;
    let (catalog, snapshot) = engine.latest(&writer);
    let name = match must_exist {
        true => existing(&catalog, &session.relation(&catalog, &create.name)?)?.name.clone(),
        false => session.new_relation(&catalog, &create.name, create.temporary)?,
    };
    if create.if_not_exists && catalog.views.contains_key(&name) {
        notices::relation_exists(session, &name);
        return Ok(Outcome::done(tag));
    }
    match catalog.views.get(&name).filter(|_| create.or_replace) {
        Some(_) => access::owner(session, &catalog, &name)?,
        None => {
            catalog.check_free(&name)?;
            access::creation(session, &catalog, &name)?;
        }
    }
    super::file_tables::refuse(&*create.query)?;
    super::qualify::stored(&mut *create.query, &catalog, &session.path())?;
    let sql = definition(&create)?;
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    check_no_cycle(&state, &name, &create.query)?;
    check_lasting(&state, &name, &create.query)?;
    let replaced = catalog.views.get(&name);
    let of_view = match replaced {
        Some(replaced) => replaced.access.clone(),
        None => access::new_access(session, &catalog, DefaultKind::Tables, Some(&*name.schema))?,
    };
    let plan = state.plan_stored_as(&sql, &state.authority).await?;
    check_columns(plan.schema().inner())?;
    let comment = replaced.and_then(|replaced| replaced.comment.clone());
    let view = ViewDef { name: name.clone(), sql, comment, access: of_view };
    let mut batch = WriteBatch::new();
    put_new(&mut batch, DocumentKind::View, &name, &view)?;
    let mut changed = Catalog::clone(&catalog);
    changed.views.insert(name, Arc::new(view));
    engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done(tag))
}

/// Rejects clauses of CREATE VIEW other than name, column names, query, OR REPLACE and IF NOT EXISTS.
fn check_plain(create: &CreateView) -> Result<()> {
    let mut plain = create.clone();
    plain.or_replace = false;
    plain.if_not_exists = false;
    plain.name_before_not_exists = false;
    let expected = self::plain(create.name.clone(), create.columns.clone(), create.query.clone());
    let expected = CreateView { temporary: create.temporary, ..expected };
    if plain != expected {
        let hint = if create.materialized { " (use CREATE TABLE … AS)" } else { "" };
        return Err(Error::Unsupported(format!("this form of CREATE VIEW{hint}: {create}")));
    }
    match create.columns.iter().any(|c| c.data_type.is_some() || c.options.is_some()) {
        true => Err(Error::Unsupported("types and options of columns in CREATE VIEW".into())),
        false => Ok(()),
    }
}

/// CREATE VIEW without clauses.
fn plain(name: ObjectName, columns: Vec<ViewColumnDef>, query: Box<Query>) -> CreateView {
    CreateView {
        or_alter: false,
        or_replace: false,
        materialized: false,
        secure: false,
        name,
        name_before_not_exists: false,
        columns,
        query,
        options: CreateTableOptions::None,
        cluster_by: Vec::new(),
        comment: None,
        with_no_schema_binding: false,
        if_not_exists: false,
        temporary: false,
        copy_grants: false,
        to: None,
        params: None,
    }
}

/// The stored SELECT. A column list renames the columns of the query.
fn definition(create: &CreateView) -> Result<String> {
    let text = create.query.to_string();
    check_literals(&create.query, &text, parse_query)?;
    if create.columns.is_empty() {
        return Ok(text);
    }
    let names = create.columns.iter().map(|c| new_name(&c.name).map(|name| quoted(&name)));
    let names = names.collect::<Result<Vec<_>>>()?.join(", ");
    Ok(with_names(&text, &names))
}

/// A query with other names of its columns.
fn with_names(query: &str, names: &str) -> String {
    format!("SELECT * FROM ({query}) AS \"view\" ({names})")
}

fn check_columns(schema: &SchemaRef) -> Result<()> {
    let schema = shown_schema(schema);
    for (i, field) in schema.fields().iter().enumerate() {
        if schema.fields()[..i].iter().any(|other| other.name() == field.name()) {
            return Err(Error::DuplicateColumn(field.name().clone()));
        }
    }
    Ok(())
}

/// A view that replaces another must not use itself, directly or through other views.
///
/// # Errors
/// `InvalidDefinition`.
fn check_no_cycle(state: &StatementState, name: &RelationName, query: &Query) -> Result<()> {
    let mut open = vec![query.clone()];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(query) = open.pop() {
        let statement = DfStatement::Statement(Box::new(Statement::Query(Box::new(query))));
        for used in state.relations_used(&statement)? {
            if used == *name {
                return Err(Error::InvalidDefinition {
                    kind: ObjectKind::View,
                    problem: format!("view \"{name}\" uses itself"),
                });
            }
            if let Some(view) = state.catalog.views.get(&used)
                && seen.insert(used)
            {
                open.push(*super::parse_query(&view.sql)?);
            }
        }
    }
    Ok(())
}

/// A view must not use temporary relations, unless it belongs to the same session.
///
/// # Errors
/// `InvalidDefinition`.
fn check_lasting(state: &StatementState, name: &RelationName, query: &Query) -> Result<()> {
    let statement = DfStatement::Statement(Box::new(Statement::Query(Box::new(query.clone()))));
    let is_foreign = |used: &&RelationName| {
        used.is_temporary() && used.schema != name.schema || state.is_attached(used) && !name.is_temporary()
    };
    match state.relations_named(&statement)?.iter().find(is_foreign) {
        None => Ok(()),
        Some(used) if state.is_attached(used) => {
            let problem =
                format!("view \"{name}\" uses \"{used}\" of an attached database (use CREATE TEMPORARY VIEW)");
            Err(Error::InvalidDefinition { kind: ObjectKind::View, problem })
        }
        Some(used) => {
            let problem = format!("view \"{name}\" uses the temporary relation \"{used}\" (use CREATE TEMPORARY VIEW)");
            Err(Error::InvalidDefinition { kind: ObjectKind::View, problem })
        }
    }
}

/// Views whose queries name the table or view `name`.
pub(crate) fn users(state: &StatementState, name: &RelationName) -> Result<Vec<RelationName>> {
    let mut users = Vec::new();
    for view in state.catalog.views.values() {
        let statement = DfStatement::Statement(Box::new(Statement::Query(super::parse_query(&view.sql)?)));
        if state.relations_named(&statement)?.iter().any(|used| used == name) {
            users.push(view.name.clone());
        }
    }
    Ok(users)
}

/// The definition of an existing view.
///
/// # Errors
/// `NotFound`, `WrongObjectType`.
pub(super) fn existing<'a>(catalog: &'a Catalog, name: &RelationName) -> Result<&'a Arc<ViewDef>> {
    catalog.views.get(name).ok_or_else(|| {
        let found = if catalog.tables.contains_key(name) { ObjectKind::Table } else { ObjectKind::Relation };
        let shown = name.to_string();
        match catalog.has_relation(name) {
            true => Error::WrongObjectType { name: shown, found, expected: ObjectKind::View, hint: None },
            false => Error::NotFound { kind: ObjectKind::Relation, name: shown },
        }
    })
}

/// Renames a column of a view, for ALTER VIEW … RENAME COLUMN.
///
/// # Errors
/// `UndefinedColumn`, `DuplicateColumn`, `DependentObject` if another view uses the column.
pub(super) async fn rename_column(
    session: &SqlSession,
    state: &StatementState,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    name: &RelationName,
    (old, new): (&Ident, &Ident),
) -> Result<()> {
    let view = existing(&state.catalog, name)?;
    let (old, new) = (plain_ident(old), new_name(new)?);
    let schema = shown_schema(state.plan_stored(&view.sql).await?.schema().inner());
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let position = names.clone().position(|name| name == old);
    let position = position.ok_or_else(|| Error::undefined_column(&old, name))?;
    if names.clone().any(|name| name == new) {
        return Err(Error::ColumnExists { column: new, relation: name.to_string() });
    }
    let named = |column: &str| {
        let names =
            names.clone().enumerate().map(|(place, name)| quoted(if place == position { column } else { name }));
        let sql = with_names(&view.sql, &names.collect::<Vec<_>>().join(", "));
        Arc::new(ViewDef { sql, ..ViewDef::clone(view) })
    };
    if let Some(dependent) = user_of_column(session, state, (&old, &new), named).await? {
        let action = format!("rename column \"{old}\" of view \"{name}\"");
        return Err(Error::DependentObject { action, dependent: dependent.to_string() });
    }
    let renamed = named(&new);
    put(batch, DocumentKind::View, name, &*renamed)?;
    changed.views.insert(name.clone(), renamed);
    Ok(())
}

/// A view that uses a column of a view by its old name, or has another meaning with the new one. `named` returns the
/// definition of the view with a name of the column.
///
/// Views that use neither have the same plan with a third name, [`RENAMED`], except for this name.
async fn user_of_column(
    session: &SqlSession,
    state: &StatementState,
    (old, new): (&str, &str),
    named: impl Fn(&str) -> Arc<ViewDef>,
) -> Result<Option<RelationName>> {
    let of_name = |column: &str| {
        let mut catalog = Catalog::clone(&state.catalog);
        let view = named(column);
        catalog.views.insert(view.name.clone(), view);
        StatementState::new(session, Arc::new(catalog), state.snapshot.clone())
    };
    let (old_state, new_state, renamed_state) = (of_name(old)?, of_name(new)?, of_name(RENAMED)?);
    for (view, _) in dependents(state, &named(old).name)? {
        // A view that could not be planned before is not affected.
        let Ok(before) = shape(&old_state, &view).await else { continue };
        let (after, renamed) = (shape(&new_state, &view).await, shape(&renamed_state, &view).await);
        let is_same = match (after, renamed) {
            (Ok(after), Ok(renamed)) => renamed.with_name(old) == before && renamed.with_name(new) == after,
            _ => false,
        };
        if !is_same {
            return Ok(Some(view.name.clone()));
        }
    }
    Ok(None)
}

pub(crate) async fn drop(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
    cascades: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, "DROP VIEW").await?;
    let (catalog, snapshot) = engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    let mut dropped = Vec::new();
    for name in names {
        let name = session.relation(&catalog, name)?;
        access::removal(session, &catalog, &name)?;
        match changed.views.remove(&name) {
            Some(_) => remove(&mut batch, DocumentKind::View, &name)?,
            None if changed.tables.contains_key(&name) => {
                return Err(Error::WrongObjectType {
                    name: name.to_string(),
                    found: ObjectKind::Table,
                    expected: ObjectKind::View,
                    hint: Some("use DROP TABLE"),
                });
            }
            None if if_exists => notices::missing(session, "view", &name.to_string()),
            None => return Err(Error::NotFound { kind: ObjectKind::View, name: name.to_string() }),
        }
        dropped.push(name);
    }
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    match cascades {
        true => {
            let named = dropped.clone();
            drop_users(&state, dropped, &mut changed, &mut batch)?;
            notices::cascaded(session, &catalog, &changed, &named);
        }
        false => check_unused(&state, &dropped)?,
    }
    if !batch.is_empty() {
        engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP VIEW"))
}

/// Drops the views that use dropped objects, directly or through other views.
pub(crate) fn drop_users(
    state: &StatementState,
    mut dropped: Vec<RelationName>,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
) -> Result<()> {
    while let Some(name) = dropped.pop() {
        for user in users(state, &name)? {
            if changed.views.remove(&user).is_some() {
                remove(batch, DocumentKind::View, &user)?;
                dropped.push(user);
            }
        }
    }
    Ok(())
}

/// Checks that no remaining view uses an object to be dropped.
///
/// # Errors
/// `DependentObject` with the first such view.
pub(crate) fn check_unused(state: &StatementState, dropped: &[RelationName]) -> Result<()> {
    for name in dropped {
        if let Some(user) = users(state, name)?.into_iter().find(|user| !dropped.contains(user)) {
            return Err(Error::DependentObject { action: format!("drop \"{name}\""), dependent: user.to_string() });
        }
    }
    Ok(())
}

/// Views that a change of a table affects: those that use it, directly or through other views, and can no longer be
/// planned, or whose plans or columns differ. `changed` is the catalog with the change. If it `adds_columns`, views with
/// `*` may get more columns.
///
/// # Errors
/// `Syntax` for a damaged definition of a view.
pub(crate) async fn affected(
    session: &SqlSession,
    state: &StatementState,
    changed: &Catalog,
    table: &RelationName,
    adds_columns: bool,
) -> Result<Vec<RelationName>> {
    let changed = Arc::new(changed.clone());
    let mut affected = Vec::new();
    let mut expanding = BTreeSet::new();
    for (view, used) in dependents(state, table)? {
        if has_wildcard(&*super::parse_query(&view.sql)?) || used.iter().any(|used| expanding.contains(used)) {
            expanding.insert(view.name.clone());
        }
        let shape_in = async |catalog: &Arc<Catalog>| {
            shape(&StatementState::new(session, catalog.clone(), state.snapshot.clone())?, &view).await
        };
        // A view that could not be planned before is not affected.
        let Ok(before) = shape_in(&state.catalog).await else { continue };
        let is_same = match shape_in(&changed).await {
            Ok(after) => after == before || (adds_columns && expanding.contains(&view.name)),
            Err(_) => false,
        };
        if !is_same {
            affected.push(view.name.clone());
        }
    }
    Ok(affected)
}

/// All views that use a table, directly or through other views, each after the views that it uses, with the names of the
/// relations that it uses.
fn dependents(state: &StatementState, table: &RelationName) -> Result<Vec<(Arc<ViewDef>, Vec<RelationName>)>> {
    let mut open = Vec::new();
    for view in state.catalog.views.values() {
        let query = Statement::Query(super::parse_query(&view.sql)?);
        open.push((view.clone(), state.relations_used(&DfStatement::Statement(Box::new(query)))?));
    }
    let mut known = BTreeSet::from([table.clone()]);
    let mut found = Vec::new();
    loop {
        let (users, others): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|(_, used)| used.iter().any(|used| known.contains(used)));
        if users.is_empty() {
            return Ok(found);
        }
        known.extend(users.iter().map(|(view, _)| view.name.clone()));
        found.extend(users);
        open = others;
    }
}

/// True if a select list has `*`. NATURAL JOIN has another meaning with more columns.
fn has_wildcard(query: &Query) -> bool {
    struct Find {
        wildcard: bool,
        natural: bool,
    }
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
            let is_wildcard =
                |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
            self.wildcard |= select.projection.iter().any(is_wildcard);
            let joins = select.from.iter().flat_map(|from| &from.joins);
            self.natural |= joins.map(|join| join.to_string()).any(|join| join.contains("NATURAL"));
            ControlFlow::Continue(())
        }
    }
    let mut find = Find { wildcard: false, natural: false };
    let _ = walk(query, &mut find);
    find.wildcard && !find.natural
}

/// The columns of a view with their types, and its analyzed plan, as texts.
#[derive(PartialEq)]
struct Shape {
    fields: String,
    plan: String,
}

impl Shape {
    /// The shape with a name in the plan in place of [`RENAMED`].
    fn with_name(&self, name: &str) -> Shape {
        Shape { fields: self.fields.clone(), plan: self.plan.replace(RENAMED, name) }
    }
}

async fn shape(state: &StatementState, view: &ViewDef) -> Result<Shape> {
    let plan = state.plan_stored(&view.sql).await?;
    check_columns(plan.schema().inner())?;
    let fields = plan.schema().fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    let fields: Vec<String> = fields.collect();
    let plan = state.state.analyzer().execute_and_check(plan, state.state.config_options(), |_, _| {})?;
    Ok(Shape { fields: fields.join(", "), plan: plan.display_indent().to_string() })
}

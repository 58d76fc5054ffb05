//! CREATE TABLE, CREATE TABLE AS, DROP TABLE and DROP INDEX.
//!
//! CREATE TABLE checks the columns and constraints, creates the trees of the table and its unique indexes, and stores
//! the definition in one write batch. CREATE TABLE AS adds the rows to the same commit. DROP removes definitions and trees of all named objects in one batch, so it drops
//! all of them or none.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use datafusion::sql::sqlparser::ast::{
    ColumnDef as SqlColumn, ColumnOption, CreateTable, Expr, Ident, IndexColumn, ObjectName, Query, TableConstraint,
};
use keyaki_store::WriteBatch;

use super::columns::shown;
use super::names::{new_name, new_relation_name, plain_ident, relation_name};
use super::state::StatementState;
use crate::base::interrupt::Execution;
use crate::catalog::types;
use crate::catalog::{Catalog, Table};
use crate::catalog::{ColumnDef, DocumentKind, IndexDef, IndexMethod, TableDef, VastOptions, put, remove};
use crate::engine::Writer;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::write::schema;
use crate::{Error, ObjectKind, Result};

/// Maximum number of columns of a table.
const COLUMNS_MAX: usize = 1024;

pub(crate) async fn create_table(
    session: &SqlSession,
    execution: &Execution<'_>,
    create: CreateTable,
) -> Result<Outcome> {
    check_plain(&create)?;
    let name = new_relation_name(&create.name)?;
    let engine = &session.engine;
    let writer = session.writer(execution, "CREATE TABLE").await?;
    let (catalog, snapshot) = engine.latest(&writer);
    if create.if_not_exists && catalog.tables.contains_key(&name) {
        return Ok(Outcome::done("CREATE TABLE"));
    }
    catalog.check_free(&name)?;
    let state = StatementState::new(session, catalog, snapshot)?;
    if let Some(query) = create.query {
        if !create.columns.is_empty() || !create.constraints.is_empty() {
            return Err(Error::Unsupported("columns and constraints in CREATE TABLE … AS".into()));
        }
        return create_table_as(session, writer, state, name, *query).await;
    }
    let mut design = Design::new(name);
    for column in &create.columns {
        design.column(column)?;
    }
    for constraint in &create.constraints {
        design.constraint(constraint)?;
    }
    let def = design.finish(session, &state.catalog)?;
    super::dml::defaults::check(session, &state, &def).await?;
    let table = Arc::new(Table::new(def, None)?);
    let mut batch = WriteBatch::new();
    schema::create_trees(&mut batch, &table)?;
    schema::commit_table(&session.write(writer), &state.catalog, table, batch).await?;
    Ok(Outcome::done("CREATE TABLE"))
}

/// Rejects clauses of CREATE TABLE other than name, columns, constraints, query and IF NOT EXISTS.
fn check_plain(create: &CreateTable) -> Result<()> {
    let plain = CreateTableBuilder::new(create.name.clone())
        .if_not_exists(create.if_not_exists)
        .columns(create.columns.clone())
        .constraints(create.constraints.clone())
        .query(create.query.clone())
        .build();
    if create.temporary {
        return Err(Error::Unsupported("temporary tables".into()));
    }
    match plain == *create {
        true => Ok(()),
        false => Err(Error::Unsupported(format!("this form of CREATE TABLE: {create}"))),
    }
}

async fn create_table_as(
    session: &SqlSession,
    writer: Writer,
    state: StatementState,
    name: String,
    query: Query,
) -> Result<Outcome> {
    let plan = state.plan_query(query).await?;
    let mut design = Design::new(name);
    for field in plan.schema().fields() {
        let name = new_name(&Ident::with_quote('"', shown(field.name())))?;
        design.push(ColumnDef {
            name,
            ty: types::from_arrow(field.data_type())?.into(),
            nullable: true,
            default: None,
        })?;
    }
    let def = design.finish(session, &state.catalog)?;
    let rows = super::dml::insert::create_as(session, &writer, &state, def, plan).await?;
    Ok(Outcome::rows("CREATE TABLE", rows))
}

/// The definition of a table under construction.
struct Design {
    name: String,
    columns: Vec<ColumnDef>,
    primary_key: Option<Vec<usize>>,
    unique: Vec<(Option<String>, Vec<usize>)>,
}

impl Design {
    fn new(name: String) -> Self {
        Design { name, columns: Vec::new(), primary_key: None, unique: Vec::new() }
    }

    fn push(&mut self, column: ColumnDef) -> Result<()> {
        if self.columns.iter().any(|other| other.name == column.name) {
            return Err(Error::DuplicateColumn(column.name));
        }
        if self.columns.len() == COLUMNS_MAX {
            return Err(Error::TooManyColumns { limit: COLUMNS_MAX });
        }
        self.columns.push(column);
        Ok(())
    }

    fn column(&mut self, column: &SqlColumn) -> Result<()> {
        let position = self.columns.len();
        let name = new_name(&column.name)?;
        let ty = types::from_sql(&column.data_type)?;
        let (mut nullable, mut null) = (true, false);
        let mut default = None;
        let mut key = false;
        for option in &column.options {
            match &option.option {
                ColumnOption::Null => null = true,
                ColumnOption::NotNull => nullable = false,
                ColumnOption::Default(expr) => default = Some(expr.to_string()),
                ColumnOption::PrimaryKey(constraint) if constraint.is_plain() => key = true,
                ColumnOption::Unique(constraint) if constraint.is_plain() => {
                    self.unique.push((option.name.as_ref().map(new_name).transpose()?, vec![position]));
                }
                other => return Err(Error::Unsupported(format!("column \"{name}\": {other}"))),
            }
        }
        if null && (!nullable || key) {
            return Err(Error::syntax(format!(
                "conflicting NULL/NOT NULL declarations for column \"{name}\" of table \"{}\"",
                self.name
            )));
        }
        if key {
            self.set_primary_key(vec![position])?;
        }
        self.push(ColumnDef { name, ty, nullable, default })
    }

    fn constraint(&mut self, constraint: &TableConstraint) -> Result<()> {
        match constraint {
            TableConstraint::PrimaryKey(key) if key.is_plain() => {
                let columns = self.positions(&key.columns)?;
                self.set_primary_key(columns)
            }
            TableConstraint::Unique(unique) if unique.is_plain() => {
                let columns = self.positions(&unique.columns)?;
                self.unique.push((unique.name.as_ref().map(new_name).transpose()?, columns));
                Ok(())
            }
            TableConstraint::Check(_) => Err(Error::Unsupported("CHECK constraints".into())),
            TableConstraint::ForeignKey(_) => Err(Error::Unsupported("FOREIGN KEY constraints".into())),
            other => Err(Error::Unsupported(format!("{other}"))),
        }
    }

    fn set_primary_key(&mut self, columns: Vec<usize>) -> Result<()> {
        match self.primary_key.replace(columns) {
            None => Ok(()),
            Some(_) => Err(Error::InvalidDefinition {
                kind: ObjectKind::Table,
                problem: format!("multiple primary keys for table \"{}\" are not allowed", self.name),
            }),
        }
    }

    fn positions(&self, columns: &[IndexColumn]) -> Result<Vec<usize>> {
        let names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        index_positions(columns, &names)
    }

    fn finish(mut self, session: &SqlSession, catalog: &Catalog) -> Result<TableDef> {
        if self.columns.is_empty() {
            return Err(Error::Unsupported(format!("table \"{}\" without columns", self.name)));
        }
        let primary_key = self.primary_key.take().unwrap_or_default();
        for &column in &primary_key {
            self.columns[column].nullable = false;
        }
        let store = &session.engine.store;
        let mut def = TableDef {
            tree: store.new_tree_id(),
            hidden_rowid: primary_key.is_empty(),
            primary_key,
            indexes: Vec::new(),
            columns: self.columns,
            name: self.name,
        };
        for (name, columns) in self.unique {
            let name = match name {
                Some(name) => name,
                None => free_index_name(catalog, &def, &columns, "key"),
            };
            catalog.check_free(&name)?;
            if name == def.name || def.indexes.iter().any(|index| index.name == name) {
                return Err(Error::AlreadyExists { kind: ObjectKind::Relation, name });
            }
            let tree = store.new_tree_id();
            let (method, vast) = (IndexMethod::Betree, VastOptions::default());
            def.indexes.push(IndexDef { name, tree, method, vast, columns, include: Vec::new(), unique: true });
        }
        Ok(def)
    }
}

/// An unused index name: `TABLE_COLUMNS_suffix`, with a number appended if that name is taken.
pub(super) fn free_index_name(catalog: &Catalog, table: &TableDef, columns: &[usize], suffix: &str) -> String {
    let names: Vec<&str> = columns.iter().map(|&c| table.columns[c].name.as_str()).collect();
    let base = format!("{}_{}_{suffix}", table.name, names.join("_"));
    let taken = |name: &str| catalog.check_free(name).is_err() || table.indexes.iter().any(|i| i.name == name);
    if !taken(&base) {
        return base;
    }
    (1u32..).map(|n| format!("{base}{n}")).find(|name| !taken(name)).unwrap_or(base)
}

/// Positions of the columns of a key or index in `names`.
///
/// # Errors
/// `Unsupported` for expressions, orders other than ascending, and operator classes; `UndefinedColumn`;
/// `DuplicateColumn`.
pub(super) fn index_positions(columns: &[IndexColumn], names: &[&str]) -> Result<Vec<usize>> {
    let mut positions = Vec::new();
    for column in columns {
        let order = &column.column;
        let Expr::Identifier(ident) = &order.expr else {
            return Err(Error::Unsupported(format!("expression {} in a key or index", order.expr)));
        };
        if order.options.asc == Some(false) || order.options.nulls_first.is_some() || order.with_fill.is_some() {
            return Err(Error::Unsupported(format!("order {column} in a key or index (keys are ascending)")));
        }
        if column.operator_class.is_some() {
            return Err(Error::Unsupported(format!("operator class in {column}")));
        }
        positions.push(column_position(ident, names)?);
    }
    check_distinct(&positions, names)?;
    Ok(positions)
}

pub(super) fn column_position(ident: &Ident, names: &[&str]) -> Result<usize> {
    let name = plain_ident(ident);
    let found = names.iter().position(|other| *other == name);
    found.ok_or(Error::UndefinedColumn { column: name, relation: None, suggestion: None })
}

pub(super) fn check_distinct(positions: &[usize], names: &[&str]) -> Result<()> {
    match positions.iter().enumerate().find(|(i, position)| positions[..*i].contains(position)) {
        Some((_, &twice)) => Err(Error::DuplicateColumn(names[twice].into())),
        None => Ok(()),
    }
}

/// Constraints without options: `is_plain` is false if a constraint has clauses that Keyaki does not implement.
trait Plain {
    fn is_plain(&self) -> bool;
}

impl Plain for datafusion::sql::sqlparser::ast::PrimaryKeyConstraint {
    fn is_plain(&self) -> bool {
        self.index_name.is_none()
            && self.index_type.is_none()
            && self.index_options.is_empty()
            && self.characteristics.is_none()
    }
}

impl Plain for datafusion::sql::sqlparser::ast::UniqueConstraint {
    fn is_plain(&self) -> bool {
        use datafusion::sql::sqlparser::ast::NullsDistinctOption;
        self.index_name.is_none()
            && self.index_type.is_none()
            && self.index_options.is_empty()
            && self.characteristics.is_none()
            && !matches!(self.nulls_distinct, NullsDistinctOption::NotDistinct)
    }
}

pub(crate) async fn drop_table(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, "DROP TABLE").await?;
    let (catalog, snapshot) = engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    let mut dropped = Vec::new();
    for name in names {
        let name = relation_name(name)?;
        match changed.tables.remove(&name) {
            Some(table) => {
                remove(&mut batch, DocumentKind::Table, &name)?;
                remove(&mut batch, DocumentKind::Statistics, &name)?;
                batch.drop_tree(table.def.tree);
                table.def.indexes.iter().for_each(|index| batch.drop_tree(index.tree));
            }
            None if changed.views.contains_key(&name) => {
                return Err(Error::WrongObjectType {
                    name,
                    found: ObjectKind::View,
                    expected: ObjectKind::Table,
                    hint: Some("use DROP VIEW"),
                });
            }
            None if if_exists => {}
            None => return Err(Error::NotFound { kind: ObjectKind::Table, name }),
        }
        dropped.push(name);
    }
    super::views::check_unused(&StatementState::new(session, catalog, snapshot)?, &dropped)?;
    if !batch.is_empty() {
        engine.commit_removal(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP TABLE"))
}

pub(crate) async fn drop_index(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, "DROP INDEX").await?;
    let (catalog, _) = engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    for name in names {
        let name = relation_name(name)?;
        match changed.index(&name) {
            Some((table, position)) => {
                let mut def = table.def.clone();
                let index = def.indexes.remove(position);
                batch.drop_tree(index.tree);
                put(&mut batch, DocumentKind::Table, &def.name, &def)?;
                let table = Table::new(def, table.statistics.clone())?;
                changed.tables.insert(table.def.name.clone(), Arc::new(table));
            }
            None if if_exists => {}
            None => return Err(Error::NotFound { kind: ObjectKind::Index, name }),
        }
    }
    if !batch.is_empty() {
        engine.commit_removal(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP INDEX"))
}

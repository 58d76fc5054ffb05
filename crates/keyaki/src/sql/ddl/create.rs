//! CREATE TABLE and CREATE TABLE AS.
//!
//! CREATE TABLE checks the columns and constraints, creates the trees of the table and its unique indexes, and stores
//! the definition in one write batch. CREATE TABLE AS adds the rows to the same commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use datafusion::sql::sqlparser::ast::{
    CheckConstraint, ColumnDef as SqlColumn, ColumnOption, CreateTable, CreateTableLikeDefaults, CreateTableLikeKind,
    ForeignKeyConstraint, Ident, IndexColumn, OnCommit as SqlOnCommit, TableConstraint,
};
use keyaki_store::{ColumnType, Compression, WriteBatch};

use super::drop::remove_from;
use super::{Plain, checks, constraint_positions, foreign_keys, free_index_name};
use crate::base::interrupt::Execution;
use crate::catalog::{
    Access, Catalog, ColumnDef, DefaultKind, IndexDef, IndexMethod, OnCommit, Privileges, RelationName, SqlType, Table,
    TableDef, types,
};
use crate::engine::Writer;
use crate::sql::columns::shown;
use crate::sql::dml::{defaults, insert};
use crate::sql::names::{is_temporary, new_name};
use crate::sql::skipped::like_options;
use crate::sql::state::StatementState;
use crate::sql::storage;
use crate::sql::{Outcome, SqlSession, access, documents, expressions, notices, sequences, synonyms, views};
use crate::write::schema;
use crate::{Error, JsonType, ObjectKind, Result};

/// Maximum number of columns of a table.
pub(super) const COLUMNS_MAX: usize = 1024;

pub(crate) async fn create_table(
    session: &SqlSession,
    execution: &Execution<'_>,
    create: CreateTable,
) -> Result<Outcome> {
    check_plain(&create)?;
    let engine = &session.engine;
    let writer = session.writer(execution, "CREATE TABLE").await?;
    let (catalog, snapshot) = engine.latest(&writer);
    let name = session.new_relation(&catalog, &create.name, create.temporary)?;
    if create.if_not_exists && catalog.tables.contains_key(&name) {
        notices::relation_exists(session, &name);
        return Ok(Outcome::done("CREATE TABLE"));
    }
    access::creation(session, &catalog, &name)?;
    let of_table = access::new_access(session, &catalog, DefaultKind::Tables, Some(&*name.schema))?;
    let mut batch = WriteBatch::new();
    let (state, old) = match create.or_replace && catalog.tables.contains_key(&name) {
        true => {
            access::removal(session, &catalog, &name)?;
            let mut without = Catalog::clone(&catalog);
            remove_from(&mut without, &mut batch, &name)?;
            foreign_keys::check_unreferenced(&without, &name, &[], &format!("replace table \"{name}\""))?;
            let old = StatementState::new(session, catalog, snapshot.clone())?;
            views::check_unused(&old, std::slice::from_ref(&name))?;
            (StatementState::new(session, Arc::new(without), snapshot)?, Some(old))
        }
        false => {
            catalog.check_free(&name)?;
            (StatementState::new(session, catalog, snapshot)?, None)
        }
    };
    let on_commit = match create.on_commit {
        Some(SqlOnCommit::DeleteRows) => Some(OnCommit::DeleteRows),
        Some(SqlOnCommit::Drop) => Some(OnCommit::Drop),
        Some(SqlOnCommit::PreserveRows) | None => None,
    };
    if on_commit.is_some() {
        session.has_on_commit.store(true, Ordering::Relaxed);
        session.engine.temporary.note_change(&name.schema);
    }
    let compression = storage::of_table(&create.table_options)?;
    if let Some(query) = create.query {
        if !create.columns.is_empty() || !create.constraints.iter().all(is_key) {
            let problem = "columns and constraints other than keys in CREATE TABLE … AS";
            return Err(Error::Unsupported(problem.into()));
        }
        let plan = old.as_ref().unwrap_or(&state).plan_query(*query).await?;
        let design = Design { on_commit, compression, access: of_table, ..Design::new(name) };
        return create_table_as(session, writer, (state, batch), (design, &create.constraints), plan).await;
    }
    let mut design = Design { on_commit, compression, access: of_table, ..Design::new(name) };
    if let Some(CreateTableLikeKind::Plain(like) | CreateTableLikeKind::Parenthesized(like)) = &create.like {
        let (name, options) = like_options(&like.name)?;
        let table = state.table(&name)?;
        access::relation(&state.authority, &state.catalog, &table.def.name, Privileges::SELECT)?;
        let parts = LikeParts::of(&options, like.defaults.as_ref())?;
        design.columns_like(&table.def, parts)?;
    }
    for column in &create.columns {
        design.column(&state, column)?;
    }
    for constraint in &create.constraints {
        design.constraint(constraint)?;
    }
    let def = design.finish(session, &state)?;
    defaults::check(&state, &def)?;
    let table = Arc::new(Table::new(def, None)?);
    expressions::compiled(session, &table)?;
    schema::create_trees(&mut batch, &table)?;
    schema::commit_table(&session.write(writer), &state.catalog, table, batch).await?;
    Ok(Outcome::done("CREATE TABLE"))
}

/// Rejects clauses of CREATE TABLE other than name, columns, constraints, query, LIKE, OR REPLACE and IF NOT EXISTS.
fn check_plain(create: &CreateTable) -> Result<()> {
    if create.or_replace && create.if_not_exists {
        return Err(Error::Unsupported("CREATE OR REPLACE TABLE with IF NOT EXISTS".into()));
    }
    let plain = CreateTableBuilder::new(create.name.clone())
        .or_replace(create.or_replace)
        .if_not_exists(create.if_not_exists)
        .columns(create.columns.clone())
        .constraints(create.constraints.clone())
        .query(create.query.clone())
        .temporary(create.temporary)
        .like(create.like.clone())
        .on_commit(create.on_commit)
        .table_options(create.table_options.clone())
        .build();
    match create.on_commit {
        Some(_) if !create.temporary && !is_temporary(&create.name) => {
            let problem = "ON COMMIT can only be used on temporary tables".into();
            return Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem });
        }
        _ => {}
    }
    match plain == *create {
        true => Ok(()),
        false => Err(Error::Unsupported(format!("this form of CREATE TABLE: {create}"))),
    }
}

/// True for PRIMARY KEY and UNIQUE.
fn is_key(constraint: &TableConstraint) -> bool {
    matches!(constraint, TableConstraint::PrimaryKey(_) | TableConstraint::Unique(_))
}

/// Creates a table with the rows of `plan` and keys. The catalog of the state has the changes of the batch.
async fn create_table_as(
    session: &SqlSession,
    writer: Writer,
    (state, batch): (StatementState, WriteBatch),
    (mut design, keys): (Design, &[TableConstraint]),
    plan: LogicalPlan,
) -> Result<Outcome> {
    // The types of a UNION are known only after the analysis.
    let analyzed = state.analyzed(plan.clone())?;
    for (field, json) in analyzed.schema().fields().iter().zip(documents::columns(&plan)) {
        let name = new_name(&Ident::with_quote('"', shown(field.name())))?;
        let ty = match types::is_record(field.data_type()) {
            true => SqlType { json: Some(JsonType::Json), ..ColumnType::Text.into() },
            false => SqlType { json, ..types::from_arrow(field.data_type())?.into() },
        };
        design.push(ColumnDef::new(name, ty))?;
    }
    keys.iter().try_for_each(|key| design.constraint(key))?;
    let def = design.finish(session, &state)?;
    let rows = insert::create_as(session, &writer, (&state, batch), def, plan).await?;
    Ok(Outcome::rows("CREATE TABLE", rows))
}

/// The definition of a column with its constraints.
pub(super) struct NewColumn {
    pub column: ColumnDef,
    /// The column is the primary key: the name of the constraint, if it has one.
    pub primary_key: Option<Option<String>>,
    /// The names of UNIQUE constraints.
    pub unique: Vec<Option<String>>,
    pub checks: Vec<CheckConstraint>,
    pub foreign_keys: Vec<ForeignKeyConstraint>,
}

impl NewColumn {
    /// # Errors
    /// `Unsupported`, `InvalidName`, `ReservedName`, errors of the type.
    pub fn new(state: &StatementState, table: &RelationName, column: &SqlColumn) -> Result<NewColumn> {
        let name = new_name(&column.name)?;
        let ty = sequences::serial_type(&column.data_type).map(SqlType::from);
        let ty = ty.map_or_else(|| types::from_sql(&column.data_type), Ok)?;
        let mut new = NewColumn {
            column: ColumnDef::new(name.clone(), ty),
            primary_key: None,
            unique: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
        };
        let mut null = false;
        for option in &column.options {
            let constraint = || option.name.as_ref().map(new_name).transpose();
            match &option.option {
                ColumnOption::Null => null = true,
                ColumnOption::NotNull => new.column.nullable = false,
                ColumnOption::Default(expr) => new.column.default = Some(defaults::text(state, expr)?),
                ColumnOption::PrimaryKey(key) if key.is_plain() => new.primary_key = Some(constraint()?),
                ColumnOption::Unique(unique) if unique.is_plain() => new.unique.push(constraint()?),
                ColumnOption::Check(check) => {
                    new.checks.push(CheckConstraint { name: option.name.clone(), ..check.clone() });
                }
                ColumnOption::ForeignKey(key) => new.foreign_keys.push(ForeignKeyConstraint {
                    name: option.name.clone(),
                    columns: vec![column.name.clone()],
                    ..key.clone()
                }),
                ColumnOption::Collation(collation) => synonyms::check_collation(collation)?,
                _ if sequences::is_identity(option) => {}
                ColumnOption::Generated { generation_expr: Some(expr), .. } => {
                    let sql = checks::text(expr, table, "a generated column")?;
                    if new.column.generated.replace(sql).is_some() {
                        let problem = format!("multiple generation clauses specified for column \"{name}\"");
                        return Err(Error::syntax(problem));
                    }
                }
                other => return Err(Error::Unsupported(format!("column \"{name}\": {other}"))),
            }
        }
        new.column.identity = sequences::identity(sequences::identity_name(table, &name), column, ty.column)?;
        if new.column.generated.is_some() && new.column.has_default() {
            let what = if new.column.identity.is_some() { "identity" } else { "DEFAULT" };
            let problem = format!("both {what} and generation expression specified for column \"{name}\"");
            return Err(Error::syntax(problem));
        }
        if new.column.identity.is_some() {
            if null || new.column.default.is_some() {
                let what = if null { "NULL" } else { "DEFAULT" };
                let problem = format!("both {what} and identity specified for column \"{name}\" of table \"{table}\"");
                return Err(Error::syntax(problem));
            }
            new.column.nullable = false;
        }
        if null && (!new.column.nullable || new.primary_key.is_some()) {
            return Err(Error::syntax(format!(
                "conflicting NULL/NOT NULL declarations for column \"{name}\" of table \"{table}\""
            )));
        }
        Ok(new)
    }
}

/// The definition of a table under construction.
struct Design {
    name: RelationName,
    columns: Vec<ColumnDef>,
    primary_key: Option<(Option<String>, Vec<usize>)>,
    unique: Vec<(Option<String>, Vec<usize>)>,
    checks: Vec<CheckConstraint>,
    foreign_keys: Vec<ForeignKeyConstraint>,
    /// Indexes of another table. They get names of their own.
    indexes: Vec<IndexDef>,
    compression: Option<Compression>,
    on_commit: Option<OnCommit>,
    access: Access,
}

/// The parts that LIKE copies beside the names and types of columns, and NOT NULL.
#[derive(Debug, Clone, Copy, Default)]
struct LikeParts {
    comments: bool,
    compression: bool,
    constraints: bool,
    defaults: bool,
    generated: bool,
    identity: bool,
    indexes: bool,
}

impl LikeParts {
    /// # Errors
    /// `Syntax` for an unknown option.
    fn of(options: &[(String, bool)], defaults: Option<&CreateTableLikeDefaults>) -> Result<LikeParts> {
        let mut parts = LikeParts {
            defaults: matches!(defaults, Some(CreateTableLikeDefaults::Including)),
            ..LikeParts::default()
        };
        for (option, included) in options {
            let LikeParts { comments, compression, constraints, defaults, generated, identity, indexes } = &mut parts;
            let chosen: &mut [&mut bool] = match option.as_str() {
                "ALL" => &mut [comments, compression, constraints, defaults, generated, identity, indexes],
                "COMMENTS" => &mut [comments],
                "COMPRESSION" => &mut [compression],
                "CONSTRAINTS" => &mut [constraints],
                "DEFAULTS" => &mut [defaults],
                "GENERATED" => &mut [generated],
                "IDENTITY" => &mut [identity],
                "INDEXES" => &mut [indexes],
                // They have no counterpart here.
                "STATISTICS" | "STORAGE" => &mut [],
                _ => return Err(Error::syntax(format!("unknown option \"{option}\" of LIKE"))),
            };
            chosen.iter_mut().for_each(|part| **part = *included);
        }
        Ok(parts)
    }
}

impl Design {
    fn new(name: RelationName) -> Self {
        Design {
            name,
            columns: Vec::new(),
            primary_key: None,
            unique: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            indexes: Vec::new(),
            compression: None,
            access: Access::default(),
            on_commit: None,
        }
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

    /// Adds the columns of another table: their types, whether they are NOT NULL, and the parts of LIKE.
    fn columns_like(&mut self, def: &TableDef, parts: LikeParts) -> Result<()> {
        for column in &def.columns {
            let mut copy = ColumnDef::new(column.name.clone(), column.ty);
            copy.nullable = column.nullable;
            copy.default = column.default.clone().filter(|_| parts.defaults);
            copy.generated = column.generated.clone().filter(|_| parts.generated);
            copy.comment = column.comment.clone().filter(|_| parts.comments);
            copy.identity = column
                .identity
                .as_ref()
                .filter(|_| parts.identity)
                .map(|identity| sequences::copied(identity, sequences::identity_name(&self.name, &column.name)));
            self.push(copy)?;
        }
        if parts.compression && self.compression.is_none() {
            self.compression = Some(def.compression);
        }
        if parts.constraints {
            for check in &def.checks {
                let name = Some(Ident::with_quote('"', &check.name));
                let expr = Box::new(crate::sql::parse_expr(&check.sql)?);
                self.checks.push(CheckConstraint { name, expr, enforced: None });
            }
        }
        if parts.indexes {
            if !def.hidden_rowid {
                self.set_primary_key(None, def.primary_key.clone())?;
            }
            if let Some(index) = def.indexes.iter().find(|index| index.method != IndexMethod::Betree) {
                return Err(Error::Unsupported(format!(
                    "LIKE with index \"{}\" USING {} (EXCLUDING INDEXES, and create it afterwards)",
                    index.name, index.method
                )));
            }
            self.indexes = def.indexes.clone();
            if !parts.comments {
                self.indexes.iter_mut().for_each(|index| index.comment = None);
            }
        }
        Ok(())
    }

    fn column(&mut self, state: &StatementState, column: &SqlColumn) -> Result<()> {
        let position = self.columns.len();
        let NewColumn { column, primary_key, unique, checks, foreign_keys } =
            NewColumn::new(state, &self.name, column)?;
        if let Some(name) = primary_key {
            self.set_primary_key(name, vec![position])?;
        }
        self.unique.extend(unique.into_iter().map(|name| (name, vec![position])));
        self.checks.extend(checks);
        self.foreign_keys.extend(foreign_keys);
        self.push(column)
    }

    fn constraint(&mut self, constraint: &TableConstraint) -> Result<()> {
        match constraint {
            TableConstraint::PrimaryKey(key) if key.is_plain() => {
                let columns = self.positions(&key.columns)?;
                self.set_primary_key(key.name.as_ref().map(new_name).transpose()?, columns)
            }
            TableConstraint::Unique(unique) if unique.is_plain() => {
                let columns = self.positions(&unique.columns)?;
                self.unique.push((unique.name.as_ref().map(new_name).transpose()?, columns));
                Ok(())
            }
            TableConstraint::Check(check) => {
                self.checks.push(check.clone());
                Ok(())
            }
            TableConstraint::ForeignKey(key) => {
                self.foreign_keys.push(key.clone());
                Ok(())
            }
            other => Err(Error::Unsupported(format!("{other}"))),
        }
    }

    fn set_primary_key(&mut self, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        match self.primary_key.replace((name, columns)) {
            None => Ok(()),
            Some(_) => Err(Error::InvalidDefinition {
                kind: ObjectKind::Table,
                problem: format!("multiple primary keys for table \"{}\" are not allowed", self.name),
            }),
        }
    }

    fn positions(&self, columns: &[IndexColumn]) -> Result<Vec<usize>> {
        let names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        constraint_positions(columns, &names)
    }

    fn finish(mut self, session: &SqlSession, state: &StatementState) -> Result<TableDef> {
        let catalog = &state.catalog;
        if self.columns.is_empty() {
            return Err(Error::Unsupported(format!("table \"{}\" without columns", self.name)));
        }
        let (key_name, primary_key) = self.primary_key.take().unwrap_or_default();
        for &column in &primary_key {
            self.columns[column].nullable = false;
        }
        let store = &session.engine.store;
        let mut def = TableDef::new(self.name, store.new_tree_id(), self.columns, primary_key);
        // The default name follows the name of the table.
        def.primary_key_name = key_name;
        def.on_commit = self.on_commit;
        def.access = self.access;
        def.compression = self.compression.unwrap_or_default();
        for (name, columns) in self.unique {
            let name = match name {
                Some(name) => name,
                None => free_index_name(catalog, &def, &columns, "key"),
            };
            catalog.check_free(&def.name.sibling(name.clone()))?;
            if name == def.name.name || def.indexes.iter().any(|index| index.name == name) {
                return Err(Error::AlreadyExists { kind: ObjectKind::Relation, name });
            }
            if def.has_constraint(&name) {
                return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name });
            }
            def.indexes.push(IndexDef { constraint: true, ..IndexDef::unique(name, store.new_tree_id(), columns) });
        }
        for index in self.indexes {
            let columns: Vec<usize> = index.key_columns().collect();
            let name = free_index_name(catalog, &def, &columns, if index.constraint { "key" } else { "idx" });
            def.indexes.push(IndexDef { name, tree: store.new_tree_id(), ..index });
        }
        sequences::name_identities(&mut def, catalog);
        for check in &self.checks {
            checks::add(&mut def, check)?;
        }
        for key in &self.foreign_keys {
            foreign_keys::add(&mut def, state, key)?;
        }
        Ok(def)
    }
}

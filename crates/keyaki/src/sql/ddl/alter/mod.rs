//! ALTER TABLE.
//!
//! The actions of a statement change a [`Draft`] of the definition, one after the other. Then the statement chooses how
//! the rows follow ([`Draft::commit`]):
//!
//! | changes | rows |
//! |---|---|
//! | names, defaults, dropped constraints, longer VARCHAR, DROP NOT NULL | stay as they are |
//! | DROP COLUMN | stay as they are: the tree keeps the column ([`TableDef::dropped`]) |
//! | SET NOT NULL, ADD CHECK, ADD FOREIGN KEY | are read once and checked |
//! | ADD UNIQUE | are read once to build the index |
//! | ADD COLUMN of columns with one value for all rows: NULL or a default | stay as they are: the tree gets the columns and their values ([`added`]) |
//! | SET (compression = …) | stay as they are: the tree gets the method for the pages that are written from then on |
//! | more digits of a DECIMAL with the same scale | stay as they are: the tree gets the type |
//! | other columns and types, DROP NOT NULL and types of columns in indexes, primary keys, several of these | are converted into new trees ([`crate::write::rebuild`]) |
//!
//! A view that would change or become invalid makes the statement fail ([`crate::sql::views`]).

mod added;
mod rows;

use std::sync::Arc;

use arrow::array::new_empty_array;
use datafusion::sql::sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, CheckConstraint, ColumnDef as SqlColumn, DropBehavior, Expr,
    ForeignKeyConstraint, GeneratedAs, SequenceOptions, TableConstraint,
};
use keyaki_store::ColumnType;

use super::create::{COLUMNS_MAX, NewColumn};
use super::{Plain, checks, constraint_positions, foreign_keys, free_index_name, rename};
use crate::base::interrupt::Execution;
use crate::catalog::{
    DroppedColumn, ForeignKeyDef, IdentityDef, IndexDef, IndexMethod, SqlType, Table, TableDef, types,
};
use crate::sql::dml::defaults;
use crate::sql::names::{new_name, plain_ident};
use crate::sql::state::StatementState;
use crate::sql::storage;
use crate::sql::{Outcome, SqlSession, access, notices, sequences};
use crate::write::assign::assign;
use crate::{Error, ObjectKind, Result};

const TAG: &str = "ALTER TABLE";

pub(crate) async fn alter_table(session: &SqlSession, execution: &Execution<'_>, alter: AlterTable) -> Result<Outcome> {
    let AlterTable { name, if_exists, only: _, operations, location, on_cluster, table_type, end_token: _ } = alter;
    if location.is_some() || on_cluster.is_some() || table_type.is_some() {
        return Err(Error::Unsupported("ALTER TABLE … with SET LOCATION, ON CLUSTER or a table type".into()));
    }
    let writer = session.writer(execution, TAG).await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let name = session.relation(&catalog, &name)?;
    if if_exists && !catalog.tables.contains_key(&name) && !catalog.views.contains_key(&name) {
        notices::missing(session, "relation", &name.to_string());
        return Ok(Outcome::done(TAG));
    }
    access::owner(session, &catalog, &name)?;
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    let table = catalog.table(&name)?.clone();
    let statement = session.write(writer);
    if operations.iter().any(rename::is_rename) {
        let [operation] = operations.as_slice() else {
            return Err(Error::Unsupported("RENAME together with other actions of ALTER TABLE".into()));
        };
        rename::table(session, &statement, &state, &table, operation).await?;
        return Ok(Outcome::done(TAG));
    }
    let mut draft = Draft::new(session, &state, &table);
    for operation in operations {
        draft.apply(operation)?;
    }
    draft.commit(&statement).await?;
    Ok(Outcome::done(TAG))
}

/// The source of the values of a column.
enum Source {
    /// A column of the old table, with the same type.
    Same(usize),
    /// A column of the old table, converted by an assignment cast, or the expression of USING.
    Converted(usize, Option<Box<Expr>>),
    /// A new column.
    Default,
}

/// A definition that is being changed.
struct Draft<'a> {
    session: &'a SqlSession,
    state: &'a StatementState,
    old: Arc<Table>,
    def: TableDef,
    /// The source of each column of `def`.
    sources: Vec<Source>,
    /// Names and defaults of added columns. Existing rows get these, also if the statement changes the default afterwards.
    added_defaults: Vec<(String, Option<String>)>,
    /// The trees must be built again.
    rebuilds: bool,
    /// Names of old columns that must not contain nulls.
    not_null: Vec<String>,
    /// Names of new CHECK constraints.
    checks: Vec<String>,
    /// Names of new FOREIGN KEY constraints.
    foreign_keys: Vec<String>,
    /// Names of new indexes.
    indexes: Vec<String>,
    /// Views and foreign keys that depend on the change are dropped.
    cascades: bool,
    /// A column was added: views with `*` may get it.
    widens: bool,
    /// The last action that can affect views, for errors.
    action: String,
}

impl<'a> Draft<'a> {
    fn new(session: &'a SqlSession, state: &'a StatementState, table: &Arc<Table>) -> Draft<'a> {
        Draft {
            session,
            state,
            old: table.clone(),
            def: table.def.clone(),
            sources: (0..table.def.columns.len()).map(Source::Same).collect(),
            added_defaults: Vec::new(),
            rebuilds: false,
            not_null: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            indexes: Vec::new(),
            cascades: false,
            widens: false,
            action: format!("alter table \"{}\"", table.def.name),
        }
    }

    fn apply(&mut self, operation: AlterTableOperation) -> Result<()> {
        match operation {
            AlterTableOperation::AddColumn { column_keyword: _, if_not_exists, column_def, column_position: None } => {
                self.add_column(&column_def, if_not_exists)
            }
            AlterTableOperation::DropColumn { has_column_keyword: _, column_names, if_exists, drop_behavior } => {
                self.cascades |= drop_behavior == Some(DropBehavior::Cascade);
                column_names.iter().try_for_each(|name| self.drop_column(&plain_ident(name), if_exists))
            }
            AlterTableOperation::AlterColumn { column_name, op } => self.alter_column(&plain_ident(&column_name), op),
            AlterTableOperation::AddConstraint { constraint, not_valid: false } => self.add_constraint(&constraint),
            AlterTableOperation::DropConstraint { if_exists, name, drop_behavior } => {
                self.cascades |= drop_behavior == Some(DropBehavior::Cascade);
                self.drop_constraint(&plain_ident(&name), if_exists)
            }
            AlterTableOperation::SetOptionsParens { options } => {
                if let Some(compression) = storage::of_options(&options, "ALTER TABLE … SET")? {
                    self.def.compression = compression;
                }
                Ok(())
            }
            other => Err(Error::Unsupported(format!("ALTER TABLE … {other}"))),
        }
    }

    fn column(&self, name: &str) -> Result<usize> {
        let found = self.def.columns.iter().position(|column| column.name == name);
        found.ok_or_else(|| Error::undefined_column(name, &self.def.name))
    }

    fn add_column(&mut self, column: &SqlColumn, if_not_exists: bool) -> Result<()> {
        let NewColumn { column, primary_key, unique, checks, foreign_keys } =
            NewColumn::new(self.state, &self.def.name, column)?;
        if self.def.columns.iter().any(|other| other.name == column.name) {
            return match if_not_exists {
                true => {
                    notices::column_exists(self.session, &column.name, &self.def.name);
                    Ok(())
                }
                false => Err(Error::ColumnExists { column: column.name, relation: self.def.name.to_string() }),
            };
        }
        if self.def.columns.len() == COLUMNS_MAX {
            return Err(Error::TooManyColumns { limit: COLUMNS_MAX });
        }
        defaults::check_column(self.state, &self.def.name, &column)?;
        self.action = format!("add column \"{}\" to table \"{}\"", column.name, self.def.name);
        let position = self.def.columns.len();
        self.added_defaults.push((column.name.clone(), column.default.clone()));
        self.def.columns.push(column);
        sequences::name_identities(&mut self.def, &self.state.catalog);
        self.sources.push(Source::Default);
        self.widens = true;
        if let Some(name) = primary_key {
            self.add_primary_key(name, vec![position])?;
        }
        unique.into_iter().try_for_each(|name| self.add_unique(name, vec![position]))?;
        checks.iter().try_for_each(|check| self.add_check(check))?;
        foreign_keys.iter().try_for_each(|key| self.add_foreign_key(key))
    }

    /// Removes a column, with all indexes and constraints that use it.
    fn drop_column(&mut self, name: &str, if_exists: bool) -> Result<()> {
        let column = match self.column(name) {
            Err(_) if if_exists => {
                notices::missing_part(self.session, "column", name, &self.def.name);
                return Ok(());
            }
            found => found?,
        };
        self.drop_dependents(column)?;
        let column = self.column(name)?;
        let def = &mut self.def;
        if def.columns.len() == 1 {
            return Err(Error::Unsupported(format!("table \"{}\" without columns", def.name)));
        }
        self.action = format!("drop column \"{name}\" of table \"{}\"", def.name);
        let mut indexes = Vec::new();
        for index in &def.indexes {
            if !uses(def, index, column)? {
                indexes.push(index.clone());
            }
        }
        def.indexes = indexes;
        let is_key = def.primary_key.contains(&column);
        if is_key {
            def.primary_key.clear();
            (def.hidden_rowid, def.primary_key_name) = (true, None);
        }
        let mut kept = Vec::new();
        for check in &def.checks {
            if !checks::columns_of(def, &crate::sql::parse_expr(&check.sql)?).contains(&column) {
                kept.push(check.clone());
            }
        }
        def.checks = kept;
        let is_own = |key: &ForeignKeyDef| key.references == def.name && key.referenced.iter().any(|c| c == name);
        def.foreign_keys.retain(|key| !key.columns.contains(&column) && !is_own(key));
        self.foreign_keys.retain(|added| def.foreign_keys.iter().any(|key| key.name == *added));
        def.columns.remove(column);
        match self.sources.remove(column) {
            Source::Same(old) | Source::Converted(old, _) if !is_key => {
                let before = &self.old.def.columns[old];
                def.dropped.push(DroppedColumn {
                    place: self.old.tree_column[old],
                    ty: before.ty,
                    nullable: self.old.def.stores_nulls(old),
                });
                def.dropped.sort_by_key(|dropped| dropped.place);
            }
            Source::Same(_) | Source::Converted(..) => self.rebuilds = true,
            // It is not in the tree yet.
            Source::Default => {}
        }
        // New rows still have a place for each dropped column.
        self.rebuilds |= def.columns.len() + def.dropped.len() > COLUMNS_MAX;
        self.not_null.retain(|other| other != name);
        let indexes = def.indexes.iter_mut().flat_map(IndexDef::columns_mut);
        let references = def.foreign_keys.iter_mut().flat_map(|key| &mut key.columns);
        let later = indexes.chain(&mut def.primary_key).chain(references).filter(|position| **position > column);
        later.for_each(|position| *position -= 1);
        Ok(())
    }

    /// The names of the generated columns that use a column.
    fn dependents(&self, column: usize) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for other in &self.def.columns {
            if let Some(sql) = &other.generated
                && checks::columns_of(&self.def, &crate::sql::parse_expr(sql)?).contains(&column)
            {
                names.push(other.name.clone());
            }
        }
        Ok(names)
    }

    /// The name of an index whose expressions use a column.
    fn index_of_expression(&self, column: usize) -> Result<Option<String>> {
        for index in &self.def.indexes {
            for expression in index.expressions() {
                if checks::columns_of(&self.def, &crate::sql::parse_expr(&expression.sql)?).contains(&column) {
                    return Ok(Some(index.name.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Drops the generated columns that use a column, with CASCADE.
    ///
    /// # Errors
    /// `DependentColumn` without CASCADE.
    fn drop_dependents(&mut self, column: usize) -> Result<()> {
        let action = format!("drop column \"{}\" of table \"{}\"", self.def.columns[column].name, self.def.name);
        for name in self.dependents(column)? {
            if !self.cascades {
                return Err(Error::DependentColumn { action, dependent: format!("generated column \"{name}\"") });
            }
            self.drop_column(&name, true)?;
        }
        Ok(())
    }

    fn alter_column(&mut self, name: &str, operation: AlterColumnOperation) -> Result<()> {
        let position = self.column(name)?;
        let column = &mut self.def.columns[position];
        match operation {
            AlterColumnOperation::SetDefault { .. } if column.generated.is_some() => {
                let problem =
                    format!("column \"{name}\" is a generated column (DROP EXPRESSION makes it an ordinary one)");
                Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem })
            }
            AlterColumnOperation::SetDefault { .. } | AlterColumnOperation::DropNotNull
                if column.identity.is_some() =>
            {
                let problem =
                    format!("column \"{name}\" is an identity column (DROP DEFAULT makes it an ordinary one)");
                Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem })
            }
            AlterColumnOperation::SetDefault { value } => {
                column.default = Some(defaults::text(self.state, &value)?);
                defaults::check_column(self.state, &self.def.name, column)
            }
            AlterColumnOperation::DropDefault => {
                (column.default, column.identity, column.generated) = (None, None, None);
                Ok(())
            }
            AlterColumnOperation::SetNotNull => {
                if column.nullable {
                    // The trees still reserve a place for nulls.
                    (column.nullable, column.stores_nulls) = (false, true);
                    self.not_null.push(name.into());
                }
                Ok(())
            }
            AlterColumnOperation::DropNotNull => {
                if self.def.primary_key.contains(&position) {
                    let problem = format!("column \"{name}\" is in a primary key");
                    return Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem });
                }
                let is_indexed = self.def.is_indexed(position);
                let column = &mut self.def.columns[position];
                let stores_nulls = column.stores_nulls || self.def.nullable_values && !is_indexed;
                self.rebuilds |= !column.nullable && !stores_nulls;
                column.nullable = true;
                self.not_null.retain(|other| other != name);
                Ok(())
            }
            AlterColumnOperation::SetDataType { data_type, using, had_set: _ } => {
                self.set_type(position, types::from_sql(&data_type)?, using)
            }
            AlterColumnOperation::AddGenerated { generated_as, sequence_options } => {
                let always = generated_as == Some(GeneratedAs::Always);
                self.add_identity(position, always, &sequence_options.unwrap_or_default())
            }
        }
    }

    /// Makes an existing column an identity column.
    ///
    /// # Errors
    /// `PrerequisiteState`, errors of the options.
    fn add_identity(&mut self, position: usize, always: bool, options: &[SequenceOptions]) -> Result<()> {
        let (column, table) = (&self.def.columns[position], &self.def.name);
        let name = &column.name;
        let problem = if column.identity.is_some() {
            "is already an identity column"
        } else if column.generated.is_some() {
            "is a generated column"
        } else if column.default.is_some() {
            "already has a default value"
        } else if column.nullable {
            "must be declared NOT NULL before identity can be added"
        } else {
            let sequence = table.sibling(format!("{}_{name}_seq", table.name));
            let sequence = sequences::definition(sequence, column.ty.column, options)?;
            self.def.columns[position].identity = Some(IdentityDef { always, sequence });
            sequences::name_identities(&mut self.def, &self.state.catalog);
            return Ok(());
        };
        Err(Error::PrerequisiteState(format!("column \"{name}\" of relation \"{table}\" {problem}")))
    }

    fn set_type(&mut self, position: usize, ty: SqlType, using: Option<Expr>) -> Result<()> {
        let column = &mut self.def.columns[position];
        let Source::Same(old) = self.sources[position] else {
            let problem = format!("changing the type of column \"{}\" twice or when it is added", column.name);
            return Err(Error::Unsupported(problem));
        };
        let before = std::mem::replace(&mut column.ty, ty);
        let fits = match (before.max_chars, ty.max_chars) {
            (_, None) => true,
            (Some(before), Some(after)) => before <= after,
            (None, Some(_)) => false,
        } && (before.json.is_some() || ty.json.is_none());
        if before.column == ty.column && fits && using.is_none() {
            return Ok(());
        }
        if let Some(key) = self.def.foreign_keys.iter().find(|key| key.columns.contains(&position)) {
            let problem =
                format!("changing the type of a column of constraint \"{}\" (drop the constraint first)", key.name);
            return Err(Error::Unsupported(problem));
        }
        for index in self.def.indexes.iter().filter(|index| index.method == IndexMethod::Vast) {
            crate::sql::vast::check_key(&self.def, &index.keys[0])?;
        }
        let column = &self.def.columns[position];
        let action = format!("alter type of column \"{}\" of table \"{}\"", column.name, self.def.name);
        if let Some(name) = self.dependents(position)?.first() {
            let dependent = format!("generated column \"{name}\"");
            return Err(Error::DependentColumn { action, dependent });
        }
        if let Some(name) = self.index_of_expression(position)? {
            return Err(Error::DependentColumn { action, dependent: format!("index \"{name}\"") });
        }
        if column.generated.is_some() && using.is_some() {
            let problem = format!("column \"{}\" is a generated column: its type changes without USING", column.name);
            return Err(Error::InvalidDefinition { kind: ObjectKind::Table, problem });
        }
        if using.is_none() && column.generated.is_none() {
            let none = new_empty_array(&before.column.arrow());
            assign(&none, &self.def.name, column, self.state.zone).map_err(|error| match error {
                Error::DatatypeMismatch(_) => Error::DatatypeMismatch(format!(
                    "column \"{}\" cannot be cast automatically to type {} (specify USING)",
                    column.name,
                    types::sql_type_name(ty)
                )),
                error => error,
            })?;
        }
        defaults::check_column(self.state, &self.def.name, column)?;
        if let Some(identity) = &mut self.def.columns[position].identity {
            sequences::retype(&self.session.engine, &mut identity.sequence, before.column, ty.column)?;
        }
        self.action = action;
        let is_key = self.def.primary_key.contains(&position) || self.def.is_indexed(position);
        let gets_digits = match (before.column, ty.column) {
            (ColumnType::Decimal { precision: before, scale }, ColumnType::Decimal { precision, scale: new }) => {
                scale == new && before <= precision
            }
            _ => false,
        };
        // Values of decimals are stored without their number of digits.
        let is_generated = self.def.columns[position].generated.is_some();
        self.rebuilds |= is_key || is_generated || using.is_some() || !gets_digits;
        self.sources[position] = Source::Converted(old, using.map(Box::new));
        Ok(())
    }

    fn add_constraint(&mut self, constraint: &TableConstraint) -> Result<()> {
        let names: Vec<&str> = self.def.columns.iter().map(|column| column.name.as_str()).collect();
        match constraint {
            TableConstraint::Check(check) => self.add_check(check),
            TableConstraint::Unique(unique) if unique.is_plain() => {
                let columns = constraint_positions(&unique.columns, &names)?;
                self.add_unique(unique.name.as_ref().map(new_name).transpose()?, columns)
            }
            TableConstraint::PrimaryKey(key) if key.is_plain() => {
                let columns = constraint_positions(&key.columns, &names)?;
                self.add_primary_key(key.name.as_ref().map(new_name).transpose()?, columns)
            }
            TableConstraint::ForeignKey(key) => self.add_foreign_key(key),
            other => Err(Error::Unsupported(format!("ADD {other}"))),
        }
    }

    fn add_check(&mut self, check: &CheckConstraint) -> Result<()> {
        checks::add(&mut self.def, check)?;
        self.checks.extend(self.def.checks.last().map(|check| check.name.clone()));
        Ok(())
    }

    fn add_foreign_key(&mut self, key: &ForeignKeyConstraint) -> Result<()> {
        foreign_keys::add(&mut self.def, self.state, key)?;
        self.foreign_keys.extend(self.def.foreign_keys.last().map(|key| key.name.clone()));
        Ok(())
    }

    fn add_unique(&mut self, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        let catalog = &self.state.catalog;
        let name = name.unwrap_or_else(|| free_index_name(catalog, &self.def, &columns, "key"));
        self.check_free(&name)?;
        let tree = self.session.engine.store.new_tree_id();
        self.def.indexes.push(IndexDef { constraint: true, ..IndexDef::unique(name.clone(), tree, columns) });
        self.indexes.push(name);
        Ok(())
    }

    /// Checks the name of a new index.
    fn check_free(&self, name: &str) -> Result<()> {
        // The name of an index that the statement drops is free.
        let is_dropped = self.old.def.indexes.iter().any(|index| index.name == name)
            && !self.def.indexes.iter().any(|index| index.name == name);
        if !is_dropped {
            self.state.catalog.check_free(&self.def.name.sibling(name))?;
        }
        if self.def.indexes.iter().any(|index| index.name == name) {
            return Err(Error::AlreadyExists { kind: ObjectKind::Relation, name: name.into() });
        }
        match self.def.has_constraint(name) {
            true => Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name: name.into() }),
            false => Ok(()),
        }
    }

    fn add_primary_key(&mut self, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        let def = &mut self.def;
        if !def.hidden_rowid {
            return Err(Error::InvalidDefinition {
                kind: ObjectKind::Table,
                problem: format!("multiple primary keys for table \"{}\" are not allowed", def.name),
            });
        }
        let key_name = name.clone().unwrap_or_else(|| def.primary_key_name());
        if def.has_constraint(&key_name) {
            return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name: key_name });
        }
        for &column in &columns {
            def.columns[column].nullable = false;
        }
        (def.primary_key, def.hidden_rowid, def.primary_key_name) = (columns, false, name);
        self.rebuilds = true;
        Ok(())
    }

    fn drop_constraint(&mut self, name: &str, if_exists: bool) -> Result<()> {
        let def = &mut self.def;
        self.action = format!("drop constraint \"{name}\" of table \"{}\"", def.name);
        if !def.hidden_rowid && def.primary_key_name() == name {
            def.primary_key.clear();
            (def.hidden_rowid, def.primary_key_name) = (true, None);
            self.rebuilds = true;
            return Ok(());
        }
        let before = (def.checks.len(), def.indexes.len(), def.foreign_keys.len());
        def.checks.retain(|check| check.name != name);
        def.indexes.retain(|index| !index.constraint || index.name != name);
        def.foreign_keys.retain(|key| key.name != name);
        self.checks.retain(|check| check != name);
        self.foreign_keys.retain(|key| key != name);
        self.indexes.retain(|index| index != name);
        match before == (def.checks.len(), def.indexes.len(), def.foreign_keys.len()) {
            true if if_exists => {
                notices::missing_part(self.session, "constraint", name, &def.name);
                Ok(())
            }
            true => Err(rename::no_constraint(name, &def.name)),
            false => Ok(()),
        }
    }
}

/// True if an index has a column, or an expression or predicate that uses it.
fn uses(def: &TableDef, index: &IndexDef, column: usize) -> Result<bool> {
    if index.columns().any(|other| other == column) {
        return Ok(true);
    }
    for sql in index.texts() {
        if checks::columns_of(def, &crate::sql::parse_expr(sql)?).contains(&column) {
            return Ok(true);
        }
    }
    Ok(false)
}

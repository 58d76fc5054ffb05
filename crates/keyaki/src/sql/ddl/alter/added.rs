//! Columns that ADD COLUMN adds without converting the rows.
//!
//! The tree gets the columns ([`WriteBatch::extend_tree`](keyaki_store::WriteBatch::extend_tree)). Its rows have one value
//! in each of them, which the schema of the tree keeps as the missing value of the column: NULL, or the default, evaluated
//! once. Rows that are written later have their own values, so that a changed default does not change older rows.
//!
//! A column of decimals that gets more digits changes the schema, too, but has no missing value.
//!
//! The rows are converted if a default is volatile or longer than a schema may hold, and for identity and generated columns.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema as ArrowSchema};
use keyaki_store::Schema;
use std::sync::Arc;

use super::{Draft, Source};
use crate::catalog::{ColumnDef, Table};
use crate::sql::ddl::checks;
use crate::sql::dml::defaults;
use crate::sql::parse_expr;
use crate::write::WriteStatement;
use crate::write::assign::assign;
use crate::{Error, Result};

/// The added columns of a definition.
pub(super) struct Added {
    /// The schema of the table's tree, with the missing values.
    pub schema: Schema,
    /// The added columns, with the one value of all existing rows.
    values: Vec<(usize, ArrayRef)>,
}

impl Draft<'_> {
    /// True if there are added columns, columns with other types, or another compression.
    pub(super) fn changes_schema(&self) -> bool {
        self.def.compression != self.old.def.compression
            || !self.sources.iter().all(|source| matches!(source, Source::Same(_)))
    }

    /// The added columns; `None` if the rows must be converted.
    ///
    /// # Errors
    /// Errors of planning the defaults.
    pub(super) fn added(&self) -> Result<Option<Added>> {
        let table = Table::new(self.def.clone(), None)?;
        let (mut schema, mut values) = (Schema::clone(&table.schema), Vec::new());
        for (position, source) in self.sources.iter().enumerate() {
            if !matches!(source, Source::Default) {
                continue;
            }
            let Some(value) = self.value_of_rows(&self.as_added(position))? else { return Ok(None) };
            schema = match schema.with_missing(table.tree_column[position], &value) {
                Ok(schema) => schema,
                Err(keyaki_store::Error::TooLarge { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            values.push((position, value));
        }
        Ok(Some(Added { schema, values }))
    }

    /// An added column with the default for existing rows.
    pub(super) fn as_added(&self, position: usize) -> ColumnDef {
        let mut column = self.def.columns[position].clone();
        let added = self.added_defaults.iter().rfind(|(name, _)| *name == column.name);
        if let Some((_, default)) = added.filter(|_| column.identity.is_none() && column.generated.is_none()) {
            column.default.clone_from(default);
        }
        column
    }

    /// The value of an added column in all existing rows; `None` if it differs between them, or is null in a column that is
    /// NOT NULL.
    fn value_of_rows(&self, column: &ColumnDef) -> Result<Option<ArrayRef>> {
        if column.identity.is_some() || column.generated.is_some() {
            return Ok(None);
        }
        let value = match column.default {
            Some(_) => defaults::of_all_rows(self.state, column)?,
            None => Some(new_null_array(&column.ty.column.arrow(), 1)),
        };
        let Some(value) = value else { return Ok(None) };
        match assign(&value, &self.def.name, column, self.state.zone) {
            // The conversion gives the error if there are rows.
            Err(Error::Constraint { .. }) => Ok(None),
            assigned => assigned.map(Some),
        }
    }

    /// True if a new CHECK constraint uses added columns only, so that it has one result for all existing rows.
    pub(super) fn concerns_added(&self, name: &str) -> Result<bool> {
        let Some(check) = self.def.checks.iter().find(|check| check.name == name) else { return Ok(false) };
        let columns = checks::columns_of(&self.def, &parse_expr(&check.sql)?);
        let is_added = |column: &usize| matches!(self.sources[*column], Source::Default);
        Ok(!columns.is_empty() && columns.iter().all(is_added))
    }

    /// Checks the existing rows against the new CHECK constraints of added columns.
    ///
    /// # Errors
    /// `CheckViolation`, errors of the conditions, if there are rows.
    pub(super) async fn verify_added(&self, statement: &WriteStatement, table: &Table, added: &Added) -> Result<()> {
        match self.verify_row(table, added) {
            Err(error) if self.has_row(statement, parse_expr("true")?).await? => Err(error),
            _ => Ok(()),
        }
    }

    /// Checks a row with the values of the added columns.
    fn verify_row(&self, table: &Table, added: &Added) -> Result<()> {
        let compiled = table.compiled().ok_or_else(|| Error::Internal("the conditions are not compiled".into()))?;
        // The conditions do not use the other columns.
        let types = table.def.columns.iter().map(|column| column.ty.column.arrow());
        let mut columns: Vec<ArrayRef> = types.map(|ty| new_null_array(&ty, 1)).collect();
        for (position, value) in &added.values {
            columns[*position] = value.clone();
        }
        let fields = table.def.columns.iter().zip(&columns);
        let fields: Vec<Field> =
            fields.map(|(column, array)| Field::new(&column.name, array.data_type().clone(), true)).collect();
        let row = RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), columns)?;
        for (check, def) in compiled.checks.iter().zip(&table.def.checks) {
            if !self.checks.contains(&def.name) {
                continue;
            }
            let holds = check.condition.evaluate(&row)?.into_array(1)?;
            if holds.as_boolean_opt().is_some_and(|holds| holds.is_valid(0) && !holds.value(0)) {
                let (table, name) = (table.def.name.to_string(), def.name.clone());
                return Err(Error::CheckViolation { table, name, is_new_row: false });
            }
        }
        Ok(())
    }
}

//! Values in the names of folders: `year=2026/month=7/data_0.parquet`, as Hive and COPY with PARTITION_BY name them.
//!
//! The files of each combination of values are a table of their own. The table of all of them has the values as further
//! columns, and leaves out the files whose values do not meet the conditions of the query.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, ScalarValue, Statistics};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use keyaki_store::ColumnType;

use super::guess::Guess;
use super::provider::ROWS;
use crate::catalog::SqlType;
use crate::sql::copy::folders;
use crate::values::zone::Zone;
use crate::write::text::{TimeFormats, parse_column};
use crate::{Error, Result};

/// The values in the names of the folders of files.
#[derive(Debug)]
pub(super) struct Partitions {
    names: Vec<String>,
    /// The files with equal values, in the order of their first files.
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    values: Vec<Option<String>>,
    /// Positions of the files.
    files: Vec<usize>,
}

impl Partitions {
    /// The values of files, if all have folders with the same names of columns. `wanted` is the option of the statement.
    ///
    /// # Errors
    /// `InvalidFile` if the statement wants the values, and the names differ.
    pub fn find(files: &[PathBuf], wanted: Option<bool>) -> Result<Option<Partitions>> {
        if wanted == Some(false) {
            return Ok(None);
        }
        let (names, _) = folders(&files[0]);
        let mut groups: Vec<Group> = Vec::new();
        for (position, file) in files.iter().enumerate() {
            let (own, values) = folders(file);
            if own != names {
                return match wanted {
                    Some(true) => Err(Error::InvalidFile(format!(
                        "the folders of \"{}\" and \"{}\" name different columns",
                        files[0].display(),
                        file.display()
                    ))),
                    _ => Ok(None),
                };
            }
            // Files of one folder follow each other.
            match groups.last_mut().filter(|last| last.values == values) {
                Some(last) => last.files.push(position),
                None => groups.push(Group { values, files: vec![position] }),
            }
        }
        let twice = names.iter().enumerate().any(|(i, name)| names[..i].contains(name));
        Ok((!names.is_empty() && !twice).then_some(Partitions { names, groups }))
    }

    /// The table of all files. `of_files` makes that of some of them, without the columns of the folders.
    ///
    /// # Errors
    /// Those of `of_files`.
    pub fn table(
        self,
        of_files: impl Fn(&[usize]) -> Result<Arc<dyn TableProvider>>,
    ) -> Result<Arc<dyn TableProvider>> {
        let columns = (0..self.names.len()).map(|column| {
            let values = self.groups.iter().map(|group| group.values[column].as_deref());
            typed(&StringViewArray::from_iter(values))
        });
        let values: Vec<ArrayRef> = columns.collect();
        let tables = self.groups.iter().map(|group| of_files(&group.files)).collect::<Result<Vec<_>>>()?;
        let inner = tables[0].schema();
        let named = |field: &Field| self.names.contains(field.name());
        let rest: Vec<usize> = (0..inner.fields().len()).filter(|column| !named(inner.field(*column))).collect();
        let fields = self.names.iter().zip(&values).map(|(name, values)| {
            Arc::new(Field::new(name, values.data_type().clone(), true)) //
        });
        let folders = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let all = rest.iter().map(|column| inner.fields()[*column].clone()).chain(folders.fields().iter().cloned());
        let schema = Arc::new(Schema::new(all.collect::<Vec<_>>()));
        let values = RecordBatch::try_new(folders, values)?;
        Ok(Arc::new(PartitionedTable { schema, rest, values, tables }))
    }
}

/// The values of a column as integers, dates or timestamps, if all of them are, else as texts.
fn typed(texts: &StringViewArray) -> ArrayRef {
    let formats = TimeFormats::default();
    // Of other texts, something would be lost: leading zeros of a code, for example.
    let is_exact = |text: &str, guess: Guess| match guess {
        Guess::Integer => text.parse::<i64>().is_ok_and(|number| number.to_string() == text),
        _ => text.trim_ascii() == text,
    };
    let guess = |text: &str| {
        let guess = Guess::of(text, &formats);
        if is_exact(text, guess) { guess } else { Guess::Text }
    };
    let ty = match texts.iter().flatten().map(guess).fold(Guess::Null, Guess::join) {
        Guess::Integer => Some(ColumnType::Int64),
        Guess::Date => Some(ColumnType::Date),
        Guess::Timestamp => Some(ColumnType::Timestamp { utc: false }),
        _ => None,
    };
    let values = ty.and_then(|ty| parse_column(texts, SqlType::from(ty), Zone::UTC).ok());
    values.unwrap_or_else(|| Arc::new(texts.clone()))
}

#[derive(Debug)]
struct PartitionedTable {
    /// The columns of the files, then those of the folders.
    schema: SchemaRef,
    /// The positions of the columns of the files in their tables.
    rest: Vec<usize>,
    /// The values of the folders, a row for each table.
    values: RecordBatch,
    tables: Vec<Arc<dyn TableProvider>>,
}

impl PartitionedTable {
    /// True if an expression has columns of folders only.
    fn is_of_folders(&self, expr: &Expr) -> bool {
        let columns = expr.column_refs();
        !columns.is_empty() && columns.iter().all(|column| self.values.schema().index_of(&column.name).is_ok())
    }

    /// Which tables can have rows that meet conditions on the columns of folders.
    fn can_match(&self, state: &dyn Session, filters: &[Expr]) -> Vec<bool> {
        let mut can_match = vec![true; self.tables.len()];
        for filter in filters.iter().filter(|filter| self.is_of_folders(filter) && !filter.is_volatile()) {
            // A condition that cannot be evaluated is left to the query.
            if let Ok(meets) = self.meets(state, filter) {
                let meets = meets.as_boolean();
                can_match.iter_mut().enumerate().for_each(|(i, can)| *can &= meets.is_valid(i) && meets.value(i));
            }
        }
        can_match
    }

    fn meets(&self, state: &dyn Session, filter: &Expr) -> DfResult<ArrayRef> {
        let schema = DFSchema::try_from(self.values.schema())?;
        let condition = state.create_physical_expr(filter.clone(), &schema)?;
        let meets = condition.evaluate(&self.values)?.into_array(self.values.num_rows())?;
        match meets.data_type() {
            DataType::Boolean => Ok(meets),
            ty => Err(datafusion::error::DataFusionError::Internal(format!("a condition of type {ty}"))),
        }
    }
}

#[async_trait]
impl TableProvider for PartitionedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        let rows = self.tables.iter().map(|table| match table.statistics()?.num_rows {
            Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows),
            Precision::Absent => None,
        });
        let rows = rows.sum::<Option<usize>>().unwrap_or(ROWS as usize);
        Some(Statistics { num_rows: Precision::Inexact(rows), ..Statistics::new_unknown(&self.schema) })
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let wanted = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema: SchemaRef = Arc::new(self.schema.project(&wanted)?);
        let of_files: Vec<usize> = wanted.iter().filter_map(|column| self.rest.get(*column).copied()).collect();
        let is_of_files = |filter: &&Expr| {
            let folders = self.values.schema();
            filter.column_refs().iter().all(|column| folders.index_of(&column.name).is_err())
        };
        let inner_filters: Vec<Expr> = filters.iter().filter(is_of_files).cloned().collect();
        let can_match = self.can_match(state, filters);
        let mut plans: Vec<Arc<dyn ExecutionPlan>> = Vec::new();
        for (row, table) in self.tables.iter().enumerate().filter(|(row, _)| can_match[*row]) {
            let plan = table.scan(state, Some(&of_files), &inner_filters, limit).await?;
            if wanted.is_empty() {
                plans.push(plan);
                continue;
            }
            let mut next = 0;
            let columns = wanted.iter().zip(schema.fields()).map(|(column, field)| -> DfResult<_> {
                let value: Arc<dyn PhysicalExpr> = match column.checked_sub(self.rest.len()) {
                    Some(folder) => {
                        let value = ScalarValue::try_from_array(self.values.column(folder), row)?;
                        Arc::new(Literal::new_with_metadata(value, None))
                    }
                    None => {
                        next += 1;
                        Arc::new(Column::new(field.name(), next - 1))
                    }
                };
                Ok((value, field.name().clone()))
            });
            let columns = columns.collect::<DfResult<Vec<_>>>()?;
            plans.push(Arc::new(ProjectionExec::try_new(columns, plan)?));
        }
        match plans.len() {
            0 => Ok(Arc::new(EmptyExec::new(schema))),
            1 => Ok(plans.swap_remove(0)),
            _ => UnionExec::try_new(plans),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_types() {
        let of =
            |values: &[Option<&str>]| typed(&StringViewArray::from_iter(values.iter().copied())).data_type().clone();
        assert_eq!(of(&[Some("7"), None, Some("-3")]), DataType::Int64);
        assert_eq!(of(&[Some("2026-01-02")]), DataType::Date32);
        assert!(matches!(of(&[Some("2026-01-02 03:04:05"), Some("2026-01-02")]), DataType::Timestamp(..)));
        for texts in [
            &[Some("1"), Some("a")][..],
            &[Some("07")],
            &[Some("+7")],
            &[Some("-0")],
            &[Some("")],
            &[None],
            &[Some("2026-01-02"), Some("1")],
        ] {
            assert_eq!(of(texts), DataType::Utf8View, "{texts:?}");
        }
    }
}

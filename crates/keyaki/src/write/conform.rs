//! Converts rows of files and programs to rows of a table: matches columns, converts and checks values, fills missing
//! columns with defaults.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringViewArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;

use super::text::{TimeFormats, parse_column};
use crate::catalog::ColumnDef;
use crate::catalog::Table;
use crate::values::zone::Zone;
use crate::write::assign::{assign, check_not_null, check_text, not_null};
use crate::write::generated;
use crate::{Error, Result};

/// A value that cannot be converted to its column.
#[derive(Debug)]
pub(crate) struct BadCell {
    /// Position in the batch; `None` if the error concerns the whole column.
    pub row: Option<usize>,
    pub column: String,
    pub error: Box<Error>,
}

/// How the columns of a source are identified.
#[derive(Debug)]
pub(crate) enum Given<'a> {
    /// By name, in any order. An exact match takes precedence over a match without case.
    Named(&'a [String]),
    /// By position: the number of columns, which correspond to the target columns in order.
    Positional(usize),
}

/// The default of each table column, evaluated for each row.
pub(crate) type Defaults = [Option<Arc<dyn PhysicalExpr>>];

/// The mapping from the columns of a source to those of a table.
#[derive(Debug, Clone)]
pub(crate) struct Conform {
    table: Arc<Table>,
    /// The source of each table column.
    sources: Vec<ColumnSource>,
    /// The time zone of texts without an offset.
    zone: Zone,
    /// The formats of dates and timestamps in texts.
    formats: TimeFormats,
}

#[derive(Debug, Clone)]
enum ColumnSource {
    Column(usize),
    /// The default, evaluated for each row.
    Default(Arc<dyn PhysicalExpr>),
    Null,
    /// The column is generated.
    Generated,
}

impl Conform {
    /// `targets` are the table columns that the source may fill; other columns get their defaults.
    ///
    /// # Errors
    /// `UndefinedColumn` if a given column is not among `targets`, `GeneratedAlways` for a generated column, `Constraint` if a NOT NULL column without default is
    /// missing, `DuplicateColumn`, `InvalidFile` if the number of columns is wrong.
    pub fn new(table: &Arc<Table>, targets: &[usize], given: Given<'_>, defaults: &Defaults) -> Result<Self> {
        let mut positions = vec![None; table.def.columns.len()];
        match given {
            Given::Named(names) => {
                for (position, name) in names.iter().enumerate() {
                    let target = named(table, targets, name)?;
                    if positions[target].replace(position).is_some() {
                        return Err(Error::DuplicateColumn(name.clone()));
                    }
                }
            }
            Given::Positional(count) if count != targets.len() => {
                return Err(Error::InvalidFile(format!("found {count} columns, expected {}", targets.len())));
            }
            Given::Positional(_) => {
                targets.iter().enumerate().for_each(|(position, &target)| positions[target] = Some(position))
            }
        }
        let source = |(i, position): (usize, Option<usize>)| match (position, &defaults[i], &table.def.columns[i]) {
            (Some(_), _, column) if column.generated.is_some() => {
                Err(Error::GeneratedAlways { column: column.name.clone(), updates: false })
            }
            (None, _, column) if column.generated.is_some() => Ok(ColumnSource::Generated),
            (Some(position), ..) => Ok(ColumnSource::Column(position)),
            (None, Some(default), _) => Ok(ColumnSource::Default(default.clone())),
            (None, None, column) if column.nullable => Ok(ColumnSource::Null),
            (None, None, column) => Err(not_null(&table.def.name, column)),
        };
        let sources = positions.into_iter().enumerate().map(source).collect::<Result<_>>()?;
        Ok(Conform { table: table.clone(), sources, zone: Zone::UTC, formats: TimeFormats::default() })
    }

    /// The conversion in a time zone.
    #[must_use]
    pub fn in_zone(self, zone: Zone) -> Self {
        Conform { zone, ..self }
    }

    /// The conversion of texts with formats of dates and timestamps.
    #[must_use]
    pub fn with_formats(self, formats: TimeFormats) -> Self {
        Conform { formats, ..self }
    }

    /// The columns of the converted rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.table.arrow
    }

    /// Converts a batch of typed values.
    pub fn typed(&self, batch: &RecordBatch) -> std::result::Result<RecordBatch, BadCell> {
        self.build(batch.num_rows(), |position, column| {
            assign_located(batch.column(position), &self.table.def.name, column, self.zone)
        })
    }

    /// Converts columns of text of `rows` rows each.
    pub fn texts(&self, columns: &[StringViewArray], rows: usize) -> std::result::Result<RecordBatch, BadCell> {
        self.build(rows, |position, column| {
            let texts = self.formats.iso(&columns[position], column.ty);
            let values = texts.and_then(|texts| parse_column(&texts, column.ty, self.zone)).map_err(|bad| BadCell {
                row: Some(bad.row),
                column: column.name.clone(),
                error: Box::new(bad.error),
            })?;
            let table = &self.table.def.name;
            let checked = check_text(&values, column).and_then(|()| check_not_null(&values, table, column));
            checked.map_err(|_| locate(&values, table, column, self.zone))?;
            Ok(values)
        })
    }

    fn build(
        &self,
        rows: usize,
        values: impl Fn(usize, &ColumnDef) -> std::result::Result<ArrayRef, BadCell>,
    ) -> std::result::Result<RecordBatch, BadCell> {
        let table = &self.table;
        let columns = self.sources.iter().zip(&table.def.columns).map(|(source, column)| match source {
            ColumnSource::Column(position) => values(*position, column),
            ColumnSource::Generated => Ok(generated::unset(column, rows)),
            ColumnSource::Null => Ok(new_null_array(&column.ty.column.arrow(), rows)),
            ColumnSource::Default(default) => evaluate(default, rows)
                .and_then(|values| assign(&values, &table.def.name, column, self.zone))
                .map_err(|error| BadCell { row: None, column: column.name.clone(), error: Box::new(error) }),
        });
        let mut columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        generated::complete(table, &mut columns, rows).map_err(|error| locate_generated(table, &columns, error))?;
        RecordBatch::try_new(table.arrow.clone(), columns).map_err(|error| BadCell {
            row: None,
            column: String::new(),
            error: Box::new(error.into()),
        })
    }
}

/// Position of the target column with the given name.
fn named(table: &Table, targets: &[usize], name: &str) -> Result<usize> {
    let columns = &table.def.columns;
    let exact = targets.iter().find(|&&target| columns[target].name == name);
    let found = exact.or_else(|| targets.iter().find(|&&target| columns[target].name.eq_ignore_ascii_case(name)));
    if let Some(&target) = found {
        return Ok(target);
    }
    let generated = columns.iter().find(|column| column.generated.is_some() && column.name.eq_ignore_ascii_case(name));
    Err(match generated {
        Some(column) => Error::GeneratedAlways { column: column.name.clone(), updates: false },
        None => Error::undefined_column(name, &table.def.name),
    })
}

/// Evaluates an expression without columns for `rows` rows.
pub(crate) fn evaluate(expr: &Arc<dyn PhysicalExpr>, rows: usize) -> Result<ArrayRef> {
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
    let values = expr.evaluate(&batch?)?;
    Ok(values.into_array(rows)?)
}

fn assign_located(
    values: &ArrayRef,
    table: &str,
    column: &ColumnDef,
    zone: Zone,
) -> std::result::Result<ArrayRef, BadCell> {
    match values.data_type() {
        // Parquet files may lack the annotation that a column is text.
        DataType::Binary | DataType::BinaryView | DataType::LargeBinary
            if column.ty.column == keyaki_store::ColumnType::Text =>
        {
            assign_located(&utf8(values).map_err(|row| not_utf8(row, column))?, table, column, zone)
        }
        _ => assign(values, table, column, zone).map_err(|_| locate(values, table, column, zone)),
    }
}

/// Converts bytes to text; fails with the first row that is not valid UTF-8.
fn utf8(bytes: &ArrayRef) -> std::result::Result<ArrayRef, usize> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let cast = |array: &ArrayRef| cast_with_options(array, &DataType::Utf8View, &strict);
    cast(bytes).map_err(|_| (0..bytes.len()).find(|&row| cast(&bytes.slice(row, 1)).is_err()).unwrap_or(0))
}

fn not_utf8(row: usize, column: &ColumnDef) -> BadCell {
    BadCell { row: Some(row), column: column.name.clone(), error: Box::new(Error::InvalidEncoding { column: None }) }
}

/// Finds the first row whose generated columns fail, by computing them row by row.
fn locate_generated(table: &Table, columns: &[ArrayRef], error: Error) -> BadCell {
    let rows = columns.first().map_or(0, |column| column.len());
    let wrong = (0..rows).find_map(|row| {
        let mut columns: Vec<ArrayRef> = columns.iter().map(|column| column.slice(row, 1)).collect();
        Some((row, generated::complete(table, &mut columns, 1).err()?))
    });
    let (row, of_row) = wrong.unzip();
    BadCell { row, column: String::new(), error: Box::new(of_row.unwrap_or(error)) }
}

/// Finds the first invalid value by assigning row by row.
fn locate(values: &ArrayRef, table: &str, column: &ColumnDef, zone: Zone) -> BadCell {
    let wrong = (0..values.len()).find_map(|row| {
        let error = assign(&values.slice(row, 1), table, column, zone).err()?;
        Some((row, error))
    });
    let (row, error) = wrong.unzip();
    let error = error.unwrap_or_else(|| Error::Internal("values fit one by one but not together".into()));
    BadCell { row, column: column.name.clone(), error: Box::new(error) }
}

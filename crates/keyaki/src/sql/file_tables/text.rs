//! CSV and JSON files: their rows as columns of a table.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringViewArray, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::columns::{Columns, FileColumns};
use super::scan::{Projection, TextFiles};
use crate::base::notices::{Notice, Notices, Severity};
use crate::catalog::SqlType;
use crate::catalog::types::from_arrow;
use crate::sql::copy::{CopyOptions, DelimitedReader, Dialect, FileRows, JsonReader, Source};
use crate::sql::files::Files;
use crate::sql::notices::skipped_rows;
use crate::values::zone::Zone;
use crate::write::text::{BadValue, TimeFormats, parse_column};
use crate::{Error, Result};

/// Rows that are converted together where rows with errors are left out.
const LENIENT_ROWS: usize = 256;

/// Opens files.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    pub files: Files,
    pub options: CopyOptions,
    /// A further column, the last one, has the name of the file.
    pub has_name: bool,
}

impl Opening {
    fn open(&self, path: &Path) -> Result<Source> {
        Source::open(path, &self.files, self.options.compression(path))
    }
}

/// The column with the name of the file.
pub(super) fn name_field() -> Field {
    Field::new("filename", DataType::Utf8View, true)
}

fn name_column(path: &Path, rows: usize) -> ArrayRef {
    Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n(path.to_string_lossy(), rows)))
}

fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

#[derive(Debug, Clone)]
pub(super) struct CsvFiles {
    pub opening: Opening,
    pub dialect: Dialect,
    pub formats: TimeFormats,
    pub columns: Arc<Columns>,
    /// Positions of the files in [`Columns::files`].
    pub files: Vec<usize>,
    /// The time zone of texts without an offset.
    pub zone: Zone,
    pub sample_size: usize,
    pub notices: Option<Arc<Notices>>,
}

impl CsvFiles {
    /// The columns of the table.
    pub fn schema(&self) -> SchemaRef {
        let columns = self.columns.names.iter().zip(&self.columns.types);
        let fields = columns.map(|(name, ty)| Field::new(name, ty.column.arrow(), true));
        Arc::new(Schema::new(fields.chain(self.opening.has_name.then(name_field)).collect::<Vec<_>>()))
    }

    fn parsed(&self, texts: &StringViewArray, ty: SqlType) -> std::result::Result<ArrayRef, BadValue> {
        let texts = self.formats.iso(texts, ty)?;
        parse_column(&texts, ty, self.zone)
    }

    /// The values of the columns of a projection.
    ///
    /// # Errors
    /// A value that is not valid for its column, with the number of the column.
    fn converted(
        &self,
        file: &FileColumns,
        projection: &Projection,
        texts: &[StringViewArray],
    ) -> std::result::Result<RecordBatch, (usize, BadValue)> {
        let rows = texts.first().map_or(0, Array::len);
        let columns = projection.columns.iter().map(|&column| {
            let Some(ty) = self.columns.types.get(column) else { return Ok(name_column(&file.path, rows)) };
            match file.fields[column] {
                Some(field) => self.parsed(&texts[field], *ty).map_err(|bad| (column, bad)),
                None => Ok(new_null_array(&ty.column.arrow(), rows)),
            }
        });
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        batch(&projection.schema, columns, rows).map_err(|error| (0, BadValue { row: 0, error }))
    }

    /// The rows whose values are valid in all columns, and the number of the others.
    fn valid(
        &self,
        file: &FileColumns,
        projection: &Projection,
        texts: &[StringViewArray],
    ) -> Result<(RecordBatch, u64)> {
        // Rows do not depend on the columns that the query needs.
        let schema = self.schema();
        let all = Projection { columns: (0..schema.fields().len()).collect(), schema: schema.clone() };
        let part = |first: usize, count: usize| {
            let texts: Vec<StringViewArray> = texts.iter().map(|column| column.slice(first, count)).collect();
            self.converted(file, &all, &texts)
        };
        let rows = texts.first().map_or(0, Array::len);
        let mut valid = Vec::new();
        for first in (0..rows).step_by(LENIENT_ROWS) {
            let count = LENIENT_ROWS.min(rows - first);
            match part(first, count) {
                Ok(batch) => valid.push(batch),
                Err(_) => valid.extend((first..first + count).filter_map(|row| part(row, 1).ok())),
            }
        }
        let valid = concat_batches(&schema, &valid)?;
        let skipped = (rows - valid.num_rows()) as u64;
        let columns = projection.columns.iter().map(|column| valid.column(*column).clone()).collect();
        Ok((batch(&projection.schema, columns, valid.num_rows())?, skipped))
    }

    /// The error for a value, with its place.
    fn located(&self, path: &Path, line: Option<u64>, column: usize, error: Error) -> Error {
        let mut place = format!("\"{}\"", path.display());
        if let Some(line) = line {
            place.push_str(&format!(", line {line}"));
        }
        if let Some(name) = self.columns.names.get(column) {
            place.push_str(&format!(", column \"{name}\""));
            if self.columns.are_inferred[column] {
                let hint = "set types, or sample_size => -1";
                place.push_str(&format!(" with a type inferred from {} rows ({hint})", self.sample_size));
            }
        }
        error.within(place)
    }

    fn notify(&self, path: &Path, skipped: u64) {
        if let Some(notices) = self.notices.as_ref().filter(|_| skipped > 0) {
            let message = format!("{}: \"{}\"", skipped_rows(skipped), path.display());
            notices.add(Notice { severity: Severity::Notice, sqlstate: "00000", message, detail: None });
        }
    }
}

impl TextFiles for CsvFiles {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn path(&self, file: usize) -> &Path {
        &self.columns.files[self.files[file]].path
    }

    fn read(&self, file: usize, projection: &Projection, send: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let file = &self.columns.files[self.files[file]];
        if file.width == 0 {
            return Ok(());
        }
        let mut reader = DelimitedReader::open(self.opening.open(&file.path)?, self.dialect.clone())?;
        if self.columns.header {
            reader.skip_header()?;
        }
        let mut skipped = 0;
        while let Some(FileRows::Text(texts)) = reader.next(file.width)? {
            let rows = if self.dialect.ignore_errors {
                let (rows, invalid) = self.valid(file, projection, &texts)?;
                skipped += invalid;
                rows
            } else {
                let converted = self.converted(file, projection, &texts);
                converted.map_err(|(column, bad)| self.located(&file.path, reader.line(bad.row), column, bad.error))?
            };
            if !send(rows) {
                return Ok(());
            }
        }
        self.notify(&file.path, skipped + reader.skipped());
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct JsonFiles {
    pub opening: Opening,
    pub files: Vec<PathBuf>,
    /// The columns of the objects.
    pub schema: SchemaRef,
    /// The time zone of texts without an offset.
    pub zone: Zone,
}

impl JsonFiles {
    /// The values of a column. Those of scalar types are read as texts: Arrow's reader would truncate fractions in a column of
    /// integers, and takes times without an offset for those of UTC.
    ///
    /// # Errors
    /// `Context` with the place of a value that is not valid for its column.
    fn parsed(&self, path: &Path, first_row: u64, field: &Field, values: &ArrayRef) -> Result<ArrayRef> {
        if is_nested(field) {
            return Ok(values.clone());
        }
        let ty = SqlType::from(from_arrow(field.data_type())?);
        parse_column(values.as_string_view(), ty, self.zone).map_err(|bad| {
            let row = first_row + bad.row as u64 + 1;
            bad.error.within(format!("\"{}\", row {row}, column \"{}\"", path.display(), field.name()))
        })
    }
}

/// True for types that Arrow's reader decodes: lists, records, and types that columns of tables cannot have.
fn is_nested(field: &Field) -> bool {
    field.data_type().is_nested() || from_arrow(field.data_type()).is_err()
}

impl TextFiles for JsonFiles {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn path(&self, file: usize) -> &Path {
        &self.files[file]
    }

    fn read(&self, file: usize, projection: &Projection, send: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let path = &self.files[file];
        let is_name = |column: &&usize| **column == self.schema.fields().len();
        let of_objects: Vec<usize> = projection.columns.iter().filter(|column| !is_name(column)).copied().collect();
        // The reader counts rows by a column.
        let read: &[usize] = if of_objects.is_empty() { &[0] } else { &of_objects };
        let fields = read.iter().map(|&column| &self.schema.fields()[column]);
        let as_text = fields.map(|field| match is_nested(field) {
            true => field.clone(),
            false => Arc::new(Field::new(field.name(), DataType::Utf8View, true)),
        });
        let schema = Arc::new(Schema::new(as_text.collect::<Vec<_>>()));
        let mut reader = JsonReader::typed(self.opening.open(path)?, schema)?;
        let mut first_row = 0;
        while let Some(objects) = reader.next_batch()? {
            let rows = objects.num_rows();
            let mut values = objects.columns().iter();
            let columns = projection.columns.iter().map(|column| match self.schema.fields().get(*column) {
                Some(field) => {
                    let missing = || Error::Internal("a column of objects was not read".into());
                    self.parsed(path, first_row, field, values.next().ok_or_else(missing)?)
                }
                None => Ok(name_column(path, rows)),
            });
            let columns = columns.collect::<Result<Vec<_>>>()?;
            first_row += rows as u64;
            if !send(batch(&projection.schema, columns, rows)?) {
                return Ok(());
            }
        }
        Ok(())
    }
}

//! Reader of Parquet files.
//!
//! Text and binary columns are read as view arrays. The number of rows read is compared with the file's metadata.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use datafusion::parquet::errors::ParquetError;

use super::{FileRows, bad, within};
use crate::sql::file_access::FileAccess;
use crate::{Error, Result};

const BATCH_ROWS: usize = 8192;

pub(crate) struct ParquetReader {
    path: PathBuf,
    rows: u64,
    schema: SchemaRef,
    reader: ParquetRecordBatchReader,
    records: u64,
}

impl ParquetReader {
    /// Opens a file. Columns that are not `wanted` are not read.
    ///
    /// # Errors
    /// `FileAccess`, `Io`; `Import` if the file is damaged or in another format.
    pub fn open(path: &Path, files: &FileAccess, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let failed = |error: ParquetError| within(path, None, error.into());
        let file = files.open(path)?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(failed)?;
        let schema = Arc::new(with_views(metadata.schema()));
        let fields = schema.fields().iter().enumerate();
        let columns: Vec<usize> = fields.filter(|(_, field)| wanted(field.name())).map(|(column, _)| column).collect();
        // Views point into the decoded pages; other array types copy the values.
        let options = ArrowReaderOptions::new().with_schema(schema.clone());
        let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options).map_err(failed)?;
        let rows = u64::try_from(metadata.metadata().file_metadata().num_rows()).unwrap_or(0);
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let columns_read = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
        let builder = builder.with_projection(columns_read).with_batch_size(BATCH_ROWS);
        let reader = builder.build().map_err(failed)?;
        let schema = Arc::new(schema.project(&columns)?);
        Ok(ParquetReader { path: path.to_path_buf(), rows, schema, reader, records: 0 })
    }

    /// Rows of the file according to its metadata.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn next(&mut self) -> Result<Option<FileRows>> {
        match self.reader.next() {
            None if self.records != self.rows => {
                let message = format!("the file has {} rows, its metadata says {}", self.records, self.rows);
                Err(bad(&self.path, None, message))
            }
            None => Ok(None),
            Some(Ok(batch)) => {
                self.records += batch.num_rows() as u64;
                Ok(Some(FileRows::Typed(batch)))
            }
            Some(Err(error)) => {
                let message = format!("after {} rows: {}", self.records, Error::from(error));
                Err(bad(&self.path, None, message))
            }
        }
    }
}

fn with_views(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let ty = match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            other => other.clone(),
        };
        Arc::new(Field::new(field.name(), ty, field.is_nullable()).with_metadata(field.metadata().clone()))
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

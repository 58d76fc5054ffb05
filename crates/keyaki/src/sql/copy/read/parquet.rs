//! Reader of Parquet files.
//!
//! Text and binary columns are read as view arrays. Of objects in stores, the columns of a row group are requested together. The number of rows read is compared with the file's metadata.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use datafusion::parquet::arrow::async_reader::{ParquetRecordBatchStream, ParquetRecordBatchStreamBuilder};
use datafusion::parquet::errors::ParquetError;
use futures::StreamExt;
use keyaki_publish::Bucket;

use super::{FileRows, ObjectPages, bad, within};
use crate::sql::files::{Files, OpenFile};
use crate::{Error, Result};

const BATCH_ROWS: usize = 8192;

pub(crate) struct ParquetReader {
    path: PathBuf,
    rows: u64,
    schema: SchemaRef,
    batches: Batches,
    records: u64,
}

enum Batches {
    File(ParquetRecordBatchReader),
    /// The stream is away while a thread of the bucket reads its next batch.
    Object(Bucket, Option<Box<ParquetRecordBatchStream<ObjectPages>>>),
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self {
            Batches::File(reader) => reader.next().map(|batch| batch.map_err(Error::from)),
            Batches::Object(bucket, stream) => {
                let mut taken = stream.take()?;
                let read = bucket.block_on(async move { (taken.next().await, taken) });
                match read {
                    Ok((batch, taken)) => {
                        *stream = Some(taken);
                        batch.map(|batch| batch.map_err(Error::from))
                    }
                    Err(error) => Some(Err(Error::io("read", Path::new(""), error))),
                }
            }
        }
    }
}

impl ParquetReader {
    /// Opens a file. Columns that are not `wanted` are not read.
    ///
    /// # Errors
    /// `FileAccess`, `Io`; `Import` if the file is damaged or in another format.
    pub fn open(path: &Path, files: &Files, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let failed = |error: ParquetError| within(path, None, error.into());
        let file = files.open(path)?;
        let metadata = match &file {
            OpenFile::Local(file) => ArrowReaderMetadata::load(file, ArrowReaderOptions::new()),
            OpenFile::Object(object) => {
                let mut reader = ObjectPages(object.clone());
                let load = async move { ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new()).await };
                object.bucket().block_on(load).map_err(|error| Error::io("read", path, error))?
            }
        };
        let metadata = metadata.map_err(failed)?;
        let schema = Arc::new(with_views(metadata.schema()));
        let fields = schema.fields().iter().enumerate();
        let columns: Vec<usize> = fields.filter(|(_, field)| wanted(field.name())).map(|(column, _)| column).collect();
        // Views point into the decoded pages; other array types copy the values.
        let options = ArrowReaderOptions::new().with_schema(schema.clone());
        let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options).map_err(failed)?;
        let rows = u64::try_from(metadata.metadata().file_metadata().num_rows()).unwrap_or(0);
        let columns_read = ProjectionMask::roots(metadata.parquet_schema(), columns.iter().copied());
        let batches = match file {
            OpenFile::Local(file) => {
                let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
                let builder = builder.with_projection(columns_read).with_batch_size(BATCH_ROWS);
                Batches::File(builder.build().map_err(failed)?)
            }
            OpenFile::Object(object) => {
                let bucket = object.bucket().clone();
                let builder = ParquetRecordBatchStreamBuilder::new_with_metadata(ObjectPages(object), metadata);
                let builder = builder.with_projection(columns_read).with_batch_size(BATCH_ROWS);
                Batches::Object(bucket, Some(Box::new(builder.build().map_err(failed)?)))
            }
        };
        let schema = Arc::new(schema.project(&columns)?);
        Ok(ParquetReader { path: path.to_path_buf(), rows, schema, batches, records: 0 })
    }

    /// Rows of the file according to its metadata.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn next(&mut self) -> Result<Option<FileRows>> {
        match self.batches.next() {
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
                let message = format!("after {} rows: {error}", self.records);
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

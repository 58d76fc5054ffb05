//! Parquet files with statistics and dictionaries, compressed with Zstandard by default.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression as Codec, GzipLevel, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;

use super::{Sink, column_type, convert, unsupported};
use crate::Result;
use crate::base::arrays::{element_type, list_of};
use crate::base::intervals::INTERVAL;
use crate::sql::copy::options::{Compression, CopyOptions};
use crate::sql::copy::output::Target;
use crate::values::cast::cast;
use crate::values::zone::Zone;

/// A row group is flushed at this size to bound memory.
const ROW_GROUP_BYTES: usize = 128 << 20;

pub(in crate::sql::copy) struct ParquetSink {
    writer: ArrowWriter<Target>,
    schema: SchemaRef,
}

impl ParquetSink {
    pub fn new(target: Target, options: &CopyOptions, schema: &SchemaRef) -> Result<Self> {
        let codec = match options.compression.unwrap_or(Compression::Zstd) {
            Compression::Snappy => Codec::SNAPPY,
            Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
            Compression::Lz4 => Codec::LZ4_RAW,
            Compression::Gzip => Codec::GZIP(GzipLevel::default()),
            Compression::None | Compression::Bzip2 | Compression::Xz => Codec::UNCOMPRESSED,
        };
        let mut properties = WriterProperties::builder().set_compression(codec);
        if let Some(rows) = options.row_group_rows {
            properties = properties.set_max_row_group_row_count(Some(rows));
        }
        let fields = schema.fields().iter().map(|field| {
            let ty = column_type(field.data_type()).ok_or_else(|| unsupported(field.name(), field.data_type()))?;
            Ok(Field::new(field.name(), without_intervals(ty), field.is_nullable()))
        });
        let schema = Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?));
        let writer = ArrowWriter::try_new(target, schema.clone(), Some(properties.build()))?;
        Ok(ParquetSink { writer, schema })
    }
}

/// The type with texts in place of intervals: those of Parquet have milliseconds.
fn without_intervals(ty: DataType) -> DataType {
    match element_type(&ty) {
        Some(element) => list_of(without_intervals(element.clone())),
        None if ty == INTERVAL => DataType::Utf8View,
        None => ty,
    }
}

impl Sink for ParquetSink {
    type Part = RecordBatch;

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = batch.columns().iter().zip(self.schema.fields()).map(|(column, field)| {
            let converted = convert(column, field.name())?;
            match converted.data_type() == field.data_type() {
                true => Ok(converted),
                false => cast(&converted, field.data_type(), Zone::UTC),
            }
        });
        let batch = RecordBatch::try_new(self.schema.clone(), columns.collect::<Result<_>>()?);
        self.writer.write(&batch?)?;
        if self.writer.in_progress_size() > ROW_GROUP_BYTES {
            self.writer.flush()?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Target> {
        Ok(self.writer.into_inner()?)
    }
}

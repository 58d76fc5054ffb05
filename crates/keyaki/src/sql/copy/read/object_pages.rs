//! The bytes of Parquet objects, for readers that ask for ranges.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::{ParquetError, Result};
use datafusion::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use futures::future::BoxFuture;
use keyaki_publish::ObjectFile;

/// Bytes at the end of an object that the first request reads: the metadata of most files.
const FOOTER_BYTES: usize = 512 << 10;

/// An object, of which near ranges are requested together. If it is replaced while it is read, reading fails.
pub(in crate::sql) struct ObjectPages(pub ObjectFile);

impl AsyncFileReader for ObjectPages {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        let read = self.get_byte_ranges(vec![range]);
        Box::pin(async move { Ok(read.await?.into_iter().next().unwrap_or_default()) })
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        Box::pin(async move { self.0.read_ranges(&ranges).await.map_err(ParquetError::from) })
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        Box::pin(async move {
            let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
            let (reader, len) = (reader.with_prefetch_hint(Some(FOOTER_BYTES)), self.0.len());
            Ok(Arc::new(reader.load_and_finish(self, len).await?))
        })
    }
}

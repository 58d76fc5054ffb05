//! Parquet objects as tables: those of DataFusion, with readers that notice when an object is replaced.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::datasource::listing::{ListingTable, PartitionedFile};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use keyaki_publish::Bucket;

use super::provider::ROWS;
use crate::sql::copy::ObjectPages;

#[derive(Debug)]
pub(super) struct ObjectTable {
    pub files: ListingTable,
    pub bucket: Bucket,
}

#[async_trait]
impl TableProvider for ObjectTable {
    fn schema(&self) -> SchemaRef {
        TableProvider::schema(&self.files)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        let unknown = Statistics::new_unknown(&TableProvider::schema(&self.files));
        Some(Statistics { num_rows: Precision::Inexact(ROWS as usize), ..unknown })
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.files.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.files.scan(state, projection, filters, limit).await?;
        let scan =
            plan.downcast_ref::<DataSourceExec>().and_then(DataSourceExec::downcast_to_file_source::<ParquetSource>);
        // Without objects, there is nothing to scan.
        let Some((config, source)) = scan else { return Ok(plan) };
        let readers = Arc::new(ObjectReaders { bucket: self.bucket.clone() });
        let source = source.clone().with_parquet_file_reader_factory(readers);
        let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

/// Makes readers of the objects that were listed when the query was planned.
#[derive(Debug)]
struct ObjectReaders {
    bucket: Bucket,
}

impl ParquetFileReaderFactory for ObjectReaders {
    fn create_reader(
        &self,
        _: usize,
        file: PartitionedFile,
        _: Option<usize>,
        _: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        Ok(Box::new(ObjectPages(self.bucket.file(file.object_meta))))
    }
}

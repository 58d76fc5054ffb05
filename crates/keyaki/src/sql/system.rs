//! System views: the state of the database as tables. Their names start with the reserved prefix `keyaki_`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::Result;

use keyaki_store::{LocatorStats, Snapshot};

use super::info::{self, IndexInfo};
use crate::catalog::Catalog;
use crate::engine::Engine;

/// Names of all system views.
pub(super) const NAMES: &[&str] = &["keyaki_cache", "keyaki_indexes"];

/// The system view `name` with the current state and the definitions that a statement sees, or `None` if there is no such
/// view.
pub(super) fn view(
    engine: &Engine,
    catalog: &Catalog,
    snapshot: &Snapshot,
    name: &str,
) -> Result<Option<Arc<dyn TableProvider>>> {
    let rows = match name {
        "keyaki_cache" => super::cache::view(&engine.cache.status(&engine.store))?,
        "keyaki_indexes" => indexes(&info::indexes(engine, catalog, snapshot))?,
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?)))
}

fn schema(fields: &[(&str, DataType, bool)]) -> SchemaRef {
    let fields: Vec<Field> =
        fields.iter().map(|(name, ty, nullable)| Field::new(*name, ty.clone(), *nullable)).collect();
    Arc::new(Schema::new(fields))
}

fn indexes(indexes: &[IndexInfo]) -> Result<RecordBatch> {
    let schema = schema(&[
        ("index_name", DataType::Utf8, false),
        ("table_name", DataType::Utf8, false),
        ("method", DataType::Utf8, false),
        ("columns", DataType::Utf8, false),
        ("include", DataType::Utf8, true),
        ("is_unique", DataType::Boolean, false),
        ("entries", DataType::Int64, false),
        ("bytes", DataType::Int64, false),
        ("depth", DataType::Int64, false),
        ("layers", DataType::Int64, true),
        ("build_ms", DataType::Float64, true),
        ("memory_bytes", DataType::Int64, false),
        ("pages", DataType::Int64, true),
        ("pages_held", DataType::Int64, true),
        ("bits_per_key", DataType::Float64, true),
        ("displacement_mean", DataType::Float64, true),
        ("displacement_max", DataType::Int64, true),
        ("regions", DataType::Utf8, true),
        ("problem", DataType::Utf8, true),
    ]);
    let text = |of: &dyn Fn(&IndexInfo) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(indexes.iter().map(of)))
    };
    let number = |of: &dyn Fn(&IndexInfo) -> Option<u64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(indexes.iter().map(|index| of(index).map(|n| n as i64))))
    };
    let real = |of: &dyn Fn(&IndexInfo) -> Option<f64>| -> ArrayRef {
        Arc::new(Float64Array::from_iter(indexes.iter().map(of)))
    };
    let include = indexes.iter().map(|index| Some(index.include.join(", ")).filter(|list| !list.is_empty()));
    let build = indexes.iter().map(|index| index.build_time.map(|time| time.as_micros() as f64 / 1e3));
    let columns: Vec<ArrayRef> = vec![
        text(&|index| index.name.clone()),
        text(&|index| index.table.clone()),
        text(&|index| index.method.to_string()),
        text(&|index| index.columns.join(", ")),
        Arc::new(StringArray::from_iter(include)),
        Arc::new(BooleanArray::from_iter(indexes.iter().map(|index| Some(index.unique)))),
        number(&|index| Some(index.entries)),
        number(&|index| Some(index.bytes)),
        number(&|index| Some(index.depth)),
        number(&|index| index.layers),
        Arc::new(Float64Array::from_iter(build)),
        number(&|index| Some(index.memory_bytes())),
        number(&|index| Some(index.located()?.pages)),
        number(&|index| Some(index.located()?.pages_held)),
        real(&|index| index.located().map(|located| located.bytes as f64 * 8.0 / located.rows.max(1) as f64)),
        real(&|index| index.located().map(|located| located.displacement.mean)),
        number(&|index| Some(index.located()?.displacement.max as u64)),
        Arc::new(StringArray::from_iter(indexes.iter().map(|index| index.located().map(regions)))),
        Arc::new(StringArray::from_iter(indexes.iter().map(|index| index.problem.clone()))),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The regions of a VAST tree from the top: separator bits and bytes, for example `H64 64 B, H8 960 B`.
fn regions(located: &LocatorStats) -> String {
    let regions = located.displacement.regions.iter();
    let regions = regions.map(|region| format!("H{} {} B", region.bits, region.bytes));
    regions.collect::<Vec<_>>().join(", ")
}

//! System views: what the database knows of itself, as tables of any query. Their names begin with
//! [`SYSTEM_PREFIX`](crate::catalog::SYSTEM_PREFIX), which no name of a user may.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::Result;

use crate::database::{Database, IndexInfo};

/// Names of all system views.
pub(super) const NAMES: &[&str] = &["keyaki_indexes"];

/// The view of that name, as of now.
pub(super) fn view(database: &Database, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let rows = match name {
        "keyaki_indexes" => indexes(&database.indexes())?,
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
        ("problem", DataType::Utf8, true),
    ]);
    let text = |of: &dyn Fn(&IndexInfo) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(indexes.iter().map(of)))
    };
    let number = |of: &dyn Fn(&IndexInfo) -> Option<u64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(indexes.iter().map(|index| of(index).map(|n| n as i64))))
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
        Arc::new(StringArray::from_iter(indexes.iter().map(|index| index.problem.clone()))),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

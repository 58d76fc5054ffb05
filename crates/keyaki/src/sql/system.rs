//! System views: the state of the database as tables. Their names start with the reserved prefix `keyaki_`.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::Result;

use keyaki_device::Operation;
use keyaki_device::metered::{Issued, Metered, Meters, OPERATIONS};
use keyaki_publish::{ReadStats, VersionDevice};
use keyaki_store::{CommitStats, DamagedKeys, LocatorStats, QuarantinedTree, Snapshot};

use super::attached::Part;
use super::info::{self, IndexInfo};
use super::{access, show};
use crate::Error;
use crate::catalog::{Authority, Catalog, Privileges, RelationName, SequenceDef, TableDef};
use crate::engine::Engine;

/// Names of all system views.
pub(super) const NAMES: &[&str] = &[
    "keyaki_attached",
    "keyaki_cache",
    "keyaki_comments",
    "keyaki_constraints",
    "keyaki_damaged",
    "keyaki_indexes",
    "keyaki_io",
    "keyaki_object_store",
    "keyaki_queries",
    "keyaki_sequences",
    "keyaki_store",
];

/// The system view `name` with the current state and the definitions that a statement sees, or `None` if there is no such
/// view. `user`: the user whose statements are shown with their texts; `None` for all. `authority`: that of the statement.
pub(super) fn view(
    engine: &Engine,
    catalog: &Catalog,
    snapshot: &Snapshot,
    attached: &[Part],
    name: &str,
    user: Option<Option<&str>>,
    authority: &Authority,
) -> Result<Option<Arc<dyn TableProvider>>> {
    let rows = match name {
        "keyaki_attached" => self::attached(attached)?,
        "keyaki_cache" => super::cache::view(&engine.cache.status(&engine.store))?,
        "keyaki_comments" => comments(catalog)?,
        "keyaki_constraints" => constraints(catalog)?,
        // It shows keys of rows.
        "keyaki_damaged" if user.is_some() => {
            return Err(Error::InsufficientPrivilege("must be superuser to read keyaki_damaged".into()).into());
        }
        "keyaki_damaged" => damaged(engine, catalog)?,
        "keyaki_indexes" => indexes(&info::indexes(engine, catalog, snapshot))?,
        "keyaki_io" => io(&engine.meters)?,
        "keyaki_object_store" => object_store(engine.version.as_deref())?,
        "keyaki_queries" => super::queries::view(&engine.queries.list(), user)?,
        "keyaki_sequences" => sequences(engine, catalog, authority)?,
        "keyaki_store" => store(engine)?,
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?)))
}

/// The attached databases of the session.
fn attached(parts: &[Part]) -> Result<RecordBatch> {
    let text = |of: fn(&Part) -> &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(parts.iter().map(of))) };
    let versions = parts.iter().map(|part| part.engine.version.as_ref().map(|version| version.number() as i64));
    let columns = vec![text(|part| &part.name), text(|part| &part.location), Arc::new(Int64Array::from_iter(versions))];
    let types =
        [("name", DataType::Utf8, false), ("location", DataType::Utf8, false), ("version", DataType::Int64, true)];
    Ok(RecordBatch::try_new(schema(&types), columns)?)
}

/// The comments of all objects.
fn comments(catalog: &Catalog) -> Result<RecordBatch> {
    let mut rows: Vec<[Option<&str>; 5]> = Vec::new();
    for table in catalog.tables.values() {
        let RelationName { schema, name } = &table.def.name;
        let row = |kind, name, column, comment| [Some(kind), Some(name), column, comment, Some(&**schema)];
        rows.push(row("table", name.as_str(), None, table.def.comment.as_deref()));
        let columns = table.def.columns.iter();
        rows.extend(columns.map(|c| row("column", name.as_str(), Some(c.name.as_str()), c.comment.as_deref())));
        let indexes = table.def.indexes.iter();
        rows.extend(indexes.map(|index| row("index", index.name.as_str(), None, index.comment.as_deref())));
    }
    let views = catalog.views.values().map(|view| ("view", &view.name, view.comment.as_deref()));
    let others = views.chain(catalog.sequences().map(|(def, _)| ("sequence", &def.name, def.comment.as_deref())));
    rows.extend(others.map(|(kind, name, comment)| [Some(kind), Some(&**name), None, comment, Some(&*name.schema)]));
    let schemas = catalog.schema_comments.iter();
    rows.extend(schemas.map(|(name, comment)| {
        [Some("schema"), Some(name.as_str()), None, Some(comment.as_str()), Some(name.as_str())]
    }));
    rows.retain(|[_, _, _, comment, _]| comment.is_some());
    texts(&["object_type", "object_name", "column_name", "comment", "schema_name"], &rows)
}

/// The constraints of all tables, except NOT NULL.
fn constraints(catalog: &Catalog) -> Result<RecordBatch> {
    let mut rows: Vec<[String; 5]> = Vec::new();
    for table in catalog.tables.values() {
        let def = &table.def;
        let mut add = |name: &str, kind: &str, definition: String| {
            rows.push([def.name.name.clone(), name.into(), kind.into(), definition, def.name.schema.to_string()]);
        };
        if !def.hidden_rowid {
            let columns = show::column_list(def, &def.primary_key);
            add(&def.primary_key_name(), "PRIMARY KEY", format!("PRIMARY KEY ({columns})"));
        }
        for index in def.indexes.iter().filter(|index| index.constraint) {
            add(&index.name, "UNIQUE", format!("UNIQUE ({})", show::key_list(def, index)));
        }
        for key in &def.foreign_keys {
            add(&key.name, "FOREIGN KEY", show::references(def, key));
        }
        for check in &def.checks {
            add(&check.name, "CHECK", format!("CHECK ({})", check.sql));
        }
    }
    let rows: Vec<[Option<&str>; 5]> = rows.iter().map(|row| row.each_ref().map(|text| Some(text.as_str()))).collect();
    texts(&["table_name", "constraint_name", "constraint_type", "definition", "schema_name"], &rows)
}

/// The tables and indexes that accept no changes, because a flush found a page of them damaged.
fn damaged(engine: &Engine, catalog: &Catalog) -> Result<RecordBatch> {
    let schema = schema(&[
        ("table_name", DataType::Utf8, false),
        ("index_name", DataType::Utf8, true),
        ("problem", DataType::Utf8, false),
        ("low_key", DataType::Binary, true),
        ("high_key", DataType::Binary, true),
        ("schema_name", DataType::Utf8, false),
    ]);
    let found = engine.store.quarantined_trees();
    let trees = &found;
    let rows: Vec<(&TableDef, Option<&str>, &QuarantinedTree)> = catalog
        .tables
        .values()
        .flat_map(|table| {
            let def = &table.def;
            let indexes = def.indexes.iter().map(|index| (index.tree, Some(index.name.as_str())));
            let all = std::iter::once((def.tree, None)).chain(indexes);
            all.filter_map(move |(id, index)| Some((def, index, trees.iter().find(|damaged| damaged.tree == id)?)))
        })
        .collect();
    let key = |of: &dyn Fn(&DamagedKeys) -> Vec<u8>| -> ArrayRef {
        let keys = rows.iter().map(|(.., damaged)| damaged.keys.as_ref().map(of));
        Arc::new(BinaryArray::from_iter(keys))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(def, ..)| &def.name.name))),
        Arc::new(StringArray::from_iter(rows.iter().map(|(_, index, _)| *index))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(.., damaged)| damaged.cause.to_string()))),
        key(&|keys| keys.low.clone()),
        key(&|keys| keys.high.clone()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(def, ..)| &*def.name.schema))),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// All sequences. The next value is NULL without USAGE and SELECT on the sequence.
fn sequences(engine: &Engine, catalog: &Catalog, authority: &Authority) -> Result<RecordBatch> {
    let schema = schema(&[
        ("sequence_name", DataType::Utf8, false),
        ("table_name", DataType::Utf8, true),
        ("column_name", DataType::Utf8, true),
        ("next_value", DataType::Int64, true),
        ("start_value", DataType::Int64, false),
        ("min_value", DataType::Int64, false),
        ("max_value", DataType::Int64, false),
        ("increment", DataType::Int64, false),
        ("cycle", DataType::Boolean, false),
        ("schema_name", DataType::Utf8, false),
    ]);
    let rows: Vec<_> = catalog.sequences().collect();
    let readable = Privileges::USAGE.and(Privileges::SELECT);
    let next = rows.iter().map(|(def, _)| match access::relation_any(authority, catalog, &def.name, readable) {
        Ok(()) => engine.sequences.peek(&engine.store, def),
        Err(_) => Ok(None),
    });
    let next = next.collect::<crate::Result<Vec<_>>>();
    let tables = rows.iter().map(|(_, owner)| owner.map(|(table, _)| table.name.as_str()));
    let columns = rows.iter().map(|(_, owner)| owner.map(|(_, column)| column));
    let number = |of: &dyn Fn(&SequenceDef) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(def, _)| of(def))))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(def, _)| &def.name.name))),
        Arc::new(StringArray::from_iter(tables)),
        Arc::new(StringArray::from_iter(columns)),
        Arc::new(Int64Array::from_iter(next?)),
        number(&|def| def.start),
        number(&|def| def.min),
        number(&|def| def.max),
        number(&|def| def.increment),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|(def, _)| Some(def.cycles)))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(def, _)| &*def.name.schema))),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// A kind of file and of requests, and their meter.
type MeterRow<'m> = (&'m str, Operation, Issued, Metered);

/// The requests to the object store of a published version. No row for other databases.
fn object_store(version: Option<&VersionDevice>) -> Result<RecordBatch> {
    let stats: Vec<(u64, ReadStats, Option<Duration>)> =
        version.map(|version| (version.number(), version.stats(), version.latency())).into_iter().collect();
    let number = |of: &dyn Fn(&ReadStats) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(stats.iter().map(|(_, stats, _)| of(stats) as i64)))
    };
    let latencies = stats.iter().map(|(.., latency)| latency.map(|latency| latency.as_secs_f64() * 1e3));
    let versions = stats.iter().map(|(version, ..)| *version as i64);
    let columns: Vec<(&str, bool, ArrayRef)> = vec![
        ("version", false, Arc::new(Int64Array::from_iter_values(versions))),
        ("requests", false, number(&|stats| stats.requests.reads)),
        ("bytes_read", false, number(&|stats| stats.requests.bytes_read)),
        ("other_requests", false, number(&|stats| stats.requests.others + stats.requests.writes)),
        ("retries", false, number(&|stats| stats.requests.retries)),
        ("second_requests", false, number(&|stats| stats.requests.hedges)),
        ("failed", false, number(&|stats| stats.requests.damaged)),
        ("ranges", false, number(&|stats| stats.ranges)),
        ("frames_fetched", false, number(&|stats| stats.fetched)),
        ("memory_hits", false, number(&|stats| stats.memory_hits)),
        ("disk_hits", false, number(&|stats| stats.disk_hits)),
        ("shared", false, number(&|stats| stats.shared)),
        ("latency_ms", true, Arc::new(Float64Array::from_iter(latencies))),
    ];
    let types: Vec<_> = columns.iter().map(|(name, nullable, of)| (*name, of.data_type().clone(), *nullable)).collect();
    Ok(RecordBatch::try_new(schema(&types), columns.into_iter().map(|(.., column)| column).collect())?)
}

/// The requests to the device since the database was opened, for each kind of file and operation that has occurred.
fn io(meters: &Meters) -> Result<RecordBatch> {
    let mut rows: Vec<MeterRow<'_>> = Vec::new();
    for kind in meters.kinds() {
        for operation in OPERATIONS {
            for issued in [Issued::Queued, Issued::Blocking] {
                rows.push((kind, operation, issued, meters.snapshot(kind, operation, issued)));
            }
        }
    }
    rows.retain(|(.., metered)| metered.started > 0);
    let schema = schema(&[
        ("file", DataType::Utf8, false),
        ("operation", DataType::Utf8, false),
        ("issued", DataType::Utf8, false),
        ("requests", DataType::Int64, false),
        ("in_flight", DataType::Int64, false),
        ("failed", DataType::Int64, false),
        ("bytes", DataType::Int64, false),
        ("mean_us", DataType::Float64, false),
        ("p50_us", DataType::Float64, false),
        ("p99_us", DataType::Float64, false),
        ("max_us", DataType::Float64, false),
    ]);
    let text = |of: &dyn Fn(&MeterRow<'_>) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    let number = |of: &dyn Fn(&Metered) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(.., metered)| of(metered) as i64)))
    };
    let time = |ns_of: &dyn Fn(&Metered) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|(.., metered)| ns_of(metered) / 1e3)))
    };
    let columns = vec![
        text(&|(kind, ..)| kind.to_string()),
        text(&|(_, operation, ..)| operation.verb().into()),
        text(&|(_, _, issued, _)| if *issued == Issued::Queued { "queued".into() } else { "blocking".into() }),
        number(&|metered| metered.started),
        number(&|metered| metered.started - metered.completed),
        number(&|metered| metered.failed),
        number(&|metered| metered.bytes),
        time(&|metered| metered.mean_ns),
        time(&|metered| metered.quantile_ns(0.5) as f64),
        time(&|metered| metered.quantile_ns(0.99) as f64),
        time(&|metered| metered.max_ns as f64),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// One row: commits, writes and reads since the database was opened, and current sizes.
fn store(engine: &Engine) -> Result<RecordBatch> {
    let (stats, CommitStats { commits, stalls }) = (engine.store.stats(), engine.store.commit_stats());
    let written: u64 = engine
        .meters
        .kinds()
        .iter()
        .filter(|kind| ["data", "log"].contains(kind))
        .flat_map(|kind| [Issued::Queued, Issued::Blocking].map(|issued| (kind, issued)))
        .map(|(kind, issued)| engine.meters.snapshot(kind, Operation::Write, issued).bytes)
        .sum();
    let changed = commits.bytes + stats.bytes_loaded;
    let amplification = (changed > 0).then(|| written as f64 / changed as f64);
    let us = |ns: f64| Some(ns / 1e3);
    let quantile = |share| us(commits.quantile_ns(share) as f64);
    let numbers: [(&str, u64); 14] = [
        ("commits", commits.started),
        ("stalls", stalls.started),
        ("bytes_committed", commits.bytes),
        ("bytes_loaded", stats.bytes_loaded),
        ("bytes_written", written),
        ("bytes_flushed", stats.bytes_flushed),
        ("checkpoints", stats.checkpoints),
        ("data_file_bytes", stats.data_file_bytes),
        ("data_bytes_used", stats.data_bytes_used),
        ("buffer_bytes", stats.buffer_bytes),
        ("cache_bytes", stats.cache_bytes),
        ("cache_hits", stats.cache_hits),
        ("cache_misses", stats.cache_misses),
        ("pages_read", stats.pages_read),
    ];
    let reals = [
        ("write_amplification", amplification),
        ("commit_mean_us", us(commits.mean_ns)),
        ("commit_p50_us", quantile(0.5)),
        ("commit_p99_us", quantile(0.99)),
        ("commit_p999_us", quantile(0.999)),
        ("commit_max_us", us(commits.max_ns as f64)),
        ("stall_ms", Some(stalls.mean_ns * stalls.completed as f64 / 1e6)),
        ("stall_max_ms", Some(stalls.max_ns as f64 / 1e6)),
    ];
    let numbers = numbers.map(|(name, number)| (name, Arc::new(Int64Array::from(vec![number as i64])) as ArrayRef));
    let reals = reals.map(|(name, real)| (name, Arc::new(Float64Array::from(vec![real])) as ArrayRef));
    Ok(RecordBatch::try_from_iter(numbers.into_iter().chain(reals))?)
}

/// Rows of texts.
fn texts(names: &[&str; 5], rows: &[[Option<&str>; 5]]) -> Result<RecordBatch> {
    let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect();
    let column = |i: usize| -> ArrayRef { Arc::new(StringArray::from_iter(rows.iter().map(|row| row[i]))) };
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), (0..names.len()).map(column).collect())?)
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
        ("predicate", DataType::Utf8, true),
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
        ("schema_name", DataType::Utf8, false),
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
        Arc::new(StringArray::from_iter(indexes.iter().map(|index| index.predicate.clone()))),
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
        text(&|index| index.schema.clone()),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The regions of a VAST tree from the top: separator bits and bytes, for example `H64 64 B, H8 960 B`.
fn regions(located: &LocatorStats) -> String {
    let regions = located.displacement.regions.iter();
    let regions = regions.map(|region| format!("H{} {} B", region.bits, region.bytes));
    regions.collect::<Vec<_>>().join(", ")
}

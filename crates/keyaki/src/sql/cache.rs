//! `WARM TABLE t | INDEX i`, `PIN TABLE t | INDEX i`, `UNPIN TABLE t | INDEX i`, and the system view `keyaki_cache`.
//!
//! WARM reads an object once to load its pages and nodes into the caches. PIN also keeps them there. Both return one
//! row: the object, and the rows, pages, nodes and bytes that were read. See [`crate::engine::cache`].

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;

use super::names::shown_sql;
use super::syntax;
use super::transaction::check_outside;
use crate::base::interrupt::{Decision, Execution};
use crate::engine::Engine;
use crate::engine::cache::{CacheStatus, CacheTarget, CacheTargetKind, Warmed};
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::{Error, ObjectKind, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Warm,
    Pin,
    Unpin,
}

#[derive(Debug)]
pub(super) struct CacheStatement {
    action: Action,
    kind: CacheTargetKind,
    name: ObjectName,
}

/// Parses a statement whose first word is the keyword of `action`.
pub(super) fn parse(action: Action, parser: &mut Parser<'_>) -> Result<CacheStatement> {
    parser.next_token();
    let kind = match parser.expect_one_of_keywords(&[Keyword::TABLE, Keyword::INDEX]).map_err(syntax)? {
        Keyword::TABLE => CacheTargetKind::Table,
        _ => CacheTargetKind::Index,
    };
    Ok(CacheStatement { action, kind, name: parser.parse_object_name(false).map_err(syntax)? })
}

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: CacheStatement) -> Result<Outcome> {
    let decision = execution.decision().clone();
    let engine = session.engine.clone();
    let CacheStatement { action, kind, name } = statement;
    if matches!(action, Action::Pin | Action::Unpin) {
        check_outside(session, if matches!(action, Action::Pin) { "PIN" } else { "UNPIN" })?;
    }
    let target = resolve(session, kind, &name)?;
    let name = target.name.clone();
    match action {
        Action::Unpin if engine.cache.pins.unpin(&engine.store, kind, &name) => Ok(Outcome::done("UNPIN")),
        Action::Unpin => Err(Error::PrerequisiteState(format!("{kind} \"{name}\" is not pinned"))),
        Action::Warm => {
            let warm = move |engine: &Engine, decision: &Decision| {
                let (store, bytes) = (&engine.store, engine.cache.cache_bytes());
                crate::engine::cache::warm(store, &engine.executor, bytes, &target, decision)
            };
            row(&blocking(engine, decision, warm).await?)
        }
        Action::Pin => {
            let pin = move |engine: &Engine, decision: &Decision| {
                let off =
                    || Error::PrerequisiteState("cannot pin while keyaki.cache_governor is off (set it to on)".into());
                let governor = engine.cache.governor().ok_or_else(off)?;
                let (store, bytes) = (&engine.store, engine.cache.cache_bytes());
                engine.cache.pins.pin(store, &engine.executor, &governor, bytes, &target, decision)
            };
            row(&blocking(engine, decision, pin).await?)
        }
    }
}

fn resolve(session: &SqlSession, kind: CacheTargetKind, name: &ObjectName) -> Result<CacheTarget> {
    let engine = &session.engine;
    let (catalog, snapshot) = session.moment()?;
    let name = session.relation(&catalog, name)?;
    let tree = match kind {
        CacheTargetKind::Table if catalog.views.contains_key(&name) => {
            return Err(Error::WrongObjectType {
                name: name.to_string(),
                found: ObjectKind::View,
                expected: ObjectKind::Table,
                hint: None,
            });
        }
        CacheTargetKind::Table => catalog.table(&name)?.def.tree,
        CacheTargetKind::Index => {
            let unknown = || Error::NotFound { kind: ObjectKind::Index, name: name.to_string() };
            let (table, position) = catalog.index(&name).ok_or_else(unknown)?;
            table.def.indexes[position].tree
        }
    };
    if let Some(cause) = engine.unusable().get(&tree) {
        return Err(Error::IndexUnusable { index: name.to_string(), cause: cause.to_string() });
    }
    Ok(CacheTarget { kind, name: shown_sql(&name), view: snapshot.tree(tree)? })
}

/// Runs blocking work on a thread of the blocking pool.
async fn blocking<T: Send + 'static>(
    engine: Arc<Engine>,
    decision: Arc<Decision>,
    work: impl FnOnce(&Engine, &Decision) -> Result<T> + Send + 'static,
) -> Result<T> {
    let task = tokio::task::spawn_blocking(move || work(&engine, &decision));
    task.await.map_err(|error| Error::task(&error))?
}

/// The rows of the system view `keyaki_cache`: the caches of the processor, their capacity, the governor's method and
/// classes, and the pins.
pub(super) fn view(status: &CacheStatus) -> datafusion::error::Result<RecordBatch> {
    /// kind, name, bytes, workers, detail
    type Row = (&'static str, String, Option<u64>, Option<u32>, String);
    let mut rows: Vec<Row> = Vec::new();
    if let Some(governor) = &status.governor {
        for cache in &governor.caches.all {
            let detail = format!("{} ways, {} processors", cache.ways, cache.processors.len());
            rows.push((
                "cache",
                format!("L{} {:?} {}", cache.level, cache.kind, cache.id),
                Some(cache.bytes),
                None,
                detail,
            ));
        }
        let source = if status.measured { "measured" } else { "as the machine tells" };
        rows.push(("capacity", "last level".into(), Some(status.cache_bytes), None, source.into()));
        rows.push(("path", governor.path.to_string(), None, None, governor.reason.clone()));
        rows.push(("scans", "streaming".into(), None, None, governor.scan_reason.clone()));
        for class in &governor.classes {
            let (name, workers) = (class.class.to_string(), Some(class.workers));
            rows.push(("class", name, class.occupancy_bytes, workers, class.masks.clone()));
        }
    } else {
        rows.push(("path", "none".into(), None, None, "keyaki.cache_governor is off".into()));
    }
    for pin in &status.pins {
        let detail = match pin.in_memory {
            true => "in memory".into(),
            false => format!("{} of {} pages kept in the page cache", pin.pages_kept, pin.pages),
        };
        rows.push(("pin", pin.name.clone(), Some(pin.bytes), None, detail));
    }
    let fields = vec![
        Field::new("kind", DataType::Utf8, false),
        Field::new("name", DataType::Utf8, false),
        Field::new("bytes", DataType::Int64, true),
        Field::new("workers", DataType::Int64, true),
        Field::new("detail", DataType::Utf8, false),
    ];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.1))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.2.map(|bytes| bytes as i64)))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.3.map(i64::from)))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.4))),
    ];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn row(warmed: &Warmed) -> Result<Outcome> {
    let text = |text: &str| -> ArrayRef { Arc::new(StringViewArray::from_iter_values([text])) };
    let number = |number: u64| -> ArrayRef { Arc::new(Int64Array::from(vec![number as i64])) };
    let ms: ArrayRef = Arc::new(Float64Array::from(vec![warmed.time.as_micros() as f64 / 1e3]));
    Outcome::of_columns([
        ("name", text(&warmed.name)),
        ("rows", number(warmed.rows)),
        ("pages", number(warmed.pages)),
        ("nodes", number(warmed.nodes)),
        ("bytes", number(warmed.bytes)),
        ("ms", ms),
        ("note", text(&warmed.note)),
    ])
}

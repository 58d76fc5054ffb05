//! `CHECK DATABASE` and `CHECK TABLE t`: verify all pages from the device, and compare indexes with their tables.
//!
//! The result has a row for each table and index, and one more row for each further problem. `problem` is NULL for what is
//! intact. Indexes are compared by the number of their entries and by a sum of hashes of all entries, which
//! does not depend on their order; this takes one scan of each tree and no memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::util::display::array_value_to_string;
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{
    Checked, ColumnBuilder, Damage, DamagedPart, KeyCodec, KeyRange, RowCodec, Snapshot, Store, TreeId,
};
use xxhash_rust::xxh3::xxh3_64;

use super::transaction::check_outside;
use super::{Outcome, SqlSession, expressions, syntax};
use crate::base::interrupt::Execution;
use crate::base::progress::Counted;
use crate::catalog::{Projection, Table};
use crate::engine::scanned;
use crate::{Error, ObjectKind, Result};

/// Rows of a batch that is read from a tree.
const BATCH_ROWS: usize = 8192;
/// The column of the result that is not NULL for what is damaged.
const PROBLEM: &str = "problem";
/// Zeros behind a part of a key, to decode it: more than the values of a fixed length and the end of a text take.
const PADDING: usize = 64;

/// Scope of the statement.
#[derive(Debug)]
pub(super) enum Check {
    Database,
    Table(ObjectName),
}

/// Parses a statement whose first word is CHECK.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Check> {
    parser.next_token();
    match parser.expect_one_of_keywords(&[Keyword::DATABASE, Keyword::TABLE]).map_err(syntax)? {
        Keyword::TABLE => Ok(Check::Table(parser.parse_object_name(false).map_err(syntax)?)),
        _ => Ok(Check::Database),
    }
}

/// A tree of a table, and what was found.
struct CheckedPart<'a> {
    table: Option<&'a Table>,
    /// The position of an index.
    index: Option<usize>,
    tree: TreeId,
    rows: Option<u64>,
    problems: Vec<Problem>,
}

struct Problem {
    text: String,
    low: Option<String>,
    high: Option<String>,
}

impl Problem {
    fn new(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), low: None, high: None }
    }
}

/// The number of rows and the sum of the hashes of all rows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sum {
    rows: u64,
    hashes: u64,
}

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, check: Check) -> Result<Outcome> {
    check_outside(session, "CHECK")?;
    let all = matches!(check, Check::Database);
    let checked = pages(session, execution, all, tables_of(session, &check)?).await?;
    // Pages that a flush has replaced since then are not compared.
    let (_, snapshot) = session.moment()?;
    let tables = tables_of(session, &check)?;
    let mut parts = parts_of(&tables, &checked, all);
    let quarantined = session.engine.store.quarantined_trees();
    for part in &mut parts {
        let damage = checked.damage.iter().filter(|damage| damage.tree == part.tree);
        part.problems = damage.map(|damage| problem(part, damage)).collect();
        if let Some(cause) = session.engine.unusable().get(&part.tree) {
            part.problems.push(Problem::new(cause.to_string()));
        }
        if let Some(refused) = quarantined.iter().find(|refused| refused.tree == part.tree && part.problems.is_empty())
        {
            part.problems.push(Problem::new(format!("refuses changes until it is opened again: {}", refused.cause)));
        }
    }
    for table in &tables {
        let own: Vec<usize> =
            (0..parts.len()).filter(|&i| parts[i].table.is_some_and(|own| std::ptr::eq(own, &**table))).collect();
        match compare(session, execution, table, &snapshot, &mut parts, &own).await {
            Err(error) if matches!(error.root(), Error::Cancelled) => return Err(error),
            Err(error) => parts[own[0]].problems.push(Problem::new(format!("cannot be compared: {error}"))),
            Ok(()) => {}
        }
    }
    session.progress.lock().finish();
    rows(&parts, &checked)
}

/// The tables in the scope of the statement.
fn tables_of(session: &SqlSession, check: &Check) -> Result<Vec<Arc<Table>>> {
    match check {
        Check::Database => Ok(session.moment()?.0.tables.values().cloned().collect()),
        Check::Table(name) => Ok(vec![table_of(session, name)?]),
    }
}

/// The table with a name.
///
/// # Errors
/// `UndefinedTable`, `WrongObjectType` for a view.
pub(super) fn table_of(session: &SqlSession, name: &ObjectName) -> Result<Arc<Table>> {
    let (catalog, _) = session.moment()?;
    let name = session.relation(&catalog, name)?;
    if catalog.views.contains_key(&name) {
        let (found, expected) = (ObjectKind::View, ObjectKind::Table);
        return Err(Error::WrongObjectType { name: name.to_string(), found, expected, hint: None });
    }
    Ok(catalog.table(&name)?.clone())
}

/// Verifies the pages of the tables, or of all trees.
async fn pages(session: &SqlSession, execution: &Execution<'_>, all: bool, tables: Vec<Arc<Table>>) -> Result<Checked> {
    let check = move |store: &Store, progress: &(dyn Fn(u64, u64) -> bool + Sync)| {
        store.check(|tree| all || tables.iter().any(|table| table.has_tree(tree)), progress)
    };
    let checked = over_pages(session, execution, "checking pages", check).await?;
    // What an interrupt has ended is not complete.
    execution.decision().check()?;
    Ok(checked)
}

/// Runs work of the store on a thread of the blocking pool, with its progress. An interrupt ends the work.
///
/// # Errors
/// Errors of the work.
pub(super) async fn over_pages<T: Send + 'static, E: Into<Error> + Send + 'static>(
    session: &SqlSession,
    execution: &Execution<'_>,
    phase: &'static str,
    work: impl FnOnce(&Store, &(dyn Fn(u64, u64) -> bool + Sync)) -> std::result::Result<T, E> + Send + 'static,
) -> Result<T> {
    let (store, decision) = (session.engine.store.clone(), execution.decision().clone());
    let progress = session.progress.lock().clone();
    let task = tokio::task::spawn_blocking(move || {
        let counted = Counted::new(&*progress, phase);
        work(&store, &|done, total| {
            counted.reach(done, total);
            decision.check().is_ok()
        })
    });
    task.await.map_err(|error| Error::task(&error))?.map_err(Into::into)
}

/// The trees of the tables, and the others that were checked.
fn parts_of<'a>(tables: &'a [Arc<Table>], checked: &Checked, all: bool) -> Vec<CheckedPart<'a>> {
    let part = |table, index, tree| CheckedPart { table, index, tree, rows: None, problems: Vec::new() };
    let mut parts = Vec::new();
    for table in tables {
        parts.push(part(Some(&**table), None, table.def.tree));
        let indexes = table.def.indexes.iter().enumerate();
        parts.extend(indexes.map(|(i, index)| part(Some(&**table), Some(i), index.tree)));
    }
    if all {
        // The catalog, and trees of indexes that are being built.
        let known = |tree: TreeId| tables.iter().any(|table| table.has_tree(tree));
        let damaged: BTreeSet<TreeId> = checked.damage.iter().map(|damage| damage.tree).collect();
        parts.extend(damaged.into_iter().filter(|tree| !known(*tree)).map(|tree| part(None, None, tree)));
    }
    parts
}

fn problem(part: &CheckedPart<'_>, damage: &Damage) -> Problem {
    let text = match damage.part {
        DamagedPart::Rows => damage.cause.to_string(),
        DamagedPart::Messages => format!("changes that have not reached the rows: {}", damage.cause),
        DamagedPart::Sample => format!("the sample for statistics, without effect on rows: {}", damage.cause),
    };
    let schema = part.table.map(|table| match part.index {
        Some(index) => &table.index_schemas[index],
        None => &table.schema,
    });
    let key = |key: &[u8]| Some(schema.map_or_else(|| format!("{key:02x?}"), |schema| shown_key(schema, key)));
    Problem { text, low: key(&damage.keys.low), high: key(&damage.keys.high) }
}

/// The values of an encoded key, or of the first part of one. Missing bytes are zeros.
pub(super) fn shown_key(schema: &keyaki_store::Schema, key: &[u8]) -> String {
    let codec = KeyCodec::new(schema);
    let mut padded = key.to_vec();
    padded.resize(key.len() + PADDING, 0);
    let mut values = Vec::new();
    for (i, column) in schema.columns()[..schema.key_columns()].iter().enumerate() {
        let is_reached = i == 0 || codec.prefix_len(&padded, i).is_some_and(|len| len < key.len());
        let Some(end) = codec.prefix_len(&padded, i + 1).filter(|_| is_reached) else { break };
        let mut builder = ColumnBuilder::new(column.ty, 1);
        if codec.append_to(&padded[..end], i, &mut builder).is_err() {
            break;
        }
        let array = builder.finish();
        values.push(if array.is_null(0) {
            "NULL".into()
        } else {
            array_value_to_string(&array, 0).unwrap_or_default()
        });
    }
    format!("({})", values.join(", "))
}

/// Compares the intact indexes of a table with its rows, and the numbers of rows with those stored. `own` are the parts of
/// the table: the first one is its own tree.
async fn compare(
    session: &SqlSession,
    execution: &Execution<'_>,
    table: &Arc<Table>,
    snapshot: &Snapshot,
    parts: &mut [CheckedPart<'_>],
    own: &[usize],
) -> Result<()> {
    let is_intact = |part: &CheckedPart<'_>| part.problems.is_empty();
    let Some((&first, indexes)) = own.split_first().filter(|(first, _)| is_intact(&parts[**first])) else {
        return Ok(());
    };
    expressions::compiled(session, table)?;
    let intact = indexes.iter().filter(|&&i| is_intact(&parts[i]));
    // The parts of the intact indexes, and the positions of these.
    let indexes: Vec<(usize, usize)> = intact.filter_map(|&i| Some((i, parts[i].index?))).collect();
    let mut columns = Vec::new();
    let mut projections = Vec::new();
    for &(_, index) in &indexes {
        projections.push(Projection::of_index(table, index, |column| scanned(table, column, &mut columns))?);
    }
    if columns.is_empty() {
        columns.push(0);
    }
    let view = snapshot.tree(table.def.tree)?;
    let stored = view.live_rows();
    let (mut rows, mut expected) = (0, vec![Sum::default(); indexes.len()]);
    let mut batches = scan(session, table, snapshot, table.def.tree, columns)?;
    while let Some(batch) = batches.next().await {
        execution.decision().check()?;
        let batch = batch?;
        rows += batch.num_rows() as u64;
        for ((projection, sum), &(_, index)) in projections.iter().zip(&mut expected).zip(&indexes) {
            add(sum, &table.index_schemas[index], &projection.apply(&batch)?);
        }
        session.progress.lock().advance(batch.num_rows() as u64);
    }
    parts[first].rows = Some(rows);
    if let Some(stored) = stored.filter(|stored| *stored != rows) {
        parts[first].problems.push(Problem::new(format!("has {rows} rows, but {stored} are recorded")));
    }
    for ((i, index), expected) in indexes.into_iter().zip(expected) {
        let schema = &table.index_schemas[index];
        let mut found = Sum::default();
        let columns = (0..schema.columns().len()).collect();
        let mut batches = scan(session, table, snapshot, parts[i].tree, columns)?;
        while let Some(batch) = batches.next().await {
            execution.decision().check()?;
            let batch = batch?;
            add(&mut found, schema, &batch);
            session.progress.lock().advance(batch.num_rows() as u64);
        }
        parts[i].rows = Some(found.rows);
        if found.rows != expected.rows {
            let text = format!("has {} entries for {} rows of the table", found.rows, expected.rows);
            parts[i].problems.push(Problem::new(text));
        } else if found != expected {
            parts[i].problems.push(Problem::new("some entries differ from the rows of the table"));
        }
    }
    Ok(())
}

/// All rows of a tree of the table.
fn scan(
    session: &SqlSession,
    table: &Table,
    snapshot: &Snapshot,
    tree: TreeId,
    columns: Vec<usize>,
) -> Result<keyaki_exec::Rows> {
    let view = snapshot.tree(tree)?;
    let total = view.estimate(&KeyRange::all()).rows as u64;
    session.progress.lock().start(&format!("comparing {}", table.def.name), Some(total));
    let scan = Scan::whole(view, columns, BATCH_ROWS);
    Ok(session.engine.executor.scan(scan, ExecutionMode::OutOfOrder))
}

/// Adds entries of an index to a sum. `batch` has all columns of the schema.
fn add(sum: &mut Sum, schema: &keyaki_store::Schema, batch: &RecordBatch) {
    let (keys, values) = (KeyCodec::new(schema), RowCodec::new(schema));
    let (keys, values) = (keys.encoder(batch.columns()), values.encoder(batch.columns()));
    let mut bytes = Vec::new();
    for row in 0..batch.num_rows() {
        bytes.clear();
        keys.encode(row, &mut bytes);
        values.encode(row, &mut bytes);
        sum.hashes = sum.hashes.wrapping_add(xxh3_64(&bytes));
    }
    sum.rows += batch.num_rows() as u64;
}

/// The problems in the result of the statement.
pub(super) fn problems(checked: &[RecordBatch]) -> Vec<String> {
    let texts = checked.iter().filter_map(|batch| batch.column_by_name(PROBLEM)?.as_string_opt::<i32>());
    texts.flat_map(|texts| texts.iter().flatten().map(String::from)).collect()
}

fn rows(parts: &[CheckedPart<'_>], checked: &Checked) -> Result<Outcome> {
    let none = Problem { text: String::new(), low: None, high: None };
    let mut rows: Vec<(&CheckedPart<'_>, Option<&Problem>)> = Vec::new();
    for part in parts {
        match part.problems.is_empty() {
            true => rows.push((part, None)),
            false => rows.extend(part.problems.iter().map(|problem| (part, Some(problem)))),
        }
    }
    let text = |of: &dyn Fn(&CheckedPart<'_>, &Problem) -> Option<String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(rows.iter().map(|(part, problem)| of(part, problem.unwrap_or(&none)))))
    };
    let number = |of: &dyn Fn(&CheckedPart<'_>) -> Option<u64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(rows.iter().map(|(part, _)| of(part).map(|number| number as i64))))
    };
    let tree = |part: &CheckedPart<'_>| checked.trees.iter().find(|tree| tree.tree == part.tree);
    let name = |part: &CheckedPart<'_>, of: fn(&Table) -> String| part.table.map(of);
    Outcome::of_columns([
        ("schema_name", text(&|part, _| name(part, |table| table.def.name.schema.to_string()))),
        ("table_name", text(&|part, _| name(part, |table| table.def.name.name.clone()))),
        ("index_name", text(&|part, _| part.table.zip(part.index).map(|(table, i)| table.def.indexes[i].name.clone()))),
        ("rows", number(&|part| part.rows)),
        ("pages", number(&|part| tree(part).map(|tree| tree.pages))),
        ("bytes", number(&|part| tree(part).map(|tree| tree.bytes))),
        (PROBLEM, text(&|_, problem| Some(problem.text.clone()).filter(|text| !text.is_empty()))),
        ("low_key", text(&|_, problem| problem.low.clone())),
        ("high_key", text(&|_, problem| problem.high.clone())),
    ])
}

#[cfg(test)]
mod tests {
    use keyaki_store::{Column, ColumnType, Schema};

    use super::*;

    #[test]
    fn parts_of_keys_are_shown() {
        let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
        let columns = vec![
            column("a", ColumnType::Int64, false),
            column("b", ColumnType::Text, true),
            column("c", ColumnType::Int32, false),
        ];
        let schema = Schema::new(columns, 3);
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![-7])),
            Arc::new(arrow::array::StringViewArray::from_iter_values(["pear"])),
            Arc::new(arrow::array::Int32Array::from(vec![3])),
        ];
        let mut key = Vec::new();
        KeyCodec::new(&schema).encode(&arrays, 0, &mut key);
        assert_eq!(shown_key(&schema, &key), "(-7, pear, 3)");
        assert_eq!(shown_key(&schema, &key[..8]), "(-7)");
        assert_eq!(shown_key(&schema, &key[..9]), "(-7, )");
        assert_eq!(shown_key(&schema, &key[..11]), "(-7, pe)");
        // The last three bytes are missing.
        assert_eq!(shown_key(&schema, &key[..5]), "(-16777216)");
        assert_eq!(shown_key(&schema, &[]), "(-9223372036854775808)");
    }
}

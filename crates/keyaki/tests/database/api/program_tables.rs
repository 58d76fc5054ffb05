//! Tables of the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray, StructArray, TimestampNanosecondArray,
    UInt8Array, UInt64Array,
};
use arrow::datatypes::{Field, Fields, Int32Type, Schema};
use keyaki::{Connection, Error, ProgramTable, Row};

use super::{connection, integer};

fn table(batches: Vec<RecordBatch>) -> ProgramTable {
    ProgramTable::new(batches[0].schema(), batches).unwrap()
}

fn numbers(ids: impl IntoIterator<Item = i64>) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

/// A connection whose program has the table `frame` with the numbers of `ids`.
fn with_frame(ids: std::ops::Range<i64>) -> Connection {
    let connection = connection();
    let frame = table(vec![numbers(ids.clone()), numbers(ids.end..ids.end)]);
    connection.session().set_program_tables(move |name| Ok((name == "frame").then(|| frame.clone())));
    connection
}

fn code(error: &Error) -> String {
    error.sqlstate().code().into()
}

#[test]
fn statements_read_tables_of_the_program() {
    let connection = with_frame(0..20_000);
    let sum = |sql: &str| connection.query_row(sql, (), integer).unwrap();
    assert_eq!(sum("SELECT sum(id) FROM frame"), 199_990_000);
    assert_eq!(sum("SELECT count(*) FROM frame"), 20_000);
    assert_eq!(sum("SELECT id FROM frame LIMIT 1 OFFSET 19999"), 19_999, "in the order of the batches");
    assert_eq!(sum("SELECT count(*) FROM frame a JOIN frame b USING (id) WHERE a.id % 2 = 0"), 10_000);
    assert_eq!(sum("SELECT count(*) FROM generate_series(1, 5) s WHERE value IN (SELECT id FROM frame)"), 5);
    connection.execute("CREATE TABLE t AS SELECT id AS a FROM frame WHERE id < 10", ()).unwrap();
    assert_eq!(connection.execute("INSERT INTO t SELECT id FROM frame WHERE id >= $1", (19_995,)).unwrap(), 5);
    assert_eq!(connection.execute("DELETE FROM t USING frame WHERE a = id AND id < 5", ()).unwrap(), 5);
    assert_eq!(connection.execute("UPDATE t SET a = a + 1 FROM frame WHERE a = id AND id < 10", ()).unwrap(), 5);
    assert_eq!(sum("SELECT count(*) FROM t"), 10);
    let error = connection.query("SELECT * FROM other", ()).map(|_| ()).unwrap_err();
    assert_eq!(code(&error), "42P01");
    assert!(connection.execute("INSERT INTO frame VALUES (1)", ()).is_err(), "no statement changes them");
    assert!(connection.execute("DROP TABLE frame", ()).is_err());
}

#[test]
fn other_relations_come_first() {
    let connection = with_frame(0..3);
    let count = |sql: &str| connection.query_row(sql, (), integer).unwrap();
    assert_eq!(count("WITH frame AS (SELECT 1) SELECT count(*) FROM frame"), 1);
    connection.execute("CREATE TABLE frame (id INT)", ()).unwrap();
    assert_eq!(count("SELECT count(*) FROM frame"), 0);
    connection.execute("DROP TABLE frame", ()).unwrap();
    assert_eq!(count("SELECT count(*) FROM frame"), 3);
    connection.execute_batch("CREATE SCHEMA s; CREATE TABLE s.frame (id INT); SET search_path = s, public").unwrap();
    assert_eq!(count("SELECT count(*) FROM frame"), 0);
    let error = connection.query("SELECT * FROM s.other", ()).map(|_| ()).unwrap_err();
    assert_eq!(code(&error), "42P01");
}

#[test]
fn definitions_cannot_use_them() {
    let connection = with_frame(0..3);
    let error = connection.execute("CREATE VIEW v AS SELECT * FROM frame", ()).unwrap_err();
    assert_eq!(code(&error), "42P01", "{error}");
    connection.execute_batch("CREATE TABLE real (id INT); CREATE VIEW v AS SELECT * FROM real").unwrap();
    let sql = "SELECT count(*) FROM v, frame";
    assert_eq!(connection.query_row(sql, (), integer).unwrap(), 0);
}

#[test]
fn each_execution_reads_the_current_table() {
    let connection = connection();
    let (rows, calls) = (Arc::new(AtomicI64::new(1)), Arc::new(AtomicU32::new(0)));
    let (current, counted) = (rows.clone(), calls.clone());
    connection.session().set_program_tables(move |name| {
        counted.fetch_add(1, Ordering::Relaxed);
        let rows = current.load(Ordering::Relaxed);
        // Its columns change, too.
        let batch = numbers(0..rows);
        let name_of_column = if rows > 1 { "id" } else { "first" };
        let batch = RecordBatch::try_from_iter([(name_of_column, batch.column(0).clone())]).unwrap();
        Ok((name == "frame").then(|| table(vec![batch])))
    });
    let statement = connection.prepare("SELECT * FROM frame WHERE $1 OR true").unwrap();
    let names = |rows: keyaki::Rows| rows.column_names().join(",");
    assert_eq!(names(statement.query((true,)).unwrap()), "first");
    rows.store(5, Ordering::Relaxed);
    let mut found = statement.query((true,)).unwrap();
    assert_eq!(found.column_names(), ["id"]);
    let mut count = 0;
    while found.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 5);
    for rows_now in [2, 7] {
        rows.store(rows_now, Ordering::Relaxed);
        let sql = "SELECT count(*) FROM frame WHERE id >= $1";
        assert_eq!(connection.query_row(sql, (0,), integer).unwrap(), rows_now, "a statement of the cache");
    }
    let before = calls.load(Ordering::Relaxed);
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY)", ()).unwrap();
    connection.query_row("SELECT count(*) FROM t", (), integer).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), before, "names of the database are not looked up");
}

#[test]
fn values_become_those_of_columns() {
    let connection = connection();
    let small: ArrayRef = Arc::new(UInt8Array::from(vec![Some(200), None]));
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
    let words: DictionaryArray<Int32Type> = vec!["a", "b"].into_iter().collect();
    let words: ArrayRef = Arc::new(words);
    let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![1_500, 2_000_000_000]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let batch =
        RecordBatch::try_from_iter([("small", small), ("large", large), ("word", words), ("at", times), ("x", texts)]);
    let frame = table(vec![batch.unwrap()]);
    connection.session().set_program_tables(move |name| Ok((name == "frame").then(|| frame.clone())));
    let text = |row: &Row<'_>| -> keyaki::Result<String> { row.get(0) };
    let row = "SELECT concat_ws(' ', small, word, x, at) FROM frame ORDER BY x LIMIT 1";
    assert_eq!(connection.query_row(row, (), text).unwrap(), "200 a x 1970-01-01 00:00:00.000001");
    let types = connection.query("SELECT small, word, at FROM frame", ()).unwrap().columns();
    let types: Vec<&str> = types.iter().map(|column| column.type_name.as_str()).collect();
    assert_eq!(types, ["smallint", "text", "timestamp"]);
    // The value of a column that a statement does not read is no error.
    let read = |sql: &str| connection.query(sql, ()).and_then(|mut rows| rows.next().map(|_| ()));
    assert_eq!(code(&read("SELECT large FROM frame").unwrap_err()), "22003");
}

#[test]
fn wrong_tables_are_errors() {
    let connection = connection();
    let number: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let field = Arc::new(Field::new("a", number.data_type().clone(), true));
    let pair: ArrayRef = Arc::new(StructArray::new(Fields::from(vec![field.clone()]), vec![number.clone()], None));
    let nested = table(vec![RecordBatch::try_from_iter([("pair", pair)]).unwrap()]);
    let twice = Arc::new(Schema::new(vec![field.clone(), field]));
    let twice = table(vec![RecordBatch::try_new(twice, vec![number.clone(), number]).unwrap()]);
    connection.session().set_program_tables(move |name| match name {
        "nested" => Ok(Some(nested.clone())),
        "twice" => Ok(Some(twice.clone())),
        "failing" => Err(Error::Unsupported("the frame is broken".into())),
        _ => Ok(None),
    });
    let failed = |sql: &str| connection.query(sql, ()).map(|_| ()).unwrap_err();
    let error = failed("SELECT * FROM nested");
    assert!(code(&error) == "0A000" && error.to_string().starts_with("column \"pair\" of \"nested\": "), "{error}");
    assert_eq!(code(&failed("SELECT * FROM twice")), "42701");
    assert!(failed("SELECT * FROM failing").to_string().contains("the frame is broken"));
    let other = numbers(0..1);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let different = RecordBatch::try_from_iter([("id", texts)]).unwrap();
    assert!(ProgramTable::new(other.schema(), vec![other, different]).is_err());
}

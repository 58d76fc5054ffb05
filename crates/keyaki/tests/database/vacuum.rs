//! VACUUM shortens the data file beside open results, and keeps tables and indexes intact.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use keyaki::{Connection, Options};

const ROWS: i64 = 60_000;

fn open(directory: &std::path::Path) -> Connection {
    Connection::open_with(directory, Options { memory_bytes: Some(64 << 20), ..Options::default() }).unwrap()
}

fn batches(connection: &Connection, sql: &str) -> Vec<RecordBatch> {
    connection.query_arrow(sql, ()).unwrap().map(Result::unwrap).collect()
}

fn number(connection: &Connection, sql: &str) -> i64 {
    batches(connection, sql)[0].column(0).as_primitive::<Int64Type>().value(0)
}

/// The lengths of the data file before and after a statement.
fn vacuum(connection: &Connection, sql: &str) -> (i64, i64) {
    let rows = batches(connection, sql);
    let column = |number: usize| rows[0].column(number).as_primitive::<Int64Type>().value(0);
    assert_eq!(
        rows[0].schema().fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(),
        ["bytes_before", "bytes_after"]
    );
    (column(0), column(1))
}

fn assert_intact(connection: &Connection) {
    for batch in batches(connection, "CHECK DATABASE") {
        let problems = batch.column_by_name("problem").unwrap();
        assert_eq!(problems.null_count(), batch.num_rows(), "{problems:?}");
    }
}

#[test]
fn the_data_file_becomes_shorter() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, n BIGINT);
         CREATE TABLE other (id BIGINT PRIMARY KEY);
         CREATE INDEX t_name ON t (name);
         INSERT INTO other SELECT value FROM generate_series(1, 1000);
         INSERT INTO t SELECT value, md5(value::TEXT) || repeat(md5((value * 7)::TEXT), 8), value % 10
         FROM generate_series(1, {ROWS});
         CHECKPOINT;
         UPDATE t SET n = n + 1 WHERE id % 3 = 0;
         DELETE FROM t WHERE id % 10 > 0"
    );
    connection.execute_batch(&script).unwrap();
    let sum = number(&connection, "SELECT sum(n)::BIGINT FROM t");
    // An open result keeps the rows that it reads, and their space.
    let mut open_result = connection.query_arrow("SELECT id FROM t ORDER BY id", ()).unwrap();
    let first = open_result.next().unwrap().unwrap().num_rows();
    vacuum(&connection, "VACUUM VERBOSE t");
    let rest: usize = open_result.map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!((first + rest) as i64, ROWS / 10);
    connection.execute("VACUUM ANALYZE t", ()).unwrap();
    // The statistics are a change, for which the file has grown.
    let (before, after) = vacuum(&connection, "VACUUM (FULL, VERBOSE)");
    assert!(before >= after);
    assert!(after < 24 << 20, "{after} bytes for a tenth of the rows");
    assert_eq!(std::fs::metadata(directory.path().join("data")).unwrap().len() as i64, after);
    assert_intact(&connection);
    assert_eq!(number(&connection, "SELECT sum(n)::BIGINT FROM t"), sum);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE name > ''"), ROWS / 10);
    drop(connection);
    let connection = open(directory.path());
    assert_intact(&connection);
    assert_eq!(number(&connection, "SELECT sum(n)::BIGINT FROM t"), sum);
}

#[test]
fn wrong_statements_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute_batch("CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS a").unwrap();
    for (sql, code) in [
        ("VACUUM v", "42809"),
        ("VACUUM missing", "42P01"),
        ("VACUUM t missing", "42601"),
        ("VACUUM (FULL, t", "42601"),
        ("VACUUM INTO 'copy'", "0A000"),
    ] {
        let error = connection.execute(sql, ()).map(drop).unwrap_err();
        assert_eq!(error.sqlstate().code(), code, "{sql}: {error}");
    }
    connection.execute("BEGIN", ()).unwrap();
    assert_eq!(connection.execute("VACUUM", ()).map(drop).unwrap_err().sqlstate().code(), "25001");
    connection.execute("ROLLBACK", ()).unwrap();
    for sql in ["VACUUM", "VACUUM FULL t", "VACUUM ANALYZE t, t", "VACUUM FREEZE", "VACUUM (VERBOSE FALSE)"] {
        connection.execute(sql, ()).unwrap();
    }
}

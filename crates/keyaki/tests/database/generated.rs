//! Generated columns: loads, appenders and files compute them, and a definition survives.

use std::path::Path;

use keyaki::{Connection, Error};

fn open(directory: &Path) -> Connection {
    Connection::open(directory.join("db")).unwrap()
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, twice BIGINT AS (id * 2) NOT NULL, a INT,
    ratio BIGINT AS (1000 / a), UNIQUE (twice))";
/// The rows whose generated columns are wrong. The columns would replace their own expressions.
const WRONG: &str = "SELECT count(*) FROM t WHERE twice <> id + id OR ratio IS DISTINCT FROM (999 + 1) / a";

#[test]
fn large_inserts_and_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute(TABLE, ()).unwrap();
    connection.execute("CREATE INDEX by_ratio ON t (ratio)", ()).unwrap();
    // A bulk load, then write batches.
    let insert = "INSERT INTO t (a, id) SELECT value % 7 + 1, value FROM generate_series(1, 300000)";
    assert_eq!(connection.execute(insert, ()).unwrap(), 300_000);
    connection.execute("UPDATE t SET a = a + 1 WHERE id % 10 = 0", ()).unwrap();
    assert_eq!(number(&connection, WRONG), 0);
    drop(connection);
    let connection = open(directory.path());
    let statement = connection.prepare("INSERT INTO t (id, a) VALUES ($1, $2)").unwrap();
    for id in 300_001..300_100 {
        statement.execute((id, id % 5 + 1)).unwrap();
    }
    let update = connection.prepare("UPDATE t SET a = $2 WHERE id = $1").unwrap();
    for id in 1..100 {
        assert_eq!(update.execute((id, id)).unwrap(), 1);
    }
    assert_eq!(number(&connection, WRONG), 0);
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 300_099);
    // The index has the same values.
    for a in [1, 3, 50] {
        let by_index = number(&connection, &format!("SELECT count(*) FROM t WHERE ratio = 1000 / {a}"));
        assert_eq!(by_index, number(&connection, &format!("SELECT count(*) FROM t WHERE ratio + 0 = 1000 / {a}")));
    }
    let shown: String = connection.query_row("SHOW CREATE TABLE t", (), |row| row.get(1)).unwrap();
    assert!(shown.contains("twice BIGINT NOT NULL GENERATED ALWAYS AS (id * 2) STORED"), "{shown}");
    let other = shown.replace("TABLE t ", "TABLE u ").replace("ON t ", "ON u ").replace("by_ratio", "by_ratio_of_u");
    connection.execute_batch(&other.replace("t_twice_key", "u_twice_key")).unwrap();
    connection.execute("INSERT INTO u (id, a) VALUES (4, 5)", ()).unwrap();
    assert_eq!(number(&connection, "SELECT twice + ratio FROM u"), 208);
}

#[test]
fn appenders_leave_generated_columns_out() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute(TABLE, ()).unwrap();
    let mut appender = connection.appender("t").unwrap();
    for id in 1..=1000_i64 {
        appender.append_row((id, 4_i32)).unwrap();
    }
    appender.finish().unwrap();
    assert_eq!((number(&connection, WRONG), number(&connection, "SELECT count(*) FROM t")), (0, 1000));
    // The row of an error is the row that was appended.
    let mut appender = connection.appender("t").unwrap();
    appender.append_row((2000_i64, 1_i32)).unwrap();
    appender.append_row((2001_i64, 0_i32)).unwrap();
    let error = appender.finish().unwrap_err();
    assert!(matches!(&error, Error::Import { row: Some(2), .. }), "{error:?}");
    assert_eq!(error.to_string(), "row 2: generated column \"ratio\": division by zero");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 1000);
}

#[test]
fn files_have_no_generated_columns() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute(TABLE, ()).unwrap();
    connection.execute("INSERT INTO t (id, a) VALUES (1, 10), (2, 20), (3, NULL)", ()).unwrap();
    for format in ["csv", "parquet", "ndjson"] {
        let file = directory.path().join(format!("t.{format}"));
        let file = file.to_str().unwrap();
        connection.execute(&format!("COPY t TO '{file}'"), ()).unwrap();
        connection.execute("DELETE FROM t", ()).unwrap();
        assert_eq!(connection.execute(&format!("COPY t FROM '{file}'"), ()).unwrap(), 3, "{format}");
        assert_eq!(number(&connection, WRONG), 0);
        assert_eq!(number(&connection, "SELECT sum(twice) FROM t"), 12);
        // A file with the column is refused: its values could be others.
        connection.execute(&format!("COPY (SELECT * FROM t) TO '{file}'"), ()).unwrap();
        connection.execute("DELETE FROM t WHERE id = 3", ()).unwrap();
        let error = connection.execute(&format!("COPY t FROM '{file}'"), ()).unwrap_err().to_string();
        assert!(error.contains("column \"twice\""), "{format}: {error}");
        connection.execute("INSERT INTO t (id) VALUES (3)", ()).unwrap();
    }
    let file = directory.path().join("bad.csv");
    std::fs::write(&file, "id,a\n10,1\n11,2\n12,0\n").unwrap();
    let error = connection.execute(&format!("COPY t FROM '{}'", file.display()), ()).unwrap_err();
    assert!(matches!(&error, Error::Import { row: Some(3), .. }), "{error:?}");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 3);
}

#[test]
fn transactions_compute_the_columns_of_their_own_rows() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute(TABLE, ()).unwrap();
    connection
        .execute_batch(
            "BEGIN; INSERT INTO t (id, a) VALUES (1, 5), (2, 4); UPDATE t SET a = 8 WHERE twice = 2;
             INSERT INTO t (id, a) VALUES (2, 2) ON CONFLICT (id) DO UPDATE SET a = excluded.twice;
             ALTER TABLE t ADD COLUMN more BIGINT AS (a + 1); COMMIT",
        )
        .unwrap();
    assert_eq!(number(&connection, WRONG), 0);
    assert_eq!(number(&connection, "SELECT sum(ratio * 1000 + more) FROM t"), (125 + 250) * 1000 + 9 + 5);
}

#[test]
fn conditions_with_the_expression_use_the_index() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    let table = "CREATE TABLE e (id BIGINT PRIMARY KEY, body JSON, kind TEXT AS (body->>'kind'), size BIGINT AS (length(body)));
                 CREATE INDEX e_kind ON e (kind)";
    connection.execute_batch(table).unwrap();
    let insert = "INSERT INTO e (id, body) SELECT value, '{\"kind\": \"' || value % 1000 || '\"}' FROM generate_series(1, 50000)";
    assert_eq!(connection.execute(insert, ()).unwrap(), 50_000);
    drop(connection);
    let connection = open(directory.path());
    let plan = |sql: &str| -> String {
        let rows = connection.query(&format!("EXPLAIN {sql}"), ()).unwrap();
        rows.mapped(|row| row.get::<_, String>(1)).map(Result::unwrap).collect()
    };
    for sql in [
        "SELECT id FROM e WHERE body->>'kind' = '7'",
        "SELECT id, size FROM e AS other WHERE other.body->>'kind' IN ('7', '8') AND id > 5",
        "SELECT a.id FROM e a JOIN e b ON b.id = a.id WHERE a.body->>'kind' = '7'",
        "UPDATE e SET body = NULL WHERE body->>'kind' = '7'",
    ] {
        let plan = plan(sql);
        assert!(plan.contains("e_kind"), "{sql}: {plan}");
    }
    assert!(!plan("SELECT id FROM e WHERE body->>'other' = '7'").contains("e_kind"));
    assert_eq!(number(&connection, "SELECT count(*) FROM e WHERE body->>'kind' = '7'"), 50);
    let statement = connection.prepare("SELECT count(*) FROM e WHERE body->>'kind' = $1").unwrap();
    assert_eq!(statement.query_row(("7",), |row| row.get::<_, i64>(0)).unwrap(), 50);
}

//! The system views `keyaki_queries`, `keyaki_io` and `keyaki_store`.

use keyaki::{Connection, Error};

fn open() -> (tempfile::TempDir, Connection) {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join("db")).unwrap();
    connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT)", ()).unwrap();
    connection.execute("INSERT INTO t SELECT value, value % 7 FROM generate_series(1, 50000)", ()).unwrap();
    (directory, connection)
}

/// The status, rows, SQLSTATE and pages of the last statement with a text.
fn last(connection: &Connection, text: &str) -> (String, Option<i64>, Option<String>, i64) {
    let sql = "SELECT status, rows, sqlstate, pages_cached + pages_shared + pages_read FROM keyaki_queries
               WHERE query = $1 ORDER BY id DESC LIMIT 1";
    let row = connection.query_row(sql, (text,), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    row.unwrap()
}

#[test]
fn statements_are_listed_with_rows_and_errors() {
    let (_directory, connection) = open();
    connection.execute("CHECKPOINT", ()).unwrap();
    let aggregate = "SELECT a, count(*) FROM t GROUP BY a ORDER BY a";
    let mut rows = connection.query(aggregate, ()).unwrap();
    let mut count = 0;
    while rows.next().unwrap().is_some() {
        count += 1;
    }
    drop(rows);
    let (status, found, state, pages) = last(&connection, aggregate);
    assert_eq!((status.as_str(), found, state), ("done", Some(count), None));
    assert!(pages > 0);
    connection.execute("UPDATE t SET a = a + 1 WHERE id % 1000 = 0", ()).unwrap();
    assert_eq!(last(&connection, "UPDATE t SET a = a + 1 WHERE id % 1000 = 0").1, Some(50));
    for (sql, state) in [("SELECT 1 / (a - a) FROM t", "22012"), ("SELECT b FROM t", "42703")] {
        let ended = connection.query(sql, ()).and_then(|mut rows| rows.next().map(drop));
        assert!(ended.is_err());
        let (status, _, found, _) = last(&connection, sql);
        assert_eq!((status.as_str(), found.as_deref()), ("failed", Some(state)));
    }
}

#[test]
fn prepared_statements_are_listed_once() {
    let (_directory, connection) = open();
    let text = "SELECT count(*) FROM t WHERE a > $1";
    let prepared = connection.prepare(text).unwrap();
    for a in 0..3 {
        prepared.query_row((a,), |row| row.get::<_, i64>(0)).unwrap();
    }
    connection.execute("PREPARE p AS SELECT count(*) FROM t WHERE a < $1", ()).unwrap();
    connection.execute("EXECUTE p(3)", ()).unwrap();
    let count = |like: &str| {
        let sql = "SELECT count(*) FROM keyaki_queries WHERE query LIKE $1";
        connection.query_row(sql, (like,), |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM t WHERE a > %"), 3);
    assert_eq!(count("%WHERE a < %"), 1);
    connection.prepare("EXECUTE p(4)").unwrap().query_row((), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("%WHERE a < %"), 2);
    connection.execute_batch("BEGIN; COMMIT; SET timezone = 'UTC'").unwrap();
    assert_eq!(count("EXECUTE%") + count("BEGIN%") + count("COMMIT%") + count("SET%"), 0);
}

#[test]
fn running_and_stopped_statements_are_told_apart() {
    let (_directory, connection) = open();
    let text = "SELECT t.id FROM t, t AS u WHERE t.a = u.a";
    let other = connection.try_clone().unwrap();
    let mut rows = connection.query(text, ()).unwrap();
    assert!(rows.next().unwrap().is_some());
    assert_eq!(last(&other, text).0, "running");
    let sessions = "SELECT count(DISTINCT session) FROM keyaki_queries";
    assert_eq!(other.query_row(sessions, (), |row| row.get::<_, i64>(0)).unwrap(), 2);
    connection.interrupt_handle().interrupt();
    // Rows that have been received are returned.
    let error = loop {
        match rows.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the statement ended"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Cancelled), "{error}");
    drop(rows);
    assert_eq!(last(&other, text).0, "stopped");
    // The first row is enough.
    assert!(connection.query_row(text, (), |row| row.get::<_, i64>(0)).unwrap() > 0);
    assert_eq!(last(&other, text).0, "done");
}

#[test]
fn times_are_those_of_the_zone() {
    let (_directory, connection) = open();
    connection.execute("SET timezone = 'Asia/Tokyo'", ()).unwrap();
    let sql = "SELECT bool_and(date_trunc('day', started_at) = date_trunc('day', started_at::TEXT::TIMESTAMPTZ)
               AND now() - started_at BETWEEN INTERVAL '0' AND INTERVAL '1 hour') FROM keyaki_queries";
    assert!(connection.query_row(sql, (), |row| row.get::<_, bool>(0)).unwrap());
}

#[test]
fn requests_are_counted() {
    let (_directory, connection) = open();
    connection.execute("CHECKPOINT", ()).unwrap();
    connection.execute("DROP CACHES", ()).unwrap();
    let count = |filter: &str| {
        let sql = format!(
            "SELECT coalesce(sum(requests), 0)::BIGINT, coalesce(sum(failed), 0)::BIGINT FROM keyaki_io WHERE {filter}"
        );
        let row = connection.query_row(&sql, (), |row| Ok((row.get(0)?, row.get(1)?)));
        let (requests, failed): (i64, i64) = row.unwrap();
        assert_eq!(failed, 0, "{filter}");
        requests
    };
    let before = count("file = 'data' AND operation = 'read' AND issued = 'queued'");
    connection.query_row("SELECT sum(a) FROM t", (), |row| row.get::<_, i64>(0)).unwrap();
    assert!(count("file = 'data' AND operation = 'read' AND issued = 'queued'") > before);
    assert!(count("file = 'data' AND operation = 'write'") > 0);
    assert!(count("file = 'log' AND operation = 'write'") > 0);
    let sorted = "SELECT bool_and(p50_us <= p99_us AND p99_us <= max_us AND mean_us <= max_us) FROM keyaki_io";
    assert!(connection.query_row(sorted, (), |row| row.get::<_, bool>(0)).unwrap());
    assert!(connection.execute("DELETE FROM keyaki_io", ()).is_err());
}

#[test]
fn commits_and_writes_are_counted() {
    let (_directory, connection) = open();
    let numbers = |columns: &str| -> (i64, i64, f64, f64) {
        let sql = format!("SELECT {columns}, commit_p50_us, commit_max_us FROM keyaki_store");
        let row = |row: &keyaki::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        connection.query_row(&sql, (), row).unwrap()
    };
    let (commits, bytes, ..) = numbers("commits, bytes_committed");
    for i in 0..10 {
        assert_eq!(connection.execute("INSERT INTO t VALUES ($1 + 1000000, 0)", [i]).unwrap(), 1);
    }
    let (later, more, median, longest) = numbers("commits, bytes_committed");
    assert_eq!(later, commits + 10);
    assert!(more >= bytes + 100 && 0.0 < median && median <= longest, "{more} bytes, {median} to {longest} us");
    connection.execute("CHECKPOINT", ()).unwrap();
    let (checkpoints, written, ..) = numbers("checkpoints, bytes_written");
    assert!(checkpoints > 0 && written >= more, "{written} bytes");
    let (loaded, used, ..) = numbers("bytes_loaded, data_bytes_used");
    connection.execute_batch("CREATE TABLE loaded AS SELECT * FROM generate_series(1, 100000); CHECKPOINT").unwrap();
    let (loaded_now, used_now, ..) = numbers("bytes_loaded, data_bytes_used");
    assert!(loaded_now >= loaded && used_now > used);
    let consistent =
        "SELECT stalls = 0 AND stall_ms = 0 AND write_amplification >= 1 AND data_file_bytes >= data_bytes_used
                      AND commit_p50_us <= commit_p99_us AND commit_p99_us <= commit_p999_us FROM keyaki_store";
    assert!(connection.query_row(consistent, (), |row| row.get::<_, bool>(0)).unwrap());
}

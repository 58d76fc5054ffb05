//! Databases that are open read-only, beside a handle that writes: another process is no different.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use keyaki::{Connection, Database, Error, ObjectKind, Options, SqlState};

fn options() -> Options {
    Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() }
}

fn writer(path: &Path) -> Connection {
    Connection::open_with(path, options()).unwrap()
}

fn reader(path: &Path) -> Connection {
    Connection::open_with(path, Options { read_only: true, ..options() }).unwrap()
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap()
}

fn text(connection: &Connection, sql: &str) -> String {
    connection.query_row(sql, (), |row| row.get::<_, String>(0)).unwrap()
}

fn run(connection: &Connection, sql: &str) {
    connection.execute(sql, ()).unwrap();
}

#[test]
fn statements_see_the_commits_before_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, s TEXT)");
    let reader = reader(&path);
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 0);
    let by_key = reader.prepare("SELECT n FROM t WHERE id = $1").unwrap();
    for id in 1..50 {
        writer.execute("INSERT INTO t VALUES ($1, $2, 'x')", (id, id * 10)).unwrap();
        if id % 10 == 0 {
            run(&writer, "CHECKPOINT");
        }
        // On the short path and on the long one.
        assert_eq!(by_key.query_row((id,), |row| row.get::<_, i64>(0)).unwrap(), id * 10);
        assert_eq!(number(&reader, &format!("SELECT n FROM t WHERE id = {id}")), id * 10);
        assert_eq!(number(&reader, "SELECT sum(n) FROM t"), (1..=id).map(|id| id * 10).sum::<i64>());
    }
    run(&writer, "UPDATE t SET n = 7 WHERE id = 3");
    assert_eq!(by_key.query_row((3,), |row| row.get::<_, i64>(0)).unwrap(), 7);
    run(&writer, "DELETE FROM t WHERE id > 3");
    assert_eq!(number(&reader, "SELECT max(id) FROM t"), 3);
    drop(writer);
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 3);
    let writer = self::writer(&path);
    run(&writer, "INSERT INTO t SELECT x, x, 'y' FROM generate_series(100, 20099) AS g (x)");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 20_003);
}

#[test]
fn definitions_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    let reader = reader(&path);
    assert!(matches!(reader.query("SELECT * FROM t", ()), Err(error) if error.sqlstate() == SqlState::UNDEFINED_TABLE));
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER)");
    run(&writer, "INSERT INTO t VALUES (1, 2)");
    let prepared = reader.prepare("SELECT * FROM t WHERE id = $1").unwrap();
    assert!(prepared.exists((1,)).unwrap());
    run(&writer, "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 5");
    run(&writer, "CREATE INDEX by_a ON t (a)");
    run(&writer, "CREATE VIEW v AS SELECT a + b AS c FROM t");
    assert_eq!(number(&reader, "SELECT c FROM v"), 7);
    assert_eq!(number(&reader, "SELECT id FROM t WHERE a = 2"), 1);
    assert!(prepared.exists((1,)).unwrap());
    assert_eq!(number(&reader, "SELECT count(*) FROM keyaki_indexes WHERE index_name = 'by_a'"), 1);
    run(&writer, "DROP VIEW v");
    assert!(reader.query("SELECT * FROM v", ()).is_err());
    run(&writer, "ALTER TABLE t RENAME TO u");
    assert_eq!(number(&reader, "SELECT b FROM u"), 5);
    assert!(prepared.exists((1,)).is_err());
    run(&writer, "DROP TABLE u");
    run(&writer, "CHECKPOINT");
    assert!(reader.query("SELECT * FROM u", ()).is_err());
    assert_eq!(number(&reader, "SELECT count(*) FROM information_schema.tables WHERE table_name IN ('t', 'u')"), 0);
}

#[test]
fn transactions_keep_their_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY)");
    run(&writer, "INSERT INTO t VALUES (1)");
    let reader = reader(&path);
    run(&reader, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 1);
    run(&writer, "INSERT INTO t SELECT x FROM generate_series(2, 10000) AS g (x)");
    run(&writer, "CHECKPOINT");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 1);
    run(&writer, "DROP TABLE t");
    run(&writer, "CHECKPOINT");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 1);
    run(&reader, "COMMIT");
    assert!(reader.query("SELECT count(*) FROM t", ()).is_err());
    run(&reader, "BEGIN ISOLATION LEVEL READ COMMITTED");
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY)");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 0);
    run(&writer, "INSERT INTO t VALUES (1)");
    assert_eq!(number(&reader, "SELECT count(*) FROM t"), 1);
    run(&reader, "ROLLBACK");
}

#[test]
fn changes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)");
    run(&writer, "CREATE SEQUENCE s");
    run(&writer, "INSERT INTO t VALUES (1, 1)");
    let reader = reader(&path);
    let copy = dir.path().join("copy");
    let file = dir.path().join("rows.csv");
    std::fs::write(&file, "id,n\n5,5\n").unwrap();
    let statements = [
        "INSERT INTO t VALUES (2, 2)",
        "INSERT INTO t SELECT 3, 3",
        "UPDATE t SET n = 2",
        "UPDATE t SET n = 2 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "TRUNCATE t",
        "CREATE TABLE u (id INTEGER)",
        "CREATE TABLE u AS SELECT 1 AS x",
        "CREATE TEMP TABLE u (id INTEGER)",
        "CREATE INDEX i ON t (n)",
        "CREATE INDEX CONCURRENTLY i ON t (n)",
        "ALTER TABLE t ADD COLUMN x INTEGER",
        "DROP TABLE t",
        "CREATE SCHEMA other",
        "SELECT nextval('s')",
        "ANALYZE",
        "VACUUM",
        "CHECKPOINT",
        "MERGE INTO t USING (SELECT 1 AS k) AS q ON t.id = q.k WHEN MATCHED THEN DELETE",
        &format!("COPY t FROM '{}'", file.display()),
        &format!("BACKUP DATABASE TO '{}'", copy.display()),
        &format!("IMPORT DATABASE '{}'", dir.path().display()),
    ];
    for sql in statements {
        for begin in [false, true] {
            if begin {
                run(&reader, "BEGIN");
            }
            let error = reader.query(sql, ()).and_then(|mut rows| rows.next().map(|_| ())).unwrap_err();
            let is_outside = begin && error.sqlstate() == SqlState::ACTIVE_SQL_TRANSACTION;
            assert!(is_outside || error.sqlstate() == SqlState::READ_ONLY_SQL_TRANSACTION, "{sql}: {error}");
            if begin {
                run(&reader, "ROLLBACK");
            }
        }
    }
    assert!(matches!(reader.execute("INSERT INTO t VALUES (2, 2)", ()), Err(Error::ReadOnlyDatabase { .. })));
    assert!(!copy.exists());
    run(&reader, "SET default_transaction_read_only = off");
    assert!(reader.execute("INSERT INTO t VALUES (2, 2)", ()).is_err());
    let shown = reader.query_row("SHOW transaction_read_only", (), |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(shown, "on");
    assert_eq!((number(&reader, "SELECT count(*) FROM t"), number(&reader, "SELECT n FROM t")), (1, 1));
    assert_eq!(number(&writer, "SELECT nextval('s')"), 1);
}

/// The indexes of the catalog are those of the writing process, and queries that they would serve read the table.
#[test]
fn in_memory_indexes_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, m INTEGER)");
    run(&writer, "INSERT INTO t SELECT x, x % 100, x FROM generate_series(1, 5000) AS g (x)");
    run(&writer, "CREATE INDEX by_n ON t USING masstree (n)");
    run(&writer, "CREATE UNIQUE INDEX by_m ON t USING vast (m)");
    let reader = reader(&path);
    let queries = [
        "SELECT count(*) FROM t WHERE n = 7",
        "SELECT min(n) FROM t",
        "SELECT id FROM t WHERE m = 77",
        "SELECT count(*) FROM t AS a JOIN t AS b ON a.n = b.n WHERE a.id = 5",
        "SELECT id FROM t WHERE n = 7 ORDER BY n, id LIMIT 1",
        "SELECT sum(id) FROM t WHERE n IN (1, 2)",
    ];
    for sql in queries {
        assert_eq!(number(&reader, sql), number(&writer, sql), "{sql}");
    }
    let prepared = reader.prepare("SELECT count(*) FROM t WHERE n = $1").unwrap();
    assert_eq!(prepared.query_row((9,), |row| row.get::<_, i64>(0)).unwrap(), 50);
    run(&writer, "UPDATE t SET n = 1000 WHERE id = 4");
    run(&writer, "CREATE INDEX again ON t USING masstree (id, n)");
    assert_eq!(number(&reader, "SELECT id FROM t WHERE n = 1000"), 4);
    assert_eq!(
        number(&reader, "SELECT count(*) FROM keyaki_indexes"),
        number(&writer, "SELECT count(*) FROM keyaki_indexes")
    );
    let created = |connection: &Connection| {
        connection.query_row("SHOW CREATE TABLE t", (), |row| row.get::<_, String>(1)).unwrap()
    };
    assert_eq!(created(&reader), created(&writer));
    run(&reader, "EXPLAIN ANALYZE SELECT * FROM t WHERE n = 1");
}

#[test]
fn databases_are_exported_and_checked_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)");
    run(&writer, "CREATE INDEX by_n ON t (n)");
    run(&writer, "INSERT INTO t SELECT x, x FROM generate_series(1, 1000) AS g (x)");
    let reader = reader(&path);
    let dump = dir.path().join("dump");
    run(&reader, &format!("EXPORT DATABASE '{}'", dump.display()));
    let copied = Connection::open_with(dir.path().join("copy"), options()).unwrap();
    run(&copied, &format!("IMPORT DATABASE '{}'", dump.display()));
    assert_eq!(number(&copied, "SELECT sum(n) FROM t"), 500_500);
    assert_eq!(number(&reader, "SELECT count(*) FROM keyaki_damaged"), 0);
    let mut checked = reader.query("CHECK DATABASE", ()).unwrap();
    while let Some(row) = checked.next().unwrap() {
        assert_eq!(row.get::<_, Option<String>>("problem").unwrap(), None);
    }
}

/// Nothing in the directory changes, and large queries spill elsewhere.
#[test]
fn the_directory_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let missing = Connection::open_with(&path, Options { read_only: true, ..options() }).unwrap_err();
    assert!(matches!(missing, Error::NotFound { kind: ObjectKind::Database, .. }), "{missing}");
    assert!(!path.exists());
    let writer = writer(&path);
    run(&writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT)");
    run(&writer, "INSERT INTO t SELECT x, repeat(md5(x::text), 8) FROM generate_series(1, 200000) AS g (x)");
    drop(writer);
    let files = || {
        let mut files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
            .into_iter()
            .map(|file| (file.clone(), std::fs::metadata(&file).unwrap().modified().unwrap()))
            .collect::<Vec<_>>()
    };
    let before = files();
    let reader = reader(&path);
    assert_eq!(
        text(&reader, "SELECT max(s) FROM (SELECT s, id FROM t ORDER BY s DESC, id LIMIT 150000) AS q").len(),
        256
    );
    assert_eq!(files(), before);
    drop(reader);
    assert_eq!(files(), before);
}

/// Sums that transfers keep constant, read while a process transfers, changes definitions and is restarted.
#[test]
fn readers_see_consistent_states() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut writer = writer(&path);
    run(&writer, "CREATE TABLE account (id INTEGER PRIMARY KEY, n BIGINT)");
    run(&writer, "INSERT INTO account SELECT x, 100 FROM generate_series(0, 99) AS g (x)");
    run(&writer, "CREATE TABLE round (n BIGINT PRIMARY KEY)");
    run(&writer, "INSERT INTO round VALUES (0)");
    let (done, stop) = (AtomicI64::new(0), AtomicBool::new(false));
    let database = Database::open(&path, Options { read_only: true, ..options() }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (connection, done, stop) = (database.connect().unwrap(), &done, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let before = done.load(Ordering::SeqCst);
                    let sql = "SELECT (SELECT sum(n) FROM account)::bigint, (SELECT max(n) FROM round)";
                    let row = |row: &keyaki::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
                    let (sum, round) = connection.query_row(sql, (), row).unwrap();
                    assert_eq!(sum, 10_000);
                    assert!(round >= before, "round {round} after {before}");
                }
            });
        }
        for round in 1..120_i64 {
            let (from, to) = (round % 100, (round * 37) % 100);
            run(&writer, "BEGIN");
            writer.execute("UPDATE account SET n = n - 1 WHERE id = $1", (from,)).unwrap();
            writer.execute("UPDATE account SET n = n + 1 WHERE id = $1", (to,)).unwrap();
            writer.execute("UPDATE round SET n = $1", (round,)).unwrap();
            run(&writer, "COMMIT");
            done.store(round, Ordering::SeqCst);
            match round % 20 {
                3 => run(&writer, "CHECKPOINT"),
                7 => run(&writer, "ALTER TABLE account ADD COLUMN c INTEGER"),
                9 => run(&writer, "ALTER TABLE account DROP COLUMN c"),
                12 => run(&writer, "CREATE OR REPLACE VIEW v AS SELECT * FROM round"),
                15 => run(&writer, "VACUUM"),
                18 => {
                    drop(writer);
                    writer = self::writer(&path);
                }
                _ => {}
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

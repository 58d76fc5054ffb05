//! Temporary tables, views and sequences: they belong to one session.

use keyaki::{Connection, Database, Options, Result};
use keyaki_store::TreeId;

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn state(result: Result<u64>) -> String {
    result.map(|_| String::new()).unwrap_or_else(|error| error.sqlstate().code().to_string())
}

fn sessions() -> (Database, Connection, Connection) {
    let database = Database::open_temporary(Options::default()).unwrap();
    let (a, b) = (database.connect().unwrap(), database.connect().unwrap());
    (database, a, b)
}

/// Number of trees on disk.
fn trees(database: &Database) -> usize {
    let snapshot = database.store().snapshot();
    (0..100).filter(|&id| snapshot.tree(TreeId::new(id)).is_ok()).count()
}

#[test]
fn temporary_tables_hide_others_in_their_session_only() {
    let (_database, a, b) = sessions();
    a.execute_batch("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT); INSERT INTO t VALUES (1, 10)").unwrap();
    let prepared = a.prepare("SELECT v FROM t WHERE id = $1").unwrap();
    let by_prepared = || prepared.query_row((1,), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(by_prepared(), 10);
    a.execute_batch(
        "CREATE TEMP TABLE t (id BIGINT PRIMARY KEY, v BIGINT);
         INSERT INTO t VALUES (1, 20);
         CREATE INDEX t_v ON t (v)",
    )
    .unwrap();
    b.execute_batch("CREATE TEMPORARY TABLE t AS SELECT 1::bigint AS id, 30::bigint AS v").unwrap();
    for _ in 0..3 {
        assert_eq!((number(&a, "SELECT v FROM t WHERE id = 1"), by_prepared()), (20, 20));
        assert_eq!(number(&b, "SELECT v FROM t WHERE id = 1"), 30);
        assert_eq!(number(&a, "SELECT id FROM t WHERE v = 20"), 1);
        for connection in [&a, &b] {
            assert_eq!(number(connection, "SELECT v FROM public.t WHERE id = 1"), 10);
        }
    }
    a.execute("UPDATE t SET v = pg_temp.t.v + 1 WHERE temp.t.id = 1", ()).unwrap();
    a.execute("INSERT INTO pg_temp.t VALUES (2, 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v", ()).unwrap();
    assert_eq!(number(&a, "SELECT sum(v) FROM pg_temp.t"), 26);
    let shown: String = a.query_row("SHOW TABLES FROM pg_temp", (), |row| row.get(2)).unwrap();
    assert_eq!(shown, "t");
    assert_eq!(number(&a, "SELECT sum(t.v) FROM t JOIN public.t AS p ON p.id = t.id"), 21);
    assert_eq!(number(&b, "SELECT sum(v) FROM t"), 30);
    let mut appender = a.appender("t").unwrap();
    appender.append_row((3_i64, 100_i64)).unwrap();
    appender.finish().unwrap();
    assert_eq!(number(&a, "SELECT sum(v) FROM t"), 126);
    a.execute("DROP TABLE t", ()).unwrap();
    assert_eq!((number(&a, "SELECT v FROM t WHERE id = 1"), by_prepared()), (10, 10));
    assert_eq!(number(&b, "SELECT v FROM t WHERE id = 1"), 30);
}

#[test]
fn temporary_objects_end_with_their_session() {
    let (database, a, b) = sessions();
    a.execute_batch(
        "CREATE TEMP TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v TEXT UNIQUE);
         CREATE TEMP SEQUENCE s START 5;
         CREATE TEMP VIEW w AS SELECT id, v FROM t;
         CREATE INDEX i ON t USING masstree (v);
         INSERT INTO t (v) VALUES ('a'), ('b')",
    )
    .unwrap();
    assert_eq!((number(&a, "SELECT nextval('s')"), number(&a, "SELECT max(id) FROM w")), (5, 2));
    assert_eq!(state(b.execute("INSERT INTO t (v) VALUES ('c')", ())), "42P01");
    assert_eq!(database.tables().len(), 2);
    let version = number(&b, "SELECT count(*) FROM information_schema.tables WHERE table_schema LIKE 'pg_temp%'");
    assert_eq!(version, 0);
    assert_eq!(number(&a, "SELECT count(*) FROM information_schema.tables WHERE table_schema LIKE 'pg_temp%'"), 2);
    let temporary = "SELECT count(*) FROM information_schema.tables WHERE table_type = 'LOCAL TEMPORARY'";
    assert_eq!((number(&a, temporary) > 0, number(&b, temporary)), (true, 0));
    drop(a);
    b.execute_batch("CREATE TABLE t (id BIGINT)").unwrap();
    assert_eq!(database.tables().len(), 1);
    assert!(database.indexes().is_empty() && database.sequences().is_empty());
    assert_eq!(number(&b, "SELECT count(*) FROM t"), 0);
}

#[test]
fn the_next_process_removes_temporary_objects() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::open(dir.path().join("db"), Options::default()).unwrap();
    let database = open();
    let connection = database.connect().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE kept (a BIGINT PRIMARY KEY);
             INSERT INTO kept VALUES (1);
             CREATE TEMP TABLE t (a BIGINT PRIMARY KEY, b BIGSERIAL);
             CREATE INDEX m ON t USING masstree (b);
             CREATE INDEX d ON t (b);
             CREATE TEMP VIEW v AS SELECT a FROM t;
             INSERT INTO t (a) VALUES (1), (2)",
        )
        .unwrap();
    let with_temporary = trees(&database);
    drop(connection);
    drop(database);
    let database = open();
    assert_eq!((database.tables().len(), with_temporary - trees(&database)), (1, 2));
    let connection = database.connect().unwrap();
    connection.execute_batch("CREATE TEMP TABLE t AS SELECT a + 1 AS b FROM kept").unwrap();
    assert_eq!(number(&connection, "SELECT b FROM t"), 2);
}

#[test]
fn transactions_create_and_remove_temporary_tables() {
    let (_database, a, b) = sessions();
    a.execute_batch("BEGIN; CREATE TEMP TABLE t (v BIGINT); INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(number(&a, "SELECT v FROM t"), 1);
    a.execute_batch("ROLLBACK").unwrap();
    assert_eq!(state(a.execute("DELETE FROM t", ())), "42P01");
    a.execute_batch("BEGIN; CREATE TEMP TABLE t (v BIGINT) ON COMMIT PRESERVE ROWS; INSERT INTO t VALUES (2); COMMIT")
        .unwrap();
    a.execute_batch("BEGIN; SAVEPOINT s; CREATE TEMP TABLE u (v BIGINT); ROLLBACK TO s; COMMIT").unwrap();
    assert_eq!(state(a.execute("DELETE FROM u", ())), "42P01");
    b.execute_batch("BEGIN; CREATE TABLE other (v BIGINT); COMMIT").unwrap();
    assert_eq!(number(&a, "SELECT v FROM t"), 2);
}

#[test]
fn transactions_keep_the_temporary_objects_of_other_sessions() {
    let (database, a, b) = sessions();
    let ended = database.connect().unwrap();
    ended.execute_batch("CREATE TEMP TABLE e (v BIGINT); CREATE TEMP VIEW w AS SELECT v FROM e").unwrap();
    b.execute_batch("CREATE TEMP TABLE old (v BIGINT); CREATE TEMP SEQUENCE s").unwrap();
    a.execute_batch("BEGIN; CREATE TABLE lasting (v BIGINT)").unwrap();
    // Each of these changes the catalog.
    drop(ended);
    b.execute_batch("CREATE TEMP TABLE new (v BIGINT); INSERT INTO new VALUES (3); DROP TABLE old; CREATE TEMP VIEW x AS SELECT v FROM new")
        .unwrap();
    a.execute_batch("COMMIT").unwrap();
    assert_eq!((number(&b, "SELECT v FROM x"), number(&a, "SELECT count(*) FROM lasting")), (3, 0));
    assert_eq!(state(b.execute("DELETE FROM old", ())), "42P01");
    assert_eq!(number(&b, "SELECT nextval('s')"), 1);
    let mut names: Vec<String> = database.tables().into_iter().map(|table| table.name).collect();
    names.sort();
    assert_eq!(names, ["lasting", "new", "x"]);
}

#[test]
fn sessions_that_end_in_a_transaction_leave_nothing() {
    let (database, a, b) = sessions();
    a.execute_batch("CREATE TEMP TABLE t (v BIGINT); BEGIN; CREATE TEMP TABLE u (v BIGINT); INSERT INTO t VALUES (1)")
        .unwrap();
    drop(a);
    b.execute_batch("BEGIN").unwrap();
    assert!(database.tables().is_empty());
    b.execute_batch("COMMIT").unwrap();
}

#[test]
fn search_paths_keep_temporary_objects() {
    let (_database, a, _) = sessions();
    a.execute_batch("CREATE TABLE t (v BIGINT); CREATE SCHEMA s; CREATE TEMP TABLE t AS SELECT 1::bigint AS v")
        .unwrap();
    for setting in ["SET search_path = s", "RESET search_path", "RESET ALL", "SET search_path = DEFAULT"] {
        a.execute_batch(setting).unwrap();
        assert_eq!(number(&a, "SELECT count(*) FROM t"), 1, "{setting}");
    }
    a.execute_batch(
        "CREATE OR REPLACE TEMP VIEW w AS SELECT v FROM t; CREATE OR REPLACE TEMP VIEW w AS SELECT v + 1 AS v FROM t",
    )
    .unwrap();
    assert_eq!(number(&a, "SELECT v FROM w"), 2);
    a.execute_batch("CREATE TEMP TABLE IF NOT EXISTS t (x TEXT)").unwrap();
    assert_eq!(number(&a, "SELECT v FROM t"), 1);
    // Schemas of other sessions.
    for sql in ["CREATE TABLE pg_temp_99.u (v BIGINT)", "CREATE TEMP TABLE pg_temp_99.u (v BIGINT)"] {
        assert_eq!(state(a.execute(sql, ())), "3F000", "{sql}");
    }
    a.execute_batch("SET search_path = pg_temp_99, public; CREATE TABLE u (v BIGINT)").unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM public.u"), 0);
}

#[test]
fn lasting_objects_do_not_use_temporary_ones() {
    let (_database, a, b) = sessions();
    a.execute_batch(
        "CREATE TEMP TABLE t (id BIGINT PRIMARY KEY);
         CREATE TABLE lasting (id BIGINT PRIMARY KEY);
         CREATE TEMP TABLE child (id BIGINT REFERENCES t);
         INSERT INTO t VALUES (1);
         INSERT INTO child VALUES (1)",
    )
    .unwrap();
    let error = |sql: &str| a.execute(sql, ()).expect_err(sql).to_string();
    assert_eq!(
        error("CREATE VIEW v AS SELECT * FROM t"),
        "view \"v\" uses the temporary relation \"t\" (use CREATE TEMPORARY VIEW)"
    );
    assert_eq!(
        error("CREATE TABLE u (id BIGINT REFERENCES t)"),
        "a foreign key cannot connect the permanent table \"u\" and the temporary table \"t\""
    );
    assert_eq!(
        error("CREATE TEMP TABLE u (id BIGINT REFERENCES lasting)"),
        "a foreign key cannot connect the temporary table \"u\" and the permanent table \"lasting\""
    );
    assert_eq!(
        error("CREATE TEMP TABLE public.u (id BIGINT)"),
        "the temporary relation \"u\" cannot be in schema \"public\""
    );
    assert_eq!(state(a.execute("CREATE TABLE u (id BIGINT) ON COMMIT PRESERVE ROWS", ())), "42P16");
    a.execute_batch("CREATE TEMP SEQUENCE s; CREATE TEMP VIEW own AS SELECT id FROM t").unwrap();
    for sql in [
        "CREATE TABLE u (id BIGINT DEFAULT nextval('s'))",
        "ALTER TABLE lasting ALTER COLUMN id SET DEFAULT nextval('pg_temp.s')",
        "CREATE VIEW v AS SELECT nextval('s')",
    ] {
        assert_eq!(error(sql), "a definition cannot use the temporary sequence \"s\"");
    }
    b.execute_batch("CREATE VIEW listed AS SELECT table_name FROM information_schema.tables").unwrap();
    a.execute_batch("CREATE VIEW listed_too AS SELECT table_name FROM information_schema.tables").unwrap();
    assert!(
        b.execute("CREATE TEMP TABLE u (id BIGINT REFERENCES pg_temp_1.t)", ())
            .is_err_and(|error| error.to_string().starts_with("a foreign key cannot connect"))
    );
    assert_eq!(state(b.execute("CREATE TEMP VIEW u AS SELECT * FROM pg_temp_1.t", ())), "42P17");
    a.execute_batch("DROP VIEW own").unwrap();
    assert_eq!(state(a.execute("INSERT INTO child VALUES (2)", ())), "23503");
    assert_eq!(state(a.execute("CREATE SCHEMA pg_temp_1", ())), "42939");
    assert_eq!(state(a.execute("CREATE SCHEMA temp", ())), "42939");
    assert_eq!(state(a.execute("DROP SCHEMA pg_temp_1 CASCADE", ())), "3F000");
    let definition: String = a.query_row("SHOW CREATE TABLE t", (), |row| row.get(1)).unwrap();
    assert!(definition.starts_with("CREATE TABLE pg_temp.t ("), "{definition}");
    a.execute("DROP TABLE child", ()).unwrap();
    a.execute("DROP TABLE t", ()).unwrap();
    a.execute_batch(&definition).unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM t"), 0);
    a.execute("ALTER TABLE t RENAME TO t2", ()).unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM pg_temp.t2"), 0);
}

#[test]
fn the_end_of_a_transaction_deletes_rows() {
    let (_database, a, b) = sessions();
    a.execute_batch(
        "CREATE TEMP TABLE t (id BIGINT PRIMARY KEY, v BIGINT) ON COMMIT DELETE ROWS;
         CREATE INDEX t_v ON t (v);
         CREATE TEMP TABLE kept (v BIGINT) ON COMMIT PRESERVE ROWS;
         INSERT INTO t VALUES (1, 1);
         INSERT INTO kept VALUES (1)",
    )
    .unwrap();
    let rows = || number(&a, "SELECT count(*) FROM t");
    assert_eq!((rows(), number(&a, "SELECT count(*) FROM kept")), (0, 1));
    for _ in 0..3 {
        a.execute_batch("BEGIN; INSERT INTO t VALUES (1, 5), (2, 6)").unwrap();
        assert_eq!((rows(), number(&a, "SELECT id FROM t WHERE v = 6")), (2, 2));
        a.execute_batch("INSERT INTO kept SELECT v FROM t; COMMIT").unwrap();
        assert_eq!(rows(), 0);
        assert_eq!(number(&a, "SELECT count(*) FROM t WHERE v = 6"), 0);
    }
    assert_eq!(number(&a, "SELECT count(*) FROM kept"), 7);
    a.execute_batch("BEGIN; INSERT INTO t VALUES (1, 5); COMMIT AND CHAIN").unwrap();
    assert_eq!(rows(), 0);
    a.execute_batch("INSERT INTO t VALUES (3, 3); ROLLBACK").unwrap();
    assert_eq!(rows(), 0);
    // Prepared statements on the short path, appenders, and loads of many rows.
    let insert = a.prepare("INSERT INTO t VALUES ($1, $2)").unwrap();
    insert.execute((1, 2)).unwrap();
    assert_eq!(rows(), 0);
    let mut appender = a.appender("t").unwrap();
    appender.append_row((3_i64, 100_i64)).unwrap();
    appender.finish().unwrap();
    assert_eq!(rows(), 0);
    a.execute_batch("INSERT INTO t SELECT i, i FROM generate_series(1, 20000) AS n(i)").unwrap();
    assert_eq!(rows(), 0);
    let transaction = a.transaction().unwrap();
    transaction.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 20000) AS n(i)", ()).unwrap();
    assert_eq!(number(&transaction, "SELECT count(*) FROM t"), 20_000);
    transaction.commit().unwrap();
    assert_eq!(rows(), 0);
    // Other sessions are not affected.
    b.execute_batch("CREATE TEMP TABLE t (v BIGINT); INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(number(&b, "SELECT count(*) FROM t"), 1);
    // The clause belongs to the table.
    a.execute_batch("ALTER TABLE t RENAME TO u; BEGIN; INSERT INTO u VALUES (1, 1); COMMIT").unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM u"), 0);
    let definition: String = a.query_row("SHOW CREATE TABLE u", (), |row| row.get(1)).unwrap();
    a.execute_batch(&format!("DROP TABLE u; BEGIN; {definition}; INSERT INTO u VALUES (1, 1); COMMIT")).unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM u"), 0);
}

#[test]
fn rows_that_refer_to_each_other_are_deleted_together() {
    let (_database, a, _) = sessions();
    a.execute_batch(
        "CREATE TEMP TABLE parent (id BIGINT PRIMARY KEY) ON COMMIT DELETE ROWS;
         CREATE TEMP TABLE child (id BIGINT REFERENCES parent) ON COMMIT DELETE ROWS;
         BEGIN; INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1); COMMIT",
    )
    .unwrap();
    assert_eq!(number(&a, "SELECT (SELECT count(*) FROM parent) + (SELECT count(*) FROM child)"), 0);
    let refused = a.execute("CREATE TEMP TABLE other (id BIGINT REFERENCES parent)", ());
    assert_eq!(state(refused), "0A000");
    // One table has rows, and the tables that refer to it have none.
    a.execute_batch(
        "CREATE TEMP TABLE leaf (id BIGINT REFERENCES parent, other BIGINT UNIQUE) ON COMMIT DELETE ROWS;
         CREATE TEMP TABLE own (id BIGINT PRIMARY KEY, up BIGINT REFERENCES own) ON COMMIT DELETE ROWS;
         CREATE TEMP TABLE alone (id BIGINT) ON COMMIT DELETE ROWS;
         BEGIN; INSERT INTO parent VALUES (1); INSERT INTO own VALUES (1, 1); INSERT INTO alone VALUES (1); COMMIT",
    )
    .unwrap();
    for table in ["parent", "own", "alone"] {
        assert_eq!(number(&a, &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    a.execute_batch(
        "BEGIN;
         CREATE TEMP TABLE dropped (id BIGINT REFERENCES parent) ON COMMIT DROP;
         INSERT INTO parent VALUES (1); INSERT INTO dropped VALUES (1); COMMIT",
    )
    .unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM parent"), 0);
    assert_eq!(state(a.execute("DELETE FROM dropped", ())), "42P01");
}

#[test]
fn statements_that_add_no_rows_delete_none() {
    let (_database, a, b) = sessions();
    // The number of rows is unknown after an upsert that reads nothing.
    a.execute_batch(
        "CREATE TEMP TABLE t (id BIGINT PRIMARY KEY, v BIGINT) ON COMMIT DELETE ROWS;
         INSERT INTO t VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    )
    .unwrap();
    b.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let read = std::thread::scope(|scope| {
        let connection = &a;
        scope.spawn(move || sender.send(number(connection, "SELECT count(*) FROM t")).unwrap());
        let read = receiver.recv_timeout(std::time::Duration::from_secs(10));
        b.execute_batch("COMMIT").unwrap();
        read
    });
    assert_eq!(read, Ok(0), "a query waited for the writer lock");
    // Further rows are deleted, also after a rollback to a savepoint.
    a.execute_batch(
        "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (2, 2); ROLLBACK TO s; INSERT INTO t VALUES (3, 3); COMMIT",
    )
    .unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM t"), 0);
}

#[test]
fn the_end_of_a_transaction_drops_tables() {
    let (database, a, _) = sessions();
    a.execute_batch(
        "BEGIN;
         CREATE TEMP TABLE t ON COMMIT DROP AS SELECT 1::bigint AS v;
         CREATE TABLE pg_temp.u (v BIGINT) ON COMMIT DROP;
         CREATE TEMP VIEW w AS SELECT v FROM t;
         CREATE TABLE lasting AS SELECT v FROM w",
    )
    .unwrap();
    assert_eq!(database.tables().len(), 0);
    a.execute_batch("COMMIT").unwrap();
    let names: Vec<String> = database.tables().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["lasting"]);
    assert_eq!(number(&a, "SELECT v FROM lasting"), 1);
    // A statement outside of a transaction is one.
    a.execute_batch("CREATE TEMP TABLE t (v BIGINT) ON COMMIT DROP").unwrap();
    assert_eq!(state(a.execute("DELETE FROM t", ())), "42P01");
    // A rollback removes the table as well, and another one with its name stays.
    a.execute_batch("BEGIN; CREATE TEMP TABLE t (v BIGINT) ON COMMIT DROP; ROLLBACK").unwrap();
    a.execute_batch("CREATE TEMP TABLE t AS SELECT 7::bigint AS v; SELECT 1").unwrap();
    assert_eq!(number(&a, "SELECT v FROM t"), 7);
}

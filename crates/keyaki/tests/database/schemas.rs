//! Schemas where sessions, prepared statements, transactions and reopening matter.

use keyaki::{Connection, Database, Error, Options, Result};

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn state(result: Result<u64>) -> String {
    result.map(|_| String::new()).unwrap_or_else(|error| error.sqlstate().code().to_string())
}

/// Tables with the same name in two schemas.
const TABLES: &str = "
    CREATE SCHEMA s;
    CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT);
    CREATE TABLE s.t (id BIGINT PRIMARY KEY, v BIGINT);
    INSERT INTO t VALUES (1, 10), (2, 20);
    INSERT INTO s.t VALUES (1, 100), (2, 200);";

#[test]
fn cached_plans_belong_to_a_search_path() {
    let database = Database::open_temporary(Options::default()).unwrap();
    let public = database.connect().unwrap();
    public.execute_batch(TABLES).unwrap();
    let other = database.connect().unwrap();
    other.execute_batch("SET search_path = s, public").unwrap();
    let prepared = other.prepare("SELECT v FROM t WHERE id = $1").unwrap();
    for round in 0..5 {
        for (id, of_public, of_other) in [(1, 10, 100), (2, 20, 200)] {
            let sql = format!("SELECT v FROM t WHERE id = {id}");
            assert_eq!(number(&public, &sql), of_public, "round {round}");
            assert_eq!(number(&other, &sql), of_other, "round {round}");
            let value: i64 = prepared.query_row((id,), |row| row.get(0)).unwrap();
            assert_eq!(value, of_other);
        }
        other.execute("UPDATE t SET v = v + 0 WHERE id = 1", ()).unwrap();
        other.execute(&format!("INSERT INTO t VALUES ({}, 0)", 10 + round), ()).unwrap();
    }
    assert_eq!(number(&public, "SELECT count(*) FROM t"), 2);
    assert_eq!(number(&public, "SELECT count(*) FROM s.t"), 7);
    // A prepared statement follows the path of its session, and new tables in front of the old ones.
    other.execute_batch("SET search_path = public").unwrap();
    assert_eq!(prepared.query_row((1,), |row| row.get::<_, i64>(0)).unwrap(), 10);
    other.execute_batch("CREATE SCHEMA front; SET search_path = front, public").unwrap();
    assert_eq!(number(&other, "SELECT v FROM t WHERE id = 1"), 10);
    public.execute_batch("CREATE TABLE front.t AS SELECT 1::bigint AS id, 1000::bigint AS v").unwrap();
    assert_eq!(number(&other, "SELECT v FROM t WHERE id = 1"), 1000);
    assert_eq!(prepared.query_row((1,), |row| row.get::<_, i64>(0)).unwrap(), 1000);
    public.execute_batch("DROP SCHEMA front CASCADE").unwrap();
    assert_eq!(prepared.query_row((1,), |row| row.get::<_, i64>(0)).unwrap(), 10);
}

#[test]
fn schemas_persist() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let open = || Database::open(&path, Options::default()).unwrap();
    {
        let connection = open().connect().unwrap();
        connection.execute_batch(TABLES).unwrap();
        connection
            .execute_batch(
                "CREATE INDEX t_v ON s.t USING masstree (v);
                 CREATE VIEW s.w AS SELECT sum(v) AS v FROM s.t;
                 CREATE SEQUENCE s.q START WITH 5;
                 CREATE TABLE s.child (id BIGINT GENERATED ALWAYS AS IDENTITY, t BIGINT REFERENCES s.t ON DELETE CASCADE);
                 INSERT INTO s.child (t) VALUES (1), (2);
                 ANALYZE s.t;
                 ALTER SCHEMA s RENAME TO r;
                 CREATE SCHEMA s;
                 CREATE TABLE s.t (x BIGINT);",
            )
            .unwrap();
        assert_eq!(connection.database().schemas(), ["r", "s"]);
    }
    let connection = open().connect().unwrap();
    assert_eq!(connection.database().schemas(), ["r", "s"]);
    assert_eq!(number(&connection, "SELECT v FROM r.w"), 300);
    assert_eq!(number(&connection, "SELECT nextval('r.q')"), 5);
    assert_eq!(number(&connection, "SELECT count(*) FROM r.t WHERE v = 100"), 1);
    assert_eq!(number(&connection, "SELECT count(*) FROM s.t"), 0);
    connection.execute("DELETE FROM r.t WHERE id = 1", ()).unwrap();
    assert_eq!(number(&connection, "SELECT max(id) FROM r.child"), 2);
    assert_eq!(number(&connection, "SELECT count(*) FROM r.child"), 1);
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 2);
    connection.execute_batch("DROP SCHEMA r CASCADE; DROP SCHEMA s CASCADE").unwrap();
    drop(connection);
    let connection = open().connect().unwrap();
    assert!(connection.database().schemas().is_empty());
    assert_eq!(number(&connection, "SELECT sum(v)::bigint FROM t"), 30);
}

#[test]
fn definitions_conflict_with_changes_of_schemas() {
    let database = Database::open_temporary(Options::default()).unwrap();
    let (a, b) = (database.connect().unwrap(), database.connect().unwrap());
    a.execute_batch("CREATE SCHEMA s; CREATE TABLE s.t (id BIGINT PRIMARY KEY)").unwrap();
    b.execute_batch("BEGIN; CREATE TABLE s.u (x BIGINT)").unwrap();
    a.execute_batch("DROP SCHEMA s CASCADE").unwrap();
    assert_eq!(state(b.execute("COMMIT", ())), "40001");
    a.execute_batch("CREATE SCHEMA s").unwrap();
    // An empty schema, and a sequence.
    b.execute_batch("BEGIN; CREATE TABLE s.u (x BIGINT)").unwrap();
    a.execute_batch("DROP SCHEMA s").unwrap();
    assert_eq!(state(b.execute("COMMIT", ())), "40001");
    b.execute_batch("BEGIN; CREATE TABLE u (x BIGINT)").unwrap();
    a.execute_batch("CREATE SEQUENCE q").unwrap();
    assert_eq!(state(b.execute("COMMIT", ())), "40001");
    assert_eq!(number(&b, "SELECT nextval('q')"), 1);
    // Changes of rows do not conflict with other schemas.
    a.execute_batch("CREATE TABLE t (x BIGINT)").unwrap();
    b.execute_batch("BEGIN; INSERT INTO t VALUES (1)").unwrap();
    a.execute_batch("CREATE SCHEMA s").unwrap();
    b.execute_batch("COMMIT").unwrap();
    assert_eq!(number(&a, "SELECT count(*) FROM t"), 1);
}

#[test]
fn programs_name_tables_with_schemas() {
    let database = Database::open_temporary(Options::default()).unwrap();
    let connection = database.connect().unwrap();
    connection.execute_batch(TABLES).unwrap();
    connection.execute_batch("CREATE SCHEMA \"S\"; CREATE TABLE \"S\".\"a.b\" (x BIGINT)").unwrap();
    for (table, id) in [("t", 7_i64), ("s.t", 7)] {
        let mut appender = connection.appender(table).unwrap();
        appender.append_row((id, 1_i64)).unwrap();
        appender.finish().unwrap();
    }
    let mut appender = connection.appender("\"S\".\"a.b\"").unwrap();
    appender.append_row((1_i64,)).unwrap();
    appender.finish().unwrap();
    assert_eq!(number(&connection, "SELECT count(*) FROM s.t WHERE id = 7"), 1);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE id = 7"), 1);
    assert_eq!(number(&connection, "SELECT count(*) FROM \"S\".\"a.b\""), 1);
    assert_eq!(database.columns("s.t").unwrap(), database.columns("t").unwrap());
    assert!(matches!(connection.appender("x.t"), Err(Error::NotFound { .. })));
    let names: Vec<_> = database.tables().into_iter().map(|info| (info.schema, info.name)).collect();
    let expected = [("S", "a.b"), ("public", "t"), ("s", "t")];
    assert_eq!(names, expected.map(|(schema, name)| (schema.to_string(), name.to_string())));
}

#[test]
fn shown_definitions_recreate_objects() {
    let connection = Database::open_temporary(Options::default()).unwrap().connect().unwrap();
    connection.execute_batch(TABLES).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE s.child (id BIGINT REFERENCES s.t, other BIGINT UNIQUE REFERENCES t, n BIGINT GENERATED ALWAYS AS IDENTITY);
             CREATE INDEX child_id ON s.child (id);
             COMMENT ON TABLE s.child IS 'a child';
             COMMENT ON INDEX s.child_id IS 'an index';
             COMMENT ON SEQUENCE s.child_n_seq IS 'a sequence'",
        )
        .unwrap();
    let script = || -> String { connection.query_row("SHOW CREATE TABLE s.child", (), |row| row.get(1)).unwrap() };
    let before = script();
    connection.execute_batch("DROP TABLE s.child").unwrap();
    connection.execute_batch(&before).unwrap();
    assert_eq!(script(), before);
    assert!(before.contains("REFERENCES s.t (id)") && before.contains("REFERENCES t (id)"), "{before}");
}

#[test]
fn errors_have_the_codes_of_postgresql() {
    let connection = Database::open_temporary(Options::default()).unwrap().connect().unwrap();
    connection.execute_batch(TABLES).unwrap();
    for (sql, code) in [
        ("CREATE SCHEMA s", "42P06"),
        ("CREATE SCHEMA pg_temp", "42939"),
        ("CREATE TABLE x.t (a INT)", "3F000"),
        ("DROP SCHEMA x", "3F000"),
        ("CREATE TABLE s.t (a INT)", "42P07"),
        ("SELECT * FROM x.t", "42P01"),
        ("INSERT INTO x.t VALUES (1)", "42P01"),
        ("DROP TABLE x.t", "42P01"),
        ("DROP SCHEMA s", "2BP01"),
        ("SELECT s.t.id FROM public.t", "42P01"),
        ("SELECT t.id FROM t, s.t", "42P09"),
        ("SELECT t.* FROM t, s.t", "42P09"),
        ("UPDATE t SET v = 1 FROM s.t WHERE t.id = 1", "42P09"),
        ("DELETE FROM t USING s.t WHERE t.id = s.t.id", "42P09"),
        ("SELECT id FROM t, s.t", "42702"),
        ("SELECT public.t.id FROM t, s.t, (SELECT 1) AS t", "42712"),
        ("CREATE TABLE information_schema.t (a INT)", "3F000"),
    ] {
        assert_eq!(state(connection.execute(sql, ())), code, "{sql}");
    }
    connection.execute_batch("SET search_path = x").unwrap();
    assert_eq!(state(connection.execute("CREATE TABLE y (a INT)", ())), "3F000");
    assert_eq!(state(connection.execute("UPDATE t SET v = 1", ())), "42P01");
}

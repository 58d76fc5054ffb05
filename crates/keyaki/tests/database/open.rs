//! Opening of databases: existing and missing ones, and directories and files that are not databases.

use keyaki::{Database, Error, ObjectKind, Options};
use keyaki_device::calibrate::Calibration;

fn options() -> Options {
    Options { memory_bytes: Some(32 << 20), threads: Some(1), ..Options::default() }
}

async fn one_number(database: &Database, sql: &str) -> i64 {
    let batches = database.session().query(sql).await.unwrap().collect().await.unwrap();
    arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(batches[0].column(0)).value(0)
}

#[tokio::test]
async fn closed_and_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    {
        let database = Database::create(&path, options()).unwrap();
        let session = database.session();
        session.execute("CREATE TABLE t (x BIGINT PRIMARY KEY); INSERT INTO t VALUES (1), (2)").await.unwrap();
    }
    let must_exist = Options { must_exist: true, ..options() };
    let database = Database::open(&path, must_exist).unwrap();
    assert_eq!(one_number(&database, "SELECT sum(x) FROM t").await, 3);
    assert_eq!(database.path(), path);
}

#[tokio::test]
async fn statistics_of_infinite_numbers_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    {
        let database = Database::open(dir.path(), options()).unwrap();
        let session = database.session();
        let script = "CREATE TABLE t (i BIGINT PRIMARY KEY, d DOUBLE PRECISION, r REAL);
             INSERT INTO t SELECT value, CASE value % 4 WHEN 0 THEN 'Infinity' WHEN 1 THEN '-Infinity' WHEN 2 THEN 'NaN' ELSE value::TEXT END::DOUBLE PRECISION,
             CASE value % 3 WHEN 0 THEN 'Infinity' WHEN 1 THEN '-Infinity' ELSE '1.5' END::REAL FROM generate_series(1, 100) AS g(value);
             ANALYZE";
        session.execute(script).await.unwrap();
    }
    let database = Database::open(dir.path(), options()).unwrap();
    assert_eq!(one_number(&database, "SELECT count(*) FROM t WHERE d = 'Infinity' AND r < 0").await, 9);
    assert_eq!(one_number(&database, "SELECT count(*) FROM t WHERE d < 10 AND r > 2").await, 9);
}

#[tokio::test]
async fn rowids_continue_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    for n in 1..=3 {
        let database = Database::open(dir.path(), options()).unwrap();
        let session = database.session();
        session.execute("CREATE TABLE IF NOT EXISTS t (x INT); INSERT INTO t VALUES (1), (1)").await.unwrap();
        assert_eq!(one_number(&database, "SELECT count(*) FROM t").await, 2 * n);
    }
}

#[test]
fn open_requires_and_create_rejects_an_existing_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let must_exist = Options { must_exist: true, ..options() };
    let error = Database::open(&path, must_exist).unwrap_err();
    assert!(matches!(error, Error::NotFound { kind: ObjectKind::Database, .. }), "{error}");
    assert!(!path.exists());
    drop(Database::open(&path, options()).unwrap());
    let error = Database::create(&path, options()).unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { kind: ObjectKind::Database, .. }), "{error}");
}

#[test]
fn a_database_is_opened_only_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    let error = Database::open(dir.path(), options()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(error.to_string().contains("is locked"), "{error}");
    let another_handle = database.clone();
    drop(database);
    assert!(Database::open(dir.path(), options()).is_err());
    drop(another_handle);
    assert!(Database::open(dir.path(), options()).is_ok());
}

#[test]
fn other_files_and_directories_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let note = dir.path().join("note.txt");
    std::fs::write(&note, "mine").unwrap();
    for path in [dir.path(), &note] {
        let error = Database::open(path, options()).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "mine");
    std::fs::remove_file(&note).unwrap();
    std::fs::write(dir.path().join("data"), vec![7; 1 << 20]).unwrap();
    let error = Database::open(dir.path(), options()).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
}

#[test]
fn too_little_memory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = Database::open(dir.path().join("db"), Options { memory_bytes: Some(1000), ..options() }).unwrap_err();
    assert!(
        error.to_string() == "invalid value for parameter \"memory\": \"1000\" (expected at least 16777216 bytes)",
        "{error}"
    );
}

#[test]
fn calibration_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    assert_eq!(*database.calibration(), Calibration::assumed());
    database.set_calibration(Calibration::assumed()).unwrap();
    assert!(dir.path().join("calibration.json").exists());
    drop(database);
    std::fs::write(dir.path().join("calibration.json"), "nonsense").unwrap();
    assert_eq!(*Database::open(dir.path(), options()).unwrap().calibration(), Calibration::assumed());
}

#[tokio::test]
async fn leftovers_of_spilled_queries_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(Database::open(dir.path(), options()).unwrap());
    let leftover = dir.path().join("tmp").join("spilled");
    std::fs::write(&leftover, "x").unwrap();
    drop(Database::open(dir.path(), options()).unwrap());
    assert!(!leftover.exists());
}

#[tokio::test]
async fn definitions_as_sql_recreate_the_objects() {
    let dir = tempfile::tempdir().unwrap();
    let first = Database::open(dir.path().join("a"), options()).unwrap();
    let script = "
        CREATE TABLE plain (x INT);
        CREATE TABLE \"Odd one\" (\"select\" VARCHAR(3) NOT NULL DEFAULT 'a''b', b DECIMAL(12,2), PRIMARY KEY (b, \"select\"));
        CREATE TABLE t (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ, u TEXT UNIQUE);
        CREATE INDEX t_ts ON t (ts) INCLUDE (u);
        CREATE UNIQUE INDEX t_memory ON t USING masstree (u, ts) INCLUDE (id);
        CREATE VIEW v AS SELECT id, count(*) AS n FROM t GROUP BY id";
    first.session().execute(script).await.unwrap();
    let second = Database::open(dir.path().join("b"), options()).unwrap();
    for table in first.tables().iter().filter(|t| !t.is_view) {
        second.session().execute(&table.sql).await.unwrap();
    }
    for index in first.indexes() {
        second.session().execute(&index.sql).await.unwrap();
    }
    for view in first.tables().iter().filter(|t| t.is_view) {
        second.session().execute(&view.sql).await.unwrap();
    }
    let definitions = |database: &Database| -> Vec<String> {
        let tables = database.tables().into_iter().map(|t| t.sql);
        tables.chain(database.indexes().into_iter().map(|i| i.sql)).collect()
    };
    assert_eq!(definitions(&first), definitions(&second));
    assert_eq!(first.columns("v").unwrap(), [("id".into(), "BIGINT".into()), ("n".into(), "BIGINT".into())]);
    assert_eq!(first.columns("Odd one").unwrap()[0], ("select".into(), "VARCHAR(3)".into()));
    assert!(matches!(first.columns("nix"), Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn on_the_simulated_device() {
    let simulated = keyaki_device::simulated::Simulated::new(Default::default());
    let on_it = || Options { device: Some(simulated.device()), ..options() };
    let path = std::path::Path::new("/db");
    {
        let database = Database::open(path, on_it()).unwrap();
        let session = database.session();
        session.execute("CREATE TABLE t (x BIGINT); INSERT INTO t VALUES (5)").await.unwrap();
    }
    simulated.crash();
    let database = Database::open(path, on_it()).unwrap();
    assert_eq!(one_number(&database, "SELECT x FROM t").await, 5);
    assert!(!path.exists());
}

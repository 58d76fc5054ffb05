//! In-memory indexes: rebuilt at opening, limited by the memory budget, read as of a snapshot, and unusable if the
//! build fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::StreamExt;
use keyaki::Progress;
use keyaki::{ConstraintKind, Database, Error, IndexInfo, IndexMethod, Options, Outcome, Session};

fn options() -> Options {
    Options {
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    }
}

async fn number(session: &Session, sql: &str) -> i64 {
    let batches = session.query(sql).await.unwrap().collect().await.unwrap();
    batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

fn index(database: &Database, name: &str) -> IndexInfo {
    database.indexes().into_iter().find(|index| index.name == name).expect("the index")
}

async fn fill(session: &Session, rows: u64) {
    session.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT NOT NULL, b TEXT)").await.unwrap();
    for first in (1..=rows).step_by(30_000) {
        let last = rows.min(first + 29_999);
        let values = "SELECT value, value * 7919 % 1000, 'text ' || value";
        session.execute(&format!("INSERT INTO t {values} FROM generate_series({first}, {last})")).await.unwrap();
    }
}

async fn plan(session: &Session, sql: &str) -> String {
    let batches = session.query(&format!("EXPLAIN {sql}")).await.unwrap().collect().await.unwrap();
    batches
        .iter()
        .map(|batch| arrow::util::pretty::pretty_format_batches(std::slice::from_ref(batch)).unwrap().to_string())
        .collect()
}

#[derive(Debug, Default)]
struct Counted(AtomicU64);

impl Progress for Counted {
    fn start(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, rows: u64) {
        self.0.fetch_add(rows, Ordering::Relaxed);
    }
    fn finish(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_are_rebuilt_when_the_database_opens() {
    const ROWS: u64 = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let created = {
        let database = Database::open(dir.path(), options()).unwrap();
        let session = database.session();
        fill(&session, ROWS).await;
        session
            .execute(
                "CREATE INDEX t_a ON t USING masstree (a) INCLUDE (b); CREATE UNIQUE INDEX t_b ON t USING masstree (b)",
            )
            .await
            .unwrap();
        // These changes are only in the log.
        session.execute("DELETE FROM t WHERE a = 5; UPDATE t SET a = 2000 WHERE a = 6").await.unwrap();
        let created = index(&database, "t_a");
        assert!(created.build_time.is_some() && created.problem.is_none());
        created
    };
    let progress = Arc::new(Counted::default());
    let database = Database::open(dir.path(), Options { progress: Some(progress.clone()), ..options() }).unwrap();
    assert_eq!(progress.0.load(Ordering::Relaxed), ROWS - 50);
    let opened = index(&database, "t_a");
    assert_eq!((opened.method, opened.entries, &opened.sql), (IndexMethod::Masstree, ROWS - 50, &created.sql));
    assert!(opened.bytes > 20 * ROWS && opened.depth >= 3, "{opened:?}");
    assert!(opened.layers.is_some() && opened.build_time.is_some());
    let session = database.session();
    assert!(plan(&session, "SELECT b FROM t WHERE a = 5").await.contains("ScanExec: t.t_a"));
    assert!(plan(&session, "SELECT * FROM t WHERE b = 'text 777'").await.contains("driver=t.t_b"));
    assert_eq!(number(&session, "SELECT count(*) FROM t WHERE a = 5").await, 0);
    assert_eq!(number(&session, "SELECT count(b) FROM t WHERE a = 2000").await, 50);
    assert_eq!(number(&session, "SELECT id FROM t WHERE b = 'text 777'").await, 777);
    let error = session.execute("INSERT INTO t VALUES (100000, 1, 'text 777')").await.unwrap_err();
    assert!(matches!(error, Error::Constraint { kind: ConstraintKind::Unique, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_read_their_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    let session = database.session();
    fill(&session, 30_000).await;
    session.execute("CREATE INDEX t_a ON t USING masstree (a)").await.unwrap();
    for (order, gone) in [("ASC", "a % 2 = 0"), ("DESC", "a % 5 = 1")] {
        let before = number(&session, "SELECT count(*) FROM t WHERE a >= 0").await;
        let sql = format!("SELECT a FROM t WHERE a >= 0 ORDER BY a {order}");
        let Outcome::Rows(mut rows) = session.query(&sql).await.unwrap() else { panic!("rows") };
        let first = rows.next().await.unwrap().unwrap().num_rows();
        let other = database.session();
        other
            .execute(&format!("DELETE FROM t WHERE {gone}; UPDATE t SET a = a + 10000 WHERE a % 3 = 0"))
            .await
            .unwrap();
        let mut seen = first;
        while let Some(batch) = rows.next().await {
            seen += batch.unwrap().num_rows();
        }
        assert_eq!(seen as i64, before);
        assert!(number(&other, "SELECT count(*) FROM t WHERE a >= 0").await < before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_stay_within_the_memory_budget() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options { memory_bytes: Some(16 << 20), ..options() };
    let large = Options { memory_bytes: Some(512 << 20), ..options() };
    {
        let database = Database::open(dir.path(), small.clone()).unwrap();
        let session = database.session();
        fill(&session, 200_000).await;
        let error = session.execute("CREATE INDEX t_b ON t USING masstree (b, a, id)").await.unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(database.indexes().is_empty());
        session.execute("INSERT INTO t VALUES (0, 0, 'still possible')").await.unwrap();
    }
    {
        let database = Database::open(dir.path(), large).unwrap();
        database.session().execute("CREATE INDEX t_b ON t USING masstree (b, a, id)").await.unwrap();
        assert_eq!(index(&database, "t_b").entries, 200_001);
    }
    // With less memory the index is unusable. The table can be read, and changed after the index is dropped.
    let database = Database::open(dir.path(), small).unwrap();
    let session = database.session();
    assert!(index(&database, "t_b").problem.unwrap().contains("out of memory"));
    assert_eq!(number(&session, "SELECT count(*) FROM t WHERE b = 'text 5' AND a = 595").await, 1);
    for sql in ["INSERT INTO t VALUES (-1, 0, 'x')", "DELETE FROM t WHERE id = 1", "UPDATE t SET a = 1 WHERE id = 1"] {
        let error = session.execute(sql).await.unwrap_err();
        assert!(error.to_string().contains("could not be built in memory"), "{error}");
    }
    session.execute("DROP INDEX t_b; INSERT INTO t VALUES (-1, 0, 'x')").await.unwrap();
}

/// Damages a page of the table's first leaf.
fn damage(dir: &Path) {
    let path = dir.join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    let text = bytes.windows(5).position(|window| window == b"text ").expect("a page of the table");
    bytes[text] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_a_damaged_table_opens_without_its_indexes() {
    let dir = tempfile::tempdir().unwrap();
    {
        let session = Database::open(dir.path(), options()).unwrap().session();
        fill(&session, 50_000).await;
        session.execute("CREATE INDEX t_b ON t USING masstree (b); CHECKPOINT").await.unwrap();
    }
    damage(dir.path());
    let database = Database::open(dir.path(), options()).unwrap();
    let session = database.session();
    assert!(index(&database, "t_b").problem.unwrap().contains("corrupt"));
    // Undamaged pages are readable.
    assert_eq!(number(&session, "SELECT count(b) FROM t WHERE id > 45000").await, 5000);
    assert!(session.query("SELECT count(b) FROM t").await.unwrap().collect().await.is_err());
}

/// A flush that finds a damaged page stops the changes of its table only. The view names it, and it can be dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_table_is_listed_and_can_be_dropped() {
    let dir = tempfile::tempdir().unwrap();
    {
        let session = Database::open(dir.path(), options()).unwrap().session();
        fill(&session, 50_000).await;
        session.execute("CREATE TABLE other (id BIGINT PRIMARY KEY); CHECKPOINT").await.unwrap();
    }
    damage(dir.path());
    let database = Database::open(dir.path(), options()).unwrap();
    let session = database.session();
    let damaged = "SELECT count(*) FROM keyaki_damaged WHERE table_name = 't' AND index_name IS NULL
        AND problem LIKE '%corrupt%' AND low_key < high_key";
    assert_eq!(number(&session, damaged).await, 0);
    // Blind upserts do not read the page: the flushes that move them to leaves do.
    let mut refused = None;
    for _ in 0..100 {
        let upserts = "INSERT INTO t SELECT value, 1, 'x' FROM generate_series(0, 20000)
            ON CONFLICT (id) DO UPDATE SET a = t.a + excluded.a; CHECKPOINT";
        if let Err(error) = session.execute(upserts).await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("a refused change");
    assert_eq!(error.sqlstate().code(), "XX001", "{error}");
    assert_eq!(number(&session, damaged).await, 1);
    session.execute("INSERT INTO other VALUES (1); CHECKPOINT").await.unwrap();
    assert_eq!(number(&session, "SELECT count(b) FROM t WHERE id > 45000").await, 5000);
    session.execute("DROP TABLE t; CHECKPOINT").await.unwrap();
    assert_eq!(number(&session, "SELECT count(*) FROM keyaki_damaged").await, 0);
}

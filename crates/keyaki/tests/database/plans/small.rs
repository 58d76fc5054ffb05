//! Plans of small statements in every state of the trees: they use an index, and the estimate is within a factor of
//! four of the actual number of rows (16 rows more for few rows, which pages at the ends of ranges cannot tell apart).
//! Nothing is analysed.

use keyaki::{Database, Durability, Options, Session, Value};

use super::{explain, rows};

const ROWS: i64 = 60_000;

/// Ten rows for each `k`, except that every eighth row has `k` = -1.
fn k_of(id: i64) -> i64 {
    if id % 8 == 0 { -1 } else { id / 10 }
}

/// Queries, with a word of the expected plan.
const SHAPES: [(&str, &str); 7] = [
    ("SELECT c FROM t WHERE id = 12345", "ScanExec: t"),
    ("SELECT c FROM t WHERE k = 700", "driver=t.t_k"),
    ("SELECT id FROM t WHERE k = 700", "ScanExec: t.t_k"),
    ("SELECT c FROM t WHERE k = 99999999", "driver=t.t_k"),
    ("SELECT id, c FROM t WHERE k BETWEEN 100 AND 104", "driver=t.t_k"),
    ("SELECT c FROM t WHERE id BETWEEN 5000 AND 5100", "ScanExec: t"),
    ("SELECT a.c, b.c FROM t AS a JOIN t AS b ON b.id = a.k WHERE a.k = 321", "driver="),
];

fn options() -> Options {
    let store = keyaki_store::Options { buffer_bytes: 512 << 10, ..keyaki_store::Options::default() };
    Options { store: Some(store), durability: Durability::Off, ..Options::default() }
}

async fn check(session: &Session, state: &str) {
    for (sql, expected) in SHAPES {
        let plan = explain(session, sql).await;
        let actual = rows(session, sql).await.expect("rows").len() as f64;
        assert!(plan.contains(expected), "{state}: {sql}\n{plan}");
        let line = plan.lines().find(|line| line.contains(expected) || line.contains("est_rows=")).unwrap_or_default();
        let Some(estimate) = line.split("est_rows=").nth(1) else { continue };
        let number: String = estimate.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let estimate: f64 = number.parse().expect("a number");
        let within = (actual / 4.0 - 1.0..=actual * 4.0 + 16.0).contains(&estimate);
        assert!(within, "{state}: {estimate} rows estimated, {actual} actual: {sql}\n{plan}");
    }
}

async fn insert(session: &Session, ids: impl Iterator<Item = i64>) {
    let statement = session.prepare("INSERT INTO t VALUES ($1, $2, $3)").await.expect("a statement");
    for id in ids {
        let values = [Value::Integer(id), Value::Integer(k_of(id)), Value::Text(format!("row {id:>60}"))];
        statement.query(session, &values).await.expect("an insert");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_statements_use_indexes_in_every_state() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("db");
    let tables = "CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c TEXT); CREATE INDEX t_k ON t (k)";

    // All rows in buffers.
    let large = Options { store: Some(keyaki_store::Options::default()), ..options() };
    let session = Database::create(directory.path().join("buffers"), large).expect("a database").session();
    session.execute(tables).await.expect("a table");
    insert(&session, 0..ROWS).await;
    check(&session, "all rows in buffers").await;
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await.expect("a count"), [ROWS.to_string()]);

    // Small buffers: most rows are in runs and leaves. The order of the keys is a permutation.
    let session = Database::create(&path, options()).expect("a database").session();
    session.execute(tables).await.expect("a table");
    insert(&session, (0..ROWS).map(|i| i * 7919 % ROWS)).await;
    check(&session, "flushed in part").await;
    session.execute("CHECKPOINT").await.expect("a checkpoint");
    check(&session, "after a checkpoint").await;
    drop(session);
    let session = Database::open(&path, options()).expect("a database").session();
    check(&session, "reopened").await;

    // Deletes of every third row but the rows that the queries find.
    let sql = "DELETE FROM t WHERE id % 3 = 0 AND k NOT IN (700, 321) AND k NOT BETWEEN 100 AND 104
               AND id NOT BETWEEN 5000 AND 5100 AND id <> 12345";
    session.execute(sql).await.expect("deletes");
    check(&session, "after many deletes").await;
    let counted = rows(&session, "SELECT count(*) FROM t").await.expect("a count");
    session.execute("CHECKPOINT").await.expect("a checkpoint");
    check(&session, "after many deletes and a checkpoint").await;
    session.execute("SET keyaki.join = 'scan'").await.expect("a setting");
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await.expect("a count"), counted);
}

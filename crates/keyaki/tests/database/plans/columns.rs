//! Scans keep the columns in use in memory: which pages further statements read, and that rows stay right whatever columns
//! the cached pages have.

use keyaki::{Database, Durability, Options, Session};

use super::{MODES, rows, set};

const ROWS: i64 = 20_000;

/// A table of many leaves. Column `c` takes most of each page.
async fn table(directory: &tempfile::TempDir) -> (Database, Session) {
    let store = keyaki_store::Options { leaf_bytes: 128 << 10, ..keyaki_store::Options::default() };
    let options = Options { store: Some(store), durability: Durability::Off, ..Options::default() };
    let database = Database::create(directory.path().join("db"), options).expect("a database");
    let session = database.session();
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT NOT NULL, b BIGINT, c TEXT);
         INSERT INTO t SELECT value, value * 7919 % {ROWS}, value % 100, md5(value::TEXT) || md5((-value)::TEXT)
            FROM generate_series(1, {ROWS});
         CHECKPOINT; ANALYZE t"
    );
    session.execute(&script).await.expect("a table");
    (database, session)
}

/// Pages that a statement reads from the device.
async fn pages_read(session: &Session, sql: &str) -> f64 {
    let plan = rows(session, &format!("EXPLAIN ANALYZE {sql}")).await.expect("a plan").join("\n");
    let number = |rest: &str| {
        let (number, unit) =
            rest.split_once([',', ']'])?.0.split_once(' ').unwrap_or((rest.split([',', ']']).next()?, ""));
        Some(number.parse::<f64>().ok()? * if unit == "K" { 1000.0 } else { 1.0 })
    };
    let counts: Vec<f64> = plan.split("pages_read=").skip(1).map(|rest| number(rest).expect("a number")).collect();
    assert!(!counts.is_empty(), "{plan}");
    counts.iter().sum()
}

#[tokio::test]
async fn scans_read_pages_again_for_other_columns() {
    let directory = tempfile::tempdir().expect("a directory");
    let (database, session) = table(&directory).await;
    database.drop_caches();
    let all = pages_read(&session, "SELECT sum(a) FROM t").await;
    assert!(all > 100.0, "{all} pages");
    assert_eq!(pages_read(&session, "SELECT max(a), min(id) FROM t WHERE a > 5").await, 0.0);
    let again = pages_read(&session, "SELECT sum(b) FROM t").await;
    assert!(again > 0.5 * all && again <= all, "{again} of {all} pages");
    // They have all columns now.
    assert_eq!(pages_read(&session, "SELECT sum(a), min(c) FROM t").await, 0.0);
    assert_eq!(pages_read(&session, "SELECT sum(a + b) FROM t").await, 0.0);
}

#[tokio::test]
async fn scans_of_one_plan_keep_the_columns_of_each_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let (database, session) = table(&directory).await;
    set(&session, ("scan", "out_of_order")).await;
    database.drop_caches();
    let all = pages_read(&session, "SELECT sum(a) FROM t").await;
    database.drop_caches();
    let join = "SELECT count(*) FROM t AS x JOIN t AS y ON y.a = x.b WHERE x.b < 10";
    let read = pages_read(&session, join).await;
    assert!(read >= all && read < 1.2 * all, "{read} pages, the table has {all}");
}

#[tokio::test]
async fn pages_with_some_columns_have_the_right_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let (database, session) = table(&directory).await;
    let changes = [
        "INSERT INTO t VALUES (0, 0, 0, '') ON CONFLICT (id) DO UPDATE SET a = t.a + 1",
        "INSERT INTO t SELECT value * 50, 1, 0, '' FROM generate_series(1, 400) ON CONFLICT (id) DO UPDATE SET a = t.a + excluded.a",
        "UPDATE t SET b = -1 WHERE id % 300 = 0",
        "DELETE FROM t WHERE id % 700 = 0",
        "ALTER TABLE t ADD COLUMN d BIGINT DEFAULT 5",
        "UPDATE t SET d = 6 WHERE id % 1000 = 1",
    ];
    for change in changes {
        session.execute(change).await.expect(change);
    }
    let queries = [
        "SELECT sum(a), count(*) FROM t",
        "SELECT sum(d), min(d), max(d) FROM t WHERE a > 100",
        "SELECT sum(b) FROM t WHERE d = 5",
        "SELECT max(c), count(d) FROM t WHERE b = 7",
        "SELECT id, a, b, c, d FROM t WHERE id = 5050",
        "SELECT a, d FROM t WHERE id BETWEEN 995 AND 1005 ORDER BY id DESC",
        "SELECT sum(x.a), sum(y.d) FROM t AS x JOIN t AS y ON y.id = x.a WHERE x.b = 3",
        "SELECT id, d FROM t ORDER BY id DESC LIMIT 3 OFFSET 9000",
    ];
    for first in queries {
        let mut expected = None;
        for mode in MODES {
            set(&session, mode).await;
            database.drop_caches();
            let mut found = vec![rows(&session, first).await.expect(first)];
            for query in queries {
                found.push(rows(&session, query).await.expect(query));
            }
            assert_eq!(expected.get_or_insert_with(|| found.clone()), &found, "{mode:?}, first {first}");
        }
    }
}

//! Vast indexes, summaries and first rows: plans, locators after reopening, and answers compared with those of scans.

use arrow::util::pretty::pretty_format_batches;
use keyaki::{Database, IndexMethod, Options, Session};

async fn text(session: &Session, sql: &str) -> String {
    let rows = session.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")).collect().await;
    pretty_format_batches(&rows.unwrap_or_else(|error| panic!("{sql}: {error}"))).unwrap().to_string()
}

fn options() -> Options {
    let store = keyaki_store::Options {
        cache_bytes: 4 << 20,
        buffer_bytes: 64 << 10,
        page_bytes: 4096,
        leaf_bytes: 32 << 10,
        fan_out: 4,
        node_buffer_bytes: 128 << 10,
        runs_per_node: 3,
        ..keyaki_store::Options::default()
    };
    Options { store: Some(store), memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() }
}

const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b BIGINT NOT NULL, c TEXT, d DOUBLE, e DATE)";

async fn filled(database: &Database) -> Session {
    let session = database.session();
    session.execute(TABLE).await.unwrap();
    let rows = "INSERT INTO t SELECT value, CASE WHEN value % 7 = 0 THEN NULL ELSE value % 50 END, value * 37 % 1000, \
                CASE WHEN value % 11 = 0 THEN NULL ELSE 'c' || value % 13 END, value % 5 / 2.0, \
                CASE WHEN value % 3 = 0 THEN NULL ELSE CAST(to_timestamp(value * 3600) AS DATE) END \
                FROM generate_series(1, 6000)";
    session.execute(rows).await.unwrap();
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_statistics_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path().join("db"), options()).unwrap();
    let session = filled(&database).await;
    session.execute("CREATE INDEX t_b ON t USING vast (b) WITH (goal = 'fast', memory = '1 MiB')").await.unwrap();
    session.execute("CREATE INDEX t_e ON t USING vast (e)").await.unwrap();
    let check = |database: &Database| {
        let indexes = database.indexes();
        let (b, e) = (&indexes[0], &indexes[1]);
        assert_eq!((b.name.as_str(), b.method, b.problem.as_deref()), ("t_b", IndexMethod::Vast, None));
        let located = b.located().unwrap();
        assert_eq!((located.rows, located.pages_missing, located.pages_held), (6000, 0, located.pages));
        assert!(located.pages > 2 && b.memory_bytes() > located.bytes_held && b.memory_bytes() <= 1 << 20);
        assert_eq!(b.sql, "CREATE INDEX t_b ON t USING vast (b) WITH (goal = 'fast', memory = '1 MiB')");
        let located = e.located().unwrap();
        assert_eq!((located.rows, located.pages_held), (6000, 0));
        assert!(!located.displacement.regions.is_empty());
        assert_eq!(e.sql, "CREATE INDEX t_e ON t USING vast (e)");
    };
    check(&database);
    let taken = database.store().stats().locator_bytes;
    assert!(taken > 0);
    let count = "SELECT count(*), min(b), max(b), max(e) FROM t WHERE b >= 100 AND b < 300";
    let plan = text(&session, &format!("EXPLAIN {count}")).await;
    assert!(!plan.contains("SummaryExec"), "t_b does not contain e:\n{plan}");
    let plan = text(&session, "EXPLAIN SELECT count(*), min(b), max(b) FROM t WHERE b >= 100 AND b < 300").await;
    let expected = "SummaryExec: count of t.t_b using vast [1 range], first b of t.t_b using vast [1 range], last b of";
    assert!(plan.contains(expected), "{plan}");
    let plan = text(&session, "EXPLAIN SELECT b, id FROM t WHERE b = 7 ORDER BY id").await;
    assert!(plan.contains("ScanExec: t.t_b using vast, ranges=1") && !plan.contains("SortExec"), "{plan}");
    let plan = text(&session, "EXPLAIN SELECT * FROM t WHERE b = 7").await;
    assert!(plan.contains("driver=t.t_b using vast"), "{plan}");
    let plan = text(&session, "EXPLAIN ANALYZE SELECT max(e), count(e) FROM t").await;
    assert!(plan.contains("last e of t.t_e using vast [1 range], count of t.t_e using vast [1 range]"), "{plan}");
    drop((session, database));

    let database = Database::open(dir.path().join("db"), options()).unwrap();
    check(&database);
    let session = database.session();
    session.execute("DROP INDEX t_b").await.unwrap();
    assert!(database.store().stats().locator_bytes < taken);
    session.execute("DROP TABLE t").await.unwrap();
    assert_eq!(database.store().stats().locator_bytes, 0);
}

/// Computes every aggregate over every filter, as a summary and from rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn summaries_equal_aggregates_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path().join("db"), options()).unwrap();
    let session = filled(&database).await;
    for index in [
        "CREATE INDEX t_a ON t (a)",
        "CREATE INDEX t_ab ON t USING masstree (a, b)",
        "CREATE INDEX t_b ON t USING vast (b)",
        "CREATE INDEX t_cb ON t (c, b)",
        "CREATE INDEX t_d ON t (d)",
        "CREATE INDEX t_e ON t USING vast (e, a)",
    ] {
        session.execute(index).await.unwrap();
    }
    // Summaries include messages in buffers.
    session.execute("DELETE FROM t WHERE id BETWEEN 1000 AND 1200 OR b = 0 OR e > '1970-08-20'").await.unwrap();
    session.execute("UPDATE t SET a = 99, e = '1960-01-01' WHERE id = 17").await.unwrap();
    session
        .execute("INSERT INTO t VALUES (7001, -5, 5000, NULL, 1e300, NULL), (7002, NULL, -1, '', -0.0, '2030-01-01')")
        .await
        .unwrap();
    let aggregates = [
        "count(*)",
        "count(1)",
        "count(NULL)",
        "count(a)",
        "count(b)",
        "count(c)",
        "min(a)",
        "max(a)",
        "min(b)",
        "max(b)",
        "min(c)",
        "max(c)",
        "min(d)",
        "max(d)",
        "min(e)",
        "max(e)",
        "min(id)",
        "max(id)",
        "count(DISTINCT a)",
        "sum(b)",
        "count(*) FILTER (WHERE a > 3)",
        "max(a + 1)",
    ];
    let filters = [
        "true",
        "a = 5",
        "a > 45",
        "a IS NULL",
        "a IS NOT NULL",
        "a IN (3, 9, 70)",
        "b BETWEEN 100 AND 120",
        "b < 0",
        "b = 5000",
        "c = 'c3'",
        "c IS NULL",
        "c > 'c5' AND c < 'c9'",
        "c = 'c3' AND b > 500",
        "d = 0",
        "e < '1970-02-01'",
        "e IS NULL",
        "a = 5 AND b > 300",
        "id = 77",
        "id > 5990",
        "id < 0",
        "a = 5 OR a = 7",
        "b % 2 = 0",
        "a = 99",
        "e >= '1960-01-01' AND e < '1970-01-10' AND a = 1",
    ];
    let mut summaries = 0;
    for filter in filters {
        for pair in aggregates.chunks(2) {
            for select in [pair[0].to_string(), pair.join(", ")] {
                let sql = format!("SELECT {select} FROM t AS x WHERE {filter}");
                session.execute("SET keyaki.join = 'scan'").await.unwrap();
                let expected = text(&session, &sql).await;
                session.execute("RESET keyaki.join").await.unwrap();
                assert_eq!(text(&session, &sql).await, expected, "{sql}");
                summaries += usize::from(text(&session, &format!("EXPLAIN {sql}")).await.contains("SummaryExec"));
            }
        }
    }
    assert!(summaries > 100, "{summaries} summaries");
    session.execute("SET keyaki.execution = 'in_order'").await.unwrap();
    let nested = "SELECT (SELECT max(b) FROM t), (SELECT count(*) FROM t WHERE a = 5) + 1, n FROM \
                  (SELECT count(*) AS n FROM t HAVING count(*) > 3) AS s";
    let summarized = text(&session, nested).await;
    session.execute("SET keyaki.join = 'scan'").await.unwrap();
    assert_eq!(summarized, text(&session, nested).await);
}

/// Compares the first rows found through an index with those found by sorting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_rows_equal_sorted_rows() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path().join("db"), options()).unwrap();
    let session = filled(&database).await;
    for index in [
        "CREATE INDEX t_a ON t (a)",
        "CREATE INDEX t_b ON t USING vast (b)",
        "CREATE INDEX t_cb ON t USING masstree (c, b)",
        "CREATE INDEX t_e ON t USING vast (e, a)",
    ] {
        session.execute(index).await.unwrap();
    }
    session.execute("DELETE FROM t WHERE id BETWEEN 1000 AND 1200 OR b = 0").await.unwrap();
    session.execute("UPDATE t SET b = b + 2000, e = '1960-01-01' WHERE id % 500 = 1").await.unwrap();
    let found = [
        "SELECT * FROM t ORDER BY b, id LIMIT 10",
        "SELECT * FROM t ORDER BY b DESC, id DESC LIMIT 10",
        "SELECT x.id + 1, x.c, x.d FROM t AS x ORDER BY x.b, x.id LIMIT 10 OFFSET 7",
        "SELECT * FROM t WHERE b > 990 ORDER BY b, id LIMIT 12",
        "SELECT * FROM t WHERE b > 990 AND b < 980 ORDER BY b, id LIMIT 12",
        "SELECT * FROM t WHERE b > 100000 ORDER BY b LIMIT 12",
        "SELECT * FROM t WHERE c = 'c7' ORDER BY b DESC, id DESC LIMIT 9",
        "SELECT * FROM t WHERE b IN (7, 300, 500) ORDER BY b DESC, id DESC LIMIT 40",
        "SELECT * FROM t ORDER BY a NULLS FIRST, id LIMIT 10",
        "SELECT * FROM t ORDER BY a, id LIMIT 10",
        "SELECT * FROM t ORDER BY a DESC, id DESC LIMIT 10",
        "SELECT * FROM t WHERE a > 48 OR a IS NULL ORDER BY a, id LIMIT 20",
        "SELECT * FROM t WHERE a >= 48 ORDER BY a DESC, id DESC LIMIT 20",
        "SELECT * FROM t WHERE a IS NULL ORDER BY a DESC, id DESC LIMIT 20",
        "SELECT * FROM t WHERE e = '1970-03-01' ORDER BY a, id LIMIT 20",
        "SELECT * FROM t ORDER BY a DESC NULLS LAST, id DESC LIMIT 10",
        "SELECT * FROM t WHERE e = '1970-03-01' ORDER BY a DESC NULLS LAST, id DESC LIMIT 10",
        "SELECT id, c FROM t ORDER BY e NULLS FIRST, a NULLS FIRST, id LIMIT 20",
    ];
    let sorted = [
        "SELECT count(*) FROM (SELECT * FROM t ORDER BY b LIMIT 10) AS s",
        "SELECT * FROM t ORDER BY e, a, id LIMIT 10",
        "SELECT * FROM t ORDER BY b, id DESC LIMIT 10",
        "SELECT * FROM t ORDER BY b + 1, id LIMIT 10",
        "SELECT * FROM t WHERE d > 1 ORDER BY b, id LIMIT 10",
        "SELECT * FROM t WHERE b IN (7, 300) ORDER BY id LIMIT 10",
        "SELECT * FROM t WHERE c = 'c7' ORDER BY id LIMIT 10",
        "SELECT b, id FROM t ORDER BY b, id LIMIT 10",
        "SELECT b FROM (SELECT b, d FROM t ORDER BY b DESC LIMIT 25) AS s",
        "SELECT * FROM t ORDER BY b, id",
        "SELECT id FROM t WHERE b IN (300, 7) ORDER BY id",
        "SELECT b, id FROM t WHERE b IN (300, 7) ORDER BY id DESC",
        "SELECT id, a FROM t WHERE e = '1970-03-01' AND a IN (20, 10, 5) ORDER BY a DESC, id DESC",
        "SELECT id, a FROM t WHERE e IN ('1970-03-01', '1970-02-01') AND a = 20 ORDER BY a, id",
    ];
    for execution in ["out_of_order", "in_order"] {
        session.execute(&format!("SET keyaki.execution = '{execution}'")).await.unwrap();
        for (sql, by_index) in found.iter().map(|sql| (sql, true)).chain(sorted.iter().map(|sql| (sql, false))) {
            session.execute("SET keyaki.join = 'scan'").await.unwrap();
            let expected = text(&session, sql).await;
            session.execute("RESET keyaki.join").await.unwrap();
            assert_eq!(text(&session, sql).await, expected, "{sql}");
            let plan = text(&session, &format!("EXPLAIN {sql}")).await;
            // In-order lookups may cost more than a scan of the small table.
            let expected = by_index && (execution == "out_of_order" || plan.contains("FirstRowsExec"));
            assert_eq!(plan.contains("FirstRowsExec"), expected, "{sql}\n{plan}");
        }
    }
}

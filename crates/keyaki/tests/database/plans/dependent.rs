//! Plans of correlated subqueries and of joins that other operators drive.

use keyaki::{Database, Session};

use super::random::{options, run};
use super::{compare, explain, rows};

async fn fill(session: &Session) {
    for sql in [
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT, total BIGINT)",
        "CREATE INDEX orders_customer ON orders (customer)",
        "CREATE TABLE items (id BIGINT, line INT, qty INT, price BIGINT, PRIMARY KEY (id, line))",
        "INSERT INTO orders SELECT i, i % 2000, i * 7 % 1000 FROM generate_series(1, 20000) s(i)",
        "INSERT INTO items SELECT 1 + (i - i % 4) / 4, i % 4, i % 13, i * 3 % 1000 FROM generate_series(0, 79999) s(i)",
        "CHECKPOINT",
        "ANALYZE",
    ] {
        run(session, sql).await;
    }
}

async fn database() -> (tempfile::TempDir, Session) {
    let directory = tempfile::tempdir().expect("a directory");
    let database = Database::create(directory.path().join("db"), options()).expect("a new database");
    let session = database.session();
    fill(&session).await;
    (directory, session)
}

/// Checks that the plan of a query, whose costs decide, has some texts and lacks others. All modes return the same rows.
async fn check(session: &Session, sql: &str, present: &[&str], absent: &[&str]) {
    compare(session, sql).await;
    super::set(session, ("auto", "out_of_order")).await;
    let plan = explain(session, sql).await;
    for text in present {
        assert!(plan.contains(text), "{text} is not in the plan of {sql}:\n{plan}");
    }
    for text in absent {
        assert!(!plan.contains(text), "{text} is in the plan of {sql}:\n{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correlated_subqueries_of_few_rows_are_lookups() {
    let (_directory, session) = database().await;
    let few = "FROM orders o WHERE o.customer = 7";
    for subquery in [
        "SELECT max(i.qty) FROM items i WHERE i.id = o.id",
        "SELECT max(i.qty) FROM items i WHERE i.id = o.id AND i.price < o.total",
        "SELECT i.qty FROM items i WHERE i.id = o.id AND i.price < o.total ORDER BY i.price DESC LIMIT 1",
        "SELECT count(*) FROM items i WHERE i.id = o.id AND i.price > (SELECT avg(price) FROM items j WHERE j.id = o.id)",
    ] {
        let sql = format!("SELECT o.id, ({subquery}) AS x {few}");
        check(&session, &sql, &["driver=input[rows] → items", "MaterializeExec"], &["ScanExec: items"]).await;
    }
    let lateral = "SELECT o.id, x.qty FROM orders o, LATERAL (SELECT i.qty FROM items i WHERE i.id = o.id ORDER BY \
                   i.price LIMIT 2) x WHERE o.customer = 7";
    check(&session, lateral, &["driver=input[rows] → items"], &["ScanExec: items", "ScanExec: orders,"]).await;
    let limited = "SELECT q.id, (SELECT count(*) FROM items i WHERE i.id = q.id AND i.price < q.total) AS n FROM \
                   (SELECT * FROM orders ORDER BY total, id LIMIT 9) q";
    check(&session, limited, &["driver=input[rows] → items"], &["ScanExec: items"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outer_query_is_evaluated_once() {
    let (_directory, session) = database().await;
    let sql = "SELECT o.id, (SELECT count(*) FROM items i WHERE i.id = o.id AND i.price < o.total) FROM orders o WHERE \
               o.total < 500";
    let plan = explain(&session, sql).await;
    assert_eq!(plan.matches("Exec: orders").count(), 1, "{plan}");
    // A filter above applies before the subquery.
    let above = format!("SELECT * FROM ({sql}) q (id, n) WHERE id = 77");
    check(&session, &above, &["MaterializeExec"], &["ranges=all"]).await;
    let random =
        "SELECT count(*) FROM (SELECT random() AS r FROM orders) q, LATERAL (SELECT q.r AS r) x WHERE q.r = x.r";
    assert_eq!(rows(&session, random).await.expect("rows"), ["20000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn semi_and_anti_joins_are_lookups() {
    let (_directory, session) = database().await;
    for (not, step) in [("", "semi items as i(id = "), ("NOT ", "anti items as i(id = ")] {
        for condition in ["i.id = o.id", "i.id = o.id AND i.qty > 9", "i.id = o.id AND i.price > o.total"] {
            let exists = format!("{not}EXISTS (SELECT 1 FROM items i WHERE {condition})");
            let sql = format!("SELECT o.id, o.total FROM orders o WHERE o.customer = 7 AND {exists}");
            check(&session, &sql, &[step], &["ScanExec: items", "HashJoinExec"]).await;
        }
    }
    let both = "SELECT o.id FROM orders o JOIN orders p ON p.id = o.id + 1 WHERE o.customer < 3 AND EXISTS (SELECT 1 FROM \
                items i WHERE i.id = o.id AND i.price < p.total) AND NOT EXISTS (SELECT 1 FROM items j WHERE j.id = \
                p.id AND j.qty = 3)";
    check(&session, both, &["semi items as i", "anti items as j"], &["ScanExec: items"]).await;
    // A scan is cheaper for all rows.
    let all = "SELECT count(*) FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.id = o.id AND i.qty > 9)";
    compare(&session, all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_operators_drive_lookups() {
    let (_directory, session) = database().await;
    for source in [
        "(VALUES (CAST(3 AS BIGINT)), (30), (300)) v(x)",
        "(SELECT max(id) AS x FROM orders WHERE customer = 7) v",
        "(SELECT DISTINCT total AS x FROM orders WHERE customer = 7) v",
        "(SELECT id AS x FROM orders WHERE customer = 7 ORDER BY total LIMIT 3) v",
        "(SELECT id AS x FROM orders WHERE customer = 7 UNION SELECT id FROM orders WHERE customer = 8) v",
    ] {
        let joined = format!("SELECT v.x, i.qty FROM {source} JOIN items i ON i.id = v.x AND i.line < 2");
        check(&session, &joined, &["driver=v[rows] → items as i(id = v."], &["ScanExec: items"]).await;
        let outer = format!("SELECT v.x, o.total FROM {source} LEFT JOIN orders o ON o.id = v.x AND o.total > 300");
        // The source may scan the table.
        check(&session, &outer, &["driver=v[rows] → outer orders as o(id = v."], &[]).await;
    }
    let recursive = "WITH RECURSIVE r AS (SELECT CAST(1 AS BIGINT) AS id UNION ALL SELECT i.id + 97 FROM r JOIN items i ON \
                     i.id = r.id AND i.line = 0) SELECT count(*), sum(id) FROM r";
    check(&session, recursive, &["RecursiveQueryExec", "driver=input[rows] → items as i"], &["ScanExec: items"]).await;
}

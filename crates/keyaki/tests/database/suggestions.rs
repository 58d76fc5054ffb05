//! Suggestions of indexes, compared with the plans and times after the indexes were created.

use keyaki::{Database, Error, IndexSuggestions, Options, Session};

/// Tables of 60,000 and 40,000 rows with statistics.
async fn open() -> (tempfile::TempDir, Session) {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("db"), Options::default()).unwrap();
    let session = database.session();
    let sql = "CREATE TABLE customer (PRIMARY KEY (id)) AS
             SELECT value AS id, 'customer ' || value AS name, value % 50 AS city, value % 9973 AS code
             FROM generate_series(1, 40000);
         CREATE TABLE orders (PRIMARY KEY (id)) AS
             SELECT value AS id, value * 7919 % 40000 + 1 AS customer, DATE '2024-01-01' + (value % 1000)::INT AS placed,
                    value % 3 AS status, value / 4.0 AS total, 'note of order ' || value AS note
             FROM generate_series(1, 60000);
         ANALYZE";
    session.execute(sql).await.unwrap();
    (directory, session)
}

async fn suggest(session: &Session, sql: &str) -> IndexSuggestions {
    session.suggest_indexes(sql).await.unwrap()
}

fn statements(suggestions: &IndexSuggestions) -> Vec<&str> {
    suggestions.indexes.iter().map(|index| index.sql.as_str()).collect()
}

/// Checks that the suggested indexes help as much as they must once they exist, and that they are not suggested again. (The
/// pages of a new index are not in the cache, so that its times are not those of the estimate.)
async fn check(session: &Session, sql: &str, expected: &[&str]) -> IndexSuggestions {
    let suggested = suggest(session, sql).await;
    assert_eq!(statements(&suggested), expected, "{sql}: {suggested:#?}");
    let last = suggested.indexes.last().map_or(suggested.seconds, |index| index.seconds);
    assert!(suggested.indexes.is_empty() || last <= 0.9 * suggested.seconds, "{sql}: {suggested:#?}");
    for index in &suggested.indexes {
        session.execute(&index.sql).await.unwrap();
    }
    let with = suggest(session, sql).await;
    let is_known = |sql: &str| suggested.indexes.iter().any(|known| known.sql == sql);
    assert!(!with.indexes.iter().any(|index| is_known(&index.sql)), "{sql}: {with:#?}");
    assert!(with.seconds <= 0.9 * suggested.seconds, "{sql}: {} s, then {} s", suggested.seconds, with.seconds);
    // The same operators, also with the figures that differ.
    let operators = |plan: &str| -> Vec<String> {
        plan.lines().map(|line| line.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect()).collect()
    };
    if with.indexes.is_empty() {
        assert_eq!(operators(&suggested.plan), operators(&with.plan), "{}\n{}", suggested.plan, with.plan);
    }
    for index in &suggested.indexes {
        let name = index.sql.split_whitespace().nth(2).unwrap();
        session.execute(&format!("DROP INDEX {name}")).await.unwrap();
    }
    suggested
}

#[tokio::test]
async fn filters_orders_and_joins() {
    let (_directory, session) = open().await;
    let customer = "CREATE INDEX orders_customer_idx ON orders (customer)";
    check(&session, "SELECT * FROM orders WHERE customer = 42", &[customer]).await;
    check(
        &session,
        "SELECT sum(total) FROM orders WHERE status = 1 AND placed BETWEEN '2024-02-01' AND '2024-02-10'",
        &["CREATE INDEX orders_status_placed_idx ON orders (status, placed) INCLUDE (total)"],
    )
    .await;
    check(
        &session,
        "SELECT * FROM orders ORDER BY placed DESC LIMIT 5",
        &["CREATE INDEX orders_placed_idx ON orders (placed)"],
    )
    .await;
    let join = "SELECT o.id, o.total FROM customer c JOIN orders o ON o.customer = c.id WHERE c.code = 77";
    let found = check(&session, join, &[customer, "CREATE INDEX customer_code_idx ON customer (code)"]).await;
    assert_eq!(found.indexes[0].table, "orders");
    assert!(found.indexes[0].bytes > 100_000 && found.indexes[1].seconds < found.indexes[0].seconds);
    assert!(found.plan.contains("IndexPipelineExec"), "{}", found.plan);
    // Changes have the suggestions for the rows that they find.
    check(&session, "DELETE FROM orders WHERE customer = 42", &[customer]).await;
    check(&session, "EXPLAIN UPDATE orders SET total = 0 WHERE customer = 42", &[customer]).await;
}

#[tokio::test]
async fn nothing_to_suggest() {
    let (_directory, session) = open().await;
    for sql in [
        "SELECT * FROM orders WHERE id = 42",
        "SELECT count(*) FROM orders",
        "SELECT sum(total) FROM orders WHERE status IS NOT NULL",
        "SELECT 1",
        "SELECT * FROM keyaki_store",
    ] {
        let suggested = suggest(&session, sql).await;
        assert!(suggested.indexes.is_empty(), "{sql}: {suggested:#?}");
        assert!(!suggested.plan.is_empty() && suggested.seconds >= 0.0, "{sql}");
    }
    for sql in ["CREATE TABLE t (a INT)", "CHECKPOINT", "INSERT INTO customer VALUES (0, 'x', 1, 1)"] {
        let error = session.suggest_indexes(sql).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{sql}: {error}");
    }
    assert!(matches!(session.suggest_indexes("SELECT $1").await, Err(Error::UndefinedParameter { .. })));
    assert!(session.suggest_indexes("SELECT * FROM nothing").await.is_err());
    assert!(session.suggest_indexes("SELECT 1; SELECT 2").await.is_err());
}

#[tokio::test]
async fn views_subqueries_and_transactions() {
    let (_directory, session) = open().await;
    session.execute("CREATE VIEW large AS SELECT * FROM orders WHERE total > 10").await.unwrap();
    let customer = ["CREATE INDEX orders_customer_idx ON orders (customer)"];
    let in_view = suggest(&session, "SELECT * FROM large WHERE customer = 42").await;
    assert_eq!(statements(&in_view), customer);
    let sql = "SELECT name, (SELECT max(total) FROM orders o WHERE o.customer = c.id) FROM customer c WHERE id = 3";
    let in_subquery = suggest(&session, sql).await;
    assert!(in_subquery.indexes.iter().any(|index| index.sql.contains("orders (customer)")), "{in_subquery:#?}");
    // A table of the open transaction.
    let own = "BEGIN; CREATE TABLE own AS SELECT value AS a, value % 30000 AS b FROM generate_series(1, 60000)";
    session.execute(own).await.unwrap();
    let found = suggest(&session, "SELECT a FROM own WHERE b = 7").await;
    assert!(found.indexes.len() == 1 && found.indexes[0].sql.contains("ON own (b)"), "{found:#?}");
    session.execute("COMMIT").await.unwrap();
    let indexes = session.query("SELECT count(*) FROM pg_indexes WHERE indexname LIKE '%idx'").await.unwrap();
    let indexes = indexes.collect().await.unwrap();
    let count = arrow::util::display::array_value_to_string(indexes[0].column(0), 0).unwrap();
    assert_eq!(count, "0", "nothing is created");
}

/// A table whose sample the store keeps.
#[tokio::test]
async fn large_tables_are_sampled() {
    let directory = tempfile::tempdir().unwrap();
    let session = Database::open(directory.path().join("db"), Options::default()).unwrap().session();
    let sql = "CREATE TABLE big (PRIMARY KEY (id)) AS
             SELECT value AS id, value * 7919 % 1000003 AS key, value % 10 AS part, 'text ' || value AS text
             FROM generate_series(1, 400000)";
    session.execute(sql).await.unwrap();
    check(&session, "SELECT * FROM big WHERE key = 5", &["CREATE INDEX big_key_idx ON big (key)"]).await;
    check(
        &session,
        "SELECT text FROM big WHERE part = 3 AND key < 1000",
        &["CREATE INDEX big_part_key_idx ON big (part, key)"],
    )
    .await;
}

//! Attached databases: queries over several databases equal those over one.

use std::path::Path;

use arrow::util::pretty::pretty_format_batches;
use keyaki::{Connection, Error, Options, SqlState};

fn open(path: impl AsRef<Path>) -> Connection {
    let options = Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() };
    Connection::open_with(path, options).unwrap()
}

fn answer(connection: &Connection, sql: &str) -> String {
    let batches = connection.query_arrow(sql, ()).and_then(|rows| rows.collect::<Result<Vec<_>, _>>());
    let batches = batches.unwrap_or_else(|error| panic!("{sql}: {error}"));
    pretty_format_batches(&batches).unwrap().to_string()
}

fn failure(connection: &Connection, sql: &str) -> Error {
    match connection.execute_batch(sql) {
        Ok(()) => panic!("{sql} has succeeded"),
        Err(error) => error,
    }
}

const CUSTOMERS: &str = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT, city TEXT);
     INSERT INTO customers SELECT value, 'customer ' || value, 'city ' || value % 100 FROM generate_series(1, 3000);
     CREATE INDEX customers_city ON customers (city); ANALYZE";
const ORDERS: &str =
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, total DECIMAL(10, 2), doubled DECIMAL(10, 2)
     GENERATED ALWAYS AS (total * 2) STORED);
     INSERT INTO orders SELECT value, value * 7919 % 3000 + 1, value % 1000 / 100.0 FROM generate_series(1, 30000);
     CREATE INDEX orders_customer ON orders (customer);
     CREATE INDEX orders_large ON orders (customer) WHERE total > 9;
     CREATE VIEW large AS SELECT * FROM orders WHERE total > 9;
     CREATE VIEW larger AS SELECT * FROM large WHERE total > 9.5;
     CREATE SCHEMA sales;
     CREATE TABLE sales.items (id BIGINT PRIMARY KEY, ordered BIGINT, amount INTEGER);
     INSERT INTO sales.items SELECT value, value % 30000 + 1, value % 7 FROM generate_series(1, 40000);
     CREATE INDEX items_ordered ON sales.items (ordered);
     CREATE VIEW sales.amounts AS SELECT o.customer, i.amount FROM sales.items i JOIN orders o ON o.id = i.ordered;
     ANALYZE";

/// Queries of one database; `@` stands before the names of relations that are in the attached database.
const QUERIES: [&str; 16] = [
    "SELECT count(*), sum(total) FROM @orders",
    "SELECT * FROM @orders WHERE id = 17",
    "SELECT id FROM @orders WHERE customer = 17 ORDER BY id",
    "SELECT min(customer), max(customer) FROM @orders",
    "SELECT id, total FROM @orders ORDER BY customer, id LIMIT 5",
    "SELECT customer, count(*) FROM @orders GROUP BY customer ORDER BY 2 DESC, 1 LIMIT 5",
    "SELECT c.name, o.id FROM customers c JOIN @orders o ON o.customer = c.id WHERE c.city = 'city 7' ORDER BY 1, 2",
    "SELECT name, orders.id FROM customers JOIN @orders ON customer = customers.id WHERE city = 'city 9' ORDER BY 1, 2",
    "SELECT count(*), sum(i.amount) FROM customers c JOIN @orders o ON o.customer = c.id
     JOIN @sales.items i ON i.ordered = o.id WHERE c.city IN ('city 1', 'city 2')",
    "SELECT c.id, o.id FROM customers c LEFT JOIN @orders o ON o.customer = c.id AND o.total > 9.9
     WHERE c.id BETWEEN 10 AND 30 ORDER BY 1, 2",
    "SELECT count(*) FROM customers c WHERE EXISTS (SELECT FROM @orders o WHERE o.customer = c.id AND o.total > 9.95)",
    "SELECT count(*) FROM customers c WHERE id NOT IN (SELECT customer FROM @orders WHERE total > 2)",
    "SELECT max(total), count(*), sum(doubled) FROM @larger",
    "SELECT sum(amount) FROM @sales.amounts JOIN customers ON id = customer WHERE city = 'city 3'",
    "WITH o AS (SELECT * FROM @orders WHERE total < 1) SELECT count(*) FROM o a JOIN o b USING (customer)",
    "SELECT o.id, c.name FROM @orders o JOIN customers c ON c.id = o.customer WHERE o.id BETWEEN 100 AND 120 ORDER BY 1",
];

/// A query with the names of relations of an attached database `archive`.
fn attached(sql: &str) -> String {
    sql.replace("@sales.", "archive.sales.").replace('@', "archive.")
}

fn databases(directory: &Path) -> (Connection, Connection, String) {
    let both = open(directory.join("both"));
    both.execute_batch(CUSTOMERS).and_then(|()| both.execute_batch(ORDERS)).unwrap();
    let orders = open(directory.join("orders"));
    orders.execute_batch(ORDERS).unwrap();
    let url = format!("file://{}/bucket/orders", directory.display());
    std::fs::create_dir(directory.join("bucket")).unwrap();
    orders.execute_batch(&format!("PUBLISH DATABASE TO '{url}'")).unwrap();
    let customers = open(directory.join("customers"));
    customers.execute_batch(CUSTOMERS).unwrap();
    (both, customers, url)
}

#[test]
fn queries_over_two_databases_equal_those_over_one() {
    let directory = tempfile::tempdir().unwrap();
    let (both, customers, url) = databases(directory.path());
    let local = directory.path().join("orders").display().to_string();
    for location in [url, local] {
        customers.execute_batch(&format!("ATTACH '{location}' AS archive")).unwrap();
        for settings in
            ["", "SET keyaki.join = 'index'", "SET keyaki.join = 'scan'", "SET keyaki.execution = 'in_order'"]
        {
            [&both, &customers].iter().for_each(|connection| connection.execute_batch(settings).unwrap());
            for sql in QUERIES {
                let expected = answer(&both, &sql.replace('@', ""));
                assert_eq!(answer(&customers, &attached(sql)), expected, "{sql} {settings} {location}");
            }
            [&both, &customers].iter().for_each(|connection| connection.execute_batch("RESET ALL").unwrap());
        }
        customers.execute_batch("DETACH archive").unwrap();
        assert_eq!(failure(&customers, "SELECT * FROM archive.orders").sqlstate(), SqlState::UNDEFINED_TABLE);
    }
}

#[test]
fn rows_of_one_database_drive_lookups_in_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let (_, customers, url) = databases(directory.path());
    customers.execute_batch(&format!("ATTACH '{url}' AS archive; SET keyaki.join = 'index'")).unwrap();
    let sql = "SELECT c.name, i.amount FROM customers c JOIN archive.orders o ON o.customer = c.id
               JOIN archive.sales.items i ON i.ordered = o.id WHERE c.city = 'city 7'";
    let plan = answer(&customers, &format!("EXPLAIN {sql}"));
    let outer = plan.find("driver=c[rows]").unwrap_or_else(|| panic!("{plan}"));
    let steps = plan[outer..].find("o.orders_customer").or_else(|| plan[outer..].find("orders.orders_customer"));
    assert!(steps.is_some() && plan.contains("customers.customers_city"), "{plan}");
    let analyzed = answer(&customers, &format!("EXPLAIN ANALYZE {sql}"));
    assert!(analyzed.contains("object_store archive") && analyzed.contains("requests="), "{analyzed}");
}

#[test]
fn tables_with_one_name_are_different_tables() {
    let directory = tempfile::tempdir().unwrap();
    let (both, customers, url) = databases(directory.path());
    drop(customers);
    both.execute_batch(&format!("ATTACH '{url}' AS archive; DELETE FROM orders WHERE id > 10")).unwrap();
    let count = |sql: &str| both.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM orders"), 10);
    assert_eq!(count("SELECT count(*) FROM archive.orders"), 30_000);
    assert_eq!(count("SELECT count(*) FROM archive.public.orders"), 30_000);
    assert_eq!(count("SELECT count(*) FROM orders JOIN archive.orders USING (id)"), 10);
    assert_eq!(count("SELECT count(*) FROM orders a JOIN archive.orders b ON a.id = b.id AND a.total = b.total"), 10);
    assert_eq!(count("SELECT (SELECT count(*) FROM large) + (SELECT count(*) FROM archive.large)"), 2_970);
    let sql = "SELECT sum(n) FROM (SELECT count(*) n FROM orders UNION ALL SELECT count(*) FROM archive.orders)";
    assert_eq!(count(&format!("SELECT ({sql})::BIGINT")), 30_010);
    assert_eq!(count("SELECT count(*) FROM orders, archive.orders WHERE public.orders.id = archive.orders.id"), 10);
    assert_eq!(failure(&both, "SELECT orders.id FROM orders, archive.orders").sqlstate(), SqlState::AMBIGUOUS_ALIAS);
    both.execute_batch("SET search_path = archive, public").unwrap();
    assert_eq!(count("SELECT count(*) FROM orders"), 30_000);
    assert_eq!(count("SELECT count(*) FROM customers"), 3_000);
    both.execute_batch("RESET search_path").unwrap();
    let described = answer(&both, "DESCRIBE archive.orders");
    assert!(described.contains("doubled") && described.contains("DECIMAL(10,2)"), "{described}");
    let shown = answer(&both, "SELECT name, location, version FROM keyaki_attached");
    assert!(shown.contains("archive") && shown.contains(&url) && shown.contains("| 1 "), "{shown}");
}

#[test]
fn attached_databases_are_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let (both, customers, url) = databases(directory.path());
    drop(customers);
    both.execute_batch(&format!("ATTACH '{url}' AS archive (READ_ONLY)")).unwrap();
    for sql in [
        "INSERT INTO archive.orders (id) VALUES (1000000)",
        "UPDATE archive.orders SET total = 0",
        "DELETE FROM archive.orders",
        "TRUNCATE archive.orders",
        "DROP TABLE archive.orders",
        "ALTER TABLE archive.orders ADD COLUMN a INT",
        "CREATE INDEX i ON archive.orders (total)",
        "CREATE TABLE archive.t (id INT)",
        "MERGE INTO archive.orders o USING customers c ON o.id = c.id WHEN MATCHED THEN DELETE",
        "COPY archive.orders FROM '/dev/null' (FORMAT csv)",
        "SELECT * FROM archive.orders FOR UPDATE",
        "ANALYZE archive.orders",
        "CREATE VIEW v AS SELECT * FROM archive.orders",
        "CREATE TABLE t (id BIGINT REFERENCES archive.orders (id))",
    ] {
        let error = failure(&both, sql);
        assert!(!matches!(error, Error::Internal(_)), "{sql}: {error}");
    }
    assert_eq!(
        answer(&both, "SELECT count(*), sum(total) FROM archive.orders"),
        answer(&both, "SELECT count(*), sum(total) FROM orders")
    );
    both.execute_batch(
        "CREATE TABLE copied AS SELECT * FROM archive.orders WHERE total > 9;
         INSERT INTO copied SELECT * FROM archive.orders WHERE total < 1;
         UPDATE orders SET total = 0 WHERE id IN (SELECT id FROM archive.large);
         DELETE FROM orders USING archive.orders a WHERE orders.id = a.id AND a.total > 9.5;
         CREATE TEMPORARY VIEW v AS SELECT * FROM archive.orders WHERE id < 5",
    )
    .unwrap();
    let count = |sql: &str| both.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM copied"), 2_970 + 3_000);
    assert_eq!(count("SELECT count(*) FROM orders WHERE total = 0"), 2_970 - 1_470 + 30);
    assert_eq!(count("SELECT count(*) FROM v"), 4);
}

#[test]
fn names_and_locations_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let (both, customers, url) = databases(directory.path());
    drop(customers);
    both.execute_batch(&format!("ATTACH '{url}'")).unwrap();
    assert_eq!(
        both.query_row("SELECT name FROM keyaki_attached", (), |row| row.get::<_, String>(0)).unwrap(),
        "orders"
    );
    both.execute_batch(&format!("ATTACH IF NOT EXISTS '{url}' AS orders; DETACH DATABASE IF EXISTS nothing")).unwrap();
    let exists = |name: &str| failure(&both, &format!("ATTACH '{url}' AS {name}")).sqlstate();
    assert_eq!(exists("orders"), SqlState::DUPLICATE_DATABASE);
    for name in ["public", "sales", "pg_catalog", "information_schema"] {
        assert_eq!(exists(name), SqlState::DUPLICATE_SCHEMA, "{name}");
    }
    assert!(failure(&both, "DETACH nothing").to_string().contains("\"nothing\" does not exist"));
    let missing = directory.path().join("missing");
    let error = failure(&both, &format!("ATTACH '{}' AS missing", missing.display()));
    assert!(error.to_string().contains("missing") && !missing.exists(), "{error}");
    assert!(failure(&both, &format!("ATTACH '{url}@99' AS missing")).to_string().contains("version 99"));
    let own = directory.path().join("both").display().to_string();
    assert_eq!(failure(&both, &format!("ATTACH '{own}' AS own")).sqlstate(), SqlState::DUPLICATE_DATABASE);
    for sql in
        ["ATTACH 'x' AS a (WRITABLE)", "ATTACH orders", "ATTACH 'x' AS", "DETACH", "DETACH a b", "ATTACH '/x/1-2'"]
    {
        assert_eq!(failure(&both, sql).sqlstate(), SqlState::SYNTAX_ERROR, "{sql}");
    }
    both.execute_batch("BEGIN").unwrap();
    assert_eq!(failure(&both, &format!("ATTACH '{url}' AS other")).sqlstate(), SqlState::ACTIVE_SQL_TRANSACTION);
    both.execute_batch("ROLLBACK").unwrap();
    // Other sessions do not see it, and may define a schema of this name.
    let other = both.database().connect().unwrap();
    assert_eq!(failure(&other, "SELECT * FROM orders.orders").sqlstate(), SqlState::UNDEFINED_TABLE);
    other.execute_batch("CREATE SCHEMA orders").unwrap();
    assert_eq!(failure(&both, "SELECT * FROM customers c, orders.orders").sqlstate(), SqlState::DUPLICATE_SCHEMA);
    both.execute_batch("DETACH orders").unwrap();
}

#[test]
fn commits_beside_an_attached_directory_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let (both, orders) = (open(directory.path().join("both")), open(directory.path().join("orders")));
    orders.execute_batch("CREATE TABLE t (id BIGINT PRIMARY KEY); INSERT INTO t VALUES (1)").unwrap();
    both.execute_batch(&format!("ATTACH '{}' AS other", directory.path().join("orders").display())).unwrap();
    let count = || both.query_row("SELECT count(*) FROM other.t", (), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 1);
    orders.execute_batch("INSERT INTO t VALUES (2), (3)").unwrap();
    assert_eq!(count(), 3);
    orders.execute_batch("ALTER TABLE t ADD COLUMN a INT DEFAULT 7; CREATE TABLE u AS SELECT 5 AS b").unwrap();
    assert_eq!(both.query_row("SELECT sum(a) FROM other.t", (), |row| row.get::<_, i64>(0)).unwrap(), 21);
    assert_eq!(both.query_row("SELECT b FROM other.u", (), |row| row.get::<_, i64>(0)).unwrap(), 5);
}

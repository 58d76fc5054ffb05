//! Cardinality estimates of index pipelines, compared with the actual number of rows.
//!
//! An estimate may differ from the actual number by a factor of two.

use std::time::Duration;

use keyaki::{Database, Durability, Options, Session};

use super::{explain, rows, set};

/// Returns the estimate of `IndexPipelineExec` for a query (`est_rows`) and the actual number of rows.
async fn estimated_and_actual(session: &Session, columns: &str, rest: &str) -> (f64, f64) {
    set(session, ("index", "out_of_order")).await;
    let plan = explain(session, &format!("SELECT {columns} {rest}")).await;
    let estimated = plan.split("est_rows=").nth(1).and_then(|rest| rest.split(',').next());
    let estimated = estimated.unwrap_or_else(|| panic!("no pipeline:\n{plan}")).parse().expect("a number");
    let actual = rows(session, &format!("SELECT count(*) {rest}")).await.expect("a count");
    (estimated, actual[0].parse().expect("a count"))
}

#[tokio::test]
async fn filters_on_join_columns_reduce_the_estimate() {
    let directory = tempfile::tempdir().expect("a directory");
    let database = Database::create(directory.path().join("db"), Options::default()).expect("a database");
    let session = database.session();
    // Small tables, each filled by one INSERT and never analysed.
    let script = "
        CREATE TABLE nation (n_key BIGINT PRIMARY KEY, n_name TEXT NOT NULL);
        CREATE TABLE supplier (s_key BIGINT PRIMARY KEY, s_nation BIGINT NOT NULL, s_name TEXT);
        CREATE INDEX supplier_nation ON supplier (s_nation);
        CREATE TABLE offer (o_part BIGINT, o_supplier BIGINT, o_price DOUBLE, PRIMARY KEY (o_part, o_supplier));
        CREATE INDEX offer_supplier ON offer (o_supplier);
        INSERT INTO nation SELECT value, 'nation ' || value FROM generate_series(0, 24);
        INSERT INTO supplier SELECT value, value % 25, 'a' FROM generate_series(1, 1000);
        INSERT INTO offer SELECT value / 4, value % 1000 + 1, 1.5 FROM generate_series(0, 39999);";
    session.execute(script).await.expect("tables");
    let (suppliers, offers) = ("supplier ON s_nation = n_key", "offer ON o_supplier = s_key");
    for rest in [
        format!("FROM nation JOIN {suppliers} WHERE n_key = 3"),
        format!("FROM nation JOIN {suppliers} WHERE n_name = 'nation 3'"),
        format!("FROM nation JOIN {suppliers} WHERE n_key < 5"),
        format!("FROM nation JOIN {suppliers} WHERE n_name LIKE '%3%'"),
        format!("FROM nation JOIN {suppliers} WHERE n_name <> 'nation 3'"),
        format!("FROM nation JOIN {suppliers} WHERE n_name NOT IN ('nation 3', 'nation 17')"),
        format!("FROM nation JOIN {suppliers} WHERE n_name NOT LIKE 'nation 1%'"),
        format!("FROM nation JOIN {suppliers} WHERE n_name LIKE '%3%' OR n_name LIKE '%5%'"),
        format!("FROM nation JOIN {suppliers} JOIN {offers} WHERE n_name = 'nation 3'"),
        format!("FROM supplier JOIN {offers} WHERE s_key BETWEEN 1 AND 100"),
        format!("FROM supplier JOIN {offers} WHERE s_key = 7"),
    ] {
        let columns = if rest.contains("offer") { "s_name, o_price" } else { "n_name, s_name" };
        let (estimated, actual) = estimated_and_actual(&session, columns, &rest).await;
        assert!(
            (actual / 2.0..=actual * 2.0).contains(&estimated),
            "{estimated} rows estimated, {actual} actual: {rest}"
        );
    }
}

/// Orders of customers, in small statements and with small buffers: the store's samples have most rows.
async fn add_customers(session: &Session, ids: std::ops::Range<i64>) {
    for from in ids.step_by(500) {
        let (to, all) = (from + 499, CUSTOMERS);
        // The first customers are of one segment, the others of twenty.
        let segment = "CASE WHEN value < 10000 THEN 'first' ELSE 'segment ' || value % 20 END";
        let customers = format!("SELECT value, {segment}, value % 200 FROM generate_series({from}, {to})");
        let orders = format!("SELECT value, value * 7919 % {all} FROM generate_series({from}, {to})");
        for (table, rows) in [("customer", customers), ("orders", orders)] {
            session.execute(&format!("INSERT INTO {table} {rows}")).await.expect("an insert");
        }
    }
}

const CUSTOMERS: i64 = 80_000;

async fn check_customers(session: &Session, state: &str) {
    let pairs = "(c_region < 20 AND o_id < 40000 OR c_region > 150 AND o_id >= 40000)";
    for condition in
        ["c_region = 7", "c_segment = 'segment 5'", "c_region BETWEEN 10 AND 12", "c_segment = 'first'", pairs]
    {
        let rest = format!("FROM customer JOIN orders ON o_customer = c_id WHERE {condition}");
        let (estimated, actual) = estimated_and_actual(session, "c_segment, o_id", &rest).await;
        assert!(
            (actual / 2.0..=actual * 2.0).contains(&estimated),
            "{state}: {estimated} rows estimated, {actual} actual: {rest}"
        );
    }
}

#[tokio::test]
async fn estimates_follow_rows_as_they_are_flushed() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = || {
        let store = keyaki_store::Options { buffer_bytes: 512 << 10, ..keyaki_store::Options::default() };
        Options { store: Some(store), durability: Durability::Off, ..Options::default() }
    };
    let path = directory.path().join("db");
    let session = Database::create(&path, options()).expect("a database").session();
    let tables = "
        CREATE TABLE customer (c_id BIGINT PRIMARY KEY, c_segment TEXT NOT NULL, c_region INTEGER);
        CREATE TABLE orders (o_id BIGINT PRIMARY KEY, o_customer BIGINT);
        CREATE INDEX orders_customer ON orders (o_customer);";
    session.execute(tables).await.expect("tables");
    add_customers(&session, 0..10_000).await;
    add_customers(&session, 10_000..CUSTOMERS).await;
    check_customers(&session, "inserted").await;
    session.execute("CHECKPOINT").await.expect("a checkpoint");
    drop(session);
    let session = Database::open(&path, options()).expect("a database").session();
    check_customers(&session, "reopened").await;
    // Statistics are collected at most once a second.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    session.execute("DELETE FROM customer WHERE c_id < 9000 OR c_id >= 40000").await.expect("deletes");
    check_customers(&session, "after deletes").await;
    session.execute("CHECKPOINT").await.expect("a checkpoint");
    session.execute("ANALYZE").await.expect("statistics");
    check_customers(&session, "analysed").await;
}

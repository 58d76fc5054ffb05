//! Cardinality estimates of index pipelines, compared with the actual number of rows.
//!
//! An estimate may differ from the actual number by a factor of two.

use keyaki::{Database, Options, Session};

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

//! How many rows a pipeline is expected to give, against how many there are.

use keyaki::{Database, Options, Session};

use super::{explain, rows, set};

/// What `IndexPipelineExec` expects of a query, and what the query counts.
async fn expected_and_found(session: &Session, columns: &str, rest: &str) -> (f64, f64) {
    set(session, ("index", "out_of_order")).await;
    let plan = explain(session, &format!("SELECT {columns} {rest}")).await;
    let expected = plan.split("est_rows=").nth(1).and_then(|rest| rest.split(',').next());
    let expected = expected.unwrap_or_else(|| panic!("no pipeline:\n{plan}")).parse().expect("a number");
    let found = rows(session, &format!("SELECT count(*) {rest}")).await.expect("a count");
    (expected, found[0].parse().expect("a count"))
}

#[tokio::test]
async fn joins_of_columns_with_conditions() {
    let directory = tempfile::tempdir().expect("a directory");
    let database = Database::create(directory.path().join("db"), Options::default()).expect("a database");
    let session = database.session();
    // Small tables, filled at once and never analysed.
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
        let (expected, found) = expected_and_found(&session, columns, &rest).await;
        assert!((found / 2.0..=found * 2.0).contains(&expected), "{expected} rows expected, {found} found: {rest}");
    }
}

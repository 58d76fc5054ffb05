//! Plans of few rows have one partition.

use keyaki::{Database, Options};

use super::{explain, rows};

#[tokio::test]
async fn plans_of_few_rows_have_one_partition() {
    let options = Options { threads: Some(3), ..Options::default() };
    let session = Database::open_temporary(options).expect("a database").session();
    let script = "
        CREATE TABLE small (id BIGINT PRIMARY KEY, k BIGINT);
        CREATE TABLE large (id BIGINT PRIMARY KEY, k BIGINT);
        INSERT INTO small SELECT value, value % 7 FROM generate_series(1, 400);
        INSERT INTO large SELECT value, value % 7 FROM generate_series(1, 100000);";
    session.execute(script).await.expect("tables");
    for (rest, has_one) in [
        ("small GROUP BY k", true),
        ("large WHERE id < 1000 GROUP BY k", true),
        ("large GROUP BY k", false),
        // At most 160,000 combinations.
        ("small a JOIN (SELECT id + 1 AS m FROM small) b ON a.k < b.m GROUP BY k", false),
        ("small WHERE k IN (SELECT k + id - id FROM large GROUP BY k + id - id) GROUP BY k", false),
    ] {
        let sql = format!("SELECT k, count(*) FROM {rest}");
        let plan = explain(&session, &sql).await;
        assert_eq!(!plan.contains("RepartitionExec"), has_one, "{sql}\n{plan}");
        assert_eq!(rows(&session, &sql).await.expect("rows").len(), 7, "{sql}");
    }
}

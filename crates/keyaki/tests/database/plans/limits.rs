//! ORDER BY … LIMIT: a heap for few rows, a sort for many.

use keyaki::Database;

use super::{explain, rows};

#[tokio::test]
async fn large_limits_sort() {
    let database = Database::open_temporary(keyaki::Options::default()).expect("a database");
    let session = database.session();
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT);
        INSERT INTO t SELECT value, value * 7919 % 40009 FROM generate_series(1, 40000)";
    session.execute(table).await.expect("a table");
    for threads in [1, 3] {
        session.execute(&format!("SET datafusion.execution.target_partitions = {threads}")).await.expect("a setting");
        for (clause, is_heap) in [
            ("LIMIT 100", true),
            ("LIMIT 16000", true),
            ("LIMIT 20000", false),
            ("LIMIT 20000 OFFSET 15000", false),
            ("LIMIT 50000", false),
        ] {
            let sql = format!("SELECT v, id FROM t ORDER BY v {clause}");
            let plan = explain(&session, &sql).await;
            assert_eq!(plan.contains("TopK"), is_heap, "{sql}\n{plan}");
            let all = rows(&session, "SELECT v, id FROM t ORDER BY v").await.expect("rows");
            let offset = if clause.contains("OFFSET") { 15_000 } else { 0 };
            let limit: usize = clause.split(' ').nth(1).and_then(|limit| limit.parse().ok()).expect("a limit");
            let expected = &all[offset..all.len().min(offset + limit)];
            assert!(rows(&session, &sql).await.expect("rows") == expected, "{sql}");
        }
    }
}

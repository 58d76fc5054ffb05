//! GROUP BY along keys returns the groups of hash tables.

use keyaki::{Database, Options};

use super::{explain, rows, set};

const SCRIPT: &str = "
    CREATE TABLE items (o BIGINT, line INT, name TEXT, price DECIMAL(10,2), at DOUBLE, PRIMARY KEY (o, line));
    INSERT INTO items
    SELECT value / 7 * 3, value % 7, CASE WHEN value % 11 > 0 THEN 'name ' || value % 20000 / 3 END, value % 1000, value % 5000
    FROM generate_series(1, 60000);
    INSERT INTO items SELECT 1, value, 'one', value, value FROM generate_series(1, 20000);
    CREATE INDEX items_name ON items (name DESC, o) INCLUDE (price);
    CREATE INDEX items_memory ON items USING masstree (at, line, o);
    CREATE TABLE days (day DATE, k TEXT, n INT, PRIMARY KEY (day, k, n));
    INSERT INTO days SELECT DATE '2024-01-01' + value % 3, 'key ' || value % 3000, value FROM generate_series(1, 40000);";

/// The arguments have a common part, which is computed first.
const COMPUTED: &str = "SELECT o, sum((price + 1) * 2), max((price + 1) * 2) FROM items GROUP BY o";
/// The scan does not take a filter that is volatile.
const FILTERED: &str = "SELECT o, count(*) FROM items WHERE random() >= 0 GROUP BY o";

#[tokio::test]
async fn rows_are_computed_and_filtered_in_one_partition() {
    let options = Options { threads: Some(1), ..Options::default() };
    let session = Database::open_temporary(options).expect("a database").session();
    session.execute(SCRIPT).await.expect("tables");
    for sql in [COMPUTED, FILTERED] {
        set(&session, ("scan", "out_of_order")).await;
        let mut expected = rows(&session, sql).await.expect(sql);
        set(&session, ("auto", "out_of_order")).await;
        let plan = explain(&session, sql).await;
        assert!(plan.contains("KeyGroupsExec"), "{sql}\n{plan}");
        let mut found = rows(&session, sql).await.expect(sql);
        expected.sort();
        found.sort();
        assert!(found == expected, "{sql}");
    }
}

#[tokio::test]
async fn groups_along_keys_are_those_of_hash_tables() {
    let options = Options { threads: Some(3), ..Options::default() };
    let session = Database::open_temporary(options).expect("a database").session();
    session.execute(SCRIPT).await.expect("tables");
    for (sql, is_along) in [
        ("SELECT o, count(*), sum(price), min(name), max(line) FROM items GROUP BY o", true),
        ("SELECT sum(price) AS s, o AS k FROM items i GROUP BY i.o HAVING sum(price) > 300", true),
        ("SELECT DISTINCT o FROM items", true),
        (
            "SELECT o, count(DISTINCT price), avg(price) FILTER (WHERE line > 2), bool_or(name = 'one') FROM items GROUP BY o",
            true,
        ),
        ("SELECT o, line, count(name) FROM items WHERE line % 2 = 0 GROUP BY line, o", true),
        ("SELECT n, count(*) FROM (SELECT o AS n, price FROM items WHERE price > 500) q GROUP BY n", true),
        ("SELECT name, sum(price), count(o) FROM items GROUP BY name", true),
        ("SELECT name, o, sum(price) FROM items GROUP BY o, name", true),
        ("SELECT k, count(*), sum(n) FROM days WHERE day = '2024-01-02' GROUP BY k", true),
        ("SELECT k, day, count(*) FROM days WHERE n < 30000 GROUP BY k, day", true),
        (
            "SELECT i.o, q.n, i.price FROM items i JOIN (SELECT o, count(*) AS n FROM items GROUP BY o) q ON q.o = i.o + 3 WHERE i.line = 3",
            true,
        ),
        // Computations and filters above a scan with fewer partitions than threads divide its rows.
        (COMPUTED, false),
        (FILTERED, false),
        ("SELECT k, count(*) FROM days WHERE day = '2024-01-02' AND random() >= 0 GROUP BY k", false),
        ("SELECT o, string_agg(name, ',' ORDER BY name, line) FROM items GROUP BY o", false),
        ("SELECT o, count(*) FROM items GROUP BY ROLLUP (o)", false),
        ("SELECT k, count(*) FROM days GROUP BY k", false),
        ("SELECT day, count(*) FROM days GROUP BY day", false),
        ("SELECT k, count(*) FROM days WHERE day IN ('2024-01-01', '2024-01-03') GROUP BY k", false),
        ("SELECT at, line, count(*) FROM items GROUP BY at, line", false),
        ("SELECT o + 1, count(*) FROM items GROUP BY o + 1", false),
    ] {
        set(&session, ("scan", "out_of_order")).await;
        let mut expected = rows(&session, sql).await.expect(sql);
        expected.sort();
        set(&session, ("auto", "out_of_order")).await;
        let plan = explain(&session, sql).await;
        assert_eq!(plan.contains("KeyGroupsExec"), is_along, "{sql}\n{plan}");
        for batch_rows in [8192, 37] {
            session.execute(&format!("SET datafusion.execution.batch_size = {batch_rows}")).await.expect("a setting");
            let mut found = rows(&session, sql).await.expect(sql);
            found.sort();
            assert!(
                found == expected,
                "{sql}, batches of {batch_rows}: {} rows, {} expected",
                found.len(),
                expected.len()
            );
        }
    }
}

#[tokio::test]
async fn groups_along_keys_have_the_order_of_the_key() {
    let session = Database::open_temporary(Options::default()).expect("a database").session();
    session.execute(SCRIPT).await.expect("tables");
    let sql = "SELECT o, count(*) FROM items GROUP BY o ORDER BY o LIMIT 3";
    let plan = explain(&session, sql).await;
    assert!(plan.contains("KeyGroupsExec") && !plan.contains("SortExec"), "{plan}");
    assert_eq!(rows(&session, sql).await.expect(sql), ["0|6", "1|20000", "3|7"]);
}

#[tokio::test]
async fn columns_that_a_key_determines_are_grouped_only_if_they_are_used() {
    let session = Database::open_temporary(Options::default()).expect("a database").session();
    session.execute(SCRIPT).await.expect("tables");
    session.execute("CREATE TABLE makers (id BIGINT PRIMARY KEY, name TEXT, note TEXT)").await.expect("a table");
    let having = "i.o IN (SELECT o FROM items GROUP BY o HAVING sum(price) > 300)";
    let sql = format!(
        "SELECT m.id, m.name, i.o, count(*) FROM makers m JOIN items i ON m.id = i.o WHERE {having} GROUP BY m.id, m.name, i.o"
    );
    let plan = explain(&session, &sql).await;
    assert!(plan.contains("groupBy=[[m.id, m.name, i.o]]") && !plan.contains("note"), "{plan}");
    let plan = explain(&session, &sql.replace("SELECT m.id", "SELECT m.note")).await;
    assert!(plan.contains("m.note]]"), "{plan}");
}

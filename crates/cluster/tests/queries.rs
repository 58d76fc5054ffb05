//! Queries that three workers execute over a published database have the results of the local one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Shop, Workers, compare, explained, rows};
use keyaki::SqlState;
use keyaki_cluster::Security;

/// TPC-H's queries.
const QUERIES: [&str; 22] = [
    include_str!("../../../benches/tpch/queries/q01.sql"),
    include_str!("../../../benches/tpch/queries/q02.sql"),
    include_str!("../../../benches/tpch/queries/q03.sql"),
    include_str!("../../../benches/tpch/queries/q04.sql"),
    include_str!("../../../benches/tpch/queries/q05.sql"),
    include_str!("../../../benches/tpch/queries/q06.sql"),
    include_str!("../../../benches/tpch/queries/q07.sql"),
    include_str!("../../../benches/tpch/queries/q08.sql"),
    include_str!("../../../benches/tpch/queries/q09.sql"),
    include_str!("../../../benches/tpch/queries/q10.sql"),
    include_str!("../../../benches/tpch/queries/q11.sql"),
    include_str!("../../../benches/tpch/queries/q12.sql"),
    include_str!("../../../benches/tpch/queries/q13.sql"),
    include_str!("../../../benches/tpch/queries/q14.sql"),
    include_str!("../../../benches/tpch/queries/q15.sql"),
    include_str!("../../../benches/tpch/queries/q16.sql"),
    include_str!("../../../benches/tpch/queries/q17.sql"),
    include_str!("../../../benches/tpch/queries/q18.sql"),
    include_str!("../../../benches/tpch/queries/q19.sql"),
    include_str!("../../../benches/tpch/queries/q20.sql"),
    include_str!("../../../benches/tpch/queries/q21.sql"),
    include_str!("../../../benches/tpch/queries/q22.sql"),
];

/// The query of the paper on out-of-order execution.
const SELECTIVE_JOIN: &str = "SELECT count(*) AS n, sum(l_quantity) AS q FROM customer JOIN orders ON c_custkey = o_custkey \
     JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN 1000 AND 2000";

#[tokio::test(flavor = "multi_thread")]
async fn tpch() {
    let shop = Shop::new().await;
    let workers = Workers::start(3, &Security::default());
    let (local, cluster) = (shop.open(), workers.attach(shop.open(), &Security::default()));
    let mut divided = 0;
    for (i, sql) in QUERIES.iter().chain([&SELECTIVE_JOIN]).enumerate() {
        let is_divided = compare(&local, &cluster, sql).await;
        divided += usize::from(is_divided);
        println!("query {}: {}", i + 1, if is_divided { "divided" } else { "by one machine" });
    }
    assert!(divided >= 20, "{divided} of 23 queries are divided");
    assert!(explained(&cluster, SELECTIVE_JOIN).await.unwrap().contains("tasks=3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_of_queries() {
    let shop = Shop::new().await;
    let workers = Workers::start(3, &Security::default());
    let (local, cluster) = (shop.open(), workers.attach(shop.open(), &Security::default()));
    for (sql, is_divided) in [
        ("SELECT count(*), min(l_shipdate), max(l_comment) FROM lineitem WHERE l_tax > 0.03", true),
        ("SELECT l_orderkey, l_linenumber FROM lineitem WHERE l_comment LIKE '%furious%' ORDER BY 1, 2", true),
        ("SELECT * FROM lineitem WHERE l_quantity = 3 ORDER BY l_orderkey DESC, l_linenumber LIMIT 7 OFFSET 3", true),
        ("SELECT DISTINCT l_shipmode, l_returnflag FROM lineitem ORDER BY ALL", true),
        ("SELECT o_custkey, count(*) AS n FROM orders GROUP BY 1 HAVING count(*) > 20 ORDER BY 2 DESC, 1", true),
        (
            "SELECT o_orderkey, rank() OVER (PARTITION BY o_custkey ORDER BY o_totalprice, o_orderkey) FROM orders ORDER BY 1",
            true,
        ),
        (
            "SELECT o_orderkey, row_number() OVER (ORDER BY o_totalprice, o_orderkey) FROM orders ORDER BY 1 LIMIT 100",
            true,
        ),
        (
            "SELECT o_orderkey FROM orders LEFT JOIN lineitem ON o_orderkey = l_orderkey AND l_quantity > 49 WHERE l_orderkey IS NULL ORDER BY 1",
            true,
        ),
        (
            "SELECT o_orderkey, l_linenumber FROM orders FULL JOIN lineitem ON o_orderkey = l_orderkey AND l_linenumber = 7 ORDER BY 1, 2",
            true,
        ),
        (
            "SELECT count(*) FROM orders WHERE o_orderkey NOT IN (SELECT l_orderkey FROM lineitem WHERE l_quantity > 45)",
            true,
        ),
        (
            "SELECT o_orderkey FROM orders WHERE o_totalprice > (SELECT avg(o_totalprice) * 2 FROM orders) ORDER BY 1",
            true,
        ),
        ("SELECT l_shipmode FROM lineitem UNION SELECT o_orderstatus FROM orders ORDER BY 1", true),
        (
            "SELECT o_orderkey FROM orders INTERSECT ALL SELECT l_orderkey FROM lineitem WHERE l_tax = 0.08 ORDER BY 1",
            true,
        ),
        (
            "SELECT count(*) FROM (SELECT o_custkey FROM orders EXCEPT SELECT c_custkey FROM customer WHERE c_acctbal > 0)",
            true,
        ),
        (
            "SELECT a.o_orderkey, count(*) FROM orders a JOIN orders b ON b.o_totalprice > a.o_totalprice * 3 AND b.o_orderkey < 100 GROUP BY 1 ORDER BY 1",
            true,
        ),
        (
            "WITH t AS (SELECT l_partkey AS k, sum(l_quantity) AS q FROM lineitem GROUP BY 1) SELECT x.k, x.q FROM t x JOIN t y ON x.k = y.k + 1 WHERE x.q > y.q ORDER BY 1",
            true,
        ),
        (
            "SELECT l_returnflag, string_agg(DISTINCT l_shipmode, ',' ORDER BY l_shipmode) FROM lineitem GROUP BY 1 ORDER BY 1",
            true,
        ),
        ("SELECT l_returnflag, l_linestatus, sum(l_quantity) FROM lineitem GROUP BY ROLLUP (1, 2) ORDER BY 1, 2", true),
        (
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY l_extendedprice), stddev(l_quantity) > 14 FROM lineitem",
            true,
        ),
        (
            "SELECT o_orderdate::TEXT || '!', EXTRACT(year FROM o_orderdate) FROM orders WHERE o_orderpriority ~ '^[12]' ORDER BY 1, 2 LIMIT 50",
            true,
        ),
        // They depend on one process, or are too small.
        ("SELECT 1 AS one", false),
        ("SELECT n_name FROM nation ORDER BY 1", false),
        ("SELECT o_totalprice FROM orders WHERE o_orderkey = 7", false),
        ("SELECT count(*) FROM lineitem WHERE random() < 2", false),
        (
            "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT count(*) FROM t, lineitem",
            false,
        ),
        ("SELECT count(*) FROM keyaki_queries WHERE false", false),
    ] {
        assert_eq!(compare(&local, &cluster, sql).await, is_divided, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_parameters_and_errors() {
    let shop = Shop::new().await;
    let workers = Workers::start(2, &Security::default());
    let cluster = workers.attach(shop.open(), &Security::default());
    let session = cluster.session();
    // The settings of the session are those of the workers.
    session.execute("SET timezone = 'Asia/Tokyo'").await.unwrap();
    let zoned = "SELECT max((o_orderdate + TIME '12:00')::TIMESTAMPTZ)::TEXT FROM orders";
    let local = shop.open().session();
    local.execute("SET timezone = 'Asia/Tokyo'").await.unwrap();
    assert_eq!(rows(&session, zoned).await, rows(&local, zoned).await);
    session.execute("SET keyaki.join = 'scan'").await.unwrap();
    let plan = rows(&session, &format!("EXPLAIN {SELECTIVE_JOIN}")).await.join("\\n");
    assert!(plan.contains("HashJoinExec") && !plan.contains("IndexPipelineExec"), "{plan}");
    session.execute("SET keyaki.join = 'index'").await.unwrap();
    let pipeline = "SELECT count(*), sum(l_quantity) FROM orders JOIN lineitem ON o_orderkey = l_orderkey WHERE o_orderkey < 30000";
    let plan = rows(&session, &format!("EXPLAIN {pipeline}")).await.join("\n");
    assert!(plan.contains("IndexPipelineExec") && plan.contains("tasks=2"), "{plan}");
    assert_eq!(rows(&session, pipeline).await, rows(&local, pipeline).await);
    session.execute("RESET keyaki.join").await.unwrap();
    let connection = cluster.connect().unwrap();
    let sql = "SELECT count(*) FROM lineitem WHERE l_comment LIKE $1 AND l_quantity > $2 AND l_shipdate > $3::DATE";
    let values = ("%fur%", 10.5, "1995-01-01");
    let expected: i64 = shop.open().connect().unwrap().query_row(sql, values, |row| row.get(0)).unwrap();
    let counted =
        tokio::task::spawn_blocking(move || connection.query_row(sql, values, |row| row.get::<_, i64>(0)).unwrap());
    assert_eq!(counted.await.unwrap(), expected);
    // Errors of workers have their codes.
    for (sql, state) in [
        ("SELECT sum(l_quantity / (l_linenumber - l_linenumber)) FROM lineitem", SqlState::DIVISION_BY_ZERO),
        ("SELECT sum(l_comment::INT) FROM lineitem", SqlState::INVALID_TEXT_REPRESENTATION),
        ("SELECT count(x) FROM lineitem", SqlState::UNDEFINED_COLUMN),
    ] {
        let error = match session.query(sql).await {
            Ok(rows) => rows.collect().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.sqlstate(), state, "{sql}: {error}");
    }
    // A session with objects of its own executes queries that use them.
    session.execute("BEGIN").await.unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM region").await, ["5"]);
    session.execute("COMMIT").await.unwrap();
}

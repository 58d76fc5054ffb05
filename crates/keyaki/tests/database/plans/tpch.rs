//! The 22 queries of TPC-H at scale factor 0.001, and two joins along indexes, compared in all modes.

use std::fmt::Display;

use keyaki::{Database, Session};
use tpchgen::distribution::Distributions;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen::text::TextPool;

use super::compare;
use super::random::{options, run};

const SCALE: f64 = 0.001;

/// Name, columns, and primary key of each table. A type ends with `'` if its literals are quoted.
const TABLES: [(&str, &str, &str); 8] = [
    ("region", "r_regionkey BIGINT, r_name TEXT', r_comment TEXT'", "r_regionkey"),
    ("nation", "n_nationkey BIGINT, n_name TEXT', n_regionkey BIGINT, n_comment TEXT'", "n_nationkey"),
    (
        "supplier",
        "s_suppkey BIGINT, s_name TEXT', s_address TEXT', s_nationkey BIGINT, s_phone TEXT', s_acctbal DECIMAL(15,2), \
         s_comment TEXT'",
        "s_suppkey",
    ),
    (
        "customer",
        "c_custkey BIGINT, c_name TEXT', c_address TEXT', c_nationkey BIGINT, c_phone TEXT', c_acctbal DECIMAL(15,2), \
         c_mktsegment TEXT', c_comment TEXT'",
        "c_custkey",
    ),
    (
        "part",
        "p_partkey BIGINT, p_name TEXT', p_mfgr TEXT', p_brand TEXT', p_type TEXT', p_size INT, p_container TEXT', \
         p_retailprice DECIMAL(15,2), p_comment TEXT'",
        "p_partkey",
    ),
    (
        "partsupp",
        "ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT, ps_supplycost DECIMAL(15,2), ps_comment TEXT'",
        "ps_partkey, ps_suppkey",
    ),
    (
        "orders",
        "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus TEXT', o_totalprice DECIMAL(15,2), o_orderdate DATE', \
         o_orderpriority TEXT', o_clerk TEXT', o_shippriority INT, o_comment TEXT'",
        "o_orderkey",
    ),
    (
        "lineitem",
        "l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2), \
         l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag TEXT', \
         l_linestatus TEXT', l_shipdate DATE', l_commitdate DATE', l_receiptdate DATE', l_shipinstruct TEXT', \
         l_shipmode TEXT', l_comment TEXT'",
        "l_orderkey, l_linenumber",
    ),
];

const INDEXES: [&str; 11] = [
    "nation (n_regionkey)",
    "supplier (s_nationkey)",
    "customer (c_nationkey)",
    "customer (c_acctbal)",
    "partsupp (ps_suppkey) INCLUDE (ps_availqty, ps_supplycost)",
    "orders (o_custkey) INCLUDE (o_orderdate, o_shippriority)",
    "orders (o_orderdate) INCLUDE (o_custkey)",
    "lineitem (l_partkey, l_suppkey) INCLUDE (l_quantity, l_extendedprice, l_discount, l_shipdate)",
    "lineitem (l_suppkey)",
    "lineitem (l_shipdate)",
    "part (p_size)",
];

macro_rules! queries {
    ($($number:literal)*) => {
        [$(include_str!(concat!("../../../../../benches/tpch/queries/q", $number, ".sql"))),*]
    };
}

const QUERIES: [&str; 22] = queries! {
    "01" "02" "03" "04" "05" "06" "07" "08" "09" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22"
};

/// A three-way join along indexes, with few and with many customers.
const INDEX_JOINS: [&str; 2] = [
    "SELECT count(*), sum(l_quantity) FROM customer JOIN orders ON c_custkey = o_custkey \
     JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN 100 AND 300",
    "SELECT count(*), sum(l_quantity) FROM customer JOIN orders ON c_custkey = o_custkey \
     JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal > 0",
];

/// Inserts rows in the text format of the generator, `1|AFRICA|...|`.
async fn insert(session: &Session, table: usize, rows: impl Iterator<Item = impl Display>) {
    let (name, columns, _) = TABLES[table];
    let quoted: Vec<bool> = columns.split(", ").map(|column| column.ends_with('\'')).collect();
    let row = |row: String| {
        let values = row.trim_end_matches('|').split('|').zip(&quoted);
        let values = values.map(|(value, quoted)| if *quoted { format!("'{value}'") } else { value.to_owned() });
        format!("({})", values.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = rows.map(|r| row(r.to_string())).collect();
    for chunk in rows.chunks(2000) {
        run(session, &format!("INSERT INTO {name} VALUES {}", chunk.join(", "))).await;
    }
}

async fn load(session: &Session) {
    for (name, columns, key) in TABLES {
        run(session, &format!("CREATE TABLE {name} ({}, PRIMARY KEY ({key}))", columns.replace('\'', ""))).await;
    }
    for (i, index) in INDEXES.iter().enumerate() {
        run(session, &format!("CREATE INDEX index_{i} ON {index}")).await;
    }
    let lists = Distributions::static_default();
    let text = TextPool::new(200_000, lists);
    insert(session, 0, RegionGenerator::new_with_distributions_and_text_pool(lists, &text).iter()).await;
    insert(session, 1, NationGenerator::new_with_distributions_and_text_pool(lists, &text).iter()).await;
    macro_rules! table {
        ($table:literal, $generator:ident) => {
            let rows = $generator::new_with_distributions_and_text_pool(SCALE, 1, 1, lists, &text);
            insert(session, $table, rows.iter()).await;
        };
    }
    table!(2, SupplierGenerator);
    table!(3, CustomerGenerator);
    table!(4, PartGenerator);
    // At this scale the generator repeats suppliers of a part, which violates the primary key.
    let mut seen = std::collections::HashSet::new();
    let rows = PartSuppGenerator::new_with_text_pool(SCALE, 1, 1, &text);
    insert(session, 5, rows.iter().filter(|row| seen.insert((row.ps_partkey, row.ps_suppkey)))).await;
    table!(6, OrderGenerator);
    table!(7, LineItemGenerator);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tpch() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::create(dir.path().join("db"), options()).expect("a new database");
    let session = database.session();
    load(&session).await;
    let mut without = Vec::new();
    for (i, sql) in QUERIES.iter().chain(&INDEX_JOINS).enumerate() {
        let plan = compare(&session, sql.trim_end().trim_end_matches(';')).await;
        if !plan.contains("IndexPipelineExec") {
            without.push(i + 1);
        }
    }
    lists_common_to_all_branches(&session).await;
    // Queries over one table, and joins of computed relations, have no pipeline.
    println!("without a pipeline in index mode: {without:?}");
    assert!(without.len() <= 6, "too few pipelines: none in {without:?}");
}

/// A list that all branches of a disjunction contain is a condition of its own, as in query 19: it can limit a scan.
async fn lists_common_to_all_branches(session: &Session) {
    let plan = async |condition: &str| {
        let sql = format!("EXPLAIN SELECT l_tax FROM lineitem WHERE {condition}");
        let rows = session.query(&sql).await.expect("a plan").collect().await.expect("a plan");
        format!("{rows:?}")
    };
    let list = "l_shipmode IN ('AIR', 'REG AIR', 'RAIL', 'SHIP')";
    let inside = plan(&format!("{list} AND l_quantity < 5 OR {list} AND l_suppkey < 2")).await;
    assert_eq!(inside, plan(&format!("{list} AND (l_quantity < 5 OR l_suppkey < 2)")).await);
}

//! Random INSERT, UPDATE and DELETE statements compared with a model, on a table whose columns are all indexed.
//!
//! Each statement must have the model's outcome: the changed rows, or a duplicate key error. At intervals the table is
//! read along each of its trees, and all of them must contain the model's rows.

use std::collections::BTreeMap;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use keyaki::{ConstraintKind, Database, Durability, Error, Options, Outcome, Session};
use keyaki_primitives::Random;

/// Primary key → (a, b). Non-null values of `b` are unique.
type Model = BTreeMap<i64, (i64, Option<i64>)>;

/// Random keys and values.
trait RandomValues {
    fn key(&mut self) -> i64;
    fn maybe(&mut self) -> Option<i64>;
}

impl RandomValues for Random {
    fn key(&mut self) -> i64 {
        self.below(60) as i64 - 5
    }
    fn maybe(&mut self) -> Option<i64> {
        (self.below(4) > 0).then(|| self.below(80) as i64)
    }
}

fn sql(value: Option<i64>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

/// Rows as (primary key, (a, b)).
type Rows = Vec<(i64, (i64, Option<i64>))>;

/// A random statement, and the rows of the model after it.
fn statement(random: &mut Random, model: &Model) -> (String, Rows) {
    let n = random.key();
    let shift = random.below(7) as i64 - 3;
    let b = random.maybe();
    match random.below(10) {
        0..=3 => {
            let rows: Vec<_> =
                (0..1 + random.below(4)).map(|_| (random.key(), (random.key(), random.maybe()))).collect();
            let plus = if random.below(2) == 0 { "" } else { " + 0" };
            let values: Vec<String> = rows.iter().map(|(k, (a, b))| format!("({k}{plus}, {a}, {})", sql(*b))).collect();
            let after = model.iter().map(|(k, v)| (*k, *v)).chain(rows).collect();
            (format!("INSERT INTO t VALUES {}", values.join(", ")), after)
        }
        4 => {
            let selected = model.iter().filter(|(k, _)| **k > n).map(|(k, (a, _))| (k + 60, (*a, None)));
            let after = model.iter().map(|(k, v)| (*k, *v)).chain(selected).collect();
            (format!("INSERT INTO t (k, a) SELECT k + 60, a FROM t WHERE k > {n}"), after)
        }
        5 => {
            let after = model.iter().map(|(k, (a, b))| (if *a < n { k + shift } else { *k }, (*a, *b))).collect();
            (format!("UPDATE t SET k = k + {shift} WHERE a < {n}"), after)
        }
        6 => {
            let change = |a: i64, old: Option<i64>| if a == n { b } else { old };
            let after = model.iter().map(|(k, (a, old))| (*k, (*a, change(*a, *old)))).collect();
            (format!("UPDATE t SET b = {} WHERE a = {n}", sql(b)), after)
        }
        7 => {
            let change = |b: i64| if b % 3 == 1 { b - 1 } else { b + 1 };
            let after = model.iter().map(|(k, (a, b))| match b {
                Some(b) if b % 3 != 2 => (*k, (a + shift, Some(if b % 3 == 0 { b + 1 } else { change(*b) }))),
                other => (*k, (*a, *other)),
            });
            let set = "CASE WHEN b % 3 = 0 THEN b + 1 ELSE b - 1 END";
            (format!("UPDATE t SET b = {set}, a = a + {shift} WHERE b % 3 <> 2"), after.collect())
        }
        8 => {
            let after =
                model.iter().filter(|(k, (_, b))| !(*b == Some(n) || **k == n)).map(|(k, v)| (*k, *v)).collect();
            (format!("DELETE FROM t WHERE b = {n} OR k = {n}"), after)
        }
        _ => {
            let gone: Vec<i64> = model.values().map(|(a, _)| *a).filter(|a| *a > n + 40).collect();
            let after = model.iter().filter(|(k, _)| !gone.contains(k)).map(|(k, v)| (*k, *v)).collect();
            (format!("DELETE FROM t WHERE k IN (SELECT a FROM t WHERE a > {n} + 40)"), after)
        }
    }
}

/// The model with these rows; `None` if keys or values of `b` repeat.
fn valid(rows: Vec<(i64, (i64, Option<i64>))>) -> Option<Model> {
    let count = rows.len();
    let mut unique: Vec<i64> = rows.iter().filter_map(|(_, (_, b))| *b).collect();
    let uniques = unique.len();
    unique.sort_unstable();
    unique.dedup();
    let model: Model = rows.into_iter().collect();
    (model.len() == count && unique.len() == uniques).then_some(model)
}

async fn read(session: &Session, sql: &str) -> Vec<Vec<Option<i64>>> {
    let batches = session.query(sql).await.unwrap().collect().await.unwrap();
    let mut rows = Vec::new();
    for batch in &batches {
        for row in 0..batch.num_rows() {
            let value = |c: &arrow::array::ArrayRef| c.is_valid(row).then(|| c.as_primitive::<Int64Type>().value(row));
            rows.push(batch.columns().iter().map(value).collect());
        }
    }
    rows.sort();
    rows
}

/// Compares the rows along each tree of the table with the model.
async fn check(session: &Session, model: &Model) {
    let expect = |row: &dyn Fn(i64, i64, Option<i64>) -> Option<Vec<Option<i64>>>| {
        let mut rows: Vec<_> = model.iter().filter_map(|(k, (a, b))| row(*k, *a, *b)).collect();
        rows.sort();
        rows
    };
    assert_eq!(read(session, "SELECT k, a, b FROM t").await, expect(&|k, a, b| Some(vec![Some(k), Some(a), b])));
    let by_a = expect(&|k, a, b| (a > -100).then(|| vec![Some(a), Some(k), b]));
    assert_eq!(read(session, "SELECT a, k, b FROM t WHERE a > -100").await, by_a);
    let by_b = expect(&|k, _, b| b.map(|b| vec![Some(b), Some(k)]));
    assert_eq!(read(session, "SELECT b, k FROM t WHERE b > -1").await, by_b);
    assert_eq!(read(session, "SELECT count(*) FROM t").await, [[Some(model.len() as i64)]]);
}

async fn run(seed: u64, statements: usize, method: &str) {
    let store = keyaki_store::Options {
        cache_bytes: 128 << 10,
        buffer_bytes: 8 << 10,
        page_bytes: 4096,
        leaf_bytes: 8 << 10,
        fan_out: 4,
        node_buffer_bytes: 16 << 10,
        runs_per_node: 3,
        ..keyaki_store::Options::default()
    };
    let options = Options {
        memory_bytes: Some(32 << 20),
        threads: Some(2),
        durability: Durability::Off,
        store: Some(store),
        ..Options::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut session = Database::open(dir.path(), options.clone()).unwrap().session();
    let schema = format!(
        "CREATE TABLE t (k BIGINT PRIMARY KEY, a BIGINT NOT NULL, b BIGINT UNIQUE);
        CREATE INDEX t_a ON t USING {method} (a) INCLUDE (b);
        CREATE INDEX t_ba ON t USING {method} (b, a)"
    );
    session.execute(&schema).await.unwrap();
    let mut random = Random::new(seed);
    let mut model = Model::new();
    for step in 0..statements {
        let (sql, after) = statement(&mut random, &model);
        let outcome = session.query(&sql).await;
        match (valid(after), outcome) {
            (Some(after), Ok(Outcome::Done { .. })) => model = after,
            (None, Err(Error::Constraint { kind: ConstraintKind::PrimaryKey | ConstraintKind::Unique, .. })) => {}
            (after, outcome) => panic!("seed {seed}, step {step}: {sql}: {outcome:?}, valid: {}", after.is_some()),
        }
        if step % 5 == 0 {
            check(&session, &model).await;
        }
        if random.below(40) == 0 {
            drop(session);
            session = Database::open(dir.path(), options.clone()).unwrap().session();
        }
    }
    check(&session, &model).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_statements() {
    for (seed, method) in [(1, "betree"), (2, "betree"), (3, "masstree"), (4, "masstree")] {
        run(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed), 120, method).await;
    }
}

#[test]
fn a_prepared_merge_returns_rows() {
    let connection = keyaki::Connection::open_temporary().unwrap();
    let tables = "CREATE TABLE t (id INT PRIMARY KEY, n INT); CREATE TABLE u (id INT, n INT);
        INSERT INTO t VALUES (1, 1), (2, 2); INSERT INTO u VALUES (1, 5), (2, 7), (3, 9);";
    connection.execute_batch(tables).unwrap();
    let merge = connection
        .prepare(
            "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED AND u.n = $1 THEN DO NOTHING
             WHEN MATCHED THEN UPDATE SET n = u.n + $2 WHEN NOT MATCHED THEN INSERT VALUES (u.id, $2)
             RETURNING merge_action(), id, n",
        )
        .unwrap();
    let columns: Vec<(String, String)> =
        merge.columns().into_iter().map(|column| (column.name, column.type_name)).collect();
    let expected = [("merge_action", "text"), ("id", "integer"), ("n", "integer")];
    assert_eq!(columns, expected.map(|(name, ty)| (name.to_string(), ty.to_string())));
    let run = |first: i32, second: i32| {
        let rows = merge.query_map((first, second), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let mut rows: Vec<(String, i32, i32)> = rows.map(|row| row.unwrap()).collect();
        rows.sort();
        rows
    };
    assert_eq!(run(7, 10), [("INSERT".into(), 3, 10), ("UPDATE".into(), 1, 15)]);
    assert_eq!(run(0, 0), [("UPDATE".into(), 1, 5), ("UPDATE".into(), 2, 7), ("UPDATE".into(), 3, 9)]);
}

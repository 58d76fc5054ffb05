//! Transactions of several sessions: the published anomalies at each isolation level, and random concurrent histories.
//!
//! The anomalies are those of Berenson et al., "A Critique of ANSI SQL Isolation Levels" (1995), and Adya, "Weak
//! Consistency" (1999). The histories are checked as by Kingsbury and Alvaro, "Elle" (2020): each transaction appends
//! unique numbers to lists, so that the lists show the order of all writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki::{Connection, Database, Error, Isolation, Options, Result, Transaction, TransactionStatus};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

/// Two connections of a database with a table of two rows: (1, 10) and (2, 20).
fn two() -> (Connection, Connection) {
    let first = Connection::open_temporary().unwrap();
    first.execute("CREATE TABLE test (id INT PRIMARY KEY, value INT)", ()).unwrap();
    first.execute("CREATE INDEX test_value ON test (value)", ()).unwrap();
    first.execute("INSERT INTO test VALUES (1, 10), (2, 20)", ()).unwrap();
    let second = first.try_clone().unwrap();
    (first, second)
}

fn value(connection: &Connection, id: i64) -> i64 {
    connection.query_row("SELECT value FROM test WHERE id = $1", (id,), |row| row.get(0)).unwrap()
}

fn values(connection: &Connection, condition: &str) -> Vec<i64> {
    let sql = format!("SELECT value FROM test WHERE {condition} ORDER BY id");
    connection.query_map(&sql, (), |row| row.get(0)).unwrap().collect::<Result<_>>().unwrap()
}

/// Runs a change of a row that another transaction has changed; at the level read committed, it waits for that one in vain. True
/// if the transaction goes on.
fn conflicts_later(level: Isolation, transaction: &Transaction<'_>, change: &str) -> bool {
    transaction.execute("SET lock_timeout = '1ms'", ()).unwrap();
    let changed = transaction.execute(change, ());
    assert_eq!(changed.is_err(), level == Isolation::ReadCommitted, "{level}: {changed:?}");
    changed.inspect_err(|error| assert!(matches!(error, Error::LockTimeout), "{error}")).is_ok()
}

fn set(connection: &Connection, id: i64, value: i64) {
    let changed = connection.execute("UPDATE test SET value = $2 WHERE id = $1", (id, value)).unwrap();
    assert_eq!(changed, 1);
}

/// True if the transaction was committed, false after a conflict.
fn commits(transaction: Transaction<'_>) -> bool {
    match transaction.commit() {
        Ok(()) => true,
        Err(error) if error.is_retryable() => {
            assert!(matches!(error, Error::Conflict { .. }), "{error:?}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A savepoint does not keep the definitions of others that a later statement has seen: rows written after the rollback
/// have entries in a new index, and the commit does not undo its creation.
#[test]
fn rollbacks_to_savepoints_keep_definitions_of_others() {
    for reads in [false, true] {
        let (a, b) = two();
        a.execute_batch("BEGIN ISOLATION LEVEL READ COMMITTED; SAVEPOINT p").unwrap();
        b.execute("CREATE INDEX test_both ON test (value, id)", ()).unwrap();
        if reads {
            assert_eq!(value(&a, 1), 10);
        }
        a.execute_batch("ROLLBACK TO p; INSERT INTO test VALUES (3, 30); COMMIT").unwrap();
        assert_eq!(a.database().indexes().len(), 2, "the commit has dropped an index");
        assert_eq!(values(&b, "value >= 30"), [30]);
        let checked = b.query_map("CHECK TABLE test", (), |row| row.get::<_, Option<String>>("problem")).unwrap();
        assert!(checked.map(Result::unwrap).all(|problem| problem.is_none()), "an index differs from the table");
    }
}

/// G0, dirty writes: two transactions write both rows, in turns.
#[test]
fn writes_do_not_mix() {
    for level in LEVELS {
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        set(&first, 1, 11);
        let goes_on = conflicts_later(level, &second, "UPDATE test SET value = 12 WHERE id = 1");
        set(&first, 2, 21);
        assert!(commits(first));
        assert_eq!(values(&a, "true"), [11, 21]);
        if goes_on {
            set(&second, 2, 22);
            assert!(!commits(second), "{level}");
        }
        assert_eq!(values(&a, "true"), [11, 21]);
    }
}

/// G1a, aborted reads; G1b, intermediate reads.
#[test]
fn uncommitted_values_are_invisible() {
    for level in LEVELS {
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        set(&first, 1, 101);
        assert_eq!(values(&second, "true"), [10, 20]);
        set(&first, 1, 11);
        assert_eq!(values(&second, "value > 100"), [0_i64; 0]);
        first.rollback().unwrap();
        assert_eq!(values(&second, "true"), [10, 20]);
        assert!(commits(second));
    }
}

/// G1c, circular information flow.
#[test]
fn information_does_not_flow_in_circles() {
    for level in LEVELS {
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        set(&first, 1, 11);
        set(&second, 2, 22);
        assert_eq!(value(&first, 2), 20);
        assert_eq!(value(&second, 1), 10);
        assert!(commits(first));
        // Each transaction has missed the write of the other one.
        assert_eq!(commits(second), level != Isolation::Serializable, "{level}");
    }
}

/// OTV, observed transaction vanishes: a transaction that has seen a part of another one sees all of it.
#[test]
fn transactions_become_visible_as_a_whole() {
    for level in LEVELS {
        let (a, b) = two();
        let c = a.try_clone().unwrap();
        let (first, reader) = (a.transaction_at(level).unwrap(), c.transaction_at(level).unwrap());
        set(&first, 1, 11);
        set(&first, 2, 19);
        assert!(commits(first));
        assert_eq!(value(&reader, 1), 11);
        let second = b.transaction_at(level).unwrap();
        set(&second, 1, 12);
        set(&second, 2, 18);
        assert_eq!(value(&reader, 2), 19);
        assert!(commits(second));
        let expected = if level == Isolation::ReadCommitted { [12, 18] } else { [11, 19] };
        assert_eq!([value(&reader, 1), value(&reader, 2)], expected, "{level}");
        assert!(commits(reader));
    }
}

/// PMP, predicate-many-preceders: the rows of a condition change within a transaction.
#[test]
fn conditions_have_the_same_rows() {
    for level in LEVELS {
        for condition in ["value = 30", "id > 2", "value % 3 = 0"] {
            let (a, b) = two();
            let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
            assert_eq!(values(&first, condition), [0_i64; 0]);
            second.execute("INSERT INTO test VALUES (3, 30)", ()).unwrap();
            assert!(commits(second));
            let seen = if level == Isolation::ReadCommitted { vec![30] } else { vec![] };
            assert_eq!(values(&first, condition), seen, "{level}");
            // It has written nothing, so that it precedes the other one.
            assert!(commits(first));
        }
    }
}

/// P4, lost update.
#[test]
fn updates_are_not_lost() {
    for level in LEVELS {
        for commits_before in [false, true] {
            let (a, b) = two();
            let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
            let (one, two) = (value(&first, 1), value(&second, 1));
            set(&first, 1, one + 1);
            if commits_before {
                assert!(commits(first));
                set(&second, 1, two + 1);
            } else {
                let change = format!("UPDATE test SET value = {} WHERE id = 1", two + 1);
                let goes_on = conflicts_later(level, &second, &change);
                assert!(commits(first));
                if !goes_on {
                    continue;
                }
            }
            // At the level read committed, an UPDATE sees what was committed before it.
            let is_lost = level == Isolation::ReadCommitted && commits_before;
            assert_eq!(commits(second), is_lost, "{level}");
        }
        // The UPDATE itself reads the row.
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        first.execute("UPDATE test SET value = value + 1 WHERE id = 1", ()).unwrap();
        assert!(commits(first));
        second.execute("UPDATE test SET value = value + 1 WHERE id = 1", ()).unwrap();
        assert!(commits(second));
        assert_eq!(value(&a, 1), 12);
    }
}

/// G-single, read skew: a transaction sees one row before and one after another transaction.
#[test]
fn reads_are_of_one_moment() {
    for level in LEVELS {
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        assert_eq!(value(&first, 1), 10);
        set(&second, 1, 12);
        set(&second, 2, 18);
        assert!(commits(second));
        assert_eq!(value(&first, 2), if level == Isolation::ReadCommitted { 18 } else { 20 });
        // A write that depends on the old value.
        first.execute("DELETE FROM test WHERE value = 20", ()).unwrap();
        assert_eq!(commits(first), level == Isolation::ReadCommitted, "{level}");
    }
}

/// G2-item, write skew: each transaction reads both rows and writes another one.
/// A join by index that reads one tree twice.
#[test]
fn self_joins_see_the_rows_of_their_transaction() {
    let connection = Connection::open_temporary().unwrap();
    connection.execute_batch("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); CREATE INDEX t_n ON t (n)").unwrap();
    connection.execute("INSERT INTO t SELECT value, value / 10 FROM generate_series(1, 50000)", ()).unwrap();
    let transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO t VALUES (0, 1)", ()).unwrap();
    for (join, expected) in [("x.n = y.n", 11), ("x.n = y.id", 1)] {
        let sql = format!("SELECT count(*) FROM t x JOIN t y ON {join} WHERE x.id = 10");
        assert_eq!(transaction.query_row(&sql, (), |row| row.get::<_, i64>(0)).unwrap(), expected, "{join}");
    }
}

#[test]
fn write_skew() {
    for level in LEVELS {
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        for transaction in [&first, &second] {
            assert_eq!([value(transaction, 1), value(transaction, 2)], [10, 20]);
        }
        set(&first, 1, 11);
        set(&second, 2, 21);
        assert!(commits(first));
        assert_eq!(commits(second), level != Isolation::Serializable, "{level}");
    }
}

/// G2, anti-dependency cycles of conditions: each transaction inserts a row that the condition of the other one selects.
#[test]
fn write_skew_of_conditions() {
    // By index, by scan, by the number of rows, by a join, in a subquery of a write.
    let reads = [
        "SELECT count(*) FROM test WHERE value BETWEEN 30 AND 50",
        "SELECT count(*) FROM test WHERE value % 3 = 0",
        "SELECT count(*) - 2 FROM test",
        "SELECT count(*) FROM test a JOIN test b ON b.value = a.value + 10 WHERE a.id > 1",
        "SELECT max(value) - 20 FROM test",
    ];
    for level in LEVELS {
        for sql in reads {
            let (a, b) = two();
            let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
            for transaction in [&first, &second] {
                assert_eq!(transaction.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap(), 0, "{sql}");
            }
            first.execute("INSERT INTO test VALUES (3, 30)", ()).unwrap();
            second.execute("INSERT INTO test VALUES (4, 42)", ()).unwrap();
            assert!(commits(first));
            assert_eq!(commits(second), level != Isolation::Serializable, "{level}, {sql}");
        }
        let (a, b) = two();
        let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
        for (transaction, id) in [(&first, 3), (&second, 4)] {
            let sql = "INSERT INTO test SELECT $1, 30 WHERE NOT EXISTS (SELECT 1 FROM test WHERE value = 30)";
            assert_eq!(transaction.execute(sql, (id,)).unwrap(), 1);
        }
        assert!(commits(first));
        assert_eq!(commits(second), level != Isolation::Serializable, "{level}");
    }
}

/// Serializable transactions with other rows do not conflict.
#[test]
fn separate_rows_do_not_conflict() {
    let (a, b) = two();
    let [first, second] = [&a, &b].map(|connection| connection.transaction_at(Isolation::Serializable).unwrap());
    for (transaction, id) in [(&first, 1), (&second, 2)] {
        let old = value(transaction, id);
        set(transaction, id, old + 1);
        let sql = "INSERT INTO test VALUES ($1, $2)";
        transaction.execute(sql, (id + 10, id)).unwrap();
    }
    assert!(commits(first));
    assert!(commits(second));
    assert_eq!(values(&a, "true"), [11, 21, 1, 2]);
}

/// A read-only report is not disturbed, and does not disturb.
#[test]
fn readers_do_not_conflict() {
    let (a, b) = two();
    a.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY", ()).unwrap();
    let reader = a.transaction().unwrap();
    assert_eq!(values(&reader, "true"), [10, 20]);
    set(&b, 1, 11);
    b.execute("DROP TABLE test", ()).unwrap();
    assert_eq!(values(&reader, "true"), [10, 20]);
    assert!(commits(reader));
    assert!(a.query("SELECT * FROM test", ()).is_err());
}

#[test]
fn two_transactions_cannot_insert_the_same_key() {
    for level in LEVELS {
        for index in
            ["", "CREATE UNIQUE INDEX u ON test (value)", "CREATE UNIQUE INDEX u ON test USING masstree (value)"]
        {
            let (a, b) = two();
            if !index.is_empty() {
                a.execute(index, ()).unwrap();
            }
            let (first, second) = (a.transaction_at(level).unwrap(), b.transaction_at(level).unwrap());
            first.execute("INSERT INTO test VALUES (3, 30)", ()).unwrap();
            let row = if index.is_empty() { "(3, 31)" } else { "(4, 30)" };
            let goes_on = conflicts_later(level, &second, &format!("INSERT INTO test VALUES {row}"));
            assert!(commits(first));
            if goes_on {
                assert!(!commits(second), "{level}, {index}");
            }
            assert_eq!(values(&a, "id > 2"), [30]);
        }
    }
}

/// Definitions that other sessions change while a transaction is open.
#[test]
fn definitions_conflict() {
    let other = |statement: &str, change: &str| -> bool {
        let (a, b) = two();
        a.execute("CREATE TABLE other (x INT)", ()).unwrap();
        let transaction = a.transaction().unwrap();
        transaction.execute(statement, ()).unwrap();
        b.execute(change, ()).unwrap();
        let committed = commits(transaction);
        // Tables and indexes agree.
        let by_index = b.query_row("SELECT count(*) FROM test WHERE value >= 0", (), |row| row.get::<_, i64>(0));
        let by_scan = b.query_row("SELECT count(*) FROM test WHERE value + 0 >= 0", (), |row| row.get::<_, i64>(0));
        assert_eq!(by_index.ok(), by_scan.ok());
        committed
    };
    let insert = "INSERT INTO test VALUES (3, 30)";
    assert!(!other(insert, "CREATE INDEX i ON test (value, id)"));
    assert!(!other(insert, "DROP INDEX test_value"));
    assert!(!other(insert, "DROP TABLE test"));
    assert!(other(insert, "CREATE INDEX i ON other (x)"));
    assert!(other(insert, "DROP TABLE other"));
    assert!(other(insert, "ANALYZE test"));
    assert!(other(insert, "INSERT INTO test VALUES (4, 40)"));
    assert!(!other("CREATE INDEX i ON test (value, id)", "INSERT INTO test VALUES (4, 40)"));
    assert!(!other("CREATE INDEX i ON test (value, id)", "UPDATE test SET value = 7"));
    assert!(other("CREATE INDEX i ON test (value, id)", "INSERT INTO other VALUES (1)"));
    assert!(!other("CREATE TABLE t (x INT)", "CREATE TABLE u (x INT)"));
    assert!(!other("CREATE VIEW v AS SELECT * FROM other", "DROP TABLE other"));
    assert!(other("CREATE TABLE t (x INT)", "ANALYZE"));
    assert!(other("DROP TABLE other", "INSERT INTO test VALUES (4, 40)"));
}

/// A transaction that holds the writer lock has no conflicts.
#[test]
fn immediate_transactions_keep_writers_waiting() {
    let (a, _) = two();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let connection = a.try_clone().unwrap();
                scope.spawn(move || {
                    for _ in 0..50 {
                        connection.execute("BEGIN IMMEDIATE", ()).unwrap();
                        let old = value(&connection, 1);
                        std::thread::yield_now();
                        set(&connection, 1, old + 1);
                        connection.execute("COMMIT", ()).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(value(&a, 1), 210);
}

#[test]
fn the_api_rolls_back_and_retries() {
    let (a, b) = two();
    {
        let transaction = a.transaction().unwrap();
        set(&transaction, 1, 99);
        assert_eq!(a.session().transaction_status(), TransactionStatus::Open);
    }
    assert_eq!(a.session().transaction_status(), TransactionStatus::Idle);
    assert_eq!(value(&a, 1), 10);
    // A failed statement makes the commit fail.
    let transaction = a.transaction().unwrap();
    set(&transaction, 1, 99);
    assert!(transaction.execute("INSERT INTO test VALUES (2, 0)", ()).is_err());
    assert_eq!(a.session().transaction_status(), TransactionStatus::Failed);
    assert!(matches!(transaction.commit(), Err(Error::FailedTransaction)));
    assert_eq!(value(&a, 1), 10);
    // Retries.
    let mut attempts = 0;
    let result = a.with_transaction(3, |transaction| {
        attempts += 1;
        let old = value(transaction, 1);
        if attempts < 3 {
            set(&b, 1, old + 100);
        }
        set(transaction, 1, old + 1);
        Ok(old)
    });
    assert_eq!((result.unwrap(), attempts, value(&a, 1)), (210, 3, 211));
    let conflict = a.with_transaction(2, |transaction| {
        assert!(value(transaction, 1) > 0);
        set(&b, 1, 5);
        set(transaction, 1, 6);
        Ok(())
    });
    assert!(conflict.is_err_and(|error| error.is_retryable()));
    // A dropped connection rolls back.
    let c = a.try_clone().unwrap();
    c.execute("BEGIN", ()).unwrap();
    set(&c, 1, 77);
    drop(c);
    assert_eq!(value(&a, 1), 5);
}

/// Bulk interfaces inside a transaction.
#[test]
fn bulk_loads_belong_to_the_transaction() {
    let (a, b) = two();
    let count = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM test", (), |row| row.get(0)).unwrap()
    };
    for commit in [false, true] {
        let transaction = a.transaction().unwrap();
        let mut appender = transaction.appender("test").unwrap();
        (100..30_100).for_each(|id| appender.append_row((id, id)).unwrap());
        assert_eq!(appender.finish().unwrap(), 30_000);
        transaction.execute("INSERT INTO test SELECT id + 100000, value FROM test WHERE id >= 100", ()).unwrap();
        transaction.execute("CREATE TABLE copy AS SELECT * FROM test", ()).unwrap();
        assert_eq!((count(&transaction), count(&b)), (60_002, 2));
        assert_eq!(values(&transaction, "value = 20000"), [20000, 20000]);
        if commit {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
        }
        assert_eq!(count(&b), if commit { 60_002 } else { 2 });
        assert_eq!(b.query("SELECT * FROM copy", ()).is_ok(), commit);
    }
}

#[test]
fn changes_that_exceed_the_memory_spill() {
    let options = Options { memory_bytes: Some(16 << 20), ..Options::default() };
    let connection = Database::open_temporary(options).unwrap().connect().unwrap();
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY, c TEXT)", ()).unwrap();
    connection.execute("INSERT INTO t VALUES (0, 'first')", ()).unwrap();
    let count = || connection.query_row("SELECT count(*) FROM t", (), |row| row.get::<_, i64>(0)).unwrap();
    let sql = "INSERT INTO t SELECT value + $1, repeat('x', 100) FROM generate_series(1, 1000)";
    for commits in [false, true] {
        let transaction = connection.transaction().unwrap();
        (0..100).for_each(|i| assert_eq!(transaction.execute(sql, (i * 1000,)).unwrap(), 1000));
        match commits {
            false => transaction.rollback().unwrap(),
            true => transaction.commit().unwrap(),
        }
        assert_eq!(count(), if commits { 100_001 } else { 1 });
    }
    // A statement that needs all its rows together cannot spill them.
    let transaction = connection.transaction().unwrap();
    let error = transaction.execute("UPDATE t SET id = -id - 1", ()).unwrap_err();
    assert!(matches!(error.root(), Error::OutOfMemory { .. }), "{error}");
    transaction.rollback().unwrap();
    // The memory is free again.
    assert_eq!(connection.execute(sql, (100_000,)).unwrap(), 1000);
    assert_eq!(count(), 101_001);
}

/// A committed transaction of a history: what it has read, and the numbers that it has appended, in order.
#[derive(Debug)]
struct Done {
    reads: Vec<(i64, Vec<u64>)>,
    appends: Vec<(i64, u64)>,
}

const LISTS: i64 = 5;

fn list(connection: &Connection, key: i64) -> Result<Vec<u64>> {
    let text: String = connection.query_row("SELECT items FROM list WHERE k = $1", (key,), |row| row.get(0))?;
    Ok(text.split_terminator(',').map(|item| item.parse().unwrap()).collect())
}

/// Runs random transactions on several threads. Returns those that were committed, and the lists at the end.
fn history(level: Isolation, seed: u64, options: &Options) -> (Vec<Done>, BTreeMap<i64, Vec<u64>>) {
    let connection = Database::open_temporary(options.clone()).unwrap().connect().unwrap();
    connection.execute("CREATE TABLE list (k INT PRIMARY KEY, items TEXT)", ()).unwrap();
    let insert = connection.prepare("INSERT INTO list VALUES ($1, '')").unwrap();
    (0..LISTS).for_each(|key| assert_eq!(insert.execute((key,)).unwrap(), 1));
    let (done, next) = (Mutex::new(Vec::new()), AtomicU64::new(1));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (connection, done, next) = (connection.try_clone().unwrap(), &done, &next);
            scope.spawn(move || {
                let mut random = keyaki_primitives::Random::new(seed * 100 + thread);
                for _ in 0..60 {
                    if let Some(transaction) = step(&connection, level, &mut random, next) {
                        done.lock().unwrap().push(transaction);
                    }
                }
            });
        }
    });
    let lists = (0..LISTS).map(|key| (key, list(&connection, key).unwrap())).collect();
    (done.into_inner().unwrap(), lists)
}

/// One random transaction; `None` after a conflict.
fn step(
    connection: &Connection,
    level: Isolation,
    random: &mut keyaki_primitives::Random,
    next: &AtomicU64,
) -> Option<Done> {
    let transaction = connection.transaction_at(level).unwrap();
    let mut done = Done { reads: Vec::new(), appends: Vec::new() };
    for _ in 0..1 + random.below(5) {
        let key = random.below(LISTS as u64) as i64;
        let result = if random.below(2) == 0 {
            list(&transaction, key).map(|items| {
                // Own appends are at the end.
                let own: Vec<u64> = done.appends.iter().filter(|(k, _)| *k == key).map(|(_, item)| *item).collect();
                assert!(items.ends_with(&own), "own writes are visible");
                done.reads.push((key, items[..items.len() - own.len()].to_vec()));
            })
        } else {
            let item = next.fetch_add(1, Ordering::Relaxed);
            done.appends.push((key, item));
            let sql = "UPDATE list SET items = items || $2 || ',' WHERE k = $1";
            transaction.execute(sql, (key, item.to_string())).map(drop)
        };
        match result {
            Ok(()) => {}
            Err(error) if error.is_retryable() => return None,
            Err(error) => panic!("{error}"),
        }
        if random.below(3) == 0 {
            std::thread::yield_now();
        }
    }
    commits(transaction).then_some(done)
}

/// The dependencies between committed transactions: pairs of positions, and whether they are anti-dependencies (the first
/// transaction has read a version that the second one replaced).
fn dependencies(done: &[Done], lists: &BTreeMap<i64, Vec<u64>>) -> BTreeSet<(usize, usize, bool)> {
    let mut writer = BTreeMap::new();
    for (i, transaction) in done.iter().enumerate() {
        for (_, item) in &transaction.appends {
            writer.insert(*item, i);
        }
    }
    let mut edges = BTreeSet::new();
    for items in lists.values() {
        // G1a: every item is that of a committed transaction. No update is lost: every item is there once.
        assert!(items.iter().all(|item| writer.contains_key(item)), "an aborted write is visible");
        edges.extend(items.windows(2).map(|pair| (writer[&pair[0]], writer[&pair[1]], false)));
    }
    let total: usize = lists.values().map(Vec::len).sum();
    assert_eq!(total, writer.len(), "lost updates");
    for (i, transaction) in done.iter().enumerate() {
        for (key, read) in &transaction.reads {
            let items = &lists[key];
            assert!(items.starts_with(read), "a read is a version of the list");
            // G1b: no version between the appends of one transaction.
            if let (Some(last), Some(next)) = (read.last(), items.get(read.len())) {
                assert_ne!(writer[last], writer[next], "an intermediate version was read");
            }
            edges.extend(read.last().map(|last| (writer[last], i, false)));
            edges.extend(items.get(read.len()).map(|next| (i, writer[next], true)));
        }
    }
    edges.retain(|(from, to, _)| from != to);
    edges
}

/// True if there is a path along `edges`.
fn reaches(edges: &BTreeMap<usize, Vec<usize>>, from: usize, to: usize) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            open.extend(edges.get(&at).into_iter().flatten());
        }
    }
    false
}

#[test]
fn histories_have_no_forbidden_cycles() {
    let tiny = keyaki::StoreOptions { buffer_bytes: 16 << 10, ..keyaki::StoreOptions::default() };
    let small = Options { store: Some(tiny), memory_bytes: Some(64 << 20), ..Options::default() };
    let mut committed = 0;
    for seed in 0..9 {
        let level = LEVELS[seed as usize % 3];
        let options =
            if seed < 6 { Options { memory_bytes: Some(64 << 20), ..Options::default() } } else { small.clone() };
        let (done, lists) = history(level, seed, &options);
        committed += done.len();
        let edges = dependencies(&done, &lists);
        let graph = |with_anti: bool| {
            let mut graph: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for &(from, to, _) in edges.iter().filter(|(_, _, is_anti)| with_anti || !is_anti) {
                graph.entry(from).or_default().push(to);
            }
            graph
        };
        let (writes, all) = (graph(false), graph(true));
        for &(from, to, is_anti) in &edges {
            // G1c: no cycle of dependencies. G-single: none with one anti-dependency.
            if !is_anti || level != Isolation::ReadCommitted {
                assert!(!reaches(&writes, to, from), "{level}, seed {seed}: {from} to {to}");
            }
            // G2: no cycle at all.
            if level == Isolation::Serializable {
                assert!(!reaches(&all, to, from), "{level}, seed {seed}: {from} to {to}");
            }
        }
    }
    assert!(committed > 500, "{committed}");
}

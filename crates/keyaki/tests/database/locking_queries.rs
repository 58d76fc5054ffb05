//! Queries with FOR UPDATE and FOR SHARE: they wait for the rows of other transactions, and keep their own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use keyaki::{Connection, Database, Error, Isolation, Options, Result, TransactionStatus};

/// A connection to a new database whose statements and transactions are at the level read committed.
fn open() -> Connection {
    let connection = Connection::open_temporary().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, code TEXT UNIQUE);
             INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')",
        )
        .unwrap();
    read_committed(connection)
}

fn read_committed(connection: Connection) -> Connection {
    connection.session().set_default_isolation(Isolation::ReadCommitted);
    connection.execute("SET lock_timeout = '20s'", ()).unwrap();
    connection
}

fn another(connection: &Connection) -> Connection {
    read_committed(connection.try_clone().unwrap())
}

/// The first column of the rows of a query.
fn read(connection: &Connection, sql: &str) -> Result<Vec<i64>> {
    connection.query_map(sql, (), |row| row.get::<_, i64>(0))?.collect()
}

fn found(connection: &Connection, sql: &str) -> Vec<i64> {
    read(connection, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn code(result: Result<Vec<i64>>) -> &'static str {
    result.unwrap_err().sqlstate().code()
}

/// Runs `sql` on `other`, checks that it waits, then `meanwhile`, and returns the result of `sql`.
fn waiting(other: &Connection, sql: &str, meanwhile: impl FnOnce()) -> Result<Vec<i64>> {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let statement = scope.spawn(move || {
            let result = match sql.starts_with("SELECT") || sql.contains("RETURNING") {
                true => read(other, sql),
                false => other.execute(sql, ()).map(|rows| vec![rows as i64]),
            };
            done.send(()).unwrap();
            result
        });
        // A statement that does not wait would end at once.
        assert!(is_done.recv_timeout(Duration::from_millis(100)).is_err(), "{sql} has not waited");
        meanwhile();
        statement.join().unwrap()
    })
}

#[test]
fn a_query_waits_for_a_change_and_reads_the_newest_row() {
    let a = open();
    let b = another(&a);
    for switch in ["on", "off"] {
        b.execute(&format!("SET keyaki.short_path = '{switch}'"), ()).unwrap();
        for (end, expected) in [("COMMIT", 11), ("ROLLBACK", 10)] {
            for in_transaction in [false, true] {
                a.execute_batch("UPDATE t SET v = 10 WHERE id = 1; BEGIN; UPDATE t SET v = v + 1 WHERE id = 1")
                    .unwrap();
                assert_eq!(found(&b, "SELECT v FROM t WHERE id = 1"), [10], "readers do not wait");
                if in_transaction {
                    b.execute("BEGIN", ()).unwrap();
                }
                let select = "SELECT v FROM t WHERE id = 1 FOR UPDATE";
                let read = waiting(&b, select, || _ = a.execute(end, ()).unwrap());
                assert_eq!(read.unwrap(), [expected], "{end}, short path {switch}, in a transaction {in_transaction}");
                if in_transaction {
                    b.execute("COMMIT", ()).unwrap();
                }
            }
        }
    }
    // The row is gone, or matches no longer.
    a.execute_batch("BEGIN; DELETE FROM t WHERE id = 3; UPDATE t SET v = 0 WHERE id = 2").unwrap();
    let read = waiting(&b, "SELECT id FROM t WHERE v >= 20 FOR UPDATE", || _ = a.execute("COMMIT", ()).unwrap());
    assert!(read.unwrap().is_empty());
}

#[test]
fn changes_wait_for_locked_rows() {
    let a = open();
    let b = another(&a);
    for (lock, change, waits) in [
        ("FOR UPDATE", "UPDATE t SET v = v + 1 WHERE id = 1", true),
        ("FOR NO KEY UPDATE", "UPDATE t SET v = v + 1 WHERE id = 1", true),
        ("FOR SHARE", "UPDATE t SET v = v + 1 WHERE id = 1", true),
        ("FOR KEY SHARE", "UPDATE t SET v = v + 1 WHERE id = 1", false),
        ("FOR KEY SHARE", "UPDATE t SET code = code || 'x' WHERE id = 1", true),
        ("FOR KEY SHARE", "UPDATE t SET id = 9 WHERE id = 1", true),
        ("FOR KEY SHARE", "DELETE FROM t WHERE id = 1", true),
        ("FOR UPDATE", "SELECT id FROM t WHERE id = 1 FOR KEY SHARE", true),
        ("FOR NO KEY UPDATE", "SELECT id FROM t WHERE id = 1 FOR KEY SHARE", false),
        ("FOR SHARE", "SELECT id FROM t WHERE id = 1 FOR SHARE", false),
        ("FOR UPDATE", "UPDATE t SET v = 0 WHERE id = 2", false),
        ("FOR UPDATE", "INSERT INTO t VALUES (1, 1, 'z') ON CONFLICT (id) DO UPDATE SET v = 5", true),
    ] {
        a.execute_batch(&format!("BEGIN; SELECT * FROM t WHERE id = 1 {lock}")).unwrap();
        b.execute("BEGIN", ()).unwrap();
        let changed = match waits {
            true => waiting(&b, change, || _ = a.execute("COMMIT", ()).unwrap()),
            false if change.starts_with("SELECT") => read(&b, change),
            false => b.execute(change, ()).map(|rows| vec![rows as i64]),
        };
        assert_eq!(changed.unwrap(), [1], "{lock}: {change}");
        b.execute("ROLLBACK", ()).unwrap();
        if !waits {
            a.execute("COMMIT", ()).unwrap();
        }
    }
}

#[test]
fn nowait_fails_and_skip_locked_leaves_rows_out() {
    let a = open();
    let b = another(&a);
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id = 2 FOR UPDATE").unwrap();
    for switch in ["on", "off"] {
        b.execute(&format!("SET keyaki.short_path = '{switch}'"), ()).unwrap();
        assert_eq!(code(read(&b, "SELECT id FROM t WHERE id = 2 FOR UPDATE NOWAIT")), "55P03");
        assert_eq!(found(&b, "SELECT id FROM t WHERE id = 3 FOR UPDATE NOWAIT"), [3]);
        assert!(found(&b, "SELECT id FROM t WHERE id = 2 FOR SHARE SKIP LOCKED").is_empty());
        assert_eq!(found(&b, "SELECT id FROM t WHERE id IN (1, 2) FOR SHARE SKIP LOCKED"), [1]);
        for (limit, expected) in [
            ("", [1, 3].as_slice()),
            ("LIMIT 1", &[1]),
            ("LIMIT 2", &[1, 3]),
            ("LIMIT 5", &[1, 3]),
            ("OFFSET 1", &[3]),
            ("LIMIT 1 OFFSET 1", &[3]),
            ("LIMIT 1 OFFSET 2", &[]),
            ("FETCH FIRST 2 ROWS ONLY", &[1, 3]),
        ] {
            let sql = format!("SELECT id FROM t ORDER BY id {limit} FOR UPDATE SKIP LOCKED");
            assert_eq!(found(&b, &sql), expected, "{limit}");
        }
    }
    // The error makes the transaction fail, with the relation.
    b.execute("BEGIN", ()).unwrap();
    let error = read(&b, "SELECT id FROM t FOR UPDATE NOWAIT").unwrap_err();
    assert!(matches!(&error, Error::LockNotAvailable { relation } if relation == "t"), "{error}");
    assert_eq!(b.session().transaction_status(), TransactionStatus::Failed);
    b.execute("ROLLBACK", ()).unwrap();
    a.execute("ROLLBACK", ()).unwrap();
    assert_eq!(found(&b, "SELECT id FROM t ORDER BY id FOR UPDATE NOWAIT"), [1, 2, 3]);
}

#[test]
fn many_locked_rows_before_the_limit_are_skipped() {
    let a = open();
    a.execute("INSERT INTO t SELECT value, 0, value::TEXT FROM generate_series(100, 3000)", ()).unwrap();
    let b = another(&a);
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id BETWEEN 100 AND 2500 FOR UPDATE").unwrap();
    let ids = found(&b, "SELECT id FROM t WHERE id >= 100 ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED");
    assert_eq!(ids, [2501, 2502, 2503]);
    assert_eq!(found(&b, "SELECT id FROM t ORDER BY id LIMIT 4 FOR UPDATE SKIP LOCKED"), [1, 2, 3, 2501]);
}

/// Workers that take jobs from a queue: each job is done once.
#[test]
fn workers_empty_a_queue() {
    const WORKERS: usize = 6;
    const JOBS: i64 = 600;
    let database = Database::open_temporary(Options::default()).unwrap();
    let setup = database.connect().unwrap();
    setup
        .execute_batch(&format!(
            "CREATE TABLE jobs (id BIGINT PRIMARY KEY, state TEXT);
             CREATE TABLE done (job BIGINT PRIMARY KEY, worker BIGINT);
             INSERT INTO jobs SELECT value, 'new' FROM generate_series(1, {JOBS})"
        ))
        .unwrap();
    // Three forms of the work.
    let take = "SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED";
    let update = "UPDATE jobs SET state = 'done' WHERE id IN (SELECT id FROM jobs WHERE state = 'new' ORDER BY id \
                  FOR UPDATE SKIP LOCKED LIMIT 5) RETURNING id";
    let delete = "WITH next AS (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED) \
                  DELETE FROM jobs USING next WHERE jobs.id = next.id RETURNING jobs.id";
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let connection = read_committed(database.connect().unwrap());
            let taken = &taken;
            scope.spawn(move || {
                loop {
                    connection.execute("BEGIN", ()).unwrap();
                    let ids = found(&connection, [take, update, delete][worker % 3]);
                    for id in &ids {
                        connection.execute("INSERT INTO done VALUES ($1, $2)", (*id, worker as i64)).unwrap();
                        if worker % 3 == 0 {
                            connection.execute("UPDATE jobs SET state = 'done' WHERE id = $1", (*id,)).unwrap();
                        }
                    }
                    connection.execute("COMMIT", ()).unwrap();
                    taken.fetch_add(ids.len(), Ordering::Relaxed);
                    if ids.is_empty() && taken.load(Ordering::Relaxed) >= JOBS as usize {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), JOBS as usize);
    assert_eq!(found(&setup, "SELECT count(*) FROM done"), [JOBS]);
    assert_eq!(found(&setup, "SELECT count(*) FROM jobs WHERE state = 'new'"), [0]);
}

/// Each of several transactions gets other rows, as many as it wants.
#[test]
fn open_transactions_get_distinct_rows() {
    let a = open();
    a.execute("INSERT INTO t SELECT value, 0, value::TEXT FROM generate_series(101, 140)", ()).unwrap();
    let workers: Vec<_> = (0..4).map(|_| another(&a)).collect();
    let mut seen = BTreeSet::new();
    for worker in &workers {
        worker.execute("BEGIN", ()).unwrap();
        let ids = found(worker, "SELECT id FROM t WHERE id > 100 ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED");
        assert_eq!(ids.len(), 10);
        assert!(ids.iter().all(|id| seen.insert(*id)), "{ids:?}");
    }
    assert!(found(&a, "SELECT id FROM t WHERE id > 100 ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED").is_empty());
}

/// Balances that are read with FOR UPDATE, and then written: no change is lost.
#[test]
fn balances_that_are_read_and_written() {
    const THREADS: i64 = 4;
    const TURNS: i64 = 50;
    let database = Database::open_temporary(Options::default()).unwrap();
    let setup = database.connect().unwrap();
    setup
        .execute_batch("CREATE TABLE account (id INT PRIMARY KEY, v BIGINT); INSERT INTO account VALUES (1, 0), (2, 0)")
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let connection = read_committed(database.connect().unwrap());
            scope.spawn(move || {
                for turn in 0..TURNS {
                    // Different orders: some of the transactions are in deadlocks.
                    let (first, second) = if (thread + turn) % 2 == 0 { (1, 2) } else { (2, 1) };
                    let work = || -> Result<()> {
                        let transaction = connection.transaction()?;
                        let mut values = Vec::new();
                        for id in [first, second] {
                            let sql = "SELECT v FROM account WHERE id = $1 FOR UPDATE";
                            values.push(transaction.query_row(sql, (id,), |row| row.get::<_, i64>(0))?);
                        }
                        for (id, value) in [first, second].into_iter().zip(values) {
                            transaction.execute("UPDATE account SET v = $2 WHERE id = $1", (id, value + 1))?;
                        }
                        transaction.commit()
                    };
                    loop {
                        match work() {
                            Ok(()) => break,
                            Err(Error::Deadlock) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(found(&setup, "SELECT v FROM account"), [THREADS * TURNS; 2]);
}

#[test]
fn deadlocks_of_queries_are_found() {
    let a = open();
    let b = another(&a);
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE").unwrap();
    b.execute_batch("BEGIN; SELECT * FROM t WHERE id = 2 FOR UPDATE").unwrap();
    let waited = waiting(&b, "SELECT id FROM t WHERE id = 1 FOR SHARE", || {
        assert_eq!(code(read(&a, "SELECT id FROM t WHERE id = 2 FOR SHARE")), "40P01");
    });
    assert_eq!(waited.unwrap(), [1]);
    a.execute("ROLLBACK", ()).unwrap();
    b.execute("COMMIT", ()).unwrap();
    // Both have the row in a shared mode, and want to change it.
    for connection in [&a, &b] {
        connection.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR SHARE").unwrap();
    }
    let waited = waiting(&a, "UPDATE t SET v = 1 WHERE id = 1", || {
        assert!(matches!(b.execute("UPDATE t SET v = 2 WHERE id = 1", ()), Err(Error::Deadlock)));
    });
    assert_eq!(waited.unwrap(), [1]);
    b.execute("ROLLBACK", ()).unwrap();
    a.execute("COMMIT", ()).unwrap();
}

#[test]
fn waits_of_queries_end_with_timeouts_and_interrupts() {
    let a = open();
    let b = another(&a);
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR SHARE").unwrap();
    let select = "SELECT id FROM t WHERE id = 1 FOR UPDATE";
    b.execute("SET lock_timeout = '20ms'", ()).unwrap();
    assert!(matches!(read(&b, select), Err(Error::LockTimeout)));
    b.execute("SET lock_timeout = 0", ()).unwrap();
    let interrupt = b.interrupt_handle();
    assert!(matches!(waiting(&b, select, || interrupt.interrupt()), Err(Error::Cancelled)));
    // The requests have left the queue.
    assert_eq!(found(&another(&a), "SELECT id FROM t WHERE id = 1 FOR SHARE NOWAIT"), [1]);
    b.execute("SET keyaki.row_locks = 'off'", ()).unwrap();
    assert_eq!(code(read(&b, select)), "55P03");
    assert_eq!(waiting(&another(&a), select, || drop(a)).unwrap(), [1]);
}

#[test]
fn transactions_with_a_snapshot_wait_and_find_conflicts() {
    let a = open();
    let b = another(&a);
    let select = "SELECT v FROM t WHERE id = 1 FOR UPDATE";
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        // The row has changed since the snapshot.
        b.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; SELECT * FROM t WHERE id = 2")).unwrap();
        a.execute("UPDATE t SET v = v + 1 WHERE id = 1", ()).unwrap();
        assert_eq!(code(read(&b, select)), "40001");
        b.execute("ROLLBACK", ()).unwrap();
        // It changes during the wait, or does not.
        for (end, is_conflict) in [("COMMIT", true), ("ROLLBACK", false)] {
            a.execute_batch("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").unwrap();
            b.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; SELECT * FROM t WHERE id = 2")).unwrap();
            let waited = waiting(&b, select, || _ = a.execute(end, ()).unwrap());
            match is_conflict {
                true => assert_eq!(code(waited), "40001"),
                false => assert_eq!(waited.unwrap().len(), 1),
            }
            b.execute("ROLLBACK", ()).unwrap();
        }
        // Others wait for the row that such a transaction has locked.
        b.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; {select}")).unwrap();
        let changed = waiting(&a, "UPDATE t SET v = 0 WHERE id = 1", || _ = b.execute("COMMIT", ()).unwrap());
        assert_eq!(changed.unwrap(), [1]);
    }
}

/// A writer that takes no locks changes a row that a transaction has locked: the commit of the transaction fails.
#[test]
fn locked_rows_are_conditions_of_the_commit() {
    let a = open();
    let b = a.try_clone().unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for (changed, is_conflict) in [(1, true), (2, false)] {
            a.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; SELECT v FROM t WHERE id = 1 FOR UPDATE"))
                .unwrap();
            b.execute("UPDATE t SET v = v + 1 WHERE id = $1", (changed,)).unwrap();
            a.execute("UPDATE t SET v = 0 WHERE id = 3", ()).unwrap();
            let committed = a.execute("COMMIT", ());
            assert_eq!(committed.is_err(), is_conflict, "{level}: {committed:?}");
        }
        // Not if the query was undone, unless the transaction depends on all that it has read.
        a.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; UPDATE t SET v = 1 WHERE id = 3; SAVEPOINT s"))
            .unwrap();
        a.execute_batch("SELECT v FROM t WHERE id = 1 FOR UPDATE; ROLLBACK TO s").unwrap();
        b.execute("UPDATE t SET v = v + 1 WHERE id = 1", ()).unwrap();
        assert_eq!(a.execute("COMMIT", ()).is_err(), level == "SERIALIZABLE", "{level}");
    }
}

#[test]
fn a_transaction_that_keeps_others_waiting_does_not_wait() {
    let a = open();
    let b = another(&a);
    b.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE").unwrap();
    a.execute("BEGIN IMMEDIATE", ()).unwrap();
    assert_eq!(found(&a, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED"), [2, 3]);
    assert_eq!(code(read(&a, "SELECT id FROM t FOR UPDATE")), "55P03");
    a.execute("ROLLBACK", ()).unwrap();
    b.execute("COMMIT", ()).unwrap();
    assert_eq!(found(&b, "SELECT id FROM t ORDER BY id FOR UPDATE NOWAIT"), [1, 2, 3]);
}

#[test]
fn rollback_to_a_savepoint_releases_the_rows_locked_since_then() {
    let a = open();
    let b = another(&a);
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE; SAVEPOINT s").unwrap();
    a.execute_batch("UPDATE t SET v = 0 WHERE id IN (1, 2); INSERT INTO t VALUES (4, 0, 'd'); ROLLBACK TO s").unwrap();
    assert_eq!(found(&b, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED"), [2, 3]);
    assert_eq!(b.execute("UPDATE t SET v = 5 WHERE id = 2", ()).unwrap(), 1);
    assert_eq!(b.execute("INSERT INTO t VALUES (4, 1, 'd')", ()).unwrap(), 1);
    a.execute_batch("SAVEPOINT r; UPDATE t SET v = 1 WHERE id = 3; SAVEPOINT q; RELEASE r").unwrap();
    let changed = waiting(&b, "UPDATE t SET v = 6 WHERE id = 3", || {
        assert!(read(&a, "SELECT 1 / 0").is_err());
        a.execute("ROLLBACK TO s", ()).unwrap();
    });
    assert_eq!(changed.unwrap(), [1]);
    a.execute("COMMIT", ()).unwrap();
    assert_eq!(found(&a, "SELECT v FROM t ORDER BY id"), [10, 5, 6, 1]);
}

#[test]
fn rows_of_several_tables_are_locked() {
    let a = open();
    a.execute_batch(
        "CREATE TABLE u (t INT, w INT); INSERT INTO u VALUES (1, 100), (1, 200), (2, 300);
         CREATE VIEW few AS SELECT id, v FROM t WHERE id < 3",
    )
    .unwrap();
    let b = another(&a);
    let locked = |sql: &str| {
        a.execute_batch(&format!("BEGIN; {sql}")).unwrap();
        let rows = (
            found(&b, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED"),
            found(&b, "SELECT w FROM u ORDER BY w FOR UPDATE SKIP LOCKED"),
        );
        a.execute("COMMIT", ()).unwrap();
        rows
    };
    let (t, u) = (vec![1, 2, 3], vec![100, 200, 300]);
    assert_eq!(locked("SELECT * FROM t JOIN u ON u.t = t.id WHERE id = 1 FOR UPDATE"), (vec![2, 3], vec![300]));
    assert_eq!(locked("SELECT * FROM t JOIN u ON u.t = t.id WHERE id = 1 FOR UPDATE OF t"), (vec![2, 3], u.clone()));
    assert_eq!(locked("SELECT x.v FROM u JOIN t AS x ON u.t = x.id FOR SHARE OF u"), (t.clone(), vec![]));
    assert_eq!(locked("SELECT v FROM t LEFT JOIN u ON u.t = t.id WHERE id > 1 FOR UPDATE"), (vec![1], vec![100, 200]));
    assert_eq!(locked("SELECT * FROM few FOR UPDATE"), (vec![3], u.clone()));
    assert_eq!(locked("SELECT * FROM (SELECT w FROM u WHERE w > 150) AS q FOR UPDATE"), (t.clone(), vec![100]));
    assert_eq!(
        locked("SELECT * FROM t WHERE id IN (SELECT t FROM u WHERE w = 300) FOR UPDATE"),
        (vec![1, 3], u.clone())
    );
    assert_eq!(
        locked("WITH q AS (SELECT t FROM u) SELECT id FROM t JOIN q ON q.t = id FOR UPDATE"),
        (vec![3], u.clone())
    );
    assert_eq!(locked("SELECT * FROM t, u WHERE false FOR UPDATE"), (t, u));
}

#[test]
fn statements_of_parameters_lock_rows() {
    let a = open();
    let b = another(&a);
    for switch in ["on", "off"] {
        for cache in ["on", "off"] {
            b.execute_batch(&format!("SET keyaki.short_path = '{switch}'; SET keyaki.plan_cache = '{cache}'")).unwrap();
            let find = b.prepare("SELECT v, code FROM t WHERE id = $1 FOR UPDATE").unwrap();
            let first = b.prepare("SELECT id FROM t WHERE v >= $1 ORDER BY v LIMIT $2 FOR UPDATE SKIP LOCKED").unwrap();
            let joined =
                b.prepare("SELECT x.id FROM t AS x JOIN t AS y ON x.id = y.id WHERE y.v > $1 FOR UPDATE OF x NOWAIT");
            let joined = joined.unwrap();
            for _ in 0..3 {
                b.execute("BEGIN", ()).unwrap();
                let row = find.query_row((2,), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).unwrap();
                assert_eq!(row, (20, "b".into()));
                assert_eq!(found(&a, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED"), [1, 3]);
                let ids: Vec<i64> = first.query_map((15, 1), |row| row.get(0)).unwrap().collect::<Result<_>>().unwrap();
                assert_eq!(ids, [2]);
                let ids: Vec<i64> = joined.query_map((25,), |row| row.get(0)).unwrap().collect::<Result<_>>().unwrap();
                assert_eq!(ids, [3]);
                assert_eq!(found(&a, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED"), [1]);
                b.execute("COMMIT", ()).unwrap();
            }
        }
    }
}

#[test]
fn statements_outside_of_transactions_release_their_rows() {
    let a = open();
    let b = another(&a);
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        a.session().set_default_isolation(level);
        assert_eq!(found(&a, "SELECT id FROM t WHERE id = 1 FOR UPDATE"), [1]);
        assert_eq!(found(&a, "SELECT id FROM t WHERE v > 10 ORDER BY id FOR UPDATE"), [2, 3]);
        assert_eq!(found(&b, "SELECT id FROM t ORDER BY id FOR UPDATE NOWAIT"), [1, 2, 3]);
        b.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE").unwrap();
        let update =
            "UPDATE t SET v = v WHERE id = (SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id";
        assert_eq!(found(&a, update), [2]);
        b.execute("COMMIT", ()).unwrap();
        assert_eq!(found(&a, update), [1]);
    }
}

#[test]
fn references_and_deletions_wait_for_each_other() {
    let a = open();
    a.execute_batch(
        "CREATE TABLE parent (id INT PRIMARY KEY, name TEXT UNIQUE, v INT);
         CREATE TABLE child (id INT PRIMARY KEY, parent INT REFERENCES parent, name TEXT REFERENCES parent (name));
         INSERT INTO parent SELECT value, 'n' || value, 0 FROM generate_series(1, 20)",
    )
    .unwrap();
    let b = another(&a);
    let mut id = 0;
    for (first, second) in [
        ("DELETE FROM parent WHERE id = $", "INSERT INTO child VALUES ($, $, NULL)"),
        ("DELETE FROM parent WHERE id = $", "INSERT INTO child VALUES ($, NULL, 'n$')"),
        ("UPDATE parent SET name = 'x' || name WHERE id = $", "INSERT INTO child VALUES ($, NULL, 'n$')"),
    ] {
        for end in ["COMMIT", "ROLLBACK"] {
            for in_transaction in [false, true] {
                id += 1;
                let [first, second] = [first, second].map(|sql| sql.replace('$', &id.to_string()));
                a.execute_batch(&format!("BEGIN; {first}")).unwrap();
                if in_transaction {
                    b.execute("BEGIN", ()).unwrap();
                }
                let inserted = waiting(&b, &second, || _ = a.execute(end, ()).unwrap());
                match end {
                    "COMMIT" => assert_eq!(code(inserted), "23503", "{second}"),
                    _ => assert_eq!(inserted.unwrap(), [1], "{second}"),
                }
                if in_transaction {
                    b.execute("COMMIT", ()).unwrap();
                }
            }
        }
    }
    // The other way round.
    for (name, key) in [(false, "13"), (true, "14")] {
        let insert = if name { format!("({key}, NULL, 'n{key}')") } else { format!("({key}, {key}, NULL)") };
        a.execute_batch(&format!("BEGIN; DELETE FROM child WHERE id = {key}; INSERT INTO child VALUES {insert}"))
            .unwrap();
        // Other rows may refer to the same one, and it may change otherwise.
        b.execute(&format!("INSERT INTO child VALUES (1{key}, {key}, 'n{key}')"), ()).unwrap();
        b.execute(&format!("UPDATE parent SET v = v + 1 WHERE id = {key}"), ()).unwrap();
        b.execute(&format!("DELETE FROM child WHERE id = 1{key}"), ()).unwrap();
        let deleted =
            waiting(&b, &format!("DELETE FROM parent WHERE id = {key}"), || _ = a.execute("COMMIT", ()).unwrap());
        assert_eq!(code(deleted), "23503");
    }
}

#[test]
fn locks_are_listed() {
    let a = open();
    let b = another(&a);
    let process = |connection: &Connection| found(connection, "SELECT pg_backend_pid()")[0];
    let (first, second) = (process(&a), process(&b));
    let c = another(&a);
    let text = |sql: &str| c.query_row(sql, (), |row| row.get::<_, String>(0)).unwrap();
    a.execute_batch("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE; SELECT * FROM t WHERE id = 2 FOR SHARE").unwrap();
    waiting(&b, "UPDATE t SET v = 1 WHERE id = 2", || {
        let locks = "SELECT string_agg(pid || ' ' || mode || ' ' || granted, ', ' ORDER BY pid, mode, granted) \
                     FROM pg_locks WHERE relation = 't'::regclass AND locktype = 'tuple'";
        let expected =
            format!("{first} AccessExclusiveLock true, {first} RowShareLock true, {second} ExclusiveLock false");
        assert_eq!(text(locks), expected);
        assert_eq!(text(&format!("SELECT pg_blocking_pids({second})::TEXT")), format!("{{{first}}}"));
        assert_eq!(text(&format!("SELECT pg_blocking_pids({first})::TEXT")), "{}");
        let shared = "SELECT count(*)::TEXT FROM pg_locks AS x JOIN pg_locks AS y \
                      ON x.page = y.page AND x.tuple = y.tuple AND x.granted AND NOT y.granted";
        assert_eq!(text(shared), "1");
        let event = format!("SELECT wait_event_type || '/' || wait_event FROM pg_stat_activity WHERE pid = {second}");
        assert_eq!(text(&event), "Lock/tuple");
        a.execute("COMMIT", ()).unwrap();
    })
    .unwrap();
    assert_eq!(text("SELECT count(*)::TEXT FROM pg_locks"), "0");
}

#[test]
fn rows_are_locked_with_privileges_only() {
    let a = open();
    a.execute_batch(
        "CREATE ROLE reader; CREATE ROLE writer; GRANT SELECT ON t TO reader, writer; GRANT UPDATE ON t TO writer;
         CREATE ROLE blind; GRANT UPDATE ON t TO blind",
    )
    .unwrap();
    for switch in ["on", "off"] {
        for (role, expected) in [("reader", Err("42501")), ("writer", Ok(3)), ("blind", Err("42501"))] {
            let b = another(&a);
            b.execute_batch(&format!("SET keyaki.short_path = '{switch}'; SET ROLE {role}")).unwrap();
            let found = read(&b, "SELECT id FROM t FOR UPDATE").map(|rows| rows.len());
            assert_eq!(found.map_err(|error| error.sqlstate().code()), expected, "{role}");
            let prepared = b.prepare("SELECT id FROM t WHERE id = $1 FOR SHARE");
            let found = prepared.and_then(|find| find.query_row((1,), |row| row.get::<_, i64>(0)));
            assert_eq!(found.map_err(|error| error.sqlstate().code()), expected.map(|_| 1), "{role}");
            let nested = read(&b, "SELECT id FROM (SELECT id FROM t FOR UPDATE) AS q").map(|rows| rows.len());
            assert_eq!(nested.map_err(|error| error.sqlstate().code()), expected, "{role}");
        }
    }
}

#[test]
fn a_transaction_locks_a_limited_number_of_rows() {
    let a = open();
    a.execute("INSERT INTO t SELECT value, 0, NULL FROM generate_series(100, 70000)", ()).unwrap();
    for when in ["", "NOWAIT", "SKIP LOCKED"] {
        assert!(matches!(read(&a, &format!("SELECT id FROM t FOR UPDATE {when}")), Err(Error::TooManyLocks)), "{when}");
    }
    let some = found(&a, "SELECT id FROM t ORDER BY id LIMIT 60000 FOR UPDATE SKIP LOCKED");
    assert_eq!(some.len(), 60000);
    assert_eq!(found(&a, "SELECT count(*) FROM pg_locks"), [0]);
}

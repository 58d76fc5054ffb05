//! Statements at the level read committed wait for the rows that other transactions have changed.

use std::sync::atomic::{AtomicBool, Ordering};
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
    connection
}

fn another(connection: &Connection) -> Connection {
    read_committed(connection.try_clone().unwrap())
}

fn value(connection: &Connection, id: i32) -> i64 {
    connection.query_row("SELECT v FROM t WHERE id = $1", (id,), |row| row.get(0)).unwrap()
}

/// Runs `sql` on another connection, checks that it waits, then `meanwhile`, and returns the result of `sql`.
fn waiting(connection: &Connection, sql: &str, meanwhile: impl FnOnce()) -> Result<u64> {
    let other = another(connection);
    waiting_of(&other, sql, meanwhile)
}

fn waiting_of(other: &Connection, sql: &str, meanwhile: impl FnOnce()) -> Result<u64> {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let statement = scope.spawn(move || {
            let result = other.execute(sql, ());
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
fn an_update_continues_with_the_committed_row() {
    let a = open();
    for (short, end, expected) in
        [(true, "COMMIT", 16), (true, "ROLLBACK", 15), (false, "COMMIT", 16), (false, "ROLLBACK", 15)]
    {
        let switch = if short { "on" } else { "off" };
        a.execute("UPDATE t SET v = 10 WHERE id = 1", ()).unwrap();
        a.execute_batch("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").unwrap();
        let b = another(&a);
        b.execute(&format!("SET keyaki.short_path = '{switch}'"), ()).unwrap();
        let changed = waiting_of(&b, "UPDATE t SET v = v + 5 WHERE id = 1", || _ = a.execute(end, ()).unwrap());
        assert_eq!(changed.unwrap(), 1);
        assert_eq!(value(&a, 1), expected, "{end}, short path {switch}");
        // The same within a transaction.
        a.execute_batch("UPDATE t SET v = 10 WHERE id = 1; BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").unwrap();
        b.execute("BEGIN", ()).unwrap();
        let changed = waiting_of(&b, "UPDATE t SET v = v + 5 WHERE id = 1", || _ = a.execute(end, ()).unwrap());
        assert_eq!((changed.unwrap(), value(&b, 1)), (1, expected));
        b.execute("COMMIT", ()).unwrap();
        assert_eq!(value(&a, 1), expected);
    }
}

#[test]
fn conditions_are_evaluated_again() {
    let a = open();
    // The row no longer matches, or matches only now.
    a.execute_batch("BEGIN; UPDATE t SET v = 0 WHERE id = 1").unwrap();
    assert_eq!(waiting(&a, "UPDATE t SET v = v + 1 WHERE v = 10", || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 0);
    a.execute_batch("BEGIN; UPDATE t SET v = 7 WHERE id IN (1, 2)").unwrap();
    let changed = waiting(&a, "UPDATE t SET v = v + 1 WHERE v IN (7, 20)", || _ = a.execute("COMMIT", ()).unwrap());
    assert_eq!((changed.unwrap(), value(&a, 1), value(&a, 2)), (2, 8, 8));
    // The row is gone.
    a.execute_batch("BEGIN; DELETE FROM t WHERE id = 3").unwrap();
    assert_eq!(waiting(&a, "DELETE FROM t WHERE id = 3", || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 0);
}

#[test]
fn inserts_wait_for_equal_keys() {
    let a = open();
    for (sql, end) in [
        ("INSERT INTO t VALUES (9, 1, 'x')", "COMMIT"),
        ("INSERT INTO t VALUES (9, 1, 'x')", "ROLLBACK"),
        ("INSERT INTO t VALUES (8, 1, 'y')", "COMMIT"),
        ("INSERT INTO t VALUES (8, 1, 'y')", "ROLLBACK"),
        ("INSERT INTO t SELECT 8, 1, 'y'", "COMMIT"),
        ("UPDATE t SET code = 'y' WHERE id = 2", "COMMIT"),
    ] {
        a.execute_batch("BEGIN; INSERT INTO t VALUES (9, 1, 'y')").unwrap();
        let inserted = waiting(&a, sql, || _ = a.execute(end, ()).unwrap());
        match end {
            "COMMIT" => assert!(matches!(inserted, Err(Error::Constraint { .. })), "{sql}: {inserted:?}"),
            _ => assert_eq!(inserted.unwrap(), 1),
        }
        a.execute("DELETE FROM t WHERE id > 3", ()).unwrap();
    }
    a.execute_batch("BEGIN; INSERT INTO t VALUES (9, 1, 'y')").unwrap();
    let upsert = "INSERT INTO t VALUES (9, 5, 'z') ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v";
    assert_eq!(waiting(&a, upsert, || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 1);
    assert_eq!(value(&a, 9), 6);
    a.execute_batch("BEGIN; INSERT INTO t VALUES (10, 1, 'w')").unwrap();
    let ignored = "INSERT INTO t VALUES (10, 5, 'w') ON CONFLICT DO NOTHING";
    assert_eq!(waiting(&a, ignored, || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 0);
    let merge = "MERGE INTO t USING (VALUES (10, 3)) s(id, v) ON t.id = s.id \
                 WHEN MATCHED THEN UPDATE SET v = t.v + s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)";
    a.execute_batch("BEGIN; UPDATE t SET v = 2 WHERE id = 10").unwrap();
    assert_eq!(waiting(&a, merge, || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 1);
    assert_eq!(value(&a, 10), 5);
}

#[test]
fn the_rows_of_returning_are_those_of_the_last_run() {
    let a = open();
    a.execute_batch("BEGIN; UPDATE t SET v = 11 WHERE id = 1").unwrap();
    let b = another(&a);
    b.execute("BEGIN", ()).unwrap();
    let returned = std::thread::scope(|scope| {
        let b = &b;
        let returned = scope.spawn(move || {
            b.query_row("UPDATE t SET v = v * 2 WHERE id = 1 RETURNING v", (), |row| row.get::<_, i64>(0))
        });
        std::thread::sleep(Duration::from_millis(50));
        a.execute("COMMIT", ()).unwrap();
        returned.join().unwrap()
    });
    assert_eq!(returned.unwrap(), 22);
    b.execute("COMMIT", ()).unwrap();
    assert_eq!(value(&a, 1), 22);
}

/// The actions of foreign keys are several changes: those before the one that waits are undone and made again.
#[test]
fn a_statement_of_several_changes_runs_again() {
    let a = open();
    a.execute_batch(
        "CREATE TABLE parent (id INT PRIMARY KEY);
         CREATE TABLE child (id INT PRIMARY KEY, parent INT REFERENCES parent ON DELETE CASCADE, v INT);
         INSERT INTO parent VALUES (1), (2);
         INSERT INTO child VALUES (10, 1, 0), (11, 1, 0), (20, 2, 0)",
    )
    .unwrap();
    for in_transaction in [false, true] {
        let id = if in_transaction { 1 } else { 2 };
        a.execute_batch("BEGIN; UPDATE child SET v = 1").unwrap();
        let b = another(&a);
        if in_transaction {
            b.execute_batch("BEGIN; INSERT INTO parent VALUES (5)").unwrap();
        }
        let sql = format!("DELETE FROM parent WHERE id = {id}");
        assert_eq!(waiting_of(&b, &sql, || _ = a.execute("COMMIT", ()).unwrap()).unwrap(), 1);
        if in_transaction {
            assert_eq!(b.session().transaction_status(), TransactionStatus::Open);
            b.execute("COMMIT", ()).unwrap();
        }
    }
    let left: i64 = a.query_row("SELECT count(*) FROM child", (), |row| row.get(0)).unwrap();
    let parents: i64 = a.query_row("SELECT sum(id) FROM parent", (), |row| row.get(0)).unwrap();
    assert_eq!((left, parents), (0, 5));
}

#[test]
fn deadlocks_are_errors_of_the_last_statement() {
    let a = open();
    let b = another(&a);
    a.execute_batch("BEGIN; UPDATE t SET v = 1 WHERE id = 1").unwrap();
    b.execute_batch("BEGIN; UPDATE t SET v = 2 WHERE id = 2").unwrap();
    let waited = waiting_of(&b, "UPDATE t SET v = 2 WHERE id = 1", || {
        let error = a.execute("UPDATE t SET v = 1 WHERE id = 2", ()).unwrap_err();
        assert!(matches!(error, Error::Deadlock) && error.is_retryable(), "{error}");
        // The transaction has failed, so its rows are free already.
        assert_eq!(a.session().transaction_status(), TransactionStatus::Failed);
    });
    assert_eq!(waited.unwrap(), 1);
    a.execute("ROLLBACK", ()).unwrap();
    b.execute("COMMIT", ()).unwrap();
    assert_eq!((value(&a, 1), value(&a, 2)), (2, 2));
}

#[test]
fn waits_end_with_timeouts_and_interrupts() {
    let a = open();
    a.execute_batch("BEGIN; UPDATE t SET v = 1 WHERE id = 1").unwrap();
    let b = another(&a);
    b.execute("SET lock_timeout = '20ms'", ()).unwrap();
    let update = "UPDATE t SET v = 2 WHERE id = 1";
    assert!(matches!(b.execute(update, ()), Err(Error::LockTimeout)));
    assert_eq!(b.query_row("SHOW lock_timeout", (), |row| row.get::<_, String>(0)).unwrap(), "20ms");
    b.execute("RESET lock_timeout", ()).unwrap();
    let interrupt = b.interrupt_handle();
    assert!(matches!(waiting_of(&b, update, || interrupt.interrupt()), Err(Error::Cancelled)));
    // A transaction that expires releases its rows.
    let c = another(&a);
    c.execute("SET transaction_timeout = '150ms'", ()).unwrap();
    c.execute_batch("BEGIN; UPDATE t SET v = 3 WHERE id = 2").unwrap();
    assert_eq!(waiting(&a, "UPDATE t SET v = v + 1 WHERE id = 2", || ()).unwrap(), 1);
    assert!(matches!(c.execute("COMMIT", ()), Err(Error::TransactionTimeout)));
    a.execute("COMMIT", ()).unwrap();
    assert_eq!((value(&a, 1), value(&a, 2)), (1, 21));
}

#[test]
fn rows_are_released_by_every_end_of_a_transaction() {
    let a = open();
    let b = another(&a);
    let update = "UPDATE t SET v = v + 1 WHERE id = 1";
    a.execute_batch("BEGIN; UPDATE t SET v = 0 WHERE id = 1").unwrap();
    // An error without a savepoint.
    assert!(a.execute("SELECT 1 / 0", ()).is_err());
    assert_eq!(b.execute(update, ()).unwrap(), 1);
    a.execute("ROLLBACK", ()).unwrap();
    // An error after a savepoint keeps the rows for the transaction, which goes on.
    a.execute_batch("BEGIN; UPDATE t SET v = 5 WHERE id = 1; SAVEPOINT s").unwrap();
    assert!(a.execute("SELECT 1 / 0", ()).is_err());
    let waited = waiting_of(&b, update, || a.execute_batch("ROLLBACK TO s; COMMIT").unwrap());
    assert_eq!((waited.unwrap(), value(&b, 1)), (1, 6));
    // A dropped connection.
    let c = another(&a);
    c.execute_batch("BEGIN; UPDATE t SET v = 9 WHERE id = 1").unwrap();
    assert_eq!(waiting_of(&b, update, || drop(c)).unwrap(), 1);
    assert_eq!(value(&b, 1), 7);
}

/// A statement of the short path that gives way to the long one, after its wait, does not wait for itself.
#[test]
fn a_statement_with_a_new_catalog_continues() {
    let a = open();
    let update = "UPDATE t SET v = v + 1 WHERE id = 1";
    let b = another(&a);
    for _ in 0..3 {
        b.execute_batch(update).unwrap();
    }
    a.execute_batch("BEGIN; UPDATE t SET v = 0 WHERE id = 1").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.execute_batch(update));
        std::thread::sleep(Duration::from_millis(100));
        another(&a).execute("CREATE TABLE other (id INT)", ()).unwrap();
        a.execute("COMMIT", ()).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(value(&a, 1), 1);
}

/// Writers that lock nothing make a statement at the level read committed fail after many runs, rather than run for ever.
#[test]
fn writers_without_locks_are_not_waited_for() {
    let a = open();
    a.execute("INSERT INTO t SELECT value, 0, value::TEXT FROM generate_series(100, 3000)", ()).unwrap();
    let b = a.try_clone().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let change = b.prepare("UPDATE t SET v = v + 1 WHERE id = $1").unwrap();
            for id in (100..=3000).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                change.execute((id,)).unwrap();
            }
        });
        a.execute("BEGIN", ()).unwrap();
        let ended = a.execute("UPDATE t SET v = v + 1", ()).and_then(|_| a.execute("COMMIT", ()));
        is_over.store(true, Ordering::Relaxed);
        if let Err(error) = ended {
            assert!(matches!(error, Error::Conflict { .. }), "{error}");
        }
    });
}

/// At the other levels, transactions do not wait: the first commit wins.
#[test]
fn snapshots_do_not_wait() {
    let a = open();
    let b = another(&a);
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        a.execute_batch("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").unwrap();
        b.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; UPDATE t SET v = 0 WHERE id = 1")).unwrap();
        a.execute("COMMIT", ()).unwrap();
        assert!(matches!(b.execute("COMMIT", ()), Err(Error::Conflict { .. })));
        // Statements at the level read committed wait for them.
        b.execute_batch(&format!("BEGIN ISOLATION LEVEL {level}; UPDATE t SET v = v + 1 WHERE id = 2")).unwrap();
        let waited = waiting(&a, "UPDATE t SET v = v + 1 WHERE id = 2", || _ = b.execute("COMMIT", ()).unwrap());
        assert_eq!(waited.unwrap(), 1);
    }
    assert_eq!((value(&a, 1), value(&a, 2)), (12, 24));
}

/// Transfers between a few accounts by several threads, some of which read between their changes: no transaction has
/// to be repeated except after deadlocks, and the sum stays.
#[test]
fn concurrent_transfers_conflict_only_in_deadlocks() {
    const THREADS: usize = 4;
    const TRANSFERS: usize = 60;
    const ACCOUNTS: usize = 3;
    let database = Database::open_temporary(Options::default()).unwrap();
    let setup = database.connect().unwrap();
    setup
        .execute_batch(
            "CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT);
             CREATE TABLE transfer (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, thread INT, amount BIGINT);
             INSERT INTO account SELECT value, 100 FROM generate_series(1, 3)",
        )
        .unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let connection = read_committed(database.connect().unwrap());
                scope.spawn(move || {
                    let mut random = keyaki_primitives::Random::new(thread as u64);
                    let mut deadlocks = 0;
                    for _ in 0..TRANSFERS {
                        let (from, to) = (1 + random.below(ACCOUNTS as u64), 1 + random.below(ACCOUNTS as u64));
                        let amount = random.below(10) as i64;
                        // Half of the threads lock in the order of the keys.
                        let (from, to) = if thread % 2 == 0 { (from.min(to), from.max(to)) } else { (from, to) };
                        loop {
                            let work = || -> Result<()> {
                                let transaction = connection.transaction()?;
                                let change = "UPDATE account SET balance = balance + $2 WHERE id = $1";
                                assert_eq!(transaction.execute(change, (from as i64, -amount))?, 1);
                                let read = "SELECT balance FROM account WHERE id = $1";
                                let before: i64 = transaction.query_row(read, (to as i64,), |row| row.get(0))?;
                                assert!(before.abs() < 100_000);
                                assert_eq!(transaction.execute(change, (to as i64, amount))?, 1);
                                let note = "INSERT INTO transfer (thread, amount) VALUES ($1, $2)";
                                transaction.execute(note, (thread as i64, amount))?;
                                transaction.commit()
                            };
                            match work() {
                                Ok(()) => break,
                                Err(Error::Deadlock) => deadlocks += 1,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                    deadlocks
                })
            })
            .collect();
        let reader = database.connect().unwrap();
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let sum: i64 = reader.query_row("SELECT sum(balance) FROM account", (), |row| row.get(0)).unwrap();
                assert_eq!(sum, 300);
            }
        });
        let deadlocks: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        is_over.store(true, Ordering::Relaxed);
        // The other one of two transactions in a deadlock goes on.
        assert!(deadlocks < THREADS * TRANSFERS * THREADS, "{deadlocks} deadlocks");
    });
    let (sum, transfers): (i64, i64) = setup
        .query_row("SELECT (SELECT sum(balance) FROM account), (SELECT count(*) FROM transfer)", (), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!((sum, transfers), (300, (THREADS * TRANSFERS) as i64));
}

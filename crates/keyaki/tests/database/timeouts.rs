//! `transaction_timeout`: a transaction that is open for too long is rolled back, and keeps nothing.

use std::time::{Duration, Instant};

use keyaki::{Connection, Error, TransactionStatus};

fn connection() -> Connection {
    let connection = Connection::open_temporary().unwrap();
    connection.execute_batch("CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)").unwrap();
    connection
}

fn count(connection: &Connection) -> i64 {
    connection.query_row("SELECT count(*) FROM t", (), |row| row.get(0)).unwrap()
}

fn wait_for_failure(connection: &Connection) {
    let start = Instant::now();
    while connection.session().transaction_status() == TransactionStatus::Open {
        assert!(start.elapsed() < Duration::from_secs(60), "the transaction has not expired");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_transaction_expires_and_every_way_out_reports_it() {
    let connection = connection();
    connection.execute("SET transaction_timeout = '50ms'", ()).unwrap();
    for end in
        ["COMMIT", "ROLLBACK", "ROLLBACK TO a", "RELEASE a", "INSERT INTO t VALUES (3, 3)", "SELECT 1", "SAVEPOINT b"]
    {
        connection.execute_batch("BEGIN; SAVEPOINT a; INSERT INTO t VALUES (2, 2)").unwrap();
        wait_for_failure(&connection);
        let ended = connection.execute(end, ());
        match end {
            "ROLLBACK" => _ = ended.unwrap(),
            _ => assert!(matches!(ended, Err(Error::TransactionTimeout)), "{end}: {ended:?}"),
        }
        if !matches!(end, "COMMIT" | "ROLLBACK") {
            assert_eq!(connection.session().transaction_status(), TransactionStatus::Failed, "{end}");
            connection.execute("ROLLBACK", ()).unwrap();
        }
        assert_eq!(connection.session().transaction_status(), TransactionStatus::Idle, "{end}");
    }
    let transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO t VALUES (2, 2)", ()).unwrap();
    wait_for_failure(&connection);
    assert!(matches!(transaction.commit(), Err(Error::TransactionTimeout)));
    connection.execute("RESET transaction_timeout", ()).unwrap();
    assert_eq!(count(&connection), 1);
}

#[test]
fn a_running_statement_is_cancelled() {
    let connection = connection();
    connection.execute("SET transaction_timeout = 100", ()).unwrap();
    connection.execute("BEGIN", ()).unwrap();
    let slow = "INSERT INTO t SELECT 10, sum(a.value % b.value) \
                FROM generate_series(1, 100000) a, generate_series(1, 100000000) b";
    let ended = connection.execute(slow, ());
    assert!(matches!(ended, Err(Error::TransactionTimeout)), "{ended:?}");
    connection.execute("ROLLBACK", ()).unwrap();
    // Queries, which execute while their rows are read.
    let slow = "SELECT sum(a.value % b.value) FROM generate_series(1, 100000) a, generate_series(1, 100000000) b";
    for (sql, parameter) in [(slow.to_string(), None), (format!("{slow} WHERE a.value > $1"), Some(0_i64))] {
        connection.execute("BEGIN", ()).unwrap();
        let read = |row: &keyaki::Row<'_>| row.get::<_, i64>(0);
        let ended = match parameter {
            None => connection.query_row(&sql, (), read),
            Some(value) => connection.query_row(&sql, (value,), read),
        };
        assert!(matches!(ended, Err(Error::TransactionTimeout)), "{sql}: {ended:?}");
        connection.execute("ROLLBACK", ()).unwrap();
    }
    // Statements outside of transactions have no such limit.
    connection.execute("SET transaction_timeout = '1ms'", ()).unwrap();
    let sum = "SELECT sum(value % 7) FROM generate_series(1, 3000000)";
    assert_eq!(connection.query_row(sum, (), |row| row.get::<_, i64>(0)).unwrap(), 8_999_997);
    assert_eq!(count(&connection), 1);
}

#[test]
fn a_transaction_that_ends_in_time_is_not_affected() {
    let connection = connection();
    connection.execute("SET transaction_timeout = '200ms'", ()).unwrap();
    for id in 2..6 {
        connection.execute("BEGIN", ()).unwrap();
        connection.execute("INSERT INTO t VALUES ($1, 0)", (id,)).unwrap();
        connection.execute("COMMIT", ()).unwrap();
    }
    connection.execute("SET transaction_timeout = '1h'", ()).unwrap();
    connection.execute_batch("BEGIN; INSERT INTO t VALUES (6, 0)").unwrap();
    // Longer than the timeouts of the transactions before.
    std::thread::sleep(Duration::from_millis(400));
    // A chained transaction has the timeout of the session.
    connection.execute_batch("SET transaction_timeout = '20ms'; COMMIT AND CHAIN").unwrap();
    assert_eq!(count(&connection), 6);
    wait_for_failure(&connection);
    connection.execute("ROLLBACK AND CHAIN", ()).unwrap();
    wait_for_failure(&connection);
    connection.execute_batch("ROLLBACK; SET transaction_timeout = 0; BEGIN").unwrap();
    assert_eq!(count(&connection), 6);
    connection.execute("COMMIT", ()).unwrap();
}

/// The lock of BEGIN IMMEDIATE, and the space that the snapshot keeps, are free after the timeout.
#[test]
fn an_expired_transaction_keeps_nothing() {
    let writer = connection();
    let holder = writer.try_clone().unwrap();
    holder.execute("SET transaction_timeout = '50ms'", ()).unwrap();
    holder.execute("BEGIN IMMEDIATE", ()).unwrap();
    writer.execute("INSERT INTO t VALUES (2, 2)", ()).unwrap();
    holder.execute("ROLLBACK", ()).unwrap();

    let fill = "INSERT OR REPLACE INTO t SELECT value, $1 + value * 7919 % 1000003 FROM generate_series(1, 200000)";
    writer.execute(fill, (0,)).unwrap();
    let store = holder.database().store().clone();
    let used = || {
        writer.execute("VACUUM", ()).unwrap();
        store.stats().data_bytes_used
    };
    let alone = used();
    holder.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    for round in 1..4 {
        writer.execute(fill, (round,)).unwrap();
        writer.execute("CHECKPOINT", ()).unwrap();
    }
    wait_for_failure(&holder);
    // The first VACUUM may run before the snapshot is released.
    let start = Instant::now();
    while used() > alone + alone / 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "the snapshot is not released");
    }
    let ended = holder.execute("COMMIT", ());
    assert!(matches!(ended, Err(Error::TransactionTimeout)), "{ended:?}");
    assert_eq!(count(&writer), 200_000);
}

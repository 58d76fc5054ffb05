//! Rows that sessions of a server lock.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Served, code};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT); INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)";

/// Waits until a number of sessions wait for rows.
async fn waiting(client: &Client, count: i64) -> Result {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while client.query_one(sql, &[]).await?.get::<_, i64>(0) != count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Eight workers take ten jobs at a time: each job is done once.
#[tokio::test(flavor = "multi_thread")]
async fn workers_empty_a_queue() -> Result {
    const JOBS: i64 = 1000;
    let served = Served::start().await;
    served
        .execute(&format!(
            "CREATE TABLE jobs (id BIGINT PRIMARY KEY, state TEXT); CREATE INDEX ON jobs (state);
             INSERT INTO jobs SELECT value, 'new' FROM generate_series(1, {JOBS})"
        ))
        .await;
    let mut workers = Vec::new();
    for worker in 0..8 {
        let mut client = served.connect().await;
        workers.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            let sql = "SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED";
            let take = client.prepare(sql).await?;
            let mut is_empty = 0;
            // Jobs that another worker has taken are not free again.
            while is_empty < 3 {
                let transaction = client.transaction().await?;
                let ids: Vec<i64> = match worker % 2 {
                    0 => transaction.query(&take, &[]).await?,
                    _ => transaction.query(sql, &[]).await?,
                }
                .iter()
                .map(|row| row.get(0))
                .collect();
                is_empty = if ids.is_empty() { is_empty + 1 } else { 0 };
                transaction.execute("UPDATE jobs SET state = 'done' WHERE id = ANY($1::BIGINT[])", &[&ids]).await?;
                transaction.commit().await?;
                taken.push(ids);
            }
            Result::Ok(taken)
        }));
    }
    let mut all = BTreeSet::new();
    for worker in workers {
        for ids in worker.await?? {
            assert!(ids.len() <= 10);
            assert!(ids.iter().all(|id| all.insert(*id)), "a job was taken twice: {ids:?}");
        }
    }
    assert_eq!(all.len() as i64, JOBS);
    Ok(())
}

/// Transactions that are open at the same time get ten rows each, as long as there are so many.
#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_get_distinct_rows() -> Result {
    let served = Served::start().await;
    served
        .execute("CREATE TABLE jobs (id BIGINT PRIMARY KEY); INSERT INTO jobs SELECT value FROM generate_series(1, 75)")
        .await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(served.connect().await);
    }
    let take = clients.iter().map(|client| async move {
        client.batch_execute("BEGIN").await?;
        let rows = client.query("SELECT id FROM jobs ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED", &[]).await?;
        Result::Ok(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>())
    });
    let taken = futures::future::try_join_all(take).await?;
    let all: BTreeSet<i64> = taken.iter().flatten().copied().collect();
    assert_eq!((taken.iter().map(Vec::len).sum::<usize>(), all.len()), (75, 75));
    assert_eq!(taken.iter().filter(|ids| ids.len() == 10).count(), 7);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_and_changes_wait_in_both_protocols() -> Result {
    let served = Served::start().await;
    served.execute(TABLE).await;
    let (a, b, c) = (served.connect().await, served.connect().await, served.connect().await);
    a.batch_execute("BEGIN").await?;
    a.query("SELECT * FROM t WHERE id = $1 FOR UPDATE", &[&1_i64]).await?;
    let error = b.query("SELECT * FROM t WHERE id = $1 FOR UPDATE NOWAIT", &[&1_i64]).await;
    assert_eq!(code(error), SqlState::LOCK_NOT_AVAILABLE);
    let error = b.simple_query("SELECT * FROM t FOR SHARE NOWAIT").await;
    assert_eq!(code(error), SqlState::LOCK_NOT_AVAILABLE);
    let waits = async {
        let row = b.query_one("SELECT v FROM t WHERE id = $1 FOR UPDATE", &[&1_i64]).await?;
        Result::Ok(row.get::<_, i64>(0))
    };
    let ends = async {
        waiting(&c, 1).await?;
        a.execute("UPDATE t SET v = v + 1 WHERE id = 1", &[]).await?;
        a.batch_execute("COMMIT").await?;
        Result::Ok(())
    };
    let (read, ended) = tokio::join!(waits, ends);
    ended?;
    assert_eq!(read?, 11);
    // Outside of a transaction, the row is free again.
    c.query("SELECT * FROM t FOR UPDATE NOWAIT", &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_sessions_are_shown_cancelled_and_in_deadlocks() -> Result {
    let served = Served::start().await;
    served.execute(TABLE).await;
    let (a, b, c) = (served.connect().await, served.connect().await, served.connect().await);
    let process = |client: Client| async move {
        let process: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Result::Ok((client, process))
    };
    let ((a, first), (b, second)) = (process(a).await?, process(b).await?);
    a.batch_execute("BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE").await?;
    b.batch_execute("BEGIN; SELECT * FROM t WHERE id = 2 FOR UPDATE").await?;
    let (waited, shown) = tokio::join!(b.execute("UPDATE t SET v = 0 WHERE id = 1", &[]), async {
        waiting(&c, 1).await?;
        let blocking: Vec<i32> = c.query_one(&format!("SELECT pg_blocking_pids({second})"), &[]).await?.get(0);
        assert_eq!(blocking, [first]);
        let rows = c.query("SELECT pid, granted FROM pg_locks ORDER BY granted, pid", &[]).await?;
        let locks: Vec<(i32, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(locks, [(second, false), (first, true), (second, true)]);
        let error = a.execute("UPDATE t SET v = 0 WHERE id = 2", &[]).await;
        assert_eq!(code(error), SqlState::T_R_DEADLOCK_DETECTED);
        Result::Ok(())
    });
    shown?;
    assert_eq!(waited?, 1);
    a.batch_execute("ROLLBACK; BEGIN").await?;
    let (cancelled, shown) = tokio::join!(a.query("SELECT * FROM t FOR SHARE", &[]), async {
        waiting(&c, 1).await?;
        c.batch_execute(&format!("SELECT pg_cancel_backend({first})")).await?;
        Result::Ok(())
    });
    shown?;
    assert_eq!(code(cancelled), SqlState::QUERY_CANCELED);
    a.batch_execute("ROLLBACK; SET lock_timeout = '20ms'").await?;
    assert_eq!(code(a.batch_execute("SELECT * FROM t FOR SHARE").await), SqlState::LOCK_NOT_AVAILABLE);
    // A client that goes away releases its rows.
    drop(b);
    a.batch_execute("SET lock_timeout = '20s'; SELECT * FROM t FOR UPDATE").await?;
    Ok(())
}

/// Withdrawals that read a balance with FOR UPDATE, and write it: it is never overdrawn, and no change is lost.
#[tokio::test(flavor = "multi_thread")]
async fn balances_are_not_overdrawn() -> Result {
    let served = Served::start().await;
    served.execute("CREATE TABLE account (id BIGINT PRIMARY KEY, v BIGINT); INSERT INTO account VALUES (1, 100)").await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let mut client = served.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut paid = 0;
            for _ in 0..25 {
                let transaction = client.transaction().await?;
                let row = transaction.query_one("SELECT v FROM account WHERE id = 1 FOR UPDATE", &[]).await?;
                let balance: i64 = row.get(0);
                if balance > 0 {
                    transaction.execute("UPDATE account SET v = $1 WHERE id = 1", &[&(balance - 1)]).await?;
                    paid += 1;
                }
                transaction.commit().await?;
            }
            Result::Ok(paid)
        }));
    }
    let mut paid = 0;
    for task in tasks {
        paid += task.await??;
    }
    let left: i64 = served.connect().await.query_one("SELECT v FROM account", &[]).await?.get(0);
    assert_eq!((paid, left), (100, 0));
    Ok(())
}

//! Notices and notifications.

use std::time::Duration;

use crate::support::raw::{Raw, message, startup};
use crate::support::{Served, code};
use futures::stream::{self, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, NoTls};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A client, and the messages that the server sends it without a request.
struct Listener {
    client: Client,
    messages: mpsc::UnboundedReceiver<AsyncMessage>,
}

impl Listener {
    async fn connect(served: &Served) -> Listener {
        let (sender, messages) = mpsc::unbounded_channel();
        let address = served.address;
        let text = format!("host={} port={} user=test dbname=test", address.ip(), address.port());
        let (client, mut connection) = tokio_postgres::connect(&text, NoTls).await.expect("a connection");
        tokio::spawn(async move {
            let mut incoming = stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = incoming.next().await {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Listener { client, messages }
    }

    /// The next message: channel, payload and the number of the session of a notification; SQLSTATE and text of a notice.
    async fn next(&mut self) -> (String, String, i32) {
        match timeout(Duration::from_secs(30), self.messages.recv()).await {
            Ok(Some(AsyncMessage::Notification(message))) => {
                (message.channel().into(), message.payload().into(), message.process_id())
            }
            Ok(Some(AsyncMessage::Notice(notice))) => (notice.code().code().into(), notice.message().into(), 0),
            other => panic!("no message: {other:?}"),
        }
    }

    /// The notices of a statement: severity, SQLSTATE, message and detail.
    async fn notices(&mut self, sql: &str) -> Vec<String> {
        self.client.batch_execute(sql).await.expect("a statement");
        let mut notices = Vec::new();
        while let Ok(message) = self.messages.try_recv() {
            let AsyncMessage::Notice(notice) = message else { continue };
            let detail = notice.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            notices.push(format!("{} {} {}{detail}", notice.severity(), notice.code().code(), notice.message()));
        }
        notices
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_of_statements() {
    let served = Served::start().await;
    let mut listener = Listener::connect(&served).await;
    listener
        .client
        .batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE VIEW v AS SELECT id FROM t; CREATE VIEW w AS SELECT id FROM v")
        .await
        .expect("tables");
    for (sql, expected) in [
        ("SELECT 1", &[] as &[&str]),
        ("CREATE TABLE IF NOT EXISTS t (a INT)", &["NOTICE 42P07 relation \"t\" already exists, skipping"]),
        ("CREATE SCHEMA s; CREATE SCHEMA IF NOT EXISTS s", &["NOTICE 42P06 schema \"s\" already exists, skipping"]),
        (
            "CREATE SEQUENCE q; CREATE SEQUENCE IF NOT EXISTS q",
            &["NOTICE 42P07 relation \"q\" already exists, skipping"],
        ),
        (
            "DROP TABLE IF EXISTS a, b",
            &["NOTICE 00000 table \"a\" does not exist, skipping", "NOTICE 00000 table \"b\" does not exist, skipping"],
        ),
        ("DROP VIEW IF EXISTS a", &["NOTICE 00000 view \"a\" does not exist, skipping"]),
        ("DROP INDEX IF EXISTS a", &["NOTICE 00000 index \"a\" does not exist, skipping"]),
        ("DROP SEQUENCE IF EXISTS a", &["NOTICE 00000 sequence \"a\" does not exist, skipping"]),
        ("DROP SCHEMA IF EXISTS a", &["NOTICE 00000 schema \"a\" does not exist, skipping"]),
        ("DROP ROLE IF EXISTS a", &["NOTICE 00000 role \"a\" does not exist, skipping"]),
        ("ALTER TABLE IF EXISTS a ADD COLUMN b INT", &["NOTICE 00000 relation \"a\" does not exist, skipping"]),
        (
            "ALTER TABLE t ADD COLUMN IF NOT EXISTS id INT",
            &["NOTICE 42701 column \"id\" of relation \"t\" already exists, skipping"],
        ),
        (
            "ALTER TABLE t DROP COLUMN IF EXISTS b",
            &["NOTICE 00000 column \"b\" of relation \"t\" does not exist, skipping"],
        ),
        (
            "ALTER TABLE t DROP CONSTRAINT IF EXISTS b",
            &["NOTICE 00000 constraint \"b\" of relation \"t\" does not exist, skipping"],
        ),
        ("COMMIT", &["WARNING 25P01 there is no transaction in progress"]),
        ("SET LOCAL app.x = 1", &["WARNING 25P01 SET LOCAL can only be used in transaction blocks"]),
        ("BEGIN; BEGIN; COMMIT", &["WARNING 25001 there is already a transaction in progress"]),
        ("CREATE VIEW x AS SELECT id FROM w; DROP VIEW w CASCADE", &["NOTICE 00000 drop cascades to view x"]),
        (
            "CREATE TABLE r (id BIGINT REFERENCES t); DROP TABLE t CASCADE",
            &[
                "NOTICE 00000 drop cascades to 2 other objects (drop cascades to view v\ndrop cascades to constraint r_id_fkey on table r)",
            ],
        ),
    ] {
        assert_eq!(listener.notices(sql).await, expected, "{sql}");
    }
    assert!(listener.notices("SET client_min_messages = warning; DROP TABLE IF EXISTS a").await.is_empty());
    assert_eq!(listener.notices("COMMIT").await, ["WARNING 25P01 there is no transaction in progress"]);
    assert!(listener.notices("SET client_min_messages = error").await.is_empty());
    assert!(listener.notices("COMMIT").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_sent_at_the_commit() -> Result {
    let served = Served::start().await;
    let (mut listener, sender) = (Listener::connect(&served).await, served.connect().await);
    let process: i32 = sender.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    listener.client.batch_execute("LISTEN a; LISTEN \"B\"").await?;
    sender.batch_execute("NOTIFY a").await?;
    assert_eq!(listener.next().await, ("a".into(), String::new(), process));
    // Of a transaction: in order, each once, at the commit, and none of a savepoint that was rolled back.
    sender.batch_execute("BEGIN; NOTIFY a, '1'; NOTIFY \"B\", '2'; NOTIFY a, '1'; NOTIFY other, 'x'").await?;
    sender.batch_execute("SAVEPOINT s; NOTIFY a, 'undone'; ROLLBACK TO s; SELECT pg_notify('a', '3')").await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(listener.messages.try_recv().is_err());
    sender.batch_execute("COMMIT").await?;
    for (channel, payload) in [("a", "1"), ("B", "2"), ("a", "3")] {
        assert_eq!(listener.next().await, (channel.into(), payload.into(), process));
    }
    sender.batch_execute("BEGIN; NOTIFY a, 'rolled back'; ROLLBACK").await?;
    assert!(sender.batch_execute("BEGIN; NOTIFY a, 'failed'; SELECT 1 / 0").await.is_err());
    sender.batch_execute("COMMIT").await?;
    // A function sends for each row, in both protocols; a statement that fails sends nothing.
    assert!(
        sender.query("SELECT pg_notify('a', 'bad'), 1 / (x - x) FROM generate_series(1, 2) g (x)", &[]).await.is_err()
    );
    sender.query("SELECT pg_notify('a', 'n' || x) FROM generate_series(1, 2) g (x)", &[]).await?;
    sender.query("SELECT pg_notify($1, $2)", &[&"a", &"parameter"]).await?;
    for payload in ["n1", "n2", "parameter"] {
        assert_eq!(listener.next().await, ("a".into(), payload.into(), process));
    }
    // Not within a transaction of the listener.
    listener.client.batch_execute("BEGIN; SELECT 1").await?;
    sender.batch_execute("NOTIFY a, 'late'").await?;
    listener.client.batch_execute("SELECT 2").await?;
    assert!(listener.messages.try_recv().is_err());
    listener.client.batch_execute("COMMIT").await?;
    assert_eq!(listener.next().await.1, "late");
    // Also from itself, and when it begins to listen in the same transaction.
    listener.client.batch_execute("BEGIN; NOTIFY own, 'x'; LISTEN own; UNLISTEN a; COMMIT").await?;
    assert_eq!(listener.next().await.1, "x");
    sender.batch_execute("NOTIFY a, 'unheard'; NOTIFY own, 'heard'").await?;
    assert_eq!(listener.next().await.1, "heard");
    let long = "x".repeat(8000);
    let refused = sender.query("SELECT pg_notify('a', $1)", &[&long]).await;
    assert_eq!(code(refused), SqlState::INVALID_PARAMETER_VALUE);
    Ok(())
}

/// A client that does not take its notifications loses its connection, and other sessions do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_a_listener_is_bounded() -> Result {
    let served = Served::start().await;
    let (listener, sender) = (Listener::connect(&served).await, served.connect().await);
    listener.client.batch_execute("LISTEN a").await?;
    listener.client.batch_execute("BEGIN; SELECT 1").await?;
    let notify = "SELECT pg_notify('a', rpad(x::TEXT, 1000, 'x')) FROM generate_series(1, 10000) g (x)";
    for _ in 0..2 {
        sender.execute(notify, &[]).await?;
    }
    let ended = listener.client.batch_execute("COMMIT").await;
    assert_eq!(code(ended), SqlState::PROGRAM_LIMIT_EXCEEDED);
    while served.connections() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A client that does not read its result loses its connection after the timeout.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read() {
    let served = Served::start_with(|options| options.send_timeout = Some(Duration::from_millis(300))).await;
    let mut raw = Raw::connect(served.address).await;
    raw.send(&startup("me")).await;
    while let Some((kind, _)) = raw.receive().await {
        if kind == b'Z' {
            break;
        }
    }
    raw.send(&message(b'Q', b"SELECT repeat('x', 100000) FROM generate_series(1, 100000)\0")).await;
    let ended = async {
        while served.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), ended).await.expect("the connection ends");
}

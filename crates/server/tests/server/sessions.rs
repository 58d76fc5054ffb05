//! Sessions as other sessions see them, and statements that keep the processors busy.

use std::time::{Duration, Instant};

use crate::support::{Served, code};
use bytes::Bytes;
use futures::SinkExt;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A join that compares 10^12 pairs of rows and finds none.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 1000000) a(a) JOIN generate_series(1, 1000000) b(b) ON a + b = 7 + random()";
const ROLES: &str =
    "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE signaller LOGIN; CREATE ROLE monitor LOGIN;
    CREATE ROLE boss SUPERUSER LOGIN; GRANT pg_signal_backend TO signaller; GRANT pg_read_all_stats TO monitor";

/// A server with roles, whose clients connect through a Unix socket without passwords.
struct WithRoles {
    served: Served,
    directory: tempfile::TempDir,
}

impl WithRoles {
    async fn start() -> WithRoles {
        let directory = tempfile::tempdir().expect("a directory");
        let served = Served::start_with(|options| options.socket = Some(directory.path().into())).await;
        served.execute(ROLES).await;
        WithRoles { served, directory }
    }

    async fn connect(&self, role: &str) -> Client {
        let settings = format!("host={} user={role} application_name={role}_app", self.directory.path().display());
        let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.expect("a connection");
        tokio::spawn(async {
            // Tests see the errors of their requests.
            let _ = connection.await;
        });
        client
    }
}

async fn process(client: &Client) -> Result<i32> {
    Ok(client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}

/// The columns of a row of `pg_stat_activity`, in text.
async fn activity(client: &Client, columns: &str, process: i32) -> Result<Vec<Option<String>>> {
    let sql = format!("SELECT {columns} FROM pg_stat_activity WHERE pid = {process}");
    let messages = client.simple_query(&sql).await?;
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.ok_or("no row")?;
    Ok((0..row.len()).map(|column| row.get(column).map(String::from)).collect())
}

/// Waits until a session runs a statement.
async fn active(client: &Client, process: i32) -> Result {
    while activity(client, "state", process).await?[0].as_deref() != Some("active") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_their_statements() -> Result {
    let served = Served::start().await;
    let (client, observer) = (served.connect_with("application_name=tests").await, served.connect().await);
    let pid = process(&client).await?;
    assert_ne!(pid, process(&observer).await?);
    let state = "application_name, usename, datname, client_addr, state, query, wait_event, backend_type";
    let row = activity(&observer, state, pid).await?;
    let row: Vec<&str> = row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect();
    let query = "SELECT pg_backend_pid()";
    assert_eq!(row, ["tests", "keyaki", "keyaki", "127.0.0.1", "idle", query, "ClientRead", "client backend"]);
    let times = "xact_start IS NULL, query_start <= state_change, backend_start < query_start";
    assert_eq!(activity(&observer, times, pid).await?, vec![Some("t".into()); 3]);
    client.batch_execute("BEGIN").await?;
    let expected = [Some("idle in transaction".to_string()), Some("f".into()), Some("BEGIN".into())];
    assert_eq!(activity(&observer, "state, xact_start IS NULL, query", pid).await?, expected);
    assert!(client.batch_execute("SELECT 1 / 0").await.is_err());
    let expected = [Some("idle in transaction (aborted)".to_string()), Some("SELECT 1 / 0".into())];
    assert_eq!(activity(&observer, "state, query", pid).await?, expected);
    client.batch_execute("ROLLBACK; SET application_name = 'renamed'").await?;
    assert_eq!(activity(&observer, "state, application_name", pid).await?[1].as_deref(), Some("renamed"));
    // Its own row, while the statement runs.
    assert_eq!(activity(&observer, "state", process(&observer).await?).await?[0].as_deref(), Some("active"));
    // Sessions of the program are listed, too.
    let session = served.database.session();
    assert!(activity(&observer, "client_addr", session.process()).await?[0].is_none());
    drop(session);
    drop(client);
    while observer.query_one("SELECT count(*) FROM pg_stat_activity", &[]).await?.get::<_, i64>(0) > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_and_terminating() -> Result {
    let served = Served::start().await;
    let (client, boss) = (served.connect().await, served.connect().await);
    let pid = process(&client).await?;
    let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
    let signal = async |function: &str| -> Result<bool> {
        active(&boss, pid).await?;
        Ok(boss.query_one(&format!("SELECT {function}({pid})"), &[]).await?.get(0))
    };
    // Planning does not execute the function.
    boss.batch_execute(&format!("EXPLAIN SELECT pg_terminate_backend({pid})")).await?;
    drop(boss.prepare(&format!("SELECT pg_terminate_backend({pid})")).await?);
    let (result, cancelled) = tokio::join!(client.query(slow, &[]), signal("pg_cancel_backend"));
    assert_eq!((code(result), cancelled?), (SqlState::QUERY_CANCELED, true));
    let (result, terminated) = tokio::join!(client.query(slow, &[]), signal("pg_terminate_backend"));
    assert_eq!((code(result), terminated?), (SqlState::ADMIN_SHUTDOWN, true));
    // An idle session with an open transaction.
    let idle = served.connect().await;
    boss.batch_execute("CREATE TABLE t (a INTEGER PRIMARY KEY)").await?;
    idle.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await?;
    let sql = format!("SELECT pg_terminate_backend({}, 10000)", process(&idle).await?);
    assert!(boss.query_one(&sql, &[]).await?.get::<_, bool>(0));
    assert!(idle.query("SELECT 1", &[]).await.is_err());
    boss.batch_execute("INSERT INTO t VALUES (1)").await?;
    // Numbers of no session.
    for sql in ["SELECT pg_cancel_backend(2147483647)", "SELECT pg_terminate_backend(-1)"] {
        assert!(!boss.query_one(sql, &[]).await?.get::<_, bool>(0));
    }
    // A session of the program.
    let session = served.database.session();
    boss.batch_execute(&format!("SELECT pg_terminate_backend({})", session.process())).await?;
    assert_eq!(session.query("SELECT 1").await.map(drop).map_err(|error| error.sqlstate().code()), Err("57P01"));
    // The own session.
    assert_eq!(code(boss.query("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await), SqlState::ADMIN_SHUTDOWN);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_other_roles() -> Result {
    let served = WithRoles::start().await;
    let (app, boss) = (served.connect("app").await, served.connect("boss").await);
    let (app_pid, boss_pid) = (process(&app).await?, process(&boss).await?);
    app.batch_execute("BEGIN").await?;
    boss.batch_execute("ALTER ROLE other PASSWORD 'secret'").await?;
    let columns = "usename, application_name, state, query";
    for (role, shows_app, shows_boss) in
        [("app", true, false), ("boss", true, true), ("monitor", true, true), ("other", false, false)]
    {
        let client = served.connect(role).await;
        for (pid, owner, shows, text) in [
            (app_pid, "app", shows_app, "BEGIN"),
            (boss_pid, "boss", shows_boss, "<not shown: it may contain a password>"),
        ] {
            let row = activity(&client, columns, pid).await?;
            let row: Vec<&str> = row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect();
            assert_eq!(row[..2], [owner, &format!("{owner}_app")], "{role}");
            match shows {
                true => assert_eq!(row[3], text, "{role}"),
                false => assert_eq!(row[2..], ["NULL", "<insufficient privilege>"], "{role}"),
            }
        }
    }
    for (role, of_app, of_boss) in [
        ("app", true, false),
        ("boss", true, true),
        ("monitor", false, false),
        ("other", false, false),
        ("signaller", true, false),
    ] {
        let client = served.connect(role).await;
        for (pid, is_permitted) in [(app_pid, of_app), (boss_pid, of_boss)] {
            let result = client.query_one(&format!("SELECT pg_cancel_backend({pid})"), &[]).await;
            match is_permitted {
                true => assert!(result?.get::<_, bool>(0), "{role}"),
                false => assert_eq!(code(result), SqlState::INSUFFICIENT_PRIVILEGE, "{role}"),
            }
        }
        // Sessions without a role are those of superusers.
        let session = served.served.database.session();
        let result = client.query_one(&format!("SELECT pg_cancel_backend({})", session.process()), &[]).await;
        assert_eq!(result.is_ok(), role == "boss", "{role}");
    }
    // A role with the name of another one that was dropped does not get its rights.
    let other = served.connect("other").await;
    let other_pid = process(&other).await?;
    boss.batch_execute("DROP ROLE other; CREATE ROLE other LOGIN").await?;
    let again = served.connect("other").await;
    let result = again.query_one(&format!("SELECT pg_terminate_backend({other_pid})"), &[]).await;
    assert_eq!(code(result), SqlState::INSUFFICIENT_PRIVILEGE);
    Ok(())
}

/// Two statements without a pause do not stop a server with two threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_without_matches() -> Result {
    let served = Served::start_with(|options| options.statement_timeout = Some(Duration::from_secs(60))).await;
    let [first, second, third] = [served.connect().await, served.connect().await, served.connect().await];
    let pids = [process(&first).await?, process(&second).await?];
    let started = Instant::now();
    let requests = async {
        for pid in pids {
            active(&third, pid).await?;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let running = Instant::now();
        for _ in 0..20 {
            third.query_one("SELECT 1", &[]).await?;
        }
        served.connect().await.query_one("SELECT 1", &[]).await?;
        let answered = running.elapsed();
        first.cancel_token().cancel_query(NoTls).await?;
        third.query_one(&format!("SELECT pg_cancel_backend({})", pids[1]), &[]).await?;
        Result::Ok(answered)
    };
    let (one, two, answered) = tokio::join!(first.query(ENDLESS, &[]), second.query(ENDLESS, &[]), requests);
    assert_eq!((code(one), code(two)), (SqlState::QUERY_CANCELED, SqlState::QUERY_CANCELED));
    assert!(answered? < Duration::from_secs(10) && started.elapsed() < Duration::from_secs(40));
    Ok(())
}

/// The timeout of statements ends such a join, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_of_joins() -> Result {
    let served = Served::start_with(|options| options.statement_timeout = Some(Duration::from_millis(300))).await;
    let client = served.connect().await;
    assert_eq!(code(client.query(ENDLESS, &[]).await), SqlState::QUERY_CANCELED);
    client.query_one("SELECT 1", &[]).await?;
    Ok(())
}

/// PREPARE and the protocol have one namespace of prepared statements.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_prepared_statements() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let statement = client.prepare("SELECT $1::INTEGER + 1").await?;
    let listed = async || -> Result<Vec<[String; 3]>> {
        let sql = "SELECT name, parameter_types::TEXT, from_sql FROM pg_prepared_statements ORDER BY name";
        let rows = client.simple_query(sql).await?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some([0, 1, 2].map(|column| row.get(column).unwrap_or_default().into())),
            _ => None,
        });
        Ok(rows.collect())
    };
    let [name, types, from_sql] = listed().await?.pop().ok_or("no statement")?;
    assert_eq!((types.as_str(), from_sql.as_str()), ("{23}", "f"));
    let executed = client.simple_query(&format!("EXECUTE {name} (41)")).await?;
    assert!(matches!(&executed[1], SimpleQueryMessage::Row(row) if row.get(0) == Some("42")), "{executed:?}");
    assert_eq!(
        code(client.batch_execute(&format!("PREPARE {name} AS SELECT 1")).await),
        SqlState::DUPLICATE_PSTATEMENT
    );
    client.batch_execute("PREPARE other (BIGINT) AS SELECT $1").await?;
    assert_eq!(listed().await?.len(), 2);
    client.batch_execute(&format!("DEALLOCATE {name}")).await?;
    assert_eq!(code(client.query(&statement, &[&1_i32]).await), SqlState::INVALID_SQL_STATEMENT_NAME);
    assert_eq!(listed().await?, [["other", "{20}", "t"].map(String::from)]);
    let statement = client.prepare("SELECT $1::INTEGER + 2").await?;
    assert_eq!(client.query_one(&statement, &[&1_i32]).await?.get::<_, i64>(0), 3);
    client.batch_execute("DISCARD ALL").await?;
    assert!(listed().await?.is_empty());
    assert_eq!(code(client.query(&statement, &[&1_i32]).await), SqlState::INVALID_SQL_STATEMENT_NAME);
    // Statements that are no longer used are closed.
    drop(client.prepare("SELECT 1").await?);
    while !listed().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// COPY FROM STDIN needs INSERT only.
#[tokio::test(flavor = "multi_thread")]
async fn copying_into_tables_that_cannot_be_read() -> Result {
    let served = WithRoles::start().await;
    let tables =
        "CREATE TABLE t (id BIGINT GENERATED BY DEFAULT AS IDENTITY, a BIGINT, b TEXT); CREATE TABLE u (a INTEGER);
        GRANT INSERT ON t TO app";
    served.served.execute(tables).await;
    let app = served.connect("app").await;
    for sql in ["COPY t (a, b) FROM STDIN", "COPY t (b, a) FROM STDIN"] {
        let sink = app.copy_in(sql).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::from_static(b"7\t8\n")).await?;
        assert_eq!(sink.finish().await?, 1);
    }
    let sql = "SELECT string_agg(concat_ws(' ', id, a, b), ',' ORDER BY id) FROM t";
    let session = served.served.database.session();
    let rows = session.query(sql).await?.collect().await?;
    assert_eq!(shown(&rows), "1 7 8,2 8 7");
    for (sql, state) in [
        ("COPY t TO STDOUT", SqlState::INSUFFICIENT_PRIVILEGE),
        ("COPY u FROM STDIN", SqlState::INSUFFICIENT_PRIVILEGE),
        ("COPY t (c) FROM STDIN", SqlState::UNDEFINED_COLUMN),
        ("COPY missing FROM STDIN", SqlState::UNDEFINED_TABLE),
    ] {
        assert_eq!(code(app.copy_in::<_, Bytes>(sql).await.map(drop)), state, "{sql}");
    }
    Ok(())
}

/// The only value of a result.
fn shown(rows: &[keyaki::RecordBatch]) -> String {
    let shown = arrow::util::display::array_value_to_string(rows[0].column(0), 0);
    shown.expect("a text")
}

/// Changes of settings that the protocol reports.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_transactions() -> Result {
    let served = WithRoles::start().await;
    let boss = served.connect("boss").await;
    boss.batch_execute("BEGIN; SET LOCAL ROLE app; SET LOCAL app.user = 'ann'").await?;
    let sql = "SELECT current_user, session_user, current_setting('app.user', true)";
    let row = boss.query_one(sql, &[]).await?;
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("app", "boss", Some("ann")));
    assert!(boss.batch_execute("CREATE ROLE more").await.is_err());
    boss.batch_execute("ROLLBACK").await?;
    let row = boss.query_one(sql, &[]).await?;
    assert_eq!((row.get(0), row.get(1), row.get::<_, Option<&str>>(2)), ("boss", "boss", None));
    // In parameters, and by DISCARD ALL.
    let row = boss.query_one("SELECT set_config($1, $2, false)", &[&"role", &"app"]).await?;
    assert_eq!(row.get::<_, &str>(0), "app");
    assert_eq!(boss.query_one(sql, &[]).await?.get::<_, &str>(0), "app");
    assert!(boss.batch_execute("BEGIN; DISCARD ALL").await.is_err());
    boss.batch_execute("ROLLBACK; DISCARD ALL").await?;
    assert_eq!(boss.query_one(sql, &[]).await?.get::<_, &str>(0), "boss");
    boss.batch_execute("SET SESSION AUTHORIZATION app; RESET SESSION AUTHORIZATION; CREATE ROLE more").await?;
    // A role cannot leave what it has logged in as.
    let app = served.connect("app").await;
    app.batch_execute("DISCARD ALL").await?;
    assert_eq!(
        code(app.query_one("SELECT set_config('role', 'boss', false)", &[]).await),
        SqlState::INSUFFICIENT_PRIVILEGE
    );
    assert_eq!(code(app.batch_execute("BEGIN; SET LOCAL ROLE boss").await), SqlState::INSUFFICIENT_PRIVILEGE);
    app.batch_execute("ROLLBACK").await?;
    assert_eq!(app.query_one(sql, &[]).await?.get::<_, &str>(0), "app");
    Ok(())
}

/// RESET and DISCARD ALL return to the settings with which the client has connected.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_startup() -> Result {
    let served = WithRoles::start().await;
    let boss = served.connect("boss").await;
    boss.batch_execute("ALTER ROLE app SET app.text TO 'it''s'; ALTER ROLE app SET \"app\".path = \"a\"\"b\"").await?;
    boss.batch_execute("ALTER ROLE app SET statement_timeout = '2min'").await?;
    let app = served.connect("app").await;
    let shown = async |name: &str| -> Result<String> { Ok(app.query_one(&format!("SHOW {name}"), &[]).await?.get(0)) };
    assert_eq!((shown("app.text").await?, shown("app.path").await?), ("it's".into(), "a\"b".into()));
    assert_eq!(shown("statement_timeout").await?, "2min");
    app.batch_execute("SET app.text = 'x'; SET statement_timeout = 100; SET TIME ZONE 'Asia/Tokyo'").await?;
    app.batch_execute("RESET app.text; SET statement_timeout TO DEFAULT; RESET timezone").await?;
    assert_eq!((shown("app.text").await?, shown("statement_timeout").await?), ("it's".into(), "2min".into()));
    app.batch_execute("SET app.text = 'x'; SET app.other = 'y'; SET TIME ZONE 'Asia/Tokyo'").await?;
    app.batch_execute("DISCARD ALL").await?;
    assert_eq!((shown("app.text").await?, shown("timezone").await?), ("it's".into(), "UTC".into()));
    assert_eq!(code(app.query_one("SHOW app.other", &[]).await), SqlState::UNDEFINED_OBJECT);
    // ROLLBACK restores the role.
    boss.batch_execute("BEGIN; SET ROLE app; SET TIME ZONE 'Asia/Tokyo'; ROLLBACK; CREATE ROLE more").await?;
    assert_eq!(boss.query_one("SELECT current_user, current_setting('timezone')", &[]).await?.get::<_, &str>(1), "UTC");
    Ok(())
}

/// SET LOCAL holds for the statements that are sent together with it.
#[tokio::test(flavor = "multi_thread")]
async fn set_local_begins_the_transaction_of_its_query() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let shown = async |sql: &str| -> Result<Vec<String>> {
        let messages = client.simple_query(sql).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(String::from),
            _ => None,
        });
        Ok(rows.collect())
    };
    assert_eq!(shown("SET LOCAL timezone = 'Asia/Tokyo'; SHOW timezone").await?, ["Asia/Tokyo"]);
    assert_eq!(shown("SHOW timezone").await?, ["UTC"]);
    let long = "x".repeat(1000);
    client.batch_execute(&format!("SET application_name = '{long}'")).await?;
    assert_eq!(shown("SHOW application_name").await?, [&long[..63]]);
    assert!(client.batch_execute(&format!("SET app.x = '{}'", "x".repeat(20_000))).await.is_err());
    Ok(())
}

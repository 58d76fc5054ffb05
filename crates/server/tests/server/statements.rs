//! A server and its clients, over the protocol.

use std::time::Duration;

use crate::support::{Served, code};
use futures::{StreamExt, TryStreamExt};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::test(flavor = "multi_thread")]
async fn values_of_all_types() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let sql = "SELECT true, 7::SMALLINT, -7, 7::BIGINT, 1.5::REAL, -2.25::DOUBLE PRECISION, 'ß', '\\x00ff'::BYTEA, NULL::TEXT";
    let row = client.query_one(sql, &[]).await?;
    assert_eq!((row.get::<_, bool>(0), row.get::<_, i16>(1)), (true, 7));
    assert_eq!(row.columns()[3].type_(), &Type::INT8);
    assert_eq!(row.get::<_, i64>(3), 7);
    assert_eq!((row.get::<_, f32>(4), row.get::<_, f64>(5)), (1.5, -2.25));
    assert_eq!((row.get::<_, &str>(6), row.get::<_, &[u8]>(7)), ("ß", [0, 255].as_slice()));
    assert_eq!(row.get::<_, Option<&str>>(8), None);
    let sql = "SELECT ARRAY[1::BIGINT, NULL, 3], ARRAY['a', 'b c']";
    let row = client.query_one(sql, &[]).await?;
    assert_eq!(row.get::<_, Vec<Option<i64>>>(0), [Some(1), None, Some(3)]);
    assert_eq!(row.get::<_, Vec<&str>>(1), ["a", "b c"]);
    Ok(())
}

/// As text, in the simple protocol.
#[tokio::test(flavor = "multi_thread")]
async fn values_as_text() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    for (sql, expected) in [
        ("true", "t"),
        ("-12::SMALLINT", "-12"),
        ("1.50::DECIMAL(6,2)", "1.50"),
        ("DATE '2026-02-03'", "2026-02-03"),
        ("TIMESTAMP '2026-02-03 04:05:06.5'", "2026-02-03 04:05:06.5"),
        ("TIMESTAMPTZ '2026-02-03 04:05:06+01'", "2026-02-03 03:05:06+00"),
        ("TIME '04:05:06'", "04:05:06"),
        ("INTERVAL '1 day 2 hours'", "1 day 02:00:00"),
        ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("'\\x00ff'::BYTEA", "\\x00ff"),
        ("ARRAY[1, NULL, 3]", "{1,NULL,3}"),
        ("ARRAY[true, false]", "{t,f}"),
        ("1e20::DOUBLE PRECISION", "1e20"),
    ] {
        let messages = client.simple_query(&format!("SELECT {sql}")).await?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        assert_eq!(row.and_then(|row| row.get(0)), Some(expected), "{sql}");
    }
    Ok(())
}

/// The bytes of a value.
struct Raw(Vec<u8>);

impl<'a> tokio_postgres::types::FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Raw, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(raw.into()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let tables = "CREATE TABLE t (id INTEGER PRIMARY KEY, doc JSON, docs JSON[], text TEXT);
        INSERT INTO t VALUES (1, '{\"a\": [1]}', ARRAY['1', '\"x\"'], '{}'); CREATE VIEW v AS SELECT doc AS d FROM t";
    client.batch_execute(tables).await?;
    let document: &[u8] = br#"{"a": [1]}"#;
    for (sql, ty) in [
        // On the short path, and on the long one.
        ("SELECT doc FROM t WHERE id = 1", Type::JSON),
        ("SELECT doc FROM t GROUP BY doc", Type::JSON),
        ("SELECT d FROM v", Type::JSON),
        ("SELECT d FROM (SELECT max(doc) AS d FROM t UNION ALL SELECT doc FROM t WHERE id = 2) AS q", Type::JSON),
        ("UPDATE t SET text = 'x' WHERE id = 1 RETURNING doc", Type::JSON),
        ("UPDATE t SET text = 'y' FROM t AS s WHERE t.id = s.id RETURNING s.doc", Type::JSON),
        (
            "INSERT INTO t VALUES (1, '{\"a\": [1]}') ON CONFLICT (id) DO UPDATE SET doc = excluded.doc RETURNING doc",
            Type::JSON,
        ),
        ("SELECT doc::TEXT FROM t WHERE id = 1", Type::TEXT),
        ("DELETE FROM t WHERE id = 1 RETURNING doc", Type::JSON),
    ] {
        let row = client.query_one(sql, &[]).await?;
        assert_eq!(row.columns()[0].type_(), &ty, "{sql}");
        assert_eq!(row.get::<_, Raw>(0).0, document, "{sql}");
    }
    let sql = "INSERT INTO t VALUES (2, $1::TEXT, ARRAY['1', '\"x\"'], '{}') RETURNING docs, doc, text";
    let row = client.query_one(sql, &[&"[]"]).await?;
    let types: Vec<&Type> = row.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(types, [&Type::JSON_ARRAY, &Type::JSON, &Type::TEXT]);
    // One dimension, no NULL, the OID of json, two elements from the first index.
    let array = [
        &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 114, 0, 0, 0, 2, 0, 0, 0, 1][..],
        &[0, 0, 0, 1, b'1'],
        &[0, 0, 0, 3],
        b"\"x\"",
    ];
    assert_eq!(row.get::<_, Raw>(0).0, array.concat());
    // Functions of documents.
    for sql in ["SELECT json_build_object('a', 1)", "SELECT doc -> 'a' FROM t", "SELECT coalesce(doc, '{}') FROM t"] {
        assert_eq!(client.query_one(sql, &[]).await?.columns()[0].type_(), &Type::JSON, "{sql}");
    }
    let sql = "SELECT CASE WHEN id = 2 THEN doc ELSE $1 END FROM t";
    assert_eq!(client.query_one(sql, &[&"{}"]).await?.get::<_, &str>(0), "[]");
    let copied = client.copy_out("COPY (SELECT doc, docs FROM t) TO STDOUT WITH (HEADER)").await?;
    let copied: Vec<_> = copied.try_collect().await?;
    assert_eq!(copied.concat(), b"doc\tdocs\n[]\t{1,\"\\\\\"x\\\\\"\"}\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_all_types() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let table =
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a SMALLINT, b BIGINT, c REAL, d DOUBLE PRECISION, e TEXT, f BYTEA,
        g BOOLEAN, h BIGINT[])";
    client.batch_execute(table).await?;
    let insert = client.prepare("INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)").await?;
    assert_eq!(insert.params()[..3], [Type::INT4, Type::INT2, Type::INT8]);
    let array = vec![Some(5_i64), None];
    let rows = client
        .execute(&insert, &[&1, &2_i16, &3_i64, &1.5_f32, &2.5, &"text", &[1_u8, 2].as_slice(), &true, &array])
        .await?;
    assert_eq!(rows, 1);
    let nothing = (None::<i16>, None::<i64>, None::<f32>, None::<f64>, None::<&str>, None::<&[u8]>, None::<bool>);
    let (a, b, c, d, e, f, g) = nothing;
    client.execute(&insert, &[&2, &a, &b, &c, &d, &e, &f, &g, &None::<Vec<i64>>]).await?;
    let row = client.query_one("SELECT a, b, c, d, e, f, g, h FROM t WHERE id = $1", &[&1]).await?;
    assert_eq!((row.get::<_, i16>(0), row.get::<_, i64>(1), row.get::<_, f32>(2)), (2, 3, 1.5));
    assert_eq!((row.get::<_, f64>(3), row.get::<_, &str>(4), row.get::<_, bool>(6)), (2.5, "text", true));
    assert_eq!((row.get::<_, &[u8]>(5), row.get::<_, Vec<Option<i64>>>(7)), ([1, 2].as_slice(), array));
    let row = client.query_one("SELECT count(*) FROM t WHERE a IS NULL AND h IS NULL", &[]).await?;
    assert_eq!(row.get::<_, i64>(0), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_codes_and_positions() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT NOT NULL)").await?;
    let error = client.batch_execute("SELECT 1;\n  SELEC 2").await.unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code(), &SqlState::SYNTAX_ERROR);
    assert_eq!(error.position(), Some(&tokio_postgres::error::ErrorPosition::Original(13)), "{error:?}");
    assert_eq!(code(client.execute("INSERT INTO nix VALUES (1)", &[]).await), SqlState::UNDEFINED_TABLE);
    client.execute("INSERT INTO t VALUES (1, 'x')", &[]).await?;
    let error = client.execute("INSERT INTO t VALUES (1, 'y')", &[]).await.unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!((error.code(), error.table()), (&SqlState::UNIQUE_VIOLATION, Some("t")));
    let error = client.execute("INSERT INTO t VALUES (2, NULL)", &[]).await.unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!((error.code(), error.column()), (&SqlState::NOT_NULL_VIOLATION, Some("a")));
    // The connection is still open.
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions() -> Result {
    let served = Served::start().await;
    let mut client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await?;
    let count = "SELECT count(*) FROM t";
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await?;
    assert_eq!(code(transaction.execute("INSERT INTO t VALUES (1)", &[]).await), SqlState::UNIQUE_VIOLATION);
    assert_eq!(code(transaction.query(count, &[]).await), SqlState::IN_FAILED_SQL_TRANSACTION);
    transaction.rollback().await?;
    assert_eq!(client.query_one(count, &[]).await?.get::<_, i64>(0), 0);
    let mut transaction = client.transaction().await?;
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await?;
    let savepoint = transaction.transaction().await?;
    savepoint.execute("INSERT INTO t VALUES (2)", &[]).await?;
    savepoint.rollback().await?;
    transaction.commit().await?;
    assert_eq!(client.query_one(count, &[]).await?.get::<_, i64>(0), 1);
    // An error outside of statements also ends the transaction: a value that is not of its type.
    client.batch_execute("BEGIN").await?;
    assert_eq!(client.query_one("SELECT $1::INTEGER", &[&1]).await?.get::<_, i32>(0), 1);
    assert_eq!(code(client.query("SELECT id FROM nix", &[]).await), SqlState::UNDEFINED_TABLE);
    assert_eq!(code(client.query(count, &[]).await), SqlState::IN_FAILED_SQL_TRANSACTION);
    client.batch_execute("ROLLBACK").await?;
    Ok(())
}

/// The statements of a text are one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn texts_of_several_statements_are_transactions() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await?;
    let count = async || -> Result<i64> { Ok(client.query_one("SELECT count(*) FROM t", &[]).await?.get(0)) };
    let failed = client.batch_execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)").await;
    assert_eq!(code(failed), SqlState::UNIQUE_VIOLATION);
    assert_eq!(count().await?, 0);
    client.batch_execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)").await?;
    assert_eq!(count().await?, 2);
    // The first statement is committed by the text itself.
    let failed = client.batch_execute("INSERT INTO t VALUES (3); COMMIT; INSERT INTO t VALUES (3)").await;
    assert_eq!(code(failed), SqlState::UNIQUE_VIOLATION);
    assert_eq!(count().await?, 3);
    // The transaction of the text becomes that of the client.
    client.batch_execute("INSERT INTO t VALUES (4); BEGIN; INSERT INTO t VALUES (5)").await?;
    client.batch_execute("ROLLBACK").await?;
    assert_eq!(count().await?, 3);
    // A transaction that begins after the end of that of the text is the client's.
    client.batch_execute("INSERT INTO t VALUES (6); COMMIT; BEGIN; INSERT INTO t VALUES (7)").await?;
    client.batch_execute("ROLLBACK").await?;
    assert_eq!(count().await?, 4);
    // Without effect, as in PostgreSQL.
    client.batch_execute("ROLLBACK").await?;
    client.batch_execute("COMMIT").await?;
    client.batch_execute("BEGIN; BEGIN; COMMIT").await?;
    client.batch_execute(";;").await?;
    client.batch_execute("-- nothing").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn portals_with_row_limits() -> Result {
    let served = Served::start().await;
    let mut client = served.connect().await;
    let transaction = client.transaction().await?;
    let statement = transaction.prepare("SELECT value FROM generate_series(1, 25000) ORDER BY value").await?;
    let portal = transaction.bind(&statement, &[]).await?;
    let mut next = 1_i64;
    for limit in [1, 10, 9000, 20_000, 5] {
        let rows = transaction.query_portal(&portal, limit).await?;
        for row in &rows {
            assert_eq!(row.get::<_, i64>(0), next);
            next += 1;
        }
        let expected = usize::try_from(limit)?.min((25_001 - next) as usize + rows.len());
        assert_eq!(rows.len(), expected);
    }
    assert_eq!(next, 25_001);
    Ok(())
}

/// Changes that return rows, also with more values than are read at a time.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_return_rows() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY)").await?;
    let insert = "INSERT INTO t SELECT value + $1 FROM generate_series(1, 5000) RETURNING id";
    let rows = client.query(insert, &[&10_i64]).await?;
    assert_eq!(rows.len(), 5000);
    let messages = client.simple_query("DELETE FROM t WHERE id > 10 RETURNING id").await?;
    assert!(matches!(messages.last(), Some(SimpleQueryMessage::CommandComplete(5000))));
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

/// A statement whose columns have changed since its preparation.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_change() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER)").await?;
    let statement = client.prepare("SELECT * FROM t").await?;
    client.query(&statement, &[]).await?;
    client.batch_execute("ALTER TABLE t DROP COLUMN a; ALTER TABLE t ADD COLUMN c INTEGER").await?;
    assert_eq!(code(client.query(&statement, &[]).await), SqlState::FEATURE_NOT_SUPPORTED);
    Ok(())
}

/// Statements that are sent before the answers to earlier ones.
#[tokio::test(flavor = "multi_thread")]
async fn pipelines() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY)").await?;
    let insert = client.prepare("INSERT INTO t VALUES ($1)").await?;
    let inserts = (0..500_i64).map(|id| {
        let (client, insert) = (&client, &insert);
        async move { client.execute(insert, &[&(id % 400)]).await }
    });
    let results = futures::future::join_all(inserts).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 400);
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 400);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_results_and_values() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let rows = client.query_raw("SELECT value, value * 2 FROM generate_series(1, 300000)", Vec::<i64>::new()).await?;
    let sum = rows.try_fold(0, |sum, row| async move { Ok(sum + row.get::<_, i64>(1)) }).await?;
    assert_eq!(sum, 300_000 * 300_001);
    let text = "x".repeat(20 << 20);
    let row = client.query_one("SELECT $1::TEXT || 'y'", &[&text]).await?;
    assert_eq!(row.get::<_, &str>(0).len(), text.len() + 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_cancel() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let token = client.cancel_token();
    let cancelled = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel_query(tokio_postgres::NoTls).await
    };
    let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
    let (result, cancelled) = tokio::join!(client.query(slow, &[]), cancelled);
    cancelled?;
    assert_eq!(code(result), SqlState::QUERY_CANCELED);
    // A request while nothing runs has no effect.
    client.cancel_token().cancel_query(tokio_postgres::NoTls).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(client.query_one("SELECT 1", &[]).await?.get::<_, i64>(0), 1);
    Ok(())
}

/// The statement of a client that has gone is cancelled, and its transaction rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await?;
    for _ in 0..20 {
        let (other, task) = served.connect_task().await;
        other.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await?;
        let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
        let running = tokio::time::timeout(Duration::from_millis(20), other.query(slow, &[])).await;
        assert!(running.is_err());
        // Closes the socket without a message.
        task.abort();
    }
    while served.connections() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.execute("INSERT INTO t VALUES (1)", &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn limits() -> Result {
    let served = Served::start_with(|options| {
        options.max_connections = 2;
        options.statement_timeout = Some(Duration::from_millis(300));
        options.idle_transaction_timeout = Some(Duration::from_millis(300));
    })
    .await;
    let (one, two) = (served.connect().await, served.connect().await);
    assert_eq!(code(served.try_connect().await.map(drop)), SqlState::TOO_MANY_CONNECTIONS);
    let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
    assert_eq!(code(one.query(slow, &[]).await), SqlState::QUERY_CANCELED);
    two.batch_execute("BEGIN").await?;
    while served.connections() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(two.batch_execute("SELECT 1").await.is_err());
    drop(served.try_connect().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settings() -> Result {
    let served = Served::start().await;
    let client = served.connect_with("options='-c timezone=Europe/Berlin' application_name='a\\'b'").await;
    let shown = async |name: &str| -> Result<String> {
        Ok(client.query_one(&format!("SHOW {name}"), &[]).await?.get::<_, String>(0))
    };
    assert_eq!(shown("timezone").await?, "Europe/Berlin");
    assert_eq!(shown("TRANSACTION ISOLATION LEVEL").await?, "read committed");
    client.batch_execute("SET client_encoding TO 'UTF8'; SET NAMES 'utf8'; SET datestyle = ISO, MDY").await?;
    client.batch_execute("SET extra_float_digits = 3; SET SESSION application_name = 'other'").await?;
    assert_eq!(shown("application_name").await?, "other");
    assert_eq!(code(client.batch_execute("SET client_encoding = 'latin1'").await), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(client.batch_execute("SET nix = 1").await), SqlState::UNDEFINED_OBJECT);
    Ok(())
}

/// A shutdown ends idle connections, and waits for running statements.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown() -> Result {
    let mut served = Served::start().await;
    let (idle, busy) = (served.connect().await, served.connect().await);
    let running = tokio::spawn(async move {
        let sql = "SELECT count(*) FROM generate_series(1, 3000) AS a, generate_series(1, 10000) AS b";
        busy.simple_query(sql).await
    });
    // This statement runs, too.
    let count = "SELECT count(*) FROM keyaki_queries WHERE status = 'running'";
    while idle.query_one(count, &[]).await?.get::<_, i64>(0) < 2 {}
    served.stop().await;
    let messages = running.await??;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(row, Some("30000000"));
    assert!(idle.query("SELECT 1", &[]).await.is_err());
    assert!(served.try_connect().await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unprotected_addresses_are_refused() {
    let database = keyaki::Database::open_temporary(keyaki::Options::default()).expect("a database");
    let options = |allow_unprotected| keyaki_server::ServerOptions {
        listen: vec![([0, 0, 0, 0], 0).into()],
        allow_unprotected,
        ..Default::default()
    };
    let refused = keyaki_server::Server::bind(database.clone(), options(false)).await;
    assert!(matches!(refused, Err(keyaki_server::ServerError::Unprotected(_))));
    assert!(keyaki_server::Server::bind(database.clone(), options(true)).await.is_ok());
    let nothing = keyaki_server::ServerOptions { listen: Vec::new(), ..Default::default() };
    let refused = keyaki_server::Server::bind(database, nothing).await;
    assert!(matches!(refused, Err(keyaki_server::ServerError::NoAddress)));
}

/// Results that arrive while the client reads them, and a client that stops reading.
#[tokio::test(flavor = "multi_thread")]
async fn results_are_streamed() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let rows = client.query_raw("SELECT value FROM generate_series(1, 100000000)", Vec::<i64>::new()).await?;
    let mut rows = std::pin::pin!(rows);
    for expected in 1..=1000_i64 {
        let row = rows.next().await.expect("a row")?;
        assert_eq!(row.get::<_, i64>(0), expected);
    }
    Ok(())
}

//! Types, names and settings as the clients of PostgreSQL expect them.

use std::time::Duration;

use crate::support::{Served, code};
use futures::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

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

/// The types and names of the columns of a query.
async fn columns(client: &Client, sql: &str) -> Result<Vec<(String, Type)>> {
    let statement = client.prepare(sql).await?;
    Ok(statement.columns().iter().map(|column| (column.name().into(), column.type_().clone())).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_type_jsonb() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    let tables = "CREATE TABLE t (id INTEGER PRIMARY KEY, doc JSONB, docs JSONB[], old JSON);
        INSERT INTO t VALUES (1, '{\"a\": [1]}', ARRAY['1', '\"x\"'], '{}'); CREATE VIEW v AS SELECT doc AS d FROM t;
        CREATE TABLE copy AS SELECT doc, old, jsonb_build_array(1) AS own FROM t";
    client.batch_execute(tables).await?;
    for (sql, ty) in [
        // On the short path, and on the long one.
        ("SELECT doc FROM t WHERE id = 1", Type::JSONB),
        ("SELECT max(doc) FROM t", Type::JSONB),
        ("SELECT d FROM v", Type::JSONB),
        ("SELECT doc FROM copy", Type::JSONB),
        ("SELECT own FROM copy", Type::JSONB),
        ("SELECT old FROM copy", Type::JSON),
        ("SELECT docs FROM t", Type::JSONB_ARRAY),
        ("SELECT doc -> 'a' FROM t", Type::JSONB),
        ("SELECT doc -> 'a' -> 0::INTEGER FROM t", Type::JSONB),
        ("SELECT doc #> '{a}' FROM t", Type::JSONB),
        ("SELECT old -> 'a' FROM t", Type::JSON),
        ("SELECT doc || '{}' FROM t", Type::JSONB),
        ("SELECT coalesce(doc, '{}') FROM t", Type::JSONB),
        ("SELECT doc FROM t UNION SELECT '[]'::jsonb", Type::JSONB),
        ("SELECT '{}'::jsonb", Type::JSONB),
        ("SELECT JSONB '{}'", Type::JSONB),
        ("SELECT '{}'::json", Type::JSON),
        ("SELECT to_jsonb(id) FROM t", Type::JSONB),
        ("SELECT to_json(doc) FROM t", Type::JSON),
        ("SELECT jsonb_agg(id) FROM t", Type::JSONB),
        ("SELECT json_agg(doc) FROM t", Type::JSON),
        ("SELECT jsonb_object_agg(id, doc) FROM t", Type::JSONB),
        ("SELECT jsonb_set(doc, '{a}', '1') FROM t", Type::JSONB),
        ("SELECT value FROM t, jsonb_each(doc)", Type::JSONB),
        ("SELECT value FROM t, json_each(old)", Type::JSON),
        ("SELECT jsonb_array_elements(doc -> 'a') FROM t", Type::JSONB),
        ("SELECT r.x FROM jsonb_to_record('{\"x\": []}') AS r(x JSONB)", Type::JSONB),
        ("SELECT doc ->> 'a' FROM t", Type::TEXT),
        ("SELECT jsonb_typeof(doc) FROM t", Type::TEXT),
        ("SELECT doc::TEXT FROM t", Type::TEXT),
        ("UPDATE t SET id = 1 WHERE id = 1 RETURNING doc", Type::JSONB),
    ] {
        let described = columns(&client, sql).await.map_err(|error| format!("{sql}: {error}"))?;
        assert_eq!(described[0].1, ty, "{sql}");
        if !sql.starts_with("SELECT value FROM t, json_each") {
            assert_eq!(client.query(sql, &[]).await?.len().min(1), 1, "{sql}");
        }
    }
    let row = client.query_one("SELECT doc, docs FROM t WHERE id = 1", &[]).await?;
    // The version, and the text.
    assert_eq!(row.get::<_, Raw>(0).0, b"\x01{\"a\": [1]}");
    let array = [
        &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x0e, 0xda, 0, 0, 0, 2, 0, 0, 0, 1][..],
        &[0, 0, 0, 2, 1, b'1'],
        &[0, 0, 0, 4, 1],
        b"\"x\"",
    ];
    assert_eq!(row.get::<_, Raw>(1).0, array.concat());
    let sql = "SELECT format_type(atttypid, atttypmod), udt_name, data_type FROM pg_attribute
        JOIN information_schema.columns ON column_name = attname AND table_name = 't'
        WHERE attrelid = 't'::regclass AND attname IN ('doc', 'docs', 'old') ORDER BY attname";
    let types = client.query(sql, &[]).await?;
    let types: Vec<[&str; 3]> = types.iter().map(|row| [row.get(0), row.get(1), row.get(2)]).collect();
    assert_eq!(types, [["jsonb", "jsonb", "jsonb"], ["jsonb[]", "_jsonb", "ARRAY"], ["json", "json", "json"]]);
    // A change of the type keeps the rows.
    client.batch_execute("ALTER TABLE t ALTER COLUMN old TYPE JSONB").await?;
    assert_eq!(columns(&client, "SELECT old FROM t").await?[0].1, Type::JSONB);
    let bytes: Vec<_> = client.copy_out("COPY (SELECT doc FROM t) TO STDOUT BINARY").await?.try_collect().await?;
    assert!(
        bytes.concat().windows(12).any(|window| window == b"\0\0\0\x0b\x01{\"a\": ["),
        "the version is in the binary format"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn types_of_parameters() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client
        .batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, doc JSONB, old JSON, n BIGINT, docs JSONB[])")
        .await?;
    for (sql, expected) in [
        ("INSERT INTO t (doc, id, old) VALUES ($1, $2, $3)", vec![Type::JSONB, Type::INT4, Type::JSON]),
        ("INSERT INTO t VALUES ($1, '{}'), (2, $2)", vec![Type::INT4, Type::JSONB]),
        ("INSERT INTO t (id, docs) VALUES (1, $1)", vec![Type::JSONB_ARRAY]),
        ("UPDATE t SET old = $1, n = $2 WHERE id = $3", vec![Type::JSON, Type::INT8, Type::INT4]),
        ("SELECT $1::jsonb, $2::json, $3::text", vec![Type::JSONB, Type::JSON, Type::TEXT]),
        ("SELECT $1", vec![Type::TEXT]),
    ] {
        assert_eq!(client.prepare(sql).await?.params(), expected, "{sql}");
    }
    // Declared types are those of parameters whose type does not follow from the statement.
    let declared = [Type::INT4, Type::DATE, Type::INT4_ARRAY, Type::JSONB, Type::BOOL];
    let statement = client.prepare_typed("SELECT $1, $2, $3, $4, coalesce($5, true)", &declared).await?;
    let types: Vec<&Type> = statement.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(types, declared.iter().collect::<Vec<_>>());
    let statement = client.prepare_typed("SELECT $1, $1 AS again, $2", &[Type::INT4, Type::INT4_ARRAY]).await?;
    assert_eq!(statement.columns()[0].name(), "?column?");
    let row = client.query_one(&statement, &[&7_i32, &vec![1_i32, 2]]).await?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1), row.get::<_, Vec<i32>>(2)), (7, 7, vec![1, 2]));
    client.batch_execute("INSERT INTO t (id, n) VALUES (1, 10)").await?;
    let statement =
        client.prepare_typed("SELECT n, n + $1 FROM t WHERE n = $1 AND id = $2", &[Type::INT2, Type::INT8]).await?;
    assert_eq!(statement.params(), [Type::INT2, Type::INT8]);
    let row = client.query_one(&statement, &[&10_i16, &1_i64]).await?;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (10, 20));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_columns() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client
        .batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT); CREATE VIEW v AS SELECT count(*), 1 FROM t")
        .await?;
    for (sql, expected) in [
        (
            "SELECT count(*), max(id) AS m, id + 1, a::varchar, 'x', NULL FROM t GROUP BY id, a",
            "count m ?column? a ?column? ?column?",
        ),
        ("SELECT *, upper(a) FROM t", "id a upper"),
        ("SELECT * FROM v", "count(*) 1"),
        ("WITH q AS (SELECT 1 AS one) SELECT one, one * 2 FROM q", "one ?column?"),
        ("SELECT id::text FROM t WHERE id = 1", "id"),
        ("INSERT INTO t VALUES (1, 'x') RETURNING id, lower(a)", "id lower"),
        ("SELECT $1::bigint, coalesce($2::int, 1)", "int8 coalesce"),
        ("SELECT pg_try_advisory_lock(1)", "pg_try_advisory_lock"),
    ] {
        let names: Vec<String> = columns(&client, sql).await?.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.join(" "), expected, "{sql}");
    }
    // Results have the names of their descriptions, prepared or not.
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.columns()[0].name(), "count");
    for sql in ["SELECT count(*) FROM t", "SELECT 'a;b', count(*) FROM t"] {
        let messages = client.simple_query(sql).await?;
        let row = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        assert_eq!(row.and_then(|row| row.get("count")), Some("0"), "{sql}");
    }
    let copied: Vec<_> =
        client.copy_out("COPY (SELECT count(*) FROM t) TO STDOUT CSV HEADER").await?.try_collect().await?;
    assert_eq!(copied.concat(), b"count\n0\n".as_slice());
    // Tables made of queries have the names of the embedded API.
    client.batch_execute("CREATE TABLE made AS SELECT count(*) FROM t").await?;
    assert_eq!(columns(&client, "SELECT * FROM made").await?[0].0, "count(*)");
    Ok(())
}

/// Waits until `sql` of another client waits for a lock, then calls `meanwhile`, and returns the result of `sql`.
async fn waiting(
    client: &Client,
    sql: &str,
    meanwhile: impl AsyncFnOnce() -> Result,
) -> Result<std::result::Result<(), tokio_postgres::Error>> {
    let mut running = std::pin::pin!(client.batch_execute(sql));
    assert!(tokio::time::timeout(Duration::from_millis(100), running.as_mut()).await.is_err(), "{sql} has not waited");
    meanwhile().await?;
    Ok(running.await)
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks() -> Result {
    let served = Served::start().await;
    let (a, b) = (served.connect().await, served.connect().await);
    let flag =
        async |client: &Client, sql: &str| -> Result<Option<bool>> { Ok(client.query_one(sql, &[]).await?.get(0)) };
    // Of sessions: one key, two keys, and computed keys.
    a.batch_execute("SELECT pg_advisory_lock(1), pg_advisory_lock(1, -2), pg_advisory_lock(length('abc') + 40)")
        .await?;
    for key in ["1", "1, -2", "43", "43::int", "'43'"] {
        assert_eq!(flag(&b, &format!("SELECT pg_try_advisory_lock({key})")).await?, Some(false), "{key}");
    }
    assert_eq!(flag(&b, "SELECT pg_try_advisory_lock(-2, 1)").await?, Some(true));
    assert_eq!(flag(&b, "SELECT pg_try_advisory_lock(NULL)").await?, None);
    assert_eq!(flag(&b, "SELECT pg_advisory_unlock(1)").await?, Some(false));
    assert_eq!(
        code(b.batch_execute("SELECT pg_advisory_lock(1, 3000000000)").await),
        SqlState::NUMERIC_VALUE_OUT_OF_RANGE
    );
    let typed = b.prepare("SELECT pg_try_advisory_lock($1), pg_try_advisory_lock($2, $3)").await?;
    assert_eq!(typed.params(), [Type::INT8, Type::INT4, Type::INT4]);
    let row = b.query_one(&typed, &[&1_i64, &7_i32, &8_i32]).await?;
    assert_eq!((row.get(0), row.get(1)), (false, true));
    waiting(&b, "SELECT pg_advisory_lock(1)", async || {
        assert_eq!(
            a.query_one("SELECT pg_catalog.pg_advisory_unlock($1)", &[&1_i64]).await?.get::<_, Option<bool>>(0),
            Some(true)
        );
        Ok(())
    })
    .await??;
    // Of transactions, and shared.
    a.batch_execute("BEGIN; SELECT pg_advisory_xact_lock_shared(5)").await?;
    assert_eq!(flag(&b, "SELECT pg_try_advisory_xact_lock_shared(5)").await?, Some(true));
    assert_eq!(flag(&b, "SELECT pg_try_advisory_xact_lock(5)").await?, Some(false));
    waiting(&b, "SELECT pg_advisory_xact_lock(5)", async || Ok(a.batch_execute("COMMIT").await?)).await??;
    a.batch_execute("BEGIN; SAVEPOINT s; SELECT pg_advisory_xact_lock(6); ROLLBACK TO s").await?;
    assert_eq!(flag(&b, "SELECT pg_try_advisory_lock(6)").await?, Some(true));
    a.batch_execute("SELECT pg_advisory_xact_lock(9)").await?;
    waiting(&b, "SELECT pg_advisory_lock(9)", async || Ok(a.batch_execute("ROLLBACK").await?)).await??;
    // A timeout, a cancellation and a deadlock.
    let timed = b.batch_execute("SET lock_timeout = '50ms'; SELECT pg_advisory_lock(43)").await;
    assert_eq!(code(timed), SqlState::LOCK_NOT_AVAILABLE);
    b.batch_execute("RESET lock_timeout").await?;
    let cancel = b.cancel_token();
    let cancelled =
        waiting(&b, "SELECT pg_advisory_lock(43)", async || Ok(cancel.cancel_query(tokio_postgres::NoTls).await?));
    assert_eq!(code(cancelled.await?), SqlState::QUERY_CANCELED);
    let deadlock = waiting(&b, "SELECT pg_advisory_lock(43)", async || {
        assert_eq!(code(a.batch_execute("SELECT pg_advisory_lock(9)").await), SqlState::T_R_DEADLOCK_DETECTED);
        a.batch_execute("SELECT pg_advisory_unlock_all()").await?;
        Ok(())
    });
    deadlock.await??;
    // DISCARD ALL and the end of a session release all locks.
    b.batch_execute("DISCARD ALL").await?;
    assert_eq!(flag(&a, "SELECT pg_try_advisory_lock(9)").await?, Some(true));
    waiting(&b, "SELECT pg_advisory_lock(9)", async || {
        drop(a);
        Ok(())
    })
    .await??;
    for sql in
        ["SELECT pg_advisory_lock(id) FROM generate_series(1, 3) g (id)", "SELECT 1 WHERE pg_try_advisory_lock(1)"]
    {
        assert_eq!(code(b.batch_execute(sql).await), SqlState::FEATURE_NOT_SUPPORTED, "{sql}");
    }
    Ok(())
}

/// The shorter of the server's timeout and that of the session ends a statement.
#[tokio::test(flavor = "multi_thread")]
async fn statement_timeouts() -> Result {
    let served = Served::start_with(|options| options.statement_timeout = Some(Duration::from_secs(60))).await;
    let client = served.connect_with("options='-c statement_timeout=40s'").await;
    let slow = "SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b";
    let shown = async || -> Result<String> { Ok(client.query_one("SHOW statement_timeout", &[]).await?.get(0)) };
    assert_eq!(shown().await?, "40s");
    client.batch_execute("SET statement_timeout = 100").await?;
    assert_eq!(code(client.query(slow, &[]).await), SqlState::QUERY_CANCELED);
    assert_eq!(code(client.batch_execute(slow).await), SqlState::QUERY_CANCELED);
    client.batch_execute("BEGIN; SET LOCAL statement_timeout = '1h'").await?;
    assert_eq!(shown().await?, "1h");
    client.batch_execute("ROLLBACK").await?;
    assert_eq!(shown().await?, "100ms");
    client.batch_execute("RESET statement_timeout").await?;
    assert_eq!(shown().await?, "40s");
    Ok(())
}

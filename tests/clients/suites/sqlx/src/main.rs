//! Checks of sqlx: values, transactions, errors, streams, COPY, pools, cancellation, migrations.

use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::types::chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use sqlx::types::{BigDecimal, Uuid};
use sqlx::{AssertSqlSafe, Column, SqlSafeStr, ConnectOptions, Connection, Executor, Postgres, Row, Statement, TypeInfo};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The SQLSTATE of an error of the server.
fn code<T>(result: sqlx::Result<T>) -> String {
    let error = result.err().and_then(|error| error.into_database_error());
    error.and_then(|error| error.code().map(|code| code.into_owned())).unwrap_or_default()
}

async fn value<T>(connection: &mut PgConnection, kind: &str, value: T) -> Result<()>
where
    T: for<'a> sqlx::Encode<'a, Postgres> + for<'a> sqlx::Decode<'a, Postgres> + sqlx::Type<Postgres>,
    T: Clone + PartialEq + std::fmt::Debug + Send + Sync + Unpin + 'static,
{
    // The driver keeps prepared statements by their text, with the types of their parameters.
    connection.clear_cached_statements().await?;
    connection.execute(AssertSqlSafe(format!("CREATE TABLE v (id INT PRIMARY KEY, v {kind})"))).await?;
    let insert = "INSERT INTO v VALUES ($1, $2)";
    sqlx::query(insert).bind(1).bind(value.clone()).execute(&mut *connection).await?;
    sqlx::query(insert).bind(2).bind(None::<T>).execute(&mut *connection).await?;
    let found: Vec<Option<T>> = sqlx::query_scalar("SELECT v FROM v ORDER BY id").fetch_all(&mut *connection).await?;
    assert_eq!(found, [Some(value), None], "{kind}");
    connection.execute("DROP TABLE v").await?;
    Ok(())
}

async fn values(c: &mut PgConnection) -> Result<()> {
    value(c, "BOOLEAN", true).await?;
    value(c, "SMALLINT", -3_i16).await?;
    value(c, "INTEGER", 70_000).await?;
    value(c, "BIGINT", 1_i64 << 40).await?;
    value(c, "REAL", 0.25_f32).await?;
    value(c, "DOUBLE PRECISION", 0.1_f64).await?;
    value(c, "DECIMAL(20, 4)", BigDecimal::from_str("-12345.6789")?).await?;
    value(c, "TEXT", "käyaki 'x'".to_string()).await?;
    value(c, "BYTEA", vec![0_u8, 255]).await?;
    value(c, "UUID", Uuid::from_u128(0x1234_5678)).await?;
    let date = NaiveDate::from_ymd_opt(2024, 2, 29).ok_or("a date")?;
    let time = NaiveTime::from_hms_micro_opt(23, 59, 59, 123_456).ok_or("a time")?;
    value(c, "DATE", date).await?;
    value(c, "TIME", time).await?;
    value(c, "TIMESTAMP", NaiveDateTime::new(date, time)).await?;
    value::<DateTime<Utc>>(c, "TIMESTAMPTZ", NaiveDateTime::new(date, time).and_utc()).await?;
    value(c, "INTERVAL", PgInterval { months: 2, days: 3, microseconds: 4_000_000 }).await?;
    value(c, "INTEGER[]", vec![Some(1), None, Some(3)]).await?;
    value(c, "TEXT[]", vec!["a".to_string(), "b,c".to_string(), "d\"e".to_string()]).await
}

async fn statements(c: &mut PgConnection) -> Result<()> {
    c.execute("CREATE TABLE s (id INT PRIMARY KEY, v TEXT NOT NULL); CREATE TABLE other (id INT PRIMARY KEY)").await?;
    let prepared = c.prepare(AssertSqlSafe("SELECT id, v FROM s WHERE id = $1").into_sql_str()).await?;
    let columns: Vec<_> = prepared.columns().iter().map(|column| (column.name(), column.type_info().name())).collect();
    assert_eq!(columns, [("id", "INT4"), ("v", "TEXT")]);
    let (ids, texts): (Vec<i32>, Vec<String>) = (0..1000).map(|id| (id, format!("row {id}"))).unzip();
    for (id, text) in ids.iter().zip(&texts) {
        sqlx::query("INSERT INTO s VALUES ($1, $2)").bind(id).bind(text).execute(&mut *c).await?;
    }
    let found: Vec<i32> =
        sqlx::query_scalar("SELECT id FROM s WHERE id = ANY($1) ORDER BY id").bind(&[3, 1, 5000][..]).fetch_all(&mut *c).await?;
    assert_eq!(found, [1, 3]);
    let row = sqlx::query("UPDATE s SET v = $1 WHERE id = $2 RETURNING id, v").bind("new").bind(7).fetch_one(&mut *c).await?;
    assert_eq!((row.get::<i32, _>("id"), row.get::<&str, _>(1)), (7, "new"));
    Ok(())
}

async fn transactions(c: &mut PgConnection) -> Result<()> {
    let mut transaction = c.begin().await?;
    transaction.execute("INSERT INTO s VALUES (2000, 'x')").await?;
    let mut inner = transaction.begin().await?;
    assert_eq!(code(inner.execute("INSERT INTO s VALUES (2000, 'y')").await), "23505");
    assert_eq!(code(inner.execute("SELECT 1").await), "25P02");
    inner.rollback().await?;
    transaction.execute("INSERT INTO s VALUES (2001, 'z')").await?;
    transaction.commit().await?;
    let mut dropped = c.begin().await?;
    dropped.execute("DELETE FROM s").await?;
    drop(dropped);
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM s").fetch_one(&mut *c).await?;
    assert_eq!(count, 1002);
    for (sql, expected) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("INSERT INTO s VALUES (1, NULL)", "23502"),
        ("SELECT 1 / 0", "22012"),
    ] {
        assert_eq!(code(c.execute(sql).await), expected, "{sql}");
    }
    let error = c.execute("INSERT INTO s VALUES (1, 'again')").await.err().and_then(|error| error.into_database_error());
    let error = error.ok_or("an error of the server")?;
    assert!(error.is_unique_violation() && error.table() == Some("s"));
    Ok(())
}

async fn streams_and_copies(c: &mut PgConnection) -> Result<()> {
    let mut sum = 0;
    {
        let mut rows = sqlx::query_scalar::<_, i64>("SELECT a FROM generate_series(1, 200000) g (a)").fetch(&mut *c);
        while let Some(number) = rows.try_next().await? {
            sum += number;
        }
    }
    assert_eq!(sum, 200_000_i64 * 200_001 / 2);
    {
        // A stream that is dropped early leaves the connection usable.
        let mut rows = sqlx::query_scalar::<_, i64>("SELECT a FROM generate_series(1, 200000) g (a)").fetch(&mut *c);
        assert_eq!(rows.try_next().await?, Some(1));
    }
    let mut copy = c.copy_in_raw("COPY other FROM STDIN").await?;
    copy.send("1\n2\n3\n".as_bytes()).await?;
    assert_eq!(copy.finish().await?, 3);
    let mut copy = c.copy_in_raw("COPY other FROM STDIN").await?;
    copy.send("4\n".as_bytes()).await?;
    copy.abort("changed my mind").await?;
    let copied: Vec<_> = c.copy_out_raw("COPY (SELECT id FROM other ORDER BY id) TO STDOUT").await?.try_collect().await?;
    assert_eq!(copied.concat(), b"1\n2\n3\n");
    Ok(())
}

async fn pools() -> Result<()> {
    let pool = PgPoolOptions::new().max_connections(8).connect_with(options()?).await?;
    let tasks: Vec<_> = (0..200_i64)
        .map(|i| {
            let pool = pool.clone();
            tokio::spawn(async move { sqlx::query_scalar::<_, i64>("SELECT $1::bigint + 1").bind(i).fetch_one(&pool).await })
        })
        .collect();
    for (i, task) in (0..).zip(tasks) {
        assert_eq!(task.await??, i + 1);
    }
    pool.close().await;
    // A connection that is dropped during a statement ends the statement.
    let mut slow = options()?.connect().await?;
    let endless = slow.execute("SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)");
    assert!(tokio::time::timeout(Duration::from_millis(300), endless).await.is_err());
    Ok(())
}

async fn migrations(c: &mut PgConnection) -> Result<()> {
    let folder = std::path::Path::new("migrations");
    for _ in 0..2 {
        let migrator = sqlx::migrate::Migrator::new(folder).await?;
        migrator.run_direct(None, &mut *c, false).await?;
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM migrated").fetch_one(c).await?;
    assert_eq!(count, 2);
    Ok(())
}

/// The options in the environment.
fn options() -> Result<PgConnectOptions> {
    Ok(PgConnectOptions::new())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut connection = options()?.connect().await?;
    for name in ["values", "statements", "transactions and errors", "streams and COPY", "pools", "migrations", "wrong password"] {
        match name {
            "values" => values(&mut connection).await?,
            "statements" => statements(&mut connection).await?,
            "transactions and errors" => transactions(&mut connection).await?,
            "streams and COPY" => streams_and_copies(&mut connection).await?,
            "pools" => pools().await?,
            "migrations" => migrations(&mut connection).await?,
            _ => assert_eq!(code(options()?.password("wrong").connect().await), "28P01"),
        }
        println!("ok {name}");
    }
    connection.close().await?;
    Ok(())
}

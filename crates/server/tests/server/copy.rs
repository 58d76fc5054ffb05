//! COPY FROM STDIN and COPY TO STDOUT.

use crate::support::{Served, code};
use bytes::Bytes;
use futures::{SinkExt, TryStreamExt};
use tokio_postgres::Client;
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b DECIMAL(8,2), c BOOLEAN, d BIGINT[])";

async fn copy_in(client: &Client, sql: &str, pieces: &[&str]) -> std::result::Result<u64, tokio_postgres::Error> {
    let sink = client.copy_in(sql).await?;
    let mut sink = std::pin::pin!(sink);
    for piece in pieces {
        sink.send(Bytes::copy_from_slice(piece.as_bytes())).await?;
    }
    sink.finish().await
}

async fn copy_out(client: &Client, sql: &str) -> Result<String> {
    let pieces: Vec<Bytes> = client.copy_out(sql).await?.try_collect().await?;
    Ok(String::from_utf8(pieces.concat())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn text() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute(TABLE).await?;
    let rows = "1\ta\\tb\t1.50\tt\t{1,NULL}\n2\t\\N\t\\N\t\\N\t\\N\n3\t\t-2\tfalse\t{}\n";
    // In pieces of one byte: they end anywhere in a row.
    let bytes: Vec<String> = rows.chars().map(String::from).collect();
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    assert_eq!(copy_in(&client, "COPY t FROM STDIN", &bytes).await?, 3);
    let expected = "1\ta\\tb\t1.50\tt\t{1,NULL}\n2\t\\N\t\\N\t\\N\t\\N\n3\t\t-2.00\tf\t{}\n";
    assert_eq!(copy_out(&client, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT").await?, expected);
    assert_eq!(copy_out(&client, "COPY t (id, c) TO STDOUT (DELIMITER '|', NULL '-')").await?, "1|t\n2|-\n3|f\n");
    // Some columns.
    assert_eq!(copy_in(&client, "COPY t (a, id) FROM STDIN", &["x\t4\n", "y\t5"]).await?, 2);
    let row = client.query_one("SELECT a FROM t WHERE id = 5", &[]).await?;
    assert_eq!(row.get::<_, &str>(0), "y");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn csv() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute(TABLE).await?;
    let rows = "id,a,b,c,d\n1,\"x,\"\"y\"\"\n\",1.5,t,\"{1,2}\"\n2,,,,\n3,\"\",0,f,{}\n";
    assert_eq!(copy_in(&client, "COPY t FROM STDIN WITH (FORMAT csv, HEADER)", &[rows]).await?, 3);
    let expected = "id,a,b,c,d\n1,\"x,\"\"y\"\"\n\",1.50,t,\"{1,2}\"\n2,,,,\n3,\"\",0.00,f,{}\n";
    assert_eq!(copy_out(&client, "COPY t TO STDOUT CSV HEADER").await?, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn binary() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE b (id BIGINT PRIMARY KEY, a TEXT, c DOUBLE PRECISION, d BYTEA)").await?;
    let types = [Type::INT8, Type::TEXT, Type::FLOAT8, Type::BYTEA];
    let writer = BinaryCopyInWriter::new(client.copy_in("COPY b FROM STDIN BINARY").await?, &types);
    let mut writer = std::pin::pin!(writer);
    for id in 0..20_000_i64 {
        let text = (id % 3 > 0).then(|| format!("row {id}"));
        writer.as_mut().write(&[&id, &text, &(id as f64 / 2.0), &Some(id.to_be_bytes().as_slice())]).await?;
    }
    assert_eq!(writer.finish().await?, 20_000);
    let rows = BinaryCopyOutStream::new(client.copy_out("COPY b TO STDOUT (FORMAT binary)").await?, &types);
    let rows: Vec<_> = rows.try_collect().await?;
    assert_eq!(rows.len(), 20_000);
    for (id, row) in rows.iter().enumerate() {
        let expected = (!id.is_multiple_of(3)).then(|| format!("row {id}"));
        assert_eq!((row.get::<i64>(0), row.get::<Option<String>>(1)), (id as i64, expected));
        assert_eq!((row.get::<f64>(2), row.get::<&[u8]>(3)), (id as f64 / 2.0, (id as i64).to_be_bytes().as_slice()));
    }
    Ok(())
}

/// A failed COPY changes nothing, and does not close the connection.
#[tokio::test(flavor = "multi_thread")]
async fn errors() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute(TABLE).await?;
    let many = "7\tx\t1\tt\t{}\n".repeat(100_000);
    for (sql, rows, expected) in [
        ("COPY t FROM STDIN", "1\ta\n", SqlState::BAD_COPY_FILE_FORMAT),
        ("COPY t FROM STDIN", "1\ta\t1\tt\t{}\textra\n", SqlState::BAD_COPY_FILE_FORMAT),
        ("COPY t FROM STDIN", "x\ta\t1\tt\t{}\n", SqlState::INVALID_TEXT_REPRESENTATION),
        ("COPY t FROM STDIN", many.as_str(), SqlState::UNIQUE_VIOLATION),
        ("COPY t FROM STDIN CSV", "1,\"a\n", SqlState::BAD_COPY_FILE_FORMAT),
        ("COPY t FROM STDIN BINARY", "no signature", SqlState::BAD_COPY_FILE_FORMAT),
    ] {
        assert_eq!(code(copy_in(&client, sql, &[rows]).await), expected, "{sql}");
        assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 0);
    }
    for (sql, expected) in [
        ("COPY nix FROM STDIN", SqlState::UNDEFINED_TABLE),
        ("COPY t (nix) FROM STDIN", SqlState::UNDEFINED_COLUMN),
        ("COPY t FROM STDIN (FORMAT xml)", SqlState::INVALID_PARAMETER_VALUE),
        ("COPY t FROM STDIN (COLOUR red)", SqlState::SYNTAX_ERROR),
        ("COPY t FROM STDIN garbage", SqlState::SYNTAX_ERROR),
    ] {
        assert_eq!(code(client.copy_in::<_, Bytes>(sql).await.map(drop)), expected, "{sql}");
    }
    // The client gives up: dropping the sink sends CopyFail.
    {
        let mut sink = std::pin::pin!(client.copy_in("COPY t FROM STDIN").await?);
        sink.send(Bytes::from_static(b"1\tx\t1\tt\t{}\n")).await?;
    }
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn in_transactions() -> Result {
    let served = Served::start().await;
    let mut client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id INTEGER)").await?;
    for (commits, expected) in [(false, 0), (true, 3)] {
        let transaction = client.transaction().await?;
        let mut sink = Box::pin(transaction.copy_in("COPY t FROM STDIN").await?);
        sink.send(Bytes::from_static(b"1\n2\n3\n")).await?;
        assert_eq!(sink.as_mut().finish().await?, 3);
        if commits {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), expected);
    }
    Ok(())
}

/// Files of the server are refused, unless their directory is permitted.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_server() -> Result {
    let directory = tempfile::tempdir()?;
    let allowed = directory.path().join("allowed");
    std::fs::create_dir(&allowed)?;
    let served = Served::start().await;
    let permitting = Served::start_with(|options| {
        options.files = keyaki::FileAccess::Within(vec![allowed.clone()]);
    })
    .await;
    let (client, permitted) = (served.connect().await, permitting.connect().await);
    for client in [&client, &permitted] {
        client.batch_execute("CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1)").await?;
    }
    let (inside, outside) = (allowed.join("t.csv"), directory.path().join("t.csv"));
    let (inside, outside) = (inside.display(), outside.display());
    permitted.batch_execute(&format!("COPY t TO '{inside}'")).await?;
    for (client, path) in [(&client, &inside), (&permitted, &outside)] {
        for sql in [
            format!("COPY t TO '{path}'"),
            format!("COPY t FROM '{path}'"),
            format!("SELECT * FROM read_csv('{path}')"),
            format!("SELECT * FROM '{path}'"),
            format!("DESCRIBE '{path}'"),
            format!("BACKUP DATABASE TO '{path}'"),
            format!("EXPORT DATABASE '{path}'"),
            format!("IMPORT DATABASE '{path}'"),
        ] {
            assert_eq!(code(client.batch_execute(&sql).await), SqlState::INSUFFICIENT_PRIVILEGE, "{sql}");
        }
    }
    let row = permitted.query_one(&format!("SELECT count(*) FROM read_csv('{inside}')"), &[]).await?;
    assert_eq!(row.get::<_, i64>(0), 1);
    Ok(())
}

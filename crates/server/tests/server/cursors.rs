//! Cursors of SQL, through both protocols.

use crate::support::raw::{Raw, message, startup};
use crate::support::{Served, code};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The values of the first column, and the number of rows in the tag.
fn texts(messages: &[SimpleQueryMessage]) -> (Vec<&str>, u64) {
    let (mut texts, mut rows) = (Vec::new(), 0);
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => texts.push(row.get(0).unwrap_or("NULL")),
            SimpleQueryMessage::CommandComplete(count) => rows = *count,
            _ => {}
        }
    }
    (texts, rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_of_transactions() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    assert_eq!(code(client.batch_execute("DECLARE c CURSOR FOR SELECT 1").await), SqlState::NO_ACTIVE_SQL_TRANSACTION);
    client.batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT a FROM generate_series(1, 1000000) g (a)").await?;
    assert_eq!(texts(&client.simple_query("FETCH 2 FROM c").await?), (vec!["1", "2"], 2));
    assert_eq!(texts(&client.simple_query("MOVE 10 IN c").await?).1, 10);
    assert_eq!(texts(&client.simple_query("FETCH c").await?), (vec!["13"], 1));
    // Rows are described before FETCH is executed.
    let statement = client.prepare("FETCH FORWARD 3 FROM c").await?;
    assert_eq!(statement.columns().iter().map(|column| column.name()).collect::<Vec<_>>(), ["a"]);
    let rows = client.query(&statement, &[]).await?;
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [14, 15, 16]);
    let rest = client.query("FETCH ALL FROM c", &[]).await?;
    assert_eq!(rest.len(), 1_000_000 - 16);
    let duplicate = client.batch_execute("SAVEPOINT s; DECLARE c CURSOR FOR SELECT 1").await;
    assert_eq!(code(duplicate), SqlState::DUPLICATE_CURSOR);
    assert_eq!(code(client.batch_execute("FETCH c").await), SqlState::IN_FAILED_SQL_TRANSACTION);
    let backward = client.batch_execute("ROLLBACK TO s; FETCH PRIOR FROM c").await;
    assert_eq!(code(backward), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    client.batch_execute("ROLLBACK").await?;
    assert_eq!(code(client.batch_execute("FETCH c").await), SqlState::INVALID_CURSOR_NAME);
    // A text of several statements is a transaction.
    let messages = client.simple_query("DECLARE c CURSOR FOR SELECT 7; FETCH c").await?;
    assert_eq!(texts(&messages).0, ["7"]);
    assert_eq!(code(client.batch_execute("CLOSE c").await), SqlState::INVALID_CURSOR_NAME);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_with_hold_and_parameters() -> Result {
    let served = Served::start().await;
    let mut client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)").await?;
    client.batch_execute("INSERT INTO t SELECT a, 'v' || a FROM generate_series(1, 10) g (a)").await?;
    let transaction = client.transaction().await?;
    let sql = "DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE id > $1 AND v <> $2 ORDER BY id";
    let statement = transaction.prepare(sql).await?;
    assert_eq!(statement.columns().len(), 0);
    transaction.execute(&statement, &[&5_i64, &"v8"]).await?;
    transaction.execute("DELETE FROM t WHERE id = 10", &[]).await?;
    transaction.commit().await?;
    let ids = async |sql: &str| -> Result<Vec<i64>> {
        Ok(client.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
    };
    assert_eq!(ids("FETCH 3 FROM c").await?, [6, 7, 9]);
    assert_eq!(ids("FETCH ALL FROM c").await?, [10]);
    assert_eq!(ids("FETCH BACKWARD 2 FROM c").await?, [10, 9]);
    let known = client.query_one("SELECT statement, is_holdable FROM pg_cursors WHERE name = 'c'", &[]).await?;
    assert!(known.get::<_, &str>(0).starts_with("DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT") && known.get(1));
    client.batch_execute("DISCARD ALL").await?;
    assert_eq!(code(client.query("FETCH 1 FROM c", &[]).await), SqlState::INVALID_CURSOR_NAME);
    Ok(())
}

/// Statements of EXECUTE have the columns of their prepared statement.
#[tokio::test(flavor = "multi_thread")]
async fn execute_is_described() -> Result {
    let served = Served::start().await;
    let client = served.connect().await;
    client.batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'one')").await?;
    client.batch_execute("PREPARE q (BIGINT) AS SELECT v, id FROM t WHERE id = $1").await?;
    client.batch_execute("PREPARE i (BIGINT) AS INSERT INTO t VALUES ($1, 'new') RETURNING v").await?;
    let names = async |sql: &str| -> Result<Vec<String>> {
        Ok(client.prepare(sql).await?.columns().iter().map(|column| column.name().to_string()).collect())
    };
    assert_eq!(names("EXECUTE q (1)").await?, ["v", "id"]);
    assert_eq!(names("EXECUTE i (2)").await?, ["v"]);
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await?.get::<_, i64>(0), 1);
    assert_eq!(client.query_one("EXECUTE q (1)", &[]).await?.get::<_, &str>(0), "one");
    // The name has another meaning now.
    client.batch_execute("DEALLOCATE q; PREPARE q AS SELECT 7::BIGINT AS seven").await?;
    assert_eq!(client.query_one("EXECUTE q", &[]).await?.get::<_, i64>("seven"), 7);
    assert_eq!(names("EXECUTE missing").await?, Vec::<String>::new());
    assert_eq!(code(client.query("EXECUTE missing", &[]).await), SqlState::INVALID_SQL_STATEMENT_NAME);
    Ok(())
}

/// Sends requests and returns the types of the answers up to ReadyForQuery, with the bodies.
async fn answers(raw: &mut Raw, requests: &[Vec<u8>]) -> Vec<(char, Vec<u8>)> {
    raw.send(&requests.concat()).await;
    let mut answers = Vec::new();
    while let Some((kind, body)) = raw.receive().await {
        answers.push((char::from(kind), body));
        if kind == b'Z' {
            break;
        }
    }
    answers
}

fn kinds(answers: &[(char, Vec<u8>)]) -> String {
    answers.iter().map(|(kind, _)| *kind).collect()
}

/// As named cursors of drivers: portals with the name of a cursor are described, executed and closed.
#[tokio::test(flavor = "multi_thread")]
async fn cursors_are_portals() {
    let served = Served::start().await;
    let mut raw = Raw::connect(served.address).await;
    answers(&mut raw, &[startup("me")]).await;
    let query = |text: &str| message(b'Q', format!("{text}\0").as_bytes());
    let declare = "BEGIN; DECLARE \"C 1\" BINARY CURSOR FOR SELECT a::INT AS n FROM generate_series(1, 5) g (a)";
    assert_eq!(kinds(&answers(&mut raw, &[query(declare)]).await), "CCZ");
    let (describe, sync) = (message(b'D', b"PC 1\0"), message(b'S', b""));
    let execute = |rows: u8| message(b'E', &[b"C 1\0".as_slice(), &[0, 0, 0, rows]].concat());
    let described = answers(&mut raw, &[describe.clone(), execute(2), sync.clone()]).await;
    assert_eq!(kinds(&described), "TDDsZ");
    // The format of the only column is binary, as are the values.
    assert_eq!(described[0].1[described[0].1.len() - 2..], [0, 1]);
    assert_eq!(described[1].1, [0, 1, 0, 0, 0, 4, 0, 0, 0, 1]);
    let fetched = answers(&mut raw, &[query("FETCH \"C 1\"")]).await;
    assert_eq!(kinds(&fetched), "TDCZ");
    assert_eq!((&fetched[1].1[6..], fetched[2].1.as_slice()), ([0, 0, 0, 3].as_slice(), b"FETCH 1\0".as_slice()));
    let rest = answers(&mut raw, &[execute(0), sync.clone()]).await;
    assert_eq!((kinds(&rest).as_str(), rest[2].1.as_slice()), ("DDCZ", b"SELECT 2\0".as_slice()));
    let missing = answers(&mut raw, &[message(b'C', b"PC 1\0"), describe, sync.clone()]).await;
    assert_eq!(kinds(&missing), "3EZ");
    answers(&mut raw, &[query("ROLLBACK")]).await;
    // The name is taken.
    answers(&mut raw, &[query(declare)]).await;
    let parse = message(b'P', b"\0SELECT 1\0\0\0");
    let bind = message(b'B', b"C 1\0\0\0\0\0\0\0\0");
    let refused = answers(&mut raw, &[parse, bind, sync]).await;
    assert_eq!(kinds(&refused), "1EZ");
    assert!(refused[1].1.windows(6).any(|field| field == b"C42P03"));
}

//! Values in prepared statements: overflow, rounding, zeros and time zones, on the short path and without it.

use keyaki::{Database, Outcome, Session, Value};

use super::{options, query, rows};

async fn prepared(session: &Session, sql: &str, values: &[Value]) -> Result<Vec<String>, String> {
    let prepared = session.prepare(sql).await.map_err(|error| error.to_string())?;
    let outcome = prepared.query(session, values).await.map_err(|error| error.to_string())?;
    match outcome {
        Outcome::Done { .. } => Ok(Vec::new()),
        outcome => Ok(rows(&outcome.collect().await.map_err(|error| error.to_string())?)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arithmetic_and_casts_of_parameters() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::open(dir.path().join("db"), options()).expect("a database");
    let session = database.session();
    session.execute("CREATE TABLE v (id BIGINT PRIMARY KEY, i INT, f DOUBLE PRECISION)").await.expect("a table");
    session.execute("INSERT INTO v VALUES (1, 2147483647, 0.0), (2, 5, 2.5)").await.expect("rows");
    for mode in ["on", "off"] {
        session.execute(&format!("SET keyaki.short_path = '{mode}'")).await.expect("a setting");
        let id = |id| Value::Integer(id);
        let run = async |sql: &str, values: &[Value]| prepared(&session, sql, values).await;
        let out_of_range = Err("bigint out of range".to_string());
        assert_eq!(run("SELECT id + $1 FROM v WHERE id = $2", &[id(i64::MAX), id(1)]).await, out_of_range);
        assert_eq!(run("SELECT sum(id + $1) FROM v WHERE id = $2", &[id(i64::MAX), id(1)]).await, out_of_range);
        assert_eq!(run("UPDATE v SET id = id + $1 WHERE id = $2", &[id(i64::MAX), id(1)]).await, out_of_range);
        assert_eq!(run("SELECT id FROM v WHERE f = $1", &[Value::Float(-0.0)]).await, Ok(vec!["1".into()]));
        assert_eq!(run("SELECT f::int FROM v WHERE id = $1", &[id(2)]).await, Ok(vec!["2".into()]));
        let decimal = Value::Decimal { unscaled: 25, scale: 1 };
        run("UPDATE v SET i = $1 WHERE id = 2", &[decimal]).await.expect("a rounded decimal");
        assert_eq!(query(&session, "SELECT i FROM v WHERE id = 2").await, ["3"]);
        run("UPDATE v SET i = $1 WHERE id = 2", &[Value::Float(2.5)]).await.expect("a rounded float");
        assert_eq!(query(&session, "SELECT i FROM v WHERE id = 2").await, ["2"]);
        run("UPDATE v SET f = $1 WHERE id = 1", &[Value::Float(-0.0)]).await.expect("a zero");
        assert_eq!(query(&session, "SELECT f FROM v WHERE id = 1").await, ["0.0"]);
        let error = run("UPDATE v SET f = $1 WHERE id = 1", &[Value::Text("1e400".into())]).await.unwrap_err();
        assert!(error.contains("out of range for type double precision"), "{error}");
    }
}

/// Sessions share cached plans only if they have the same time zone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_with_different_time_zones() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::open(dir.path().join("db"), options()).expect("a database");
    let sessions = [database.session(), database.session()];
    sessions[0].execute("CREATE TABLE z (id BIGINT PRIMARY KEY, t TIMESTAMPTZ)").await.expect("a table");
    sessions[1].execute("SET TIME ZONE 'Asia/Tokyo'").await.expect("a time zone");
    let statement = sessions[0].prepare("SELECT t, t::text FROM z WHERE id = $1").await.expect("a statement");
    for round in 0..3 {
        for (i, session) in sessions.iter().enumerate() {
            let id = 2 * round + i as i64;
            session.execute(&format!("INSERT INTO z VALUES ({id}, '2024-01-01 09:00:00')")).await.expect("a row");
            let expected = [
                ["2024-01-01T09:00:00Z|2024-01-01 09:00:00+00", "2024-01-01T18:00:00+09:00|2024-01-01 18:00:00+09"],
                ["2024-01-01T00:00:00Z|2024-01-01 00:00:00+00", "2024-01-01T09:00:00+09:00|2024-01-01 09:00:00+09"],
            ];
            for (reader, expected) in sessions.iter().zip(expected[i]) {
                let text = format!("SELECT t, t::text FROM z WHERE id = {id}");
                assert_eq!(query(reader, &text).await, [expected], "{text}");
                let outcome = statement.query(reader, &[Value::Integer(id)]).await.expect("a row");
                assert_eq!(rows(&outcome.collect().await.expect("rows")), [expected]);
            }
        }
    }
    let count = "SELECT count(*) FROM z WHERE t = '2024-01-01 09:00:00'";
    for _ in 0..3 {
        assert_eq!(query(&sessions[0], count).await, ["3"]);
        assert_eq!(query(&sessions[1], count).await, ["3"]);
    }
}

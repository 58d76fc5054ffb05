//! Prepared statements and the short path: the same results and errors as on the long path, in every state of the
//! trees.

mod forms;
mod values;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use keyaki::{Database, Error, Options, Outcome, Prepared, Session, Value};

const TABLES: &str = "
    CREATE TABLE t (
        a INTEGER, b TEXT, c DECIMAL(8,2), d DATE NOT NULL, id BIGINT PRIMARY KEY, e DOUBLE PRECISION, f TIMESTAMP,
        g VARCHAR(5)
    );
    CREATE INDEX t_b ON t (b);
    CREATE INDEX t_ad ON t (a, d) INCLUDE (c);
    CREATE UNIQUE INDEX t_f ON t (f);
    CREATE TABLE h (x INTEGER, y TEXT);
    CREATE INDEX h_x ON h (x);
    CREATE TABLE two (p SMALLINT, q TEXT, r BIGINT, PRIMARY KEY (p, q));
";

/// Statements with the kinds of their parameters: `i` a small integer, `k` a key, `t` a text, `d` a date, `n` a decimal,
/// `s` a timestamp, `e` a float.
const STATEMENTS: &[(&str, &str)] = &[
    ("INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, 'x')", "itndkes"),
    ("INSERT INTO t (id, d, a) VALUES ($1, $2, $3), ($4, $2, NULL)", "kdik"),
    ("INSERT INTO h VALUES ($1, $2)", "it"),
    ("INSERT INTO two VALUES ($1, $2, 5)", "it"),
    ("SELECT * FROM t WHERE id = $1", "k"),
    ("SELECT b, c + 1 AS more, a IS NULL FROM t WHERE id = $1", "k"),
    ("SELECT id, b FROM t WHERE b = $1 ORDER BY id", "t"),
    ("SELECT c, id FROM t WHERE a = $1 AND d = $2 ORDER BY id", "id"),
    ("SELECT c, a FROM t WHERE a = $1 ORDER BY c DESC, id LIMIT 3", "i"),
    ("SELECT id, e * 2 FROM t WHERE a = $1 AND b <> $2 AND c > $3 ORDER BY 1 OFFSET 1", "itn"),
    ("SELECT u.id FROM t AS u WHERE u.f = $1", "s"),
    (
        "WITH r AS (SELECT id, a, random() AS x FROM t WHERE id > $1)
         SELECT count(*), sum(s.id) FROM r s JOIN r u ON s.x = u.x AND s.id = u.id WHERE s.a = $2",
        "ki",
    ),
    ("SELECT id FROM t WHERE a <> $1 AND 100 / (a - $1) > 5 ORDER BY id", "i"),
    ("SELECT id FROM t WHERE a = $1 AND a = $2 ORDER BY id", "ii"),
    ("SELECT y, x FROM h WHERE x = $1 ORDER BY y", "i"),
    ("SELECT r, q FROM two WHERE p = $1 AND q = $2", "it"),
    ("UPDATE h SET y = $1 FROM two WHERE two.p = h.x AND h.x = $2 RETURNING h.x, y, two.q, r + 1 AS next", "ti"),
    ("DELETE FROM h USING two WHERE two.p = h.x AND h.y = $1 RETURNING two.r, x", "t"),
    ("SELECT q FROM two WHERE p = $1 ORDER BY q DESC", "i"),
    ("SELECT count(*), sum(c) FROM t WHERE a = $1", "i"),
    ("SELECT id FROM t WHERE id IN ($1, $2, $3) ORDER BY id", "kkk"),
    ("SELECT id FROM t WHERE id > $1 AND b LIKE $2 ORDER BY id LIMIT 5", "kt"),
    ("SELECT id, b FROM t WHERE id BETWEEN $1 AND $2 ORDER BY id", "kk"),
    ("SELECT id, c FROM t WHERE a = $1 AND d > $2 ORDER BY id", "id"),
    ("SELECT id, a FROM t WHERE a < $1 ORDER BY id", "i"),
    ("SELECT * FROM t WHERE id > $1 ORDER BY id LIMIT 3", "k"),
    ("SELECT id, f FROM t WHERE f < $1 ORDER BY f DESC LIMIT 4", "s"),
    ("SELECT p, q FROM two WHERE p = $1 AND q > $2 ORDER BY q LIMIT 2", "it"),
    ("SELECT id, b FROM t WHERE b IN ($1, $2) ORDER BY id", "tt"),
    ("SELECT id FROM t WHERE id IN ($1, $2) AND id IN (1, 2, 3, 5, 8) ORDER BY id", "kk"),
    ("SELECT id FROM t WHERE a NOT IN ($1, $2, 5, 7) OR a NOT IN (1, 2, 3, 4) ORDER BY id", "ii"),
    ("UPDATE t SET g = $1 WHERE id IN ($2, $3, $2)", "tkk"),
    ("DELETE FROM t WHERE id IN ($1, $2, $3, $1)", "kkk"),
    ("SELECT max(c), avg(a), count(b), min(f) FROM t WHERE a = $1 AND d >= $2", "id"),
    ("UPDATE t SET e = $1 WHERE id > $2 AND id <= $3", "ekk"),
    ("UPDATE t SET a = $1 WHERE a = $2 AND d < $3", "iid"),
    ("DELETE FROM t WHERE id BETWEEN $1 AND $1", "k"),
    ("DELETE FROM two WHERE p = $1 AND q >= $2", "it"),
    ("UPDATE t SET a = a + 1, b = $1 WHERE id = $2", "tk"),
    ("UPDATE t SET g = $1 WHERE id = $2", "tk"),
    ("UPDATE t SET c = c * 2, e = $1 WHERE a = $2 AND c < 1000", "ei"),
    ("UPDATE t SET id = id + 1000 WHERE id = $1", "k"),
    ("UPDATE h SET x = x + 1 WHERE x = $1", "i"),
    ("UPDATE two SET r = r + $1 WHERE p = $2", "ii"),
    ("DELETE FROM t WHERE id = $1", "k"),
    ("DELETE FROM t WHERE b = $1 AND a = $2", "ti"),
    ("DELETE FROM h WHERE x = $1 AND y = $2", "it"),
    ("DELETE FROM two WHERE p = $1 AND q = $2", "it"),
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn value(&mut self, kind: u8) -> Value {
        if self.below(20) == 0 {
            return Value::Null;
        }
        match kind {
            b'i' => Value::Integer(self.below(8) as i64 - 2),
            b'k' => Value::Integer(self.below(60) as i64),
            b't' => Value::Text(["", "ab", "it's", "größe%", "more than twelve bytes"][self.below(5) as usize].into()),
            b'd' => Value::Date(self.below(4) as i32 + 19_000),
            b'n' => Value::Decimal { unscaled: self.below(100_000) as i128, scale: 2 },
            b's' => Value::Timestamp(self.below(40) as i64 * 1_000_001),
            _ => Value::Float(self.below(1000) as f64 / 8.0 - 20.0),
        }
    }
}

/// The value as an SQL literal.
fn literal(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Date(_) | Value::Timestamp(_) => format!("'{value}'"),
        other => other.to_string(),
    }
}

fn text_of(sql: &str, values: &[Value]) -> String {
    let replace = |sql: String, (i, value): (usize, &Value)| sql.replace(&format!("${}", i + 1), &literal(value));
    values.iter().enumerate().fold(sql.to_string(), replace)
}

fn rows(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|"));
        }
    }
    rows
}

/// The result in a comparable form: rows, the number of changed rows, or the error.
async fn shown(outcome: Result<Outcome, Error>) -> Vec<String> {
    let failed = |error: &Error| vec![format!("{} {}", error.sqlstate(), error.root())];
    match outcome {
        Err(error) => failed(&error),
        Ok(Outcome::Done { tag, rows }) => vec![format!("{tag} {rows:?}")],
        Ok(outcome) => match outcome.collect().await {
            Ok(batches) => rows(&batches),
            Err(error) => failed(&error),
        },
    }
}

async fn query(session: &Session, sql: &str) -> Vec<String> {
    shown(session.query(sql).await).await
}

async fn count_by_scan(session: &Session, table: &str) -> Vec<String> {
    session.execute("SET keyaki.join = 'scan'").await.unwrap();
    let counted = query(session, &format!("SELECT count(*) FROM {table}")).await;
    session.execute("RESET keyaki.join").await.unwrap();
    counted
}

/// Small buffers and nodes, so that flushes happen often.
fn options() -> Options {
    let store = keyaki_store::Options {
        buffer_bytes: 64 << 10,
        page_bytes: 4096,
        leaf_bytes: 32 << 10,
        fan_out: 4,
        node_buffer_bytes: 64 << 10,
        durability: keyaki::Durability::Off,
        ..keyaki_store::Options::default()
    };
    Options {
        store: Some(store),
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    }
}

/// One database executes prepared statements, one texts with the plan cache, one texts on the long path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_short_path_agrees_with_the_long_one() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["prepared", "cached", "long"].map(|name| dir.path().join(name));
    let setup = ["", "SET keyaki.plan_cache = 'always'", "SET keyaki.short_path = 'off'"];
    let open = async || {
        let mut sessions = Vec::new();
        for (path, setup) in paths.iter().zip(setup) {
            let session = Database::open(path, options()).unwrap().session();
            session.execute(setup).await.unwrap();
            sessions.push(session);
        }
        let mut statements: Vec<Prepared> = Vec::new();
        if !sessions[0].database().tables().is_empty() {
            for (sql, _) in STATEMENTS {
                statements.push(sessions[0].prepare(sql).await.unwrap());
            }
        }
        (sessions, statements)
    };
    let (sessions, _) = open().await;
    for session in &sessions {
        session.execute(TABLES).await.unwrap();
    }
    drop(sessions);
    let (mut sessions, mut statements) = open().await;
    let mut random = Random(7);
    let mut short = [0; 2];
    for round in 0..4000 {
        let number = match random.below(3) {
            0 => random.below(4),
            _ => random.below(STATEMENTS.len() as u64),
        } as usize;
        let (sql, kinds) = STATEMENTS[number];
        let values: Vec<Value> = kinds.bytes().map(|kind| random.value(kind)).collect();
        let text = text_of(sql, &values);
        let prepared = shown(statements[number].query(&sessions[0], &values).await).await;
        let cached = query(&sessions[1], &text).await;
        let long = query(&sessions[2], &text).await;
        assert_eq!(prepared, long, "round {round}, prepared: {text}");
        assert_eq!(cached, long, "round {round}, cached: {text}");
        match round % 400 {
            100 => {
                for session in &sessions {
                    session.execute("CHECKPOINT").await.unwrap();
                }
            }
            200 => {
                short = [0, 1].map(|i| short[i] + sessions[i].short_statements());
                drop(statements);
                drop(sessions);
                (sessions, statements) = open().await;
            }
            300 => {
                for table in ["t", "h", "two"] {
                    let sql = format!("SELECT count(*) FROM {table}");
                    let long = count_by_scan(&sessions[2], table).await;
                    for session in &sessions {
                        assert_eq!(query(session, &sql).await, long, "round {round}, {table}");
                        assert_eq!(count_by_scan(session, table).await, long, "round {round}, {table}");
                    }
                }
            }
            _ => {}
        }
    }
    for table in ["t", "h", "two"] {
        let sql = format!("SELECT * FROM {table} ORDER BY 1, 2, 3");
        let sql = if table == "h" { "SELECT * FROM h ORDER BY 1, 2".to_string() } else { sql };
        let long = query(&sessions[2], &sql).await;
        assert_eq!(query(&sessions[0], &sql).await, long);
        assert_eq!(query(&sessions[1], &sql).await, long);
    }
    short = [0, 1].map(|i| short[i] + sessions[i].short_statements());
    assert!(short[0] > 1500 && short[1] > 1500, "statements on the short path: {short:?}");
    assert_eq!(sessions[2].short_statements(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_described() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute(TABLES).await.unwrap();
    let types = |statement: &Prepared| -> Vec<String> {
        let shown = statement.parameters().iter();
        shown.map(|ty| ty.as_ref().map_or_else(|| "unknown".into(), |ty| ty.to_string())).collect()
    };
    let statement = session.prepare("SELECT b, c FROM t WHERE id = ? AND d > ?").await.unwrap();
    assert_eq!(types(&statement), ["Int64", "Date32"]);
    let columns: Vec<_> = statement.columns().unwrap().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(columns, ["b", "c"]);
    let statement = session.prepare("UPDATE t SET c = $2, g = $3 WHERE id = $1").await.unwrap();
    assert_eq!(types(&statement), ["Int64", "Decimal128(8, 2)", "Utf8View"]);
    assert!(statement.columns().is_none());
    let statement = session.prepare("SELECT $1").await.unwrap();
    assert_eq!(types(&statement), ["unknown"]);
    assert_eq!(shown(statement.query(&session, &[Value::Text("a".into())]).await).await, ["a"]);
    assert_eq!(shown(statement.query(&session, &[Value::Decimal { unscaled: 125, scale: 2 }]).await).await, ["1.25"]);
    for (wrong, state) in [("SELECT nothing FROM t WHERE id = $1", "42703"), ("SELECT 1 FROM nowhere", "42P01")] {
        assert_eq!(session.prepare(wrong).await.unwrap_err().sqlstate().code(), state);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_parameters_are_errors_and_leave_the_statement_usable() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute(TABLES).await.unwrap();
    let insert = session.prepare("INSERT INTO two VALUES ($1, $2, $3)").await.unwrap();
    let values = [Value::Integer(1), Value::Text("a".into()), Value::Integer(2)];
    let error = insert.query(&session, &values[..2]).await.unwrap_err();
    assert_eq!(error.to_string(), "the statement has 3 parameters, but 2 values were given");
    let error = insert.query(&session, &[Value::Integer(70_000), values[1].clone(), Value::Null]).await.unwrap_err();
    assert_eq!(error.to_string(), "parameter $1: value \"70000\" is out of range for type smallint");
    let error = insert.query(&session, &[Value::Boolean(true), values[1].clone(), Value::Null]).await.unwrap_err();
    assert_eq!(error.sqlstate().code(), "42804");
    let error = insert.query(&session, &[Value::Null, values[1].clone(), Value::Null]).await.unwrap_err();
    assert_eq!(error.sqlstate().code(), "23502");
    insert.query(&session, &values).await.unwrap();
    let error = insert.query(&session, &values).await.unwrap_err();
    assert_eq!(error.sqlstate().code(), "23505");
    assert_eq!(query(&session, "SELECT * FROM two").await, ["1|a|2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_follow_changes_of_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT); CREATE INDEX t_a ON t (a)").await.unwrap();
    session.execute("INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'y')").await.unwrap();
    let by_a = session.prepare("SELECT id FROM t WHERE a = $1 ORDER BY id").await.unwrap();
    let run = async |value: Value| shown(by_a.query(&session, &[value]).await).await;
    let x = || Value::Text("x".into());
    assert_eq!(run(x()).await, ["1", "2"]);
    session.execute("DROP INDEX t_a").await.unwrap();
    assert_eq!(run(x()).await, ["1", "2"]);
    session.execute("CREATE INDEX t_a ON t (a)").await.unwrap();
    assert_eq!(run(x()).await, ["1", "2"]);
    session.execute("DROP TABLE t").await.unwrap();
    assert_eq!(run(x()).await, ["42P01 relation \"t\" does not exist"]);
    session.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a BIGINT); INSERT INTO t VALUES (7, 5)").await.unwrap();
    assert_eq!(run(Value::Integer(5)).await, ["7"]);
    assert!(run(x()).await[0].starts_with("22P02"));
    assert_eq!(query(&session, "SELECT id FROM t WHERE a = 5").await, ["7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frequent_values_take_the_long_path() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session
        .execute("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, b TEXT); CREATE INDEX t_a ON t (a)")
        .await
        .unwrap();
    session
        .execute(
            "INSERT INTO t SELECT value, CASE WHEN value < 5 THEN value ELSE -1 END, 'b' FROM generate_series(0, 4999)",
        )
        .await
        .unwrap();
    let statement = session.prepare("SELECT b FROM t WHERE a = $1").await.unwrap();
    for (value, rows) in [(3, 1), (-1, 4995), (4, 1), (77, 0)] {
        let before = session.short_statements();
        assert_eq!(shown(statement.query(&session, &[Value::Integer(value)]).await).await.len(), rows);
        assert_eq!(session.short_statements() - before, u64::from(rows < 100), "value {value}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_texts_take_the_short_path() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, b TEXT)").await.unwrap();
    for id in 0..10 {
        session.execute(&format!("INSERT INTO t VALUES ({id}, 'it''s {id}')")).await.unwrap();
        assert_eq!(query(&session, &format!("SELECT b FROM t WHERE id = {id};")).await, [format!("it's {id}")]);
    }
    // The first statement of each form takes the long path.
    assert_eq!(session.short_statements(), 18);
    let outcomes = session.execute("DELETE FROM t WHERE id = 1; DELETE FROM t WHERE id = 2").await.unwrap();
    assert_eq!(outcomes.len(), 2);
    assert_eq!(query(&session, "SELECT count(*) FROM t").await, ["8"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepare_execute_and_deallocate() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute(TABLES).await.unwrap();
    session.execute("PREPARE add (smallint, text) AS INSERT INTO two VALUES ($1, $2, $3)").await.unwrap();
    assert_eq!(query(&session, "EXECUTE add(1, 'a' || 'b', 2 + 3)").await, ["INSERT Some(1)"]);
    session.execute("PREPARE get AS SELECT r FROM two WHERE p = $1 AND q = $2").await.unwrap();
    assert_eq!(query(&session, "EXECUTE get(1, 'ab')").await, ["5"]);
    assert_eq!(
        query(&session, "EXECUTE get(1)").await,
        ["07001 the statement has 2 parameters, but 1 value was given"]
    );
    assert_eq!(query(&session, "PREPARE get AS SELECT 1").await, ["42P05 prepared statement \"get\" already exists"]);
    session.execute("DEALLOCATE get").await.unwrap();
    assert_eq!(query(&session, "EXECUTE get(1, 'ab')").await, ["26000 prepared statement \"get\" does not exist"]);
    session.execute("DEALLOCATE ALL").await.unwrap();
    assert!(query(&session, "EXECUTE add(1, 'a', 2)").await[0].starts_with("26000"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delimiters_can_be_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute("CREATE TABLE s (id INT, t TEXT)").await.unwrap();
    session.execute("INSERT INTO s VALUES (1, 'a'), (2, 'c'), (3, 'a'), (4, 'b')").await.unwrap();
    let prepare =
        "PREPARE joined AS SELECT string_agg(DISTINCT t, $1 ORDER BY t) || '/' || string_agg(t, $1 ORDER BY id) FROM s";
    session.execute(prepare).await.unwrap();
    assert_eq!(query(&session, "EXECUTE joined ('; ')").await, ["a; b; c/a; c; a; b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_and_large_values() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    session.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, b TEXT)").await.unwrap();
    session.execute("INSERT INTO t SELECT value, 'b' FROM generate_series(0, 29999)").await.unwrap();
    let list: Vec<String> = (1..=10_000).map(|i| format!("${i}")).collect();
    let statement = session.prepare(&format!("SELECT count(*) FROM t WHERE id IN ({})", list.join(","))).await.unwrap();
    let values: Vec<Value> = (0..10_000).map(|i| Value::Integer(i * 3)).collect();
    assert_eq!(shown(statement.query(&session, &values).await).await, ["10000"]);
    let insert = session.prepare("INSERT INTO t VALUES ($1, $2)").await.unwrap();
    let large = "x".repeat(40 << 20);
    let outcome = insert.query(&session, &[Value::Integer(-1), Value::Text(large.clone())]).await;
    assert_eq!(shown(outcome).await, ["INSERT Some(1)"]);
    assert_eq!(query(&session, "SELECT length(b) FROM t WHERE id = -1").await, [large.len().to_string()]);
    let too_large = insert.query(&session, &[Value::Integer(-2), Value::Text("x".repeat(65 << 20))]).await;
    assert_eq!(shown(too_large).await, ["54000 row of 68157441 bytes exceeds the maximum of 67108864 bytes"]);
}

/// A caller may move a future, for instance into a task. Those of the long path are boxed.
#[tokio::test]
async fn futures_of_statements_are_small() {
    let dir = tempfile::tempdir().unwrap();
    let session = Database::open(dir.path().join("db"), options()).unwrap().session();
    let statement = session.prepare("SELECT 1").await.unwrap();
    let sizes = [
        size_of_val(&session.query("SELECT 1")),
        size_of_val(&session.execute("SELECT 1")),
        size_of_val(&session.prepare("SELECT 1")),
        size_of_val(&statement.query(&session, &[])),
    ];
    assert!(sizes.iter().all(|&bytes| bytes <= 4096), "bytes of futures: {sizes:?}");
}

/// Upserts of one row take the short path, and mean the same as without it.
#[test]
fn upserts_are_short() {
    let connection = keyaki::Connection::open_temporary().unwrap();
    connection
        .execute("CREATE TABLE t (id INT PRIMARY KEY, u TEXT UNIQUE, n INT NOT NULL, v DECIMAL(6,2))", ())
        .unwrap();
    connection.execute("CREATE INDEX t_n ON t (n)", ()).unwrap();
    connection.execute("CREATE TABLE bag (k INT UNIQUE, n INT)", ()).unwrap();
    let count = |sql: &str| -> i64 { connection.query_row(sql, (), |row| row.get(0)).unwrap() };
    let short = |work: &mut dyn FnMut()| {
        let before = connection.session().short_statements();
        work();
        connection.session().short_statements() - before
    };
    let add = "INSERT INTO t (id, n, v) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n, v = excluded.v";
    let add = connection.prepare(add).unwrap();
    let ran = short(&mut || {
        for round in 0..3 {
            for id in 0..20 {
                assert_eq!(add.execute((id, round + 1, 1.5)).unwrap(), 1);
            }
        }
    });
    assert_eq!(ran, 60);
    assert_eq!(count("SELECT count(*) FROM t WHERE n = 6 AND v = 1.5"), 20);
    assert_eq!(count("SELECT count(*) FROM t WHERE n + 0 = 6"), 20);
    let by_text = "INSERT INTO t (id, u, n) VALUES ($1, $2, 0) ON CONFLICT (u) DO UPDATE SET n = 100 WHERE t.n < $1";
    let by_text = connection.prepare(by_text).unwrap();
    let ran = short(&mut || {
        assert_eq!(by_text.execute((50, "a")).unwrap(), 1);
        assert_eq!(by_text.execute((51, "a")).unwrap(), 1);
        assert_eq!(by_text.execute((51, "a")).unwrap(), 0);
        // NULL conflicts with nothing.
        assert_eq!(by_text.execute((52, None::<&str>)).unwrap(), 1);
        assert!(by_text.execute((52, None::<&str>)).is_err_and(|error| error.sqlstate().code() == "23505"));
    });
    assert!(ran >= 4, "{ran}");
    assert_eq!(count("SELECT n FROM t WHERE id = 50"), 100);
    let nothing = connection.prepare("INSERT INTO bag VALUES ($1, $2) ON CONFLICT (k) DO NOTHING").unwrap();
    let ran = short(&mut || {
        assert_eq!([(1, 1), (1, 2), (2, 3)].map(|row| nothing.execute(row).unwrap()), [1, 0, 1]);
    });
    assert_eq!(ran, 3);
    assert_eq!(count("SELECT sum(n) FROM bag"), 4);
    // As text, with literals.
    let ran = short(&mut || {
        for k in 0..10 {
            let sql = format!("INSERT INTO bag VALUES ({k}, 1) ON CONFLICT (k) DO UPDATE SET n = bag.n + EXCLUDED.n");
            connection.execute(&sql, ()).unwrap();
        }
    });
    assert!(ran >= 8, "{ran}");
    assert_eq!(count("SELECT sum(n) FROM bag"), 14);
    let error = connection.prepare("INSERT INTO bag VALUES ($1, 1) ON CONFLICT (k) DO UPDATE SET n = excluded.x");
    assert!(error.is_err() || error.unwrap().execute((1,)).is_err());
}

/// The current time is that of each execution, in the type and the time zone of the column.
#[test]
fn the_current_time_is_inserted_on_the_short_path() {
    let connection = keyaki::Connection::open_temporary().unwrap();
    connection
        .execute_batch(
            "SET timezone = 'Asia/Tokyo';
             CREATE TABLE event (id INT PRIMARY KEY, at TIMESTAMPTZ, local TIMESTAMP, day DATE, made TIMESTAMPTZ DEFAULT now(),
                 copy TIMESTAMPTZ AS (at) STORED, CHECK (at > '2020-01-01 00:00+00'))",
        )
        .unwrap();
    let insert = connection
        .prepare("INSERT INTO event (id, at, local, day) VALUES ($1, CURRENT_TIMESTAMP, now(), Now())")
        .unwrap();
    let before = connection.session().short_statements();
    for id in 1..=3 {
        assert_eq!(insert.execute((id,)).unwrap(), 1);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    connection.execute("INSERT INTO event VALUES (4, now(), now(), now())", ()).unwrap();
    connection.execute("INSERT INTO event VALUES (5, now(), LOCALTIMESTAMP, current_date)", ()).unwrap();
    assert!(connection.session().short_statements() - before >= 3);
    let count = |condition: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM event WHERE {condition}");
        connection.query_row(&sql, (), |row| row.get(0)).unwrap()
    };
    assert_eq!(count("at BETWEEN now() - INTERVAL '10 minutes' AND now()"), 5);
    assert_eq!(count("at = made AND copy = at AND day = at::DATE"), 5);
    assert_eq!(count("local = at AT TIME ZONE 'Asia/Tokyo'"), 5);
    let times: i64 = connection.query_row("SELECT count(DISTINCT at) FROM event", (), |row| row.get(0)).unwrap();
    assert_eq!(times, 5);
    // Several rows of one statement have one time, and a conflict keeps its own.
    connection
        .execute("INSERT INTO event (id, at) VALUES (6, now()), (7, now()), (8, now() - INTERVAL '1 hour')", ())
        .unwrap();
    connection.execute("INSERT INTO event (id, at) VALUES (9, now()), (10, now())", ()).unwrap();
    assert_eq!(count("id IN (9, 10) AND at = (SELECT max(at) FROM event)"), 2);
    let upsert = "INSERT INTO event (id, at) VALUES (9, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at";
    connection.execute(upsert, ()).unwrap();
    assert_eq!(count("id IN (9, 10) AND at = (SELECT max(at) FROM event)"), 1);
}

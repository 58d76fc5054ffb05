//! Statements and transactions whose changes do not fit into the memory of queries: they spill, and have the same effect as
//! in a large memory.

use std::path::Path;
use std::time::Duration;

use keyaki::{Connection, Error, Options};

/// Memory with 4 MiB for queries: changes spill above 1 MiB.
const SMALL: usize = 16 << 20;
const LARGE: usize = 1 << 30;

fn open(directory: &Path, memory_bytes: usize) -> Connection {
    let options = Options { memory_bytes: Some(memory_bytes), threads: Some(2), ..Options::default() };
    Connection::open_with(directory.join("db"), options).unwrap()
}

const TABLES: &str = "
    CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, kind TEXT, pad TEXT, CHECK (n > -1000000));
    CREATE INDEX t_kind ON t (kind, n);
    CREATE UNIQUE INDEX t_pad ON t (pad);
    CREATE TABLE parents (id BIGINT PRIMARY KEY);
    INSERT INTO parents SELECT value FROM generate_series(0, 99);
    CREATE TABLE children (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES parents, note TEXT);
    CREATE TABLE counters (id BIGINT PRIMARY KEY, n BIGINT);
    CREATE TABLE events (kind TEXT, day BIGINT, note TEXT);
    CREATE UNIQUE INDEX events_day ON events (day) WHERE day > 100;
    INSERT INTO t SELECT value * 2, value % 1000, 'kind ' || value % 7, 'pad of row ' || value * 2
        FROM generate_series(0, 7999)";

/// Statements whose effects are compared.
const CHANGES: [&str; 9] = [
    "INSERT INTO t SELECT value * 2 + 1, value % 500, 'kind ' || value % 11, 'pad of row ' || (value * 2 + 1)
        FROM generate_series(0, 24999)",
    "UPDATE t SET n = n + 1, kind = 'changed ' || kind WHERE id % 3 = 0",
    "DELETE FROM t WHERE kind = 'kind 5'",
    "INSERT INTO children SELECT value, value % 100, 'note ' || value FROM generate_series(1, 20000)",
    "UPDATE children SET parent = (parent + 1) % 100 WHERE id > 100",
    "UPDATE t SET n = n * 2",
    "DELETE FROM children WHERE id % 2 = 0",
    "CREATE TABLE made AS SELECT id, kind, n FROM t WHERE n > 300",
    "UPDATE made SET n = 0 WHERE kind LIKE 'changed%'",
];

/// Statements that join their rows with those of the table, and may name a row several times.
const UPSERTS: [&str; 15] = [
    "INSERT INTO t SELECT value, value % 300, 'upsert', 'pad of row ' || value FROM generate_series(5000, 29999)
        ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n, kind = 'changed ' || t.kind WHERE t.n < 700",
    "INSERT INTO t SELECT value % 40000, 1, 'first ' || value, 'pad of row ' || value % 40000
        FROM generate_series(0, 59999) ON CONFLICT DO NOTHING",
    "INSERT OR REPLACE INTO t SELECT value, 2, 'replaced', 'pad of row ' || (value * 7 % 20000)
        FROM generate_series(0, 19999) ORDER BY value",
    "INSERT OR IGNORE INTO t SELECT value, 3, 'ignored', 'pad of row ' || value FROM generate_series(0, 50000)",
    "INSERT INTO counters SELECT value, value % 10 FROM generate_series(1, 40000)
        ON CONFLICT (id) DO UPDATE SET n = n + excluded.n",
    "INSERT INTO counters SELECT value * 2, value % 10 FROM generate_series(1, 40000)
        ON CONFLICT (id) DO UPDATE SET n = n + excluded.n",
    "INSERT OR REPLACE INTO counters SELECT value % 25000, value FROM generate_series(1, 60000) ORDER BY value",
    "INSERT INTO events SELECT 'kind ' || value % 5, value, 'event ' || value FROM generate_series(0, 14999)",
    "INSERT INTO events SELECT 'kind ' || value % 5, value, 'event ' || value FROM generate_series(5000, 29999)
        ON CONFLICT (day) WHERE day > 100 DO UPDATE SET note = 'again ' || excluded.note, kind = 'again'
        WHERE events.kind <> 'kind 3'",
    "INSERT INTO events SELECT 'kind ' || value % 5, value % 40000, 'event ' || value FROM generate_series(0, 59999)
        ON CONFLICT DO NOTHING",
    "UPDATE t SET n = u.x, kind = 'from' FROM (SELECT value % 9000 AS id, (value % 9000) * 3 AS x
        FROM generate_series(0, 44999)) u WHERE t.id = u.id",
    "DELETE FROM t USING (SELECT value % 13000 AS id FROM generate_series(0, 38999)) u WHERE t.id = u.id AND t.n % 2 = 0",
    "MERGE INTO t USING (SELECT value AS id FROM generate_series(0, 45000)) s ON t.id = s.id
        WHEN MATCHED AND t.id % 3 = 0 THEN UPDATE SET n = t.n + 1
        WHEN NOT MATCHED AND s.id % 5 > 0 THEN INSERT VALUES (s.id, 4, 'merged', 'pad of merged ' || s.id)",
    "MERGE INTO t USING (SELECT value AS id FROM generate_series(0, 45000)) s ON t.id = s.id
        WHEN MATCHED AND t.id % 2 = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = 5",
    "MERGE INTO events USING (SELECT value AS day FROM generate_series(100, 15000)) s ON events.day = s.day
        WHEN MATCHED AND s.day % 2 = 0 THEN DELETE
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET note = 'not matched'",
];

/// Statements that return their rows, and fit neither.
const RETURNING: [&str; 5] = [
    "INSERT INTO t SELECT value * 2 + 1, value % 500, 'kind ' || value % 11, 'pad of row ' || (value * 2 + 1)
        FROM generate_series(0, 24999) RETURNING id, n, (SELECT count(*) FROM t) AS before",
    "INSERT INTO t SELECT value, value % 300, 'upsert', 'pad of row ' || value FROM generate_series(5000, 29999)
        ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n RETURNING t.id, t.n",
    "UPDATE t SET n = u.x FROM (SELECT value % 9000 AS id, (value % 9000) * 3 AS x FROM generate_series(0, 44999)) u
        WHERE t.id = u.id RETURNING t.id, t.n, x",
    "MERGE INTO t USING (SELECT value AS id FROM generate_series(0, 45000)) s ON t.id = s.id
        WHEN MATCHED AND t.id % 3 = 0 THEN UPDATE SET n = t.n + 1
        WHEN NOT MATCHED AND s.id % 5 > 0 THEN INSERT VALUES (s.id, 4, 'merged', 'pad of merged ' || s.id)
        RETURNING merge_action(), t.id, s.id, n",
    "DELETE FROM t USING (SELECT value % 13000 AS id FROM generate_series(0, 38999)) u WHERE t.id = u.id RETURNING t.n, t.id",
];

const QUERIES: [&str; 8] = [
    "SELECT count(*), sum(id), sum(n), count(DISTINCT kind), min(pad), max(pad) FROM t",
    "SELECT kind, count(*), sum(n) FROM t GROUP BY kind ORDER BY kind",
    "SELECT id, n FROM t WHERE kind = 'kind 3' ORDER BY n, id LIMIT 50",
    "SELECT count(*), sum(id), sum(parent), min(note) FROM children",
    "SELECT p.id, count(c.id) FROM parents p LEFT JOIN children c ON c.parent = p.id GROUP BY p.id ORDER BY p.id",
    "SELECT n FROM t WHERE pad = 'pad of row 77'",
    "SELECT count(*), sum(id), sum(n), sum(id * n) FROM counters",
    "SELECT kind, note LIKE 'not%', count(*), sum(day), count(DISTINCT day), max(note) FROM events GROUP BY 1, 2 ORDER BY 1, 2",
];

/// All values of the results, as text.
fn answers(connection: &Connection, queries: &[&str]) -> Vec<String> {
    let answer = |sql: &&str| {
        let rows = connection.query_arrow(sql, ()).unwrap().collect::<keyaki::Result<Vec<_>>>();
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string()
    };
    queries.iter().map(answer).collect()
}

fn run(connection: &Connection, sql: &str) -> u64 {
    connection.execute(sql, ()).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The queries of the tables that a statement names.
fn queries_of(sql: &str) -> Vec<&'static str> {
    let names = |text: &str, table: &str| text.split(|c: char| !c.is_alphanumeric()).any(|word| word == table);
    let changed = ["t", "children", "counters", "events"].into_iter().filter(|table| names(sql, table));
    let changed: Vec<&str> = changed.collect();
    QUERIES.into_iter().filter(|query| changed.iter().any(|table| names(query, table))).collect()
}

/// The answers to `queries` after each of the changes, in a large memory, and the numbers of changed rows.
fn expected(changes: &[&str], queries: impl Fn(&str) -> Vec<&'static str>) -> (Vec<Vec<String>>, Vec<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), LARGE);
    connection.execute_batch(TABLES).unwrap();
    let steps = changes.iter().map(|sql| {
        let rows = run(&connection, sql);
        (answers(&connection, &queries(sql)), rows)
    });
    steps.unzip()
}

#[test]
fn changes_have_the_same_effect_as_in_a_large_memory() {
    compare(SMALL, &CHANGES, &["SELECT count(*), sum(id), sum(n) FROM made"]);
}

#[test]
fn upserts_have_the_same_effect_as_in_a_large_memory() {
    compare(SMALL, &UPSERTS, &[]);
}

/// Compares the effects of the changes, and the answers to `last` queries before and after opening the database again.
fn compare(memory_bytes: usize, changes: &[&str], last: &[&str]) {
    let all_at_end = |sql: &str| if changes.ends_with(&[sql]) { QUERIES.to_vec() } else { queries_of(sql) };
    let (expected, counts) = expected(changes, all_at_end);
    for in_transaction in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let connection = open(directory.path(), memory_bytes);
        connection.execute_batch(TABLES).unwrap();
        let before = answers(&connection, &QUERIES);
        let other = connection.try_clone().unwrap();
        if in_transaction {
            run(&connection, "BEGIN");
        }
        for ((sql, expected), count) in changes.iter().zip(&expected).zip(&counts) {
            assert_eq!(run(&connection, sql), *count, "{sql}");
            let found = answers(&connection, &all_at_end(sql));
            assert_eq!(found, *expected, "after {sql}, in a transaction: {in_transaction}");
        }
        if in_transaction {
            assert_eq!(answers(&other, &QUERIES), before, "others do not see the changes");
            run(&connection, "COMMIT");
        }
        assert_eq!(answers(&other, &QUERIES), expected[changes.len() - 1]);
        let of_last = answers(&other, last);
        drop((connection, other));
        let connection = open(directory.path(), memory_bytes);
        assert_eq!(answers(&connection, &QUERIES), expected[changes.len() - 1]);
        assert_eq!(answers(&connection, last), of_last);
    }
}

/// RETURNING has the rows of all parts, and its subqueries see the state before the statement.
#[test]
fn rows_of_large_statements() {
    let returned = |memory_bytes: usize, in_transaction: bool| {
        let directory = tempfile::tempdir().unwrap();
        let connection = open(directory.path(), memory_bytes);
        connection.execute_batch(TABLES).unwrap();
        if in_transaction {
            run(&connection, "BEGIN");
        }
        let statements = RETURNING.iter().map(|sql| {
            let rows = answers(&connection, &[sql]);
            let mut rows: Vec<String> = rows[0].lines().map(str::to_owned).collect();
            rows.sort();
            (rows, answers(&connection, &QUERIES))
        });
        statements.collect::<Vec<_>>()
    };
    let expected = returned(LARGE, false);
    assert_eq!(expected[0].0.iter().filter(|row| row.ends_with("| 8000   |")).count(), 25_000);
    for in_transaction in [false, true] {
        for (statement, (found, expected)) in returned(SMALL, in_transaction).into_iter().zip(&expected).enumerate() {
            assert!(found == *expected, "{}: {} and {} lines", RETURNING[statement], found.0.len(), expected.0.len());
        }
    }
}

/// Rows of which few fit into the memory.
#[test]
fn statements_with_wide_rows() {
    let tables = "CREATE TABLE w (id BIGINT PRIMARY KEY, text TEXT, n BIGINT);
        CREATE TABLE s (id BIGINT PRIMARY KEY, text TEXT, n BIGINT);
        INSERT INTO s SELECT value, repeat('wide ' || value, 700), value FROM generate_series(1, 3000) s(value)";
    let changes = [
        "INSERT INTO w SELECT * FROM s ON CONFLICT (id) DO UPDATE SET n = 0",
        "INSERT INTO w SELECT id + 1500, text, n FROM s
            ON CONFLICT (id) DO UPDATE SET text = excluded.text || 'x'",
        "MERGE INTO w USING s ON w.id = s.id AND s.n % 3 = 0 WHEN MATCHED THEN UPDATE SET text = s.text || 'y'
            WHEN NOT MATCHED THEN INSERT VALUES (s.id + 20000, s.text, s.n)",
        "UPDATE w SET n = s.n FROM s WHERE s.id = w.id - 1500",
        "DELETE FROM w USING s WHERE w.id = s.id AND s.n % 2 = 0",
    ];
    let queries = ["SELECT count(*), sum(n), sum(length(text)), count(*) FILTER (WHERE text LIKE '%x'),
        count(*) FILTER (WHERE text LIKE '%y') FROM w"];
    // A batch of the source and the part that is written need memory at the same time, depending on the threads.
    let states = [LARGE, 12 * SMALL].map(|memory_bytes| {
        let directory = tempfile::tempdir().unwrap();
        let connection = open(directory.path(), memory_bytes);
        connection.execute_batch(tables).unwrap();
        changes.map(|sql| (run(&connection, sql), answers(&connection, &queries)))
    });
    assert_eq!(states[0], states[1]);
}

/// A row that DO UPDATE or MERGE affects twice is an error, also in different parts.
#[test]
fn rows_affected_twice_by_large_statements() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    connection.execute_batch(TABLES).unwrap();
    let before = answers(&connection, &QUERIES);
    let twice = [
        "INSERT INTO t SELECT value % 30000, 1, 'k', 'pad of row ' || value FROM generate_series(0, 30000)
            ON CONFLICT (id) DO UPDATE SET n = 0",
        "INSERT INTO counters SELECT value % 60000, 1 FROM generate_series(0, 60000)
            ON CONFLICT (id) DO UPDATE SET n = n + excluded.n",
        "MERGE INTO t USING (SELECT value % 6000 * 2 AS id FROM generate_series(0, 6000)) s ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET n = 1",
        "MERGE INTO t USING (SELECT value % 6000 * 2 AS id FROM generate_series(0, 6000)) s ON t.id = s.id
            WHEN MATCHED AND t.n = 0 THEN UPDATE SET n = 1 WHEN MATCHED THEN DELETE",
    ];
    for in_transaction in [true, false] {
        for sql in twice {
            if in_transaction {
                run(&connection, "BEGIN");
            }
            let error = connection.execute(sql, ()).unwrap_err();
            assert_eq!(error.sqlstate().code(), "21000", "{sql}: {error}");
            if in_transaction {
                run(&connection, "ROLLBACK");
            }
            assert_eq!(answers(&connection, &QUERIES), before, "{sql}");
        }
    }
}

#[test]
fn savepoints_and_rollbacks_of_large_transactions() {
    let (expected, _) = expected(&CHANGES[..3], |_| QUERIES.to_vec());
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    connection.execute_batch(TABLES).unwrap();
    let before = answers(&connection, &QUERIES);
    run(&connection, "BEGIN");
    run(&connection, CHANGES[0]);
    run(&connection, "SAVEPOINT a");
    run(&connection, CHANGES[1]);
    run(&connection, "SAVEPOINT b");
    for sql in &CHANGES[2..] {
        run(&connection, sql);
    }
    run(&connection, "ROLLBACK TO b");
    assert_eq!(answers(&connection, &QUERIES), expected[1]);
    assert!(connection.execute("SELECT * FROM made", ()).is_err());
    run(&connection, "ROLLBACK TO b");
    run(&connection, CHANGES[5]);
    run(&connection, "ROLLBACK TO a");
    assert_eq!(answers(&connection, &QUERIES), expected[0]);
    for sql in &CHANGES[1..3] {
        run(&connection, sql);
    }
    assert_eq!(answers(&connection, &QUERIES), expected[2]);
    run(&connection, "ROLLBACK");
    assert_eq!(answers(&connection, &QUERIES), before);
}

/// The entries of an index that a transaction creates spill, unique keys are compared across their parts, and ROLLBACK TO
/// removes the index.
#[test]
fn indexes_that_large_transactions_create() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    run(&connection, "CREATE TABLE w (id BIGINT PRIMARY KEY, n BIGINT, text TEXT)");
    run(
        &connection,
        "INSERT INTO w SELECT value, value % 9999, repeat('x', 600) || value FROM generate_series(1, 10000) s(value)",
    );
    let indexes =
        "SELECT index_name FROM keyaki_indexes WHERE table_name = 'w' AND index_name LIKE 'w!_%' ESCAPE '!' ORDER BY 1";
    let by_text = "SELECT id, n FROM w WHERE text = repeat('x', 600) || 7777";
    let names = |expected: &[&str]| {
        let found = answers(&connection, &[indexes]);
        assert_eq!(
            ["w_text", "w_n"].map(|name| found[0].contains(name)),
            ["w_text", "w_n"].map(|name| expected.contains(&name))
        );
    };
    run(&connection, "BEGIN");
    run(&connection, "UPDATE w SET n = n + 1 WHERE id <= 100");
    run(&connection, "SAVEPOINT a");
    run(&connection, "CREATE UNIQUE INDEX w_text ON w (text) INCLUDE (n)");
    names(&["w_text"]);
    assert!(answers(&connection, &[&format!("EXPLAIN {by_text}")])[0].contains("w_text"));
    assert!(answers(&connection, &[by_text])[0].contains("7777"));
    let duplicate = "INSERT INTO w VALUES (20000, 0, repeat('x', 600) || 7777)";
    assert_eq!(connection.execute(duplicate, ()).unwrap_err().sqlstate().code(), "23505");
    run(&connection, "ROLLBACK TO a");
    names(&[]);
    // The last row has the key of an early one.
    let error = connection.execute("CREATE UNIQUE INDEX w_n ON w (n)", ()).unwrap_err();
    assert_eq!(error.sqlstate().code(), "23505", "{error}");
    run(&connection, "ROLLBACK TO a");
    names(&[]);
    run(&connection, "CREATE INDEX w_n ON w (n DESC)");
    run(&connection, "CREATE UNIQUE INDEX w_text ON w (text)");
    run(&connection, "COMMIT");
    names(&["w_text", "w_n"]);
    assert_eq!(connection.execute(duplicate, ()).unwrap_err().sqlstate().code(), "23505");
    drop(connection);
    let connection = open(directory.path(), SMALL);
    assert!(answers(&connection, &[by_text])[0].contains("7777"));
    assert!(answers(&connection, &["SELECT count(*) FROM w WHERE n BETWEEN 50 AND 149"])[0].contains("101"));
    run(&connection, "CHECK DATABASE");
}

/// Constraints hold across the parts of a statement, and an error leaves nothing.
#[test]
fn constraints_of_large_statements() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    connection.execute_batch(TABLES).unwrap();
    let before = answers(&connection, &QUERIES);
    let late = [
        // The last row has the key of the first one, or of a row of the table, or an invalid value.
        "INSERT INTO t SELECT CASE WHEN value = 20000 THEN 1 ELSE value * 2 + 1 END, 0, 'k', 'new ' || value
            FROM generate_series(0, 20000)",
        "INSERT INTO t SELECT value * 2 + 1, 0, 'k', CASE WHEN value = 20000 THEN 'new 7' ELSE 'new ' || value END
            FROM generate_series(0, 20000)",
        "INSERT INTO t SELECT CASE WHEN value = 20000 THEN 0 ELSE value * 2 + 1 END, 0, 'k', 'new ' || value
            FROM generate_series(0, 20000)",
        "INSERT INTO t SELECT value * 2 + 1, CASE WHEN value = 20000 THEN -1000000 ELSE 0 END, 'k', 'new ' || value
            FROM generate_series(0, 20000)",
        "INSERT INTO children SELECT value, CASE WHEN value = 20000 THEN 100 ELSE 0 END, 'x' FROM generate_series(0, 20000)",
        "UPDATE t SET n = CASE WHEN id = 15998 THEN -1000000 ELSE 1 END",
    ];
    for in_transaction in [true, false] {
        for sql in late {
            if in_transaction {
                run(&connection, "BEGIN");
            }
            let error = connection.execute(sql, ()).unwrap_err();
            assert!(error.sqlstate().code().starts_with("23"), "{sql}: {error}");
            if in_transaction {
                assert!(matches!(connection.execute("SELECT 1", ()), Err(Error::FailedTransaction)), "{sql}");
                run(&connection, "ROLLBACK");
            }
            assert_eq!(answers(&connection, &QUERIES), before, "{sql}");
        }
    }
    // Keys that change are checked at the end of the statement only.
    run(&connection, "UPDATE t SET id = id + 2, pad = 'pad of row ' || (id + 2)");
    assert_eq!(answers(&connection, &["SELECT count(*), min(id), max(id) FROM t"])[0].matches("16000").count(), 1);
    run(&connection, "UPDATE t SET id = id - 2, pad = 'pad of row ' || (id - 2)");
    assert_eq!(answers(&connection, &QUERIES), before);
}

/// An interrupt leaves nothing of a large statement, and makes its transaction fail.
#[test]
fn interrupts_of_large_statements() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    connection.execute_batch(TABLES).unwrap();
    let queries = [QUERIES[0], QUERIES[3]];
    let before = answers(&connection, &queries);
    let handle = connection.interrupt_handle();
    let mut interrupted = 0;
    for (attempt, sql) in CHANGES.iter().chain(&UPSERTS).cycle().take(72).enumerate() {
        let in_transaction = attempt % 2 == 0;
        if in_transaction {
            run(&connection, "BEGIN");
        }
        let handle = handle.clone();
        let delay = Duration::from_millis(7 * (attempt as u64 % 23));
        let timer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            handle.interrupt();
        });
        let result = connection.execute(sql, ());
        timer.join().unwrap();
        match result {
            Err(Error::Cancelled) => {
                interrupted += 1;
                if in_transaction {
                    assert!(matches!(connection.execute("SELECT 1", ()), Err(Error::FailedTransaction)), "{sql}");
                    run(&connection, "ROLLBACK");
                }
                assert_eq!(answers(&connection, &queries), before, "{sql}");
            }
            Ok(_) if in_transaction => drop(run(&connection, "ROLLBACK")),
            // It has taken effect.
            Ok(_) => return assert!(interrupted > 0, "{interrupted} interrupts"),
            Err(error) => match sql.contains("made") {
                // The table does not exist.
                true if in_transaction => drop(run(&connection, "ROLLBACK")),
                true => {}
                false => panic!("{sql}: {error}"),
            },
        }
    }
    assert!(interrupted > 0, "{interrupted} interrupts");
}

/// COPY in a transaction reports the row of a duplicate key.
#[test]
fn copy_in_a_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), SMALL);
    connection.execute_batch(TABLES).unwrap();
    let file = directory.path().join("rows.csv");
    let rows = |last: u64| {
        let lines = (0..30_000).map(|row| format!("{},{},kind,copied {row}\n", row * 2 + 1, row % 10));
        let text: String = lines.chain([format!("{last},1,kind,last\n")]).collect();
        std::fs::write(&file, text).unwrap();
    };
    let copy = format!("COPY t FROM '{}'", file.display());
    rows(77);
    run(&connection, "BEGIN");
    let error = connection.execute(&copy, ()).unwrap_err();
    assert!(error.to_string().contains("30001"), "{error}");
    run(&connection, "ROLLBACK");
    rows(1_000_001);
    run(&connection, "BEGIN");
    assert_eq!(run(&connection, &copy), 30_001);
    run(&connection, "COMMIT");
    assert!(answers(&connection, &["SELECT count(*) FROM t"])[0].contains("38001"));
}

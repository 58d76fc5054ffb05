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

const QUERIES: [&str; 6] = [
    "SELECT count(*), sum(id), sum(n), count(DISTINCT kind), min(pad), max(pad) FROM t",
    "SELECT kind, count(*), sum(n) FROM t GROUP BY kind ORDER BY kind",
    "SELECT id, n FROM t WHERE kind = 'kind 3' ORDER BY n, id LIMIT 50",
    "SELECT count(*), sum(id), sum(parent), min(note) FROM children",
    "SELECT p.id, count(c.id) FROM parents p LEFT JOIN children c ON c.parent = p.id GROUP BY p.id ORDER BY p.id",
    "SELECT n FROM t WHERE pad = 'pad of row 77'",
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

/// The answers after each of the changes, in a large memory, and the numbers of changed rows.
fn expected() -> (Vec<Vec<String>>, Vec<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path(), LARGE);
    connection.execute_batch(TABLES).unwrap();
    let steps = CHANGES.iter().map(|sql| {
        let rows = run(&connection, sql);
        (answers(&connection, &QUERIES), rows)
    });
    steps.unzip()
}

#[test]
fn changes_have_the_same_effect_as_in_a_large_memory() {
    let (expected, counts) = expected();
    for in_transaction in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let connection = open(directory.path(), SMALL);
        connection.execute_batch(TABLES).unwrap();
        let before = answers(&connection, &QUERIES);
        let other = connection.try_clone().unwrap();
        if in_transaction {
            run(&connection, "BEGIN");
        }
        for ((sql, expected), count) in CHANGES.iter().zip(&expected).zip(&counts) {
            assert_eq!(run(&connection, sql), *count, "{sql}");
            assert_eq!(answers(&connection, &QUERIES), *expected, "after {sql}, in a transaction: {in_transaction}");
        }
        if in_transaction {
            assert_eq!(answers(&other, &QUERIES), before, "others do not see the changes");
            run(&connection, "COMMIT");
        }
        assert_eq!(answers(&other, &QUERIES), expected[CHANGES.len() - 1]);
        let made = answers(&other, &["SELECT count(*), sum(id), sum(n) FROM made"]);
        drop((connection, other));
        let connection = open(directory.path(), SMALL);
        assert_eq!(answers(&connection, &QUERIES), expected[CHANGES.len() - 1]);
        assert_eq!(answers(&connection, &["SELECT count(*), sum(id), sum(n) FROM made"]), made);
    }
}

#[test]
fn savepoints_and_rollbacks_of_large_transactions() {
    let (expected, _) = expected();
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
    for (attempt, sql) in CHANGES.iter().cycle().take(36).enumerate() {
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

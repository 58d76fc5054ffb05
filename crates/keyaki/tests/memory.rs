//! Joins and outer queries larger than the query memory return the same rows as joins in memory, and leave no files.

use std::path::Path;

use keyaki::{Connection, Error, Options};

/// Memory with 4 MiB for queries.
const SMALL: usize = 16 << 20;
const LARGE: usize = 1 << 30;

fn open(directory: &Path, memory_bytes: usize) -> Connection {
    let options = Options {
        memory_bytes: Some(memory_bytes),
        threads: Some(2),
        durability: keyaki::Durability::Off,
        ..Options::default()
    };
    Connection::open_with(directory.join("db"), options).unwrap()
}

/// Creates tables with NULL keys, duplicate keys and keys without a match: `l` and `r` have many rows, `w` and `v` wide
/// ones.
fn fill(directory: &Path) {
    let connection = open(directory, LARGE);
    let narrow =
        "CREATE TABLE {} AS SELECT value AS id, CASE WHEN value % 5 = {n} THEN NULL ELSE value * {m} % 150001 END AS k,
                  value % 97 AS x, 'a text of 30 characters ' || value AS pad FROM generate_series(1, 150000)";
    let wide =
        "CREATE TABLE {} AS SELECT value AS id, CASE WHEN value % 9 = {n} THEN NULL ELSE value * {m} % 2503 END AS x,
                repeat('wide', 900) || value AS pad FROM generate_series(1, 1500)";
    for (table, sql, n, m) in [("l", narrow, 0, 3), ("r", narrow, 1, 2), ("w", wide, 0, 3), ("v", wide, 1, 2)] {
        let sql = sql.replace("{}", table).replace("{n}", &n.to_string()).replace("{m}", &m.to_string());
        connection.execute(&sql, ()).unwrap();
    }
    // One key with many rows.
    connection.execute("UPDATE l SET k = 7 WHERE id % 50 = 3", ()).unwrap();
}

/// All values of the result, as text.
fn answer(connection: &Connection, sql: &str) -> keyaki::Result<String> {
    let rows = connection.query_arrow(sql, ())?.collect::<keyaki::Result<Vec<_>>>()?;
    Ok(arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string())
}

/// True if a join, or the outer query of a correlated subquery, spilled.
fn spills(connection: &Connection, sql: &str) -> bool {
    let plan = answer(connection, &format!("EXPLAIN ANALYZE {sql}")).unwrap();
    let joins = plan.lines().filter(|line| line.contains("JoinExec") || line.contains("MaterializeExec"));
    let mut counts = joins.flat_map(|line| line.split("spill_count=").skip(1));
    counts.any(|count| !count.starts_with('0'))
}

/// Compares the answers of queries with small and with large memory. Each query must spill if `true`.
fn compare(queries: &[(String, bool)]) {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let connection = open(directory.path(), LARGE);
    let expected: Vec<String> = queries.iter().map(|(sql, _)| answer(&connection, sql).unwrap()).collect();
    for (sql, _) in queries {
        assert!(!spills(&connection, sql), "{sql}");
    }
    drop(connection);
    let connection = open(directory.path(), SMALL);
    let mut wrong = Vec::new();
    for ((sql, spilled), expected) in queries.iter().zip(expected) {
        match answer(&connection, sql) {
            Ok(found) if found != expected => wrong.push(format!("{sql}:\n{expected}\n{found}")),
            Ok(_) if *spilled && !spills(&connection, sql) => wrong.push(format!("{sql}: did not spill")),
            Ok(_) => (),
            Err(error) => wrong.push(format!("{sql}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let left = files(directory.path());
    assert!(left.is_empty(), "{left:?}");
}

/// The temporary files of a database.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    walk(&directory.join("db").join("tmp"))
}

/// The files below a directory.
fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// The number of rows, and a checksum, of a join of tables `a` and `b`.
fn checksum(join: &str) -> String {
    format!(
        "SELECT count(*), count(a.id), count(b.id), sum(a.id * 31 % 1009), sum(b.id * 17 % 1013), sum(a.id * b.id % 997),
         sum(length(a.pad)), sum(length(b.pad)), min(a.pad), max(b.pad) FROM {join}"
    )
}

fn half(from: &str) -> String {
    format!("SELECT count(*), sum(a.id * 31 % 1009), sum(length(a.pad)), min(a.pad), max(a.pad) FROM {from}")
}

#[test]
fn hash_joins() {
    let mut queries = Vec::new();
    for kind in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
        queries.push((checksum(&format!("l a {kind} r b ON a.k = b.k")), true));
        queries.push((checksum(&format!("l a {kind} r b ON a.k = b.k AND a.x < b.x")), true));
        queries.push((checksum(&format!("l a {kind} r b ON a.k = b.k AND a.x = b.x")), true));
    }
    for not in ["", "NOT "] {
        queries.push((half(&format!("l a WHERE {not}EXISTS (SELECT 1 FROM r b WHERE a.k = b.k)")), false));
        queries.push((half(&format!("l a WHERE {not}EXISTS (SELECT 1 FROM r b WHERE a.k = b.k AND a.x < b.x)")), true));
        let mark = "(SELECT 1 FROM r b WHERE a.k = b.k AND a.x <> b.x)";
        queries.push((half(&format!("l a WHERE {not}EXISTS {mark} OR a.x < 3")), true));
    }
    queries.push((checksum("l a JOIN r b ON a.id = b.id AND a.k IS NOT DISTINCT FROM b.k"), false));
    // The result keeps the partitioning of the right input.
    queries.push(("SELECT count(*), sum(n) FROM (SELECT b.k, count(*) AS n, max(a.pad) FROM l a JOIN r b ON a.k = b.k GROUP BY b.k) q".into(), false));
    queries.push((
        "SELECT a.id, b.id, a.pad FROM l a LEFT JOIN r b ON a.k = b.k ORDER BY a.id, b.id LIMIT 20".into(),
        false,
    ));
    compare(&queries);
}

#[test]
fn nested_loop_joins() {
    let mut queries = Vec::new();
    for kind in ["JOIN", "LEFT JOIN", "RIGHT JOIN"] {
        queries.push((checksum(&format!("w a {kind} v b ON a.x + 2400 < b.x")), true));
        queries.push((checksum(&format!("w a {kind} v b ON a.x < b.x AND b.x < 5")), false));
    }
    for not in ["", "NOT "] {
        queries
            .push((half(&format!("w a WHERE {not}EXISTS (SELECT 1 FROM v b WHERE a.x < b.x AND b.x < 900)")), false));
        queries.push((
            half(&format!("w a WHERE {not}EXISTS (SELECT 1 FROM v b WHERE a.x + 1300 < b.x AND a.pad < b.pad)")),
            true,
        ));
        queries.push((
            half(&format!(
                "w a WHERE {not}EXISTS (SELECT 1 FROM v b WHERE a.pad < b.pad AND a.x + 2200 < b.x) OR a.x < 9"
            )),
            true,
        ));
    }
    compare(&queries);
}

#[test]
fn outer_queries() {
    let subquery = "(SELECT count(*) FROM w b WHERE b.x = a.x AND b.id > a.id % 1000)";
    let rows = format!("(SELECT a.id, a.pad, {subquery} AS n FROM l a) q");
    let aggregates = "count(*), sum(n), sum(id), min(pad), max(pad)";
    let lateral = "l a, LATERAL (SELECT b.id AS n FROM w b WHERE b.x = a.x ORDER BY b.id DESC LIMIT 1) q";
    compare(&[
        (format!("SELECT {aggregates} FROM {rows}"), true),
        (format!("SELECT {aggregates} FROM {rows} WHERE id % 100 = 7"), false),
        (format!("SELECT count(*), sum(n), sum(a.id), min(a.pad), max(a.pad) FROM {lateral}"), true),
        (format!("SELECT a.id, a.pad, {subquery} FROM (SELECT * FROM l ORDER BY pad LIMIT 5) a ORDER BY id"), false),
    ]);
}

#[test]
fn joins_that_cannot_be_split_report_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let connection = open(directory.path(), SMALL);
    let queries = [
        // One key.
        checksum("l a JOIN r b ON a.x / 100 = b.x / 100 AND a.x + 200 < b.x"),
        checksum("w a FULL JOIN v b ON a.x + 2400 < b.x"),
    ];
    for sql in queries {
        let error = answer(&connection, &sql).unwrap_err();
        assert!(matches!(&error, Error::OutOfMemory { .. }), "{sql}: {error}");
        assert!(error.to_string().contains("raise the memory of the database"), "{error}");
    }
    // The memory and the files are free again.
    answer(&connection, &checksum("l a JOIN r b ON a.k = b.k")).unwrap();
}

#[test]
fn interrupted_joins_leave_no_files() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let connection = open(directory.path(), SMALL);
    // The result is dropped after its first batch.
    let mut rows = connection.query_arrow("SELECT * FROM l a LEFT JOIN r b ON a.k = b.k", ()).unwrap();
    rows.next().unwrap().unwrap();
    drop(rows);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !files(directory.path()).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}", files(directory.path()));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

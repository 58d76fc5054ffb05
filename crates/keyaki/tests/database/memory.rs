//! Joins and outer queries larger than the query memory return the same rows as joins in memory, and leave no files.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use arrow::row::{RowConverter, SortField};
use keyaki::{Connection, Error, Options};

/// Memory with 4 MiB for queries.
const SMALL: usize = 16 << 20;
const LARGE: usize = 1 << 30;

fn open(directory: &Path, memory_bytes: usize) -> Connection {
    open_threads(directory, memory_bytes, 2)
}

fn open_threads(directory: &Path, memory_bytes: usize, threads: usize) -> Connection {
    let options = Options {
        memory_bytes: Some(memory_bytes),
        threads: Some(threads),
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
        "CREATE TABLE {} AS SELECT value AS id, CASE WHEN value % 5 = {n} THEN NULL ELSE value * {m} % 100003 END AS k,
                  value % 97 AS x, 'a text of 30 characters ' || value AS pad FROM generate_series(1, 100000)";
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

/// The number of rows of the result, and a checksum of their values in their order.
fn ordered_answer(connection: &Connection, sql: &str) -> keyaki::Result<(usize, u64)> {
    let (mut rows, mut hasher) = (0, DefaultHasher::new());
    for batch in connection.query_arrow(sql, ())? {
        let batch = batch?;
        let fields = batch.schema().fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
        for row in &RowConverter::new(fields).unwrap().convert_columns(batch.columns()).unwrap() {
            hasher.write(row.as_ref());
        }
        rows += batch.num_rows();
    }
    Ok((rows, hasher.finish()))
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
    assert!(!spills(&connection, &queries[0].0), "{}", queries[0].0);
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

/// Creates tables whose rows are in the order of `id`, with a table `s` that is a build side, and larger ones.
fn fill_ordered(directory: &Path, build_pad: usize, probe_pad: usize) {
    let connection = open(directory, LARGE);
    let tables = [
        ("s", "BIGINT", 5, 3, 20_011, build_pad, 30_000),
        ("e", "BIGINT PRIMARY KEY", 6, 5, 23_003, probe_pad, 50_000),
        ("f", "BIGINT PRIMARY KEY", 7, 7, 150_001, 120, 200_000),
    ];
    for (table, key, nulls, factor, modulus, pad, rows) in tables {
        connection.execute(&format!("CREATE TABLE {table} (id {key}, k BIGINT, x BIGINT, pad TEXT)"), ()).unwrap();
        let insert = format!(
            "INSERT INTO {table} SELECT value, CASE WHEN value % {nulls} = 0 THEN NULL ELSE value * {factor} % {modulus} END,
                    value % {rows} % 79, repeat('{table}', {pad}) || value FROM generate_series(1, {rows})"
        );
        connection.execute(&insert, ()).unwrap();
    }
}

/// Compares the answers of queries that rely on the order of joins with small and with large memory. Each must spill.
fn compare_ordered(directory: &Path, threads: usize, queries: &[&str]) {
    let connection = open_threads(directory, LARGE, threads);
    let expected: Vec<(usize, u64)> = queries.iter().map(|sql| ordered_answer(&connection, sql).unwrap()).collect();
    drop(connection);
    let connection = open_threads(directory, SMALL, threads);
    let mut wrong = Vec::new();
    for (sql, expected) in queries.iter().zip(expected) {
        match ordered_answer(&connection, sql) {
            Ok(found) if found != expected => wrong.push(format!("{threads} {sql}: {expected:?} {found:?}")),
            Ok(_) if !spills(&connection, sql) => wrong.push(format!("{threads} {sql}: did not spill")),
            Ok(_) => (),
            Err(error) => wrong.push(format!("{threads} {sql}: {error}")),
        }
        // The order comes from the join.
        let plan = answer(&connection, &format!("EXPLAIN {sql}")).unwrap();
        if plan.contains("SortExec") {
            wrong.push(format!("{threads} {sql}: sorts\n{plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let left = files(directory);
    assert!(left.is_empty(), "{left:?}");
}

/// Queries that rely on the order of a hash join that spills.
const ORDERED: &[&str] = &[
    "SELECT a.id, a.pad, b.id, b.pad FROM s a JOIN e b ON a.k = b.k ORDER BY b.id",
    "SELECT a.id, a.pad, b.id, b.pad FROM s a JOIN e b ON a.k = b.k AND a.x < b.x ORDER BY b.id",
    "SELECT a.id, a.pad, b.id, b.pad FROM s a RIGHT JOIN e b ON a.k = b.k AND a.x < b.x ORDER BY b.id",
    "SELECT a.pad, b.pad FROM s a RIGHT JOIN e b ON a.k = b.k ORDER BY b.id LIMIT 700",
    "SELECT a.pad, b.pad FROM s a JOIN e b ON a.k = b.k ORDER BY b.id LIMIT 10 OFFSET 20000",
    "SELECT * FROM e b WHERE EXISTS (SELECT 1 FROM s a WHERE a.k = b.k AND a.x < b.x AND a.pad > b.pad) ORDER BY b.id",
    "SELECT * FROM e b WHERE NOT EXISTS (SELECT 1 FROM s a WHERE a.k = b.k AND a.x < b.x AND a.pad > b.pad) ORDER BY b.id",
    "SELECT * FROM e b WHERE EXISTS (SELECT 1 FROM s a WHERE a.k = b.k AND a.pad > b.pad) OR b.x < 3 ORDER BY b.id",
    // Sorted groups, and groups of which one column is sorted.
    "SELECT count(*), sum(n), sum(id * m % 1009)
     FROM (SELECT b.id, count(*) AS n, max(a.id + length(a.pad || b.pad)) AS m FROM s a JOIN e b ON a.k = b.k GROUP BY b.id) q",
    "SELECT count(*), sum(n), sum(id * m % 1009)
     FROM (SELECT b.id, a.x, count(*) AS n, max(a.id + length(a.pad || b.pad)) AS m FROM s a RIGHT JOIN e b ON a.k = b.k GROUP BY b.id, a.x) q",
    // The merge of two joins.
    "SELECT b.id, b.pad, a.pad FROM s a JOIN e b ON a.k = b.k
     UNION ALL SELECT b.id, b.pad, a.pad FROM s a RIGHT JOIN e b ON a.k = b.k AND a.x = b.x ORDER BY id",
];

/// With one thread.
const ORDERED_SINGLE: &[&str] = &[
    // Keys that are NULL on both sides match.
    "SELECT a.id, a.pad, b.id, b.pad FROM s a JOIN e b ON nullif(a.id, 7) IS NOT DISTINCT FROM nullif(b.id, 9) ORDER BY b.id",
    "SELECT row_number() OVER (ORDER BY b.id), sum(a.x) OVER (ORDER BY b.id), a.pad, b.pad FROM s a JOIN e b ON a.k = b.k",
    // The order of the build side continues the order of the probe side.
    "SELECT a.id, a.pad, b.id, b.pad, c.id, c.pad FROM s a JOIN e b ON a.k = b.k JOIN f c ON b.k = c.k ORDER BY c.id, b.id",
];

#[test]
fn ordered_joins() {
    let directory = tempfile::tempdir().unwrap();
    fill_ordered(directory.path(), 150, 250);
    compare_ordered(directory.path(), 2, ORDERED);
    compare_ordered(directory.path(), 1, ORDERED);
    compare_ordered(directory.path(), 1, ORDERED_SINGLE);
}

/// Parts are split again.
#[test]
fn ordered_joins_of_large_parts() {
    let directory = tempfile::tempdir().unwrap();
    fill_ordered(directory.path(), 2000, 2300);
    compare_ordered(directory.path(), 1, &ORDERED[..2]);
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
    fill_ordered(directory.path(), 150, 250);
    let connection = open(directory.path(), SMALL);
    for sql in ["SELECT * FROM l a LEFT JOIN r b ON a.k = b.k", ORDERED[0]] {
        assert!(spills(&connection, sql), "{sql}");
        // The result is dropped after its first batch.
        let mut rows = connection.query_arrow(sql, ()).unwrap();
        rows.next().unwrap().unwrap();
        drop(rows);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !files(directory.path()).is_empty() {
            assert!(std::time::Instant::now() < deadline, "{:?}", files(directory.path()));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

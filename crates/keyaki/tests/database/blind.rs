//! Blind upserts give the results, counts and errors of upserts that read: random statements run in two tables, with and
//! without blind upserts, as texts and as prepared statements, in and outside of transactions, across checkpoints and
//! reopenings.

use std::path::Path;

use keyaki::{Connection, Durability, Options};
use keyaki_primitives::Random;

const COLUMNS: &str = "k INT PRIMARY KEY, n BIGINT NOT NULL, small SMALLINT, price DECIMAL(9, 2), f DOUBLE, day DATE, log TEXT, short VARCHAR(6)";

fn open(directory: &Path) -> Connection {
    let options = Options { durability: Durability::Off, threads: Some(2), ..Options::default() };
    Connection::open_with(directory.join("db"), options).unwrap()
}

/// A value for a column; numbers are small, large or at the end of their range.
fn value(column: &str, random: &mut Random) -> String {
    if column != "n" && random.below(6) == 0 {
        return "NULL".into();
    }
    let number = |max: i64, random: &mut Random| match random.below(40) {
        0 => max,
        1 => -max,
        _ => random.below(9) as i64 - 4,
    };
    match column {
        "n" => number(i64::MAX, random).to_string(),
        "small" => number(32767, random).to_string(),
        "price" => format!("{}.25", number(9_999_999, random)),
        "f" => format!("{}.5e0", number(1_000_000, random)),
        "day" => format!("DATE '2024-01-{:02}'", 1 + random.below(28)),
        "short" => format!("'{}'", "abcdefgh".chars().take(random.below(8) as usize).collect::<String>()),
        _ => format!("'{}'", "xyz".chars().take(random.below(4) as usize).collect::<String>()),
    }
}

/// An expression that is assigned to a column: blind forms, and some that read.
fn assignment(column: &str, random: &mut Random) -> String {
    let argument = match random.below(3) {
        0 => value(column, random),
        1 => format!("excluded.{column}"),
        _ => match column {
            "n" | "small" => format!("(excluded.{column} - 1)"),
            "log" | "short" => format!("upper(excluded.{column})"),
            _ => format!("excluded.{column}"),
        },
    };
    let expression = match random.below(9) {
        0 => argument,
        1 | 2 if matches!(column, "log" | "short") => format!("{{}}.{column} || {argument}"),
        1 if column != "day" => format!("{column} + {argument}"),
        2 if column != "day" => format!("{{}}.{column} - {argument}"),
        3 => format!("least({column}, {argument})"),
        4 => format!("greatest({argument}, {{}}.{column})"),
        5 => format!("coalesce({column}, {argument})"),
        6 => format!("coalesce({argument}, {column})"),
        7 if matches!(column, "n" | "small" | "f") => format!("{column} * 2"),
        _ => format!("{{}}.{column}"),
    };
    format!("{column} = {expression}")
}

/// A statement; `{}` stands for the table.
fn statement(random: &mut Random) -> String {
    let all = ["n", "small", "price", "f", "day", "log", "short"];
    let mut keys: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(25)).collect();
    if random.below(10) > 0 {
        keys.sort_unstable();
        keys.dedup();
    }
    let row = |key: &u64, random: &mut Random| {
        let values: Vec<String> = all.iter().map(|column| value(column, random)).collect();
        format!("({key}, {})", values.join(", "))
    };
    let rows: Vec<String> = keys.iter().map(|key| row(key, random)).collect();
    match random.below(12) {
        0 => format!("DELETE FROM {{}} WHERE k = {}", keys[0]),
        1 => format!("INSERT OR REPLACE INTO {{}} VALUES {}", rows.join(", ")),
        2 => format!("UPDATE {{}} SET small = 1, log = 'u' WHERE k = {}", keys[0]),
        _ => {
            let mut columns = all.to_vec();
            columns.retain(|_| random.below(2) == 0);
            if columns.is_empty() {
                columns.push("n");
            }
            let assignments: Vec<String> = columns.iter().map(|column| assignment(column, random)).collect();
            let from = match random.below(3) {
                0 => format!("SELECT * FROM (VALUES {}) v", rows.join(", ")),
                _ => format!("VALUES {}", rows.join(", ")),
            };
            format!("INSERT INTO {{}} {from} ON CONFLICT (k) DO UPDATE SET {}", assignments.join(", "))
        }
    }
}

fn contents(connection: &Connection, table: &str) -> String {
    let rows = connection.query_arrow(&format!("SELECT * FROM {table} ORDER BY k"), ()).unwrap();
    let rows: Vec<_> = rows.collect::<keyaki::Result<_>>().unwrap();
    arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string()
}

/// The result of a statement in a table: the number of rows, or the code and text of the error.
fn run(connection: &Connection, sql: &str, table: &str) -> Result<u64, String> {
    let blind = if table == "blind" { "on" } else { "off" };
    connection.execute(&format!("SET keyaki.blind_upserts = '{blind}'"), ()).unwrap();
    let result = connection.execute(&sql.replace("{}", table), ());
    result.map_err(|error| format!("{} {}", error.sqlstate(), error.to_string().replace(table, "{}")))
}

#[test]
fn blind_upserts_equal_upserts_that_read() {
    let (mut upserts, mut blind, mut failures) = (0, 0, 0);
    for seed in 0..3 {
        let mut random = Random::new(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut connection = open(directory.path());
        for table in ["blind", "reads"] {
            connection.execute(&format!("CREATE TABLE {table} ({COLUMNS})"), ()).unwrap();
        }
        for step in 0..150 {
            match random.below(40) {
                0 => drop(connection.execute("CHECKPOINT", ()).unwrap()),
                1 => {
                    drop(connection);
                    connection = open(directory.path());
                }
                2 => connection.execute("SET keyaki.plan_cache = 'always'", ()).map(drop).unwrap(),
                3 => connection.execute("RESET keyaki.plan_cache", ()).map(drop).unwrap(),
                _ => {}
            }
            let in_transaction = random.below(5) == 0;
            let statements: Vec<String> =
                (0..if in_transaction { 3 } else { 1 }).map(|_| statement(&mut random)).collect();
            let ending = if random.below(3) == 0 { "ROLLBACK" } else { "COMMIT" };
            let mut results = Vec::new();
            for table in ["blind", "reads"] {
                if in_transaction {
                    connection.execute("BEGIN", ()).unwrap();
                }
                let mut of_table = Vec::new();
                for sql in &statements {
                    of_table.push(run(&connection, sql, table));
                    if in_transaction && of_table.last().is_some_and(Result::is_err) {
                        break;
                    }
                }
                if in_transaction {
                    let failed = of_table.iter().any(Result::is_err);
                    connection.execute(if failed { "ROLLBACK" } else { ending }, ()).unwrap();
                }
                results.push(of_table);
            }
            assert_eq!(results[0], results[1], "seed {seed}, step {step}: {statements:#?}");
            failures += results[0].iter().filter(|result| result.is_err()).count();
            for sql in statements.iter().filter(|sql| sql.contains("ON CONFLICT")) {
                connection.execute("SET keyaki.blind_upserts = 'on'", ()).unwrap();
                let plan = connection.query_arrow(&format!("EXPLAIN {}", sql.replace("{}", "blind")), ()).unwrap();
                let plan: Vec<_> = plan.collect::<keyaki::Result<_>>().unwrap();
                let plan = arrow::util::pretty::pretty_format_batches(&plan).unwrap().to_string();
                upserts += 1;
                blind += usize::from(plan.contains("blind ("));
            }
            if step % 5 == 0 {
                let (found, expected) = (contents(&connection, "blind"), contents(&connection, "reads"));
                assert_eq!(found, expected, "seed {seed}, step {step}");
            }
        }
        assert_eq!(contents(&connection, "blind"), contents(&connection, "reads"), "seed {seed}");
    }
    assert!(blind * 2 > upserts && blind < upserts, "{blind} blind of {upserts}");
    assert!(failures > 10, "{failures} failures");
}

/// Prepared statements of one row, whose arguments are parameters, literals and columns of `excluded`.
#[test]
fn prepared_upserts_are_blind() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    connection.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, n BIGINT NOT NULL, small SMALLINT, s TEXT)", ()).unwrap();
    let add = connection
        .prepare("INSERT INTO t VALUES ($1, $2, 1, $3) ON CONFLICT (k) DO UPDATE SET n = t.n + $4, small = t.small + 1, s = t.s || excluded.s")
        .unwrap();
    for i in 0..300_i64 {
        assert_eq!(add.execute((i % 10, 100_i64, "x", i)).unwrap(), 1);
        if i == 150 {
            connection.execute("CHECKPOINT", ()).unwrap();
        }
    }
    let row: (i64, i64, i64, String) = connection
        .query_row("SELECT count(*), sum(n)::BIGINT, min(small), min(s) FROM t", (), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .unwrap();
    let sum: i64 = 10 * 100 + (10..300).sum::<i64>();
    assert_eq!(row, (10, sum, 30, "x".repeat(30)));
    // A sum that does not fit reads, and fails.
    let error = add.execute((1_i64, 1_i64, "", i64::MAX)).unwrap_err();
    assert_eq!(error.sqlstate().to_string(), "22003", "{error}");
    // The bound of the column is reached, but not that of the row.
    connection.execute("INSERT INTO t VALUES (50, 9223372036854775000, 1, '')", ()).unwrap();
    add.execute((1_i64, 1_i64, "", 5000_i64)).unwrap();
    let n: i64 = connection.query_row("SELECT n FROM t WHERE k = 1", (), |row| row.get(0)).unwrap();
    assert_eq!(n, 100 + (10..300).filter(|i| i % 10 == 1).sum::<i64>() + 5000);
}

//! Partial indexes and indexes of expressions give the rows of scans: random statements change a table with such indexes and
//! one without, and random queries of both are compared, on all paths, across checkpoints and reopenings. A generated column
//! with a UNIQUE constraint stands for the unique index.

use std::path::Path;

use keyaki::{Connection, Durability, Options};
use keyaki_primitives::Random;

const COLUMNS: &str = "id, code, status, n, note";
const STATUSES: [&str; 4] = ["'open'", "'new'", "'closed'", "NULL"];

const INDEXES: &str = "
    CREATE UNIQUE INDEX t_open ON t (code) WHERE status = 'open';
    CREATE INDEX t_large ON t (n) INCLUDE (note) WHERE n > 3;
    CREATE INDEX t_live ON t (status, code) WHERE note IS NULL;
    CREATE INDEX t_memory ON t USING masstree (n, code) WHERE status IN ('open', 'new');
    CREATE INDEX t_vast ON t USING vast (code) INCLUDE (n) WHERE n IS NOT NULL AND code <> 2";

/// The target of a conflict by the unique index.
const KEY: &str = "(code) WHERE status = 'open'";

/// Indexes of expressions; the unique one has the same rows and keys as that of [`INDEXES`].
const EXPRESSIONS: &str = "
    CREATE UNIQUE INDEX t_open ON t (abs(code)) WHERE status = 'open';
    CREATE INDEX t_half ON t ((n / 2), code) INCLUDE (note);
    CREATE INDEX t_upper ON t (status, upper(note));
    CREATE INDEX t_memory ON t USING masstree ((n + code), (upper(note))) WHERE status IN ('open', 'new');
    CREATE INDEX t_vast ON t USING vast ((code % 5)) INCLUDE (n)";

const EXPRESSION_KEY: &str = "(abs(code)) WHERE status = 'open'";

fn open(directory: &Path) -> Connection {
    let options = Options { durability: Durability::Off, threads: Some(2), ..Options::default() };
    Connection::open_with(directory.join("db"), options).unwrap()
}

/// Creates the table `t` with partial indexes, and `r`, which has none.
fn create(connection: &Connection, id: &str) {
    let columns = format!("id {id}, code INT, status TEXT, n BIGINT, note TEXT");
    connection.execute(&format!("CREATE TABLE t ({columns})"), ()).unwrap();
    let open_code = "open_code INT AS (CASE WHEN status = 'open' THEN code END) UNIQUE";
    connection.execute(&format!("CREATE TABLE r ({columns}, {open_code})"), ()).unwrap();
}

fn value(column: &str, random: &mut Random) -> String {
    match column {
        "id" => random.below(60).to_string(),
        "code" => random.below(12).to_string(),
        "status" => (*random.pick(&STATUSES)).into(),
        "n" if random.one_in(6) => "NULL".into(),
        "n" => (random.below(9) as i64 - 1).to_string(),
        _ => (*random.pick(&["NULL", "NULL", "'x'", "'y'"])).into(),
    }
}

/// A condition of one of the forms that may imply predicates.
fn condition(random: &mut Random) -> String {
    let number = |random: &mut Random| random.below(9);
    match random.below(19) {
        14 => format!("n / 2 = {}", random.below(4)),
        15 => format!("n / 2 >= {} AND n / 2 <= 3", random.below(4)),
        16 => "upper(note) = 'X'".into(),
        17 => format!("n + code IN ({}, {})", random.below(15), random.below(15)),
        18 => format!("code % 5 = {}", random.below(5)),
        0 | 1 => "status = 'open'".into(),
        2 => "status IN ('new', 'open')".into(),
        3 => format!("status <> {}", random.pick(&STATUSES[..3])),
        4 => format!("n > {}", number(random)),
        5 => format!("n BETWEEN {} AND 6", number(random)),
        6 => "note IS NULL".into(),
        7 => "n IS NOT NULL AND code <> 2".into(),
        8 => format!("code = {}", number(random)),
        9 => format!("code > {}", number(random)),
        10 => format!("(n > {} OR status = 'open')", number(random)),
        11 => "status = 'open' OR n IS NULL".into(),
        12 => format!("n = {}", number(random)),
        _ => format!("id < {}", random.below(60)),
    }
}

fn conditions(random: &mut Random) -> String {
    let parts: Vec<String> = (0..1 + random.below(3)).map(|_| format!("({})", condition(random))).collect();
    parts.join(" AND ")
}

/// A statement that changes rows. `{}` is the table, `{key}` the target of a conflict by the unique partial index.
fn statement(random: &mut Random, by_key: bool) -> String {
    let columns = ["id", "code", "status", "n", "note"];
    let row = |random: &mut Random| {
        let values: Vec<String> = columns.iter().map(|column| value(column, random)).collect();
        format!("({})", values.join(", "))
    };
    let rows = |random: &mut Random| (0..1 + random.below(3)).map(|_| row(random)).collect::<Vec<_>>().join(", ");
    let insert = format!("INSERT INTO {{}} ({COLUMNS}) VALUES {}", rows(random));
    let set = |random: &mut Random| {
        let mut assigned: Vec<&str> = columns[1..].to_vec();
        assigned.retain(|_| random.one_in(3));
        let assigned = if assigned.is_empty() { vec!["status"] } else { assigned };
        let assigned = assigned.iter().map(|column| format!("{column} = {}", value(column, random)));
        assigned.collect::<Vec<_>>().join(", ")
    };
    match random.below(14) {
        0..=2 => insert,
        3 => format!("UPDATE {{}} SET {} WHERE {}", set(random), conditions(random)),
        4 | 5 => format!("UPDATE {{}} SET {} WHERE id = {}", set(random), random.below(60)),
        6 => format!("DELETE FROM {{}} WHERE {}", conditions(random)),
        7 => format!("DELETE FROM {{}} WHERE id = {}", random.below(60)),
        8 => format!("{insert} ON CONFLICT DO NOTHING"),
        9 => format!("{insert} ON CONFLICT {{key}} DO NOTHING"),
        10 => format!("{insert} ON CONFLICT {{key}} DO UPDATE SET n = excluded.n, note = {{}}.note || 'z'"),
        11 if by_key => {
            format!("{insert} ON CONFLICT (id) DO UPDATE SET status = excluded.status, code = excluded.code")
        }
        12 if by_key => insert.replacen("INSERT", "INSERT OR REPLACE", 1),
        _ => format!(
            "MERGE INTO {{}} USING (VALUES {}) AS s ({COLUMNS}) ON {{}}.id = s.id
             WHEN MATCHED AND s.n > 4 THEN DELETE WHEN MATCHED THEN UPDATE SET status = s.status, n = s.n
             WHEN NOT MATCHED THEN INSERT ({COLUMNS}) VALUES (s.id, s.code, s.status, s.n, s.note)",
            row(random)
        ),
    }
}

/// A query; `{}` stands for the table.
fn query(random: &mut Random) -> String {
    let conditions = conditions(random);
    match random.below(9) {
        0 => format!("SELECT count(*), min(n), max(n), count(note) FROM {{}} WHERE {conditions}"),
        1 => format!("SELECT min(code), max(code) FROM {{}} WHERE {conditions}"),
        2 => format!("SELECT code, n FROM {{}} WHERE {conditions}"),
        3 => format!("SELECT n, note FROM {{}} WHERE {conditions} ORDER BY n DESC, note, id LIMIT 4"),
        4 => format!("SELECT n FROM {{}} WHERE {conditions} ORDER BY n DESC NULLS LAST LIMIT 3"),
        5 => "SELECT a.id, b.id FROM {} a JOIN {} b ON a.code = b.code WHERE b.status = 'open' AND a.n > 4".into(),
        6 => "SELECT a.id, b.id FROM {} a LEFT JOIN {} b ON a.n = b.n AND b.status IN ('open', 'new') WHERE a.id < 20"
            .into(),
        7 => format!("SELECT DISTINCT status, code FROM {{}} WHERE {conditions}"),
        _ => format!("SELECT {COLUMNS} FROM {{}} WHERE {conditions}"),
    }
}

fn rows(connection: &Connection, sql: &str) -> Vec<String> {
    let batches = connection.query_arrow(sql, ()).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let batches: Vec<_> = batches.collect::<keyaki::Result<_>>().unwrap_or_else(|error| panic!("{sql}: {error}"));
    let text = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
    let mut rows: Vec<String> = text.lines().map(String::from).collect();
    rows.sort();
    rows
}

/// The number of changed rows, or `None` after an error.
fn run(connection: &Connection, sql: &str, table: &str, key: &str) -> Option<u64> {
    let key = if table == "t" { key } else { "(open_code)" };
    connection.execute(&sql.replace("{key}", key).replace("{}", table), ()).ok()
}

fn compare(connection: &Connection, query: &str, place: &str) {
    let expected = rows(connection, &query.replace("{}", "r"));
    for settings in ["join = 'auto'", "join = 'index'", "join = 'scan'", "short_path = 'off'", "plan_cache = 'always'"]
    {
        let name = settings.split(' ').next().unwrap();
        connection.execute(&format!("SET keyaki.{settings}"), ()).unwrap();
        assert_eq!(rows(connection, &query.replace("{}", "t")), expected, "{place}, {settings}: {query}");
        connection.execute(&format!("RESET keyaki.{name}"), ()).unwrap();
    }
}

fn random_statements(id: &str, by_key: bool, first_seed: u64) {
    let (mut conflicts, mut changes) = (0, 0);
    for seed in first_seed..first_seed + 4 {
        let (indexes, key) = if seed % 4 < 2 { (INDEXES, KEY) } else { (EXPRESSIONS, EXPRESSION_KEY) };
        let mut random = Random::new(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut connection = open(directory.path());
        create(&connection, id);
        // Indexes of existing rows, in half of the cases in a transaction.
        for _ in 0..20 * (seed % 2) {
            let sql = statement(&mut random, by_key);
            if !sql.contains("{key}") {
                let results = ["r", "t"].map(|table| run(&connection, &sql, table, key));
                if results[0].is_none() != results[1].is_none() {
                    connection.execute_batch("DELETE FROM t; DELETE FROM r").unwrap();
                }
            }
        }
        connection.execute_batch(&format!("DELETE FROM t; INSERT INTO t SELECT {COLUMNS} FROM r; {indexes}")).unwrap();
        for step in 0..50 {
            match random.below(40) {
                0 => drop(connection.execute("CHECKPOINT", ()).unwrap()),
                1 | 2 => {
                    drop(connection);
                    connection = open(directory.path());
                }
                3 => drop(connection.execute("ANALYZE", ()).unwrap()),
                _ => {}
            }
            let in_transaction = random.one_in(5);
            let statements: Vec<String> =
                (0..if in_transaction { 3 } else { 1 }).map(|_| statement(&mut random, by_key)).collect();
            let ending = if random.one_in(3) { "ROLLBACK" } else { "COMMIT" };
            let mut results = Vec::new();
            for table in ["t", "r"] {
                if in_transaction {
                    connection.execute("BEGIN", ()).unwrap();
                }
                let mut of_table = Vec::new();
                for sql in &statements {
                    of_table.push(run(&connection, sql, table, key));
                    if in_transaction && of_table.last().is_some_and(Option::is_none) {
                        break;
                    }
                }
                if in_transaction {
                    let failed = of_table.iter().any(Option::is_none);
                    connection.execute(if failed { "ROLLBACK" } else { ending }, ()).unwrap();
                }
                results.push(of_table);
            }
            let place = format!("seed {seed}, step {step}");
            assert_eq!(results[0], results[1], "{place}: {statements:#?}");
            conflicts += results[0].iter().filter(|result| result.is_none()).count();
            changes += results[0].iter().flatten().filter(|&&rows| rows > 0).count();
            compare(&connection, &query(&mut random), &place);
            if step % 10 == 0 {
                compare(&connection, &format!("SELECT {COLUMNS} FROM {{}}"), &place);
            }
        }
    }
    assert!(conflicts > 4 && changes > 50, "{conflicts} conflicts, {changes} changes");
}

#[test]
fn random_statements_by_primary_key() {
    random_statements("INT PRIMARY KEY", true, 0);
}

#[test]
fn random_statements_without_primary_key() {
    random_statements("INT", false, 100);
}

/// The names of the indexes in the plan of a query.
fn plan(connection: &Connection, sql: &str) -> String {
    rows(connection, &format!("EXPLAIN {sql}")).join("\n")
}

/// The statements that create the table `t`.
fn definition(connection: &Connection) -> String {
    connection.query_row("SHOW CREATE TABLE t", (), |row| row.get(1)).unwrap()
}

/// Creates the table again from its definition, which stays the same.
fn recreate(connection: &Connection, definition: &str) {
    connection.execute_batch(&format!("DROP TABLE t; {definition}")).unwrap();
    assert_eq!(self::definition(connection), definition);
}

#[test]
fn loads_appenders_and_reopening() {
    [INDEXES, EXPRESSIONS].into_iter().for_each(loads);
}

fn loads(indexes: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = open(directory.path());
    create(&connection, "BIGINT PRIMARY KEY");
    connection.execute_batch(indexes).unwrap();
    // A bulk load of an empty table, another into a table with rows, and appended rows.
    let select = "SELECT value, value, CASE value % 5 WHEN 0 THEN 'open' WHEN 1 THEN 'new' WHEN 2 THEN 'closed' END,
        value % 9, CASE WHEN value % 3 = 0 THEN 'x' END FROM generate_series";
    for (table, range) in [("t", "(1, 60000)"), ("t", "(60001, 120000)"), ("r", "(1, 120000)")] {
        connection.execute(&format!("INSERT INTO {table} ({COLUMNS}) {select}{range}"), ()).unwrap();
    }
    for table in ["t", "r"] {
        let mut appender = connection.appender(table).unwrap();
        for id in 120_001..=130_000_i64 {
            let status = ["open", "new", "closed"][id as usize % 3];
            appender.append_row((id, id as i32, status, id % 9, None::<&str>)).unwrap();
        }
        appender.finish().unwrap();
    }
    let queries = [
        "SELECT count(*), min(code), max(code) FROM {} WHERE status = 'open'",
        "SELECT code FROM {} WHERE status = 'open' AND code BETWEEN 1000 AND 1100",
        "SELECT * FROM (SELECT id, code, status, n, note FROM {}) WHERE status = 'open' AND code = 125001",
        "SELECT count(*), count(note), sum(n) FROM {} WHERE n > 3",
        "SELECT count(*) FROM {} WHERE n > 2",
        "SELECT count(*) FROM {} WHERE note IS NULL AND status = 'new'",
        "SELECT count(*), sum(code) FROM {} WHERE status IN ('open', 'new') AND n = 4",
        "SELECT id FROM {} WHERE n IS NOT NULL AND code <> 2 AND code IN (1, 2, 3, 125001)",
        "SELECT count(*), sum(code) FROM {} WHERE n / 2 = 3",
        "SELECT code FROM {} WHERE code % 5 = 3 AND code < 100",
        "SELECT id FROM {} WHERE n + code = 125003 AND status = 'new'",
        "SELECT count(*) FROM {} WHERE upper(note) = 'X' AND status = 'open'",
    ];
    for _ in 0..2 {
        queries.iter().for_each(|query| compare(&connection, query, "loads"));
        drop(connection);
        connection = open(directory.path());
    }
    let duplicate = "INSERT INTO t (id, code, status) VALUES (400000, 5, 'open')";
    let error = connection.execute(duplicate, ()).unwrap_err();
    assert_eq!(error.sqlstate().to_string(), "23505", "{error}");
    connection.execute(&duplicate.replace("open", "closed"), ()).unwrap();
    assert_eq!(connection.execute("UPDATE t SET note = 'u' WHERE id = 400000", ()).unwrap(), 1);
    assert!(connection.execute("UPDATE t SET status = 'open' WHERE id = 400000", ()).is_err());
    // A load into the table finds the duplicate, too.
    let load = format!(
        "INSERT INTO t ({COLUMNS}) SELECT value + 500000, value, 'open', 1, NULL FROM generate_series(1, 80000)"
    );
    assert!(connection.execute(&load, ()).is_err());
    assert_eq!(connection.execute(&load.replace("'open'", "'new'"), ()).unwrap(), 80_000);
}

#[test]
fn plans_use_a_partial_index_only_if_the_filters_imply_its_predicate() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    create(&connection, "BIGINT PRIMARY KEY");
    connection.execute_batch(INDEXES).unwrap();
    let insert =
        "INSERT INTO t SELECT value, value, CASE WHEN value % 2000 = 0 THEN 'open' ELSE 'closed' END, value % 4, 'x'
        FROM generate_series(1, 20000)";
    connection.execute(insert, ()).unwrap();
    let uses = |condition: &str, index: &str| {
        let sql = format!("SELECT * FROM t WHERE {condition}");
        plan(&connection, &sql).contains(&format!("t.{index}"))
    };
    assert!(uses("status = 'open' AND code = 4000", "t_open"));
    assert!(uses("code = 4000 AND status = 'open' AND n = 0", "t_open"));
    for condition in ["code = 4000", "code = 4000 AND status = 'closed'", "code = 4000 AND status <> 'closed'"] {
        assert!(!uses(condition, "t_open"), "{condition}");
    }
    assert!(uses("status = 'open'", "t_open"));
    assert!(uses("n > 5", "t_large"));
    assert!(uses("n = 4", "t_large"));
    assert!(!uses("n > 2", "t_large"));
    assert!(plan(&connection, "SELECT n, note FROM t WHERE n > 3").contains("t.t_large"));
    // COUNT, MIN and MAX of a condition that the predicate equals.
    let count = "SELECT count(*), min(code) FROM t WHERE status = 'open'";
    assert!(
        plan(&connection, count).contains("SummaryExec: count of t.t_open, first code of t.t_open"),
        "{}",
        plan(&connection, count)
    );
    assert!(!plan(&connection, "SELECT count(*) FROM t").contains("t_open"));
    // An index of columns without the predicate's answers a query without the table.
    let covered = plan(&connection, "SELECT code FROM t WHERE status = 'open' AND code > 5");
    assert!(covered.contains("ScanExec: t.t_open, ranges=1, columns=[code], class="), "{covered}");
    // The values of parameters are not known when a statement is planned.
    let statement = connection.prepare("SELECT id FROM t WHERE code = $1 AND status = $2").unwrap();
    for (code, status, expected) in [(4000, "open", 1), (4001, "open", 0), (4001, "closed", 1), (4000, "closed", 0)] {
        let found = statement.query_map((code, status), |row| row.get::<_, i64>(0)).unwrap();
        let found: Vec<i64> = found.collect::<keyaki::Result<_>>().unwrap();
        assert_eq!(found.len(), expected, "{code} {status}");
    }
    // Uniqueness of a part of the rows is no dependency: each row is a group of its own.
    connection.execute("INSERT INTO t (id, code, status) VALUES (30000, 4000, 'closed')", ()).unwrap();
    let groups = rows(&connection, "SELECT code, count(*) FROM t WHERE code = 4000 GROUP BY code");
    assert!(groups.iter().any(|row| row.contains("| 4000 | 2")), "{groups:?}");
}

#[test]
fn plans_use_indexes_of_expressions() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = open(directory.path());
    create(&connection, "BIGINT PRIMARY KEY");
    connection.execute_batch(&EXPRESSIONS.replace("WHERE status = 'open'", "")).unwrap();
    connection.execute("CREATE INDEX t_lower ON t (lower(note))", ()).unwrap();
    let insert = "INSERT INTO t SELECT value, value, 'new', value, 'N' || value FROM generate_series(1, 100000)";
    connection.execute(insert, ()).unwrap();
    for _ in 0..2 {
        for (condition, index, bound) in [
            ("abs(code) = 4000", "t_open", "abs(code): 1 range"),
            ("abs(code) IN (4000, 5, 6)", "t_open", "abs(code): 3 ranges"),
            ("lower(note) = 'n77'", "t_lower", "lower(note): 1 range"),
            ("lower(note) LIKE 'n1999%'", "t_lower", "lower(note): 1 range"),
            ("n / 2 BETWEEN 5 AND 6 AND code < 12", "t_half", "n / 2: 1 range"),
            ("status = 'new' AND upper(note) = 'N5'", "t_upper", "status, upper(note): 1 range"),
            ("n + code = 400 AND status = 'new'", "t_memory", "n + code: 1 range"),
        ] {
            let shown = plan(&connection, &format!("SELECT * FROM t AS x WHERE {condition}"));
            assert!(shown.contains(&format!("t.{index} as x")) && shown.contains(bound), "{condition}: {shown}");
            let expected = rows(&connection, &format!("SELECT * FROM t WHERE ({condition}) IS TRUE"));
            assert!(expected.len() > 4, "{condition} has rows");
            assert_eq!(rows(&connection, &format!("SELECT * FROM t WHERE {condition}")), expected, "{condition}");
        }
        let shown = plan(&connection, "SELECT * FROM t WHERE upper(note) = 'N5' OR code = 1");
        assert!(!shown.contains("t.t_"), "{shown}");
        let count = plan(&connection, "SELECT count(*) FROM t WHERE lower(note) >= 'n5'");
        assert!(count.contains("SummaryExec: count of t.t_lower"), "{count}");
        // A join with rows found by an expression.
        let join = plan(&connection, "SELECT b.n FROM t a JOIN t b ON b.id = a.n WHERE lower(a.note) = 'n7'");
        assert!(join.contains("t.t_lower as a"), "{join}");
        // The expressions of prepared statements have parameters beside them.
        let statement = connection.prepare("SELECT id FROM t WHERE lower(note) = $1").unwrap();
        assert_eq!(statement.query_row(("n123",), |row| row.get::<_, i64>(0)).unwrap(), 123);
        drop(statement);
        drop(connection);
        connection = open(directory.path());
    }
    let shown = definition(&connection);
    assert!(shown.contains("CREATE INDEX t_half ON t ((n / 2), code) INCLUDE (note);"), "{shown}");
    recreate(&connection, &shown);
}

#[test]
fn prepared_upserts_by_a_partial_index() {
    let directory = tempfile::tempdir().unwrap();
    let connection = open(directory.path());
    create(&connection, "BIGINT PRIMARY KEY");
    connection.execute_batch(INDEXES).unwrap();
    let sql = "INSERT INTO t VALUES ($1, $2, $3, $4, NULL) ON CONFLICT (code) WHERE status = 'open' DO UPDATE SET n = excluded.n";
    let upsert = connection.prepare(sql).unwrap();
    connection.execute(&format!("PREPARE upsert AS {}", sql.replace("excluded.n", "t.n + $5")), ()).unwrap();
    for (id, status) in [(1, "open"), (2, "open"), (3, "closed"), (4, "open")] {
        assert_eq!(upsert.execute((id, 7, status, id * 10)).unwrap(), 1);
    }
    connection.execute("EXECUTE upsert(5, 7, 'open', 0, 2)", ()).unwrap();
    connection.execute("EXECUTE upsert(6, 7, 'new', 0, 2)", ()).unwrap();
    let found = rows(&connection, "SELECT id, status, n FROM t");
    let is_there = |row: &str| found.iter().any(|line| line.split_whitespace().collect::<String>() == row);
    assert!(is_there("|1|open|42|") && is_there("|3|closed|30|") && is_there("|6|new|0|"), "{found:#?}");
    assert_eq!(rows(&connection, "SELECT id FROM t").len(), 3 + 4);
    // A condition that does not imply the predicate, or is not known.
    for condition in ["status = 'closed'", "status = $3", "code = 7"] {
        let sql = sql.replace("status = 'open'", condition);
        let error = connection.prepare(&sql).err().map(|error| error.sqlstate().to_string());
        assert_eq!(error.as_deref(), Some("42P10"), "{condition}");
    }
}

#[test]
fn definitions_of_partial_indexes_survive() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = open(directory.path());
    create(&connection, "BIGINT PRIMARY KEY");
    connection.execute_batch(INDEXES).unwrap();
    connection.execute("ALTER TABLE t RENAME COLUMN status TO \"State\"", ()).unwrap();
    drop(connection);
    connection = open(directory.path());
    let shown = definition(&connection);
    for sql in [
        "CREATE UNIQUE INDEX t_open ON t (code) WHERE \"State\" = 'open';",
        "CREATE INDEX t_large ON t (n) INCLUDE (note) WHERE n > 3;",
        "CREATE INDEX t_memory ON t USING masstree (n, code) WHERE \"State\" IN ('open', 'new');",
        "CREATE INDEX t_vast ON t USING vast (code) INCLUDE (n) WHERE n IS NOT NULL AND code <> 2;",
    ] {
        assert!(shown.contains(sql), "{shown}");
    }
    recreate(&connection, &shown);
    connection.execute("INSERT INTO t VALUES (1, 1, 'open', 1, NULL)", ()).unwrap();
    assert!(connection.execute("INSERT INTO t VALUES (2, 1, 'open', 1, NULL)", ()).is_err());
}

//! A repair salvages the intact rows of a damaged database, builds indexes again, keeps what the rows satisfy, and
//! reports the rest.

use std::fs;
use std::path::Path;

use keyaki::{Connection, Error, Options, Repair, Repaired, Result, StoreOptions};
use tempfile::TempDir;

/// The catalog, and the tree of the first table of a database.
const CATALOG: u8 = 1;
const FIRST: u8 = 16;
/// Kinds of pages.
const ROWS: u8 = 0;
const MESSAGES: u8 = 1;

const BLOCK: usize = 4096;

fn options() -> Options {
    Options { memory_bytes: Some(64 << 20), ..Options::default() }
}

/// A database with the results of a script, closed.
fn database(script: &str) -> TempDir {
    database_with(options(), script)
}

fn database_with(options: Options, script: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options).unwrap();
    connection.execute_batch(script).unwrap();
    directory
}

/// Damages the pages of a tree, of a kind, that `wanted` selects by their number. Returns the number of damaged pages.
fn damage(directory: &TempDir, tree: u8, kind: u8, wanted: impl Fn(usize) -> bool) -> usize {
    let path = directory.path().join("db").join("data");
    let mut bytes = fs::read(&path).unwrap();
    let is_page = |at: &usize| {
        let page = &bytes[*at..*at + BLOCK];
        page.starts_with(b"KYPG") && page[8..16] == (*at as u64).to_le_bytes() && page[16] == tree && page[24] == kind
    };
    let pages: Vec<usize> = (0..bytes.len() / BLOCK).map(|block| block * BLOCK).filter(is_page).collect();
    let damaged: Vec<usize> = (0..pages.len()).filter(|&number| wanted(number)).collect();
    damaged.iter().for_each(|&number| bytes[pages[number] + 1000] ^= 4);
    fs::write(path, bytes).unwrap();
    damaged.len()
}

fn try_repair(directory: &TempDir) -> Result<Repaired> {
    let [source, target] = ["db", "new"].map(|name| directory.path().join(name));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(Repair::new(source, target, options()).run())
}

/// The report of the repair, and the new database.
fn repair(directory: &TempDir) -> (Repaired, Connection) {
    let repaired = try_repair(directory).unwrap();
    let connection = Connection::open_with(directory.path().join("new"), options()).unwrap();
    let problems = texts(&connection, "CHECK DATABASE", "problem");
    assert!(problems.iter().all(Option::is_none), "{problems:?}");
    (repaired, connection)
}

fn texts(connection: &Connection, sql: &str, column: &str) -> Vec<Option<String>> {
    let rows = connection.prepare(sql).unwrap().query_map((), |row| row.get(column)).unwrap();
    rows.map(Result::unwrap).collect()
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

const ALL_KINDS: &str = "
    CREATE SCHEMA s;
    COMMENT ON SCHEMA s IS 'a schema';
    CREATE SEQUENCE numbers START 100 INCREMENT 5;
    CREATE TABLE parent (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE, gone INT);
    INSERT INTO parent (name, gone) SELECT 'parent ' || value, 1 FROM generate_series(1, 300);
    ALTER TABLE parent DROP COLUMN gone;
    ALTER TABLE parent ADD COLUMN added INT DEFAULT 7;
    CREATE TABLE s.child (a INT, b VARCHAR(20), n BIGINT DEFAULT nextval('numbers'), 
        parent BIGINT REFERENCES parent (id) ON DELETE CASCADE, twice INT GENERATED ALWAYS AS (a * 2) STORED, list INT[],
        day DATE, price DECIMAL(12,2), CONSTRAINT positive CHECK (a >= 0), PRIMARY KEY (b, a));
    INSERT INTO s.child (a, b, parent, list, day, price)
        SELECT value, 'row ' || value, value % 300 + 1, ARRAY[value, NULL], DATE '2024-01-01',
        value / 100.0 FROM generate_series(1, 2000) AS g(value);
    CREATE INDEX child_day ON s.child (day, n) INCLUDE (price);
    CREATE UNIQUE INDEX child_part ON s.child (a) WHERE a > 1000;
    CREATE INDEX child_upper ON s.child (upper(b));
    CREATE INDEX child_memory ON s.child USING masstree (n);
    CREATE INDEX child_vast ON s.child USING vast (a, n);
    COMMENT ON INDEX s.child_day IS 'an index';
    COMMENT ON COLUMN s.child.a IS 'a column';
    CREATE TABLE plain (x TEXT, y TIMESTAMPTZ);
    INSERT INTO plain VALUES ('one', TIMESTAMPTZ '2024-05-06 07:08:09+00'), (NULL, NULL), ('one', NULL);
    CREATE TABLE empty (e UUID PRIMARY KEY);
    CREATE VIEW by_day AS SELECT day, count(*) AS n FROM s.child GROUP BY day;
    CREATE VIEW above AS SELECT n + 1 AS m FROM by_day;
    COMMENT ON VIEW above IS 'a view';
    DELETE FROM s.child WHERE a % 10 = 3;
    UPDATE s.child SET price = NULL WHERE a % 10 = 4;
    ANALYZE";

/// The definitions of all tables and views.
fn definitions(connection: &Connection) -> Vec<Option<String>> {
    let tables = ["parent", "s.child", "plain", "empty"].map(|table| format!("SHOW CREATE TABLE {table}"));
    let views = ["by_day", "above"].map(|view| format!("SHOW CREATE VIEW {view}"));
    tables.iter().chain(&views).flat_map(|sql| texts(connection, sql, "definition")).collect()
}

#[test]
fn an_intact_database_is_copied() {
    let directory = database(ALL_KINDS);
    let contents = |connection: &Connection| {
        let child = "SELECT concat_ws('|', a::TEXT, b, n::TEXT, parent::TEXT, twice::TEXT, list[1]::TEXT, day::TEXT,
            price::TEXT) AS t FROM s.child ORDER BY a";
        let mut all = texts(connection, child, "t");
        all.extend(texts(
            connection,
            "SELECT concat_ws('|', id::TEXT, name, added::TEXT) AS t FROM parent ORDER BY id",
            "t",
        ));
        all.extend(texts(connection, "SELECT concat_ws('|', x, y::TEXT) AS t FROM plain ORDER BY t", "t"));
        all.extend(texts(connection, "SELECT m::TEXT AS t FROM above", "t"));
        all.extend(texts(connection, "SELECT comment AS t FROM keyaki_comments ORDER BY comment", "t"));
        all
    };
    let source = Connection::open_with(directory.path().join("db"), options()).unwrap();
    let expected = (definitions(&source), contents(&source));
    let locked = try_repair(&directory).unwrap_err();
    assert!(matches!(locked.root(), Error::Locked { .. }), "{locked}");
    fs::remove_dir_all(directory.path().join("new")).ok();
    drop(source);
    let (repaired, connection) = repair(&directory);
    assert!(repaired.is_complete() && repaired.notices.is_empty(), "{repaired:?}");
    let rows: Vec<_> = repaired.tables.iter().map(|table| (table.name.as_str(), table.rows)).collect();
    assert_eq!(rows, [("empty", 0), ("parent", 300), ("plain", 3), ("child", 1800)]);
    assert_eq!((definitions(&connection), contents(&connection)), expected);
    assert_eq!(number(&connection, "INSERT INTO parent (name) VALUES ('x') RETURNING id"), 301);
    assert_eq!(number(&connection, "SELECT nextval('numbers')"), 100 + 2000 * 5);
    assert!(connection.execute("INSERT INTO s.child (a, b) VALUES (-1, 'x')", ()).is_err());
    assert!(connection.execute("INSERT INTO parent (name) VALUES ('x')", ()).is_err());
    assert!(connection.execute("DELETE FROM parent WHERE id = 5", ()).is_ok());
    assert_eq!(number(&connection, "SELECT count(*) FROM s.child WHERE parent = 5"), 0);
    let again = try_repair(&directory).unwrap_err();
    assert!(matches!(again.root(), Error::AlreadyExists { .. } | Error::Locked { .. }), "{again}");
}

#[test]
fn constraints_that_lost_rows_violate_are_left_out() {
    let directory = database(
        "CREATE TABLE parent (id BIGINT PRIMARY KEY, name TEXT UNIQUE);
         INSERT INTO parent SELECT value, 'name ' || value FROM generate_series(1, 5000);
         CREATE TABLE child (id BIGINT PRIMARY KEY, parent BIGINT CONSTRAINT of_parent REFERENCES parent (id));
         INSERT INTO child SELECT value, value FROM generate_series(1, 5000);
         CREATE INDEX child_parent ON child (parent);
         CREATE VIEW names AS SELECT name FROM parent",
    );
    assert_eq!(damage(&directory, FIRST, ROWS, |page| page == 1), 1);
    let (repaired, connection) = repair(&directory);
    assert!(!repaired.is_complete());
    let [child, parent] = repaired.tables.as_slice() else { panic!("{repaired:?}") };
    assert!(child.rows == 5000 && child.damaged_pages == 0 && child.lost.is_empty());
    assert!(parent.damaged_pages == 1 && parent.outdated.is_empty() && parent.rows < 5000, "{parent:?}");
    let [lost] = parent.lost.as_slice() else { panic!("{parent:?}") };
    let bound = |text: &str| text.trim_matches(['(', ')']).parse::<i64>().unwrap();
    let (low, high) = (bound(&lost.low), bound(&lost.high));
    assert_eq!(parent.rows as i64, 5000 - (high - low));
    assert_eq!(number(&connection, &format!("SELECT count(*) FROM parent WHERE id >= {low} AND id < {high}")), 0);
    let [loss] = repaired.losses.as_slice() else { panic!("{:?}", repaired.losses) };
    assert!(loss.starts_with("FOREIGN KEY constraint \"of_parent\" of table \"child\" is left out: "), "{loss}");
    assert!(loss.contains("ALTER TABLE child ADD CONSTRAINT of_parent"), "{loss}");
    assert_eq!(number(&connection, "SELECT count(*) FROM child WHERE parent BETWEEN 1 AND 5000"), 5000);
    assert_eq!(number(&connection, "SELECT count(*) FROM names"), parent.rows as i64);
    assert!(connection.execute("INSERT INTO parent VALUES (6000, 'name 1')", ()).is_err());
    // The constraint can be added when the rows are there.
    let missing = format!("SELECT v, 'name ' || v FROM generate_series({low}, {}) AS g(v)", high - 1);
    connection.execute(&format!("INSERT INTO parent {missing}"), ()).unwrap();
    connection.execute("ALTER TABLE child ADD FOREIGN KEY (parent) REFERENCES parent (id)", ()).unwrap();
}

#[test]
fn outdated_rows_are_reported_and_may_violate_unique_indexes() {
    // With several leaves, so that changes wait above them.
    let store = StoreOptions { leaf_bytes: 32 << 10, ..StoreOptions::default() };
    let directory = database_with(
        Options { store: Some(store), ..options() },
        "CREATE TABLE t (id BIGINT PRIMARY KEY, u BIGINT, name TEXT);
         INSERT INTO t SELECT value, value, 'name ' || value FROM generate_series(1, 20000);
         CREATE UNIQUE INDEX t_u ON t (u);
         CREATE INDEX t_name ON t (name);
         CHECKPOINT;
         DELETE FROM t WHERE id <= 300;
         INSERT INTO t SELECT value + 100000, value, repeat(md5(value::TEXT), 4) FROM generate_series(1, 300)",
    );
    assert!(damage(&directory, FIRST, MESSAGES, |page| page == 0) == 1);
    let (repaired, connection) = repair(&directory);
    let [table] = repaired.tables.as_slice() else { panic!("{repaired:?}") };
    assert!(table.lost.is_empty() && !table.outdated.is_empty(), "{table:?}");
    let [loss] = repaired.losses.as_slice() else { panic!("{:?}", repaired.losses) };
    assert!(loss.starts_with("index \"t_u\" of table \"t\" is left out: ") && loss.contains("duplicate"), "{loss}");
    assert!(number(&connection, "SELECT count(*) FROM t WHERE id <= 300") > 0, "deleted rows are back");
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE id BETWEEN 301 AND 20000"), 19_700);
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE name = 'name 4000'"), 1);
}

#[test]
fn tables_without_definitions_are_recovered() {
    let directory = database(
        "CREATE TABLE a (id BIGINT PRIMARY KEY, name TEXT NOT NULL, n INT, gone INT);
         INSERT INTO a SELECT value, 'name ' || value, value % 7, 1 FROM generate_series(1, 1000);
         CREATE INDEX a_name ON a (name);
         ALTER TABLE a DROP COLUMN gone;
         CREATE TABLE hidden (x DOUBLE PRECISION);
         INSERT INTO hidden VALUES (1.5), (NULL);
         CREATE VIEW v AS SELECT 1 AS one",
    );
    assert!(damage(&directory, CATALOG, ROWS, |_| true) + damage(&directory, CATALOG, MESSAGES, |_| true) > 0);
    let (repaired, connection) = repair(&directory);
    let names: Vec<_> = repaired.tables.iter().map(|table| (table.name.as_str(), table.rows)).collect();
    let [(a, 1000), (hidden, 2)] = names[..] else { panic!("{repaired:?}") };
    assert!(a.starts_with("recovered_") && !repaired.is_complete(), "{repaired:?}");
    assert!(repaired.losses.iter().any(|loss| loss.starts_with("definitions ")), "{:?}", repaired.losses);
    assert_eq!(
        number(&connection, &format!("SELECT count(*) FROM {a} WHERE id BETWEEN 1 AND 1000 AND n = id % 7")),
        1000
    );
    assert_eq!(texts(&connection, &format!("SELECT x::TEXT AS t FROM {hidden} ORDER BY x"), "t").len(), 2);
    connection.execute(&format!("INSERT INTO {a} (id, name) VALUES (1001, 'x')"), ()).unwrap();
    connection.execute(&format!("ALTER TABLE {a} RENAME TO a"), ()).unwrap();
    connection.execute(&format!("INSERT INTO {hidden} VALUES (2.5)"), ()).unwrap();
}

/// Copies the files of an open database: the state after a crash.
fn copy_of(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn the_intact_prefix_of_the_log_is_salvaged() {
    let directory = tempfile::tempdir().unwrap();
    let running = directory.path().join("running");
    let connection = Connection::open_with(&running, options()).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, name TEXT); CHECKPOINT;
             CREATE TABLE late (x INT); INSERT INTO late VALUES (1)",
        )
        .unwrap();
    for number in 1..=200_i64 {
        connection.execute("INSERT INTO t (name) VALUES ($1)", (format!("name {number}"),)).unwrap();
    }
    copy_of(&running, &directory.path().join("db"));
    drop(connection);
    let log = fs::read_dir(directory.path().join("db")).unwrap().map(|entry| entry.unwrap().path());
    let mut log: Vec<_> = log.filter(|path| path.to_string_lossy().contains("log-")).collect();
    log.sort();
    let log = log.last().unwrap();
    let mut bytes = fs::read(log).unwrap();
    let place = bytes.windows(8).position(|window| window == b"name 150").unwrap();
    bytes[place] ^= 1;
    fs::write(log, bytes).unwrap();
    let (repaired, connection) = repair(&directory);
    let [loss] = repaired.losses.as_slice() else { panic!("{:?}", repaired.losses) };
    assert!(loss.starts_with("the commits from ") && loss.contains("are lost: "), "{loss}");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 149);
    assert_eq!(number(&connection, "SELECT max(id) FROM t"), 149);
    assert_eq!(number(&connection, "SELECT count(*) FROM late"), 1);
    assert!(number(&connection, "INSERT INTO t (name) VALUES ('x') RETURNING id") >= 150);
}

#[test]
fn nothing_is_salvaged_without_a_checkpoint() {
    let directory = database("CREATE TABLE t (id BIGINT PRIMARY KEY)");
    let data = directory.path().join("db").join("data");
    let mut bytes = fs::read(&data).unwrap();
    let first = bytes[20];
    bytes[20] ^= 1;
    fs::write(&data, &bytes).unwrap();
    let (repaired, connection) = repair(&directory);
    assert!(repaired.is_complete() && repaired.notices.len() == 2, "{repaired:?}");
    assert!(repaired.notices[0].contains("superblock") && repaired.notices[1].contains("checkpoint"), "{repaired:?}");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 0);
    drop(connection);
    fs::remove_dir_all(directory.path().join("new")).unwrap();
    (bytes[20], bytes[(32 << 10) + 20]) = (first ^ 1, bytes[(32 << 10) + 20] ^ 1);
    fs::write(&data, &bytes).unwrap();
    let error = try_repair(&directory).unwrap_err();
    assert!(matches!(error.root(), Error::Corrupt { .. }), "{error}");
    assert!(!directory.path().join("new").join("data").exists());
    fs::remove_dir_all(directory.path().join("db")).unwrap();
    let error = try_repair(&directory).unwrap_err();
    assert!(matches!(error.root(), Error::NotFound { .. }), "{error}");
}

#[test]
fn a_repair_can_be_interrupted() {
    let directory = database(ALL_KINDS);
    let [source, target] = ["db", "new"].map(|name| directory.path().join(name));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let repair = Repair::new(source, target, options());
    let handle = repair.interrupt_handle();
    let result = runtime.block_on(async {
        let mut work = Box::pin(repair.run());
        // Started by the first poll.
        assert!(futures::poll!(work.as_mut()).is_pending());
        handle.interrupt();
        work.await
    });
    assert!(matches!(result.unwrap_err().root(), Error::Cancelled));
}

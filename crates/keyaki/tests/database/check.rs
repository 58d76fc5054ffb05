//! CHECK finds damaged pages, and indexes that differ from their tables. BACKUP makes copies without either.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use keyaki::{Connection, Database, Options};
use keyaki_store::{TreeId, WriteBatch};

/// The trees of the first table of a database and of its first index.
const TABLE: TreeId = TreeId::new(16);
const INDEX: TreeId = TreeId::new(17);
const ROWS: i64 = 20_000;

fn options() -> Options {
    Options { memory_bytes: Some(64 << 20), ..Options::default() }
}

/// A table with indexes of all kinds, and a second one.
fn fill(connection: &Connection) {
    let script = format!(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, n INT, gone INT, twice INT GENERATED ALWAYS AS (n * 2) STORED);
         CREATE INDEX t_name ON t (name);
         CREATE UNIQUE INDEX t_pair ON t (n, id) INCLUDE (twice);
         CREATE INDEX t_part ON t (n) WHERE n > 5;
         CREATE INDEX t_upper ON t (upper(name), id);
         CREATE INDEX t_memory ON t USING masstree (n);
         CREATE INDEX t_vast ON t USING vast (id, n);
         INSERT INTO t SELECT value, 'text ' || value, value % 100, 1 FROM generate_series(1, {ROWS});
         ALTER TABLE t DROP COLUMN gone;
         CREATE TABLE s.hidden (a TEXT);
         INSERT INTO s.hidden VALUES ('x'), (NULL);
         DELETE FROM t WHERE id % 10 = 3;
         UPDATE t SET name = NULL, n = n + 1 WHERE id % 10 = 4"
    );
    connection.execute_batch(&format!("CREATE SCHEMA s; {script}")).unwrap();
}

/// A row of a check: name of the index or table, rows, problem, low and high key.
type Row = (String, Option<i64>, Option<String>, Option<(String, String)>);

fn check(connection: &Connection, sql: &str) -> Vec<Row> {
    let statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map((), |row| {
        let (table, index): (Option<String>, Option<String>) = (row.get("table_name")?, row.get("index_name")?);
        let keys = row.get::<_, Option<String>>("low_key")?.zip(row.get("high_key")?);
        let name = index.or(table).unwrap_or_else(|| "catalog".into());
        Ok((name, row.get("rows")?, row.get("problem")?, keys))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn intact_tables_have_no_problem() {
    let directory = tempfile::tempdir().unwrap();
    for is_reopened in [false, true] {
        let connection = Connection::open_with(directory.path(), options()).unwrap();
        if !is_reopened {
            fill(&connection);
        }
        let left = ROWS * 9 / 10;
        let selected = connection.query_row("SELECT count(*) FROM t WHERE n > 5", (), |row| row.get(0)).unwrap();
        let expected = [
            ("t", left),
            ("t_name", left),
            ("t_pair", left),
            ("t_part", selected),
            ("t_upper", left),
            ("t_memory", left),
            ("t_vast", left),
            ("hidden", 2),
        ];
        let mut expected: Vec<_> =
            expected.into_iter().map(|(name, rows)| (name.to_string(), Some(rows), None, None)).collect();
        let mut found = check(&connection, "CHECK DATABASE");
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(check(&connection, "CHECK TABLE s.hidden"), [("hidden".into(), Some(2), None, None)]);
        connection.execute("BEGIN", ()).unwrap();
        let error = connection.execute("CHECK TABLE t", ()).unwrap_err();
        assert_eq!(error.sqlstate().code(), "25001", "{error}");
        connection.execute("ROLLBACK", ()).unwrap();
    }
}

/// Damages a page with a text.
fn damage(directory: &Path) {
    let path = directory.join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    let text = bytes.windows(5).position(|window| window == b"text ").expect("a page of the table");
    bytes[text] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn damaged_pages_are_named_and_the_rest_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    {
        let connection = Connection::open_with(directory.path(), options()).unwrap();
        let script = format!(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); CREATE TABLE u (id BIGINT PRIMARY KEY);
             INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, {ROWS}); INSERT INTO u VALUES (1);
             CREATE INDEX u_id ON u (id); CHECKPOINT"
        );
        connection.execute_batch(&script).unwrap();
    }
    damage(directory.path());
    let connection = Connection::open_with(directory.path(), options()).unwrap();
    let checked = check(&connection, "CHECK DATABASE");
    let [t, u, u_id] = checked.as_slice() else { panic!("{checked:?}") };
    assert!(t.0 == "t" && t.1.is_none() && t.2.as_ref().is_some_and(|problem| problem.contains("corrupt")), "{t:?}");
    let number = |key: &String| key.trim_matches(['(', ')']).parse::<i64>().unwrap();
    let (low, high) = t.3.as_ref().map(|(low, high)| (number(low), number(high))).unwrap();
    assert!(low < high && high - low < ROWS / 2, "keys from {low} to {high}");
    assert_eq!((u.1, &u.2, u_id.1, &u_id.2), (Some(1), &None, Some(1), &None));
    // The rows beside the damaged page are readable.
    let count = |condition: String| -> keyaki::Result<i64> {
        let sql = format!("SELECT count(name) FROM t WHERE {condition}");
        connection.query_row(&sql, (), |row| row.get(0))
    };
    assert_eq!(count(format!("id >= {high}")).unwrap(), ROWS + 1 - high);
    assert!(count(format!("id BETWEEN {low} AND {high}")).is_err());
}

/// An entry of the index t_name.
fn entry(name: &str, id: i64) -> (ArrayRef, ArrayRef) {
    (Arc::new(StringViewArray::from_iter_values([name])), Arc::new(Int64Array::from(vec![id])))
}

#[test]
fn indexes_that_differ_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path(), options()).unwrap();
    let connection = database.connect().unwrap();
    let script = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); CREATE INDEX t_name ON t (name);
        INSERT INTO t SELECT value, 'text ' || value FROM generate_series(1, 100)";
    connection.execute_batch(script).unwrap();
    let problem = |place: usize| check(&connection, "CHECK TABLE t").swap_remove(place).2;
    assert_eq!(problem(1), None);
    let store = database.store();
    let schema = store.snapshot().tree(INDEX).unwrap().schema().clone();
    let rows = |(name, id)| RecordBatch::try_new(schema.arrow().clone(), vec![name, id]).unwrap();
    let mut batch = WriteBatch::new();
    batch.delete(INDEX, &schema, &rows(entry("text 7", 7))).unwrap();
    store.commit(batch).unwrap();
    assert_eq!(problem(1).as_deref(), Some("has 99 entries for 100 rows of the table"));
    let mut batch = WriteBatch::new();
    batch.insert(INDEX, &schema, &rows(entry("text 8", 7))).unwrap();
    store.commit(batch).unwrap();
    assert_eq!(problem(1).as_deref(), Some("some entries differ from the rows of the table"));
    connection.execute_batch("DROP INDEX t_name; CREATE INDEX t_name ON t (name)").unwrap();
    assert_eq!(problem(1), None);
    let (view, mut batch) = (store.snapshot().tree(TABLE).unwrap(), WriteBatch::new());
    let rows =
        vec![Arc::new(Int64Array::from(vec![7])) as ArrayRef, Arc::new(StringViewArray::from_iter_values(["a"]))];
    let rows = RecordBatch::try_new(view.schema().arrow().clone(), rows).unwrap();
    // The claim that the row is new is wrong, and so is the number of rows afterwards.
    batch.insert_new(TABLE, view.schema(), &rows).unwrap();
    store.commit(batch).unwrap();
    assert_eq!(problem(0).as_deref(), Some("has 100 rows, but 101 are recorded"));
}

#[test]
fn backups_have_all_objects() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copies").join("one");
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    fill(&connection);
    let script =
        "CREATE SEQUENCE numbers; CREATE VIEW many AS SELECT * FROM t WHERE n > 50; COMMENT ON TABLE t IS 'texts';
        CREATE TABLE owned (id BIGINT GENERATED ALWAYS AS IDENTITY, t_id BIGINT REFERENCES t (id), CHECK (t_id > 0));
        INSERT INTO owned (t_id) VALUES (1), (2); SELECT nextval('numbers')";
    connection.execute_batch(script).unwrap();
    assert!(connection.execute(&format!("BACKUP DATABASE TO '{}'", copy.display()), ()).is_err());
    std::fs::create_dir(directory.path().join("copies")).unwrap();
    let backup = format!("BACKUP DATABASE TO '{}'", copy.display());
    let bytes: i64 = connection.query_row(&backup, (), |row| row.get("bytes")).unwrap();
    assert!(bytes > 100_000, "{bytes} bytes");
    let again = connection.query_row(&backup, (), |row| row.get::<_, i64>("bytes")).unwrap_err().to_string();
    assert!(again.contains("the directory has files"), "{again}");
    connection.execute("DELETE FROM t WHERE id > 2", ()).unwrap();
    connection.execute("BEGIN", ()).unwrap();
    let inside = connection.execute(&backup, ()).unwrap_err();
    assert_eq!(inside.sqlstate().code(), "25001", "{inside}");
    connection.execute("ROLLBACK", ()).unwrap();
    drop(connection);
    let copied = Connection::open_with(&copy, options()).unwrap();
    assert!(check(&copied, "CHECK DATABASE").iter().all(|(.., problem, _)| problem.is_none()));
    let number = |sql: &str| copied.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("SELECT count(*) FROM t"), ROWS * 9 / 10);
    assert_eq!(number("SELECT count(*) FROM t WHERE n = 7"), number("SELECT count(*) FROM t WHERE n + 0 = 7"));
    assert!(number("SELECT count(*) FROM many") > 1000);
    assert!(number("SELECT nextval('numbers')") > 1);
    copied.execute("INSERT INTO owned (t_id) VALUES (5)", ()).unwrap();
    assert!(copied.execute("INSERT INTO owned (t_id) VALUES (13)", ()).is_err());
    assert_eq!(number("SELECT count(DISTINCT id) FROM owned"), 3);
    assert_eq!(number("SELECT count(*) FROM keyaki_comments WHERE comment = 'texts'"), 1);
}

#[test]
fn incremental_backups_update_a_copy() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    fill(&connection);
    let copy = directory.path().join("copy");
    let backup = format!("BACKUP DATABASE TO '{}' INCREMENTAL", copy.display());
    let bytes = || -> (i64, i64) {
        connection.query_row(&backup, (), |row| Ok((row.get("bytes")?, row.get("kept_bytes")?))).unwrap()
    };
    let (all, kept) = bytes();
    assert!(all > 100_000 && kept == 0, "{all} bytes, {kept} kept");
    connection.execute("UPDATE t SET name = 'changed' WHERE id = 7", ()).unwrap();
    let (written, kept) = bytes();
    assert!(written > 0 && kept > all / 2, "{written} bytes, {kept} kept");
    let wrong = connection.execute(&backup.replace("INCREMENTAL", "INCREMENTALLY"), ()).unwrap_err();
    assert_eq!(wrong.sqlstate().code(), "42601", "{wrong}");
    let copied = Connection::open_with(&copy, options()).unwrap();
    assert!(check(&copied, "CHECK DATABASE").iter().all(|(.., problem, _)| problem.is_none()));
    let name: String = copied.query_row("SELECT name FROM t WHERE id = 7", (), |row| row.get(0)).unwrap();
    assert_eq!(name, "changed");
    let open = connection.execute(&backup, ()).unwrap_err();
    assert_eq!(open.sqlstate().code(), "55006", "{open}");
    copied.execute("DELETE FROM t WHERE id = 7", ()).unwrap();
    drop(copied);
    let opened = connection.execute(&backup, ()).unwrap_err().to_string();
    assert!(opened.contains("that was changed"), "{opened}");
}

/// An interrupt either leaves no copy, or comes too late: the backup is complete then.
#[test]
fn interrupted_backups_leave_no_copy() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    fill(&connection);
    let mut complete = 0;
    for round in 0..20 {
        let copy = directory.path().join(format!("copy{round}"));
        let handle = connection.interrupt_handle();
        let interrupt = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(round * 500));
            handle.interrupt();
        });
        let backup = format!("BACKUP DATABASE TO '{}'", copy.display());
        let result = connection.query_row(&backup, (), |row| row.get::<_, i64>("bytes"));
        interrupt.join().unwrap();
        match result {
            Ok(_) => {
                complete += 1;
                let copied = Connection::open_with(&copy, options()).unwrap();
                assert!(check(&copied, "CHECK DATABASE").iter().all(|(.., problem, _)| problem.is_none()));
            }
            Err(error) => {
                assert_eq!(error.sqlstate().code(), "57014", "{error}");
                // The thread that copies ends after the statement.
                assert!(!copy.join("data").exists());
            }
        }
    }
    let last = directory.path().join("last");
    connection.query_row(&format!("BACKUP DATABASE TO '{}'", last.display()), (), |_| Ok(())).unwrap();
    for round in 0..20 {
        let data = directory.path().join(format!("copy{round}")).join("data");
        complete -= i32::from(data.exists());
    }
    assert_eq!(complete, 0, "copies of interrupted backups");
}

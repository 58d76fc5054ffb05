//! CREATE INDEX CONCURRENTLY beside all kinds of writers: the index that results equals one that is built without writers,
//! entry by entry; failed, cancelled and crashed builds leave nothing.
//!
//! `KEYAKI_CONCURRENT_ROUNDS` sets the number of builds beside random writers (default 10), `KEYAKI_CONCURRENT_SEED` the
//! seed (default: random, printed).

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::SystemTime;

use arrow::array::RecordBatch;
use keyaki::{Connection, Database, Durability, Error, Options, Progress};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Direction, KeyRange, Store, TreeId, block_on};

/// Small buffers, so that change logs and indexes have messages in all places.
fn options() -> Options {
    let store = keyaki_store::Options {
        cache_bytes: 1 << 20,
        buffer_bytes: 64 << 10,
        page_bytes: 4096,
        leaf_bytes: 32 << 10,
        fan_out: 4,
        node_buffer_bytes: 64 << 10,
        runs_per_node: 3,
        ..keyaki_store::Options::default()
    };
    Options {
        store: Some(store),
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        durability: Durability::Off,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Database {
    Database::open(directory.join("db"), options()).unwrap()
}

fn execute(connection: &Connection, sql: &str) {
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Called with each phase of a statement, on a thread of its own. The statement waits for it.
struct Phases<F>(F);

impl<F> fmt::Debug for Phases<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Phases")
    }
}

impl<F: Fn(&str) + Send + Sync> Progress for Phases<F> {
    fn start(&self, phase: &str, _: Option<u64>) {
        std::thread::scope(|scope| scope.spawn(|| (self.0)(phase)).join()).unwrap();
    }
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

/// Executes `sql`, and calls `beside` with each of its phases.
fn execute_with(database: &Database, sql: &str, beside: impl Fn(&str) + Send + Sync + 'static) -> Result<(), Error> {
    let connection = database.connect().unwrap();
    connection.session().set_progress(Arc::new(Phases(beside)));
    connection.execute(sql, ()).map(drop)
}

/// The first phase reads the rows of the registration.
fn is_load(phase: &str) -> bool {
    phase.starts_with("indexing")
}

/// The last phase reads the change log.
fn is_last(phase: &str) -> bool {
    phase.starts_with("adding changes")
}

/// The trees of the database.
fn trees(store: &Store) -> BTreeSet<u32> {
    let snapshot = store.latest();
    (0..2000).filter(|&tree| snapshot.tree(TreeId::new(tree)).is_ok()).collect()
}

/// The documents of unfinished builds.
fn documents(store: &Store) -> usize {
    let prefix = "index_build/".as_bytes();
    let catalog = KeyValue::open(store, TreeId::new(1)).unwrap();
    let documents = catalog.range(prefix.., Direction::Ascending).unwrap();
    documents.map(Result::unwrap).filter(|(key, _)| key.starts_with(prefix)).count()
}

/// The tree of an index of table `t`.
fn tree(store: &Store, index: &str) -> TreeId {
    let document = KeyValue::open(store, TreeId::new(1)).unwrap().get(b"table/t").unwrap().unwrap();
    let document = String::from_utf8(document).unwrap();
    let start = format!("\"name\":\"{index}\",\"tree\":");
    let (_, rest) = document.split_once(&start).unwrap_or_else(|| panic!("no index {index} in {document}"));
    TreeId::new(rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
}

/// The entries of an index, and the number of entries that the store knows.
fn entries(store: &Store, index: &str) -> (Vec<String>, Option<u64>) {
    let view = store.latest().tree(tree(store, index)).unwrap();
    let source = store.blocking();
    let columns: Vec<usize> = (0..view.schema().columns().len()).collect();
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
    let mut entries = Vec::new();
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let rows = RecordBatch::try_new(view.schema().arrow().clone(), chunk.to_arrays(&columns).unwrap()).unwrap();
        let shown = arrow::util::pretty::pretty_format_batches(&[rows]).unwrap().to_string();
        entries.extend(
            shown
                .lines()
                .skip(3)
                .filter(|line| line.starts_with('|'))
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")),
        );
    }
    let known = view.live_rows();
    (entries, known)
}

/// Compares index `i` with an index `p` of the same definition that is built now, and drops both. There are no writers.
fn verify(connection: &Connection, definition: &str) {
    let store = connection.database().store();
    let plain = definition.replace("CONCURRENTLY i ", "p ");
    assert_ne!(plain, definition);
    execute(connection, &plain);
    let ((found, known), (expected, _)) = (entries(store, "i"), entries(store, "p"));
    if found != expected {
        let (found, expected): (BTreeSet<_>, BTreeSet<_>) =
            (found.into_iter().collect(), expected.into_iter().collect());
        let (missing, stale): (Vec<_>, Vec<_>) =
            (expected.difference(&found).collect(), found.difference(&expected).collect());
        panic!("{definition}: missing {missing:?}, stale {stale:?}");
    }
    assert!(known.is_none_or(|known| known == expected.len() as u64), "{definition}: {known:?} of {}", expected.len());
    execute(connection, "DROP INDEX i; DROP INDEX p");
    assert_eq!(documents(store), 0);
}

fn create_table(connection: &Connection, key: &str) {
    execute(connection, &format!("CREATE TABLE t ({key}, b BIGINT, c TEXT, d DOUBLE)"));
    execute(
        connection,
        "INSERT INTO t SELECT value, value % 97, 'row ' || value % 31, value FROM generate_series(1, 3000)",
    );
}

const DEFINITIONS: [&str; 7] = [
    "CREATE INDEX CONCURRENTLY i ON t (b)",
    "CREATE INDEX CONCURRENTLY i ON t (c, b DESC) INCLUDE (d)",
    "CREATE INDEX CONCURRENTLY i ON t (b) INCLUDE (c) WHERE b > 40 AND c <> 'row 7'",
    "CREATE INDEX CONCURRENTLY i ON t (upper(c), (b + 1))",
    "CREATE INDEX CONCURRENTLY i ON t ((b % 10)) WHERE d > 100",
    "CREATE UNIQUE INDEX CONCURRENTLY i ON t (b, id, c)",
    "CREATE INDEX CONCURRENTLY i ON t USING vast (b) INCLUDE (c)",
];

/// Each way to change rows, with rows that did and did not exist, and several changes of one row.
fn change_all(connection: &Connection, directory: &Path, first: i64) {
    let run = |sql: &str| execute(connection, sql);
    run(&format!("INSERT INTO t VALUES ({first}, 1, 'new', 1), ({}, 2, 'new', NULL)", first + 1));
    run("UPDATE t SET b = b + 1000 WHERE id < 300");
    run("UPDATE t SET b = b - 7 WHERE id < 200");
    run("UPDATE t SET d = d + 1 WHERE id BETWEEN 250 AND 500");
    run("UPDATE t SET id = id + 500000 WHERE id BETWEEN 600 AND 650");
    run(&format!("UPDATE t SET c = 'row 7' WHERE id = {first}"));
    run("DELETE FROM t WHERE id BETWEEN 700 AND 800");
    run("INSERT INTO t SELECT value, 5, 'again', 5 FROM generate_series(720, 740)");
    run("DELETE FROM t WHERE id BETWEEN 730 AND 735");
    run(
        "INSERT INTO t VALUES (900, 1, 'x', 1), (2000001, 1, 'x', 1) ON CONFLICT (id) DO UPDATE SET b = excluded.b + t.b",
    );
    run("INSERT INTO t VALUES (901, 1, 'x', 1), (2000002, 1, 'x', 1) ON CONFLICT (id) DO UPDATE SET b = excluded.b");
    run("INSERT INTO t VALUES (902, 1, 'x', 1) ON CONFLICT DO NOTHING");
    run("INSERT OR REPLACE INTO t VALUES (903, -1, 'y', 1), (2000003, -1, 'y', 1)");
    run("MERGE INTO t USING (SELECT value FROM generate_series(1000, 1010) UNION ALL SELECT 2000004) s (k) ON t.id = k
         WHEN MATCHED AND k % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET b = -5
         WHEN NOT MATCHED THEN INSERT VALUES (k, 7, 'merged', 7)");
    run(&format!(
        "BEGIN; UPDATE t SET b = 77 WHERE id = 1100; SAVEPOINT s; DELETE FROM t WHERE id = 1101; ROLLBACK TO s;
         UPDATE t SET c = 'tx' WHERE id IN (1100, 1102); INSERT INTO t VALUES ({}, 3, 'tx', 3);
         INSERT INTO t VALUES (2000006, 3, 'tx', 3) ON CONFLICT (id) DO UPDATE SET b = excluded.b;
         DELETE FROM t WHERE id = 1103; COMMIT;
         BEGIN; UPDATE t SET b = 78 WHERE id = 1104; ROLLBACK",
        first + 2
    ));
    let mut appender = connection.appender("t").unwrap();
    (0..50).for_each(|row| appender.append_row((3_000_000 + first * 100 + row, row, "appended", 1.5)).unwrap());
    appender.finish().unwrap();
    let file = directory.join(format!("{first}.csv"));
    let line = |row: i64| format!("{},{},copied,0.5\n", 4_000_000 + first * 100_000 + (row * 7919) % 25_000, row % 50);
    std::fs::write(&file, (0..500).map(line).collect::<String>()).unwrap();
    run(&format!("COPY t FROM '{}'", file.display()));
    // A bulk load, whose rows are not in order.
    std::fs::write(&file, (500..22_000).map(line).collect::<String>()).unwrap();
    run(&format!("COPY t FROM '{}'", file.display()));
    run("UPDATE t SET b = 3 WHERE c = 'copied' AND b = 2");
}

#[test]
fn changes_in_each_phase_reach_the_index() {
    let directory = tempfile::tempdir().unwrap();
    // Tables without primary key have a hidden key, with which some of the definitions suffice.
    for (key, definitions) in [("id BIGINT PRIMARY KEY", &DEFINITIONS[..]), ("id BIGINT UNIQUE", &DEFINITIONS[4..])] {
        for (position, definition) in definitions.iter().copied().enumerate() {
            let path = directory.path().join(format!("{position} {key}"));
            std::fs::create_dir(&path).unwrap();
            let database = open(&path);
            let connection = database.connect().unwrap();
            create_table(&connection, key);
            let (beside, phases) = (database.clone(), Arc::new(AtomicU64::new(0)));
            let (count, files) = (phases.clone(), path.clone());
            // The writers commit while the statement runs: it waits for them.
            let change = move |phase: &str| {
                if is_load(phase) || is_last(phase) {
                    let connection = beside.connect().unwrap();
                    change_all(&connection, &files, 10_000 + 10 * count.fetch_add(1, Ordering::SeqCst) as i64);
                    let error = connection.execute("CREATE INDEX i ON t (d)", ()).unwrap_err();
                    assert!(matches!(error.root(), Error::AlreadyExists { .. }), "{error}");
                    let explained: String =
                        connection.query_row("EXPLAIN SELECT id FROM t WHERE b = 5", (), |row| row.get(1)).unwrap();
                    assert!(!explained.contains("t.i"), "{explained}");
                }
            };
            execute_with(&database, definition, change).unwrap();
            assert_eq!(phases.load(Ordering::SeqCst), 2, "{definition}");
            // Changes of the complete index.
            change_all(&connection, &path, 20_000);
            verify(&connection, definition);
        }
    }
}

#[test]
fn tables_with_other_keys() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(directory.path());
    let connection = database.connect().unwrap();
    execute(&connection, "CREATE TABLE t (k TEXT, n INT, v BIGINT, PRIMARY KEY (k, n))");
    execute(&connection, "INSERT INTO t SELECT 'k' || value % 50, value, value % 7 FROM generate_series(1, 5000)");
    let beside = database.clone();
    let change = move |phase: &str| {
        let connection = beside.connect().unwrap();
        let run = |sql: &str| execute(&connection, sql);
        if is_load(phase) || is_last(phase) {
            // More keys than a part of a round has, each several times.
            run("UPDATE t SET v = v + 1");
            run("UPDATE t SET v = v + 10 WHERE n > 100");
            run("UPDATE t SET k = k || '''' WHERE n % 3 = 0");
            run("DELETE FROM t WHERE n % 17 = 0");
            run("INSERT INTO t VALUES ('', 0, 1), ('a', -1, NULL) ON CONFLICT (k, n) DO UPDATE SET v = 9");
        }
    };
    let definition = "CREATE INDEX CONCURRENTLY i ON t (v) INCLUDE (k)";
    execute_with(&database, definition, change).unwrap();
    verify(&connection, definition);
}

/// A transaction that holds the writer lock, for which the last round waits.
#[test]
fn changes_before_the_last_round() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(directory.path());
    let connection = database.connect().unwrap();
    create_table(&connection, "id BIGINT PRIMARY KEY");
    for definition in DEFINITIONS {
        let (beside, path) = (database.clone(), directory.path().to_path_buf());
        let is_done = AtomicBool::new(false);
        let (sender, receiver) = std::sync::mpsc::channel();
        execute_with(&database, definition, move |phase| {
            if is_last(phase) && !is_done.swap(true, Ordering::SeqCst) {
                let (connection, sender, path) = (beside.connect().unwrap(), sender.clone(), path.clone());
                execute(&connection, "BEGIN IMMEDIATE");
                std::thread::spawn(move || {
                    // The rounds without the lock have probably ended by then.
                    std::thread::sleep(std::time::Duration::from_millis(200));
                    let file = path.join("rows.csv");
                    std::fs::write(
                        &file,
                        (0..6000).map(|row| format!("{},7,x,1\n", 100_000 + row)).collect::<String>(),
                    )
                    .unwrap();
                    execute(&connection, "UPDATE t SET b = b + 1; UPDATE t SET id = -id WHERE id BETWEEN 5 AND 50");
                    execute(&connection, "DELETE FROM t WHERE id > 90000 OR id BETWEEN 60 AND 70");
                    execute(&connection, &format!("COPY t FROM '{}'; COMMIT", file.display()));
                    sender.send(()).unwrap();
                });
            }
        })
        .unwrap();
        receiver.recv().unwrap();
        verify(&connection, definition);
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A random change of table `t` by one of several writers.
fn change(connection: &Connection, random: &mut Random, directory: &Path, next: &AtomicI64) -> Result<(), Error> {
    let id = random.below(4000);
    let (from, b) = (random.below(4000), random.below(200));
    let new = next.fetch_add(30_000, Ordering::SeqCst);
    let sql = match random.below(20) {
        0..=2 => format!("INSERT INTO t VALUES ({id}, {b}, 'i', 1) ON CONFLICT DO NOTHING"),
        3..=5 => format!("UPDATE t SET b = {b} WHERE id = {id}"),
        6 => format!("UPDATE t SET d = {b} WHERE id BETWEEN {from} AND {}", from + 50),
        7 => format!("UPDATE t SET b = b + 1, c = 'row 7' WHERE id BETWEEN {from} AND {}", from + 50),
        8 => format!("DELETE FROM t WHERE id = {id}"),
        9 => format!("DELETE FROM t WHERE id BETWEEN {from} AND {}", from + 20),
        10 => format!("INSERT INTO t VALUES ({id}, {b}, 'u', 1) ON CONFLICT (id) DO UPDATE SET b = excluded.b"),
        11 => format!("INSERT OR REPLACE INTO t VALUES ({id}, {b}, 'r', 1), ({from}, {b}, 'r', 2)"),
        12 => format!("INSERT INTO t SELECT value, {b}, 's', 5 FROM generate_series({new}, {})", new + 200),
        13 => format!("UPDATE t SET id = {new} WHERE id = {id}"),
        14 => {
            // A row with the same key twice would be an error.
            let other = if from == id { id + 4000 } else { from };
            format!(
                "MERGE INTO t USING (VALUES ({id}), ({other})) s (k) ON t.id = k
                 WHEN MATCHED THEN UPDATE SET b = {b} WHEN NOT MATCHED THEN INSERT VALUES (k, {b}, 'm', 3)"
            )
        }
        15 | 16 => {
            connection.execute("BEGIN", ())?;
            for _ in 0..1 + random.below(4) {
                let (id, b) = (random.below(4000), random.below(200));
                let sql = match random.below(4) {
                    0 => format!("DELETE FROM t WHERE id = {id}"),
                    1 => format!("INSERT INTO t VALUES ({id}, {b}, 't', 1) ON CONFLICT (id) DO UPDATE SET b = 5"),
                    _ => format!("UPDATE t SET b = {b} WHERE id BETWEEN {id} AND {}", id + 3),
                };
                connection.execute(&sql, ())?;
            }
            if random.one_in(3) { "ROLLBACK".into() } else { "COMMIT".into() }
        }
        17 => {
            let mut appender = connection.appender("t")?;
            for row in 0..100 {
                appender.append_row((new + row, row, "a", 0.5))?;
            }
            return appender.finish().map(drop);
        }
        18 => {
            let rows = if random.one_in(4) { 21_000 } else { 300 };
            let file = directory.join(format!("{new}.csv"));
            let lines = (0..rows).map(|row| format!("{},{},c,1\n", new + (row * 7919) % rows, row % 40));
            std::fs::write(&file, lines.collect::<String>()).unwrap();
            let copied = connection.execute(&format!("COPY t FROM '{}'", file.display()), ());
            std::fs::remove_file(file).unwrap();
            return copied.map(drop);
        }
        _ if random.one_in(10) => "TRUNCATE t".into(),
        _ => "CHECKPOINT".into(),
    };
    connection.execute(&sql, ()).map(drop)
}

#[test]
fn random_writers_beside_builds() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = variable("KEYAKI_CONCURRENT_SEED").unwrap_or(now % 1_000_000_007);
    eprintln!("KEYAKI_CONCURRENT_SEED={seed}");
    for key in ["id BIGINT PRIMARY KEY", "id BIGINT UNIQUE"] {
        let directory = tempfile::tempdir().unwrap();
        let database = open(directory.path());
        let connection = database.connect().unwrap();
        create_table(&connection, key);
        let (is_over, next, pause) = (AtomicBool::new(false), AtomicI64::new(1_000_000), RwLock::new(()));
        let beside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let connection = database.connect().unwrap();
                let (is_over, next, pause, beside) = (&is_over, &next, &pause, &beside);
                let mut random = Random::new(seed + writer);
                let directory = directory.path();
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        let _running = pause.read().unwrap();
                        match change(&connection, &mut random, directory, next) {
                            Ok(()) => _ = beside.fetch_add(1, Ordering::SeqCst),
                            Err(Error::Conflict { .. } | Error::Constraint { .. } | Error::Import { .. }) => {
                                if connection.session().transaction_status() != keyaki::TransactionStatus::Idle {
                                    execute(&connection, "ROLLBACK");
                                }
                            }
                            Err(error) => {
                                is_over.store(true, Ordering::SeqCst);
                                panic!("{error}");
                            }
                        }
                    }
                });
            }
            let mut random = Random::new(seed + 100);
            for round in 0..variable("KEYAKI_CONCURRENT_ROUNDS").unwrap_or(10) {
                let definition = random.pick(&DEFINITIONS);
                let before = beside.load(Ordering::SeqCst);
                let built = connection.execute(definition, ());
                if let Err(error) = &built {
                    is_over.store(true, Ordering::SeqCst);
                    panic!("round {round}: {definition}: {error}");
                }
                eprintln!("{definition}: {} changes", beside.load(Ordering::SeqCst) - before);
                let paused = pause.write().unwrap();
                let verified =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| verify(&connection, definition)));
                drop(paused);
                if let Err(panic) = verified {
                    is_over.store(true, Ordering::SeqCst);
                    std::panic::resume_unwind(panic);
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
    }
}

/// Duplicates in a unique index, old ones and those of concurrent writers.
#[test]
fn duplicates_fail_the_build() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(directory.path());
    let connection = database.connect().unwrap();
    execute(&connection, "CREATE TABLE t (id BIGINT PRIMARY KEY, b BIGINT, c TEXT)");
    execute(&connection, "INSERT INTO t SELECT value, value, 'x' FROM generate_series(1, 5000)");
    let before = trees(database.store());
    let definition = "CREATE UNIQUE INDEX CONCURRENTLY i ON t (b)";
    let attempt = |sql: &'static str, definition: &str, applies: fn(&str) -> bool| {
        let beside = database.clone();
        execute_with(&database, definition, move |phase| {
            if applies(phase) {
                beside.connect().unwrap().execute_batch(sql).unwrap();
            }
        })
    };
    let check = |sql, applies| {
        let error = attempt(sql, definition, applies).unwrap_err();
        assert_eq!(error.sqlstate().to_string(), "23505", "{error}");
        assert!(error.to_string().contains("17"), "{error}");
        assert_eq!((trees(database.store()), documents(database.store())), (before.clone(), 0));
        assert_eq!(database.indexes().len(), 0);
        execute(&connection, "DELETE FROM t WHERE id > 5000; UPDATE t SET b = id WHERE b <> id");
    };
    execute(&connection, "INSERT INTO t VALUES (5001, 17, 'y')");
    check("SELECT 1", is_load);
    check("INSERT INTO t VALUES (5001, 17, 'y')", is_load);
    check("UPDATE t SET b = 17 WHERE id = 4000", is_last);
    check("UPDATE t SET b = 20017 WHERE id = 4000; UPDATE t SET b = 20017 WHERE id = 4001", is_last);
    // The rows of a partial index only, nulls, and rows that exchange their keys.
    let fine = "INSERT INTO t VALUES (5001, 17, NULL), (5002, NULL, 'x'), (5003, NULL, 'x');
        UPDATE t SET b = 5001 - b WHERE id <= 5000";
    attempt(fine, "CREATE UNIQUE INDEX CONCURRENTLY i ON t (b) WHERE c = 'x'", is_load).unwrap();
    let error = connection.execute("INSERT INTO t VALUES (5004, 18, 'x')", ()).unwrap_err();
    assert_eq!(error.sqlstate().to_string(), "23505");
    execute(&connection, "INSERT INTO t VALUES (5004, 18, 'y')");
    assert_eq!(number(&connection, "SELECT id FROM t WHERE b = 17 AND c = 'x'"), 4984);
    verify(&connection, "CREATE UNIQUE INDEX CONCURRENTLY i ON t (b) WHERE c = 'x'");
    // Expressions that fail for the rows of a writer.
    let error = attempt("INSERT INTO t VALUES (0, 0, 'z')", "CREATE INDEX CONCURRENTLY i ON t ((100 / b))", is_load);
    assert_eq!(error.unwrap_err().sqlstate().to_string(), "22012");
    assert_eq!((trees(database.store()), documents(database.store())), (before, 0));
}

/// Interrupts the statement in a phase.
#[test]
fn interrupts_leave_nothing() {
    for applies in [is_load as fn(&str) -> bool, |phase| phase.starts_with("writing"), is_last] {
        let directory = tempfile::tempdir().unwrap();
        let database = open(directory.path());
        let connection = database.connect().unwrap();
        create_table(&connection, "id BIGINT PRIMARY KEY");
        let before = trees(database.store());
        let building = database.connect().unwrap();
        let (handle, beside) = (building.interrupt_handle(), database.clone());
        let started = Arc::new(AtomicBool::new(false));
        let reached = started.clone();
        building.session().set_progress(Arc::new(Phases(move |phase: &str| {
            if applies(phase) && !reached.swap(true, Ordering::SeqCst) {
                execute(&beside.connect().unwrap(), "UPDATE t SET b = b + 1");
                handle.interrupt();
            }
        })));
        let error = building.execute("CREATE INDEX CONCURRENTLY i ON t (b)", ()).unwrap_err();
        assert!(matches!(error.root(), Error::Cancelled), "{error}");
        assert!(started.load(Ordering::SeqCst));
        // The next statement that writes removes the build.
        execute(&connection, "UPDATE t SET b = b + 1 WHERE id = 1");
        assert_eq!((trees(database.store()), documents(database.store())), (before, 0));
        assert!(database.indexes().is_empty());
        execute(&building, "CREATE INDEX CONCURRENTLY i ON t (b)");
        verify(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
    }
}

/// Copies the files of an open database, as a crash of the process leaves them.
fn crashed(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("db")).unwrap();
    for entry in std::fs::read_dir(directory.join("db")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join("db").join(entry.file_name())).unwrap();
        }
    }
    copy
}

#[test]
fn a_crash_removes_the_build() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("db"), Options::default()).unwrap();
    let connection = database.connect().unwrap();
    create_table(&connection, "id BIGINT PRIMARY KEY");
    let before = trees(database.store());
    let copies: Arc<Mutex<Vec<tempfile::TempDir>>> = Arc::default();
    let (path, beside, taken) = (directory.path().to_path_buf(), database.clone(), copies.clone());
    let crash = move |_: &str| {
        execute(&beside.connect().unwrap(), "UPDATE t SET b = b + 1");
        taken.lock().unwrap().push(crashed(&path));
    };
    execute_with(&database, "CREATE INDEX CONCURRENTLY i ON t (b)", crash).unwrap();
    let copies = std::mem::take(&mut *copies.lock().unwrap());
    assert!(copies.len() >= 3, "{} phases", copies.len());
    for (phase, copy) in copies.iter().enumerate() {
        let database = open(copy.path());
        let connection = database.connect().unwrap();
        assert_eq!((trees(database.store()), documents(database.store())), (before.clone(), 0), "phase {phase}");
        assert!(database.indexes().is_empty());
        execute(&connection, "UPDATE t SET b = b + 1");
        execute(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
        verify(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
    }
    verify(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
}

/// A power failure after some operations of the device: the index is complete or does not exist.
fn build_and_crash(operations: Option<u64>) -> u64 {
    let simulated = Simulated::new(SimulatedOptions { seed: operations.unwrap_or(0), ..Default::default() });
    let options = || Options { device: Some(simulated.device()), durability: Durability::Full, ..options() };
    let database = Database::open("/db", options()).unwrap();
    let connection = database.connect().unwrap();
    create_table(&connection, "id BIGINT PRIMARY KEY");
    let before = simulated.operations();
    if let Some(operations) = operations {
        simulated.crash_after_operations(operations);
    }
    let beside = database.clone();
    let built = execute_with(&database, "CREATE INDEX CONCURRENTLY i ON t (b)", move |_| {
        // Fails after the power failure.
        let connection = beside.connect().unwrap();
        drop(connection.execute_batch("UPDATE t SET b = b + 1 WHERE id < 500; DELETE FROM t WHERE id BETWEEN 7 AND 9"));
    });
    let needed = simulated.operations() - before;
    drop(connection);
    drop(database);
    simulated.crash();
    let database = Database::open("/db", options()).unwrap();
    let connection = database.connect().unwrap();
    assert_eq!(documents(database.store()), 0);
    if database.indexes().is_empty() {
        assert!(built.is_err(), "crash after {operations:?} operations");
        // The catalog and the table.
        assert_eq!(trees(database.store()).len(), 2, "crash after {operations:?} operations");
        execute(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
    }
    assert_eq!(trees(database.store()).len(), 3, "crash after {operations:?} operations");
    execute(&connection, "UPDATE t SET b = b + 1 WHERE id < 10");
    verify(&connection, "CREATE INDEX CONCURRENTLY i ON t (b)");
    needed
}

#[test]
fn a_power_failure_leaves_the_index_or_nothing() {
    let needed = build_and_crash(None);
    let step = (needed / 40).max(1) as usize;
    for operations in (0..needed + 2).step_by(step) {
        build_and_crash(Some(operations));
    }
}

/// Definitions that change during the build.
#[test]
fn redefined_tables() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(directory.path());
    let connection = database.connect().unwrap();
    let build = |sql: &'static str, definition: &str, applies: fn(&str) -> bool| {
        execute(&connection, "DROP TABLE IF EXISTS t CASCADE");
        create_table(&connection, "id BIGINT PRIMARY KEY");
        let (beside, is_done) = (database.clone(), AtomicBool::new(false));
        execute_with(&database, definition, move |phase| {
            if applies(phase) && !is_done.swap(true, Ordering::SeqCst) {
                beside.connect().unwrap().execute_batch(sql).unwrap();
            }
        })
    };
    let definition = "CREATE INDEX CONCURRENTLY i ON t (b) INCLUDE (c)";
    for applies in [is_load as fn(&str) -> bool, is_last] {
        for sql in [
            "TRUNCATE t; INSERT INTO t VALUES (1, 2, 'x', 3), (2, 3, 'y', 4)",
            "TRUNCATE t",
            "BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 2, 'x', 3); COMMIT",
            "BEGIN; TRUNCATE t; ROLLBACK; DELETE FROM t WHERE id = 7",
            "ALTER TABLE t ADD COLUMN e BIGINT; INSERT INTO t VALUES (-1, 2, 'x', 3, 4)",
            "ALTER TABLE t ADD COLUMN e BIGINT DEFAULT 5; DELETE FROM t WHERE id = 7",
            "ALTER TABLE t DROP COLUMN d; DELETE FROM t WHERE id = 7",
            "ALTER TABLE t ALTER COLUMN b TYPE TEXT; DELETE FROM t WHERE id = 7",
            "ALTER TABLE t ALTER COLUMN id TYPE INT; DELETE FROM t WHERE id = 7",
            "ALTER TABLE t ALTER COLUMN b SET DEFAULT 7; INSERT INTO t (id) VALUES (-1)",
            "ALTER TABLE t DROP CONSTRAINT t_pkey; DELETE FROM t WHERE id = 7",
            "CREATE INDEX other ON t (d); UPDATE t SET b = 5 WHERE id = 7",
            "CREATE INDEX CONCURRENTLY other ON t (d); UPDATE t SET b = 5 WHERE id = 7",
            "ALTER TABLE t ADD CHECK (b > -5); COMMENT ON TABLE t IS 'x'; ANALYZE t; UPDATE t SET b = 5 WHERE id = 7",
            "CREATE TABLE IF NOT EXISTS r (id BIGINT REFERENCES t (id)); UPDATE t SET b = 5 WHERE id = 7",
            "DROP TABLE t; CREATE TABLE t (id BIGINT, b BIGINT, c TEXT); INSERT INTO t VALUES (1, 2, 'x')",
        ] {
            build(sql, definition, applies).unwrap_or_else(|error| panic!("{sql}: {error}"));
            execute(&connection, "UPDATE t SET b = b WHERE id = 8");
            verify(&connection, definition);
        }
        for (sql, state) in [
            ("DROP TABLE t", "42P01"),
            ("ALTER TABLE t RENAME TO renamed; CREATE VIEW v AS SELECT 1; DROP TABLE renamed; DROP VIEW v", "42P01"),
            ("ALTER TABLE t DROP COLUMN b", "42703"),
        ] {
            let error = build(sql, definition, applies).unwrap_err();
            assert_eq!(error.sqlstate().to_string(), state, "{sql}: {error}");
            assert_eq!(documents(database.store()), 0);
        }
    }
    execute(&connection, "DROP TABLE IF EXISTS r; DROP TABLE IF EXISTS t");
    assert_eq!(trees(database.store()), BTreeSet::from([1]));
}

/// Transactions that are open when the build begins or ends.
#[test]
fn transactions() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(directory.path());
    let connection = database.connect().unwrap();
    create_table(&connection, "id BIGINT PRIMARY KEY");
    execute(&connection, "CREATE TABLE other (a BIGINT)");
    let definition = "CREATE INDEX CONCURRENTLY i ON t (b)";
    // Writers of the table have a conflict at each change of the definition, others have none.
    let old = database.connect().unwrap();
    old.execute_batch("BEGIN; UPDATE t SET b = 1000 WHERE id = 1").unwrap();
    let unrelated = database.connect().unwrap();
    unrelated.execute_batch("BEGIN; INSERT INTO other SELECT count(*) FROM t").unwrap();
    let during = Arc::new(Mutex::new(database.connect().unwrap()));
    let (writer, beside) = (during.clone(), database.clone());
    execute_with(&database, definition, move |phase| {
        let connection = beside.connect().unwrap();
        if is_load(phase) {
            writer.lock().unwrap().execute_batch("BEGIN; UPDATE t SET b = 1001 WHERE id = 2").unwrap();
        } else if is_last(phase) {
            connection.execute_batch("BEGIN; UPDATE t SET b = 1002 WHERE id = 3; COMMIT").unwrap();
        }
    })
    .unwrap();
    for conflicting in [&old, &*during.lock().unwrap()] {
        let error = conflicting.execute("COMMIT", ()).unwrap_err();
        assert_eq!(error.sqlstate().to_string(), "40001", "{error}");
    }
    execute(&unrelated, "COMMIT");
    assert_eq!(number(&connection, "SELECT count(*) FROM t WHERE b >= 1000"), 1);
    verify(&connection, definition);
    // The statement is refused inside a transaction.
    execute(&connection, "BEGIN");
    let error = connection.execute(definition, ()).unwrap_err();
    assert_eq!(error.sqlstate().to_string(), "25001");
    assert_eq!(error.to_string(), "CREATE INDEX CONCURRENTLY cannot run inside a transaction block");
    execute(&connection, "ROLLBACK");
    let error = connection.execute("CREATE INDEX CONCURRENTLY i ON t USING masstree (b)", ()).unwrap_err();
    assert_eq!(error.sqlstate().to_string(), "0A000");
}

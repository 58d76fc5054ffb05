//! Statements interrupted, and futures dropped, at random moments: what a statement reports is what has happened. CREATE
//! TABLE AS is also interrupted by power failures.
//!
//! `KEYAKI_CANCEL_ROUNDS` sets the number of statements (default 80), `KEYAKI_CANCEL_SEED` the seed (default: random,
//! printed).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use keyaki::{Connection, Database, Error, Options};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;

const ROWS: i64 = 3_000;
/// Rows of the file to load: enough for a bulk load into an empty table.
const FILE_ROWS: i64 = 3_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn random(test: &str) -> Random {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = variable("KEYAKI_CANCEL_SEED").unwrap_or(now % 1_000_000_007);
    eprintln!("{test}: KEYAKI_CANCEL_SEED={seed}");
    Random::new(seed)
}

fn rounds() -> u64 {
    variable("KEYAKI_CANCEL_ROUNDS").unwrap_or(80)
}

/// A database with `t`, whose rows are `(a, a % 10)` for `a` up to [`ROWS`], and an empty table `e`, and a file for it.
fn filled(directory: &Path) -> Database {
    let options = Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() };
    let database = Database::open(directory, options).unwrap();
    let connection = database.connect().unwrap();
    connection.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT)", ()).unwrap();
    connection.execute("CREATE INDEX t_b ON t (b)", ()).unwrap();
    connection.execute("CREATE TABLE e (a BIGINT PRIMARY KEY, b BIGINT)", ()).unwrap();
    connection.execute("CREATE INDEX e_b ON e USING masstree (b)", ()).unwrap();
    let lines: String = (0..FILE_ROWS).map(|row| format!("{row},{}\n", row % 13)).collect();
    std::fs::write(directory.join("e.csv"), lines).unwrap();
    let rows = "INSERT INTO t SELECT value, value % 10 FROM generate_series(1, $1)";
    connection.execute(rows, (ROWS,)).unwrap();
    database
}

/// The tables with their numbers of rows and sums, by table and by index.
type State = BTreeMap<&'static str, [Option<i64>; 3]>;

fn state(connection: &Connection) -> State {
    let mut state = State::new();
    for (table, query) in [
        ("t", "SELECT count(*), sum(a), sum(b) FROM t"),
        ("t_b", "SELECT count(*), min(b), max(b) FROM t WHERE b > -1000000"),
        ("e", "SELECT count(*), sum(a), sum(b) FROM e"),
        ("e_b", "SELECT count(*), min(b), max(b) FROM e WHERE b > -1"),
        ("n", "SELECT count(*), sum(a), sum(b) FROM n"),
    ] {
        match connection.query_row(query, (), |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])) {
            Ok(row) => _ = state.insert(table, row),
            Err(error) if matches!(error.root(), Error::NotFound { .. }) => {}
            Err(error) => panic!("{query}: {error}"),
        }
    }
    state
}

/// A statement, and one that undoes it.
fn statement(random: &mut Random, directory: &Path) -> (String, String) {
    let (from, rows) = (ROWS + 1, *random.pick(&[1, 900, 2_000]));
    // More rows than fit into a write batch are rare: they take long.
    let rows = if random.one_in(20) { 110_000 } else { rows };
    let series = format!("SELECT value AS a, value % 7 AS b FROM generate_series({from}, {})", from + rows - 1);
    let undo_insert = format!("DELETE FROM t WHERE a >= {from}");
    match random.below(6) {
        0 => (format!("INSERT INTO t {series}"), undo_insert),
        1 => (format!("CREATE TABLE n AS {series}"), "DROP TABLE n".into()),
        2 => ("UPDATE t SET b = b + 1000".into(), "UPDATE t SET b = b - 1000".into()),
        3 => (
            "DELETE FROM t WHERE a % 2 = 0".into(),
            format!("INSERT INTO t SELECT value, value % 10 FROM generate_series(2, {ROWS}, 2)"),
        ),
        4 => (format!("COPY e FROM '{}'", directory.join("e.csv").display()), "DELETE FROM e".into()),
        _ => (format!("INSERT INTO t VALUES ({from}, 5)"), undo_insert),
    }
}

/// Executes and undoes a statement. Returns the state afterwards, and its time.
fn expected(connection: &Connection, sql: &str, undo: &str) -> (State, Duration) {
    let start = Instant::now();
    connection.execute(sql, ()).unwrap();
    let time = start.elapsed();
    let after = state(connection);
    connection.execute(undo, ()).unwrap();
    (after, time)
}

/// A time up to a little more than `time`.
fn delay(random: &mut Random, time: Duration) -> Duration {
    time.mul_f64(1.2 * random.unit())
}

#[test]
fn interrupted_statements_report_what_has_happened() {
    let mut random = random("interrupts");
    let directory = tempfile::tempdir().unwrap();
    let connection = filled(directory.path()).connect().unwrap();
    let handle = connection.interrupt_handle();
    let before = state(&connection);
    let (sender, receiver) = channel::<Duration>();
    let timer = std::thread::spawn(move || {
        for delay in receiver {
            std::thread::sleep(delay);
            handle.interrupt();
        }
    });
    let mut cancelled = 0;
    for _ in 0..rounds() {
        let (sql, undo) = statement(&mut random, directory.path());
        let other = connection.try_clone().unwrap();
        let (after, time) = expected(&other, &sql, &undo);
        sender.send(delay(&mut random, time)).unwrap();
        match connection.execute(&sql, ()) {
            Ok(_) => {
                assert_eq!(state(&other), after, "{sql}");
                other.execute(&undo, ()).unwrap();
            }
            Err(Error::Cancelled) => {
                cancelled += 1;
                assert_eq!(state(&other), before, "{sql}");
            }
            Err(error) => panic!("{sql}: {error}"),
        }
        // A writer waits until the cancelled work has ended. That work must not change anything either.
        other.execute("DELETE FROM t WHERE a = -1", ()).unwrap();
        assert_eq!(state(&other), before, "{sql}");
    }
    drop(sender);
    timer.join().unwrap();
    eprintln!("{cancelled} of {} statements were cancelled", rounds());
    drop(connection);
    let connection = Connection::open(directory.path()).unwrap();
    assert_eq!(state(&connection), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_with_dropped_futures_have_their_whole_effect_or_none() {
    let mut random = random("dropped futures");
    let directory = tempfile::tempdir().unwrap();
    let database = filled(directory.path());
    let session = database.session();
    let connection = database.connect().unwrap();
    let before = tokio::task::block_in_place(|| state(&connection));
    for _ in 0..rounds() {
        let (sql, undo) = statement(&mut random, directory.path());
        let (after, time) = tokio::task::block_in_place(|| expected(&connection, &sql, &undo));
        let ended = tokio::time::timeout(delay(&mut random, time), session.execute(&sql)).await;
        tokio::task::block_in_place(|| {
            // A writer waits until the cancelled work has ended.
            connection.execute("DELETE FROM t WHERE a = -1", ()).unwrap();
            let found = state(&connection);
            match ended {
                Ok(result) => {
                    result.unwrap();
                    assert_eq!(found, after, "{sql}");
                }
                Err(_) => assert!(found == before || found == after, "{sql}: {found:?}"),
            }
            if found != before {
                connection.execute(&undo, ()).unwrap();
            }
            assert_eq!(state(&connection), before, "{sql}");
        });
    }
}

/// Executes `sql`, which creates table `n` with `rows` rows, with a power failure after `operations` operations of the
/// device. Checks the table after the restart. Returns the number of operations of the whole statement, if it succeeded.
fn create_and_crash(sql: &str, rows: i64, operations: Option<u64>) -> Option<u64> {
    let simulated = Simulated::new(SimulatedOptions { seed: operations.unwrap_or(0), ..Default::default() });
    let options = || Options {
        device: Some(simulated.device()),
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        ..Options::default()
    };
    let connection = Connection::open_with("/db", options()).unwrap();
    let before = simulated.operations();
    if let Some(operations) = operations {
        simulated.crash_after_operations(operations);
    }
    let result = connection.execute(sql, ());
    let needed = simulated.operations() - before;
    drop(connection);
    simulated.crash();
    let connection = Connection::open_with("/db", options()).unwrap();
    match connection.query_row("SELECT count(*) FROM n", (), |row| row.get::<_, i64>(0)) {
        Ok(found) => assert_eq!(found, rows, "{sql}, crash after {operations:?} operations"),
        Err(error) if matches!(error.root(), Error::NotFound { .. }) => {
            assert!(result.is_err(), "{sql}, crash after {operations:?} operations");
        }
        Err(error) => panic!("{sql}, crash after {operations:?} operations: {error}"),
    }
    // The name and the space are free.
    connection.execute("DROP TABLE IF EXISTS n", ()).unwrap();
    connection.execute("CREATE TABLE n AS SELECT 1 AS x", ()).unwrap();
    result.is_ok().then_some(needed)
}

#[test]
fn a_crash_leaves_a_created_table_with_its_rows_or_none() {
    // A write batch and a bulk load.
    for rows in [3_000, 110_000] {
        let sql = format!("CREATE TABLE n AS SELECT value FROM generate_series(1, {rows})");
        let needed = create_and_crash(&sql, rows, None).unwrap();
        // The first operations write rows, the last ones commit them.
        let first = (0..needed.saturating_sub(12)).step_by(7);
        for operations in first.chain(needed.saturating_sub(12)..needed + 2) {
            create_and_crash(&sql, rows, Some(operations));
        }
    }
}

/// A nested-loop join that finds no rows returns from its condition only.
#[test]
fn joins_without_matches_are_cancelled() {
    let connection = Connection::open_temporary().unwrap();
    let slow = "SELECT count(*) FROM generate_series(1, 1000000) a(a) JOIN generate_series(1, 1000000) b(b)
        ON a + b = 7 + random()";
    for _ in 0..2 {
        let handle = connection.interrupt_handle();
        let timer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            handle.interrupt();
        });
        let result = connection.query_row(slow, (), |row| row.get::<_, i64>(0));
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
        timer.join().unwrap();
    }
    // The join is the same one.
    let joined =
        "SELECT count(*), sum(a) FROM generate_series(1, 300) a(a) JOIN generate_series(1, 300) b(b) ON a * b > 80000";
    let row = connection.query_row(joined, (), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let expected = (1..=300_i64).flat_map(|a| (1..=300).map(move |b| (a, b))).filter(|(a, b)| a * b > 80_000);
    assert_eq!(row, (expected.clone().count() as i64, expected.map(|(a, _)| a).sum()));
    let first = "SELECT a FROM generate_series(1, 100000) a(a) JOIN generate_series(1, 100000) b(b) ON a + b > 7 + random() LIMIT 3";
    assert_eq!(connection.query(first, ()).unwrap().mapped(|row| row.get::<_, i64>(0)).count(), 3);
}

//! Tests of cancellation: every statement is stopped at every stage and is then interrupted, or its future is dropped.
//! The statement must have no effect before it has decided to commit, and its whole effect afterwards.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, ThreadId};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use futures::FutureExt;
use tempfile::TempDir;

use super::{Connection, Database, Session};
use crate::base::interrupt::Stage;
use crate::catalog::RelationName;
use crate::engine::Engine;
use crate::{Error, Options, Result};

const STAGES: [Stage; 5] = [Stage::Begun, Stage::Working, Stage::Deciding, Stage::Decided, Stage::Committed];

/// The tables of all tests: `t` has rows, `e` is empty.
const SETUP: &str = "
    CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT, c TEXT);
    INSERT INTO t SELECT value, value % 97, 'row ' || value FROM generate_series(1, 5000);
    CREATE INDEX t_b ON t (b);
    CREATE INDEX t_c ON t USING masstree (c);
    CREATE TABLE e (a BIGINT PRIMARY KEY, b BIGINT);
    CREATE INDEX e_b ON e USING masstree (b);
    CREATE VIEW v AS SELECT b FROM t;
    CHECKPOINT";

/// Statements, and the stages that they do not reach. `{}` is the directory of the test.
type Statements = &'static [(&'static str, &'static [Stage])];

/// Write batches, first those of the short path.
const WRITE_BATCHES: Statements = &[
    ("INSERT INTO t VALUES (-1, 1, 'new')", &[]),
    ("UPDATE t SET b = b + 1000 WHERE a = 17", &[]),
    ("DELETE FROM t WHERE a = 18", &[]),
    ("INSERT INTO t SELECT a + 10000, b, c FROM t", &[]),
    ("UPDATE t SET b = b + 1000 WHERE c LIKE '%1%'", &[]),
    ("DELETE FROM t WHERE c LIKE '%1%'", &[]),
    ("COPY t FROM '{}/small.csv'", &[]),
];

const BULK_LOADS: Statements = &[
    ("INSERT INTO e SELECT value, value % 7 FROM generate_series(1, 110000)", &[]),
    ("COPY e FROM '{}/large.csv'", &[]),
    ("CREATE TABLE n AS SELECT value FROM generate_series(1, 110000)", &[]),
];

const DEFINITIONS: Statements = &[
    ("CREATE TABLE n (a BIGINT PRIMARY KEY, b BIGINT UNIQUE)", &[Stage::Working]),
    ("CREATE TABLE n AS SELECT a, c FROM t", &[]),
    ("CREATE VIEW w AS SELECT c FROM t", &[Stage::Working]),
    ("CREATE OR REPLACE VIEW v AS SELECT c FROM t", &[Stage::Working]),
    ("DROP TABLE e", &[Stage::Working]),
    ("DROP INDEX t_b", &[Stage::Working]),
    ("DROP INDEX t_c", &[Stage::Working]),
    ("DROP VIEW v", &[Stage::Working]),
    ("TRUNCATE t, e", &[Stage::Working]),
    ("COMMENT ON COLUMN t.c IS 'text'", &[Stage::Working]),
    ("ALTER TABLE e RENAME TO f", &[Stage::Working]),
    ("ALTER TABLE t RENAME COLUMN c TO d", &[Stage::Working]),
    ("ALTER TABLE t ALTER COLUMN b SET DEFAULT 5", &[Stage::Working]),
    ("ALTER TABLE t ADD CHECK (a >= 0), ALTER COLUMN b SET NOT NULL", &[]),
    ("ALTER TABLE t ADD UNIQUE (c)", &[]),
    ("ALTER TABLE t ADD COLUMN d BIGINT DEFAULT 3", &[Stage::Working]),
    ("ALTER TABLE t ADD COLUMN d BIGINT DEFAULT 3 + (0 * random())::bigint", &[]),
    ("ALTER TABLE e DROP COLUMN b", &[Stage::Working]),
];

const INDEXES: Statements = &[
    ("CREATE INDEX i ON t (c)", &[]),
    ("CREATE INDEX i ON e (b)", &[Stage::Working]),
    ("CREATE UNIQUE INDEX i ON t USING masstree (b, a)", &[]),
    ("CREATE INDEX i ON t USING masstree (b)", &[]),
    ("CREATE INDEX i ON t USING vast (b)", &[]),
];

const OTHERS: Statements = &[
    ("ANALYZE", &[Stage::Working]),
    ("CHECKPOINT", &[Stage::Begun, Stage::Working]),
    ("COPY t TO '{}/out.csv'", &[Stage::Begun]),
    ("PIN INDEX t_c", &[Stage::Begun, Stage::Committed]),
];

fn options() -> Options {
    Options { memory_bytes: Some(24 << 20), threads: Some(2), ..Options::default() }
}

/// A directory with a database and files to load. Each test works on a copy.
fn template() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open_with(directory.path().join("db"), options()).unwrap();
    connection.execute_batch(SETUP).unwrap();
    let lines = |rows: std::ops::Range<i64>, columns: &str| {
        rows.map(|row| format!("{row},{}{columns}\n", row % 13)).collect::<String>()
    };
    std::fs::write(directory.path().join("small.csv"), lines(10_000..10_500, ",text")).unwrap();
    std::fs::write(directory.path().join("large.csv"), lines(0..4000, "")).unwrap();
    directory
}

fn copy(template: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let copy_file = |path: &Path| std::fs::copy(template.join(path), directory.path().join(path)).unwrap();
    std::fs::create_dir(directory.path().join("db")).unwrap();
    for entry in std::fs::read_dir(template.join("db")).unwrap().map(std::result::Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            copy_file(&Path::new("db").join(entry.file_name()));
        }
    }
    ["small.csv", "large.csv"].iter().for_each(|name| _ = copy_file(Path::new(name)));
    directory
}

/// The state that a statement may change.
#[derive(Debug, PartialEq)]
struct State {
    /// Definitions, and the rows of tables by table and by index, after the database was opened again.
    stored: Vec<String>,
    statistics: bool,
    checkpoints: u64,
    pins: usize,
    files: Vec<PathBuf>,
}

/// Opened resources that a cancelled statement must give back.
#[derive(Debug, PartialEq)]
struct Held {
    data_bytes_used: u64,
    memory_tree_bytes: u64,
    query_bytes: usize,
}

impl Held {
    fn of(engine: &Engine) -> Held {
        let stats = engine.store.stats();
        Held {
            data_bytes_used: stats.data_bytes_used,
            memory_tree_bytes: stats.memory_tree_bytes,
            query_bytes: engine.base_state.runtime_env().memory_pool.reserved(),
        }
    }
}

impl State {
    /// The state after all work of a statement has ended. Closes the database.
    fn of(engine: Arc<Engine>, directory: &Path) -> State {
        let statistics = engine
            .catalog
            .read()
            .tables
            .get(&RelationName::public("e"))
            .is_some_and(|table| table.statistics.is_some());
        let (checkpoints, pins) = (engine.store.stats().checkpoints, engine.cache.pins.list(&engine.store).len());
        assert_eq!(Arc::strong_count(&engine), 1, "all work has ended");
        drop(engine);
        let mut files: Vec<PathBuf> = Vec::new();
        for folder in [directory, &directory.join("db/tmp")] {
            files.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
        files.sort();
        let connection = Connection::open_with(directory.join("db"), options()).unwrap();
        let database = connection.database();
        let described = |table: crate::TableInfo| std::iter::once(table.sql).chain(table.comments);
        let mut stored: Vec<String> = database.tables().into_iter().flat_map(described).collect();
        stored.extend(database.indexes().into_iter().map(|index| index.sql));
        for (table, columns) in
            [("t", "count(*), sum(a), sum(b)"), ("e", "count(*), sum(a), sum(b)"), ("n", "count(*)")]
        {
            for condition in ["", "WHERE b > -1", "WHERE c > ''"] {
                let query = format!("SELECT {columns} FROM {table} {condition}");
                let found = connection.query_row(&query, (), |row| Ok(format!("{:?}", row.values()?)));
                stored.push(found.unwrap_or_else(|error| error.to_string()));
            }
        }
        State { stored, statistics, checkpoints, pins, files }
    }
}

/// What a test executes.
#[derive(Debug, Clone, Copy)]
enum Work {
    Statement(&'static str),
    /// A statement that commits before its decision.
    Concurrent(&'static str),
    /// Rows of the appender, or of `Session::load`.
    Rows(i64),
}

impl Work {
    fn sql(self, directory: &Path) -> String {
        match self {
            Work::Statement(sql) | Work::Concurrent(sql) => sql.replace("{}", &directory.display().to_string()),
            Work::Rows(_) => String::new(),
        }
    }

    fn batch(rows: i64) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(100_000..100_000 + rows));
        RecordBatch::try_from_iter([("a", column)]).unwrap()
    }

    fn run(self, connection: &Connection, directory: &Path) -> Result<()> {
        if let Work::Rows(rows) = self {
            let mut appender = connection.appender_with_columns("e", &["a"])?;
            appender.append_batch(&Work::batch(rows))?;
            return appender.finish().map(drop);
        }
        connection.execute(&self.sql(directory), ()).map(drop)
    }

    async fn run_async(self, session: &Session, directory: &Path) -> Result<()> {
        if let Work::Rows(rows) = self {
            let batches = futures::stream::iter([Ok(Work::batch(rows))]);
            return session.load("e", batches).await.map(drop);
        }
        session.execute(&self.sql(directory)).await.map(drop)
    }
}

/// A database opened for one test.
struct Tested {
    directory: TempDir,
    database: Database,
    engine: Arc<Engine>,
    held: Held,
}

impl Tested {
    fn open(template: &Path) -> Tested {
        let directory = copy(template);
        let database = Database::open(directory.path().join("db"), options()).unwrap();
        // CHECKPOINT has an effect only after a commit.
        database.connect().unwrap().execute("INSERT INTO t VALUES (0, 0, 'first')", ()).unwrap();
        let engine = database.engine.clone();
        let held = Held::of(&engine);
        Tested { directory, database, engine, held }
    }

    /// The state after the statement, as relative paths.
    fn state(self, is_cancelled: bool) -> State {
        let Tested { directory, database, engine, held } = self;
        drop(database);
        if is_cancelled {
            assert_eq!(Held::of(&engine), held);
        }
        let state = State::of(engine, directory.path());
        let relative = |path: PathBuf| path.strip_prefix(directory.path()).unwrap().to_path_buf();
        State { files: state.files.into_iter().map(relative).collect(), ..state }
    }
}

/// Runs `work` with an interrupt at `stage`. Returns the state and whether the statement was cancelled; `None` if it does
/// not reach the stage.
fn interrupted(template: &Path, work: Work, stage: Stage) -> Option<(State, bool)> {
    let tested = Tested::open(template);
    let connection = tested.database.connect().unwrap();
    connection.execute_batch("SET keyaki.plan_cache = 'always'").unwrap();
    let interrupts = connection.session().sql.interrupts.clone();
    let stop = interrupts.stops.stop_at(stage);
    let handle = connection.interrupt_handle();
    let directory = tested.directory.path();
    let (reached, result) = std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let statement = scope.spawn(move || {
            sender.send(work.run(&connection, directory)).unwrap();
            interrupts.stops.clear();
        });
        let reached = stop.reached.recv();
        handle.interrupt();
        // If another thread is stopped, a cancelled statement does not wait for it.
        let goes_on = reached.is_ok_and(|thread| thread != statement.thread().id());
        let early = (goes_on && is_before_decision(stage)).then(|| receiver.recv().unwrap());
        drop(stop);
        (reached.is_ok(), early.unwrap_or_else(|| receiver.recv().unwrap()))
    });
    let is_cancelled = match result {
        Ok(()) => false,
        Err(error) if matches!(error.root(), Error::Cancelled) => true,
        Err(error) => panic!("{work:?} at {stage:?}: {error}"),
    };
    let state = tested.state(is_cancelled && !matches!(work, Work::Concurrent(_)));
    reached.then_some((state, is_cancelled))
}

fn is_before_decision(stage: Stage) -> bool {
    matches!(stage, Stage::Begun | Stage::Working | Stage::Deciding)
}

/// Wakes a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end, or drops it once `dropped` is set; `None` then.
fn poll_unless<T>(work: impl Future<Output = T>, dropped: &AtomicBool) -> Option<T> {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(result);
        }
        if dropped.load(Ordering::SeqCst) {
            return None;
        }
        std::thread::park();
    }
}

/// Drops the future of `work` at `stage`. Returns the state, and the result if the future has ended; `None` if the
/// statement does not reach the stage.
fn dropped(template: &Path, work: Work, stage: Stage) -> Option<(State, Option<Result<()>>)> {
    let tested = Tested::open(template);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let session = tested.database.session();
    session.execute("SET keyaki.plan_cache = 'always'").now_or_never().unwrap().unwrap();
    let stop = session.sql.interrupts.stops.stop_at(stage);
    let (drop_it, directory) = (AtomicBool::new(false), tested.directory.path());
    let (reached, result) = std::thread::scope(|scope| {
        let (context, drop_it) = (runtime.handle().clone(), &drop_it);
        let polling = scope.spawn(move || {
            let _context = context.enter();
            let result = poll_unless(work.run_async(&session, directory), drop_it);
            session.sql.interrupts.stops.clear();
            result
        });
        let reached: std::result::Result<ThreadId, _> = stop.reached.recv();
        let mut stop = Some(stop);
        if reached.is_ok_and(|thread| thread == polling.thread().id()) {
            // The future cannot be dropped while it is polled.
            stop = None;
        } else if reached.is_ok() {
            drop_it.store(true, Ordering::SeqCst);
            polling.thread().unpark();
        }
        let result = polling.join().unwrap();
        drop(stop);
        (reached.is_ok(), result)
    });
    // Waits for all work of the statement.
    drop(runtime);
    let is_cancelled = result.is_none() && is_before_decision(stage);
    let state = tested.state(is_cancelled && !matches!(work, Work::Concurrent(_)));
    reached.then_some((state, result))
}

/// Interrupts and drops a statement at each stage.
fn check(template: &Path, work: Work, unreached: &[Stage]) {
    let before = Tested::open(template).state(false);
    let after = Tested::open(template);
    let connection = after.database.connect().unwrap();
    work.run(&connection, after.directory.path()).unwrap();
    drop(connection);
    let after = after.state(false);
    assert_ne!(before, after, "{work:?} has an effect");
    // Only ANALYZE waits for statistics.
    let check = |mut state: State, stage: Stage, is_changed: bool| {
        let expected = if is_changed { &after } else { &before };
        if is_changed {
            state.statistics = expected.statistics;
        }
        assert_eq!(state, *expected, "{work:?} at {stage:?}");
    };
    for stage in STAGES {
        let interrupted = interrupted(template, work, stage);
        let dropped = dropped(template, work, stage);
        assert_eq!(interrupted.is_none(), unreached.contains(&stage), "{work:?} at {stage:?}");
        assert_eq!(dropped.is_none(), unreached.contains(&stage), "{work:?} at {stage:?}");
        let (Some((interrupted, is_cancelled)), Some((dropped, result))) = (interrupted, dropped) else { continue };
        assert_eq!(is_cancelled, is_before_decision(stage), "{work:?} at {stage:?}");
        check(interrupted, stage, !is_cancelled);
        match result {
            None => check(dropped, stage, !is_before_decision(stage)),
            Some(result) => {
                result.unwrap();
                check(dropped, stage, true);
            }
        }
    }
}

fn check_all(statements: Statements) {
    let template = template();
    for &(sql, unreached) in statements {
        check(template.path(), Work::Statement(sql), unreached);
    }
}

#[test]
fn cancel_write_batches() {
    check_all(WRITE_BATCHES);
}

#[test]
fn cancel_bulk_loads() {
    check_all(BULK_LOADS);
}

#[test]
fn cancel_definitions() {
    check_all(DEFINITIONS);
}

#[test]
fn cancel_indexes() {
    check_all(INDEXES);
}

/// A build beside writers has commits before its decision: it leaves trees, which the next opening removes.
#[test]
fn cancel_concurrent_indexes() {
    let template = template();
    for sql in ["CREATE INDEX CONCURRENTLY i ON t (c)", "CREATE UNIQUE INDEX CONCURRENTLY i ON e (b)"] {
        let (template, work) = (template.path(), Work::Concurrent(sql));
        let before = Tested::open(template).state(false);
        let after = Tested::open(template);
        work.run(&after.database.connect().unwrap(), after.directory.path()).unwrap();
        let after = after.state(false);
        assert_ne!(before.stored, after.stored);
        for stage in STAGES {
            let interrupted = interrupted(template, work, stage);
            let dropped = dropped(template, work, stage);
            let is_changed = |result: Option<Result<()>>| match result {
                Some(result) => result.is_ok(),
                None => !is_before_decision(stage),
            };
            let states = [
                interrupted.map(|(state, is_cancelled)| (state, !is_cancelled)),
                dropped.map(|(state, result)| (state, is_changed(result))),
            ];
            for (position, state) in states.into_iter().enumerate() {
                // The empty table has no work between the registration and the last round.
                let Some((state, is_changed)) = state else {
                    assert_eq!((sql.contains("ON e"), stage), (true, Stage::Working), "{sql}, {position}");
                    continue;
                };
                assert_eq!(state.stored, if is_changed { &after } else { &before }.stored, "{sql} at {stage:?}");
                assert_eq!(state.files, before.files, "{sql} at {stage:?}");
            }
        }
    }
}

#[test]
fn cancel_others() {
    check_all(OTHERS);
}

/// Appenders and `Session::load`.
#[test]
fn cancel_rows_of_a_program() {
    let template = template();
    // A write batch and a bulk load.
    check(template.path(), Work::Rows(1500), &[]);
    check(template.path(), Work::Rows(30_000), &[]);
}

//! The statements that both systems execute on table `t`, and their times.

use std::time::Instant;

use crate::keyaki_side::Keyaki;
use crate::sqlite_side::Sqlite;

/// Rows with the same value of `k`.
pub const PER_KEY: i64 = 10;

/// Values of `k` in a statement of the experiment `group`.
pub const GROUPS: i64 = 10;

/// A row of table `t`: `id`, `k` and `c`.
pub type Row = (i64, i64, String);

/// The row with an `id`.
pub fn row(id: i64) -> Row {
    (id, id / PER_KEY, format!("row {id:>12} {:>40}", id * 7919 % 1_000_003))
}

/// The statements. Their functions return the number of rows read or changed, and panic on failure.
pub trait Side {
    /// `SELECT c FROM t WHERE id = ?`, prepared.
    fn point(&mut self, id: i64) -> usize;
    /// The same as text.
    fn point_text(&mut self, id: i64) -> usize;
    /// `SELECT id, c FROM t WHERE k = ?`, prepared.
    fn index(&mut self, k: i64) -> usize;
    /// The same as text.
    fn index_text(&mut self, k: i64) -> usize;
    /// `SELECT k, count(*), max(c) FROM t WHERE k BETWEEN ? AND ? GROUP BY k` for [`GROUPS`] values of `k`, prepared.
    fn group(&mut self, k: i64) -> usize;
    /// `INSERT INTO t VALUES (?, ?, ?)`, prepared.
    fn insert(&mut self, row: &Row) -> usize;
    /// The same through an API that blocks the calling thread.
    fn insert_blocking(&mut self, row: &Row) -> usize {
        self.insert(row)
    }
    /// `UPDATE t SET k = k + 1 WHERE id = ?`, prepared.
    fn update(&mut self, id: i64) -> usize;
    /// `DELETE FROM t WHERE id = ?`, prepared.
    fn delete(&mut self, id: i64) -> usize;
    /// One INSERT with the text `sql`, or a transaction of prepared INSERTs of `rows`.
    fn insert_many(&mut self, rows: &[Row], sql: &str) -> usize;
    /// The result of `SELECT count(*) FROM t`.
    fn count(&mut self) -> usize;
    /// Makes commits wait for the disk, or not.
    fn set_durable(&mut self, durable: bool);
    /// Point SELECTs per second of `threads` threads, each with `statements` statements.
    fn points_per_second(&mut self, threads: usize, rows: i64, statements: usize) -> f64;
}

/// Both systems, with equal tables.
pub struct Sides {
    pub keyaki: Keyaki,
    pub sqlite: Sqlite,
}

impl Sides {
    pub fn set_durable(&mut self, durable: bool) {
        self.keyaki.set_durable(durable);
        self.sqlite.set_durable(durable);
    }

    /// Median microseconds of both systems; `run` executes a statement and returns its time. The systems take turns of a
    /// tenth of the statements, so that both see the same state of the machine.
    pub fn measure(&mut self, statements: usize, mut run: impl FnMut(&mut dyn Side, usize) -> f64) -> (f64, f64) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let turn = (statements / 10).max(1);
        for start in (0..statements).step_by(turn) {
            let turn = start..(start + turn).min(statements);
            ours.extend(turn.clone().map(|statement| run(&mut self.keyaki, statement)));
            theirs.extend(turn.map(|statement| run(&mut self.sqlite, statement)));
        }
        (median(ours), median(theirs))
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of a statement.
///
/// # Panics
/// If it does not return the expected number of rows.
pub fn timed(run: impl FnOnce() -> usize, expected: usize) -> f64 {
    let start = Instant::now();
    let rows = run();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(rows, expected, "rows of a statement");
    seconds * 1e6
}

/// Statements per second of `threads` threads that execute `statements` in total. `work` gets the number of its thread.
pub fn per_second(threads: usize, statements: usize, work: impl Fn(usize) + Sync) -> f64 {
    let work = &work;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || work(thread));
        }
    });
    statements as f64 / start.elapsed().as_secs_f64()
}

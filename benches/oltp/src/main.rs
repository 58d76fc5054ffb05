//! Compares small statements with SQLite. See `cargo xtask bench oltp`.
//!
//! One table of `--rows` rows: `id` primary key, index on `k` with ten rows per value, a text `c`. Each figure is the
//! median time of a statement over `--statements` statements with random keys, both systems in turn, warm.

mod keyaki_side;
mod sqlite_side;

use std::time::Instant;

use clap::Parser;
use keyaki_bench_report::{Better, Rows};
use keyaki_primitives::Random;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compare small statements with SQLite
#[derive(Debug, Parser)]
struct Arguments {
    /// Rows of the table
    #[arg(long, default_value_t = 1_000_000)]
    rows: i64,
    /// Statements per figure
    #[arg(long, default_value_t = 20_000)]
    statements: usize,
    /// Only these experiments
    #[arg(long, value_delimiter = ',', default_values_t = EXPERIMENTS.map(String::from))]
    experiments: Vec<String>,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

const EXPERIMENTS: [&str; 11] = [
    "point",
    "point-text",
    "index",
    "index-text",
    "threads",
    "insert",
    "insert-full",
    "insert-many",
    "update",
    "delete",
    "count",
];

/// Rows with the same value of `k`.
const PER_KEY: i64 = 10;
/// Rows of a statement that inserts many.
const MANY: usize = 1000;

/// What both systems do. Every function panics on failure.
trait Side {
    /// `SELECT c FROM t WHERE id = ?`, prepared. Returns the number of rows.
    fn point(&mut self, id: i64) -> usize;
    fn point_text(&mut self, id: i64) -> usize;
    /// `SELECT id, c FROM t WHERE k = ?`, prepared.
    fn index(&mut self, k: i64) -> usize;
    fn index_text(&mut self, k: i64) -> usize;
    fn insert(&mut self, id: i64, k: i64, c: &str);
    fn update(&mut self, id: i64) -> usize;
    fn delete(&mut self, id: i64) -> usize;
    /// One statement, or transaction of prepared statements, with `MANY` rows; `sql` is their text.
    fn insert_many(&mut self, rows: &[(i64, i64, String)], sql: &str);
    /// `SELECT count(*) FROM t`.
    fn count(&mut self) -> i64;
    /// Commits wait for the disk.
    fn set_durable(&mut self, durable: bool);
    /// Statements per second of `threads` threads that run point SELECTs.
    fn points_per_second(&mut self, threads: usize, rows: i64, statements: usize) -> f64;
    /// Durable inserts per second of `sessions` sessions.
    fn inserts_per_second(&mut self, sessions: usize, first: i64, statements: usize) -> f64;
}

fn text(id: i64) -> String {
    format!("row {id:>12} {:>40}", id * 7919 % 1_000_003)
}

/// Median microseconds of both sides.
fn measure(
    statements: usize,
    sides: &mut (keyaki_side::Keyaki, sqlite_side::Sqlite),
    mut run: impl FnMut(&mut dyn Side, usize) -> f64,
) -> (f64, f64) {
    let mut times = (Vec::new(), Vec::new());
    // In turns, so that both see the same state of the machine.
    let turn = (statements / 10).max(1);
    for start in (0..statements).step_by(turn) {
        for statement in start..(start + turn).min(statements) {
            times.0.push(run(&mut sides.0, statement));
        }
        for statement in start..(start + turn).min(statements) {
            times.1.push(run(&mut sides.1, statement));
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    (median(&mut times.0), median(&mut times.1))
}

fn timed(run: impl FnOnce() -> usize, expected: usize) -> f64 {
    let start = Instant::now();
    let rows = run();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(rows, expected, "a statement concerned {rows} rows");
    seconds * 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut report = Rows::new("oltp");
    let dir = tempfile::tempdir_in(".")?;
    let rows = arguments.rows;
    println!("{rows} rows, {} statements per figure; microseconds per statement (median)", arguments.statements);
    let start = Instant::now();
    let mut sides = (
        keyaki_side::Keyaki::new(&dir.path().join("keyaki"), rows),
        sqlite_side::Sqlite::new(&dir.path().join("sqlite"), rows),
    );
    println!("loaded in {:.1} s", start.elapsed().as_secs_f64());
    let wanted = |name: &str| arguments.experiments.iter().any(|e| e == name);
    let n = arguments.statements;
    let mut random = Random::new(1);
    let ids: Vec<i64> = (0..n).map(|_| (random.next_u64() % rows as u64) as i64).collect();
    let mut next_id = rows;
    let mut figure = |name: &str, (ours, theirs): (f64, f64)| {
        println!("{name:<28} Keyaki {ours:>10.2}   SQLite {theirs:>10.2}   {:>6.2}x", ours / theirs);
        report.compare(name, ("time", "µs", Better::Lower), ours, ("SQLite", theirs));
    };
    if wanted("point") {
        figure("point SELECT", measure(n, &mut sides, |side, i| timed(|| side.point(ids[i]), 1)));
    }
    if wanted("point-text") {
        figure("point SELECT, text", measure(n, &mut sides, |side, i| timed(|| side.point_text(ids[i]), 1)));
    }
    if wanted("index") {
        let per = PER_KEY as usize;
        figure("10 rows by index", measure(n, &mut sides, |side, i| timed(|| side.index(ids[i] / PER_KEY), per)));
    }
    if wanted("index-text") {
        let per = PER_KEY as usize;
        figure(
            "10 rows by index, text",
            measure(n, &mut sides, |side, i| timed(|| side.index_text(ids[i] / PER_KEY), per)),
        );
    }
    if wanted("insert") {
        sides.0.set_durable(false);
        sides.1.set_durable(false);
        let base = next_id;
        figure(
            "INSERT, not durable",
            measure(n, &mut sides, |side, i| {
                let id = base + i as i64;
                let c = text(id);
                timed(
                    || {
                        side.insert(id, id / PER_KEY, &c);
                        1
                    },
                    1,
                )
            }),
        );
        next_id += n as i64;
    }
    if wanted("update") {
        figure("UPDATE by key", measure(n, &mut sides, |side, i| timed(|| side.update(ids[i]), 1)));
    }
    if wanted("delete") {
        // Every row once.
        let step = (rows / n as i64).max(1);
        let deleted = n.min(rows as usize);
        figure("DELETE by key", measure(deleted, &mut sides, |side, i| timed(|| side.delete(i as i64 * step), 1)));
    }
    if wanted("insert-many") {
        let base = next_id;
        let many = |i: usize| -> Vec<(i64, i64, String)> {
            (0..MANY as i64).map(|row| base + (i * MANY) as i64 + row).map(|id| (id, id / PER_KEY, text(id))).collect()
        };
        let statements = (n / 100).max(1);
        let (ours, theirs) = measure(statements, &mut sides, |side, i| {
            let rows = many(i);
            let values: Vec<String> = rows.iter().map(|(id, k, c)| format!("({id},{k},'{c}')")).collect();
            let sql = format!("INSERT INTO t VALUES {}", values.join(","));
            timed(
                || {
                    side.insert_many(&rows, &sql);
                    1
                },
                1,
            )
        });
        figure("INSERT of 1,000 rows", (ours, theirs));
        next_id += (statements * MANY) as i64;
    }
    if wanted("count") {
        let mut counts = Vec::new();
        let times = measure(20, &mut sides, |side, _| {
            timed(
                || {
                    counts.push(side.count());
                    1
                },
                1,
            )
        });
        assert!(counts.iter().all(|count| *count == counts[0]), "different counts: {counts:?}");
        figure(&format!("count(*) of {} rows", counts[0]), times);
    }
    if wanted("insert-full") {
        sides.0.set_durable(true);
        sides.1.set_durable(true);
        let base = next_id;
        let statements = (n / 100).max(10);
        figure(
            "INSERT, durable",
            measure(statements, &mut sides, |side, i| {
                let id = base + i as i64;
                let c = text(id);
                timed(
                    || {
                        side.insert(id, id / PER_KEY, &c);
                        1
                    },
                    1,
                )
            }),
        );
        next_id += statements as i64;
        let one = sides.0.inserts_per_second(1, next_id, statements);
        next_id += statements as i64;
        let many = sides.0.inserts_per_second(16, next_id, statements * 8);
        println!("durable INSERTs/s: 1 session {one:.0}, 16 sessions {many:.0}: {:.1}x", many / one);
        report.figure("durable INSERT, 16 sessions", "speedup over 1 session", "times", many / one);
        sides.0.set_durable(false);
        sides.1.set_durable(false);
    }
    if wanted("threads") {
        let of = |side: &mut dyn Side, threads| side.points_per_second(threads, rows, n * 5);
        let (one, two) = (of(&mut sides.0, 1), of(&mut sides.0, 2));
        let (their_one, their_two) = (of(&mut sides.1, 1), of(&mut sides.1, 2));
        println!(
            "point SELECTs/s: Keyaki {one:.0} -> {two:.0} ({:.2}x), SQLite {their_one:.0} -> {their_two:.0} ({:.2}x)",
            two / one,
            their_two / their_one
        );
        report.compare("point SELECT, 1 thread", ("throughput", "1/s", Better::Higher), one, ("SQLite", their_one));
        report.compare("point SELECT, 2 threads", ("throughput", "1/s", Better::Higher), two, ("SQLite", their_two));
    }
    if let Some(path) = &arguments.json {
        report.write(path)?;
    }
    Ok(())
}

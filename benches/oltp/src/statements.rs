//! Small statements on table `t`: median times with random keys, and statements per second of several threads.

use std::path::Path;
use std::time::Instant;

use keyaki_primitives::Random;

use crate::Experiment::{
    Appender, Count, Delete, Group, Iibench, Index, IndexText, Insert, InsertFull, InsertMany, Point, PointText, Threads,
    Update, Upsert,
};
use crate::keyaki_side::Keyaki;
use crate::side::{GROUPS, PER_KEY, Row, Side, Sides, median, row, timed};
use crate::sqlite_side::Sqlite;
use crate::{Experiment, Result, Run};

/// The experiments, in the order of their execution.
const EXPERIMENTS: [Experiment; 12] =
    [Point, PointText, Index, IndexText, Group, Insert, Update, Delete, InsertMany, Count, InsertFull, Threads];

/// Rows of a statement of the experiment `insert-many`.
const MANY: usize = 1000;
/// Sessions and connections of the experiment `insert-full`.
const WRITERS: usize = 16;
/// Repetitions of the rates of the experiment `insert-full`.
const TURNS: usize = 5;

pub fn run(run: &mut Run) -> Result {
    let wanted: Vec<_> = EXPERIMENTS.into_iter().filter(|&experiment| run.wants(experiment)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let directory = tempfile::tempdir_in(".")?;
    let mut bench = Bench::new(run, directory.path());
    let per_key = PER_KEY as usize;
    for experiment in wanted {
        match experiment {
            Point => bench.by_key(Point, "point SELECT", 1, |side, id| side.point(id)),
            PointText => bench.by_key(PointText, "point SELECT, text", 1, |side, id| side.point_text(id)),
            Index => bench.by_key(Index, "10 rows by index", per_key, |side, id| side.index(id / PER_KEY)),
            IndexText => {
                bench.by_key(IndexText, "10 rows by index, text", per_key, |side, id| side.index_text(id / PER_KEY));
            }
            Group => bench.group(),
            Insert => bench.insert(),
            Update => bench.by_key(Update, "UPDATE by key", 1, |side, id| side.update(id)),
            Delete => bench.delete(),
            InsertMany => bench.insert_many(),
            Count => bench.count(),
            InsertFull => bench.insert_full(),
            Threads => bench.threads(),
            Appender | Iibench | Upsert => unreachable!("not among EXPERIMENTS"),
        }
    }
    Ok(())
}

struct Bench<'a> {
    run: &'a mut Run,
    sides: Sides,
    /// Statements per figure.
    statements: usize,
    /// A random key for each statement.
    ids: Vec<i64>,
    /// Lowest key that was not inserted yet.
    next_id: i64,
}

impl<'a> Bench<'a> {
    fn new(run: &'a mut Run, directory: &Path) -> Self {
        let (rows, statements) = (run.arguments.rows, run.arguments.statements);
        println!("{rows} rows, {statements} statements per figure; microseconds per statement (median)");
        let start = Instant::now();
        let sides = Sides {
            keyaki: Keyaki::new(&directory.join("keyaki"), rows),
            sqlite: Sqlite::new(&directory.join("sqlite"), rows),
        };
        println!("loaded in {:.1} s", start.elapsed().as_secs_f64());
        let mut random = Random::new(1);
        let ids = (0..statements).map(|_| random.below(rows as u64) as i64).collect();
        Bench { run, sides, statements, ids, next_id: rows }
    }

    /// The first of `count` keys that no other INSERT uses.
    fn reserve_ids(&mut self, count: usize) -> i64 {
        let first = self.next_id;
        self.next_id += count as i64;
        first
    }

    /// A statement with a random key that reads or changes `rows` rows.
    fn by_key(
        &mut self,
        experiment: Experiment,
        workload: &str,
        rows: usize,
        statement: fn(&mut dyn Side, i64) -> usize,
    ) {
        let times = self.sides.measure(self.statements, |side, i| timed(|| statement(side, self.ids[i]), rows));
        self.run.time(experiment, workload, times);
    }

    /// Median microseconds of an INSERT of one row.
    fn inserts(&mut self, statements: usize, insert: fn(&mut dyn Side, &Row) -> usize) -> (f64, f64) {
        let first = self.reserve_ids(statements);
        self.sides.measure(statements, |side, i| {
            let row = row(first + i as i64);
            timed(|| insert(side, &row), 1)
        })
    }

    fn insert(&mut self) {
        let times = self.inserts(self.statements, |side, row| side.insert(row));
        self.run.time(Insert, "INSERT, not durable", times);
    }

    /// Groups of a range; the statement takes the long path.
    fn group(&mut self) {
        let last = self.run.arguments.rows / PER_KEY - GROUPS;
        let times = self.sides.measure(self.statements / 10, |side, i| {
            timed(|| side.group((self.ids[i] / PER_KEY).min(last)), GROUPS as usize)
        });
        self.run.time(Group, "groups of 100 rows", times);
    }

    /// Deletes each row once.
    fn delete(&mut self) {
        let rows = self.run.arguments.rows;
        let step = (rows / self.statements as i64).max(1);
        let statements = self.statements.min(rows as usize);
        let times = self.sides.measure(statements, |side, i| timed(|| side.delete(i as i64 * step), 1));
        self.run.time(Delete, "DELETE by key", times);
    }

    fn insert_many(&mut self) {
        let statements = (self.statements / 100).max(1);
        let first = self.reserve_ids(statements * MANY);
        let times = self.sides.measure(statements, |side, i| {
            let first = first + (i * MANY) as i64;
            let rows: Vec<Row> = (first..first + MANY as i64).map(row).collect();
            let values: Vec<String> = rows.iter().map(|(id, k, c)| format!("({id},{k},'{c}')")).collect();
            let sql = format!("INSERT INTO t VALUES {}", values.join(","));
            timed(|| side.insert_many(&rows, &sql), MANY)
        });
        self.run.time(InsertMany, "INSERT of 1,000 rows", times);
    }

    fn count(&mut self) {
        let rows = self.sides.keyaki.count();
        let times = self.sides.measure(20, |side, _| timed(|| side.count(), rows));
        self.run.time(Count, &format!("count(*) of {rows} rows"), times);
    }

    fn insert_full(&mut self) {
        let statements = (self.statements / 100).max(10);
        self.sides.set_durable(true);
        let times = self.inserts(statements, |side, row| side.insert_blocking(row));
        self.run.time(InsertFull, "INSERT, durable", times);
        let times = self.inserts(statements, |side, row| side.insert(row));
        self.run.time(InsertFull, "INSERT, durable, async", times);
        self.writers(statements);
        self.sides.set_durable(false);
    }

    /// Durable INSERTs per second of one writer and of several at the same time, in turns, because the speed of the disk
    /// changes.
    fn writers(&mut self, statements: usize) {
        type PerSecond = fn(&Keyaki, usize, i64, usize) -> f64;
        let kinds: [(&str, PerSecond); 2] =
            [("connections", Keyaki::blocking_inserts_per_second), ("sessions", Keyaki::inserts_per_second)];
        let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
        for _ in 0..TURNS {
            for ((_, per_second), rates) in kinds.iter().zip(&mut rates) {
                for (writers, rates) in [1, WRITERS].into_iter().zip(rates) {
                    let statements = if writers == 1 { statements } else { 8 * statements };
                    let first = self.reserve_ids(statements);
                    rates.push(per_second(&self.sides.keyaki, writers, first, statements));
                }
            }
        }
        for ((kind, _), rates) in kinds.iter().zip(rates) {
            let [one, many] = rates.map(median);
            println!("durable INSERTs/s, {kind}: one {one:.0}, {WRITERS} {many:.0}: {:.1}x", many / one);
            let workload = format!("durable INSERT, {WRITERS} {kind}");
            self.run.report.figure(&workload, "throughput", "1/s", many);
            self.run.report.figure(&workload, "speedup over one", "times", many / one);
        }
    }

    fn threads(&mut self) {
        let (rows, statements) = (self.run.arguments.rows, self.statements * 5);
        let Sides { keyaki, sqlite } = &mut self.sides;
        let [ours, theirs] = [keyaki as &mut dyn Side, sqlite]
            .map(|side| [1, 2].map(|threads| side.points_per_second(threads, rows, statements)));
        self.run.rate("point SELECT, 1 thread", "1/s", ours[0], theirs[0]);
        self.run.rate("point SELECT, 2 threads", "1/s", ours[1], theirs[1]);
        println!("speedup of 2 threads: Keyaki {:.2}x, SQLite {:.2}x", ours[1] / ours[0], theirs[1] / theirs[0]);
    }
}

//! `keyaki-harness session`: runs and times statements in one process with warm caches, one command per line of standard input.
//!
//! | command | answer |
//! |---|---|
//! | `sql STATEMENTS` | `ok` |
//! | `time STATEMENT` | milliseconds until the last row |
//! | `lookups COUNT KEYS SQL` | median and 99th percentile in microseconds of COUNT queries, run one after another on one thread; each replaces `?` by a random number from 1 to KEYS |
//! | `lookups-beside COUNT KEYS SQL ;; OTHER` | the same while a second thread repeats OTHER, and the number of times OTHER completed per second |

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use keyaki::{Database, Options, Session};
use keyaki_primitives::Random;
use tokio::runtime::{Builder, Runtime};

use crate::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    database: PathBuf,
    /// Memory for cache, buffers and queries together, in MiB [default: a quarter of the machine's]
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<usize>,
}

pub fn run(runtime: &Runtime, arguments: &Arguments) -> Result<()> {
    let memory_bytes = arguments.memory_mib.map(|mib| mib << 20);
    let _runtime = runtime.enter();
    let database =
        Database::open(&arguments.database, Options { must_exist: true, memory_bytes, ..Default::default() })?;
    let session = database.session();
    for line in stdin().lock().lines() {
        let line = line?;
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match command {
            "sql" => {
                runtime.block_on(session.execute(rest))?;
                "ok".to_string()
            }
            "time" => {
                let start = Instant::now();
                runtime.block_on(session.execute(rest))?;
                format!("{:.4}", start.elapsed().as_secs_f64() * 1e3)
            }
            "lookups" => lookups(&session, &database, rest, None)?,
            "lookups-beside" => {
                let (lookup, other) = rest.split_once(";;").ok_or("usage: lookups-beside COUNT KEYS SQL ;; OTHER")?;
                lookups(&session, &database, lookup, Some(other))?
            }
            _ => return Err(format!("unknown command \"{command}\"").into()),
        };
        let mut out = stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// A runtime that runs queries on the calling thread alone.
fn single_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn lookups(session: &Session, database: &Database, rest: &str, other: Option<&str>) -> Result<String> {
    let usage = || Error::from("usage: lookups COUNT KEYS SQL, with COUNT and KEYS above 0");
    let (count, rest) = rest.trim().split_once(' ').ok_or_else(usage)?;
    let (keys, sql) = rest.split_once(' ').ok_or_else(usage)?;
    let (count, keys): (usize, u64) = (count.parse()?, keys.parse()?);
    if count == 0 || keys == 0 {
        return Err(usage());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = other.map(|other| scope.spawn(|| repeat(database, other, &stop)));
        let times = timed(session, sql, count, keys);
        stop.store(true, Ordering::Relaxed);
        let rate = beside.map(|thread| thread.join().unwrap_or_else(|_| Err("the second thread panicked".into())));
        let (mut times, rate) = (times?, rate.transpose()?.unwrap_or(0.0));
        times.sort_by(f64::total_cmp);
        // In bounds: `count` is above 0.
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Ok(format!("{:.2} {:.2} {rate:.3}", at(0.5), at(0.99)))
    })
}

/// Microseconds of each lookup.
fn timed(session: &Session, sql: &str, count: usize, keys: u64) -> Result<Vec<f64>> {
    let runtime = single_thread()?;
    let mut times = Vec::with_capacity(count);
    let mut random = Random::new(1);
    for _ in 0..count {
        let query = sql.replace('?', &(random.below(keys) + 1).to_string());
        let start = Instant::now();
        runtime.block_on(session.execute(&query))?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Repeats a statement until `stop` is set. Returns the number of completions per second.
fn repeat(database: &Database, sql: &str, stop: &AtomicBool) -> Result<f64> {
    let (runtime, session) = (single_thread()?, database.session());
    runtime.block_on(session.execute("SET datafusion.execution.target_partitions = 1"))?;
    let (start, mut completed) = (Instant::now(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        runtime.block_on(session.execute(sql))?;
        completed += 1;
    }
    Ok(f64::from(completed) / start.elapsed().as_secs_f64())
}

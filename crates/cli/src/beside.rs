//! `keyaki beside`: runs and times statements as a benchmark asks for them, line by line, in one process with warm caches.
//!
//! | line | answer |
//! |---|---|
//! | `sql STATEMENTS` | `ok` |
//! | `time STATEMENT` | milliseconds, rows read to the end |
//! | `lookups COUNT KEYS SQL` | median and 99th percentile, in microseconds, of COUNT queries, one after another on one thread: in each, `?` is a number from 1 to KEYS |
//! | `lookups-beside COUNT KEYS SQL ;; OTHER` | the same while another thread repeats OTHER, and how often OTHER ended a second |

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use keyaki::{Database, Options, Session};

use crate::arguments::BesideArguments;
use crate::failure::{Failure, Result};

pub fn run(arguments: &BesideArguments) -> Result<()> {
    let options = Options { must_exist: true, ..arguments.open.options() };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::message(error.to_string()))?;
    let _runtime = runtime.enter();
    let database = Database::open(&arguments.database, options)?;
    let session = database.session();
    for line in stdin().lock().lines() {
        let line = line.map_err(Failure::Output)?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match word {
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
            "lookups-beside" => match rest.split_once(";;") {
                Some((lookup, other)) => lookups(&session, &database, lookup, Some(other))?,
                None => return Err(Failure::Usage("lookups-beside COUNT KEYS SQL ;; OTHER".into())),
            },
            _ => return Err(Failure::Usage(format!("no such word: {word}"))),
        };
        let mut out = stdout().lock();
        writeln!(out, "{answer}").and_then(|()| out.flush()).map_err(Failure::Output)?;
    }
    Ok(())
}

/// A session whose queries run on the calling thread alone.
fn alone() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::message(error.to_string()))
}

fn lookups(session: &Session, database: &Database, rest: &str, other: Option<&str>) -> Result<String> {
    let wrong = || Failure::Usage("lookups COUNT KEYS SQL".into());
    let (count, rest) = rest.trim().split_once(' ').ok_or_else(wrong)?;
    let (keys, sql) = rest.split_once(' ').ok_or_else(wrong)?;
    let (count, keys): (usize, u64) = (count.parse().map_err(|_| wrong())?, keys.parse().map_err(|_| wrong())?);
    if count == 0 || keys == 0 {
        return Err(wrong());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = other.map(|other| scope.spawn(|| repeat(database, other, &stop)));
        let times = timed(session, sql, count, keys);
        stop.store(true, Ordering::Relaxed);
        let rate =
            beside.map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::message("the other thread failed"))));
        let (mut times, rate) = (times?, rate.transpose()?.unwrap_or(0.0));
        times.sort_by(f64::total_cmp);
        // Not empty: there is one lookup at least.
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Ok(format!("{:.2} {:.2} {rate:.3}", at(0.5), at(0.99)))
    })
}

/// Microseconds of each lookup.
fn timed(session: &Session, sql: &str, count: usize, keys: u64) -> Result<Vec<f64>> {
    let runtime = alone()?;
    let mut times = Vec::with_capacity(count);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let query = sql.replace('?', &((random >> 33) % keys + 1).to_string());
        let start = Instant::now();
        runtime.block_on(session.execute(&query))?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Runs a statement over and over; gives how often it ended in a second.
fn repeat(database: &Database, sql: &str, stop: &AtomicBool) -> Result<f64> {
    let (runtime, session) = (alone()?, database.session());
    runtime.block_on(session.execute("SET datafusion.execution.target_partitions = 1"))?;
    let (start, mut ended) = (Instant::now(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        runtime.block_on(session.execute(sql))?;
        ended += 1;
    }
    Ok(f64::from(ended) / start.elapsed().as_secs_f64())
}

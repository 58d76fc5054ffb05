//! Upserts of counters with random keys, not durable: blind, reading, and plain inserts of the same rows.
//!
//! The table is larger than the memory, and its caches are empty: an upsert that reads waits for the device, a blind one
//! does not.

use std::path::Path;
use std::time::Instant;

use keyaki::{Connection, Durability, Options};
use keyaki_primitives::Random;

use crate::{Experiment, Result, Run, sqlite_side};

/// Memory of Keyaki.
const MEMORY_BYTES: usize = 256 << 20;
const TABLE: &str = "CREATE TABLE counter (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, last BIGINT)";
const INSERT: &str = "INSERT INTO counter VALUES ($1, 1, $2)";
const IGNORE: &str = "INSERT INTO counter VALUES ($1, 1, $2) ON CONFLICT DO NOTHING";
const UPSERT: &str = "INSERT INTO counter VALUES ($1, 1, $2)
    ON CONFLICT (id) DO UPDATE SET n = counter.n + excluded.n, last = excluded.last";
/// Repetitions, whose medians count.
const TURNS: usize = 3;

pub fn run(run: &mut Run) -> Result {
    if !run.wants(Experiment::Upsert) {
        return Ok(());
    }
    let (rows, statements) = (run.arguments.upsert_rows, run.arguments.upserts);
    println!(
        "upserts: {statements} prepared statements, {rows} rows, {} MiB of memory, not durable",
        MEMORY_BYTES >> 20
    );
    let directory = tempfile::tempdir_in(".")?;
    let keyaki = Keyaki::new(&directory.path().join("keyaki"), rows)?;
    let mut rates: [Vec<f64>; 5] = Default::default();
    let mut random = Random::new(1);
    for turn in 0..TURNS as i64 {
        let ids: Vec<i64> = (0..statements).map(|_| random.below(rows as u64) as i64 * 2).collect();
        let few = &ids[..statements / 10];
        // Odd keys are new, and so are those behind all others.
        let scattered: Vec<i64> = few.iter().map(|id| id + 1).collect();
        let ascending: Vec<i64> = (0..statements as i64).map(|i| 2 * rows + turn * statements as i64 + i).collect();
        let measured = [
            keyaki.cold(INSERT, "on", &ascending)?,
            keyaki.cold(IGNORE, "on", &scattered)?,
            keyaki.cold(UPSERT, "on", &ids)?,
            keyaki.cold(UPSERT, "off", few)?,
            // The pages of these keys are in memory now.
            keyaki.rate(UPSERT, "off", few)?,
        ];
        rates.iter_mut().zip(measured).for_each(|(rates, rate)| rates.push(rate));
    }
    let sqlite = sqlite(&directory.path().join("sqlite"), rows, statements)?;
    let [ascending, scattered, blind, reading, warm] = rates.map(median);
    println!("  plain inserts: ascending keys {ascending:.0}/s, random keys {scattered:.0}/s");
    println!("  blind {blind:.0}/s: {:.2} of ascending inserts, {:.1}x reading", blind / ascending, blind / reading);
    println!("  reading: cold {reading:.0}/s, warm {warm:.0}/s");
    run.rate("upserts, blind", "1/s", blind, sqlite);
    run.rate("upserts, reading, cold", "1/s", reading, sqlite);
    run.rate("upserts, reading, warm", "1/s", warm, sqlite);
    Ok(())
}

struct Keyaki(Connection);

impl Keyaki {
    /// A table with even keys.
    fn new(path: &Path, rows: i64) -> Result<Self> {
        let options = Options { durability: Durability::Off, memory_bytes: Some(MEMORY_BYTES), ..Options::default() };
        let connection = Connection::open_with(path, options)?;
        connection.execute(TABLE, ())?;
        let fill = format!("INSERT INTO counter SELECT value * 2, 1, 0 FROM generate_series(0, {})", rows - 1);
        assert_eq!(connection.execute(&fill, ())?, rows as u64);
        Ok(Keyaki(connection))
    }

    /// Statements per second, beginning without pages in memory and without rows in buffers.
    fn cold(&self, sql: &str, blind: &str, ids: &[i64]) -> Result<f64> {
        self.0.execute("CHECKPOINT", ())?;
        self.0.database().drop_caches();
        self.rate(sql, blind, ids)
    }

    fn rate(&self, sql: &str, blind: &str, ids: &[i64]) -> Result<f64> {
        self.0.execute(&format!("SET keyaki.blind_upserts = '{blind}'"), ())?;
        let statement = self.0.prepare(sql)?;
        let start = Instant::now();
        for &id in ids {
            statement.execute((id, id))?;
        }
        Ok(ids.len() as f64 / start.elapsed().as_secs_f64())
    }
}

/// The upserts per second of SQLite with a page cache of the same size, and the pages in the operating system's cache.
fn sqlite(path: &Path, rows: i64, statements: usize) -> Result<f64> {
    let connection = sqlite_side::open(path);
    connection.execute_batch(&format!("PRAGMA mmap_size = 0; PRAGMA cache_size = -{}", MEMORY_BYTES / 1024))?;
    connection.execute_batch("CREATE TABLE counter (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, last INTEGER)")?;
    connection.execute(
        "WITH RECURSIVE series (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM series WHERE value < ?1 - 1)
         INSERT INTO counter SELECT value * 2, 1, 0 FROM series",
        [rows],
    )?;
    let mut random = Random::new(1);
    let mut rates = Vec::new();
    for _ in 0..TURNS {
        let ids: Vec<i64> = (0..statements).map(|_| random.below(rows as u64) as i64 * 2).collect();
        let mut statement = connection.prepare(UPSERT)?;
        let start = Instant::now();
        for id in &ids {
            statement.execute([id, id])?;
        }
        rates.push(statements as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

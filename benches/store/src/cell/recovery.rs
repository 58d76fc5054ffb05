//! Opening after SIGKILL, with 64 MiB of rows in the log and none of them flushed: the write buffer is larger.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::{BATCH, Cell, print};
use crate::Result;
use crate::keys::{self, KEY_BYTES, ROW_BYTES, Row};
use crate::system::{self, Memory, System};

const LOG_BYTES: u64 = 64 << 20;
const ROWS: u64 = LOG_BYTES / ROW_BYTES / BATCH * BATCH;
const BUFFER_BYTES: usize = 512 << 20;
/// Printed when all rows have been written.
pub const READY: &str = "ready";

fn open(cell: &Cell) -> Result<Box<dyn System>> {
    let memory = Memory { buffer_bytes: BUFFER_BYTES, ..cell.memory };
    system::open(cell.name, cell.directory, memory, ROWS)
}

/// Writes the rows, and waits to be killed, at most until the end of the standard input.
pub fn crash(cell: &Cell) -> Result {
    let system = open(cell)?;
    for first in (0..ROWS).step_by(BATCH as usize) {
        let rows: Vec<Row> = (first..first + BATCH).map(keys::row).collect();
        system.insert(&rows)?;
    }
    // Ten times the interval at which Keyaki writes its log.
    std::thread::sleep(Duration::from_secs(1));
    println!("{READY}");
    std::io::stdout().flush()?;
    std::io::stdin().read_exact(&mut [0])?;
    Ok(())
}

pub fn recover(cell: &Cell) -> Result {
    let start = Instant::now();
    let system = open(cell)?;
    system.get(&[0; KEY_BYTES], &mut |_| {})?;
    print("open", start.elapsed().as_secs_f64());

    let mut found = 0;
    for number in 0..ROWS {
        let (key, value) = keys::row(number);
        let mut is_right = false;
        system.get(&key, &mut |stored| is_right = stored == Some(&value))?;
        // Whole batches may be missing at the end only.
        if is_right && found != number {
            return Err(format!("row {number} survived, but row {found} did not").into());
        }
        found += u64::from(is_right);
    }
    if !found.is_multiple_of(BATCH) {
        return Err(format!("{found} rows survived, which splits a batch").into());
    }
    print("lost rows", (ROWS - found) as f64);
    Ok(())
}

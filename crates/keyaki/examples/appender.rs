//! An appender: many rows at full speed, with all constraints.
//!
//! ```sh
//! cargo run --release -p keyaki --example appender -- 1000000 2
//! ```
//!
//! The arguments are the number of rows and of secondary indexes (0 to 3). `random` as third argument draws the keys at
//! random instead of counting them.

use std::time::Instant;

use keyaki::{Connection, Error, Result, params};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rows, indexes): (u64, u64) = (number(200_000), number(2));
    let random = arguments.next().is_some_and(|order| order == "random");

    let connection = Connection::open_temporary()?;
    connection.execute(
        "CREATE TABLE purchase (id BIGINT PRIMARY KEY, price DOUBLE PRECISION, customer INTEGER, product INTEGER)",
        (),
    )?;
    let definitions = ["(price, customer)", "(customer, product)", "(product)"];
    for (number, columns) in definitions.iter().enumerate().take(indexes as usize) {
        connection.execute(&format!("CREATE INDEX purchase_{number} ON purchase {columns}"), ())?;
    }

    let mut appender = connection.appender("purchase")?;
    let (start, mut state, mut reported) = (Instant::now(), 1_u64, Instant::now());
    let step = (rows / 10).max(1);
    for row in 0..rows {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let id = if random { (mixed >> 2) as i64 } else { row as i64 };
        appender.append_row((
            id,
            (mixed % 50_000) as f64 / 100.0,
            (mixed >> 20) as u32 % 100_000,
            (mixed >> 40) as u32 % 10_000,
        ))?;
        if (row + 1) % step == 0 {
            println!("{:>12} rows, {:>10.0} rows/s", row + 1, step as f64 / reported.elapsed().as_secs_f64());
            reported = Instant::now();
        }
    }
    let appended = appender.finish()?;
    println!("{appended} rows in {:?}, {:.0} rows/s", start.elapsed(), appended as f64 / start.elapsed().as_secs_f64());

    // A chunk with a duplicate key is rejected as a whole, and the error names the row.
    let mut appender = connection.appender("purchase")?;
    appender.append_row(params![-1, 1.0, 1, 1])?;
    appender.append_row(params![-1, 2.0, 2, 2])?;
    match appender.finish() {
        Err(Error::Import { row, source, .. }) => println!("row {row:?} was refused: {source}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}

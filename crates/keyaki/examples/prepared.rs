//! Prepared statements: parse once, execute many times with values of Rust's types.
//!
//! ```sh
//! cargo run -p keyaki --example prepared
//! ```

use std::time::{Duration, Instant, SystemTime};

use keyaki::{Connection, Optional, Result, Row};

struct Reading {
    sensor: i32,
    taken: SystemTime,
    celsius: Option<f32>,
}

impl Reading {
    fn of_row(row: &Row<'_>) -> Result<Reading> {
        Ok(Reading { sensor: row.get("sensor")?, taken: row.get("taken")?, celsius: row.get("celsius")? })
    }
}

impl std::fmt::Display for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minute = self.taken.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60 % 60;
        match self.celsius {
            Some(celsius) => write!(f, "sensor {}, minute {minute}: {celsius:.1} °C", self.sensor),
            None => write!(f, "sensor {}, minute {minute}: no value", self.sensor),
        }
    }
}

fn main() -> Result<()> {
    let connection = Connection::open_temporary()?;
    connection.execute_batch(
        "CREATE TABLE reading (sensor INTEGER, taken TIMESTAMPTZ, celsius REAL, PRIMARY KEY (sensor, taken))",
    )?;

    let insert = connection.prepare("INSERT INTO reading VALUES ($1, $2, $3)")?;
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    for minute in 0..600_u32 {
        let taken = start + Duration::from_secs(60 * u64::from(minute));
        let celsius = (minute % 7 > 0).then_some(20.0 + (minute % 50) as f32 / 10.0);
        insert.execute((minute % 3, taken, celsius))?;
    }

    let find = connection.prepare("SELECT * FROM reading WHERE sensor = $1 AND taken = $2")?;
    println!("parameter $2 is of type {}", find.parameter_type_name(1).unwrap_or_default());
    println!("the columns are {:?}", find.column_names());
    println!("{}", find.query_row((1, start + Duration::from_secs(60)), Reading::of_row)?);
    // No such reading.
    println!("found: {}", find.query_row((2, start), Reading::of_row).optional()?.is_some());

    let begin = Instant::now();
    for _ in 0..10_000 {
        find.exists((0, start))?;
    }
    println!("{:?} per lookup", begin.elapsed() / 10_000);

    let hottest = "SELECT * FROM reading WHERE celsius IS NOT NULL ORDER BY celsius DESC, taken LIMIT $1";
    for reading in connection.query_map(hottest, (3,), Reading::of_row)? {
        println!("{}", reading?);
    }
    Ok(())
}

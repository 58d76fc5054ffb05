//! Several threads with a connection each, and an interrupt.
//!
//! ```sh
//! cargo run -p keyaki --example threads
//! ```

use std::thread;
use std::time::{Duration, Instant};

use keyaki::{Connection, Error, Result};

fn main() -> Result<()> {
    let connection = Connection::open_temporary()?;
    connection.execute("CREATE TABLE visit (thread INTEGER, number INTEGER, PRIMARY KEY (thread, number))", ())?;

    // Writers wait for each other's statements; readers never wait.
    thread::scope(|scope| {
        let writer = |thread: i32| -> Result<()> {
            let connection = connection.try_clone()?;
            scope.spawn(move || -> Result<()> {
                let insert = connection.prepare("INSERT INTO visit VALUES ($1, $2)")?;
                (0..1_000).try_for_each(|number| insert.execute((thread, number)).map(drop))
            });
            Ok(())
        };
        (0..4).try_for_each(writer)
    })?;
    let visits = connection.query_row("SELECT count(*) FROM visit", (), |row| row.get::<_, i64>(0))?;
    println!("{visits} visits");

    // The handle cancels the statement that its connection executes, from any thread.
    let handle = connection.interrupt_handle();
    let timer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        handle.interrupt();
    });
    let start = Instant::now();
    let endless = "SELECT sum(a.value % b.value) FROM generate_series(1, 100000) a, generate_series(1, 100000000) b";
    match connection.query_row(endless, (), |row| row.get::<_, i64>(0)) {
        Err(Error::Cancelled) => println!("cancelled after {:?}", start.elapsed()),
        other => println!("{other:?}"),
    }
    // A panic of the timer would be a bug of this program.
    let _ = timer.join();
    println!("the connection works: {}", connection.query_row("SELECT 1 + 1", (), |row| row.get::<_, i64>(0))?);
    Ok(())
}

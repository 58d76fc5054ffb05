//! The smallest program: open a database, write rows, read them.
//!
//! ```sh
//! cargo run -p keyaki --example quickstart
//! ```

use keyaki::{Connection, Result};

fn main() -> Result<()> {
    // A directory that ends with the program. `Connection::open("shop")` keeps the data.
    let connection = Connection::open_temporary()?;
    connection.execute_batch(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, total DECIMAL(12,2) NOT NULL);
         CREATE INDEX orders_by_customer ON orders (customer) INCLUDE (total);",
    )?;
    for (id, customer, total) in [(1, "Ada", 9.90), (2, "Grace", 25.00), (3, "Ada", 12.50)] {
        connection.execute("INSERT INTO orders VALUES ($1, $2, $3)", (id, customer, total))?;
    }

    let mut rows =
        connection.query("SELECT customer, sum(total) FROM orders GROUP BY customer ORDER BY customer", ())?;
    while let Some(row) = rows.next()? {
        let (customer, total): (&str, f64) = (row.get(0)?, row.get(1)?);
        println!("{customer:10} {total:>8.2}");
    }
    Ok(())
}

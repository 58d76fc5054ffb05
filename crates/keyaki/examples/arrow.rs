//! Arrow batches in and out, without a conversion of single values.
//!
//! ```sh
//! cargo run -p keyaki --example arrow
//! ```

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch};
use arrow::compute::kernels::aggregate::sum;
use arrow::datatypes::Float64Type;
use arrow::util::pretty::pretty_format_batches;
use keyaki::{Connection, Result};

fn main() -> Result<()> {
    let connection = Connection::open_temporary()?;
    connection.execute("CREATE TABLE sample (id BIGINT PRIMARY KEY, value DOUBLE PRECISION NOT NULL)", ())?;

    let mut appender = connection.appender("sample")?;
    for part in 0..10_i64 {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(part * 10_000..(part + 1) * 10_000));
        let values: ArrayRef = Arc::new(Float64Array::from_iter_values((0..10_000).map(|i| f64::from(i) / 100.0)));
        appender.append_batch(&RecordBatch::try_from_iter([("id", ids), ("value", values)])?)?;
    }
    println!("{} rows", appender.finish()?);

    let batches = connection.query_arrow("SELECT value FROM sample WHERE id >= $1", (50_000,))?;
    println!("schema: {}", batches.schema());
    let mut total = 0.0;
    for batch in batches {
        total += sum(batch?.column(0).as_primitive::<Float64Type>()).unwrap_or_default();
    }
    println!("sum: {total}");

    let largest = connection.query_arrow("SELECT id, value FROM sample ORDER BY value DESC, id LIMIT 3", ())?;
    println!("{}", pretty_format_batches(&largest.collect::<Result<Vec<_>>>()?)?);
    Ok(())
}

//! `keyaki-harness extents`: a database with as many extents as a large one, in little space.
//!
//! Its extents have one row and two pages of 4 KiB each, instead of about a mebibyte: a million of them, in 8 GB, have the
//! metadata of a terabyte (node table, manifest).

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use futures::stream;
use keyaki::{Database, Options};
use keyaki_primitives::Random;

use crate::Result;

/// Bytes of a value: two do not fit into a page.
const VALUE_BYTES: usize = 2100;
const BATCH_ROWS: u64 = 4096;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The database, which must not exist
    database: PathBuf,
    /// Number of extents
    #[arg(long, default_value_t = 1_000_000)]
    extents: u64,
}

pub async fn run(arguments: &Arguments) -> Result<()> {
    let store = keyaki_store::Options { page_bytes: 4096, leaf_bytes: 4096, ..Default::default() };
    let database = Database::open(&arguments.database, Options { store: Some(store), ..Default::default() })?;
    let session = database.session();
    session.execute("CREATE TABLE events (key TEXT PRIMARY KEY, value BYTEA NOT NULL)").await?;
    let count = arguments.extents;
    let starts = (0..count).step_by(BATCH_ROWS as usize);
    let batches = starts.map(move |start| Ok(batch(start, (start + BATCH_ROWS).min(count))));
    let rows = session.load("events", stream::iter(batches)).await?;
    println!("{rows} extents");
    Ok(())
}

/// Rows with ascending keys of 24 characters and values that cannot be compressed.
fn batch(start: u64, end: u64) -> RecordBatch {
    let keys: ArrayRef = Arc::new(StringArray::from_iter_values((start..end).map(|i| format!("customer-{i:015}"))));
    let value = |i: u64| {
        let mut random = Random::new(i);
        let words = (0..VALUE_BYTES.div_ceil(8)).flat_map(move |_| random.next_u64().to_le_bytes());
        words.take(VALUE_BYTES).collect::<Vec<u8>>()
    };
    let values: ArrayRef = Arc::new(BinaryArray::from_iter_values((start..end).map(value)));
    #[expect(clippy::expect_used, reason = "both columns have the same length")]
    RecordBatch::try_from_iter([("key", keys), ("value", values)]).expect("columns of one length")
}

//! `keyaki-harness crash-writer`: runs the steps of [`operations`] until it is killed.
//!
//! After each step, the writer prints its number to standard output as an acknowledgement. The
//! buffers are small, so that flushes, compactions and checkpoints happen all the time and are hit by the kill too.

use std::io::{Write, stdout};
use std::path::PathBuf;

use keyaki::{Database, Durability, Options};
use keyaki_harness::operations;

use crate::Result;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    database: PathBuf,
    /// Determines the steps
    seed: u64,
    /// Number of the first step
    #[arg(long, default_value_t = 0)]
    from: u64,
}

pub async fn run(arguments: &Arguments) -> Result<()> {
    let store = keyaki_store::Options {
        buffer_bytes: 32 << 10,
        cache_bytes: 4 << 20,
        checkpoint_log_bytes: 128 << 10,
        durability: Durability::Full,
        ..Default::default()
    };
    let options = Options { store: Some(store), durability: Durability::Full, ..Default::default() };
    let database = Database::open(&arguments.database, options)?;
    let session = database.session();
    for number in arguments.from.. {
        for sql in operations::step(arguments.seed, number).sql() {
            session.execute(&sql).await?;
        }
        let mut out = stdout().lock();
        writeln!(out, "{number}")?;
        out.flush()?;
    }
    Ok(())
}

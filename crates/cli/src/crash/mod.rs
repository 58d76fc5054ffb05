//! `keyaki crash-writer`: commits the statements of [`operations`] until it is killed.
//!
//! After each statement that returned, its number is written to standard output: an acknowledgement. Buffers are small, so
//! that flushes, compactions and checkpoints happen all the time and are hit by the kill too.

pub mod operations;

use std::io::{Write, stdout};

use keyaki::{Database, Durability, Options};

use crate::arguments::CrashWriterArguments;
use crate::failure::{Failure, Result};

pub async fn run(arguments: &CrashWriterArguments) -> Result<()> {
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
        session.execute(&operations::operation(arguments.seed, number).sql()).await?;
        let mut out = stdout().lock();
        writeln!(out, "{number}").and_then(|()| out.flush()).map_err(Failure::Output)?;
    }
    Ok(())
}

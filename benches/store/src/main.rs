//! Compares the key-value store with RocksDB, redb, fjall and LMDB, and with a file system. See `cargo xtask bench
//! store`.
//!
//! Each workload of each system runs in a process of its own (a *cell*), so that the counters of the operating system are
//! exact and no cache is warm. The systems run one after another, workload by workload.
//!
//! | module | contents |
//! |---|---|
//! | `options`, `keys` | options and workloads; keys and values |
//! | `system` | the systems behind one interface, with their settings |
//! | `files` | trees of small files in a system |
//! | `cell` | the workloads |
//! | `histogram`, `process` | percentiles; counters of the process, files |
//! | `compare`, `calibration` | the cells of a run; the speed of the device |
//! | `metrics`, `report` | figures, targets and their comparison; table and JSON rows |
//!
//! Building RocksDB requires a C++ compiler, libclang, liburing and pkg-config (Debian: `libclang-dev`, `liburing-dev`,
//! `pkg-config`).

mod calibration;
mod cell;
mod compare;
mod files;
mod histogram;
mod keys;
mod metrics;
mod options;
mod process;
mod report;
mod system;

use clap::Parser;

use crate::options::Options;

/// The allocator of all systems, also of those in C and C++.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result {
    let options = Options::parse();
    match options.cell {
        Some(workload) => cell::run(workload, &options),
        None => compare::run(&options),
    }
}

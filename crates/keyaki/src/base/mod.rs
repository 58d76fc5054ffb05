//! Vocabulary of the whole crate: errors, options and progress reports.
//!
//! Nothing here touches a database. [`options::MemoryBudget`] divides the memory of a database among page cache, root
//! buffers and queries.

mod error;
pub(crate) mod options;
pub(crate) mod progress;

pub use error::{Error, Result};
pub(crate) use error::{arrow_error, recover};

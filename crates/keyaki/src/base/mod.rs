//! Types that all layers use: errors, options, cancellation, progress reports and single values.
//!
//! Nothing in this folder accesses a database. [`options::MemoryBudget`] divides the memory of a database among page
//! cache, root buffers and queries.

pub(crate) mod advisory_locks;
pub(crate) mod arrays;
pub(crate) mod calendar;
pub(crate) mod elements;
mod error;
pub(crate) mod from_sql;
pub(crate) mod identifiers;
pub(crate) mod interrupt;
pub(crate) mod intervals;
pub(crate) mod json_fields;
pub(crate) mod notices;
pub(crate) mod options;
pub(crate) mod progress;
pub(crate) mod row_locks;
#[cfg(test)]
pub(crate) mod stops;
pub(crate) mod timers;
pub(crate) mod times;
pub(crate) mod to_sql;
pub(crate) mod tree;
mod type_name;
pub(crate) mod uuids;
pub(crate) mod value;

pub use error::{ConstraintKind, Error, ObjectKind, Position, Result, SqlState};
pub(crate) use error::{did_you_mean, shown, similar, syntax, tokenizer};
pub use type_name::field_type_name;
pub(crate) use type_name::type_name;

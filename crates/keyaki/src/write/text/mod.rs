//! Conversion between values and text in CSV, JSON and tbl files.
//!
//! Formats are PostgreSQL's: ISO 8601 dates and timestamps, `BC` for years before 1, `\x` and hexadecimal digits for
//! bytes, and `t`, `f`, `yes`, `no`, … for booleans on input. Floats are written with the fewest digits that identify
//! them.
//!
//! *Invariant.* Parsing the text of any value yields exactly that value.

mod format;
mod formats;
mod parse;

pub(crate) use format::{Formatter, elements_of};
pub(crate) use formats::TimeFormats;
pub(crate) use parse::{BadValue, parse_column};

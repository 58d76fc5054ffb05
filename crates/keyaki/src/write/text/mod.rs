//! Values as text: what COPY reads from and writes to CSV, JSON and tbl files.
//!
//! Every value of every type is written such that parsing gives it again, exactly. The forms are PostgreSQL's (ISO 8601
//! dates and timestamps, `BC` for years before 1, `t`/`f` and the like on input, `\x` and hexadecimal digits for bytes);
//! floats are written with as many digits as they need.

mod calendar;
mod format;
mod parse;

pub(crate) use format::Formatter;
pub(crate) use parse::parse_column;

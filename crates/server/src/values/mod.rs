//! Values of results and parameters, as text and in PostgreSQL's binary formats.
//!
//! | module | contents |
//! |---|---|
//! | [`numeric`] | numerics in groups of four decimal digits |
//! | [`columns`] | columns of results, encoded row by row |
//! | [`messages`] | messages of many rows, encoded column by column |
//! | [`parameters`] | values of parameters |

pub mod columns;
pub mod messages;
mod numeric;
pub mod parameters;

use crate::failure::{Failure, Result};

/// The form of a value in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The value as text.
    Text,
    /// The binary format of its type.
    Binary,
}

impl Format {
    /// The format with this code.
    ///
    /// # Errors
    /// For codes other than 0 and 1.
    pub fn of(code: i16) -> Result<Format> {
        match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            _ => Err(Failure::protocol(format!("unsupported format code: {code}"))),
        }
    }

    /// The code of the format.
    pub fn code(self) -> i16 {
        match self {
            Format::Text => 0,
            Format::Binary => 1,
        }
    }

    /// The format of each of `count` values: one for each, one for all, or text without any.
    ///
    /// # Errors
    /// For other numbers of formats.
    pub fn for_each(codes: &[i16], count: usize, what: &str) -> Result<Vec<Format>> {
        match codes {
            [] => Ok(vec![Format::Text; count]),
            [code] => Ok(vec![Format::of(*code)?; count]),
            codes if codes.len() == count => codes.iter().map(|code| Format::of(*code)).collect(),
            codes => {
                Err(Failure::protocol(format!("bind message has {} {what} formats but {count} {what}s", codes.len())))
            }
        }
    }
}

/// The byte before the text of a document in the binary format of jsonb.
const JSONB_VERSION: u8 = 1;
/// Days from 1970-01-01, the origin of Arrow's dates, to 2000-01-01, that of PostgreSQL's binary formats.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

//! Rows with the same key in statements that are applied in parts ([`super::parts`]).
//!
//! A statement with many rows sorts them by the key ([`crate::write::sorted`]), so that rows with the same key are in the same
//! part, or in parts that follow each other. Parts of sorted rows also read a small range of the table each, if they are
//! joined with it.

use crate::write::rows::Keys;

/// Filters out the rows of a statement whose key an earlier row has. Rows with the same key are in one part, or in parts that
/// follow each other.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The keys of the part before.
    previous: Keys,
}

impl Repeats {
    /// The first row of each key of the next part that the parts before do not have, ascending.
    pub fn first(&mut self, keys: Keys) -> Vec<u32> {
        let rows = keys.distinct_rows_except(&self.previous);
        if keys.len() > 0 {
            self.previous = keys;
        }
        rows
    }
}

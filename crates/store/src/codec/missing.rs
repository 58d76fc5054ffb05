//! Missing values: the values of rows that were written before their tree got a column.
//!
//! Pages, buffered messages and log records keep the columns that the tree had when they were written. Readers take the
//! missing value for the other columns. A page or message that is written again has the value itself, so that a missing
//! value never changes as long as the tree exists.
//!
//! The encoding of a missing value is that of a row without other columns, see [`RowCodec`](super::RowCodec).

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};

use super::row::{put_row, value_of_bytes};
use super::scalar::{Scalar, Values};
use crate::base::{Column, ColumnType, Error, Result, Schema};

/// Maximum length of a missing value in bytes. Each checkpoint writes the schemas of all trees, and flushes write the value
/// for each row of a page.
const MISSING_LIMIT: usize = 1 << 10;
/// As [`MISSING_LIMIT`], for lists: readers copy the elements for each row.
const MISSING_LIST_LIMIT: usize = 64;

/// Maximum length of a missing value of a type in bytes.
pub(crate) fn missing_limit(ty: ColumnType) -> usize {
    if ty.is_list() { MISSING_LIST_LIMIT } else { MISSING_LIMIT }
}

impl Schema {
    /// The same schema with a missing value of a column that is not part of the key: the value of rows that are written
    /// before the tree gets the column. `value` has this value only. Null is the missing value of a nullable column
    /// without another one.
    ///
    /// # Errors
    /// [`Error::ColumnType`], [`Error::ColumnCount`] for another number of values, [`Error::NullValue`] for null in a
    /// column that is not nullable, [`Error::TooLarge`] if the value has more than 1 KiB, or 64 bytes for a list.
    ///
    /// # Panics
    /// If `column` is a key column or does not exist.
    pub fn with_missing(self, column: usize, value: &ArrayRef) -> Result<Schema> {
        assert!(column >= self.key_columns(), "column {column} is part of the key");
        self.columns()[column].check(value)?;
        if value.len() != 1 {
            return Err(Error::ColumnCount { expected: 1, found: value.len() });
        }
        if value.is_null(0) {
            return Ok(self.set_missing(column, None));
        }
        let ty = self.columns()[column].ty;
        let encoded = encoded(value, ty);
        if encoded.len() > missing_limit(ty) {
            let (bytes, limit) = (encoded.len() as u64, missing_limit(ty) as u64);
            return Err(Error::TooLarge { what: "missing value", bytes, limit });
        }
        Ok(self.set_missing(column, Some(encoded)))
    }

    /// The value of rows that lack a column.
    pub(crate) fn missing_value(&self, column: usize) -> Scalar<'_> {
        let encoded = self.missing(column);
        // Missing values are checked when a schema gets them.
        encoded.and_then(|bytes| value_of_bytes(bytes, self.columns()[column].ty)).unwrap_or(Scalar::Null)
    }
}

/// The encoding of the first value of an array, which is not null.
fn encoded(value: &ArrayRef, ty: ColumnType) -> Arc<[u8]> {
    let (values, mut encoded) = (Values::new(value, ty), Vec::new());
    let column = Column { name: String::new(), ty, nullable: false };
    put_row(&[column], 0, |_| values.get(0), &mut encoded);
    encoded.into()
}

/// True if the bytes are the encoding of a missing value.
pub(crate) fn is_missing_value(bytes: &[u8], ty: ColumnType) -> bool {
    bytes.len() <= missing_limit(ty) && value_of_bytes(bytes, ty).is_some()
}

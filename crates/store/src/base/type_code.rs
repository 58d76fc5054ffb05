//! The three bytes that stand for a column type in files, and the types of lists.
//!
//! ```text
//! code: u8, precision: u8, scale: i8
//! ```
//!
//! The low five bits of the code are the number of a scalar type, the high three bits the number of dimensions of a list
//! of such values, 0 for the scalar itself. Precision and scale are those of decimals.

use std::fmt;

use super::ColumnType;

/// Bits of the code below the number of dimensions.
const SCALAR_BITS: u32 = 5;
const SCALAR_MASK: u8 = (1 << SCALAR_BITS) - 1;
/// Code of a list of any values with one dimension.
const ONE_DIMENSION: u8 = 1 << SCALAR_BITS;

/// The type of lists with elements of one type, which may be null. Lists of lists have up to 7 dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListType {
    /// The code of the list; decodes to a scalar type without its dimensions, of which there is at least one.
    code: [u8; 3],
}

impl ListType {
    /// Maximum number of dimensions.
    pub const DIMENSIONS_MAX: u8 = u8::MAX >> SCALAR_BITS;

    /// Lists of elements of a type; `None` if they would have more than 7 dimensions.
    pub fn of(element: ColumnType) -> Option<ListType> {
        let [code, precision, scale] = element.code();
        Some(ListType { code: [code.checked_add(ONE_DIMENSION)?, precision, scale] })
    }

    /// The type of the elements.
    pub fn element(self) -> ColumnType {
        let [code, precision, scale] = self.code;
        decoded([code - ONE_DIMENSION, precision, scale])
    }

    /// The type of the elements of the innermost lists.
    pub fn innermost(self) -> ColumnType {
        let [code, precision, scale] = self.code;
        decoded([code & SCALAR_MASK, precision, scale])
    }

    /// The number of dimensions, 1 to 7.
    pub fn dimensions(self) -> u8 {
        self.code[0] >> SCALAR_BITS
    }
}

/// The type with a code that comes from a type.
fn decoded(code: [u8; 3]) -> ColumnType {
    ColumnType::of_code(code).unwrap_or(ColumnType::Boolean)
}

impl fmt::Debug for ListType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.element().fmt(f)
    }
}

impl ColumnType {
    /// Code, precision and scale.
    pub(crate) fn code(self) -> [u8; 3] {
        match self {
            ColumnType::Boolean => [1, 0, 0],
            ColumnType::Int8 => [2, 0, 0],
            ColumnType::Int16 => [3, 0, 0],
            ColumnType::Int32 => [4, 0, 0],
            ColumnType::Int64 => [5, 0, 0],
            ColumnType::Float32 => [6, 0, 0],
            ColumnType::Float64 => [7, 0, 0],
            ColumnType::Decimal { precision, scale } => [8, precision, scale as u8],
            ColumnType::Text => [9, 0, 0],
            ColumnType::Bytes => [10, 0, 0],
            ColumnType::Date => [11, 0, 0],
            ColumnType::Timestamp { utc: false } => [12, 0, 0],
            ColumnType::Timestamp { utc: true } => [13, 0, 0],
            ColumnType::Time => [14, 0, 0],
            ColumnType::Uuid => [15, 0, 0],
            ColumnType::Interval => [16, 0, 0],
            ColumnType::List(list) => list.code,
        }
    }

    /// Inverse of [`code`](Self::code); `None` for other bytes.
    pub(crate) fn of_code(code: [u8; 3]) -> Option<ColumnType> {
        let [number, precision, scale] = code;
        let scale = scale as i8;
        let scalar = match (number & SCALAR_MASK, precision, scale) {
            (1, 0, 0) => ColumnType::Boolean,
            (2, 0, 0) => ColumnType::Int8,
            (3, 0, 0) => ColumnType::Int16,
            (4, 0, 0) => ColumnType::Int32,
            (5, 0, 0) => ColumnType::Int64,
            (6, 0, 0) => ColumnType::Float32,
            (7, 0, 0) => ColumnType::Float64,
            (8, 1..=38, _) if scale >= -38 && i16::from(scale) <= i16::from(precision) => {
                ColumnType::Decimal { precision, scale }
            }
            (9, 0, 0) => ColumnType::Text,
            (10, 0, 0) => ColumnType::Bytes,
            (11, 0, 0) => ColumnType::Date,
            (12, 0, 0) => ColumnType::Timestamp { utc: false },
            (13, 0, 0) => ColumnType::Timestamp { utc: true },
            (14, 0, 0) => ColumnType::Time,
            (15, 0, 0) => ColumnType::Uuid,
            (16, 0, 0) => ColumnType::Interval,
            _ => return None,
        };
        Some(if number < ONE_DIMENSION { scalar } else { ColumnType::List(ListType { code }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        let decimal = ColumnType::Decimal { precision: 38, scale: -3 };
        for scalar in [ColumnType::Boolean, decimal, ColumnType::Timestamp { utc: true }, ColumnType::Interval] {
            let mut ty = scalar;
            for dimensions in 1..=ListType::DIMENSIONS_MAX {
                let list = ListType::of(ty).expect("dimensions");
                assert_eq!((list.dimensions(), list.element(), list.innermost()), (dimensions, ty, scalar));
                ty = ColumnType::List(list);
                assert_eq!(ColumnType::of_code(ty.code()), Some(ty));
            }
            assert_eq!(ListType::of(ty), None);
        }
    }

    #[test]
    fn other_codes_are_refused() {
        for code in [[0, 0, 0], [17, 0, 0], [32, 0, 0], [49, 0, 0], [4, 1, 0], [40, 0, 0], [40, 39, 0], [255, 0, 0]] {
            assert_eq!(ColumnType::of_code(code), None, "{code:?}");
        }
    }
}

//! Schemas: rows consist of typed columns, and the leading columns form the key.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::IntervalMonthDayNano;
use arrow_schema::{DataType, Field, IntervalUnit, SchemaRef, TimeUnit};

use super::{Compression, Error, ListType, Result};

/// Bytes of a UUID.
pub(crate) const UUID_LEN: usize = 16;

/// The 128-bit number of a UUID. Numbers have the order of the bytes.
#[inline]
pub(crate) fn wide_of_uuid(uuid: &[u8; UUID_LEN]) -> i128 {
    (u128::from_be_bytes(*uuid) ^ 1 << 127) as i128
}

/// Inverse of [`wide_of_uuid`].
#[inline]
pub(crate) fn uuid_of_wide(wide: i128) -> [u8; UUID_LEN] {
    (wide as u128 ^ 1 << 127).to_be_bytes()
}

/// The UUIDs of an array, with any values in the place of nulls.
///
/// # Panics
/// If the array has another type.
pub(crate) fn uuids(array: &ArrayRef) -> &[[u8; UUID_LEN]] {
    let array = array.as_fixed_size_binary();
    assert_eq!(array.value_size(), UUID_LEN, "length of a UUID");
    array.value_data().as_chunks().0
}

/// Nanoseconds of a microsecond.
const NANOS: i64 = 1000;

/// The 128-bit number of an interval: `(((months << 32) + days) << 64) + microseconds`, modulo 2^128. Short intervals
/// have small numbers.
#[inline]
pub(crate) fn wide_of_interval(interval: &IntervalMonthDayNano) -> i128 {
    let calendar = (i64::from(interval.months) << 32).wrapping_add(interval.days.into());
    (i128::from(calendar) << 64).wrapping_add(interval.nanoseconds.div_euclid(NANOS).into())
}

/// Inverse of [`wide_of_interval`] for whole microseconds. Microseconds that exceed the Arrow type become its limit.
#[inline]
pub(crate) fn interval_of_wide(wide: i128) -> IntervalMonthDayNano {
    let micros = wide as i64;
    let calendar = (wide.wrapping_sub(micros.into()) >> 64) as i64;
    let days = calendar as i32;
    let months = (calendar.wrapping_sub(days.into()) >> 32) as i32;
    let micros = micros.clamp(i64::MIN / NANOS, i64::MAX / NANOS);
    IntervalMonthDayNano { months, days, nanoseconds: micros * NANOS }
}

/// The type of a column and the Arrow type of its decoded values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// One bit, read as `Boolean`.
    Boolean,
    /// Signed 8-bit integer.
    Int8,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// IEEE 754 single precision.
    Float32,
    /// IEEE 754 double precision.
    Float64,
    /// `Decimal128(precision, scale)`.
    Decimal {
        /// Decimal digits in all, 1 to 38.
        precision: u8,
        /// Digits after the decimal point, from -38 to the precision.
        scale: i8,
    },
    /// UTF-8, read as `Utf8View`.
    Text,
    /// Read as `BinaryView`.
    Bytes,
    /// Days since 1970-01-01.
    Date,
    /// Microseconds since 1970-01-01. The Arrow type has the time zone `+00:00` if `utc` is set.
    Timestamp {
        /// True for instants in UTC, false for local dates and times.
        utc: bool,
    },
    /// Microseconds since midnight, read as `Time64`. The store accepts any number.
    Time,
    /// 16 bytes, read as `FixedSizeBinary(16)`.
    Uuid,
    /// Months, days and microseconds, read as `Interval(MonthDayNano)`. The store drops fractions of a microsecond.
    Interval,
    /// Lists, read as `List`. Not for key columns.
    List(ListType),
}

impl ColumnType {
    /// The Arrow type of arrays with values of this type.
    pub fn arrow(&self) -> DataType {
        match *self {
            ColumnType::Boolean => DataType::Boolean,
            ColumnType::Int8 => DataType::Int8,
            ColumnType::Int16 => DataType::Int16,
            ColumnType::Int32 => DataType::Int32,
            ColumnType::Int64 => DataType::Int64,
            ColumnType::Float32 => DataType::Float32,
            ColumnType::Float64 => DataType::Float64,
            ColumnType::Decimal { precision, scale } => DataType::Decimal128(precision, scale),
            ColumnType::Text => DataType::Utf8View,
            ColumnType::Bytes => DataType::BinaryView,
            ColumnType::Date => DataType::Date32,
            ColumnType::Timestamp { utc: false } => DataType::Timestamp(TimeUnit::Microsecond, None),
            ColumnType::Timestamp { utc: true } => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
            ColumnType::Time => DataType::Time64(TimeUnit::Microsecond),
            ColumnType::Uuid => DataType::FixedSizeBinary(UUID_LEN as i32),
            ColumnType::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            ColumnType::List(list) => DataType::List(Arc::new(Field::new_list_field(list.element().arrow(), true))),
        }
    }

    /// True for lists.
    pub fn is_list(self) -> bool {
        matches!(self, ColumnType::List(_))
    }

    /// True if the values of both types have the same encoding in pages and rows: decimals are encoded without their
    /// number of digits.
    pub(crate) fn is_encoded_as(self, other: ColumnType) -> bool {
        match (self, other) {
            (ColumnType::Decimal { scale, .. }, ColumnType::Decimal { scale: of_other, .. }) => scale == of_other,
            (ty, other) => ty == other,
        }
    }

    /// True if values have 128 bits: decimals, UUIDs and intervals.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, ColumnType::Decimal { .. } | ColumnType::Uuid | ColumnType::Interval)
    }
}

/// A column of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The name in the Arrow schema and in errors. The store does not use it otherwise.
    pub name: String,
    /// The type of its values.
    pub ty: ColumnType,
    /// True if values may be null.
    pub nullable: bool,
}

impl Column {
    /// True if both columns have the same type and nullability.
    fn is_alike(&self, other: &Column) -> bool {
        (self.ty, self.nullable) == (other.ty, other.nullable)
    }

    /// True if a column `old` can become this one without encoding its values again: it has the same type, or decimals
    /// with the same scale and at most as many digits, and both are nullable or not.
    fn admits(&self, old: &Column) -> bool {
        let has_digits = match (self.ty, old.ty) {
            (ColumnType::Decimal { precision, .. }, ColumnType::Decimal { precision: of_old, .. }) => {
                precision >= of_old
            }
            _ => true,
        };
        self.ty.is_encoded_as(old.ty) && has_digits && self.nullable == old.nullable
    }

    /// Checks that `array` has the Arrow type of the column, and no nulls if the column is not nullable.
    ///
    /// # Errors
    /// [`Error::ColumnType`], [`Error::NullValue`].
    pub(crate) fn check(&self, array: &ArrayRef) -> Result<()> {
        self.check_type(array)?;
        if self.nullable { Ok(()) } else { self.check_not_null(array) }
    }

    /// Checks that `array` has the Arrow type of the column.
    ///
    /// # Errors
    /// [`Error::ColumnType`].
    pub(crate) fn check_type(&self, array: &ArrayRef) -> Result<()> {
        let expected = self.ty.arrow();
        if *array.data_type() != expected {
            return Err(Error::ColumnType { column: self.name.clone(), expected, found: array.data_type().clone() });
        }
        Ok(())
    }

    /// Checks that `array` has no nulls.
    ///
    /// # Errors
    /// [`Error::NullValue`].
    pub(crate) fn check_not_null(&self, array: &ArrayRef) -> Result<()> {
        if array.null_count() > 0 {
            return Err(Error::NullValue { column: self.name.clone() });
        }
        Ok(())
    }
}

/// The columns of a tree. The first [`key_columns`](Schema::key_columns) of them, in this order, form the key. Keys are
/// unique. Rows are sorted by key: ascending, null before every value, floats in IEEE total order, text, bytes
/// and UUIDs bytewise, intervals by months, then days, then microseconds.
///
/// A column that is added to a tree later ([`WriteBatch::extend_tree`](crate::WriteBatch::extend_tree)) may have a
/// *missing value* ([`Schema::with_missing`]): the value of the rows that were written before. Without one, they are null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    columns: Arc<[Column]>,
    key_columns: usize,
    is_sampled: bool,
    compression: Compression,
    /// The encoded missing values of the columns; `None` for null. May be shorter than the columns.
    missing: Arc<[Option<Arc<[u8]>>]>,
    arrow: SchemaRef,
}

/// Maximum number of key columns.
pub(crate) const KEY_COLUMNS_MAX: usize = (1 << 15) - 1;

impl Schema {
    /// A schema whose first `key_columns` columns form the key.
    ///
    /// # Panics
    /// If `key_columns` is 0, exceeds the number of columns, or is above 32,767, or if a key column has lists.
    pub fn new(columns: Vec<Column>, key_columns: usize) -> Self {
        assert!(key_columns <= KEY_COLUMNS_MAX, "{key_columns} key columns");
        assert!(key_columns >= 1 && key_columns <= columns.len(), "{key_columns} key columns of {}", columns.len());
        assert!(!columns[..key_columns].iter().any(|column| column.ty.is_list()), "key column of lists");
        let fields: Vec<Field> = columns.iter().map(|c| Field::new(&c.name, c.ty.arrow(), c.nullable)).collect();
        let arrow = Arc::new(arrow_schema::Schema::new(fields));
        let (columns, compression) = (columns.into(), Compression::default());
        Schema { columns, key_columns, is_sampled: false, compression, missing: Arc::default(), arrow }
    }

    /// The same schema for a tree of which the store keeps a sample of rows and sketches of the columns
    /// ([`TreeView::sample`](crate::TreeView::sample)).
    #[must_use]
    pub fn sampled(self) -> Self {
        Schema { is_sampled: true, ..self }
    }

    /// The same schema for a tree whose pages are compressed so.
    #[must_use]
    pub fn compressed(self, compression: Compression) -> Self {
        Schema { compression, ..self }
    }

    /// A plain key-value tree: one bytes column as the key, one as the value.
    pub fn key_value() -> Self {
        let bytes = |name: &str| Column { name: name.into(), ty: ColumnType::Bytes, nullable: false };
        Schema::new(vec![bytes("key"), bytes("value")], 1)
    }

    /// Returns true if both schemas have the same column types, nullability and number of key columns. Names, missing
    /// values and compression may differ, and only one tree may be sampled.
    pub(crate) fn is_alike(&self, other: &Schema) -> bool {
        let mut columns = self.columns.iter().zip(&*other.columns);
        self.columns.len() == other.columns.len()
            && self.key_columns == other.key_columns
            && columns.all(|(column, other)| column.is_alike(other))
    }

    /// True if a tree with the schema `other` can get this one: it has the same key columns, value columns that
    /// [admit](Column::admits) the values of the old ones, and any further columns behind them, which are nullable or
    /// have missing values.
    pub(crate) fn extends(&self, other: &Schema) -> bool {
        let (keys, known) = (self.key_columns, other.columns.len());
        keys == other.key_columns
            && self.columns.len() >= known
            && self.columns[..keys].iter().zip(&other.columns[..keys]).all(|(new, old)| new.is_alike(old))
            && self.columns[keys..known].iter().zip(&other.columns[keys..]).all(|(new, old)| new.admits(old))
            && (known..self.columns.len()).all(|column| self.may_lack(column))
    }

    /// The schema with another missing value of a column, encoded as in rows; `None` for null.
    pub(crate) fn set_missing(self, column: usize, value: Option<Arc<[u8]>>) -> Schema {
        let mut missing = self.missing.to_vec();
        missing.resize(self.columns.len(), None);
        missing[column] = value;
        Schema { missing: missing.into(), ..self }
    }

    /// The same schema with these encoded missing values of columns.
    pub(crate) fn with_encoded_missing(self, values: Vec<(usize, Arc<[u8]>)>) -> Schema {
        if values.is_empty() {
            return self;
        }
        let mut missing = vec![None; self.columns.len()];
        values.into_iter().for_each(|(column, value)| missing[column] = Some(value));
        Schema { missing: missing.into(), ..self }
    }

    /// The schema of a tree with the schema `old` that gets the columns of this one. The columns of `old` keep their
    /// missing values.
    pub(crate) fn added_to(self, old: &Schema) -> Schema {
        let missing = (0..self.columns.len()).map(|column| {
            let source = if column < old.columns.len() { old } else { &self };
            source.missing.get(column).cloned().flatten()
        });
        let missing: Vec<Option<Arc<[u8]>>> = missing.collect();
        let has_values = missing.iter().any(Option::is_some);
        Schema { missing: if has_values { missing.into() } else { Arc::default() }, ..self }
    }

    /// The encoded missing value of a column; `None` for null.
    pub(crate) fn missing(&self, column: usize) -> Option<&[u8]> {
        self.missing.get(column)?.as_deref()
    }

    /// True if rows may lack a column: it has a missing value, or they are null in it.
    pub(crate) fn may_lack(&self, column: usize) -> bool {
        self.columns[column].nullable || self.missing(column).is_some()
    }

    /// Checks that the first `count` arrays fit the first `count` columns of the schema. Further arrays are ignored.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`].
    pub(crate) fn check_columns(&self, arrays: &[ArrayRef], count: usize) -> Result<()> {
        if arrays.len() < count {
            return Err(Error::ColumnCount { expected: count, found: arrays.len() });
        }
        self.columns[..count].iter().zip(arrays).try_for_each(|(column, array)| column.check(array))
    }

    /// Checks that there is one array for each column, with the Arrow type of the column. Nulls are allowed.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`].
    pub(crate) fn check_types(&self, arrays: &[ArrayRef]) -> Result<()> {
        if arrays.len() != self.columns.len() {
            return Err(Error::ColumnCount { expected: self.columns.len(), found: arrays.len() });
        }
        self.columns.iter().zip(arrays).try_for_each(|(column, array)| column.check_type(array))
    }

    /// All columns, key columns first.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
    /// Number of columns that form the key, at least 1.
    pub fn key_columns(&self) -> usize {
        self.key_columns
    }
    /// True if the heaps of a column may have a dictionary.
    pub(crate) fn may_have_dictionary(&self, column: usize) -> bool {
        let ty = self.columns.get(column).filter(|_| column >= self.key_columns).map(|column| column.ty);
        matches!(ty, Some(ColumnType::Text | ColumnType::Bytes))
    }

    /// How the pages of the tree are compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }
    /// True if the store keeps a sample of the tree.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }
    /// The Arrow schema with the same columns.
    pub fn arrow(&self) -> &SchemaRef {
        &self.arrow
    }
}

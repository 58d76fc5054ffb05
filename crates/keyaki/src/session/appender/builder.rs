//! Builders of appended columns.
//!
//! A value whose variant is that of the column is appended directly. Other values take the way of INSERT: an assignment
//! cast of an array of one value.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryViewBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, FixedSizeBinaryBuilder,
    Float32Builder, Float64Builder, Int8Builder, Int16Builder, Int32Builder, Int64Builder, IntervalMonthDayNanoBuilder,
    StringViewBuilder, Time64MicrosecondBuilder, TimestampMicrosecondBuilder, new_empty_array, new_null_array,
};
use arrow::compute::concat;
use arrow::datatypes::{DataType, IntervalMonthDayNano};
use keyaki_store::ColumnType;

use crate::base::intervals;
use crate::base::uuids::UUID_LEN;
use crate::base::value::{ValueRef, value_at};
use crate::catalog::ColumnDef;
use crate::catalog::types::sql_type_name;
use crate::values::json;
use crate::values::time::MICROS_PER_DAY;
use crate::values::zone::Zone;
use crate::write::assign::{assign, not_null};
use crate::{Error, Result};

/// The appended values of one column.
#[derive(Debug)]
pub(super) struct ColumnBuilder {
    pub def: ColumnDef,
    /// Name of the table, for errors.
    table: String,
    /// The time zone of texts without an offset.
    zone: Zone,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Boolean(BooleanBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal { builder: Decimal128Builder, scale: u8, limit: i128 },
    Text(StringViewBuilder),
    Bytes(BinaryViewBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    TimestampTz(TimestampMicrosecondBuilder),
    Time(Time64MicrosecondBuilder),
    Uuid(FixedSizeBinaryBuilder),
    Interval(IntervalMonthDayNanoBuilder),
    Arrays(Arrays),
}

/// Arrays of a column, each an Arrow array of one value.
#[derive(Debug)]
struct Arrays {
    ty: DataType,
    arrays: Vec<ArrayRef>,
}

impl Arrays {
    fn finish(&mut self) -> Result<ArrayRef> {
        let arrays = std::mem::take(&mut self.arrays);
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        Ok(if arrays.is_empty() { new_empty_array(&self.ty) } else { concat(&arrays)? })
    }
}

/// Applies an expression to the builder of every variant but that of arrays.
macro_rules! each {
    ($values:expr, $builder:ident => $result:expr) => {
        match $values {
            Values::Boolean($builder) => $result,
            Values::Int8($builder) => $result,
            Values::Int16($builder) => $result,
            Values::Int32($builder) => $result,
            Values::Int64($builder) => $result,
            Values::Float32($builder) => $result,
            Values::Float64($builder) => $result,
            Values::Decimal { builder: $builder, .. } => $result,
            Values::Text($builder) => $result,
            Values::Bytes($builder) => $result,
            Values::Date($builder) => $result,
            Values::Timestamp($builder) => $result,
            Values::TimestampTz($builder) => $result,
            Values::Time($builder) => $result,
            Values::Uuid($builder) => $result,
            Values::Interval($builder) => $result,
            Values::Arrays(_) => unreachable!("arrays have no builder"),
        }
    };
}

impl ColumnBuilder {
    pub fn new(table: &str, def: &ColumnDef, zone: Zone) -> ColumnBuilder {
        let arrow = || def.ty.column.arrow();
        let values = match def.ty.column {
            ColumnType::Boolean => Values::Boolean(BooleanBuilder::new()),
            ColumnType::Int8 => Values::Int8(Int8Builder::new()),
            ColumnType::Int16 => Values::Int16(Int16Builder::new()),
            ColumnType::Int32 => Values::Int32(Int32Builder::new()),
            ColumnType::Int64 => Values::Int64(Int64Builder::new()),
            ColumnType::Float32 => Values::Float32(Float32Builder::new()),
            ColumnType::Float64 => Values::Float64(Float64Builder::new()),
            ColumnType::Decimal { precision, scale } => Values::Decimal {
                builder: Decimal128Builder::new().with_data_type(DataType::Decimal128(precision, scale)),
                // Scales of columns are 0 to 38.
                scale: scale.unsigned_abs(),
                limit: 10_i128.pow(precision.into()),
            },
            ColumnType::Text => Values::Text(StringViewBuilder::new()),
            ColumnType::Bytes => Values::Bytes(BinaryViewBuilder::new()),
            ColumnType::Date => Values::Date(Date32Builder::new()),
            ColumnType::Timestamp { utc: false } => Values::Timestamp(TimestampMicrosecondBuilder::new()),
            ColumnType::Timestamp { utc: true } => {
                Values::TimestampTz(TimestampMicrosecondBuilder::new().with_data_type(arrow()))
            }
            ColumnType::Time => Values::Time(Time64MicrosecondBuilder::new()),
            ColumnType::Uuid => Values::Uuid(FixedSizeBinaryBuilder::new(UUID_LEN)),
            ColumnType::Interval => Values::Interval(IntervalMonthDayNanoBuilder::new()),
            ColumnType::List(_) => Values::Arrays(Arrays { ty: arrow(), arrays: Vec::new() }),
        };
        ColumnBuilder { def: def.clone(), table: table.into(), zone, values }
    }

    /// Appends a value and returns its approximate size in bytes. Appends nothing after an error.
    ///
    /// # Errors
    /// As [`assign`].
    #[inline]
    pub fn push(&mut self, value: ValueRef<'_>) -> Result<usize> {
        match (&mut self.values, value) {
            (_, ValueRef::Null) => {
                if !self.def.nullable {
                    return Err(not_null(&self.table, &self.def));
                }
                self.push_null();
                return Ok(1);
            }
            (Values::Int64(builder), ValueRef::Integer(value)) => builder.append_value(value),
            (Values::Int32(builder), ValueRef::Integer(integer)) => {
                let fits = i32::try_from(integer);
                builder.append_value(fits.map_err(|_| out_of_range(&self.def, value))?);
            }
            (Values::Int16(builder), ValueRef::Integer(integer)) => {
                let fits = i16::try_from(integer);
                builder.append_value(fits.map_err(|_| out_of_range(&self.def, value))?);
            }
            (Values::Int8(builder), ValueRef::Integer(integer)) => {
                let fits = i8::try_from(integer);
                builder.append_value(fits.map_err(|_| out_of_range(&self.def, value))?);
            }
            (Values::Float64(builder), ValueRef::Float(float)) => builder.append_value(float),
            (Values::Float32(builder), ValueRef::Float(float)) => {
                let narrow = float as f32;
                if narrow.is_infinite() && float.is_finite() {
                    return Err(out_of_range(&self.def, value));
                }
                builder.append_value(narrow);
            }
            (Values::Decimal { builder, scale, limit }, ValueRef::Decimal { unscaled, scale: given })
                if *scale == given && unscaled.unsigned_abs() < limit.unsigned_abs() =>
            {
                builder.append_value(unscaled);
            }
            (Values::Text(builder), ValueRef::Text(text)) => {
                let within = |max: u32| text.len() <= max as usize || text.chars().count() <= max as usize;
                if let Some(ty) = self.def.ty.json
                    && !json::is_valid(text)
                {
                    return Err(Error::invalid_text(ty.name(), text, Some(&self.def.name)));
                }
                if !self.def.ty.max_chars.is_none_or(within) {
                    return self.push_converted(value);
                }
                builder.try_append_value(text)?;
                return Ok(16 + text.len());
            }
            (Values::Bytes(builder), ValueRef::Bytes(bytes)) => {
                builder.try_append_value(bytes)?;
                return Ok(16 + bytes.len());
            }
            (Values::Boolean(builder), ValueRef::Boolean(value)) => builder.append_value(value),
            (Values::Date(builder), ValueRef::Date(days)) => builder.append_value(days),
            (Values::Timestamp(builder), ValueRef::Timestamp(micros))
            | (Values::TimestampTz(builder), ValueRef::TimestampTz(micros)) => builder.append_value(micros),
            (Values::Time(builder), ValueRef::Time(micros)) if (0..MICROS_PER_DAY).contains(&micros) => {
                builder.append_value(micros);
            }
            (Values::Time(_), ValueRef::Time(_)) => return Err(out_of_range(&self.def, value)),
            (Values::Uuid(builder), ValueRef::Uuid(uuid)) => {
                builder.append_value(uuid.as_bytes())?;
                return Ok(UUID_LEN as usize);
            }
            (Values::Interval(builder), ValueRef::Interval { months, days, micros }) => {
                let interval = intervals::of_parts(months, days, micros);
                builder.append_value(interval.ok_or_else(|| out_of_range(&self.def, value))?);
                return Ok(size_of::<IntervalMonthDayNano>());
            }
            _ => return self.push_converted(value),
        }
        Ok(8)
    }

    /// Appends the result of an assignment cast.
    #[cold]
    fn push_converted(&mut self, value: ValueRef<'_>) -> Result<usize> {
        let array = assign(&value.to_array(), &self.table, &self.def, self.zone)?;
        if let Values::Arrays(arrays) = &mut self.values {
            let bytes = array.get_array_memory_size();
            arrays.arrays.push(array);
            return Ok(bytes);
        }
        let converted = value_at(&array, 0).filter(|converted| !converted.is_null());
        let converted = converted.ok_or_else(|| Error::Internal("an assignment cast gave no value".into()))?;
        self.push(converted)
    }

    /// Appends a null, also to a column that is NOT NULL.
    pub fn push_null(&mut self) {
        if let Values::Arrays(arrays) = &mut self.values {
            return arrays.arrays.push(new_null_array(&arrays.ty, 1));
        }
        each!(&mut self.values, builder => builder.append_null());
    }

    /// The values, as an array of the column's type. The builder is then empty.
    ///
    /// # Errors
    /// If arrays have too many elements in all.
    pub fn finish(&mut self) -> Result<ArrayRef> {
        if let Values::Arrays(arrays) = &mut self.values {
            return arrays.finish();
        }
        Ok(each!(&mut self.values, builder => Arc::new(builder.finish())))
    }
}

#[cold]
fn out_of_range(def: &ColumnDef, value: ValueRef<'_>) -> Error {
    Error::out_of_range(sql_type_name(def.ty), &value.to_string(), Some(&def.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(ty: ColumnType, nullable: bool) -> ColumnBuilder {
        ColumnBuilder::new("t", &ColumnDef { nullable, ..ColumnDef::new("c", ty) }, Zone::UTC)
    }

    #[test]
    fn values_of_every_type_are_appended() {
        for (ty, value) in [
            (ColumnType::Boolean, ValueRef::Boolean(true)),
            (ColumnType::Int8, ValueRef::Integer(-128)),
            (ColumnType::Int16, ValueRef::Integer(-1)),
            (ColumnType::Int32, ValueRef::Integer(1 << 30)),
            (ColumnType::Int64, ValueRef::Integer(i64::MAX)),
            (ColumnType::Float32, ValueRef::Float(0.5)),
            (ColumnType::Float64, ValueRef::Float(0.1)),
            (
                ColumnType::Decimal { precision: 38, scale: 2 },
                ValueRef::Decimal { unscaled: 10_i128.pow(38) - 1, scale: 2 },
            ),
            (ColumnType::Text, ValueRef::Text("longer than twelve bytes")),
            (ColumnType::Bytes, ValueRef::Bytes(&[0, 255])),
            (ColumnType::Date, ValueRef::Date(-1)),
            (ColumnType::Timestamp { utc: false }, ValueRef::Timestamp(1)),
            (ColumnType::Timestamp { utc: true }, ValueRef::TimestampTz(1)),
        ] {
            let mut column = builder(ty, true);
            column.push(value).unwrap();
            column.push(ValueRef::Null).unwrap();
            let array = column.finish().unwrap();
            assert_eq!(*array.data_type(), ty.arrow());
            assert_eq!(value_at(&array, 0), Some(value));
            assert_eq!(value_at(&array, 1), Some(ValueRef::Null));
        }
    }

    #[test]
    fn other_values_are_converted_or_refused() {
        let mut decimal = builder(ColumnType::Decimal { precision: 4, scale: 2 }, true);
        decimal.push(ValueRef::Integer(5)).unwrap();
        decimal.push(ValueRef::Text("1.25")).unwrap();
        for wrong in [ValueRef::Integer(100), ValueRef::Decimal { unscaled: 10_000, scale: 2 }, ValueRef::Boolean(true)]
        {
            assert!(decimal.push(wrong).is_err(), "{wrong:?}");
        }
        let array = decimal.finish().unwrap();
        assert_eq!(value_at(&array, 0), Some(ValueRef::Decimal { unscaled: 500, scale: 2 }));
        assert_eq!(value_at(&array, 1), Some(ValueRef::Decimal { unscaled: 125, scale: 2 }));
        assert_eq!(arrow::array::Array::len(&array), 2);
        assert!(builder(ColumnType::Int8, true).push(ValueRef::Integer(128)).is_err());
        assert!(builder(ColumnType::Float32, true).push(ValueRef::Float(1e300)).is_err());
        assert!(matches!(builder(ColumnType::Date, false).push(ValueRef::Null), Err(Error::Constraint { .. })));
    }
}

//! Rows of texts as Arrow batches.
//!
//! Numbers and truth values get Arrow's types, so that they are shown as those of an embedded database: numeric only with a
//! declared precision, because all rows of a result must have one scale. Values of all other types remain texts.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Decimal128Builder, Float32Builder, Float64Builder, Int16Builder, Int32Builder,
    Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder, UInt32Builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, RowDescriptionBody};

use super::error::{Error, Result};

/// A batch ends at this number of rows, or bytes of values.
const ROWS: usize = 8192;
const BYTES: usize = 1 << 20;

mod oid {
    pub const BOOL: u32 = 16;
    pub const INT8: u32 = 20;
    pub const INT2: u32 = 21;
    pub const INT4: u32 = 23;
    pub const OID: u32 = 26;
    pub const FLOAT4: u32 = 700;
    pub const FLOAT8: u32 = 701;
    pub const NUMERIC: u32 = 1700;
}

/// The values of a column.
enum Column {
    Boolean(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    UInt32(UInt32Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal(Decimal128Builder, u8, i8),
    Text(StringBuilder),
}

/// Calls the same method of every builder.
macro_rules! each {
    ($column:expr, $builder:ident => $call:expr) => {
        match $column {
            Column::Boolean($builder) => $call,
            Column::Int16($builder) => $call,
            Column::Int32($builder) => $call,
            Column::Int64($builder) => $call,
            Column::UInt32($builder) => $call,
            Column::Float32($builder) => $call,
            Column::Float64($builder) => $call,
            Column::Decimal($builder, ..) => $call,
            Column::Text($builder) => $call,
        }
    };
}

impl Column {
    fn new(oid: u32, modifier: i32) -> Column {
        match oid {
            oid::BOOL => Column::Boolean(BooleanBuilder::new()),
            oid::INT2 => Column::Int16(Int16Builder::new()),
            oid::INT4 => Column::Int32(Int32Builder::new()),
            oid::INT8 => Column::Int64(Int64Builder::new()),
            oid::OID => Column::UInt32(UInt32Builder::new()),
            oid::FLOAT4 => Column::Float32(Float32Builder::new()),
            oid::FLOAT8 => Column::Float64(Float64Builder::new()),
            oid::NUMERIC => match decimal_type(modifier) {
                Some((precision, scale)) => {
                    let ty = DataType::Decimal128(precision, scale);
                    Column::Decimal(Decimal128Builder::new().with_data_type(ty), precision, scale)
                }
                None => Column::Text(StringBuilder::new()),
            },
            _ => Column::Text(StringBuilder::new()),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Column::Boolean(_) => DataType::Boolean,
            Column::Int16(_) => DataType::Int16,
            Column::Int32(_) => DataType::Int32,
            Column::Int64(_) => DataType::Int64,
            Column::UInt32(_) => DataType::UInt32,
            Column::Float32(_) => DataType::Float32,
            Column::Float64(_) => DataType::Float64,
            Column::Decimal(_, precision, scale) => DataType::Decimal128(*precision, *scale),
            Column::Text(_) => DataType::Utf8,
        }
    }

    fn push_null(&mut self) {
        each!(self, builder => builder.append_null());
    }

    /// Appends a value. `None` if it is not one of the type.
    fn push(&mut self, text: &str) -> Option<()> {
        match self {
            Column::Boolean(builder) => match text {
                "t" => builder.append_value(true),
                "f" => builder.append_value(false),
                _ => return None,
            },
            Column::Int16(builder) => builder.append_value(text.parse().ok()?),
            Column::Int32(builder) => builder.append_value(text.parse().ok()?),
            Column::Int64(builder) => builder.append_value(text.parse().ok()?),
            Column::UInt32(builder) => builder.append_value(text.parse().ok()?),
            Column::Float32(builder) => builder.append_value(text.parse().ok()?),
            Column::Float64(builder) => builder.append_value(text.parse().ok()?),
            Column::Decimal(builder, _, scale) => builder.append_value(unscaled(text, *scale)?),
            Column::Text(builder) => builder.append_value(text),
        }
        Some(())
    }

    fn finish(&mut self) -> ArrayRef {
        each!(self, builder => Arc::new(builder.finish()))
    }
}

/// Precision and scale of a modifier, if Arrow has the type.
fn decimal_type(modifier: i32) -> Option<(u8, i8)> {
    const HEADER: i32 = 4;
    const PRECISION_MAX: u8 = 38;
    let packed = modifier.checked_sub(HEADER).filter(|packed| *packed >= 0)?;
    let (precision, scale) = (u8::try_from(packed >> 16).ok()?, i8::try_from(packed & 0x7FF).ok()?);
    (1..=PRECISION_MAX).contains(&precision).then_some((precision, scale)).filter(|_| scale as u8 <= precision)
}

/// A decimal number without its point, in units of 10^-`scale`.
fn unscaled(text: &str, scale: i8) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let missing = usize::try_from(scale).ok()?.checked_sub(fraction.len())?;
    format!("{whole}{fraction}{}", "0".repeat(missing)).parse().ok()
}

/// The rows of a result that were not taken yet.
pub struct Rows {
    schema: SchemaRef,
    columns: Vec<Column>,
    count: usize,
    bytes: usize,
}

impl Rows {
    /// # Errors
    /// If the description is malformed.
    pub fn new(description: &RowDescriptionBody) -> Result<Rows> {
        let mut fields = description.fields();
        let (mut columns, mut described) = (Vec::new(), Vec::new());
        while let Some(field) = fields.next()? {
            let column = Column::new(field.type_oid(), field.type_modifier());
            described.push(Field::new(field.name(), column.data_type(), true));
            columns.push(column);
        }
        Ok(Rows { schema: Arc::new(Schema::new(described)), columns, count: 0, bytes: 0 })
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Appends a row.
    ///
    /// # Errors
    /// If it is malformed, or a value is not one of its type.
    pub fn push(&mut self, row: &DataRowBody) -> Result<()> {
        let mut ranges = row.ranges();
        let mut columns = self.columns.iter_mut().zip(self.schema.fields());
        while let Some(range) = ranges.next()? {
            let (column, field) = columns.next().ok_or_else(|| Error::Value("a row has too many values".into()))?;
            let Some(range) = range else {
                column.push_null();
                continue;
            };
            let value = row.buffer().get(range).unwrap_or_default();
            let text = std::str::from_utf8(value)
                .map_err(|_| Error::Value(format!("a value of column \"{}\" is not UTF-8", field.name())))?;
            column.push(text).ok_or_else(|| {
                Error::Value(format!(
                    "value \"{text}\" of column \"{}\" is outside of its type (cast it to TEXT)",
                    field.name()
                ))
            })?;
            self.bytes += value.len();
        }
        if columns.next().is_some() {
            return Err(Error::Value("a row has too few values".into()));
        }
        self.count += 1;
        Ok(())
    }

    /// True if the rows should be taken.
    pub fn is_full(&self) -> bool {
        self.count >= ROWS || self.bytes >= BYTES
    }

    /// The rows since the last call; `None` if there is none.
    ///
    /// # Errors
    /// None but for bugs.
    pub fn take(&mut self) -> Result<Option<RecordBatch>> {
        let count = std::mem::take(&mut self.count);
        self.bytes = 0;
        if count == 0 {
            return Ok(None);
        }
        let columns = self.columns.iter_mut().map(Column::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let batch = RecordBatch::try_new_with_options(self.schema(), columns, &options);
        batch.map(Some).map_err(|error| Error::Value(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_types() {
        let parsed = |oid, modifier, text: &str| {
            let mut column = Column::new(oid, modifier);
            column.push(text)?;
            column.push_null();
            let array = column.finish();
            assert!(array.is_null(1));
            Some((array.data_type().clone(), arrow::util::display::array_value_to_string(&array, 0).unwrap()))
        };
        let shown = |ty, text: &str| Some((ty, text.to_string()));
        assert_eq!(parsed(oid::BOOL, -1, "t"), shown(DataType::Boolean, "true"));
        assert_eq!(parsed(oid::BOOL, -1, "x"), None);
        assert_eq!(parsed(oid::INT2, -1, "-7"), shown(DataType::Int16, "-7"));
        assert_eq!(parsed(oid::INT2, -1, "70000"), None);
        assert_eq!(parsed(oid::FLOAT8, -1, "NaN"), shown(DataType::Float64, "NaN"));
        assert_eq!(parsed(oid::FLOAT8, -1, "-Infinity"), shown(DataType::Float64, "-inf"));
        let modifier = ((12 << 16) | 2) + 4;
        assert_eq!(parsed(oid::NUMERIC, modifier, "-0.05"), shown(DataType::Decimal128(12, 2), "-0.05"));
        assert_eq!(parsed(oid::NUMERIC, modifier, "5"), shown(DataType::Decimal128(12, 2), "5.00"));
        assert_eq!(parsed(oid::NUMERIC, modifier, "NaN"), None);
        assert_eq!(parsed(oid::NUMERIC, -1, "NaN"), shown(DataType::Utf8, "NaN"));
        assert_eq!(parsed(25, -1, "ü"), shown(DataType::Utf8, "ü"));
    }

    #[test]
    fn types_that_arrow_lacks_are_texts() {
        let packed = |precision: i32, scale: i32| ((precision << 16) | (scale & 0x7FF)) + 4;
        assert_eq!(decimal_type(packed(38, 10)), Some((38, 10)));
        assert_eq!(decimal_type(packed(39, 10)), None);
        assert_eq!(decimal_type(packed(5, -2)), None, "a negative scale");
        assert_eq!(decimal_type(packed(2, 5)), None, "a scale above the precision");
        assert_eq!((decimal_type(-1), decimal_type(i32::MIN)), (None, None));
    }
}

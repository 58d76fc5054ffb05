//! Assignment casts: convert values of any type to the type of a column, or fail.
//!
//! As in PostgreSQL, numbers are rounded to the column's scale and text is parsed. Overflow, invalid text and excessive
//! length are errors that name the value. Casts that would reinterpret a value, such as a number as a date or a boolean
//! as a number, are rejected.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Int32Type, Int64Type, IntervalMonthDayNanoType, Time64MicrosecondType};
use arrow::util::display::FormatOptions;
use keyaki_store::{ColumnType, ListType};

use crate::base::arrays;
use crate::base::intervals::{NANOS_PER_MICRO, Text, rounded};
use crate::base::shown;
use crate::base::type_name;
use crate::base::uuids::is_uuid;
use crate::catalog::types::{self, sql_type_name};
use crate::catalog::{ColumnDef, SqlType};
use crate::values::cast::cast;
use crate::values::floats::canonical;
use crate::values::json;
use crate::values::time::MICROS_PER_DAY;
use crate::values::zone::Zone;
use crate::{ConstraintKind, Error, JsonType, Result};

/// Arrow's casts return null for values that do not fit.
const CAST: CastOptions<'static> = CastOptions { safe: true, format_options: FormatOptions::new() };

/// Converts `values` to the type of `column` and checks length and NOT NULL. Texts without an offset are times in `zone`.
///
/// # Errors
/// `InvalidText`, `OutOfRange` or `StringTooLong` with the first value that does not fit; `DatatypeMismatch` if the
/// types have no assignment cast; `Constraint` for a null.
pub(crate) fn assign(values: &ArrayRef, table: &str, column: &ColumnDef, zone: Zone) -> Result<ArrayRef> {
    if let ColumnType::List(ty) = column.ty.column {
        let lists = assign_lists(values, table, column, ty, zone)?;
        check_not_null(&lists, table, column)?;
        return Ok(lists);
    }
    let converted = convert(values, column, zone)?;
    check_text(&converted, column)?;
    check_time(&converted, column)?;
    let converted = whole_microseconds(converted, column)?;
    check_not_null(&converted, table, column)?;
    Ok(converted)
}

/// Converts arrays, or texts of arrays, as [`assign`] does their elements.
fn assign_lists(values: &ArrayRef, table: &str, column: &ColumnDef, ty: ListType, zone: Zone) -> Result<ArrayRef> {
    let source = values.data_type();
    if let DataType::Dictionary(_, inner) = source {
        return assign_lists(&cast_with_options(values, inner, &CAST)?, table, column, ty, zone);
    }
    if *source == DataType::Null {
        return Ok(new_null_array(&column.ty.column.arrow(), values.len()));
    }
    if !is_assignable(source, column.ty.column) {
        return Err(mismatch(column, source));
    }
    let lists = match arrays::lists(values)? {
        Some(lists) => lists,
        None => {
            let texts = cast_with_options(values, &DataType::Utf8View, &CAST)?;
            let (lists, malformed) = arrays::split(texts.as_string_view(), ty.element().is_list());
            if let Some(row) = malformed {
                let text = texts.as_string_view().value(row);
                return Err(Error::invalid_text(sql_type_name(column.ty), text, Some(&column.name)));
            }
            lists
        }
    };
    let element = ColumnDef {
        ty: SqlType { column: ty.element(), ..column.ty },
        nullable: true,
        ..ColumnDef::new(&column.name, ty.element())
    };
    let elements = assign(lists.values(), table, &element, zone)?;
    Ok(Arc::new(arrays::with_elements(&lists, elements)))
}

/// # Errors
/// `Constraint` if a NOT NULL column has a null.
pub(crate) fn check_not_null(values: &ArrayRef, table: &str, column: &ColumnDef) -> Result<()> {
    if !column.nullable && values.logical_null_count() > 0 {
        return Err(not_null(table, column));
    }
    Ok(())
}

/// The error for a null in a NOT NULL column.
pub(crate) fn not_null(table: &str, column: &ColumnDef) -> Error {
    Error::Constraint { kind: ConstraintKind::NotNull, table: table.into(), name: column.name.clone(), key: None }
}

/// # Errors
/// `StringTooLong` if a text has more characters than the column allows, `InvalidText` if it is not JSON but has to be.
pub(crate) fn check_text(values: &ArrayRef, column: &ColumnDef) -> Result<()> {
    if let Some(lists) = values.as_list_opt::<i32>() {
        return check_text(lists.values(), column);
    }
    let Some(texts) = values.as_string_view_opt() else { return Ok(()) };
    if column.ty.json.is_some()
        && let Some(text) = texts.iter().flatten().find(|text| !json::is_valid(text))
    {
        // As in PostgreSQL, also for JSONB.
        return Err(Error::invalid_text(JsonType::Json.name(), text, Some(&column.name)));
    }
    let Some(max) = column.ty.max_chars else { return Ok(()) };
    let max = max as usize;
    // A string has at least as many bytes as characters.
    let too_long = texts.iter().flatten().find(|text| text.len() > max && text.chars().count() > max);
    match too_long {
        None => Ok(()),
        Some(text) => Err(Error::StringTooLong {
            ty: sql_type_name(column.ty),
            value: shown(text),
            chars: text.chars().count(),
            column: Some(column.name.clone()),
        }),
    }
}

/// # Errors
/// `OutOfRange` if a TIME is not within a day. Arrow's arrays may have such values.
fn check_time(values: &ArrayRef, column: &ColumnDef) -> Result<()> {
    let Some(times) = values.as_primitive_opt::<Time64MicrosecondType>() else { return Ok(()) };
    match times.iter().flatten().find(|micros| !(0..MICROS_PER_DAY).contains(micros)) {
        None => Ok(()),
        Some(micros) => Err(Error::out_of_range("time", &format!("{micros} µs"), Some(&column.name))),
    }
}

/// Rounds the times of intervals to microseconds.
///
/// # Errors
/// `OutOfRange` if one does not fit.
fn whole_microseconds(values: ArrayRef, column: &ColumnDef) -> Result<ArrayRef> {
    let Some(intervals) = values.as_primitive_opt::<IntervalMonthDayNanoType>() else { return Ok(values) };
    if intervals.values().iter().all(|interval| interval.nanoseconds % NANOS_PER_MICRO == 0) {
        return Ok(values);
    }
    let rounded = intervals.try_unary::<_, IntervalMonthDayNanoType, Error>(|interval| {
        let out_of_range = || Error::out_of_range("interval", &Text(interval).to_string(), Some(&column.name));
        rounded(interval).ok_or_else(out_of_range)
    });
    Ok(Arc::new(rounded?))
}

fn convert(values: &ArrayRef, column: &ColumnDef, zone: Zone) -> Result<ArrayRef> {
    let target = column.ty.column.arrow();
    let source = values.data_type();
    if *source == target {
        return Ok(canonical(values));
    }
    if let Some(narrowed) = narrowed(values, &target) {
        return Ok(narrowed);
    }
    if let DataType::Dictionary(_, inner) = source {
        return convert(&cast_with_options(values, inner, &CAST)?, column, zone);
    }
    if column.ty.json.is_some() && types::is_record(source) {
        return Ok(Arc::new(json::build::values(values)?));
    }
    if !is_assignable(source, column.ty.column) {
        return Err(mismatch(column, source));
    }
    cast(values, &target, zone).map_err(|error| error.of_column(&column.name))
}

/// BIGINT as INTEGER, the type of sums and of literals; `None` if a value does not fit, and for other types.
fn narrowed(values: &ArrayRef, target: &DataType) -> Option<ArrayRef> {
    let values = values.as_primitive_opt::<Int64Type>().filter(|_| *target == DataType::Int32)?;
    let narrowed = values.try_unary::<_, Int32Type, _>(i32::try_from).ok()?;
    Some(Arc::new(narrowed))
}

fn mismatch(column: &ColumnDef, source: &DataType) -> Error {
    let ty = sql_type_name(column.ty);
    Error::DatatypeMismatch(format!(
        "column \"{}\" is of type {ty} but expression is of type {}",
        column.name,
        type_name(source)
    ))
}

fn is_integer(ty: ColumnType) -> bool {
    matches!(ty, ColumnType::Int8 | ColumnType::Int16 | ColumnType::Int32 | ColumnType::Int64)
}

/// True if there is an assignment cast from the Arrow type to the column type.
fn is_assignable(source: &DataType, target: ColumnType) -> bool {
    use ColumnType as C;
    use DataType as D;
    match source {
        D::Null | D::Utf8 | D::LargeUtf8 | D::Utf8View => true,
        D::Boolean => matches!(target, C::Boolean | C::Text),
        source if source.is_numeric() => {
            is_integer(target) || matches!(target, C::Float32 | C::Float64 | C::Decimal { .. } | C::Text)
        }
        D::Date32 | D::Date64 => matches!(target, C::Date | C::Timestamp { .. } | C::Text),
        D::Timestamp(..) => matches!(target, C::Date | C::Time | C::Timestamp { .. } | C::Text),
        source if is_uuid(source) => matches!(target, C::Uuid | C::Text),
        D::FixedSizeBinary(_) => target == C::Bytes,
        D::Binary | D::LargeBinary | D::BinaryView => matches!(target, C::Bytes | C::Uuid),
        D::Time32(_) | D::Time64(_) => matches!(target, C::Time | C::Text),
        D::Interval(_) | D::Duration(_) => matches!(target, C::Interval | C::Text),
        source => match (arrays::element_type(source), target) {
            (Some(element), C::List(ty)) => is_assignable(element, ty.element()),
            (Some(_), C::Text) => true,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, DurationMicrosecondArray, Float64Array,
        Int32Array, Int64Array, IntervalMonthDayNanoArray, NullArray, StringViewArray,
    };
    use arrow::datatypes::IntervalMonthDayNano;

    use super::*;
    use crate::catalog::SqlType;

    fn column(ty: ColumnType) -> ColumnDef {
        ColumnDef::new("c", ty)
    }

    fn to(ty: ColumnType, values: impl Array + 'static) -> Result<ArrayRef> {
        assign(&(Arc::new(values) as ArrayRef), "t", &column(ty), Zone::UTC)
    }

    fn message(ty: ColumnType, values: impl Array + 'static) -> String {
        to(ty, values).unwrap_err().to_string()
    }

    #[test]
    fn numbers_are_rounded_and_never_wrap() {
        let floats = || Float64Array::from(vec![Some(1.5), Some(2.5), None, Some(-1.4)]);
        assert_eq!(
            to(ColumnType::Int16, floats()).unwrap().as_primitive::<arrow::datatypes::Int16Type>().values()[..2],
            [2, 2]
        );
        let decimals = Decimal128Array::from(vec![150, 249, -250]).with_precision_and_scale(10, 2).unwrap();
        let whole = to(ColumnType::Int64, decimals).unwrap();
        assert_eq!(whole.as_primitive::<arrow::datatypes::Int64Type>().values()[..], [2, 2, -3]);
        assert_eq!(
            message(ColumnType::Int8, Int64Array::from(vec![1, 300])),
            "value \"300\" is out of range for type tinyint (column \"c\")"
        );
        assert!(message(ColumnType::Int32, Float64Array::from(vec![f64::NAN])).contains("NaN"));
        assert!(to(ColumnType::Float32, Float64Array::from(vec![1e300])).is_err());
        assert!(to(ColumnType::Float32, Float64Array::from(vec![f64::INFINITY])).is_ok());
        let decimal = ColumnType::Decimal { precision: 4, scale: 2 };
        assert!(to(decimal, Int32Array::from(vec![99])).is_ok());
        assert!(message(decimal, Int32Array::from(vec![100])).contains("\"100\" is out of range"));
        assert!(message(decimal, Float64Array::from(vec![100.5])).contains("out of range"));
    }

    #[test]
    fn text_is_parsed() {
        let text = |t: &str| StringViewArray::from(vec![Some(t), None]);
        let dates = to(ColumnType::Date, text("1970-01-11")).unwrap();
        assert_eq!(dates.as_any().downcast_ref::<Date32Array>().unwrap().value(0), 10);
        assert_eq!(
            message(ColumnType::Date, text("soon")),
            "invalid input syntax for type date: \"soon\" (column \"c\")"
        );
        assert!(to(ColumnType::Int32, text("12")).is_ok());
        assert!(to(ColumnType::Int32, text("12x")).is_err());
        assert!(to(ColumnType::Int8, text("128")).is_err());
        let bytes = to(ColumnType::Bytes, text("\\x00Ff")).unwrap();
        assert_eq!(bytes.as_any().downcast_ref::<BinaryViewArray>().unwrap().value(0), [0, 255]);
        assert!(to(ColumnType::Bytes, text("\\x0")).is_err());
        assert_eq!(to(ColumnType::Bytes, text("ab")).unwrap().as_binary_view().value(0), b"ab");
    }

    #[test]
    fn reinterpreting_casts_are_rejected() {
        for (ty, values) in [
            (ColumnType::Date, Arc::new(Int32Array::from(vec![1])) as ArrayRef),
            (ColumnType::Int32, Arc::new(BooleanArray::from(vec![true]))),
            (ColumnType::Boolean, Arc::new(Int32Array::from(vec![1]))),
            (ColumnType::Int64, Arc::new(Date32Array::from(vec![1]))),
            (ColumnType::Text, Arc::new(BinaryViewArray::from_iter_values([b"a"]))),
        ] {
            assert!(assign(&values, "t", &column(ty), Zone::UTC).is_err(), "{ty:?} from {}", values.data_type());
        }
        assert_eq!(to(ColumnType::Date, NullArray::new(3)).unwrap().null_count(), 3);
    }

    #[test]
    fn intervals_are_rounded_to_microseconds() {
        let interval = |nanoseconds| IntervalMonthDayNano { months: 1, days: 2, nanoseconds };
        let array = |nanoseconds| IntervalMonthDayNanoArray::from(vec![Some(interval(nanoseconds)), None]);
        let rounded = to(ColumnType::Interval, array(1_500)).unwrap();
        assert_eq!(*rounded, array(2_000));
        assert_eq!(
            message(ColumnType::Interval, array(i64::MAX)),
            "interval out of range: \"1 mon 2 days 2562047:47:16.854775807\" (column \"c\")"
        );
        let duration = DurationMicrosecondArray::from(vec![Some(-86_400_000_001), None]);
        let expected = IntervalMonthDayNano { months: 0, days: -1, nanoseconds: -1000 };
        assert_eq!(
            *to(ColumnType::Interval, duration).unwrap(),
            IntervalMonthDayNanoArray::from(vec![Some(expected), None])
        );
        assert!(message(ColumnType::Int64, array(0)).ends_with("but expression is of type interval"));
    }

    #[test]
    fn lengths_and_nulls_are_checked() {
        let varchar = SqlType { max_chars: Some(3), ..SqlType::from(ColumnType::Text) };
        let column = ColumnDef { nullable: false, ..ColumnDef::new("c", varchar) };
        let text = |t: Option<&str>| Arc::new(StringViewArray::from(vec![t])) as ArrayRef;
        assert!(assign(&text(Some("äöü")), "t", &column, Zone::UTC).is_ok());
        let long = assign(&text(Some("äöüß")), "t", &column, Zone::UTC).unwrap_err().to_string();
        assert_eq!(long, "value too long for type character varying(3): \"äöüß\" has 4 characters (column \"c\")");
        let null = assign(&text(None), "t", &column, Zone::UTC).unwrap_err().to_string();
        assert_eq!(null, "null value in column \"c\" of relation \"t\" violates not-null constraint");
    }
}

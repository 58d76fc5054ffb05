//! `date_trunc` of timestamps, times and intervals, with all of PostgreSQL's units, in the whole range of timestamps.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, StringViewArray, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowTimestampType, DataType, FieldRef, IntervalMonthDayNano, IntervalMonthDayNanoType, Time64MicrosecondType,
    TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field, undefined};
use super::time::MICROS_PER_DAY;
use super::zone::{STORED, Zone};
use crate::base::intervals::{INTERVAL, intervals, is_interval};
use crate::{Error, Result};

const TIME: DataType = DataType::Time64(TimeUnit::Microsecond);
const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
/// Monday, 1969-12-29, counted from 1970-01-01.
const MONDAY: i64 = -3;

/// The function.
pub(crate) fn date_trunc() -> ScalarUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(DateTrunc { signature, aliases: ["datetrunc".into()] })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Microseconds(i64),
    Day,
    Week,
    Months(i64),
    /// A number of years, which begin with the year 1 for more than 10.
    Years(i64),
}

impl Unit {
    /// # Errors
    /// `InvalidParameter` for an unknown name.
    fn named(name: &str) -> Result<Unit> {
        Ok(match name.trim().to_ascii_lowercase().as_str() {
            "microsecond" | "microseconds" => Unit::Microseconds(1),
            "millisecond" | "milliseconds" => Unit::Microseconds(1_000),
            "second" | "seconds" => Unit::Microseconds(1_000_000),
            "minute" | "minutes" => Unit::Microseconds(60_000_000),
            "hour" | "hours" => Unit::Microseconds(3_600_000_000),
            "day" | "days" => Unit::Day,
            "week" | "weeks" => Unit::Week,
            "month" | "months" => Unit::Months(1),
            "quarter" | "quarters" => Unit::Months(3),
            "year" | "years" => Unit::Years(1),
            "decade" | "decades" => Unit::Years(10),
            "century" | "centuries" => Unit::Years(100),
            "millennium" | "millennia" => Unit::Years(1_000),
            _ => {
                return Err(Error::InvalidParameter {
                    name: "unit".into(),
                    value: name.into(),
                    expected: "microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, \
                               decade, century or millennium"
                        .into(),
                });
            }
        })
    }

    fn is_clock(self) -> bool {
        matches!(self, Unit::Microseconds(_))
    }

    /// The beginning of the unit around a local time in microseconds; `None` if it is out of range.
    fn truncate(self, micros: i64) -> Option<i64> {
        let day = match self {
            Unit::Microseconds(unit) => return micros.checked_sub(micros.rem_euclid(unit)),
            Unit::Day => micros.div_euclid(MICROS_PER_DAY),
            Unit::Week => {
                let day = micros.div_euclid(MICROS_PER_DAY);
                day - (day - MONDAY).rem_euclid(7)
            }
            Unit::Months(months) => {
                let (year, month) = month_of(micros.div_euclid(MICROS_PER_DAY));
                first_day(year, month - (month - 1) % months)
            }
            Unit::Years(years) => {
                let (year, _) = month_of(micros.div_euclid(MICROS_PER_DAY));
                let first = if years > 10 { 1 } else { 0 };
                first_day(year - (year - first).rem_euclid(years), 1)
            }
        };
        day.checked_mul(MICROS_PER_DAY)
    }

    /// An interval without its smaller parts.
    ///
    /// # Errors
    /// `Unsupported` for weeks.
    fn truncate_interval(self, interval: IntervalMonthDayNano) -> Result<IntervalMonthDayNano> {
        let IntervalMonthDayNano { months, days, nanoseconds } = interval;
        let of_months = |unit: i32| IntervalMonthDayNano { months: months - months % unit, days: 0, nanoseconds: 0 };
        Ok(match self {
            Unit::Microseconds(unit) => {
                IntervalMonthDayNano { months, days, nanoseconds: nanoseconds - nanoseconds % (unit * 1_000) }
            }
            Unit::Day => IntervalMonthDayNano { months, days, nanoseconds: 0 },
            Unit::Week => return Err(Error::Unsupported("unit \"week\" of date_trunc for type interval".into())),
            Unit::Months(unit) => of_months(unit as i32),
            Unit::Years(unit) => of_months(12 * unit as i32),
        })
    }
}

/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;
/// Days of 400 years.
const CYCLE: i64 = 146_097;

/// The year and the month of a day, counted from 1970-01-01. Years of this computation begin in March.
pub(super) fn month_of(day: i64) -> (i64, i64) {
    let day = day + EPOCH;
    let of_cycle = day.rem_euclid(CYCLE);
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / (CYCLE - 1)) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let year = year + day.div_euclid(CYCLE) * 400;
    if month < 10 { (year, month + 3) } else { (year + 1, month - 9) }
}

/// The first day of a month, counted from 1970-01-01.
pub(super) fn first_day(year: i64, month: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_cycle = year.rem_euclid(400);
    let day = 365 * of_cycle + of_cycle / 4 - of_cycle / 100 + (153 * month + 2) / 5;
    year.div_euclid(400) * CYCLE + day - EPOCH
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DateTrunc {
    signature: Signature,
    aliases: [String; 1],
}

impl ScalarUDFImpl for DateTrunc {
    fn name(&self) -> &str {
        "date_trunc"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Dates and texts are timestamps.
    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let is_text = |ty: &DataType| ty.is_string() || ty.is_null();
        let (unit, time, zone) = match types {
            [unit, time] => (unit, time, None),
            [unit, time, zone] if is_text(zone) => (unit, time, Some(DataType::Utf8View)),
            _ => return Err(undefined(self.name(), types)),
        };
        let time = match time {
            DataType::Dictionary(_, values) => values,
            time => time,
        };
        let time = match time {
            DataType::Timestamp(_, Some(_)) => time.clone(),
            DataType::Date32 | DataType::Date64 if zone.is_some() => {
                DataType::Timestamp(TimeUnit::Microsecond, Some(STORED.into()))
            }
            ty if is_text(ty) && zone.is_some() => DataType::Timestamp(TimeUnit::Microsecond, Some(STORED.into())),
            _ if zone.is_some() => return Err(undefined(self.name(), types)),
            DataType::Timestamp(..) => time.clone(),
            DataType::Time32(_) | DataType::Time64(_) => TIME,
            DataType::Date32 | DataType::Date64 => TIMESTAMP,
            ty if is_text(ty) => TIMESTAMP,
            ty if is_interval(ty) => INTERVAL,
            _ => return Err(undefined(self.name(), types)),
        };
        match is_text(unit) {
            true => Ok([Some(DataType::Utf8View), Some(time), zone].into_iter().flatten().collect()),
            false => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(types[1].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), args.arg_fields[1].data_type().clone(), &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    /// The order of the times.
    fn output_ordering(&self, inputs: &[ExprProperties]) -> DfResult<SortProperties> {
        Ok(match inputs {
            [unit, time] if unit.sort_properties == SortProperties::Singleton => time.sort_properties,
            _ => SortProperties::Unordered,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let one_unit = matches!(args.args[0], ColumnarValue::Scalar(_))
            && !matches!(args.args.get(2), Some(ColumnarValue::Array(_)));
        let (arrays, is_single) = arrays(&args)?;
        let (names, times) = (arrays[0].as_string_view(), &arrays[1]);
        let zones = arrays.get(2).map(|zones| zones.as_string_view());
        if times.is_empty() {
            return result(times.clone(), is_single);
        }
        if one_unit {
            return result(truncated(names, times, zones, 0)?, is_single);
        }
        // A unit for each row.
        let rows = (0..times.len()).map(|row| truncated(names, &times.slice(row, 1), zones, row));
        let rows = rows.collect::<Result<Vec<ArrayRef>>>()?;
        let rows: Vec<&dyn Array> = rows.iter().map(AsRef::as_ref).collect();
        result(arrow::compute::concat(&rows)?, is_single)
    }
}

/// Times truncated to the unit, and in the zone, at `row`.
fn truncated(
    names: &StringViewArray,
    times: &ArrayRef,
    zones: Option<&StringViewArray>,
    row: usize,
) -> Result<ArrayRef> {
    if names.is_null(row) || zones.is_some_and(|zones| zones.is_null(row)) {
        return Ok(new_null_array(times.data_type(), times.len()));
    }
    let unit = Unit::named(names.value(row))?;
    let zone = zones.map(|zones| Zone::named(zones.value(row))).transpose()?;
    Ok(match times.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => timestamps::<TimestampSecondType>(times, unit, zone)?,
        DataType::Timestamp(TimeUnit::Millisecond, _) => timestamps::<TimestampMillisecondType>(times, unit, zone)?,
        DataType::Timestamp(TimeUnit::Microsecond, _) => timestamps::<TimestampMicrosecondType>(times, unit, zone)?,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => timestamps::<TimestampNanosecondType>(times, unit, zone)?,
        DataType::Interval(_) => {
            let intervals: Option<PrimitiveArray<IntervalMonthDayNanoType>> = intervals(times);
            let intervals = intervals.ok_or_else(|| Error::Internal("date_trunc of an interval".into()))?;
            Arc::new(intervals.try_unary::<_, IntervalMonthDayNanoType, Error>(|value| unit.truncate_interval(value))?)
        }
        _ => {
            let Unit::Microseconds(unit) = unit else {
                let name = names.value(row);
                return Err(Error::Unsupported(format!("unit \"{name}\" of date_trunc for type time")));
            };
            let times = cast(times, &TIME)?;
            let times = times.as_primitive::<Time64MicrosecondType>();
            Arc::new(times.unary::<_, Time64MicrosecondType>(|micros| micros - micros % unit))
        }
    })
}

/// Timestamps truncated in `zone`, or in the zone of their type.
///
/// # Errors
/// `OutOfRange`; `InvalidParameter` for a zone that has no name.
fn timestamps<T: ArrowTimestampType>(times: &ArrayRef, unit: Unit, zone: Option<Zone>) -> Result<ArrayRef> {
    let times = times.as_primitive::<T>();
    let label = match times.data_type() {
        DataType::Timestamp(_, label) => label.clone(),
        _ => None,
    };
    let zone = match (zone, &label) {
        (Some(zone), _) => zone,
        (None, Some(label)) if **label != *STORED => Zone::of_label(label)?,
        _ => Zone::UTC,
    };
    let truncate = |micros: i64| {
        if zone.is_utc() {
            return unit.truncate(micros);
        }
        let second = 1_000_000;
        let offset = zone.offset_at(micros.div_euclid(second))?.checked_mul(second)?;
        let local = unit.truncate(micros.checked_add(offset)?)?;
        let offset = match unit.is_clock() {
            true => offset,
            // The offset may be another one at the beginning of the unit.
            false => zone.offset_of_local(local.div_euclid(second))?.checked_mul(second)?,
        };
        local.checked_sub(offset)
    };
    let truncate = |value: i64| match T::UNIT {
        TimeUnit::Second => truncate(value.checked_mul(1_000_000)?).map(|micros| micros.div_euclid(1_000_000)),
        TimeUnit::Millisecond => truncate(value.checked_mul(1_000)?).map(|micros| micros.div_euclid(1_000)),
        TimeUnit::Microsecond => truncate(value),
        TimeUnit::Nanosecond => truncate(value.div_euclid(1_000))?.checked_mul(1_000),
    };
    let out_of_range = || Error::OutOfRange { ty: "timestamp".into(), value: None, column: None };
    let truncated = times.try_unary::<_, T, Error>(|value| truncate(value).ok_or_else(out_of_range))?;
    Ok(Arc::new(truncated.with_timezone_opt(label)))
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate, TimeDelta};
    use proptest::prelude::*;

    use super::*;

    fn day(year: i32, month: u32, day: u32) -> i64 {
        let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
        (NaiveDate::from_ymd_opt(year, month, day).unwrap() - epoch).num_days()
    }

    proptest! {
        #[test]
        fn months_are_those_of_the_calendar(days in -90_000_000_i64..90_000_000) {
            let date = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap() + TimeDelta::days(days);
            let (year, month) = month_of(days);
            prop_assert_eq!((year, month), (date.year().into(), date.month().into()));
            prop_assert_eq!(first_day(year, month), days - i64::from(date.day0()));
        }
    }

    #[test]
    fn units_begin_as_in_postgresql() {
        for (name, given, expected) in [
            ("week", day(2024, 2, 29), day(2024, 2, 26)),
            ("quarter", day(2024, 2, 29), day(2024, 1, 1)),
            ("month", day(-43, 3, 15), day(-43, 3, 1)),
            ("decade", day(2024, 2, 29), day(2020, 1, 1)),
            ("century", day(2000, 2, 29), day(1901, 1, 1)),
            ("century", day(-5, 2, 28), day(-99, 1, 1)),
            ("millennium", day(2024, 2, 29), day(2001, 1, 1)),
            ("decade", day(-5, 1, 2), day(-10, 1, 1)),
        ] {
            let unit = Unit::named(name).unwrap();
            assert_eq!(unit.truncate(given * MICROS_PER_DAY + 5), Some(expected * MICROS_PER_DAY), "{name} {given}");
        }
        assert_eq!(Unit::named("milliseconds").unwrap().truncate(-1), Some(-1_000));
        assert_eq!(Unit::named("fortnight").unwrap_err().sqlstate().code(), "22023");
        assert_eq!(Unit::Years(1_000).truncate(i64::MIN + 1), None);
    }

    #[test]
    fn intervals_lose_their_smaller_parts() {
        let interval = IntervalMonthDayNano { months: -29, days: 17, nanoseconds: -5_400_000_001_000 };
        let truncate = |name: &str| Unit::named(name).unwrap().truncate_interval(interval).unwrap();
        assert_eq!(truncate("hour").nanoseconds, -3_600_000_000_000);
        assert_eq!(truncate("day"), IntervalMonthDayNano { nanoseconds: 0, ..interval });
        assert_eq!(truncate("year"), IntervalMonthDayNano { months: -24, days: 0, nanoseconds: 0 });
    }
}

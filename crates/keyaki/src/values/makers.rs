//! `make_timestamp`, `make_time` and `make_interval`: times of their parts, as in PostgreSQL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    DataType, FieldRef, Float64Type, Int64Type, IntervalMonthDayNanoType, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use chrono::NaiveDate;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field, undefined};
use crate::base::intervals::{INTERVAL, MICROS_PER_DAY, MONTHS_PER_YEAR, of_parts};
use crate::{Error, Result};

const MICROS_PER_SECOND: f64 = 1e6;
const DAYS_PER_WEEK: i64 = 7;

/// The functions of this module.
pub(crate) fn functions() -> [ScalarUDF; 3] {
    [Kind::Timestamp, Kind::Time, Kind::Interval].map(|kind| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(Maker { kind, signature })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Year, month, day, hour, minute, seconds.
    Timestamp,
    /// Hour, minute, seconds.
    Time,
    /// Years, months, weeks, days, hours, minutes, seconds; each may be missing, and is 0 then.
    Interval,
}

/// A function of integers, and of seconds with a fraction as the last argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Maker {
    kind: Kind,
    signature: Signature,
}

impl Maker {
    /// The number of parts.
    fn width(&self) -> usize {
        match self.kind {
            Kind::Timestamp => 6,
            Kind::Time => 3,
            Kind::Interval => 7,
        }
    }
}

impl ScalarUDFImpl for Maker {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Timestamp => "make_timestamp",
            Kind::Time => "make_time",
            Kind::Interval => "make_interval",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let width = self.width();
        let of_place = |place| if place + 1 == width { DataType::Float64 } else { DataType::Int64 };
        let may_miss = self.kind == Kind::Interval && types.len() < width && !types.is_empty();
        let is_part = |ty: &DataType| ty.is_numeric() || ty.is_null();
        match types.iter().all(is_part) && (types.len() == width || may_miss) {
            true => Ok((0..types.len()).map(of_place).collect()),
            false => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match self.kind {
            Kind::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Kind::Time => DataType::Time64(TimeUnit::Microsecond),
            Kind::Interval => INTERVAL,
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), self.return_type(&[])?, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let rows = arrays[0].len();
        let parts = (0..rows).map(|row| {
            if arrays.iter().any(|array| array.is_null(row)) {
                return None;
            }
            let integer = |array: &ArrayRef| array.as_primitive_opt::<Int64Type>().map(|parts| parts.value(row));
            let integers: Vec<i64> = arrays.iter().filter_map(integer).collect();
            let seconds = arrays.last().and_then(|array| array.as_primitive_opt::<Float64Type>());
            Some((integers, seconds.map_or(0.0, |seconds| seconds.value(row))))
        });
        let array: ArrayRef = match self.kind {
            Kind::Timestamp => {
                let made = parts.map(|parts| parts.map(|(parts, seconds)| timestamp(&parts, seconds)).transpose());
                Arc::new(made.collect::<Result<PrimitiveArray<TimestampMicrosecondType>>>()?)
            }
            Kind::Time => {
                let made = parts.map(|parts| parts.map(|(parts, seconds)| time(&parts, seconds)).transpose());
                Arc::new(made.collect::<Result<PrimitiveArray<Time64MicrosecondType>>>()?)
            }
            Kind::Interval => {
                let made =
                    parts.map(|parts| match parts {
                        Some((parts, seconds)) => interval(&parts, seconds)
                            .map(Some)
                            .ok_or_else(|| Error::OutOfRange { ty: "interval".into(), value: None, column: None }),
                        None => Ok(None),
                    });
                Arc::new(made.collect::<Result<PrimitiveArray<IntervalMonthDayNanoType>>>()?)
            }
        };
        result(array, is_single)
    }
}

/// Microseconds since 1970 of year, month, day, hour, minute, and seconds.
///
/// # Errors
/// `Evaluation` for parts that no date or time has.
fn timestamp(parts: &[i64], seconds: f64) -> Result<i64> {
    let number = |place: usize| parts.get(place).copied().unwrap_or_default();
    let (year, month, day) = (number(0), number(1), number(2));
    // The year -1 is 1 BC, which chrono calls 0.
    let counted = if year < 0 { year + 1 } else { year };
    let date = || NaiveDate::from_ymd_opt(counted.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?);
    let date = date().filter(|_| year != 0);
    let date = date.ok_or_else(|| out_of_range("date", format!("{year}-{month:02}-{day:02}")))?;
    let midnight = date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_micros();
    let is_midnight = parts[3..] == [24, 0] && seconds == 0.0;
    Ok(midnight + if is_midnight { MICROS_PER_DAY } else { time(&parts[3..], seconds)? })
}

/// Microseconds since midnight of hour, minute, and seconds. 24:00:00 is no time of a day.
///
/// # Errors
/// As [`timestamp`].
fn time(parts: &[i64], seconds: f64) -> Result<i64> {
    let (hour, minute) = (parts[0], parts[1]);
    let wrong = || out_of_range("time", format!("{hour}:{minute:02}:{seconds:02}"));
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0.0..60.0).contains(&seconds) {
        return Err(wrong());
    }
    let micros = (hour * 60 + minute) * 60 * MICROS_PER_SECOND as i64 + (seconds * MICROS_PER_SECOND).round() as i64;
    if micros < MICROS_PER_DAY { Ok(micros) } else { Err(wrong()) }
}

/// The interval of years, months, weeks, days, hours, minutes, and seconds. `None` if it is out of range.
fn interval(parts: &[i64], seconds: f64) -> Option<arrow::datatypes::IntervalMonthDayNano> {
    let part = |place: usize| parts.get(place).copied().unwrap_or_default();
    let months = part(0).checked_mul(i64::from(MONTHS_PER_YEAR))?.checked_add(part(1))?;
    let days = part(2).checked_mul(DAYS_PER_WEEK)?.checked_add(part(3))?;
    let minutes = part(4).checked_mul(60)?.checked_add(part(5))?;
    let micros = (seconds * MICROS_PER_SECOND).round();
    if !micros.is_finite() || micros.abs() >= i64::MAX as f64 {
        return None;
    }
    let micros = minutes.checked_mul(60 * MICROS_PER_SECOND as i64)?.checked_add(micros as i64)?;
    of_parts(months.try_into().ok()?, days.try_into().ok()?, micros)
}

fn out_of_range(what: &str, value: String) -> Error {
    Error::Evaluation(format!("{what} field value out of range: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::intervals::Text;

    #[test]
    fn parts_make_times() {
        assert_eq!(time(&[10, 2], 3.5).unwrap(), 36_123_500_000);
        assert_eq!(timestamp(&[1970, 1, 2, 0, 0], 0.25).unwrap(), MICROS_PER_DAY + 250_000);
        for wrong in [[2024, 2, 30, 0, 0], [2024, 13, 1, 0, 0], [0, 1, 1, 0, 0], [2024, 1, 1, 24, 1]] {
            assert!(timestamp(&wrong, 0.0).is_err(), "{wrong:?}");
        }
        assert_eq!(timestamp(&[1970, 1, 1, 24, 0], 0.0).unwrap(), MICROS_PER_DAY);
        for seconds in [60.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(time(&[1, 1], seconds).is_err());
        }
        assert!(time(&[23, 59], 59.999_999_9).is_err());
        let text = |parts: &[i64], seconds| Text(interval(parts, seconds).unwrap()).to_string();
        assert_eq!(text(&[1, 2, 1, 3, 4, 5], 6.5), "1 year 2 mons 10 days 04:05:06.5");
        assert_eq!(text(&[0, 0, 0, 10], 0.0), "10 days");
        assert!(interval(&[i64::MAX], 0.0).is_none());
        assert!(interval(&[0, 0, 0, 0, 0, 0], f64::NAN).is_none());
    }
}

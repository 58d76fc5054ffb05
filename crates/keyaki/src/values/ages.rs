//! `age(a, b)`: the difference of two timestamps in years, months, days and a time, with PostgreSQL's algorithm.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::datatypes::{DataType, FieldRef, IntervalMonthDayNano, IntervalMonthDayNanoType, TimeUnit};
use chrono::{DateTime, Datelike, NaiveDate};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{result, strict_field};
use crate::base::intervals::{INTERVAL, MICROS_PER_DAY, MONTHS_PER_YEAR, of_parts};
use crate::{Error, Result};

/// The function.
pub(crate) fn age() -> ScalarUDF {
    let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
    let signature = Signature::exact(vec![timestamp.clone(), timestamp], Volatility::Immutable);
    ScalarUDF::new_from_impl(Age { signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Age {
    signature: Signature,
}

impl ScalarUDFImpl for Age {
    fn name(&self) -> &str {
        "age"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(INTERVAL)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), INTERVAL, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_single { 1 } else { args.number_rows };
        let (a, b) = (args.args[0].to_array(rows)?, args.args[1].to_array(rows)?);
        let both =
            a.as_primitive::<TimestampMicrosecondType>().iter().zip(b.as_primitive::<TimestampMicrosecondType>());
        let ages = both.map(|both| match both {
            (Some(a), Some(b)) => between(a, b).map(Some).ok_or_else(out_of_range),
            _ => Ok(None),
        });
        let ages: PrimitiveArray<IntervalMonthDayNanoType> = ages.collect::<Result<_>>()?;
        result(Arc::new(ages) as ArrayRef, is_single)
    }
}

fn out_of_range() -> Error {
    Error::OutOfRange { ty: "timestamp".into(), value: None, column: None }
}

/// The time from `b` to `a`, in microseconds since 1970. `None` if they are out of the range of dates.
fn between(a: i64, b: i64) -> Option<IntervalMonthDayNano> {
    let parts = |micros: i64| {
        let date = DateTime::from_timestamp_micros(micros)?.date_naive();
        Some((date, micros.rem_euclid(MICROS_PER_DAY)))
    };
    let ((early, early_time), (late, late_time)) = (parts(a.min(b))?, parts(a.max(b))?);
    let mut micros = late_time - early_time;
    let mut days = late.day() as i32 - early.day() as i32;
    let mut months = (late.year() - early.year()) * MONTHS_PER_YEAR + late.month() as i32 - early.month() as i32;
    if micros < 0 {
        micros += MICROS_PER_DAY;
        days -= 1;
    }
    // A month has the length of the month of the second argument, or of the first if that is the earlier one.
    let month = if a < b { parts(a)?.0 } else { early };
    while days < 0 {
        days += month_length(month)?;
        months -= 1;
    }
    match a < b {
        true => of_parts(-months, -days, -micros),
        false => of_parts(months, days, micros),
    }
}

fn month_length(date: NaiveDate) -> Option<i32> {
    let first = date.with_day(1)?;
    let next = first.checked_add_months(chrono::Months::new(1))?;
    Some((next - first).num_days() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::intervals::Text;

    #[test]
    fn ages_are_those_of_postgresql() {
        let micros = |text: &str| format!("{text}Z").parse::<DateTime<chrono::Utc>>().unwrap().timestamp_micros();
        for (a, b, expected) in [
            ("2001-04-10T00:00:00", "1957-06-13T00:00:00", "43 years 9 mons 27 days"),
            ("2024-03-31T00:00:00", "2024-02-29T00:00:00", "1 mon 2 days"),
            ("2024-03-01T00:00:00", "2024-01-31T00:00:00", "1 mon 1 day"),
            ("2024-01-31T00:00:00", "2024-03-01T00:00:00", "-1 mons -1 days"),
            ("2024-05-01T08:00:00", "2024-04-30T09:30:00.5", "22:29:59.5"),
            ("2024-04-30T09:30:00", "2024-05-01T08:00:00", "-22:30:00"),
            ("2024-05-01T00:00:00", "2024-05-01T00:00:00", "00:00:00"),
        ] {
            assert_eq!(Text(between(micros(a), micros(b)).unwrap()).to_string(), expected, "{a} {b}");
        }
    }
}

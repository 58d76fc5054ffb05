//! TIMESTAMP and DATE from text, and rounded timestamps.
//!
//! As in PostgreSQL, the time zone of a text is ignored where the type has none.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Date32Array, Int64Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};

use super::cast::arrow;
use super::zone::Zone;
use crate::Result;
use crate::base::intervals::Problem;
use crate::base::times::{self, SECONDS_PER_DAY, ZoneText, cut, micros};

/// 2000-01-01 in microseconds. Halves are rounded away from it, as in PostgreSQL.
const ROUNDING_ORIGIN: i64 = 946_684_800_000_000;
const NANOS_DIGITS: usize = 9;

type Parsed<T> = std::result::Result<T, Problem>;

/// Times from texts; null for texts that are none. A TIMESTAMPTZ without a time zone is a local time of `zone`.
///
/// # Errors
/// None is expected.
pub(crate) fn of_texts(texts: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    let texts = texts.as_string_view().iter();
    match to {
        DataType::Timestamp(unit, label) => {
            let zone = label.is_some().then_some(zone);
            let values = texts.map(|text| timestamp(text?, *unit, zone).ok()).collect::<Int64Array>();
            arrow(&(Arc::new(values) as ArrayRef), to)
        }
        _ => Ok(Arc::new(texts.map(|text| date(text?).ok()).collect::<Date32Array>())),
    }
}

/// The problem of a text that is not a time.
pub(crate) fn problem(text: &str) -> Problem {
    match times::parse(text).and_then(|parsed| known_zone(parsed.zone)) {
        Ok(_) => Problem::Range,
        Err(problem) => problem,
    }
}

/// The named zone of a text, if it has one.
fn known_zone(zone: ZoneText<'_>) -> Parsed<Option<Zone>> {
    match zone {
        ZoneText::Name(name) => Zone::named(name).map(Some).map_err(|_| Problem::Syntax),
        _ => Ok(None),
    }
}

fn date(text: &str) -> Parsed<i32> {
    let parsed = times::parse(text)?;
    known_zone(parsed.zone)?;
    i32::try_from(parsed.days).map_err(|_| Problem::Range)
}

/// The timestamp of a text in a unit. `zone`: the zone of texts without one, for TIMESTAMPTZ.
fn timestamp(text: &str, unit: TimeUnit, zone: Option<Zone>) -> Parsed<i64> {
    let parsed = times::parse(text)?;
    let local = parsed.days * SECONDS_PER_DAY + parsed.seconds;
    let offset_of = |zone: Zone| match zone.is_utc() {
        true => Ok(0),
        false => zone.offset_of_local(local).ok_or(Problem::Range),
    };
    let offset = match (zone, known_zone(parsed.zone)?, parsed.zone) {
        (None, ..) => 0,
        (Some(_), Some(named), _) => offset_of(named)?,
        (Some(_), None, ZoneText::Offset(offset)) => offset,
        (Some(zone), None, _) => offset_of(zone)?,
    };
    let seconds = i128::from(local - offset);
    let value = match unit {
        TimeUnit::Nanosecond => seconds * 1_000_000_000 + i128::from(cut(parsed.fraction, NANOS_DIGITS)),
        _ => seconds * 1_000_000 + i128::from(micros(parsed.fraction).unwrap_or(0)),
    };
    let value = i64::try_from(value).map_err(|_| Problem::Range)?;
    match micros_of(unit) {
        Some(scale) => rounded(value, scale).ok_or(Problem::Range),
        None => Ok(value),
    }
}

/// The microseconds of a unit; `None` for units that need no rounding.
fn micros_of(unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::Second => Some(1_000_000),
        TimeUnit::Millisecond => Some(1_000),
        TimeUnit::Microsecond | TimeUnit::Nanosecond => None,
    }
}

/// A time in microseconds, in units of `scale` microseconds.
fn rounded(micros: i64, scale: i64) -> Option<i64> {
    let distance = micros.checked_sub(ROUNDING_ORIGIN)?;
    let units = distance.checked_abs()?.checked_add(scale / 2)? / scale * distance.signum();
    units.checked_add(ROUNDING_ORIGIN / scale)
}

/// Timestamps in microseconds as timestamps of type `to`, in a longer unit.
pub(super) fn round(times: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let DataType::Timestamp(unit, _) = to else { return arrow(times, to) };
    let Some(scale) = micros_of(*unit) else { return arrow(times, to) };
    let times: &TimestampMicrosecondArray = times.as_primitive::<TimestampMicrosecondType>();
    let units: Int64Array = times.unary_opt(|micros| rounded(micros, scale));
    arrow(&(Arc::new(units) as ArrayRef), to)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, StringViewArray};

    use super::*;
    use crate::values::zone::STORED;

    fn read(text: &str, zone: Option<&str>) -> Option<i64> {
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![text]));
        let to = DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let times = of_texts(&texts, &to, Zone::UTC).unwrap();
        times.is_valid(0).then(|| times.as_primitive::<TimestampMicrosecondType>().value(0))
    }

    #[test]
    fn fractions_are_rounded() {
        for (text, expected) in [
            ("1970-01-01 00:00:00.1234565", 123_456),
            ("1970-01-01 00:00:00.999999999", 1_000_000),
            ("1970-01-01 00:00:00.1234567890123", 123_457),
            ("1969-12-31 23:59:59.9999999", 0),
            ("1970-1-1 0:00:00.1234566", 123_457),
            ("1970-01-01T00:00:00.1234566Z", 123_457),
        ] {
            assert_eq!(read(text, None), Some(expected), "{text}");
        }
        assert_eq!(read("1970-01-01 00:00:00.1234566+01", Some(STORED)), Some(123_457 - 3_600_000_000));
        assert_eq!(read("1970-01-01 00:00:00.1234566x", None), None);
    }

    #[test]
    fn zones_are_ignored_without_time_zone() {
        let hour = 3_600_000_000;
        for text in [
            "1970-01-01 01:00:00+02",
            "1970-01-01 01:00:00-05:30",
            "1970-01-01T01:00:00Z",
            "1970-01-01 1:00+02",
            " 1970-01-01 01:00:00 ",
            "1970-01-01 01:00:00 Europe/Berlin",
        ] {
            assert_eq!(read(text, None), Some(hour), "{text}");
        }
        assert_eq!(read("1970-01-01 01:00:00+02", Some(STORED)), Some(-hour));
        assert_eq!(read("1970-01-01 01:00:00 Europe/Berlin", Some(STORED)), Some(0));
        for text in ["1970-01-01 01:00:00 xyz", "1970-01-01 01:00:00+", "1970-01-01 01:00:00+99"] {
            assert_eq!(read(text, None), None, "{text}");
        }
        assert_eq!(date("1970-01-02 Europe/Berlin"), Ok(1));
        for text in ["1970-01-01 garbage", "1970-01-01 10:00 Mars/Olympus"] {
            assert_eq!((date(text), problem(text)), (Err(Problem::Syntax), Problem::Syntax), "{text}");
        }
    }

    #[test]
    fn longer_units_are_rounded() {
        for (text, unit, expected) in [
            ("1970-01-01 00:00:00.1235", TimeUnit::Millisecond, 123),
            ("1970-01-01 00:00:00.1236", TimeUnit::Millisecond, 124),
            ("1970-01-01 00:00:00.1234", TimeUnit::Millisecond, 123),
            ("1970-01-01 00:00:00.9", TimeUnit::Second, 1),
            // Away from 2000-01-01.
            ("1970-01-01 00:00:00.5", TimeUnit::Second, 0),
            ("2000-01-01 00:00:00.5", TimeUnit::Second, 946_684_801),
            ("1970-01-01 00:00:00.123456789", TimeUnit::Nanosecond, 123_456_789),
        ] {
            assert_eq!(timestamp(text, unit, None), Ok(expected), "{text} {unit:?}");
        }
        for micros in [i64::MIN, i64::MIN + ROUNDING_ORIGIN] {
            assert_eq!(rounded(micros, 1_000), None);
        }
        assert_eq!(timestamp("2300-01-01", TimeUnit::Nanosecond, None), Err(Problem::Range));
    }
}

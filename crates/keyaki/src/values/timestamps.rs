//! TIMESTAMP and DATE from text.
//!
//! Arrow reads the texts. This module gives it other forms that PostgreSQL has, rounds fractions to microseconds, and
//! ignores offsets where the type has no time zone.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringViewArray, TimestampMicrosecondArray};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{is_null, nullif};
use arrow::datatypes::{DataType, TimeUnit};

use super::cast::arrow;
use super::time::{FRACTION_DIGITS, micros};
use super::zone::{STORED, Zone, labelled};
use crate::Result;

/// Times from texts; null for texts that are none.
///
/// # Errors
/// None is expected.
pub(super) fn of_texts(texts: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    let views = texts.as_string_view();
    let is_micros = matches!(to, DataType::Timestamp(TimeUnit::Microsecond, _));
    // The long fractions of a text are cut, which leaves the text as Arrow reads it. They are rounded at the end.
    if is_micros && views.iter().flatten().any(|text| excess(text).is_some()) {
        let cut = |text| match excess(text) {
            Some(digits) => Cow::Owned(format!("{}{}", &text[..digits.start], &text[digits.end..])),
            None => Cow::Borrowed(text),
        };
        let cut: StringViewArray = views.iter().map(|text| text.map(cut)).collect();
        let times = of_short_texts(&(Arc::new(cut) as ArrayRef), to, zone)?;
        return rounded(&times, views);
    }
    of_short_texts(texts, to, zone)
}

/// As [`of_texts`], without fractions of more digits than microseconds have.
fn of_short_texts(texts: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    let plain = match to {
        DataType::Timestamp(unit, _) => arrow(texts, &DataType::Timestamp(*unit, None))?,
        _ => arrow(texts, to)?,
    };
    let usual: ArrayRef = match plain.null_count() > texts.null_count() {
        true => {
            let usual = |text: &str| usual(text).unwrap_or_else(|| text.to_string());
            Arc::new(texts.as_string_view().iter().map(|text| text.map(usual)).collect::<StringViewArray>())
        }
        false => texts.clone(),
    };
    match to {
        DataType::Timestamp(_, Some(_)) => instants(&usual, to, zone),
        _ => locals(&usual, to),
    }
}

/// The local times of texts, without the offsets behind them.
fn locals(texts: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let times = arrow(texts, to)?;
    let views = texts.as_string_view();
    if !views.iter().flatten().any(|text| offset(text).is_some()) {
        return Ok(times);
    }
    let local = |text| offset(text).map_or(text, |at| &text[..at]);
    let local: StringViewArray = views.iter().map(|text| text.map(local)).collect();
    // A text with a wrong offset is not a time.
    Ok(nullif(&arrow(&(Arc::new(local) as ArrayRef), to)?, &is_null(&times)?)?)
}

/// Instants from texts: a text with an offset is an instant; any other is a local time, which may be skipped or
/// ambiguous.
fn instants(texts: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    let DataType::Timestamp(unit, Some(_)) = to else { return arrow(texts, to) };
    if zone.is_utc() {
        return arrow(texts, to);
    }
    let instants = arrow(texts, &DataType::Timestamp(*unit, Some(zone.to_string().into())))?;
    let locals = zone.to_instants(&arrow(texts, &DataType::Timestamp(*unit, None))?)?;
    arrow(&zip(&is_null(&instants)?, &locals, &labelled(&instants, STORED))?, to)
}

/// Adds a microsecond where the digits that are missing in a time round it up.
fn rounded(times: &ArrayRef, texts: &StringViewArray) -> Result<ArrayRef> {
    let rounds_up: BooleanArray = texts.iter().map(|text| text.map(rounds_up)).collect();
    let times: &TimestampMicrosecondArray = times.as_primitive();
    let next = |row: usize| times.value(row).checked_add(i64::from(rounds_up.value(row)));
    let rounded = (0..times.len()).map(|row| if times.is_valid(row) { next(row) } else { None });
    let rounded: TimestampMicrosecondArray = rounded.collect();
    Ok(Arc::new(rounded.with_timezone_opt(match times.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    })))
}

/// The bytes of the time of day in a text with a date; `None` if there is none.
fn start_of_time(text: &str) -> Option<usize> {
    let start = text.len() - text.trim_ascii_start().len();
    let at = start + text[start..].find([' ', 'T', 't'])?;
    let blanks = text[at + 1..].len() - text[at + 1..].trim_ascii_start().len();
    Some(at + 1 + blanks)
}

/// The end of the time of day in a text with an offset or a time zone behind it; `None` for other texts.
fn offset(text: &str) -> Option<usize> {
    let start = start_of_time(text)?;
    let digits = text[start..].find(|c: char| !c.is_ascii_digit() && !matches!(c, ':' | '.'))?;
    let is_blank = text[start + digits..].trim_ascii().is_empty();
    (digits > 0 && !is_blank).then_some(start + digits)
}

/// The digits of the fraction of a second that microseconds do not have.
fn excess(text: &str) -> Option<Range<usize>> {
    const LENGTH_MIN: usize = "2024-1-1 0:00:00.".len() + FRACTION_DIGITS;
    if text.len() <= LENGTH_MIN {
        return None;
    }
    let fraction = fraction(text)?;
    (fraction.len() > FRACTION_DIGITS).then_some(fraction.start + FRACTION_DIGITS..fraction.end)
}

/// The digits behind the point of a time.
fn fraction(text: &str) -> Option<Range<usize>> {
    let start = text.find('.')? + 1;
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    Some(start..start + digits)
}

/// True if the fraction is nearer to the next microsecond than to the one before.
fn rounds_up(text: &str) -> bool {
    let Some(fraction) = fraction(text).filter(|fraction| fraction.len() > FRACTION_DIGITS) else { return false };
    let digits = &text[fraction];
    match (micros(digits), digits[..FRACTION_DIGITS].parse::<i64>()) {
        (Some(rounded), Ok(cut)) => rounded > cut,
        _ => false,
    }
}

/// `YYYY-MM-DD[ HH:MM:SS…]` for `YYYY-M-D` or `YYYY/M/D`, possibly with `H:MM` and more behind it; `None` for other
/// texts.
fn usual(text: &str) -> Option<String> {
    let text = text.trim_ascii();
    let (date, time) = match text.find([' ', 'T', 't']) {
        Some(end) => (&text[..end], text[end + 1..].trim_ascii_start()),
        None => (text, ""),
    };
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok())?
    };
    let mut parts = date.split(if date.contains('/') { '/' } else { '-' });
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (year, month, day) = (number(year, 4..=4)?, number(month, 1..=2)?, number(day, 1..=2)?);
    let date = format!("{year:04}-{month:02}-{day:02}");
    if time.is_empty() {
        return Some(date);
    }
    let (hour, rest) = time.split_once(':')?;
    let (minute, rest) = rest.split_at_checked(2)?;
    let (hour, minute) = (number(hour, 1..=2)?, number(minute, 2..=2)?);
    let seconds = if rest.starts_with(':') { "" } else { ":00" };
    Some(format!("{date} {hour:02}:{minute:02}{seconds}{rest}"))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimestampMicrosecondType;

    use super::*;

    fn read(text: &str, zone: Option<&str>) -> Option<i64> {
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![text]));
        let to = DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let times = of_texts(&texts, &to, Zone::UTC).unwrap();
        times.is_valid(0).then(|| times.as_primitive::<TimestampMicrosecondType>().value(0))
    }

    #[test]
    fn other_forms_are_read() {
        for (text, expected) in [
            ("2024-03-01 10:00", Some("2024-03-01 10:00:00")),
            ("2024-3-1 9:05+00", Some("2024-03-01 09:05:00+00")),
            ("2024-03-01T10:00Z", Some("2024-03-01 10:00:00Z")),
            (" 2024/01/05", Some("2024-01-05")),
            ("2024-01-05  1:02:03.5", Some("2024-01-05 01:02:03.5")),
            ("2024-01-05 10", None),
            ("24-01-05", None),
            ("2024-01-05-06", None),
            ("2024-01-05 10:0", None),
            ("", None),
        ] {
            assert_eq!(usual(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn fractions_are_rounded() {
        for (text, expected) in [
            ("1970-01-01 00:00:00.1234565", 123_456),
            ("1970-01-01 00:00:00.1234566", 123_457),
            ("1970-01-01 00:00:00.0000005", 0),
            ("1970-01-01 00:00:00.0000015", 2),
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
    fn offsets_are_ignored_without_time_zone() {
        let hour = 3_600_000_000;
        for text in [
            "1970-01-01 01:00:00+02",
            "1970-01-01 01:00:00-05:30",
            "1970-01-01T01:00:00Z",
            "1970-01-01 1:00+02",
            " 1970-01-01 01:00:00 ",
        ] {
            assert_eq!(read(text, None), Some(hour), "{text}");
        }
        assert_eq!(read("1970-01-01 01:00:00+02", Some(STORED)), Some(-hour));
        for text in ["1970-01-01 01:00:00 xyz", "1970-01-01 01:00:00+", "1970-01-01 01:00:00+99"] {
            assert_eq!(read(text, None), None, "{text}");
        }
    }
}

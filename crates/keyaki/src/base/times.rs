//! Timestamps and dates from text.
//!
//! | part | forms |
//! |---|---|
//! | date | `2024-01-31`, `2024/1/31`, `20240131`; years have 4 to 8 digits, and may have a sign, as in ISO 8601 |
//! | time of day, behind `T` or blanks | `9:05`, `09:05:30`, `09:05:30.5`, `9:05 PM`, `0905`, `090530.5`, `24:00`, `23:59:60` |
//! | time zone | `Z`, `+2`, `+02`, `-05:30`, `+0530`, `+05:30:10`, a name of the IANA database |
//! | era, at the end | `BC`, `AD` |
//!
//! COPY, casts and assignments read texts with this parser. They find the offsets of zones themselves.

use super::calendar::days_from_date;
use super::intervals::Problem;

type Parsed<T> = Result<T, Problem>;

pub(crate) const SECONDS_PER_DAY: i64 = 86_400;
/// Digits of a fraction in microseconds.
const FRACTION_DIGITS: usize = 6;

/// The parts of a text. The local time has no offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp<'a> {
    /// Days since 1970-01-01.
    pub days: i64,
    /// Seconds since midnight.
    pub seconds: i64,
    /// The digits behind the point.
    pub fraction: &'a str,
    pub zone: ZoneText<'a>,
}

/// The time zone of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZoneText<'a> {
    None,
    /// Seconds east of Greenwich.
    Offset(i64),
    Name(&'a str),
}

/// Parses a date, possibly with a time of day and a time zone.
///
/// # Errors
/// `Range` for dates and times that do not exist, `Syntax` for other texts.
pub(crate) fn parse(text: &str) -> Parsed<Timestamp<'_>> {
    if let Some(days) = plain_date(text) {
        return Ok(Timestamp { days: days?, seconds: 0, fraction: "", zone: ZoneText::None });
    }
    let (text, before_christ) = without_era(text.trim_ascii());
    let (text, sign) = match text.as_bytes().first() {
        Some(b'-') => (&text[1..], -1),
        Some(b'+') => (&text[1..], 1),
        _ => (text, 1),
    };
    let mut rest = text;
    let (year, digits) = number(&mut rest, 4, 8)?;
    let (year, month, day) = match rest.as_bytes().first() {
        Some(separator @ (b'-' | b'/')) => {
            let separator = *separator;
            byte(&mut rest, separator)?;
            let (month, _) = number(&mut rest, 1, 2)?;
            byte(&mut rest, separator)?;
            (year, month, number(&mut rest, 1, 2)?.0)
        }
        _ if digits == 8 => (year / 10_000, year / 100 % 100, year % 100),
        _ => return Err(Problem::Syntax),
    };
    let year = match (before_christ, sign) {
        (true, -1) => return Err(Problem::Syntax),
        (true, _) if year == 0 => return Err(Problem::Range),
        (true, _) => 1 - year,
        (false, sign) => sign * year,
    };
    let days = days_from_date(year, month as u32, day as u32).ok_or(Problem::Range)?;
    let mut parsed = Timestamp { days, seconds: 0, fraction: "", zone: ZoneText::None };
    let has_letter = matches!(rest.as_bytes().first(), Some(b'T' | b't'));
    let time = if has_letter { &rest[1..] } else { rest.trim_ascii_start() };
    match time.as_bytes().first() {
        None if !has_letter => {}
        Some(first) if time.len() < rest.len() && first.is_ascii_digit() => put_time(time, &mut parsed)?,
        Some(_) if time.len() < rest.len() && !has_letter => parsed.zone = zone(time)?,
        _ => return Err(Problem::Syntax),
    }
    Ok(parsed)
}

/// A date in the form `2024-01-31`; `None` for other texts.
fn plain_date(text: &str) -> Option<Parsed<i64>> {
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text.as_bytes() else { return None };
    let number = |digits: &[u8]| {
        digits
            .iter()
            .try_fold(0_i64, |number, byte| byte.is_ascii_digit().then(|| 10 * number + i64::from(byte - b'0')))
    };
    let (year, month, day) = (number(&[y1, y2, y3, y4])?, number(&[m1, m2])?, number(&[d1, d2])?);
    Some(days_from_date(year, month as u32, day as u32).ok_or(Problem::Range))
}

/// The text without an era at its end, and true for `BC`.
fn without_era(text: &str) -> (&str, bool) {
    let Some((rest, era)) = text.len().checked_sub(2).and_then(|at| text.split_at_checked(at)) else {
        return (text, false);
    };
    let is_separate = rest.ends_with(|c: char| c.is_ascii_digit() || c.is_ascii_whitespace());
    match is_separate && (era.eq_ignore_ascii_case("bc") || era.eq_ignore_ascii_case("ad")) {
        true => (rest.trim_ascii_end(), era.eq_ignore_ascii_case("bc")),
        false => (text, false),
    }
}

/// Parses a time of day, and a time zone behind it.
fn put_time<'a>(mut rest: &'a str, parsed: &mut Timestamp<'a>) -> Parsed<()> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let is_compact = matches!(digits, 4 | 6);
    let (mut hour, _) = number(&mut rest, 1, 2)?;
    if !is_compact {
        byte(&mut rest, b':')?;
    }
    let (minute, _) = number(&mut rest, 2, 2)?;
    let mut second = 0;
    if digits == 6 || !is_compact && byte(&mut rest, b':').is_ok() {
        (second, _) = number(&mut rest, 2, 2)?;
        if rest.starts_with(['.', ',']) {
            let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return Err(Problem::Syntax);
            }
            parsed.fraction = &rest[1..=digits];
            rest = &rest[1 + digits..];
        }
    }
    rest = rest.trim_ascii_start();
    if let Some((half, after)) = rest.split_at_checked(2)
        && (half.eq_ignore_ascii_case("am") || half.eq_ignore_ascii_case("pm"))
        && !after.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        if hour > 12 {
            return Err(Problem::Range);
        }
        hour = hour % 12 + if half.eq_ignore_ascii_case("pm") { 12 } else { 0 };
        rest = after;
    }
    let is_midnight = hour == 24 && minute == 0 && second == 0 && parsed.fraction.bytes().all(|digit| digit == b'0');
    if hour > 23 && !is_midnight || minute > 59 || second > 60 {
        return Err(Problem::Range);
    }
    parsed.seconds = (hour * 60 + minute) * 60 + second;
    parsed.zone = zone(rest)?;
    Ok(())
}

fn zone(text: &str) -> Parsed<ZoneText<'_>> {
    let mut rest = text.trim_ascii();
    let sign = match rest.as_bytes().first() {
        None => return Ok(ZoneText::None),
        Some(b'+') => 1,
        Some(b'-') => -1,
        Some(_) if ["z", "utc", "gmt"].iter().any(|name| rest.eq_ignore_ascii_case(name)) => {
            return Ok(ZoneText::Offset(0));
        }
        Some(first) => {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'+' | b'-');
            return match first.is_ascii_alphabetic() && rest.bytes().all(is_name) {
                true => Ok(ZoneText::Name(rest)),
                false => Err(Problem::Syntax),
            };
        }
    };
    rest = &rest[1..];
    let mut parts = [number(&mut rest, 1, 2)?.0, 0, 0];
    for part in &mut parts[1..] {
        if rest.is_empty() {
            break;
        }
        // Colons are optional.
        let _ = byte(&mut rest, b':');
        (*part, _) = number(&mut rest, 2, 2)?;
    }
    match (rest, parts) {
        ("", [hour @ ..=15, minute @ ..=59, second @ ..=59]) => {
            Ok(ZoneText::Offset(sign * ((hour * 60 + minute) * 60 + second)))
        }
        ("", _) => Err(Problem::Range),
        _ => Err(Problem::Syntax),
    }
}

fn byte(rest: &mut &str, wanted: u8) -> Parsed<()> {
    match rest.as_bytes().first() {
        Some(first) if *first == wanted => {
            *rest = &rest[1..];
            Ok(())
        }
        _ => Err(Problem::Syntax),
    }
}

/// A number, and how many digits it has.
fn number(rest: &mut &str, digits_min: usize, digits_max: usize) -> Parsed<(i64, usize)> {
    let len = rest.bytes().take(digits_max).take_while(u8::is_ascii_digit).count();
    if len < digits_min {
        return Err(Problem::Syntax);
    }
    let (digits, after) = rest.split_at(len);
    *rest = after;
    Ok((digits.bytes().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')), len))
}

/// The fraction of a second, rounded as PostgreSQL does: to the nearest microsecond of the binary value, half to even.
/// `None` for other texts than digits.
pub(crate) fn micros(digits: &str) -> Option<i64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if digits.len() <= FRACTION_DIGITS {
        return Some(cut(digits, FRACTION_DIGITS));
    }
    let fraction: f64 = format!("0.{digits}").parse().ok()?;
    Some((fraction * 1_000_000.0).round_ties_even() as i64)
}

/// The first `count` digits of a fraction as a number.
pub(crate) fn cut(digits: &str, count: usize) -> i64 {
    let digit = |i: usize| digits.as_bytes().get(i).map_or(0, |byte| i64::from(byte - b'0'));
    (0..count).fold(0, |value, i| value * 10 + digit(i))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days, seconds, fraction and zone.
    fn parts(text: &str) -> Parsed<(i64, i64, &str, ZoneText<'_>)> {
        parse(text).map(|parsed| (parsed.days, parsed.seconds, parsed.fraction, parsed.zone))
    }

    #[test]
    fn forms_of_dates_and_times_are_read() {
        use ZoneText::{Name, None, Offset};
        let day = 19_783;
        for (text, expected) in [
            ("2024-03-01", (day, 0, "", None)),
            (" 2024/3/1 ", (day, 0, "", None)),
            ("20240301", (day, 0, "", None)),
            ("2024-03-01 10:00", (day, 36_000, "", None)),
            ("20240301T10:00", (day, 36_000, "", None)),
            ("2024-3-1  9:05:06.5+00", (day, 32_706, "5", Offset(0))),
            ("2024-03-01T10:00Z", (day, 36_000, "", Offset(0))),
            ("2024-03-01t10:00:00,25 utc", (day, 36_000, "25", Offset(0))),
            ("2024-03-01 24:00:00.000", (day, 86_400, "000", None)),
            ("2024-03-01 23:59:60", (day, 86_400, "", None)),
            ("2024-03-01 9:05 PM", (day, 75_900, "", None)),
            ("2024-03-01 0:05 AM", (day, 300, "", None)),
            ("20240301T101112.5Z", (day, 36_672, "5", Offset(0))),
            ("2024-03-01 101112 +02", (day, 36_672, "", Offset(7_200))),
            ("2024-03-01 1011", (day, 36_660, "", None)),
            ("2024-03-01 12:05:00am", (day, 300, "", None)),
            ("2024-03-01 10:00:00-05:30", (day, 36_000, "", Offset(-19_800))),
            ("2024-03-01 10:00:00 +0530", (day, 36_000, "", Offset(19_800))),
            ("2024-03-01 10:00:00+2", (day, 36_000, "", Offset(7_200))),
            ("2024-03-01 10:00 Europe/Berlin", (day, 36_000, "", Name("Europe/Berlin"))),
            ("2024-03-01 America/New_York", (day, 0, "", Name("America/New_York"))),
            ("2024-03-01 10:00 PMx", (day, 36_000, "", Name("PMx"))),
            ("0044-03-15 BC", (-735_160, 0, "", None)),
            ("0044-03-15 10:00:00+00 bc", (-735_160, 36_000, "", Offset(0))),
            ("-0043-03-15", (-735_160, 0, "", None)),
            ("2024-03-01 AD", (day, 0, "", None)),
        ] {
            assert_eq!(parts(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "soon",
            "24-01-05",
            "2024-01",
            "2024-01/05",
            "2024-01-05-06",
            "2024-01-05T",
            "2024-01-05 10",
            "2024-01-05 10:0",
            "2024-01-05 10111",
            "2024-01-05 1011:12",
            "2024-01-05 10111213",
            "2024-01-05x",
            "2024-01-05Z",
            "2024-01-05 10:00:00.",
            "2024-01-05 10:00:00+",
            "2024-01-05 10:00:00+02x",
            "2024-01-05 10:00:00 é",
            "-0044-03-15 BC",
            "2024-01-05Tx",
            "é-01-05 BC",
        ] {
            assert_eq!(parts(text), Err(Problem::Syntax), "{text}");
        }
        for text in [
            "2023-02-29",
            "2023-13-01",
            "20231301",
            "2023-01-01 25:00:00",
            "2023-01-01 24:00:01",
            "2023-01-01 24:00:00.1",
            "2023-01-01 10:61",
            "2023-01-01 13:00 PM",
            "2023-01-01 10:00+16",
            "2023-01-01 10:00+02:60",
            "0000-01-01 BC",
        ] {
            assert_eq!(parts(text), Err(Problem::Range), "{text}");
        }
    }

    #[test]
    fn fractions_are_rounded_to_microseconds() {
        for (digits, expected) in [
            ("5", Some(500_000)),
            ("123456", Some(123_456)),
            ("1234565", Some(123_456)),
            ("1234566", Some(123_457)),
            ("0000005", Some(0)),
            ("0000015", Some(2)),
            ("9999999", Some(1_000_000)),
            ("", None),
            ("5x", None),
        ] {
            assert_eq!(micros(digits), expected, "{digits}");
        }
        assert_eq!(cut("1234567891", 9), 123_456_789);
    }
}

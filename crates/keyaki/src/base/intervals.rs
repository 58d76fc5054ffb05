//! Intervals: PostgreSQL's texts, and the number by which intervals are compared.
//!
//! An interval has months, days and a time, which are not converted into each other: a month has 28 to 31 days, and a
//! day has 23 to 25 hours. Comparisons count 30 days for a month and 24 hours for a day.
//!
//! | text | example |
//! |---|---|
//! | numbers with units, and a time | `1 year 2 mons -3 days 04:05:06.789`, `1.5h`, `5 minutes ago` |
//! | SQL: years and months, days, time | `1-2 3 4:05:06` |
//! | ISO 8601 | `P1Y2M3DT4H5M6S`, `P1-2-3T4:5:6` |
//!
//! A number without a unit counts days before a time, and seconds otherwise. Fractions of a unit spill into smaller
//! units, as in PostgreSQL: `1.5 months` has 1 month and 15 days.

use std::fmt;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, StringViewArray};
use arrow::datatypes::{
    DataType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    IntervalDayTimeType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, TimeUnit,
};

/// The Arrow type of columns of type INTERVAL.
pub(crate) const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

pub(crate) const NANOS_PER_MICRO: i64 = 1000;
const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
const MICROS_PER_HOUR: i64 = 60 * MICROS_PER_MINUTE;
pub(crate) const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;
pub(crate) const NANOS_PER_DAY: i64 = MICROS_PER_DAY * NANOS_PER_MICRO;
pub(crate) const MONTHS_PER_YEAR: i32 = 12;
pub(crate) const DAYS_PER_MONTH: i32 = 30;

/// A text that is not an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    Syntax,
    /// A part does not fit into its type. The time has nanoseconds of 64 bits, about 292 years.
    Range,
}

type Parsed<T> = Result<T, Problem>;

/// True for intervals and durations.
pub(crate) fn is_interval(ty: &DataType) -> bool {
    matches!(ty, DataType::Interval(_) | DataType::Duration(_))
}

/// An interval of whole microseconds; `None` if they do not fit into the Arrow type.
pub(crate) fn of_parts(months: i32, days: i32, micros: i64) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano { months, days, nanoseconds: micros.checked_mul(NANOS_PER_MICRO)? })
}

/// The nanoseconds by which intervals are compared.
pub(crate) fn nanos(interval: IntervalMonthDayNano) -> i128 {
    let days = i64::from(interval.months) * i64::from(DAYS_PER_MONTH) + i64::from(interval.days);
    i128::from(days) * i128::from(NANOS_PER_DAY) + i128::from(interval.nanoseconds)
}

/// The interval with its time rounded to microseconds, half away from zero; `None` if they do not fit.
pub(crate) fn rounded(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let (micros, rest) = (interval.nanoseconds / NANOS_PER_MICRO, interval.nanoseconds % NANOS_PER_MICRO);
    let up = if rest.abs() * 2 >= NANOS_PER_MICRO { rest.signum() } else { 0 };
    of_parts(interval.months, interval.days, micros + up)
}

/// The interval of a number of nanoseconds: days of 24 hours, and a time.
fn of_nanos(nanos: i64) -> IntervalMonthDayNano {
    // At most 106,752 days.
    IntervalMonthDayNano { months: 0, days: (nanos / NANOS_PER_DAY) as i32, nanoseconds: nanos % NANOS_PER_DAY }
}

/// Intervals and durations as intervals of the type of columns. The difference of two timestamps, a duration, has days
/// and a time. A duration that does not fit becomes null. `None` for arrays of other types.
pub(crate) fn intervals(array: &ArrayRef) -> Option<PrimitiveArray<IntervalMonthDayNanoType>> {
    fn of_units(value: i64, nanos_per_unit: i64) -> Option<IntervalMonthDayNano> {
        let units_per_day = NANOS_PER_DAY / nanos_per_unit;
        let days = i32::try_from(value / units_per_day).ok()?;
        Some(IntervalMonthDayNano { months: 0, days, nanoseconds: value % units_per_day * nanos_per_unit })
    }
    Some(match array.data_type() {
        DataType::Interval(IntervalUnit::MonthDayNano) => array.as_primitive().clone(),
        DataType::Interval(IntervalUnit::YearMonth) => {
            let months = |months| IntervalMonthDayNano { months, days: 0, nanoseconds: 0 };
            array.as_primitive::<IntervalYearMonthType>().unary(months)
        }
        DataType::Interval(IntervalUnit::DayTime) => array.as_primitive::<IntervalDayTimeType>().unary(|interval| {
            let nanoseconds = i64::from(interval.milliseconds) * 1_000_000;
            IntervalMonthDayNano { months: 0, days: interval.days, nanoseconds }
        }),
        DataType::Duration(TimeUnit::Nanosecond) => array.as_primitive::<DurationNanosecondType>().unary(of_nanos),
        DataType::Duration(TimeUnit::Microsecond) => {
            array.as_primitive::<DurationMicrosecondType>().unary_opt(|value| of_units(value, 1000))
        }
        DataType::Duration(TimeUnit::Millisecond) => {
            array.as_primitive::<DurationMillisecondType>().unary_opt(|value| of_units(value, 1_000_000))
        }
        DataType::Duration(TimeUnit::Second) => {
            array.as_primitive::<DurationSecondType>().unary_opt(|value| of_units(value, 1_000_000_000))
        }
        _ => return None,
    })
}

/// The texts of intervals.
pub(crate) fn texts(intervals: &PrimitiveArray<IntervalMonthDayNanoType>) -> StringViewArray {
    intervals.iter().map(|interval| interval.map(|interval| Text(interval).to_string())).collect()
}

/// The text of an interval, in PostgreSQL's default style: `1 year 2 mons -3 days +04:05:06.789`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text(pub IntervalMonthDayNano);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IntervalMonthDayNano { months, days, nanoseconds } = self.0;
        write(months, days, nanoseconds, 9, f)
    }
}

/// Writes an interval whose time is a number of units of 10^-`digits` seconds.
pub(crate) fn write(months: i32, days: i32, time: i64, digits: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let parts = [(months / MONTHS_PER_YEAR, "year"), (months % MONTHS_PER_YEAR, "mon"), (days, "day")];
    let (mut space, mut is_after_negative) = ("", false);
    for (value, unit) in parts.into_iter().filter(|(value, _)| *value != 0) {
        let sign = if is_after_negative && value > 0 { "+" } else { "" };
        let plural = if value == 1 { "" } else { "s" };
        write!(f, "{space}{sign}{value} {unit}{plural}")?;
        (space, is_after_negative) = (" ", value < 0);
    }
    if time == 0 && !space.is_empty() {
        return Ok(());
    }
    let sign = match time {
        ..0 => "-",
        _ if is_after_negative => "+",
        _ => "",
    };
    let units = 10_u64.pow(digits);
    let (seconds, fraction) = (time.unsigned_abs() / units, time.unsigned_abs() % units);
    write!(f, "{space}{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
    if fraction != 0 {
        let fraction = format!("{fraction:0width$}", width = digits as usize);
        write!(f, ".{}", fraction.trim_end_matches('0'))?;
    }
    Ok(())
}

/// Parses an interval.
///
/// # Errors
/// See [`Problem`].
pub(crate) fn parse(text: &str) -> Parsed<IntervalMonthDayNano> {
    let text = text.trim_ascii();
    let parts = match text.strip_prefix('P') {
        Some(iso) => parse_iso(iso)?,
        None => parse_units(text)?,
    };
    parts.interval()
}

/// The sums of the parts of an interval.
#[derive(Debug, Default)]
struct Parts {
    months: i64,
    days: i64,
    micros: i128,
}

impl Parts {
    fn interval(&self) -> Parsed<IntervalMonthDayNano> {
        let months = i32::try_from(self.months).map_err(|_| Problem::Range)?;
        let days = i32::try_from(self.days).map_err(|_| Problem::Range)?;
        let micros = i64::try_from(self.micros).map_err(|_| Problem::Range)?;
        of_parts(months, days, micros).ok_or(Problem::Range)
    }

    fn negate(&mut self) {
        // The parts are far from the limits of their types until the end.
        *self = Parts { months: -self.months, days: -self.days, micros: -self.micros };
    }

    /// Adds a number of units.
    fn add(&mut self, number: Number, unit: Unit) -> Parsed<()> {
        match unit {
            Unit::Time(micros) => self.add_time(number, micros),
            Unit::Day => {
                self.add_days(number.whole)?;
                self.add_time(number.fraction(), MICROS_PER_DAY)
            }
            Unit::Week => {
                self.add_days(number.whole.checked_mul(7).ok_or(Problem::Range)?)?;
                self.add_fraction_of_days(number.fraction, 7)
            }
            Unit::Month => {
                self.add_months(number.whole)?;
                self.add_fraction_of_days(number.fraction, DAYS_PER_MONTH)
            }
            Unit::Years(years) => {
                let months = years * i64::from(MONTHS_PER_YEAR);
                self.add_months(number.whole.checked_mul(months).ok_or(Problem::Range)?)?;
                self.add_months((number.fraction * months as f64).round_ties_even() as i64)
            }
        }
    }

    fn add_months(&mut self, months: i64) -> Parsed<()> {
        self.months = within(self.months.checked_add(months))?;
        Ok(())
    }

    fn add_days(&mut self, days: i64) -> Parsed<()> {
        self.days = within(self.days.checked_add(days))?;
        Ok(())
    }

    fn add_time(&mut self, number: Number, micros: i64) -> Parsed<()> {
        // Halves of a microsecond are dropped, as in PostgreSQL.
        let fraction = number.fraction * micros as f64;
        let rest = fraction.fract();
        let rounded = fraction.trunc() as i128 + i128::from(rest > 0.5) - i128::from(rest < -0.5);
        self.micros += i128::from(number.whole) * i128::from(micros) + rounded;
        Ok(())
    }

    /// Adds a fraction of a unit that has `days` days.
    fn add_fraction_of_days(&mut self, fraction: f64, days: i32) -> Parsed<()> {
        let days = fraction * f64::from(days);
        self.add_days(days.trunc() as i64)?;
        self.add_time(Number { whole: 0, fraction: days.fract() }, MICROS_PER_DAY)
    }
}

/// Months and days of an interval have 32 bits. Sums may exceed them a little: a fraction or a sign may follow.
fn within(sum: Option<i64>) -> Parsed<i64> {
    sum.filter(|sum| sum.unsigned_abs() <= 1 << 33).ok_or(Problem::Range)
}

/// A number; whole part and fraction have the same sign.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Number {
    whole: i64,
    fraction: f64,
}

impl Number {
    fn fraction(self) -> Number {
        Number { whole: 0, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    /// A number of microseconds.
    Time(i64),
    Day,
    Week,
    Month,
    /// A number of years.
    Years(i64),
}

/// The unit with this name in lower case, and its bit: no unit occurs twice.
fn unit(name: &str) -> Option<(Unit, u16)> {
    Some(match name {
        "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" | "microsecond" | "microseconds" => {
            (Unit::Time(1), 1)
        }
        "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" | "millisecond" | "milliseconds" => {
            (Unit::Time(1000), 1 << 1)
        }
        "s" | "sec" | "secs" | "second" | "seconds" => (Unit::Time(MICROS_PER_SECOND), SECOND),
        "m" | "min" | "mins" | "minute" | "minutes" => (Unit::Time(MICROS_PER_MINUTE), 1 << 3),
        "h" | "hr" | "hrs" | "hour" | "hours" => (Unit::Time(MICROS_PER_HOUR), 1 << 4),
        "d" | "day" | "days" => (Unit::Day, DAY),
        "w" | "week" | "weeks" => (Unit::Week, 1 << 6),
        "mon" | "mons" | "month" | "months" => (Unit::Month, MONTH),
        "y" | "yr" | "yrs" | "year" | "years" => (Unit::Years(1), YEAR),
        "dec" | "decs" | "decade" | "decades" => (Unit::Years(10), 1 << 9),
        "c" | "cent" | "century" | "centuries" => (Unit::Years(100), 1 << 10),
        "mil" | "mils" | "millennium" | "millennia" => (Unit::Years(1000), 1 << 11),
        _ => return None,
    })
}

const SECOND: u16 = 1 << 2;
/// A time has hours, minutes and seconds.
const TIME: u16 = 0b1_1111;
const DAY: u16 = 1 << 5;
const MONTH: u16 = 1 << 7;
const YEAR: u16 = 1 << 8;

/// Parses numbers with units, years and months, and times.
fn parse_units(text: &str) -> Parsed<Parts> {
    let mut parts = Parts::default();
    let mut found = 0;
    let mut take = |bits: u16| {
        let is_new = found & bits == 0;
        found |= bits;
        if is_new { Ok(()) } else { Err(Problem::Syntax) }
    };
    let mut rest = skip_blanks(text);
    if rest.is_empty() {
        return Err(Problem::Syntax);
    }
    while !rest.is_empty() {
        let (is_negative, unsigned) = take_sign(rest);
        let (token, after) = split(unsigned, |c| c.is_ascii_digit() || matches!(c, '.' | ':' | '-'));
        if token.is_empty() {
            return Err(Problem::Syntax);
        }
        rest = skip_blanks(after);
        if token.contains(':') {
            take(TIME)?;
            parts.micros += signed(is_negative, clock(token)?);
        } else if let Some((years, months)) = token.split_once('-') {
            let (years, months) = (whole(years)?, whole(months)?);
            if months >= MONTHS_PER_YEAR.into() {
                return Err(Problem::Range);
            }
            take(YEAR | MONTH)?;
            let months = years.checked_mul(MONTHS_PER_YEAR.into()).and_then(|years| years.checked_add(months));
            parts.add_months(signed(is_negative, months.ok_or(Problem::Range)?))?;
        } else {
            let number = number(token, is_negative)?;
            let (name, behind) = split(rest, |c| c.is_ascii_alphabetic());
            let (unit, bit) = match name.to_ascii_lowercase().as_str() {
                "" if starts_with_time(rest) => (Unit::Day, DAY),
                "" if rest.is_empty() => (Unit::Time(MICROS_PER_SECOND), SECOND),
                "ago" => (Unit::Time(MICROS_PER_SECOND), SECOND),
                name => {
                    rest = skip_blanks(behind);
                    unit(name).ok_or(Problem::Syntax)?
                }
            };
            take(bit)?;
            parts.add(number, unit)?;
        }
        if rest.trim_ascii_end().eq_ignore_ascii_case("ago") {
            parts.negate();
            break;
        }
    }
    Ok(parts)
}

/// White space, commas, and the `@` of PostgreSQL's verbose style separate parts.
fn skip_blanks(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, ',' | '@'))
}

/// Splits a leading sign, and white space behind it, off a text. True for a minus.
fn take_sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, text[1..].trim_ascii_start()),
        Some(b'+') => (false, text[1..].trim_ascii_start()),
        _ => (false, text),
    }
}

/// Splits the longest prefix of matching characters off a text.
fn split(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

fn starts_with_time(text: &str) -> bool {
    let (token, _) = split(take_sign(text).1, |c| c.is_ascii_digit() || matches!(c, '.' | ':' | '-'));
    token.contains(':')
}

fn signed<T: std::ops::Neg<Output = T>>(is_negative: bool, value: T) -> T {
    if is_negative { -value } else { value }
}

fn whole(digits: &str) -> Parsed<i64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::Syntax);
    }
    digits.parse().map_err(|_| Problem::Range)
}

/// Parses digits with an optional fraction.
fn number(token: &str, is_negative: bool) -> Parsed<Number> {
    let (digits, fraction) = token.split_once('.').unwrap_or((token, ""));
    if digits.is_empty() && fraction.is_empty() {
        return Err(Problem::Syntax);
    }
    let whole = if digits.is_empty() { 0 } else { whole(digits)? };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::Syntax);
    }
    // Digits behind a point always parse.
    let fraction = format!("0.{fraction}0").parse::<f64>().map_err(|_| Problem::Syntax)?;
    Ok(Number { whole: signed(is_negative, whole), fraction: signed(is_negative, fraction) })
}

/// Parses `h:m`, `h:m:s[.ffffff]` and `m:s.ffffff` to microseconds.
fn clock(token: &str) -> Parsed<i128> {
    let parts: Vec<&str> = token.split(':').collect();
    let (hours, minutes, seconds) = match parts[..] {
        [minutes, seconds] if seconds.contains('.') => (0, whole(minutes)?, number(seconds, false)?),
        [hours, minutes] => (whole(hours)?, whole(minutes)?, Number { whole: 0, fraction: 0.0 }),
        [hours, minutes, seconds] => (whole(hours)?, whole(minutes)?, number(seconds, false)?),
        _ => return Err(Problem::Syntax),
    };
    if minutes > 59 || seconds.whole > 60 {
        return Err(Problem::Range);
    }
    let mut time = Parts::default();
    time.add_time(Number { whole: hours, fraction: 0.0 }, MICROS_PER_HOUR)?;
    time.add_time(Number { whole: minutes, fraction: 0.0 }, MICROS_PER_MINUTE)?;
    time.add_time(Number { fraction: 0.0, ..seconds }, MICROS_PER_SECOND)?;
    // Those of a time are rounded to even.
    let fraction = (seconds.fraction * MICROS_PER_SECOND as f64).round_ties_even();
    Ok(time.micros + fraction as i128)
}

/// Parses the part of an ISO 8601 duration behind its `P`.
fn parse_iso(text: &str) -> Parsed<Parts> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    if date.is_empty() && time.is_none_or(str::is_empty) {
        return Err(Problem::Syntax);
    }
    let mut parts = Parts::default();
    let is_calendar = date.trim_start_matches(['+', '-']).contains('-') && !date.contains(|c: char| c.is_alphabetic());
    if is_calendar {
        let units = [Unit::Years(1), Unit::Month, Unit::Day];
        let (is_negative, unsigned) = take_sign(date);
        let numbers: Vec<&str> = unsigned.split('-').collect();
        if numbers.len() > units.len() {
            return Err(Problem::Syntax);
        }
        for (digits, unit) in numbers.into_iter().zip(units) {
            parts.add(Number { whole: signed(is_negative, whole(digits)?), fraction: 0.0 }, unit)?;
        }
    } else {
        let units = [('Y', Unit::Years(1)), ('M', Unit::Month), ('W', Unit::Week), ('D', Unit::Day)];
        add_designated(&mut parts, date, &units)?;
    }
    match time {
        Some(time) if time.contains(':') => {
            let (is_negative, token) = take_sign(time);
            parts.micros += signed(is_negative, clock(token)?);
        }
        Some(time) => {
            let units = [('H', MICROS_PER_HOUR), ('M', MICROS_PER_MINUTE), ('S', MICROS_PER_SECOND)];
            add_designated(&mut parts, time, &units.map(|(name, micros)| (name, Unit::Time(micros))))?;
        }
        None => {}
    }
    Ok(parts)
}

/// Adds numbers with units of one letter behind them, each at most once.
fn add_designated(parts: &mut Parts, mut text: &str, units: &[(char, Unit)]) -> Parsed<()> {
    let mut found = Vec::with_capacity(units.len());
    while !text.is_empty() {
        let (is_negative, unsigned) = take_sign(text);
        let (token, rest) = split(unsigned, |c| c.is_ascii_digit() || c == '.');
        let name = rest.chars().next().ok_or(Problem::Syntax)?;
        let (_, unit) = units.iter().find(|(own, _)| *own == name).ok_or(Problem::Syntax)?;
        if found.contains(&name) {
            return Err(Problem::Syntax);
        }
        found.push(name);
        parts.add(number(token, is_negative)?, *unit)?;
        text = &rest[name.len_utf8()..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(interval) => Text(interval).to_string(),
            Err(problem) => format!("{problem:?}"),
        }
    }

    #[test]
    fn texts_are_read_as_in_postgresql() {
        for (text, expected) in [
            ("1 year 2 mons 3 days 04:05:06.789", "1 year 2 mons 3 days 04:05:06.789"),
            ("P1Y2M3DT4H5M6S", "1 year 2 mons 3 days 04:05:06"),
            ("P0001-02-03T04:05:06", "1 year 2 mons 3 days 04:05:06"),
            ("P-1Y2M", "-10 mons"),
            ("P2W", "14 days"),
            ("PT1.5S", "00:00:01.5"),
            ("PT0S", "00:00:00"),
            ("-1 day", "-1 days"),
            ("- 1 day", "-1 days"),
            ("+1 day", "1 day"),
            ("1:30", "01:30:00"),
            ("-1:30", "-01:30:00"),
            ("1:30.5", "00:01:30.5"),
            ("5 minutes ago", "-00:05:00"),
            ("1 day -2 hours ago", "-1 days +02:00:00"),
            ("@ 1 minute", "00:01:00"),
            ("1 year, 2 days", "1 year 2 days"),
            ("2h30m", "02:30:00"),
            ("1DAY", "1 day"),
            ("30", "00:00:30"),
            ("-1.5", "-00:00:01.5"),
            ("5 ago", "-00:00:05"),
            ("3 04:05:06", "3 days 04:05:06"),
            ("3 -04:05:06", "3 days -04:05:06"),
            ("-3 +04:05:06", "-3 days +04:05:06"),
            ("1-2", "1 year 2 mons"),
            ("-1-2", "-1 years -2 mons"),
            ("1-2 3 4:05:06", "1 year 2 mons 3 days 04:05:06"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 years", "1 year 6 mons"),
            ("-1.5 weeks", "-10 days -12:00:00"),
            ("1.25 days", "1 day 06:00:00"),
            (".5 h", "00:30:00"),
            ("1. s", "00:00:01"),
            ("1 decade 2 centuries 1 millennium", "1210 years"),
            ("100 ms 5 us", "00:00:00.100005"),
            ("1.0000005 s", "00:00:01"),
            ("1.0000006 s", "00:00:01.000001"),
            ("1.5 us", "00:00:00.000001"),
            ("-2.6 us", "-00:00:00.000003"),
            ("00:00:01.0000015", "00:00:01.000002"),
            ("-00:00:01.0000005", "-00:00:01"),
            ("-14 months", "-1 years -2 mons"),
            ("100000:00:00", "100000:00:00"),
            ("0:0:60", "00:01:00"),
            ("2147483647 months -2147483648 days", "178956970 years 7 mons -2147483648 days"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            " ",
            "P",
            "PT",
            "day",
            "1 day 2 days",
            "1:00 2 hours",
            "1 2",
            "1 fortnight",
            "soon",
            "ago",
            "1 day ago 2 hours",
            "1 day ago ago",
            "1e5 days",
            "1:2:3:4",
            "1-2-3",
            "1:",
            ":1",
            "1..5 days",
            "--1 day",
            "P1S",
            "PT1Y",
            "P1Y1Y",
            "p1y",
            "1 day é",
            "1 é",
            "P1é",
            "infinity",
            "1.5-2",
            "day 1",
            "1 month day",
        ] {
            assert_eq!(parse(text), Err(Problem::Syntax), "{text}");
        }
        for text in [
            "2147483648 days",
            "178956971 years",
            "9223372036854775808 s",
            "2562048 hours",
            "99999999999999999999 days",
            "1-12",
            "1:60",
            "0:0:61",
            "P9223372036854775807Y",
        ] {
            assert_eq!(parse(text), Err(Problem::Range), "{text}");
        }
    }

    #[test]
    fn comparisons_count_30_days_and_24_hours() {
        let order = |text: &str| nanos(parse(text).unwrap());
        assert_eq!(order("1 month"), order("30 days"));
        assert_eq!(order("1 day"), order("24:00"));
        assert_eq!(order("1 year"), order("360 days"));
        assert!(order("40 days") > order("1 month"));
        assert!(order("-1 month") < order("-29 days"));
    }

    #[test]
    fn nanoseconds_are_rounded() {
        let round =
            |nanoseconds| rounded(IntervalMonthDayNano { months: 1, days: 2, nanoseconds }).map(|i| i.nanoseconds);
        assert_eq!([1499, 1500, -1499, -1500].map(round), [Some(1000), Some(2000), Some(-1000), Some(-2000)]);
        assert_eq!([i64::MAX, i64::MIN].map(round), [None, None]);
    }

    proptest! {
        #[test]
        fn printed_intervals_are_parsed_exactly(months: i32, days: i32, micros in -9_223_372_036_854_775_i64..9_223_372_036_854_775) {
            let interval = of_parts(months, days, micros).unwrap();
            // Parts of 32 bits have negative extremes without a positive counterpart.
            prop_assert_eq!(parse(&Text(interval).to_string()), Ok(interval));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.: PTYMDHSWagodyshr,@é]{0,24}") {
            let _ = parse(&text);
        }
    }
}

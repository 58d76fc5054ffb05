//! Templates of `to_char` for timestamps, times and intervals, such as `YYYY-MM-DD HH24:MI:SS`.
//!
//! The rules follow `formatting.c` of PostgreSQL, with the names of the locale C.

use std::fmt::Write;

use arrow::datatypes::IntervalMonthDayNano;

use super::templates::{ordinal, quoted};
use super::time::MICROS_PER_DAY;
use super::truncation::{first_day, month_of};
use crate::{Error, Result};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];
/// Width of the names of months and days.
const NAME_WIDTH: usize = 9;
/// Width of the Roman number of a month.
const ROMAN_WIDTH: usize = 4;
/// The Julian day of 1970-01-01.
const JULIAN_EPOCH: i64 = 2_440_588;

/// Patterns in any case, longer ones before their beginnings.
const NUMBERS: [(&str, Field); 44] = [
    ("HH24", Field::Hour24),
    ("HH12", Field::Hour12),
    ("HH", Field::Hour12),
    ("MI", Field::Minute),
    ("SSSSS", Field::SecondOfDay),
    ("SSSS", Field::SecondOfDay),
    ("SS", Field::Second),
    ("MS", Field::Fraction(3)),
    ("US", Field::Fraction(6)),
    ("FF1", Field::Fraction(1)),
    ("FF2", Field::Fraction(2)),
    ("FF3", Field::Fraction(3)),
    ("FF4", Field::Fraction(4)),
    ("FF5", Field::Fraction(5)),
    ("FF6", Field::Fraction(6)),
    ("IYYY", Field::IsoYear(4)),
    ("IYY", Field::IsoYear(3)),
    ("IY", Field::IsoYear(2)),
    ("IDDD", Field::IsoDayOfYear),
    ("ID", Field::IsoWeekday),
    ("IW", Field::IsoWeek),
    ("I", Field::IsoYear(1)),
    ("Y,YYY", Field::GroupedYear),
    ("YYYY", Field::Year(4)),
    ("YYY", Field::Year(3)),
    ("YY", Field::Year(2)),
    ("Y", Field::Year(1)),
    ("MM", Field::Month),
    ("DDD", Field::DayOfYear),
    ("DD", Field::Day),
    ("D", Field::Weekday),
    ("WW", Field::WeekOfYear),
    ("W", Field::WeekOfMonth),
    ("CC", Field::Century),
    ("J", Field::JulianDay),
    ("Q", Field::Quarter),
    ("FX", Field::Nothing),
    ("TZH", Field::Unknown),
    ("TZM", Field::Unknown),
    ("TZ", Field::Unknown),
    ("OF", Field::Unknown),
    ("SP", Field::Unknown),
    ("FF", Field::Unknown),
    ("TM", Field::Unknown),
];
/// Patterns whose case matters.
const NAMES: [(&str, Field); 30] = [
    ("RM", Field::RomanMonth(Case::Upper)),
    ("rm", Field::RomanMonth(Case::Lower)),
    ("MONTH", Field::MonthName(Case::Upper)),
    ("Month", Field::MonthName(Case::Title)),
    ("month", Field::MonthName(Case::Lower)),
    ("MON", Field::MonthShort(Case::Upper)),
    ("Mon", Field::MonthShort(Case::Title)),
    ("mon", Field::MonthShort(Case::Lower)),
    ("DAY", Field::DayName(Case::Upper)),
    ("Day", Field::DayName(Case::Title)),
    ("day", Field::DayName(Case::Lower)),
    ("DY", Field::DayShort(Case::Upper)),
    ("Dy", Field::DayShort(Case::Title)),
    ("dy", Field::DayShort(Case::Lower)),
    ("AM", Field::Half("AM", "PM")),
    ("PM", Field::Half("AM", "PM")),
    ("am", Field::Half("am", "pm")),
    ("pm", Field::Half("am", "pm")),
    ("A.M.", Field::Half("A.M.", "P.M.")),
    ("P.M.", Field::Half("A.M.", "P.M.")),
    ("a.m.", Field::Half("a.m.", "p.m.")),
    ("p.m.", Field::Half("a.m.", "p.m.")),
    ("BC", Field::Era("BC", "AD")),
    ("AD", Field::Era("BC", "AD")),
    ("bc", Field::Era("bc", "ad")),
    ("ad", Field::Era("bc", "ad")),
    ("B.C.", Field::Era("B.C.", "A.D.")),
    ("A.D.", Field::Era("B.C.", "A.D.")),
    ("b.c.", Field::Era("b.c.", "a.d.")),
    ("a.d.", Field::Era("b.c.", "a.d.")),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Upper,
    Title,
    Lower,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Hour24,
    Hour12,
    Minute,
    Second,
    SecondOfDay,
    Fraction(u32),
    IsoYear(usize),
    IsoDayOfYear,
    IsoWeekday,
    IsoWeek,
    GroupedYear,
    Year(usize),
    Month,
    DayOfYear,
    Day,
    Weekday,
    WeekOfYear,
    WeekOfMonth,
    Century,
    JulianDay,
    Quarter,
    RomanMonth(Case),
    MonthName(Case),
    MonthShort(Case),
    DayName(Case),
    DayShort(Case),
    /// Before and after noon.
    Half(&'static str, &'static str),
    /// Before and after the year 1.
    Era(&'static str, &'static str),
    Nothing,
    Unknown,
}

#[derive(Debug, Clone)]
enum Item {
    Literal(String),
    Field {
        field: Field,
        /// The pattern, for errors.
        pattern: String,
        /// Without padding (FM).
        is_filled: bool,
        /// With the ending of an ordinal number, in upper case or not.
        ordinal: Option<bool>,
    },
}

/// A template.
#[derive(Debug, Clone)]
pub(super) struct TimeTemplate {
    items: Vec<Item>,
}

impl TimeTemplate {
    /// # Errors
    /// `Unsupported` for patterns that are not known.
    pub fn parse(template: &str) -> Result<TimeTemplate> {
        let mut items = Vec::new();
        let mut rest = template;
        while let Some(first) = rest.chars().next() {
            if let Some((literal, after)) = quoted(rest) {
                items.push(Item::Literal(literal));
                rest = after;
                continue;
            }
            let is_prefix = |prefix: &str| starts_with(rest, prefix) && !starts_with(rest, "TMZ");
            let is_filled = is_prefix("FM") || is_prefix("TM");
            let pattern = if is_filled { &rest[2..] } else { rest };
            let name = NAMES.iter().find(|(name, _)| pattern.starts_with(name));
            let number = NUMBERS.iter().find(|(name, _)| starts_with(pattern, name));
            // "MON" begins with no number, and "DAY" and "DY" begin with "D".
            let found = [name, number].into_iter().flatten().max_by_key(|(name, _)| name.len());
            let Some((name, field)) = found else {
                // A modifier without a pattern is dropped.
                if is_filled {
                    rest = pattern;
                    continue;
                }
                items.push(Item::Literal(first.to_string()));
                rest = &rest[first.len_utf8()..];
                continue;
            };
            let pattern_text = pattern[..name.len()].to_string();
            if *field == Field::Unknown {
                let what = format!("pattern {pattern_text} in the template \"{template}\"");
                return Err(Error::Unsupported(what));
            }
            rest = &pattern[name.len()..];
            let ordinal = starts_with(rest, "TH").then(|| rest.starts_with('T'));
            if ordinal.is_some() {
                rest = &rest[2..];
            }
            items.push(Item::Field { field: *field, pattern: pattern_text, is_filled, ordinal });
        }
        Ok(TimeTemplate { items })
    }

    /// Appends the text of a time.
    ///
    /// # Errors
    /// `Evaluation` for patterns of dates, if the time is an interval.
    pub fn format(&self, time: &Time, output: &mut String) -> Result<()> {
        for item in &self.items {
            match item {
                Item::Literal(text) => output.push_str(text),
                Item::Field { field, pattern, is_filled, ordinal: ending } => {
                    let start = output.len();
                    if time.is_interval && field.needs_date() {
                        let problem = format!("pattern {pattern} of to_char: intervals are not tied to calendar dates");
                        return Err(Error::Evaluation(problem));
                    }
                    field.put(time, *is_filled, output);
                    if let Some(is_upper) = ending
                        && output[start..].ends_with(|c: char| c.is_ascii_digit())
                    {
                        let ending = ordinal(&output[start..], *is_upper);
                        output.push_str(ending);
                    }
                }
            }
        }
        Ok(())
    }
}

fn starts_with(text: &str, pattern: &str) -> bool {
    text.get(..pattern.len()).is_some_and(|start| start.eq_ignore_ascii_case(pattern))
}

/// The parts of a timestamp, a time of day or an interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    is_interval: bool,
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    /// Days since 1970-01-01.
    date: i64,
}

impl Time {
    /// A local time in microseconds since 1970-01-01.
    pub fn of_timestamp(micros: i64) -> Time {
        Time::of_date(micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY))
    }

    /// A day, counted from 1970-01-01, and a time of day in microseconds.
    pub fn of_date(date: i64, micros: i64) -> Time {
        let (year, month) = month_of(date);
        let day = date - first_day(year, month) + 1;
        Time { is_interval: false, year, month, day, date, ..Time::of_clock(micros) }
    }

    pub fn of_interval(interval: IntervalMonthDayNano) -> Time {
        let (year, month) = (interval.months / 12, interval.months % 12);
        Time {
            year: year.into(),
            month: month.into(),
            day: interval.days.into(),
            ..Time::of_clock(interval.nanoseconds / 1_000)
        }
    }

    /// A time of day, or an interval of hours.
    pub fn of_clock(micros: i64) -> Time {
        let seconds = micros / 1_000_000;
        Time {
            is_interval: true,
            year: 0,
            month: 0,
            day: 0,
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            micros: micros % 1_000_000,
            date: 0,
        }
    }

    fn day_of_year(&self) -> i64 {
        match self.is_interval {
            true => self.year * 360 + self.month * 30 + self.day,
            false => self.date - first_day(self.year, 1) + 1,
        }
    }

    /// The year and the week of ISO 8601, and the day in it.
    fn iso(&self) -> (i64, i64, i64) {
        // The week belongs to the year of its Thursday.
        let weekday = (self.date + 3).rem_euclid(7);
        let (year, _) = month_of(self.date - weekday + 3);
        let first = first_day(year, 1) + 3;
        let monday = first - (first + 3).rem_euclid(7);
        (year, (self.date - monday) / 7 + 1, self.date - monday + 1)
    }

    /// The number of a year as it is written: there is no year 0.
    fn shown_year(&self, year: i64) -> i64 {
        if !self.is_interval && year <= 0 { 1 - year } else { year }
    }

    /// The month of the year. As in PostgreSQL, that of an interval is counted from the end of the year if it is
    /// negative, and whole years end with the last month, or begin with the first if they are negative. `None` for
    /// intervals without months.
    fn named_month(&self) -> Option<usize> {
        let month = match (self.month, self.year) {
            (0, 0) => return None,
            (0, 1..) => 12,
            (0, _) => 1,
            (month @ 1.., _) => month,
            (month, _) => 13 + month,
        };
        usize::try_from(month).ok()
    }

    /// Days since Sunday.
    fn weekday(&self) -> usize {
        (self.date + 4).rem_euclid(7) as usize
    }
}

impl Field {
    /// True for patterns that intervals do not have.
    fn needs_date(self) -> bool {
        use Field as F;
        matches!(
            self,
            F::MonthName(_)
                | F::MonthShort(_)
                | F::DayName(_)
                | F::DayShort(_)
                | F::Weekday
                | F::IsoWeekday
                | F::IsoDayOfYear
                | F::IsoWeek
                | F::IsoYear(_)
                | F::Era(..)
                | F::JulianDay
        )
    }

    fn put(self, time: &Time, is_filled: bool, output: &mut String) {
        // A sign does not count.
        let mut number = |value: i64, width: usize| {
            let width = if is_filled { 0 } else { width + usize::from(value < 0) };
            // Writing to a string cannot fail.
            let _ = write!(output, "{value:0width$}");
        };
        let (noon, name_width) = (12, if is_filled { 0 } else { NAME_WIDTH });
        match self {
            Field::Hour24 => number(time.hour, 2),
            Field::Hour12 => number(if time.hour % noon == 0 { noon } else { time.hour % noon }, 2),
            Field::Minute => number(time.minute, 2),
            Field::Second => number(time.second, 2),
            Field::SecondOfDay => number(time.hour * 3_600 + time.minute * 60 + time.second, 0),
            Field::Fraction(digits) => {
                let value = time.micros / 10_i64.pow(6 - digits);
                let width = digits as usize;
                let _ = write!(output, "{value:0width$}");
            }
            Field::Year(digits) => {
                let year = time.shown_year(time.year);
                number(if digits == 4 { year } else { year % 10_i64.pow(digits as u32) }, digits);
            }
            Field::IsoYear(digits) => {
                let year = time.shown_year(time.iso().0);
                number(if digits == 4 { year } else { year % 10_i64.pow(digits as u32) }, digits);
            }
            Field::GroupedYear => {
                let year = time.shown_year(time.year);
                let _ = write!(output, "{},{:03}", year / 1_000, year % 1_000);
            }
            Field::Month => number(time.month, 2),
            Field::Day => number(time.day, with_sign(time.day, 2)),
            Field::DayOfYear => number(time.day_of_year(), with_sign(time.day_of_year(), 3)),
            Field::IsoDayOfYear => number(time.iso().2, 3),
            Field::Weekday => number(time.weekday() as i64 + 1, 0),
            Field::IsoWeekday => number((time.weekday() as i64 + 6) % 7 + 1, 0),
            Field::IsoWeek => number(time.iso().1, 2),
            Field::WeekOfYear => {
                let week = (time.day_of_year() - 1) / 7 + 1;
                number(week, with_sign(week, 2));
            }
            Field::WeekOfMonth => number((time.day - 1) / 7 + 1, 0),
            Field::Century => {
                let century = match time.is_interval {
                    true => time.year / 100,
                    false if time.year > 0 => (time.year - 1) / 100 + 1,
                    false => time.year / 100 - 1,
                };
                number(century, if century.abs() <= 99 { 2 } else { 0 });
            }
            Field::JulianDay => number(time.date + JULIAN_EPOCH, 0),
            Field::Quarter if time.month == 0 => {}
            Field::Quarter => number((time.month - 1) / 3 + 1, 0),
            Field::RomanMonth(case) => {
                if let Some(name) = time.named_month().and_then(|month| ROMAN.get(month.checked_sub(1)?)) {
                    put_name(name, case, if is_filled { 0 } else { ROMAN_WIDTH }, output);
                }
            }
            Field::MonthName(case) => put_name(MONTHS[time.month as usize - 1], case, name_width, output),
            Field::DayName(case) => put_name(DAYS[time.weekday()], case, name_width, output),
            Field::MonthShort(case) => put_name(&MONTHS[time.month as usize - 1][..3], case, 0, output),
            Field::DayShort(case) => put_name(&DAYS[time.weekday()][..3], case, 0, output),
            // An interval of negative hours is ahead of noon.
            Field::Half(before, after) => output.push_str(if time.hour % 24 >= noon { after } else { before }),
            Field::Era(before, after) => output.push_str(if time.year <= 0 { before } else { after }),
            Field::Nothing | Field::Unknown => {}
        }
    }
}

/// A width that includes the sign of a number.
fn with_sign(value: i64, width: usize) -> usize {
    width - usize::from(value < 0)
}

fn put_name(name: &str, case: Case, width: usize, output: &mut String) {
    let start = output.len();
    // Writing to a string cannot fail.
    let _ = write!(output, "{name:width$}");
    match case {
        Case::Upper => output[start..].make_ascii_uppercase(),
        Case::Lower => output[start..].make_ascii_lowercase(),
        Case::Title => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(time: &Time, template: &str) -> String {
        let mut output = String::new();
        TimeTemplate::parse(template).unwrap().format(time, &mut output).unwrap();
        output
    }

    #[test]
    fn timestamps_are_written_as_in_postgresql() {
        // 2024-02-29 13:14:15.678901.
        let time = Time::of_timestamp((19_782 * 86_400 + 13 * 3_600 + 14 * 60 + 15) * 1_000_000 + 678_901);
        for (template, expected) in [
            ("HH12 a.m.", "01 p.m."),
            (r#"DD\""#, "29\""),
            ("YYYY-MM-DD\"T\"HH24:MI:SS.MS", "2024-02-29T13:14:15.678"),
            ("Month|MONTH|month|FMMonth|Mon|MON|mon", "February |FEBRUARY |february |February|Feb|FEB|feb"),
            ("Day|DAY|FMDay|Dy|DY", "Thursday |THURSDAY |Thursday|Thu|THU"),
            ("DDth|DDTH|FMDDth|ddth", "29th|29TH|29th|29th"),
            ("D ID DDD IDDD J Q RM WW W IW CC", "5 4 060 060 2460370 1 II   09 5 09 21"),
            ("Y,YYY YYY YY Y IYYY IYY IY I", "2,024 024 24 4 2024 024 24 4"),
            ("SSSS SSSSS US FF1 FF3 FF6", "47655 47655 678901 6 678 678901"),
            ("AD BC a.d. B.C.", "AD AD a.d. A.D."),
            (r#""day "DD "a\"b""#, "day 29 a\"b"),
            ("HH24h", "13h"),
            ("DDDth", "060th"),
            ("TMMonth", "February"),
            ("FXYYYY", "2024"),
            ("é YYYYth", "é 2024th"),
            ("MMM", "02M"),
            ("RM|rm|FMrm|Rm", "II  |ii  |ii|Rm"),
            ("Monday", "Febthursday "),
            ("", ""),
        ] {
            assert_eq!(format(&time, template), expected, "{template}");
        }
        // 0044-03-15 BC, and days at the ends of years.
        let early = Time::of_timestamp((first_day(-43, 3) + 14) * MICROS_PER_DAY);
        assert_eq!(format(&early, "YYYY BC FMYYYY CC Y,YYY DDD"), "0044 BC 44 -01 0,044 074");
        for (year, month, day, expected) in [(2021, 1, 3, "2020-53-7 371"), (2020, 12, 31, "2020-53-4 368")] {
            let time = Time::of_timestamp((first_day(year, month) + day - 1) * MICROS_PER_DAY);
            assert_eq!(format(&time, "IYYY-IW-ID IDDD"), expected);
        }
        assert!(TimeTemplate::parse("YYYY TZ").is_err());
    }

    #[test]
    fn intervals_are_written_as_in_postgresql() {
        let time = |months, days, seconds: i64| {
            Time::of_interval(IntervalMonthDayNano { months, days, nanoseconds: seconds * 1_000_000_000 })
        };
        assert_eq!(format(&time(0, 1, 7_384), "HH24:MI:SS"), "02:03:04");
        assert_eq!(format(&time(0, 0, -93_784), "HH24:MI:SS.MS"), "-26:-03:-04.000");
        assert_eq!(format(&time(0, 0, 93_600), "HH12 HH24 am DD DDD SSSS"), "02 26 am 00 000 93600");
        assert_eq!(format(&time(14, 3, 0), "YYYY-MM-DD Q CC WW W Y RM"), "0001-02-03 1 00 61 1 1 II  ");
        assert_eq!(format(&time(-14, 0, 0), "YYYY MM"), "-0001 -02");
        assert_eq!(format(&time(0, -3, -10_800), "HH12 am DD"), "-03 am -3");
        assert_eq!(format(&time(-13, 0, 0), "Y,YYY RM MM"), "0,-01 XII  -01");
        assert_eq!(format(&time(12, 0, 0), "RM|rm|FMrm"), "XII |xii |xii");
        assert_eq!(format(&time(0, 1, 0), "RM|"), "|");
        assert_eq!(format(&time(-12, 0, 0), "RM|"), "I   |");
        assert_eq!(format(&time(-24_168, -3, 0), "Y,YYY YYYY CC DDD WW DD"), "-2,-14 -2014 -20 -725043 -103576 -3");
        let mut output = String::new();
        assert!(TimeTemplate::parse("Month").unwrap().format(&time(1, 0, 0), &mut output).is_err());
    }
}

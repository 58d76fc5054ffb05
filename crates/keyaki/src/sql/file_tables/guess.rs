//! Types of the texts of a file.
//!
//! Each value has the narrowest type whose texts it fits; a column has the join of the types of its values:
//!
//! ```text
//! BIGINT < NUMERIC(38,0) < DOUBLE PRECISION < TEXT        DATE < TIMESTAMP < TEXT
//! BOOLEAN < TEXT        TIME < TEXT        TIMESTAMPTZ < TEXT
//! ```
//!
//! A number that would lose something is a text: with leading zeros, or more than 38 digits.

use chrono::NaiveDate;
use keyaki_store::ColumnType;

use crate::write::text::TimeFormats;

/// Digits of integers that NUMERIC holds.
const DIGITS_MAX: usize = 38;

/// The type of the values of a column so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guess {
    /// There was no value.
    Null,
    Boolean,
    Integer,
    /// Integers that BIGINT does not hold.
    Large,
    Float,
    Date,
    Time,
    Timestamp,
    /// Timestamps with an offset.
    Instant,
    Text,
}

impl Guess {
    /// The type of one value.
    pub fn of(text: &str, formats: &TimeFormats) -> Guess {
        let text = text.trim_ascii();
        let of_format = |ty| match ty {
            ColumnType::Date => Guess::Date,
            ColumnType::Timestamp { utc: true } => Guess::Instant,
            _ => Guess::Timestamp,
        };
        if let Some(ty) = formats.type_of(text) {
            return of_format(ty);
        }
        let found = match text.as_bytes() {
            [b't' | b'T' | b'f' | b'F', ..] => {
                let is_boolean = ["true", "false"].iter().any(|word| text.eq_ignore_ascii_case(word));
                is_boolean.then_some(Guess::Boolean)
            }
            [b'0'..=b'9' | b'+' | b'-' | b'.', ..] => number(text).or_else(|| time(text.as_bytes())),
            // As COPY writes them.
            b"NaN" | b"Infinity" => Some(Guess::Float),
            _ => None,
        };
        let applies = match found {
            // With another format, texts in ISO 8601 are none.
            Some(Guess::Date) => formats.date.is_none(),
            Some(Guess::Timestamp | Guess::Instant) => formats.timestamp.is_none(),
            _ => true,
        };
        found.filter(|_| applies).unwrap_or(Guess::Text)
    }

    /// The type of both.
    pub fn join(self, other: Guess) -> Guess {
        use Guess::{Date, Float, Integer, Large, Null, Text, Timestamp};
        match (self, other) {
            (a, b) if a == b => a,
            (Null, other) | (other, Null) => other,
            (Integer, Large) | (Large, Integer) => Large,
            (Integer | Large, Float) | (Float, Integer | Large) => Float,
            (Date, Timestamp) | (Timestamp, Date) => Timestamp,
            _ => Text,
        }
    }

    /// The type of a column.
    pub fn column(self) -> ColumnType {
        match self {
            Guess::Boolean => ColumnType::Boolean,
            Guess::Integer => ColumnType::Int64,
            Guess::Large => ColumnType::Decimal { precision: 38, scale: 0 },
            Guess::Float => ColumnType::Float64,
            Guess::Date => ColumnType::Date,
            Guess::Time => ColumnType::Time,
            Guess::Timestamp => ColumnType::Timestamp { utc: false },
            Guess::Instant => ColumnType::Timestamp { utc: true },
            Guess::Null | Guess::Text => ColumnType::Text,
        }
    }
}

/// The type of a number; `None` for other texts, `Text` for numbers that no type holds.
fn number(text: &str) -> Option<Guess> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned == "Infinity" {
        return Some(Guess::Float);
    }
    let (whole, rest) = digits(unsigned.as_bytes());
    let has_zeros = whole > 1 && unsigned.starts_with('0');
    if rest.is_empty() {
        return match text.parse::<i64>() {
            _ if has_zeros => Some(Guess::Text),
            Ok(_) => Some(Guess::Integer),
            Err(_) if whole <= DIGITS_MAX => (whole > 0).then_some(Guess::Large),
            Err(_) => Some(Guess::Text),
        };
    }
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => digits(rest),
        rest => (0, rest),
    };
    if whole + fraction == 0 {
        return None;
    }
    let rest = match rest {
        [b'e' | b'E', b'+' | b'-', exponent @ ..] | [b'e' | b'E', exponent @ ..] => match digits(exponent) {
            (0, _) => return None,
            (_, rest) => rest,
        },
        rest => rest,
    };
    let is_float = rest.is_empty() && !has_zeros && crate::values::cast::parse::<f64>(text).is_some();
    rest.is_empty().then_some(if is_float { Guess::Float } else { Guess::Text })
}

/// The number of leading digits, and the rest.
fn digits(text: &[u8]) -> (usize, &[u8]) {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count, &text[count..])
}

/// The type of a date or time in ISO 8601.
fn time(text: &[u8]) -> Option<Guess> {
    let Some(rest) = date(text) else {
        let (has_seconds, rest) = clock(text)?;
        return (has_seconds && rest.is_empty()).then_some(Guess::Time);
    };
    let [b'T' | b' ', rest @ ..] = rest else { return rest.is_empty().then_some(Guess::Date) };
    let (_, rest) = clock(rest)?;
    match rest {
        [] => Some(Guess::Timestamp),
        b"Z" => Some(Guess::Instant),
        [b'+' | b'-', rest @ ..] => {
            let (_, rest) = two(rest, 15)?;
            let rest = rest.strip_prefix(b":").unwrap_or(rest);
            let is_offset = rest.is_empty() || two(rest, 59).is_some_and(|(_, rest)| rest.is_empty());
            is_offset.then_some(Guess::Instant)
        }
        _ => None,
    }
}

/// The text behind a date.
fn date(text: &[u8]) -> Option<&[u8]> {
    let (year, rest) = text.split_at_checked(4)?;
    let year = std::str::from_utf8(year).ok()?.parse::<u16>().ok().filter(|year| *year > 0)?;
    let (month, rest) = two(rest.strip_prefix(b"-")?, 12)?;
    let (day, rest) = two(rest.strip_prefix(b"-")?, 31)?;
    NaiveDate::from_ymd_opt(i32::from(year), month, day).map(|_| rest)
}

/// True if a time of day has seconds, and the text behind it.
fn clock(text: &[u8]) -> Option<(bool, &[u8])> {
    let (_, rest) = two(text, 23)?;
    let (_, rest) = two(rest.strip_prefix(b":")?, 59)?;
    let Some(rest) = rest.strip_prefix(b":") else { return Some((false, rest)) };
    let (_, rest) = two(rest, 59)?;
    match rest.strip_prefix(b".").map(digits) {
        None => Some((true, rest)),
        Some((1..=9, rest)) => Some((true, rest)),
        Some(_) => None,
    }
}

/// A number of two digits, and the text behind it.
fn two(text: &[u8], most: u32) -> Option<(u32, &[u8])> {
    let (number, rest) = text.split_at_checked(2)?;
    let [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = number else { return None };
    let value = u32::from(tens - b'0') * 10 + u32::from(ones - b'0');
    (value <= most).then_some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_texts() {
        for (ty, texts) in [
            (Guess::Boolean, &["true", "FALSE", " True"][..]),
            (Guess::Integer, &["0", "-1", "+7", "9223372036854775807", "-9223372036854775808", " 5 "]),
            (Guess::Large, &["9223372036854775808", "-12345678901234567890123456789012345678"]),
            (Guess::Float, &["1.5", ".5", "5.", "-0.0", "1e5", "1E-7", "NaN", "Infinity", "-Infinity", "1.5e+300"]),
            (Guess::Date, &["2024-02-29", "0001-01-01", "9999-12-31"]),
            (Guess::Time, &["00:00:00", "23:59:59.999999"]),
            (Guess::Timestamp, &["2024-01-01 10:00", "2024-01-01T10:00:00", "2024-01-01 10:00:00.123456789"]),
            (
                Guess::Instant,
                &[
                    "2024-01-01T10:00:00Z",
                    "2024-01-01 10:00:00+00",
                    "2024-01-01 10:00:00.5-05:30",
                    "2024-01-01T10:00+0100",
                ],
            ),
            (
                Guess::Text,
                &[
                    "",
                    " ",
                    "x",
                    "007",
                    "-01",
                    "00.5",
                    "1e999",
                    "1e-999",
                    "1e",
                    "e5",
                    ".",
                    "-",
                    "+-1",
                    "1,5",
                    "1 2",
                    "0x10",
                    "123456789012345678901234567890123456789",
                    "2024-02-30",
                    "0000-01-01",
                    "2024-1-1",
                    "12:30",
                    "24:00:00",
                    "2024-01-01 25:00",
                    "2024-01-01x",
                    "2024-01-01 10:00:00 UTC",
                    "2024-01-01 10:00+",
                    "tru",
                    "nan",
                    "é",
                    "20240101T10",
                    "12345-01-01",
                    "2024-01-01 10:00:00.",
                    "é1",
                    "202é-01-01",
                ],
            ),
        ] {
            for text in texts {
                assert_eq!(Guess::of(text, &TimeFormats::default()), ty, "{text:?}");
            }
        }
        let formats = TimeFormats { date: Some("%d/%m/%Y".into()), timestamp: None };
        let of = |text| Guess::of(text, &formats);
        assert_eq!([of("31/12/2024"), of("2024-12-31"), of("7")], [Guess::Date, Guess::Text, Guess::Integer]);
        assert_eq!(of("2024-12-31 10:00"), Guess::Timestamp);
    }

    #[test]
    fn inferred_values_can_be_read() {
        use crate::values::zone::Zone;
        use crate::write::text::parse_column;
        for text in [
            "true",
            "+7",
            "-9223372036854775808",
            "12345678901234567890123456789012345678",
            ".5",
            "5.",
            "1E-7",
            "NaN",
            "-Infinity",
            "2024-02-29",
            "0001-01-01",
            "23:59:59.999999",
            "2024-01-01 10:00",
            "2024-01-01T10:00:00",
            "2024-01-01 10:00:00.123456789",
            "2024-01-01T10:00:00Z",
            "2024-01-01 10:00:00.5-05:30",
            "2024-01-01T10:00+0100",
        ] {
            let ty = Guess::of(text, &TimeFormats::default()).column();
            let texts = arrow::array::StringViewArray::from(vec![text]);
            parse_column(&texts, ty.into(), Zone::UTC).unwrap_or_else(|bad| panic!("{text}: {}", bad.error));
        }
    }

    #[test]
    fn joins_are_independent_of_the_order() {
        use Guess::*;
        let all = [Null, Boolean, Integer, Large, Float, Date, Time, Timestamp, Instant, Text];
        for a in all {
            for b in all {
                assert_eq!(a.join(b), b.join(a));
                for c in all {
                    assert_eq!(a.join(b).join(c), a.join(b.join(c)), "{a:?} {b:?} {c:?}");
                }
            }
        }
        assert_eq!([Integer.join(Float), Date.join(Timestamp), Boolean.join(Integer)], [Float, Timestamp, Text]);
    }
}

//! TIME from text.

use crate::base::times::micros;

const MICROS_PER_SECOND: i64 = 1_000_000;
pub(crate) const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;

/// Parses `HH:MM[:SS[.ffffff]]`, also with `AM` or `PM` behind it, to microseconds since midnight. Further digits round the
/// fraction. `None` for other texts and for times that a day does not have, such as 24:00.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let text = text.trim_ascii();
    let half = |suffix: &str| {
        let at = text.len().checked_sub(suffix.len())?;
        let (time, end) = text.split_at_checked(at)?;
        end.eq_ignore_ascii_case(suffix).then(|| time.trim_ascii_end())
    };
    let (clock, is_afternoon) = match (half("am"), half("pm")) {
        (Some(clock), _) => (clock, Some(false)),
        (_, Some(clock)) => (clock, Some(true)),
        _ => (text, None),
    };
    let mut parts = clock.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?, 1)?, number(parts.next()?, 2)?);
    let (second, fraction) = match parts.next() {
        Some(seconds) => match seconds.split_once('.') {
            Some((second, fraction)) => (number(second, 2)?, micros(fraction)?),
            None => (number(seconds, 2)?, 0),
        },
        None => (0, 0),
    };
    let hour = match is_afternoon {
        None => hour,
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(is_afternoon) => hour % 12 + if is_afternoon { 12 } else { 0 },
    };
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let time = ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + fraction;
    (time < MICROS_PER_DAY).then_some(time)
}

/// A number of at least `digits_min` digits, and at most two.
fn number(text: &str, digits_min: usize) -> Option<i64> {
    let is_number = (digits_min..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_parsed() {
        let second = MICROS_PER_SECOND;
        for (text, micros) in [
            ("00:00", 0),
            ("4:05", (4 * 3600 + 5 * 60) * second),
            (" 04:05:06 ", (4 * 3600 + 5 * 60 + 6) * second),
            ("04:05:06.789", (4 * 3600 + 5 * 60 + 6) * second + 789_000),
            ("04:05:06.0000005", (4 * 3600 + 5 * 60 + 6) * second),
            ("04:05:06.0000015", (4 * 3600 + 5 * 60 + 6) * second + 2),
            ("23:59:59.999999", MICROS_PER_DAY - 1),
            ("12:30 AM", 30 * 60 * second),
            ("12:30pm", (12 * 3600 + 30 * 60) * second),
            ("1:00 PM", 13 * 3600 * second),
        ] {
            assert_eq!(parse(text), Some(micros), "{text}");
        }
        for text in [
            "",
            "4",
            "24:00",
            "23:60",
            "23:59:60",
            "23:59:59.9999999",
            "1:2",
            "1:02:3",
            "01:02:",
            "01:02:03.",
            "-1:00",
            "13:00 PM",
            "0:30 am",
            "10:00Z",
            "10:00:00+02",
            "am",
            "é",
            "10:00:00:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

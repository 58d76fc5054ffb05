//! Intervals on command lines.

use std::time::Duration;

/// An interval as `30s`, `5m` or `2h`.
///
/// # Errors
/// For other texts, and for 0.
pub fn parse_interval(text: &str) -> std::result::Result<Duration, String> {
    let invalid = || format!("expected a number of seconds, minutes or hours, such as 30s, 5m or 2h, found \"{text}\"");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(invalid()),
    };
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let seconds = number.checked_mul(seconds).filter(|&seconds| seconds > 0).ok_or_else(invalid)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        let seconds = |text| parse_interval(text).map(|interval| interval.as_secs());
        assert_eq!(["30s", "30", "5m", "5min", "2h"].map(seconds), [Ok(30), Ok(30), Ok(300), Ok(300), Ok(7200)]);
        for text in ["", "0m", "m", "5 m", "-1s", "1d", "99999999999999999999s", "9999999999999999999h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

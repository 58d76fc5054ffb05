//! The proleptic Gregorian calendar for all 32-bit day numbers, a range that date libraries do not cover. The
//! algorithms are from Howard Hinnant, "chrono-compatible low-level date algorithms". Years are astronomical: year 0 is
//! 1 BC.

const DAYS_PER_ERA: i64 = 146_097;
const YEARS_PER_ERA: i64 = 400;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Days since 1970-01-01; `None` if the date does not exist or the year is beyond ±10 million.
pub(crate) fn days_from_date(year: i64, month: u32, day: u32) -> Option<i64> {
    if !(1..=12).contains(&month) || day == 0 || day > days_in_month(year, month) || year.abs() > 10_000_000 {
        return None;
    }
    // Years start in March, so that the leap day is the last day.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(YEARS_PER_ERA);
    let year_of_era = year.rem_euclid(YEARS_PER_ERA);
    let month_from_march = i64::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * DAYS_PER_ERA + day_of_era - EPOCH_DAYS)
}

/// The date (year, month, day) of a number of days since 1970-01-01.
pub(crate) fn date_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + EPOCH_DAYS;
    let era = days.div_euclid(DAYS_PER_ERA);
    let day_of_era = days.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    let year = era * YEARS_PER_ERA + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        assert_eq!(days_from_date(1970, 1, 1), Some(0));
        assert_eq!(days_from_date(2000, 2, 29), Some(11_016));
        assert_eq!(days_from_date(1900, 2, 29), None);
        assert_eq!(days_from_date(2024, 13, 1), None);
        assert_eq!(date_from_days(-1), (1969, 12, 31));
        assert_eq!(date_from_days(-719_528), (0, 1, 1));
    }

    #[test]
    fn round_trips() {
        let mut last = None;
        for days in (-800_000..=800_000).chain([i64::from(i32::MIN), i64::from(i32::MAX)]) {
            let date = date_from_days(days);
            assert_eq!(days_from_date(date.0, date.1, date.2), Some(days), "{date:?}");
            assert!(last.is_none_or(|last| days == i64::from(i32::MIN) || last < date));
            last = Some(if days == i64::from(i32::MIN) { (i64::MIN, 0, 0) } else { date });
        }
    }
}

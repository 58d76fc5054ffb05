//! Time zones.
//!
//! Zones are those of the IANA database that is compiled into the program. As in PostgreSQL, names ignore case, a local
//! time that occurs twice is the later one (standard time), and a local time that is skipped is read with the offset
//! before the transition.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, PrimitiveArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray,
};
use arrow::datatypes::{
    ArrowTimestampType, DataType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use chrono::{DateTime, FixedOffset, MappedLocalTime, NaiveDateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::base::arrays::{element_type, list_of, lists, with_elements};
use crate::{Error, Result};

/// The zone of all columns of type TIMESTAMPTZ.
pub(crate) const STORED: &str = "+00:00";

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Zone {
    Named(Tz),
    /// Seconds east of Greenwich, in types of files and other systems.
    Fixed(i32),
}

impl Default for Zone {
    fn default() -> Self {
        Zone::UTC
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Zone::Named(zone) => f.write_str(zone.name()),
            Zone::Fixed(seconds) => {
                let (sign, minutes) = (if *seconds < 0 { '-' } else { '+' }, seconds.abs() / 60);
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

impl Zone {
    pub const UTC: Zone = Zone::Named(Tz::UTC);

    /// The zone with a name of the IANA database.
    ///
    /// # Errors
    /// `InvalidParameter` if there is none.
    pub fn named(name: &str) -> Result<Zone> {
        let wanted = name.trim();
        let in_other_case = || TZ_VARIANTS.iter().find(|zone| zone.name().eq_ignore_ascii_case(wanted)).copied();
        wanted.parse().ok().or_else(in_other_case).map(Zone::Named).ok_or_else(|| Error::InvalidParameter {
            name: "TimeZone".into(),
            value: name.into(),
            expected: "a name of the IANA time zone database, for example 'Europe/Berlin' or 'UTC'".into(),
        })
    }

    /// The zone of a type: a name, or an offset such as `+05:30`.
    ///
    /// # Errors
    /// As [`Zone::named`].
    pub fn of_label(label: &str) -> Result<Zone> {
        match label.parse::<FixedOffset>() {
            Ok(offset) => Ok(Zone::Fixed(offset.local_minus_utc())),
            Err(_) => Zone::named(label),
        }
    }

    /// The zone with an offset of whole hours, positive east of Greenwich.
    ///
    /// # Errors
    /// `InvalidParameter` for offsets that are not in use.
    pub fn of_hours(hours: &str) -> Result<Zone> {
        let name = match hours.parse::<i8>() {
            Ok(0) => "UTC".into(),
            // These names have POSIX signs.
            Ok(east @ 1..) => format!("Etc/GMT-{east}"),
            Ok(west) => format!("Etc/GMT+{}", west.unsigned_abs()),
            Err(_) => hours.into(),
        };
        Zone::named(&name).map_err(|error| match error {
            Error::InvalidParameter { name, expected, .. } => {
                Error::InvalidParameter { name, value: hours.into(), expected }
            }
            error => error,
        })
    }

    pub fn is_utc(self) -> bool {
        matches!(self, Zone::UTC | Zone::Fixed(0))
    }

    /// Seconds east of Greenwich at an instant; `None` outside of the range of the calendar.
    pub fn offset_at(self, seconds: i64) -> Option<i64> {
        let zone = match self {
            Zone::Named(zone) => zone,
            Zone::Fixed(seconds) => return Some(seconds.into()),
        };
        let instant = DateTime::from_timestamp(seconds, 0)?.naive_utc();
        Some(zone.offset_from_utc_datetime(&instant).fix().local_minus_utc().into())
    }

    /// Seconds east of Greenwich at a local time.
    pub fn offset_of_local(self, seconds: i64) -> Option<i64> {
        let zone = match self {
            Zone::Named(zone) => zone,
            Zone::Fixed(seconds) => return Some(seconds.into()),
        };
        let mut local: NaiveDateTime = DateTime::from_timestamp(seconds, 0)?.naive_utc();
        loop {
            match zone.offset_from_local_datetime(&local) {
                MappedLocalTime::Single(offset) => return Some(offset.fix().local_minus_utc().into()),
                MappedLocalTime::Ambiguous(a, b) => {
                    // The smaller offset belongs to the later instant.
                    return Some(a.fix().local_minus_utc().min(b.fix().local_minus_utc()).into());
                }
                // Back to a time before the transition; at most a day is skipped.
                MappedLocalTime::None => local = local.checked_sub_signed(TimeDelta::minutes(15))?,
            }
        }
    }

    /// The local times of instants, as an array without time zone; null where they are out of range.
    pub fn to_local(self, instants: &ArrayRef) -> Result<ArrayRef> {
        self.shifted(instants, None, |seconds| self.offset_at(seconds))
    }

    /// The instants of local times, as an array in UTC; null where they are out of range.
    pub fn to_instants(self, locals: &ArrayRef) -> Result<ArrayRef> {
        self.shifted(locals, Some(STORED.into()), |seconds| self.offset_of_local(seconds).map(|offset| -offset))
    }

    fn shifted(
        self,
        values: &ArrayRef,
        zone: Option<Arc<str>>,
        seconds_of: impl Fn(i64) -> Option<i64>,
    ) -> Result<ArrayRef> {
        fn shift<T: ArrowTimestampType>(
            values: &ArrayRef,
            zone: Option<Arc<str>>,
            is_utc: bool,
            seconds_of: impl Fn(i64) -> Option<i64>,
        ) -> PrimitiveArray<T> {
            let units: i64 = match T::UNIT {
                TimeUnit::Second => 1,
                TimeUnit::Millisecond => 1_000,
                TimeUnit::Microsecond => 1_000_000,
                TimeUnit::Nanosecond => 1_000_000_000,
            };
            let values = values.as_primitive::<T>();
            if is_utc {
                return values.clone().with_timezone_opt(zone);
            }
            let shifted = |value: i64| seconds_of(value.div_euclid(units))?.checked_mul(units)?.checked_add(value);
            values.unary_opt::<_, T>(shifted).with_timezone_opt(zone)
        }
        let is_utc = self.is_utc();
        Ok(match values.data_type() {
            DataType::Timestamp(TimeUnit::Second, _) => {
                Arc::new(shift::<TimestampSecondType>(values, zone, is_utc, seconds_of)) as ArrayRef
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                Arc::new(shift::<TimestampMillisecondType>(values, zone, is_utc, seconds_of))
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                Arc::new(shift::<TimestampMicrosecondType>(values, zone, is_utc, seconds_of))
            }
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                Arc::new(shift::<TimestampNanosecondType>(values, zone, is_utc, seconds_of))
            }
            other => return Err(Error::Internal(format!("time zone of {other}"))),
        })
    }
}

/// The same instants, or arrays of instants, labelled with a zone.
pub(crate) fn labelled(instants: &ArrayRef, zone: &str) -> ArrayRef {
    let zone: Arc<str> = zone.into();
    if let Some(array) = instants.as_any().downcast_ref::<TimestampMicrosecondArray>() {
        Arc::new(array.clone().with_timezone(zone))
    } else if let Some(array) = instants.as_any().downcast_ref::<TimestampNanosecondArray>() {
        Arc::new(array.clone().with_timezone(zone))
    } else if let Some(array) = instants.as_any().downcast_ref::<TimestampMillisecondArray>() {
        Arc::new(array.clone().with_timezone(zone))
    } else if let Some(array) = instants.as_any().downcast_ref::<TimestampSecondArray>() {
        Arc::new(array.clone().with_timezone(zone))
    } else if let Ok(Some(lists)) = lists(instants) {
        Arc::new(with_elements(&lists, labelled(lists.values(), &zone)))
    } else {
        instants.clone()
    }
}

/// The type of [`labelled`] values of a type.
pub(crate) fn labelled_type(ty: &DataType, zone: &str) -> DataType {
    match (ty, element_type(ty)) {
        (DataType::Timestamp(unit, Some(_)), _) => DataType::Timestamp(*unit, Some(zone.into())),
        (_, Some(element)) => list_of(labelled_type(element, zone)),
        _ => ty.clone(),
    }
}

/// True for TIMESTAMPTZ, and for arrays of it.
pub(crate) fn has_instants(ty: &DataType) -> bool {
    match ty {
        DataType::Dictionary(_, values) => has_instants(values),
        ty => element_type(ty).map_or_else(|| is_instant(ty), has_instants),
    }
}

/// True for TIMESTAMPTZ.
pub(crate) fn is_instant(ty: &DataType) -> bool {
    matches!(ty, DataType::Timestamp(_, Some(_)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(text: &str) -> i64 {
        let text = text.replace(' ', "T") + "Z";
        text.parse::<DateTime<chrono::Utc>>().unwrap().timestamp_micros()
    }

    fn zone(name: &str) -> Zone {
        Zone::named(name).unwrap()
    }

    fn local(name: &str, instant: &str) -> i64 {
        let array: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![micros(instant)]).with_timezone(STORED));
        zone(name).to_local(&array).unwrap().as_primitive::<TimestampMicrosecondType>().value(0)
    }

    fn instant(name: &str, local: &str) -> i64 {
        let array: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![micros(local)]));
        zone(name).to_instants(&array).unwrap().as_primitive::<TimestampMicrosecondType>().value(0)
    }

    #[test]
    fn transitions_are_resolved_as_in_postgresql() {
        let berlin = "europe/BERLIN";
        assert_eq!(local(berlin, "2024-03-31 00:30:00"), micros("2024-03-31 01:30:00"));
        assert_eq!(local(berlin, "2024-03-31 01:30:00"), micros("2024-03-31 03:30:00"));
        // Skipped: with the offset before the transition.
        assert_eq!(instant(berlin, "2024-03-31 02:30:00"), micros("2024-03-31 01:30:00"));
        // Twice: the later one.
        assert_eq!(instant(berlin, "2024-10-27 02:30:00"), micros("2024-10-27 01:30:00"));
        assert_eq!(instant("America/New_York", "2024-03-10 02:30:00"), micros("2024-03-10 07:30:00"));
        assert_eq!(instant("America/New_York", "2024-11-03 01:30:00"), micros("2024-11-03 06:30:00"));
        // A skipped day.
        assert_eq!(instant("Pacific/Apia", "2011-12-30 12:00:00"), micros("2011-12-30 22:00:00"));
        assert_eq!(instant("Asia/Kolkata", "1960-01-01 00:00:00"), micros("1959-12-31 18:30:00"));
    }

    #[test]
    fn zones_have_names_or_hours() {
        assert_eq!(zone("utc"), Zone::UTC);
        assert_eq!(Zone::of_hours("-7").unwrap().offset_at(0), Some(-7 * 3600));
        assert_eq!(Zone::of_hours("2").unwrap().offset_at(0), Some(2 * 3600));
        for unknown in ["Mars/Olympus", "", "+02:00", "99"] {
            assert_eq!(Zone::named(unknown).unwrap_err().sqlstate().code(), "22023", "{unknown}");
        }
        assert!(Zone::of_hours("99").unwrap_err().to_string().contains("\"99\""));
        let india = Zone::of_label("+05:30").unwrap();
        assert_eq!((india.offset_at(0), india.offset_of_local(0)), (Some(19_800), Some(19_800)));
        assert_eq!(india.to_string(), "+05:30");
        assert!(Zone::of_label("+00:00").unwrap().is_utc());
        assert_eq!(Zone::of_label("Europe/Berlin").unwrap(), zone("Europe/Berlin"));
    }

    proptest! {
        #[test]
        fn instants_survive_unless_the_local_time_is_ambiguous(
            seconds in -4_000_000_000_i64..8_000_000_000,
            zone in prop::sample::select(&["Europe/Berlin", "America/St_Johns", "Asia/Tokyo", "Australia/Lord_Howe"][..]),
        ) {
            let zone = self::zone(zone);
            let offset = zone.offset_at(seconds).unwrap();
            let back = seconds + offset - zone.offset_of_local(seconds + offset).unwrap();
            // The later of two instants with the same local time.
            prop_assert!(back == seconds || back > seconds && back - seconds <= 7200);
            prop_assert_eq!(back + zone.offset_at(back).unwrap(), seconds + offset);
        }
    }
}

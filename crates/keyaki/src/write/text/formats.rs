//! Formats of dates and timestamps in text files, in the notation of strftime.

use std::borrow::Cow;

use arrow::array::{Array, StringViewArray, StringViewBuilder};
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime};
use keyaki_store::ColumnType;

use super::parse::BadValue;
use crate::Error;
use crate::catalog::SqlType;
use crate::catalog::types::sql_type_name;

/// The formats of a file; `None` for ISO 8601.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimeFormats {
    pub date: Option<String>,
    pub timestamp: Option<String>,
}

impl TimeFormats {
    /// Converts the texts of a column to ISO 8601, if a format applies to its type.
    ///
    /// # Errors
    /// The first text that does not have the format.
    pub fn iso<'t>(&self, texts: &'t StringViewArray, ty: SqlType) -> Result<Cow<'t, StringViewArray>, BadValue> {
        let format = match ty.column {
            ColumnType::Date => &self.date,
            ColumnType::Timestamp { .. } => &self.timestamp,
            _ => &None,
        };
        let Some(format) = format else { return Ok(Cow::Borrowed(texts)) };
        let mut converted = StringViewBuilder::with_capacity(texts.len());
        for (row, text) in texts.iter().enumerate() {
            match text.map(|text| (text, iso(text, format, ty.column))) {
                None => converted.append_null(),
                Some((_, Some(iso))) => converted.append_value(iso),
                Some((text, None)) => {
                    let ty = format!("{} in the format {format}", sql_type_name(ty));
                    return Err(BadValue { row, error: Error::invalid_text(ty, text, None) });
                }
            }
        }
        Ok(Cow::Owned(converted.finish()))
    }

    /// The type of a text that has one of the formats.
    pub fn type_of(&self, text: &str) -> Option<ColumnType> {
        let has = |format: &Option<String>, ty| format.as_ref().is_some_and(|format| iso(text, format, ty).is_some());
        let timestamp = ColumnType::Timestamp { utc: self.timestamp.as_deref().is_some_and(has_offset) };
        [(&self.date, ColumnType::Date), (&self.timestamp, timestamp)]
            .into_iter()
            .find(|(f, ty)| has(f, *ty))
            .map(|(_, ty)| ty)
    }
}

fn has_offset(format: &str) -> bool {
    format.contains("%z") || format.contains("%:z") || format.contains("%#z") || format.contains("%+")
}

/// A text in ISO 8601; `None` if it does not have the format.
fn iso(text: &str, format: &str, ty: ColumnType) -> Option<String> {
    let text = text.trim_ascii();
    if ty == ColumnType::Date {
        return NaiveDate::parse_from_str(text, format).ok().map(|date| date.format("%Y-%m-%d").to_string());
    }
    if has_offset(format) {
        let instant = DateTime::parse_from_str(text, format).ok()?;
        return Some(instant.format("%Y-%m-%d %H:%M:%S%.f%:z").to_string());
    }
    let at_midnight = || NaiveDate::parse_from_str(text, format).ok().map(|date| date.and_time(NaiveTime::MIN));
    let time = NaiveDateTime::parse_from_str(text, format).ok().or_else(at_midnight)?;
    Some(time.format("%Y-%m-%d %H:%M:%S%.f").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_iso() {
        let timestamp = ColumnType::Timestamp { utc: false };
        for (text, format, ty, expected) in [
            ("31/12/2024", "%d/%m/%Y", ColumnType::Date, Some("2024-12-31")),
            ("31.2.2024", "%d.%m.%Y", ColumnType::Date, None),
            ("20240229", "%Y%m%d", ColumnType::Date, Some("2024-02-29")),
            ("2024-02-29", "%d/%m/%Y", ColumnType::Date, None),
            ("3/4/2024 5:06 PM", "%m/%d/%Y %I:%M %p", timestamp, Some("2024-03-04 17:06:00")),
            ("03/04/2024", "%m/%d/%Y", timestamp, Some("2024-03-04 00:00:00")),
            (
                "04.03.2024 01:02:03.5 +0200",
                "%d.%m.%Y %H:%M:%S%.f %z",
                timestamp,
                Some("2024-03-04 01:02:03.500+02:00"),
            ),
            ("x", "%m/%d/%Y", timestamp, None),
        ] {
            assert_eq!(iso(text, format, ty).as_deref(), expected, "{text}");
        }
        let formats = TimeFormats { date: Some("%d/%m/%Y".into()), timestamp: Some("%d/%m/%Y %H:%M".into()) };
        assert_eq!(formats.type_of("01/02/2024"), Some(ColumnType::Date));
        assert_eq!(formats.type_of("01/02/2024 10:00"), Some(timestamp));
        assert_eq!(formats.type_of("2024-01-01"), None);
        let texts = StringViewArray::from(vec![Some("01/02/2024"), None, Some("later")]);
        let bad = formats.iso(&texts, ColumnType::Date.into()).expect_err("no date");
        assert_eq!(bad.row, 2);
        assert!(bad.error.to_string().contains("date in the format %d/%m/%Y: \"later\""), "{}", bad.error);
        assert_eq!(*formats.iso(&texts, ColumnType::Text.into()).expect("texts"), texts);
    }
}

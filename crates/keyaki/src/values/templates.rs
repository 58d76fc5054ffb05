//! PostgreSQL's templates of `to_date` and `to_timestamp` as formats of chrono, which DataFusion uses, and the parts
//! that they share with those of `to_char` ([`super::number_templates`], [`super::time_templates`]).

use crate::{Error, Result};

/// Patterns in any case, longer ones before their beginnings; `None` if chrono has no counterpart.
const PATTERNS: [(&str, Option<&str>); 41] = [
    ("FMHH24", Some("%-H")),
    ("FMHH12", Some("%-I")),
    ("FMHH", Some("%-I")),
    ("FMMI", Some("%-M")),
    ("FMSS", Some("%-S")),
    ("FMMM", Some("%-m")),
    ("FMDDD", Some("%-j")),
    ("FMDD", Some("%-d")),
    ("HH24", Some("%H")),
    ("HH12", Some("%I")),
    ("HH", Some("%I")),
    ("MI", Some("%M")),
    ("SSSSS", None),
    ("SSSS", None),
    ("SS", Some("%S")),
    ("MS", Some("%3f")),
    ("US", Some("%6f")),
    ("FF3", Some("%3f")),
    ("FF6", Some("%6f")),
    ("FF", None),
    ("IYYY", Some("%G")),
    ("IDDD", None),
    ("IW", Some("%V")),
    ("ID", Some("%u")),
    ("I", None),
    ("YYYY", Some("%Y")),
    ("Y,YYY", None),
    ("YYY", None),
    ("YY", Some("%y")),
    ("Y", None),
    ("MM", Some("%m")),
    ("DDD", Some("%j")),
    ("DD", Some("%d")),
    ("CC", None),
    ("J", None),
    ("Q", Some("%q")),
    ("RM", None),
    ("TZ", None),
    ("OF", None),
    ("WW", None),
    ("W", None),
];
/// Patterns whose case matters.
const NAMES: [(&str, Option<&str>); 28] = [
    ("FMMonth", Some("%B")),
    ("FMDay", Some("%A")),
    ("FMMON", None),
    ("MONTH", None),
    ("Month", None),
    ("month", None),
    ("MON", None),
    ("Mon", Some("%b")),
    ("mon", None),
    ("DAY", None),
    ("Day", None),
    ("day", None),
    ("DY", None),
    ("Dy", Some("%a")),
    ("dy", None),
    ("AM", Some("%p")),
    ("PM", Some("%p")),
    ("am", Some("%P")),
    ("pm", Some("%P")),
    ("A.M.", None),
    ("P.M.", None),
    ("a.m.", None),
    ("p.m.", None),
    ("BC", None),
    ("AD", None),
    ("D", None),
    ("FM", None),
    ("FX", None),
];

/// The format of chrono; `None` for a text that is one already: it contains `%`.
///
/// # Errors
/// `Unsupported` for patterns without a counterpart.
pub(crate) fn chrono_format(template: &str) -> Result<Option<String>> {
    if template.contains('%') {
        return Ok(None);
    }
    let mut format = String::with_capacity(template.len() + 8);
    let mut rest = template;
    while let Some(first) = rest.chars().next() {
        if let Some((literal, after)) = quoted(rest) {
            format.push_str(&literal);
            rest = after;
            continue;
        }
        let name = NAMES.iter().find(|(pattern, _)| rest.starts_with(pattern));
        let pattern = PATTERNS.iter().find(|(pattern, _)| starts_with(rest, pattern));
        // "DD" begins with "D", and "MON" with no other pattern.
        let longest = [name, pattern].into_iter().flatten().max_by_key(|(pattern, _)| pattern.len());
        let Some((pattern, counterpart)) = longest else {
            format.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let Some(counterpart) = counterpart else {
            let hint = match pattern.to_ascii_uppercase().as_str() {
                "MONTH" | "DAY" => "without padding: FMMonth, FMDay",
                "MON" => "use Mon",
                "DY" => "use Dy",
                _ => "formats of strftime, such as %Y-%m-%d, are supported, too",
            };
            return Err(Error::Unsupported(format!("pattern {pattern} in the template \"{template}\" ({hint})")));
        };
        rest = &rest[pattern.len()..];
        if starts_with(rest, "TH") {
            let message = format!("ordinals (TH) in the template \"{template}\" (enclose a plain T in double quotes)");
            return Err(Error::Unsupported(message));
        }
        format.push_str(counterpart);
    }
    Ok(Some(format))
}

/// The text in double quotes, or behind a backslash, at the start of a template, and the rest of it. `None` for others.
pub(super) fn quoted(template: &str) -> Option<(String, &str)> {
    if let Some(rest) = template.strip_prefix("\\\"") {
        return Some(("\"".into(), rest));
    }
    let mut text = String::new();
    let mut chars = template.strip_prefix('"')?.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    Some((text, chars.as_str()))
}

/// The ending of an ordinal number.
pub(super) fn ordinal(digits: &str, is_upper: bool) -> &'static str {
    let digits = digits.as_bytes();
    let is_teen = digits.len() > 1 && digits[digits.len() - 2] == b'1';
    let endings = match digits.last() {
        Some(b'1') if !is_teen => ["st", "ST"],
        Some(b'2') if !is_teen => ["nd", "ND"],
        Some(b'3') if !is_teen => ["rd", "RD"],
        _ => ["th", "TH"],
    };
    endings[usize::from(is_upper)]
}

fn starts_with(text: &str, pattern: &str) -> bool {
    text.get(..pattern.len()).is_some_and(|start| start.eq_ignore_ascii_case(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_become_formats() {
        for (template, expected) in [
            ("YYYY-MM-DD", "%Y-%m-%d"),
            ("yyyy/mm/dd hh24:mi:ss", "%Y/%m/%d %H:%M:%S"),
            ("YYYY-MM-DD\"T\"HH24:MI:SS.MS", "%Y-%m-%dT%H:%M:%S.%3f"),
            ("DD Mon YY, HH12:MI am", "%d %b %y, %I:%M %P"),
            ("FMDay, FMDD. FMMonth", "%A, %-d. %B"),
            ("IYYY-IW-ID DDD", "%G-%V-%u %j"),
            ("\"day \"DD", "day %d"),
            ("é: YYYY", "é: %Y"),
        ] {
            assert_eq!(chrono_format(template).unwrap().as_deref(), Some(expected), "{template}");
        }
        assert_eq!(chrono_format("%Y").unwrap(), None);
        for template in ["Month", "DAY", "DDTHH24", "DDth", "J", "YYYY BC", "D", "TZ", "FX YYYY"] {
            let error = chrono_format(template).unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{template}: {error}");
        }
    }
}

//! Settings of PostgreSQL that its clients set and read, and that do not change what statements mean here.
//!
//! | name | values |
//! |---|---|
//! | `application_name` | any text |
//! | `client_min_messages` | a level of messages |
//! | `extra_float_digits` | -15 to 3; floats are always written with the digits that restore them |
//! | `client_encoding`, `datestyle`, `intervalstyle`, `bytea_output`, `standard_conforming_strings`, … | the one that applies |
//! | `jit`, `escape_string_warning`, `lc_messages` | any text |
//! | names with a prefix (`app.user`) | any text: settings of the program |
//! | `server_version`, `server_version_num`, `server_encoding`, `integer_datetimes`, `max_identifier_length`, … | read-only |

use std::collections::BTreeMap;

use crate::{Error, Result};

/// The values of a setting.
enum Values {
    Any,
    /// One of these, in lower case.
    OneOf(&'static [&'static str]),
    /// Spellings of the only value, in lower case. A spelling that ends with a star stands for all texts that begin with it.
    Only(&'static [&'static str]),
    Number(i64, i64),
    ReadOnly,
}

use Values::{Any, Number, OneOf, Only, ReadOnly};

const ON: Values = Only(&["on", "true", "yes", "1"]);
const LEVELS: Values =
    OneOf(&["debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "info", "notice", "warning", "error"]);
/// Timeouts that do not exist here can be switched off only.
const NO_TIME: Values = Only(&["0", "0ms", "0s"]);

/// Name, value before any change, and permitted values, sorted by name.
const SETTINGS: [(&str, &str, Values); 21] = [
    ("application_name", "", Any),
    ("bytea_output", "hex", Only(&["hex"])),
    ("client_encoding", "UTF8", Only(&["utf8", "utf-8", "unicode"])),
    ("client_min_messages", "notice", LEVELS),
    ("datestyle", "ISO, YMD", Only(&["iso*"])),
    ("default_transaction_deferrable", "off", Only(&["off", "false", "no", "0"])),
    ("escape_string_warning", "on", Any),
    ("extra_float_digits", "1", Number(-15, 3)),
    ("idle_in_transaction_session_timeout", "0", NO_TIME),
    ("integer_datetimes", "on", ReadOnly),
    ("intervalstyle", "postgres", Only(&["postgres"])),
    ("jit", "off", Any),
    ("lc_messages", "C", Any),
    ("max_identifier_length", "63", ReadOnly),
    ("max_index_keys", "32", ReadOnly),
    ("row_security", "on", ON),
    ("server_encoding", "UTF8", ReadOnly),
    ("server_version", POSTGRESQL_VERSION, ReadOnly),
    ("server_version_num", "150000", ReadOnly),
    ("standard_conforming_strings", "on", ON),
    ("transaction_deferrable", "off", Only(&["off", "false", "no", "0"])),
];

const APPLICATION: &str = "application_name";
const APPLICATION_BYTES_MAX: usize = 63;
/// Maximum number of settings of the program, and of the bytes of each.
const OWN_MAX: usize = 1000;
const OWN_BYTES_MAX: usize = 16 << 10;

/// The version of PostgreSQL whose protocol and catalog clients may expect.
pub const POSTGRESQL_VERSION: &str = "15.0";

/// The settings that a session has changed.
#[derive(Debug, Clone, Default)]
pub struct ClientSettings {
    changed: Vec<(&'static str, String)>,
    /// Settings of the program, by name.
    own: BTreeMap<String, String>,
}

/// True for names of settings of programs: they have a prefix that does not belong to the database.
pub(super) fn is_own(name: &str) -> bool {
    let prefix = name.split_once('.').map(|(prefix, _)| prefix);
    prefix.is_some_and(|prefix| !prefix.is_empty() && !["keyaki", "datafusion"].contains(&prefix))
}

/// The name of an application, which other sessions see: as in PostgreSQL, up to 63 bytes without control characters.
fn application_name(value: &str) -> String {
    let name: String =
        value.chars().map(|c| if c.is_control() { '?' } else { c }).take(APPLICATION_BYTES_MAX).collect();
    name[..name.floor_char_boundary(APPLICATION_BYTES_MAX)].into()
}

impl ClientSettings {
    /// Checks that a setting of the program may have a value.
    ///
    /// # Errors
    /// `InvalidParameter`.
    fn check_size(&self, name: &str, value: &str) -> Result<()> {
        let is_valid =
            name.len() + value.len() <= OWN_BYTES_MAX && (self.own.len() < OWN_MAX || self.own.contains_key(name));
        match is_valid {
            true => Ok(()),
            false => Err(Error::InvalidParameter {
                name: name.chars().take(APPLICATION_BYTES_MAX).collect(),
                value: value.chars().take(APPLICATION_BYTES_MAX).collect(),
                expected: format!("at most {OWN_MAX} settings with a prefix, of {OWN_BYTES_MAX} bytes each"),
            }),
        }
    }

    /// Sets a setting. False if there is none with this name, in lower case.
    ///
    /// # Errors
    /// `InvalidParameter` for a value that is not permitted.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        let Some((name, default, values)) = SETTINGS.iter().find(|(known, ..)| *known == name) else {
            if is_own(name) {
                self.check_size(name, value)?;
                self.own.insert(name.into(), value.into());
            }
            return Ok(is_own(name));
        };
        let lower = value.trim().to_ascii_lowercase();
        let is_spelling = |spelling: &&str| match spelling.strip_suffix('*') {
            Some(start) => lower.starts_with(start),
            None => lower == **spelling,
        };
        let (is_valid, kept) = match values {
            Any if *name == APPLICATION => (true, Some(application_name(value))),
            Any => (true, Some(value.to_string())),
            OneOf(known) => (known.contains(&lower.as_str()), Some(lower.clone())),
            Only(spellings) => (spellings.iter().any(is_spelling), None),
            Number(least, most) => {
                (lower.parse().is_ok_and(|number| (least..=most).contains(&&number)), Some(lower.clone()))
            }
            ReadOnly => (value == *default, None),
        };
        if !is_valid {
            let expected = match values {
                OneOf(known) => format!("one of '{}'", known.join("', '")),
                Number(least, most) => format!("a number from {least} to {most}"),
                _ => format!("'{default}', the only value that is supported"),
            };
            return Err(Error::InvalidParameter { name: (*name).into(), value: value.into(), expected });
        }
        self.unset(name);
        self.changed.extend(kept.map(|value| (*name, value)));
        Ok(true)
    }

    /// Returns to the value before any change. False if there is no setting with this name.
    pub fn unset(&mut self, name: &str) -> bool {
        self.changed.retain(|(changed, _)| *changed != name);
        self.own.remove(name);
        is_own(name) || SETTINGS.iter().any(|(known, ..)| *known == name)
    }

    /// Returns to the value in other settings. False if there is no setting with this name.
    pub fn reset(&mut self, name: &str, initial: &ClientSettings) -> bool {
        let is_known = self.unset(name);
        self.changed.extend(initial.changed.iter().find(|(changed, _)| *changed == name).cloned());
        self.own.extend(initial.own.get(name).map(|value| (name.to_string(), value.clone())));
        is_known
    }

    /// The value of a setting; `None` if there is none with this name, in lower case.
    pub fn value(&self, name: &str) -> Option<&str> {
        let changed = self.changed.iter().find(|(changed, _)| *changed == name).map(|(_, value)| value);
        let default = || SETTINGS.iter().find(|(known, ..)| *known == name).map(|(_, default, _)| *default);
        changed.or_else(|| self.own.get(name)).map(String::as_str).or_else(default)
    }

    /// The names of the settings that were changed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.changed.iter().map(|(name, _)| *name).chain(self.own.keys().map(String::as_str))
    }

    /// The value of `application_name`.
    pub fn application(&self) -> &str {
        self.value(APPLICATION).unwrap_or_default()
    }

    /// Names and values of all settings.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = SETTINGS.iter().map(|(name, default, _)| {
            let changed = self.changed.iter().find(|(changed, _)| changed == name);
            (*name, changed.map_or(*default, |(_, value)| value.as_str()))
        });
        known.chain(self.own.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(settings: &ClientSettings, name: &str) -> String {
        settings.all().find(|(known, _)| *known == name).unwrap().1.into()
    }

    #[test]
    fn settings_are_kept_and_reset() {
        let mut settings = ClientSettings::default();
        assert!(SETTINGS.is_sorted_by_key(|(name, ..)| *name));
        assert!(settings.set("application_name", "My App").unwrap());
        assert!(settings.set("extra_float_digits", "3").unwrap() && settings.set("datestyle", "ISO, MDY").unwrap());
        assert!(settings.set("client_encoding", "utf-8").unwrap() && !settings.set("work_mem", "4MB").unwrap());
        assert_eq!(value(&settings, "application_name"), "My App");
        assert_eq!(value(&settings, "datestyle"), "ISO, YMD");
        assert_eq!(value(&settings, "client_encoding"), "UTF8");
        assert!(settings.unset("application_name") && !settings.unset("work_mem"));
        assert_eq!(
            (value(&settings, "application_name"), value(&settings, "extra_float_digits")),
            ("".into(), "3".into())
        );
        let mut initial = ClientSettings::default();
        assert!(initial.set("extra_float_digits", "2").unwrap() && initial.set("app.user", "default").unwrap());
        assert!(settings.reset("extra_float_digits", &initial) && settings.reset("app.user", &initial));
        assert_eq!((settings.value("extra_float_digits"), settings.value("app.user")), (Some("2"), Some("default")));
        assert_eq!((settings.value("app.other"), settings.value("jit")), (None, Some("off")));
        assert_eq!(settings.names().collect::<Vec<_>>(), ["extra_float_digits", "app.user"]);
    }

    #[test]
    fn other_values_are_errors() {
        let mut settings = ClientSettings::default();
        for (name, value) in [
            ("client_encoding", "latin1"),
            ("datestyle", "German"),
            ("extra_float_digits", "4"),
            ("extra_float_digits", "many"),
            ("idle_in_transaction_session_timeout", "5s"),
            ("server_version", "16"),
            ("client_min_messages", "loud"),
        ] {
            assert!(matches!(settings.set(name, value), Err(Error::InvalidParameter { .. })), "{name} = {value}");
        }
    }
}

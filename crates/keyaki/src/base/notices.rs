//! Notices: messages to the client of a session that are no errors.
//!
//! A session keeps the notices of its statements until its owner takes them. It keeps at most [`NOTICES_MAX`], and drops later
//! ones, so that an owner that never takes them loses no memory.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Maximum number of notices that a session keeps.
const NOTICES_MAX: usize = 1000;

/// The severity of a notice. The names and their order are those of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Information that may be useful.
    Notice,
    /// A likely problem.
    Warning,
}

impl Severity {
    /// PostgreSQL's name, in upper case.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Notice => "NOTICE",
            Severity::Warning => "WARNING",
        }
    }

    /// True if a session with this value of `client_min_messages` sends such notices.
    pub(crate) fn reaches(self, least: &str) -> bool {
        match least {
            "error" => false,
            "warning" => self >= Severity::Warning,
            _ => true,
        }
    }
}

/// A message of a statement that has succeeded, or has not failed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The severity.
    pub severity: Severity,
    /// The SQLSTATE.
    pub sqlstate: &'static str,
    /// The message, in one line.
    pub message: String,
    /// Further lines.
    pub detail: Option<String>,
}

/// The notices of a session that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    list: Mutex<Vec<Notice>>,
    /// True if `list` is not empty.
    has_any: AtomicBool,
}

impl Notices {
    pub fn add(&self, notice: Notice) {
        let mut list = self.list.lock();
        if list.len() < NOTICES_MAX {
            list.push(notice);
            self.has_any.store(true, Ordering::Relaxed);
        }
    }

    /// Removes and returns all notices, the oldest one first.
    pub fn take(&self) -> Vec<Notice> {
        match self.has_any.swap(false, Ordering::Relaxed) {
            true => std::mem::take(&mut *self.list.lock()),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(number: usize) -> Notice {
        let message = number.to_string();
        Notice { severity: Severity::Notice, sqlstate: "00000", message, detail: None }
    }

    #[test]
    fn notices_are_taken_once_and_bounded() {
        let notices = Notices::default();
        assert!(notices.take().is_empty());
        (0..2 * NOTICES_MAX).for_each(|number| notices.add(notice(number)));
        let taken = notices.take();
        assert_eq!((taken.len(), taken.first()), (NOTICES_MAX, Some(&notice(0))));
        assert!(notices.take().is_empty());
    }

    #[test]
    fn severities_are_compared_with_the_setting() {
        for (least, reached) in
            [("debug1", [true, true]), ("notice", [true, true]), ("warning", [false, true]), ("error", [false; 2])]
        {
            assert_eq!(
                [Severity::Notice, Severity::Warning].map(|severity| severity.reaches(least)),
                reached,
                "{least}"
            );
        }
    }
}

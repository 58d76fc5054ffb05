//! What a writer knows about the row of a message's key. The change of the number of rows follows from it.
//!
//! A writer that has looked up a key passes its knowledge on with the message. The messages of a key that are resolved
//! to one message keep the knowledge of the oldest one: the changes of the messages between them cancel out.

/// The writer's knowledge of the row of a key before a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prior {
    /// The key may have had a row.
    #[default]
    Unknown,
    /// The key had no row.
    Absent,
    /// The key had a row.
    Present,
}

impl Prior {
    /// As a number of two bits.
    pub(crate) fn to_number(self) -> u8 {
        self as u8
    }

    /// The inverse of [`Prior::to_number`]; `None` for other numbers.
    pub(crate) fn from_number(number: u64) -> Option<Prior> {
        Some(match number {
            0 => Prior::Unknown,
            1 => Prior::Absent,
            2 => Prior::Present,
            _ => return None,
        })
    }

    /// The number of rows of the key before the message; `None` if unknown.
    pub(crate) fn rows(self) -> Option<i64> {
        match self {
            Prior::Unknown => None,
            Prior::Absent => Some(0),
            Prior::Present => Some(1),
        }
    }
}

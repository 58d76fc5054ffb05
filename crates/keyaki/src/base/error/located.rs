//! Positions of errors in statements, and hints.

use std::fmt;

use super::Error;

/// A position in the text of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Counted from 1.
    pub line: u64,
    /// In characters, counted from 1.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The message, its position and its hint, for programs that show them apart.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// connection.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)", ())?;
/// let error = connection.query("SELECT *\nFROM custmer", ()).err().unwrap();
/// assert_eq!(error.message(), "relation \"custmer\" does not exist");
/// assert_eq!(error.position(), Some(keyaki::Position { line: 2, column: 6 }));
/// assert_eq!(error.hint(), Some("did you mean \"customer\"?"));
/// assert_eq!(error.to_string(), "relation \"custmer\" does not exist (did you mean \"customer\"?)");
/// # Ok(()) }
/// ```
impl Error {
    /// The message without position and hint.
    pub fn message(&self) -> String {
        match self {
            Error::Located { source, .. } => source.message(),
            Error::Syntax { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// The position in the text that was passed to the session, if the error is about a part of the text: an unexpected
    /// token, an unknown name, an invalid literal.
    pub fn position(&self) -> Option<Position> {
        match self {
            Error::Located { position, .. } | Error::Syntax { position, .. } => *position,
            _ => None,
        }
    }

    /// The error without its position, for a statement that was made of another text.
    #[must_use]
    pub fn without_position(self) -> Error {
        match self {
            Error::Located { source, hint: None, .. } => *source,
            Error::Located { source, hint, .. } => Error::Located { source, position: None, hint },
            Error::Syntax { message, .. } => Error::Syntax { message, position: None },
            other => other,
        }
    }

    /// What the statement may have meant, or how to correct it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Located { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }

    /// The underlying error, without [`Error::Located`], [`Error::Context`] and [`Error::Import`]; for matching.
    pub fn root(&self) -> &Error {
        match self {
            Error::Import { source, .. } | Error::Context { source, .. } | Error::Located { source, .. } => {
                source.root()
            }
            other => other,
        }
    }
}

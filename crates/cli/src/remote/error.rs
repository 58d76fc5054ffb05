//! Errors of servers and connections.

use std::fmt;
use std::io;
use std::path::PathBuf;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;

pub type Result<T> = std::result::Result<T, Error>;

/// The SQLSTATE of cancelled statements.
const CANCELLED: &str = "57014";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is malformed, or a setting is missing or wrong.
    #[error("{0}")]
    Usage(String),
    #[error("could not connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("could not read \"{}\": {problem}", .path.display())]
    File { path: PathBuf, problem: String },
    /// The server cannot or may not be authenticated, or asks for something that would be unsafe.
    #[error("{0}")]
    Refused(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the connection to the server was lost: {0}")]
    Lost(#[from] io::Error),
    #[error("the connection to the server is closed (.open connects again)")]
    Closed,
    #[error("{0}")]
    Server(Box<ServerError>),
    /// A value cannot be represented in the type that the server has declared.
    #[error("{0}")]
    Value(String),
    /// The server requires a password that was not given.
    #[error("the server requires a password")]
    PasswordRequired,
    #[error("cancelled")]
    Cancelled,
}

/// An error that a server has reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerError {
    pub severity: String,
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// Characters up to the problem in the statement, from 1.
    pub position: Option<usize>,
}

impl ServerError {
    pub fn new(mut fields: ErrorFields<'_>) -> ServerError {
        let mut error = ServerError::default();
        while let Ok(Some(field)) = fields.next() {
            let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'S' if error.severity.is_empty() => error.severity = value,
                // Not translated.
                b'V' => error.severity = value,
                b'C' => error.sqlstate = value,
                b'M' => error.message = value,
                b'D' => error.detail = Some(value),
                b'H' => error.hint = Some(value),
                b'P' => error.position = value.parse().ok(),
                _ => {}
            }
        }
        error
    }

    /// True if the statement was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.sqlstate == CANCELLED
    }

    /// Line and column of the problem in the statement, from 1.
    pub fn place(&self, statement: &str) -> Option<(u64, u64)> {
        let before = self.position?.checked_sub(1)?;
        let (mut line, mut column) = (1, 1);
        for c in statement.chars().take(before) {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        Some((line, column))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (name, text) in [("DETAIL", &self.detail), ("HINT", &self.hint)] {
            if let Some(text) = text {
                write!(f, "\n  {name}: {text}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let error = |position| ServerError { position: Some(position), ..ServerError::default() };
        assert_eq!(error(1).place("SELECT"), Some((1, 1)));
        assert_eq!(error(12).place("SELECT 'ä'\nx"), Some((2, 1)));
        assert_eq!(error(0).place("SELECT"), None);
        assert_eq!(ServerError::default().place("SELECT"), None);
    }
}

//! Errors as messages of the protocol.

use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::ErrorResponse;

/// The result of a part of a connection.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a request fails, or the connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A statement fails.
    #[error("{0}")]
    Sql(#[from] keyaki::Error),
    /// A request fails for a reason of the protocol.
    #[error("{message}")]
    Request {
        /// The SQLSTATE.
        code: &'static str,
        /// The message to the client.
        message: String,
    },
    /// The connection ends with a message to the client.
    #[error("{message}")]
    Fatal {
        /// The SQLSTATE.
        code: &'static str,
        /// The message to the client.
        message: String,
    },
    /// The client has closed the connection, or it is broken.
    #[error("{0}")]
    Closed(#[from] std::io::Error),
}

impl Failure {
    /// A failed request.
    pub fn sql(code: &'static str, message: impl Into<String>) -> Failure {
        Failure::Request { code, message: message.into() }
    }

    /// The failure without its position, of a statement that was made of the client's.
    pub fn without_position(self) -> Failure {
        match self {
            Failure::Sql(error) => Failure::Sql(error.without_position()),
            other => other,
        }
    }

    /// A message that the protocol does not permit here, or with a wrong content, within intact frames.
    pub fn protocol(message: impl Into<String>) -> Failure {
        Failure::sql("08P01", message)
    }

    /// The end of the connection.
    pub fn fatal(code: &'static str, message: impl Into<String>) -> Failure {
        Failure::Fatal { code, message: message.into() }
    }

    /// The length of a row's message without its type, as the protocol has it.
    ///
    /// # Errors
    /// 54000 for 2 GiB or more.
    pub fn message_len(bytes: usize) -> Result<i32> {
        i32::try_from(bytes)
            .map_err(|_| Failure::sql("54000", format!("a row of {bytes} bytes is too long for a message (2 GiB)")))
    }

    /// True if the connection ends.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Failure::Fatal { .. } | Failure::Closed(_))
    }

    /// The SQLSTATE.
    pub fn code(&self) -> &str {
        match self {
            Failure::Sql(error) => error.sqlstate().code(),
            Failure::Request { code, .. } | Failure::Fatal { code, .. } => code,
            Failure::Closed(_) => "08006",
        }
    }

    /// The message to the client. `text` is the text of the statement, which begins after `skipped` characters of the query.
    pub fn message(&self, text: &str, skipped: usize) -> PgWireBackendMessage {
        let severity = if self.is_fatal() { "FATAL" } else { "ERROR" };
        let mut fields =
            vec![(b'S', severity.to_string()), (b'V', severity.to_string()), (b'C', self.code().to_string())];
        match self {
            Failure::Sql(error) => sql_fields(error, text, skipped, &mut fields),
            other => fields.push((b'M', other.to_string())),
        }
        fields.iter_mut().for_each(|(_, value)| value.retain(|c| c != '\0'));
        PgWireBackendMessage::ErrorResponse(ErrorResponse::new(fields))
    }
}

/// The fields of an error of a statement.
fn sql_fields(error: &keyaki::Error, text: &str, skipped: usize, fields: &mut Vec<(u8, String)>) {
    // Position and hint have fields of their own.
    fields.push((b'M', error.message()));
    if let Some(hint) = error.hint() {
        fields.push((b'H', hint.to_string()));
    }
    if let Some(at) = error.position().filter(|_| !text.is_empty()) {
        let before = text.split('\n').take(at.line.saturating_sub(1) as usize);
        let lines: usize = before.map(|line| line.chars().count() + 1).sum();
        fields.push((b'P', (skipped + lines + at.column as usize).to_string()));
    }
    let named = |table: &String, constraint: &String| [(b't', table.clone()), (b'n', constraint.clone())];
    match error.root() {
        keyaki::Error::Constraint { kind: keyaki::ConstraintKind::NotNull, table, name, .. } => {
            fields.extend([(b't', table.clone()), (b'c', name.clone())]);
        }
        keyaki::Error::Constraint { table, name, .. }
        | keyaki::Error::CheckViolation { table, name, .. }
        | keyaki::Error::MissingReference { table, name, .. }
        | keyaki::Error::StillReferenced { table, name, .. } => fields.extend(named(table, name)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_position_and_hint() {
        let located = keyaki::Error::Located {
            source: Box::new(keyaki::Error::MissingFromEntry("x".into())),
            position: Some(keyaki::Position { line: 2, column: 3 }),
            hint: Some("add it".into()),
        };
        let PgWireBackendMessage::ErrorResponse(response) = Failure::Sql(located).message("SELECT 'ä'\n  x.y", 5)
        else {
            panic!("another message")
        };
        let field = |kind| response.fields.iter().find(|(other, _)| *other == kind).map(|(_, value)| value.as_str());
        assert_eq!(field(b'M'), Some("missing FROM-clause entry for table \"x\""));
        assert_eq!((field(b'C'), field(b'H')), (Some("42P01"), Some("add it")));
        // Of the characters of the whole query, from 1.
        assert_eq!(field(b'P'), Some("19"));
    }
}

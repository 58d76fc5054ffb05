//! Positions and hints for errors of statements.
//!
//! An error arises far from the text of its statement: in the catalog, in DataFusion, behind changes of the syntax
//! tree. It has the name that it is about, but no position. [`explained`] looks for the name among the tokens of the
//! statement ([`position`]), and for similar names of objects of the same kind ([`hints`]). Only statements that fail
//! pay for this.

mod hints;
mod position;
mod words;

use super::split::{self, Statement};
use super::{Executed, Outcome, SqlSession, roles};
use crate::base::interrupt::Execution;
use crate::{Error, Result};

/// Executes exactly one statement without parameters.
///
/// # Errors
/// Those of the statement, with positions in `sql` and hints.
pub(crate) async fn run_text(session: &SqlSession, execution: &Execution<'_>, sql: &str) -> Result<Executed> {
    match super::run_cached(session, execution, sql).await? {
        Some(executed) => Ok(executed),
        None => Box::pin(run(session, execution, &split::single(sql)?)).await.map(Executed::Outcome),
    }
}

/// Parses and executes a statement of a text that was passed to the session.
///
/// # Errors
/// Those of the statement, with positions in the text and hints.
pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: &Statement<'_>) -> Result<Outcome> {
    super::run(session, execution, statement).await.map_err(|error| explained(session, statement, error))
}

/// Adds position and hint to an error of a statement.
pub(crate) fn explained(session: &SqlSession, statement: &Statement<'_>, error: Error) -> Error {
    // The line of a position would show a password.
    if is_of_other_text(&error) || roles::has_secret(statement) {
        return error;
    }
    let error = match error {
        Error::Syntax { message, position: Some(at) } => {
            let position = position::of_unexpected(&statement.tokens, &message, at);
            Error::Syntax { message, position: Some(position) }
        }
        other => other,
    };
    let position = error.position().or_else(|| position::find(&statement.tokens, error.root()));
    let hint = hints::find(session, statement, error.root(), position);
    match hint.is_some() || position != error.position() {
        true => Error::Located { source: Box::new(error), position, hint },
        false => error,
    }
}

/// True for errors about another text than that of the statement: the definition of a view or of a column, a file. Those
/// of a statement within the statement have positions already.
fn is_of_other_text(error: &Error) -> bool {
    match error {
        Error::Context { context, source } if context.starts_with("subquery with ") => is_of_other_text(source),
        Error::Located { .. } | Error::Import { .. } | Error::Context { .. } => true,
        _ => false,
    }
}

//! The simple protocol: a text of any number of statements.

use keyaki::Outcome;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;

use super::client::{Client, Work};
use super::copying;
use super::statements::{Rows, columns, description, first_word, rows_tag, tag};
use crate::failure::Result;

/// Executes the statements of a text one after another, up to the first error. Several statements are one transaction, unless
/// they begin and end others.
///
/// # Errors
/// Those that end the connection.
pub async fn query(client: &mut Client, text: &str) -> Result<()> {
    client.is_skipping = false;
    // A failure of the protocol before has closed its portals, if it was in a transaction.
    client.portals.remove("");
    client.statements.remove("");
    client.start();
    let mut at = Place { text, skipped: 0 };
    if let Err(failure) = run(client, text, &mut at).await {
        if failure.is_fatal() {
            return Err(failure);
        }
        client.fail(&failure);
        client.wire.put(&failure.message(at.text, at.skipped))?;
        client.end_implicit(true).await?;
    }
    client.ready().await
}

/// The running statement in the text of the request.
struct Place<'a> {
    text: &'a str,
    /// Characters before it.
    skipped: usize,
}

async fn run<'a>(client: &mut Client, text: &'a str, at: &mut Place<'a>) -> Result<()> {
    // Most texts are one statement: they are not split, because execution looks them up in the plan cache first.
    if !text.contains(';') && !first_word(text).is_empty() {
        let complete = execute(client, text).await?;
        return client.put_complete(complete);
    }
    let statements = client.session.statements(text)?;
    if statements.is_empty() {
        return client.wire.put(&PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
    }
    let (mut rest, count) = (0, statements.len());
    for (index, statement) in statements.iter().enumerate() {
        let start = text[rest..].find(statement.as_str()).map_or(rest, |found| rest + found);
        rest = start + statement.len();
        *at = Place { text: &text[start..rest], skipped: text[..start].chars().count() };
        if count > 1 {
            client.start();
            client.begin_implicit(statement).await?;
        }
        let complete = match client.takes_over(statement) {
            true => "BEGIN".into(),
            false => execute(client, statement).await?,
        };
        if index + 1 == count {
            client.end_implicit(false).await?;
        }
        client.put_complete(complete)?;
        client.wire.flush_if_large().await?;
    }
    Ok(())
}

/// Executes a statement and sends its rows. Returns its tag.
async fn execute(client: &mut Client, text: &str) -> Result<String> {
    if first_word(text) == "COPY"
        && let Some(copy) = client.session.program_copy(text)?
    {
        return copying::run(client, copy).await;
    }
    match client.run(Work::Text(text)).await? {
        Outcome::Rows(stream) => {
            let columns = columns(&stream.schema(), &[])?;
            client.wire.put(&description(&columns))?;
            let mut rows = Rows::new(stream, columns, client.cancels());
            client.send(&mut rows, 0).await?;
            Ok(rows_tag(text, rows.sent))
        }
        outcome => Ok(tag(&outcome)),
    }
}
